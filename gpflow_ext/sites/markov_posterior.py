"""GPflow's cached posterior of a state-space model: predictions at any times, between and beyond the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpflow
import tensorflow as tf
from gpflow.posteriors import PrecomputedValue

from gpflow_ext.compiled import Preferred
from gpflow_ext.functions.draws import SamplesFunctions
from gpflow_ext.functions.given import Given, domain
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.numerics import batched, linalg
from gpflow_ext.numerics.mapped import one_by_one
from gpflow_ext.sites import chunked, latent, markov_prior
from gpflow_ext.sites.marginal_posterior import MarginalPosterior
from gpflow_ext.sites.markov import Markov, MarkovFactor
from gpflow_ext.sites.posterior import SiteConditioned, check_precisions
from gpflow_ext.sites.state_space import DTYPE, StateSpace

COLUMNS = 2**22  # numbers in a right-hand side of covariances


class MarkovPosterior(SamplesFunctions, MarginalPosterior):
    """GPflow's cached posterior, its cache what the filter and the smoother know at each datum.

    A new time has a datum before it, whose filtered state x, P is carried on to it, and one after it, whose
    adjoints r, N are carried back:

        x⁻ = Fx  P⁻ = FPFᵀ + Q    r⁻ = F₊ᵀr₊  N⁻ = F₊ᵀN₊F₊    mean hᵀ(x⁻ + P⁻r⁻)  variance hᵀ(P⁻ − P⁻N⁻P⁻)h

    O(log N + d³) for a time, whatever the number of data. Covariances between R new times are (Σ⁻¹ + Λ)⁻¹ of
    all times together, with Λ = 0 at the new ones: their columns are R solves of the same passes, O(NRd²).
    ``update_cache`` reads the model again.
    """

    prior_name, one_input = "markov", "time"
    lowers_covariances = False  # their loops are as long as there are new times, which XLA has to know
    _model: SiteConditioned[Markov]

    def _parts(self) -> tuple[tf.Tensor, ...]:
        """See `Smoothing.parts`."""
        known = Smoothing(self._model)
        return Preferred(known)(known.parts)

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        parts = linalg.finite(self._parts(), self._model)
        return tuple(PrecomputedValue(part, (True, *(False,) * (part.shape.rank - 1))) for part in parts)

    def _at(self, cache: tuple[tf.Tensor, ...], X: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance, less the mean function, at X [R, 1], [R, L]."""
        times, x, P, r, N, _ = cache
        between = Between(markov_prior.spaces_of(self.kernel), times, P, X)
        return between.mean(x[..., None], r[..., None])[..., 0], between.variance(N)

    def _covariance(self, cache: tuple[tf.Tensor, ...], new: tf.Tensor) -> tf.Tensor:
        """Return covariances at X [R, 1], [L, R, R]."""
        joint = Joint(self.kernel)
        found: tf.Tensor = Preferred(joint)(joint.covariances, new, cache[0], cache[-1])
        return found

    def functions(self) -> Given:
        """See `SamplesFunctions`.

        α̃ = (I + ΛΣ)⁻¹(ρ − Λf̃ − Λ^½ξ) for the prior draw f̃ at the data, and k(t, T)α̃ as the mean is found, all
        in O(N) for a function.
        """
        X, prior, current = self._model.data[0], self._model.prior(), self._model.latent_sites
        owner = type(self._model).__name__
        check_precisions(current.prec, owner)
        known, number = Smoothing(self._model), batched.sizes(X)[0]
        factor = Preferred(known)(known.factor)
        times = tf.cast(tf.gather(X[:, 0], prior.order), DTYPE)
        P = chunked.unlay(factor.filtered_covariance(), number)
        pull, prec = (
            tf.transpose(part)[..., None] for part in (current.nat1 - current.prec * prior.mean, current.prec)
        )

        def condition(values: tf.Tensor, numbers: Numbers) -> tuple[tf.Tensor, ...]:
            L, _, S = batched.sizes(values)
            b = pull - prec * values - tf.sqrt(prec) * numbers.normal(tf.shape(values))  # [L, N, S]
            passes = factor.passes(tf.reshape(tf.transpose(b, [1, 0, 2]), [number, L * S]))
            laid = factor.filtered_mean(passes), passes.r
            apart = (chunked.unlay(part, number) for part in laid)
            return times, P, *(tf.reshape(part, [number, part.shape[1], L, S]) for part in apart)

        def correction(
            kernels: Sequence[gpflow.kernels.Kernel], _: Any, held: tuple[tf.Tensor, ...], new: tf.Tensor
        ) -> tf.Tensor:
            times, P, x, r = held
            return Between(markov_prior.spaces(kernels), times, P, new).mean(x, r)

        own = domain(owner, latent.kernels(self.kernel), (X,))
        return Given(
            own,
            self._model.mean_function,
            latent.num_functions(self._model),
            condition,
            correction,
            jitter=0.0,
        )


