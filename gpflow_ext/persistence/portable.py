"""Translate a folded graph to ONNX, in operators that runtimes have in single and in double precision."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy.special
import tensorflow as tf

from .onnx_nodes import HANDLERS, drop_shapes_of_elements, nodes

Array = np.ndarray[Any, Any]
OPSET = 17
TOLERANCE = 1e-7  # of the runtime's results, relative to those of size above one
_DOMAIN = "gpflow_ext"  # of the functions below, until they are inlined
_DEGREE = 16
# Operations that ONNX lacks, or that its runtimes have in single precision alone, by those that they have.
# Functions of x, except for SelectV2; `_NUMBERS` come before.
_FUNCTIONS = {
    "Log": """
        y = Log (x)""",  # which the converter would compute in single precision
    "SelectV2": """
        y = Where (choice, x, other)""",
    "Erfc": """
        z = Abs (x)
        c = Constant <value = DTYPE {3.75}> ()
        far = Add (z, c)
        near = Sub (z, c)
        t = Div (near, far)
        HORNER
        square = Mul (x, x)
        fall = Neg (square)
        decay = Exp (fall)
        two_z = Add (z, z)
        below = Add (two_z, one)
        scaled = Mul (decay, polynomial)
        right = Div (scaled, below)
        left = Sub (two, right)
        negative = Less (x, zero)
        y = Where (negative, left, right)""",
    "Erf": """
        complement = gpflow_ext.Erfc (x)
        y = Sub (one, complement)""",
    "Log1p": """
        u = Add (one, x)
        moved = Sub (u, one)
        logarithm = Log (u)
        product = Mul (x, logarithm)
        still = Equal (moved, zero)
        divisor = Where (still, one, moved)
        ratio = Div (product, divisor)
        y = Where (still, x, ratio)""",
    "Expm1": """
        half = Div (x, two)
        t = Tanh (half)
        twice = Add (t, t)
        rest = Sub (one, t)
        near = Div (twice, rest)
        growth = Exp (x)
        far = Sub (growth, one)
        size = Abs (x)
        small = Less (size, one)
        y = Where (small, near, far)""",
    "Asinh": """
        size = Abs (x)
        square = Mul (x, x)
        above = Add (square, one)
        root = Sqrt (above)
        next = Add (root, one)
        bent = Div (square, next)
        sum = Add (size, bent)
        value = gpflow_ext.Log1p (sum)
        sign = Sign (x)
        y = Mul (sign, value)""",
    "Sinh": """
        growth = Exp (x)
        decay = Reciprocal (growth)
        difference = Sub (growth, decay)
        y = Div (difference, two)""",
    "Cosh": """
        growth = Exp (x)
        decay = Reciprocal (growth)
        sum = Add (growth, decay)
        y = Div (sum, two)""",
    "Softplus": """
        size = Abs (x)
        fall = Neg (size)
        decay = Exp (fall)
        bent = gpflow_ext.Log1p (decay)
        positive = Max (x, zero)
        y = Add (positive, bent)""",
    "IsFinite": """
        nothing = Sub (x, x)
        y = Equal (nothing, zero)""",
    "PreventGradient": """
        y = Identity (x)""",
}
_NUMBERS = {"zero": 0.0, "one": 1.0, "two": 2.0}


def to_onnx(function: Any) -> bytes:
    """Return a concrete function of ``inputs`` as an ONNX model, its outputs by name.

    Triangular solves by a matrix that is known become products with its inverse.

    Raises
    ------
    ImportError
        Without the extra ``onnx``.
    ValueError
        If the function has an operation that no operator of ONNX stands for; they are named.
    """
    onnx, tf2onnx, _ = libraries()
    with _quiet(), _refusing("it cannot be converted"):
        model = _convert(function, onnx, tf2onnx)
    for node in nodes(model.graph):
        if node.op_type in _FUNCTIONS:
            node.domain = _DOMAIN  # the converter drops the domain inside branches
    drop_shapes_of_elements(model.graph)
    unknown = {n.op_type for n in nodes(model.graph) if not n.domain and not onnx.defs.has(n.op_type)}
    if unknown:
        raise ValueError(
            f"this model cannot be portable: ONNX has no operator for {', '.join(sorted(unknown))}. "
            'Export it with profile="cached".'
        )
    dtype = "float" if function.inputs[0].dtype == tf.float32 else "double"
    model.functions.extend(_function(name, dtype) for name in _FUNCTIONS)
    model = onnx.inliner.inline_local_functions(model)
    standard = [opset for opset in model.opset_import if opset.domain != _DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(standard)
    with _refusing("what the converter made is no ONNX model"):
        onnx.checker.check_model(model)
    return model.SerializeToString()


def compare(model: bytes, function: Any, inputs: Mapping[str, Array]) -> float:
    """Run an ONNX model in ONNX Runtime; return its largest difference from the function it stands for.

    Differences are relative to the largest result, where that is above one.

    Raises
    ------
    ValueError
        If ONNX Runtime cannot run it, or returns other classes, or numbers that differ by more than
        `TOLERANCE` (for single precision 100 units of rounding).
    """
    _, _, runtime = libraries()
    with _refusing("ONNX Runtime refuses it"):
        session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    expected = {key: value.numpy() for key, value in function(**_tensors(inputs)).items()}
    sure = decided(expected.get("probabilities"))
    worst = 0.0
    for key, ours in expected.items():
        if ours.dtype.kind == "f":
            worst = max(worst, _difference(key, ours, found[key]))
            continue
        theirs = found[key].astype("U") if found[key].dtype.kind == "O" else found[key]
        ours = np.char.decode(ours.astype("S"), "utf-8") if ours.dtype.kind == "O" else ours
        if not np.array_equal(ours[sure], theirs[sure]):
            raise ValueError(f"this model cannot be portable: ONNX Runtime returns another {key!r}")
    return worst


def _tensors(inputs: Mapping[str, Array]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(value) for name, value in inputs.items()}


def decided(probabilities: Array | None) -> Any:
    """Return for which rows rounding cannot change the most probable class."""
    if probabilities is None:
        return slice(None)
    last, first = np.sort(probabilities, axis=1)[:, -2:].T
    return ~(first - last < 2.0 * _tolerance(probabilities.dtype))


def _tolerance(dtype: Any) -> float:
    return TOLERANCE if dtype == np.float64 else 100.0 * float(np.finfo(dtype).eps)


def _difference(key: str, ours: Array, theirs: Array) -> float:
    """Return the largest difference of two results, relative to the largest of size above one."""
    size = np.abs(ours[np.isfinite(ours)]).max(initial=1.0)
    agree = np.isnan(ours) & np.isnan(theirs)
    worst = float(np.where(agree, 0.0, np.abs(ours - theirs)).max(initial=0.0) / size)
    if not worst <= _tolerance(ours.dtype):
        raise ValueError(
            f"this model cannot be portable: ONNX Runtime differs by {worst:.1e} in {key!r}, more than "
            f"{_tolerance(ours.dtype):.0e}"
        )
    return worst


def _convert(function: Any, onnx: Any, tf2onnx: Any) -> Any:
    """Return what the converter makes of a function, without its optimisers: runtimes have their own."""
    results = {key: tensor.name for key, tensor in function.structured_outputs.items()}
    inputs, outputs = [function.inputs[0].name], list(results.values())
    frozen = tf2onnx.tf_loader.from_function(function, inputs, outputs)
    domain = tf2onnx.convert.make_default_custom_op_handler(_DOMAIN)
    handlers: dict[str, Any] = {name: (domain, []) for name in _FUNCTIONS}
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        tf.import_graph_def(frozen, name="")
        converted = tf2onnx.tfonnx.process_tf_graph(
            graph,
            continue_on_error=True,
            opset=OPSET,
            custom_op_handlers={**handlers, **HANDLERS},
            extra_opset=[onnx.helper.make_opsetid(_DOMAIN, 1)],
            input_names=inputs,
            output_names=outputs,
            tensors_to_rename={inputs[0]: "inputs", **{name: key for key, name in results.items()}},
        )
        return converted.make_model("exported by gpflow_ext")


def libraries() -> tuple[Any, Any, Any]:
    """Return onnx, tf2onnx and onnxruntime, or raise ``ImportError`` with what to install."""
    try:
        import onnx
        import onnx.checker
        import onnx.inliner
        import onnxruntime
        import tf2onnx
    except ImportError as error:
        raise ImportError(
            'profile="portable" needs the extra onnx: pip install "gpflow-ext[onnx]"'
        ) from error
    return onnx, tf2onnx, onnxruntime


@contextlib.contextmanager
def _refusing(reason: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the libraries raise classes of their own
        raise ValueError(f"this model cannot be portable: {reason}: {error}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the converter from printing what it cannot convert: the error lists it once."""
    logger = logging.getLogger("tf2onnx")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _function(name: str, dtype: str) -> Any:
    """Return one of `_FUNCTIONS` as a function of ONNX, its constants in one precision."""
    import onnx.parser

    body = _FUNCTIONS[name].replace("HORNER", _horner())
    used = {key: value for key, value in _NUMBERS.items() if re.search(rf"\b{key}\b", body)}
    numbers = (f"{key} = Constant <value = DTYPE {{{value}}}> ()" for key, value in used.items())
    body = "\n".join([*numbers, body]).replace("DTYPE", dtype)
    domains = f'<opset_import: ["" : {OPSET}, "{_DOMAIN}" : 1], domain: "{_DOMAIN}">'
    inputs = "choice, x, other" if name == "SelectV2" else "x"
    return onnx.parser.parse_function(f"{domains}\n{name} ({inputs}) => (y) {{{body}\n}}")


def _horner() -> str:
    """Return the lines for a polynomial in t.

    It stands for (1 + 2z) exp(z²) erfc(z), z = 3.75 (1 + t)/(1 - t), on t from -1 to 1 (Shepherd &
    Laframboise 1981), by Chebyshev interpolation: right to 1e-11 for all z >= 0.
    """

    def scaled(t: Array) -> Array:
        z = 3.75 * (1.0 + t) / (1.0 - t)
        return (1.0 + 2.0 * z) * scipy.special.erfcx(z)

    series: Any = np.polynomial.Chebyshev  # without types
    interpolant = series.interpolate(scaled, _DEGREE)
    coefficients = interpolant.convert(kind=np.polynomial.Polynomial).coef
    lines, value = [], ""
    for power, coefficient in reversed(list(enumerate(coefficients))):
        lines.append(f"a{power} = Constant <value = DTYPE {{{float(coefficient)!r}}}> ()")
        if value:
            lines.append(f"p{power} = Mul ({value}, t)")
            value = "polynomial" if power == 0 else f"q{power}"
            lines.append(f"{value} = Add (p{power}, a{power})")
        else:
            value = f"a{power}"
    return "\n        ".join(lines)
