"""Description of a posterior from which functions are drawn: its domain, and how data correct the prior."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gpflow
import tensorflow as tf
from gpflow.inducing_variables import InducingPoints, InducingVariables
from gpflow.kernels import Kernel

from gpflow_ext.features.kernel import (
    Feature,
    InducingFeatures,
    all_on_features,
    check_width,
    has_features,
    num_columns,
)
from gpflow_ext.numerics import centred

Condition: TypeAlias = Callable[..., Any]
"""Map prior draws at the points [L, M, S], random numbers and a member's tensors to α."""

Correction: TypeAlias = Callable[[Sequence[Kernel], Sequence[tf.Tensor], Any, tf.Tensor], tf.Tensor]
"""Map kernels, points, α and inputs [N, D] to what the data add to the prior there, [N, L, S]."""


@dataclass(frozen=True)
class Domain:
    """The space on which functions live: that of the inputs, or of their features.

    Attributes
    ----------
    kernels
        Of the latent functions there, one that all share or L.
    points
        The points z there on which a posterior depends, one set [M, D] that all share or L.
    part
        What maps inputs to their features, or ``None``.
    """

    kernels: tuple[Kernel, ...]
    points: tuple[tf.Tensor, ...]
    part: Feature | None = None

    @property
    def num_inputs(self) -> int | None:
        """The number of columns of inputs; ``None`` where features of some of them do not tell it."""
        if self.part is None:
            return int(self.points[0].shape[-1])
        return num_columns(self.part)

    def at(self, X: tf.Tensor) -> tf.Tensor:
        """Return where inputs X [N, D] are, [N, D']."""
        return X if self.part is None else self.part.features(self.part.slice(X, None)[0])


def domain(owner: str, kernels: Sequence[Kernel], points: Sequence[InducingVariables | tf.Tensor]) -> Domain:
    """Return the domain of the functions of a posterior.

    Parameters
    ----------
    owner
        The name of the model, for messages.
    kernels
        Of the latent functions, one or L.
    points
        Inducing points, inducing features or inputs [M, D], one set or L.

    Raises
    ------
    NotImplementedError
        For inducing variables that are not values of the function, and for kernels of which only a part is on
        features.
    """
    found = Domain(tuple(kernels), ())
    if any(map(has_features, kernels)):
        try:
            on_features, part = all_on_features(kernels)
            found = Domain(on_features, (), part)
        except ValueError as error:
            raise NotImplementedError(
                f"sample_functions of {owner} needs all of its kernel on the same features: {error}"
            ) from error
    return dataclasses.replace(found, points=tuple(_point(owner, each, found) for each in points))


def _point(owner: str, points: InducingVariables | tf.Tensor, found: Domain) -> tf.Tensor:
    """Return points of a domain, [M, D']."""
    if isinstance(points, InducingFeatures) and found.part is not None:
        check_width(points, found.part)
        return tf.convert_to_tensor(points.Z)
    if isinstance(points, InducingVariables):
        if type(points) is not InducingPoints:
            raise NotImplementedError(
                f"sample_functions of {owner} needs InducingPoints; {type(points).__name__} are not inputs "
                "of the function: draw at given inputs instead, by predict_f_samples(X)."
            )
        points = tf.convert_to_tensor(points.Z)
    return found.at(tf.convert_to_tensor(points))


@dataclass(frozen=True)
class Given:
    """Description of a posterior from which functions are drawn.

    Attributes
    ----------
    domain
        Kernels and points; White parts of kernels are noise at the points.
    mean_function
        Mean function of the outputs.
    num_latent
        L.
    condition
        What gives α, [L, M, S], for draws of the prior at the points. ``prior`` holds all that K there is the
        covariance of.
    correction
        What α adds to the prior at other inputs, by default k(x, z)α; another one may take any tensors for α.
    mixing
        W [P, L] of outputs f = Wg of the latent functions g, or ``None``.
    jitter
        What K at the points has on its diagonal beside the kernel; by default GPflow's jitter.
    parameters, members
        Hyperparameters that differ from draw to draw of a sampler: their values [C, ...], then further
        tensors [C, ...] that ``condition`` is given. Each function is of a draw taken at random.
    """

    domain: Domain
    mean_function: gpflow.functions.MeanFunction
    num_latent: int
    condition: Condition
    correction: Correction | None = None
    mixing: Any = None
    jitter: float | None = None
    parameters: tuple[gpflow.Parameter, ...] = ()
    members: tuple[tf.Tensor, ...] = field(default=())


def by_kernel(
    kernels: Sequence[Kernel], points: Sequence[tf.Tensor], alpha: tf.Tensor, X: tf.Tensor
) -> tf.Tensor:
    """Return k(X, z)α for X [N, D] and α [L, M, S], [N, L, S]; see `Correction`."""
    count = max(len(kernels), len(points))
    found = []
    for i, part in enumerate(tf.split(alpha, count)):
        cross = centred.covariance(kernels[i % len(kernels)], points[i % len(points)], X)
        found.append(tf.einsum("mn,cms->ncs", cross, part))
    return tf.concat(found, axis=1)
