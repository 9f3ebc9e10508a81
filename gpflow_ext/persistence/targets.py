"""Targets of a served model: how many columns they have, which hold a class, which outputs there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import gpflow
import numpy as np
import tensorflow as tf

Moments = dict[str, tf.Tensor]


def target_width(likelihood: gpflow.likelihoods.Likelihood, outputs: Mapping[str, tf.Tensor]) -> int | None:
    """Return P of the targets [N, P] whose density is asked for, from the outputs of ``serving_default``."""
    if likelihood.observation_dim:
        return int(likelihood.observation_dim)
    if "class" in outputs:
        return 1
    width: int | None = outputs["mean"].shape[-1]
    if isinstance(likelihood, gpflow.likelihoods.SwitchedLikelihood):  # a mean by each, and a number of one
        return None if width is None else width // len(likelihood.likelihoods) + 1
    return width


def known_targets(
    targets: tf.Tensor, ok: tf.Tensor, probabilities: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return targets [N, P] with a class in every row, and which ``ok`` rows had one.

    Other numbers would have the density of some class, or end the call. Nothing is changed where there are no
    classes, and so no ``probabilities`` [N, K].
    """
    if probabilities is None:
        return targets, ok
    are = (targets >= 0.0) & (targets == tf.floor(targets))
    if probabilities.shape[-1] is not None:
        are &= targets < float(probabilities.shape[-1])
    ok &= tf.reduce_all(are, axis=-1)
    return tf.where(ok[:, None], targets, tf.constant(0.0, targets.dtype)), ok


def of_known_outputs(
    predict: Callable[[tf.Tensor, tf.Tensor], Moments], count: int
) -> Callable[[tf.Tensor, tf.Tensor], Moments]:
    """Return a function of inputs [N, D] and outputs [B] that is NaN where an output is none of ``count``.

    ``predict`` returns tensors [N, B]. With such a number its call ends in an error on a CPU; other devices
    take zeros for what is not there.
    """

    def known(inputs: tf.Tensor, outputs: tf.Tensor) -> Moments:
        are = (outputs >= 0) & (outputs < count)  # [B]
        found = predict(inputs, tf.where(are, outputs, 0))
        return {key: tf.where(are, part, tf.constant(np.nan, part.dtype)) for key, part in found.items()}

    return known
