"""Windowed scattering features of small images (Bruna & Mallat 2013): fixed wavelets, in TensorFlow."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext.features import wavelets
from gpflow_ext.features.wavelets import Array, Axis

_CHUNK = 500  # images at a time: their maps stay in the cache
_LEARNT_FROM = 10_000  # images
_ROUNDING = 1e-5  # share of the norm of a row
_TINY = 1e-12  # below a root whose argument may be zero: its gradient stays finite


class Scattering(tf.Module):
    """Scattering features φ(x) of grey images: local averages of the moduli of wavelet transforms.

    With Morlet wavelets ψ of J scales and L angles and a Gaussian window ϕ of 2ᴶ⁻¹ pixels

        x ∗ ϕ,    |x ∗ ψ_jl| ∗ ϕ,    and for order 2    ||x ∗ ψ_jl| ∗ ψ_j'l'| ∗ ϕ,  j' > j

    sampled every 2ᴶ pixels (Bruna & Mallat 2013): shifts and small deformations of the image change them
    little. Their square roots are centred and projected on the leading principal axes of the training images,
    and scaled there to a mean square norm of one, so that one length scale of about 1.5 suits them. Images
    are padded with zeros. Before centring, scaling an image scales its features: pixels may be in 0, …, 1 or
    in 0, …, 255, as long as all images use the same range.

    Parameters
    ----------
    shape
        Height and width of the images, pixels.
    scales
        J, the number of scales.
    angles
        L, the number of angles.
    order
        1 or 2. Order 2 has 1 + JL + J(J − 1)L²/2 maps instead of 1 + JL, at about five times the cost.
    dims
        Number of features D'; ``None`` keeps all coordinates, without centring, projection and scaling.

    Attributes
    ----------
    num_inputs, num_raw, num_features
        Numbers of pixels D, of coordinates before the projection, and of features D'.
    mean, axes
        The mean that is subtracted, [num_raw], and the principal axes divided by the root of the mean square
        norm, [num_raw, D']: variables that are not trained.

    Raises
    ------
    ValueError
        For numbers out of range.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        scales: int = 2,
        angles: int = 8,
        order: int = 1,
        dims: int | None = 200,
    ) -> None:
        super().__init__()
        self.shape = tuple(int(side) for side in shape)
        self.scales, self.angles, self.order, self.dims = scales, angles, order, dims
        self._check()
        height, width = self.shape
        self.num_inputs = height * width
        paths = 1 + scales * angles + (order == 2) * scales * (scales - 1) // 2 * angles**2
        self.num_raw = int(np.prod([-(-side // 2**scales) for side in self.shape])) * paths
        self.num_features = self.num_raw if dims is None else dims
        self.is_fitted = dims is None
        if dims is not None:
            if not 1 <= dims <= self.num_raw:
                raise ValueError(f"`dims` must be from 1 to {self.num_raw}, the coordinates; got {dims}.")
            self.mean = tf.Variable(tf.zeros([self.num_raw]), trainable=False)
            self.axes = tf.Variable(tf.zeros([self.num_raw, dims]), trainable=False)

    def _check(self) -> None:
        least = 2**self.scales
        if len(self.shape) != 2 or self.scales < 1 or self.angles < 1 or min(self.shape) < least:
            raise ValueError(
                "`scales` and `angles` must be at least 1, and `shape` the height and width of the images, "
                f"each at least 2**scales; got {self.scales}, {self.angles} and {self.shape}."
            )
        if self.order not in (1, 2) or (self.order == 2 and self.scales < 2):
            raise ValueError(
                f"`order` must be 1 or 2, and 2 needs two scales; got {self.order} with scales={self.scales}."
            )

    def fit(self, X: Any, *, seed: int = 0) -> Scattering:
        """Learn mean and axes from at most 10,000 of the images [N, H W] or [N, H, W]; return ``self``.

        Raises
        ------
        ValueError
            For images of another size, negative pixels, pixels that are not finite, or fewer than ``dims``
            images.
        ImportError
            Without scikit-learn.
        """
        if self.dims is None:
            return self
        try:
            from sklearn.decomposition import PCA
        except ImportError as error:
            raise ImportError('Scattering.fit needs scikit-learn: pip install "gpflow-ext[data]".') from error
        images = self._rows(X)
        if len(images) < self.dims:
            raise ValueError(f"`fit` needs at least dims = {self.dims} images; got {len(images)}.")
        if len(images) > _LEARNT_FROM:
            images = images[
                np.sort(np.random.default_rng(seed).choice(len(images), _LEARNT_FROM, replace=False))
            ]
        if not np.isfinite(images).all() or images.min() < 0.0:
            raise ValueError(
                "Images must be finite and not negative, their background 0: give pixels as they are, not "
                "standardised."
            )
        raw = _in_chunks(self.coordinates, tf.constant(images, tf.float32)).numpy()
        found = PCA(self.dims, random_state=seed).fit(raw)
        scale = np.sqrt(found.explained_variance_.sum(dtype=np.float64))
        if not scale > _ROUNDING * np.sqrt(np.square(raw).sum(axis=1).mean()):
            raise ValueError("All images are equal: there are no principal axes.")
        self.mean.assign(found.mean_)
        self.axes.assign(found.components_.T / scale)
        self.is_fitted = True
        return self

    def __call__(self, X: Any) -> tf.Tensor:
        """Return the features [..., D'] of images [..., H W], in their dtype; computed in single precision.

        Arrays may also be [N, H, W], and have any number of rows, which are processed in chunks.

        Raises
        ------
        ValueError
            For images of another size, or before `fit`.
        """
        if not self.is_fitted:
            raise ValueError("These features have no axes yet: call `fit(X)` with training images.")
        X = X if tf.is_tensor(X) else self._rows(X)
        self._check_width(X.shape)
        dtype = X.dtype if X.dtype in (tf.float32, tf.float64) else tf.float32
        flat = tf.reshape(tf.cast(X, tf.float32), [-1, self.num_inputs])
        found = _in_chunks(self.features, flat) if tf.executing_eagerly() else self.features(flat)
        return tf.reshape(tf.cast(found, dtype), tf.concat([tf.shape(X)[:-1], [self.num_features]], axis=0))

    def features(self, X: tf.Tensor) -> tf.Tensor:
        """Return the features [N, D'] of images [N, H W] in single precision."""
        raw = self.coordinates(X)
        return raw if self.dims is None else tf.matmul(raw - self.mean, self.axes)

    def coordinates(self, X: tf.Tensor) -> tf.Tensor:
        """Return the roots of the pooled maps of images [N, H W] in single precision, [N, num_raw]."""
        x = tf.reshape(X, [-1, *self.shape, 1])
        first = [self._modulus(x, 1, j) for j in range(self.scales)]  # [N, H / 2ʲ, W / 2ʲ, L]
        parts = [self._pooled(x, 0), *(self._pooled(maps, j) for j, maps in enumerate(first))]
        if self.order == 2:
            pairs = itertools.combinations(range(self.scales), 2)
            parts += [self._pooled(self._modulus_of_maps(first[j], j, k), k) for j, k in pairs]
        maps = tf.concat(parts, axis=-1)
        return tf.sqrt(tf.nn.relu(tf.reshape(maps, [-1, self.num_raw])) + _TINY)

    def _modulus(self, x: tf.Tensor, spacing: int, j: int) -> tf.Tensor:
        """Return |x ∗ ψ_jl| of maps [N, h, w, 1] with that spacing, [N, H / 2ʲ, W / 2ʲ, L]."""
        bank, padding = _filters(self.shape, self.scales, self.angles).banks[spacing, j]
        z = tf.nn.conv2d(x, tf.constant(bank), 2**j // spacing, padding)
        real, imaginary = z[..., : self.angles], z[..., self.angles :]
        return tf.sqrt(tf.square(real) + tf.square(imaginary) + _TINY)

    def _modulus_of_maps(self, maps: tf.Tensor, j: int, k: int) -> tf.Tensor:
        """Return |map ∗ ψ_kl| of maps [N, H / 2ʲ, W / 2ʲ, L], [N, H / 2ᵏ, W / 2ᵏ, L²]."""
        height, width = maps.shape[1:3]
        alone = tf.reshape(tf.transpose(maps, [0, 3, 1, 2]), [-1, height, width, 1])
        found = self._modulus(alone, 2**j, k)
        height, width = found.shape[1:3]
        apart = tf.reshape(found, [-1, self.angles, height, width, self.angles])
        return tf.reshape(tf.transpose(apart, [0, 2, 3, 1, 4]), [-1, height, width, self.angles**2])

    def _pooled(self, maps: tf.Tensor, j: int) -> tf.Tensor:
        """Return the averages of maps [N, H / 2ʲ, W / 2ʲ, C] about the places where features are read."""
        rows, columns = _filters(self.shape, self.scales, self.angles).windows[j]
        height, width, count = maps.shape[1:]
        down = tf.matmul(tf.constant(rows), tf.reshape(maps, [-1, height, width * count]))
        return tf.matmul(tf.constant(columns), tf.reshape(down, [-1, len(rows), width, count]))

    def _rows(self, X: Any) -> Array:
        rows = np.asarray(X)
        if rows.shape[1:] == self.shape:
            rows = rows.reshape(len(rows), -1)
        if rows.ndim != 2:
            raise ValueError(
                f"Images must be [N, {self.num_inputs}] or {['N', *self.shape]}; got {rows.shape}."
            )
        self._check_width(rows.shape)
        return rows

    def _check_width(self, shape: Any) -> None:
        if shape[-1] != self.num_inputs:
            raise ValueError(
                f"Images of the shape {self.shape} have {self.num_inputs} columns; got {shape[-1]}."
            )


class _Filters(NamedTuple):
    """The constants of images of one shape."""

    banks: dict[tuple[int, int], tuple[Array, list[list[int]]]]  # by the spacing of the maps and the scale
    windows: list[tuple[Array, Array]]  # along the height and the width, by the scale of the maps


@functools.lru_cache(maxsize=32)
def _filters(shape: tuple[int, int], scales: int, angles: int) -> _Filters:
    sides = {2**j: (Axis(shape[0], 2**j), Axis(shape[1], 2**j)) for j in range(scales + 1)}
    places = sides[2**scales]
    banks = {
        (before, j): _bank(sides[before], sides[2**j], j, angles)
        for j in range(scales)
        for before in {1, *(2**i for i in range(j))}
    }
    windows = [
        (wavelets.window(rows, places[0], width), wavelets.window(columns, places[1], width))
        for width in [2.0 ** (scales - 1)]
        for rows, columns in (sides[2**j] for j in range(scales))
    ]
    return _Filters(banks, windows)


def _in_chunks(method: Any, images: tf.Tensor) -> tf.Tensor:
    parts = [method(images[begin : begin + _CHUNK]) for begin in range(0, max(len(images), 1), _CHUNK)]
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)


def _bank(
    source: tuple[Axis, Axis], target: tuple[Axis, Axis], j: int, angles: int
) -> tuple[Array, list[list[int]]]:
    """Return the wavelets of a scale and the padding of ``tf.nn.conv2d`` that goes with them."""
    down, across = (
        wavelets.taps(a, b, wavelets.morlet_radius(j)) for a, b in zip(source, target, strict=True)
    )
    bank = wavelets.morlets(down.offsets, across.offsets, j, angles, source[0].spacing)
    return bank, [[0, 0], list(down.padding), list(across.padding), [0, 0]]
