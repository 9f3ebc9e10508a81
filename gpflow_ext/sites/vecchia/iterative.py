"""The Vecchia prior at the data without a factor: conjugate gradients and stochastic Lanczos quadrature.

Equations are those of `prior`, solved as `preconditioned` says. The mode needs solutions alone. The log
determinant is an estimate by probes that are always the same, and `IterativeFactor.variance` are its
derivatives: right on average, but not for one datum. Precisions may be negative while Ω + Λ is positive
definite. All of it is in double precision, whatever the model is in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from gpflow_ext.numerics.batched import sizes
from gpflow_ext.sites.algebra import Pair, Sites, log_normaliser
from gpflow_ext.sites.vecchia import preconditioned
from gpflow_ext.sites.vecchia.preconditioned import Preconditioned, Trace
from gpflow_ext.sites.vecchia.rows import DTYPE, Rows
from gpflow_ext.sites.vecchia.sweeps import ScheduleAt, triangle

ROUGHER = 1e4  # the tolerance for logarithms, whose errors are those of solutions squared, and for draws


class IterativeVecchia(NamedTuple):
    """A Vecchia prior at the data; S is 1, where all latent functions share a kernel, or L."""

    mean: tf.Tensor  # μ, [N, L]
    rows: Rows
    own: tf.Tensor  # prior variances, [N, S]
    schedule: ScheduleAt
    seeds: tf.Tensor  # one for each probe, [R, 2]
    error: tf.Tensor  # the relative tolerance of results, []

    @property
    def solves_nearby(self) -> bool:
        """Whether a system solves those of other precisions too."""
        return True

    @property
    def held_factors(self) -> bool:
        """Whether only `log_normaliser` and `product` are differentiable in the prior."""
        return True

    @property
    def residual(self) -> tf.Tensor:
        """Variance that the sites do not see: none, [1, 1]."""
        return tf.zeros([1, 1], self.mean.dtype)

    def variance(self) -> tf.Tensor:
        """Return the prior variances of the kernel, [N, 1 or L]."""
        return self.own

    def product(self, alpha: tf.Tensor) -> tf.Tensor:
        """Return Σα = B⁻¹DB⁻ᵀα, [N, L]; differentiable once, see `Rows.product`."""

        def solve(rows: Rows) -> Callable[[tf.Tensor], tf.Tensor]:
            systems = self._replace(rows=rows).systems(tf.zeros(sizes(alpha), DTYPE))

            def solved(b: tf.Tensor) -> tf.Tensor:
                found = []
                for column, (of, D, _) in enumerate(systems):
                    pulled = D * of.solve_transposed(self.schedule.spread(b[:, column : column + 1]))
                    found.append(self.schedule.gather(of.solve(pulled)))
                return tf.concat(found, axis=1)

            return solved

        return self.rows.product(alpha, solve)

    def precision(self, h: tf.Tensor) -> tf.Tensor:
        """Return Ωh for h [N, L]. O(Nm)."""
        return self.rows.precision(h)

    def coupling(self, a: Pair, b: Pair) -> tf.Tensor:
        """See `algebra.coupling`."""
        return self.rows.coupling(a, b)

    def systems(self, prec: tf.Tensor) -> list[Preconditioned]:
        """Return Ω + Λ of each latent function, preconditioned, for prec [N, L]."""
        (_, a, D), L = self.rows, int(prec.shape[1])
        S = int(a.shape[2])
        triangles = [triangle(self.schedule, a[..., s]) for s in range(S)]
        D, prec = self.schedule.spread(D, 1.0), self.schedule.spread(tf.cast(prec, DTYPE))
        return [
            Preconditioned(triangles[latent % S], D[:, latent % S, None], prec[:, latent, None])
            for latent in range(L)
        ]

    def system(self, prec: tf.Tensor) -> System:
        """Return what solves with Ω + Λ for prec [N, L]."""
        return System(self, prec)

    def factorise(self, prec: tf.Tensor) -> IterativeFactor:
        """Return what solves with Ω + Λ for prec [N, L], with the log determinant and its derivatives."""
        system, enough = self.system(prec), ROUGHER * self.error
        traces = [
            preconditioned.estimate(each, self.rows.cliques, self.seeds, enough)
            for each in self.systems(prec)
        ]
        return IterativeFactor(
            system, Trace(*(tf.stack(parts, axis=-1) for parts in zip(*traces, strict=True)))
        )

    def log_normaliser(self, sites: Sites, factor: Any = None) -> tf.Tensor:
        """Return log ∫ p(f) ∏ₙ tₙ(fₙ) df, differentiable in the prior (not in the sites).

        Its gradient is ½αᵀ dΣ α − dF + αᵀdμ, with F = ½ log|I + ΛΣ| as the probes have it.
        """
        held = tf.nest.map_structure(tf.stop_gradient, self)
        known = held.factorise(sites.prec) if factor is None else factor
        pair = Pair(*map(tf.stop_gradient, known.solve(sites.nat1 - sites.prec * held.mean)))
        value = log_normaliser(held, sites, known, pair.shift)
        moving = 0.5 * self.coupling(pair, pair) + tf.reduce_sum(pair.alpha * self.mean)
        by_a, by_D = map(tf.stop_gradient, (known.trace.by_a, known.trace.by_D))
        moving -= tf.cast(tf.reduce_sum(self.rows.a * by_a) + tf.reduce_sum(self.rows.D * by_D), moving.dtype)
        return tf.stop_gradient(value - moving) + moving


class System(NamedTuple):
    """What solves with Ω + Λ."""

    prior: IterativeVecchia
    prec: tf.Tensor  # [N, L]

    def solve(self, b: tf.Tensor) -> Pair:
        """Return α = ΩΣα and Σα for b [N, L], to the tolerance of the prior."""
        return self.near(self.prec, b, self.prior.error)[0]

    def near(self, prec: tf.Tensor, b: tf.Tensor, tolerance: tf.Tensor) -> tuple[Pair, tf.Tensor]:
        """Return α = Ωh and h for (Ω + Λ')h = b at precisions Λ', and whether h is within a tolerance."""
        schedule, given = self.prior.schedule, tf.cast(b, DTYPE)
        found, close = [], []
        for latent, system in enumerate(self.prior.systems(prec)):
            h, near = system.solve(schedule.spread(given[:, latent, None]), tf.cast(tolerance, DTYPE))
            found.append(schedule.gather(h))
            close.append(near)
        h = tf.ensure_shape(tf.concat(found, axis=1), b.shape)
        return Pair(tf.cast(self.prior.precision(h), b.dtype), tf.cast(h, b.dtype)), tf.reduce_all(close)

    def draw(self, b: tf.Tensor, num_samples: int, normal: Callable[..., tf.Tensor]) -> tf.Tensor:
        """Return draws of N(Σα, (Ω + Λ)⁻¹) for b [N, L], [N, L, S]; ``normal`` returns such numbers."""
        schedule, given, found = self.prior.schedule, tf.cast(b, DTYPE), []
        for latent, system in enumerate(self.prior.systems(self.prec)):
            of_prior, of_sites = (schedule.spread(normal([sizes(b)[0], num_samples])) for _ in range(2))
            column, enough = schedule.spread(given[:, latent, None]), ROUGHER * self.prior.error
            found.append(schedule.gather(system.draw(column, of_prior, of_sites, enough)))
        return tf.stack(found, axis=1)


class IterativeFactor(NamedTuple):
    """What solves with Ω + Λ, and ½ log|I + ΛΣ| as the probes have it."""

    system: System
    trace: Trace  # each part with an axis [L] behind its own

    @property
    def finite(self) -> tf.Tensor:
        """Whether the log determinant is finite, []."""
        return tf.math.is_finite(self.half_log_det())

    def solve(self, b: tf.Tensor) -> Pair:
        """See `System.solve`."""
        return self.system.solve(b)

    def half_log_det(self) -> tf.Tensor:
        """Return ½ log|I + ΛΣ|, summed over the latent functions, []."""
        return tf.cast(tf.reduce_sum(self.trace.value), self.system.prec.dtype)

    def standard_error(self) -> tf.Tensor:
        """Return the standard error of `half_log_det`, as the probes differ, []."""
        return tf.cast(tf.norm(self.trace.error), self.system.prec.dtype)

    def variance(self) -> tf.Tensor:
        """Return 2 ∂/∂Λ of `half_log_det`, whose mean is the variances of q(fₙ), [N, L]."""
        return tf.cast(self.trace.by_prec, self.system.prec.dtype)
