"""Laplace's method with a Vecchia prior without a factor: conjugate gradients, stochastic Lanczos quadrature.

With u the rows of B and W = D⁻¹ + Λ, the preconditioner BᵀWB of Ω + Λ = BᵀD⁻¹B + Λ (Kündig & Sigrist 2023)
leaves an operator of which each product takes two triangular solutions with B:

    A = (DW)⁻¹ + W^-½ B⁻ᵀ Λ B⁻¹ W^-½        log|I + ΛΣ| = Σ log(DW) + tr log A

Only the evidence is found, without its gradient. The triangular solutions are SciPy's, and their time in a graph
of TensorFlow, by levels of data that do not depend on each other, is measured beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu
from scipy.special import gammaln

from . import vecchia

PROBES = 10
CHECKED = 10  # iterations of Lanczos' method after which the estimate is looked at
SETTLED = 0.1  # of its standard error, by which the estimate then changes at most
REPEATS = 3  # products that are timed
Array = Any


class Conditional(NamedTuple):
    """A Vecchia approximation, the data in its order."""

    near: Array  # neighbours, N for none, [N, m]
    a: Array  # their coefficients, [N, m]
    D: Array  # conditional variances, [N]
    y: Array  # counts, [N]

    def rows(self) -> Any:
        """Return B."""
        there = self.near < len(self.near)
        row = np.repeat(np.arange(len(self.near)), there.sum(axis=1))
        strict = sparse.csr_matrix((self.a[there], (row, self.near[there])), (len(self.D),) * 2)
        return (sparse.eye(len(self.D)) - strict).tocsc()


def measured(size: int, peak: Callable[[], float]) -> dict[str, Any]:
    """Return what the evidence takes at its mode, in CPU seconds, and in GiB above what the process had."""
    conditional(400)
    before = peak()
    prior = conditional(size)
    B = prior.rows()
    lower = splu(B, permc_spec="NATURAL", diag_pivot_thresh=0.0)
    (f, steps, iterations), mode = vecchia.seconds(lambda: find_mode(prior, B, lower))
    prec = np.exp(f)
    operator = preconditioned(prior, lower, prec)
    (logs, lanczos), log_det = vecchia.seconds(lambda: log_traces(operator, len(f)))
    found = {"newton": steps, "iterations": iterations, "lanczos": lanczos, "mode": mode, "log_det": log_det}
    found |= {"evidence": evidence(prior, log_joint(prior, B, f), f, logs.mean())}
    found |= {"error": 0.5 * logs.std(ddof=1) / np.sqrt(PROBES)}
    found["memory"] = peak() - before
    one, several = (seconds_in_a_graph(prior, columns) for columns in (1, PROBES))
    return found | {"graph": iterations * one + lanczos * several}


def conditional(size: int) -> Conditional:
    """Return the approximation of as many places of counts, in the order of `VecchiaOptions`."""
    import gpflow
    import tensorflow as tf

    from gpflow_ext.sites.vecchia import ordering
    from gpflow_ext.sites.vecchia.coefficients import coefficients

    X, Y, *_ = vecchia.places(size, "counts")
    order = ordering.order(X, "random", 0)
    near = ordering.nearest_before(X[order], vecchia.NEIGHBOURS)
    near = np.where(near < 0, size, near)
    cliques = np.concatenate([np.arange(size)[:, None], near], axis=1)
    kernel = gpflow.kernels.Matern32(1.0, vecchia.SCALE)
    a, D = coefficients([kernel], tf.constant(X[order]), tf.constant(cliques, tf.int32))
    return Conditional(near, a.numpy()[..., 0], D.numpy()[:, 0], Y[order, 0])


def preconditioned(prior: Conditional, lower: Any, prec: Array) -> Callable[[Array], Array]:
    """Return A as a function of columns [N, C]."""
    W = (1.0 / prior.D + prec)[:, None]
    root, own = np.sqrt(W), 1.0 / (prior.D[:, None] * W)
    return lambda v: own * v + lower.solve(prec[:, None] * lower.solve(v / root), "T") / root


def find_mode(prior: Conditional, B: Any, lower: Any) -> tuple[Array, int, int]:
    """Return the mode, the Newton steps to it, and the iterations of conjugate gradients in all of them."""
    f, total = np.zeros_like(prior.y), 0
    for steps in range(100):
        prec = np.exp(f)
        slope = prior.y - prec - B.T @ ((B @ f) / prior.D)
        violation = float(np.max(np.abs(slope) / (1.0 + prec)))
        if violation < 1e-6:
            return f, steps, total
        root = np.sqrt(1.0 / prior.D + prec)
        b = (lower.solve(slope, "T") / root)[:, None]
        x, count = solved(preconditioned(prior, lower, prec), b, np.clip(0.1 * violation, 1e-6, 0.1))
        change, length, least = lower.solve(x[:, 0] / root), 1.0, log_joint(prior, B, f)
        while log_joint(prior, B, f + length * change) < least - 1e-9 * abs(least):
            length *= 0.5
        f, total = f + length * change, total + count
    raise RuntimeError("Newton's method does not end.")


def log_joint(prior: Conditional, B: Any, f: Array) -> float:
    """Return log p(y | f) − ½ fᵀΩf but for what f does not move."""
    return float(prior.y @ f - np.exp(f).sum() - 0.5 * ((B @ f) ** 2 / prior.D).sum())


def evidence(prior: Conditional, joint: float, f: Array, log_trace: float) -> float:
    """Return Laplace's evidence from `log_joint` at the mode f and tr log A."""
    return joint - gammaln(prior.y + 1.0).sum() - 0.5 * (np.log1p(prior.D * np.exp(f)).sum() + log_trace)


