"""Run the test files that GPflow releases, with classes of this package in the place of GPflow's.

    python -m scripts.tools.gpflow_tests                          all substitutions: half an hour
    python -m scripts.tools.gpflow_tests --only likelihoods       some; the others keep what is recorded
    python -m scripts.tools.gpflow_tests --source ~/GPflow        the files of a checkout

Without a checkout pip downloads the source distribution of the installed version into a temporary folder. Writes
docs/results/gpflow_tests.md and what it says as gpflow_tests.jsonl; nothing of GPflow's is kept. A test counts
where its file has built an object of ours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .. import _cli
from ..shared import report
from ..shared.journal import Journal, Record
from . import record_pictures

ROOT = Path(__file__).resolve().parents[2]
NAME = "gpflow_tests"
ENDINGS = ("passed", "failed", "not applicable", "skipped")

# What replaces which of GPflow's classes; `gpflow_substitutes` has the classes.
REPLACED: dict[str, tuple[str, ...]] = {
    "VGPKMM": ("GPR", "SGPR", "VGP"),
    "GPLaplace": ("GPR", "VGP"),
    "SparseEP": ("GPR", "GPRFITC", "VGP"),
    "SGPMCFreeForm": ("SGPMC", "GPMC"),
    "SVGPRobustMax": ("SVGP",),
    "likelihoods": ("Bernoulli", "Poisson", "MultiClass", "Softmax"),
}

NEEDED = {"SVGPRobustMax": "MultiClass"}  # what a file must name besides

# Why a test says nothing of a substitute, by a pattern of its name and one of what it failed with.
EXPECTED: tuple[tuple[str, str, str], ...] = (
    (
        "",
        "no tests have been registered|no test for likelihood class",
        "asks that GPflow's own files test every class that there is",
    ),
    (
        "",
        "compute_qu|q_mu|q_sqrt|upper_bound|_common_calculation",
        "asks for an attribute that GPflow's class alone has",
    ),
    ("", "has no attribute 'invlink'", "sets the inverse link of `MultiClass`; ours has ε itself"),
    (
        "test_update_vgp_data",
        "Not equal",
        "asks that q stays as new rows come; the substitute is at its optimum for all rows",
    ),
    (
        "test_cglb_predict",
        "assert False",
        "asks for the digits of GPR without jitter; ours adds the default to K, as GPflow's VGP does",
    ),
    (
        "test_non_finite_posterior",
        "DID NOT RAISE",
        "is of a K that is not positive definite; a dense site model does not factorise K, keeps the last sites that are "
        "finite, and `fit` warns",
    ),
    (
        "test_bo_integration.*model_factory[02]]",
        "Not equal",
        "gives the model other rows; Z of the sparse substitute stays at the first ones, and it is no longer GPR or VGP",
    ),
    ("multiclass", "no curvature to expand", "is of a likelihood that Laplace's method refuses"),
)


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="python -m scripts.tools.gpflow_tests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--source", type=Path, metavar="DIR", help="GPflow's source; default: download it")
    new.add_argument(
        "--minutes",
        type=_cli.above_zero,
        default=60.0,
        metavar="M",
        help="of each substitution at most (default: 60)",
    )
    new.add_argument("--only", nargs="+", choices=list(REPLACED), metavar="NAME", help=", ".join(REPLACED))
    new.add_argument(
        "--out", type=Path, default=ROOT / "docs/results", metavar="DIR", help="default: docs/results"
    )
    return new


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    path = options.out / f"{NAME}.jsonl"
    journal = Journal(path)
    with tempfile.TemporaryDirectory() as folder:
        tests = Path(folder) / "run/tests"
        shutil.copytree((options.source or download(Path(folder))) / "tests", tests)
        (tests / "__init__.py").touch()  # else the folder of the tests hides the package
        for name in options.only or REPLACED:
            record = measure(name, tests, options.minutes)
            journal.records = [each for each in journal.records if each["substitute"] != name]
            order = list(REPLACED)
            journal.records = sorted([*journal.records, record], key=lambda r: order.index(r["substitute"]))
            report.write_lines(path, journal.records)
            report.write(options.out / f"{NAME}.md", document(journal.records))
    record_pictures.write(options.out, NAME)
    records = journal.records
    return int(any(ending(test) == "failed" for record in records for test in record["tests"]))


def download(folder: Path) -> Path:
    """Return the unpacked source distribution of the installed GPflow.

    Raises
    ------
    FileNotFoundError
        Where that holds no tests.
    """
    what = f"gpflow=={version('gpflow')}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), what], check=True)
    with tarfile.open(next(folder.glob("gpflow-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    source = next(path for path in folder.glob("gpflow-*") if path.is_dir())
    if not (source / "tests").is_dir():
        raise FileNotFoundError(
            f"The source distribution of {what} holds no tests: give --source a checkout."
        )
    return source


def files(tests: Path, name: str) -> list[Path]:
    """Return the files of tests that name a class that is replaced, those of GPflow's notebooks and speed left out."""
    named, needed = re.compile(r"\b(" + "|".join(REPLACED[name]) + r")\b"), NEEDED.get(name, "")
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(tests.rglob("test_*.py"))}
    found = [path for path, text in texts.items() if named.search(text) and needed in text]
    return [
        path for path in found if path.name not in ("test_notebooks.py", "test_benchmark.py", "test_docs.py")
    ]


