"""Draws of outputs that are products of functions, Σ_k w_dk(x)f_k(x), each factor drawn as a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from gpflow_ext.functions.given import Given
from gpflow_ext.functions.paths import Paths, State, num_groups


@dataclass(frozen=True)
class Product:
    """Description of two independent posteriors whose functions are multiplied.

    Where they hold draws of a sampler both have the same, and factors of the same draw are multiplied.

    Attributes
    ----------
    weights
        Of D·K functions, output by output.
    nodes
        Of K functions.
    scales
        Factors of the outputs, [D].
    """

    weights: Given
    nodes: Given
    scales: tf.Tensor


class Factors(NamedTuple):
    """Random quantities of both factors, and the scales of the outputs [D]."""

    weights: State
    nodes: State
    scales: tf.Tensor


class ProductPaths:
    """Draws of the outputs, as two functions: of a seed, and of inputs. Parameters are as for `Paths`."""

    def __init__(
        self,
        given: Product,
        num_samples: int,
        num_features: int,
        groups: int,
        dtype: tf.DType | None = None,
    ) -> None:
        each = num_groups(given.nodes, num_samples, groups)
        rest = num_samples, num_features, groups, dtype
        self._weights = Paths(given.weights, *rest, streams=(0, 2 * each))
        self._nodes = Paths(given.nodes, *rest, streams=(each, 2 * each))
        self.num_samples, self.groups = num_samples, each
        self.num_outputs = int(given.scales.shape[0])
        self.dtype, self.width, self.block = self._nodes.dtype, self._nodes.width, self._nodes.block

    def state(self, seed: int | tf.Tensor, given: Product) -> Factors:
        """Draw the functions of a seed; see `Paths.state`."""
        weights = self._weights.state(seed, given.weights)
        return Factors(weights, self._nodes.state(seed, given.nodes), tf.cast(given.scales, self.dtype))

    def rows(self, state: Factors, X: tf.Tensor) -> tf.Tensor:
        """Return the outputs at X [N, D], [N, S, P], all rows at once."""
        weights, nodes = self._weights.rows(state.weights, X), self._nodes.rows(state.nodes, X)
        apart = tf.reshape(weights, [-1, self.num_samples, self.num_outputs, nodes.shape[2]])
        return state.scales * tf.linalg.matvec(apart, nodes)


class Drawing(Protocol):
    """Protocol of `Paths` and `ProductPaths`."""

    num_samples: int
    groups: int
    num_outputs: int
    dtype: tf.DType
    width: int | None
    block: int

    def state(self, seed: int | tf.Tensor, given: Any) -> Any:
        """Draw the functions of a seed."""

    def rows(self, state: Any, X: tf.Tensor) -> tf.Tensor:
        """Return the functions at X [N, D], [N, S, P], all rows at once."""


def paths_of(
    given: Given | Product, num_samples: int, num_features: int, groups: int, dtype: tf.DType | None = None
) -> Drawing:
    """Return the draws that a description is of."""
    if isinstance(given, Product):
        return ProductPaths(given, num_samples, num_features, groups, dtype)
    return Paths(given, num_samples, num_features, groups, dtype)
