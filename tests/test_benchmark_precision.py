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


def test_the_guide_quotes_the_record() -> None:
    lines = (ROOT / "docs/results/benchmark_precision.jsonl").read_text("utf-8").splitlines()
    said = precision.verdict([json.loads(line) for line in lines[1:]])
    guide = (ROOT / "docs/howto/precision.md").read_text("utf-8")
    assert said in " ".join(guide.split())
