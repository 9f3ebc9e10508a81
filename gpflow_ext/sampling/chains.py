"""The state of a run of chains, all in variables that a checkpoint can hold."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.sampling import iterations as chain
from gpflow_ext.sampling.adaptation import Tuned
from gpflow_ext.sampling.draws import Draws
from gpflow_ext.sampling.iterations import Run, Trace
from gpflow_ext.sampling.tuning import Setting, trials_from

Array = npt.NDArray[Any]
Values = Callable[[tf.Tensor], Mapping[str, tf.Tensor]]
"""Map positions z [·, d] to parameters by name."""

_BLOCK = 4  # draws of all chains whose parameters are computed together; a gradient needs more memory
_WARM_UP = 2**30  # distinguishes the random numbers of phases, whose iterations are numbered within each


class Chains(tf.Module):
    """C chains, the S draws kept of each, and the setting of the sampler.

    An iteration depends only on its initial position, the setting, the seed and its number: a resumed run
    ends with the same draws, bit for bit, and the first S draws of a longer run are these.

    Parameters
    ----------
    num_samples, num_chains, num_dimensions
        S, C and d.
    dtype
        Type of the positions.
    """

    def __init__(self, num_samples: int, num_chains: int, num_dimensions: int, dtype: tf.DType) -> None:
        super().__init__()
        S, C, d = num_samples, num_chains, num_dimensions

        def zeros(shape: list[int], dtype: tf.DType = dtype) -> tf.Variable:
            return tf.Variable(tf.zeros(shape, dtype), trainable=False)

        def rows(*shape: int, dtype: tf.DType = dtype) -> tf.Variable:  # of any number, as in a checkpoint
            return tf.Variable(tf.zeros([S, *shape], dtype), trainable=False, shape=[None, *shape])

        self.now = zeros([C, d])  # positions z of the last iteration
        counts = rows(C, dtype=tf.int32), rows(dtype=tf.int32)
        self.kept = Trace(rows(C, d), rows(C), rows(C), rows(C), *counts)
        self.done = zeros([], tf.int64)  # draws kept
        self.step_sizes, self.max_leapfrogs = zeros([2]), zeros([], tf.int32)
        self.seconds = zeros([], tf.float64)
        self.trials = tf.Variable("[]", trainable=False)  # what tuning tried, as JSON

    @property
    def setting(self) -> Setting:
        """The sampler's parameters."""
        step_size, walk = self.step_sizes.numpy().tolist()
        return Setting(step_size, int(self.max_leapfrogs), walk)

    def resize(self, num_samples: int) -> None:
        """Make room for a number of draws other than that of a checkpoint."""
        for kept in self.kept:
            missing = max(num_samples - int(tf.shape(kept)[0]), 0)
            held = kept[:num_samples]
            kept.assign(tf.concat([held, tf.zeros([missing, *held.shape[1:]], held.dtype)], axis=0))
        self.done.assign(min(int(self.done), num_samples))

    def begin(self, tuned: Tuned) -> None:
        """Take over the setting, the positions and the trials of a tuner."""
        self.now.assign(tuned.positions)
        self.step_sizes.assign([tuned.setting.step_size, tuned.setting.walk])
        self.max_leapfrogs.assign(tuned.setting.max_leapfrogs)
        self.trials.assign(json.dumps(tuned.trials))

    def warm_up(self, run: Run, iterations: int, seed: int) -> None:
        """Move without keeping a draw; compile on the way."""
        position, _ = self._run(run, [seed, _WARM_UP], max(iterations, 1), 1, 0)
        if iterations:
            self.now.assign(position)

    def advance(self, run: Run, number: int, thin: int, seed: int) -> None:
        """Keep ``number`` more draws, each after ``thin`` iterations."""
        begin, first = time.perf_counter(), int(self.done)
        position, trace = self._run(run, [seed, 0], number, thin, first)
        for kept, part in zip(self.kept, trace, strict=True):
            kept[first : first + number].assign(part)
        self.now.assign(position)
        self.done.assign_add(number)
        self.seconds.assign_add(time.perf_counter() - begin)

    def _run(self, run: Run, seed: list[int], number: int, thin: int, first: int) -> tuple[tf.Tensor, Trace]:
        return chain.call(run, tf.convert_to_tensor(self.now), self.setting, seed, number, thin, first)

    def log_density(self) -> float:
        """Return the mean over the chains of the log density of the last draw kept."""
        return float(tf.reduce_mean(self.kept.log_density[int(self.done) - 1]))

    def draws(self, values: Values, info: Mapping[str, Any]) -> Draws:
        """Return the draws kept, the parameters by name a function of positions [·, d]."""
        return Draws(
            _draws_of(self.kept.position, values),
            self.stats(),
            self.setting,
            float(self.seconds),
            trials_from(json.loads(self.trials.numpy())),
            info,
        )

    def stats(self) -> dict[str, Array]:
        """Return what was recorded of the draws kept, [C, S], and ``gradients`` [S]."""
        found = {name: getattr(self.kept, name).numpy() for name in Trace._fields[1:]}
        return {name: value.T if value.ndim == 2 else value for name, value in found.items()}


def _draws_of(positions: tf.Tensor, values: Values) -> dict[str, Array]:
    """Return the parameters [C, S, *shape] of positions [S, C, d], for a function of positions [·, d]."""
    positions = tf.convert_to_tensor(positions)  # of a variable with any number of rows
    S, C, d = positions.shape
    size = _BLOCK * C
    flat = tf.pad(tf.reshape(positions, [S * C, d]), [[0, -S * C % size], [0, 0]])  # whole blocks alone
    parts = [values(flat[first : first + size]) for first in range(0, S * C, size)]
    joined = {name: np.concatenate([part[name].numpy() for part in parts])[: S * C] for name in parts[0]}
    return {name: np.swapaxes(value.reshape(S, C, *value.shape[1:]), 0, 1) for name, value in joined.items()}
