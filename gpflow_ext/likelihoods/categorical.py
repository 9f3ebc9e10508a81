"""Likelihoods of unordered classes: multinomial logit and stick-breaking."""

from __future__ import annotations

import abc
from typing import Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import MeanAndVariance, Parameter, TensorType
from gpflow.likelihoods import Likelihood

from gpflow_ext.data.arguments import check_whole
from gpflow_ext.data.checks import check_class_numbers
from gpflow_ext.likelihoods.label_noise import bound_beside, is_noisy, levels, log_mixture, wrong_share
from gpflow_ext.likelihoods.softmax import (
    expected_lse,
    expected_lse_rise,
    log_expected_probability,
    log_expected_softmax,
)
from gpflow_ext.numerics.bounds import (
    LLPBound,
    LSEBound,
    check_llp_bound,
    check_lse_bound,
    expected_log_sigmoid,
    expected_lse_bound,
)
from gpflow_ext.numerics.special import as_tensor, broadcast, log_expected_sigmoid


class CategoricalLikelihood(Likelihood, abc.ABC):
    """Base of likelihoods p(y = k | f) of classes y in {0, …, K-1}, given independent latent functions.

    Abstract: a subclass implements log p(y | f) for all classes, its expectation under f, and the bound. F,
    Fmu and Fvar are [..., latent_dim], Y is [..., 1]. ``predict_mean_and_var`` returns the mean and variance
    of the indicators of the classes, [..., K], as that of GPflow's ``Softmax`` does.
    """

    mean_of_indicators = True

    def __init__(self, num_classes: int, latent_dim: int) -> None:
        check_whole(num_classes=num_classes)
        super().__init__(input_dim=None, latent_dim=latent_dim, observation_dim=None)
        if num_classes < 2:
            raise ValueError(f"num_classes must be at least 2; found {num_classes}")
        self.num_classes = num_classes

    @abc.abstractmethod
    def _log_conditional(self, F: tf.Tensor) -> tf.Tensor:
        """Return log p(y = k | F), [..., K]."""

    @abc.abstractmethod
    def _log_probabilities(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        """Return log E[p(y = k | f)] for f ~ N(Fmu, Fvar), [..., K], normalised."""

    def check_targets(self, Y: npt.ArrayLike) -> None:
        """Raise ``ValueError`` unless Y is one column of integers 0 to K-1."""
        shape = np.shape(Y)
        if shape[-1:] != (1,):
            raise ValueError(
                f"Y must be one column of class numbers, [N, 1]; its shape is {shape}: for indicators use "
                "Y.argmax(axis=1)[:, None]"
            )
        check_class_numbers(Y, self.num_classes)

    def class_probabilities(self, X: TensorType, Fmu: TensorType, Fvar: TensorType) -> tf.Tensor:
        """Return p(y = k), k = 0, …, K-1, for independent f ~ N(Fmu, Fvar).

        Parameters
        ----------
        X
            Inputs, shape [..., D]; not used.
        Fmu, Fvar
            Mean and variance of the latent functions, shape [..., latent_dim].

        Returns
        -------
        Probabilities, shape [..., K].
        """
        return tf.exp(self._log_probabilities(*broadcast(Fmu, Fvar)))

    def _indicators(self, Y: TensorType) -> tf.Tensor:
        """Return whether y = k, booleans [..., K]."""
        return tf.one_hot(tf.cast(Y, tf.int32)[..., 0], self.num_classes, True, False)

    def _select(self, log_p: tf.Tensor, Y: TensorType) -> tf.Tensor:
        return tf.reduce_sum(tf.where(self._indicators(Y), log_p, 0.0), axis=-1)

    @inherit_check_shapes
    def _log_prob(self, X: TensorType, F: TensorType, Y: TensorType) -> tf.Tensor:
        return self._select(self._log_conditional(as_tensor(F)), Y)

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        return self._select(self._log_probabilities(*broadcast(Fmu, Fvar)), Y)

    @inherit_check_shapes
    def _predict_mean_and_var(self, X: TensorType, Fmu: TensorType, Fvar: TensorType) -> MeanAndVariance:
        p = self.class_probabilities(X, Fmu, Fvar)
        return p, p * (1.0 - p)

    @inherit_check_shapes
    def _conditional_mean(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return tf.exp(self._log_conditional(as_tensor(F)))

    @inherit_check_shapes
    def _conditional_variance(self, X: TensorType, F: TensorType) -> tf.Tensor:
        p = tf.exp(self._log_conditional(as_tensor(F)))
        return p * (1.0 - p)


class MultinomialLogit(CategoricalLikelihood):
    """Multinomial logit, p(y = k | f) = exp(fₖ)/Σⱼ exp(fⱼ), with one latent function per class.

    ``variational_expectations`` is the lower bound m_y - U(m, v) with an upper bound U on E[log Σⱼ exp(fⱼ)]
    (Khan, Mohamed and Murphy 2012, section 4), or with ``bound=None`` the exact value, by `expected_lse`:
    GPflow's ``Softmax`` without Monte Carlo. Predictions are integrals that do not use the bound. Their
    probabilities sum to one and are accurate to 1e-8 for variances up to 25 and to 1e-4 up to 300, however
    different they are; larger ones do no harm if all are within a factor of 100 of each other.

    Parameters
    ----------
    num_classes
        K >= 2, also the number of latent functions.
    bound
        "log" (Blei and Lafferty, tighter for variances below about 2), "bouchard" (the product of sigmoids,
        tighter above), "best" (the better of the two for each datum), None (a quadrature) or "auto": "log"
        without wrong labels, the quadrature with them. The quadrature is accurate to 1e-9 for variances up to
        25 and to 2e-5 up to 300, at five hundred to a thousand times the cost of the "log" bound.
    inner, num_pieces
        Bound on the sigmoids of the product: "piecewise" with ``num_pieces`` pieces, or "jaakkola".
    flip
        Share of wrong labels in [0, 1 - 1/K); see `likelihoods.label_noise`. If it is not 0, the expectation
        is exact.
    learn_flip
        Make a positive share ρ a trainable parameter with the prior Beta(2, 1/ρ).

    Raises
    ------
    ValueError
        For fewer than two classes, an unknown bound, a bound together with a share, or a share out of range.
    """

    flip: float | Parameter = 0.0

    def __init__(
        self,
        num_classes: int,
        bound: LSEBound | Literal["auto"] | None = "auto",
        inner: LLPBound = "piecewise",
        num_pieces: int = 20,
        *,
        flip: float = 0.0,
        learn_flip: bool = False,
    ) -> None:
        super().__init__(num_classes, latent_dim=num_classes)
        self.bound: LSEBound | None = bound_beside(flip, bound, "log")
        self.inner, self.num_pieces = inner, num_pieces
        if self.bound is not None:
            check_lse_bound(self.bound, inner, num_pieces)
        if flip or learn_flip:
            self.flip = wrong_share(flip, num_classes, learn=learn_flip, name="flip")

    def _log_conditional(self, F: tf.Tensor) -> tf.Tensor:
        return log_mixture(tf.nn.log_softmax(F), self.flip, self.num_classes)

    def _log_probabilities(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        return log_mixture(log_expected_softmax(Fmu, Fvar), self.flip, self.num_classes)

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        log_p = log_expected_probability(*broadcast(Fmu, Fvar), self._indicators(Y))
        return log_mixture(log_p, self.flip, self.num_classes)

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        Fmu, Fvar = broadcast(Fmu, Fvar)
        if is_noisy(self.flip):
            return self._expected_log_mixture(Fmu, Fvar, Y)
        observed = self._select(Fmu, Y)[..., None]  # from every mean, so that large ones do not cancel
        if self.bound is None:
            return -expected_lse(Fmu - observed, Fvar)
        return -expected_lse_bound(Fmu - observed, Fvar, self.bound, self.inner, self.num_pieces)

    def _expected_log_mixture(self, Fmu: tf.Tensor, Fvar: tf.Tensor, Y: TensorType) -> tf.Tensor:
        """Return E[log p(y | f)]: p is missed·Σ eᶠ'/Σ eᶠ, f' = f except for f'_y = f_y + log(hit/missed)."""
        log_hit, log_missed = map(tf.math.log, levels(self.flip, self.num_classes, Fmu.dtype))
        return log_missed + expected_lse_rise(Fmu, Fvar, self._indicators(Y), log_hit - log_missed)


class StickBreaking(CategoricalLikelihood):
    """Stick-breaking likelihood of K classes given K - 1 latent functions.

        p(y = k | f) = σ(fₖ) Πⱼ﹤ₖ σ(-fⱼ),  k < K-1,        p(y = K-1 | f) = Πⱼ σ(-fⱼ)

    (Khan, Mohamed and Murphy 2012, section 4): K - 1 independent binary problems, "class k or a later one?",
    of which the k-th uses only the data with y >= k. The gradient for a problem that a datum is not part of
    is exactly zero. The model depends on the order of the classes. Two classes are `BernoulliLogit` with the
    labels exchanged: class 0 is the success.

    Predictions are products of E[σ(±fⱼ)], exact whatever the bound.

    Parameters
    ----------
    num_classes
        K >= 2.
    bound
        "piecewise", "jaakkola" or None (quadrature), as of `BernoulliLogit`.
    num_pieces
        Pieces of the piecewise bound.

    Raises
    ------
    ValueError
        For fewer than two classes or an unknown bound.
    """

    def __init__(self, num_classes: int, bound: LLPBound | None = "piecewise", num_pieces: int = 20) -> None:
        if bound is not None:
            check_llp_bound(bound, num_pieces)
        check_whole(num_classes=num_classes)
        super().__init__(num_classes, latent_dim=num_classes - 1)
        self.bound, self.num_pieces = bound, num_pieces

    def _log_conditional(self, F: tf.Tensor) -> tf.Tensor:
        return _products(tf.math.log_sigmoid(F), tf.math.log_sigmoid(-F))

    def _log_probabilities(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        sticks = _products(log_expected_sigmoid(Fmu, Fvar), log_expected_sigmoid(-Fmu, Fvar))
        return tf.nn.log_softmax(sticks)

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        Fmu, Fvar = broadcast(Fmu, Fvar)
        stick, y = tf.range(self.num_classes - 1), tf.cast(Y, tf.int32)
        signed = tf.where(stick == y, Fmu, -Fmu)
        terms = expected_log_sigmoid(signed, Fvar, self.bound, self.num_pieces)
        return tf.reduce_sum(tf.where(stick <= y, terms, 0.0), axis=-1)


def _products(log_taken: tf.Tensor, log_left: tf.Tensor) -> tf.Tensor:
    """Return log(takenₖ Πⱼ﹤ₖ leftⱼ), the last class taking all that is left: [..., K-1] to [..., K]."""
    zero = tf.zeros_like(log_left[..., :1])
    return tf.concat([log_taken, zero], axis=-1) + tf.concat([zero, tf.cumsum(log_left, axis=-1)], axis=-1)
