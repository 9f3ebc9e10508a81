"""The stochastic average gradient of Schmidt, Le Roux & Bach (2017); with one batch, the full gradient.

The loss is the weighted mean Σ_b w_b f_b of the losses of fixed batches, w_b their shares of the data. A step
draws a batch, replaces its gradient in a table, and goes along the mean of the table:

    d ← d + w_b (∇f_b(x) − table_b),  table_b ← ∇f_b(x),  x ← x − d / (L Σ_seen w)

L estimates the Lipschitz constant of the gradients by their line search: it doubles until
f_b(x − ∇f_b/L) <= f_b(x) − ‖∇f_b‖²/2L, and shrinks by half over an epoch. The table needs memory
O(number of batches · number of variables), O(N M²/B) for a variational posterior of M inducing points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.training.loop import resolve_jit

DOUBLINGS = 60  # of L in a step, at most


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
        Batches into which the shuffled rows are divided once, alike in size but for one row; one for the full
        gradient, whose steps never raise the loss.
    seed
        Seed of the division and of the draws.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.

    Raises
    ------
    ValueError
        For more batches than rows, or none.
    """

    def __init__(
        self,
        closure: Callable[[tuple[tf.Tensor, tf.Tensor]], tf.Tensor],
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
        self._closure, self._moved, self._seed = closure, list(variables), seed
        order = np.random.default_rng(seed).permutation(num_data)
        self._batches = [
            tuple(tf.constant(np.asarray(part)[rows]) for part in data)
            for rows in np.array_split(order, num_batches)
        ]
        dtype = self._moved[0].dtype
        size = sum(int(np.prod(variable.shape)) for variable in self._moved)
        self._shares = [tf.constant(len(X) / num_data, dtype) for X, _ in self._batches]
        self.table = tf.Variable(tf.zeros([num_batches, size], dtype), trainable=False)
        self.direction = tf.Variable(tf.zeros([size], dtype), trainable=False)
        self.seen = tf.Variable(tf.zeros([num_batches], tf.bool), trainable=False)
        self.seen_share = tf.Variable(tf.zeros([], dtype), trainable=False)
        self.lipschitz = tf.Variable(tf.ones([], dtype), trainable=False)
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        rows = tuple(tf.TensorSpec([None, *part.shape[1:]], part.dtype) for part in self._batches[0])
        signature = [rows, tf.TensorSpec([], tf.int32), tf.TensorSpec([], dtype)]  # one trace for all batches
        self._step = tf.function(
            self._update, jit_compile=resolve_jit(jit_compile), autograph=False, input_signature=signature
        )

    def step(self) -> float:
        """Do one step; return the loss of its batch before it.

        NaN, and nothing is changed, if the loss or its gradient is not finite.
        """
        number = int(self.steps)
        # Each batch once in its first epoch, then at random: the table is full as soon as can be.
        count = len(self._batches)
        drawn = number if number < count else int(np.random.default_rng((self._seed, number)).integers(count))
        loss = float(self._step(self._batches[drawn], tf.constant(drawn), self._shares[drawn]))
        self.steps.assign_add(1)
        return loss

    def _update(self, batch: tuple[tf.Tensor, tf.Tensor], drawn: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        pack = gpflow.optimizers.Scipy.pack_tensors
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._moved)
            loss = self._closure(batch)
        gradient = pack(tape.gradient(loss, self._moved, unconnected_gradients="zero"))
        x, before = pack(self._moved), tf.gather(self.table, drawn)
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
        shrunk = lipschitz * 2.0 ** (-1.0 / len(self._batches))
        self.lipschitz.assign(tf.where(sound, shrunk, self.lipschitz))
        return tf.where(sound, loss, float("nan"))

    def _search(
        self, batch: tuple[tf.Tensor, tf.Tensor], x: tf.Tensor, loss: tf.Tensor, gradient: tf.Tensor
    ) -> tf.Tensor:
        """Return L, doubled until a step along the batch's own gradient lowers its loss as it should."""
        square = tf.reduce_sum(gradient**2)

        def too_small(k: tf.Tensor, lipschitz: tf.Tensor) -> tf.Tensor:
            self._assign(x - gradient / lipschitz)
            value = self._closure(batch)
            high = value > loss - 0.5 * square / lipschitz
            return (k < DOUBLINGS) & (high | tf.logical_not(tf.math.is_finite(value)))

        start = (tf.constant(0), tf.convert_to_tensor(self.lipschitz))
        _, lipschitz = tf.while_loop(too_small, lambda k, lipschitz: (k + 1, 2.0 * lipschitz), start)
        return lipschitz

    def _assign(self, x: tf.Tensor) -> None:
        begin = 0
        for variable in self._moved:
            size = int(np.prod(variable.shape))
            variable.assign(tf.reshape(x[begin : begin + size], variable.shape))
            begin += size


def minimize(
    closure: Callable[[tuple[tf.Tensor, tf.Tensor]], tf.Tensor],
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
