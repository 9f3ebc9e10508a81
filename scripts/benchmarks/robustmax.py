"""The benchmark of SVGPRobustMax: training steps and predictions beside GPflow's SVGP with MultiClass."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.svgp.minibatch_ascent import MinibatchAscent

from ..shared import report
from . import timing

Array = npt.NDArray[Any]

INPUTS, CLASSES, ROWS_IN_ALL = 784, 10, 60_000
OWN = ("ours, Adam", "ours, natural gradients", "ours, cached")
Records = list[dict[str, Any]]
Shape = tuple[int, int, int]  # inducing points, rows of a minibatch, rows to predict

STEPS = """\
## A training step

M = {inducing}, minibatches of {batch:,}, {inputs} random inputs, {classes} classes, one length scale, kernel and inducing points learnt.
`Adam` is one step of Adam for everything; `natural gradients` is one step of length 0.1 for q and one of Adam for the
rest, each by its own optimiser in GPflow (`NaturalGradient`, one evaluation for each). GPflow has its default of 20
Gauss-Hermite nodes, and 100 where so marked; its class probabilities are off by as much as the last column says, on
variances between 1e-3 and 3. Milliseconds are medians of {repeats} interleaved runs; the first call, with compilation, is a
column of its own. The share is that of the operations per second of a {product} × {product} matrix product in the same rounds
and precision.
"""
PREDICTIONS = """\
## Predictions

Class probabilities of {rows:,} rows by the same q: `gpx.ClassPredictor` in batches of 1,000 from its cached posterior,
GPflow's `predict_y` and its cached posterior in one call, all compiled. Seconds are medians of {repeats} interleaved runs.
"""


def run(options: argparse.Namespace) -> Records:
    """Measure in both precisions."""
    shape = (20, 50, 100) if options.quick else (500, 1000, 10_000)
    records = []
    for dtype, jitter in ((np.float32, 1e-4), (np.float64, 1e-6)):
        with gpflow.config.as_context(gpflow.config.Config(float=dtype, jitter=jitter)):
            for table, builders in (("step", steps(shape)), ("prediction", predictions(shape))):
                for record in timing.interleaved(builders, options.repeats, OWN):
                    records.append({"table": table, "dtype": dtype.__name__, **record})
            print(f"{dtype.__name__}: done", flush=True)
    records += [{"table": "error", "method": name, "error": found} for name, found in errors().items()]
    return [{**record, "shape": shape, "repeats": options.repeats} for record in records]


def problem(inducing: int, rows: int) -> tuple[Any, Any, Any]:
    """Return a kernel, inducing points and data."""
    rng = np.random.default_rng(0)
    dtype = gpflow.default_float()
    X: Array = rng.uniform(-1.0, 1.0, (rows, INPUTS)).astype(dtype)
    Y: Array = rng.integers(0, CLASSES, (rows, 1)).astype(dtype)
    kernel = gpflow.kernels.SquaredExponential(variance=5.0, lengthscales=14.0)
    return kernel, X[:inducing].copy(), (tf.constant(X), tf.constant(Y))


def ours(inducing: int) -> gpx.models.SVGPRobustMax:
    """Return our model."""
    kernel, Z, _ = problem(inducing, inducing)
    return gpx.models.SVGPRobustMax(kernel, CLASSES, Z, num_data=ROWS_IN_ALL, learn_epsilon=False)


def theirs(inducing: int, nodes: int = 20) -> gpflow.models.SVGP:
    """Return GPflow's."""
    kernel, Z, _ = problem(inducing, inducing)
    likelihood = gpflow.likelihoods.MultiClass(CLASSES)
    likelihood.num_gauss_hermite_points = nodes
    return gpflow.models.SVGP(kernel, likelihood, Z, num_latent_gps=CLASSES, num_data=ROWS_IN_ALL)


def steps(shape: Shape) -> dict[str, timing.Builder]:
    """Return how the training steps are built."""
    inducing, batch, _ = shape
    _, _, data = problem(inducing, batch)
    return {
        "ours, Adam": lambda: adam(ours(inducing), data),
        "GPflow, Adam": lambda: adam(theirs(inducing), data),
        "GPflow, Adam, 100 nodes": lambda: adam(theirs(inducing, nodes=100), data),
        "ours, natural gradients": lambda: natural(ours(inducing), data),
        "GPflow, natural gradients": lambda: gpflow_natural(theirs(inducing), data),
    }


def adam(model: Any, data: Any) -> Callable[[], Any]:
    """Return one step of Adam for all parameters."""
    optimizer = tf_keras.optimizers.Adam(1e-4)
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = model.training_loss(data)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return lambda: step().numpy()


def natural(model: Any, data: Any) -> Callable[[], Any]:
    """Return one step of ours: q and the rest from one evaluation."""
    hypers = [*model.kernel.trainable_variables, *model.inducing_variable.trainable_variables]
    optimizer = tf_keras.optimizers.Adam(1e-4)
    optimizer.build(hypers)
    return MinibatchAscent(model, hypers, optimizer, lambda: data, gamma=lambda step: 0.1).step


