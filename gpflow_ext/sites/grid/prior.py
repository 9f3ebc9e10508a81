"""The grid prior at the data, and its factor for given sites.

The data lie in some of the G cells of a grid. S takes their values from those of all cells, so that
Σ = SKSᵀ with K = ⊗_d K_d, one factor to an axis (Saatçi 2011). Σ is not jittered: nothing inverts it.

    Λ_c = SᵀΛS     V = (K⁻¹ + Λ_c)⁻¹     α = (I + ΛΣ)⁻¹ρ = ρ − ΛSVSᵀρ     ½ log|I + ΛΣ| = ½ log|I + Λ_cK|

V times a vector is found by conjugate gradients in the basis of K's eigenvectors, preconditioned by what V is
for the mean precision; log determinant and variances by `trace`. All of it is in double precision, whatever
the model is in. Precisions must not be negative.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from gpflow_ext.sites.algebra import Pair, Sites, coupling
from gpflow_ext.sites.grid import krylov, trace
from gpflow_ext.sites.grid.kronecker import Spectrum, along
from gpflow_ext.sites.grid.trace import Probes, Trace

DTYPE = tf.float64
ROUGHER = 100.0  # the tolerance for logarithms, whose errors are those of solutions squared
MOST = 0.999  # of λv, which is below one; the error of few probes may raise it


class Grid(NamedTuple):
    """A grid prior at the data; S is 1, where all latent functions share a kernel, or L."""

    mean: tf.Tensor  # μ, [N, L]
    cells: tf.Tensor  # the cell of each datum, [N]
    grams: tuple[tf.Tensor, ...]  # K_d, [S, n_d, n_d]
    spectrum: Spectrum
    probes: Probes
    error: tf.Tensor  # the relative tolerance of results, []

    @property
    def held_factors(self) -> bool:
        """Whether only `log_normaliser` and `product` are differentiable in the prior."""
        return True

    @property
    def residual(self) -> tf.Tensor:
        """Variance that the sites do not see: none, [1, 1]."""
        return tf.zeros([1, 1], self.mean.dtype)

    def variance(self) -> tf.Tensor:
        """Return the prior variances, as the probes have them, [N, L]."""
        return self.factorise(tf.zeros_like(self.mean)).variance()

    def product(self, alpha: tf.Tensor) -> tf.Tensor:
        """Return Σα, [N, L]. O(G ∑ n_d)."""
        return self.gather(along(self.scatter(alpha), self.grams), alpha)

    def scatter(self, values: tf.Tensor) -> tf.Tensor:
        """Return Sᵀv in all cells for v [N, L], [L, 1, G]."""
        found = tf.math.unsorted_segment_sum(tf.cast(values, DTYPE), self.cells, self.probes.signs.shape[0])
        return tf.transpose(found)[:, None]

    def gather(self, fields: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        """Return the fields [L, 1, G] at the data, [N, L]."""
        found = tf.transpose(tf.gather(fields[:, 0], self.cells, axis=1))
        return tf.ensure_shape(tf.cast(found, like.dtype), like.shape)

    def factorise(self, prec: tf.Tensor) -> GridFactor:
        """Return the factor for prec ≥ 0, [N, L]; what is not used of it a graph does not compute."""
        inside, enough = self.scatter(prec), ROUGHER * self.error
        return GridFactor(self, prec, inside, trace.estimate(self.spectrum, self.probes, inside, enough))

    def log_normaliser(self, sites: Sites, factor: Any = None) -> tf.Tensor:
        """Return log ∫ p(f) ∏ₙ tₙ(fₙ) df, differentiable in the prior (not in the sites).

        Its gradient is ½αᵀ dΣ α − dF + αᵀdμ, with F = ½ log|I + ΛΣ| as the probes have it.
        """
        held = tf.nest.map_structure(tf.stop_gradient, self)
        known = held.factorise(sites.prec) if factor is None else factor
        pair = Pair(*map(tf.stop_gradient, known.solve(sites.nat1 - sites.prec * held.mean)))
        nat1, prec = sites
        value = 0.5 * (nat1 - prec * held.mean) * pair.shift + nat1 * held.mean - 0.5 * prec * held.mean**2
        value = tf.reduce_sum(value) - known.half_log_det()
        moving = 0.5 * coupling(self, pair, pair) + tf.reduce_sum(pair.alpha * self.mean)
        for gram, slope in zip(self.grams, known.slopes(), strict=True):
            moving -= tf.cast(tf.reduce_sum(gram * tf.stop_gradient(slope)), moving.dtype)
        return tf.stop_gradient(value - moving) + moving


class GridFactor(NamedTuple):
    """What solves with I + ΛΣ."""

    prior: Grid
    prec: tf.Tensor  # [N, L]
    inside: tf.Tensor  # Λ_c, [L, 1, G]
    trace: Trace

    @property
    def finite(self) -> tf.Tensor:
        """Whether the log determinant is finite, []."""
        return tf.math.is_finite(self.half_log_det())

    def solve(self, b: tf.Tensor) -> Pair:
        """Return α = (I + ΛΣ)⁻¹b and Σα for b [N, L], to the tolerance of the prior."""
        h = self.prior.gather(self.conditioned(self.prior.scatter(b)), tf.cast(b, DTYPE))
        alpha = tf.cast(tf.cast(b, DTYPE) - tf.cast(self.prec, DTYPE) * h, b.dtype)
        return Pair(alpha, self.prior.product(alpha))

    def weights(self, fields: tf.Tensor) -> tf.Tensor:
        """Return Sᵀα in the cells for fields Sᵀb [L, B, G], refined: the error is that of an error."""
        alpha = fields - self.inside * self.conditioned(fields)
        left = fields - alpha - self.inside * along(alpha, self.prior.grams)
        return alpha + left - self.inside * self.conditioned(left)

    def conditioned(self, fields: tf.Tensor) -> tf.Tensor:
        """Return Vb = (K⁻¹ + Λ_c)⁻¹b for fields b [L, B, G]."""
        spectrum = self.prior.spectrum
        level, psi = trace.at_level(spectrum, self.inside)

        def operator(x: tf.Tensor) -> tf.Tensor:
            return x + psi * spectrum.forth((self.inside - level) * spectrum.back(psi * x))

        x = krylov.solve(operator, psi * spectrum.forth(fields), self.prior.error)
        return spectrum.back(psi * x)

    def half_log_det(self) -> tf.Tensor:
        """Return ½ log|I + ΛΣ|, summed over the latent functions, []."""
        return tf.cast(tf.reduce_sum(self.trace.value), self.prec.dtype)

    def variance(self) -> tf.Tensor:
        """Return diag V at the data, the derivatives of `half_log_det`, [N, L]."""
        return self.prior.gather(self._below(self.trace.variance), self.prec)

    def variances(self) -> tf.Tensor:
        """Return diag V in all cells, [L, 1, G], with less error; see `trace.balanced`."""
        prior = self.prior
        return self._below(trace.balanced(prior.spectrum, prior.probes, self.inside, self.trace))

    def _below(self, variance: tf.Tensor) -> tf.Tensor:
        most = tf.where(self.inside > 0.0, MOST / self.inside, tf.constant(float("inf"), DTYPE))
        return tf.minimum(variance, most)

    def slopes(self) -> tuple[tf.Tensor, ...]:
        """Return the derivatives of ½ log|I + ΛΣ| in K_d, [S, n_d, n_d] each."""
        return trace.slopes(self.prior.spectrum, self.inside, self.trace)
