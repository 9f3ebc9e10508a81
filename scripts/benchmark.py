"""Time the package against others that do the same mathematics, in one run on one machine."""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _benchmark_summary
import _benchmark_tables
import _cli
import _report
from _benchmark_tables import LOG_S, LOG_SIGMA, PRECISION, SLOW

EPILOG = """\
examples
  python scripts/benchmark.py kmm                       the whole comparison; needs GPFLOW_EXT_DATA for ionosphere
  python scripts/benchmark.py kmm --quick               a minute: small sizes, short caps, written to runs/
  python scripts/benchmark.py kmm --sizes 351 --threads 1 --out runs/one_thread.md
  python scripts/benchmark.py sparse_ep                 SparseEP, needs no data
  python scripts/benchmark.py robustmax                 SVGPRobustMax, needs no data
  python scripts/benchmark.py sgpmc                     SGPMCFreeForm; needs GPFLOW_EXT_DATA for the coal data
  python scripts/benchmark.py gprn                      GPRNTensor, needs no data
  python scripts/benchmark.py all                       all of them, about an hour
  python scripts/benchmark.py serving --threads 1       one prediction by an exported model, needs no data

kmm: binary classification with a logistic likelihood (Khan, Mohamed & Murphy 2012). Size 351 is the ionosphere
data, raw, all rows; any other size is drawn from the model itself. Three tables:
  1. fixed hyperparameters (log s = 3, log sigma = 1): seconds until the bound is within 1e-3 of the optimum, on
     the exact expected log likelihood and on its 20-piece bound, each method on the very same objective;
  2. one step of the parallel fixed point and one sweep of Algorithm 1 against one Cholesky factorisation and one
     matrix product of that size;
  3. with the hyperparameters learnt: seconds until the bound that the package reaches, less 0.01.

sparse_ep: binary classification with a probit (Hernandez-Lobato & Hernandez-Lobato 2016). Three tables:
  1. fixed hyperparameters, N = 2000, M = 100: seconds to convergence, in parallel and one site at a time;
  2. one sweep against the products and factorisations that it is made of;
  3. one minibatch step against one of GPflow's SVGP; --sizes are these numbers of data.

robustmax: classification into ten classes (Hensman et al. 2015), random data, float32 and float64. Two tables:
  1. one training step, by Adam alone and by natural gradients with Adam, against GPflow's SVGP with MultiClass;
  2. class probabilities of 10,000 rows from cached posteriors.

sgpmc: sampling (Hensman et al. 2015) beside GPflow's SGPMC with TFP's HMC. Two tables:
  1. effective draws in a second, of one chain and of ten;
  2. one evaluation of the log density with its gradient, dense and on a grid.

gprn: regression on many outputs (Li et al. 2020). One table: a training step against the number of outputs, beside
GPflow's GPR and its SVGP with linear coregionalisation.

serving: one row through the exported VGPKMM of --sizes training rows, against its arithmetic and an empty graph.

Every method is built and called once untimed (its compilation is a column of its own); then all are timed in
turn, round after round, and the medians shown. A method slower than 5 seconds runs once, one that exceeds its
cap is shown as "> cap". Libraries that are not installed are left out. The tables go to --out, the single
measurements to the same name with .jsonl; benchmarks.md and benchmarks.png beside them collect the ratios of all models.
"""

SIZES = {
    "kmm": (150, (351, 1000, 2000)),
    "sparse_ep": (2000, (10**4, 10**5, 10**6)),
    "robustmax": (0, ()),
    "sgpmc": (0, ()),
    "gprn": (50, (10**3, 10**4, 10**5, 10**6)),
    "serving": (100, (100, 1000)),
}
BOUNDS = (None, "piecewise")
LEARNT_SLACK = 1e-2  # nats below the package's bound that count as the same with learnt hyperparameters


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    new.add_argument("model", choices=[*SIZES, "all"], help="which model to compare")
    new.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of data (default: 351 1000 2000; sparse_ep 10000 100000 1000000; serving 100 1000); of outputs for gprn",
    )
    new.add_argument(
        "--problems",
        choices=("coal", "binary", "grid"),
        nargs="+",
        help="of sgpmc, measured again; the page keeps the others (default: all)",
    )
    new.add_argument("--repeats", type=int, metavar="R", help="timed rounds (default: 5)")
    new.add_argument(
        "--cap",
        type=float,
        metavar="S",
        help="seconds a run may take (default: 90; L-BFGS at most 30, VGPOpperArchambeau 15)",
    )
    new.add_argument("--threads", type=int, metavar="T", help="threads (default: one per core)")
    new.add_argument("--quick", action="store_true", help="one small size, 2 rounds, a cap of 3 seconds")
    new.add_argument(
        "--out",
        type=Path,
        metavar="FILE.md",
        help="of one model (default: docs/results/benchmark_<model>.md, runs/ with --quick)",
    )
    return new


