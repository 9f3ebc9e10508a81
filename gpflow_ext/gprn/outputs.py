"""Targets by blocks of outputs: an array, a memory-mapped file or a stream, read once for training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.data import checks
from gpflow_ext.gprn.network import Patterns

Array = npt.NDArray[Any]
Product = Callable[[Array], Array]
BLOCK = 65_536  # outputs read at a time


def checked(indices: Any, num_outputs: int) -> tf.Tensor:
    """Return the numbers of some outputs [B] as a tensor; on a GPU a lookup of others finds zeros.

    Raises
    ------
    ValueError
        Unless they are from 0 to ``num_outputs`` − 1; what they are in a graph is not known.
    """
    found = tf.convert_to_tensor(indices)
    if not found.dtype.is_integer or found.shape.rank != 1:
        raise ValueError(f"indices must be a list of whole numbers; got {indices!r}.")
    known = tf.get_static_value(found)
    if known is not None and known.size and not (known.min() >= 0 and known.max() < num_outputs):
        raise ValueError(f"indices must be from 0 to {num_outputs - 1}; got {known.tolist()}.")
    return found


class Outputs(Protocol):
    """Targets [N, D], NaN where one is missing."""

    num_data: int
    num_outputs: int

    def blocks(self, size: int) -> Iterator[tf.Tensor]:
        """Yield all targets in order as [N, B] with B ≤ ``size``, in GPflow's default float type."""

    def gather(self, indices: Any) -> tf.Tensor:
        """Return the targets of some outputs [B], as [N, B]."""


class ArrayOutputs:
    """Targets in memory."""

    def __init__(self, Y: Any) -> None:
        self.data = (tf.convert_to_tensor(Y, gpflow.default_float()),)
        self.num_data, self.num_outputs = self.data[0].shape

    def blocks(self, size: int) -> Iterator[tf.Tensor]:
        """See `Outputs`."""
        for begin in range(0, self.num_outputs, size):
            yield self.data[0][:, begin : begin + size]

    def gather(self, indices: Any) -> tf.Tensor:
        """See `Outputs`."""
        return tf.gather(self.data[0], indices, axis=1)


class VariableOutputs:
    """Targets in a variable, none missing and as many rows as it had here; their sums are made each time.

    Raises
    ------
    ValueError
        For targets that are not finite: which rows are missing decides the graphs.
    """

    def __init__(self, variable: tf.Variable) -> None:
        if not np.isfinite(variable).all():
            raise ValueError(
                "Y is a tf.Variable and must be finite: give targets of which some are missing as an array, "
                "and others later by `model.update_data`."
            )
        self.variable = variable
        self.num_data, self.num_outputs = (int(size) for size in tf.shape(variable))

    @property
    def patterns(self) -> Patterns:
        """What the bound needs of the current targets."""
        Y, dtype = self._values(), self.variable.dtype
        return Patterns(tf.ones([1, self.num_data], dtype), Y[None], tf.constant([self.num_outputs], dtype))

    @property
    def patterns_apart(self) -> Patterns:
        """The same with a pattern for each output."""
        Y, dtype = self._values(), self.variable.dtype
        ones = tf.ones([self.num_outputs], dtype)
        return Patterns(tf.ones([self.num_outputs, self.num_data], dtype), tf.transpose(Y)[:, :, None], ones)

    def blocks(self, size: int) -> Iterator[tf.Tensor]:
        """See `Outputs`."""
        for begin in range(0, self.num_outputs, size):
            yield self._values()[:, begin : begin + size]

    def gather(self, indices: Any) -> tf.Tensor:
        """See `Outputs`."""
        return tf.gather(self._values(), indices, axis=1)

    def _values(self) -> tf.Tensor:
        return tf.ensure_shape(tf.convert_to_tensor(self.variable), [self.num_data, self.num_outputs])


class FileOutputs:
    """Targets in a .npy file, memory-mapped; not inside a graph that is exported."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._Y = np.load(path, mmap_mode="r", allow_pickle=False)
        if self._Y.ndim != 2 or self._Y.dtype.kind not in "biuf":
            raise ValueError(
                f"{path} must hold a matrix [N, D] of numbers; it holds {self._Y.dtype} of shape "
                f"{self._Y.shape}."
            )
        self.num_data, self.num_outputs = self._Y.shape

    def __deepcopy__(self, memo: Any) -> FileOutputs:
        return self

    def blocks(self, size: int) -> Iterator[tf.Tensor]:
        """See `Outputs`."""
        for begin in range(0, self.num_outputs, size):
            yield tf.constant(self._Y[:, begin : begin + size], gpflow.default_float())

    def gather(self, indices: Any) -> tf.Tensor:
        """See `Outputs`."""
        return tf.constant(self._Y[:, np.asarray(indices)], gpflow.default_float())


class StreamOutputs:
    """A dataset of blocks [N, B] that gives the same blocks in the same order each time.

    It is read once to be counted, once for training, and once for each prediction.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        spec = dataset.element_spec
        if not isinstance(spec, tf.TensorSpec) or spec.shape.rank != 2 or spec.shape[0] is None:
            raise ValueError(
                f"A dataset of targets must yield blocks [N, B] of outputs; its elements are {spec}."
            )
        self._dataset = dataset.map(lambda block: tf.cast(block, gpflow.default_float()))
        self.num_data = int(spec.shape[0])
        self.num_outputs = sum(int(block.shape[1]) for block in dataset.as_numpy_iterator())

    def __deepcopy__(self, memo: Any) -> StreamOutputs:
        return self

    def blocks(self, size: int) -> Iterator[tf.Tensor]:
        """See `Outputs`; a larger block of the dataset is divided."""
        for block in self._dataset:
            for begin in range(0, block.shape[1], size):
                yield block[:, begin : begin + size]

    def gather(self, indices: Any) -> tf.Tensor:
        """See `Outputs`. Reads all blocks."""
        wanted = np.asarray(indices)
        found: Array = np.empty([self.num_data, len(wanted)], gpflow.default_float())
        begin = 0
        for block in self.blocks(BLOCK):
            here = (wanted >= begin) & (wanted < begin + block.shape[1])
            found[:, here] = block.numpy()[:, wanted[here] - begin]
            begin += block.shape[1]
        return tf.constant(found)


