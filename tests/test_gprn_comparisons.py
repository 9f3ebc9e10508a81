"""GPRNTensor beside independent regression: where there is something to gain, where there is not, what a step costs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.models import GPRNTensor
from scripts.experiments.gprn import __main__ as program
from scripts.experiments.gprn import comparisons, methods, scaling, verdicts
from scripts.experiments.gprn.mixture import Mixture
from scripts.experiments.gprn.others import OtherOutputs
from scripts.experiments.gprn.task import Task
from scripts.shared.journal import Journal

ROOT = Path(__file__).parent.parent


def graph_of_a_step(outputs: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the operations of a bound, its gradient and a sweep, with the shapes of their results."""
    X, Y = np.random.default_rng(0).normal(size=(10, 2)), np.random.default_rng(1).normal(size=(10, outputs))
    model = GPRNTensor(
        (X, Y), gpflow.kernels.SquaredExponential(), gpflow.kernels.SquaredExponential(), num_latent=2
    )
    variables = model.trainable_variables

    def step() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = model.training_loss()
        model.q.sweep(model.prior())
        return [loss, *tape.gradient(loss, variables)]

    graph = tf.function(step, autograph=False).get_concrete_function().graph
    return [(op.type, *(str(out.shape) for out in op.outputs)) for op in graph.get_operations()]


def test_a_step_of_the_collapsed_posterior_is_the_same_for_any_number_of_outputs() -> None:
    """Acceptance check C9: no operation and no shape of the graph depends on D; seconds are in the results."""
    assert graph_of_a_step(20) == graph_of_a_step(3000)


def _ratio(rows: int, outputs: int, width: int, steps: int, stationary: bool) -> float:
    """Return the mean squared error of a network over that of independent regressions, on held-out inputs."""
    task = comparisons.generated(0, stationary, outputs, rows, width)
    task = Task(task.X, task.Y, task.X_test, task.Y_test, steps=steps)
    own, alone = (methods.run(name, task, 2)["nrmse"] for name in (methods.COLLAPSED, methods.INDEPENDENT))
    return float((own / alone) ** 2)


def test_the_mixture_is_that_of_its_definition() -> None:
    """Expected log densities, the bound and predictions against draws; five standard errors, a fixed seed."""
    task = comparisons.generated(0, outputs=3, rows=5, width=1)
    model = methods.network(task, 2)
    rng = np.random.default_rng(0)
    mixture = Mixture(model, task.X, task.Y, rng.standard_normal((5, 2)), 2, 0)
    mixture.log_scales.assign(np.log([0.3, 0.2]))
    prior, size = model.prior(), 100_000
    chols, noise = [part.numpy() for part in prior[:2]], float(prior.noise)

    def log_normal(chol: np.ndarray, values: np.ndarray) -> np.ndarray:
        solved = np.linalg.solve(chol, values.reshape(size, 5, -1))
        count = solved.shape[2]
        return -0.5 * (solved**2).sum((1, 2)) - count * (
            np.log(np.diag(chol)).sum() + 2.5 * np.log(2 * np.pi)
        )

    drawn, log_q, expected = [], [], mixture._expected().numpy()
    for q, scale in enumerate((0.3, 0.2)):
        F = mixture.nodes[q].numpy() + scale * rng.standard_normal((size, 5, 2))
        W = mixture.weights[q].numpy() + scale * rng.standard_normal((size, 5, 3, 2))
        error = task.Y - np.einsum("sndk,snk->snd", W, F)
        logs = log_normal(chols[0], W) + log_normal(chols[1], F)
        logs += -0.5 * ((error**2).sum((1, 2)) / noise + 15 * np.log(2 * np.pi * noise))
        assert abs(logs.mean() - expected[q]) < 5.0 * logs.std() / np.sqrt(size)
        parts = []
        for r, other in enumerate((0.3, 0.2)):
            apart = ((F - mixture.nodes[r].numpy()) ** 2).sum((1, 2)) + (
                (W - mixture.weights[r].numpy()) ** 2
            ).sum((1, 2, 3))
            parts.append(-0.5 * apart / other**2 - 20 * np.log(2 * np.pi * other**2))
        log_q.append(np.logaddexp(*parts) - np.log(2.0))
        drawn.append((F, W))
    entropy = -np.mean(log_q)
    assert (
        entropy - 20.0 < mixture._entropy() < entropy
    )  # of 40 coordinates, each up to (1 − log 2)/2 too low
    np.testing.assert_allclose(mixture.elbo(), expected.mean() + mixture._entropy(), rtol=1e-12)
    new = task.X_test[:2]
    mean, var = mixture.predict(new)
    F, W = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    seen = []
    nugget = float(model.nugget.numpy())
    for kernel, chol, values, extra in (
        (model.weight_kernel, chols[0], W, 0.0),
        (model.kernel, chols[1], F, nugget),
    ):
        columns = values.reshape(2 * size, 5, -1).transpose(1, 0, 2).reshape(5, -1)
        m, v = gpflow.conditionals.base_conditional(
            kernel(task.X, new), tf.constant(chol @ chol.T), kernel(new, full_cov=False) + extra, columns
        )
        m = m.numpy().reshape(2, 2 * size, *values.shape[2:]).swapaxes(0, 1)
        wide = np.sqrt(v.numpy()[:, 0]).reshape(2, *[1] * (values.ndim - 2))
        seen.append(m + wide * rng.standard_normal(m.shape))
    y = np.einsum("sndk,snk->snd", *seen)
    assert (np.abs(mean - y.mean(0)) < 5.0 * y.std(0) / np.sqrt(2 * size)).all()
    np.testing.assert_allclose(var, y.var(0) + noise, rtol=0.03)


