"""Overdispersed counts: a negative binomial likelihood with a log-Gaussian mean."""

from __future__ import annotations

import math
from typing import Any

import gpflow
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import MeanAndVariance, TensorType
from gpflow.utilities import positive

from gpflow_ext.data.arguments import check_flag, check_number
from gpflow_ext.likelihoods.counts import CountLikelihood, overdispersed_moments
from gpflow_ext.numerics.integrals import Window, log_expectation, positive_variance
from gpflow_ext.numerics.logistic import expected_llp
from gpflow_ext.numerics.special import Elementwise, as_tensor, broadcast, stirling_correction

_SMALLEST = 1e-6  # dispersion: below it is Poisson's, and in float32 its gradient would be rounding
_FEWEST = 0.5  # counts below it have no peak, or one far from those of others
_DROP = 40.0  # the integrand is cut where it has fallen by e⁻⁴⁰
_PEAK_STEPS, _END_STEPS = 32, 8  # of Newton, both from a side where they are monotone


class NegativeBinomialLog(CountLikelihood):
    """Negative binomial likelihood of counts: mean μ = e · exp(f), variance μ + α μ², α the dispersion.

    With r = 1/α and x = f + log e - log r

        log p(y | f) = log Γ(y + r)/(Γ(r) y!) - y log(1 + e⁻ˣ) - r log(1 + eˣ),

    log-concave in f. As α goes to zero it becomes `PoissonLog`. Expectations are exact, by that of
    log(1 + eˣ).

    Parameters
    ----------
    dispersion
        Initial value of α, above 1e-6.
    learn_dispersion
        Whether α is trainable.
    exposure, fractions
        See `CountLikelihood`.

    Raises
    ------
    ValueError
        For a dispersion of 1e-6 or less.
    """

    def __init__(
        self,
        dispersion: float = 0.1,
        *,
        learn_dispersion: bool = True,
        exposure: bool = False,
        fractions: bool = False,
    ) -> None:
        super().__init__(exposure, fractions=fractions)
        check_number(dispersion=dispersion)
        check_flag(learn_dispersion=learn_dispersion)
        if not _SMALLEST < dispersion < math.inf:
            raise ValueError(
                f"dispersion must be finite and above {_SMALLEST:g}; got {dispersion}: PoissonLog has none"
            )
        self.dispersion = gpflow.Parameter(
            dispersion, transform=positive(lower=_SMALLEST), trainable=learn_dispersion
        )

    def _size(self, dtype: tf.DType) -> tf.Tensor:
        """Return r = 1/α."""
        return 1.0 / tf.cast(self.dispersion, dtype)

    @inherit_check_shapes
    def _scalar_log_prob(self, X: TensorType, F: TensorType, Y: TensorType) -> tf.Tensor:
        F = as_tensor(F)
        counts, offset = self._split(Y, F.dtype)
        size = self._size(F.dtype)
        logit = F + offset - tf.math.log(size)
        return _log_highest(counts, size) + _below_highest(counts, size, logit, tf.math.softplus)

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        Fmu, Fvar = broadcast(Fmu, Fvar)
        counts, offset = self._split(Y, Fmu.dtype)
        size = self._size(Fmu.dtype)
        logit = Fmu + offset - tf.math.log(size)
        below = _below_highest(counts, size, logit, lambda x: expected_llp(x, Fvar))
        return tf.reduce_sum(_log_highest(counts, size) + below, axis=-1)

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        Fmu, Fvar = broadcast(Fmu, Fvar)
        counts, offset = self._split(Y, Fmu.dtype)
        size = self._size(Fmu.dtype)
        return tf.reduce_sum(log_expected_negative_binomial(counts, size, Fmu + offset, Fvar), axis=-1)

    @inherit_check_shapes
    def _predict_mean_and_var(self, X: TensorType, Fmu: TensorType, Fvar: TensorType) -> MeanAndVariance:
        Fmu, Fvar = broadcast(Fmu, Fvar)
        return overdispersed_moments(Fmu, Fvar, tf.cast(self.dispersion, Fmu.dtype))

    @inherit_check_shapes
    def _conditional_variance(self, X: TensorType, F: TensorType) -> tf.Tensor:
        mean = tf.exp(as_tensor(F))
        return mean + tf.cast(self.dispersion, mean.dtype) * tf.square(mean)


