"""Block coordinate ascent of a regression network: sweeps of its nodes, and gradient steps on the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from gpflow_ext.gprn.updates import Updates
from gpflow_ext.training.lbfgs_in_graph import AnyRun
from gpflow_ext.training.solver import Progress
from gpflow_ext.training.starts import Tried


class BlockAscent(tf.Module):
    """Updates of some sweeps and then some gradient steps.

    By L-BFGS no update lowers the objective: a sweep cannot, and a climb that does is undone. What a block
    climbs moves with the sweeps and with the other blocks, so each update begins a new run. Only a single
    block without sweeps goes on with the memory of its run.

    Parameters
    ----------
    updates
        The updates of the network.
    climbs
        L-BFGS on blocks of variables, which may overlap, in turn.
    sweeps
        Sweeps in an update.
    hyper_updates
        Iterations of L-BFGS for each block in an update.
    optimizer_state
        The variables of an optimiser that takes one step instead, if there is one.
    begin
        What the first update does before anything else; returns the starts that it has tried.
    """

    def __init__(
        self,
        updates: Updates,
        climbs: Sequence[AnyRun],
        *,
        sweeps: int,
        hyper_updates: int,
        optimizer_state: Sequence[tf.Variable] | None,
        begin: Callable[[], tuple[Tried, ...]],
    ) -> None:
        super().__init__()
        self._updates, self._sweeps, self._hyper_updates = updates, sweeps, hyper_updates
        self._climbs, self._begin = tuple(climbs), begin
        self._descends, self._optimizer_state = optimizer_state is not None, tuple(optimizer_state or ())
        self.started = tf.Variable(False, trainable=False)
        self.tried: tuple[Tried, ...] = ()
        if len(climbs) == 1 and not sweeps:
            self.run = climbs[0]

    @property
    def state(self) -> list[tf.Variable]:
        """See `Solver`."""
        run = self.run.variables if hasattr(self, "run") else ()
        return [self.started, *run, *self._optimizer_state]

    def start(self) -> Progress:
        """See `Solver`; there is nothing to read."""
        return Progress(self._updates.value())

    def step(self) -> Progress:
        """Do one update; the objective is that after it."""
        if not bool(self.started):
            self.tried = self._begin()
        self.started.assign(True)
        for _ in range(self._sweeps):
            self._updates.sweep()
        if self._descends:
            self._updates.descend()
        for climb in self._climbs:
            if not hasattr(self, "run"):
                climb.restart()
            climb.climb(self._hyper_updates)
        return Progress(float(self._climbs[-1].best) if self._climbs else self._updates.value())
