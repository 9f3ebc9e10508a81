"""Operations that ONNX lacks, or that its runtimes have in single precision alone, as functions of others."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import scipy.special

Array = np.ndarray[Any, Any]
OPSET = 17
DOMAIN = "gpflow_ext"  # of the functions, until they are inlined
_DEGREE = 16  # of the polynomial of Erfc
_TERMS = 21  # of the series of Atan
# Of x, except for SelectV2; `_NUMBERS` come before.
FUNCTIONS = {
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
    "Atan": """
        size = Abs (x)
        large = Less (one, size)
        inverse = Reciprocal (size)
        u = Where (large, inverse, size)
        square = Mul (u, u)
        above = Add (square, one)
        root = Sqrt (above)
        next = Add (root, one)
        half = Div (u, next)
        t = Mul (half, half)
        HORNER
        product = Mul (half, polynomial)
        near = Add (product, product)
        far = Sub (quarter, near)
        value = Where (large, far, near)
        sign = Sign (x)
        y = Mul (sign, value)""",
    "Asin": """
        left = Sub (one, x)
        right = Add (one, x)
        square = Mul (left, right)
        root = Sqrt (square)
        slope = Div (x, root)
        y = gpflow_ext.Atan (slope)""",
    "Acos": """
        left = Sub (one, x)
        right = Add (one, x)
        square = Div (left, right)
        root = Sqrt (square)
        half = gpflow_ext.Atan (root)
        y = Add (half, half)""",
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
_NUMBERS = {"zero": 0.0, "one": 1.0, "two": 2.0, "quarter": math.pi / 2.0}


def function_of(name: str, dtype: str) -> Any:
    """Return one of `FUNCTIONS` as a function of ONNX, its constants in one precision."""
    import onnx.parser

    body = FUNCTIONS[name]
    if "HORNER" in body:
        body = body.replace("HORNER", _horner(_arc_tangent() if name == "Atan" else _scaled_erfc()))
    used = {key: value for key, value in _NUMBERS.items() if re.search(rf"\b{key}\b", body)}
    numbers = (f"{key} = Constant <value = DTYPE {{{value}}}> ()" for key, value in used.items())
    body = "\n".join([*numbers, body]).replace("DTYPE", dtype)
    domains = f'<opset_import: ["" : {OPSET}, "{DOMAIN}" : 1], domain: "{DOMAIN}">'
    inputs = "choice, x, other" if name == "SelectV2" else "x"
    return onnx.parser.parse_function(f"{domains}\n{name} ({inputs}) => (y) {{{body}\n}}")


def _arc_tangent() -> Array:
    """Return the coefficients of arctan(√t)/√t, right to rounding up to t = tan²(π/8)."""
    k = np.arange(_TERMS)
    return (-1.0) ** k / (2.0 * k + 1.0)


def _scaled_erfc() -> Array:
    """Return the coefficients of a polynomial in t.

    It stands for (1 + 2z) exp(z²) erfc(z), z = 3.75 (1 + t)/(1 - t), on t from -1 to 1 (Shepherd &
    Laframboise 1981), by Chebyshev interpolation: right to 1e-11 for all z >= 0.
    """

    def scaled(t: Array) -> Array:
        z = 3.75 * (1.0 + t) / (1.0 - t)
        return (1.0 + 2.0 * z) * scipy.special.erfcx(z)

    series: Any = np.polynomial.Chebyshev  # without types
    interpolant = series.interpolate(scaled, _DEGREE)
    coefficients: Array = interpolant.convert(kind=np.polynomial.Polynomial).coef
    return coefficients


def _horner(coefficients: Array) -> str:
    """Return the lines for a polynomial in t."""
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
