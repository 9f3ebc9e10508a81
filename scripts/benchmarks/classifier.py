"""`GPClassifier` beside scikit-learn's: seconds of a fit by rows, and log loss where labels are wrong."""

from __future__ import annotations

import argparse
import functools
import time
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from .. import _cli
from ..shared import report
from .auto import machines
from .resumable import add_options, measure_and_write, parsed

FLIPPED = 0.15  # share of training labels that are exchanged
NOISY = ("breast_cancer", "pima")
QUICK = {"sizes": [100], "splits": 1, "tables": NOISY[:1]}


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(prog="python -m scripts.benchmarks.classifier", description=__doc__)
    new.add_argument(
        "--sizes", nargs="+", type=_cli.positive, default=[500, 2000], metavar="N", help="rows of the fits"
    )
    new.add_argument(
        "--splits", type=_cli.positive, default=2, metavar="K", help="of the noisy tables (default: 2)"
    )
    new.add_argument(
        "--tables", nargs="+", choices=NOISY, default=NOISY, help="the noisy ones (default: both)"
    )
    add_options(new, "classifier")
    return new


def run(options: argparse.Namespace, journal: Any) -> None:
    """Measure what the journal lacks, first what a process compiles."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in options.sizes:
            for name in ("GPClassifier", "GPClassifier, again", "scikit-learn GP"):
                journal.once(
                    {"what": "seconds", "rows": size, "model": name}, functools.partial(timed, size, name)
                )
        for table in options.tables:
            for split in range(options.splits):
                for name in ("GPClassifier", "GPClassifier, label noise", "logistic regression"):
                    key = {"what": "noise", "table": table, "split": split, "model": name}
                    journal.once(key, functools.partial(noisy, table, split, name))


def timed(rows: int, name: str) -> Mapping[str, Any]:
    """Fit two classes of 8 inputs; "again" is a second fit in the process, which compiles nothing."""
    import numpy as np

    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * rows, 8))
    f = np.sin(1.5 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3]
    y = f + 0.5 * rng.logistic(size=len(f)) > 0.0
    model = _classifier(name)  # which imports TensorFlow
    begin, cpu = time.perf_counter(), time.process_time()
    model.fit(X[:rows], y[:rows])
    spent = {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
    return {**spent, "nlpd": _loss(model, X[rows:], y[rows:])}


def noisy(table: str, split: int, name: str) -> Mapping[str, Any]:
    """Fit to training labels of which some are exchanged; the test labels are right."""
    import numpy as np

    import gpflow_ext as gpx

    (X, Y), (X_test, Y_test) = gpx.datasets.load(table, seed=split)
    flipped = np.random.default_rng(split).random(len(Y)) < FLIPPED
    y = np.where(flipped, 1.0 - Y[:, 0], Y[:, 0])
    begin = time.perf_counter()
    model = _classifier(name).fit(X, y)
    return {"seconds": time.perf_counter() - begin, "nlpd": _loss(model, X_test, Y_test[:, 0])}


def _classifier(name: str) -> Any:
    from sklearn.gaussian_process import GaussianProcessClassifier, kernels
    from sklearn.linear_model import LogisticRegression

    from gpflow_ext.estimators import GPClassifier

    if name == "logistic regression":
        return LogisticRegression(max_iter=1000)
    if name == "scikit-learn GP":
        return GaussianProcessClassifier(kernels.ConstantKernel() * kernels.Matern(3.0, nu=2.5))
    return GPClassifier(label_noise=0.1 if name.endswith("noise") else 0.0)


def _loss(model: Any, X: Any, y: Any) -> float:
    from sklearn.metrics import log_loss

    return float(log_loss(y, model.predict_proba(X)))


def text(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the page."""
    found = list(records)
    seconds = [each for each in found if each.get("what") == "seconds"]
    noise = [each for each in found if each.get("what") == "noise"]
    lines = [
        "# GPClassifier beside scikit-learn",
        "",
        "By `python -m scripts.benchmarks.classifier`, from the journal beside this page.",
        "",
        *machines(found),
        "## Seconds of a fit",
        "",
        "Two classes of 8 inputs, a Matérn kernel whose variance and length scale are learnt; log loss on as many test "
        "rows. The first fit of a process compiles.",
        "",
        report.table(
            ["rows", "model", "seconds", "CPU seconds", "log loss"],
            [
                [
                    str(each["rows"]),
                    each["model"],
                    f"{each['seconds']:.2f}",
                    f"{each['cpu']:.2f}",
                    f"{each['nlpd']:.3f}",
                ]
                for each in seconds
            ],
        ),
        "",
        "## Wrong labels",
        "",
        f"Log loss on right test labels where {100 * FLIPPED:.0f} % of the training labels were exchanged.",
        "",
        report.table(
            ["table", "split", "model", "log loss", "seconds"],
            [
                [
                    each["table"],
                    str(each["split"]),
                    each["model"],
                    f"{each['nlpd']:.3f}",
                    f"{each['seconds']:.1f}",
                ]
                for each in noise
            ],
        ),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Measure and write."""
    measure_and_write(parsed(arguments(), QUICK), "classifier", run, text, needs_data=False)


if __name__ == "__main__":
    _cli.run(main)
