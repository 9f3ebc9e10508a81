"""GPflow's cached posterior of a state-space model: predictions at any times, between and beyond the data."""

from __future__ import annotations

import tensorflow as tf
from gpflow.posteriors import PrecomputedValue

from gpflow_ext.numerics import batched, linalg
from gpflow_ext.sites import chunked, markov_prior
from gpflow_ext.sites.marginal_posterior import MarginalPosterior
from gpflow_ext.sites.markov import Markov
from gpflow_ext.sites.posterior import SiteConditioned
from gpflow_ext.sites.state_space import DTYPE


class MarkovPosterior(MarginalPosterior):
    """GPflow's cached posterior, its cache what the filter and the smoother know at each datum.

    A new time has a datum before it, whose filtered state x, P is carried on to it, and one after it, whose
    adjoints r, N are carried back:

        x⁻ = Fx  P⁻ = FPFᵀ + Q    r⁻ = F₊ᵀr₊  N⁻ = F₊ᵀN₊F₊    mean hᵀ(x⁻ + P⁻r⁻)  variance hᵀ(P⁻ − P⁻N⁻P⁻)h

    O(log N + d³) for a time, whatever the number of data. ``update_cache`` reads the model again.
    """

    prior_name, one_input = "markov", "time"
    _model: SiteConditioned[Markov]

    def _parts(self) -> tuple[tf.Tensor, ...]:
        """Return the sorted times [N], and x, P, r, N at each: [N, d, L] and [N, d, d, L]."""
        X, prior, current = self._model.data[0], self._model.prior(), self._model.latent_sites
        factor = prior.factorise(current.prec)
        passes = factor.passes(current.nat1 - current.prec * prior.mean)
        spread, _ = factor.adjoint()
        laid = factor.filtered_mean(passes), factor.filtered_covariance(), passes.r, spread
        number = batched.sizes(X)[0]
        times = tf.cast(tf.gather(X[:, 0], prior.order), DTYPE)
        return times, *(chunked.unlay(part, number) for part in laid)

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        parts = linalg.finite(self._parts(), self._model)
        return tuple(PrecomputedValue(part, (True, *(False,) * (part.shape.rank - 1))) for part in parts)

    def _at(self, cache: tuple[tf.Tensor, ...], X: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance, less the mean function, at X [R, 1], [R, L]."""
        times, x, P, r, N = cache
        new, spaces = tf.cast(X[:, 0], DTYPE), markov_prior.spaces_of(self.kernel)
        after = tf.searchsorted(times, new, side="right")  # the number of the next datum, [R]
        count, nothing = tf.shape(times)[0], tf.zeros_like(new)
        has_before, has_after = after > 0, after < count
        left, right = tf.maximum(after - 1, 0), tf.minimum(after, count - 1)
        since = tf.where(has_before, new - tf.gather(times, left), nothing)
        until = tf.where(has_after, tf.gather(times, right) - new, nothing)

        def some(values: tf.Tensor, at: tf.Tensor, there: tf.Tensor, otherwise: tf.Tensor) -> tf.Tensor:
            found = tf.gather(values, at)
            there = tf.reshape(there, [-1] + [1] * (values.shape.rank - 1))
            return tf.where(there, found, otherwise)

        zero = tf.zeros([], DTYPE)
        (F, Q), (G, _) = (markov_prior.transitions(spaces, delta[:, None]) for delta in (since, until))
        F, Q, G = F[..., 0], Q[..., 0], G[..., 0]
        h = markov_prior.observations(spaces, new[:, None])[..., 0]  # [R, d, S]
        start = markov_prior.covariances(spaces)[None] + zero
        x, P = some(x, left, has_before, zero), some(P, left, has_before, start)
        r, N = some(r, right, has_after, zero), some(N, right, has_after, zero)
        x = tf.einsum("rij...,rj...->ri...", F, x)
        P = tf.einsum("rijl,rjkl,rmkl->riml", *_alike(F, P, F)) + Q
        p = tf.reduce_sum(P * h[:, None], axis=2)  # [R, d, L]
        back = tf.einsum("rijl,rjl->ril", *_alike(G, p))  # G P⁻h
        mean = tf.reduce_sum(h * x, axis=1) + tf.reduce_sum(back * r, axis=1)
        spread = tf.reduce_sum(back * tf.reduce_sum(N * back[:, None], axis=2), axis=1)
        return mean, tf.nn.relu(tf.reduce_sum(h * p, axis=1) - spread)


def _alike(*parts: tf.Tensor) -> list[tf.Tensor]:
    """Give all parts the same number of latent functions, their last axis."""
    most = max(part.shape[-1] for part in parts)
    return [tf.repeat(part, most, axis=-1) if part.shape[-1] < most else part for part in parts]
