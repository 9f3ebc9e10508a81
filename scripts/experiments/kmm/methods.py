"""Inference methods, ours and others', behind one interface: built and compiled once, then run against the clock.

A builder takes a `Problem` and returns a `Runner`; a runner starts from the same point each time it is called
and returns a `Trace`. Hyperparameters can be moved between runs with `Problem.set`, without compiling again.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import gpflow
import numpy as np
import scipy.optimize
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.kmm.recipe import kmm
from gpflow_ext.sites import Sites
from gpflow_ext.training.solver import Evaluation

from ...shared.flops import Counter

REJECTED = 1e25  # the loss that sends a line search back from where the objective is not finite
GAMMAS = (1.0, 0.5, 0.2)  # step lengths of the natural gradient, the first that does not diverge is kept


@dataclass(frozen=True)
class Limit:
    """When a run ends: at a target of the objective, after some seconds or evaluations, or by itself."""

    target: float = math.inf
    seconds: float = math.inf
    evaluations: int = 1000_000
    counter: Counter | None = None


class Trace:
    """The best objective, the seconds and the operations after each evaluation of a run that begins now."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.objective: list[float] = []
        self.seconds: list[float] = []
        self.flops: list[float] = []
        self.iterations: list[int] = []  # index of the evaluation that ended each iteration of the method
        self._paused = 0.0
        if limit.counter is not None:
            limit.counter.reset()
        self._begin = time.perf_counter()

    def add(self, objective: float, iteration: bool = True) -> None:
        """Record an evaluation, and whether it ends an iteration."""
        self.seconds.append(time.perf_counter() - self._begin - self._paused)
        best = self.objective[-1] if self.objective else -math.inf
        self.objective.append(max(best, objective) if math.isfinite(objective) else best)
        self.flops.append(self.limit.counter.flops if self.limit.counter else math.nan)
        if iteration:
            self.mark()

    def mark(self) -> None:
        """Take the last evaluation as the end of an iteration."""
        self.iterations.append(len(self.objective) - 1)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock, for what a user of the method would not compute."""
        begin = time.perf_counter()
        yield
        self._paused += time.perf_counter() - begin

    @property
    def done(self) -> bool:
        """Whether a limit was reached."""
        limit = self.limit
        return (
            self.objective[-1] >= limit.target
            or self.seconds[-1] >= limit.seconds
            or len(self.objective) >= limit.evaluations
        )

    def reached(self, target: float) -> int | None:
        """Return the index of the first evaluation whose best objective is at the target, if there is one."""
        found = np.flatnonzero(np.array(self.objective) >= target)
        return int(found[0]) if found.size else None


Runner: TypeAlias = Callable[[Limit], Trace]


@dataclass(frozen=True)
class Problem:
    """Data, a likelihood, and a squared-exponential kernel σ² exp(−r²/2s) whose values can be moved."""

    data: tuple[Any, Any]
    likelihood: Callable[[], gpflow.likelihoods.Likelihood]
    kernel: gpflow.kernels.SquaredExponential
    learn: bool = False

    @classmethod
    def new(cls, data: tuple[Any, Any], likelihood: Callable[[], Any], learn: bool = False) -> Problem:
        """Return a problem with a kernel of its own, at s = σ = 1."""
        return cls(data, likelihood, gpflow.kernels.SquaredExponential(), learn)

    def set(self, log_s: float, log_sigma: float) -> Problem:
        """Move the kernel to the paper's hyperparameters: s is a squared length scale, σ a deviation."""
        self.kernel.lengthscales.assign(math.exp(log_s / 2))
        self.kernel.variance.assign(math.exp(2 * log_sigma))
        return self

    @property
    def plain(self) -> tuple[float, float]:
        """The kernel's variance and length scale as numbers."""
        return float(self.kernel.variance.numpy()), float(self.kernel.lengthscales.numpy())

    def build(self, model_class: Any, kernel: Any = None, **options: Any) -> Any:
        """Return a model of the problem; without ``learn`` only its variational parameters are trainable."""
        likelihood = self.likelihood()
        latents = likelihood.latent_dim or 1
        model = model_class(self.data, kernel or self.kernel, likelihood, num_latent_gps=latents, **options)
        for part in (model.kernel, model.likelihood):
            gpflow.set_trainable(part, self.learn)
        return model


def ours(problem: Problem, method: str = "parallel", model: Any = None) -> Runner:
    """`VGPKMM`; an evaluation is a step of its recipe, the first one the starting point.

    With learnt hyperparameters it is the optimised bound at one value of them.
    """
    model = problem.build(gpx.models.VGPKMM) if model is None else model
    plan = kmm(model, method=method)
    solver: Any = plan.solver
    hypers = list(model.trainable_variables)
    start = [variable.read_value() for variable in hypers]
    zeros = tf.zeros_like(model.nat1)
    evaluate: Any = solver.solver.evaluate if hypers else None
    if not hypers:
        solver.updates = 1

    def recorded(trace: Trace) -> Callable[[int, float], Evaluation]:
        def evaluate_and_add(max_steps: int, tolerance: float) -> Evaluation:
            found = evaluate(max_steps, tolerance)
            trace.add(found.objective)
            return found

        return evaluate_and_add

    def run(limit: Limit) -> Trace:
        for variable, value in zip(hypers, start, strict=True):
            variable.assign(value)
        model.assign_sites(Sites(zeros, zeros))
        trace = Trace(limit)
        trace.add(solver.start().objective)
        if hypers:
            solver.solver.evaluate = recorded(trace)
        while not trace.done:
            before = trace.objective[-1]
            value, _ = plan.update()
            trace.add(value)
            if value - before <= (1e-8 if hypers else 1e-10) * abs(value):
                break
        return trace

    return run


