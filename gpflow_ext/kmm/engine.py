"""Inference for `VGPKMM`-like site models: site updates, alternating with the hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.kmm import algorithm1, ascent
from gpflow_ext.kmm.ascent import State
from gpflow_ext.sites import Dense, Prior, Sites
from gpflow_ext.training import lbfgs
from gpflow_ext.training.loop import resolve_jit

Method: TypeAlias = Literal["parallel", "algorithm1"]

SINGLE_FROM = 256  # data; below, single precision saves less than another compiled loop costs


class SiteTarget(Protocol):
    """What the engine needs of a model with Gaussian sites."""

    @property
    def sites(self) -> Sites:
        """The current sites."""

    def assign_sites(self, new: Sites) -> None:
        """Replace the sites."""

    def prior(self) -> Prior:
        """Return the prior at the training inputs."""

    def expectation(self, mean: tf.Tensor, var: tf.Tensor, rows: tf.Tensor | None = None) -> tf.Tensor:
        """Return the bound of the expected log likelihood of all data, or of some rows."""

    def envelope(self, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        """Return a function of the hyperparameters with the gradient of the optimised bound."""

    def log_prior_density(self) -> tf.Tensor:
        """Return the log density of the priors of the hyperparameters."""


class SiteAscent(tf.Module):
    """One-step updates of the sites, compiled once, their state in variables that a checkpoint can hold.

    Parameters
    ----------
    target
        The model.
    method
        ``"parallel"``: the safeguarded parallel fixed point. ``"algorithm1"``: the paper's sweep.
    block
        Block size of the sweep; it does not change the iterates.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    single
        Whether a (re)start comes near the fixed point in single precision first; ``None`` does for the
        parallel fixed point on a dense prior in double precision of at least `SINGLE_FROM` data.
    """

    def __init__(
        self,
        target: SiteTarget,
        method: Method,
        block: int,
        jit_compile: bool | None,
        single: bool | None = None,
    ) -> None:
        super().__init__()
        if method not in ("parallel", "algorithm1"):
            raise ValueError(f'`method` must be "parallel" or "algorithm1"; got {method!r}.')
        self._target = target
        self._prior = tf.function(target.prior, autograph=False)
        self.prior = self._prior()
        if method == "algorithm1" and not isinstance(self.prior, Dense):
            raise ValueError(
                'method="algorithm1" sweeps over a dense covariance; with inducing variables use "parallel".'
            )
        if single is None:
            double = isinstance(self.prior, Dense) and self.prior.cov.dtype == tf.float64
            single = double and method == "parallel" and self.prior.mean.shape[0] >= SINGLE_FROM
        jit = resolve_jit(jit_compile)
        expectation = target.expectation

        def at_rows(rows: tf.Tensor, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
            return target.expectation(mean, var, rows)

        def restart(prior: Prior) -> tf.Tensor:
            initial = target.sites
            if single and isinstance(prior, Dense):
                initial = ascent.approach(prior, expectation, initial)
            first = ascent.start(prior, expectation, initial)
            if method == "algorithm1" and isinstance(prior, Dense):
                return move(first, [algorithm1.covariance(prior, first.prec)])
            return move(first, [])

        def step(prior: Prior) -> tf.Tensor:
            state, rest = self.state, self.point[len(State._fields) :]
            if method == "algorithm1" and isinstance(prior, Dense):
                new, V = algorithm1.sweep_step(prior, expectation, at_rows, state, rest[0], block)
                return move(new, [V])
            return move(ascent.parallel_step(prior, expectation, state), [])

        def move(state: State, rest: list[tf.Tensor]) -> tf.Tensor:
            """Take over a state; one that is not finite leaves everything as it was and returns NaN."""
            values, old = [*state, *rest], target.sites
            found = [*values, *state.sites]
            finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(part)) for part in found])
            for variable, value in zip(self.point, values, strict=True):
                variable.assign(tf.where(finite, value, variable))
            kept = (tf.where(finite, new, before) for new, before in zip(state.sites, old, strict=True))
            target.assign_sites(Sites(*kept))
            outcome = tf.stack([state.objective, ascent.stationarity(state)])
            return tf.where(finite, outcome, float("nan"))

        self._restart = tf.function(restart, jit_compile=jit, autograph=False)
        self._step = tf.function(step, jit_compile=jit, autograph=False)
        mean = self.prior.mean
        vector, scalar = tf.zeros_like(mean), tf.zeros([], mean.dtype)
        parts: list[tf.Tensor] = [*[vector] * 6, scalar, scalar, vector, vector]  # the fields of `State`
        if method == "algorithm1":
            parts.append(tf.zeros([mean.shape[1], mean.shape[0], mean.shape[0]], mean.dtype))
        self.point = [tf.Variable(part, trainable=False) for part in parts]
        self.started = tf.Variable(False, trainable=False)  # whether the choice between starts is made
        self.restart()

    @property
    def state(self) -> State:
        """The current point of the ascent."""
        return State(*(part.read_value() for part in self.point[: len(State._fields)]))

    def restart(self) -> tuple[float, float]:
        """Read the prior and the sites again after they moved; return the bound and the violation."""
        self.prior = self._prior()
        bound, violation = self._restart(self.prior).numpy()
        return float(bound), float(violation)

    def step(self) -> tuple[float, float]:
        """Do one iteration or sweep; return the bound and the largest violation of the fixed point."""
        bound, violation = self._step(self.prior).numpy()
        return float(bound), float(violation)

    def settle(self, max_steps: int, tolerance: float) -> tuple[float, float]:
        """Restart, then step until the violation or the gain is small; return the bound and the violation."""
        bound, violation = self.restart()
        for _ in range(max_steps):
            if not violation > tolerance:  # near, or NaN
                break
            previous = bound
            bound, violation = self.step()
            if not bound - previous > 1e-10 * max(1.0, abs(bound)):
                break
        return bound, violation


def site_update(
    ascent: SiteAscent, target: SiteTarget, stationarity: float
) -> Callable[[], tuple[float, bool]]:
    """Return the update that moves the sites alone, the hyperparameters being fixed."""
    log_prior = float(target.log_prior_density())

    def update() -> tuple[float, bool]:
        bound, violation = ascent.step()
        return bound + log_prior, violation <= stationarity

    return update


def alternating_update(
    ascent: SiteAscent,
    target: SiteTarget,
    variables: Sequence[tf.Variable],
    *,
    site_updates: int,
    hyper_updates: int,
    stationarity: float,
    jit_compile: bool | None,
    starts: Sequence[Sequence[tf.Tensor]] = (),
) -> Callable[[], tuple[float, bool]]:
    """Return the update that does ``hyper_updates`` iterations of L-BFGS on the optimised bound.

    Each evaluation alternates: the sites are brought to their fixed point at the new hyperparameters,
    warm-started from the last ones, and the gradient is that of the dual objective, the bound with the
    sites held fixed, exact there by the envelope theorem. A run that does not raise the objective is
    undone, so an update never lowers it. It depends on the variables of the model and of the ascent alone,
    so a restart from a checkpoint repeats it exactly. With ``starts``, further values of the variables, the
    first update climbs from each of them too and keeps the best.
    """
    assign = gpflow.optimizers.Scipy.assign_tensors

    @tf.function(jit_compile=resolve_jit(jit_compile), autograph=False)
    def gradient_at(mean: tf.Tensor, var: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            log_prior = target.log_prior_density()
            value = target.envelope(mean, var) + log_prior
        return log_prior, tape.gradient(value, variables, unconnected_gradients="zero")

    def evaluate() -> tuple[float, Sequence[tf.Tensor]]:
        bound, _ = ascent.settle(site_updates, 10.0 * stationarity)  # its square is the error of the bound
        state = ascent.state
        log_prior, gradient = gradient_at(state.mean, state.var)
        return bound + float(log_prior), gradient

    def climb() -> tuple[float, bool]:
        sites = target.sites
        if not lbfgs.climb(variables, evaluate, hyper_updates):
            target.assign_sites(sites)
        bound, violation = ascent.settle(site_updates, stationarity)
        return bound + float(target.log_prior_density()), violation <= stationarity

    def update() -> tuple[float, bool]:
        if not starts or ascent.started:
            return climb()
        ascent.started.assign(True)
        here, sites = [variable.read_value() for variable in variables], target.sites
        ends = []
        for values in (here, *starts):
            assign(variables, values)
            target.assign_sites(sites)
            ends.append((climb(), [variable.read_value() for variable in variables], target.sites))
        best, values, sites = max(ends, key=lambda end: np.nan_to_num(end[0][0], nan=-np.inf))
        assign(variables, values)
        target.assign_sites(sites)
        ascent.restart()
        return best

    return update
