"""Bounds on log(1 + eˣ) and on log Σ exp(xₖ), and their expectations under a Gaussian.

An upper bound b(x) >= log(1 + eˣ) gives a lower bound on the expected Bernoulli log likelihood,
E[log σ(f)] >= -E[b(-f)], which is the local variational bound of Khan, Mohamed and Murphy (2012, section 4).
Bounds on the log-sum-exp do the same for the multinomial logit.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_ext.numerics.bound_tables import TABLES
from gpflow_ext.numerics.logistic import expected_llp
from gpflow_ext.numerics.special import broadcast, derivative, with_derivatives

Array = npt.NDArray[np.float64]
LLPBound = Literal["piecewise", "jaakkola"]
LSEBound = Literal["log", "bouchard", "best"]


class PiecewiseBound(NamedTuple):
    """Upper bound on log(1 + eˣ) of R quadratic pieces a x² + b x + c that meet at R - 1 knots.

    At a knot t the piece on its left exceeds that on its right by jump + slope (x - t) + curvature (x - t)².
    """

    knots: Array  # [R - 1]
    a: Array  # [R]
    b: Array  # [R]
    c: Array  # [R]
    jump: Array  # [R - 1]
    slope: Array  # [R - 1]
    curvature: Array  # [R - 1]
    max_gap: float

    def __call__(self, x: npt.ArrayLike) -> Array:
        """Return the bound at ``x``, of any shape."""
        x = np.asarray(x, dtype=float)
        piece = np.searchsorted(self.knots, x)
        return (self.a[piece] * x + self.b[piece]) * x + self.c[piece]


@functools.cache
def piecewise_llp(num_pieces: int) -> PiecewiseBound:
    """Return the minimax piecewise quadratic upper bound on log(1 + eˣ) with ``num_pieces`` pieces.

    The kind of bound is that of Marlin, Khan and Murphy (2011); the constants are fitted by
    ``scripts/tools/make_bound_tables.py``. A number of pieces without a table raises ``ValueError``.
    """
    if num_pieces not in TABLES:
        raise ValueError(f"num_pieces must be one of {sorted(TABLES)}; found {num_pieces!r}")
    half = TABLES[num_pieces]
    right, a, b, c = (np.array(column) for column in half[:4])
    inner = slice(
        1 if num_pieces % 2 else 0, None
    )  # the central piece of an odd number is its own mirror image
    mirrored = slice(0 if num_pieces % 2 else 1, None)  # as is the knot at zero of an even one
    knots = np.concatenate([-right[mirrored][::-1], right])
    a = np.concatenate([a[inner][::-1], a])
    b = np.concatenate([1.0 - b[inner][::-1], b])
    c = np.concatenate([c[inner][::-1], c])
    da, db, dc = (column[:-1] - column[1:] for column in (a, b, c))
    jump, slope = (da * knots + db) * knots + dc, 2.0 * da * knots + db
    return PiecewiseBound(knots, a, b, c, jump, slope, da, half.max_gap)


def expected_llp_piecewise(mean: Any, var: Any, num_pieces: int = 20) -> tf.Tensor:
    """Return E[b(x)], x ~ N(mean, var), for the bound b of ``piecewise_llp``.

    E[log(1 + eˣ)] <= E[b] <= E[log(1 + eˣ)] + max_gap. Summed over the knots t, with Δ = t - mean, d = Δ/sd
    and J, S, Q the jump, slope and curvature of the piece on the left of t relative to that on its right,

        E[b] = mean + c_R + Σ { Φ(d) [J - SΔ + Q (var + Δ²)] + sd φ(d) [QΔ - S] },

    evaluated at the absolute value of the mean, where nothing cancels: b(-x) = b(x) - x. The gradients are
    closed forms and satisfy ∂²/∂mean² = 2 ∂/∂var. The bound jumps by up to max_gap at its knots; for var
    below about 1e-2 the nearest knot therefore dominates ∂/∂var, which may be negative. It stays finite down
    to var = 0, where E[b] = b(mean).

    Parameters
    ----------
    mean, var
        Tensors of one floating dtype that broadcast with each other, var >= 0.
    num_pieces
        Number of pieces R, one of those tabulated; otherwise ``ValueError``.

    Returns
    -------
    Tensor of the broadcast shape; O(R) per element.
    """
    mean, var = broadcast(mean, var)
    knots = _at_knots(piecewise_llp(num_pieces), mean, var)
    value = tf.maximum(mean, 0.0) + TABLES[num_pieces].max_gap + _above_right_piece(knots)
    return with_derivatives(value, mean, var, lambda: _piecewise_slopes(knots, mean))


class _Knots(NamedTuple):
    """What value and slopes share, at |mean|: every field is [..., R - 1] or broadcasts to it."""

    jump: tf.Tensor
    slope: tf.Tensor
    curvature: tf.Tensor
    distance: tf.Tensor  # t - |mean|
    sd: tf.Tensor
    d: tf.Tensor
    density: tf.Tensor  # φ(d)
    mass: tf.Tensor  # Φ(d)


def _at_knots(bound: PiecewiseBound, mean: tf.Tensor, var: tf.Tensor) -> _Knots:
    """Evaluate the Gaussian at the knots; a variance below their rounding counts as that rounding."""
    knots, jump, slope, curvature = (
        tf.constant(field, dtype=mean.dtype)
        for field in (bound.knots, bound.jump, bound.slope, bound.curvature)
    )
    size = tf.where(mean < 0.0, -mean, mean)  # tf.abs has derivative 0 at 0; the right derivative is wanted
    sd = tf.sqrt(tf.maximum(var, np.finfo(mean.dtype.as_numpy_dtype).eps ** 2))[..., None]
    distance = knots - size[..., None]
    d = distance / sd
    density = tf.exp(-0.5 * tf.square(d)) / math.sqrt(2.0 * math.pi)
    mass = 0.5 * tf.math.erfc(-math.sqrt(0.5) * d)
    return _Knots(jump, slope, curvature, distance, sd, d, density, mass)


def _above_right_piece(k: _Knots) -> tf.Tensor:
    """Return E[b] less the expectation of the last piece."""
    second_moment = tf.square(k.sd) + tf.square(k.distance)
    masses = k.mass * (k.jump - k.slope * k.distance + k.curvature * second_moment)
    densities = k.sd * k.density * (k.curvature * k.distance - k.slope)
    return tf.reduce_sum(masses + densities, axis=-1)


def _piecewise_slopes(k: _Knots, mean: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    by_size = k.mass * (k.slope - 2.0 * k.curvature * k.distance) - k.density * (
        k.jump / k.sd + 2.0 * k.curvature * k.sd
    )
    by_var = 2.0 * k.curvature * k.mass - k.density * (k.slope + k.jump * k.d / k.sd) / k.sd
    by_size = 1.0 + tf.reduce_sum(by_size, axis=-1)
    return tf.where(mean < 0.0, 1.0 - by_size, by_size), 0.5 * tf.reduce_sum(by_var, axis=-1)


def _half_tanh_ratio(square: tf.Tensor) -> tf.Tensor:
    """Return λ(ξ) = tanh(ξ/2)/(4ξ) at ξ² = ``square``, by its series near zero for the derivatives' sake."""
    small = square < 1e-2
    xi = tf.sqrt(tf.where(small, tf.ones_like(square), square))
    y = 0.25 * tf.where(small, square, tf.zeros_like(square))
    series = 1.0 + y * (-1.0 / 3.0 + y * (2.0 / 15.0 + y * (-17.0 / 315.0 + y * (62.0 / 2835.0))))
    return tf.where(small, 0.125 * series, 0.25 * tf.tanh(0.5 * xi) / xi)


