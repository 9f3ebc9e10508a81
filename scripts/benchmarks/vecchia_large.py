"""Vecchia priors of many spatial counts, by a factor and by iteration: each measured in a process of its own."""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import resource
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from ..shared import report
from . import vecchia
from .shown import Shown

Record = dict[str, Any]
WARM = 400  # data of a model that is evaluated before, so that libraries and their threads are there
LEARNT = 20_000  # data up to which any solver learns hyperparameters too, and beyond that "auto" alone
ITERATES = 50_000  # data up to which "auto" is direct
WHOLE = 200_000  # data beyond which only the mode is found, and that by iteration
ALLOWED = (0.7, 1.1)  # of the estimate
LAPLACE, VARIATIONAL = "GPLaplace", "VGPKMM"  # models


def run(options: argparse.Namespace) -> list[Record]:
    """Measure each size, by either solver."""
    records = Shown()
    for size in options.sizes:
        exact = None
        for method, solver in _cases(size):
            found = _alone(measured if size <= WHOLE else located, size, solver, method)
            spread = found.pop("spread", None)
            exact = spread if solver == "direct" and method == LAPLACE else exact
            if exact is not None and solver != "direct":
                found["variance_error"] = float((((spread - exact) / exact) ** 2).mean() ** 0.5)
            records.append({"size": size, "method": method, "solver": solver, **found})
    return records


def _cases(size: int) -> Sequence[tuple[str, str]]:
    """Return the models and solvers that a size is measured by; "auto" is another one only where it iterates."""
    if size > WHOLE:
        return ((LAPLACE, "iterative"),)
    solvers = ("direct", "iterative", "auto") if size > ITERATES else ("direct", "iterative")
    return (*((LAPLACE, solver) for solver in solvers), (VARIATIONAL, "direct"))


