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


def is_coupled(log_density: LogDensity, point: tf.Tensor) -> bool:
    """Tell whether the second derivatives at F = ``point`` [N, L] couple latent functions. O(NL)."""
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as outer:
        outer.watch(point)
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(point)
            value = tf.reduce_sum(log_density(point))
        columns = tf.unstack(inner.gradient(value, point, unconnected_gradients="zero"), axis=1)
    for latent, column in enumerate(columns):
        row = outer.gradient(column, point, unconnected_gradients="zero")
        others = tf.one_hot(latent, len(columns), False, True)
        if tf.reduce_any((row != 0.0) & others):
            return True
    return False


def tell(model: Any, indefinite: bool) -> None:
    """Tell a model whether precisions of its sites may be negative, if it allows that."""
    indefinite &= model.allows_indefinite
    if model.indefinite != indefinite:
        model.indefinite = indefinite


def is_concave(model: SitedModel) -> bool:
    """Tell whether log p(y | f) is concave in each function, by its curvature for latent values of all sizes.

    One without a density is taken to be concave; GPflow's Bernoulli is, but for the jitter of its link.
    """
    return isinstance(model.likelihood, gpflow.likelihoods.Bernoulli) or known(model, _looks_concave)


def known(model: SitedModel, tells: Callable[[SitedModel], bool]) -> bool:
    """Return what a function tells of a likelihood, asked once for each structure; true without a density."""
    structure, like = examine(model.likelihood), model.sites.nat1
    kind = tells, structure.key, like.shape[-1], like.dtype, gpflow.default_float()
    if kind not in _KNOWN:
        try:
            found = tells(model)
        except NotImplementedError:
            found = True
        if structure.refused:
            return found
        _KNOWN[kind] = found
    return _KNOWN[kind]


def _looks_concave(model: SitedModel) -> bool:
    like = model.sites.nat1
    sizes = np.geomspace(1e-2, _FURTHEST, 13)
    values = np.stack([sizes, -sizes], axis=1).ravel()
    rounds = _ROUNDS * -(-len(values) // like.shape[0])
    for shift in np.arange(rounds) * len(values) // rounds:
        point = np.resize(np.roll(values, shift), like.shape[0])[:, None]
        at = expand(model.log_density, tf.zeros_like(like) + tf.constant(point, like.dtype))
        if tf.reduce_any(at.curvature < 0.0):
            return False
    return True
