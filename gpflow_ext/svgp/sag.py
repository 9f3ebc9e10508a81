"""The stochastic average gradient of Schmidt, Le Roux & Bach (2017); with one batch, the full gradient.

The loss is the weighted mean Σ_b w_b f_b of the losses of fixed batches, w_b their shares of the data. A step
draws a batch, replaces its gradient in a table, and goes along the mean of the table:

    d ← d + w_b (∇f_b(x) − table_b),  table_b ← ∇f_b(x),  x ← x − d / (L Σ_seen w)

L estimates the Lipschitz constant of the gradients by their line search: it doubles until
f_b(x − ∇f_b/L) <= f_b(x) − ‖∇f_b‖²/2L, and shrinks by half over an epoch. The table needs memory
O(number of batches · number of variables), O(N M²/B) for a variational posterior of M inducing points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.loss import Loss, LossFunction

DOUBLINGS = 60  # of L in a step, at most


class AverageDescent(Loss):
    """Functions to compile: a step, with the table and the other state that it keeps.

    Parameters
    ----------
    closure, variables
        The loss and what to move.
    num_batches
        Rows of the table.
    """

    def __init__(self, closure: LossFunction, variables: Sequence[tf.Variable], num_batches: int) -> None:
        super().__init__(closure, variables)
        dtype, size = variables[0].dtype, sum(int(np.prod(variable.shape)) for variable in variables)
        table, seen = tf.zeros([num_batches, size], dtype), tf.zeros([num_batches], tf.bool)
        self.table = tf.Variable(table, trainable=False, shape=[None, size])
        self.seen = tf.Variable(seen, trainable=False, shape=[None])
        self.direction = tf.Variable(tf.zeros([size], dtype), trainable=False)
        self.seen_share = tf.Variable(tf.zeros([], dtype), trainable=False)
        self.lipschitz = tf.Variable(tf.ones([], dtype), trainable=False)

    def step(self, batch: tuple[tf.Tensor, tf.Tensor], drawn: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        """Do one step for a batch, its number and its share of the data; return its loss before it, []."""
        pack = gpflow.optimizers.Scipy.pack_tensors
        loss, parts = self.value_and_gradient(batch)
        gradient, x, before = pack(parts), pack(self._variables), tf.gather(self.table, drawn)
        sound = tf.math.is_finite(loss) & tf.reduce_all(tf.math.is_finite(gradient))
        gradient = tf.where(sound, gradient, before)
        lipschitz = self._search(batch, x, loss, gradient)
        first = sound & tf.logical_not(tf.gather(self.seen, drawn))
        seen_share = self.seen_share + tf.where(first, share, tf.zeros_like(share))
        direction = self.direction + share * (gradient - before)
        self._assign(tf.where(sound, x - direction / (lipschitz * seen_share), x))
        self.table.scatter_nd_update([[drawn]], gradient[None])
        self.seen.scatter_nd_update([[drawn]], [sound | tf.gather(self.seen, drawn)])
        self.direction.assign(direction)
        self.seen_share.assign(seen_share)
        shrunk = lipschitz * 2.0 ** (-1.0 / tf.cast(tf.shape(self.table)[0], lipschitz.dtype))
        self.lipschitz.assign(tf.where(sound, shrunk, self.lipschitz))
        return tf.where(sound, loss, float("nan"))

    def _search(
        self, batch: tuple[tf.Tensor, tf.Tensor], x: tf.Tensor, loss: tf.Tensor, gradient: tf.Tensor
    ) -> tf.Tensor:
        """Return L, doubled until a step along the batch's own gradient lowers its loss as it should."""
        square = tf.reduce_sum(gradient**2)

        def attempt(k: tf.Tensor, lipschitz: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, ...]:
            self._assign(x - gradient / lipschitz)
            value = self.value(batch)
            high = (value > loss - 0.5 * square / lipschitz) | tf.logical_not(tf.math.is_finite(value))
            return k + 1, tf.where(high, 2.0 * lipschitz, lipschitz), high

        start = (tf.constant(0), tf.convert_to_tensor(self.lipschitz), tf.constant(True))
        _, lipschitz, _ = tf.while_loop(lambda k, _, high: (k < DOUBLINGS) & high, attempt, start)
        return lipschitz

    def _assign(self, x: tf.Tensor) -> None:
        begin = 0
        for variable in self._variables:
            size = int(np.prod(variable.shape))
            variable.assign(tf.reshape(x[begin : begin + size], variable.shape))
            begin += size


class StochasticAverageGradient(tf.Module):
    """SAG steps, compiled once, their state in variables that a checkpoint can hold.

    Parameters
    ----------
    closure
        Maps a batch (X [B, D], Y [B, P]) to an estimate of the loss from it, [].
    variables
        What to move.
    data
        Inputs [N, D] and targets [N, P].
    num_batches
        Number of batches into which the shuffled rows are divided once, equal in size up to one row; one for
        the full gradient, whose steps never raise the loss.
    seed
        Seed of the division and of the draws.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.

    Raises
    ------
    ValueError
        For more batches than rows, or none.
    """

    def __init__(
        self,
        closure: LossFunction,
        variables: Sequence[tf.Variable],
        data: tuple[Any, Any],
        *,
        num_batches: int = 1,
        seed: int = 0,
        jit_compile: bool | None = None,
    ) -> None:
        super().__init__()
        num_data = len(data[0])
        if not 1 <= num_batches <= num_data:
            raise ValueError(f"`num_batches` must be from 1 to {num_data}, the rows; got {num_batches}.")
        self._seed = seed
        order = np.random.default_rng(seed).permutation(num_data)
        self._batches = [
            tuple(tf.constant(np.asarray(part)[rows]) for part in data)
            for rows in np.array_split(order, num_batches)
        ]
        dtype = variables[0].dtype
        self._shares = [tf.constant(len(X) / num_data, dtype) for X, _ in self._batches]
        self._updates = updates = AverageDescent(closure, variables, num_batches)
        self._compiled = Compiled(updates, resolve_jit(jit_compile), batches=True)
        self.table, self.direction, self.lipschitz = updates.table, updates.direction, updates.lipschitz
        self.seen, self.seen_share = updates.seen, updates.seen_share
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False)

    def step(self) -> float:
        """Do one step; return the loss of its batch before it.

        NaN, and nothing is changed, if the loss or its gradient is not finite.
        """
        number = int(self.steps)
        # Each batch once in its first epoch, then at random: the table is full as soon as can be.
        count = len(self._batches)
        drawn = number if number < count else int(np.random.default_rng((self._seed, number)).integers(count))
        batch = self._batches[drawn], tf.constant(drawn), self._shares[drawn]
        loss = float(self._compiled(self._updates.step, *batch))
        self.steps.assign_add(1)
        return loss


def minimize(
    closure: LossFunction,
    variables: Sequence[tf.Variable],
    data: tuple[Any, Any],
    *,
    num_batches: int = 1,
    steps: int = 1000,
    seed: int = 0,
) -> float:
    """Lower a loss of batches by SAG steps and return the loss of the last batch; see the class."""
    engine = StochasticAverageGradient(closure, variables, data, num_batches=num_batches, seed=seed)
    loss = float("nan")
    for _ in range(steps):
        loss = engine.step()
        if not np.isfinite(loss):
            break
    return loss
