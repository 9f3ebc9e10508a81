"""Random and exact features of GPflow's kernels: k(x, x') is the mean of φ(x)ᵀφ(x'), White left out.

A kernel is multiplied out to a sum of products. Each product has features of its own: Fourier features for
its stationary factors together, exact ones for linear, polynomial and coregionalised factors. A function
φ(x)ᵀw with standard normal weights w is then a draw of the prior.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.kernels import Constant, Kernel, Product, Sum, White

from gpflow_ext.functions import frequencies
from gpflow_ext.functions.frequencies import FREQUENCIES
from gpflow_ext.functions.randomness import Numbers

Drawn: TypeAlias = tuple[Any, ...]
_MOST_EXACT = 4096  # features that an exact kernel may have
INSTEAD = "draw at given inputs instead, by predict_f_samples(X)"


class Features(Protocol):
    """Features of a kernel: what is random about them is drawn once, and then they are a function of x."""

    def draw(self, numbers: Numbers, count: int, width: int) -> Drawn:
        """Return the tensors that make φ, for about ``count`` features of inputs [N, ``width``].

        They hold all that φ needs of the kernel's parameters.
        """

    def at(self, drawn: Drawn, X: tf.Tensor) -> tf.Tensor:
        """Return φ(X), [N, F]."""


@dataclass(frozen=True)
class Fourier:
    """Cosines and sines of F/2 frequencies: φ(x)ᵀφ(x) is the variance at every x."""

    factors: tuple[Kernel, ...]

    def draw(self, numbers: Numbers, count: int, width: int) -> Drawn:
        """See `Features`; frequencies [F/2, width] and the amplitude."""
        one = all(type(kernel) is gpflow.kernels.Cosine for kernel in self.factors)
        half = 1 if one else count // 2  # a cosine has one frequency
        omega, variance = tf.zeros([width, half], numbers.dtype), tf.ones([], numbers.dtype)
        for kernel in self.factors:
            dims = active(kernel, width)
            own = FREQUENCIES[type(kernel)](kernel, numbers, half, len(dims))
            omega = tf.tensor_scatter_nd_add(omega, dims[:, None], tf.transpose(own))
            variance *= frequencies.variance(kernel)
        return omega, tf.sqrt(variance / half)

    def at(self, drawn: Drawn, X: tf.Tensor) -> tf.Tensor:
        """See `Features`."""
        omega, scale = drawn
        phase = tf.matmul(X, omega)
        return scale * tf.concat([tf.cos(phase), tf.sin(phase)], axis=-1)


@dataclass(frozen=True)
class Level:
    """One feature, the root of a product of constant kernels."""

    factors: tuple[Constant, ...]

    def draw(self, numbers: Numbers, count: int, width: int) -> Drawn:
        """See `Features`."""
        return (math.prod((tf.sqrt(tf.reshape(k.variance, [])) for k in self.factors), start=1.0),)

    def at(self, drawn: Drawn, X: tf.Tensor) -> tf.Tensor:
        """See `Features`."""
        return drawn[0] * tf.ones_like(X[:, :1])


@dataclass(frozen=True)
class Linear:
    """The active inputs, scaled: exact."""

    kernel: gpflow.kernels.Linear

    def draw(self, numbers: Numbers, count: int, width: int) -> Drawn:
        """See `Features`."""
        return (tf.sqrt(tf.convert_to_tensor(self.kernel.variance)),)

    def at(self, drawn: Drawn, X: tf.Tensor) -> tf.Tensor:
        """See `Features`."""
        return seen(self.kernel, X) * drawn[0]


@dataclass(frozen=True)
class Polynomial:
    """All products of d of the active inputs and the offset, scaled: exact."""

    kernel: gpflow.kernels.Polynomial

    def draw(self, numbers: Numbers, count: int, width: int) -> Drawn:
        """See `Features`."""
        degree, dims = float(self.kernel.degree), len(active(self.kernel, width))
        if degree != round(degree) or degree < 1 or (dims + 1) ** degree > _MOST_EXACT:
            raise NotImplementedError(
                f"Polynomial has exact features for whole degrees, at most {_MOST_EXACT} of them; this "
                f"one has degree {degree:g} in {dims} dimensions: {INSTEAD}."
            )
        return tf.sqrt(tf.convert_to_tensor(self.kernel.variance)), tf.sqrt(
            tf.reshape(self.kernel.offset, [])
        )

    def at(self, drawn: Drawn, X: tf.Tensor) -> tf.Tensor:
        """See `Features`."""
        X = seen(self.kernel, X) * drawn[0]
        one = tf.concat([X, drawn[1] * tf.ones_like(X[:, :1])], axis=1)
        return functools.reduce(outer, [one] * round(float(self.kernel.degree)))


@dataclass(frozen=True)
class Coregion:
    """The row of W and the root of κ of an input's output: exact."""

    kernel: gpflow.kernels.Coregion

    def draw(self, numbers: Numbers, count: int, width: int) -> Drawn:
        """See `Features`."""
        own = tf.linalg.diag(tf.sqrt(tf.convert_to_tensor(self.kernel.kappa)))
        return (tf.concat([self.kernel.W, own], axis=1),)

    def at(self, drawn: Drawn, X: tf.Tensor) -> tf.Tensor:
        """See `Features`."""
        return tf.gather(drawn[0], tf.cast(seen(self.kernel, X)[:, 0], tf.int32))