def gpflow_natural(model: Any, data: Any) -> Callable[[], Any]:
    """Return one step of GPflow's optimiser of q and one of Adam for the rest."""
    q = [(model.q_mu, model.q_sqrt)]
    for parameter in q[0]:
        gpflow.set_trainable(parameter, False)
    rest = adam(model, data)
    optimizer = gpflow.optimizers.NaturalGradient(1e-4)  # 0.1 leaves the positive definite precisions at once

    @tf.function(autograph=False)
    def step() -> None:
        optimizer.minimize(lambda: model.training_loss(data), q)

    def both() -> None:
        step()
        rest()

    return both


def predictions(shape: Shape) -> dict[str, timing.Builder]:
    """Return how the predictions are built."""
    inducing, _, rows = shape
    _, _, (X, _) = problem(inducing, rows)
    inputs = X.numpy()

    def cached_ours() -> timing.Step:
        predictor = gpx.ClassPredictor(ours(inducing))
        return lambda: predictor.probabilities(inputs)

    def uncached() -> timing.Step:
        predict_y = tf.function(theirs(inducing).predict_y, autograph=False)
        return lambda: predict_y(X)[0].numpy()

    def cached() -> timing.Step:
        reference = theirs(inducing)
        posterior = reference.posterior()

        @tf.function(autograph=False)
        def predict(X: tf.Tensor) -> tf.Tensor:
            return reference.likelihood.predict_mean_and_var(X, *posterior.predict_f(X))[0]

        return lambda: predict(X).numpy()

    return {"ours, cached": cached_ours, "GPflow, predict_y": uncached, "GPflow, cached": cached}


def errors() -> dict[str, float]:
    """Return the largest error of a class probability, against 4,000 evenly spaced nodes."""
    rng = np.random.default_rng(0)
    mean = 1.5 * rng.normal(size=(60, CLASSES))
    var = np.exp(rng.uniform(np.log(1e-3), np.log(3.0), (60, CLASSES)))
    exact = 1e-3 / (CLASSES - 1) + (1.0 - 1e-3 - 1e-3 / (CLASSES - 1)) * largest(mean, var)
    found = {"ours": gpx.likelihoods.RobustMax(CLASSES, 1e-3).class_probabilities(mean, mean, var)}
    for nodes in (20, 100):
        likelihood = theirs(5, nodes).likelihood
        found[f"GPflow, {nodes} nodes"] = likelihood.predict_mean_and_var(mean, mean, var)[0]
    return {name: float(np.abs(p - exact).max()) for name, p in found.items()}


def largest(mean: Array, var: Array) -> Array:
    """Return the probability that each is the largest, [N, K]."""
    import scipy.special

    sd = np.sqrt(var)
    low, high = (mean - 9.0 * sd).max(axis=1), (mean + 9.0 * sd).max(axis=1)
    x = low + (high - low) * np.linspace(0.0, 1.0, 4000)[:, None]
    z = (x[..., None] - mean) / sd
    log_cdf = scipy.special.log_ndtr(z)
    density = np.exp(log_cdf.sum(axis=-1, keepdims=True) - log_cdf - 0.5 * z**2) / (sd * np.sqrt(2.0 * np.pi))
    return density.sum(axis=0) * (high - low)[:, None] / 3999.0


def document(where: dict[str, Any], records: Records) -> str:
    """Return the report."""
    inducing, batch, rows = records[0]["shape"]
    error = {record["method"]: record["error"] for record in records if record["table"] == "error"}
    filled = {"inducing": inducing, "batch": batch, "rows": rows, "inputs": INPUTS, "classes": CLASSES}
    filled |= {"repeats": records[0]["repeats"], "product": f"{timing.PRODUCT_SIZE:,}"}

    def off(method: str) -> str:
        key = "ours" if "ours" in method else f"GPflow, {100 if '100' in method else 20} nodes"
        return f"{error[key]:.1e}"

    return "\n".join(
        [
            "# SVGPRobustMax: speed\n",
            f"{report.describe(where, 'float32 and float64')} Written by `python -m scripts.benchmarks robustmax`.\n",
            STEPS.format(**filled),
            times(
                records, "step", {"ours, Adam": "Adam", "ours, natural gradients": "natural"}, 1e3, "ms", off
            ),
            PREDICTIONS.format(**filled),
            times(records, "prediction", {"ours, cached": ""}, 1.0, "s", off),
        ]
    )


def times(
    records: Records,
    table: str,
    own: dict[str, str],
    unit: float,
    name: str,
    off: Callable[[str], str],
) -> str:
    """Return a table of medians, and how many times as long as ours of the same kind each takes."""
    found = {(record["dtype"], record["method"]): record for record in records if record["table"] == table}
    lines = []
    for method in dict.fromkeys(method for _, method in found):
        line = [method]
        base = next(mine for mine, kind in own.items() if kind in method)
        for dtype in ("float32", "float64"):
            record, seconds = found[dtype, method], report.median(found[dtype, method]["seconds"])
            line += [
                report.number(record["first_call"]),
                report.number(unit * seconds),
                f"{seconds / report.median(found[dtype, base]['seconds']):.2f}",
                f"{record['flops'] / seconds / record['rate']:.0%}" if record["flops"] else "",
            ]
        lines.append([*line, off(method)])
    columns = ["method"]
    for dtype in ("float32", "float64"):
        columns += [f"{dtype}: first call, s", name, "times ours", "share"]
    return report.table([*columns, "error"], lines)