def hold(Y: Any) -> Outputs:
    """Return targets as `Outputs`: an array [N, D], the path of a .npy file, or a dataset of blocks [N, B].

    Raises
    ------
    ValueError
        For anything else, or no outputs.
    """
    held: Outputs
    if isinstance(Y, str | Path):
        held = FileOutputs(Y)
    elif isinstance(Y, tf.data.Dataset):
        held = StreamOutputs(Y)
    elif isinstance(Y, tf.Variable):
        held = VariableOutputs(Y)
    else:
        raw = np.asarray(Y)
        if raw.ndim != 2 or raw.dtype.kind not in "biuf":
            raise ValueError(
                f"Y must be a matrix [N, D] of numbers; got shape {raw.shape} and dtype {raw.dtype}. "
                "Use Y.reshape(-1, 1) for one output."
            )
        held = ArrayOutputs(raw)
    if held.num_data == 0 or held.num_outputs == 0:
        raise ValueError(f"Y is empty: its shape is [{held.num_data}, {held.num_outputs}].")
    return held


def known(block: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return targets with zeros instead of NaN, and 1 where they are known and 0 elsewhere."""
    there = tf.logical_not(tf.math.is_nan(block))
    return tf.where(there, block, tf.zeros_like(block)), tf.cast(there, block.dtype)


class _Root:
    """A root of Σ y_d y_dᵀ, summed in double precision: the columns themselves while there are at most N."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self._columns: list[Array] = []
        self._gram: Array | None = None

    def add(self, Y: Array) -> None:
        """Add columns y_d, [N, B]."""
        self._columns.append(Y)
        if self._gram is not None or sum(part.shape[1] for part in self._columns) > len(Y):
            for part in self._columns:
                own = self._product(part)
                self._gram = own if self._gram is None else self._gram + own
            self._columns = []

    def value(self) -> Array:
        """Return the root, [N, R] with R ≤ N."""
        if self._gram is None:
            return np.concatenate(self._columns, axis=1)
        values, vectors = np.linalg.eigh(self._gram)
        return vectors * np.sqrt(np.maximum(values, 0.0))


def summarise(
    outputs: Outputs, product: Product = lambda Y: Y @ Y.T, apart: bool = False
) -> tuple[Patterns, Array]:
    """Read all targets once; return what the bound needs of them, and the pattern of each output [D].

    Sums are in double precision. O(N²D + PN³) time, O(PN² + D) memory.

    Parameters
    ----------
    outputs
        The targets.
    product
        Makes YYᵀ of an array [N, B].
    apart
        Whether each output is a pattern of its own, in their order.

    Raises
    ------
    ValueError
        For infinite targets, or none at all.
    """
    numbers: dict[bytes, int] = {}
    observed: list[Array] = []
    roots: list[_Root] = []
    members: list[Array] = []
    for block in outputs.blocks(BLOCK):
        Y = np.asarray(block, np.float64)
        there = ~np.isnan(Y)
        if np.isinf(Y).any():
            raise ValueError("Y must not be infinite; a missing target is NaN.")
        checks.check_size(Y, "Y")
        kinds, member = _kinds(there, len(numbers) if apart else None)
        own = np.empty(kinds.shape[1], np.int32)
        for kind in range(kinds.shape[1]):
            columns = np.flatnonzero(member == kind)
            part = np.nan_to_num(Y[:, columns]) if len(columns) < Y.shape[1] else np.nan_to_num(Y)
            own[kind] = numbers.setdefault(kinds[:, kind].tobytes(), len(numbers))
            if own[kind] == len(roots):
                observed.append(there[:, columns[0]].astype(np.float64))
                roots.append(_Root(product))
            roots[own[kind]].add(part)
        members.append(own[member])
    pattern = np.concatenate(members)
    if not np.stack(observed).any():
        raise ValueError("Y holds no target: all of them are NaN.")
    counts = np.bincount(pattern, minlength=len(roots))
    dtype = gpflow.default_float()
    parts = np.stack(observed), _joined([root.value() for root in roots]), counts
    return Patterns(*(tf.constant(part, dtype) for part in parts)), pattern


def _kinds(there: Array, first: int | None) -> tuple[Array, Array]:
    """Return the distinct columns of what is known [N, B], packed, and which each is [B].

    With the number of outputs before them, columns are distinct by their numbers.
    """
    if first is not None:
        member = np.arange(there.shape[1])
        return (first + member)[None], member
    kinds, member = np.unique(np.packbits(there, axis=0), axis=1, return_inverse=True)
    return kinds, member.ravel()


def _joined(roots: list[Array]) -> Array:
    """Return roots [N, R] in one array, those with fewer columns filled up by zeros."""
    width = max(root.shape[1] for root in roots)
    return np.stack([np.pad(root, [(0, 0), (0, width - root.shape[1])]) for root in roots])
