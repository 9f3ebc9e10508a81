"""Likelihoods of counts with a log-Gaussian mean and an exposure per observation; the Poisson likelihood."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import MeanAndVariance, TensorType
from gpflow.likelihoods import ScalarLikelihood

from gpflow_ext.data.arguments import check_flag
from gpflow_ext.numerics.integrals import Window, log_expectation, positive_variance
from gpflow_ext.numerics.special import as_tensor, broadcast, stirling_correction

_DROP = 40.0  # the integrand is cut where it has fallen by e⁻⁴⁰
_NEWTON_STEPS = 8  # for the peak of the integrand, to full precision


class CountLikelihood(ScalarLikelihood):
    """Base of likelihoods of counts with mean e · exp(f), e the exposure (time, area, population at risk).

    Each datum has its own exposure, the second column of Y; GPflow's ``Poisson`` has one ``binsize`` for all.
    The predicted mean and variance are those of a count at exposure one; densities use the exposure
    given with each count. F, Fmu and Fvar are [..., 1]. Without exposures Y may have L columns, one for each
    of L latent functions.

    Parameters
    ----------
    exposure
        Whether Y is [..., 2], count and exposure, rather than counts [..., L].
    fractions
        Accept targets that are not whole numbers, such as weighted counts, by a quasi-likelihood.
    """

    def __init__(self, exposure: bool = False, *, fractions: bool = False) -> None:
        super().__init__()
        check_flag(exposure=exposure, fractions=fractions)
        self.exposure, self.fractions = exposure, fractions
        if exposure:
            self.latent_dim, self.observation_dim = 1, 2

    def check_targets(self, Y: npt.ArrayLike) -> None:
        """Raise ``ValueError`` unless counts are whole and not negative, and exposures positive and finite.

        The models' constructors call it.
        """
        values = np.asarray(Y, dtype=float)
        if self.exposure:
            if values.shape[-1] != 2:
                raise ValueError(
                    f"Y must have two columns, count and exposure; its shape is {values.shape}: stack them, "
                    "or leave out exposure=True"
                )
            values, exposures = values[..., 0], values[..., 1]
            _reject(exposures, (exposures > 0.0) & np.isfinite(exposures), "positive exposures in column 1")
        hint = "" if self.exposure else "; exposures in a second column need exposure=True"
        whole = self.fractions | (values == np.round(values))
        wanted = "numbers from 0" if self.fractions else "counts 0, 1, 2, …"
        _reject(values, (values >= 0.0) & whole, wanted, hint)

    def counts_and_exposures(self, Y: TensorType) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the counts [..., L] and the exposures in Y, which are one where Y does not give them."""
        Y = as_tensor(Y)
        if not self.exposure:
            return Y, tf.ones_like(Y)
        if Y.shape[-1] != 2:
            raise ValueError(f"Y must have two columns, count and exposure; its shape is {Y.shape}")
        return Y[..., :1], Y[..., 1:]

    def _split(self, Y: TensorType, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the counts and the logarithms of the exposures."""
        counts, exposures = (tf.cast(part, dtype) for part in self.counts_and_exposures(Y))
        return counts, tf.math.log(exposures)

    @inherit_check_shapes
    def _conditional_mean(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return tf.exp(as_tensor(F))


class PoissonLog(CountLikelihood):
    """Poisson likelihood of counts with rate e · exp(f), e the exposure; see `CountLikelihood`.

        E[log p(y | f)] = y (m + log e) - e exp(m + v/2) - log y!       (Khan, Mohamed and Murphy 2012)

    in closed form.

    Parameters
    ----------
    exposure, fractions
        See `CountLikelihood`.
    """

    @inherit_check_shapes
    def _scalar_log_prob(self, X: TensorType, F: TensorType, Y: TensorType) -> tf.Tensor:
        F = as_tensor(F)
        counts, offset = self._split(Y, F.dtype)
        return counts * (F + offset) - tf.exp(F + offset) - tf.math.lgamma(counts + 1.0)

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        Fmu, Fvar = broadcast(Fmu, Fvar)
        counts, offset = self._split(Y, Fmu.dtype)
        rate = tf.exp(Fmu + 0.5 * Fvar + offset)
        return tf.reduce_sum(counts * (Fmu + offset) - rate - tf.math.lgamma(counts + 1.0), axis=-1)

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        Fmu, Fvar = broadcast(Fmu, Fvar)
        counts, offset = self._split(Y, Fmu.dtype)
        return tf.reduce_sum(log_expected_poisson(counts, Fmu + offset, Fvar), axis=-1)

    @inherit_check_shapes
    def _predict_mean_and_var(self, X: TensorType, Fmu: TensorType, Fvar: TensorType) -> MeanAndVariance:
        Fmu, Fvar = broadcast(Fmu, Fvar)
        return overdispersed_moments(Fmu, Fvar, 0.0)

    @inherit_check_shapes
    def _conditional_variance(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return tf.exp(as_tensor(F))


def overdispersed_moments(Fmu: tf.Tensor, Fvar: tf.Tensor, dispersion: Any) -> MeanAndVariance:
    """Return mean and variance of counts of mean μ = eᶠ and variance μ + α μ², for f ~ N(Fmu, Fvar).

    With E[μ²] = t², t = exp(Fmu + Fvar), the variance is E[μ] + t² (1 + α - e^-Fvar): no factor overflows
    where another vanishes, unless the variance is infinite.

    Parameters
    ----------
    Fmu, Fvar
        Moments of the log mean, of one shape [...].
    dispersion
        α, a number or a scalar; 0 is Poisson's.

    Returns
    -------
    Two tensors [...].
    """
    mean, root = tf.exp(Fmu + 0.5 * Fvar), tf.minimum(tf.exp(Fmu + Fvar), Fmu.dtype.max)
    return mean, mean + root * (root * (dispersion - tf.math.expm1(-Fvar)))


def _reject(values: npt.NDArray[Any], good: npt.NDArray[Any], wanted: str, hint: str = "") -> None:
    if not good.all():
        wrong = np.unique(values[~good])
        shown = ", ".join(f"{value:g}" for value in wrong[:5]) + (", …" if len(wrong) > 5 else "")
        raise ValueError(f"Y must hold {wanted}; found {shown}: correct or drop these rows{hint}")


def log_expected_poisson(counts: Any, mean: Any, var: Any) -> tf.Tensor:
    """Return log E[Poisson(y | exp(x))] for x ~ N(mean, var), elementwise.

    Parameters
    ----------
    counts, mean, var
        Tensors that broadcast with each other: counts y >= 0, moments of the log rate, var >= 0.

    Returns
    -------
    Tensor of the broadcast shape; absolute error below 1e-9 for var <= 25 and counts up to 1e9 in float64.
    """
    mean, var = broadcast(mean, var)
    mean, counts = broadcast(mean, counts)
    var = positive_variance(var + tf.zeros_like(mean))
    y = counts[..., None]
    peak = tf.maximum(y, 1.0)
    log_peak = tf.math.log(peak)

    def log_likelihood(x: tf.Tensor) -> tf.Tensor:
        """Return y x − eˣ relative to x = log y, where the terms of a large count would cancel."""
        return y * (x - log_peak) - peak * tf.math.expm1(x - log_peak)

    window = _poisson_window(counts, mean, var)
    return log_expectation(log_likelihood, mean, var, window) + _log_largest(counts)


def _log_largest(counts: tf.Tensor) -> tf.Tensor:
    """Return y log y − y − log y!, the largest log likelihood of a count y; below one −1 − log y!."""
    y, few = tf.maximum(counts, 1.0), tf.minimum(counts, 1.0)
    many = -0.5 * tf.math.log(2.0 * math.pi * y) - stirling_correction(y)
    return tf.where(counts < 1.0, -1.0 - tf.math.lgamma(few + 1.0), many)


def _poisson_window(counts: tf.Tensor, mean: tf.Tensor, var: tf.Tensor) -> Window:
    """Window of exp(y x - eˣ) N(x; mean, var), the nodes densest where the likelihood bends, at log(y + ½).

    At the peak y - R = (x - mean)/var with R = eˣ: w = R·var solves w + log w = log var + mean + y·var.
    At a distance t to the right and left of it the logarithm has fallen by

        R (e^±t - 1 ∓ t) + t²/(2 var),   where  e^t - 1 - t >= t²/2  and  e^-t - 1 + t >= t²/(2 + t).
    """
    target = tf.math.log(var) + mean + counts * var
    log_w = tf.where(target > 1.0, tf.math.log(tf.maximum(target, 1.0)), target)
    for _ in range(_NEWTON_STEPS):  # from above on a convex function: monotone
        w = tf.exp(log_w)
        log_w -= (w + log_w - target) / (w + 1.0)
    log_rate = log_w - tf.math.log(var)
    sd, rate = tf.sqrt(var), tf.exp(log_rate)
    share = _DROP / tf.maximum(rate, float(np.finfo(var.dtype.as_numpy_dtype).tiny) * 1e3)
    right = tf.sqrt(2.0 * share)
    for _ in range(3):  # towards the root of e^t - 1 - t = share, from above
        right = tf.math.log1p(share + right)
    left = 0.5 * share + tf.sqrt(0.25 * tf.square(share) + 2.0 * share)
    right = tf.minimum(right / sd, math.sqrt(2.0 * _DROP) / tf.sqrt(1.0 + rate * var))
    left = tf.minimum(left / sd, math.sqrt(2.0 * _DROP))
    bend = tf.clip_by_value((tf.math.log(counts + 0.5) - log_rate) / sd, -left, right)
    scale = tf.minimum(tf.math.rsqrt(counts + 1.0) / sd, 2.0)
    # At the peak z is sd (y - R) and (log R - mean)/sd: whichever cancels less.
    z = tf.where(rate * var > 1.0, (log_rate - mean) / sd, sd * (counts - rate))
    share = 1.0 / (1.0 + rate * var)
    return Window(log_rate + sd * bend, z + bend, scale, -left - bend, right - bend, share)
