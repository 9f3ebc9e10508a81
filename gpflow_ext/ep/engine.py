"""Parallel expectation propagation: damped sweeps over all sites, hyperparameters moved along or outside.

A step of `MomentMatcher` moves every site towards the one that matches its moments, by a share ρ <= 1, and
with an optimiser takes one gradient step of the hyperparameters in the same graph (Hernández-Lobato &
Hernández-Lobato 2016, their batch method). Then B = I + AΛAᵀ, the cavities, the evidence and the next
sites are evaluated once, and the step is undone where these are not sound.

Parallel sweeps at ρ = 1 overshoot where many data share what they see: the change of the sites, r, alternates
in sign. So by default ρ is the secant (Barzilai-Borwein) estimate ρ ← ρ ⟨r₋, r₋⟩ / ⟨r₋, r₋ − r⟩ kept within
[0.1, 1]: exact for one dominant mode, never an over-relaxation, 1 where nothing alternates. It does not move
the fixed point. Where a datum has several factors the upper end is 100: factors that compare latent functions
do not see their sum, along which plain sweeps take thousands of steps, over-relaxed ones some two hundred.
log Z is not monotone along the way and decides nothing but convergence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from gpflow_ext.ep import moment_matching
from gpflow_ext.ep.moment_matching import Layout
from gpflow_ext.sites import Projection, Sites
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.solver import Evaluation, Progress

SMALLEST_DAMPING = 0.1
LARGEST_RELAXATION = 100.0  # where a datum has several factors
ATTEMPTS = 20  # of a step, each with half the length of the last


class FactoredModel(Protocol):
    """What the engine needs of a model whose sites stand for factors of the likelihood."""

    @property
    def sites(self) -> Sites:
        """The current sites."""

    def assign_sites(self, new: Sites) -> None:
        """Replace the sites."""

    def gram(self) -> tf.Tensor:
        """Return K_uu, [M, M]."""

    def prior(self, X: None = None, chol: tf.Tensor | None = None) -> Projection:
        """Return the prior at the training inputs, for the Cholesky factor of K_uu where it is known."""

    def log_normaliser(self, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        """Return log ∫ p(yₙ | f) N(f; mean, var) df for all data, [N]."""

    def layout(self) -> Layout:
        """Return which latent functions each factor sees."""

    def log_prior_density(self) -> tf.Tensor:
        """Return the log density of the priors of the hyperparameters."""


class Evaluated(NamedTuple):
    """All that a step needs to know at given sites and hyperparameters."""

    objective: tf.Tensor  # log Z plus the log prior density, []
    proposal: Sites  # the sites that match the moments, in the shape of the sites
    violation: tf.Tensor  # largest change of a site that they propose, relative to 1 + |prec|, []
    sound: tf.Tensor  # whether all of it is finite, B and the cavity variances are positive, []
    gradient: list[tf.Tensor]  # of the objective in the hyperparameters, where these move


def evaluate(target: FactoredModel, prior: Projection, sites: Sites) -> Evaluated:
    """Evaluate the evidence and match the moments of all factors. O(NM²): one Cholesky factorisation."""
    layout = target.layout()
    at = moment_matching.evaluate(prior, target.log_normaliser, sites, layout=layout)
    residual = layout.select(prior.residual)
    proposal, violation, finite = match(target.log_normaliser, at.cavity, residual, sites)
    return Evaluated(at.log_evidence + target.log_prior_density(), proposal, violation, at.sound & finite, [])


def match(
    log_normaliser: moment_matching.LogNormaliser,
    cavity: moment_matching.Cavity,
    residual: tf.Tensor,
    sites: Sites,
) -> tuple[Sites, tf.Tensor, tf.Tensor]:
    """Return the matching sites, the largest relative change that they are, and whether all are finite."""
    proposal = moment_matching.matched_sites(log_normaliser, cavity, residual)
    change = tf.maximum(tf.abs(proposal.nat1 - sites.nat1), tf.abs(proposal.prec - sites.prec))
    violation = tf.reduce_max(change / (1.0 + tf.abs(sites.prec)))
    return proposal, violation, tf.math.is_finite(tf.reduce_sum(change))


def evaluate_with_gradient(
    target: FactoredModel, variables: Sequence[tf.Variable], sites: Sites
) -> Evaluated:
    """Return `evaluate` and the gradient of its objective with the sites held fixed, the cavities not."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(variables)
        chol = tf.stop_gradient(tf.linalg.cholesky(target.gram()))  # its derivative is cheaper in closed form
        point = evaluate(target, target.prior(None, chol), sites)
    gradient = tape.gradient(point.objective, variables, unconnected_gradients="zero")
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(part)) for part in gradient])
    return point._replace(gradient=gradient, sound=point.sound & finite)


