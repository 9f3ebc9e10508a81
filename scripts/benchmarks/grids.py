"""Grid priors: counts on maps of up to 512 × 512 cells, and the error of the probes beside the dense model."""

from __future__ import annotations

import argparse
import functools
import resource
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..shared import report
from .shown import Shown
from .vecchia import seconds

Record = dict[str, Any]
METHODS = ("GPLaplace", "VGPKMM")
SCALE = 0.1  # length scale of both columns
DENSE = 40  # cells along an axis up to which the dense model runs beside, and hyperparameters are learnt
PROBES = (8, 32, 128)  # where it does
SCORED = 20_000  # cells at most, drawn at random, that are predicted
LARGEST = 512
TARGETS = {"GPLaplace": 30.0, "VGPKMM": 300.0}  # CPU seconds at the largest map
SEEDS = 4


def kernel(lengthscale: float = SCALE) -> Any:
    """Return a Matérn-3/2 kernel of each column, multiplied."""
    import gpflow

    first, second = (gpflow.kernels.Matern32(1.0, lengthscale, active_dims=[d]) for d in (0, 1))
    gpflow.set_trainable(second.variance, False)
    return first * second


def counts(size: int) -> tuple[Any, Any, Any]:
    """Return the cells [N, 2] of a map of the unit square, counts about exp(f) [N, 1], and f [N, 1]."""
    axis = (np.arange(size) + 0.5) / size
    distance = np.sqrt(3.0) * np.abs(axis[:, None] - axis) / SCALE
    root = np.linalg.cholesky((1.0 + distance) * np.exp(-distance) + 1e-9 * np.eye(size))
    rng = np.random.default_rng(0)
    f = (root @ rng.standard_normal((size, size)) @ root.T).reshape(-1, 1)
    X = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    return X, rng.poisson(np.exp(f)).astype(float), f


def model_of(method: str, data: Any, prior: Any, lengthscale: float = SCALE) -> Any:
    """Return a model of the counts."""
    import gpflow

    import gpflow_ext as gpx

    return getattr(gpx.models, method)(
        data[:2], kernel(lengthscale), gpflow.likelihoods.Poisson(), prior=prior
    )


def fitted(method: str, data: Any, prior: Any) -> tuple[Any, Any]:
    """Return a model at its own hyperparameters, and the result of `fit`."""
    import gpflow

    import gpflow_ext as gpx

    model = model_of(method, data, prior)
    gpflow.set_trainable(model, False)
    return model, gpx.fit(model, progress=False)


def run(options: argparse.Namespace) -> list[Record]:
    """Measure each size."""
    records = Shown()
    for size in options.sizes:
        data = counts(size)
        for method in METHODS:
            records.append({"table": "seconds", "size": size, "method": method, **timed(method, data)})
        if size <= DENSE:
            for method in METHODS:
                for record in errors(method, data):
                    records.append({"table": "errors", "size": size, "method": method, **record})
    return records


def timed(method: str, data: Any) -> Record:
    """Time a first fit with its compilation, a second one, evidence with gradient, and all predictions."""
    import gpflow_ext as gpx

    X, _, f = data
    found: Record = {}
    (model, result), found["first"] = seconds(lambda: fitted(method, data, "grid"))
    if len(X) < LARGEST**2:
        (model, result), found["fit"] = seconds(lambda: fitted(method, data, "grid"))
    found |= {"status": result.status.name, "objective": float(result.objective[-1])}
    posterior, found["posterior"] = seconds(model.posterior)
    some = np.random.default_rng(2).permutation(len(X))[:SCORED]
    (mean, var), found["predict"] = seconds(lambda: posterior.predict_f(X[some]))
    error = np.asarray(mean) - f[some]
    found["rmse"], found["squares"] = float(np.sqrt(np.mean(error**2))), float(np.mean(error**2 / var))
    if len(X) < LARGEST**2:
        found |= at_rest(model)
    if len(X) <= DENSE**2:
        model = model_of(method, data, "grid", 2.0 * SCALE)
        result, found["learning"] = seconds(lambda: gpx.fit(model, progress=False))
        found["scales"] = [float(part.lengthscales.numpy()) for part in model.kernel.kernels]
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return found


def at_rest(model: Any) -> Record:
    """Time the evidence of a fitted model with its gradient; the spread of its log determinant over seeds."""
    import gpflow

    from gpflow_ext.sites.method import site_method
    from gpflow_ext.training.site_iteration import SiteOptimum

    gpflow.set_trainable(model.kernel, True)
    gpflow.set_trainable(model.kernel.kernels[1].variance, False)
    optimum = SiteOptimum(model, site_method(model.site_method), model.trainable_variables)
    optimum.evaluate(200, 1e-5)
    _, gradient = seconds(functools.partial(optimum.evaluate, 200, 1e-5))
    spread = float(np.std([log_det(model, seed) for seed in range(SEEDS)]))
    return {"gradient": gradient, "spread": spread}


