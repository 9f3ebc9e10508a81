"""The benchmark of dual sites: when it scores, that its methods train, and what its page says."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import problems
import pytest

from scripts.benchmarks import dual

WHERE = {
    "commit": "abc", "date": "today", "cpu": "one", "cores": 2, "threads": 1, "load": 5.0, "python": "3",
    "versions": {"gpflow": "2"},
}  # fmt: skip


def test_scores_are_taken_at_marks_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(dual.time, "process_time", lambda: clock[0])

    def score() -> dict[str, float]:
        clock[0] += 100.0
        return {"nll": 1.0, "error": 0.5}

    tracer = dual.Tracer(score, 6.0)

    def train() -> None:
        for step in range(1, 100):
            clock[0] += 7.0 if step == 1 else 0.5
            tracer(step)

    with pytest.raises(dual.Finished):
        train()
    record = tracer.record
    assert record["first_call"] == 7.0
    assert len(record["seconds"]) == dual.MARKS
    assert (np.diff(record["seconds"]) >= 0.0).all()
    assert record["seconds"][-1] == 6.0
    assert record["steps"][-1] == 13
    assert all(
        found >= mark for found, mark in zip(record["seconds"], np.geomspace(0.1, 6.0, 24), strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", list(dual.methods("mnist_odd_even"))[:6])
def test_every_method_learns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dual, "MINIBATCH", 20)
    train, test = problems.binary(60), problems.binary(40, seed=3)
    build, fit = dual.methods("mnist_odd_even")[name]
    record = dual.trace(build, fit, train, test, train[0][:10].copy(), 1.5, 0)
    assert np.isfinite(record["nll"]).all()
    assert record["steps"][-1] > 2


def _records(**methods: list[float]) -> list[dict[str, Any]]:
    marks = 2.5 * np.geomspace(1.0 / 60.0, 1.0, dual.MARKS)
    shape = {"rows": 100, "test_rows": 10, "inputs": 2, "budget": 2.5, "seed": 0, "first_call": 1.0}
    traced = {"seconds": list(marks), "steps": list(range(2, dual.MARKS + 2)), "error": [0.1] * dual.MARKS}
    return [
        {"set": name, "method": method, "nll": list(np.linspace(*ends, dual.MARKS)), **shape, **traced}
        for name in dual.BUDGETS
        for method, ends in methods.items()
    ]


def test_a_run_is_as_short_as_its_cap_and_says_where_it_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    budgets: list[float] = []

    def trace(
        build: Any, fit: Any, train: Any, test: Any, Z: Any, budget: float, seed: int
    ) -> dict[str, Any]:
        budgets.append(budget)
        return {"seconds": [0.1, 0.2], "nll": [0.4, 0.3 - 0.2 * (budget > 0.5)]}

    monkeypatch.setattr(dual, "trace", trace)
    monkeypatch.setattr(dual, "drawn", lambda *_: (problems.binary(8), problems.binary(8), None))
    for quick, cap, expected in ((False, 90.0, {2.5, 10.0}), (False, 0.3, {0.3}), (True, 3.0, {0.25, 1.0})):
        budgets.clear()
        dual.run(argparse.Namespace(quick=quick, cap=cap, repeats=1))
        assert {*budgets} == expected
    printed = capsys.readouterr().out
    assert "None" not in printed
    assert "mnist_odd_even, dual, seed 0: test NLL 0.300 after 0.20 CPU s; 0.15 never" in printed
    assert "airline_2008, dual, seed 0: test NLL 0.100 after 0.20 CPU s; 0.15 after 0.20 CPU s" in printed


def test_the_page_compares_seconds_and_marks() -> None:
    """The first reaches 0.15 at 12 of the 23 steps between the marks, the second at the last, the third never."""
    text = dual.document(
        WHERE, _records(**{dual.OURS: [0.3, 0.0], "slow": [0.35, 0.15], "early": [0.2, 0.2]})
    )
    levels = text[text.index("CPU seconds to") :].splitlines()
    seconds = 2.5 * 60.0 ** (12.0 / 23.0 - 1.0)
    assert f"| dual | {seconds:.2f} | 1.0 |" in levels
    assert f"| slow | 2.50 | {2.5 / seconds:.1f} |" in levels
    assert f"| early | – | > {2.5 / seconds:.1f} |" in levels
    assert text.count("these have a lower mean NLL than `dual`: early at 8.") == 2
    assert "Others used the machine" in text
