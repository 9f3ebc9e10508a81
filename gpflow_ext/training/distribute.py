"""Data sharded over the replicas of a ``tf.distribute`` strategy, and sums over them.

A replica is a device of this machine (``MirroredStrategy``) or of several machines, with a process on each
(``MultiWorkerMirroredStrategy``). The variables of a model stay ordinary ones, equal in every process; a
replica holds its rows of the data and computes with them, and only sums are communicated, by TensorFlow.

Two workers run the same script on the same data, each told by ``TF_CONFIG`` who it is:

    export TF_CONFIG='{"cluster": {"worker": ["10.0.0.1:5000", "10.0.0.2:5000"]},
                       "task": {"type": "worker", "index": 0}}'     # "index": 1 on the second machine
    python train.py

where ``train.py`` makes the strategy first, before any other use of TensorFlow:

>>> strategy = gpflow_ext.distribute.strategy_from_name("multiworker")
>>> model = gpflow_ext.models.SparseEP(train, kernel, likelihood, inducing_variable=Z)
>>> gpflow_ext.fit(model, strategy=strategy, checkpoint_dir="runs/one")

Training starts when all workers have started. Worker 0 is the chief: it alone writes checkpoints, and the
others take their state from it. If a worker dies, the rest end within seconds with `WorkerLostError`;
restarted, with the same number of workers or another, they resume from the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from gpflow_ext.data.parts import parts

_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.UnavailableError,
)


class WorkerLostError(RuntimeError):
    """Another worker of the cluster died, or cannot be reached."""


def strategy_from_name(name: Literal["mirrored", "multiworker"] | None) -> tf.distribute.Strategy | None:
    """Return ``MirroredStrategy`` over this machine's devices, or ``MultiWorkerMirroredStrategy``.

    The first uses all GPUs, or all logical CPUs if there are none. The second waits until every worker that
    ``TF_CONFIG`` names has started, must be made before any other use of TensorFlow, and only once per
    process. ``None`` gives ``None``.

    Raises
    ------
    ValueError
        For another name.
    """
    if name is None:
        return None
    if name == "mirrored":
        gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
        if gpus:
            return tf.distribute.MirroredStrategy(gpus)
        cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
        # The default, collectives, breaks with the second strategy that a process makes.
        return tf.distribute.MirroredStrategy(cpus, tf.distribute.ReductionToOneDevice())
    if name == "multiworker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    raise ValueError(f'the strategy must be "mirrored", "multiworker" or None; got {name!r}.')


def in_scope() -> bool:
    """Tell whether the caller is in the scope of a strategy whose variables have a copy on each device."""
    mirrored = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
    return isinstance(tf.distribute.get_strategy(), mirrored)


def hold_fixed(model: Any) -> None:
    """Make ``gpflow.set_trainable`` count for a model that was built in the scope of a strategy.

    It marks the variable of all replicas, while TensorFlow asks that of the first whether it is trainable.
    """
    for variable in parts(model, tf.distribute.DistributedValues):
        for own in variable.values:
            own._trainable = variable._trainable


def total(values: Any) -> Any:
    """Return the sum over all replicas of tensors of one dtype; to be called in one. Differentiable."""
    same = tf.nest.map_structure(tf.identity, values)  # an argument of the replica carries no device
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, same)


def gram(strategy: tf.distribute.Strategy, Y: Any) -> tf.Tensor:
    """Return YYᵀ [N, N] of an array [N, B], its columns sharded over the replicas. O(N²B) over their number.

    Raises
    ------
    ValueError
        For another kind of strategy than `Shards` takes.
    """
    missing = max(int(strategy.num_replicas_in_sync) - Y.shape[1], 0)
    shards = Shards(strategy, Y.shape[1] + missing)
    rows = shards.shard(np.pad(Y.T, [(0, missing), (0, 0)]))

    def part(own: tf.Tensor) -> tf.Tensor:
        return total(tf.matmul(own, own, transpose_a=True))

    return shards.equal(shards.call(part, rows))


class Shards:
    """Rows 0 … N − 1 sharded over the replicas in order, as evenly as possible.

    Parameters
    ----------
    strategy
        ``tf.distribute.MirroredStrategy`` or ``MultiWorkerMirroredStrategy``.
    num_data
        N.

    Attributes
    ----------
    num_replicas
        Replicas of all processes.
    num_processes
        Processes of the strategy.
    is_chief
        Whether this process is the one that writes.
    rows
        The numbers of each replica's rows, [n].

    Raises
    ------
    ValueError
        For another kind of strategy, or more replicas than rows.
    """

    def __init__(self, strategy: tf.distribute.Strategy, num_data: int) -> None:
        if not isinstance(
            strategy, tf.distribute.MirroredStrategy | tf.distribute.MultiWorkerMirroredStrategy
        ):
            if isinstance(strategy, tf.distribute.TPUStrategy):
                raise ValueError(
                    "TPUStrategy is not supported: train on one TPU core with `jit_compile=True` and no "
                    '`strategy`, or predict there by a model exported with `profile="stablehlo"`.'
                )
            raise ValueError(
                "`strategy` must be a tf.distribute.MirroredStrategy or MultiWorkerMirroredStrategy; "
                f"got {strategy!r}."
            )
        self._strategy, self.num_replicas = strategy, int(strategy.num_replicas_in_sync)
        if num_data < self.num_replicas:
            raise ValueError(
                f"{num_data} data cannot be shared by {self.num_replicas} replicas: use fewer devices."
            )
        self._bounds = np.linspace(0, num_data, self.num_replicas + 1).round().astype(int)
        self._devices = strategy.extended.worker_devices
        self.num_processes = self.num_replicas // len(self._devices)
        self.rows = self.shard(np.arange(num_data))
        self.is_chief = int(self.local(self.rows)[0][0]) == 0

    def shard(self, values: Any) -> Any:
        """Return each replica's rows of values [N, ...], on its device."""

        def shard(context: Any) -> tf.Tensor:
            replica = context.replica_id_in_sync_group
            with tf.device(self._devices[replica % len(self._devices)]):
                return tf.identity(values[slice(*self._bounds[replica : replica + 2])])

        return self._strategy.experimental_distribute_values_from_function(shard)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in every replica, with the replica's part of arguments that were sharded."""
        return self._strategy.run(function, args=args)

    def local(self, results: Any) -> tuple[Any, ...]:
        """Return what ``run`` returned in each replica of this process."""
        return self._strategy.experimental_local_results(results)

    def equal(self, results: Any) -> Any:
        """Return what ``run`` returned, where all replicas agree on it."""
        return tf.nest.map_structure(lambda result: self.local(result)[0], results)

    def replace(self, values: tf.Tensor, new: Any) -> tf.Tensor:
        """Return values [N, ...] with this process's rows replaced by what ``run`` returned for them."""
        for rows, part in zip(self.local(self.rows), self.local(new), strict=True):
            values = tf.tensor_scatter_nd_update(values, rows[:, None], part)
        return values

    def sum(self, values: tf.Tensor) -> tf.Tensor:
        """Return the sum of values [K, N, ...] over all but the first axis, [K]."""

        def part(rows: tf.Tensor) -> tf.Tensor:
            own = tf.gather(values, rows, axis=1)
            return total(tf.reduce_sum(own, axis=list(range(1, own.shape.rank))))

        return self.equal(self.run(part, self.rows))

    def gather(self, values: tf.Tensor) -> tf.Tensor:
        """Return values [N, ...], each row from the process that holds it."""
        if self.num_processes == 1:
            return values

        def part(rows: tf.Tensor) -> tf.Tensor:
            return total(tf.scatter_nd(rows[:, None], tf.gather(values, rows), tf.shape(values, rows.dtype)))

        return self.equal(self.call(part, self.rows))

    def from_chief(self, variables: Sequence[tf.Variable]) -> None:
        """Give variables, equal in shape on all workers, the values that they have on the chief."""
        if self.num_processes == 1:
            return
        for floating, wide in ((True, tf.float64), (False, tf.int64)):
            chosen = [variable for variable in variables if variable.dtype.is_floating is floating]
            values = [tf.cast(variable, wide) for variable in chosen]
            for variable, value in zip(chosen, self._chief_values(values), strict=True):
                variable.assign(tf.cast(value, variable.dtype))

    def any(self, condition: bool) -> bool:
        """Return whether a condition holds in any process."""
        if self.num_processes == 1:
            return condition
        counted = tf.constant(int(condition), tf.int64)
        return int(self.equal(self.call(lambda: total(counted)))) > 0

    def _chief_values(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        if not values:
            return []

        def part() -> list[tf.Tensor]:
            first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
            return total([tf.where(first, value, tf.zeros_like(value)) for value in values])

        return self.equal(self.call(part))

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run in a graph: outside one the collectives of several replicas of a process wait in turn."""
        return tf.function(lambda: self.run(function, *args), autograph=False)()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Turn TensorFlow's errors of a broken cluster into `WorkerLostError`."""
        try:
            yield
        except _LOST as error:
            if self.num_processes == 1:
                raise
            raise WorkerLostError(
                f"another of the {self.num_processes} workers died or cannot be reached, so this one stops. "
                "Restart all workers with the same `checkpoint_dir`: they go on from the last checkpoint. "
                f"TensorFlow said: {_first_lines(str(error))}"
            ) from error


def _first_lines(message: str) -> str:
    """Return the line that tells what failed, without the graph's traceback."""
    lines = [line.strip() for line in message.splitlines() if "aborted" in line or "task" in line.lower()]
    return " ".join(lines[:2]) or message.splitlines()[0]
