"""Counts the floating-point operations that a TensorFlow computation executes, loops and branches included.

While `counting` is open, each operation that is built, forward or backward, gets a counter beside it that
adds its cost whenever it runs: in every turn of a loop, in the branch that is taken, in a rejected trial.

| operation | cost |
|---|---|
| Cholesky factor of [n, n] | n³/3 |
| triangular solve of [n, n] against [n, k] | n² k |
| product of [m, k] and [k, n] | 2 m k n |
| linear solve (LU) of [n, n] against [n, k] | 2n³/3 + 2n² k |
| arithmetic on the elements of floating-point arrays, transcendental functions included, and sums | 1 per element |

What TensorFlow would prune or merge while it optimises a graph counts as it was written. Copies, gathers and
integers are free. The counters slow a computation down: time it in a run of its own.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_callbacks  # the only way to see the operations of a gradient

from gpflow_ext.compiled import clear_compiled

# fmt: off
_ELEMENTWISE = frozenset({
    "Abs", "Add", "AddV2", "Asinh", "Cosh", "DivNoNan", "Erf", "Erfc", "Exp", "Expm1", "Inv", "InvGrad",
    "Log", "Log1p", "Maximum", "Minimum", "Mul", "MulNoNan", "Neg", "Pow", "RealDiv", "Reciprocal",
    "ReciprocalGrad", "Rsqrt", "RsqrtGrad", "Sigmoid", "SigmoidGrad", "Sign", "Sinh", "Softplus",
    "SoftplusGrad", "Sqrt", "SqrtGrad", "Square", "SquaredDifference", "Sub", "Tanh", "TanhGrad", "Xdivy",
    "Xlogy",
})
# fmt: on
_REDUCTIONS = frozenset({"Sum", "Mean", "Max", "Min", "Prod", "AddN", "BiasAdd", "Cumsum"})


def _sizes(tensor: tf.Tensor) -> Any:
    """Return the shape, as numbers where it is known and else as a tensor."""
    static = tensor.shape
    return list(static) if static.is_fully_defined() else tf.unstack(tf.shape(tensor), num=static.rank)


def _product(sizes: Sequence[Any]) -> Any:
    known = math.prod(float(size) for size in sizes if not tf.is_tensor(size))
    unknown = [tf.cast(size, tf.float64) for size in sizes if tf.is_tensor(size)]
    return known * tf.reduce_prod(unknown) if unknown else known


def _matmul(inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor], flags: dict[str, bool]) -> Any:
    transposed = flags.get("transpose_a", False) or flags.get("adj_x", False)
    inner = _sizes(inputs[0])[-2 if transposed else -1]
    return 2.0 * _product([*_sizes(outputs[0]), inner])


def _cholesky(inputs: Sequence[tf.Tensor], *_: Any) -> Any:
    shape = _sizes(inputs[0])
    return _product([*shape, shape[-1]]) / 3.0


def _triangular_solve(inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor], *_: Any) -> Any:
    return _product([*_sizes(outputs[0]), _sizes(inputs[0])[-1]])


def _solve(inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor], *_: Any) -> Any:
    shape = _sizes(inputs[0])
    return 2.0 * _product([*shape, shape[-1]]) / 3.0 + 2.0 * _product([*_sizes(outputs[0]), shape[-1]])


_MATRIX: dict[str, Callable[..., Any]] = {
    "MatMul": _matmul,
    "BatchMatMul": _matmul,
    "BatchMatMulV2": _matmul,
    "Cholesky": _cholesky,
    "MatrixTriangularSolve": _triangular_solve,
    "MatrixSolve": _solve,
}


def _cost(kind: str, inputs: Any, outputs: Any, flags: dict[str, bool]) -> Any:
    if kind in _MATRIX:
        return _MATRIX[kind](inputs, outputs, flags)
    if kind in _ELEMENTWISE and outputs[0].dtype.is_floating:
        return _product(_sizes(outputs[0]))
    if kind in _REDUCTIONS and inputs[0].dtype.is_floating:
        return _product(_sizes(inputs[0]))
    return None


def _flags(attributes: Any) -> dict[str, bool]:
    """Return the Boolean attributes of an operation: a tuple of names and values, in graphs a mapping."""
    pairs = (
        zip(attributes[::2], attributes[1::2], strict=True)
        if isinstance(attributes, tuple)
        else attributes.items()
    )
    return {name: bool(getattr(value, "b", value)) for name, value in pairs}


class Counter:
    """The number of operations executed so far by what was built while counting."""

    def __init__(self) -> None:
        self._total = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def reset(self) -> None:
        """Start again from zero."""
        self._total.assign(0.0)

    @property
    def flops(self) -> float:
        """The count."""
        return float(self._total)

    def _see(
        self, kind: Any, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        name = kind.decode() if isinstance(kind, bytes) else kind
        cost = _cost(name, inputs, outputs, _flags(attributes) if name in _MATRIX else {})
        if cost is not None:
            self._total.assign_add(cost)


@contextlib.contextmanager
def counting() -> Iterator[Counter]:
    """Count what is built inside, now and whenever it runs later.

    Compiled functions are dropped before, since they have no counters, and after, since they have.
    """
    counter = Counter()
    clear_compiled()
    op_callbacks.add_op_callback(counter._see)
    try:
        yield counter
    finally:
        op_callbacks.remove_op_callback(counter._see)
        clear_compiled()
