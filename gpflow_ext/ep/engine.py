"""Parallel expectation propagation: damped sweeps over all sites, with the hyperparameters moved or held.

A step of `MomentMatcher` moves every site towards the one that matches its moments, by a share ρ <= 1, and
with an optimiser takes one gradient step of the hyperparameters in the same graph (Hernández-Lobato &
Hernández-Lobato 2016, their batch method). Then B = I + AΛAᵀ, the cavities, the evidence and the next
sites are evaluated once, and the step is undone where these are not sound.

Where only the sites move, sweeps mix; see `ep.sweeps`. Where the hyperparameters move along, or the data are
sharded, ρ is the secant estimate of that module alone. Its upper end is then 100 where a datum has several
latent functions: factors that compare these do not see their sum, along which plain sweeps take up to
thousands of steps, over-relaxed ones two hundred. log Z is not monotone along the way and decides nothing but
convergence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.ep import sweeps
from gpflow_ext.ep.factors import Evaluated, FactoredModel, Factors, WholeFactors
from gpflow_ext.numerics import anderson
from gpflow_ext.sites import Sites
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.solver import Evaluation, Progress

LARGEST_RELAXATION = 100.0  # where a datum has several latent functions


def largest_relaxation(nat1: tf.Tensor) -> float:
    """Return the upper end of ρ for sites of this shape, [N, L] or [N, F, L']."""
    return 1.0 if nat1.shape[1:] == [1] else LARGEST_RELAXATION


def check_damping(damping: float | None) -> None:
    """Raise ``ValueError`` for a share of the way that is not in (0, 1]."""
    if damping is not None and not 0.0 < damping <= 1.0:
        raise ValueError(f"`damping` must be in (0, 1]; got {damping}.")


class Sweeps:
    """Functions to compile: the sweeps, with the variables that they remember between them.

    Parameters
    ----------
    target
        The model.
    factors
        Where its factors are evaluated.
    variables
        Its hyperparameters.
    optimizer
        A tf_keras optimiser that moves them in each sweep; ``None`` holds them fixed.
    """

    def __init__(
        self, target: FactoredModel, factors: Factors, variables: Sequence[tf.Variable], optimizer: Any | None
    ) -> None:
        self._target, self._factors, self._optimizer = target, factors, optimizer
        self._variables = list(variables)
        self.moving = [] if optimizer is None else list(variables)
        nat1 = target.sites.nat1
        self._longest = largest_relaxation(nat1)
        zeros, open_rows = tf.zeros([2, *nat1.shape], nat1.dtype), [2, None, *nat1.shape[1:]]
        self.proposal = tf.Variable(zeros, False, shape=open_rows)  # nat1 and prec, stacked
        self.direction = tf.Variable(zeros, False, shape=open_rows)  # of the last step, not damped
        self.length = tf.Variable(tf.zeros([], nat1.dtype), False)  # ρ of the last step
        self.gradient = [tf.Variable(tf.zeros_like(v), False) for v in self.moving]
        self.rest: list[tf.Variable] = []  # of what it remembers

    def prior(self) -> Any:
        """Return the prior at the data."""
        return self._factors.prior()

    def differentiate(self) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return log Z at the current sites and its gradient in the hyperparameters."""
        point = self._factors.with_gradient(self._variables, self._target.sites)
        return point.objective, point.gradient

    def take(self, prior: Any, share: tf.Tensor, damping: tf.Tensor) -> tf.Tensor:
        """Try a step of a share of its length, and commit or undo it; the share 0 begins where the sites are.

        Parameters
        ----------
        prior
            What `prior` returns; empty where the hyperparameters move.
        share
            Part of the step that is taken, [].
        damping
            ρ of a whole step; NaN adapts it, [].

        Returns
        -------
        log Z plus the log prior density, the violation, and 1 if the step was sound, else 0; [3].
        """
        old, begins = self._target.sites, tf.equal(share, 0.0)
        moved = [*self.moving, *([] if self._optimizer is None else self._optimizer.variables)]
        kept = [variable.read_value() for variable in moved]
        change = self.proposal - tf.stack(old)
        direction = tf.where(begins, tf.zeros_like(change), change)
        length = share * self._length(direction, damping)
        new = Sites(*tf.unstack(tf.stack(old) + length * direction))
        if self.moving:
            self._descend(kept, share, begins)
            point = self._factors.with_gradient(self.moving, new)
        else:
            point = self._factors.at(prior, new)
        pairs = zip(new, old, strict=True)
        self._target.assign_sites(Sites(*(tf.where(point.sound, a, b) for a, b in pairs)))
        for variable, before in zip(moved, kept, strict=True):
            variable.assign(tf.where(point.sound & ~begins, variable, before))
        self._keep(point, direction, length)
        return tf.stack([point.objective, point.violation, tf.cast(point.sound, length.dtype)])

    def _length(self, direction: tf.Tensor, damping: tf.Tensor) -> tf.Tensor:
        """Return ρ of the next step."""
        total = self._factors.sum
        secant = sweeps.relaxation(direction, self.direction, self.length, self._longest, total)
        return tf.where(tf.math.is_nan(damping), secant, damping)

    def _descend(self, kept: Sequence[tf.Tensor], share: tf.Tensor, begins: tf.Tensor) -> None:
        """Take a share of a step of the optimiser, none of it where a run begins."""
        descent = [-part for part in self.gradient]
        self._optimizer.apply_gradients(zip(descent, self.moving, strict=True))  # type: ignore[union-attr]
        for variable, before in zip(self.moving, kept, strict=False):
            part = before + tf.cast(share, variable.dtype) * (variable - before)
            variable.assign(tf.where(begins, before, part))

    def _keep(self, point: Evaluated, direction: tf.Tensor, length: tf.Tensor) -> None:
        """Store what the next step reads, where the step was sound."""
        stored = [self.proposal, self.direction, self.length, *self.gradient]
        values = [tf.stack(point.proposal), direction, length, *point.gradient]
        for variable, value in zip(stored, values, strict=False):
            variable.assign(tf.where(point.sound, value, variable))


class MixedSweeps(Sweeps):
    """Those that mix, of all factors at once, the hyperparameters held fixed."""

    def __init__(self, target: FactoredModel, variables: Sequence[tf.Variable]) -> None:
        super().__init__(target, WholeFactors(target), variables, None)
        path = sweeps.beginning(self.proposal)
        points = tf.Variable(path.memory.points, False, shape=[sweeps.MEMORY, None])
        residuals = tf.Variable(path.memory.residuals, False, shape=[sweeps.MEMORY, None])
        rest = (tf.Variable(part, False) for part in (path.memory.count, path.least, path.pause))
        self.rest = [points, residuals, *rest]

    def take(self, prior: Any, share: tf.Tensor, damping: tf.Tensor) -> tf.Tensor:
        """See `Sweeps.take`; the damping is adapted."""
        old, begins = tf.stack(self._target.sites), tf.equal(share, 0.0)
        proposal = tf.where(begins, old, self.proposal)
        points, residuals, count, least, pause = (part.read_value() for part in self.rest)
        path = sweeps.Path(
            self.direction.read_value(),
            self.length.read_value(),
            anderson.Memory(points, residuals, tf.where(begins, 0, count)),
            tf.where(begins, tf.constant(np.inf, least.dtype), least),
            tf.where(begins, 0, pause),
        )
        unknown = tf.constant(np.nan, old.dtype)
        point = sweeps.Sweep(Sites(*tf.unstack(old)), Sites(*tf.unstack(proposal)), unknown, unknown, path)
        new, stands = sweeps.sweep(self._target, prior, point, share, None)
        self._target.assign_sites(new.sites)
        path, memory = new.path, new.path.memory
        count = tf.where(begins, 0, memory.count)  # a look at the sites is no sweep
        stored = [self.proposal, self.direction, self.length, *self.rest]
        values = [tf.stack(new.proposal), path.direction, path.length, memory.points, memory.residuals, count]
        for variable, value in zip(stored, [*values, path.least, path.pause], strict=True):
            variable.assign(value)
        objective = new.objective + self._target.log_prior_density()
        return tf.stack([objective, new.violation, tf.cast(stands, old.dtype)])


class OwnFunctions:
    """The methods of one object compiled for it alone; called as `gpflow_ext.compiled.Compiled` is."""

    def __init__(self) -> None:
        self._functions: dict[Any, Any] = {}

    def __call__(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method."""
        if method not in self._functions:
            self._functions[method] = tf.function(method, autograph=False)
        return self._functions[method](*arguments)


class MomentMatcher(tf.Module):
    """Sweeps over the sites, compiled once for each structure of a model.

    Their state is in variables that a checkpoint can hold.

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
        Compile with XLA; ``None`` means on GPU and TPU only.
    factors
        Where its factors are evaluated; all at once by default. The sweeps are else compiled for them alone.
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
        check_damping(damping)
        self._target, self._optimizer = target, optimizer
        if factors is None and optimizer is None and damping is None:
            own: Sweeps = MixedSweeps(target, variables)
        else:
            own = Sweeps(target, WholeFactors(target) if factors is None else factors, variables, optimizer)
        self._sweeps = own
        self._prior: Any = None
        self._compiled = Compiled(own, resolve_jit(jit_compile)) if factors is None else OwnFunctions()
        self.proposal, self.direction, self.length = own.proposal, own.direction, own.length
        self.gradient, self.rest = own.gradient, own.rest
        self.started = tf.Variable(False, trainable=False)
        self._damping = tf.constant(np.nan if damping is None else damping, self.length.dtype)

    @property
    def state(self) -> list[tf.Variable]:
        """What a step changes besides the model."""
        optimizer = [] if self._optimizer is None else self._optimizer.variables
        own = [self.proposal, self.direction, self.length, *self.rest, *self.gradient]
        return [*own, self.started, *optimizer]

    def start(self) -> Progress:
        """See `Solver`.

        Where the sites are not sound there, they are set to zero. NaN if even that does not help.
        """
        self._prior = None
        progress, sound = self._take(0.0)
        if not sound:
            self._target.assign_sites(Sites(*map(tf.zeros_like, self._target.sites)))
            progress, sound = self._take(0.0)
        self.started.assign(True)
        return progress if sound else Progress(np.nan, progress.violation)

    def step(self) -> Progress:
        """Do one sweep, and one step of the optimiser.

        A step that is not sound is undone and repeated at half the length; NaN if none of them is.
        """
        if not self.started and not np.isfinite(self.start().objective):
            return Progress(np.nan, np.inf)
        for attempt in range(sweeps.ATTEMPTS):
            progress, sound = self._take(0.5**attempt)
            if sound:
                return progress
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
        """Return log Z at the current sites and its gradient in the hyperparameters."""
        objective, gradient = self._compiled(self._sweeps.differentiate)
        return float(objective), gradient

    def _take(self, share: float) -> tuple[Progress, bool]:
        """Take a share of a step; return its outcome, and whether it is sound."""
        if self._prior is None:
            self._prior = () if self._sweeps.moving else self._compiled(self._sweeps.prior)
        given = tf.constant(share, self.length.dtype), self._damping
        objective, violation, sound = self._compiled(self._sweeps.take, self._prior, *given).numpy().tolist()
        return Progress(objective, violation), bool(sound)
