"""The posterior of Gaussian sites at the data, with its derivatives in closed form."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gpflow_ext.numerics import linalg, triangular


def seen_posterior(A: tf.Tensor, rho: tf.Tensor, prec: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the marginals of Aᵀv and the normaliser for v ~ N(0, I) times the sites exp(ρh − ½λh²), h = Aᵀv.

        B = I + AΛAᵀ = RRᵀ,  G = R⁻¹A,  r = Gρ:  mean Gᵀr,  variances Σ G²,  log Z = ½‖r‖² − ½ log|B|

    With the adjoints ḡ of the means, v̄ of the variances, z̄ of log Z, h = Gᵀr, t = Gḡ, k = Gᵀt, V = Gdiag(v̄)Gᵀ

        Ā = R⁻ᵀ[ r(ḡ + z̄ρ − Λ(k + z̄h))ᵀ + t(ρ − Λh)ᵀ + 2G diag(v̄) − (2V + z̄I)GΛ ]
        ρ̄ = k + z̄h          λ̄ₙ = −hₙkₙ − gₙᵀVgₙ − ½z̄(hₙ² + ‖gₙ‖²)

    which costs half of what automatic differentiation of the factorisation does (derived in
    docs/derivations.md, section 1).

    Parameters
    ----------
    A
        Columns aₙ, [1 or L, M, N].
    rho, prec
        ρ and λ, [N, L].

    Returns
    -------
    Means and variances [N, L], and log Z summed over the latent functions, []; NaN where B is not positive
    definite. O(LNM²). Differentiable once.
    """

    @tf.custom_gradient
    def value(A: tf.Tensor, rho: tf.Tensor, prec: tf.Tensor) -> Any:
        ρ, λ = tf.transpose(rho), tf.transpose(prec)  # [L, N]
        full = tf.broadcast_to(A, tf.concat([tf.shape(λ)[:1], tf.shape(A)[1:]], axis=0))
        gram = triangular.weighted_gram(A, tf.transpose(λ))
        chol, _ = linalg.cholesky(tf.linalg.set_diag(gram, tf.linalg.diag_part(gram) + 1.0))
        G = linalg.triangular_solve(chol, full)  # [L, M, N]
        r = tf.linalg.matvec(G, ρ)  # [L, M]
        h = tf.linalg.matvec(G, r, transpose_a=True)  # [L, N]
        log_z = 0.5 * tf.reduce_sum(r**2) - linalg.half_log_det(chol)

        def gradient(by_mean: tf.Tensor, by_var: tf.Tensor, by_log: tf.Tensor) -> tuple[tf.Tensor, ...]:
            by_mean, by_var = tf.transpose(by_mean), tf.transpose(by_var)  # [L, N]
            t = tf.linalg.matvec(G, by_mean)
            k = tf.linalg.matvec(G, t, transpose_a=True)
            scaled = G * by_var[:, None, :]
            VG = tf.matmul(_symmetric(triangular.weighted_gram(G, tf.transpose(by_var))), G)
            inner = _outer(r, by_mean + by_log * ρ - λ * (k + by_log * h)) + _outer(t, ρ - λ * h)
            inner += 2.0 * scaled - (2.0 * VG + by_log * G) * λ[:, None, :]
            by_A = tf.linalg.triangular_solve(chol, inner, adjoint=True)
            by_A = tf.reduce_sum(by_A, axis=0, keepdims=True) if A.shape[0] == 1 else by_A
            by_prec = -h * k - tf.reduce_sum(G * VG, axis=1)
            by_prec -= 0.5 * by_log * (h**2 + tf.reduce_sum(G**2, axis=1))
            return by_A, tf.transpose(k + by_log * h), tf.transpose(by_prec)

        variances = tf.transpose(tf.reduce_sum(G**2, axis=1))
        return (tf.transpose(h), variances, log_z), gradient

    means, variances, log_z = value(A, rho, prec)
    return tf.ensure_shape(means, rho.shape), tf.ensure_shape(variances, rho.shape), log_z


def _symmetric(lower: tf.Tensor) -> tf.Tensor:
    """Return the symmetric matrices of which only the lower triangles are given."""
    lower = tf.linalg.band_part(lower, -1, 0)
    return tf.linalg.set_diag(lower + tf.linalg.matrix_transpose(lower), tf.linalg.diag_part(lower))


def _outer(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Return the outer products of [L, M] and [L, N], [L, M, N]."""
    return a[:, :, None] * b[:, None, :]
