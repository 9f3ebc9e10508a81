"""Parameters and data drawn together from a free-form model: what simulation-based tests of a sampler need."""

from __future__ import annotations

from collections.abc import Callable

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_ext.likelihoods import BernoulliProbit, PoissonLog, RobustMax
from gpflow_ext.models import SGPMCFreeForm
from gpflow_ext.sampling import iterations
from gpflow_ext.sampling.target import Target
from gpflow_ext.sampling.tuning import Setting

tfd = tfp.distributions
M = 8  # inducing points
DENSE = np.linspace(-2.0, 2.0, M)[:, None]
SPARSE = np.random.default_rng(4).normal(size=(20, M))


def gamma(shape: float, rate: float) -> tfd.Gamma:
    return tfd.Gamma(np.float64(shape), np.float64(rate))


def noisy() -> gpflow.likelihoods.Gaussian:
    likelihood = gpflow.likelihoods.Gaussian(0.5)
    likelihood.variance.prior = gamma(3.0, 6.0)
    return likelihood


def normal(f: np.ndarray, noise: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return f + np.sqrt(noise)[:, None, None] * rng.standard_normal(f.shape)


def sign(f: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (rng.standard_normal(f.shape) < f).astype(float)


def count(f: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.poisson(np.exp(np.minimum(f, 12.0))).astype(float)


def largest(f: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The largest of three functions, and with probability ε = 0.1 one of the other two."""
    best = f.argmax(axis=-1)
    wrong = rng.uniform(size=best.shape) < 0.1
    return np.where(wrong, (best + rng.integers(1, 3, best.shape)) % 3, best)[..., None].astype(float)


LIKELIHOODS: dict[str, tuple[Callable[[], gpflow.likelihoods.Likelihood], int, Callable[..., np.ndarray]]] = {
    "regression": (noisy, 1, normal),
    "binary": (BernoulliProbit, 1, sign),
    "poisson": (PoissonLog, 1, count),
    "classes": (lambda: RobustMax(3, 0.1), 3, largest),
}


class Joint:
    """C copies of a model side by side, each with data of its own.

    The density must be that of a model from which data can be drawn. With fewer inducing points than data it
    is, where the kernel has no higher rank: so Z = X under a squared exponential kernel, or 8 inducing points
    for 20 data of 8 columns under a linear one.

    Parameters
    ----------
    name
        Of `LIKELIHOODS`.
    copies
        C.
    sparse
        Which of the two.
    jacobian, power
        What the log Jacobians and the whole density are multiplied by: 1 in a right sampler.
    """

    def __init__(
        self, name: str, copies: int, sparse: bool = False, jacobian: float = 1.0, power: float = 1.0
    ) -> None:
        build, self._P, self._simulate = LIKELIHOODS[name]
        kernel = gpflow.kernels.Linear() if sparse else gpflow.kernels.SquaredExponential()
        kernel.variance.prior = gamma(3.0, 20.0) if sparse else gamma(3.0, 2.0)
        if not sparse:
            kernel.lengthscales.prior = gamma(4.0, 4.0)
        self.X, self.copies = SPARSE if sparse else DENSE, copies
        self.N = len(self.X)
        self._likelihood, self._noisy = build(), name == "regression"
        self.model = SGPMCFreeForm(
            (self.X, np.zeros([self.N, 1])),
            kernel,
            self._likelihood,
            num_latent_gps=self._P,
            inducing_variable=self.X[:M].copy(),
        )
        self._Y = tf.Variable(np.zeros([copies * self.N, 1]))
        self.target = Target(self.model, self._log_likelihoods)
        self._size = M * self._P
        self.columns = {"v": 2, "V": self._size - 1}  # two whitened values, and all hyperparameters
        offset = self._size
        for coordinate in self.target.coordinates[1:]:
            self.columns[coordinate.name] = offset
            offset += coordinate.size
        self._run = iterations.runner(
            lambda z: power * (self.target(z) + (jacobian - 1.0) * tf.reduce_sum(z[:, self._size :], axis=1))
        )

        self._latent = tf.function(self._latent_of, autograph=False)

    @property
    def Y(self) -> np.ndarray:
        """The data, [C, N]."""
        return self._Y.numpy().reshape(self.copies, self.N)

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw parameters from the prior, [C, d] in the coordinates of the sampler."""
        columns = []
        for c in self.target.coordinates:
            shape = (self.copies, *c.parameter.shape)
            if c.name == "V":
                value = rng.standard_normal(shape)
            else:
                prior = c.parameter.prior
                value = rng.gamma(float(prior.concentration), 1.0 / float(prior.rate), shape)
            columns.append(c.bijector.inverse(tf.constant(value)).numpy().reshape(self.copies, -1))
        return np.concatenate(columns, axis=1)

    def observe(self, x: np.ndarray, rng: np.random.Generator) -> None:
        """Draw the data given the parameters."""
        f, noise = self.latent(x)
        self._Y.assign(self._simulate(f, noise, rng).reshape(-1, 1))

    def latent(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return f(X) [C, N, P] and the variance of the noise [C], 0 where there is none."""
        mean, noise = self._latent(tf.constant(x))
        return mean.numpy(), noise.numpy()

    def advance(self, x: np.ndarray, seed: int, kept: int, thin: int) -> np.ndarray:
        """Run a chain for each copy given its data; return its positions, [S, C, d]."""
        setting = Setting(0.3, 6)
        return iterations.call(self._run, tf.constant(x), setting, [5, seed], kept, thin)[1].position.numpy()

    def _latent_of(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        values = self.target.values(x)
        noise = values[self._likelihood.variance] if self._noisy else tf.zeros([self.copies], x.dtype)
        return self.model.density.moments(values, tf.constant(self.X))[0], noise

    def _log_likelihoods(self, stack):
        mean, var = (
            tf.reshape(part, [-1, self._P]) for part in self.model.density.moments(stack, tf.constant(self.X))
        )
        if self._noisy:  # its variance is sampled: one for each copy
            noise = tf.repeat(stack[self._likelihood.variance], self.N)[:, None]
            terms = tfd.Normal(mean, tf.sqrt(noise)).log_prob(self._Y) - 0.5 * var / noise
        else:
            inputs = tf.zeros([self.copies * self.N, 1], tf.float64)
            terms = self._likelihood.variational_expectations(inputs, mean, var, self._Y)
        return tf.reduce_sum(tf.reshape(terms, [self.copies, -1]), axis=1)
