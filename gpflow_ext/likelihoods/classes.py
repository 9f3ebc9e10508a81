"""Class probabilities of the likelihoods that are classifiers, and a check of the moments they are given."""

from __future__ import annotations

import gpflow
import tensorflow as tf


def check_one_column(Fmu: tf.Tensor, of: str) -> None:
    """Raise ``ValueError`` unless means [..., 1] are of one latent function, that ``of`` something."""
    if Fmu.shape[-1] != 1:
        raise ValueError(
            f"Fmu must have one column, the latent function of the {of}; found shape {Fmu.shape}: "
            "pass the columns one by one"
        )


def class_probabilities(
    likelihood: gpflow.likelihoods.Likelihood, X: tf.Tensor, Fmu: tf.Tensor, Fvar: tf.Tensor
) -> tf.Tensor | None:
    """Return the predictive probability of each class, or ``None`` where the likelihood is not a classifier.

    Nor is one of labels that depend on one latent function, such as ``Bernoulli``, of several outputs.

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
    if isinstance(likelihood, gpflow.likelihoods.ScalarLikelihood) and Fmu.shape[-1] not in (1, None):
        return None
    own = getattr(likelihood, "class_probabilities", None)
    if own is not None:
        return own(X, Fmu, Fvar)
    if isinstance(likelihood, gpflow.likelihoods.Bernoulli):
        positive, _ = likelihood.predict_mean_and_var(X, Fmu, Fvar)
        return tf.concat([1.0 - positive, positive], axis=-1)
    if isinstance(likelihood, gpflow.likelihoods.MultiClass):
        return likelihood.predict_mean_and_var(X, Fmu, Fvar)[0]
    return None
