"""What the SparseEP experiments compare: FITC, SEP and SVI, each compiled once for data of one shape.

A method starts from the same point for the same training rows and inducing points, and can be started again on
others of the same shape without compiling. The model is that of the paper: probit likelihood, kernel with one
length scale to an input plus white noise, all hyperparameters on a logarithmic scale, inducing inputs learnt.
"""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.ep.engine import MomentMatcher
from gpflow_ext.ep.sign_agreement import SignAgreement
from gpflow_ext.sites.algebra import Sites

from .optimisers import Each, lbfgs

NOISE = 1e-3  # the starting variance of the white noise
BATCH = 10_000  # rows predicted at once
Data: TypeAlias = tuple[Any, Any]


class Clock:
    """Seconds since it was made, without those spent in `paused`: of a clock on the wall, or of the processor."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now, self._pauses = now, 0.0
        self._begin = now()

    @property
    def seconds(self) -> float:
        """The time that counts."""
        return self._now() - self._begin - self._pauses

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock, for what a user of a method would not compute."""
        begin = self._now()
        yield
        self._pauses += self._now() - begin


def paper_kernel(num_inputs: int) -> gpflow.kernels.Kernel:
    """Return σ² exp(−½ Σ_d (x_d − x'_d)²/ℓ_d²) + σ₀², its parameters on a logarithmic scale."""
    signal, noise = gpflow.kernels.SquaredExponential(), gpflow.kernels.White()

    def logarithmic(value: Any) -> gpflow.Parameter:
        return gpflow.Parameter(value, transform=tfp.bijectors.Exp())

    signal.variance, signal.lengthscales = logarithmic(1.0), logarithmic(np.ones(num_inputs))
    noise.variance = logarithmic(NOISE)
    return signal + noise


def starting_lengthscale(Z: Any) -> float:
    """Return the square root of the median distance of the inducing points: ℓ² is that distance in the paper's code."""
    distances = np.sqrt(np.maximum(((Z[:, None] - Z[None]) ** 2).sum(-1), 0.0))
    return float(np.sqrt(np.median(distances[np.triu_indices(len(Z), 1)])))


def set_hyperparameters(kernel: gpflow.kernels.Kernel, lengthscale: float) -> None:
    """Put the paper's kernel at its starting point: all length scales alike, variance 1."""
    signal, noise = kernel.kernels
    signal.variance.assign(1.0)
    signal.lengthscales.assign(np.full(signal.lengthscales.shape, lengthscale))
    noise.variance.assign(NOISE)


def scores(likelihood: Any, predict: Callable[[tf.Tensor], Any], data: Data) -> dict[str, float]:
    """Return the mean negative log probability of binary labels (X [N, D], Y [N, 1]), and the error."""
    densities, wrong = [], []
    for begin in range(0, len(data[0]), BATCH):
        X, Y = (tf.constant(part[begin : begin + BATCH]) for part in data)
        mean, var = predict(X)
        densities.append(likelihood.predict_log_density(X, mean, var, Y).numpy())
        wrong.append(((mean > 0.0) != (Y > 0.5)).numpy()[:, 0])
    return {
        "nll": -float(np.concatenate(densities).mean()),
        "error": float(np.concatenate(wrong).mean()),
    }


class Contender(abc.ABC):
    """A method on data of one shape; abstract.

    Parameters
    ----------
    data
        Training rows (X [N, D], Y [N, 1]).
    Z
        Inducing points [M, D].
    """

    name: str

    def __init__(self, data: Data, Z: Any) -> None:
        self.data = tuple(tf.Variable(part, trainable=False) for part in data)
        self.model = self._build(paper_kernel(Z.shape[1]), Z)
        self._predict = tf.function(self.model.predict_f)
        self._prepare()

    @abc.abstractmethod
    def _build(self, kernel: gpflow.kernels.Kernel, Z: Any) -> Any:
        """Return the model on ``self.data``."""

    @abc.abstractmethod
    def _prepare(self) -> None:
        """Build what trains the model."""

    @abc.abstractmethod
    def _forget(self) -> None:
        """Put all but the hyperparameters and the data at their starting values."""

    @abc.abstractmethod
    def run(self, steps: int, each: Each | None = None) -> float:
        """Train, calling ``each`` with the number of each iteration; return the last objective."""

    def start(self, data: Data, Z: Any, lengthscale: float | None = None) -> None:
        """Move to these data and inducing points, at the starting point."""
        for variable, part in zip(self.data, data, strict=True):
            variable.assign(part)
        set_hyperparameters(self.model.kernel, lengthscale or starting_lengthscale(Z))
        self.model.inducing_variable.Z.assign(Z)
        self._forget()

    def scores(self, data: Data) -> dict[str, float]:
        """Return the mean negative log probability of the labels, and the error."""
        return scores(self.model.likelihood, self._predict, data)


