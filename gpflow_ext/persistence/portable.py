"""Translate a folded graph to ONNX, in operators that runtimes have in single and in double precision."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special
import tensorflow as tf

OPSET = 17
TOLERANCE = 1e-7  # of the runtime's results, relative to those of size above one
_DOMAIN = "gpflow_ext"  # of the functions below, until they are inlined
_DEGREE = 16
# Operations that ONNX lacks, or that its runtimes have in single precision alone, by those that they have.
# A function of x, with what else it names defined before it.
_FUNCTIONS = {
    "Erfc": """
        z = Abs (x)
        from = Constant <value = double {3.75}> ()
        c = CastLike (from, x)
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
_NUMBERS = """
        number_zero = Constant <value = double {0.0}> ()
        zero = CastLike (number_zero, x)
        number_one = Constant <value = double {1.0}> ()
        one = CastLike (number_one, x)
        number_two = Constant <value = double {2.0}> ()
        two = CastLike (number_two, x)"""


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
    onnx, tf2onnx, _ = _libraries()
    handlers = {"MatrixTriangularSolve": (_solve, [])}
    specs = function.structured_input_signature[0]
    with _quiet(), _refusing("it cannot be converted"):
        model, _ = tf2onnx.convert.from_function(
            tf.function(lambda inputs: function(inputs=inputs), autograph=False),
            specs,
            opset=OPSET,
            custom_ops=dict.fromkeys(_FUNCTIONS, _DOMAIN),
            custom_op_handlers=handlers,
            extra_opset=[onnx.helper.make_opsetid(_DOMAIN, 1)],
        )
    unknown = {n.op_type for n in _nodes(model.graph) if not n.domain and not onnx.defs.has(n.op_type)}
    if unknown:
        raise ValueError(
            f"this model cannot be portable: ONNX has no operator for {', '.join(sorted(unknown))}. "
            'Export it with profile="cached".'
        )
    used = {n.op_type for n in _nodes(model.graph) if n.domain == _DOMAIN}
    if used:
        model.functions.extend(_function(name) for name in _FUNCTIONS)
        model = onnx.inliner.inline_local_functions(model)
        others = [opset for opset in model.opset_import if opset.domain != _DOMAIN]
        del model.opset_import[:]
        model.opset_import.extend(others)
    with _refusing("what the converter made is no ONNX model"):
        onnx.checker.check_model(model)
    return model.SerializeToString()


def compare(model: bytes, function: Any, inputs: Mapping[str, np.ndarray[Any, Any]]) -> float:
    """Run an ONNX model in ONNX Runtime; return its largest difference from the function it stands for.

    Differences are relative to the largest result, where that is above one.

    Raises
    ------
    ValueError
        If ONNX Runtime cannot run it, or returns other classes, or numbers that differ by more than
        `TOLERANCE` (for single precision 100 units of rounding).
    """
    _, _, runtime = _libraries()
    with _refusing("ONNX Runtime refuses it"):
        session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    expected = function(**{name: tf.constant(value) for name, value in inputs.items()})
    worst = 0.0
    for key, tensor in expected.items():
        ours, theirs = tensor.numpy(), found[key]
        if ours.dtype.kind != "f":
            theirs = np.array([str(v).encode() for v in theirs], object) if ours.dtype.kind == "O" else theirs
            if not np.array_equal(ours, theirs):
                raise ValueError(f"this model cannot be portable: ONNX Runtime returns another {key!r}")
            continue
        size = np.abs(ours[np.isfinite(ours)]).max(initial=1.0)
        agree = np.isnan(ours) & np.isnan(theirs)
        worst = max(worst, float(np.where(agree, 0.0, np.abs(ours - theirs)).max(initial=0.0) / size))
        tolerance = TOLERANCE if ours.dtype == np.float64 else 100.0 * np.finfo(ours.dtype).eps
        if not worst <= tolerance:
            raise ValueError(
                f"this model cannot be portable: ONNX Runtime differs by {worst:.1e} in {key!r}, more than "
                f"{tolerance:.0e}"
            )
    return worst


def _libraries() -> tuple[Any, Any, Any]:
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
    """Keep the converter from printing what it cannot convert: that is told once, in the error."""
    logger = logging.getLogger("tf2onnx")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _solve(ctx: Any, node: Any, name: str, args: Any) -> None:
    """Replace a solve by the product with the inverse of its matrix, which must be a constant."""
    matrix = np.tril(node.inputs[0].get_tensor_value(as_list=False))
    if not node.get_attr_value("lower", 1):
        raise ValueError("only lower triangular matrices are inverted")
    inverse = np.stack(
        [
            scipy.linalg.solve_triangular(part, np.eye(len(part), dtype=part.dtype), lower=True)
            for part in matrix.reshape(-1, *matrix.shape[-2:])
        ]
    ).reshape(matrix.shape)
    if node.get_attr_value("adjoint", 0):
        inverse = np.swapaxes(inverse, -1, -2)
    constant = ctx.make_const(f"{name}_inverse", inverse)
    node.type = "MatMul"
    ctx.replace_input(node, node.input[0], constant.output[0], 0)


def _function(name: str) -> Any:
    """Return one of `_FUNCTIONS` as a function of ONNX."""
    import onnx.parser

    body = _NUMBERS + _FUNCTIONS[name].replace("HORNER", _horner())
    domains = f'<opset_import: ["" : {OPSET}, "{_DOMAIN}" : 1], domain: "{_DOMAIN}">'
    return onnx.parser.parse_function(f"{domains}\n{name} (x) => (y) {{{body}\n}}")


def _horner() -> str:
    """Return the lines for a polynomial in t.

    It stands for (1 + 2z) exp(z²) erfc(z), z = 3.75 (1 + t)/(1 - t), on t from -1 to 1 (Shepherd &
    Laframboise 1981), by Chebyshev interpolation: right to 1e-11 for all z >= 0.
    """

    def scaled(t: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        z = 3.75 * (1.0 + t) / (1.0 - t)
        return (1.0 + 2.0 * z) * scipy.special.erfcx(z)

    series = np.polynomial.chebyshev.chebinterpolate(scaled, _DEGREE)
    lines, value = [], ""
    for power, coefficient in reversed(list(enumerate(np.polynomial.chebyshev.cheb2poly(series)))):
        lines += [
            f"number_{power}_ = Constant <value = double {{{float(coefficient)!r}}}> ()",
            f"a{power} = CastLike (number_{power}_, x)",
        ]
        if value:
            lines.append(f"p{power} = Mul ({value}, t)")
            value = "polynomial" if power == 0 else f"q{power}"
            lines.append(f"{value} = Add (p{power}, a{power})")
        else:
            value = f"a{power}"
    return "\n        ".join(lines)


def _nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph and of the graphs inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