def _alone(measure: Callable[..., Record], *given: Any) -> Record:
    """Return what is measured in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *given).result()


def measured(size: int, solver: str, method: str) -> Record:
    """Return what a model of a size takes, in CPU seconds, and in GiB above what the process had before."""
    X, Y, new, held_out = vecchia.places(size, "counts")
    _evaluation(_built(X[:WARM], Y[:WARM], solver, method))()
    before = _peak()
    model, build = vecchia.seconds(lambda: _built(X, Y, solver, method))
    found: Record = {"build": build, "memory_build": _peak() - before}
    evaluate = _evaluation(model)
    _, found["first"] = vecchia.seconds(evaluate)
    model.assign_sites(type(model.sites)(*(0.0 * part for part in model.sites)))
    evaluation, found["evidence"] = vecchia.seconds(evaluate)
    found |= {"objective": evaluation.objective, "violation": evaluation.violation}
    found |= {"memory": _peak() - before, "estimate": model.structure.num_bytes / 2**30}
    posterior, found["posterior"] = vecchia.seconds(model.posterior)
    (mean, var), found["predict"] = vecchia.seconds(lambda: posterior.predict_f(new))
    found |= {"memory_all": _peak() - before, "nlpd": vecchia.score("counts", new, mean, var, held_out)}
    found |= {"spread": var.numpy(), **({} if solver == "direct" else {"error": _standard_error(model)})}
    learns = method == LAPLACE and (size <= LEARNT or solver == "auto")
    return found | (_learnt(X, Y, solver) if learns else {})


def located(size: int, solver: str, method: str) -> Record:
    """Return what it takes to build a model and to find its mode, as `measured` does."""
    import tensorflow as tf

    X, Y, *_ = vecchia.places(size, "counts")
    _evaluation(_built(X[:WARM], Y[:WARM], solver, method))()
    before = _peak()
    model, build = vecchia.seconds(lambda: _built(X, Y, solver, method))
    found: Record = {"build": build, "memory_build": _peak() - before}
    settle = tf.function(lambda: model.settle_sites(tolerance=1e-6)[0].violation, autograph=False)
    violation, found["mode"] = vecchia.seconds(settle)
    return found | {"violation": float(violation), "memory_all": _peak() - before}


def _standard_error(model: Any) -> float:
    """Return the standard error of the log evidence."""
    import tensorflow as tf

    found = tf.function(lambda: model.prior().factorise(model.prec).standard_error(), autograph=False)
    return float(found())


def _built(X: Any, Y: Any, solver: str, method: str = LAPLACE, lengthscale: float = vecchia.SCALE) -> Any:
    import gpflow

    import gpflow_ext as gpx

    kernel, prior = (
        gpflow.kernels.Matern32(1.0, lengthscale),
        gpx.VecchiaOptions(vecchia.NEIGHBOURS, solver=solver),
    )
    return getattr(gpx.models, method)((X, Y), kernel, vecchia.likelihood_of("counts"), prior=prior)


def _evaluation(model: Any) -> Any:
    """Return a function that goes to the optimal sites, and returns evidence and gradient."""
    from gpflow_ext.sites.method import site_method
    from gpflow_ext.training.site_iteration import SiteOptimum

    optimum = SiteOptimum(model, site_method(model.site_method), model.trainable_variables)
    return functools.partial(optimum.evaluate, 200, 1e-6)


def _learnt(X: Any, Y: Any, solver: str) -> Record:
    import gpflow_ext as gpx

    model = _built(X, Y, solver, lengthscale=2.0 * vecchia.SCALE)
    result, taken = vecchia.seconds(lambda: gpx.fit(model, progress=False))
    learnt = {
        "variance": float(model.kernel.variance.numpy()),
        "lengthscale": float(model.kernel.lengthscales.numpy()),
    }
    return {"fit": taken, "fitted": float(result.objective[-1]), "status": result.status.name, **learnt}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def document(where: Mapping[str, Any], records: Sequence[Record]) -> str:
    """Return the page."""
    timed = ("build", "first", "evidence", "mode", "posterior", "predict", "fit")
    kept = ("memory_build", "memory", "memory_all", "estimate")
    titles = ("build", "first evidence", "evidence", "mode", "posterior", "predict", "fit")
    memory = ("GiB: build", "evidence", "all", "estimate")
    rows = [
        (
            f"{record['size']:,}",
            record["method"],
            record["solver"],
            *(_number(record, name) for name in (*timed, *kept)),
        )
        for record in records
    ]
    return "\n".join([
        "# Vecchia priors of many places\n",
        "Laplace's method and variational inference for counts at random places in the unit square, with a Matérn-3/2 kernel of length scale "
        f"{vecchia.SCALE:g} and variance 1, {vecchia.NEIGHBOURS} neighbours, random order; "
        f"{vecchia.HELD_OUT:,} held-out places are scored. The columns are those of [the smaller sizes](benchmark_vecchia.md), "
        "in CPU seconds: `evidence` goes from no sites to the mode, or to the best bound, with the gradient in the hyperparameters, which are held, "
        "and `first evidence` compiles that; `mode` finds the mode alone, and compiles too. The fit learns variance and length scale from 1 and "
        f"{2.0 * vecchia.SCALE:g}; beyond {LEARNT:,} data by `auto` alone. Memory is the peak of a process of its own above what it had "
        f"after an evaluation of {WARM} data; the estimate is that by which models are refused. "
        "Written by `python -m scripts.benchmarks vecchia_large`.\n",
        report.describe(where),
        "",
        report.table(("N", "model", "solver", *titles, *memory), rows),
        *_agreement(records),
        report.targets(verdicts(records)),
    ])  # fmt: skip


def _number(record: Record, name: str) -> str:
    return report.number(record[name]) if name in record else "–"


def _agreement(records: Sequence[Record]) -> list[str]:
    """Return the section on what both solvers find."""
    learnt = ("fitted", "variance", "lengthscale")
    fits = {each["size"]: each for each in records if each["solver"] != "direct" and "fitted" in each}
    rows = []
    for exact, record in _pairs(records):
        apart = (record["objective"] - exact["objective"]) / record["error"]
        both = (exact, fits.get(record["size"], {}))
        rows.append((
            f"{record['size']:,}", f"{exact['objective']:.2f}", f"{record['objective']:.2f}",
            f"{record['error']:.2f}", f"{apart:.2f}", f"{exact['nlpd']:.4f}", f"{record['nlpd']:.4f}",
            report.number(record["variance_error"]) if "variance_error" in record else "–",
            *(f"{each[name]:.{7 if name == learnt[0] else 5}g}" if name in each else "–" for name in learnt for each in both),
        ))  # fmt: skip
    titles = (
        "N", "log evidence, direct", "iterative", "standard error", "errors apart", "NLPD, direct", "iterative",
        "error of variances", "learnt evidence, direct", "iterative", "variance, direct", "iterative", "length scale, direct", "iterative",
    )  # fmt: skip
    return [
        "## What both find\n",
        "The iterative solver finds the same mode. Its log determinant is an estimate by the default number of probes, "
        "the same in all evaluations of a fit; the columns give its standard error, and how many of them it is from the direct solver's. "
        "The error of variances is that of the predictions, relative, its root mean square; without a factor they are those of draws.\n",
        report.table(titles, rows),
        *_methods(records),
    ]


def _methods(records: Sequence[Record]) -> list[str]:
    """Return the section on Laplace's method and variational inference by the direct solver."""
    by = {(each["size"], each["method"]): each for each in records if each["solver"] == "direct"}
    rows = []
    for size in dict.fromkeys(size for size, _ in by):
        pair = by[size, LAPLACE], by[size, VARIATIONAL]
        rows.append((
            f"{size:,}", *(f"{each['objective']:.2f}" for each in pair), *(f"{each['nlpd']:.4f}" for each in pair),
            report.number(pair[1]["evidence"] / pair[0]["evidence"]),
        ))  # fmt: skip
    titles = ("N", "log evidence, Laplace", "bound", "NLPD, Laplace", "variational", "seconds over Laplace's")
    return [
        "## Variational inference\n",
        "At the same hyperparameters. Its bound needs the variance at each datum, which the factor's selected inverse gives.\n",
        report.table(titles, rows),
    ]