def log_det(model: Any, seed: int) -> float:
    """Return ½ log|I + ΛΣ| at the sites of a model by the probes of a seed."""
    import tensorflow as tf

    import gpflow_ext as gpx
    from gpflow_ext.sites.grid import structure

    options = gpx.GridOptions(seed=seed)
    cells = structure.GridStructure(np.asarray(model.data[0]), options, 1)

    @tf.function(autograph=False)
    def value() -> tf.Tensor:
        return structure.at(model, cells, model.data[0]).factorise(model.sites.prec).half_log_det()

    return float(value())


def errors(method: str, data: Any) -> list[Record]:
    """Return the errors beside the dense model, by the number of probes."""
    import gpflow_ext as gpx

    dense, result = fitted(method, data, None)
    new = np.random.default_rng(1).uniform(0.02, 0.98, (500, 2))
    exact, off = dense.predict_f(data[0]), dense.predict_f(new)
    found = []
    for probes in PROBES:
        model, mine = fitted(method, data, gpx.GridOptions(probes=probes))
        on_grid, off_grid = model.predict_f(data[0]), model.predict_f(new)
        found.append(
            {
                "probes": probes,
                "objective": float(abs(mine.objective[-1] - result.objective[-1])),
                "mean": apart(on_grid, exact),
                "mean_off": apart(off_grid, off),
                "var": ratio(on_grid, exact),
                "var_off": ratio(off_grid, off),
            }
        )
    return found


def apart(mine: Any, exact: Any) -> float:
    """Return the largest error of means, in standard deviations."""
    return float(np.max(np.abs(mine[0] - exact[0]) / np.sqrt(exact[1])))


def ratio(mine: Any, exact: Any) -> list[float]:
    """Return the mean and the largest relative error of variances."""
    error = np.abs(np.asarray(mine[1]) / np.asarray(exact[1]) - 1.0)
    return [float(error.mean()), float(error.max())]


def document(where: Mapping[str, Any], records: Sequence[Record]) -> str:
    """Return the page."""
    timed_rows = [record for record in records if record["table"] == "seconds"]
    error_rows = [record for record in records if record["table"] == "errors"]
    columns = (
        "cells", "model", "first", "fit", "posterior", "predict", "gradient", "objective", "spread", "RMSE", "squares",
        "learning", "length scales", "GiB",
    )  # fmt: skip
    rows = [
        (
            f"{r['size']} × {r['size']}", r["method"],
            *(known(r, name) for name in ("first", "fit", "posterior", "predict", "gradient")),
            f"{r['objective']:.2f}", known(r, "spread"), f"{r['rmse']:.3f}", f"{r['squares']:.3f}",
            known(r, "learning"), ", ".join(f"{scale:.3f}" for scale in r["scales"]) if "scales" in r else "–",
            f"{r['memory']:.1f}",
        )
        for r in timed_rows
    ]  # fmt: skip
    beside = [
        (
            f"{r['size']} × {r['size']}", r["method"], str(r["probes"]), report.number(r["objective"]),
            *(report.number(r[name]) for name in ("mean", "mean_off")),
            *(f"{value:.1%}" for name in ("var", "var_off") for value in r[name]),
        )
        for r in error_rows
    ]  # fmt: skip
    heads = (
        "cells", "model", "probes", "objective", "means", "means off the grid", "variances, mean", "largest",
        "variances off the grid, mean", "largest",
    )  # fmt: skip
    return "\n".join([
        "# Grid priors\n",
        'Counts in the cells of square maps, their log rates of mean zero, with `prior="grid"`, 32 probes, '
        f"and Matérn-3/2 kernels of both columns, length scale {SCALE:g} of the side and variance 1. Seconds are CPU seconds of all "
        "threads. `first` is a fit of a new model at these hyperparameters with its compilation, `fit` one of another new model. "
        f"`posterior` is the work that predictions share, done without compilation; `predict` predicts at most {SCORED:,} cells. "
        "`gradient` is an "
        "evaluation of the objective with its gradient at the fixed point. `spread` is the standard deviation of the objective over "
        f"{SEEDS} seeds of the probes. RMSE is that of f, and `squares` the mean of squared errors over variances, one if these are "
        f"right. `learning` fits variance and length scales from {2 * SCALE:g}, on maps of at most {DENSE} × {DENSE} cells. "
        "`GiB` is the largest memory of the process so far. Written by `python -m scripts.benchmarks grids`.\n",
        report.describe(where),
        "",
        report.table(columns, rows),
        "## Errors beside the dense model\n",
        "Absolute error of the objective; largest errors of means in standard deviations; relative errors of variances, in all cells "
        "and at 500 places off the grid, where they are approximate with any number of probes.\n",
        report.table(heads, beside),
        report.targets(verdicts(timed_rows)),
    ])  # fmt: skip


def known(record: Record, name: str) -> str:
    """Return a number of a record as text, a dash where it was not measured."""
    return report.number(record[name]) if name in record else "–"


def verdicts(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Return each target, what was measured, and whether it is met."""
    found = []
    for record in records:
        if record["size"] == LARGEST:
            most = TARGETS[record["method"]]
            met = record["first"] <= most and record["status"] == "CONVERGED"
            name = f"{record['method']}, {LARGEST} × {LARGEST} cells: CPU seconds of the first fit"
            found.append((name, f"{report.number(record['first'])} of {most:g}", "yes" if met else "no"))
    return found
