"""Binary likelihoods p(y | f) = link((2y - 1) f), y in {0, 1}, with exact tails and no clamped link."""

from __future__ import annotations

import abc
import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import MeanAndVariance, Parameter, TensorType
from gpflow.likelihoods import ScalarLikelihood

from gpflow_ext.data.checks import check_not_one_hot
from gpflow_ext.likelihoods.classes import check_one_column
from gpflow_ext.likelihoods.label_noise import bound_beside, is_noisy, levels, log_mixture, wrong_share
from gpflow_ext.numerics.bounds import LLPBound, check_llp_bound, expected_log_sigmoid
from gpflow_ext.numerics.logistic import expected_llp
from gpflow_ext.numerics.probit import expected_log_ndtr, log_flipped_ndtr
from gpflow_ext.numerics.special import as_tensor, gaussian_expectation, log_expected_sigmoid, log_ndtr


def check_binary_labels(Y: npt.ArrayLike) -> None:
    """Raise ``ValueError``, with the fix, unless ``Y`` (of any shape) holds only the numbers 0 and 1."""
    values = np.asarray(Y)
    numeric = values.dtype.kind in "biuf"
    found = np.unique(values if numeric else values.astype(str))
    if numeric and np.isin(found, (0, 1)).all():
        return
    shown = np.array2string(found[:5], separator=", ") + (
        f" and {found.size - 5} more" if found.size > 5 else ""
    )
    recipes = {(-1, 1): "encode with (Y + 1) / 2", (1, 2): "encode with Y - 1"}
    recipe = recipes.get(tuple(found.tolist()), "encode the two classes as 0 and 1")
    raise ValueError(
        f"Y must hold 0 and 1; found values {shown}: {recipe}, or load through gpflow_ext.datasets"
    )


