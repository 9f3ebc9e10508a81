"""Ordinal data, counts and several classes with learnt hyperparameters: GPflow's VGP and other bounds beside ours."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.data.datasets.split import Scaler

from . import sets
from .methods import Limit, Problem, Runner, ours, vgp_lbfgs

ORDINAL = ("machine_cpu", "stock_ord5")
COUNTS = ("scotland_lip", "coal_disasters", "finland_heart_deaths")
CLASSES = ("new_thyroid", "glass", "vehicle")
BOUNDS: Mapping[str, Callable[..., Any]] = {
    "stick-breaking, piecewise": gpx.likelihoods.StickBreaking,
    "stick-breaking, Jaakkola": functools.partial(gpx.likelihoods.StickBreaking, bound="jaakkola"),
    "multinomial logit, log": functools.partial(gpx.likelihoods.MultinomialLogit, bound="log"),
    "multinomial logit, Bouchard": functools.partial(
        gpx.likelihoods.MultinomialLogit, bound="bouchard", inner="jaakkola"
    ),
    "multinomial logit, Bouchard, piecewise": functools.partial(
        gpx.likelihoods.MultinomialLogit, bound="bouchard"
    ),
    "multinomial logit, best": functools.partial(gpx.likelihoods.MultinomialLogit, bound="best"),
}
QUICK_BOUNDS = tuple(BOUNDS)[:2]  # the others take a minute each
OURS, VGP = "VGPKMM", "GPflow VGP, L-BFGS"


@dataclass(frozen=True)
class Row:
    """One model on one data set."""

    data: str
    sizes: tuple[int, int]
    method: str
    bound: float
    nlpd: float
    error: float | None
    seconds: float
    capped: bool
    exact: float | None = (
        None  # the bound with the exact expectation in place of its own, at the same posterior
    )


def ordinal(cap: float, names: Sequence[str] = ORDINAL) -> list[Row]:
    """Compare on five ordered levels, the thresholds learnt too."""
    rows = []
    for name in names:
        target = "y5_freq" if name == "machine_cpu" else None
        split = gpx.datasets.load(name, target=target, standardise=name != "machine_cpu", seed=0)
        if name == "machine_cpu":  # inputs over four decades
            split = _logarithmic(split)
        rows += _compare(split, functools.partial(gpx.likelihoods.CumulativeLogit, num_levels=5), cap)
    return rows


def counts(cap: float, names: Sequence[str] = COUNTS) -> list[Row]:
    """Compare on counts, their exposures in a second column."""
    rows = []
    for name in names:
        split = gpx.datasets.load(name, seed=0)
        train, test = (
            (X, np.hstack([Y, exposure]))
            for (X, Y), exposure in zip(split, split.exposure or (), strict=True)
        )
        split = replace(split, train=train, test=test)
        rows += _compare(split, functools.partial(gpx.likelihoods.PoissonLog, exposure=True), cap)
    return rows


def classes(cap: float, names: Sequence[str] = CLASSES, bounds: Sequence[str] = tuple(BOUNDS)) -> list[Row]:
    """Compare the bounds on the likelihoods of several classes."""
    rows = []
    for name in names:
        split = sets.classes(name)
        for bound in bounds:
            made = functools.partial(BOUNDS[bound], num_classes=len(split.labels))
            row, model = _trained(split, made, cap, bound, gpx.models.VGPKMM, ours)
            rows.append(replace(row, exact=row.bound + _gain(model, split.train)))
    return rows


def _gain(model: Any, data: tuple[Any, Any]) -> float:
    """Return by how much the exact expectation of the log likelihood exceeds its bound under the posterior."""
    X, Y = (tf.constant(part) for part in data)
    own = model.likelihood
    exact = type(own)(own.num_classes, bound=None)
    marginals = model.predict_f(X)
    both = (each.variational_expectations(X, *marginals, Y) for each in (exact, own))
    return float(tf.reduce_sum(tf.subtract(*both)))


def gpflow_ordinal() -> float:
    """Return the bound of GPflow's VGP with GPflow's own ordinal likelihood on the first ordinal set."""
    split = gpx.datasets.load("machine_cpu", target="y5_freq", seed=0)
    likelihood = gpflow.likelihoods.Ordinal(np.array([-1.0, -0.3, 0.3, 1.0]))
    return float(gpflow.models.VGP(split.train, gpflow.kernels.SquaredExponential(), likelihood).elbo())


def _logarithmic(split: Any) -> Any:
    """Return the split with inputs log(1 + x), standardised."""
    logs = [np.log1p(X) for X, _ in split]
    scaler = Scaler.fit(logs[0])
    train, test = ((scaler.transform(X), Y) for X, (_, Y) in zip(logs, split, strict=True))
    return replace(split, train=train, test=test)


def _compare(split: Any, likelihood: Callable[[], Any], cap: float) -> list[Row]:
    """Train both models."""
    return [
        _trained(split, likelihood, cap, method, model_class, build)[0]
        for method, model_class, build in (
            (OURS, gpx.models.VGPKMM, ours),
            (VGP, gpflow.models.VGP, vgp_lbfgs),
        )
    ]


def _trained(
    split: Any,
    likelihood: Callable[[], Any],
    cap: float,
    method: str,
    model_class: Any,
    build: Callable[..., Runner],
) -> tuple[Row, Any]:
    """Train from the start that all share, length scale √D and variance 1; return what it gave, and the model."""
    problem = Problem.new(split.train, likelihood, learn=True).set(math.log(split.train[0].shape[1]), 0.0)
    model = problem.build(model_class)
    runner = build(problem, model=model)
    runner(Limit(evaluations=2))
    trace = runner(Limit(seconds=cap))
    nlpd, error = _scores(model, split.test)
    sizes, seconds = (len(split.train[0]), len(split.test[0])), trace.seconds[-1]
    row = Row(split.name, sizes, method, trace.objective[-1], nlpd, error, seconds, seconds >= cap)
    print(f"{split.name}, {method}: done in {seconds:.1f} s", flush=True)
    return row, model


def _scores(model: Any, data: tuple[Any, Any]) -> tuple[float, float | None]:
    """Return the mean negative log density of the test rows, and the share of wrong levels."""
    X, Y = (tf.constant(part) for part in data)
    Fmu, Fvar = model.predict_f(X)
    nlpd = -float(tf.reduce_mean(model.likelihood.predict_log_density(X, Fmu, Fvar, Y)))
    if not hasattr(model.likelihood, "class_probabilities"):
        return nlpd, None
    return nlpd, gpx.metrics.error_rate(model.likelihood.class_probabilities(X, Fmu, Fvar).numpy(), data[1])
