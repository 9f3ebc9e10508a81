"""Classes: which likelihoods are classifiers, and which targets are class numbers."""

from __future__ import annotations

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf


def class_probabilities(
    likelihood: gpflow.likelihoods.Likelihood, X: tf.Tensor, Fmu: tf.Tensor, Fvar: tf.Tensor
) -> tf.Tensor | None:
    """Return the predictive probability of each class, or ``None`` where the likelihood is not a classifier.

    Parameters
    ----------
    likelihood
        A likelihood with its own ``class_probabilities(X, Fmu, Fvar)`` method, or GPflow's
        ``Bernoulli`` or ``MultiClass``.
    X
        Inputs, shape [N, D].
    Fmu, Fvar
        Mean and variance of the latent functions, shape [N, L].

    Returns
    -------
    Probabilities in class order, shape [N, K], or ``None``.
    """
    own = getattr(likelihood, "class_probabilities", None)
    if own is not None:
        return own(X, Fmu, Fvar)
    if isinstance(likelihood, gpflow.likelihoods.Bernoulli):
        positive, _ = likelihood.predict_mean_and_var(X, Fmu, Fvar)
        return tf.concat([1.0 - positive, positive], axis=-1)
    if isinstance(likelihood, gpflow.likelihoods.MultiClass):
        return likelihood.predict_mean_and_var(X, Fmu, Fvar)[0]
    return None


def check_class_numbers(Y: npt.ArrayLike, num_classes: int) -> None:
    """Raise ``ValueError``, with the fix, unless ``Y`` (of any shape) holds only the integers 0 .. K-1.

    A class that does not occur is no error.
    """
    values = np.asarray(Y)
    numeric = values.dtype.kind in "biuf"
    found = np.unique(values if numeric else values.astype(str))
    wrong = found[~np.isin(found, np.arange(num_classes))] if numeric else found
    if not wrong.size:
        return
    shown = np.array2string(wrong[:5], separator=", ") + (
        f" and {wrong.size - 5} more" if wrong.size > 5 else ""
    )
    shifted = numeric and np.isin(found, np.arange(1, num_classes + 1)).all()
    recipe = "encode with Y - 1" if shifted else f"encode the classes as 0, …, {num_classes - 1}"
    raise ValueError(
        f"Y must hold the class numbers 0 to {num_classes - 1}; found values {shown}: {recipe}, "
        "or load through gpflow_ext.datasets"
    )