class BinaryLikelihood(ScalarLikelihood, abc.ABC):
    """Base of likelihoods p(y | f) = link((2y - 1) f) of a label y in {0, 1}, link(f) + link(-f) = 1.

    With a share ρ of flipped labels it is ρ + (1 - 2ρ) link((2y - 1) f); see `likelihoods.label_noise`.

    Abstract: a subclass implements functions of the signed latent function (2y - 1) f. Shapes are those of
    GPflow's likelihoods: F, Fmu, Fvar and Y are [..., L], summed over L independent latent functions where
    GPflow does so.

    Parameters
    ----------
    flip
        ρ in [0, ½), the share of flipped labels.
    learn_flip
        Make ρ > 0 a trainable parameter with the prior Beta(2, 1/ρ).

    Raises
    ------
    ValueError
        For ρ out of range, or a ρ of 0 that is to be learnt.
    """

    flip: float | Parameter = 0.0

    def __init__(self, flip: float = 0.0, *, learn_flip: bool = False) -> None:
        super().__init__()
        if flip or learn_flip:
            self.flip = wrong_share(flip, 2, learn=learn_flip, name="flip")

    def check_targets(self, Y: npt.ArrayLike) -> None:
        """Raise ``ValueError`` unless the targets are labels 0 and 1, and not one-hot.

        The models' constructors call it.
        """
        check_binary_labels(Y)
        check_not_one_hot(Y)

    @abc.abstractmethod
    def _log_link(self, F: tf.Tensor) -> tf.Tensor:
        """Return log link(F), elementwise."""

    @abc.abstractmethod
    def _log_expected_link(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        """Return log E[link(f)], f ~ N(Fmu, Fvar), elementwise."""

    def _expected_link(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        """Return E[link(f)], f ~ N(Fmu, Fvar), elementwise."""
        return tf.exp(self._log_expected_link(Fmu, Fvar))

    @abc.abstractmethod
    def _expected_log_link(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        """Return E[log link(f)], f ~ N(Fmu, Fvar), or a lower bound on it, elementwise."""

    def _expected_log_mixture(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        """Return E[log(ρ + (1 - 2ρ) link(f))], f ~ N(Fmu, Fvar), for ρ > 0, elementwise."""
        # Read once: derivatives may be taken where another value is no longer substituted for it.
        flip = self.flip if isinstance(self.flip, float) else tf.convert_to_tensor(self.flip)
        expected = gaussian_expectation(lambda F: self._log_mixture(F, flip)[0], Fmu, Fvar)
        if isinstance(flip, float):
            return expected
        share = levels(flip, 2, Fmu.dtype)[1]
        by_share = tf.stop_gradient(gaussian_expectation(lambda F: self._log_mixture(F, flip)[1], Fmu, Fvar))
        return expected + (share - tf.stop_gradient(share)) * by_share  # zero, with a gradient

    def _log_mixture(self, F: tf.Tensor, flip: tf.Tensor | float) -> tuple[tf.Tensor, tf.Tensor]:
        """Return log(ρ + (1 - 2ρ) link(F)), ρ > 0, and its derivative in ρ, elementwise."""
        log_link = self._log_link(F)
        log_p = log_mixture(log_link, flip, 2)
        return log_p, (1.0 - 2.0 * tf.exp(log_link)) / tf.exp(log_p)

    def _with_flips(self, log_p: tf.Tensor) -> tf.Tensor:
        return log_mixture(log_p, self.flip, 2)

    def class_probabilities(self, X: TensorType, Fmu: TensorType, Fvar: TensorType) -> tf.Tensor:
        """Return p(y = 0) and p(y = 1) for f ~ N(Fmu, Fvar).

        Parameters
        ----------
        X
            Inputs, shape [..., D]; not used.
        Fmu, Fvar
            Mean and variance of the one latent function, shape [..., 1]; several raise ``ValueError``.

        Returns
        -------
        Probabilities strictly between 0 and 1, shape [..., 2], each accurate in its own tail.
        """
        Fmu, Fvar = as_tensor(Fmu), as_tensor(Fvar)
        check_one_column(Fmu, "two classes")
        return tf.concat(self._probabilities(Fmu, Fvar), axis=-1)

    def _probabilities(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return E[link(-f)] and E[link(f)], kept strictly inside (0, 1) where they would round to an end."""
        limits = np.finfo(Fmu.dtype.as_numpy_dtype)
        negative, positive = (self._expected_link(sign * Fmu, Fvar) for sign in (-1.0, 1.0))
        if is_noisy(self.flip):
            hit, missed = levels(self.flip, 2, Fmu.dtype)
            negative, positive = hit * negative + missed * positive, hit * positive + missed * negative
        total = negative + positive
        lowest, highest = limits.tiny, 1.0 - limits.epsneg
        return (
            tf.clip_by_value(negative / total, lowest, highest),
            tf.clip_by_value(positive / total, lowest, highest),
        )

    @inherit_check_shapes
    def _scalar_log_prob(self, X: TensorType, F: TensorType, Y: TensorType) -> tf.Tensor:
        F = as_tensor(F)
        return self._with_flips(self._log_link(_signs(Y, F.dtype) * F))

    @inherit_check_shapes
    def _conditional_mean(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return tf.exp(self._with_flips(self._log_link(as_tensor(F))))

    @inherit_check_shapes
    def _conditional_variance(self, X: TensorType, F: TensorType) -> tf.Tensor:
        F = as_tensor(F)
        return tf.exp(self._with_flips(self._log_link(F)) + self._with_flips(self._log_link(-F)))

    @inherit_check_shapes
    def _predict_mean_and_var(self, X: TensorType, Fmu: TensorType, Fvar: TensorType) -> MeanAndVariance:
        negative, positive = self._probabilities(as_tensor(Fmu), as_tensor(Fvar))
        return positive, positive * negative

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        Fmu = as_tensor(Fmu)
        log_p = self._log_expected_link(_signs(Y, Fmu.dtype) * Fmu, as_tensor(Fvar))
        return tf.reduce_sum(self._with_flips(log_p), axis=-1)

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        Fmu = as_tensor(Fmu)
        expected = self._expected_log_mixture if is_noisy(self.flip) else self._expected_log_link
        return tf.reduce_sum(expected(_signs(Y, Fmu.dtype) * Fmu, as_tensor(Fvar)), axis=-1)


class BernoulliLogit(BinaryLikelihood):
    """Bernoulli likelihood with the logistic link, p(y = 1 | f) = σ(f) = 1/(1 + e⁻ᶠ).

    ``variational_expectations`` is a lower bound on E[log p(y | f)] if ``bound`` names one (Khan, Mohamed
    and Murphy 2012, section 4), and otherwise the exact value, to rounding. Predictions do not use the
    bound, but a quadrature with about 11 correct digits in float64 for any variance up to 1e6.

    Parameters
    ----------
    bound
        "piecewise" (R quadratic pieces, within ``max_gap`` of exact), "jaakkola" (Jaakkola and Jordan's
        quadratic bound at its best ξ² = mean² + variance), None (exact) or "auto": piecewise without flipped
        labels, exact with them.
    num_pieces
        R of the piecewise bound: 3, 4, 5, 10 or 20. The larger, the tighter: 1.4e-4 at R = 20.
    flip, learn_flip
        Share of flipped labels; see `BinaryLikelihood`. If it is not 0, the expectation is exact.

    Raises
    ------
    ValueError
        For an unknown ``bound`` or ``num_pieces``, a bound together with a share, or a share out of range.
    """

    def __init__(
        self,
        bound: LLPBound | Literal["auto"] | None = "auto",
        num_pieces: int = 20,
        *,
        flip: float = 0.0,
        learn_flip: bool = False,
    ) -> None:
        super().__init__(flip, learn_flip=learn_flip)
        self.bound: LLPBound | None = bound_beside(flip, bound, "piecewise")
        if self.bound is not None:
            check_llp_bound(self.bound, num_pieces)
        self.num_pieces = num_pieces

    def _log_link(self, F: tf.Tensor) -> tf.Tensor:
        return tf.math.log_sigmoid(F)

    def _log_expected_link(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        return log_expected_sigmoid(Fmu, Fvar)

    def _expected_log_link(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        return expected_log_sigmoid(Fmu, Fvar, self.bound, self.num_pieces)

    def _expected_log_mixture(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        """See `BinaryLikelihood`; ρ + (1 - 2ρ) σ(f) = ρ (1 + eᵃ⁺ᶠ)/(1 + eᶠ) with a = log(1/ρ - 1).

        For f > 0 it is (1 - ρ) (1 + e⁻ᵃ⁻ᶠ)/(1 + e⁻ᶠ), so that large f do not cancel.
        """
        log_hit, log_missed = map(tf.math.log, levels(self.flip, 2, Fmu.dtype))
        above = Fmu > 0.0
        near, far = tf.where(above, log_hit, log_missed), tf.where(above, log_missed, log_hit)
        below = tf.where(above, -Fmu, Fmu)
        return near + expected_llp(below + (far - near), Fvar) - expected_llp(below, Fvar)


class BernoulliProbit(BinaryLikelihood):
    """Bernoulli likelihood with the exact probit link, p(y = 1 | f) = Φ(f).

    The predictive density has a closed form, p(y) = Φ((2y - 1) m/√(1 + v)). ``variational_expectations`` is a
    closed form with about 8 correct digits at any variance, see `gpflow_ext.numerics.probit`. Unlike that of
    GPflow's ``Bernoulli``, the link is not clamped to [0.001, 0.999].

    Parameters
    ----------
    flip, learn_flip
        Share of flipped labels; see `BinaryLikelihood`. If it is not 0, the expectation is a quadrature,
        accurate to 1e-7 for shares from 1e-4 and variances up to 1e4.

    Raises
    ------
    ValueError
        For a share out of range, or a share of 0 that is to be learnt.
    """

    def _log_link(self, F: tf.Tensor) -> tf.Tensor:
        return log_ndtr(F)

    def _log_expected_link(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        return log_ndtr(Fmu / tf.sqrt(1.0 + Fvar))

    def _expected_link(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        return 0.5 * tf.math.erfc(-math.sqrt(0.5) * Fmu / tf.sqrt(1.0 + Fvar))

    def _expected_log_link(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        return expected_log_ndtr(Fmu, Fvar)

    def _log_mixture(self, F: tf.Tensor, flip: tf.Tensor | float) -> tuple[tf.Tensor, tf.Tensor]:
        return log_flipped_ndtr(F, levels(flip, 2, F.dtype)[1])


def _signs(Y: Any, dtype: tf.DType) -> tf.Tensor:
    """Return 2Y - 1, the labels as -1 and 1."""
    return 2.0 * tf.cast(Y, dtype) - 1.0
