"""Iterations of chains as one compiled function, on one device or several."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.numerics import philox
from gpflow_ext.sampling import averaging
from gpflow_ext.sampling.averaging import Averaging
from gpflow_ext.sampling.hmc import Counting, RandomLengthHMC, Randomness, Results
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.training.distribute import Shards
from gpflow_ext.training.loop import resolve_jit

BLOCK = 64  # draws for which one call under XLA has room; it ends after as many as it is asked for


class Trace(NamedTuple):
    """Record of each kept iteration; leading axes [S, C], of ``gradients`` [S]."""

    position: tf.Tensor  # z, [S, C, d]
    log_density: tf.Tensor  # of the position
    accepted: tf.Tensor  # probability of acceptance of the last proposal
    energy: tf.Tensor  # at the start of the last trajectory: log density and momentum
    divergent: tf.Tensor  # divergent trajectories since the last kept iteration
    gradients: tf.Tensor  # leapfrog steps since the last kept iteration


class Ran(NamedTuple):
    """Draws of a call, and the step size and its adaptation at the end."""

    trace: Trace
    step: tf.Tensor
    state: Averaging


class Iterations:
    """Chains of a kernel on a target, as one function to compile."""

    def __init__(self, target: Any, kernel: Callable[..., Counting]) -> None:
        self._target, self._kernel = target, kernel

    def run(
        self,
        z: tf.Tensor,
        steps: tf.Tensor,
        longest: tf.Tensor,
        randomness: Randomness,
        num_kept: tf.Tensor,
        thin: tf.Tensor,
        state: Averaging,
        room: int | None = None,
    ) -> Ran:
        """Run chains from z [C, d]; see `call`. The trace has ``room`` rows, by default ``num_kept``."""
        return self._run(self._kernel, z, steps, longest, randomness, num_kept, thin, state, room)

    def _run(
        self,
        kernel: Callable[..., Counting],
        z: tf.Tensor,
        steps: tf.Tensor,
        longest: tf.Tensor,
        randomness: Randomness,
        num_kept: tf.Tensor,
        thin: tf.Tensor,
        state: Averaging,
        room: int | None,
    ) -> Ran:
        def at(step: tf.Tensor) -> Counting:
            return kernel(self._target, tf.stack([step, steps[1]]), longest, randomness)

        begin = at(steps[0]).begin(z)
        rows = num_kept if room is None else room
        kept = tuple(tf.TensorArray(part.dtype, rows, element_shape=part.shape) for part in (z, *begin[1:-1]))

        def iteration(
            k: tf.Tensor, z: tf.Tensor, results: Results, kept: Any, step: tf.Tensor, state: Averaging
        ) -> Any:
            z, results = at(step).one_step(z, results)
            row = k // thin  # of the iterations for a draw the last one stays
            parts = zip(kept, (z, *results[1:-1]), strict=True)
            kept = tuple(array.write(row, part) for array, part in parts)
            return k + 1, z, results, kept, *state.after(step, results.accepted)

        *_, kept, step, state = tf.while_loop(
            lambda k, *_: k < num_kept * thin, iteration, (0, z, begin, kept, steps[0], state)
        )
        positions, log_density, accepted, energy, divergent, gradients = (array.stack() for array in kept)
        per_kept = [tf.concat([part[:1], part[1:] - part[:-1]], axis=0) for part in (divergent, gradients)]
        return Ran(Trace(positions, log_density, accepted, energy, *per_kept), step, state)

    def block(
        self,
        z: tf.Tensor,
        steps: tf.Tensor,
        longest: tf.Tensor,
        randomness: Randomness,
        num_kept: tf.Tensor,
        thin: tf.Tensor,
        state: Averaging,
    ) -> Ran:
        """Keep at most `BLOCK` draws; see `run`."""
        return self.run(z, steps, longest, randomness, num_kept, thin, state, BLOCK)


class Sharded(Iterations):
    """Chains sharded over the replicas of a ``tf.distribute`` strategy, each with the draws of one device."""

    def __init__(self, target: Any, kernel: Callable[..., Counting], shards: Shards) -> None:
        super().__init__(target, kernel)
        self._shards = shards

    def run(
        self,
        z: tf.Tensor,
        steps: tf.Tensor,
        longest: tf.Tensor,
        randomness: Randomness,
        num_kept: tf.Tensor,
        thin: tf.Tensor,
        state: Averaging,
        room: int | None = None,
    ) -> Ran:
        """See `Iterations.run`; the step size stays, which no replica could adapt to the chains of others."""

        def part(rows: tf.Tensor) -> Trace:
            kernel = functools.partial(self._kernel, among=philox.Among(rows, z.shape[0]))
            own = tf.gather(z, rows)
            return self._run(kernel, own, steps, longest, randomness, num_kept, thin, state, room).trace

        parts = self._shards.local(self._shards.run(part, self._shards.rows))
        joined = [tf.concat(each, axis=1) for each in zip(*(part[:-1] for part in parts), strict=True)]
        joined.append(parts[0].gradients)  # the chains share them
        return Ran(Trace(*joined), steps[0], state)


Run = Callable[..., Ran]


def runner(
    target: Any,
    kernel: Callable[..., Counting] = RandomLengthHMC,
    jit_compile: bool | None = None,
    shards: Shards | None = None,
) -> Run:
    """Return what runs chains in compiled functions, for the target that the kernel takes; see `call`."""
    jit = shards is None and resolve_jit(jit_compile)
    iterations = Iterations(target, kernel) if shards is None else Sharded(target, kernel, shards)
    compiled = Compiled(iterations, jit)
    if not jit:
        return functools.partial(compiled, iterations.run)

    def in_blocks(
        z: tf.Tensor,
        steps: tf.Tensor,
        longest: Any,
        randomness: Randomness,
        num_kept: int,
        thin: int,
        state: Averaging,
    ) -> Ran:
        parts = []
        for done in range(0, num_kept, BLOCK):
            at = randomness._replace(first=randomness.first + done * thin)
            number = min(BLOCK, num_kept - done)
            block, step, state = compiled(iterations.block, z, steps, longest, at, number, thin, state)
            steps = tf.stack([step, steps[1]])
            parts.append(Trace(*(part[:number] for part in block)))
            z = parts[-1].position[-1]
        return Ran(Trace(*(tf.concat(part, axis=0) for part in zip(*parts, strict=True))), steps[0], state)

    return in_blocks


def call(
    run: Run,
    z: tf.Tensor,
    setting: Setting,
    seed: Sequence[int],
    number: int,
    thin: int = 1,
    first: int = 0,
) -> tuple[tf.Tensor, Trace]:
    """Run chains by what `runner` returned, and return their last positions and what they kept.

    The same arguments give the same result bit for bit, and so does any division into several calls.

    Parameters
    ----------
    run
        What `runner` returned.
    z
        Where the chains are, [C, d].
    setting
        The sampler's parameters.
    seed
        Two integers.
    number, thin
        Draws to keep, and iterations for each.
    first
        Draws that have been kept before, with this seed.
    """
    steps = tf.constant([setting.step_size, setting.walk], z.dtype)
    randomness = Randomness(tf.constant(seed), tf.constant(first * thin))
    trace = run(z, steps, setting.max_leapfrogs, randomness, number, thin, averaging.still(z.dtype)).trace
    return trace.position[-1], trace
