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
from typing import Any, NamedTuple, TypeAlias

import gpflow
import tensorflow as tf

from gpflow_ext.compiled.structure import Apart, Structure, Unkeyable, examine

OPEN_ROWS = 512  # data up to which one graph serves every number of rows; see `numerics.linalg.LEAF`
MOST = 64  # functions that are kept; the least recently used is dropped
BATCH, NUM_DATA = "batch", "num_data"  # what is open beside axes of some lengths
Open: TypeAlias = frozenset[int | str]


class Entry(NamedTuple):
    """A compiled function and how its outputs are nested."""

    function: Any  # a ConcreteFunction of flat variables, data and arguments
    outputs: Any  # nested specifications

    def __call__(self, *flat: Any) -> Any:
        """Return the nested outputs."""
        return tf.nest.pack_sequence_as(self.outputs, self.function(*flat))


_entries: collections.OrderedDict[Hashable, Entry] = collections.OrderedDict()
_closed: set[Hashable] = set()  # keys of functions that cannot be traced with an open number of rows
_lock = threading.RLock()  # held to look up and while a function is traced
_traces = 0


def clear_compiled() -> None:
    """Drop all compiled functions and their graphs.

    Needed only where something has changed that no structure shows: a global variable that a user's kernel
    reads, or a class patched in place.
    """
    with _lock:
        _entries.clear()
        _closed.clear()


def trace_count() -> int:
    """Return how many functions this process has traced; for tests."""
    return _traces


class Compiled(Apart):
    """The compiled methods of one object.

    A method is compiled once for all objects of the same structure; see `structure.examine`. An object that
    has no key, such as one that closes over a variable, gets functions of its own, which end with it.

    Parameters
    ----------
    owner
        The object; its Python attributes must stay as they are.
    jit_compile
        XLA, with static shapes.
    rows
        Further numbers of rows that vary from call to call, beside that of the owner's ``data``.
    batches
        Whether arguments of two axes or more are minibatches of any number of rows, of which no matrix is
        factorised.
    """

    def __init__(
        self, owner: Any, jit_compile: bool = False, rows: Sequence[int] = (), batches: bool = False
    ) -> None:
        self._owner, self._jit, self._given, self._batches = owner, jit_compile, tuple(rows), batches
        self._own: dict[Hashable, Entry] = {}  # where the owner has no key

    def __deepcopy__(self, memo: Any) -> Compiled:
        """Return the same for a copy of the owner."""
        return Compiled(copy.deepcopy(self._owner, memo), self._jit, self._given, self._batches)

    @functools.cached_property
    def _structure(self) -> Structure | None:
        try:
            return examine(self._owner)
        except Unkeyable:
            return None

    @functools.cached_property
    def _rows(self) -> Open:
        """The lengths of axes that are left open, and what else is."""
        data = [] if self._structure is None else self._structure.tensors[:1]
        counted = self._structure is not None and self._structure.counted
        rows = {*self._given, *(len(part) for part in data)}
        lengths = set() if self._jit or max(rows, default=0) > OPEN_ROWS else rows
        batch = {BATCH} if self._batches and not self._jit else set()
        return frozenset(lengths | batch | ({NUM_DATA} if counted else set()))

    def __call__(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the owner with tensors, or nests of them, and return its tensors."""
        if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
            return method(*arguments)
        arguments = tf.nest.map_structure(tf.convert_to_tensor, arguments)
        return self._entry(method, arguments)(*self._held, *tf.nest.flatten(arguments))

    def specification(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Return the shapes and dtypes of what a call returns, unknown where rows are left open."""
        return self._entry(method, tf.nest.map_structure(tf.convert_to_tensor, arguments)).outputs

    @property
    def _held(self) -> list[Any]:
        """What the owner passes to each of its functions."""
        if self._structure is None:
            return []
        return [*self._structure.variables, *self._structure.tensors, *self._counts]

    @functools.cached_property
    def _counts(self) -> list[tf.Tensor]:
        """The numbers of data of the models that count them."""
        return [tf.constant(model.num_data, tf.int64) for model in self._structure.counted]  # type: ignore[union-attr]

    def _entry(self, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Entry:
        """Find or make a function; with static shapes where it cannot be traced with open ones."""
        with _lock:
            rows = self._rows
            if self._key(method, arguments, rows) in _closed:
                rows = frozenset()
            key = self._key(method, arguments, rows)
            entries = self._own if self._structure is None else _entries
            if key not in entries:
                try:
                    entries[key] = self._trace(method, arguments, rows)
                except Exception:  # of any kind: users' kernels may read a static number of rows
                    if not rows:
                        raise
                    _closed.add(key)
                    return self._entry(method, arguments)
            if entries is _entries:
                _entries.move_to_end(key)
                while len(_entries) > MOST:
                    _entries.popitem(last=False)
            return entries[key]

    def _key(self, method: Any, arguments: tuple[Any, ...], rows: Open) -> Hashable:
        """Return all that decides the graph."""
        structure = self._structure
        return (
            None if structure is None else (structure.key, *map(str, self._data(rows))),
            *(
                model.num_data
                for model in ([] if structure is None or NUM_DATA in rows else structure.counted)
            ),
            method.__func__,
            self._jit,
            gpflow.default_float(),
            gpflow.default_jitter(),
            _nesting(arguments),
            *(str(_opened(part, rows)) for part in tf.nest.flatten(arguments)),
        )

    def _data(self, rows: Open) -> list[tf.TensorSpec]:
        """Return the specification of the data; of one that is left open only the rows are."""
        tensors = [] if self._structure is None else self._structure.tensors
        opened = any(isinstance(length, int) for length in rows)
        return [
            tf.TensorSpec([None if opened else len(part), *part.shape[1:]], part.dtype) for part in tensors
        ]

    def _trace(self, method: Any, arguments: tuple[Any, ...], rows: Open) -> Entry:
        global _traces
        _traces += 1
        flat = [_opened(part, rows) for part in tf.nest.flatten(arguments)]
        held: list[Any] = flat
        if self._structure is not None:
            counts = [tf.TensorSpec([], tf.int64)] * len(self._structure.counted)
            held = [*self._structure.variables, *self._data(rows), *counts, *flat]
        nesting: list[Any] = []

        def run(*given: Any) -> list[tf.Tensor]:
            target = method if self._structure is None else self._copied(method, given, rows)
            result = target(*tf.nest.pack_sequence_as(arguments, given[len(given) - len(flat) :]))
            nesting.append(tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape, part.dtype), result))
            return tf.nest.flatten(result)

        compiled = tf.function(run, jit_compile=self._jit, autograph=False)
        return Entry(compiled.get_concrete_function(*held), nesting[0])

    def _copied(self, method: Any, given: Sequence[Any], rows: Open) -> Any:
        """Return the method of a copy of the owner that has the given variables and data for its own."""
        _, variables, tensors, bijectors, constants, counted = self._structure  # type: ignore[misc]
        memo = {id(constant): constant for constant in constants}
        for mine, its in zip([*variables, *tensors], given, strict=False):
            memo[id(mine)] = its
        for mine, its in zip(variables, given, strict=False):
            its._unique_id = mine._unique_id  # by which an optimiser finds its slots
        for bijector in bijectors:
            bijector._cache.clear()  # they hold what cannot be copied
        target = getattr(copy.deepcopy(self._owner, memo), method.__name__)
        for model, number in zip(
            counted if NUM_DATA in rows else (), given[len(variables) + len(tensors) :], strict=False
        ):
            memo[id(model)].num_data = number
        return target


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
