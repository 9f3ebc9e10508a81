"""The rule by which the authors of sparse EP moved the hyperparameters in batch mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from gpflow.keras import tf_keras

from gpflow_ext.training.optimizers import InLogSpace


class _SignRule(tf_keras.optimizers.Optimizer):
    def __init__(self, rate: float = 1e-2, name: str = "SignAgreement") -> None:
        super().__init__(name=name, jit_compile=False)
        self._rate = rate
        self._learning_rate = self._build_learning_rate(rate)

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Make the step sizes and the last signs."""
        super().build(var_list)
        if getattr(self, "_sizes", None):
            return
        self._sizes, self._signs = [], []
        for variable in var_list:
            shared = len(variable.shape) == 1
            shape = [] if shared else variable.shape
            first = tf.fill(shape, tf.constant(self._rate * (0.25 if shared else 1.0), variable.dtype))
            self._sizes.append(self.add_variable_from_reference(variable, "size", shape, first))
            self._signs.append(
                self.add_variable_from_reference(variable, "sign", shape, tf.zeros(shape, variable.dtype))
            )

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Take one step down the gradient."""
        index = self._index_dict[self._var_key(variable)]
        size, last = self._sizes[index], self._signs[index]
        sign = tf.sign(tf.reduce_sum(gradient) if len(variable.shape) == 1 else gradient)
        grow, shrink, keep = (
            tf.fill(tf.shape(sign), tf.constant(factor, sign.dtype)) for factor in (1.02, 0.5, 1.0)
        )
        size.assign(size * tf.where(last == 0.0, keep, tf.where(sign == last, grow, shrink)))
        last.assign(sign)
        variable.assign_sub(size * gradient)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {"name": self.name, "rate": self._rate}


class SignAgreement(InLogSpace, _SignRule):
    """Gradient ascent with a step size to each parameter, ×1.02 where the gradient keeps its sign, else ×0.5.

    The rule of the paper's own batch code. The length scales (a vector) share one size, set by the sign of
    the sum of their gradients. On log ℓ the sizes are a quarter of those on log ℓ², which that code moves.

    Parameters
    ----------
    rate
        The first step size: a step is size × gradient.
    parameters
        Those that its variables belong to; the positive ones move by their logarithms.
    """