@dataclass(frozen=True)
class HalfSpaces:
    """Powers of rectified random projections, of the arc-cosine kernel (Cho & Saul 2009)."""

    kernel: gpflow.kernels.ArcCosine

    def draw(self, numbers: Numbers, count: int, width: int) -> Drawn:
        """See `Features`."""
        dims = len(active(self.kernel, width))
        roots = [tf.sqrt(tf.ones([dims], numbers.dtype) * self.kernel.weight_variances)]
        roots.append(tf.sqrt(tf.reshape(self.kernel.bias_variance, [1])))
        directions = numbers.normal([dims + 1, count]) * tf.concat(roots, axis=0)[:, None]
        return directions, tf.sqrt(2.0 * tf.reshape(self.kernel.variance, []) / count)

    def at(self, drawn: Drawn, X: tf.Tensor) -> tf.Tensor:
        """See `Features`."""
        X = seen(self.kernel, X)
        projected = tf.matmul(X, drawn[0][:-1]) + drawn[0][-1]
        above = tf.cast(projected > 0.0, X.dtype)
        return drawn[1] * above * projected**self.kernel.order


@dataclass(frozen=True)
class Gated:
    """The features of each regime of a change-point kernel times its sigmoids."""

    kernel: gpflow.kernels.ChangePoints
    regimes: tuple[Features, ...]

    def draw(self, numbers: Numbers, count: int, width: int) -> Drawn:
        """See `Features`."""
        locations = tf.sort(tf.reshape(self.kernel.locations, [-1]))
        own = tuple(regime.draw(numbers, count, width) for regime in self.regimes)
        return locations, tf.reshape(self.kernel.steepness, [-1]), own

    def at(self, drawn: Drawn, X: tf.Tensor) -> tf.Tensor:
        """See `Features`."""
        locations, steepness, own = drawn
        rise = tf.sigmoid(steepness * (seen(self.kernel, X) - locations))  # [N, changes]
        edge = tf.ones_like(rise[:, :1])
        gates = tf.concat([edge, rise], axis=1) * tf.concat([1.0 - rise, edge], axis=1)
        parts = [regime.at(each, X) for regime, each in zip(self.regimes, own, strict=True)]
        return tf.concat([part * gates[:, i : i + 1] for i, part in enumerate(parts)], axis=1)


@dataclass(frozen=True)
class Combined:
    """The features of a sum of products: the parts of a product multiplied, the products side by side."""

    terms: tuple[tuple[Features, ...], ...]

    def draw(self, numbers: Numbers, count: int, width: int) -> Drawn:
        """See `Features`."""
        return tuple(tuple(part.draw(numbers, count, width) for part in term) for term in self.terms)

    def at(self, drawn: Drawn, X: tf.Tensor) -> tf.Tensor:
        """See `Features`."""
        found = []
        for term, own in zip(self.terms, drawn, strict=True):
            parts = [part.at(each, X) for part, each in zip(term, own, strict=True)]
            found.append(functools.reduce(outer, parts))
        return tf.concat(found, axis=1) if found else tf.zeros_like(X[:, :0])


