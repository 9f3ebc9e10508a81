"""Kernels on features of the inputs, and inducing variables among the features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.base import TensorLike
from gpflow.covariances import Kuf, Kuu
from gpflow.inducing_variables.inducing_variables import InducingPointsBase
from gpflow.kernels import Combination, Convolutional, Kernel, SharedIndependent, Static

from gpflow_ext.data.checks import are_inputs


class Features(Protocol):
    """A ``tf.Module`` that maps inputs [..., D] to features φ [..., D'], in the dtype of the inputs.

    Attributes
    ----------
    num_inputs, num_features
        D and D'.
    """

    num_inputs: int
    num_features: int

    def __call__(self, X: Any) -> tf.Tensor:
        """Return φ(X)."""


class Feature(Kernel):
    """The kernel k(x, x') = k₀(φ(x), φ(x')) of any kernel k₀ on fixed features φ of the inputs.

    `gpflow_ext.fit` computes φ of the training inputs once, if all parts of a model's kernel use the
    same features or do not depend on the inputs.

    Parameters
    ----------
    kernel
        k₀, a kernel of one output; its ``active_dims`` are those of the features.
    features
        φ, such as a fitted `gpflow_ext.features.Scattering`.
    active_dims
        The columns of the inputs that are passed to φ; all by default.

    Raises
    ------
    ValueError
        For a k₀ of several outputs, or features without ``num_inputs`` and ``num_features``.
    """

    def __init__(
        self, kernel: Kernel, features: Features, active_dims: Any = None, name: str | None = None
    ) -> None:
        super().__init__(active_dims=active_dims, name=name)
        if not isinstance(kernel, Kernel) or isinstance(kernel, gpflow.kernels.MultioutputKernel):
            raise ValueError(
                f"`kernel` must be a kernel of one output; got {type(kernel).__name__}. For several put "
                "Feature kernels into SharedIndependent or SeparateIndependent."
            )
        for width in ("num_inputs", "num_features"):
            if not callable(features) or not isinstance(getattr(features, width, None), int):
                raise ValueError(
                    f"`features` must be callable, with the whole number `{width}`, such as "
                    "gpflow_ext.features.Scattering."
                )
        self.kernel, self.features = kernel, features

    def K(self, X: tf.Tensor, X2: tf.Tensor | None = None) -> tf.Tensor:
        """Return the covariances of X [..., N, D] with X2 [..., R, D], or within X."""
        return self.kernel(self.features(X), None if X2 is None else self.features(X2))

    def K_diag(self, X: tf.Tensor) -> tf.Tensor:
        """Return the variances at X [..., N, D], [..., N]."""
        return self.kernel(self.features(X), full_cov=False)


class InducingFeatures(InducingPointsBase):
    """Inducing variables u = f at features Z [M, D'], for kernels that are `Feature` kernels or made of them.

    As a function of φ(x) the Gaussian process is one on the space of features, and u are its values
    there: Z need not be the features of any input, and φ is applied only to the data. As for GPflow's
    inducing points, ``White`` is part of K_uu. A common choice of Z is ``features(X)`` for some inputs X.
    """


def on_features(kernel: Kernel) -> tuple[Kernel, Feature]:
    """Return a kernel as one on features, with the same parameters, and a `Feature` part of it.

    Raises
    ------
    ValueError
        Where the kernel has a part that looks at the inputs otherwise, or parts on different features.
    """
    (made,), part = all_on_features((kernel,))
    return made, part


def all_on_features(kernels: Sequence[Kernel]) -> tuple[tuple[Kernel, ...], Feature]:
    """Return several kernels likewise, all on the same features."""
    found: list[Feature] = []
    made = tuple(_on_features(kernel, found) for kernel in kernels)
    if not found:
        names = ", ".join(type(kernel).__name__ for kernel in kernels)
        raise ValueError(f"{names} has no part that is a gpflow_ext.kernels.Feature.")
    first = found[0]
    for other in found[1:]:
        if other.features is not first.features or not _equal(other.active_dims, first.active_dims):
            raise ValueError("The Feature parts of the kernel are on different features: give one object.")
    return made, first


def has_features(kernel: Kernel) -> bool:
    """Tell whether a kernel is a `Feature` kernel or has such a part."""
    return any(isinstance(part, Feature) for part in (kernel, *kernel.submodules))


def _on_features(kernel: Kernel, found: list[Feature]) -> Kernel:
    if isinstance(kernel, Feature):
        found.append(kernel)
        return kernel.kernel
    if isinstance(kernel, Static):
        return kernel
    if isinstance(kernel, SharedIndependent):
        return sharing(kernel, kernel=_on_features(kernel.kernel, found))
    if isinstance(kernel, Combination):
        return sharing(kernel, kernels=[_on_features(part, found) for part in kernel.kernels])
    raise ValueError(
        f"{type(kernel).__name__} looks at the inputs themselves: make it part of a kernels.Feature, "
        "or use inducing points in the space of the inputs."
    )


def sharing(owner: Any, **changed: Any) -> Any:
    """Return an object that shares all attributes with a module but some."""
    made = object.__new__(type(owner))
    kept = {name: value for name, value in vars(owner).items() if not name.startswith("_self_")}
    vars(made).update(kept | changed)  # set as attributes they would be tracked
    return made


def input_width(model: Any) -> int | None:
    """Return how many columns the inputs of a model have, by its data, its inducing points or its kernels.

    ``None`` where none of them tells.
    """
    held, parts = getattr(model, "data", None), getattr(model, "submodules", ())
    if isinstance(held, tuple | list):
        return int(held[0].shape[-1])
    kernels = (num_columns(part) for part in parts if isinstance(part, Feature | Convolutional))
    widths = [part.Z.shape[-1] for part in parts if are_inputs(part)] or [*filter(None, kernels)]
    return int(widths[0]) if widths else None


def check_inputs(model: Any, X: Any) -> None:
    """Raise ``ValueError`` for inputs [N, D] of another number of columns than those of a model."""
    width = input_width(model)
    if width not in (None, X.shape[1]):
        raise ValueError(f"X has {X.shape[1]} columns, and the inputs of the model have {width}.")


def num_columns(part: Feature | Convolutional) -> int | None:
    """Return how many columns inputs have by a kernel of features or patches, or ``None``."""
    if not _equal(part.active_dims, slice(None)):
        return None
    if isinstance(part, Convolutional):
        return int(np.prod(part.image_shape)) * int(part.colour_channels)
    return part.features.num_inputs


def _equal(first: Any, second: Any) -> bool:
    return str(first) == str(second)


def check_width(points: InducingFeatures, part: Feature) -> None:
    """Raise ``ValueError`` where inducing features are not as wide as the features of a kernel."""
    if points.Z.shape[1] != part.features.num_features:
        raise ValueError(
            f"InducingFeatures have {points.Z.shape[1]} columns and the features of the kernel "
            f"{part.features.num_features}: give features(X) for some inputs X."
        )


def _alone(points: InducingFeatures, kernel: Kernel) -> tuple[Kernel, Feature]:
    """Return `on_features` of a kernel whose features are as wide as the inducing ones."""
    alone, part = on_features(kernel)
    check_width(points, part)
    return alone, part


@Kuu.register(InducingFeatures, Kernel)
def _gram(points: InducingFeatures, kernel: Kernel, *, jitter: float = 0.0) -> tf.Tensor:
    """Return K_uu, [M, M]."""
    K = _alone(points, kernel)[0](points.Z)
    return tf.linalg.set_diag(K, tf.linalg.diag_part(K) + tf.cast(jitter, K.dtype))


@Kuf.register(InducingFeatures, Kernel, TensorLike)
def _cross(points: InducingFeatures, kernel: Kernel, X: Any) -> tf.Tensor:
    """Return K_uf at X [N, D], [M, N]."""
    alone, part = _alone(points, kernel)
    return alone(points.Z, part.features(part.slice(X, None)[0]))
