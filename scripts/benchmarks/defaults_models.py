"""The models of the package at their defaults, and GPflow's by its own optimiser, for each task."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import gpflow
import numpy as np

import gpflow_ext as gpx
from gpflow_ext.ep import moment_matching
from gpflow_ext.training.starts import further_starts

from .defaults_tables import ARD, Array, Part

Record = dict[str, Any]
Build = Callable[[Part], Any]
SQUARED = ""  # one length scale
WIDE = 20  # inputs, above which there is no length scale for each
NODES = 2
LEVEL, DEVIATIONS = 0.9, 1.6448536269514722  # share of a Gaussian within so many standard deviations
GPFLOW_ROWS, GPFLOW_POINTS = 300, 100  # rows up to which GPflow's VGP is compared, and inducing points above


def _kernel(part: Part, kind: str) -> Any:
    lengths = np.ones(part.X.shape[1]) if kind == ARD else 1.0
    return gpflow.kernels.SquaredExponential(lengthscales=lengths)


def _site(name: str, likelihood: Callable[[Part], Any], kind: str) -> Build:
    class_name = name.split(",")[0]
    sparse = {"inducing_variable": "auto"} if class_name == "SparseEP" else {}

    def build(part: Part) -> Any:
        of = likelihood(part)
        return getattr(gpx.models, class_name)((part.X, part.Y), _kernel(part, kind), of, **sparse)

    return build


def _robust_max(part: Part) -> Any:
    K = part.num_classes
    points = gpx.inducing.kmeans(part.X, min(100, len(np.unique(part.X, axis=0))), seed=0)
    return gpx.models.SVGPRobustMax(_kernel(part, SQUARED), K, points, num_data=len(part.X))


def _exact(kind: str) -> Build:
    return lambda part: gpflow.models.GPR((part.X, part.Y), _kernel(part, kind))


def _network(part: Part) -> Any:
    kernel = gpflow.kernels.Matern32()  # of nodes; the bound prefers it
    return gpx.models.GPRNTensor((part.X, part.Y), kernel, _kernel(part, SQUARED), NODES)


def _logit(part: Part) -> Any:
    return gpx.likelihoods.BernoulliLogit()


def _probit(part: Part) -> Any:
    return gpx.likelihoods.BernoulliProbit()


def _softmax(part: Part) -> Any:
    return gpx.likelihoods.MultinomialLogit(part.num_classes)


def _sticks(part: Part) -> Any:
    return gpx.likelihoods.StickBreaking(part.num_classes)


def _levels(part: Part) -> Any:
    return gpx.likelihoods.CumulativeLogit(part.num_classes)


def _counts(part: Part) -> Any:
    return gpx.likelihoods.PoissonLog(exposure=part.Y.shape[1] == 2)


def _scattered(part: Part) -> Any:
    return gpx.likelihoods.NegativeBinomialLog(exposure=part.Y.shape[1] == 2)


def ours(part: Part) -> dict[str, Build]:
    """Return the models of the package that fit the task of a table."""
    kinds = (SQUARED, ARD) if 1 < part.X.shape[1] <= WIDE else (SQUARED,)
    if part.task == "regression":
        return {f"GPR by fit{kind}": _exact(kind) for kind in kinds}
    if part.task == "outputs":
        return {"GPRNTensor": _network}
    sites: dict[str, Any] = {
        "binary": {"VGPKMM": _logit, "GPLaplace": _logit, "SparseEP": _probit},
        "multiclass": {"VGPKMM": _softmax, "VGPKMM, StickBreaking": _sticks, "SparseEP": _sticks},
        "ordinal": {"VGPKMM": _levels, "GPLaplace": _levels, "SparseEP": _levels},
        "count": {
            "VGPKMM": _counts,
            "VGPKMM, NegativeBinomialLog": _scattered,
            "GPLaplace": _counts,
            "SparseEP": _counts,
        },
    }[part.task]
    found: dict[str, Build] = {}
    for name, likelihood in sites.items():
        for kind in (SQUARED,) if name == "GPLaplace" else kinds:
            found[name + kind] = _site(name, likelihood, kind)
    if part.task in ("binary", "multiclass"):
        found["SVGPRobustMax"] = _robust_max
    return found


def arguments(model: Any, part: Part) -> tuple[Any, ...]:
    """Return the data of a fit, of a model that holds none."""
    return ((part.X, part.Y),) if getattr(model, "data", None) is None else ()


def measure(build: Build, part: Part, most: float | None = None) -> Record:
    """Build, fit and score; seconds of the wall and of the processor, compilation included.

    ``most`` seconds end a fit.
    """
    traces, begin, cpu = gpx.trace_count(), time.perf_counter(), time.process_time()
    model = build(part)
    result = gpx.fit(model, *arguments(model, part), progress=False, seconds=most)
    return {
        "seconds": time.perf_counter() - begin,
        "cpu": time.process_time() - cpu,
        "traces": gpx.trace_count() - traces,
        "objective": float(result.objective[-1]),
        "status": result.status.name,
        "steps": result.steps,
        **scores(model, part),
        **left_out(model),
    }


def best_of_random(build: Build, part: Part, number: int, seconds: float) -> Record:
    """Fit from random starts, ten say, or as many as the seconds allow; return the best objective of all."""
    found: list[float] = []
    begin = time.perf_counter()
    for seed in range(number):
        if found and time.perf_counter() - begin > seconds:
            break
        model = build(part)
        (start,) = further_starts(model, 1, seed)
        for variable, value in zip(model.trainable_variables, start.values, strict=True):
            variable.assign(value)
        try:
            result = gpx.fit(model, *arguments(model, part), progress=False, **_alone(model))
            found.append(float(result.objective[-1]))
        except ValueError:  # no objective there
            found.append(-np.inf)
    finite = [value for value in found if np.isfinite(value)]
    return {
        "objective": max(finite, default=None),
        "starts": len(found),
        "seconds": time.perf_counter() - begin,
    }


def _alone(model: Any) -> dict[str, Any]:
    """Return the options of a fit from one start."""
    if isinstance(model, gpx.models.GPRNTensor):
        return {"independent_start": False, "moment_start": False, "factor_start": False}
    return {"starts": 1}


def scores(model: Any, part: Part) -> Record:
    """Return error, NLPD and calibration on the test rows."""
    if part.task == "outputs":
        return of_outputs(model, part)
    found = gpx.metrics.evaluate(model, (part.X_test, part.Y_test))
    if "error" in found:
        return {"error": found["error"], "nlpd": found["nlpd"], "calibration": found["ece"]}
    mean, var = (np.asarray(moment) for moment in model.predict_y(part.X_test))
    exposure = (
        part.Y_test[:, 1:] if part.task == "count" and part.Y_test.shape[1] == 2 else np.ones_like(mean)
    )
    if part.Y_test.shape[1] == 2:  # from unit exposure: Var y = E[y] + Var rate
        mean, var = mean * exposure, mean * exposure + np.maximum(var - mean, 0.0) * exposure**2
    return {
        "error": found["rmse"],
        "nlpd": found["nlpd"],
        "calibration": coverage(mean, var, part.Y_test[:, :1]),
    }


def left_out(model: Any) -> Record:
    """Return the NLPD of the training rows, each left out, from the cavities of a model of sites (no refit).

    The sites of the other rows and the hyperparameters stay as they are (Vehtari et al. 2016, section 3.2).
    """
    if not isinstance(model, gpx.models.SiteModel):
        return {}
    prior, sites = model.prior().whiten(), model.latent_sites
    cavity = moment_matching.cavity(prior.message(sites).posterior().marginals(prior), sites)
    densities = model.log_normaliser(cavity.mean, cavity.var + prior.residual)
    return {"left_out": float(-np.mean(densities))}


def of_outputs(model: Any, part: Part) -> Record:
    """Return the same for several outputs, a mean over the targets that are known."""
    known = ~np.isnan(part.Y_test)
    mean, var = (np.asarray(moment) for moment in model.predict_y(part.X_test))
    density = np.asarray(model.predict_log_density((part.X_test, part.Y_test))).sum()
    return {
        "error": float(np.sqrt(np.mean((mean - part.Y_test)[known] ** 2))),
        "nlpd": float(-density / known.sum()),
        "calibration": coverage(mean[known], var[known], part.Y_test[known]),
    }


def coverage(mean: Array, var: Array, Y: Array) -> float:
    """Return by how much the share of targets in the central 90 % of a Gaussian differs from that."""
    inside = np.abs(Y - mean) <= DEVIATIONS * np.sqrt(var)
    return float(abs(inside.mean() - LEVEL))


def gpflow_builds(part: Part) -> Mapping[str, Build]:
    """Return GPflow's own models for the task, to be trained by its own optimiser."""
    of = gpflow.likelihoods
    likelihood: dict[str, Callable[[], Any]] = {
        "binary": of.Bernoulli,
        "multiclass": lambda: of.MultiClass(part.num_classes),
        "count": of.Poisson,
    }
    if part.task == "regression":
        return {"GPflow GPR, Scipy": _exact(SQUARED)}
    if part.task not in likelihood or part.Y.shape[1] > 1:
        return {}
    latent = part.num_classes if part.task == "multiclass" else 1

    def build(part: Part) -> Any:
        kernel = _kernel(part, SQUARED)
        if len(part.X) <= GPFLOW_ROWS:
            return gpflow.models.VGP((part.X, part.Y), kernel, likelihood[part.task](), num_latent_gps=latent)
        points = gpx.inducing.kmeans(part.X, GPFLOW_POINTS, seed=0)
        return gpflow.models.SVGP(
            kernel, likelihood[part.task](), points, num_latent_gps=latent, num_data=len(part.X)
        )

    return {"GPflow, Scipy": build}


class _TimeIsOverError(Exception):
    pass


def gpflow_by_scipy(build: Build, part: Part, cap: float) -> Record:
    """Train a GPflow model by ``gpflow.optimizers.Scipy``, up to some seconds, and score it."""
    begin, cpu = time.perf_counter(), time.process_time()
    model = build(part)
    data = arguments(model, part)
    closure = model.training_loss_closure(*data) if data else model.training_loss
    capped = False

    def callback(*_: Any) -> None:
        if time.perf_counter() - begin > cap:
            raise _TimeIsOverError

    try:
        gpflow.optimizers.Scipy().minimize(
            closure, model.trainable_variables, step_callback=callback, options={"maxiter": 5000}
        )
    except _TimeIsOverError:
        capped = True
    seconds, used = time.perf_counter() - begin, time.process_time() - cpu
    objective = -float(closure())
    return {"seconds": seconds, "cpu": used, "objective": objective, "capped": capped, **scores(model, part)}
