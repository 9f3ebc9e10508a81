"""The latent functions of a free-form model and their inducing variables, for stacks of parameters.

Where all latent functions have one kernel and one set of inducing variables, what is computed of these has no
axis of the functions, [C or 1, ...]; else that comes second, [C or 1, L, ...]. Outputs f = Wg that mix the L
functions g are put together by `FreeFormDensity`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import gpflow
import tensorflow as tf
from gpflow.covariances import Kuf, Kuu
from gpflow.inducing_variables import InducingPoints, InducingVariables
from gpflow.kernels import Kernel

from gpflow_ext.numerics import grids, linalg, stacked
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sites import latent


class Separate(NamedTuple):
    """A = L⁻¹K_uf of each latent function, [C or 1, L, M, N]; see `grids.Dense`."""

    A: tf.Tensor

    def apply(self, V: tf.Tensor) -> tf.Tensor:
        """Return AₗᵀVₗ for V [C, M, L], [C, N, L]. O(CLNM)."""
        return _columns(tf.linalg.matvec(self.A, _columns(V), transpose_a=True))

    def pull(self, rho: tf.Tensor) -> tf.Tensor:
        """Return Aₗρₗ for ρ [C or 1, N, L], [C or 1, M, L]. O(CLNM)."""
        return _columns(tf.linalg.matvec(self.A, _columns(rho)))

    def explained(self) -> tf.Tensor:
        """Return ‖aₗₙ‖², [C or 1, N, L]."""
        return _columns(tf.reduce_sum(tf.square(self.A), axis=2))

    def spread(self, q_sqrt: tf.Tensor) -> tf.Tensor:
        """Return ‖Sₗᵀaₗₙ‖² for factors S [L, M, M] and one member, [N, L]. O(LNM²)."""
        return tf.transpose(tf.reduce_sum(tf.matmul(q_sqrt, self.A[0], transpose_a=True) ** 2, axis=1))

    def weighted(self, prec: tf.Tensor) -> tf.Tensor:
        """Return AₗΛₗAₗᵀ for diagonals Λ ≥ 0 [L, N], [C or 1, L, M, M]. O(CLNM²)."""
        return linalg.outer(self.A * tf.sqrt(prec)[:, None, :])


Projection: TypeAlias = grids.Dense | grids.Kronecker | Separate
"""A = L⁻¹K_uf at the data, of all latent functions or of each."""


class Inducing(Protocol):
    """Protocol of what determines the latent functions and their inducing variables."""

    kernel: Kernel
    inducing_variable: InducingVariables


def are_alike(model: Inducing) -> bool:
    """Tell whether the outputs are latent functions with one kernel and one set of inducing variables."""
    pairs = latent.pairs(model.inducing_variable, model.kernel)
    return latent.mixing(model.kernel) is None and len(pairs) == 1


def gram(model: Inducing, stack: Stack) -> tf.Tensor:
    """Return K_uu with GPflow's default jitter for each member, [C or 1, M, M] or [C or 1, L, M, M]."""
    pairs = latent.pairs(model.inducing_variable, model.kernel)
    return _beside(model, [_gram(*pair, stack) for pair in pairs])


def cross(model: Inducing, stack: Stack, X: tf.Tensor) -> tf.Tensor:
    """Return K_uf at X [N, D] for each member, [C or 1, M, N] or [C or 1, L, M, N]."""
    pairs = latent.pairs(model.inducing_variable, model.kernel)
    return _beside(model, [_cross(*pair, stack, X) for pair in pairs])


def covariances(model: Inducing, stack: Stack, X: tf.Tensor) -> tf.Tensor:
    """Return the covariances within X [batch..., N, D] for each member, [C or 1, 1 or L, batch..., N, N]."""
    return stacked.beside([stacked.gram(part, stack, X) for part in latent.kernels(model.kernel)], axis=1)


def residuals(model: Inducing, stack: Stack, X: tf.Tensor, A: Projection) -> tf.Tensor:
    """Return k_nn − ‖aₙ‖² at X [N, D] for each member, not negative, [C or 1, N, 1 or L]."""
    own = [stacked.variances(part, stack, X) for part in latent.kernels(model.kernel)]
    if isinstance(A, Separate):
        return tf.nn.relu(stacked.beside(own, axis=2) - A.explained())
    return tf.nn.relu(own[0] - A.explained())[:, :, None]


def mixing(model: Inducing, stack: Stack) -> tf.Tensor | None:
    """Return W of the outputs f = Wg for each member, [C or 1, P, L], or ``None`` where nothing is mixed."""
    W = latent.mixing(model.kernel)
    return None if W is None else stack[W]


def _beside(model: Inducing, parts: list[tf.Tensor]) -> tf.Tensor:
    return parts[0] if are_alike(model) else stacked.beside(parts, axis=1)


def _gram(points: InducingVariables, kernel: Kernel, stack: Stack) -> tf.Tensor:
    if type(points) is not InducingPoints:
        return _dispatched(lambda: Kuu(points, kernel, jitter=gpflow.default_jitter()), kernel, stack)
    K = stacked.gram(kernel, stack, tf.convert_to_tensor(points.Z))
    return linalg.jittered(K)


def _cross(points: InducingVariables, kernel: Kernel, stack: Stack, X: tf.Tensor) -> tf.Tensor:
    if type(points) is not InducingPoints:
        return _dispatched(lambda: Kuf(points, kernel, X), kernel, stack)
    return stacked.gram(kernel, stack, tf.convert_to_tensor(points.Z), X)


def _dispatched(function: Callable[[], tf.Tensor], kernel: Kernel, stack: Stack) -> tf.Tensor:
    """Return what GPflow has for other inducing variables than points, for each member."""
    return stacked.each_of(function, stack.within(kernel))


def _columns(value: tf.Tensor) -> tf.Tensor:
    return tf.linalg.matrix_transpose(value)