def jaakkola_llp(mean: Any, var: Any) -> tf.Tensor:
    """Return Jaakkola and Jordan's bound on E[log(1 + eˣ)], x ~ N(mean, var), at its best ξ² = mean² + var.

        E[log(1 + eˣ)] <= mean/2 + log(2 cosh(ξ/2)),   λ(ξ) = tanh(ξ/2)/(4ξ),
        ∂/∂mean = ½ + 2 mean λ(ξ),   ∂/∂var = λ(ξ)

    Parameters
    ----------
    mean, var
        Tensors of one floating dtype that broadcast with each other, var >= 0.

    Returns
    -------
    Tensor of the broadcast shape, with derivatives finite everywhere, mean = var = 0 included.
    """
    mean, var = broadcast(mean, var)
    size, square = tf.abs(mean), tf.square(mean) + tf.maximum(var, 0.0)
    xi = tf.sqrt(square)
    excess = 0.5 * tf.math.divide_no_nan(var, xi + size)  # (ξ - |mean|)/2 without cancellation

    def slopes() -> tuple[tf.Tensor, tf.Tensor]:
        by_var = _half_tanh_ratio(square)
        return 0.5 + 2.0 * mean * by_var, by_var

    return with_derivatives(tf.maximum(mean, 0.0) + excess + tf.math.log1p(tf.exp(-xi)), mean, var, slopes)


