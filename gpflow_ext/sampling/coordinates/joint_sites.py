"""Coordinates of v that account for correlations between the outputs of a datum."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.likelihoods import Likelihood

from gpflow_ext.compiled import Compiled
from gpflow_ext.numerics import grids, stacked
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling.density import FreeForm, FreeFormDensity
from gpflow_ext.sampling.latents import Separate
from gpflow_ext.sites import latent

MOST = 8192  # coordinates M·L up to which a dense matrix of them is held


class JointSites:
    """Gaussian sites of all P outputs of a datum together, where the approximation was made.

        v ~ N(m, B⁻¹),  B = I + Σₙ aₙaₙᵀ ⊗ Wₙ,  Bm = Σₙ aₙ ⊗ (νₙ − Wₙμₙ),  Wₙ = −∂²E[log p(yₙ | fₙ)]/∂m∂mᵀ

    at the marginals of q, whose own sites are the diagonals of Wₙ. Under q the functions are independent: a
    direction to which the likelihood is insensitive, such as a common shift of the functions of all classes,
    is as narrow there as the others. Here it keeps the width of the prior, so chains need not take many steps
    along it. If the likelihood is not log-concave the negative eigenvalues of Wₙ are set to zero. With a
    projection for each latent function aₙ is that of the function; for outputs μ + Hg, g has the sites HᵀWₙH.

    Parameters
    ----------
    density
        Of a model with a Gaussian approximation, at the hyperparameters where that was made. A grid is not
        made use of.
    """

    def __init__(self, density: FreeFormDensity) -> None:
        self._density, self._model = density, density.model
        model = density.model
        q = tf.convert_to_tensor(model.q_mu), tf.convert_to_tensor(model.q_sqrt)
        X, Y = model.data
        mean, var = density.gaussian_moments(*q)
        slope, curvature = _derivatives(model.likelihood, X, mean, var, Y)
        values, vectors = tf.linalg.eigh(curvature)
        weighted = vectors * tf.nn.relu(values)[:, None, :]
        self._prec = tf.matmul(weighted, vectors, transpose_b=True)  # W, [N, P, P]
        self._nat1 = slope + tf.linalg.matvec(self._prec, mean)  # ν, [N, P]

    def factor(self) -> tf.Tensor:
        """Return the lower factor of B⁻¹ at the model's own θ, [1, M·L, M·L] in the order [M, L].

        With J that reverses the order and LLᵀ = JBJ it is JL⁻ᵀJ: no inverse is factorised.
        """
        now = Stack([])
        B = precision(self._project(now), self._latent_precision(now))
        L = tf.linalg.cholesky(tf.reverse(B, [1, 2]))
        inverse = tf.linalg.triangular_solve(L, tf.eye(L.shape[-1], batch_shape=[1], dtype=L.dtype))
        return tf.reverse(tf.linalg.matrix_transpose(inverse), [1, 2])

    def mean(self, stack: Stack) -> tf.Tensor:
        """Return m at the hyperparameters of each member, [C, M, L]. O(C((ML)³ + NM²L²))."""
        return self._move(stack, self._project(stack), tf.zeros_like(stack[self._model.V]))[0]

    def log_likelihoods(self, stack: Stack) -> tf.Tensor:
        """Return Σₙ E[log p(yₙ | fₙ)] + log N(v; 0, I) − log N(v; m, B⁻¹), [C], of z instead of V.

        v = m + R⁻ᵀz for B = RRᵀ at θ, see `ConditionalSites`. O(C((ML)³ + NM²L²)).
        """
        A, z = self._project(stack), stack[self._model.V]
        V, half_log_det = self._move(stack, A, z)
        shift = 0.5 * tf.reduce_sum(z**2 - V**2, axis=[1, 2])
        return self._density.expected(stack, A, V) + shift - half_log_det

    def recover(self, stack: Stack) -> Stack:
        """Return the stack with v in the place of z."""
        V, _ = self._move(stack, self._project(stack), stack[self._model.V])
        return stack.replaced(self._model.V, V)

    def _project(self, stack: Stack) -> grids.Dense | Separate:
        return self._density.project(stack, self._model.data[0])

    def _latent_precision(self, stack: Stack) -> tf.Tensor:
        """Return what the sites are of the latent functions, [N, L, L], or [C or 1, N, L, L] of mixtures."""
        H = self._density.mixing(stack)
        return self._prec if H is None else tf.einsum("cpl,npq,cqm->cnlm", H, self._prec, H)

    def _move(self, stack: Stack, A: grids.Dense | Separate, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return m + R⁻ᵀz [C, M, L] and ½ log|B| [C] for z [C, M, L]."""
        model, shape = self._model, tf.shape(z)
        mean = stacked.mean(model.mean_function, stack, model.data[0])  # [C or 1, N, P or 1]
        rho = self._nat1 - tf.linalg.matvec(self._prec, mean + tf.zeros_like(self._nat1))
        H = self._density.mixing(stack)
        pulled = A.pull(rho if H is None else tf.matmul(rho, H))
        R = tf.linalg.cholesky(precision(A, self._latent_precision(stack)))
        R = tf.broadcast_to(R, tf.concat([shape[:1], tf.shape(R)[1:]], axis=0))
        flat = [tf.reshape(tf.broadcast_to(part, shape), [-1, R.shape[-1], 1]) for part in (pulled, z)]
        V = tf.linalg.triangular_solve(R, tf.linalg.triangular_solve(R, flat[0]) + flat[1], adjoint=True)
        return tf.reshape(V, shape), tf.reduce_sum(tf.math.log(tf.linalg.diag_part(R)), axis=1)


