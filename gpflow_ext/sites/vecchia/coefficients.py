"""On which of its neighbours each datum depends, and how much: the entries of B and D of a Vecchia prior.

With u = (1, −a) and the covariances K of a clique, the datum first,

    a = K_c⁻¹k    D = uᵀKu    āᵀda + D̄ dD = vᵀ dK u,    v = D̄u + (0, K_c⁻¹ā)

so that the adjoint of K is vuᵀ. All is done for blocks of data, whose covariances are formed anew for the
adjoint: memory is O(Nm), where all of them together would take O(Nm²).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpflow
import tensorflow as tf

from gpflow_ext.numerics import linalg, stacked
from gpflow_ext.numerics.batched import sizes
from gpflow_ext.sites.vecchia import blocks
from gpflow_ext.sites.vecchia.rows import DTYPE

Kernels = Sequence[gpflow.kernels.Kernel]


def coefficients(
    kernels: Kernels, X: tf.Tensor, cliques: tf.Tensor, phi: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a, [N, m, S], and D, [N, S], for the cliques [N, m + 1] of X.

    With Φ they are those of the residual process. Differentiable once, in Φ and the kernels' parameters.

    Parameters
    ----------
    kernels
        The kernel that all latent functions share, or one for each.
    X
        Inputs [N, D], which are held fixed.
    cliques
        Each datum and its neighbours, N for none.
    phi
        Φ, [S, N, M].
    """
    parameters = [parameter for kernel in kernels for parameter in kernel.parameters]
    features = [] if phi is None else [tf.transpose(phi, [1, 0, 2])]
    raw = [tf.convert_to_tensor(parameter.unconstrained_variable) for parameter in parameters]
    k, M = sizes(cliques)[1], 0 if phi is None else sizes(phi)[2]
    entries = len(kernels) * k * max(k, M)

    def covariances(members: tf.Tensor, near: list[tf.Tensor]) -> tf.Tensor:
        """Return K, [S, b, k, k], of cliques [b, k], less what their features explain."""
        there = tf.cast(members < sizes(X)[0], DTYPE)
        K = gram(kernels, tf.gather(X, _inside(members, X)), there)
        added = jitter(K, X.dtype)
        for part in near:
            seen = tf.transpose(part, [2, 0, 1, 3]) * there[..., None]
            K -= tf.matmul(seen, seen, transpose_b=True)
        return K + added * tf.eye(k, dtype=DTYPE)

    @tf.custom_gradient
    def value(*given: tf.Tensor) -> Any:
        features, raw = given[: len(given) - len(parameters)], given[len(given) - len(parameters) :]

        def gathered(members: tf.Tensor) -> list[tf.Tensor]:
            return [tf.gather(part, _inside(members, X)) for part in features]

        def forward(rows: list[tf.Tensor], _: Any) -> Any:
            with stacked.with_raw(parameters, _fresh(raw)):
                return list(_solved(covariances(rows[0], gathered(rows[0])))), []

        (a, D), _ = blocks.over(forward, [cliques], entries, [[k - 1, len(kernels)], [len(kernels)]])

        def gradient(by_a: tf.Tensor, by_D: tf.Tensor, variables: Any = None) -> Any:
            own = list(variables or ())  # of kernels that hold some which are no parameters

            def backward(rows: list[tf.Tensor], sums: list[tf.Tensor]) -> Any:
                members, *parts = rows
                near, moving = gathered(members), _fresh(raw)
                with tf.GradientTape() as tape, stacked.with_raw(parameters, moving):
                    tape.watch([*near, *moving])
                    K = covariances(members, near)
                adjoint = _adjoint(K, *parts)
                found = tape.gradient(K, [*near, *moving, *own], adjoint, unconnected_gradients="zero")
                at, count = _inside(members, X)[..., None], len(near)
                spread = [
                    tf.tensor_scatter_nd_add(total, at, part)
                    for total, part in zip(sums[:count], found[:count], strict=True)
                ]
                added = [total + part for total, part in zip(sums[count:], found[count:], strict=True)]
                return [], spread + added

            zeros = [tf.zeros_like(part) for part in (*given, *own)]
            _, sums = blocks.over(backward, [cliques, a, by_a, by_D], entries, [], zeros)
            return sums if variables is None else (sums[: len(given)], sums[len(given) :])

        return (a, D), gradient

    return value(*features, *raw)


def gram(kernels: Kernels, X: tf.Tensor, there: tf.Tensor) -> tf.Tensor:
    """Return the covariances within sets of places X [N, k, D], [S, N, k, k], in double precision.

    Where ``there`` [N, k] is zero there is no place: covariance zero, variance one. Only differences of
    inputs count, so that those from the first are taken, which loses no digits.
    """
    K = tf.cast(tf.stack([kernel(X - X[:, :1]) for kernel in kernels]), DTYPE)
    both = there[:, :, None] * there[:, None, :]
    return K * both + tf.linalg.diag(1.0 - there)


def jitter(K: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return GPflow's jitter for covariances K [..., k, k], or kε·max Kₙₙ where that is more, [..., 1, 1].

    Rounding in the kernel's dtype leaves them with negative eigenvalues of that size: in single precision, or
    of raw targets.
    """
    needed = linalg.rounding(tf.stop_gradient(K), dtype)[..., None]
    return tf.maximum(needed, tf.constant(gpflow.default_jitter(), DTYPE))


def _fresh(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return new tensors of the same values: bijectors keep what they have made of others, elsewhere."""
    return [tf.identity(value) for value in values]


def _inside(members: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
    """Return members with any datum in the place of none."""
    return tf.minimum(members, sizes(X)[0] - 1)


def _solved(K: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a, [b, m, S], and D, [b, S], from K [S, b, k, k]."""
    # The neighbours first: the last row of the factor is R⁻¹k and √D.
    R = tf.linalg.cholesky(tf.reverse(K, [-2, -1]))
    a = tf.linalg.triangular_solve(R[..., :-1, :-1], R[..., -1, :-1, None], adjoint=True)[..., 0]
    return tf.transpose(tf.reverse(a, [-1]), [1, 2, 0]), tf.transpose(R[..., -1, -1] ** 2)


def _adjoint(K: tf.Tensor, a: tf.Tensor, by_a: tf.Tensor, by_D: tf.Tensor) -> tf.Tensor:
    """Return vuᵀ [S, b, k, k] for K [S, b, k, k], a and ā [b, m, S], and D̄ [b, S]."""
    a, by_a = (tf.transpose(part, [2, 0, 1])[..., None] for part in (a, by_a))
    one = tf.ones_like(K[..., :1, :1])
    u = tf.concat([one, -a], axis=2)
    w = tf.linalg.cholesky_solve(tf.linalg.cholesky(K[..., 1:, 1:]), by_a)
    v = tf.transpose(by_D)[..., None, None] * u + tf.concat([tf.zeros_like(one), w], axis=2)
    return tf.matmul(v, u, transpose_b=True)
