"""What TensorFlow keeps of operations that are done."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from gpflow_ext.compiled import kernels
from scripts.tools.soak import memory


def test_kernels_of_variables_of_other_sizes_are_forgotten() -> None:
    """Without, each round leaves 14 MB."""
    after = []
    for begin in range(100, 1100, 200):
        for size in range(begin, begin + 200):
            tf.Variable(np.zeros([size, 1]))
        kernels.forget()
        after.append(memory())
    assert after[-1] - after[1] <= 10.0