def _pairs(records: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Return the measurements by the direct solver beside those by the iterative one."""
    laplace = [record for record in records if record["method"] == LAPLACE]
    by = {(record["size"], record["solver"]): record for record in laplace}
    return [(by[size, "direct"], by[size, "iterative"]) for size, kind in by if kind == "direct"]


def verdicts(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Return each target, what was measured, and whether it is met."""
    found = []
    for record in records:
        if "memory" in record:
            share = record["memory"] / record["estimate"]
            target = f"N = {record['size']:,}, {record['method']}, {record['solver']}: memory of an evaluation over its estimate"
            low, high = ALLOWED
            met = "yes" if low <= share <= high else "no"
            found.append((target, f"{report.number(share)}, from {low:g} to {high:g}", met))
    for exact, record in _pairs(records):
        apart = abs(record["objective"] - exact["objective"]) / record["error"]
        target = f"N = {record['size']:,}: standard errors of the iterative log evidence from the direct one"
        found.append((target, f"{report.number(apart)}, at most 3", "yes" if apart <= 3.0 else "no"))
    return found + _of_predictions(records)


def _of_predictions(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Return the targets of "auto", whose variances are those of a factor."""
    drawn = {each["size"]: each.get("posterior") for each in records if each["solver"] == "iterative"}
    found = []
    for record in (each for each in records if each["solver"] == "auto"):
        share = record["posterior"] / drawn[record["size"]]
        for target, value, most in (
            ("the posterior, CPU seconds over those of draws", share, 1.0),
            ("error of the variances of predictions", record["variance_error"], 1e-3),
        ):
            measured = f"{report.number(value)}, at most {most:g}"
            name = f"N = {record['size']:,}, auto: {target}"
            found.append((name, measured, "yes" if value <= most else "no"))
    return found