def test_regression_on_the_other_outputs_is_gpflows() -> None:
    """On the rows where the output is known; the others enter with zero where they are missing."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(12, 1)), rng.normal(size=(12, 3)) @ rng.normal(size=(3, 3))
    Y[2:5, 1], Y[7, 0] = np.nan, np.nan
    ours = OtherOutputs(X, Y, 1e-6)
    ours.fit(0)  # what it leaves must not matter
    evidence = ours.fit(1)
    features = np.hstack([X, np.nan_to_num(Y[:, [0, 2]])])
    kernel = gpflow.kernels.SquaredExponential(active_dims=[0])
    kernel *= gpflow.kernels.SquaredExponential(lengthscales=np.sqrt(3.0), active_dims=[1, 2])
    gpflow.set_trainable(kernel.kernels[1].variance, False)
    known = ~np.isnan(Y[:, 1])
    likelihood = gpflow.likelihoods.Gaussian(0.1, variance_lower_bound=1e-6)
    theirs = gpflow.models.GPR((features[known], Y[known][:, [1]]), kernel, likelihood=likelihood)
    gpflow.optimizers.Scipy().minimize(theirs.training_loss, theirs.trainable_variables)
    np.testing.assert_allclose(evidence, theirs.log_marginal_likelihood(), rtol=1e-8)
    for mine, gpflows in zip(ours.predict(), theirs.predict_y(features), strict=True):
        np.testing.assert_allclose(mine, gpflows[:, 0], rtol=0, atol=1e-4)


SMALL, LARGE = (25, 40, 1, 4), (60, 200, 2, 20)


def test_the_start_by_moments_finds_a_higher_bound_and_predicts_better() -> None:
    """Draws of a network with two nodes, on which two steps of fit keep it."""
    task = comparisons.generated(1, outputs=60, rows=30, width=1)
    found = {}
    for moments in (True, False):
        model = methods.network(task, 2)
        gpx.fit(model, steps=2, moment_start=moments, progress=False)
        error = np.mean((model.predict_f(task.X_test)[0] - task.Y_test) ** 2)
        found[moments] = float(model.elbo()), float(error)
    assert found[True][0] > found[False][0] + 50.0
    assert found[True][1] < found[False][1]


@pytest.mark.slow
def test_a_network_predicts_its_own_draws_better_than_independent_regression() -> None:
    """Acceptance check C10, draws of a network with two nodes."""
    assert _ratio(*LARGE, stationary=False) < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [SMALL, LARGE])
def test_a_network_loses_little_where_there_is_nothing_to_gain(sizes) -> None:
    """Acceptance check C10, independent draws of one kernel: at most 5 % worse."""
    assert _ratio(*sizes, stationary=True) < 1.05


def test_networks_are_measured_with_the_numbers_of_nodes_asked_for(monkeypatch, tmp_path) -> None:
    """Or with those of the set, of which the reduced form has the largest."""
    asked = []
    monkeypatch.setattr(methods, "run", lambda method, task, K, *_: asked.append((method, K)) or {})
    for nodes, quick in (([5, 7], True), (None, False), (None, True)):
        journal = Journal(tmp_path / f"{nodes}, {quick}.jsonl", lambda _: None)
        comparisons.compare(journal, "stationary", 1, ["tensor", "joint"], quick=quick, nodes=nodes)
    tensor, joint = methods.TENSOR, methods.JOINT
    assert asked[:3] == [(tensor, 5), (tensor, 7), (joint, 7)]
    assert asked[3:] == [(tensor, 1), (tensor, 2), (joint, 2), (tensor, 2), (joint, 2)]


@pytest.mark.slow
def test_steps_of_the_papers_methods_are_timed_beside_each_other(tmp_path) -> None:
    """And the page fits their slopes: here one is measured, and others are made up."""
    X = np.random.default_rng(0).normal(size=(6, 2))
    found = scaling._paper_steps(X, 8, 2)
    assert set(found) == {"tensor", "mean_field", "mixture"}
    assert all(0.0 < seconds < 60.0 for seconds in found.values())
    journal = Journal(tmp_path / "steps.jsonl")
    for D in (10, 100, 1000):
        seconds = {"tensor": 1e-4 * D, "mean_field": 0.25, "mixture": 1e-6 * D**2}
        journal.add({"of": "scaling, paper", "outputs": D, **seconds})
    page = "".join(scaling.document(journal))
    assert "| 1,000 | 0.100 | 0.250 | 1.000 |" in page
    assert re.search(r"\| slope of the logarithms \| 1\.00 \| -?0\.00 \| 2\.00 \|", page)


def test_a_page_of_other_runs_has_their_sizes_and_no_reading_of_the_recorded_ones(
    monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(scaling, "_paper_steps", lambda X, D, K: dict.fromkeys(scaling._STEPS, 1e-3 * D))
    journal = Journal(tmp_path / "gprn.jsonl")
    scaling.measure(journal, (), (), (10, 100), rows=6, nodes=2)
    scores = {"nrmse": 1.0, "nmae": 1.0, "nlpd": 1.0, "bound": 1.0, "seconds": 1.0}
    journal.add({"of": "generated", "method": methods.TENSOR, "nodes": 2, "seed": 0, **scores})
    page = comparisons.text(journal, recorded=False)
    assert "N = 6, K = 2" in page
    assert "K = 5" not in page
    assert "on every draw" not in page
    assert "on every draw" in comparisons.text(journal)


def test_generated_data_need_no_folder(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("GPFLOW_EXT_DATA", raising=False)
    monkeypatch.setattr(program, "measure", lambda *of: None)
    monkeypatch.setattr(sys, "argv", ["gprn", "--quick", "--out", str(tmp_path)])
    program.main()
    assert (tmp_path / "gprn.md").is_file()
    monkeypatch.setattr(sys, "argv", ["gprn", "--experiment", "heat", "--out", str(tmp_path)])
    with pytest.raises(ValueError, match="Set GPFLOW_EXT_DATA"):
        program.main()


def test_the_page_is_what_the_records_say() -> None:
    page = ROOT / "docs/results/gprn.md"
    assert comparisons.text(Journal(page.with_suffix(".jsonl"))).strip() == page.read_text("utf-8").strip()


def test_differences_are_of_the_network_with_the_highest_bound() -> None:
    """Two splits, on which different networks are picked."""

    def record(method: str, seed: int, bound: float, nrmse: float) -> dict[str, Any]:
        return {
            "method": method,
            "nodes": 2,
            "seed": seed,
            "bound": bound,
            "nrmse": nrmse,
            "nlpd": 2.0 * nrmse,
        }

    records = [record(methods.JOINT, 0, 5.0, 0.5), record(methods.ROWS, 0, 4.0, 0.1)]
    records += [record(methods.JOINT, 1, 5.0, 0.1), record(methods.ROWS, 1, 6.0, 0.6)]
    records += [record(methods.INDEPENDENT, seed, 9.0, 0.45) for seed in (0, 1)]
    picked, table = verdicts.of_networks(records)
    assert methods.JOINT in picked
    assert methods.ROWS in picked
    assert "| independent GPs | +0.100 ± 0.050 | +0.200 ± 0.100 |" in table
    chosen = [{**record(methods.CHOSEN, seed, 1.0, 0.4), "picked": 1 + seed} for seed in (0, 1)]
    *_, picked, table = verdicts.of_networks(records + chosen)
    assert picked.startswith("Picked on held-out targets: ")
    assert picked.count(methods.CHOSEN) == 2
    assert "| independent GPs | -0.050 ± 0.000 | -0.100 ± 0.000 |" in table
    assert verdicts.of_networks(records[-2:]) == []


@pytest.mark.parametrize("imputes", [False, True])
def test_a_fifth_of_the_targets_is_held_out_of_the_choice(imputes: bool) -> None:
    X, Y = np.arange(50.0)[:, None], np.arange(200.0).reshape(50, 4)
    Y_test = np.full_like(Y, np.nan)
    if imputes:
        Y[0], Y_test[0] = np.nan, 1.0
    part = methods._without_a_fifth(Task(X, Y, X if imputes else X + 0.5, Y_test))
    assert part.imputes == imputes
    if imputes:
        assert np.isnan(part.Y[0]).all()
        assert np.isnan(part.Y_test[0]).all()
        np.testing.assert_array_equal(np.where(np.isnan(part.Y), part.Y_test, part.Y), Y)
        assert 0.1 < np.mean(~np.isnan(part.Y_test)) < 0.3
    else:
        assert len(part.X_test) == 10
        order = np.argsort(np.concatenate([part.X, part.X_test])[:, 0])
        np.testing.assert_array_equal(np.concatenate([part.Y, part.Y_test])[order], Y)


def test_results_of_networks_stand_beside_baselines() -> None:
    """Acceptance check C11: independent GPs everywhere, PCA-GP where no target is missing."""
    text = (ROOT / "docs/results/gprn.md").read_text(encoding="utf-8")
    tables = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    compared = [name for name, body in tables.items() if "| GPRN" in body]
    assert len(compared) >= 3
    for name in compared:
        assert "| independent GPs |" in tables[name], name
        assert name in ("germany", "jura", "stationary") or "| PCA-GP |" in tables[name], name
