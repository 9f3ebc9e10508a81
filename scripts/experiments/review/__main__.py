"""Reproduce the comparisons of Izmailov's review (2016), section 3: R² against time."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from ... import _cli
from ...shared import report

EPILOG = """\
examples
  GPFLOW_EXT_DATA=data python -m scripts.experiments.review            half an hour, into docs/results/
  python -m scripts.experiments.review --quick                         generated data only, seconds each, into runs/
  GPFLOW_EXT_DATA=data python -m scripts.experiments.review --sets kin40k --methods means-L-BFGS-B svi-natural

comparisons
  the svi family; vi-means against svi; vi-means by L-BFGS-B and by projected Newton; vi-JJ and vi-Taylor against
  svi-classification, on generated, small, medium and large sets

Every finished run is a line of review.jsonl, which a rerun finds there and does not repeat.
"""


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(
        prog="python -m scripts.experiments.review",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--quick", action="store_true", help="small generated sets, two seconds to a method")
    new.add_argument("--sets", nargs="+", metavar="NAME", help="default: all")
    new.add_argument("--methods", nargs="+", metavar="NAME", help="default: all")
    new.add_argument("--threads", type=_cli.positive, metavar="T", help="threads (default: one per core)")
    new.add_argument(
        "--out", type=Path, metavar="DIR", help="default: docs/results, runs/reproduce_review with --quick"
    )
    return new


# Methods of thousands of passes over all data, which the review does not show either.
PASSES = {"large": ("svi-FG",), "million": ("svi-FG", "svi-L-BFGS-B", "means-PN")}


def regression_sets(quick: bool) -> list[Any]:
    """Return the sets of section 3.1 to 3.3."""
    from functools import partial

    from .methods import Set, generated, stored

    if quick:
        return [Set("generated", partial(generated, 200, 2, 1.0), 15, 1.0, "small")]
    return [
        Set("generated 2-d", partial(generated, 500, 2, 0.7), 50, 10.0, "small"),
        Set("diabetes", partial(stored, "diabetes"), 50, 10.0, "small"),
        Set("boston_housing", partial(stored, "boston_housing"), 100, 15.0, "small"),
        Set("generated 4-d", partial(generated, 4000, 4, 1.5), 200, 40.0, "medium"),
        Set("sarcos_test4449", partial(stored, "sarcos_test4449"), 200, 40.0, "medium"),
        Set("california_housing", partial(stored, "california_housing"), 200, 80.0, "large"),
        Set("kin40k", partial(stored, "kin40k"), 200, 100.0, "large"),
        Set("a million generated", partial(generated, 1_000_000, 4, 1.5), 100, 60.0, "million"),
    ]


def classification_sets(quick: bool) -> list[Any]:
    """Return the sets of section 3.4."""
    from functools import partial

    from .methods import Set, generated, stored

    if quick:
        return [Set("generated labels", partial(generated, 200, 2, 1.0, labels=True), 15, 1.0, "small")]
    return [
        Set("pima", partial(stored, "pima"), 50, 10.0, "small"),
        Set("breast_cancer", partial(stored, "breast_cancer"), 50, 10.0, "small"),
        Set("generated labels", partial(generated, 2000, 2, 0.7, labels=True), 100, 20.0, "medium"),
        Set("more generated labels", partial(generated, 20_000, 4, 1.5, labels=True), 200, 80.0, "large"),
    ]


def main() -> None:
    """Run what is missing, draw, write."""
    options = arguments().parse_args()
    report.set_threads(options.threads)
    from ...shared.journal import Journal
    from . import methods
    from . import report as shown

    folder = options.out or Path("runs/reproduce_review" if options.quick else "docs/results")
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    journal = Journal(folder / "review.jsonl")
    journal.heading = {"where": report.environment(options.threads)}
    tasks = [
        (s, method, methods.regression, "R²")
        for s in regression_sets(options.quick)
        for method in (*shown.MEANS, *shown.SVI)
    ]
    tasks += [
        (s, method, methods.classification, "accuracy")
        for s in classification_sets(options.quick)
        for method in shown.CLASSIFIERS
    ]
    known = {task[0].name for task in tasks}, {task[1] for task in tasks}
    for flag, asked, names in (("--sets", options.sets, known[0]), ("--methods", options.methods, known[1])):
        if unknown := sorted(set(asked or ()) - names):
            raise ValueError(
                f"{flag} does not know {', '.join(unknown)}; choose from {', '.join(sorted(names))}."
            )
    for chosen, method, run, score in tasks:
        if method in PASSES.get(chosen.size, ()):
            continue
        if (options.sets and chosen.name not in options.sets) or (
            options.methods and method not in options.methods
        ):
            continue
        journal.once({"set": chosen.name, "method": method}, lambda: measure(chosen, method, run, score))  # noqa: B023
        print(f"{time.perf_counter() - begin:7.0f} s  {chosen.name}: {method}", flush=True)
    shown.draw(journal, folder)
    headings = [record["where"] for record in journal.records if "where" in record]
    page = shown.text(journal, "\n".join(f"- {report.describe(where)}" for where in headings))
    report.write(folder / "review.md", report.reduced(page, options.quick))
    print(f"written to {folder / 'review.md'}; {time.perf_counter() - begin:.0f} seconds")


def measure(chosen: Any, method: str, run: Any, score: str) -> dict[str, Any]:
    """Run one method on one set; return its record."""
    import gpflow_ext as gpx

    train, test = chosen.load()
    Z = gpx.inducing.kmeans(train[0][:20_000], chosen.num_inducing, seed=0)
    curve = run(method, train, test, Z, chosen.seconds)
    sizes = {"n": len(train[0]), "d": train[0].shape[1], "m": len(Z)}
    return {"size": chosen.size, "score": score, **sizes, "curve": [list(point) for point in curve]}


if __name__ == "__main__":
    _cli.run(main)
