"""Kernels that suit given nodes of a regression network: under which these are most probable, of a grid."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from gpflow.kernels import Kernel, Stationary

from gpflow_ext.compiled import Preferred
from gpflow_ext.data import length_scales
from gpflow_ext.gprn import node_kernels
from gpflow_ext.gprn.model import GPRNTensor

Array = npt.NDArray[np.float64]

LENGTHS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)  # of k_f, in those that the inputs suggest
SHARES = (0.01, 0.1, 0.3, 0.6)  # of the nugget in the variance of a node


class Varied:
    """Functions to compile, of a kernel with other values of its parameters, which it has in these alone."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def gram(self, X: tf.Tensor, lengths: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return k(X, X), [N, N], with length scales of the parts in which they move."""
        with self._put_back():
            for part, length in zip(moving(self._kernel), lengths, strict=True):
                part.lengthscales.assign(length)
            return tf.identity(node_kernels.gram(self._kernel, X))

    def variance(self, X: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        """Return the mean of k(xₙ, xₙ), [], with multiples of the variances that move."""
        with self._put_back():
            rescale(self._kernel, factor)
            return tf.reduce_mean(node_kernels.variances(self._kernel, X))

    def own_variance(self, X: tf.Tensor) -> tf.Tensor:
        """Return the mean of k(xₙ, xₙ), [], over the nodes too."""
        return tf.reduce_mean(node_kernels.variances(self._kernel, X))

    @contextlib.contextmanager
    def _put_back(self) -> Iterator[None]:
        before = [(variable, variable.read_value()) for variable in self._kernel.trainable_variables]
        yield
        for variable, value in before:
            variable.assign(value)


def suit_nodes(model: GPRNTensor, F: Array) -> None:
    """Give k_f the length scales, and nodes the nugget, under which F [N, K] is most probable, of a grid."""
    if not node_kernels.are_separate(model.kernel):
        within_bounds(model.nugget, suit(model.kernel, model.data[0], F))
        return
    kernels, columns = node_kernels.each(model.kernel), np.split(F, F.shape[1], axis=1)
    shares = [suit(kernel, model.data[0], f) for kernel, f in zip(kernels, columns, strict=True)]
    within_bounds(model.nugget, np.array(shares))


def suit(kernel: Kernel, X: tf.Tensor, F: Array) -> float:
    """Give a kernel the length scales under which the nodes F [N, K] that have it are most probable.

    The Gram matrix of a sum of kernels is scaled as a whole, even where only some variances are trainable.

    Returns
    -------
    The nugget that goes with them.
    """
    variance, own = float(np.mean(F**2)), variance_of(kernel, X)
    varied = Varied(kernel)
    compiled, dtype = Preferred(varied, lasting=True), X.dtype
    factors = [(1.0 - share) * variance / own for share in SHARES]
    scales = [float(compiled(varied.variance, X, tf.constant(factor, dtype))) / own for factor in factors]
    units, found = [_unit(part, X) for part in moving(kernel)], []
    for length in LENGTHS:
        lengths = [length * unit if varies else unit for unit, varies in units]
        eigenvalues, vectors = np.linalg.eigh(compiled(varied.gram, X, lengths).numpy().astype(np.float64))
        squares = np.sum((vectors.T @ F) ** 2, axis=1)
        for share, scale in zip(SHARES, scales, strict=True):
            variances = scale * np.maximum(eigenvalues, 0.0) + share * variance + gpflow.default_jitter()
            density = -0.5 * np.sum(squares / variances + F.shape[1] * np.log(variances))
            found.append((density, length, share))
    _, length, share = max(found)
    stretch(kernel, X, length)
    rescale(kernel, (1.0 - share) * variance / own)
    return share * variance


def variance_of(kernel: Kernel, X: tf.Tensor) -> float:
    """Return the mean variance of a kernel, or of those of each node, at X [N, Q]."""
    varied = Varied(kernel)
    return float(Preferred(varied, lasting=True)(varied.own_variance, X))


def moving(kernel: Kernel) -> list[Stationary]:
    """Return the stationary parts of a kernel whose length scales are trainable."""
    return [part for part in length_scales.stationary(kernel) if length_scales.moves(part)]


def _unit(part: Stationary, X: tf.Tensor) -> tuple[tf.Tensor, bool]:
    """Return the length scales that inputs suggest and true, or those of a kernel where they do not vary."""
    value = length_scales.suggested(part, X)
    return (tf.convert_to_tensor(part.lengthscales), False) if value is None else (value, True)


def stretch(kernel: Kernel, X: tf.Tensor, factor: float) -> None:
    """Give the stationary parts of a kernel a multiple of the length scales that the inputs suggest."""
    for part in length_scales.stationary(kernel):
        value = length_scales.suggested(part, X)
        if value is not None:
            part.lengthscales.assign(factor * value)


def rescale(kernel: Kernel, factor: float | tf.Tensor) -> None:
    """Multiply the variances of the stationary parts of a kernel, where they are trainable."""
    for part in length_scales.stationary(kernel):
        if part.variance.trainable:
            part.variance.assign(factor * part.variance)


def within_bounds(parameter: Any, value: Any) -> None:
    """Assign a value to a parameter, where it is trainable, well within its bounds if it has any."""
    if not parameter.trainable:
        return
    low, high = (getattr(parameter.transform, end, np.nan) for end in ("low", "high"))
    bounded = np.isfinite(low) and np.isfinite(high)
    parameter.assign(np.clip(value, 1.01 * float(low), 0.99 * float(high)) if bounded else value)


def values_of(module: tf.Module) -> list[Any]:
    """Return the values of the trainable parameters."""
    return [parameter.numpy() for parameter in module.trainable_parameters]


def restore(module: tf.Module, values: Sequence[Any]) -> None:
    """Give the trainable parameters values that they had."""
    for parameter, value in zip(module.trainable_parameters, values, strict=True):
        parameter.assign(value)
