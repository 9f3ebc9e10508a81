"""Predict classes of many inputs, in batches by a cached posterior: probabilities, names, the top k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.data.arguments import check_kind, check_whole
from gpflow_ext.features.kernel import check_inputs
from gpflow_ext.likelihoods.classes import class_probabilities
from gpflow_ext.prediction.batches import Predicted

Array = npt.NDArray[Any]


class ClassPredictor:
    """Predicts classes with a trained model, from a cached posterior that does not follow further training.

    Parameters
    ----------
    model
        A GPflow model with a ``posterior`` and a likelihood of classes.
    labels
        Names of the classes in order, [K]; the class numbers by default.
    batch_size
        Number of inputs predicted at a time, which bounds the memory.
    jit_compile
        Compile with XLA; the last batch is then padded, so that only one graph is compiled.

    Raises
    ------
    ValueError
        If the likelihood is not a classifier, or the number of labels is not that of the classes.

    Examples
    --------
    >>> predictor = gpflow_ext.ClassPredictor(model, labels=split.labels)
    >>> predictor.labels(X), predictor.top(X, 3)
    """

    def __init__(
        self,
        model: gpflow.models.GPModel,
        labels: Sequence[Any] | None = None,
        *,
        batch_size: int = 1000,
        jit_compile: bool = False,
    ) -> None:
        check_kind(gpflow.models.GPModel, model=model)
        check_whole(batch_size=batch_size)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; got {batch_size}")
        self._model, self._batch_size, self._fill = model, batch_size, jit_compile
        self._predict = Predicted(model, jit_compile, lasting=True)
        dtype = gpflow.default_float()
        moments: tuple[Array, Array] = (
            np.zeros([1, model.num_latent_gps], dtype),
            np.ones([1, model.num_latent_gps], dtype),
        )
        one = class_probabilities(model.likelihood, np.zeros([1, 1], dtype), *map(tf.constant, moments))
        if one is None:
            raise ValueError(f"{type(model.likelihood).__name__} is not a likelihood of classes")
        self._cache = self._predict.of.cache()
        self.names = np.arange(one.shape[-1]) if labels is None else np.asarray(labels)
        if self.names.shape != (one.shape[-1],):
            raise ValueError(f"labels must name {one.shape[-1]} classes; its shape is {self.names.shape}")

    def probabilities(self, X: npt.ArrayLike) -> Array:
        """Return the probability of each class at X [N, D], [N, K]."""
        inputs: Array = np.asarray(X, gpflow.default_float())
        if inputs.ndim != 2:
            raise ValueError(f"X must have two axes, [N, D]; its shape is {inputs.shape}")
        check_inputs(self._model, inputs)
        found = [np.zeros([0, len(self.names)], inputs.dtype)]
        for begin in range(0, len(inputs), self._batch_size):
            part = inputs[begin : begin + self._batch_size]
            if self._fill and len(inputs) > self._batch_size:
                part = np.pad(part, [(0, self._batch_size - len(part)), (0, 0)])
            batch = self._predict(self._predict.of.probabilities, tf.constant(part), self._cache)
            found.append(batch.numpy()[: len(inputs) - begin])
        return np.concatenate(found)

    def _finite(self, X: npt.ArrayLike) -> Array:
        """Return the probabilities, or say which row has none."""
        found = self.probabilities(X)
        if (wrong := ~np.isfinite(found).all(axis=1)).any():
            raise ValueError(
                f"row {int(np.argmax(wrong))} of X (counted from 0) has no finite probabilities, and "
                f"{int(wrong.sum())} in all: drop or fill rows whose inputs are missing."
            )
        return found

    def labels(self, X: npt.ArrayLike) -> Array:
        """Return the name of the most probable class at X [N, D], [N].

        Raises
        ------
        ValueError
            Where probabilities are not finite, as at inputs that are missing.
        """
        return self.names[self._finite(X).argmax(axis=1)]

    def top(self, X: npt.ArrayLike, k: int) -> tuple[Array, Array]:
        """Return the names of the k most probable classes at X [N, D] and their probabilities, each [N, k].

        The most probable comes first. Errors are those of `labels`, and one for another k than 1 to K.
        """
        check_whole(k=k)
        if not 1 <= k <= len(self.names):
            raise ValueError(f"k must be from 1 to {len(self.names)}, the number of classes; got {k}")
        probabilities = self._finite(X)
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, :k]
        return self.names[order], np.take_along_axis(probabilities, order, axis=1)