class EPContender(Contender):
    """`SparseEP`; abstract."""

    optimizer: Any = None
    damping: float | None = None

    def _build(self, kernel: gpflow.kernels.Kernel, Z: Any) -> Any:
        X, Y = self.data
        model = gpx.models.SparseEP(
            (X.numpy(), Y.numpy()), kernel, gpx.likelihoods.BernoulliProbit(), inducing_variable=Z.copy()
        )
        model.data = self.data
        return model

    def _prepare(self) -> None:
        variables = self.model.trainable_variables
        if self.optimizer is not None:
            self.optimizer.build(variables)
            self._fresh = [variable.read_value() for variable in self.optimizer.variables]
        self.matcher = MomentMatcher(self.model, variables, self.optimizer, self.damping, None)

    def _forget(self) -> None:
        zeros = tf.zeros_like(self.model.nat1)
        self.model.assign_sites(Sites(zeros, zeros))
        if self.optimizer is not None:
            for variable, value in zip(self.optimizer.variables, self._fresh, strict=True):
                variable.assign(value)
        self.matcher.start()


class SEP(EPContender):
    """Hyperparameters moved after each damped parallel sweep, by an optimiser of tf_keras."""

    def __init__(
        self, data: Data, Z: Any, optimizer: Callable[[], Any] = SignAgreement, damping: float | None = 0.5
    ) -> None:
        self.name, self.optimizer, self.damping = "SEP", optimizer(), damping
        super().__init__(data, Z)

    def run(self, steps: int, each: Each | None = None) -> float:
        """Do ``steps`` sweeps."""
        value = np.nan
        for step in range(1, steps + 1):
            value = self.matcher.step()[0]
            if each is not None:
                each(step)
            if not np.isfinite(value):
                break
        return value


class FITC(EPContender):
    """Generalised FITC: L-BFGS on log Z, expectation propagation converged in each evaluation."""

    name = "FITC"
    sweeps, stationarity = 100, 1e-4  # an evaluation's sweeps at most; the change of a site that ends it

    def run(self, steps: int, each: Each | None = None) -> float:
        """Do ``steps`` iterations of L-BFGS."""

        def evaluate() -> tuple[float, Sequence[tf.Tensor]]:
            value, _ = self.matcher.settle(self.sweeps, self.stationarity)
            return value, self.matcher.differentiate()[1]

        value = lbfgs(evaluate, self.model.trainable_variables, steps, each)
        self.matcher.settle(self.sweeps, self.stationarity)
        return value


class VariationalContender(Contender):
    """GPflow's `SVGP` with the same likelihood; abstract."""

    def _build(self, kernel: gpflow.kernels.Kernel, Z: Any) -> Any:
        rows = self.data[0].shape[0]
        return gpflow.models.SVGP(kernel, gpx.likelihoods.BernoulliProbit(), Z.copy(), num_data=rows)

    def _prepare(self) -> None:
        self._start = self.model.q_mu.numpy(), self.model.q_sqrt.numpy()

        @tf.function
        def value_and_gradient() -> tuple[tf.Tensor, list[tf.Tensor]]:
            variables = self.model.trainable_variables
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                value = self.model.elbo(self.data)
            return value, tape.gradient(value, variables)

        self._value_and_gradient = value_and_gradient

    def _forget(self) -> None:
        self.model.q_mu.assign(self._start[0])
        self.model.q_sqrt.assign(self._start[1])


class SVI(VariationalContender):
    """All parameters of the bound by L-BFGS, as in the paper."""

    name = "SVI"

    def run(self, steps: int, each: Each | None = None) -> float:
        """Do ``steps`` iterations of L-BFGS."""

        def evaluate() -> tuple[float, Sequence[tf.Tensor]]:
            value, gradient = self._value_and_gradient()
            return float(value), gradient

        return lbfgs(evaluate, self.model.trainable_variables, steps, each)


class SVIAdam(VariationalContender):
    """All parameters of the bound by Adam."""

    name = "SVI, Adam"

    def _prepare(self) -> None:
        super()._prepare()
        variables = self.model.trainable_variables
        self.optimizer = tf_keras.optimizers.Adam(0.01)
        self.optimizer.build(variables)
        self._fresh = [variable.read_value() for variable in self.optimizer.variables]

        @tf.function
        def step() -> tf.Tensor:
            value, gradient = self._value_and_gradient()
            self.optimizer.apply_gradients(zip([-part for part in gradient], variables, strict=True))
            return value

        self._step = step

    def _forget(self) -> None:
        super()._forget()
        for variable, value in zip(self.optimizer.variables, self._fresh, strict=True):
            variable.assign(value)

    def run(self, steps: int, each: Each | None = None) -> float:
        """Do ``steps`` steps of Adam."""
        value = np.nan
        for step in range(1, steps + 1):
            value = float(self._step())
            if each is not None:
                each(step)
        return value
