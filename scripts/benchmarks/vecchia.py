"""Vecchia priors of spatial counts and binary data: evidence, predictions and fits, beside GPBoost."""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..shared import report
from .shown import Shown

Record = dict[str, Any]
PEER = "GPBOOST_PYTHON"  # names the interpreter of an environment with GPBoost
NEIGHBOURS, HELD_OUT, SCALE, FEATURES = 20, 1000, 0.1, 400
BLOCK = 1000  # places at which features are held, so that memory is that of what is measured
INDUCING = (0, 100)  # points beside the neighbours
FITTED = 20_000  # data up to which hyperparameters are learnt too
ONCE = 50_000  # data from which the first call stands, compilation included
KINDS = ("counts", "binary")
ALLOWED = 0.005  # of the negative log predictive density


def places(size: int, kind: str) -> tuple[Any, Any, Any, Any]:
    """Return X [N, 2] in the unit square and Y [N, 1], then held-out ones, of a Matérn-3/2 process."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 1.0, (size + HELD_OUT, 2))
    W = rng.normal(size=(2, FEATURES)) / SCALE / np.sqrt(rng.chisquare(3, FEATURES) / 3.0)
    phases, weights = rng.uniform(0.0, 2.0 * np.pi, FEATURES), rng.normal(size=FEATURES)
    blocks = np.array_split(X, 1 + len(X) // BLOCK)
    f = np.sqrt(2.0 / FEATURES) * np.concatenate([np.cos(rows @ W + phases) @ weights for rows in blocks])
    Y = rng.poisson(np.exp(f)) if kind == "counts" else rng.uniform(size=len(f)) < 1.0 / (1.0 + np.exp(-f))
    Y = Y.astype(float)[:, None]
    return X[:size], Y[:size], X[size:], Y[size:]


def run(options: argparse.Namespace) -> list[Record]:
    """Measure both at each size."""
    records = Shown()
    for size in options.sizes:
        for kind in KINDS:
            data = places(size, kind)
            for inducing in INDUCING:
                key = {"size": size, "kind": kind, "inducing": inducing}
                records.append({**key, "by": "gpflow_ext", **ours(kind, inducing, data)})
                for record in peer(kind, inducing, data, options.cap):
                    records.append({**key, "by": "GPBoost", **record})
    return records


def likelihood_of(kind: str) -> Any:
    """Return the likelihood of a kind of data."""
    import gpflow

    import gpflow_ext as gpx

    return gpflow.likelihoods.Poisson() if kind == "counts" else gpx.likelihoods.BernoulliLogit()


def ours(kind: str, inducing: int, data: Any) -> Record:
    """Measure a new model's evidence with its gradient, predictions, and, for few data, a fit."""
    import gpflow

    import gpflow_ext as gpx
    from gpflow_ext.sites.method import site_method
    from gpflow_ext.training.site_iteration import SiteOptimum

    X, Y, new, held_out = data

    def build(lengthscale: float = SCALE) -> Any:
        kernel = gpflow.kernels.Matern32(1.0, lengthscale)
        options = gpx.VecchiaOptions(neighbours=NEIGHBOURS, inducing=inducing)
        return gpx.models.GPLaplace((X, Y), kernel, likelihood_of(kind), prior=options)

    found: Record = {}
    for _ in range(2 if len(X) < ONCE else 1):
        model, found["build"] = seconds(build)
        optimum = SiteOptimum(model, site_method(model.site_method), model.trainable_variables)
        evaluation, found["evidence"] = seconds(functools.partial(optimum.evaluate, 200, 1e-6))
    found["objective"] = evaluation.objective
    posterior, found["posterior"] = seconds(model.posterior)
    posterior.predict_f(new)
    (mean, var), found["predict"] = seconds(lambda: posterior.predict_f(new))
    found["nlpd"] = score(kind, new, mean, var, held_out)
    if len(X) <= FITTED:
        model = build(2.0 * SCALE)
        result, found["fit"] = seconds(lambda: gpx.fit(model, progress=False))
        found["fitted"] = float(result.objective[-1])
    return found