def _below_highest(y: tf.Tensor, r: tf.Tensor, x: tf.Tensor, softplus: Elementwise) -> tf.Tensor:
    """Return -y log(1 + e⁻ˣ) - r log(1 + eˣ) less its value at the peak x* = log(y/r).

    With s(x) = log(1 + eˣ) that is y d - (y + r)(s(x) - s(x*)), d = x - x*, and the same with -r and -x in
    place of y and x. Where y < r the first has no large terms that cancel, elsewhere the second. Counts
    below `_FEWEST`, zero above all, are compared with y log r, Poisson's at r = ∞.
    """
    few = y < _FEWEST
    first = few | (y < r)
    sign = tf.where(first, tf.ones_like(x), -tf.ones_like(x))
    peak = tf.math.log(tf.where(few, tf.ones_like(y), y)) - tf.math.log(r)
    highest = tf.where(few, tf.zeros_like(peak), tf.math.softplus(sign * peak))
    return tf.where(first, y, -r) * (x - peak) - (y + r) * (softplus(sign * x) - highest)


def _log_highest(y: tf.Tensor, r: tf.Tensor) -> tf.Tensor:
    """Return the log density of a count y where that is highest, and below `_FEWEST` what has been left out.

    By Stirling's formula and what it lacks: log Γ(y + r) - log Γ(r) would lose digits.
    """
    few, many = tf.minimum(y, _FEWEST), tf.maximum(y, _FEWEST)
    at_few = (few + r - 0.5) * tf.math.log1p(few / r) - few - tf.math.lgamma(few + 1.0)
    at_many = -0.5 * tf.math.log(2.0 * math.pi * many * (1.0 + many / r)) - stirling_correction(many)
    return stirling_correction(y + r) - stirling_correction(r) + tf.where(y < _FEWEST, at_few, at_many)


def log_expected_negative_binomial(counts: Any, size: Any, mean: Any, var: Any) -> tf.Tensor:
    """Return log E[NB(y | exp(x), r)] for x ~ N(mean, var), elementwise.

    Parameters
    ----------
    counts, size, mean, var
        Tensors that broadcast with each other: counts y >= 0, r > 0, moments of the log mean, var >= 0.

    Returns
    -------
    Tensor of the broadcast shape; absolute error below 1e-8 for var <= 25, counts and r up to 1e5 in float64.
    """
    mean, var = broadcast(mean, var)
    mean, counts = broadcast(mean, counts)
    var = positive_variance(var + tf.zeros_like(mean))
    size = tf.cast(size, mean.dtype) + tf.zeros_like(mean)
    shift = tf.math.log(size)
    y, r = counts[..., None], size[..., None]

    def log_likelihood(logit: tf.Tensor) -> tf.Tensor:
        return _below_highest(y, r, logit, tf.math.softplus)

    window = _window(*map(tf.stop_gradient, (counts, size, mean - shift, var)))
    return _log_highest(counts, size) + log_expectation(log_likelihood, mean - shift, var, window)


def _window(y: tf.Tensor, r: tf.Tensor, mean: tf.Tensor, var: tf.Tensor) -> Window:
    """Window of σ(x)ʸ σ(-x)ʳ N(x; mean, var), the nodes densest where the likelihood bends.

    The slope y - (y + r) σ(x) - (x - mean)/var is convex to the right of zero and concave to the left, so
    that Newton's steps from zero to its root, the peak, are monotone. The logarithm falls from there at
    least as t²/(2 var) less what rounding has left of the slope: Newton's steps to where it has fallen by
    `_DROP` come from outside.
    """

    def slope(x: tf.Tensor) -> tf.Tensor:
        return y - (y + r) * tf.sigmoid(x) - (x - mean) / var

    def height(x: tf.Tensor) -> tf.Tensor:
        return -y * tf.math.softplus(-x) - r * tf.math.softplus(x) - 0.5 * tf.square(x - mean) / var

    def curvature(x: tf.Tensor) -> tf.Tensor:
        return (y + r) * tf.sigmoid(x) * tf.sigmoid(-x) + 1.0 / var

    peak = tf.zeros_like(mean)
    for _ in range(_PEAK_STEPS):
        peak += slope(peak) / curvature(peak)
    top, rest = height(peak), tf.abs(slope(peak))
    farthest = var * (rest + tf.sqrt(tf.square(rest) + 2.0 * _DROP / var))
    ends = []
    for sign in (-1.0, 1.0):
        end = peak + sign * farthest
        for _ in range(_END_STEPS):
            end -= (height(end) - top + _DROP) / slope(end)
        ends.append(end)
    sd = tf.sqrt(var)
    low, high = ((end - peak) / sd for end in ends)
    bend = tf.clip_by_value((tf.math.log((y + 0.5) / r) - peak) / sd, low, high)
    scale = tf.minimum(tf.math.rsqrt(1.0 + y * r / (y + r)) / sd, 2.0)
    share = 1.0 / (var * curvature(peak))
    return Window(peak + sd * bend, (peak - mean) / sd + bend, scale, low - bend, high - bend, share)
