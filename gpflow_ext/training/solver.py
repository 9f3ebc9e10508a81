"""Protocols of iterative methods for the training loop, and the solver that a compiled evaluation makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from gpflow_ext.compiled import Compiled


class Progress(NamedTuple):
    """The outcome of a step."""

    objective: float  # what is raised; NaN where the step failed and changed nothing
    violation: float = 0.0  # of the method's own conditions of stationarity, 0 where it has none


class Solver(Protocol):
    """An iterative method bound to what it trains."""

    @property
    def state(self) -> Sequence[tf.Variable]:
        """All that a step changes besides the variables of the model."""

    def start(self) -> Progress:
        """Read the model again after its parameters have moved; return where the first step begins."""

    def step(self) -> Progress:
        """Do one step."""


class Evaluation(NamedTuple):
    """The objective at the fixed point of the sites, as a function of the hyperparameters."""

    objective: float  # log priors included; NaN where the sites cannot be brought there
    violation: float  # of the fixed point
    gradient: Sequence[tf.Tensor]  # in the hyperparameters


class Settling(Protocol):
    """The evaluation of a `SiteSolver` as a function to compile, all of it in the graph."""

    def evaluate(self, *arguments: Any, **named: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return what `Evaluation` holds: objective and violation, [2], and the gradient.

        The arguments are the data, if the model does not hold them, the updates of the sites at most, and the
        violation that ends them.
        """


class SiteSolver(Protocol):
    """Brings sites to their fixed point, where the objective has a gradient in the hyperparameters."""

    @property
    def state(self) -> Sequence[tf.Variable]:
        """All that an evaluation changes besides the variables of the model."""

    def evaluate(self, max_steps: int, tolerance: float) -> Evaluation:
        """Move the sites, from where they are, until their violation is within the tolerance; evaluate."""


class GraphSolver(SiteSolver, Protocol):
    """A `SiteSolver` whose evaluation is one function."""

    @property
    def settling(self) -> Settling:
        """What it compiles."""

    @property
    def jit_compile(self) -> bool:
        """Whether with XLA."""


class Settled(tf.Module):
    """The `GraphSolver` of a `Settling`, which starts from the sites that the model has.

    Parameters
    ----------
    settling
        The evaluation.
    dtype
        Of the violation.
    jit_compile
        Compile with XLA.
    data
        What it takes before the bounds, if the model does not hold its data.
    optimise
        See `Compiled`.
    """

    def __init__(
        self,
        settling: Settling,
        dtype: tf.DType,
        jit_compile: bool,
        data: Sequence[tf.Tensor] = (),
        optimise: bool = True,
    ) -> None:
        super().__init__()
        self.settling, self.jit_compile, self.data, self._dtype = settling, jit_compile, data, dtype
        self._compiled = Compiled(settling, jit_compile, batches=bool(data), optimise=optimise)

    @property
    def state(self) -> Sequence[tf.Variable]:
        """See `SiteSolver`."""
        return ()

    def evaluate(self, max_steps: int, tolerance: float) -> Evaluation:
        """See `SiteSolver`."""
        bounds = tf.constant(max_steps), tf.constant(tolerance, self._dtype)
        outcome, gradient = self._compiled(self.settling.evaluate, *self.data, *bounds)
        objective, violation = outcome.numpy().tolist()
        return Evaluation(objective, violation, gradient)


class InGraph(NamedTuple):
    """What a run of L-BFGS in the graph needs of a `GraphSolver`."""

    settling: Settling
    jit_compile: bool
    sites: Sequence[tf.Variable]  # which an evaluation moves
    data: Sequence[tf.Tensor] = ()  # if the model does not hold them


class Steps:
    """A solver made of one function, which has no conditions of its own.

    Parameters
    ----------
    step
        Does one step; returns the objective, NaN if it failed.
    state
        What it changes besides the model.
    """

    def __init__(self, step: Callable[[], float], state: Sequence[tf.Variable] = ()) -> None:
        self._step, self.state = step, list(state)

    def start(self) -> Progress:
        """See `Solver`; there is nothing to read."""
        return Progress(math.nan)

    def step(self) -> Progress:
        """See `Solver`."""
        return Progress(self._step())