def defaults(options: argparse.Namespace, model: str) -> argparse.Namespace:
    """Return the options of one model, with what was not given filled in."""
    options = argparse.Namespace(**{**vars(options), "model": model})
    quick = options.quick
    small, sizes = SIZES[model]
    options.sizes = options.sizes or ([small] if quick else list(sizes))
    options.repeats = options.repeats or (2 if quick else 5)
    options.cap = options.cap or (3.0 if quick else 90.0)
    folder = Path("runs" if quick else "docs/results")
    options.out = options.out or folder / f"benchmark_{options.model}.md"
    return options


def data(size: int) -> tuple[Any, Any]:
    """Return ionosphere for size 351, else inputs [N, 10] and labels drawn from the model."""
    import numpy as np

    from gpflow_ext import datasets

    if size == 351:
        return datasets.load("ionosphere", test_fraction=0.0, standardise=False, seed=0).train
    rng = np.random.default_rng(size)
    X = rng.standard_normal((size, 10))
    squared = (X**2).sum(1)[:, None] + (X**2).sum(1) - 2.0 * X @ X.T
    K = math.exp(2 * LOG_SIGMA) * np.exp(-0.5 * squared / math.exp(LOG_S))
    f = np.linalg.cholesky(K + 1e-6 * np.eye(size)) @ rng.standard_normal(size)
    return X, (rng.uniform(size=size) < 1.0 / (1.0 + np.exp(-f))).astype(float)[:, None]


def problem(size: int, bound: Any, learn: bool = False) -> Any:
    """Return the problem of this size at the benchmark's hyperparameters."""
    import _methods

    from gpflow_ext.likelihoods import BernoulliLogit

    likelihood = functools.partial(BernoulliLogit, bound=bound)
    return _methods.Problem.new(data(size), likelihood, learn).set(LOG_S, LOG_SIGMA)


