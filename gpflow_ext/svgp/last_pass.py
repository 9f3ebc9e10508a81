"""The end of a training on minibatches: one natural-gradient step of q on all data, the hyperparameters held.

On minibatches q is an average over the last ones, and as noisy as these few rows: the more so, the more
inducing points there are. A step of length one on all rows leaves no such noise; see `svgp.natural_gradient`.
O(NM² + M³), in pieces, without the gradient of the hyperparameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.data.rows import CHUNK
from gpflow_ext.numerics import linalg
from gpflow_ext.svgp.natural_gradient import AscentUpdates, Minibatch, WhitenedVariational
from gpflow_ext.training.loop import resolve_jit


class WholeStep(AscentUpdates):
    """Functions to compile: the sums of a step over the data, in pieces, and the step.

    Parameters
    ----------
    target
        The model.
    """

    def __init__(self, target: WhitenedVariational) -> None:
        super().__init__(target, (), None, True, None)
        self.gram, self.pull = (
            tf.Variable(tf.zeros_like(part), trainable=False) for part in (self.prec, self.nat1)
        )

    def add(self, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        """Add rows X [B, D], Y [B, P] to the sums; return their Σₙ Eₙ, []. Negative weights are left out."""
        one = tf.ones([], self.nat1.dtype)
        sums = self._sums(X, Y, one, tf.zeros_like(one), ())
        self.gram.assign_add(tf.ensure_shape(sums.gram, self.gram.shape))
        self.pull.assign_add(tf.ensure_shape(sums.pull, self.pull.shape))
        return sums.value

    def close(self) -> tf.Tensor:
        """Take the step if it is safe; return whether it was, and the KL of q(v) before and after it, [3]."""
        length, before = tf.ones([], self.nat1.dtype), self._target.prior_kl()  # all of q is forgotten
        sums = self.gram.read_value(), self.pull.read_value()
        *_, mean, root, safe = self._natural_step(*sums, length)
        for parameter, value in zip((self._target.q_mu, self._target.q_sqrt), (mean, root), strict=True):
            parameter.assign(tf.where(safe, value, parameter))
        return tf.stack([tf.cast(safe, before.dtype), before, self._target.prior_kl()])

    def fit_of(self, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        """Return Σₙ Eₙ of rows X [B, D], Y [B, P], []."""
        return tf.reduce_sum(self._target.expectations(X, Y, *self._target.marginals(self._target.prior(X))))


def last_pass(target: WhitenedVariational, data: Minibatch, jit_compile: bool | None) -> bool:
    """Take the step if it raises the bound; return whether it did.

    Parameters
    ----------
    target
        The model.
    data
        All of X [N, D] and Y [N, P].
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.
    """
    updates = WholeStep(target)
    compiled = Compiled(updates, resolve_jit(jit_compile), batches=True)
    q = target.q_mu.unconstrained_variable, target.q_sqrt.unconstrained_variable
    before = [variable.read_value() for variable in q]

    def fit(of: Callable[..., tf.Tensor]) -> tf.Tensor:
        return tf.add_n([compiled(of, *piece) for piece in _pieces(data)])

    old = fit(updates.add)
    safe, kl_before, kl_after = tf.unstack(compiled(updates.close))
    old -= kl_before
    rises = bool(safe > 0.0) and bool(fit(updates.fit_of) - kl_after >= old - linalg.rounding_slack(old))
    if not rises:
        for variable, value in zip(q, before, strict=True):
            variable.assign(value)
    return rises


def _pieces(data: Minibatch) -> Iterator[Minibatch]:
    X, Y = data
    for first in range(0, len(X), CHUNK):
        yield tf.convert_to_tensor(X[first : first + CHUNK]), tf.convert_to_tensor(Y[first : first + CHUNK])
