"""Steps timed in turn, the benchmark against the number of outputs, and the page that collects all ratios."""

from __future__ import annotations

import json
import sys

import pytest
import tensorflow as tf

from scripts.benchmarks import __main__ as benchmark
from scripts.benchmarks import gprn, robustmax, sparse_ep, summary, timing
from scripts.benchmarks import sgpmc_page as sgpmc
from scripts.shared import report


def test_steps_are_timed_in_turn_and_their_operations_counted(monkeypatch) -> None:
    monkeypatch.setattr(timing, "PRODUCT_SIZE", 200)
    calls: list[str] = []

    def build(name: str, number: int) -> timing.Step:
        matrix = tf.eye(10, dtype=tf.float64)
        product = tf.function(lambda: sum(tf.matmul(matrix, matrix) for _ in range(number)))

        def step() -> None:
            calls.append(name)
            product()

        return step

    builders = {"a": lambda: build("a", 1), "b": lambda: build("b", 2), "c": lambda: build("c", 3)}
    one, two, three = timing.interleaved(builders, 3, ("a", "b"))
    assert calls == [*"abc", *"abc" * 3, *"aa", *"bb"]  # first calls, rounds, counting
    assert three["flops"] is None
    assert 1e7 < one["rate"] == two["rate"] < 1e15
    assert one["method"] == "a"
    assert len(one["seconds"]) == 3
    assert 0.0 < min(one["seconds"]) < one["first_call"]
    assert one["flops"] >= 2000.0
    assert two["flops"] - one["flops"] >= 2000.0


def test_the_benchmark_of_outputs_measures_and_the_summary_collects(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(timing, "PRODUCT_SIZE", 100)
    most = {gprn.TENSOR: 0, gprn.LMC: 0, gprn.GPR: 12}
    monkeypatch.setattr(gprn, "MOST", most)
    out = tmp_path / "benchmark_gprn.md"
    flags = ["gprn", "--quick", "--sizes", "12", "--repeats", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *flags])
    benchmark.main()
    _, ours, theirs = map(json.loads, out.with_suffix(".jsonl").read_text().splitlines())
    assert (ours["method"], theirs["method"]) == (gprn.OURS, gprn.GPR)
    assert all(record["flops"] > 0.0 and record["first_call"] > 0.0 for record in (ours, theirs))
    ratio = report.number(theirs["seconds"][0] / ours["seconds"][0], 2)
    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if f"| {gprn.GPR} |" in line]
    assert f"| {ratio} |" in line
    assert (tmp_path / "benchmarks.png").stat().st_size > 5_000
    assert "VGPKMM" not in page


def _fixed(method: str, seconds: list[float | None]) -> dict:
    record = {"table": "fixed", "size": 30, "bound": "exact", "method": method, "seconds": seconds}
    return {**record, "own_objective": "Laplace" in method, "first_call": 2.0, "cap": 90.0}


def test_a_method_that_did_not_arrive_is_shown_by_its_cap() -> None:
    methods = {
        "gpflow_ext, parallel": [0.5, 0.4, 0.6],
        "GPflow VGP": [None, 7.0, None],
        "sklearn Laplace": [1.0],
    }
    records = [_fixed(name, seconds) for name, seconds in methods.items()]
    piecewise = [{**record, "bound": "piecewise"} for record in records[:2]]
    costs = {"table": "costs", "size": 30, "seconds": {"product": [1e-3], "parallel step": [1e-2]}}
    costs["flops"] = {"parallel step": 1e5}
    first, second, third = summary._kmm([*records, *piecewise, costs])
    assert third.task == "dense, N = 30, 20 pieces"
    assert (first.ours, first.theirs, first.capped) == (0.5, 90.0, True)
    assert second.method == "sklearn Laplace (own objective)"
    assert second.theirs / second.ours == pytest.approx(2.0)
    rate = 2.0 * 30**3 / 1e-3
    assert first.share == pytest.approx(1e5 / 1e-2 / rate)
    assert "> 90" in summary._table([first])
    assert "> 180 |" in summary._table([first])