def largest_relaxation(nat1: tf.Tensor) -> float:
    """Return the upper end of ρ for sites of this shape, [N, L] or [N, F, L']."""
    return 1.0 if nat1.shape.rank == 2 else LARGEST_RELAXATION


def relaxation(
    direction: tf.Tensor,
    before: tf.Tensor,
    length: tf.Tensor,
    longest: float,
    total: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Return ρ of the next sweep, [], the secant estimate within its bounds.

    Parameters
    ----------
    direction, before
        The changes that this sweep and the last one propose, nat1 and prec stacked, [2, N, L].
    length
        ρ of the last sweep, 0 if there was none, [].
    longest
        The upper end of ρ.
    total
        Sums values [K, N, L] over all factors, [K].
    """
    products = tf.stack([before**2, before * direction])  # [2, 2, N, L]
    last, along = tf.unstack(total(tf.reduce_sum(products, axis=1)))
    turned = last - along
    known = (turned > 0.0) & (length > 0.0)
    secant = tf.where(known, length * last / turned, tf.ones_like(last))
    return tf.clip_by_value(secant, SMALLEST_DAMPING, longest)


def sum_over_factors(values: tf.Tensor) -> tf.Tensor:
    """Return the sum of values [K, N, ...] over all but the first axis, [K]."""
    return tf.reduce_sum(values, axis=list(range(1, values.shape.rank)))


class Factors(Protocol):
    """Where the factors of a model are evaluated: all at once, or in shards."""

    def prior(self) -> Any:
        """Return the prior at the data, in the form that ``at`` takes."""

    def at(self, prior: Any, sites: Sites) -> Evaluated:
        """Return `evaluate` of all factors."""

    def with_gradient(self, variables: Sequence[tf.Variable], sites: Sites) -> Evaluated:
        """Return `evaluate_with_gradient` of all factors."""

    def sum(self, values: tf.Tensor) -> tf.Tensor:
        """Return the sum of values [K, N, ...] over all but the first axis, [K]."""


class WholeFactors:
    """All factors of a model at once."""

    def __init__(self, target: FactoredModel) -> None:
        self._target = target

    def prior(self) -> Projection:
        """Return the prior at the data."""
        return self._target.prior()

    def at(self, prior: Projection, sites: Sites) -> Evaluated:
        """Return `evaluate`."""
        return evaluate(self._target, prior, sites)

    def with_gradient(self, variables: Sequence[tf.Variable], sites: Sites) -> Evaluated:
        """Return `evaluate_with_gradient`."""
        return evaluate_with_gradient(self._target, variables, sites)

    def sum(self, values: tf.Tensor) -> tf.Tensor:
        """See `sum_over_factors`."""
        return sum_over_factors(values)


class MomentMatcher(tf.Module):
    """Sweeps over the sites, compiled once, their state in variables that a checkpoint can hold.

    Parameters
    ----------
    target
        The model.
    variables
        Its hyperparameters.
    optimizer
        A tf_keras optimiser built on them that takes one step in each sweep; ``None`` holds them fixed.
    damping
        The share ρ of the way to the matching sites; ``None`` adapts it.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    factors
        Where its factors are evaluated; all at once by default.
    """

    def __init__(
        self,
        target: FactoredModel,
        variables: Sequence[tf.Variable],
        optimizer: Any | None,
        damping: float | None,
        jit_compile: bool | None,
        factors: Factors | None = None,
    ) -> None:
        super().__init__()
        if damping is not None and not 0.0 < damping <= 1.0:
            raise ValueError(f"`damping` must be in (0, 1]; got {damping}.")
        self._target, self._damping, self._optimizer = target, damping, optimizer
        self._moving = [] if optimizer is None else list(variables)
        self._moved = [*self._moving, *([] if optimizer is None else optimizer.variables)]
        jit = resolve_jit(jit_compile)
        factors = WholeFactors(target) if factors is None else factors
        self._prior = tf.function(factors.prior, autograph=False)
        self._sum = factors.sum
        self._fixed: Any = None

        def with_gradient(sites: Sites) -> Evaluated:
            return factors.with_gradient(variables, sites)

        self._at = tf.function(factors.at, jit_compile=jit, autograph=False)
        self._with_gradient = tf.function(with_gradient, jit_compile=jit, autograph=False)
        self._step = tf.function(self._take, autograph=False)
        nat1 = target.sites.nat1
        self._longest = largest_relaxation(nat1)
        dtype, shape = nat1.dtype, [2, *nat1.shape]
        self.proposal = tf.Variable(tf.zeros(shape, dtype), trainable=False)  # nat1 and prec, stacked
        self.direction = tf.Variable(tf.zeros(shape, dtype), trainable=False)  # of the last step, not damped
        self.length = tf.Variable(tf.zeros([], dtype), trainable=False)  # ρ of the last step
        self.gradient = [tf.Variable(tf.zeros_like(v), trainable=False) for v in self._moving]
        self.started = tf.Variable(False, trainable=False)

    @property
    def state(self) -> list[tf.Variable]:
        """What a step changes besides the model."""
        optimizer = [] if self._optimizer is None else self._optimizer.variables
        return [self.proposal, self.direction, self.length, *self.gradient, self.started, *optimizer]

    def start(self) -> Progress:
        """See `Solver`.

        Where the sites are not sound there, they are set to zero. NaN if even that does not help.
        """
        self._fixed = None
        point = self._evaluate(self._target.sites)
        if not bool(point.sound):
            self._target.assign_sites(Sites(*(tf.zeros_like(part) for part in self._target.sites)))
            point = self._evaluate(self._target.sites)
        self._keep(point, tf.zeros_like(self.direction), tf.zeros_like(self.length), True)
        self.started.assign(True)
        return Progress(float(point.objective) if bool(point.sound) else np.nan, float(point.violation))

    def step(self) -> Progress:
        """Do one sweep, and one step of the optimiser.

        A step that is not sound is undone and repeated at half the length; NaN if none of them is.
        """
        if not self.started and not np.isfinite(self.start().objective):
            return Progress(np.nan, np.inf)
        for attempt in range(ATTEMPTS):
            objective, violation, sound = self._run(0.5**attempt)
            if sound:
                return Progress(float(objective), float(violation))
        return Progress(np.nan, np.inf)

    def settle(self, max_steps: int, tolerance: float) -> Progress:
        """Start, then step until the violation is within the tolerance; NaN where log Z is not finite."""
        progress = self.start()
        for _ in range(max_steps):
            if progress.violation <= tolerance or not np.isfinite(progress.objective):
                break
            progress = self.step()
        return progress if np.isfinite(progress.objective) else Progress(np.nan, np.nan)

    def evaluate(self, max_steps: int, tolerance: float) -> Evaluation:
        """See `SiteSolver`."""
        violation = self.settle(max_steps, tolerance).violation
        objective, gradient = self.differentiate()
        return Evaluation(np.nan if np.isnan(violation) else objective, violation, gradient)

    def differentiate(self) -> tuple[float, Sequence[tf.Tensor]]:
        """Return log Z at the present sites and its gradient in the hyperparameters."""
        point = self._with_gradient(self._target.sites)
        return float(point.objective), point.gradient

    def _evaluate(self, sites: Sites) -> Evaluated:
        return self._with_gradient(sites) if self._moving else self._at(self._cached_prior(), sites)

    def _cached_prior(self) -> Any:
        if self._fixed is None:
            self._fixed = self._prior()
        return self._fixed

    def _run(self, share: float) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        prior = None if self._moving else self._cached_prior()
        return self._step(prior, tf.constant(share, self.length.dtype))

    def _take(self, prior: Any, share: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Try a step of the given share of its length, and commit or undo it."""
        old = self._target.sites
        kept = [variable.read_value() for variable in self._moved]
        direction = self.proposal - tf.stack(old)
        length = share * self._length(direction)
        new = Sites(*tf.unstack(tf.stack(old) + length * direction))
        if self._moving:
            descent = [-part for part in self.gradient]
            self._optimizer.apply_gradients(zip(descent, self._moving, strict=True))  # type: ignore[union-attr]
            for variable, before in zip(self._moving, kept, strict=False):
                variable.assign(before + tf.cast(share, variable.dtype) * (variable - before))
        point = self._with_gradient(new) if self._moving else self._at(prior, new)
        self._target.assign_sites(
            Sites(*(tf.where(point.sound, a, b) for a, b in zip(new, old, strict=True)))
        )
        for variable, before in zip(self._moved, kept, strict=True):
            variable.assign(tf.where(point.sound, variable, before))
        self._keep(point, direction, length, point.sound)
        return point.objective, point.violation, point.sound

    def _length(self, direction: tf.Tensor) -> tf.Tensor:
        """Return ρ of the next step."""
        if self._damping is not None:
            return tf.constant(self._damping, direction.dtype)
        return relaxation(direction, self.direction, self.length, self._longest, self._sum)

    def _keep(self, point: Evaluated, direction: tf.Tensor, length: tf.Tensor, sound: Any) -> None:
        """Store what the next step reads, where the step was sound."""
        stored = [self.proposal, self.direction, self.length, *self.gradient]
        values = [tf.stack(point.proposal), direction, length, *point.gradient]
        for variable, value in zip(stored, values, strict=False):
            variable.assign(tf.where(sound, value, variable))
