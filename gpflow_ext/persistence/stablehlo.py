"""Lower a function of TensorFlow to StableHLO, which runtimes of XLA run on any device without TensorFlow.

XLA needs every shape: a program is for arguments of these shapes alone. What TensorFlow computes while it
lowers, such as a shape that depends on an argument, is a constant of the program.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .verify import STABLEHLO, WEIGHTS

Array = np.ndarray[Any, Any]
BLOCK = 64  # rows of an exported program
TOLERANCE = 1e-9  # of the runtime's results, relative to those of size above one
_LOADER = Path(__file__).with_name("predict_jax.py")

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


class Artefact(NamedTuple):
    """A served function as what `predict_jax.py` loads."""

    program: bytes
    weights: dict[str, Array]

    def write(self, folder: Path) -> None:
        """Write both files."""
        (folder / STABLEHLO).write_bytes(self.program)
        np.savez(folder / WEIGHTS, **self.weights)


def to_stablehlo(function: Any) -> Artefact:
    """Translate a concrete function of ``inputs`` [None, D], each row of which decides its outputs alone.

    The program is for `BLOCK` rows, its weights are its arguments. Names of classes are left out, and the
    numbers of classes are of 32 bits.

    Raises
    ------
    ImportError
        Without the extra ``stablehlo``.
    ValueError
        If XLA cannot compile it, or by names that other runtimes need not know.
    """
    outputs = function.structured_outputs
    names = [name for name in sorted(outputs) if outputs[name].dtype != tf.string]

    def numbers(inputs: tf.Tensor) -> list[tf.Tensor]:
        found = function(inputs=inputs)
        return [tf.cast(found[k], tf.int32) if found[k].dtype == tf.int64 else found[k] for k in names]

    spec = tf.TensorSpec([BLOCK, function.inputs[0].shape[1]], function.inputs[0].dtype)
    concrete = tf.function(numbers, autograph=False).get_concrete_function(spec)
    try:
        program = lower(concrete, [tf.zeros(spec.shape, spec.dtype)])
    except ValueError as error:
        raise ValueError(f"this model has no StableHLO: {error}") from error
    if "stablehlo.custom_call" in program.text:
        raise ValueError("this model has no StableHLO: it has calls that are XLA's own")
    about = {
        "names": names,
        "inputs": [(part.dtype.name, part.shape) for part in program.inputs],
        "outputs": program.results,
    }
    weights = {f"weight_{k}": part for k, part in enumerate(program.inputs[1:])}
    return Artefact(program.portable(), {"about": np.array(json.dumps(about)), **weights})


def compare(artefact: Artefact, function: Any, inputs: Array) -> float:
    """Run an artefact by JAX, in a process without TensorFlow; return its largest difference.

    Differences are from the function it stands for, relative to the largest result of size above one.

    Raises
    ------
    ValueError
        If JAX cannot run it, or a result differs by more than `TOLERANCE` (for single precision 100 units of
        rounding).
    """
    with tempfile.TemporaryDirectory() as name:
        artefact.write(Path(name))
        np.savetxt(Path(name, "rows.csv"), inputs, "%.17g", delimiter=",")
        done = subprocess.run(
            [sys.executable, str(_LOADER), name, str(Path(name, "rows.csv"))],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise ValueError(f"this model has no StableHLO: JAX cannot run it: {done.stderr.strip()[-500:]}")
    ours = function(inputs=tf.constant(inputs))
    names = json.loads(str(artefact.weights["about"]))["names"]
    columns = [ours[name].numpy().astype(np.float64).reshape(len(inputs), -1) for name in names]
    wanted, (_, *lines) = np.hstack(columns), done.stdout.splitlines()
    found = np.array([line.split(",") for line in lines], np.float64)
    size = max(1.0, float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)))
    agree = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    worst = float(np.where(agree, 0.0, np.abs(found - wanted)).max(initial=0.0) / size)
    bound = TOLERANCE if inputs.dtype == np.float64 else 100.0 * float(np.finfo(inputs.dtype).eps)
    if not worst <= bound:
        raise ValueError(f"this model has no StableHLO: JAX differs by {worst:.1e}, more than {bound:.0e}")
    return worst


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
        If the function has an operation that XLA cannot compile, or XLA returns other parameters or results
        than it has.
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
