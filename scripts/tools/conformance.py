"""Run the tests of GPflow's contract and write which model has which of its features.

    python -m scripts.tools.conformance                        all features: half an hour
    python -m scripts.tools.conformance --features pickle      some; the others keep what is recorded

Writes docs/conformance.md and what it says as docs/results/conformance.jsonl. A test fills the columns that its
marker ``feature`` names, in the row of its ``entry`` of tests/conformance/models.py; skipped, it says why the
model has no such thing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import _cli
from ..shared import report
from ..shared.journal import Journal, Record

ROOT = Path(__file__).resolve().parents[2]
FEATURES = (
    "predict flags",
    "batch dimensions",
    "open shapes",
    "cache update",
    "non-finite",
    "deepcopy",
    "freeze",
    "pickle",
    "SavedModel",
    "Checkpoint",
    "parameter_dict",
    "print_summary",
    "set_trainable",
    "priors",
    "Scipy",
    "monitor",
    "NaturalGradient",
    "data replaced",
    "data in variables",
    "kernels of each output",
    "mixtures of outputs",
    "inter-domain",
)
FILES = ("test_contract.py", "test_predict.py")
SIGNS = {"passed": "✓", "failed": "✗"}


class Recorder:
    """A plugin of pytest that runs the tests of some features, and keeps how they ended."""

    def __init__(self, features: Sequence[str]) -> None:
        self.found: list[Record] = []
        self.models: list[str] = []
        self._features = features

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave the tests of the features."""
        items[:] = [item for item in items if _features(item) & set(self._features)]
        self.models = list(dict.fromkeys(item.callspec.params["entry"].name for item in items))

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        """Keep a test's own outcome, or that of a set-up that skipped or failed it."""
        if call.when == "teardown" or (call.when == "setup" and call.excinfo is None):
            return
        skipped = call.excinfo is not None and call.excinfo.typename == "Skipped"
        outcome = "passed" if call.excinfo is None else "skipped" if skipped else "failed"
        for feature in sorted(_features(item) & set(self._features)):
            self.found.append(
                {
                    "model": item.callspec.params["entry"].name,
                    "feature": feature,
                    "test": item.nodeid.partition("[")[0],
                    "outcome": outcome,
                    "reason": str(call.excinfo.value) if skipped else "",
                }
            )


def _features(item: Any) -> set[str]:
    return {name for mark in item.iter_markers("feature") for name in mark.args}


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="python -m scripts.tools.conformance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--features", nargs="+", choices=FEATURES, metavar="NAME", default=FEATURES)
    new.add_argument("--docs", type=Path, default=ROOT / "docs", metavar="DIR", help="default: docs")
    return new


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    path = options.docs / "results/conformance.jsonl"
    journal = Journal(path)
    new = measure(options.features)
    journal.records = [each for each in journal.records if each["feature"] not in options.features]
    journal.records = sorted([*journal.records, *new], key=lambda each: FEATURES.index(each["feature"]))
    report.write_lines(path, journal.records)
    report.write(options.docs / "conformance.md", document(journal.records))
    return int(any(test["outcome"] == "failed" for each in new for test in each["tests"]))


def measure(features: Sequence[str]) -> list[Record]:
    """Run the tests of features, also the long ones, in this process; return a record of each feature."""
    import pytest

    recorder, begin = Recorder(features), time.perf_counter()
    paths = [str(ROOT / "tests/conformance" / file) for file in FILES]
    flags = ["--rootdir", str(ROOT), "--runslow", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
    pytest.main([*flags, *paths], plugins=[recorder])
    where = report.environment()
    return [
        {
            "feature": feature,
            "seconds": round(time.perf_counter() - begin),
            "environment": where,
            "tests": [
                {key: test[key] for key in ("model", "test", "outcome", "reason")}
                for test in recorder.found
                if test["feature"] == feature
            ],
        }
        for feature in features
    ]


def document(records: Sequence[Record]) -> str:
    """Return the page."""
    models = list(dict.fromkeys(test["model"] for each in records for test in each["tests"]))
    reasons: list[str] = []
    rows = [(model, *(_cell(each, model, reasons) for each in records)) for model in models]
    notes = "".join(f"{number}. {reason}\n" for number, reason in enumerate(reasons, 1))
    tests = "".join(
        f"- {each['feature']}: "
        + ", ".join(
            f"`{name}`" for name in dict.fromkeys(test["test"].split("/")[-1] for test in each["tests"])
        )
        + "\n"
        for each in records
    )
    dates = "".join(f"- {each['feature']}: {report.describe(each['environment'])}\n" for each in records)
    return (
        "# GPflow's contract\n\n"
        "What GPflow's models can do, tested on every model of this package and on GPflow's own, in the last four "
        "rows. ✓ means that the tests of the column pass; a number means that it does not apply to the model, for the "
        "reason below. Written by "
        "`python -m scripts.tools.conformance`.\n\n"
        f"{report.table(('', *(each['feature'] for each in records)), rows)}\n"
        f"## Where it does not apply\n\n{notes}\n"
        f"## The tests\n\n{tests}\n"
        f"## When and where\n\n{dates}"
    )


def _cell(record: Record, model: str, reasons: list[str]) -> str:
    """Return how a model's tests of a feature ended; reasons get theirs where there are new ones."""
    own = [test for test in record["tests"] if test["model"] == model]
    for ending in ("failed", "passed"):
        if any(test["outcome"] == ending for test in own):
            return SIGNS[ending]
    numbers = []
    for reason in dict.fromkeys(test["reason"].removeprefix("Skipped: ") for test in own):
        if reason not in reasons:
            reasons.append(reason)
        numbers.append(str(reasons.index(reason) + 1))
    return ", ".join(numbers)


if __name__ == "__main__":
    _cli.run(lambda: sys.exit(main()))
