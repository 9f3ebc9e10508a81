"""Matrix products in full single precision.

By default TensorFlow lets a GPU round the factors of a product of float32 to TensorFloat-32, ten bits, and a
TPU to bfloat16, eight. A Gram matrix is then wrong in its third or second digit without any sign: it stays
positive definite, and the bound is that of another model.
"""

from __future__ import annotations

import warnings

import tensorflow as tf

_rounded = False  # whether the user wants it so


def allow_tf32(allowed: bool = True) -> None:
    """Let products of float32 be rounded to TensorFloat-32 (on a TPU to bfloat16), or compute them exactly.

    By default they are exact. The setting applies to functions compiled afterwards, in the whole process: it
    is TensorFlow's own, ``tf.config.experimental.enable_tensor_float_32_execution``.

    Parameters
    ----------
    allowed
        Whether rounding is allowed: faster, but covariances are then wrong in the third digit.
    """
    global _rounded
    _rounded = allowed
    tf.config.experimental.enable_tensor_float_32_execution(allowed)


def make_exact() -> None:
    """Turn TensorFloat-32 off, unless the user has allowed it; said once, where a device has it."""
    if _rounded or not tf.config.experimental.tensor_float_32_execution_enabled():
        return
    tf.config.experimental.enable_tensor_float_32_execution(False)
    if any(device.device_type != "CPU" for device in tf.config.list_physical_devices()):
        warnings.warn(
            "Products of float32 are exact from here on in this process, as covariances need them: "
            "TensorFloat-32 is turned off. `gpflow_ext.allow_tf32()` turns it on again.",
            stacklevel=2,
        )
