"""The benchmark of precisions at a tiny size; the guide quotes its record."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from scripts.benchmarks import precision

ROOT = Path(__file__).parents[1]
WHERE = {"date": "", "cpu": "", "cores": 1, "threads": 1, "load": 0.0, "python": "", "versions": {}}


@pytest.mark.slow
def test_each_form_is_timed_and_compared_with_float64() -> None:
    records = precision.run(argparse.Namespace(sizes=[40], repeats=1))
    assert [(each["step"], each["form"]) for each in records] == [
        (step, form) for step in ("GPR", "GPLaplace", "Gram") for form in precision.FORMS
    ]
    by_form = {form: [each for each in records if each["form"] == form] for form in precision.FORMS}
    assert not any(each["error"] + each["slope"] for each in by_form["float64"])
    for form in ("float32", "mixed"):
        assert all(0.0 < each["slope"] < 1e-3 for each in by_form[form])
    assert max(each["error"] for each in by_form["mixed"]) < 1e-3
    assert precision.verdict(records) in precision.document(WHERE, records)


def test_the_verdict_follows_the_seconds() -> None:
    """It was "gain little there" whatever the numbers."""
    assert precision.judged([1.03, 0.97])[0] == "gain little"
    assert precision.judged([1.9, 1.3]) == ("gain", "where", "cost")
    assert precision.judged([0.5, 0.8])[0] == "lose"
    assert precision.judged([0.5, 1.8])[0] == "gain or lose by the method"
    lines = (ROOT / "docs/results/benchmark_precision.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines[1:]]
    faster = [{**each, "seconds": [0.01]} if each["form"] == "mixed" else each for each in records]
    assert "with factorisations in float64 gain there," in precision.verdict(faster)
    assert "since the whole" not in precision.verdict(faster)


def test_the_guide_quotes_the_record() -> None:
    lines = (ROOT / "docs/results/benchmark_precision.jsonl").read_text("utf-8").splitlines()
    said = precision.verdict([json.loads(line) for line in lines[1:]])
    guide = (ROOT / "docs/howto/precision.md").read_text("utf-8")
    assert said in " ".join(guide.split())