def interleaved(runs: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each run in each round, all runs in turn; slow ones only once."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            if not seconds[name] or seconds[name][0] < SLOW:
                seconds[name].append(run())
    return seconds


def fixed(size: int, bound: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time every method at fixed hyperparameters on one objective."""
    import _methods
    import _peers

    task = problem(size, bound)
    methods = [
        method for method in _peers.METHODS if method.installed and not (bound and method.own_objective)
    ]
    runners, first_call = {}, {}
    for method in methods:
        begin = time.perf_counter()
        runners[method.name] = method.build(task)
        runners[method.name](_methods.Limit(evaluations=method.warm_up))
        first_call[method.name] = time.perf_counter() - begin
    best = runners[methods[0].name](_methods.Limit()).objective[-1]
    target = best - PRECISION
    last: dict[str, float] = {}

    def timed(method: Any) -> float:
        cap = min(options.cap, method.cap)
        if method.own_objective:
            return runners[method.name](_methods.Limit(seconds=cap)).seconds[-1]
        trace = runners[method.name](_methods.Limit(target, cap))
        last[method.name] = trace.objective[-1]
        arrived = trace.reached(target)
        return math.inf if arrived is None else trace.seconds[arrived]

    runs = {method.name: functools.partial(timed, method) for method in methods}
    seconds = interleaved(runs, options.repeats)
    return [
        {
            "table": "fixed",
            "size": size,
            "bound": bound or "exact",
            "method": method.name,
            "own_objective": method.own_objective,
            "optimum": best,
            "objective": last.get(method.name),
            "first_call": first_call[method.name],
            "seconds": [None if math.isinf(value) else value for value in seconds[method.name]],
            "cap": min(options.cap, method.cap),
        }
        for method in methods
    ]


def costs(size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Time one step and one sweep beside the factorisation and the product that they are made of."""
    import _flops
    import _methods
    import numpy as np
    import tensorflow as tf

    task = problem(size, "piecewise")
    K = task.kernel(task.data[0]) + tf.eye(size, dtype=task.data[0].dtype)
    kernels = {
        "Cholesky": tf.function(tf.linalg.cholesky),
        "product": tf.function(lambda matrix: tf.matmul(matrix, matrix)),
    }
    steps = 3
    limit = _methods.Limit(evaluations=steps + 1)

    def once(function: Any) -> float:
        begin = time.perf_counter()
        function(K).numpy()
        return time.perf_counter() - begin

    def step(runner: Any) -> float:
        return float(np.median(np.diff(runner(limit).seconds)))

    runs: dict[str, Callable[[], float]] = {
        name: functools.partial(once, function) for name, function in kernels.items()
    }
    flops = {}
    for name, method in (("parallel step", "parallel"), ("Algorithm 1 sweep", "algorithm1")):
        runs[name] = functools.partial(step, _methods.ours(task, method))
        with _flops.counting() as counter:
            counted = _methods.ours(task, method)
            counted(limit)
            trace = counted(_methods.Limit(evaluations=steps + 1, counter=counter))
        flops[name] = float(np.median(np.diff(trace.flops)))
    for run in runs.values():
        run()
    seconds = interleaved(runs, min(3, options.repeats))
    return {"table": "costs", "size": size, "seconds": seconds, "flops": flops}


def learnt(size: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time the package and GPflow's VGP with the hyperparameters learnt from the same start, exact likelihood."""
    import _methods

    records: list[dict[str, Any]] = []
    limit, target = _methods.Limit(seconds=min(60.0, options.cap)), math.inf
    for name, build in (
        ("gpflow_ext, parallel fixed point", _methods.ours),
        ("GPflow VGP, L-BFGS", _methods.vgp_lbfgs),
    ):
        task = problem(size, None, learn=True)
        begin = time.perf_counter()
        runner = build(task)
        runner(_methods.Limit(evaluations=2))
        first_call = time.perf_counter() - begin
        trace = runner(limit)
        target = min(target, trace.objective[-1] - LEARNT_SLACK)
        arrived = trace.reached(target)
        records.append(
            {
                "table": "learnt",
                "size": size,
                "method": name,
                "objective": trace.objective[-1],
                "total": trace.seconds[-1],
                "first_call": first_call,
                "target": target,
                "seconds": None if arrived is None else trace.seconds[arrived],
                "cap": limit.seconds,
            }
        )
    return records


def compare_kmm(options: argparse.Namespace, where: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Return the measurements of VGP-KMM and their tables."""
    begin, records = time.perf_counter(), []
    for size in options.sizes:
        for bound in BOUNDS:
            records += fixed(size, bound, options)
            print(f"N = {size}, {bound or 'exact'}: {time.perf_counter() - begin:.0f} s", flush=True)
        records.append(costs(size, options))
    records += learnt(options.sizes[0], options)
    return records, _benchmark_tables.document(where, records, options.sizes, options.repeats)


def compare_sparse_ep(options: argparse.Namespace, where: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Return the measurements of SparseEP and their tables."""
    import _benchmark_sparse_ep

    rows = 400 if options.quick else _benchmark_sparse_ep.ROWS
    records = _benchmark_sparse_ep.run(options, data(rows))
    return records, _benchmark_sparse_ep.document(where, records)


def compare(
    model: str, options: argparse.Namespace, where: dict[str, Any]
) -> tuple[list[dict[str, Any]], str]:
    """Return the measurements of a model and their tables, by the module of its name."""
    module = importlib.import_module(f"_benchmark_{model}")
    records = module.run(options)
    return records, module.document(where, records)


COMPARISONS = {
    "kmm": compare_kmm,
    "sparse_ep": compare_sparse_ep,
    **{model: functools.partial(compare, model) for model in ("robustmax", "sgpmc", "gprn", "serving")},
}


def main() -> None:
    """Measure and write."""
    given = arguments().parse_args()
    if given.model == "all" and (given.out or given.sizes):
        raise ValueError("--out and --sizes are for one model: leave them out with all.")
    if given.problems and given.model != "sgpmc":
        raise ValueError("--problems is for sgpmc.")
    _report.set_threads(given.threads)
    for model in SIZES if given.model == "all" else [given.model]:
        options = defaults(given, model)
        where = _report.environment(options.threads)
        begin = time.perf_counter()
        records, text = COMPARISONS[model](options, where)
        _report.write(options.out, text)
        _report.write_lines(options.out.with_suffix(".jsonl"), [{"environment": where}, *records])
        _benchmark_summary.write(options.out.parent)
        print(text)
        print(f"written to {options.out}; {time.perf_counter() - begin:.0f} seconds")


if __name__ == "__main__":
    _cli.run(main)
