"""Coordinates of v that know how the latent functions of a datum hang together."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.likelihoods import Likelihood

from gpflow_ext.compiled import Compiled
from gpflow_ext.numerics import grids, stacked
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling.density import FreeForm, FreeFormDensity

MOST = 8192  # coordinates M·P up to which a dense matrix of them is held


class JointSites:
    """Gaussian sites of all P latent functions of a datum together, where the approximation was made.

        v ~ N(m, B⁻¹),  B = I + Σₙ aₙaₙᵀ ⊗ Wₙ,  Bm = Σₙ aₙ ⊗ (νₙ − Wₙμₙ),  Wₙ = −∂²E[log p(yₙ | fₙ)]/∂m∂mᵀ

    at the marginals of q, whose own sites are the diagonals of Wₙ. To q the functions are independent: a
    direction in which the likelihood does not look, such as a shift of the functions of all classes, is as
    narrow there as the others. Here it keeps the width of the prior, so that chains need not go many steps
    for it. Where the likelihood is not log-concave the negative eigenvalues of Wₙ are cut.

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
        """Return the lower factor of B⁻¹ at the model's own θ, [1, M·P, M·P] in the order [M, P].

        With J that reverses the order and LLᵀ = JBJ it is JL⁻ᵀJ: no inverse is factorised.
        """
        B = self._precision(self._project(Stack([])))
        L = tf.linalg.cholesky(tf.reverse(B, [1, 2]))
        inverse = tf.linalg.triangular_solve(L, tf.eye(L.shape[-1], batch_shape=[1], dtype=L.dtype))
        return tf.reverse(tf.linalg.matrix_transpose(inverse), [1, 2])

    def mean(self, stack: Stack) -> tf.Tensor:
        """Return m at the hyperparameters of each member, [C, M, P]. O(C((MP)³ + NM²P²))."""
        return self._move(stack, self._project(stack), tf.zeros_like(stack[self._model.V]))[0]

    def log_likelihoods(self, stack: Stack) -> tf.Tensor:
        """Return Σₙ E[log p(yₙ | fₙ)] + log N(v; 0, I) − log N(v; m, B⁻¹), [C], of z in place of V.

        v = m + R⁻ᵀz for B = RRᵀ at θ, see `ConditionalSites`. O(C((MP)³ + NM²P²)).
        """
        A, z = self._project(stack), stack[self._model.V]
        V, half_log_det = self._move(stack, A, z)
        shift = 0.5 * tf.reduce_sum(z**2 - V**2, axis=[1, 2])
        return self._density.expected(stack, grids.Dense(A), V) + shift - half_log_det

    def recover(self, stack: Stack) -> Stack:
        """Return the stack with v in the place of z."""
        V, _ = self._move(stack, self._project(stack), stack[self._model.V])
        return stack.replaced(self._model.V, V)

    def _project(self, stack: Stack) -> tf.Tensor:
        return self._density.project(stack, self._model.data[0]).A

    def _move(self, stack: Stack, A: tf.Tensor, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return m + R⁻ᵀz [C, M, P] and ½ log|B| [C] for A [C or 1, M, N] and z [C, M, P]."""
        model, shape = self._model, tf.shape(z)
        mean = stacked.mean(model.mean_function, stack, model.data[0])  # [C or 1, N, P or 1]
        rho = self._nat1 - tf.linalg.matvec(self._prec, mean + tf.zeros_like(self._nat1))
        pulled = tf.matmul(A, rho)
        R = tf.linalg.cholesky(self._precision(A))
        R = tf.broadcast_to(R, tf.concat([shape[:1], tf.shape(R)[1:]], axis=0))
        flat = [tf.reshape(tf.broadcast_to(part, shape), [-1, R.shape[-1], 1]) for part in (pulled, z)]
        V = tf.linalg.triangular_solve(R, tf.linalg.triangular_solve(R, flat[0]) + flat[1], adjoint=True)
        return tf.reshape(V, shape), tf.reduce_sum(tf.math.log(tf.linalg.diag_part(R)), axis=1)

    def _precision(self, A: tf.Tensor) -> tf.Tensor:
        """Return B for A [C, M, N], [C, M·P, M·P]; its gradient takes as many products. O(CNM²P²).

        Derived in docs/derivations.md, section 7.
        """
        P, M = self._prec.shape[-1], A.shape[1]
        pairs = [(p, q) for p in range(P) for q in range(p + 1)]

        @tf.custom_gradient
        def value(A: tf.Tensor) -> Any:
            blocks = {(p, q): tf.matmul(A * self._prec[:, p, q], A, transpose_b=True) for p, q in pairs}
            rows = [tf.stack([blocks[max(p, q), min(p, q)] for q in range(P)], axis=-1) for p in range(P)]

            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                both = tf.reshape(upstream + tf.linalg.matrix_transpose(upstream), [-1, M, P, M, P])
                parts = [both[:, :, p, :, q] for p, q in pairs]
                parts = [
                    part if p == q else part + tf.linalg.matrix_transpose(part)
                    for part, (p, q) in zip(parts, pairs, strict=True)
                ]
                terms = zip(parts, pairs, strict=True)
                return tf.add_n([tf.matmul(part, A) * self._prec[:, p, q] for part, (p, q) in terms])

            return tf.reshape(tf.stack(rows, axis=2), [-1, M * P, M * P]), gradient  # of [C, M, P, M, P]

        return value(A) + tf.eye(M * P, dtype=A.dtype)


def are_coupled(model: FreeForm) -> bool:
    """Tell whether a model has several latent functions, is on no grid, and M·P is at most `MOST`."""
    return model.num_latent_gps > 1 and model.structure is None and int(tf.size(model.V)) <= MOST


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
