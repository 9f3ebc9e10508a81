"""The structure of an object: all that decides a graph but the numbers in its variables and its data."""

from __future__ import annotations

import collections
import copy
import enum
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Hashable
from typing import Any, NamedTuple

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_ext.numerics.open_sizes import Sizes

DIGEST_FROM = 4096  # bytes of an array, of which the key then holds a digest
COUNTED = (
    gpflow.models.SVGP,
    gpflow.models.SGPR,
    gpflow.models.SGPMC,
)  # they weight data by ``num_data``, or not
_BOOKKEEPING = {"_name", "_name_scope", "_scope_name", "_setattr_tracking", "_obj_reference_counts_dict"}
_OF_OPTIMISER = {"_coalesced_children", "_distribution_strategy", "_index_dict", "_mesh", "name"}
_OF_PROBABILITY = _BOOKKEEPING | {
    "_constructor_name_scope",
    "_initial_parameter_control_dependencies",
    "_parameters",
    "_parameters_sanitized",
}  # of a bijector or a distribution
_BUILT_IN = (bool, int, float, complex, str, bytes)  # bool before int, of which it is a subclass
_PLAIN = (*_BUILT_IN, tf.DType, tf.TensorShape, np.dtype, np.generic, range, inspect.Signature)


class Apart:
    """The base of attributes that do not belong to the structure of their owner."""


class Structure(NamedTuple):
    """The key that determines a graph, and the arguments of the compiled function."""

    key: Hashable
    variables: list[tf.Variable]  # each once, in the order in which they are met
    data: list[Any]  # what the object, or a part of it, holds as ``data``, of any number of rows
    followers: list[Any]  # those whose ``data`` are variables
    tensors: list[tf.Tensor]  # other vectors and matrices of real numbers, whose shapes the key holds
    bijectors: list[tfp.bijectors.Bijector]
    constants: list[Any]  # what copies share: all else whose values the key holds, and strategies
    closures: list[types.FunctionType]  # over more than plain values
    counted: list[gpflow.models.BayesianModel]  # with ``num_data``, which the key leaves out
    sizes: list[Sizes]  # whose numbers it leaves out too; `Compiled` adds them where shapes are static
    refused: list[str]  # attributes whose effect on a graph cannot be known: the key is not enough

    def clear_caches(self) -> None:
        """Clear what bijectors remember: it cannot be copied, and symbolic tensors in it hold their graph.

        The cache is one for all bijectors of the process, and an entry goes when its tensor does, in whatever
        thread that is; `BijectorCache.clear` would raise ``KeyError`` for one that went meanwhile.
        """
        for bijector in self.bijectors:
            cache = bijector._cache
            for key in cache.weak_keys():
                key.cancel()
                cache.storage.pop(key, None)

    def copied(self, owner: Any, memo: dict[int, Any]) -> Any:
        """Return a deep copy of the object; ``memo`` holds what takes the places of its parts, by identity.

        Functions that close over parts of it are replaced by those that close over the parts of the copy.
        """
        self.clear_caches()
        memo |= {id(constant): constant for constant in self.constants}
        cells = [cell for function in self.closures for cell in function.__closure__ or ()]
        memo |= {id(cell): types.CellType() for cell in cells}
        memo |= {id(function): _rebound(function, memo) for function in self.closures}
        result = copy.deepcopy(owner, memo)
        for cell in cells:
            memo[id(cell)].cell_contents = copy.deepcopy(cell.cell_contents, memo)
        for function in self.closures:
            held = function.__defaults__, function.__kwdefaults__
            memo[id(function)].__defaults__, memo[id(function)].__kwdefaults__ = copy.deepcopy(held, memo)
        return result


def _rebound(function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
    """Return a function of the same code, the cells of whose closure are those of the memo."""
    cells = tuple(memo[id(cell)] for cell in function.__closure__ or ())
    return types.FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)


def examine(owner: Any) -> Structure:
    """Return the structure of an object: a model, a kernel, or a solver with all that it trains.

    Two objects have equal keys where classes and attributes are equal: of variables and parameters their
    dtype, shape, whether they are trainable, transform and prior; of tensors of real numbers their dtype and
    shape; of all other arrays and constants their values; of what is met again, such as a parameter that
    two kernels share, that it is the same.

    What no rule covers is refused: an iterator, a symbolic tensor, a variable of a distribution strategy.
    Such an object does not share its graphs.
    """
    walk = _Walk()
    key = walk.part(owner, type(owner).__name__)
    arguments = (walk.variables, walk.data, walk.followers, walk.tensors)
    kept = (walk.bijectors, walk.constants, walk.closures)
    return Structure(key, *arguments, *kept, walk.counted, walk.sizes, walk.refused)


