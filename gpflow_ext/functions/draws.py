"""Functions drawn from a posterior, to be called at any inputs."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import tensorflow as tf

from gpflow_ext.data.arguments import check_seed
from gpflow_ext.functions.given import Given
from gpflow_ext.functions.product import Drawing, Product, paths_of
from gpflow_ext.numerics import batched

NUM_FEATURES = 1024


class FunctionDraws(tf.Module):
    """S functions drawn from a posterior, which stay the same when the model changes.

    ``draws(X)`` is differentiable in X. They are draws of f without the ``White`` part of its kernel: their
    covariance is that of ``predict_f`` less the variance of ``White`` on the diagonal.

    Parameters
    ----------
    given
        What they are drawn from.
    seed
        Seed of the functions.
    num_samples, num_features, groups, dtype
        See `SamplesFunctions.sample_functions`.

    Attributes
    ----------
    num_samples
        S.
    """

    def __init__(
        self,
        given: Given | Product,
        num_samples: int,
        seed: int,
        num_features: int = NUM_FEATURES,
        groups: int = 1,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_seed(seed)
        self._paths = paths = paths_of(given, num_samples, num_features, groups, dtype)
        self.num_samples = num_samples
        draw = tf.function(lambda: paths.state(seed, given), autograph=False) if paths.groups > 1 else None
        state = paths.state(seed, given) if draw is None else draw()
        self._state: Any = tf.nest.map_structure(lambda part: tf.Variable(part, trainable=False), state)
        spec = tf.TensorSpec([None, paths.width], paths.dtype)
        self._block = tf.function(self._rows, input_signature=[spec], autograph=False)

    def __call__(self, X: Any) -> tf.Tensor:
        """Return the functions at inputs X [N, D], [S, N, P]. O(NS(F + M)), in blocks of rows.

        Raises
        ------
        ValueError
            For inputs of another width.
        """
        X = self._inputs(X)
        count = X.shape[0]
        if not tf.executing_eagerly():
            return tf.transpose(by_blocks(self._paths, self._drawn(), X), [1, 0, 2])
        size = self._paths.block
        if count <= size:
            return tf.transpose(self._block(X), [1, 0, 2])
        blocks = [self._block(X[begin : begin + size]) for begin in range(0, count, size)]
        return tf.transpose(tf.concat(blocks, axis=0), [1, 0, 2])

    def numpy(self, X: Any) -> np.ndarray[Any, Any]:
        """Return the same as an array, in the memory of the result and of one block."""
        X, size = np.asarray(X), self._paths.block
        found: np.ndarray[Any, Any] | None = None
        for begin in range(0, max(len(X), 1), size):
            block = self._block(self._inputs(X[begin : begin + size]))
            if found is None:
                shape = (block.shape[1], len(X), block.shape[2])
                found = np.empty(shape, block.dtype.as_numpy_dtype)
            found[:, begin : begin + size] = block.numpy().transpose(1, 0, 2)
        assert found is not None
        return found

    def _rows(self, X: tf.Tensor) -> tf.Tensor:
        return self._paths.rows(self._drawn(), X)

    def _drawn(self) -> Any:
        return tf.nest.map_structure(tf.convert_to_tensor, self._state)

    def _inputs(self, X: Any) -> tf.Tensor:
        X = batched.numbers(X, self._paths.dtype)
        width = self._paths.width
        if X.shape.rank != 2 or (width is not None and X.shape[1] != width):
            raise ValueError(
                f"X must be inputs [N, {'D' if width is None else width}]; its shape is {X.shape}."
            )
        return X


class SamplesFunctions(abc.ABC):
    """Mixin of posteriors whose functions can be drawn, to be their first base."""

    @abc.abstractmethod
    def functions(self) -> Given | Product:
        """Return what the functions are drawn from."""

    def sample_functions(
        self,
        num_samples: int,
        seed: int,
        *,
        num_features: int = NUM_FEATURES,
        groups: int = 1,
        dtype: Any = None,
    ) -> FunctionDraws:
        """Draw functions of the posterior, which can then be called at any inputs.

        Parameters
        ----------
        num_samples
            S, the number of functions.
        seed
            The same seed gives the same functions, in every process and in an export.
        num_features
            F, the number of random features. Far from the data the covariance is off by about √(2/F) of the
            variance; near them it is right.
        groups
            Number of groups of functions, each with random features of its own, at the cost of a query for
            each. All functions of a group share the error of its features; over groups it averages out.
        dtype
            With ``tf.float32`` a model in double precision is evaluated three times as fast; the functions
            are still drawn in the precision of the model.

        Raises
        ------
        NotImplementedError
            For kernels without random features, and inducing variables other than points or features.
        ValueError
            For a seed that is not a whole number of 32 bits, numbers below one, an odd ``num_features``, or a
            ``num_samples`` not divisible by ``groups``.
        """
        return FunctionDraws(self.functions(), num_samples, seed, num_features, groups, dtype)


def by_blocks(paths: Drawing, state: Any, X: tf.Tensor) -> tf.Tensor:
    """Return the functions at X in a graph, [N, S, P], some rows at a time where there are many."""
    count, shape = tf.shape(X)[0], [None, paths.num_samples, paths.num_outputs]

    def blocks() -> tf.Tensor:
        number = (count + paths.block - 1) // paths.block
        array = tf.TensorArray(X.dtype, number, element_shape=shape, infer_shape=False)

        def step(k: tf.Tensor, array: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            return k + 1, array.write(k, paths.rows(state, X[k * paths.block : (k + 1) * paths.block]))

        _, array = tf.while_loop(
            lambda k, _: k < number, step, (tf.constant(0), array), parallel_iterations=1
        )
        return array.concat()

    return tf.ensure_shape(tf.cond(count <= paths.block, lambda: paths.rows(state, X), blocks), shape)
