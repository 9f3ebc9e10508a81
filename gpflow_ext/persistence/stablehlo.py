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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .portable import decided
from .verify import DRAWS, STABLEHLO, WEIGHTS

Array = np.ndarray[Any, Any]
BLOCK = 64  # rows of an exported program
JOINT, AT_ONCE = 256, 8  # rows that are drawn jointly, and draws of one call
TOLERANCE = 1e-9  # of the runtime's results, relative to those of size above one
_TRIED = 3  # draws that are compared
_LOADER = Path(__file__).with_name("predict_jax.py")

_MAIN = re.compile(r"func\.func (?:public )?@main\((.*?)\) -> (.*?) \{\n", re.DOTALL)
_TENSOR = re.compile(r"tensor<([^>]*)>")
_PASSES = "builtin.module(inline,canonicalize,cse)"
_MAY_CHANGE_NOTHING = ("stablehlo.reshape", "stablehlo.convert", "stablehlo.slice")  # where the type stays
_UPDATE = re.compile(r"parameter_number = (\d+) : i64\}, output_index = array<i64: (\d+)>")
_COPY = re.compile(r"mhlo\.copy (%[\w#]+) : (tensor<[^>]*>)")
_OF_XLA = re.compile(r"stablehlo\.custom_call|(?<== )mhlo\.\w+")
_PLACES = re.compile(r' loc\((?:[^()"]|"[^"]*"|\([^()]*\))*\)|^#loc.*\n', re.MULTILINE)
_DTYPES = {"i1": "bool", "i8": "int8", "i32": "int32", "i64": "int64", "ui32": "uint32", "ui64": "uint64"}


class Program(NamedTuple):
    """A function as StableHLO."""

    text: str
    inputs: list[Array]  # its parameters: the arguments, then the variables and captured tensors
    variables: list[int]  # which of them are the variables among the arguments, in their order
    updates: dict[int, int]  # the results that are new values of variables, each with its parameter
    emitted: str  # as TensorFlow wrote it, before it was `tidied`

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


def tidied(text: str) -> str:
    """Return a program that computes the same, without what TensorFlow leaves in it but does not need.

    That is functions that none calls, copies of the bodies of loops among them, operations that change
    nothing, and those that repeat another.

    Raises
    ------
    ImportError
        Without the extra ``stablehlo``.
    """
    library()
    import jaxlib.mlir.ir
    import jaxlib.mlir.passmanager
    from jax.interpreters.mlir import make_ir_context

    mlir: Any = jaxlib.mlir  # whose types lack some names

    def bypass(operation: Any) -> Any:
        given, results = operation.operation.operands, operation.operation.results
        if operation.operation.name in _MAY_CHANGE_NOTHING and given[0].type == results[0].type:
            results[0].replace_all_uses_with(given[0])
        return mlir.ir.WalkResult.ADVANCE

    with make_ir_context():
        module = mlir.ir.Module.parse(text)
        module.operation.walk(bypass)
        mlir.passmanager.PassManager.parse(_PASSES).run(module.operation)
        return str(module)


class Artefact(NamedTuple):
    """Served functions as what `predict_jax.py` loads."""

    programs: dict[str, bytes]  # by the names of their files
    weights: dict[str, Array]

    def write(self, folder: Path) -> None:
        """Write all files."""
        for name, program in self.programs.items():
            (folder / name).write_bytes(program)
        np.savez(folder / WEIGHTS, **self.weights)


def to_stablehlo(predict: Any, sample: Any = None) -> Artefact:
    """Translate served functions. Names of classes are left out, and the numbers of classes are of 32 bits.

    The weights are arguments of the programs, each stored once.

    Parameters
    ----------
    predict
        A concrete function of ``inputs`` [None, D], each row of which decides its outputs alone: the program
        is for `BLOCK` rows.
    sample
        That of `joint_draws`, or ``None``: for `AT_ONCE` draws at `JOINT` rows.

    Raises
    ------
    ImportError
        Without the extra ``stablehlo``.
    ValueError
        If XLA cannot compile it, or by names that other runtimes need not know.
    """
    width = predict.inputs[0].shape[1]
    wanted = {STABLEHLO: (predict, [[BLOCK, width]])}
    if sample is not None:
        wanted[DRAWS] = sample, [[JOINT, width], [AT_ONCE, JOINT, sample.inputs[1].shape[-1]]]
    programs, weights, about = {}, _Weights(), {}
    for file, (function, shapes) in wanted.items():
        names, program = _translated(function, shapes)
        programs[file] = program.portable()
        about[file] = {
            "names": names,
            "inputs": [(part.dtype.name, part.shape) for part in program.inputs],
            "outputs": program.results,
            "weights": [weights.number(part) for part in program.inputs[len(shapes) :]],
        }
    return Artefact(programs, {"about": np.array(json.dumps(about)), **weights.held})


