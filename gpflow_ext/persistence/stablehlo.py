"""Lower a function of TensorFlow to StableHLO, which runtimes of XLA run on any device without TensorFlow.

XLA needs every shape: a program is for arguments of these shapes alone. What TensorFlow computes while it
lowers, such as a shape that depends on an argument, is a constant of the program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

Array = np.ndarray[Any, Any]

_MAIN = re.compile(r"func\.func (?:public )?@main\((.*?)\) -> (.*?) \{\n", re.DOTALL)
_TENSOR = re.compile(r"tensor<([^>]*)>")
_UPDATE = re.compile(r"parameter_number = (\d+) : i64\}, output_index = array<i64: (\d+)>")
_COPY = re.compile(r"mhlo\.copy (%[\w#]+) : (tensor<[^>]*>)")
_PLACES = re.compile(r' loc\((?:[^()"]|"[^"]*"|\([^()]*\))*\)|^#loc.*\n', re.MULTILINE)
_DTYPES = {"i1": "bool", "i8": "int8", "i32": "int32", "i64": "int64", "ui32": "uint32", "ui64": "uint64"}


class Program(NamedTuple):
    """A function as StableHLO."""

    text: str
    inputs: list[Array]  # its parameters: the arguments, then the variables and captured tensors
    variables: list[int]  # which of them are the variables among the arguments, in their order
    updates: dict[int, int]  # the results that are new values of variables, each with its parameter

    @property
    def results(self) -> list[tuple[str, tuple[int, ...]]]:
        """The dtype and shape of each result: what the function returns, then the updates."""
        return _types(self.text)[1]

    def portable(self) -> bytes:
        """Return the versioned artefact, which StableHLO promises to read for five years.

        Raises
        ------
        ImportError
            Without the extra ``stablehlo``.
        """
        dialect = library()
        # A version that runtimes of the last twelve weeks read.
        level = dialect.StablehloCompatibilityRequirement.WEEK_12
        version = dialect.get_version_from_compatibility_requirement(level)
        return dialect.serialize_portable_artifact_str(self.text, version)


def library() -> Any:
    """Return the bindings of StableHLO that come with JAX, or raise ``ImportError`` with what to install."""
    try:
        from jaxlib.mlir.dialects import stablehlo
    except ImportError as error:
        raise ImportError(
            'profile="stablehlo" needs the extra stablehlo: pip install "gpflow-ext[stablehlo]"'
        ) from error
    return stablehlo


def lower(function: Any, arguments: Sequence[Any]) -> Program:
    """Lower a function for arguments of these shapes.

    Integer arguments that decide a shape become constants of the program, and the other integers with them.

    Parameters
    ----------
    function
        A ``ConcreteFunction``.
    arguments
        Tensors and variables, as it takes them.

    Raises
    ------
    ValueError
        If XLA returns other parameters or results than the function has.
    tf.errors.OpError
        If it has an operation that XLA cannot compile.
    """
    for fixed in (False, True):
        given = [
            part
            for part in arguments
            if tf.is_tensor(part)
            and not isinstance(part, tf.Variable)
            and not (fixed and part.dtype.is_integer)
        ]
        program = _lower(function, arguments, given)
        if len(_types(program.text)[0]) == len(program.inputs):
            return program
    raise ValueError(f"{len(program.inputs)} arguments became {len(_types(program.text)[0])} parameters")


def _lower(function: Any, arguments: Sequence[Any], given: Sequence[tf.Tensor]) -> Program:
    places = [next((k for k, each in enumerate(given) if each is part), None) for part in arguments]
    numbers = {
        k: part.numpy()
        for k, (part, place) in enumerate(zip(arguments, places, strict=True))
        if place is None and not isinstance(part, tf.Variable)
    }

    def run(*tensors: tf.Tensor) -> Any:
        flat = [
            tf.constant(numbers[k]) if k in numbers else part if place is None else tensors[place]
            for k, (part, place) in enumerate(zip(arguments, places, strict=True))
        ]
        return [part for part in tf.nest.flatten(function(*flat)) if part is not None]

    compiled = tf.function(run, jit_compile=True, autograph=False)
    concrete = compiled.get_concrete_function(*given)
    text = compiled.experimental_get_compiler_ir(*given)(stage="stablehlo")
    text = _COPY.sub(r"stablehlo.reshape \1 : (\2) -> \2", _PLACES.sub("", text))
    by_handle = {id(variable.handle): variable for variable in concrete.graph.variables}
    held = [*given, *(by_handle.get(id(part), part) for part in concrete.captured_inputs)]
    updates = {int(result): int(parameter) for parameter, result in _UPDATE.findall(text)}
    variables = [
        next(k for k, each in enumerate(held) if each is part)
        for part in arguments
        if isinstance(part, tf.Variable)
    ]
    program = Program(text, [np.asarray(part.numpy()) for part in held], variables, updates)
    if len(program.results) != len(concrete.outputs) + len(updates):
        raise ValueError(f"{len(concrete.outputs)} outputs became {len(program.results)} results")
    return program


def _types(text: str) -> tuple[list[tuple[str, tuple[int, ...]]], ...]:
    """Return the dtypes and shapes of the parameters and of the results of a program."""
    main = _MAIN.search(text)
    assert main is not None
    return tuple([_type(found) for found in _TENSOR.findall(part)] for part in main.groups())


def _type(text: str) -> tuple[str, tuple[int, ...]]:
    *shape, dtype = text.split("x")
    return _DTYPES.get(dtype, dtype.replace("f", "float")), tuple(map(int, shape))