def check_llp_bound(bound: str, num_pieces: int) -> None:
    """Raise ``ValueError`` unless ``bound`` names a bound of this module and ``num_pieces`` is tabulated."""
    if bound not in get_args(LLPBound):
        raise ValueError(f"bound must be one of {list(get_args(LLPBound))}; found {bound!r}")
    if bound == "piecewise":
        piecewise_llp(num_pieces)


def expected_llp_bound(mean: Any, var: Any, bound: LLPBound, num_pieces: int = 20) -> tf.Tensor:
    """Return the named upper bound on E[log(1 + eˣ)], x ~ N(mean, var); arguments as of the two bounds."""
    check_llp_bound(bound, num_pieces)
    return jaakkola_llp(mean, var) if bound == "jaakkola" else expected_llp_piecewise(mean, var, num_pieces)


def bernoulli_logit_bound(Y: Any, mean: Any, var: Any, bound: LLPBound, num_pieces: int = 20) -> tf.Tensor:
    """Return a lower bound on E[log p(y | f)], f ~ N(mean, var), of the Bernoulli-logit likelihood.

    y·mean - E[b(f)] = -E[b((1 - 2y) f)] for y in {0, 1}; the second form is evaluated, which does not cancel.

    Parameters
    ----------
    Y
        Labels 0 and 1, broadcasting with ``mean``.
    mean, var, bound, num_pieces
        As in ``expected_llp_bound``.

    Returns
    -------
    Tensor of the broadcast shape.
    """
    mean, var = broadcast(mean, var)
    return -expected_llp_bound((1.0 - 2.0 * tf.cast(Y, mean.dtype)) * mean, var, bound, num_pieces)


def expected_log_sigmoid(mean: Any, var: Any, bound: LLPBound | None, num_pieces: int = 20) -> tf.Tensor:
    """Return the named lower bound on E[log σ(x)], x ~ N(mean, var), or with ``None`` the value itself.

    As log σ(x) = -log(1 + e⁻ˣ), this is minus ``expected_llp_bound`` at -mean; arguments and shapes are the
    same.
    """
    if bound is None:
        return -expected_llp(-mean, var)
    return -expected_llp_bound(-mean, var, bound, num_pieces)


# ------------------------------------------------------------------------------------------- log Σ exp(xₖ)


def log_lse(mean: Any, var: Any) -> tf.Tensor:
    """Return Blei and Lafferty's bound E[log Σₖ exp(xₖ)] <= log Σₖ exp(mₖ + vₖ/2), from Jensen's inequality.

    Tight for small variances (the gap is about ½ Σₖ πₖ (1 - πₖ) vₖ there), loose by half of a large one;
    jointly convex in mean and variance (Khan, Mohamed and Murphy 2012, section 4).

    Parameters
    ----------
    mean, var
        Moments mₖ, vₖ >= 0 of independent xₖ, shape [..., K]; they broadcast with each other.

    Returns
    -------
    Tensor [...].
    """
    mean, var = broadcast(mean, var)
    return tf.reduce_logsumexp(mean + 0.5 * var, axis=-1)


