"""Robust-max likelihood of classes: the largest latent function names the class, up to labelling errors."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp
from check_shapes import inherit_check_shapes
from gpflow import default_float
from gpflow.base import Parameter, TensorType
from gpflow.utilities import to_default_float

from gpflow_ext.likelihoods.categorical import CategoricalLikelihood
from gpflow_ext.likelihoods.largest import (
    log_probability_largest,
    probabilities_largest,
    probability_largest,
    with_nodes,
)
from gpflow_ext.numerics.integrals import positive_variance
from gpflow_ext.numerics.special import broadcast, log_ndtr
from gpflow_ext.sites import Sites


class RobustMax(CategoricalLikelihood):
    """Robust-max likelihood of K classes given K latent functions (Hernández-Lobato et al. 2011).

        p(y | f) = 1 − ε where f_y is the largest, else ε/(K − 1)

    With P = p(f_y > max_{k≠y} fₖ) for independent fₖ ~ N(mₖ, vₖ), `log_probability_largest`,

        E[p(y | f)] = (1 − ε) P + ε/(K − 1) (1 − P)
        E[log p(y | f)] = P log(1 − ε) + (1 − P) log(ε/(K − 1))

    (Hensman et al. 2015, section 4.4, whose formula misprints the first logarithm). With ε = 0 the second is
    −∞, for expectation propagation and predictions only; the likelihood is then the product of the
    comparisons Θ(f_y − fₖ). ``kernel + gpflow.kernels.White(σ²)`` makes it soft, a multinomial probit.

    Where standard deviations are within a factor of 100 of each other, probabilities are right to 1e-9 in
    float64, also their logarithms where P underflows; to 1e-5 within a factor of 1e4. Rows sum to one.
    GPflow's ``MultiClass`` with its 20 Gauss-Hermite nodes is wrong by up to 0.1 where variances differ.

    Parameters
    ----------
    num_classes
        K >= 2, also the number of latent functions.
    epsilon
        ε in [0, 1 − 1/K), the share of wrong labels.
    learn_epsilon
        Make ε > 0 a trainable parameter. Its prior Beta(2, 1/ε) has the mode at the given value and weighs
        as much as 1/ε labels of which one is wrong.

    Raises
    ------
    ValueError
        For fewer than two classes or ε out of range.
    """

    def __init__(self, num_classes: int, epsilon: float = 0.0, *, learn_epsilon: bool = False) -> None:
        super().__init__(num_classes, latent_dim=num_classes)
        if not 0.0 <= epsilon < 1.0 - 1.0 / num_classes:
            raise ValueError(
                f"epsilon must be in [0, 1 - 1/K) = [0, {1.0 - 1.0 / num_classes:g}); got {epsilon}: at the "
                "upper end the label says nothing"
            )
        if learn_epsilon and not epsilon:
            raise ValueError("learn_epsilon needs a positive epsilon to start from, such as 1e-3; got 0")
        self.epsilon: float | Parameter = _learnt(epsilon, num_classes) if learn_epsilon else float(epsilon)

    def factors(self, Y: TensorType) -> Comparisons | None:
        """Return the factors that expectation propagation approximates one by one, or ``None`` for ε > 0.

        With ε > 0 the likelihood is no product; p(y | f) is then one factor of all latent functions.
        """
        return None if self._noisy else Comparisons(self._indicators(Y))

    @property
    def _noisy(self) -> bool:
        return not isinstance(self.epsilon, float) or self.epsilon > 0.0  # learnt, which freezes to a tensor

    def _levels(self, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
        """Return 1 − ε and ε/(K − 1)."""
        epsilon = tf.cast(tf.convert_to_tensor(self.epsilon, default_float()), dtype)
        return 1.0 - epsilon, epsilon / (self.num_classes - 1)

    def _log_conditional(self, F: tf.Tensor) -> tf.Tensor:
        hit, missed = map(tf.math.log, self._levels(F.dtype))
        largest = tf.one_hot(tf.argmax(F, axis=-1), self.num_classes, True, False)
        return tf.where(largest, hit, missed)

    def _log_mixture(self, log_p: tf.Tensor) -> tf.Tensor:
        """Return log[(1 − ε) P + ε/(K − 1) (1 − P)]."""
        if not self._noisy:
            return log_p
        hit, missed = self._levels(log_p.dtype)
        log_missed = tf.math.log(missed)
        return log_missed + tf.math.softplus(log_p + tf.math.log(hit - missed) - log_missed)

    def _log_probabilities(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        def add(k: tf.Tensor, log_p: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            own = tf.range(self.num_classes) == k
            found = log_probability_largest(Fmu, Fvar, own)
            return k + 1, tf.where(own, found[..., None], log_p)

        # One class at a time, to bound the memory; without a list of tensors, which ONNX has none of.
        _, log_p = tf.while_loop(lambda k, _: k < self.num_classes, add, (0, tf.zeros_like(Fmu)))
        return self._log_mixture(tf.nn.log_softmax(log_p))

    def class_probabilities(self, X: TensorType, Fmu: TensorType, Fvar: TensorType) -> tf.Tensor:
        """See `CategoricalLikelihood`. All classes at once, where evenly spaced nodes suffice."""
        Fmu, Fvar = broadcast(Fmu, Fvar)
        Fvar = positive_variance(Fvar)
        hit, missed = self._levels(Fmu.dtype)

        def evenly(number: int) -> tf.Tensor:
            return missed + (hit - missed) * probabilities_largest(Fmu, Fvar, number)

        return with_nodes(Fmu, Fvar, evenly, lambda: tf.exp(self._log_probabilities(Fmu, Fvar)))

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        return self._log_mixture(log_probability_largest(*broadcast(Fmu, Fvar), self._indicators(Y)))

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        if not self._noisy:
            raise ValueError("E[log p(y | f)] is -inf at epsilon = 0: give RobustMax an epsilon such as 1e-3")
        Fmu, Fvar = broadcast(Fmu, Fvar)
        hit, missed = map(tf.math.log, self._levels(Fmu.dtype))
        P = probability_largest(Fmu, Fvar, self._indicators(Y))
        return missed + (hit - missed) * P


def _learnt(epsilon: float, num_classes: int) -> Parameter:
    """Return ε as a parameter in (0, 1 − 1/K)."""
    upper, start = to_default_float(1.0 - 1.0 / num_classes), to_default_float(epsilon)
    transform = tfp.bijectors.Sigmoid(to_default_float(0.0), upper)
    return Parameter(
        start, transform=transform, prior=tfp.distributions.Beta(to_default_float(2.0), 1.0 / start)
    )


class Comparisons(NamedTuple):
    """The factors Θ(f_y − fₖ) of robust-max without labelling errors, for expectation propagation.

    Each has sites on f_y and on fₖ of its own; their covariance is dropped (Villacampa-Calvo &
    Hernández-Lobato 2017). The place of k = y holds the constant one, whose site stays zero.
    """

    own: tf.Tensor  # whether k = y, booleans [N, K]

    def select(self, latent: tf.Tensor) -> tf.Tensor:
        """Return the values of y and of k, [N, K, 2]. O(NK)."""
        rival = tf.broadcast_to(latent, tf.shape(self.own))
        own = tf.reduce_sum(tf.where(self.own, rival, tf.zeros_like(rival)), axis=-1, keepdims=True)
        return tf.stack([tf.broadcast_to(own, tf.shape(rival)), rival], axis=-1)

    def combine(self, sites: Sites) -> Sites:
        """Add up the sites [N, K, 2] on each latent function, [N, K]. O(NK)."""
        return Sites(*map(self._total, sites))

    def _total(self, part: tf.Tensor) -> tf.Tensor:
        own, rival = tf.unstack(part, axis=-1)
        return tf.where(self.own, tf.reduce_sum(own, axis=-1, keepdims=True), rival)

    def log_normaliser(self, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        """Return log Φ((m_y − mₖ)/√(v_y + vₖ)), zero for k = y, [N, K]."""
        spread = tf.reduce_sum(var, axis=-1)
        z = (mean[..., 0] - mean[..., 1]) / tf.sqrt(tf.where(self.own, tf.ones_like(spread), spread))
        return tf.where(self.own, tf.zeros_like(z), log_ndtr(z))
