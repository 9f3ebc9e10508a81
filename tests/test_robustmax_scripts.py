"""What the SVGPRobustMax experiments rest on: a curve that resumes, an exact reference; kill -9 at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

import gpflow_ext as gpx
from scripts.benchmarks import robustmax as benchmark
from scripts.experiments.robustmax import runs, schedules
from scripts.train_svgp_robustmax import Curve

SCRIPTS = Path(__file__).parent.parent / "scripts"
WHERE = {"date": "", "cpu": "", "cores": 1, "threads": 1, "load": 0, "python": "", "versions": {}}


def test_a_curve_drops_lost_steps_and_goes_on_with_its_clock(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(gpx.metrics, "evaluate", lambda *_: time.sleep(0.2) or {"nlpd": 1.0})
    path = tmp_path / "run" / "curve.jsonl"
    first = Curve(path, None, None, every=2)
    for step in range(1, 7):
        first(step)
    before = first.lines()
    assert [line["step"] for line in before] == [2, 4, 6]
    assert before[-1]["seconds"] < 0.1  # without the scores
    again = Curve(path, None, None, every=2)
    for step in range(5, 9):  # from a checkpoint of step 4
        again(step)
    after = again.lines()
    assert [line["step"] for line in after] == [2, 4, 6, 8]
    assert after[:2] == before[:2]
    assert after[1]["seconds"] <= after[2]["seconds"] <= after[3]["seconds"] < 0.2


def test_a_long_training_prints_its_scores_as_it_takes_them(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(gpx.metrics, "evaluate", lambda *_: {"nlpd": 1.0, "error": 0.25})
    curve = runs.Printed(tmp_path / "phase1" / "curve.jsonl", None, None, every=2)
    for step in range(1, 4):
        curve(step)
    assert capsys.readouterr().out == "mnist, phase1, step 2: error 0.2500, NLPD 1.0000\n"


def test_the_benchmarks_reference_is_exact_and_shows_what_nodes_cost() -> None:
    mean = np.array([[0.3, -0.2], [40.0, 0.0]])
    var = np.array([[0.5, 0.1], [1.0, 1.0]])
    p = benchmark.largest(mean, var)
    np.testing.assert_allclose(p[0, 0], scipy.special.ndtr(0.5 / np.sqrt(0.6)), atol=1e-8)
    np.testing.assert_allclose(p[1], [1.0, 0.0], atol=1e-12)
    found = benchmark.errors()
    assert found["ours"] < 1e-9
    assert 1e-2 < found["GPflow, 100 nodes"] < found["GPflow, 20 nodes"]


@pytest.mark.slow
def test_the_toy_problem_is_learnt_recorded_and_drawn(tmp_path) -> None:
    runs.toy(tmp_path, WHERE, steps=25)
    record = json.loads((tmp_path / "robustmax_toy.jsonl").read_text())
    assert record["error"] < 0.2
    assert (tmp_path / "robustmax_toy.png").stat().st_size > 10_000
    text = runs.text(tmp_path)
    assert f"{100 * record['error']:.1f} %" in text
    assert "MNIST" not in text


@pytest.mark.slow
def test_schedules_are_compared_from_the_same_start(tmp_path, monkeypatch) -> None:
    """On small digits: three schedules and their marks on the page, all of which learn."""
    digits = gpx.datasets.load("digits", seed=0)
    monkeypatch.setattr(gpx.datasets, "load", lambda *_, **__: (digits.train, digits.test))
    monkeypatch.setattr(schedules, "MARKS", (1,))
    schedules.compare(tmp_path, WHERE, steps=60, longest=80)
    _, *lines = map(json.loads, (tmp_path / "robustmax_schedules.jsonl").read_text().splitlines())
    assert [line["schedule"] for line in lines] == ["constant", "cosine", "root"]
    text = runs.text(tmp_path)
    for line in lines:
        first, last = line["marks"]
        assert (first["step"], last["step"]) == (1, 80 if line["schedule"] == "root" else 60)
        assert last["bound"] > first["bound"] + 100.0
        assert last["error"] < 0.1
        assert f"{last['nlpd']:.4f}" in text
    assert len({line["marks"][-1]["nlpd"] for line in lines}) == 3
    assert f"lowest after {min(lines[-1]['marks'], key=lambda mark: mark['nlpd'])['step']} of 80" in text


def _variables(run: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(run / "checkpoints"))
    names = [name for name in reader.get_variable_to_dtype_map() if "/.ATTRIBUTES/VARIABLE_VALUE" in name]
    return {name: reader.get_tensor(name) for name in names if not name.startswith("save_counter")}


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed_equals_the_uninterrupted_run(tmp_path) -> None:
    """Minutes by GPFLOW_EXT_KILL_MINUTES (default: 1), about one kill in each third."""
    seconds = 60.0 * float(os.environ.get("GPFLOW_EXT_KILL_MINUTES", "1"))
    command = [sys.executable, str(SCRIPTS / "train_svgp_robustmax.py"), "--inducing", "100"]

    def start(run: str, steps: int) -> subprocess.Popen[bytes]:
        flags = ["--steps", str(steps), "--run-dir", str(tmp_path / run)]
        return subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def timed(run: str, steps: int) -> float:
        begin = time.monotonic()
        assert start(run, steps).wait() == 0
        return time.monotonic() - begin

    few, many = timed("few", 100), timed("many", 600)
    steps = int(500 * seconds / (many - few))
    whole = timed("whole", steps)
    rng, kills = np.random.default_rng(), 0
    while True:
        process = start("killed", steps)
        try:
            assert process.wait(timeout=rng.uniform(0.1, 0.5) * whole) == 0
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
    assert kills >= 1
    ours, expected = _variables(tmp_path / "killed"), _variables(tmp_path / "whole")
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)
