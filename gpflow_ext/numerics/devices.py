"""What devices TensorFlow computes on."""

from __future__ import annotations

import tensorflow as tf


def has_accelerator() -> bool:
    """Tell whether TensorFlow sees a GPU or a TPU."""
    return bool(tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))
