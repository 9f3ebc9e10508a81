"""The sampling experiments and their benchmark at a tiny size; what is recorded of them."""

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
from scripts.experiments.sgpmc import exact, image, pines, runs, toy
from scripts.shared import report, segments
from scripts.shared.journal import Journal

RESULTS = Path(__file__).parent.parent / "docs" / "results"


needs_image = pytest.mark.skipif(
    not (Path(os.environ.get("GPFLOW_EXT_DATA", "missing")) / "image.csv.gz").is_file(),
    reason="needs image.csv.gz in the folder GPFLOW_EXT_DATA",
)
needs_data = pytest.mark.skipif(
    not (Path(os.environ.get("GPFLOW_EXT_DATA", "missing")) / "coal_disasters.csv.gz").is_file(),
    reason="needs coal_disasters.csv.gz in the folder GPFLOW_EXT_DATA",
)


def test_intensities_are_compared_relative_to_the_mean() -> None:
    assert pines.away([1.0, 3.0, 2.0], [1.0, 1.0, 4.0]) == np.sqrt(8.0 / 3.0) / 2.0


def test_rates_are_those_of_a_mixture_of_lognormals() -> None:
    """The mean to rounding; quantiles of one component by sampling."""
    found = exact.rates(
        np.array([[0.0, 1.0], [0.5, 1.0]]), np.array([[0.1, 0.2], [0.3, 0.2]]), samples=20_000
    )
    np.testing.assert_allclose(found["mean"], [(np.exp(0.05) + np.exp(0.65)) / 2.0, np.exp(1.1)], rtol=1e-5)
    ends = np.exp(1.0 + np.sqrt(0.2) * 1.959964 * np.array([-1.0, 1.0]))
    np.testing.assert_allclose([found["low"][1], found["high"][1]], ends, rtol=0.03)


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


def test_the_recorded_saplings_need_more_inducing_points_than_the_papers() -> None:
    """Full sampling finds a shorter length scale, and intensities that 15 x 15 points do not resolve."""
    coarse, full, fine, plain = (
        recorded(experiment="saplings", cells=cells, inducing=inducing, precondition=precondition)[0]
        for cells, inducing, precondition in (pines.SPARSE, pines.FULL, pines.FINER, (32, 15, "None"))
    )
    for one in (coarse, full, fine):
        assert abs(one["expected"] - one["events"]) < 4.0 * np.sqrt(one["events"])
        assert one["rhat"] < 1.01
    assert full["lengthscale"][0] + 2.0 * full["lengthscale"][1] < coarse["lengthscale"][0]
    assert pines.away(coarse["rate"], full["rate"]) > 0.4
    assert coarse["ess_per_second"] > 10.0 * full["ess_per_second"]
    assert coarse["ess_per_1000_gradients"] > 10.0 * plain["ess_per_1000_gradients"]
    assert fine["ess_per_second"] > 20.0  # the paper: one in 4.7 s


@pytest.mark.parametrize("kernel", image.KERNELS)
def test_the_recorded_inducing_points_are_better_optimised_and_the_free_form_gains_with_many(kernel) -> None:
    """As in the paper's Figure 1: optimised points in every split, the gain in the mean over ten splits."""
    records = {
        (one["seed"], one["inducing"], one["free"]): one
        for one in recorded(experiment="image", kernel=kernel)
    }
    assert {inducing for _, inducing, _ in records} == set(image.INDUCING)
    for (seed, inducing, free), one in records.items():
        if free:
            assert one["free_form"] > records[seed, inducing, False]["free_form"]
    many = max(image.INDUCING)
    gains = [
        records[seed, many, True]["free_form"] - records[seed, many, True]["gaussian"] for seed in range(10)
    ]
    assert np.mean(gains) > 3.0 * np.std(gains, ddof=1) / np.sqrt(len(gains))


def test_the_recorded_chains_of_the_image_set_have_mixed_but_for_few() -> None:
    """All with a length scale for each input and few points; the page names them."""
    records = recorded(experiment="image")
    few = {
        ("ARD", 50, False, 3),
        ("ARD", 20, False, 2),
        ("ARD", 20, False, 4),
        ("ARD", 10, False, 1),
        ("ARD", 5, False, 1),
        ("ARD", 5, False, 3),
        ("ARD", 5, True, 1),
    }
    assert image.unmixed(records) == few
    page = "".join(image.document(Journal(RESULTS / "sgpmc.jsonl")))
    for _, inducing, free, split in few:
        assert f"ARD, {inducing} {'optimised points' if free else 'points by k-means'}, split {split}" in page


