"""Ordinal likelihood: ordered levels, logistic link, exact for any thresholds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import scipy.special
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import MeanAndVariance, TensorType
from gpflow.likelihoods import ScalarLikelihood
from gpflow.utilities import positive

from gpflow_ext.data.arguments import check_whole
from gpflow_ext.data.checks import check_class_numbers
from gpflow_ext.likelihoods.classes import check_one_column
from gpflow_ext.numerics.bounds import LLPBound, check_llp_bound, expected_log_sigmoid
from gpflow_ext.numerics.integrals import Window, log_expectation, positive_variance
from gpflow_ext.numerics.special import Elementwise, as_tensor, broadcast, log_expected_sigmoid

_WIDE = 4.0  # half width from which a level is the difference of two sigmoids
_DROP = 40.0  # the integrand is cut where it has fallen by e⁻⁴⁰


class CumulativeLogit(ScalarLikelihood):
    """Cumulative-logit likelihood of ordered levels, p(y <= k | f) = σ(φₖ - f), y in {0, …, K-1}.

    In terms of the thresholds φ₀ < … < φ_{K-2} (Khan, Mohamed and Murphy 2012, section 4)

        log p(y = k | f) = log σ(φₖ - f) + log σ(f - φₖ₋₁) + log(1 - exp(φₖ₋₁ - φₖ)),

    the first term absent for the last level, the second for level 0, the third for both. This decomposition
    is exact and free of cancellation, so ``variational_expectations`` is within twice the gap of the
    logistic bound. Two levels are `BernoulliLogit` with a threshold.

    The thresholds are ordered by construction: ``first`` is free and the ``widths`` [K-2] between them are
    positive parameters. A constant mean function shifts them all: learn one or the other.

    Shapes are those of GPflow's likelihoods: F, Fmu, Fvar and Y are [..., L], summed over L independent
    latent functions, each with its column of Y, where GPflow does so. Predictions do not use the bound.

    Parameters
    ----------
    num_levels
        K >= 2.
    bound
        "piecewise", "jaakkola" or None, as of `BernoulliLogit`.
    num_pieces
        Pieces of the piecewise bound.
    thresholds
        Increasing, shape [K-1]; by default those that make the levels equally probable at f = 0.
    learn_thresholds
        Whether the thresholds are trainable.

    Raises
    ------
    ValueError
        For fewer than two levels, an unknown bound, or thresholds that are not K-1 increasing numbers.
    """

    def __init__(
        self,
        num_levels: int,
        bound: LLPBound | None = "piecewise",
        num_pieces: int = 20,
        thresholds: Sequence[float] | npt.NDArray[Any] | None = None,
        learn_thresholds: bool = True,
    ) -> None:
        super().__init__()
        check_whole(num_levels=num_levels)
        if num_levels < 2:
            raise ValueError(f"num_levels must be at least 2; found {num_levels}")
        if bound is not None:
            check_llp_bound(bound, num_pieces)
        cuts = _checked_thresholds(num_levels, thresholds)
        self.num_levels, self.bound, self.num_pieces = num_levels, bound, num_pieces
        self.first = gpflow.Parameter(cuts[0], trainable=learn_thresholds)
        self.widths = gpflow.Parameter(np.diff(cuts), transform=positive(), trainable=learn_thresholds)

    @property
    def thresholds(self) -> tf.Tensor:
        """The thresholds φ, increasing, shape [K-1]."""
        return self.first + tf.concat([[0.0], tf.cumsum(self.widths)], axis=0)

    def check_targets(self, Y: npt.ArrayLike) -> None:
        """Raise ``ValueError`` unless the targets are integers 0 to K-1; the models' constructors call it."""
        check_class_numbers(Y, self.num_levels)

    def class_probabilities(self, X: TensorType, Fmu: TensorType, Fvar: TensorType) -> tf.Tensor:
        """Return p(y = k), k = 0, …, K-1, for f ~ N(Fmu, Fvar).

        Parameters
        ----------
        X
            Inputs, shape [..., D]; not used.
        Fmu, Fvar
            Mean and variance of the one latent function, shape [..., 1]; several raise ``ValueError``.

        Returns
        -------
        Probabilities, shape [..., K], each accurate in its own tail, to about 10 digits in float64.
        """
        Fmu, Fvar = as_tensor(Fmu), as_tensor(Fvar)
        check_one_column(Fmu, "levels")
        return tf.exp(self._log_probabilities(Fmu, Fvar)[..., 0, :])

    def _log_probabilities(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        """Return log p(y = k) for f ~ N(Fmu, Fvar), [..., L, K], normalised."""
        mean, var = (t[..., None] for t in broadcast(Fmu, Fvar))
        cuts, half = (tf.cast(t, mean.dtype) for t in (self.thresholds, 0.5 * self.widths))
        levels = [
            log_expected_sigmoid(cuts[:1] - mean, var),
            log_expected_interval(mean - cuts[:-1] - half, var, half),
            log_expected_sigmoid(mean - cuts[-1:], var),
        ]
        return tf.nn.log_softmax(tf.concat(levels, axis=-1))

    def _log_likelihood(self, F: tf.Tensor, Y: TensorType, log_sigmoid: Elementwise) -> tf.Tensor:
        """Return log p(Y | F), [..., L], with ``log_sigmoid`` for log σ or a bound on its expectation."""
        level, dtype = tf.cast(Y, tf.int32), F.dtype
        cuts, widths = tf.cast(self.thresholds, dtype), tf.cast(self.widths, dtype)
        upper = tf.gather(cuts, tf.minimum(level, self.num_levels - 2)) - F
        lower = F - tf.gather(cuts, tf.maximum(level - 1, 0))
        zero = tf.zeros([1], dtype)
        gaps = tf.concat([zero, tf.math.log(-tf.math.expm1(-widths)), zero], axis=0)  # [K]
        return (
            tf.where(level < self.num_levels - 1, log_sigmoid(upper), 0.0)
            + tf.where(level > 0, log_sigmoid(lower), 0.0)
            + tf.gather(gaps, level)
        )

    @inherit_check_shapes
    def _scalar_log_prob(self, X: TensorType, F: TensorType, Y: TensorType) -> tf.Tensor:
        return self._log_likelihood(as_tensor(F), Y, tf.math.log_sigmoid)

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        Fmu, Fvar = broadcast(Fmu, Fvar)

        def expected(mean: tf.Tensor) -> tf.Tensor:
            return expected_log_sigmoid(mean, Fvar, self.bound, self.num_pieces)

        return tf.reduce_sum(self._log_likelihood(Fmu, Y, expected), axis=-1)

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        mean, var = broadcast(as_tensor(Fmu), as_tensor(Fvar))
        level, cuts = tf.cast(Y, tf.int32), tf.cast(self.thresholds, mean.dtype)
        upper = tf.gather(cuts, tf.minimum(level, self.num_levels - 2))
        lower = tf.gather(cuts, tf.maximum(level - 1, 0))
        log_p = log_expected_sigmoid(tf.where(level == 0, upper - mean, mean - lower), var)  # of both ends
        if self.num_levels > 2:
            inner = (level > 0) & (level < self.num_levels - 1)
            half = tf.where(inner, 0.5 * (upper - lower), tf.ones([], mean.dtype))
            log_p = tf.where(inner, log_expected_interval(mean - lower - half, var, half), log_p)
        return tf.reduce_sum(log_p, axis=-1)

    @inherit_check_shapes
    def _predict_mean_and_var(self, X: TensorType, Fmu: TensorType, Fvar: TensorType) -> MeanAndVariance:
        return _moments(tf.exp(self._log_probabilities(as_tensor(Fmu), as_tensor(Fvar))))

    @inherit_check_shapes
    def _conditional_mean(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return _moments(self._conditional_probabilities(as_tensor(F)))[0]

    @inherit_check_shapes
    def _conditional_variance(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return _moments(self._conditional_probabilities(as_tensor(F)))[1]

    def _conditional_probabilities(self, F: tf.Tensor) -> tf.Tensor:
        """Return p(y = k | F), [..., L, K]."""
        levels = tf.range(self.num_levels)
        return tf.exp(self._log_likelihood(F[..., None], levels, tf.math.log_sigmoid))


def _checked_thresholds(num_levels: int, thresholds: Any) -> npt.NDArray[np.float64]:
    if thresholds is None:
        return scipy.special.logit(np.arange(1, num_levels) / num_levels)
    cuts: npt.NDArray[np.float64] = np.asarray(thresholds, dtype=float)
    if cuts.shape != (num_levels - 1,) or not np.isfinite(cuts).all() or (np.diff(cuts) <= 0.0).any():
        raise ValueError(
            f"thresholds must be {num_levels - 1} increasing numbers for {num_levels} levels; "
            f"found {thresholds!r}: sort them and merge equal ones"
        )
    return cuts


def _moments(probabilities: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the mean and the variance of the level, [..., L], from its probabilities [..., L, K]."""
    levels = tf.cast(tf.range(probabilities.shape[-1]), probabilities.dtype)
    mean = tf.reduce_sum(levels * probabilities, axis=-1)
    deviation = tf.square(levels - mean[..., None])
    return mean, tf.reduce_sum(deviation * probabilities, axis=-1)


def log_expected_interval(mean: Any, var: Any, half: Any) -> tf.Tensor:
    """Return log E[σ(half - x) - σ(-half - x)] for x ~ N(mean, var): the mass of a level of width 2·half.

    A narrow level is integrated as the product σ(half - x) σ(half + x) (1 - exp(-2·half)), which keeps all
    digits however narrow; a wide one is the difference of the two tails on the side of the mean.

    Parameters
    ----------
    mean, var, half
        Tensors that broadcast with each other, var >= 0, half > 0.

    Returns
    -------
    Tensor of the broadcast shape, below zero; relative error of the probability below 1e-10 for var <= 1e4
    in float64, in the tails too.
    """
    mean, var = broadcast(mean, var)
    mean, half = broadcast(mean, half)
    size = tf.where(mean < 0.0, -mean, mean)
    narrow = _narrow_interval(size, var + tf.zeros_like(half), tf.minimum(half, _WIDE))
    wide = tf.maximum(half, _WIDE)
    above, below = (log_expected_sigmoid(edge - size, var) for edge in (wide, -wide))
    return tf.where(half < _WIDE, narrow, above + tf.math.log(-tf.math.expm1(below - above)))


def _narrow_interval(mean: tf.Tensor, var: tf.Tensor, half: tf.Tensor) -> tf.Tensor:
    var = positive_variance(var)
    edge = half[..., None]

    def log_product(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log_sigmoid(edge - x) + tf.math.log_sigmoid(edge + x)

    window = _interval_window(mean, var, half)
    return log_expectation(log_product, mean, var, window) + tf.math.log(-tf.math.expm1(-2.0 * half))


def _interval_window(mean: tf.Tensor, var: tf.Tensor, half: tf.Tensor) -> Window:
    """Window of s(x) N(x; mean, var), s(x) = σ(half - x) σ(half + x), for mean >= 0.

    As s(x) < 4 e^(half - |x|) s(0), the product falls from x = 0 at least as fast as the Gaussian tilted by
    e^∓x. For mean > var its peak is that of the tilted Gaussian, near mean - var > 0, where s is smooth.
    """
    sd = tf.sqrt(var)
    drop = _DROP + math.log(4.0) + half
    reach = tf.sqrt(2.0 * drop)

    def end(tilt: tf.Tensor) -> tf.Tensor:  # where x²/(2 var) + tilt·x = drop, over sd
        return 2.0 * drop / (sd * tilt + tf.sqrt(tf.square(sd * tilt) + 2.0 * drop))

    peak = mean - var
    at_peak = peak > 0.0
    centre = tf.where(at_peak, tf.nn.relu(peak - reach * sd), tf.zeros_like(mean))
    z = tf.where(centre > 0.0, -sd - reach, -mean / sd)
    low = tf.where(at_peak, tf.minimum((peak - centre) / sd - reach, 0.0), -end(1.0 + mean / var))
    high = tf.where(at_peak, (peak - centre) / sd + reach, end(tf.nn.relu(1.0 - mean / var)))
    # The curvature of log s is ½ at most: with x moving along, next to nothing cancels in the derivatives.
    return Window(centre, z, tf.minimum(1.0 / sd, 2.0), low, high, share=tf.ones_like(mean))
