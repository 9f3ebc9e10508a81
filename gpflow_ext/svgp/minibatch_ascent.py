"""Steps on minibatches by what `svgp.natural_gradient` compiles, one at a time or several in a call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.svgp.natural_gradient import AscentUpdates, Minibatch, WhitenedVariational
from gpflow_ext.training.distribute import Shards
from gpflow_ext.training.gradient import Minibatches
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.solver import Progress

_LEAST = 0.125  # of γ


class MinibatchAscent(tf.Module):
    """Minibatch steps, compiled once, their state in variables that a checkpoint can hold.

    Parameters
    ----------
    target
        The model.
    hypers
        Its trainable variables other than q's.
    optimizer
        A tf_keras optimiser built on all that it moves.
    read
        Returns the next minibatch (X [B, D], Y [B, 1]).
    gamma
        γ of step number t = 0, 1, …, in (0, 1]; ``None`` leaves q to the optimiser.
    hold
        Number of first steps in which only q moves and the hyperparameters are fixed.
    concave
        Whether γ-steps leave out negative weights wₙ at once.
    shards
        The rows of a minibatch sharded over the replicas of a ``tf.distribute`` strategy.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.
    updates
        What is compiled.
    shorten
        Whether γ is halved, to an eighth at least, where the bound has fallen: for steps on all data. One
        after which it is more than twice as far below zero is undone: of its gradient Adam would keep a
        memory for thousands of steps.
    several
        Minibatches of arrays, and how many steps on them one call does in the place of a step on what
        ``read`` returns; ``hold`` is a multiple, and ``concave``.
    """

    def __init__(
        self,
        target: WhitenedVariational,
        hypers: Sequence[tf.Variable],
        optimizer: Any,
        read: Callable[[], Minibatch],
        *,
        gamma: Callable[[int], float] | None,
        hold: int = 0,
        concave: bool = True,
        shards: Shards | None = None,
        jit_compile: bool | None = None,
        updates: type[AscentUpdates] = AscentUpdates,
        shorten: bool = False,
        several: tuple[Minibatches, int] | None = None,
    ) -> None:
        super().__init__()
        self._batches: Minibatches | None = None if several is None else several[0]
        self._per_call = 1 if several is None else several[1]
        self._optimizer, self._read, self._gamma, self._hold = optimizer, read, gamma, hold
        self._concave, self._shorten, self._dtype = concave, shorten, target.q_mu.dtype
        self._updates = updates(target, hypers, optimizer, gamma is not None, shards)
        self._compiled = Compiled(self._updates, resolve_jit(jit_compile), batches=True)
        with tf.device("CPU"):  # the host reads and moves them
            self.fallbacks = tf.Variable(0, dtype=tf.int64, trainable=False)  # steps unsafe at first
            self.steps = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.share = tf.Variable(1.0, dtype=tf.float64, trainable=False)  # of γ that is taken
            self.before = tf.Variable(-math.inf, dtype=tf.float64, trainable=False)  # the bound
            self.accuracy = tf.Variable(
                0.0, dtype=tf.float64, trainable=False
            )  # running mean over minibatches
        self._kept = [tf.Variable(part, trainable=False) for part in self._changed] if shorten else []

    @property
    def _changed(self) -> list[tf.Variable]:
        """All variables that a step changes."""
        moved = [*self._updates.moved, *([] if self._optimizer is None else self._optimizer.variables)]
        return [*moved, *self._updates.of_q]

    @property
    def state(self) -> list[tf.Variable]:
        """See `Solver`: what the optimiser moves and keeps; q moves only where a step is sound."""
        changed = self._changed
        return changed if self._per_call > 1 else changed[: len(changed) - len(self._updates.of_q)]

    def start(self) -> Progress:
        """See `Solver`: the natural parameters are taken from q again."""
        if self._gamma is not None:
            self._compiled(self._updates.start)
        return Progress(math.nan)

    def step(self) -> Progress:
        """Do one step; the objective is the bound's estimate before it, NaN where it is not finite."""
        step = int(self.steps)
        if self._gamma is not None and step == 0:
            self.start()
        if self._per_call > 1:
            return self._several(step)
        method = self._updates.step_held if step < self._hold else self._updates.step
        X, Y = self._read()
        old = [part.read_value() for part in self._changed] if self._shorten else []
        gamma = 0.0 if self._gamma is None else float(self.share) * self._gamma(step)
        length = tf.constant(gamma, self._dtype)
        for least in (0.0,) if self._concave else (-math.inf, 0.0):
            outcome = self._compiled(method, X, Y, tf.constant(least, self._dtype), length)
            value, finite, sound, correct = outcome.numpy().tolist()
            if not finite:
                return Progress(math.nan)
            if sound:
                break
            self.fallbacks.assign_add(1)
        else:
            return Progress(math.nan)
        self._count(step, [correct / int(X.shape[0])])
        return Progress(self._compared(value, old) if self._shorten else value)

    def _compared(self, value: float, old: Sequence[tf.Tensor]) -> float:
        """Shorten the steps where the bound has fallen by more than rounding, and undo one after a plunge.

        Return the bound where the step began, or where the next one begins after a plunge.
        """
        before, share = float(self.before), float(self.share)
        size = max(abs(before), 1.0)
        slack = 256.0 * np.finfo(self._dtype.as_numpy_dtype).eps * size
        if value < before - slack:
            self.share.assign(max(0.5 * share, _LEAST))
        plunged = value < before - size and share > _LEAST
        for part, kept, now in zip(self._changed, self._kept, old, strict=True):
            if plunged:
                part.assign(kept)
            else:
                kept.assign(now)
        self.before.assign(before if plunged else value)
        return before if plunged else value

    def _several(self, step: int) -> Progress:
        """Do several steps in one call; the objective is the mean of theirs, NaN where one failed."""
        assert self._batches is not None
        method = self._updates.steps_held if step < self._hold else self._updates.steps
        lengths = [0.0 if self._gamma is None else self._gamma(step + k) for k in range(self._per_call)]
        rows, least = self._batches.rows(self._per_call), tf.constant(0.0, self._dtype)
        outcome = self._compiled(method, rows, *self._batches.data, least, tf.constant(lengths, self._dtype))
        value, sound, *correct = outcome.numpy().tolist()
        if not sound:
            return Progress(math.nan)
        self._count(step, [number / int(rows.shape[1]) for number in correct])
        return Progress(value)

    def _count(self, step: int, shares: Sequence[float]) -> None:
        """Take note of the steps that were done, by what share of each minibatch was classified rightly."""
        kept, added = 1.0, 0.0
        for share in shares:
            step += 1
            weight = 1.0 / min(step, 50)
            kept, added = (1.0 - weight) * kept, (1.0 - weight) * added + weight * share
        self.accuracy.assign(kept * self.accuracy + added)
        self.steps.assign(step)
