"""Special functions: log Φ right in both tails, and expectations under a Gaussian of any variance.

Gauss-Hermite quadrature fails once the Gaussian is much wider than the feature that it integrates. Here the
nodes are graded: evenly spaced in asinh of the distance from zero, where the functions of this package bend.
The same 128 nodes then resolve both the bend and the Gaussian, at any variance up to 1e6 and above. Memory is
128 numbers per element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

_NUM_NODES = 128
_REACH = 9.0  # standard deviations covered on each side: the density has fallen by e⁻⁴⁰
_STIRLING = 8.0  # from where the series of what Stirling's formula lacks is right to rounding
_TAIL = 4.0  # log Φ(x) goes by its continued fraction below -_TAIL
# z times the continued fraction, as a rational function of (_TAIL/z)²: least squares, 8e-16 relative.
_EXCESS = (
    (
        1.0,
        3.8118257803023776,
        5.0419851255047945,
        2.8238497133627494,
        0.6499036512021412,
        0.04895757675828305,
        0.0005223724331864799,
    ),
    (
        1.0,
        3.936825780302337,
        5.4950258480467165,
        3.3750120934254486,
        0.9174823072858049,
        0.09645541968064231,
        0.002581305642326698,
    ),
)
_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)

Elementwise = Callable[[tf.Tensor], tf.Tensor]
Reach = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
Slopes = Callable[[], tuple[tf.Tensor, tf.Tensor]]


def as_tensor(value: Any, like: Any = None) -> tf.Tensor:
    """Return ``value`` as a tensor of its own dtype, else of that of ``like``, else of GPflow's default."""
    return tf.convert_to_tensor(value, dtype_hint=getattr(like, "dtype", gpflow.default_float()))