def test_steps_are_tabulated_beside_ours_of_the_same_kind() -> None:
    shared = {"table": "step", "rate": 1e9, "first_call": 3.0, "flops": 1e8, "rows": 40}
    methods = {
        "ours, Adam": 0.2,
        "GPflow, Adam": 0.3,
        "ours, natural gradients": 0.25,
        "GPflow, natural gradients": 0.5,
    }
    records = [
        {**shared, "dtype": dtype, "method": method, "seconds": [seconds]}
        for method, seconds in methods.items()
        for dtype in ("float32", "float64")
    ]
    adam, natural, *_ = summary._robustmax([*records, *_predictions(records)])
    assert (adam.method, adam.theirs / adam.ours) == ("GPflow, Adam", pytest.approx(1.5))
    assert (natural.method, natural.theirs / natural.ours) == (
        "GPflow, natural gradients",
        pytest.approx(2.0),
    )
    assert adam.share == pytest.approx(1e8 / 0.2 / 1e9)
    own = {"ours, Adam": "Adam", "ours, natural gradients": "natural"}
    table = robustmax.times(records, "step", own, 1e3, "ms", lambda _: "0")
    assert "| GPflow, natural gradients | 3 | 500 | 2.00 | 20% | 3 | 500 | 2.00 | 20% | 0 |" in table
    ours, theirs = (
        {**r, "method": m} for r, m in zip(records[::2], ("SparseEP", "GPflow SVGP"), strict=False)
    )
    text = sparse_ep._stochastic_table([ours, theirs])
    assert "| 40 | GPflow SVGP | 3 | 300 | 1.50 | 33% |" in text


def _chains(method: str, ess: float, rhat: float) -> dict:
    run = {"table": "ess", "problem": "coal", "method": method, "ess": ess, "rhat": rhat, "seconds": 2.0}
    return {**run, "before": 1.0, "gradients": 1000.0, "acceptance": 0.8}


def test_a_ratio_to_chains_that_did_not_mix_is_bracketed_and_not_counted() -> None:
    """An ESS of 2 at an R-hat of 1.6 measures nothing, nor does that of a chain with few effective draws."""
    ours, nuts = _chains(sgpmc.OURS[1], 800.0, 1.01), _chains("NumPyro's NUTS, 1 chain", 400.0, 1.02)
    for theirs in (_chains("GPflow, 1 chain", 2.0, 1.6), _chains("GPflow, 1 chain", 80.0, 1.02)):
        ratio = report.number(800.0 / theirs["ess"])
        gradient = {**ours, "table": "gradient", "method": sgpmc.OURS[0], "seconds": [1.0], "flops": None}
        records = [{**gradient, "first_call": 1.0}, ours, theirs, nuts]
        rows = list(summary.COLLECTORS["sgpmc"](records))
        assert [row.mixed for row in rows] == [False, True]
        assert f"| ({ratio}) |" in summary._table(rows[:1])
        assert "| 2 |" in summary._table(rows[1:])
        assert [row.method for row in summary.counted({"sgpmc": rows})["sgpmc"]] == ["NumPyro's NUTS"]
        assert summary.counted({"sgpmc": rows[:1]}) == {}
        lines = sgpmc.draws_table([ours, theirs, nuts]).splitlines()
        assert lines[2].endswith(f"| 400 | ({ratio}) |")
        assert lines[4].endswith(f"| 200 | ({report.number(400.0 / theirs['ess'])}) |")
        said = sgpmc.mixing([ours, theirs, nuts])
        assert "these did not: coal, GPflow, 1 chain." in said
        assert "Of these\n3 runs 1 is within" in said


def _predictions(records: list[dict]) -> list[dict]:
    return [{**record, "table": "prediction", "method": "ours, cached"} for record in records[:2]]
