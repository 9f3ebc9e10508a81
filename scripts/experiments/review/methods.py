"""The comparisons: the data, one timed run of a method, the figures and the text."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from gpflow.models import SGPR, SVGP

import gpflow_ext as gpx
from gpflow_ext.laplace.recipe import jaakkola, taylor
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.svgp.svi import svi_classification, svi_fg, svi_natural, svi_sag
from gpflow_ext.svgp.vi_means import moved, vi_means
from gpflow_ext.training import lbfgs
from gpflow_ext.training.recipe import Plan

from .streamed import StreamedSGPR

Array = npt.NDArray[Any]

Data: TypeAlias = tuple[Array, Array]
Evaluation: TypeAlias = Callable[[], tuple[float, Sequence[tf.Tensor]]]
STREAMED = 100_000  # rows, above which the bound is summed by blocks
Curve: TypeAlias = list[tuple[float, float, float]]
"""Seconds of training, test score, objective."""

MOST_TESTS = 20_000
GROWTH = 1.25  # of the seconds from one score to the next


@dataclass(frozen=True)
class Set:
    """A data set of a comparison: how to get it, how many inducing points and seconds it is given."""

    name: str
    load: Callable[[], tuple[Data, Data]]
    num_inducing: int
    seconds: float
    size: str


def generated(num_data: int, width: int, lengthscale: float, labels: bool = False) -> tuple[Data, Data]:
    """Return a draw of a Gaussian process with noise 0.1, or labels by its logistic; a fifth, or 20,000, for tests.

    The draw has 2,000 random Fourier features, so that no covariance of all points is needed.
    """
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (num_data + min(num_data // 4, MOST_TESTS), width))
    frequencies = rng.normal(size=(width, 2000)) / lengthscale
    phases, amplitudes = rng.uniform(0.0, 2.0 * np.pi, 2000), rng.normal(size=(2000, 1)) / np.sqrt(1000.0)
    blocks = np.array_split(X, 1 + len(X) // 25_000)
    f = np.concatenate([np.cos(block @ frequencies + phases) @ amplitudes for block in blocks])
    if labels:
        Y = (rng.uniform(size=f.shape) < 1.0 / (1.0 + np.exp(-4.0 * f))).astype(float)
    else:
        Y = f + 0.1 * rng.normal(size=f.shape)
    return (X[:num_data], Y[:num_data]), (X[num_data:], Y[num_data:])


def stored(name: str, column: int = 0) -> tuple[Data, Data]:
    """Return a named set, inputs and one column of real targets standardised by the training part."""
    split = gpx.datasets.load(name, missing="drop", seed=0)
    (X, Y), (X_test, Y_test) = split
    if split.task != "regression":
        return (X, Y), (X_test, Y_test)
    Y, Y_test = Y[:, [column]], Y_test[:, [column]]
    return (X, (Y - Y.mean()) / Y.std()), (X_test, (Y_test - Y.mean()) / Y.std())


def parameter_kernel(width: int) -> gpflow.kernels.Kernel:
    """Return the squared exponential kernel that all methods start from."""
    return gpflow.kernels.SquaredExponential(lengthscales=np.sqrt(width) / 2.0)


def r_squared(model: Any, test: Data) -> float:
    """Return R² of the predictive means."""
    mean = np.concatenate([model.predict_f(X)[0] for X in np.array_split(test[0], 1 + len(test[0]) // 5000)])
    return float(1.0 - np.sum((test[1] - mean) ** 2) / np.sum((test[1] - test[1].mean()) ** 2))


def accuracy(model: Any, test: Data) -> float:
    """Return the share of labels that the more probable class gets right."""
    mean = np.concatenate([model.predict_f(X)[0] for X in np.array_split(test[0], 1 + len(test[0]) // 5000)])
    return float(np.mean((mean > 0.0) == (test[1] > 0.5)))


class Clock:
    """Takes a score whenever the seconds of the processor have grown by `GROWTH`; scoring does not count."""

    def __init__(self, score: Callable[[], float]) -> None:
        self._score, self.seconds, self._due = score, 0.0, 0.0
        self.curve: Curve = []

    def run(self, update: Callable[[], tuple[float, bool]], limit: float) -> None:
        """Repeat an update until its time is over, or until it has settled."""
        last = -np.inf
        while self.seconds < limit:
            begin = time.process_time()
            value, at_rest = update()
            self.seconds += time.process_time() - begin
            settled = at_rest and abs(value - last) < 1e-7 * max(1.0, abs(value))
            last = value
            if not np.isfinite(value):
                return
            if self.seconds >= self._due or settled or self.seconds >= limit:
                self.curve.append((self.seconds, self._score(), value))
                self._due = GROWTH * self.seconds
            if settled:
                return


def timed_recipe(model: Any, plan: Plan, score: Callable[[], float], limit: float, stops: bool) -> Curve:
    """Run a recipe for some seconds, its compilation left out; return the scores on the way."""
    modules = [*plan.trackables.values(), model]
    found = [v for module in modules for v in getattr(module, "variables", ())] + list(plan.variables)
    variables = list({id(variable): variable for variable in found}.values())
    kept = [variable.read_value() for variable in variables]
    plan.update()
    for variable, value in zip(variables, kept, strict=True):
        variable.assign(value)
    clock = Clock(score)
    clock.run(plan.update if stops else lambda: (plan.update()[0], False), limit)
    return clock.curve


def timed_lbfgs(
    variables: Sequence[tf.Variable], evaluate: Evaluation, score: Callable[[], float], limit: float
) -> Curve:
    """Run L-BFGS-B in one go and score the best points of its evaluations afterwards."""
    evaluate()
    begin, noted = time.process_time(), []

    def objective() -> tuple[float, Sequence[tf.Tensor]]:
        if time.process_time() - begin > limit:
            return -np.inf, [tf.zeros_like(variable) for variable in variables]  # no line search gets past it
        value, gradient = evaluate()
        noted.append((time.process_time() - begin, value, [variable.numpy() for variable in variables]))
        return value, gradient

    lbfgs.climb(variables, objective, 10_000)
    best, due, curve = -np.inf, 0.0, []
    for number, (seconds, value, values) in enumerate(noted):
        last = number == len(noted) - 1
        if not np.isfinite(value) or (value <= best and not last):
            continue
        if value > best:
            best, kept = value, values
        if seconds >= due or last:
            for variable, part in zip(variables, kept, strict=True):
                variable.assign(part)
            curve.append((seconds, score(), best))
            due = GROWTH * seconds
    return curve


def regression(method: str, train: Data, test: Data, Z: Array, limit: float) -> Curve:
    """Train one method of regression for some seconds and return its curve of R²."""
    X, Y = train
    kernel = parameter_kernel(X.shape[1])
    if method == "means-L-BFGS-B" and len(X) > STREAMED:
        streamed = StreamedSGPR(train, kernel, Z, noise_variance=0.1)
        score = functools.partial(r_squared, streamed, test)
        return timed_lbfgs(streamed.trainable_variables, streamed.evaluate, score, limit)
    if method.startswith("means"):
        model = SGPR(train, kernel, Z, noise_variance=0.1)
        score = functools.partial(r_squared, model, test)
        if method == "means-L-BFGS-B":
            evaluate = lbfgs.Evaluation(model.training_loss, moved(model))
            return timed_lbfgs(moved(model), evaluate, score, limit)
        return timed_recipe(model, vi_means(model, optimizer="projected_newton"), score, limit, True)
    model = SVGP(kernel, gpflow.likelihoods.Gaussian(0.1), Z, num_data=len(X))
    score = functools.partial(r_squared, model, test)
    constant = (tf.constant(X), tf.constant(Y))
    if method == "svi-L-BFGS-B":
        evaluate = lbfgs.Evaluation(lambda: model.training_loss(constant), moved(model))
        return timed_lbfgs(moved(model), evaluate, score, limit)
    size = max(len(Z), len(X) // 100)
    plan = {
        "svi-natural": lambda: svi_natural(model, train, minibatch_size=size),
        "svi-FG": lambda: svi_fg(model, train),
        "svi-SAG": lambda: svi_sag(model, train, minibatch_size=size),
    }[method]()
    return timed_recipe(model, plan, score, limit, False)


def classification(method: str, train: Data, test: Data, Z: Array, limit: float) -> Curve:
    """Train one method of classification for some seconds and return its curve of accuracy."""
    X, _ = train
    kernel = parameter_kernel(X.shape[1])
    if method == "svi-classification":
        sparse = SVGP(kernel, BernoulliLogit(), Z, num_data=len(X))
        score = functools.partial(accuracy, sparse, test)
        plan = svi_classification(sparse, train, minibatch_size=max(10, len(X) // 100))
        return timed_recipe(sparse, plan, score, limit, False)
    kind, likelihood, recipe = {
        "vi-JJ": (gpx.models.GPJaakkola, BernoulliLogit("jaakkola"), jaakkola),
        "vi-Taylor": (gpx.models.GPTaylor, BernoulliLogit(None), taylor),
    }[method]
    model: Any = kind(train, kernel, likelihood, inducing_variable=Z)
    gpflow.set_trainable(model.inducing_variable, False)
    # Short steps, for a curve of several points.
    plan = recipe(model, hyper_updates=4, stationarity=1e-4)
    return timed_recipe(model, plan, functools.partial(accuracy, model, test), limit, True)
