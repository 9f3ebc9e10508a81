"""Robust-max likelihood of classes: the largest latent function names the class, up to labelling errors."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from check_shapes import inherit_check_shapes
from gpflow import default_float
from gpflow.base import Parameter, TensorType
from gpflow.utilities import to_default_float

from gpflow_ext.likelihoods.categorical import CategoricalLikelihood
from gpflow_ext.likelihoods.integrals import positive_variance
from gpflow_ext.sites import Sites
from gpflow_ext.special import broadcast, log_ndtr, with_derivatives

_NUM_NODES = 80
_SHARED_NODES = (64, 192)  # of all classes at once, where they are enough
_REACH = 8.5  # the window ends where the integrand has fallen by ½·_REACH² = 36 nats
_MODE_STEPS = 6
_END_STEPS = 4
_TAIL_DEPTH = 5
_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)


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
        return isinstance(self.epsilon, Parameter) or self.epsilon > 0.0

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
        def of_class(own: tf.Tensor) -> tf.Tensor:
            return log_probability_largest(Fmu, Fvar, own)

        classes = tf.eye(self.num_classes, dtype=tf.int32) > 0  # one at a time, to bound the memory
        log_p = tf.map_fn(of_class, classes, fn_output_signature=Fmu.dtype)  # [K, ...]
        log_p = tf.nn.log_softmax(tf.transpose(log_p, [*range(1, Fmu.shape.rank), 0]))
        return self._log_mixture(log_p)

    def class_probabilities(self, X: TensorType, Fmu: TensorType, Fvar: TensorType) -> tf.Tensor:
        """See `CategoricalLikelihood`. All classes at once, where evenly spaced nodes suffice."""
        Fmu, Fvar = broadcast(Fmu, Fvar)
        Fvar = positive_variance(Fvar)
        hit, missed = self._levels(Fmu.dtype)

        def by(number: int) -> tf.Tensor:
            return missed + (hit - missed) * _probabilities_largest(Fmu, Fvar, number)

        few, many = _SHARED_NODES
        needed = _needed_nodes(Fmu, Fvar)
        return tf.cond(
            needed <= few,
            lambda: by(few),
            lambda: tf.cond(
                needed <= many, lambda: by(many), lambda: tf.exp(self._log_probabilities(Fmu, Fvar))
            ),
        )

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
        P = tf.exp(log_probability_largest(Fmu, Fvar, self._indicators(Y)))
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


def log_probability_largest(mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
    """Return log p(f_y > max_{k≠y} fₖ) for independent fₖ ~ N(mₖ, vₖ), also where it underflows.

        P = ∫ N(x; m_y, v_y) ∏_{k≠y} Φ((x − mₖ)/√vₖ) dx,    Φ((m_y − mₖ)/√(v_y + vₖ)) for K = 2

    The integrand is log-concave. The trapezoid rule runs between the points where it has fallen by 36 nats,
    with nodes graded towards the steepest of its factors, so that variances may differ by 1e6.

    Parameters
    ----------
    mean, var
        Moments of one shape [..., K].
    own
        Whether k = y, booleans that broadcast with [..., K].

    Returns
    -------
    Tensor [...], differentiable twice. First derivatives are the integrals of the derivatives at the same
    nodes. Cost of 80·K evaluations of Φ, and the memory of a few times as many numbers.
    """
    own = tf.broadcast_to(own, tf.shape(mean))
    var = positive_variance(var)
    if mean.shape[-1] == 2:
        sign = 2.0 * tf.cast(own, mean.dtype) - 1.0
        return log_ndtr(tf.reduce_sum(sign * mean, axis=-1) / tf.sqrt(tf.reduce_sum(var, axis=-1)))
    sd = tf.sqrt(var)
    nodes = _Nodes(*map(tf.stop_gradient, _nodes(tf.stop_gradient(mean), tf.stop_gradient(sd), own)))
    z = ((nodes.centre[..., None] - mean)[..., None] + nodes.offset[..., None, :]) / sd[..., None]
    mask = own[..., None]
    log_cdf, mills = _log_cdf(z)
    terms = nodes.log_weight + tf.reduce_sum(tf.where(mask, -0.5 * tf.square(z), log_cdf), axis=-2)
    own_log_sd = tf.reduce_sum(tf.where(own, tf.math.log(sd), 0.0), axis=-1)
    value = tf.reduce_logsumexp(terms, axis=-1) - own_log_sd - _LOG_ROOT_2PI

    def slopes() -> tuple[tf.Tensor, tf.Tensor]:
        share = tf.nn.softmax(terms)[..., None, :]  # [..., 1, J]
        by_mean = tf.reduce_sum(share * tf.where(mask, z, -mills), axis=-1) / sd
        by_var = tf.reduce_sum(share * tf.where(mask, tf.square(z) - 1.0, -mills * z), axis=-1) / (2.0 * var)
        return by_mean, by_var

    return with_derivatives(tf.minimum(value, 0.0)[..., None], mean, var, slopes)[..., 0]


def _window(mean: tf.Tensor, sd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the ends [...] between which the largest of fₖ ~ N(mₖ, vₖ) lies, but for a chance of 1e-16."""
    return tf.reduce_max(mean - _REACH * sd, axis=-1), tf.reduce_max(mean + _REACH * sd, axis=-1)


