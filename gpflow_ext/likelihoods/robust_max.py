"""Robust-max likelihood of classes: the largest latent function gives the class, up to labelling errors."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import TensorType
from gpflow.likelihoods import MultiClass

from gpflow_ext.likelihoods.categorical import CategoricalLikelihood
from gpflow_ext.likelihoods.label_noise import is_noisy, levels, log_mixture, wrong_share
from gpflow_ext.likelihoods.largest import (
    SecondOrder,
    largest_to_second_order,
    log_probability_largest,
    probabilities_largest,
    probability_largest,
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
    −∞: use that for expectation propagation and predictions only. The likelihood is then the product of the
    comparisons Θ(f_y − fₖ). ``kernel + gpflow.kernels.White(σ²)`` makes it soft, a multinomial probit.

    If standard deviations are within a factor of 100 of each other, probabilities are accurate to 1e-9 in
    float64, and so are their logarithms where P underflows; to 1e-5 within a factor of 1e4. Rows sum to one.
    GPflow's ``MultiClass`` with its 20 Gauss-Hermite nodes is off by up to 0.1 where variances differ.

    Parameters
    ----------
    num_classes
        K >= 2, also the number of latent functions.
    epsilon
        ε in [0, 1 − 1/K), the share of wrong labels.
    learn_epsilon
        Make ε > 0 a trainable parameter. Its prior Beta(2, 1/ε) has its mode at the given value and weighs
        as much as 1/ε labels of which one is wrong.

    Raises
    ------
    ValueError
        For fewer than two classes or ε out of range.
    """

    def __init__(self, num_classes: int, epsilon: float = 0.0, *, learn_epsilon: bool = False) -> None:
        super().__init__(num_classes, latent_dim=num_classes)
        self.epsilon = wrong_share(epsilon, num_classes, learn=learn_epsilon, name="epsilon")

    def factors(self, Y: TensorType) -> Comparisons | None:
        """Return the factors that expectation propagation approximates one by one, or ``None`` for ε > 0.

        With ε > 0 the likelihood does not factorise; p(y | f) is then one factor of all latent functions.
        """
        return None if is_noisy(self.epsilon) else Comparisons(self._indicators(Y))

    def _levels(self, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
        return levels(self.epsilon, self.num_classes, dtype)

    def _log_conditional(self, F: tf.Tensor) -> tf.Tensor:
        hit, missed = map(tf.math.log, self._levels(F.dtype))
        largest = tf.one_hot(tf.argmax(F, axis=-1), self.num_classes, True, False)
        return tf.where(largest, hit, missed)

    def _log_mixture(self, log_p: tf.Tensor) -> tf.Tensor:
        return log_mixture(log_p, self.epsilon, self.num_classes)

    def _log_largest(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        """Return log P, [..., K]."""

        def add(k: tf.Tensor, log_p: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            own = tf.range(self.num_classes) == k
            found = log_probability_largest(Fmu, Fvar, own)
            return k + 1, tf.where(own, found[..., None], log_p)

        # One class at a time, to bound the memory; without a list of tensors, which ONNX has none of.
        _, log_p = tf.while_loop(lambda k, _: k < self.num_classes, add, (0, tf.zeros_like(Fmu)))
        return tf.nn.log_softmax(log_p)

    def _log_probabilities(self, Fmu: tf.Tensor, Fvar: tf.Tensor) -> tf.Tensor:
        return self._log_mixture(self._log_largest(Fmu, Fvar))

    def class_probabilities(self, X: TensorType, Fmu: TensorType, Fvar: TensorType) -> tf.Tensor:
        """See `CategoricalLikelihood`. All classes at once, where evenly spaced nodes suffice."""
        Fmu, Fvar = broadcast(Fmu, Fvar)
        Fvar = positive_variance(Fvar)
        hit, missed = self._levels(Fmu.dtype)
        largest = probabilities_largest(Fmu, Fvar, lambda: tf.exp(self._log_largest(Fmu, Fvar)))
        return missed + (hit - missed) * largest  # out here: a variable that a branch reads cannot be folded

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        return self._log_mixture(log_probability_largest(*broadcast(Fmu, Fvar), self._indicators(Y)))

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        if not is_noisy(self.epsilon):
            raise ValueError("E[log p(y | f)] is -inf at epsilon = 0: give RobustMax an epsilon such as 1e-3")
        Fmu, Fvar = broadcast(Fmu, Fvar)
        hit, missed = map(tf.math.log, self._levels(Fmu.dtype))
        P = probability_largest(Fmu, Fvar, self._indicators(Y))
        return missed + (hit - missed) * P

    def second_order(self, Fmu: tf.Tensor, Fvar: tf.Tensor, Y: TensorType) -> SecondOrder:
        """Return E[log p(y | f)] for f ~ N(Fmu, Fvar) [B, K] with its derivatives."""
        hit, missed = map(tf.math.log, self._levels(Fmu.dtype))
        P = largest_to_second_order(Fmu, Fvar, self._indicators(Y))
        E = SecondOrder(*((hit - missed) * part for part in P))
        return E._replace(value=missed + E.value)


def counterpart(likelihood: Any) -> RobustMax | None:
    """Return the likelihood that GPflow's ``MultiClass`` computes by few nodes, ``None`` for any other."""
    if type(likelihood) is not MultiClass:
        return None
    found = RobustMax(likelihood.num_classes)
    found.epsilon = likelihood.invlink.epsilon
    return found


def has_curvature(likelihood: Any) -> bool:
    """Tell whether sites of each latent function find the optimum of the expectations of a likelihood.

    Those of robust-max couple more than two functions, and TensorFlow has no second derivatives of them.
    """
    of_one = getattr(likelihood, "likelihood", likelihood)
    return not (isinstance(of_one, RobustMax | MultiClass) and of_one.num_classes > 2)


class Comparisons(NamedTuple):
    """The factors Θ(f_y − fₖ) of robust-max without labelling errors, for expectation propagation.

    Each has its own sites on f_y and on fₖ, whose covariance is dropped (Villacampa-Calvo &
    Hernández-Lobato 2017). The entry k = y is the constant one, whose site stays zero.
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
