"""Coordinates of v that move with the hyperparameters, on grids, at little more cost than the density."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from gpflow_ext.numerics import grids
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling.density import FreeFormDensity


class _Moved(NamedTuple):
    """z carried to v, in the basis."""

    A: grids.Kronecker  # at θ
    V: tf.Tensor  # [C, M, P]
    log_scale: tf.Tensor  # log |∂v/∂z| except for a constant, [C]


class RescaledSites:
    """v as a function of z and θ, such that z is nearly a standard normal that does not depend on θ.

    At θ the Gaussian sites of the approximation say v ~ N(B⁻¹Aρ, B⁻¹), B(θ) = I + AΛAᵀ, ρ = ν − Λμ. To
    factorise B costs O(M³) for each θ. But whitened by the symmetric root, A = K_uu^(−½)K_uf, it keeps about
    the same eigenvectors U while θ moves. In the basis U, with d(θ) = diag(B), d₀ where the approximation was
    made, and its q(v) = N(m, FFᵀ),

        v = m + TF(z + FᵀTr),    T(θ) = diag(√(d₀/d)),    r(θ) = A(ρ − ΛAᵀm) − m.

    TFFᵀT stands for B⁻¹, and r is the slope of the sites' log density at m: the step of the mean is Newton's.
    Where the approximation was made T = I, r = 0, and the mean moves with its true slope. On a grid U is a
    Kronecker product, so that all this costs little more than the density alone.

    Parameters
    ----------
    density
        Of a model on a grid with a Gaussian approximation, at the hyperparameters where that was made.
    structure
        The grid's.
    """

    def __init__(self, density: FreeFormDensity, structure: grids.Structure) -> None:
        self._density, self._model, self._structure = density, density.model, structure
        model = density.model
        here = Stack([])
        A = self._structure.project_symmetrically(density.kernel, here)
        self._basis = A.basis()  # Uᵀ
        turn = self._turn(here)
        self._center = turn.pull(tf.convert_to_tensor(model.q_mu)[None])  # m, [1, M, P]
        self._factor = turn.pull(tf.convert_to_tensor(model.q_sqrt))  # F, [P, M, M]
        self._prec = tf.convert_to_tensor(model.prec)[None]
        self._start = self._diagonal(A.turned(self._basis))

    def log_likelihoods(self, stack: Stack) -> tf.Tensor:
        """Return Σₙ E[log p(yₙ | fₙ)] + log N(v; 0, I) − log N(z; 0, I) + log |∂v/∂z|, [C].

        The stack has z in the place of V. Times p(θ) N(z; 0, I) it is the density of (z, θ), except for a
        constant. O(CPM²) beyond the density of v.
        """
        z, moved = stack[self._model.V], self._move(stack)
        shift = 0.5 * tf.reduce_sum(z**2 - moved.V**2, axis=[1, 2])
        return self._density.expected(stack, moved.A, moved.V) + shift + moved.log_scale

    def recover(self, stack: Stack) -> Stack:
        """Return the stack with v in the place of z."""
        return stack.replaced(self._model.V, self._turn(stack).apply(self._move(stack).V))

    def _move(self, stack: Stack) -> _Moved:
        model = self._model
        A = self._structure.project_symmetrically(self._density.kernel, stack).turned(self._basis)
        rho = model.nat1 - self._prec * self._density.latent_mean(stack, model.data[0])
        slope = A.pull(rho - self._prec * A.apply(self._center)) - self._center  # r, [C or 1, M, P]
        ratio = self._start / self._diagonal(A)
        scale = tf.sqrt(ratio)
        step = tf.einsum("pmk,cmp->ckp", self._factor, scale * slope)
        moved = tf.einsum("pmk,ckp->cmp", self._factor, stack[model.V] + step)
        log_scale = 0.5 * tf.reduce_sum(tf.math.log(ratio), axis=[1, 2])
        return _Moved(A, self._center + scale * moved, log_scale)

    def _turn(self, stack: Stack) -> grids.Kronecker:
        """Return the orthogonal matrix that takes v = L⁻¹u, as the model has it, into the basis."""
        return self._structure.rotation(self._density.kernel, stack).turned(self._basis)

    def _diagonal(self, A: grids.Kronecker) -> tf.Tensor:
        """Return diag(I + AΛₚAᵀ), [C or 1, M, P]."""
        return 1.0 + A.squared().pull(self._prec)
