"""Functions of an object compiled once for its structure: variables and data are their arguments.

A function is traced on a copy of the object that lives only as long as the trace, its variables replaced by
those of the argument list. So no graph holds a model, its values or its data; models of one structure share
their graphs, whatever their values and the number of their rows, also between threads.
"""

from __future__ import annotations

import collections
import copy
import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import gpflow
import tensorflow as tf
from tensorflow.python.eager import record  # whether a tape records has no public name
from tensorflow.python.framework import ops  # nor has the class of tensors with values

from gpflow_ext import _collector
from gpflow_ext.compiled import gradients, options, products, purity
from gpflow_ext.compiled.structure import Apart, Structure, examine
from gpflow_ext.numerics import linalg

MOST = 64  # functions that are kept; the least recently used is dropped
BATCH, NUM_DATA = "batch", "num_data"  # what is open beside axes of some lengths
Open: TypeAlias = frozenset[int | str]


class Entry:
    """A compiled function and how its outputs are nested.

    TensorFlow optimises a graph when it is first called, and in each thread that calls it before that is
    done. So the first call is made by one thread, and the others wait for it.

    Parameters
    ----------
    function
        A ``ConcreteFunction`` of flat variables, data and arguments.
    outputs
        Nested specifications.
    optimise
        Whether TensorFlow is to optimise the graph.
    """

    def __init__(self, function: Any, outputs: Any, optimise: bool = True) -> None:
        self.function, self.outputs, self._optimise = function, outputs, optimise
        self._first, self._called = threading.Lock(), False

    def __call__(self, *flat: Any) -> Any:
        """Return the nested outputs."""
        if not self._called:
            with self._first:
                if not self._called:
                    results = self._results(flat)
                    self._called = True
                    return results
        return self._results(flat)

    @functools.cached_property
    def is_pure(self) -> bool:
        """See `purity.is_pure`."""
        return purity.is_pure(self.function.graph)

    def _results(self, flat: Sequence[Any]) -> Any:
        with options.one_pass(self._optimise):
            return tf.nest.pack_sequence_as(self.outputs, self._flat_results(flat))

    def _flat_results(self, flat: Sequence[Any]) -> Any:
        """Return the outputs one after the other.

        Where no tape records them what `Compiled` has put together is not checked again: for a small graph
        that would take as long as its call.
        """
        if record.could_possibly_record() or not tf.executing_eagerly():
            return self.function(*flat)
        inputs = (part if type(part) is ops.EagerTensor else part.handle for part in flat)
        results = self.function.inference_fn.call_flat(*inputs, *self.function.captured_inputs)
        return results or []  # it gives None for none


_entries: collections.OrderedDict[Hashable, Entry] = collections.OrderedDict()
_lock = threading.RLock()  # held to look up and while a function is traced
_traces = 0


def clear_compiled() -> None:
    """Drop all compiled functions and their graphs.

    Needed only if something has changed that is not part of a model's structure: a global variable that a
    user's kernel reads, or a class patched in place.
    """
    with _lock:
        _entries.clear()


def trace_count() -> int:
    """Return how many functions this process has traced; for tests."""
    return _traces