def measure(name: str, tests: Path, minutes: float) -> Record:
    """Run the files that name what is replaced, in a process of its own, until the minutes are over."""
    begin, found = time.perf_counter(), tests.parent / f"{name}.jsonl"
    chosen = [str(path.relative_to(tests.parent)) for path in files(tests, name)]
    command = [
        sys.executable, "-m", "pytest", "--quiet", "--import-mode=importlib", "--tb=no", "-p", "no:cacheprovider",
        "-p", "scripts.tools.gpflow_substitutes", "--substitutes", name, "--substitutes-to", str(found), *chosen,
    ]  # fmt: skip
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command,
            cwd=tests.parent,
            env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
            check=False,
            timeout=60.0 * minutes,
        )
    records = [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]
    return {
        "substitute": name,
        "seconds": round(time.perf_counter() - begin),
        "cut_off": time.perf_counter() - begin > 60.0 * minutes,
        "environment": report.environment(),
        "tests": [
            {key: record[key] for key in ("test", "outcome", "reason")}
            for record in records
            if record["built"]
        ],
    }


def why(test: Mapping[str, Any]) -> str | None:
    """Return why a test that failed says nothing of the substitute, ``None`` where it does."""
    if test["outcome"] == "passed":
        return None
    return next(
        (
            reason
            for name, message, reason in EXPECTED
            if re.search(name, test["test"]) and re.search(message, test["reason"])
        ),
        None,
    )


def ending(test: Mapping[str, Any]) -> str:
    """Return how a test ended: one of `ENDINGS`."""
    if why(test):
        return "not applicable"
    return "failed" if test["outcome"] == "error" else str(test["outcome"])


def document(records: Sequence[Record]) -> str:
    """Return the page."""
    rows, notes = [], []
    for record in records:
        by_file: dict[str, Counter[str]] = {}
        for test in record["tests"]:
            file, _, case = test["test"].partition("::")
            by_file.setdefault(file, Counter())[ending(test)] += 1
            if test["outcome"] in ("failed", "error"):
                reason = why(test)
                notes.append(
                    f"- {record['substitute']}, `{file.removeprefix('tests/')}::{case}`: {_said(test, reason)}\n"
                )
        replaced = ", ".join(REPLACED[record["substitute"]])
        for file, counts in by_file.items():
            kinds = (str(counts[kind]) for kind in ENDINGS)
            rows.append((f"{record['substitute']} for {replaced}", file.removeprefix("tests/"), *kinds))
    totals = Counter[str]()
    for row in rows:
        for kind, number in zip(ENDINGS, row[2:], strict=True):
            totals[kind] += int(number)
    columns = ("what for what", "file", *ENDINGS)
    where = "".join(
        f"- {each['substitute']}: {each['seconds']} seconds{', then cut off' * each['cut_off']}; "
        f"{report.describe(each['environment'])}\n"
        for each in records
    )
    return (
        "# GPflow's own tests\n\n"
        "The test files that GPflow releases with its source, run with our classes in place of GPflow's: the first "
        "column names what is replaced by what. GPR, SGPR, GPRFITC and VGP are replaced by the site model that equals "
        "them in theory, at its fixed point: dense, sparse or with Z = X. A file counts if it builds one of our "
        "objects. Written by "
        "`python -m scripts.tools.gpflow_tests`.\n\n"
        f"In all {totals['passed']} passed, {totals['failed']} failed, {totals['not applicable']} do not apply, "
        f"{totals['skipped']} skipped.\n\n"
        "![How the tests ended, by the class that was put in place](gpflow_tests.png)\n\n"
        f"{report.table(columns, rows)}\n"
        f"## What does not pass\n\n{''.join(notes)}\n"
        f"## When and where\n\n{where}"
    )


def _said(test: Mapping[str, Any], reason: str | None) -> str:
    if reason is not None:
        return f"not applicable: it {reason}"
    return "failed: " + test["reason"].replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    _cli.run(lambda: sys.exit(main()))
