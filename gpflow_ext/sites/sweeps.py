"""The passes over time of a Gauss-Markov prior, of tensors alone: a graph has each of them once.

The equations and letters are those of `markov`, the layout is that of `chunked`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gpflow_ext.numerics import linalg
from gpflow_ext.numerics.batched import sizes
from gpflow_ext.numerics.once import once
from gpflow_ext.sites import chunked
from gpflow_ext.sites.small import dot, matmul, matvec, outer, symmetric, transpose


@once
def sums(
    F: tf.Tensor, Q: tf.Tensor, h: tf.Tensor, leap: tf.Tensor, b: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return r and x of `Markov.product`, [n, d, L, C] each, for b = α [n, L, C]."""

    def back(q: tf.Tensor, row: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        F, h, b = row
        r = q + h * b
        return matvec(transpose(F), r), [r]

    def forth(x: tf.Tensor, row: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        F, Q, r = row
        x = matvec(F, x) + matvec(Q, r)
        return x, [x]

    zero = _nothing(h, b)
    (r,) = _affine(back, zero, [F, h, b], 1, leap, reverse=True)
    (x,) = _affine(forth, zero, [F, Q, r], 1, leap)
    return r, x


@once
def covariances(F: tf.Tensor, Q: tf.Tensor, h: tf.Tensor, lam: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Return P, p, s and Ψ of `MarkovFactor`."""
    rows, d, (_, L, C) = [F, Q, h, lam], h.shape[1], sizes(lam)
    zeros = tf.zeros([d, d, L, C], F.dtype)
    eye = zeros + tf.eye(d, dtype=F.dtype)[:, :, None, None]

    def predict(P: tf.Tensor, row: list[tf.Tensor]) -> tuple[tf.Tensor, ...]:
        F, Q, h, lam = row
        P = symmetric(matmul(matmul(F, P), transpose(F)) + Q)
        p = matvec(P, h)
        s = 1.0 + lam * dot(h, p)
        return P, p, s, lam / s

    def from_nothing(carry: Any, row: list[tf.Tensor]) -> tuple[Any, list[tf.Tensor]]:
        A, P, J = carry
        P, p, _, g = predict(P, row)
        A = matmul(row[0], A)
        seen = matvec(transpose(A), row[2])
        A -= outer(p * g, seen)
        return (A, P - outer(p * g, p), J + outer(seen * g, seen)), []

    def over_chunk(P: tf.Tensor, row: list[tf.Tensor]) -> tf.Tensor:
        A, end, J = row
        PJ = matmul(P, J) + tf.eye(d, dtype=P.dtype)[:, :, None]
        inner = linalg.solve(*(tf.transpose(part, [2, 0, 1]) for part in (PJ, P)))  # [L, d, d]
        return symmetric(matmul(matmul(A, tf.transpose(inner, [1, 2, 0])), transpose(A)) + end)

    def filtered(carry: Any, row: list[tf.Tensor]) -> tuple[Any, list[tf.Tensor]]:
        Psi, P = carry
        P, p, s, g = predict(P, row)
        Psi = matmul(row[0], Psi)
        Psi -= outer(p * g, matvec(transpose(Psi), row[2]))
        return (Psi, P - outer(p * g, p)), [P, p, s]

    start = zeros
    if not chunked.is_one(sizes(lam)[-1]):
        maps, _ = chunked.scan(from_nothing, (eye, zeros, zeros), rows, 0)
        start = chunked.along_chunks(over_chunk, zeros[..., 0], maps)
    (Psi, _), (P, p, s) = chunked.scan(filtered, (eye, start), rows, 3)
    return P, p, s, Psi


@once
def means(
    b: tf.Tensor, F: tf.Tensor, h: tf.Tensor, p: tf.Tensor, lam: tf.Tensor, s: tf.Tensor, Psi: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Return the five of `Passes` for b = ρ [n, L, C]."""

    def forth(x: tf.Tensor, row: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        F, h, p, lam, s, b = row
        x = matvec(F, x)
        u = (b - lam * dot(h, x)) / s
        return x + p * u, [x, u]

    def back(q: tf.Tensor, row: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        F, h, p, lam, s, x, u = row
        alpha = u - lam / s * dot(p, q)
        r = q + h * alpha
        return matvec(transpose(F), r), [alpha, r, dot(h, x) + dot(p, r)]

    zero, fixed = _nothing(h, b), [F, h, p, lam, s]
    before, u = _affine(forth, zero, [*fixed, b], 2, Psi)
    alpha, r, shift = _affine(back, zero, [*fixed, before, u], 3, Psi, reverse=True)
    return before, u, alpha, r, shift


@once
def adjoint(
    F: tf.Tensor, h: tf.Tensor, p: tf.Tensor, lam: tf.Tensor, s: tf.Tensor, Psi: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Return the three of `Adjoint`."""

    def back(M: tf.Tensor, row: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        F, h, p, lam, s = row
        g = lam / s
        MK = matvec(M, p * g)
        reduced = g + g * dot(p, MK)
        cross = outer(MK, h)
        N = symmetric(M - cross - transpose(cross) + outer(h, h) * reduced)
        return matmul(matmul(transpose(F), N), F), [N, reduced, dot(p, h) - dot(p, matvec(N, p))]

    def over_chunk(M: tf.Tensor, row: list[tf.Tensor]) -> tf.Tensor:
        Psi, own = row
        return symmetric(matmul(matmul(transpose(Psi), M), Psi) + own)

    zero, rows = tf.zeros_like(Psi), [F, h, p, lam, s]
    start = zero
    if not chunked.is_one(sizes(lam)[-1]):
        own, _ = chunked.scan(lambda M, row: (back(M, row)[0], []), zero, rows, 0, reverse=True)
        start = chunked.along_chunks(over_chunk, zero[..., 0], [Psi, own], reverse=True)
    return tuple(chunked.scan(back, start, rows, 3, reverse=True)[1])


def _nothing(h: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Return a state of zeros [d, L, C] for h [n, d, 1 or L, C] and b [n, L, C]."""
    _, L, C = sizes(b)
    return tf.zeros([h.shape[1], L, C], b.dtype)


def _affine(
    step: chunked.Step,
    zero: tf.Tensor,
    rows: list[tf.Tensor],
    outputs: int,
    product: tf.Tensor,
    reverse: bool = False,
) -> list[tf.Tensor]:
    """Run an affine recursion of vectors [d, L, C] from zero, the linear parts of whose chunks are known.

    Parameters
    ----------
    product
        The product over a chunk of what multiplies the state forwards, [d, d, L, C]; backwards that is its
        transpose.
    """
    start = zero
    if not chunked.is_one(sizes(zero)[-1]):
        own, _ = chunked.scan(lambda x, row: (step(x, row)[0], []), zero, rows, 0, reverse)
        whole = (transpose(product) if reverse else product) + tf.zeros_like(zero[None])
        start = chunked.along_chunks(
            lambda x, row: matvec(row[0], x) + row[1], zero[..., 0], [whole, own], reverse
        )
    return chunked.scan(step, start, rows, outputs, reverse)[1]
