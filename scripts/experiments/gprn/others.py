"""Plain regression of each output on the inputs and the other outputs, where outputs are partly observed."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

Array = npt.NDArray[Any]
LOG_2PI = float(np.log(2.0 * np.pi))


class OtherOutputs:
    """A Gaussian process regression for one output at a time: y_d ~ GP(x, the other outputs at x).

    k = k_x k_y, squared exponentials of the inputs and of the other outputs, with a length scale each. A target
    that is missing among the other outputs stands at zero.

    Parameters
    ----------
    X, Y
        Inputs [N, Q] and targets [N, D] of mean zero, NaN where missing.
    floor
        The least variance of the noise.
    """

    def __init__(self, X: Array, Y: Array, floor: float) -> None:
        (N, Q), D = X.shape, Y.shape[1]
        self._X, self._Y = X, Y
        inputs, others = list(range(Q)), list(range(Q, Q + D))
        self.kernel = gpflow.kernels.SquaredExponential(active_dims=inputs)
        self.kernel *= gpflow.kernels.SquaredExponential(lengthscales=np.sqrt(D), active_dims=others)
        gpflow.set_trainable(self.kernel.kernels[1].variance, False)
        self.likelihood = gpflow.likelihoods.Gaussian(0.1, variance_lower_bound=floor)
        self._start = [variable.numpy() for variable in self._variables]
        self._features = tf.Variable(np.zeros([N, Q + D]))
        self._target, self._known = (tf.Variable(np.zeros([N, 1])) for _ in range(2))
        self._evidence = tf.function(self.log_marginal_likelihood, autograph=False)

    @property
    def _variables(self) -> list[tf.Variable]:
        return [*self.kernel.trainable_variables, *self.likelihood.trainable_variables]

    def fit(self, output: int) -> float:
        """Learn the hyperparameters for an output from their defaults; return the log evidence."""
        known = ~np.isnan(self._Y)
        others = np.where(known, self._Y, 0.0)
        others[:, output] = 0.0
        self._features.assign(np.hstack([self._X, others]))
        self._known.assign(known[:, [output]].astype(float))
        self._target.assign(np.where(known, self._Y, 0.0)[:, [output]])
        for variable, value in zip(self._variables, self._start, strict=True):
            variable.assign(value)
        gpflow.optimizers.Scipy().minimize(
            lambda: -self._evidence(), self._variables, compile=False, options={"maxiter": 100}
        )
        return float(self._evidence())

    def log_marginal_likelihood(self) -> tf.Tensor:
        """Return the log evidence of the known targets of the output."""
        chol, scaled = self._factor()
        logs = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(chol)))
        return -0.5 * (tf.reduce_sum(scaled**2) + tf.reduce_sum(self._known) * LOG_2PI) - logs

    def predict(self) -> tuple[Array, Array]:
        """Return mean and variance of y for the output in every row, [N] each."""
        chol, scaled = self._factor()
        cross = tf.linalg.triangular_solve(chol, self._known * self.kernel(self._features))
        var = self.kernel(self._features, full_cov=False) - tf.reduce_sum(cross**2, axis=0)
        mean = tf.matmul(cross, scaled, transpose_a=True)[:, 0]
        return mean.numpy(), (var + self.likelihood.variance).numpy()

    def _factor(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return L and L⁻¹y: rows whose target is missing have a covariance of their own, of variance one."""
        here = self._known
        own = self.likelihood.variance * here + (1.0 - here)
        chol = tf.linalg.cholesky(
            self.kernel(self._features) * here * tf.transpose(here) + tf.linalg.diag(own[:, 0])
        )
        return chol, tf.linalg.triangular_solve(chol, self._target)