def seconds(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and its CPU seconds."""
    begin = time.process_time()
    result = call()
    return result, time.process_time() - begin


def score(kind: str, new: Any, mean: Any, var: Any, held_out: Any) -> float:
    """Return the mean negative log predictive density of held-out data."""
    return -float(np.mean(likelihood_of(kind).predict_log_density(new, mean, var, held_out)))


def peer(kind: str, inducing: int, data: Any, cap: float) -> list[Record]:
    """Return GPBoost's records, none where no interpreter with it is named or it takes too long."""
    python = os.environ.get(PEER)
    if not python:
        return []
    X, Y, new, held_out = data
    script = Path(__file__).with_name("peer_gpboost.py")
    with tempfile.TemporaryDirectory() as folder:
        file, results = Path(folder) / "data.npz", Path(folder) / "results.npz"
        given = {"X": X, "Y": Y, "new": new, "kind": kind, "neighbours": NEIGHBOURS, "inducing": inducing}
        np.savez(file, **given, scale=SCALE, fit=len(X) <= FITTED)
        try:
            subprocess.run(
                [python, str(script), str(file), str(results)],
                check=True,
                timeout=10.0 * cap,
                capture_output=True,
            )
        except subprocess.TimeoutExpired:
            return []
        with np.load(results) as found:
            record = {name: float(found[name]) for name in found.files if found[name].ndim == 0}
            mean, var = found["mean"][:, None], found["var"][:, None]
            return [{**record, "nlpd": score(kind, new, mean, var, held_out)}]


def document(where: Mapping[str, Any], records: Sequence[Record]) -> str:
    """Return the page."""
    names = ("build", "evidence", "posterior", "predict", "fit")
    columns = ("N", "", "inducing points", "by", "log evidence", "NLPD", *names, "evidence after the fit")
    rows = [
        (
            f"{record['size']:,}", record["kind"], str(record["inducing"]), record["by"], f"{record['objective']:.2f}", f"{record['nlpd']:.4f}",
            *(report.number(record[name]) if name in record else "–" for name in names),
            f"{record['fitted']:.2f}" if "fitted" in record else "–",
        )
        for record in records
    ]  # fmt: skip
    peers = any(record["by"] == "GPBoost" for record in records)
    named = (
        'GPBoost runs with gp_approx="vecchia", vecchia_ordering="random", matrix_inversion_method="cholesky", one thread, and with '
        'gp_approx="full_scale_vecchia", its iterative methods, where there are inducing points, '
        "in an environment of its own; its evidence is without a gradient, its predictions are in one call."
        if peers
        else f"GPBoost was not run: {PEER} named no interpreter that has it, or it took too long."
    )
    return "\n".join([
        "# Vecchia priors\n",
        "Laplace's method for counts and binary data at random places in the unit square, with a Matérn-3/2 kernel "
        f"of length scale {SCALE:g} "
        f"and variance 1, {NEIGHBOURS} neighbours, random order, without and with inducing points beside them; {HELD_OUT:,} held-out places are scored. Times are CPU seconds of a "
        "new model. `build` makes the inducing points, the order, the neighbours and the tree. `evidence` goes from no sites to the mode, in gpflow_ext "
        "with the gradient in the hyperparameters. `posterior` is the work that predictions share, and `predict` predicts all "
        f"held-out places. From {ONCE:,} data upwards the first call is given, which compiles; below that the second. The fit learns variance and length scale from 1 and "
        f"{2 * SCALE:g}, at most at {FITTED:,} data. {named} Written by `python -m scripts.benchmarks vecchia`.\n",
        report.describe(where),
        "",
        report.table(columns, rows),
        report.targets(verdicts(records)),
    ])  # fmt: skip


def verdicts(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Return each target, what was measured, and whether it is met."""
    found: list[tuple[str, str, bool]] = []
    for mine in (record for record in records if record["by"] == "gpflow_ext"):
        for its in records:
            if its["by"] != "GPBoost" or any(its[key] != mine[key] for key in ("size", "kind", "inducing")):
                continue
            name = f"{mine['kind']}, N = {mine['size']:,}" + f", {mine['inducing']} inducing points" * bool(
                mine["inducing"]
            )
            behind = mine["nlpd"] - its["nlpd"]
            found.append((f"{name}: NLPD less GPBoost's", f"{behind:.4f} of {ALLOWED:g}", behind <= ALLOWED))
            apart = abs(mine["objective"] / its["objective"] - 1.0)
            found.append((f"{name}: evidence apart, relative", f"{apart:.1e} of 1e-03", apart <= 1e-3))
            parts = ("build", "evidence", "posterior", "predict")
            whole = [sum(record.get(part, 0.0) for part in parts) for record in (mine, its)]
            found.append(ratio(f"{name}: all but the fit, CPU seconds over GPBoost's", *whole))
            if "fit" in mine and "fit" in its:
                found.append(ratio(f"{name}: the fit, CPU seconds over GPBoost's", mine["fit"], its["fit"]))
    return [(target, measured, "yes" if met else "no") for target, measured, met in found]


def ratio(target: str, mine: float, its: float) -> tuple[str, str, bool]:
    """Return the verdict on seconds that are not to be more than a peer's."""
    return target, f"{report.number(mine / its)} of 1", mine <= its