class Smoothing(tf.Module):
    """Functions to compile, of a model: what the filter and the smoother know."""

    def __init__(self, model: SiteConditioned[Markov]) -> None:
        super().__init__()
        self._model = model

    def factor(self) -> MarkovFactor:
        """Return the factor of the model's sites."""
        return self._model.prior().factorise(self._model.latent_sites.prec)

    def parts(self) -> tuple[tf.Tensor, ...]:
        """Return the sorted times [N], then x, P, r, N and Λ at each: [N, d, L], [N, d, d, L] and [N, L]."""
        X, current, factor = self._model.data[0], self._model.latent_sites, self.factor()
        prior = factor.prior
        passes = factor.passes(current.nat1 - current.prec * prior.mean)
        spread = factor.adjoint().N
        laid = factor.filtered_mean(passes), factor.filtered_covariance(), passes.r, spread, factor.lam
        times = tf.cast(tf.gather(X[:, 0], prior.order), DTYPE)
        return times, *(chunked.unlay(part, batched.sizes(X)[0]) for part in laid)


class Joint(tf.Module):
    """Functions to compile, of a kernel: what new times have to do with each other, given the data."""

    def __init__(self, kernel: gpflow.kernels.Kernel) -> None:
        super().__init__()
        self._kernel = kernel

    def covariances(self, new: tf.Tensor, times: tf.Tensor, prec: tf.Tensor) -> tf.Tensor:
        """Return those within X [R, 1], [L, R, R], for sorted times of data [N] and Λ [N, L].

        Some columns at a time where there are many data.
        """
        (R, _), (N, L) = batched.sizes(new), batched.sizes(prec)
        X = tf.concat([tf.cast(times, new.dtype)[:, None], new], axis=0)
        prior = markov_prior.of_kernel(self._kernel, X, tf.zeros([N + R, L], new.dtype))
        factor = prior.factorise(tf.pad(prec, [[0, R], [0, 0]]))
        blocks, width = batched.blocks(R, COLUMNS // (N + R))

        def columns(block: tf.Tensor) -> tf.Tensor:
            numbers = N + block * width + tf.range(width)  # there are no rows beyond, and no ones in these
            b = tf.one_hot(numbers, N + R, axis=0, dtype=new.dtype)  # [N + R, S]
            found = factor.solve(tf.tile(b, [1, L])).shift[N:]  # [R, LS]
            return tf.transpose(tf.reshape(found, [R, L, width]), [2, 1, 0])

        found = one_by_one(columns, tf.range(blocks), fn_output_signature=new.dtype)
        cov = tf.transpose(tf.reshape(found, [blocks * width, L, R])[:R], [1, 0, 2])
        return 0.5 * (cov + tf.linalg.matrix_transpose(cov))


class Between:
    """New times between those of the data, and how they depend on the data before and after them.

    Parameters
    ----------
    spaces
        State-space forms of the kernels, one or L.
    times
        Sorted times of the data, [N].
    P
        Filtered covariances there, [N, d, d, L].
    X
        New times, [R, 1].
    """

    def __init__(self, spaces: list[StateSpace], times: tf.Tensor, P: tf.Tensor, X: tf.Tensor) -> None:
        new = tf.cast(X[:, 0], DTYPE)
        after = tf.searchsorted(times, new, side="right")  # the number of the next datum, [R]
        count, nothing = tf.shape(times)[0], tf.zeros_like(new)
        has_before, has_after = after > 0, after < count
        self.left, self.right = tf.maximum(after - 1, 0), tf.minimum(after, count - 1)
        since = tf.where(has_before, new - tf.gather(times, self.left), nothing)
        until = tf.where(has_after, tf.gather(times, self.right) - new, nothing)
        (F, Q), (G, _) = (markov_prior.transitions(spaces, delta[:, None]) for delta in (since, until))
        F, Q, G = F[..., 0], Q[..., 0], G[..., 0]
        h = markov_prior.observations(spaces, new[:, None])[..., 0]  # [R, d, S]
        there = has_before[:, None, None, None]
        P = tf.where(there, tf.gather(P, self.left), markov_prior.covariances(spaces)[None])
        P = tf.einsum("rijl,rjkl,rmkl->riml", *_alike(F, P, F)) + Q
        p = tf.reduce_sum(P * h[:, None], axis=2)  # P⁻h, [R, d, L]
        back = tf.einsum("rijl,rjl->ril", *_alike(G, p))  # G P⁻h
        self._forth = tf.where(there[..., 0], tf.einsum("rji...,rj...->ri...", F, h), 0.0)  # Fᵀh
        self._back = tf.where(has_after[:, None, None], back, 0.0)
        self._own = tf.reduce_sum(h * p, axis=1)

    def mean(self, x: tf.Tensor, r: tf.Tensor) -> tf.Tensor:
        """Return hᵀ(x⁻ + P⁻r⁻) for filtered states x and adjoints r, which are [N, d, L, S], as [R, L, S]."""
        forth, back = (part[..., None] for part in (self._forth, self._back))
        found = tf.reduce_sum(forth * tf.gather(x, self.left), axis=1)
        return found + tf.reduce_sum(back * tf.gather(r, self.right), axis=1)

    def variance(self, N: tf.Tensor) -> tf.Tensor:
        """Return hᵀ(P⁻ − P⁻N⁻P⁻)h for the smoother's N [N, d, d, L], [R, L]."""
        near = tf.gather(N, self.right)
        spread = tf.reduce_sum(self._back * tf.reduce_sum(near * self._back[:, None], axis=2), axis=1)
        return tf.nn.relu(self._own - spread)


def _alike(*parts: tf.Tensor) -> list[tf.Tensor]:
    """Give all parts the same number of latent functions, their last axis."""
    most = max(part.shape[-1] for part in parts)
    return [tf.repeat(part, most, axis=-1) if part.shape[-1] < most else part for part in parts]