@pytest.mark.parametrize("kernel", image.KERNELS)
def test_the_verdicts_have_the_recorded_gains(kernel) -> None:
    """Those with the most inducing points, optimised."""
    mean, error = image.grouped(Journal(RESULTS / "sgpmc.jsonl"), kernel)[True, max(image.INDUCING)]["gain"]
    assert f"{mean:.4f} ± {error:.4f}" in (RESULTS / "index.md").read_text(encoding="utf-8")


def test_chains_that_have_not_mixed_begin_anew_from_more_starts(monkeypatch, tmp_path) -> None:
    """Once, and no others; the page has both runs."""
    scores = dict.fromkeys(("gaussian", "free_form", "sparse_ep", "evidence"), -0.5)
    mixed = {"rhat": 1.01, "min_ess": 500.0, "draws": 20, "processor": 1.0, **scores}
    journal, asked = Journal(tmp_path / "sgpmc.jsonl"), []
    for kernel, rhat in (("ARD", 1.2), ("RBF", 1.01)):
        cell = {"experiment": "image", "kernel": kernel, "inducing": 5, "free": False, "seed": 3}
        journal.add({**cell, **mixed, "rhat": rhat})
    renewed = {**mixed, "bound": -3.0, "free_form": -0.25}
    monkeypatch.setattr(image, "sample", lambda *given: asked.append(given) or renewed)
    for _ in range(2):
        image.again(journal, 7)
    assert asked == [(True, 5, False, 3, 7, image.SHAPE, image.MORE_STARTS)]
    page = "".join(image.document(journal))
    assert "1 of 1 mix then" in page
    name = "| ARD, 5 points by k-means, split 3 |"
    assert f"{name} one | not recorded | -0.5000 | -0.5000 | 1.200 | 500 |" in page
    assert f"{name} best of 20 | -3.0 | -0.5000 | -0.2500 | 1.010 | 500 |" in page


def test_the_recorded_rates_are_those_of_exact_sampling() -> None:
    gaussian, free_form, truth = (
        recorded(experiment="coal rates", method=name)[0]
        for name in (exact.GAUSSIAN, exact.FREE_FORM, exact.EXACT)
    )
    assert max(free_form["rhat"], truth["rhat"]) < 1.02
    assert exact.away(free_form, truth, "mean") < 0.02
    assert exact.away(free_form, truth, "low", "high") < exact.away(gaussian, truth, "low", "high")


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


@needs_image
def test_regions_of_images_are_distinct_and_standardised_on_the_training_rows() -> None:
    X, Y = segments.distinct()
    assert X.shape == (2086, 18)
    assert Y.sum() == 1188  # and 898, as many as in the benchmark
    assert len(np.unique(X, axis=0)) == len(X)
    (X, Y), (X_test, _) = segments.parts(0, 1000, 1019)
    assert (len(X), len(X_test)) == (1000, 1019)
    np.testing.assert_allclose(X.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(X.std(axis=0), 1.0, rtol=1e-12)
    assert not {*map(tuple, X)} & {*map(tuple, X_test)}


def test_a_run_is_listed_with_the_precision_of_its_experiments() -> None:
    where = report.environment()
    records = [{**where}, {"experiment": "toy"}, {"experiment": "mnist"}, {**where}, {"experiment": "mnist"}]
    lines = sgpmc.dated(records)
    assert [(line.partition(":")[0], line.rpartition("; ")[2]) for line in lines] == [
        ("- toy", "float64, no XLA."),
        ("- mnist", "float32, no XLA."),
        ("- mnist", "float32, no XLA."),
    ]


@needs_data
@pytest.mark.slow
def test_the_experiments_write_their_page(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["sgpmc", "--quick", "--out", str(tmp_path)])
    sgpmc.main()
    page = (tmp_path / "sgpmc.md").read_text(encoding="utf-8")
    for title in (
        "Coal-mining",
        "beside exact sampling",
        "Pine saplings",
        "Inducing points",
        "Three classes",
        "Samplers",
    ):
        assert title in page
    for name in ("sgpmc_image.png", "sgpmc_toy.png", "sgpmc_shrinkage.png"):
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