def lbfgs(loss: Callable[[], tf.Tensor], variables: Sequence[tf.Variable]) -> Runner:
    """SciPy's L-BFGS as GPflow calls it, started afresh where its line search gives up; it leaves the best point."""
    pack, unpack = gpflow.optimizers.Scipy.pack_tensors, gpflow.optimizers.Scipy.unpack_tensors
    start = pack(variables).numpy()

    @tf.function
    def value_and_gradient(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        for variable, part in zip(variables, unpack(variables, x), strict=True):
            variable.assign(part)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            value = loss()
        return value, pack(tape.gradient(value, variables))

    def run(limit: Limit) -> Trace:
        trace = Trace(limit)
        x = best = start

        def evaluate(x: Any) -> tuple[float, Any]:
            nonlocal best
            value, gradient = value_and_gradient(tf.constant(x))
            trace.add(-float(value), iteration=not trace.objective)
            if trace.objective[-1] == -float(value):
                best = x.copy()
            if trace.done:
                raise _Done
            if not (np.isfinite(value) and np.isfinite(gradient).all()):
                return REJECTED, np.zeros_like(x)
            return float(value), gradient.numpy()

        options = {"maxiter": 10**6, "maxfun": 10**6, "ftol": 0.0, "gtol": 1e-10}
        lowest = math.inf
        with contextlib.suppress(_Done):
            while True:
                outcome = scipy.optimize.minimize(
                    evaluate, x, jac=True, method="L-BFGS-B", callback=lambda _: trace.mark(), options=options
                )
                if not outcome.fun < lowest - 1e-6:
                    break
                x, lowest = outcome.x, outcome.fun
        for variable, part in zip(variables, unpack(variables, tf.constant(best)), strict=True):
            variable.assign(part)
        return trace

    return run


class _Done(Exception):
    """Leaves an optimiser that has no way out of its own."""


def vgp_lbfgs(problem: Problem, model: Any = None) -> Runner:
    """GPflow's `VGP`: the full mean and covariance by L-BFGS."""
    model = problem.build(gpflow.models.VGP) if model is None else model
    return lbfgs(model.training_loss, model.trainable_variables)


def opper_archambeau(problem: Problem, model_class: Any = gpflow.models.VGPOpperArchambeau) -> Runner:
    """GPflow's `VGPOpperArchambeau`: 2N parameters by L-BFGS; white noise stands for the others' jitter."""
    noise = gpflow.kernels.White(gpflow.default_jitter())
    model = problem.build(model_class, problem.kernel + noise)
    return lbfgs(model.training_loss, model.trainable_variables)


class WhitenedOpperArchambeau(gpflow.models.VGPOpperArchambeau):
    """The same with v for α = L⁻ᵀv, K = LLᵀ, so that the Hessian in the mean is I + LᵀΛL in place of K + KΛK."""

    @property
    def q_alpha(self) -> Any:
        """What multiplies K in the mean, [N, L]."""
        return self._alpha

    @q_alpha.setter
    def q_alpha(self, value: gpflow.Parameter) -> None:
        self.v = self._alpha = value

    def elbo(self) -> tf.Tensor:
        """Return the bound, []. O(LN³)."""
        chol = tf.linalg.cholesky(self.kernel(self.data[0]))
        self._alpha = tf.linalg.triangular_solve(chol, tf.convert_to_tensor(self.v), adjoint=True)
        return super().elbo()


def vgp_natural_gradient(problem: Problem) -> Runner:
    """GPflow's `VGP` by natural gradients; evaluating its objective after a step is not timed."""
    model = problem.build(gpflow.models.VGP)
    gamma = tf.Variable(1.0, dtype=gpflow.default_float())
    optimizer = gpflow.optimizers.NaturalGradient(gamma)
    start = model.q_mu.numpy(), model.q_sqrt.numpy()
    objective = tf.function(model.elbo)
    candidates = list(GAMMAS)

    @tf.function
    def step() -> None:
        optimizer.minimize(model.training_loss, [(model.q_mu, model.q_sqrt)])

    def attempt(limit: Limit) -> Trace:
        model.q_mu.assign(start[0])
        model.q_sqrt.assign(start[1])
        trace = Trace(limit)
        first = -math.inf
        while not trace.objective or not trace.done:
            step()
            with trace.paused():
                value = float(objective())
            trace.add(value)
            if len(trace.objective) == 1:
                first = value
            if not value >= first - abs(first):
                break
        return trace

    def run(limit: Limit) -> Trace:
        while True:
            gamma.assign(candidates[0])
            with contextlib.suppress(tf.errors.InvalidArgumentError):
                trace = attempt(limit)
                if trace.done or len(candidates) == 1:
                    return trace
            candidates.pop(0)

    return run
