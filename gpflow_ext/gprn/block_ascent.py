"""Coordinate ascent by blocks: one has a closed-form optimum given the rest, the others have gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from gpflow_ext.training import lbfgs
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.solver import Progress


class BlockAscent(tf.Module):
    """Updates of `sweeps` closed-form moves and then some gradient steps, compiled once.

    By L-BFGS no update lowers the objective: a sweep cannot, and a climb that does is undone.

    Parameters
    ----------
    objective
        Returns what is raised, a scalar.
    sweep
        Moves the first block to its optimum.
    blocks
        Sets of variables that L-BFGS climbs in turn; they may overlap. An optimiser moves the last one.
    sweeps
        Moves of the first block in an update.
    hyper_updates
        Iterations of L-BFGS for each block in an update.
    optimizer
        A tf_keras optimiser that takes one step in place of L-BFGS.
    begin
        What the first update does before anything else.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    """

    def __init__(
        self,
        objective: Callable[[], tf.Tensor],
        sweep: Callable[[], None],
        blocks: Sequence[Sequence[tf.Variable]],
        *,
        sweeps: int,
        hyper_updates: int,
        optimizer: Any | None = None,
        begin: Callable[[], None] | None = None,
        jit_compile: bool | None = None,
    ) -> None:
        super().__init__()
        jit = resolve_jit(jit_compile)
        self._objective, self._sweep = (
            tf.function(f, jit_compile=jit, autograph=False) for f in (objective, sweep)
        )
        self._sweeps, self._hyper_updates = sweeps, hyper_updates
        climbs: _Climbs = [(list(block), gradients(objective, block, jit)) for block in blocks if block]
        # A list among the attributes would be part of every checkpoint.
        self._climbs: Callable[[], _Climbs] = lambda: climbs
        self._optimizer = optimizer
        self._begin = begin
        self.started = tf.Variable(begin is None, trainable=False)

    @property
    def state(self) -> list[tf.Variable]:
        """See `Solver`."""
        return [self.started, *([] if self._optimizer is None else self._optimizer.variables)]

    def start(self) -> Progress:
        """See `Solver`; there is nothing to read."""
        return Progress(float(self._objective()))

    def step(self) -> Progress:
        """Do one update; the objective is that after it."""
        if self._begin is not None and not bool(self.started):
            self._begin()
        self.started.assign(True)
        for _ in range(self._sweeps):
            self._sweep()
        if self._optimizer is None:
            for variables, evaluate in self._climbs():
                lbfgs.climb(variables, evaluate, self._hyper_updates)
        elif self._climbs():
            variables, evaluate = self._climbs()[-1]
            _, found = evaluate()
            self._optimizer.apply_gradients(
                [(-gradient, variable) for gradient, variable in zip(found, variables, strict=True)]
            )
        return Progress(float(self._objective()))


_Climbs: TypeAlias = list[tuple[list[tf.Variable], lbfgs.Objective]]


def gradients(
    objective: Callable[[], tf.Tensor], variables: Sequence[tf.Variable], jit: bool
) -> lbfgs.Objective:
    """Return the function that evaluates an objective and its gradient, compiled."""

    @tf.function(jit_compile=jit, autograph=False)
    def evaluate() -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            value = objective()
        return value, tape.gradient(value, variables, unconnected_gradients="zero")

    def call() -> tuple[float, Sequence[tf.Tensor]]:
        value, found = evaluate()
        return float(value), found

    return call