def solved(operator: Callable[[Array], Array], b: Array, tolerance: float) -> tuple[Array, int]:
    """Return A⁻¹b by conjugate gradients, and the number of their iterations."""
    x, r, p = np.zeros_like(b), b, b
    square = float((r * r).sum())
    enough, count = tolerance**2 * square, 0
    while square > enough:
        product = operator(p)
        length = square / float((p * product).sum())
        x, r = x + length * p, r - length * product
        new = float((r * r).sum())
        p, square, count = r + new / square * p, new, count + 1
    return x, count


def log_traces(operator: Callable[[Array], Array], size: int) -> tuple[Array, int]:
    """Return zᵀ log(A) z for each probe z, [PROBES], and the iterations of Lanczos' method."""
    z = np.random.default_rng(1).choice([-1.0, 1.0], (size, PROBES))
    before, v, beside = np.zeros_like(z), z / np.sqrt(size), np.zeros(PROBES)
    main: list[Array] = []
    off: list[Array] = []
    last = np.full(PROBES, np.inf)
    while True:
        w = operator(v) - beside * before
        main.append((v * w).sum(axis=0))
        w -= main[-1] * v
        beside = np.sqrt((w * w).sum(axis=0))
        off.append(beside)
        before, v = v, w / beside
        if len(main) % CHECKED == 0:
            found = size * quadrature(np.array(main), np.array(off[:-1]))
            if abs(found.mean() - last.mean()) < SETTLED * found.std(ddof=1) / np.sqrt(PROBES):
                return found, len(main)
            last = found


def quadrature(main: Array, off: Array) -> Array:
    """Return e₁ᵀ log(T) e₁ for tridiagonal T of diagonals [k, P] and [k − 1, P], [P]."""
    T = np.stack([np.diag(a) + np.diag(b, 1) + np.diag(b, -1) for a, b in zip(main.T, off.T, strict=True)])
    values, vectors = np.linalg.eigh(T)
    return (vectors[:, 0] ** 2 * np.log(values)).sum(axis=1)


def seconds_in_a_graph(prior: Conditional, columns: int) -> float:
    """Return the CPU seconds of the two triangular solutions of a product, [N, columns], in TensorFlow."""
    import tensorflow as tf

    product = in_a_graph(prior, columns)
    b = tf.ones([len(prior.D), columns], tf.float64)
    product(b)
    return vecchia.seconds(lambda: [product(b) for _ in range(REPEATS)])[1] / REPEATS


def in_a_graph(prior: Conditional, columns: int) -> Callable[[Any], Any]:
    """Return B⁻ᵀB⁻¹ for columns [N, C] in the order of `levels`: a step for all the data of a level."""
    import tensorflow as tf

    size, level = len(prior.D), levels(prior.near)
    order = np.argsort(level, kind="stable")
    place = np.append(np.empty(size, int), size)
    place[order] = np.arange(size)
    near, ends = place[prior.near[order]], np.searchsorted(level[order], np.arange(level.max() + 2))
    row, column = np.nonzero(near < size)
    upper = np.argsort(near[row, column], kind="stable")  # the entries of Bᵀ by its rows
    into, pulled = near[row, column][upper], prior.a[order][row, column][upper]
    starts, begins, out, into, near = (
        tf.constant(part, tf.int32) for part in (ends, np.searchsorted(into, ends), row[upper], into, near)
    )
    a, pulled = tf.constant(prior.a[order]), tf.constant(pulled)

    def forth(k: Any, x: Any) -> Any:
        start, end = starts[k], starts[k + 1]
        seen = tf.einsum("nm,nmc->nc", a[start:end], tf.gather(x, near[start:end]))
        return k + 1, tf.tensor_scatter_nd_add(x, tf.range(start, end)[:, None], seen)

    def back(k: Any, x: Any) -> Any:
        start, end = starts[k], starts[k + 1]
        some = slice(begins[k], begins[k + 1])
        parts = pulled[some][:, None] * tf.gather(x, out[some])
        seen = tf.math.unsorted_segment_sum(parts, into[some] - start, end - start)
        return k - 1, tf.tensor_scatter_nd_add(x, tf.range(start, end)[:, None], seen)

    def product(b: Any) -> Any:
        first, last = tf.constant(0), tf.constant(int(level.max()))
        shape = tf.TensorShape([]), tf.TensorShape([size + 1, columns])
        x = tf.pad(b, [[0, 1], [0, 0]])
        _, x = tf.while_loop(lambda k, _: k <= last, forth, (first, x), shape, parallel_iterations=1)
        _, x = tf.while_loop(lambda k, _: k >= 0, back, (last, x), shape, parallel_iterations=1)
        return x[:-1]

    return tf.function(product, autograph=False)


def levels(near: Array) -> Array:
    """Return how long the longest chain of neighbours before each datum is, [N]."""
    found = np.zeros(len(near) + 1, int)
    found[-1] = -1
    for n, some in enumerate(near):
        found[n] = found[some].max(initial=-1) + 1
    return found[:-1]