def _needed_nodes(mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
    """Return how many nodes make the trapezoid rule of `_probabilities_largest` right to 1e-9 in all rows.

    Their distance is 0.7 standard deviations of the narrowest class that reaches into the window.
    """
    sd = tf.sqrt(var)
    low, high = _window(mean, sd)
    in_reach = mean + _REACH * sd > low[..., None]
    narrowest = tf.reduce_min(tf.where(in_reach, sd, float("inf")), axis=-1)
    return 1.0 + tf.reduce_max((high - low) / (0.7 * narrowest))


def _probabilities_largest(mean: tf.Tensor, var: tf.Tensor, number: int) -> tf.Tensor:
    """Return p(fₖ is the largest) for all k, [..., K], by the density of the largest.

        p_y = ∫ N(x; m_y, v_y)/Φ((x − m_y)/s_y) ∏ₖ Φ((x − mₖ)/sₖ) dx

    One evaluation of Φ for a class and a node serves all K integrals, which are normalised.
    """
    sd = tf.sqrt(var)
    low, high = _window(mean, sd)
    x = low[..., None] + (high - low)[..., None] * tf.constant(np.linspace(0.0, 1.0, number), mean.dtype)
    z = (x[..., None] - mean[..., None, :]) / sd[..., None, :]  # [..., J, K]
    z = tf.maximum(z, -_tail_from(z.dtype))  # where Φ underflows the product is zero anyway
    cdf = 0.5 * tf.math.erfc(-math.sqrt(0.5) * z)
    density = tf.reduce_prod(cdf, axis=-1, keepdims=True) * tf.exp(-0.5 * tf.square(z)) / cdf
    total = tf.reduce_sum(density, axis=-2) / sd
    return total / tf.reduce_sum(total, axis=-1, keepdims=True)


class _Nodes(NamedTuple):
    """Quadrature nodes x = centre + offset."""

    centre: tf.Tensor  # [...]
    offset: tf.Tensor  # [..., J]
    log_weight: tf.Tensor  # [..., J]


def _nodes(mean: tf.Tensor, sd: tf.Tensor, own: tf.Tensor) -> _Nodes:
    """Place the nodes, evenly spaced in asinh of the distance from the steepest factor's mean in its sd."""

    def log_integrand(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return its value [...], the slopes of its factors [..., K], and minus its curvature [...]."""
        z = (x[..., None] - mean) / sd
        log_cdf, mills = _log_cdf(z)
        slope = tf.where(own, -z, mills) / sd
        unit = own | (z < -10.0)  # where z + mills would cancel
        bend = tf.where(unit, tf.ones_like(z), mills * (z + mills)) / tf.square(sd)
        value = tf.where(own, -0.5 * tf.square(z), log_cdf)
        return tf.reduce_sum(value, axis=-1), slope, tf.reduce_sum(bend, axis=-1)

    mode = tf.reduce_sum(tf.where(own, mean, 0.0), axis=-1)
    own_sd = tf.reduce_sum(tf.where(own, sd, 0.0), axis=-1)
    for _ in range(_MODE_STEPS):  # the slope is convex: from the left Newton's method does not overshoot
        _, slope, bend = log_integrand(mode)
        mode += tf.reduce_sum(slope, axis=-1) / bend
    low, high = mode - _REACH * own_sd, mode + _REACH * own_sd
    top, _, _ = log_integrand(mode)
    for _ in range(_END_STEPS):  # from outside and never beyond, as the curvature falls from left to right
        value, slope, _ = log_integrand(low)
        root = tf.sqrt(2.0 * tf.maximum(top - value, 0.5 * _REACH**2))
        low += root * (root - _REACH) / tf.reduce_sum(slope, axis=-1)
        value, slope, _ = log_integrand(high)
        high += tf.maximum(top - value - 0.5 * _REACH**2, 0.0) / tf.reduce_sum(slope, axis=-1)
    _, slope, _ = log_integrand(low)
    steepest = tf.one_hot(tf.argmax(slope, axis=-1), mean.shape[-1], True, False)
    centre = tf.clip_by_value(tf.reduce_sum(tf.where(steepest, mean, 0.0), axis=-1), low, high)
    scale = tf.reduce_sum(tf.where(steepest, sd, 0.0), axis=-1)[..., None]
    begin, stop = (tf.asinh((x - centre)[..., None] / scale) for x in (low, high))
    u = begin + (stop - begin) * tf.constant(np.linspace(0.0, 1.0, _NUM_NODES), dtype=mean.dtype)
    log_weight = tf.math.log(scale * tf.cosh(u) * (stop - begin) / (_NUM_NODES - 1))
    return _Nodes(centre, scale * tf.sinh(u), log_weight)


def _tail_from(dtype: tf.DType) -> float:
    """Return how many standard deviations below zero Φ nears underflow."""
    return 30.0 if dtype == tf.float64 else 11.0


def _log_cdf(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return log Φ and φ/Φ: by erfc down to where it nears underflow, then by the continued fraction.

    A tenth of the cost of `log_ndtr`, which also keeps z + φ/Φ exact.
    """
    tail_from = _tail_from(z.dtype)
    body, tail = tf.maximum(z, -tail_from), tf.maximum(-z, tail_from)
    log_body = tf.math.log(0.5 * tf.math.erfc(-math.sqrt(0.5) * body))
    ratio = tail
    for level in range(_TAIL_DEPTH, 0, -1):
        ratio = tail + level / ratio
    log_tail = -0.5 * tf.square(tail) - _LOG_ROOT_2PI - tf.math.log(ratio)
    in_tail = z < -tail_from
    mills = tf.where(in_tail, ratio, tf.exp(-0.5 * tf.square(body) - _LOG_ROOT_2PI - log_body))
    return tf.where(in_tail, log_tail, log_body), mills
