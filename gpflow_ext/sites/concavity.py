"""The second-order expansion of log p(y | f), and whether it is concave.

Where it is not, the precisions of sites may be negative: of Laplace's method, of variational inference.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeAlias

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.compiled import examine
from gpflow_ext.sites.method import SitedModel

LogDensity: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
"""Map latent values F [N, L] to log p(yₙ | fₙ), [N]."""

_KNOWN: dict[Hashable, bool] = {}  # of structures of likelihoods
_FURTHEST, _ROUNDS = 1e4, 3  # of the latent values at which curvatures are looked at; how often at each
_ROUNDING = 64.0  # units in the last place of 1 + |g|


class Expansion(NamedTuple):
    """Value and derivatives of log p(y | f), whose Hessian is diagonal."""

    value: tf.Tensor  # summed over the data, []
    grad: tf.Tensor  # g, [N, L]
    curvature: tf.Tensor  # W, minus the second derivatives, [N, L]


def expand(log_density: LogDensity, point: tf.Tensor) -> Expansion:
    """Expand log p(y | f) about F = ``point`` [N, L]; differentiable in the point. O(N) densities."""
    with tf.GradientTape(watch_accessed_variables=False) as outer:
        outer.watch(point)
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(point)
            value = tf.reduce_sum(log_density(point))
        grad = inner.gradient(value, point, unconnected_gradients="zero")
    curvature = -outer.gradient(grad, point, unconnected_gradients="zero")
    return Expansion(value, grad, _without_rounding(curvature, grad))


def _without_rounding(curvature: tf.Tensor, grad: tf.Tensor) -> tf.Tensor:
    """Return W with zeros where it is below zero by no more than rounding: dense factors take its root."""
    least = -_ROUNDING * float(np.finfo(grad.dtype.as_numpy_dtype).eps) * (1.0 + tf.abs(grad))
    excess = tf.where((curvature < 0.0) & (curvature > least), -curvature, tf.zeros_like(curvature))
    return curvature + tf.stop_gradient(excess)


def tell(model: Any, indefinite: bool) -> None:
    """Tell a model whether precisions of its sites may be negative, if it allows that."""
    indefinite &= model.allows_indefinite
    if model.indefinite != indefinite:
        model.indefinite = indefinite


def tell_separate(model: Any) -> None:
    """Tell a model whether log p(y | f) is a sum of curved terms, of one of several latent functions each."""
    several = model.sites.nat1.shape[1] > 1
    separate = several and is_separate(model, False)
    if getattr(model, "separate", False) != separate:
        model.separate = separate


def is_concave(model: SitedModel) -> bool:
    """Tell whether log p(y | f) is concave in each function, by its curvature for latent values of all sizes.

    One without a density is taken to be concave. GPflow's Bernoulli is not: the jitter of its default link is
    a share of wrong labels.
    """
    return _known(model, _looks_concave, True)


def is_curved(model: SitedModel, otherwise: bool | None = None) -> bool:
    """Tell whether log p(y | f) has second derivatives that are not all zero.

    Of a likelihood without a density, ``otherwise`` is the answer, and NotImplementedError is raised if None.
    """
    return _known(model, _looks_curved, otherwise)


def is_coupled(model: SitedModel, otherwise: bool | None = None) -> bool:
    """Tell whether second derivatives of log p(y | f) couple latent functions. See `is_curved`. O(NL)."""
    return model.sites.nat1.shape[1] > 1 and _known(model, _looks_coupled, otherwise)


def is_separate(model: SitedModel, otherwise: bool) -> bool:
    """Tell whether log p(y | f) is curved, in each latent function by itself; ``otherwise`` as there."""
    return is_curved(model, otherwise) and not is_coupled(model, not otherwise)


def _known(model: SitedModel, looks: Callable[[SitedModel], bool], otherwise: bool | None) -> bool:
    """Return what a function sees of a likelihood, looked at once for each structure."""
    structure, like = examine(model.likelihood), model.sites.nat1
    kind = looks, type(model), structure.key, like.shape[1], like.dtype, gpflow.default_float()
    if kind in _KNOWN:
        return _KNOWN[kind]
    try:
        found = looks(model)
    except NotImplementedError:
        if otherwise is None:
            raise
        return otherwise
    if not structure.refused:
        _KNOWN[kind] = found
    return found


def _looks_concave(model: SitedModel) -> bool:
    """Look where all functions of a datum are alike, and where each has another value."""
    like = model.sites.nat1
    rows, latents = like.shape
    sizes = np.geomspace(1e-2, _FURTHEST, 13)
    values = np.stack([sizes, -sizes], axis=1).ravel()
    rounds = _ROUNDS * -(-len(values) // rows)
    rng = np.random.default_rng(0)
    for shift in np.arange(rounds) * len(values) // rounds:
        alike = np.resize(np.roll(values, shift), rows)[:, None]
        for point in (alike, rng.choice(values, (rows, latents))) if latents > 1 else (alike,):
            hessian, grad = _hessian(model, tf.zeros_like(like) + tf.constant(point, like.dtype))
            if tf.reduce_any(_without_rounding(-tf.linalg.diag_part(hessian), grad) < 0.0):
                return False
    return True


def _looks_curved(model: SitedModel) -> bool:
    return bool(tf.reduce_any(expand(model.log_density, _generic(model)).curvature != 0.0))


def _looks_coupled(model: SitedModel) -> bool:
    hessian, _ = _hessian(model, _generic(model))
    return bool(tf.reduce_any(tf.linalg.set_diag(hessian, tf.zeros_like(model.sites.nat1)) != 0.0))


def _hessian(model: SitedModel, point: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the second derivatives of log p(yₙ | fₙ) at F = ``point`` [N, L], [N, L, L], and the first."""
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as outer:
        outer.watch(point)
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(point)
            value = tf.reduce_sum(model.log_density(point))
        grad = inner.gradient(value, point, unconnected_gradients="zero")
        columns = tf.unstack(grad, axis=1)
    rows = [outer.gradient(column, point, unconnected_gradients="zero") for column in columns]
    return tf.stack(rows, axis=1), grad


def _generic(model: SitedModel) -> tf.Tensor:
    """Return latent values [N, L] that no likelihood singles out: 1/8, 2/8, ... of the functions of a row."""
    like = model.sites.nat1
    return tf.zeros_like(like) + tf.range(1, like.shape[1] + 1, dtype=like.dtype) / 8.0