class _Weights:
    """Arrays by name, equal ones once."""

    def __init__(self) -> None:
        self.held: dict[str, Array] = {}

    def number(self, array: Array) -> int:
        for k, each in enumerate(self.held.values()):
            if each.dtype == array.dtype and np.array_equal(each, array):
                return k
        self.held[f"weight_{len(self.held)}"] = array
        return len(self.held) - 1


def _translated(function: Any, shapes: Sequence[Sequence[int]]) -> tuple[list[str], Program]:
    """Return the names of the results of a served function, and its program for arguments of these shapes."""
    outputs = function.structured_outputs
    names = [name for name in sorted(outputs) if outputs[name].dtype != tf.string]
    arguments = [spec.name for spec in function.structured_input_signature[0]]

    def numbers(*given: tf.Tensor) -> list[tf.Tensor]:
        found = function(**dict(zip(arguments, given, strict=True)))
        return [tf.cast(found[k], tf.int32) if found[k].dtype == tf.int64 else found[k] for k in names]

    specs = [tf.TensorSpec(shape, function.inputs[0].dtype) for shape in shapes]
    concrete = tf.function(numbers, autograph=False).get_concrete_function(*specs)
    try:
        program = lower(concrete, [tf.zeros(spec.shape, spec.dtype) for spec in specs])
    except ValueError as error:
        raise ValueError(f"this model has no StableHLO: {error}") from error
    if own := _OF_XLA.search(program.text):
        raise ValueError(f"this model has no StableHLO: it has calls that are XLA's own, of {own[0]}")
    return names, program


def compare(artefact: Artefact, signatures: Mapping[str, Any], inputs: Array, apart: Array) -> float:
    """Run an artefact by JAX, in a process without TensorFlow; return its largest difference.

    Differences are from the functions it stands for, relative to the largest result of size above one.

    Parameters
    ----------
    artefact, signatures
        What is compared: the served functions by name.
    inputs
        Rows to predict at, [n, D].
    apart
        Rows to draw at, [m, D], not close together: the factor of a covariance amplifies rounding.

    Raises
    ------
    ValueError
        If JAX cannot run it, or a result differs by more than `TOLERANCE` (for single precision 100 units of
        rounding, 100 times as many for draws).
    """
    with tempfile.TemporaryDirectory() as name:
        artefact.write(Path(name))
        rows = Path(name, "rows.csv")
        np.savetxt(rows, inputs, "%.17g", delimiter=",")
        found = _run([name, str(rows)])
        worst = _difference(found, _predicted(artefact, signatures, inputs, found), inputs.dtype)
        if DRAWS in artefact.programs:
            np.savetxt(rows, apart, "%.17g", delimiter=",")
            found, wanted = _run([name, str(rows), str(_TRIED)]), _drawn(signatures["sample_joint"], apart)
            worst = max(worst, _difference(found, wanted, inputs.dtype, 100.0))
    return worst


def _run(arguments: Sequence[str]) -> Array:
    """Return the numbers that the loader prints, in a process of its own."""
    command, on_cpu = [sys.executable, str(_LOADER), *arguments], {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=on_cpu, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"this model has no StableHLO: JAX cannot run it: {done.stderr.strip()[-500:]}")
    return np.array([line.split(",") for line in done.stdout.splitlines()[1:]], np.float64)


def _predicted(artefact: Artefact, signatures: Mapping[str, Any], inputs: Array, found: Array) -> Array:
    """Return what the loader should find; where rounding decides about a class, what it ``found``."""
    ours = signatures["serving_default"](inputs=tf.constant(inputs))
    names = json.loads(str(artefact.weights["about"]))[STABLEHLO]["names"]
    wanted = [ours[name].numpy().astype(np.float64).reshape(len(inputs), -1) for name in names]
    if "class" in names:  # the first, by the order of names
        tied = ~decided(ours["probabilities"].numpy())
        wanted[0][tied] = found[tied, :1]
    return np.hstack(wanted)


def _drawn(function: Any, inputs: Array) -> Array:
    """Return draws as the loader prints them, from the same numbers."""
    shape = _TRIED, len(inputs), function.inputs[1].shape[-1]
    normals = np.random.default_rng(0).standard_normal(shape).astype(inputs.dtype)
    draws = function(inputs=tf.constant(inputs), normals=tf.constant(normals))["f"].numpy()
    return np.moveaxis(draws, 0, 1).reshape(len(inputs), -1).astype(np.float64)


def _difference(found: Array, wanted: Array, dtype: Any, slack: float = 1.0) -> float:
    """Return the largest difference, relative to the largest result of size above one; refuse a large one."""
    size = max(1.0, float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)))
    agree = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    worst = float(np.where(agree, 0.0, np.abs(found - wanted)).max(initial=0.0) / size)
    bound = TOLERANCE if dtype == np.float64 else slack * 100.0 * float(np.finfo(dtype).eps)
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
    ImportError
        Without the extra ``stablehlo``.
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
    inputs = [np.asarray(part.numpy()) for part in held]
    program = Program(tidied(text), inputs, variables, updates, text)
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