class Compiled(Apart):
    """The compiled methods of one object.

    A method is compiled once for all objects of the same structure; see `structure.examine`. Where that
    refuses an attribute, the object gets functions of its own, which end with it.

    Parameters
    ----------
    owner
        The object; its Python attributes must stay as they are.
    jit_compile
        Compile with XLA, with static shapes.
    rows
        Further numbers of rows that vary from call to call, beside that of the owner's ``data``; ``None``
        leaves none open.
    batches
        Whether arguments of two axes or more are minibatches of any number of rows, for which no matrix of
        that size is factorised.
    optimise
        Whether TensorFlow is to optimise the graphs; what it takes may be more than it saves.
    """

    def __init__(
        self,
        owner: Any,
        jit_compile: bool = False,
        rows: Sequence[int] | None = (),
        batches: bool = False,
        optimise: bool = True,
    ) -> None:
        self._owner, self._jit, self._given, self._batches = owner, jit_compile, rows, batches
        self._optimise = optimise
        self._found: dict[Hashable, Entry] = {}

    def __deepcopy__(self, memo: Any) -> Compiled:
        """Return the same for a copy of the owner."""
        owner = copy.deepcopy(self._owner, memo)
        return Compiled(owner, self._jit, self._given, self._batches, self._optimise)

    @functools.cached_property
    def _structure(self) -> Structure:
        return examine(self._owner)

    def _present(self) -> list[tf.Tensor]:
        """Return the data as they are now."""
        for owner in self._structure.followers:
            owner.follow_data()
        return list(map(tf.convert_to_tensor, self._structure.data))

    def _rows(self, data: Sequence[tf.Tensor]) -> Open:
        """Return the lengths of axes that are left open, and what else is."""
        if self._structure.refused:
            return frozenset()
        rows = {*(self._given or ()), *(len(part) for part in data[:1])}
        static = self._jit or self._given is None
        lengths = set() if static else rows
        batch = {BATCH} if self._batches and not self._jit else set()
        return frozenset(lengths | batch | ({NUM_DATA} if self._structure.counted else set()))

    def __call__(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the owner with tensors, or nests of them, and return its tensors."""
        return self.bound(method, *arguments)()

    def bound(self, method: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
        """Return the call of a method at the current data, its function traced.

        It may be called with tensors in the place of the first arguments, of the same shapes and dtypes.
        """
        if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
            return lambda *others: method(*others, *arguments[len(others) :])
        arguments = tf.nest.map_structure(tf.convert_to_tensor, arguments)
        data, structure = self._present(), self._structure
        entry = self._entry(method, arguments, data)
        held = (*structure.variables, *data, *structure.tensors, *self._counts, *self._sizes)
        flat = tf.nest.flatten(arguments)
        return lambda *others: entry(*held, *others, *flat[len(others) :])

    @functools.cached_property
    def _counts(self) -> list[tf.Tensor]:
        """The numbers of data of models that weight them."""
        return [tf.constant(model.num_data, tf.int64) for model in self._structure.counted]

    @functools.cached_property
    def _sizes(self) -> list[tf.Tensor]:
        """What takes the place of `Sizes` where any rows are left open."""
        return [tf.constant(each.values, tf.int32) for each in self._structure.sizes]

    @property
    def is_shared(self) -> bool:
        """Whether the functions serve all objects of the owner's structure."""
        return not self._structure.refused

    def is_pure(self, method: Callable[..., Any], *arguments: Any) -> bool:
        """Tell whether the same call returns the same; it traces the method, and errs towards no."""
        arguments = tf.nest.map_structure(tf.convert_to_tensor, arguments)
        return self._entry(method, arguments, self._present()).is_pure

    def _entry(self, method: Any, arguments: tuple[Any, ...], data: Sequence[tf.Tensor]) -> Entry:
        """Return the compiled function for arguments and data of these shapes, found or made."""
        given = tuple((part.dtype, tuple(part.shape)) for part in (*tf.nest.flatten(arguments), *data))
        call = method.__func__, _nesting(arguments), given
        if call not in self._found:
            with _lock:
                self._found[call] = self._shared(method, arguments, data)
        return self._found[call]

    def _shared(self, method: Any, arguments: tuple[Any, ...], data: Sequence[tf.Tensor]) -> Entry:
        """Find or trace a function; with static shapes where it cannot be traced with open ones."""
        static: Open = frozenset()
        opened = self._rows(data)
        for rows in (opened, static):
            key = self._key(method, arguments, data, rows)
            if key in _entries:
                _entries.move_to_end(key)
                return _entries[key]
        try:
            key = self._key(method, arguments, data, opened)
            entry = self._trace(method, arguments, data, opened)
        except Exception:  # of any kind: users' kernels may read a static number of rows
            if not opened:
                raise
            key = self._key(method, arguments, data, static)
            entry = self._trace(method, arguments, data, static)
        if not self._structure.refused:
            _entries[key] = entry
            while len(_entries) > MOST:
                _entries.popitem(last=False)
        return entry

    def _key(
        self, method: Any, arguments: tuple[Any, ...], data: Sequence[tf.Tensor], rows: Open
    ) -> Hashable:
        """Return all that decides the graph."""
        given = [*_specified(data, rows), *(_opened(part, rows) for part in tf.nest.flatten(arguments))]
        return (
            self._structure.key,
            *(model.num_data for model in self._structure.counted if NUM_DATA not in rows),
            *(each.values for each in self._structure.sizes if not _opens(rows)),
            method.__func__,
            _nesting(arguments),
            *((spec.dtype, tuple(spec.shape)) for spec in given),
            self._jit,
            self._optimise,
            _bucket(rows),
            gpflow.default_float(),
            gpflow.default_jitter(),
        )

    def _trace(self, method: Any, arguments: tuple[Any, ...], data: Sequence[tf.Tensor], rows: Open) -> Entry:
        global _traces
        _traces += 1
        flat = [_opened(part, rows) for part in tf.nest.flatten(arguments)]
        nesting: list[Any] = []

        def run(*given: Any) -> list[tf.Tensor]:
            owner = self._copied(given, rows)
            inner = tf.nest.pack_sequence_as(arguments, given[len(given) - len(flat) :])
            result = method.__func__(owner, *inner)
            nesting.append(tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape, part.dtype), result))
            return tf.nest.flatten(result)

        compiled = tf.function(run, jit_compile=self._jit, autograph=False)
        held = [
            *self._structure.variables,
            *_specified(data, rows),
            *(tf.TensorSpec(part.shape, part.dtype) for part in self._structure.tensors),
            *([tf.TensorSpec([], tf.int64)] * len(self._counts)),
            *(tf.TensorSpec(part.shape, part.dtype) for part in self._sizes),
        ]
        if any(spec.dtype == tf.float32 for spec in (*held, *flat)):
            products.make_exact()
        before = gradients.registered()
        try:
            with linalg.expecting(_bucket(rows)), _collector.paused():
                function = compiled.get_concrete_function(*held, *flat)
        finally:
            self._structure.clear_caches()
        gradients.release(before, function.graph)
        return Entry(function, nesting[0], self._optimise)

    def _copied(self, given: Sequence[Any], rows: Open) -> Any:
        """Return a copy of the owner that has the given variables and data for its own.

        One with a refused attribute, or that cannot be copied, is taken itself, with its variables.
        """
        structure = self._structure
        structure.clear_caches()
        if structure.refused:
            return self._owner
        held = (*structure.variables, *structure.data, *structure.tensors)
        memo = {id(mine): its for mine, its in zip(held, given, strict=False)}
        if _opens(rows):
            sizes = given[len(held) + len(self._counts) :]
            memo |= {id(mine): its for mine, its in zip(structure.sizes, sizes, strict=False)}
        for mine, its in zip(structure.variables, given, strict=False):
            its._unique_id = mine._unique_id  # by which an optimiser finds its slots
        try:
            owner = structure.copied(self._owner, memo)
        except Exception as failure:  # of any kind, from a user's own class
            structure.refused.append(f"{type(self._owner).__name__} cannot be copied: {failure!r}")
            return self._owner
        numbers = given[len(held) :]
        for model, number in zip(structure.counted if NUM_DATA in rows else (), numbers, strict=False):
            memo[id(model)].num_data = number
        return owner