def bouchard_lse(mean: Any, var: Any, inner: LLPBound = "piecewise", num_pieces: int = 20) -> tf.Tensor:
    """Return Bouchard's (2007) bound, a product of sigmoids, on E[log Σₖ exp(xₖ)] at its best offset α.

        log Σₖ exp(xₖ) <= α + Σₖ log(1 + exp(xₖ - α)),   so   E[·] <= α + Σₖ E[b(xₖ - α)]

    with b the ``inner`` bound on log(1 + eˣ). At the best α, Σₖ ∂/∂mₖ E[b(xₖ - α)] = 1, so the bound is
    stationary in α and its first derivatives are those at α held fixed (the envelope theorem). Derivatives
    of higher order leave out the motion of α.

    Parameters
    ----------
    mean, var
        Moments of independent xₖ, shape [..., K]; they broadcast with each other.
    inner, num_pieces
        ``bound`` and ``num_pieces`` of ``expected_llp_bound``.

    Returns
    -------
    Tensor [...]; about ten evaluations of the inner bound for the root.
    """
    mean, var = broadcast(mean, var)
    offset = _bouchard_offset(tf.stop_gradient(mean), tf.stop_gradient(var), inner, num_pieces)
    terms = expected_llp_bound(mean - offset[..., None], var, inner, num_pieces)
    return offset + tf.reduce_sum(terms, axis=-1)


def _bouchard_offset(mean: tf.Tensor, var: tf.Tensor, inner: LLPBound, num_pieces: int) -> tf.Tensor:
    """Return the root α of Σₖ ∂/∂mₖ E[b(xₖ - α)] = 1, [...].

    At the second largest mean two of the slopes are at least one half. Where every mean lies
    sd √K + 2 log K + 2 below α each slope is below 1/K, also that of the heavy-tailed Jaakkola bound.
    """
    num_classes = mean.shape[-1]
    low = tf.math.top_k(mean, 2).values[..., 1]
    reach = math.sqrt(num_classes) * tf.sqrt(tf.maximum(var, 0.0)) + 2.0 * math.log(num_classes) + 2.0
    high = tf.reduce_max(mean + reach, axis=-1)
    slope = derivative(lambda x: expected_llp_bound(x, var, inner, num_pieces))

    def excess(offset: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(slope(mean - offset[..., None]), axis=-1) - 1.0

    tolerance = 4.0 * num_classes * float(np.finfo(mean.dtype.as_numpy_dtype).eps)
    root = tfp.math.find_root_chandrupatla(
        excess, low, high, position_tolerance=0.0, value_tolerance=tolerance, max_iterations=60
    )
    return tf.stop_gradient(root.estimated_root)


def check_lse_bound(bound: str, inner: str, num_pieces: int) -> None:
    """Raise ``ValueError`` unless the three name a bound of ``expected_lse_bound``."""
    if bound not in get_args(LSEBound):
        raise ValueError(f"bound must be one of {list(get_args(LSEBound))}; found {bound!r}")
    if inner not in get_args(LLPBound):
        raise ValueError(f"inner must be one of {list(get_args(LLPBound))}; found {inner!r}")
    check_llp_bound(inner, num_pieces)


def expected_lse_bound(
    mean: Any, var: Any, bound: LSEBound, inner: LLPBound = "piecewise", num_pieces: int = 20
) -> tf.Tensor:
    """Return the named upper bound on E[log Σₖ exp(xₖ)], [...]; "best" is the smaller of the other two.

    Arguments are those of the two bounds, and an unknown name raises ``ValueError``. The log bound is the
    better one for variances below about 2.
    """
    check_lse_bound(bound, inner, num_pieces)
    if bound == "log":
        return log_lse(mean, var)
    product = bouchard_lse(mean, var, inner, num_pieces)
    return product if bound == "bouchard" else tf.minimum(log_lse(mean, var), product)
