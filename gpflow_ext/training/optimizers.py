"""The optimiser that a recipe is given, ready to be checkpointed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from gpflow.keras import tf_keras


def built(
    optimizer: Any | None, variables: Sequence[tf.Variable], rate: Any = 0.01, otherwise: str = ""
) -> Any:
    """Return a tf_keras optimiser with its slots made, by default Adam at the learning rate ``rate``.

    Raises
    ------
    ValueError
        For anything else; the message goes on with ``otherwise``.
    """
    optimizer = tf_keras.optimizers.Adam(rate) if optimizer is None else optimizer
    if not isinstance(optimizer, tf_keras.optimizers.Optimizer):
        raise ValueError(
            f"`optimizer` must be a tf_keras optimiser (see gpflow.keras.tf_keras){otherwise}; "
            f"got {type(optimizer)}."
        )
    optimizer.build(variables)
    return optimizer