def _opens(rows: Open) -> bool:
    """Tell whether any number of rows is left open."""
    return any(isinstance(length, int) for length in rows)


def _bucket(rows: Open) -> int:
    """Return the next size, a multiple of `linalg.LEAF` by a power of two, to the longest open axis.

    A graph divides large matrices as often as those of this size need it, so that one graph serves all rows
    up to a doubling of their number.
    """
    size = linalg.LEAF
    while size < max((length for length in rows if isinstance(length, int)), default=0):
        size *= 2
    return size


def _specified(data: Sequence[tf.Tensor], rows: Open) -> list[tf.TensorSpec]:
    """Return the specification of the data; where any rows are left open theirs are."""
    opened = _opens(rows)
    return [tf.TensorSpec([None if opened else len(part), *part.shape[1:]], part.dtype) for part in data]


def _opened(tensor: tf.Tensor, rows: Open) -> tf.TensorSpec:
    """Return the specification of an argument, axes of some lengths left open."""
    shape = [None if size in rows else size for size in tensor.shape]
    if BATCH in rows and len(shape) > 1:
        shape[0] = None
    return tf.TensorSpec(shape, tensor.dtype)


def _nesting(value: Any) -> Hashable:
    """Return how tensors are nested, and in what types."""
    if isinstance(value, dict):
        return dict, *((name, _nesting(part)) for name, part in value.items())
    if isinstance(value, (tuple, list)):
        return type(value), *map(_nesting, value)
    return None