EXACT: dict[type[Kernel], Any] = {
    gpflow.kernels.Linear: Linear,
    gpflow.kernels.Polynomial: Polynomial,
    gpflow.kernels.Coregion: Coregion,
}


def features_of(kernel: Kernel) -> Combined:
    """Return the features of a kernel of one output.

    Raises
    ------
    NotImplementedError
        For a kernel without, and for products that have none: of White with others, or of two kernels that
        are not stationary.
    """
    return Combined(tuple(_term(factors) for factors in _terms(kernel) if not _is_white(factors)))


def white_variance(kernel: Kernel) -> tf.Tensor | float:
    """Return the variance of the White parts of a kernel, which no feature has, []."""
    parts = [factors for factors in _terms(kernel) if _is_white(factors)]
    return sum(math.prod(tf.reshape(factor.variance, []) for factor in factors) for factors in parts)


def _terms(kernel: Any) -> list[tuple[Any, ...]]:
    """Multiply a kernel out: return the factors of each product of the sum."""
    if type(kernel) is Sum:
        return [term for part in kernel.kernels for term in _terms(part)]
    if type(kernel) is Product:
        parts = itertools.product(*(_terms(part) for part in kernel.kernels))
        return [tuple(itertools.chain(*each)) for each in parts]
    return [(kernel,)]


def _is_white(factors: tuple[Kernel, ...]) -> bool:
    kinds = {type(factor) for factor in factors}
    return White in kinds and kinds <= {White, Constant}


def _term(factors: tuple[Any, ...]) -> tuple[Features, ...]:
    waves, cosines = _waves(factors)
    levels = tuple(each for each in factors if type(each) is Constant)
    others = [each for each in factors if type(each) not in FREQUENCIES and type(each) is not Constant]
    exact = [EXACT[type(each)](each) for each in others if type(each) in EXACT]
    rest = [_random(each) for each in others if type(each) not in EXACT]
    if len(rest) + bool(waves) > 1:
        names = " and ".join(type(each).__name__ for each in factors)
        raise NotImplementedError(f"The product of {names} has no random features: {INSTEAD}.")
    parts: list[Features] = [Fourier(waves)] if waves else []
    parts += [Fourier((cosine,)) for cosine in cosines]
    parts += rest + exact
    if levels or not parts:
        parts.append(Level(levels))
    return tuple(parts)


def _waves(factors: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
    """Return the stationary factors whose frequencies are added, and cosines that have features of their own.

    The spectral density of a cosine is at ±ω. One sign is enough where all others are symmetric, but not for
    two cosines: cos a cos b is no cos(a + b).
    """
    stationary = [each for each in factors if type(each) in FREQUENCIES]
    cosines = [each for each in stationary if type(each) is gpflow.kernels.Cosine]
    others = [each for each in stationary if type(each) is not gpflow.kernels.Cosine]
    return (*others, *cosines[:1]), cosines[1:]


def _random(kernel: Any) -> Features:
    if type(kernel) is gpflow.kernels.ArcCosine:
        return HalfSpaces(kernel)
    if type(kernel) is gpflow.kernels.ChangePoints:
        if any(_is_white(term) for part in kernel.kernels for term in _terms(part)):
            raise NotImplementedError(f"White within ChangePoints has no random features: {INSTEAD}.")
        return Gated(kernel, tuple(map(features_of, kernel.kernels)))
    if type(kernel) is White:
        raise NotImplementedError(
            f"White times a kernel other than Constant has no random features: {INSTEAD}."
        )
    raise NotImplementedError(
        f"sample_functions knows no random features of {type(kernel).__name__}: {INSTEAD}, or give the class "
        "a spectral density by gpflow_ext.functions.frequencies.register."
    )


def active(kernel: Kernel, width: int) -> np.ndarray[Any, Any]:
    """Return the columns of inputs [N, width] that a kernel sees."""
    return np.arange(width)[kernel.active_dims]


def seen(kernel: Kernel, X: tf.Tensor) -> tf.Tensor:
    """Return the active columns of inputs [N, D]."""
    return kernel.slice(X, None)[0]


def outer(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Return all products of features [N, F] and [N, G], [N, FG]."""
    width = operator.mul(left.shape[1], right.shape[1])
    return tf.reshape(left[:, :, None] * right[:, None, :], [-1, width])