class _Walk:
    """One walk, depth first, through the attributes of an object."""

    def __init__(self) -> None:
        self.variables: list[tf.Variable] = []
        self.data: list[Any] = []
        self.followers: list[Any] = []
        self.tensors: list[tf.Tensor] = []
        self.bijectors: list[tfp.bijectors.Bijector] = []
        self.constants: list[Any] = []
        self.closures: list[types.FunctionType] = []
        self.counted: list[gpflow.models.BayesianModel] = []
        self.sizes: list[Sizes] = []
        self.refused: list[str] = []
        self._by_value = False  # whether tensors are keyed by their values: in a distribution
        self._met: dict[int, tuple[int, Any]] = {}

    def part(self, value: Any, path: str) -> Hashable:
        """Return the key of a value."""
        if isinstance(value, Apart):
            return None
        if isinstance(value, types.ModuleType):
            self.constants.append(value)  # it cannot be copied
            return value
        if isinstance(value, (type, enum.Enum)):
            return value
        if value is None or isinstance(value, _PLAIN):
            return self._plain(value, path)
        if isinstance(value, types.BuiltinFunctionType):
            return self._builtin(value, path)
        if id(value) in self._met:
            return "again", self._met[id(value)][0]
        if isinstance(value, (tuple, list, dict)):
            return self._container(value, path)
        if isinstance(value, (slice, functools.partial)):
            return type(value), *(self.part(member, path) for member in value.__reduce__()[1:])
        self._meet(value)
        if isinstance(value, Sizes):
            self.sizes.append(value)
            return "sizes", len(value.values)
        return self._object(value, path)

    def _plain(self, value: Any, path: str) -> Hashable:
        """Return the key of a value that does not change, and the attributes of a subclass."""
        if isinstance(value, np.generic):
            return self._constant(value, path)
        if type(value) in _BUILT_IN or not isinstance(value, _BUILT_IN):
            return type(value).__name__, repr(value)  # 1, 1.0 and True are equal, NaN is not equal to itself
        kind = next(kind for kind in _BUILT_IN if isinstance(value, kind))
        return type(value), kind.__repr__(value), *self._members(value, path)

    def _builtin(self, value: Any, path: str) -> Hashable:
        """Return the key of a function in C: with that of the object of which it is a method."""
        owner = value.__self__
        if owner is None or isinstance(owner, (types.ModuleType, type)):
            return value
        return "method", value.__name__, self.part(owner, path)

    def _container(self, value: Any, path: str) -> Hashable:
        """Return the key of a sequence or a dictionary: its class, its members and its own attributes."""
        held: list[Any]
        if isinstance(value, dict):
            held = [(self.part(k, path), self.part(v, f"{path}[{k!r}]")) for k, v in value.items()]
        else:
            held = [self.part(member, f"{path}[{place}]") for place, member in enumerate(value)]
        if type(value).__module__.startswith("tensorflow."):  # what Keras makes of a list or a dictionary
            return "tracked", *held
        if isinstance(value, collections.defaultdict):
            held.append(self.part(value.default_factory, path))
        return (type(value), *held, *self._members(value, path))

    def _refuse(self, reason: str) -> Hashable:
        self.refused.append(reason)
        return None

    def _meet(self, value: Any) -> None:
        """Give an object a number, and hold it: another one could otherwise get its address."""
        self._met[id(value)] = len(self._met), value

    def _object(self, value: Any, path: str) -> Hashable:
        if isinstance(value, gpflow.Parameter):
            return self._parameter(value, path)
        if isinstance(value, tf.Variable):
            return self._variable(value, path)
        if isinstance(value, np.ndarray) or tf.is_tensor(value):
            return self._constant(value, path)
        if isinstance(value, tfp.bijectors.Bijector):
            self.bijectors.append(value)
            return self._of_parameters(value, path)
        if isinstance(value, tfp.distributions.Distribution):
            return self._distribution(value, path)
        if isinstance(value, types.FunctionType):
            return self._function(value, path)
        if isinstance(value, types.MethodType):
            return value.__func__, self.part(value.__self__, path)
        return self._attributes(value, path)

    def _variable(self, value: tf.Variable, path: str) -> Hashable:
        if isinstance(value, tf.distribute.DistributedValues):
            return self._refuse(f"{path}: a variable of a distribution strategy")
        self.variables.append(value)
        return "variable", value.dtype.name, tuple(value.shape), value.trainable

    def _parameter(self, value: gpflow.Parameter, path: str) -> Hashable:
        if not isinstance(value.unconstrained_variable, tf.Variable):
            return self._refuse(f"{path}: a parameter without a variable")
        names = ("transform", "prior", "prior_on")
        parts = (self.part(getattr(value, name), f"{path}.{name}") for name in names)
        variable = self.part(value.unconstrained_variable, path)
        own = () if type(value) is gpflow.Parameter else self._members(value, path)
        return type(value), tuple(value.shape), variable, *parts, *own

    def _constant(self, value: Any, path: str) -> Hashable:
        if isinstance(value, tf.Tensor):
            if not hasattr(value, "numpy"):
                return self._refuse(f"{path}: a symbolic tensor")
            if value.dtype.is_floating and value.shape.rank and not self._by_value:
                self.tensors.append(value)
                return "tensor", value.dtype.name, tuple(value.shape)
            self.constants.append(value)
        array = np.asarray(value)
        if isinstance(value, np.memmap):
            return self._refuse(f"{path}: an array in a file")
        if array.dtype.hasobject:
            return self._refuse(f"{path}: an array of objects")
        content = array.tobytes()
        if len(content) > DIGEST_FROM:
            content = hashlib.blake2b(content).digest()
        key: tuple[Any, ...] = (type(value), array.dtype, array.shape, content)
        if not isinstance(value, np.ndarray) or type(value) is np.ndarray:
            return key
        self.constants.append(value)  # a copy may lose the attributes of a subclass
        return *key, *self._members(value, path)  # such as a mask

    def _of_parameters(self, value: Any, path: str) -> Hashable:
        """Return the key of a bijector or a distribution, which its class and arguments decide.

        One of the user's own may have other attributes, which may change, and need not name its arguments.
        """
        arguments = value.parameters or {}
        given = {name: argument for name, argument in arguments.items() if name != "name"}
        foreign = type(value).__module__.startswith("tensorflow_probability.")
        own = () if foreign else self._members(value, path, _OF_PROBABILITY)
        return type(value), self.part(given, path), *own

    def _distribution(self, value: Any, path: str) -> Hashable:
        """Return the key of a distribution; without variables it is shared, as not all can be copied."""
        before, self._by_value = (len(self.variables), self._by_value), True
        key = self._of_parameters(value, path)
        if len(self.variables) == before[0]:
            self.constants.append(value)
        self._by_value = before[1]
        return key

    def _function(self, value: types.FunctionType, path: str) -> Hashable:
        """Return a function itself if its module holds it by its name; else its code and its closure."""
        if _found_by_name(value):
            return value
        held = _held_by(value)
        if not _is_plain(held):
            self.closures.append(value)
        return value.__code__, id(value.__globals__), self.part(held, path)

    def _attributes(self, value: Any, path: str) -> Hashable:
        """Return the class and all attributes of any other object."""
        foreign = type(value).__module__.startswith("tensorflow.") and not isinstance(value, tf.Module)
        if foreign or not hasattr(value, "__dict__"):
            return self._refuse(f"{path}: {type(value)}")
        skipped = _BOOKKEEPING | (_OF_OPTIMISER if hasattr(value, "apply_gradients") else set())
        return type(value), *self._members(value, path, skipped)

    def _members(self, value: Any, path: str, skipped: set[str] = _BOOKKEEPING) -> list[Hashable]:
        """Return the attributes of an object and their keys, in the order of their names."""
        parts: list[Hashable] = []
        for name, held in sorted({**getattr(value, "__dict__", {}), **_in_slots(value)}.items()):
            if isinstance(held, tf.distribute.Strategy) and name in skipped:
                self.constants.append(held)
            if name in skipped or name.startswith("_self_"):
                continue
            if name == "num_data" and isinstance(value, COUNTED) and isinstance(held, (int, np.integer)):
                self.counted.append(value)
                continue
            at = f"{path}.{name}"
            parts.append((name, self._data(value, held, at) if name == "data" else self.part(held, at)))
        return parts

    def _data(self, owner: Any, value: Any, path: str) -> Hashable:
        """Return the key of the data of a model: dtypes and shapes without the number of rows."""
        follows = getattr(owner, "follows", False)
        kinds = (tf.Tensor, tf.Variable) if follows else tf.Tensor
        if not isinstance(value, tuple) or not all(isinstance(part, kinds) for part in value):
            return self.part(value, path)
        if follows:
            self.followers.append(owner)
        return "data", *map(self._datum, value)

    def _datum(self, value: Any) -> Hashable:
        if id(value) in self._met:
            return "again", self._met[id(value)][0]
        self._meet(value)
        self.data.append(value)
        return value.dtype.name, tuple(value.shape[1:])


def _in_slots(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that its classes keep in slots, not in its dictionary."""
    own = (vars(kind) for kind in type(value).__mro__ if vars(kind).get("__slots__"))
    slots = (each for kind in own for each in kind.values() if isinstance(each, types.MemberDescriptorType))
    return {slot.__name__: slot.__get__(value) for slot in slots if hasattr(value, slot.__name__)}


def _held_by(function: types.FunctionType) -> tuple[Any, ...]:
    """Return what a function closes over, and its defaults."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return function.__defaults__, function.__kwdefaults__, cells


def _is_plain(value: Any, within: tuple[Any, ...] = ()) -> bool:
    """Tell whether a value is of numbers, texts, arrays and functions of these, which a copy may share."""
    if isinstance(value, dict):
        return all(_is_plain(member, within) for member in value.values())
    if isinstance(value, (tuple, list)):
        return all(_is_plain(member, within) for member in value)
    if isinstance(value, types.FunctionType):
        known = value in within or _found_by_name(value)
        return known or _is_plain(_held_by(value), (*within, value))
    return value is None or isinstance(value, (*_PLAIN, type, enum.Enum, np.ndarray))


def _found_by_name(function: types.FunctionType) -> bool:
    """Tell whether a function is what its module holds under its name."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function
