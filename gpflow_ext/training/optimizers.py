"""The optimiser that a recipe is given, ready to be checkpointed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from gpflow.keras import tf_keras


def built(
    optimizer: Any | None, variables: Sequence[tf.Variable], rate: Any = 0.01, otherwise: str = ""
) -> Any:
    """Return a tf_keras optimiser with its slots made, by default Adam at the learning rate ``rate``.

    It belongs to the ``tf.distribute`` strategy in whose scope the variables were made, if any.

    Raises
    ------
    ValueError
        For anything else; the message goes on with ``otherwise``. For an optimiser that was made outside of
        the scope of the variables.
    """
    strategies = [v.distribute_strategy for v in variables if isinstance(v, tf.distribute.DistributedValues)]
    scope = strategies[0].scope() if strategies else contextlib.nullcontext()
    if optimizer is None:
        with scope:
            optimizer = tf_keras.optimizers.Adam(rate)
    elif strategies and getattr(optimizer, "_distribution_strategy", None) is not strategies[0]:
        raise ValueError(
            "The model was built inside of `strategy.scope()` and `optimizer` was not: make both there."
        )
    if not isinstance(optimizer, tf_keras.optimizers.Optimizer):
        raise ValueError(
            f"`optimizer` must be a tf_keras optimiser (see gpflow.keras.tf_keras){otherwise}; "
            f"got {type(optimizer)}."
        )
    optimizer.build(variables)
    return optimizer