def broadcast(mean: Any, var: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Return ``mean`` and ``var`` as tensors of one common shape."""
    mean, var = as_tensor(mean, like=var), as_tensor(var, like=mean)
    return mean + tf.zeros_like(var), var + tf.zeros_like(mean)


def with_derivatives(value: tf.Tensor, mean: tf.Tensor, var: tf.Tensor, slopes: Slopes) -> tf.Tensor:
    """Return ``value`` with ``slopes()`` for its derivatives in ``mean`` and ``var``, whatever it is made of.

    Higher derivatives are those of the slopes, which are built only where a gradient is taken. Those of
    expectations are derived in docs/derivations.md, section 10. ``value`` keeps derivatives of its own, which
    are what is left outside of ``tf.vectorized_map``: that drops custom gradients.
    """

    @tf.custom_gradient
    def attach(mean: tf.Tensor, var: tf.Tensor) -> Any:
        def grad(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            by_mean, by_var = slopes()
            return upstream * by_mean, upstream * by_var

        return value, grad

    return attach(mean, var)


# ---------------------------------------------------------------------------------------------------- log Φ


@tf.custom_gradient
def log_ndtr(x: tf.Tensor) -> Any:
    """Return log Φ(x), the log of the standard normal distribution function, with derivatives of every order.

    ``x`` has any shape, the result the same. The value and the first two derivatives are right to the
    rounding of the dtype, float32 or float64, from x = -1e4 and below to where they underflow. The first
    derivative is the inverse Mills ratio h = φ/Φ; the second is -h (x + h), where x + h is never formed by
    subtraction in the tail (docs/derivations.md, section 10).
    """
    tail = tf.maximum(-x, _TAIL)
    left = -0.5 * tf.square(tail) - _LOG_ROOT_2PI - tf.math.log(tail + _mills_excess(tail))
    middle = tf.math.log(0.5 * tf.math.erfc(-math.sqrt(0.5) * tf.clip_by_value(x, -_TAIL, 0.0)))
    right = tf.math.log1p(-0.5 * tf.math.erfc(math.sqrt(0.5) * tf.maximum(x, 0.0)))
    value = tf.where(x < -_TAIL, left, tf.where(x < 0.0, middle, right))

    def grad(upstream: tf.Tensor) -> tf.Tensor:
        return upstream * _mills(x)[0]

    return value, grad


@tf.custom_gradient
def _mills(x: tf.Tensor) -> Any:
    """Return h = φ(x)/Φ(x) and x + h: their derivatives are -h (x + h) and 1 - h (x + h)."""
    tail, middle = tf.maximum(-x, _TAIL), tf.maximum(x, -_TAIL)
    excess = _mills_excess(tail)
    density = tf.exp(-0.5 * tf.square(middle) - _LOG_ROOT_2PI)
    ratio = density / (0.5 * tf.math.erfc(-math.sqrt(0.5) * middle))
    in_tail = x < -_TAIL
    values = tf.where(in_tail, tail + excess, ratio), tf.where(in_tail, excess, middle + ratio)

    def grad(upstream_ratio: tf.Tensor, upstream_excess: tf.Tensor) -> tf.Tensor:
        h, shifted = _mills(x)
        return upstream_excess * (1.0 - h * shifted) - upstream_ratio * h * shifted

    return values, grad


def _mills_excess(z: tf.Tensor) -> tf.Tensor:
    """Return φ(z)/Φ(-z) - z = 1/(z + 2/(z + 3/(z + …))) for z >= _TAIL: a ratio of sums of positive terms."""
    t = _TAIL**2 / tf.square(z)
    above, below = (tf.math.polyval([tf.constant(c, t.dtype) for c in part[::-1]], t) for part in _EXCESS)
    return above / (z * below)


# --------------------------------------------------------------------------------- expectations, N(mean, var)


class _Nodes(NamedTuple):
    """Quadrature nodes x = mean + sd·z, z = centre + offset; the weights leave out the density."""

    x: tf.Tensor  # [..., K]
    centre: tf.Tensor  # [..., 1]
    offset: tf.Tensor  # [..., K]
    weight: tf.Tensor  # [..., K]

    @property
    def log_density(self) -> tf.Tensor:
        """Log of the standard normal density at the nodes, relative to its value at ``centre``; [..., K]."""
        return -self.offset * (self.centre + 0.5 * self.offset)


def stirling_correction(x: tf.Tensor) -> tf.Tensor:
    """Return what Stirling's formula lacks: log Γ(x) - (x - ½) log x + x - ½ log 2π, elementwise for x > 0.

    It is 1/(12 x) and less for large x, where it is right to rounding relative to itself.
    """
    small, large = tf.minimum(x, _STIRLING), tf.maximum(x, _STIRLING)
    exact = tf.math.lgamma(small) - (small - 0.5) * tf.math.log(small) + small - _LOG_ROOT_2PI
    return tf.where(x < _STIRLING, exact, tfp.math.log_gamma_correction(large))


def _graded_nodes(mean: tf.Tensor, shift: tf.Tensor, sd: tf.Tensor, reach: Reach) -> _Nodes:
    """Nodes even in u, offset = sinh(u)/max(sd, ½), the offset counted from x = mean - shift.

    ``mean - shift`` is zero, or the point of the window nearest to it: nothing cancels at a large mean.
    ``reach`` maps the centre, -shift/sd, to the two ends of the window of offsets.
    """
    centre = tf.math.divide_no_nan(-shift, sd)
    scale = tf.maximum(sd, 0.5)
    low, high = (tf.asinh(scale * end)[..., None] for end in reach(centre))
    fraction = tf.constant(np.linspace(0.0, 1.0, _NUM_NODES), dtype=mean.dtype)
    growth = tf.exp(low * (1.0 - fraction) + high * fraction)  # eᵘ, for sinh and cosh together
    decay = 1.0 / growth
    offset = 0.5 * (growth - decay) / scale[..., None]
    step = (high - low) / ((_NUM_NODES - 1) * scale[..., None])
    x = (mean - shift)[..., None] + sd[..., None] * offset
    return _Nodes(x, centre[..., None], offset, 0.5 * step * (growth + decay))


def _gaussian_nodes(mean: tf.Tensor, sd: tf.Tensor) -> _Nodes:
    """Nodes for a function of moderate growth under N(mean, sd²): mean ± _REACH·sd."""
    shift = tf.clip_by_value(mean, -_REACH * sd, _REACH * sd)
    return _graded_nodes(mean, shift, sd, lambda centre: (-_REACH - centre, _REACH - centre))


def derivative(function: Elementwise) -> Elementwise:
    """Return the derivative of an elementwise function of tensors."""

    def slope(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = function(x)
        return tape.gradient(value, x, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return slope


def gaussian_expectation(function: Elementwise, mean: Any, var: Any) -> tf.Tensor:
    """Return E[function(x)] for x ~ N(mean, var), elementwise, with exact derivatives of every order.

    The gradients are the expectations of the derivatives (Bonnet, Price): ∂/∂mean E[g] = E[g'],
    ∂/∂var E[g] = ½ E[g''], finite and right down to var = 0.

    Parameters
    ----------
    function
        Smooth elementwise function that bends on a scale of about one around zero and is smoother elsewhere,
        such as log σ(x) or log Φ(x).
    mean, var
        Tensors that broadcast with each other, var >= 0.

    Returns
    -------
    Tensor of the broadcast shape; relative error below 1e-11 for var <= 1e6 in float64.
    """
    mean, var = broadcast(mean, var)
    nodes = _gaussian_nodes(mean, tf.sqrt(tf.maximum(var, 0.0)))
    weight = nodes.weight * tf.exp(nodes.log_density)
    weight /= tf.reduce_sum(weight, axis=-1, keepdims=True)
    x = nodes.x

    def expectation(function: Elementwise) -> tf.Tensor:
        def slopes() -> tuple[tf.Tensor, tf.Tensor]:
            first = derivative(function)
            return expectation(first), 0.5 * expectation(derivative(first))

        return with_derivatives(tf.reduce_sum(weight * function(x), axis=-1), mean, var, slopes)

    return expectation(function)


def log_expected_sigmoid(mean: Any, var: Any) -> tf.Tensor:
    """Return log E[σ(x)] for x ~ N(mean, var), elementwise, right in both tails and twice differentiable.

    The upper half follows from the lower, E[σ(x)] + E[σ(-x)] = 1: a result near zero keeps its digits.
    The lower tail follows from E[σ(x)] = exp(mean + var/2) E[σ(x')], x' ~ N(-mean - var, var), which leaves
    mean >= -var/2. There the window of the quadrature follows the product σ(x) N(x; mean, var), which at a
    large variance sits near zero, far from the mean.

    Parameters
    ----------
    mean, var
        Tensors that broadcast with each other, var >= 0.

    Returns
    -------
    Tensor of the broadcast shape, below zero; relative error below 1e-11 for var <= 1e6 in float64.
    """
    mean, var = broadcast(mean, var)
    lower = tf.where(mean < 0.0, mean, -mean)
    tilt = lower < -0.5 * var
    log_lower = _log_expected_sigmoid(tf.where(tilt, -lower - var, lower), var)
    log_lower += tf.where(tilt, lower + 0.5 * var, tf.zeros_like(lower))
    return tf.where(mean < 0.0, log_lower, tf.math.log1p(-tf.exp(log_lower)))


def _log_expected_sigmoid(mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
    """Return log E[σ(x)] for mean >= -var/2; its derivatives are E[σ']/E[σ] and ½ E[σ'']/E[σ].

    The nodes are constants in z; only x = mean + sd·z moves with the arguments, for the second derivatives.
    """
    sd = tf.sqrt(tf.maximum(var, np.finfo(mean.dtype.as_numpy_dtype).eps))
    nodes = _Nodes(*map(tf.stop_gradient, _sigmoid_nodes(mean, sd)))
    z = nodes.centre + nodes.offset
    moving_mean, moving_sd = (t - tf.stop_gradient(t) for t in (mean, sd))  # zero, with a gradient
    x = nodes.x + moving_mean[..., None] + moving_sd[..., None] * z
    mass = nodes.weight * tf.exp(nodes.log_density) * tf.sigmoid(x)
    total = tf.reduce_sum(mass, axis=-1)
    value = tf.math.log(total) - 0.5 * tf.square(nodes.centre[..., 0]) - _LOG_ROOT_2PI

    def slopes() -> tuple[tf.Tensor, tf.Tensor]:
        below = tf.sigmoid(-x)
        by_mean = tf.reduce_sum(mass * below, axis=-1) / total
        by_var = 0.5 * tf.reduce_sum(mass * below * (below - tf.sigmoid(x)), axis=-1) / total
        return by_mean, by_var

    return with_derivatives(value, mean, var, slopes)


def _sigmoid_nodes(mean: tf.Tensor, sd: tf.Tensor) -> _Nodes:
    """Nodes for σ(x) N(x | mean, var), mean >= -var/2.

    For mean < 0 the product falls at least as N(mean, var) to the right of zero and, as σ(x) < eˣ, as
    N(mean + var, var) to the left: the window ends where each has fallen to e⁻⁴⁰ of its value at zero.
    """
    span = tf.square(_REACH * sd)
    tilted = mean + tf.square(sd)
    falling_left = -span / (sd * (tilted + tf.sqrt(tf.square(tilted) + span)))
    falling_right = span / (sd * (tf.sqrt(tf.square(mean) + span) - tf.minimum(mean, 0.0)))

    def reach(centre: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        left = tf.where(mean < 0.0, falling_left, -_REACH - centre)
        return left, tf.where(mean < 0.0, falling_right, _REACH - centre)

    return _graded_nodes(mean, tf.minimum(mean, _REACH * sd), sd, reach)