def precision(A: grids.Dense | Separate, prec: tf.Tensor) -> tf.Tensor:
    """Return B for the precisions of the latent functions of a datum, [C, M·L, M·L]. O(CNM²L²)."""
    added = _of_each(A.A, prec) if isinstance(A, Separate) else _of_one(A.A, prec)
    return added + tf.eye(added.shape[-1], dtype=added.dtype)


def _of_each(A: tf.Tensor, prec: tf.Tensor) -> tf.Tensor:
    """Return B − I for A [C or 1, L, M, N] and precisions [C or 1, N, L, L] or [N, L, L]."""
    L, M = A.shape[1:3]
    weights = tf.einsum("...nlm->...lmn", prec)
    pairs = [(p, q) for p in range(L) for q in range(p + 1)]
    blocks = {
        (p, q): tf.matmul(A[:, p] * weights[..., p, q, None, :], A[:, q], transpose_b=True) for p, q in pairs
    }
    blocks |= {(q, p): tf.linalg.matrix_transpose(blocks[p, q]) for p, q in pairs if p > q}
    rows = [tf.stack([blocks[p, q] for q in range(L)], axis=-1) for p in range(L)]
    return tf.reshape(tf.stack(rows, axis=2), [-1, M * L, M * L])  # of [C, M, L, M, L]


def _of_one(A: tf.Tensor, prec: tf.Tensor) -> tf.Tensor:
    """Return B − I for the same A [C, M, N] of all; its gradient takes as many products.

    Derived in docs/derivations.md, section 7.
    """
    P, M = prec.shape[-1], A.shape[1]
    pairs = [(p, q) for p in range(P) for q in range(p + 1)]

    @tf.custom_gradient
    def value(A: tf.Tensor) -> Any:
        blocks = {(p, q): tf.matmul(A * prec[:, p, q], A, transpose_b=True) for p, q in pairs}
        rows = [tf.stack([blocks[max(p, q), min(p, q)] for q in range(P)], axis=-1) for p in range(P)]

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            both = tf.reshape(upstream + tf.linalg.matrix_transpose(upstream), [-1, M, P, M, P])
            parts = [both[:, :, p, :, q] for p, q in pairs]
            parts = [
                part if p == q else part + tf.linalg.matrix_transpose(part)
                for part, (p, q) in zip(parts, pairs, strict=True)
            ]
            terms = zip(parts, pairs, strict=True)
            return tf.add_n([tf.matmul(part, A) * prec[:, p, q] for part, (p, q) in terms])

        return tf.reshape(tf.stack(rows, axis=2), [-1, M * P, M * P]), gradient  # of [C, M, P, M, P]

    return value(A)


def are_coupled(model: FreeForm) -> bool:
    """Tell whether a datum has several outputs, the model is on no grid, and M·L is at most `MOST`."""
    several = model.num_latent_gps > 1 or latent.mixing(model.kernel) is not None
    return several and model.structure is None and int(tf.size(model.V)) <= MOST


class _Expected:
    """The expected log likelihood."""

    def __init__(self, likelihood: Likelihood) -> None:
        self._likelihood = likelihood

    def slope(self, X: tf.Tensor, mean: tf.Tensor, var: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        """Return ∂/∂m Σₙ E[log p(yₙ | fₙ)], [N, P]."""
        with tf.GradientTape() as tape:
            tape.watch(mean)
            value = tf.reduce_sum(self._likelihood.variational_expectations(X, mean, var, Y))
        return tape.gradient(value, mean)


def _derivatives(
    likelihood: Likelihood, X: tf.Tensor, mean: tf.Tensor, var: tf.Tensor, Y: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return ∂E/∂m [N, P] of E = E[log p(y | f)] and −∂²E/∂m∂mᵀ [N, P, P], this by central differences."""
    expected = _Expected(likelihood)
    compiled = Compiled(expected, rows=[len(X)])

    def slope(at: tf.Tensor) -> tf.Tensor:
        return compiled(expected.slope, X, at, var, Y)

    sizes = float(np.finfo(mean.dtype.as_numpy_dtype).eps) ** (1.0 / 3.0) * tf.sqrt(var)
    steps = tf.unstack(tf.linalg.diag(sizes), axis=1)  # [N, P], one for each latent function
    ends = [slope(mean - step) - slope(mean + step) for step in steps]
    curvature = tf.stack(ends, axis=-1) / (2.0 * sizes[:, None, :])
    return slope(mean), 0.5 * (curvature + tf.linalg.matrix_transpose(curvature))
