"""Convolutional Gaussian processes on images, van der Wilk et al. (2017), Dutordoir et al. (2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.base import TensorLike
from gpflow.covariances import Kuf, Kuu
from gpflow.inducing_variables import InducingPatches
from gpflow.kernels import Kernel, SquaredExponential, Sum

from gpflow_ext.convolution import sums
from gpflow_ext.numerics import batched
from gpflow_ext.numerics.mapped import one_by_one


class Convolutional(gpflow.kernels.Convolutional):
    """GPflow's convolutional kernel with a squared exponential on the patches, computed several times faster.

    f(x) = (1/P) Σ_p w_p g(x^[p]) over all P patches of an image, g ~ GP(0, k_patch):

        K_ff = (1/P²) Σ_pq w_p w_q k_patch(x^[p], x'^[q])    K_uf = (1/P) Σ_p w_p k_patch(z, x^[p])

    for inducing patches u = g(z) (van der Wilk, Rasmussen & Hensman 2017). The values are GPflow's. Memory is
    that of one image, or of 2¹⁹ pairs of patches. Only first derivatives are available.

    Parameters
    ----------
    base_kernel
        k_patch, a ``SquaredExponential`` of all pixels of a patch.
    image_shape, patch_shape
        Height and width in pixels. Inputs [N, D] hold the pixels of an image row by row, the channels of each
        pixel together: D = height · width · channels.
    weights
        w [P]; ones by default.
    colour_channels
        Number of colour channels; each has patches of its own.

    Raises
    ------
    ValueError
        For another kind of k_patch, and patches that are larger than the image.
    """

    def __init__(
        self,
        base_kernel: Kernel,
        image_shape: Sequence[int],
        patch_shape: Sequence[int],
        weights: Any = None,
        colour_channels: int = 1,
    ) -> None:
        if type(base_kernel) is not SquaredExponential or base_kernel.active_dims != slice(None):
            raise ValueError(
                f"`base_kernel` must be a SquaredExponential of all pixels of a patch; got "
                f"{type(base_kernel).__name__}: for others take gpflow.kernels.Convolutional."
            )
        if any(patch > image for patch, image in zip(patch_shape, image_shape, strict=True)):
            raise ValueError(f"Patches of shape {patch_shape} do not fit into images of shape {image_shape}.")
        super().__init__(base_kernel, image_shape, patch_shape, weights, colour_channels)

    def get_patches(self, X: Any) -> tf.Tensor:
        """Return all patches of images [N, D], [N, P, S], channel after channel, in their dtype."""
        X = batched.numbers(X)
        width = int(np.prod(self.image_shape)) * self.colour_channels
        if X.shape.rank != 2 or X.shape[1] not in (None, width):
            raise ValueError(f"Images must be [N, {width}]; the shape of the inputs is {X.shape}.")
        apart = tf.transpose(
            tf.reshape(X, [-1, width // self.colour_channels, self.colour_channels]), [0, 2, 1]
        )
        images = tf.reshape(apart, [-1, *self.image_shape, 1])
        window = [1, *self.patch_shape, 1]
        found = tf.image.extract_patches(images, window, [1] * 4, [1] * 4, "VALID")
        return tf.ensure_shape(
            tf.reshape(found, [-1, self.num_patches, self.patch_len]),
            [X.shape[0], self.num_patches, self.patch_len],
        )

    def K(self, X: Any, X2: Any = None) -> tf.Tensor:
        """Return the covariances of images X [N, D] with X2 [R, D], or within X. O(NRP²S)."""
        left = self.get_patches(X)
        right = left if X2 is None else self.get_patches(X2)
        w, R = self.mean_weights(), self.relation()
        V = w[:, None] * w if R is None else w[:, None] * w * R  # [P, P]
        lengthscales = tf.convert_to_tensor(self.base_kernel.lengthscales)

        def row(own: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(sums.cross(own, right, lengthscales, V), axis=0)

        return self.base_kernel.variance * one_by_one(row, left)

    def K_diag(self, X: Any) -> tf.Tensor:
        """Return the variances at images X [N, D], [N]. O(NP²S)."""
        base = self.base_kernel
        found = sums.diagonal(self.get_patches(X), base.lengthscales, self.mean_weights(), self.relation())
        return base.variance * found

    def mean_weights(self) -> tf.Tensor:
        """Return w/P, [P]."""
        return tf.convert_to_tensor(self.weights) / self.num_patches

    def relation(self) -> tf.Tensor | None:
        """Return k_location of all pairs of patches, [P, P], or ``None`` if locations do not matter."""
        return None

    def patch_weights(self, points: InducingPatches) -> tf.Tensor:
        """Return the weight of each patch for each inducing variable, [1 or M, P]."""
        return self.mean_weights()[None]

    def patch_gram(self, points: InducingPatches) -> tf.Tensor:
        """Return the covariances of the inducing variables, [M, M]."""
        return self.base_kernel(points.Z)


class LocatedPatches(InducingPatches):
    """Inducing variables u = g(z, l) of `TranslationInsensitive`: patches z at locations l.

    Parameters
    ----------
    patches
        Z [M, S].
    locations
        Row and column of the upper left corner of each, [M, 2], in pixels; they need not be whole numbers.

    Raises
    ------
    ValueError
        For locations of another shape.
    """

    def __init__(self, patches: Any, locations: Any, name: str | None = None) -> None:
        super().__init__(patches, name=name)
        if tuple(locations.shape) != (self.num_inducing, 2):
            raise ValueError(
                f"`locations` must be [{self.num_inducing}, 2], one for each patch; got "
                f"{tuple(locations.shape)}."
            )
        self.locations = gpflow.Parameter(locations, dtype=self.Z.dtype)


class TranslationInsensitive(Convolutional):
    """A convolutional kernel whose response to a patch depends a little on where it is.

    f(x) = (1/P) Σ_p w_p g(x^[p], p) with g ~ GP(0, k_patch · k_location) (Dutordoir et al. 2020):
    nearby locations respond alike. Inducing variables are `LocatedPatches`.

    Parameters
    ----------
    base_kernel, image_shape, patch_shape, weights, colour_channels
        See `Convolutional`.
    location_kernel
        k_location, of rows and columns; by default a squared exponential with a length scale of three
        pixels and its variance fixed at one, since that of ``base_kernel`` plays the same part.
    """

    def __init__(
        self,
        base_kernel: Kernel,
        image_shape: Sequence[int],
        patch_shape: Sequence[int],
        weights: Any = None,
        colour_channels: int = 1,
        location_kernel: Kernel | None = None,
    ) -> None:
        super().__init__(base_kernel, image_shape, patch_shape, weights, colour_channels)
        if location_kernel is None:
            location_kernel = SquaredExponential(lengthscales=3.0)
            gpflow.set_trainable(location_kernel.variance, False)
        self.location_kernel = location_kernel
        rows, columns = (image - patch + 1 for image, patch in zip(image_shape, patch_shape, strict=True))
        grid = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1)
        self._locations = np.tile(grid.reshape(-1, 2), [colour_channels, 1])

    @property
    def locations(self) -> tf.Tensor:
        """Row and column of the upper left corner of each patch, [P, 2]."""
        return tf.constant(self._locations, self.base_kernel.variance.dtype)

    def relation(self) -> tf.Tensor | None:
        """See `Convolutional`."""
        return self.location_kernel(self.locations)

    def patch_weights(self, points: InducingPatches) -> tf.Tensor:
        """See `Convolutional`."""
        return super().patch_weights(points) * self.location_kernel(_places(points), self.locations)

    def patch_gram(self, points: InducingPatches) -> tf.Tensor:
        """See `Convolutional`."""
        return super().patch_gram(points) * self.location_kernel(_places(points))


def _places(points: InducingPatches) -> tf.Tensor:
    if not isinstance(points, LocatedPatches):
        raise ValueError(
            "TranslationInsensitive needs inducing patches with their places: "
            "gpflow_ext.LocatedPatches(Z, locations)."
        )
    return tf.convert_to_tensor(points.locations)


@Kuu.register(InducingPatches, Convolutional)
def _gram(points: InducingPatches, kernel: Convolutional, *, jitter: float = 0.0) -> tf.Tensor:
    """Return K_uu, [M, M]."""
    K = kernel.patch_gram(points)
    return tf.linalg.set_diag(K, tf.linalg.diag_part(K) + tf.cast(jitter, K.dtype))


@Kuf.register(InducingPatches, Convolutional, TensorLike)
def _cross(points: InducingPatches, kernel: Convolutional, X: Any) -> tf.Tensor:
    """Return K_uf at images X [N, D], [M, N]. O(NPMS)."""
    base, Z = kernel.base_kernel, tf.convert_to_tensor(points.Z)
    found = sums.cross(Z, kernel.get_patches(X), base.lengthscales, kernel.patch_weights(points))
    return base.variance * found


@Kuu.register(InducingPatches, Sum)
def _gram_of_sum(points: InducingPatches, kernel: Sum, *, jitter: float = 0.0) -> tf.Tensor:
    """Return K_uu of the convolutional part, whose inducing variables they are."""
    return Kuu(points, _convolutional(kernel), jitter=jitter)


@Kuf.register(InducingPatches, Sum, TensorLike)
def _cross_of_sum(points: InducingPatches, kernel: Sum, X: Any) -> tf.Tensor:
    """Return K_uf of the convolutional part; the others, such as White, are part of K_ff alone."""
    return Kuf(points, _convolutional(kernel), X)


def _convolutional(kernel: Sum) -> gpflow.kernels.Convolutional:
    found = [part for part in kernel.kernels if isinstance(part, gpflow.kernels.Convolutional)]
    if len(found) != 1:
        raise ValueError(
            f"Inducing patches are of one convolutional part of a sum of kernels; this one has {len(found)}."
        )
    return found[0]
