"""Grids, Morlet wavelets and Gaussian windows of small images, symmetric about the middle of the image."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
_REACH = 2.5  # standard deviations at which a wavelet is cut off


class Axis(NamedTuple):
    """Equidistant positions along one side of an image, their middle that of its pixels 0, …, size − 1."""

    size: int  # of the image, pixels
    spacing: int  # pixels

    @property
    def number(self) -> int:
        """The number of positions."""
        return -(-self.size // self.spacing)

    @property
    def first(self) -> float:
        """The first position."""
        return 0.5 * (self.size - 1 - self.spacing * (self.number - 1))

    def begin(self, other: Axis) -> float:
        """Return the first position of another axis, in steps of this one from its own first position."""
        return (other.first - self.first) / self.spacing


class Taps(NamedTuple):
    """Positions that a filter reads as it moves along an axis."""

    offsets: Array  # from the position of the output, pixels
    padding: tuple[int, int]  # zeros before and behind the axis


def taps(source: Axis, target: Axis, radius: float) -> Taps:
    """Return which positions of an axis a filter reads for those of a coarser one.

    Parameters
    ----------
    source, target
        The axes; the spacing of the second is a multiple of the first's.
    radius
        Radius of the filter in pixels.
    """
    begin, reach = source.begin(target), radius / source.spacing
    low, high = int(np.ceil(begin - reach)), int(np.floor(begin + reach))
    low = min(low, 0)
    last = high + (target.spacing // source.spacing) * (target.number - 1)
    offsets = source.spacing * (np.arange(low, high + 1) - begin)
    return Taps(offsets, (-low, max(0, last - source.number + 1)))


def morlet_radius(scale: int) -> float:
    """Return where the wavelets of a scale are cut off, pixels."""
    return float(np.ceil(_REACH * _width(scale)))


def morlets(rows: Array, columns: Array, scale: int, angles: int, spacing: int) -> Array:
    """Return Morlet wavelets of zero sum at all angles l π / L: real parts, then imaginary ones.

    ψ(u, v) ∝ exp(−(u² + v²/4) / 2σ²) (exp(iξu) − c), σ = 0.8 · 2ʲ pixels, ξ = ¾ π / 2ʲ, u along the wave
    (Bruna & Mallat 2013, section 2.1).

    Parameters
    ----------
    rows, columns
        Offsets in pixels, [R] and [C].
    scale, angles
        j and L.
    spacing
        Pixels between two offsets: the sum over the offsets stands for one over pixels.

    Returns
    -------
    Filters of the layout of ``tf.nn.conv2d``, [R, C, 1, 2L].
    """
    y, x = rows[:, None], columns[None, :]
    width, wave = _width(scale), 0.75 * np.pi / 2**scale
    found = []
    for turn in np.pi * np.arange(angles) / angles:
        u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
        envelope = np.exp(-(u**2 + 0.25 * v**2) / (2.0 * width**2))
        carrier = np.exp(1j * wave * u)
        psi = envelope * (carrier - (envelope * carrier).sum() / envelope.sum())
        found.append(psi * spacing**2 / (4.0 * np.pi * width**2))
    bank = np.stack(found, axis=-1)[:, :, None, :]
    return np.concatenate([bank.real, bank.imag], axis=-1).astype(np.float32)


def window(source: Axis, target: Axis, width: float) -> Array:
    """Return the matrix [T, S] that averages values on an axis by a Gaussian about each position of another.

    ``width`` is its standard deviation in pixels. Outside the image there is zero.
    """
    begin = source.begin(target)
    ratio = target.spacing / source.spacing
    places = begin + ratio * np.arange(target.number)[:, None] - np.arange(source.number)[None, :]
    weights = np.exp(-0.5 * (places * source.spacing / width) ** 2)
    return (weights * source.spacing / (np.sqrt(2.0 * np.pi) * width)).astype(np.float32)


def _width(scale: int) -> float:
    return 0.8 * 2.0**scale
