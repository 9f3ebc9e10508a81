"""Vecchia priors of many spatial counts: CPU seconds and memory, each measurement in a process of its own."""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import resource
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from ..shared import report
from . import vecchia, vecchia_iterative

Record = dict[str, Any]
WARM = 400  # data of a model that is evaluated before, so that libraries and their threads are there
LEARNT = 20_000  # data up to which hyperparameters are learnt too
ALLOWED = (0.7, 1.1)  # of the estimate


def run(options: argparse.Namespace) -> list[Record]:
    """Measure each size, by the factor and without one."""
    records = []
    for size in options.sizes:
        found = _alone(measured, size)
        records.append({**found, "iterative": _alone(vecchia_iterative.measured, size, _peak)})
        print(json.dumps(records[-1]), flush=True)
    return records


def _alone(measure: Callable[..., Record], *given: Any) -> Record:
    """Return what is measured in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *given).result()


def measured(size: int) -> Record:
    """Return what a model of a size takes, in CPU seconds, and in GiB above what the process had before."""
    X, Y, new, held_out = vecchia.places(size, "counts")
    _evaluation(_built(X[:WARM], Y[:WARM]))()
    before = _peak()
    model, build = vecchia.seconds(lambda: _built(X, Y))
    found: Record = {"size": size, "build": build, "memory_build": _peak() - before}
    evaluate = _evaluation(model)
    _, found["first"] = vecchia.seconds(evaluate)
    model.assign_sites(type(model.sites)(*(0.0 * part for part in model.sites)))
    evaluation, found["evidence"] = vecchia.seconds(evaluate)
    found |= {"objective": evaluation.objective, "violation": evaluation.violation}
    found |= {"memory": _peak() - before, "estimate": model.structure.num_bytes / 2**30}
    posterior, found["posterior"] = vecchia.seconds(model.posterior)
    (mean, var), found["predict"] = vecchia.seconds(lambda: posterior.predict_f(new))
    found |= {"memory_all": _peak() - before, "nlpd": vecchia.score("counts", new, mean, var, held_out)}
    return found | (_learnt(X, Y) if size <= LEARNT else {})


def _built(X: Any, Y: Any, lengthscale: float = vecchia.SCALE) -> Any:
    import gpflow

    import gpflow_ext as gpx

    kernel, prior = gpflow.kernels.Matern32(1.0, lengthscale), gpx.VecchiaOptions(vecchia.NEIGHBOURS)
    return gpx.models.GPLaplace((X, Y), kernel, vecchia.likelihood_of("counts"), prior=prior)


def _evaluation(model: Any) -> Any:
    """Return a function that goes to the mode, and returns evidence and gradient."""
    from gpflow_ext.sites.method import site_method
    from gpflow_ext.training.site_iteration import SiteOptimum

    optimum = SiteOptimum(model, site_method(model.site_method), model.trainable_variables)
    return functools.partial(optimum.evaluate, 200, 1e-6)


def _learnt(X: Any, Y: Any) -> Record:
    import gpflow_ext as gpx

    model = _built(X, Y, 2.0 * vecchia.SCALE)
    result, taken = vecchia.seconds(lambda: gpx.fit(model, progress=False))
    return {"fit": taken, "fitted": float(result.objective[-1]), "status": result.status.name}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def document(where: Mapping[str, Any], records: Sequence[Record]) -> str:
    """Return the page."""
    timed = ("build", "first", "evidence", "posterior", "predict", "fit")
    kept = ("memory_build", "memory", "memory_all", "estimate")
    titles = ("build", "first evidence", "evidence", "posterior", "predict", "fit")
    memory = ("GiB: build", "evidence", "all", "estimate")
    rows = [
        (
            f"{record['size']:,}", f"{record['objective']:.2f}", f"{record['nlpd']:.4f}",
            *(report.number(record[name]) if name in record else "–" for name in (*timed, *kept)),
        )
        for record in records
    ]  # fmt: skip
    return "\n".join([
        "# Vecchia priors of many places\n",
        "Laplace's method for counts at random places in the unit square, with a Matérn-3/2 kernel of length scale "
        f"{vecchia.SCALE:g} and variance 1, {vecchia.NEIGHBOURS} neighbours, random order; "
        f"{vecchia.HELD_OUT:,} held-out places are scored. The columns are those of [the smaller sizes](benchmark_vecchia.md), "
        "in CPU seconds: `evidence` goes from no sites to the mode with the gradient in the hyperparameters, which are held, "
        "and `first evidence` compiles that. The fit learns variance and length scale from 1 and "
        f"{2.0 * vecchia.SCALE:g}, at most at {LEARNT:,} data. Memory is the peak of a process of its own above what it had "
        f"after an evaluation of {WARM} data; the estimate is that by which models are refused. "
        "Written by `python -m scripts.benchmarks vecchia_large`.\n",
        report.describe(where),
        "",
        report.table(("N", "log evidence", "NLPD", *titles, *memory), rows),
        *_without_a_factor(records),
        "## Targets\n",
        report.table(("target", "measured", "met"), verdicts(records)),
    ])  # fmt: skip


def _without_a_factor(records: Sequence[Record]) -> list[str]:
    """Return the section on conjugate gradients and stochastic Lanczos quadrature."""
    rows, shares = [], []
    for record in records:
        found, factor = record["iterative"], record["evidence"]
        host = found["mode"] + found["log_det"]
        shares.append((host / factor, found["graph"] / factor))
        apart = (found["evidence"] - record["objective"]) / found["error"]
        rows.append((
            f"{record['size']:,}", *(str(found[name]) for name in ("newton", "iterations", "lanczos")),
            f"{found['evidence']:.2f}", f"{found['error']:.2f}", f"{apart:.2f}",
            *map(report.number, (found["mode"], found["log_det"], host / factor, found["graph"], found["graph"] / factor)),
            *map(report.number, (found["memory"], record["memory"])),
        ))  # fmt: skip
    titles = (
        "N", "Newton steps", "conjugate gradients", "Lanczos", "log evidence", "standard error", "errors from the factor's",
        "mode", "log determinant", "over the factor's", "in a graph", "over the factor's", "GiB", "GiB of the factor's",
    )  # fmt: skip
    host, graph = zip(*shares, strict=True)
    return [
        "## Without a factor\n",
        "The same evidence by conjugate gradients for the mode and stochastic Lanczos quadrature for the log determinant, with the "
        f"preconditioner BᵀWB (Kündig & Sigrist 2023) and {vecchia_iterative.PROBES} probes; without gradient, variances and predictions, "
        "while the seconds of the factor's evidence include its gradient and the coefficients of the neighbours. The columns give iterations, the CPU seconds with SciPy's triangular "
        "solutions, and the CPU seconds that as many products take in a graph of TensorFlow, by levels of data that do not depend "
        f"on each other. The package has no such solver: in a graph it would take {_range(graph)} times the CPU seconds of the factor's "
        f"evidence, and with SciPy {_range(host)} times, but outside the graph and on a CPU alone.\n",
        report.table(titles, rows),
    ]


def _range(values: Sequence[float]) -> str:
    low, high = (report.number(end) for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def verdicts(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Return each target, what was measured, and whether it is met."""
    found = []
    for record in records:
        share = record["memory"] / record["estimate"]
        target = f"N = {record['size']:,}: memory of an evaluation over its estimate"
        low, high = ALLOWED
        met = "yes" if low <= share <= high else "no"
        found.append((target, f"{report.number(share)}, from {low:g} to {high:g}", met))
    return found
