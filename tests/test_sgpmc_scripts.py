"""The sampling experiments and their benchmark at a tiny size; the protocol of the point pattern."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.sampling.target import Target
from scripts.benchmarks import __main__ as benchmark
from scripts.experiments.sgpmc import __main__ as sgpmc
from scripts.experiments.sgpmc import pines, runs, toy

RESULTS = Path(__file__).parent.parent / "docs" / "results"


needs_data = pytest.mark.skipif(
    not (Path(os.environ.get("GPFLOW_EXT_DATA", "missing")) / "coal_disasters.csv.gz").is_file(),
    reason="needs coal_disasters.csv.gz in the folder GPFLOW_EXT_DATA",
)


def test_the_pattern_has_its_intensity() -> None:
    events, log_rate = pines.pattern(cells=64)
    mass = np.exp(log_rate).mean() * pines.SIDE**2
    assert abs(len(events) - mass) < 4.0 * np.sqrt(mass)
    width = pines.SIDE / 64
    at = np.minimum((events / width).astype(int), 63)
    assert log_rate[at[:, 0], at[:, 1]].mean() > log_rate.mean() + 0.3  # they lie where the intensity is high
    coarse = pines.coarse(log_rate, 16)
    np.testing.assert_allclose(np.exp(coarse).mean(), np.exp(log_rate).mean(), rtol=1e-12)


def recorded(**key) -> list[dict]:
    lines = (RESULTS / "sgpmc.jsonl").read_text(encoding="utf-8").splitlines()
    return [one for one in map(json.loads, lines) if key.items() <= one.items()]


def test_the_recorded_coal_experiment_is_the_papers() -> None:
    splits = recorded(experiment="coal", thin=5)
    gaussian, free_form = (np.mean([one[name] for one in splits]) for name in ("gaussian", "free_form"))
    assert len(splits) == 10
    assert -1.233 < gaussian < -1.224
    assert -1.230 < free_form < -1.220
    assert free_form > gaussian
    assert max(one["rhat"] for one in splits) < 1.01
    assert min(one["ess_per_1000_gradients"] for one in splits) > 6.0


def test_the_recorded_pattern_is_found_and_preconditioning_pays() -> None:
    coarse, fine, plain = (
        recorded(experiment="pines", cells=cells, precondition=precondition)[0]
        for cells, precondition in ((32, "rescaled"), (64, "rescaled"), (32, "vb"))
    )
    for one in (coarse, fine):
        assert abs(one["expected"] - one["events"]) < 4.0 * np.sqrt(one["events"])
        assert one["covered"] > 0.9
    assert coarse["ess_per_1000_gradients"] > 10.0 * plain["ess_per_1000_gradients"]
    assert fine["ess_per_second"] > 20.0  # the paper: one in 4.7 s
    assert fine["ms_per_gradient"] < 2.0 * 4.0 * coarse["ms_per_gradient"]  # four times the cells


def test_the_recorded_toy_problem_is_that_of_the_papers_figure_4() -> None:
    """The free form is sure of less of the plane, and its latent functions are correlated."""
    (one,) = recorded(experiment="toy")
    gaussian, free_form = one["confident"]
    assert 0.2 < free_form < gaussian
    assert one["correlation"] > 0.5
    assert one["rhat"] < 1.05
    assert one["min_ess"] > 400.0


def test_the_most_correlated_functions_are_found() -> None:
    V = np.random.default_rng(0).standard_normal((500, 4, 3))
    V[:, 2, 1] = -V[:, 2, 0] + 0.1 * V[:, 2, 1]
    row, pair, correlation = toy.correlated(V)
    assert (row, sorted(pair)) == (2, [0, 1])
    assert 0.98 < correlation < 1.0


@needs_data
@pytest.mark.slow
def test_the_experiments_write_their_page(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["sgpmc", "--quick", "--out", str(tmp_path)])
    sgpmc.main()
    page = (tmp_path / "sgpmc.md").read_text(encoding="utf-8")
    for title in ("Coal-mining", "point pattern", "Inducing points", "Three classes", "Samplers"):
        assert title in page
    for name in ("sgpmc_inducing.png", "sgpmc_toy.png", "sgpmc_shrinkage.png"):
        assert (tmp_path / name).stat().st_size > 5_000
    before = (tmp_path / "sgpmc.jsonl").read_text()
    sgpmc.main()
    assert (tmp_path / "sgpmc.jsonl").read_text() == before  # a rerun finds all of it


@needs_data
@pytest.mark.slow
def test_the_benchmark_measures_and_writes(tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "benchmark_sgpmc.md"
    monkeypatch.setattr(sys, "argv", ["benchmarks", "sgpmc", "--quick", "--out", str(out)])
    benchmark.main()
    lines = [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]
    assert {one["problem"] for one in lines[1:]} == {"coal", "binary", "grid"}
    assert all(np.isfinite(one["ess"]) for one in lines[1:] if one["table"] == "ess")
    assert "times GPflow" in out.read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--problems", "grid"])
    benchmark.main()
    again = [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]
    kept = [[one for one in run[1:] if one["problem"] != "grid"] for run in (lines, again)]
    assert kept[0] == kept[1]
    assert [one["seconds"] for one in again[1:]] != [one["seconds"] for one in lines[1:]]


def test_the_density_in_jax_is_ours() -> None:
    """Up to a constant: what NumPyro samples in the benchmark."""
    pytest.importorskip(
        "numpyro", reason="needs NumPyro, with which the benchmark compares where it is installed"
    )
    from scripts.benchmarks import peer_numpyro
    from scripts.benchmarks import sgpmc as measured

    counts = gpx.models.SGPMCFreeForm(
        (problems.inputs(12), problems.counts(12)[1]),
        runs.kernel(1.3, (1.75, 1.0), (1.2, 1.0)),
        gpflow.likelihoods.Poisson(binsize=0.3),
        inducing_variable=problems.inputs(5, seed=1),
    )
    for model in (counts, measured.binary(15, 5)):
        target = Target(model, model.density.log_likelihoods)
        theirs, start = peer_numpyro.log_density(model)
        assert [each.name for each in target.coordinates] == ["V", "kernel.lengthscales", "kernel.variance"]
        points = np.asarray(start) + 0.3 * np.random.default_rng(0).standard_normal((4, len(start)))
        difference = target(tf.constant(points)).numpy() - [float(theirs(point)) for point in points]
        np.testing.assert_allclose(
            difference, difference[0], rtol=0, atol=1e-6
        )  # their quadrature has 20 nodes
