"""Time the package against others that do the same mathematics, in one run on one machine."""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path

from .. import _cli
from ..shared import report
from . import pictures, summary

EPILOG = """\
examples
  python -m scripts.benchmarks kmm                       the whole comparison; needs GPFLOW_EXT_DATA for ionosphere
  python -m scripts.benchmarks kmm --quick               a minute: small sizes, short caps, written to runs/
  python -m scripts.benchmarks kmm --sizes 351 --threads 1 --out runs/one_thread.md
  python -m scripts.benchmarks sparse_ep                 SparseEP, needs no data
  python -m scripts.benchmarks robustmax                 SVGPRobustMax, needs no data
  python -m scripts.benchmarks sgpmc                     SGPMCFreeForm; needs GPFLOW_EXT_DATA for the coal data
  python -m scripts.benchmarks gprn                      GPRNTensor, needs no data
  python -m scripts.benchmarks all                       all of them, about an hour
  python -m scripts.benchmarks serving --threads 1       one prediction by an exported model, needs no data
  python -m scripts.benchmarks server                    many rows, and many clients of scripts/serve.py; needs no data
  python -m scripts.benchmarks fits                      what a user pays; needs GPFLOW_EXT_DATA for ionosphere
  python -m scripts.benchmarks gpflow_models             GPflow's own models, needs no data
  python -m scripts.benchmarks state_space               counts in time, N up to a million, needs no data
  python -m scripts.benchmarks vecchia --threads 1       counts and binary data in the plane, needs no data
  python -m scripts.benchmarks vecchia_large --threads 1 counts at up to a million places, with memory; needs no data
  python -m scripts.benchmarks grids --threads 1         counts on maps of up to 512 x 512 cells, needs no data
  python -m scripts.benchmarks functions                 functions drawn from a posterior, needs no data
  python -m scripts.benchmarks convolution               convolutional kernels, needs no data
  python -m scripts.benchmarks precision --threads 1     a step in float64, float32 and mixed, needs no data
  python -m scripts.benchmarks dual --threads 1 --repeats 2    dual sites; needs GPFLOW_EXT_DATA for MNIST and airline

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

fits: imports, the first fit, the second and one with fewer rows, each contender in a process of its own, beside
scikit-learn and GPBoost; ten folds; the targets.

gpflow_models: GPflow's own models by gpflow_ext.fit and by gpflow.optimizers.Scipy, from the same start: the
second fit of new objects, its evaluations, and the seconds until the end of the other.

state_space: a sweep, Laplace's method, variational inference and predictions with prior="markov", beside BayesNewton
where BAYESNEWTON_PYTHON names an interpreter that has it; see peer_bayesnewton.py.

vecchia: Laplace's method with prior="vecchia", beside GPBoost where GPBOOST_PYTHON names an interpreter that has it; see
peer_gpboost.py.

vecchia_large: seconds and memory of Laplace's method with prior="vecchia" at --sizes places, by a factor and by iteration,
and of variational inference by a factor, each in a process of its own; above 200,000 places the mode alone, by iteration.

grids: Laplace's method and variational inference with prior="grid" on maps of --sizes cells along a side, and the errors
of the probes beside the dense model.

auto, classifier, defaults and minute resume from a journal, and are programs of their own: python -m scripts.benchmarks.auto.

dual: GPflow's SVGP by dual sites, by natural gradients and by Adam at three rates, and SparseEP: test scores over CPU
seconds; --repeats are seeds of the minibatches. A run trains for 2.5 CPU seconds on MNIST and 10 on airline, a tenth of that
with --quick, and --cap at most; its compilation and scores come on top.

convolution: the sums over patches of --sizes images in a step, beside GPflow's convolutional kernel.

precision: a step of GPR and of Laplace's method on --sizes rows, beside float64.

functions: --sizes inputs of a hundred functions drawn from a posterior, beside GPflow's joint draw of 3,000.

serving: one row through the exported VGPKMM of --sizes training rows, against its arithmetic and an empty graph.

server: --sizes rows in one call of an exported VGPKMM, time and memory; clients of scripts/serve.py.

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
    "server": (10**4, (10**4, 10**5, 10**6)),
    "fits": (100, (351, 500, 1000, 2000)),
    "gpflow_models": (100, (300,)),
    "state_space": (300, (10**3, 10**4, 10**5, 3 * 10**5, 10**6)),
    "vecchia": (300, (2000, 20_000)),
    "vecchia_large": (1000, (20_000, 100_000, 1_000_000)),
    "grids": (20, (40, 128, 512)),
    "dual": (0, ()),
    "functions": (3000, (10**6,)),
    "convolution": (2, (100,)),
    "precision": (200, (2000,)),
}
PROGRAMS = ("auto", "classifier", "defaults", "minute")


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(
        prog="python -m scripts.benchmarks",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("model", type=_model, choices=[*SIZES, "all"], help="which model to compare")
    new.add_argument(
        "--sizes",
        type=_cli.positive,
        nargs="+",
        metavar="N",
        help="numbers of data (default: 351 1000 2000; sparse_ep 10000 100000 1000000; serving 100 1000; server 10000 100000 1000000); of outputs for gprn",
    )
    new.add_argument(
        "--problems",
        choices=("coal", "binary", "grid"),
        nargs="+",
        help="of sgpmc, measured again; the page keeps the others (default: all)",
    )
    new.add_argument("--repeats", type=_cli.positive, metavar="R", help="timed rounds (default: 5)")
    new.add_argument(
        "--cap",
        type=_cli.above_zero,
        metavar="S",
        help="seconds a run may take (default: 90; L-BFGS at most 30, VGPOpperArchambeau 15)",
    )
    new.add_argument("--threads", type=_cli.positive, metavar="T", help="threads (default: one per core)")
    new.add_argument("--quick", action="store_true", help="one small size, 2 rounds, a cap of 3 seconds")
    new.add_argument(
        "--out",
        type=Path,
        metavar="FILE.md",
        help="of one model (default: docs/results/benchmark_<model>.md, runs/ with --quick)",
    )
    return new


def _model(name: str) -> str:
    """Return a name, unless it is that of a benchmark with a program of its own."""
    if name in PROGRAMS:
        raise argparse.ArgumentTypeError(
            f"{name} is a program of its own: python -m scripts.benchmarks.{name}"
        )
    return name


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


def main() -> None:
    """Measure and write."""
    given = arguments().parse_args()
    if given.model == "all" and (given.out or given.sizes):
        raise ValueError("--out and --sizes are for one model: leave them out with all.")
    if given.problems and given.model != "sgpmc":
        raise ValueError("--problems is for sgpmc.")
    report.set_threads(given.threads)
    for model in SIZES if given.model == "all" else [given.model]:
        options = defaults(given, model)
        where = report.environment(options.threads)
        begin = time.perf_counter()
        module = importlib.import_module(f".{model}", __package__)
        records = module.run(options)
        page = report.reduced(module.document(where, records), options.quick)
        text = pictures.illustrated(page, model, options.out)
        report.write(options.out, text)
        report.write_lines(options.out.with_suffix(".jsonl"), [{"environment": where}, *records])
        summary.write(options.out.parent)
        pictures.write(options.out, model)
        print(text)
        print(f"written to {options.out}; {time.perf_counter() - begin:.0f} seconds")


if __name__ == "__main__":
    _cli.run(main)
