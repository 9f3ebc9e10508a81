"""What the SparseEP experiments rest on: methods that start afresh, a record that resumes, clocks that stop."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import problems
import pytest
import tensorflow as tf

from scripts.benchmarks import sparse_ep
from scripts.experiments.sparse_ep import methods, tracer, traces, uci
from scripts.shared import report
from scripts.shared.journal import Journal

DATA, OTHER = problems.binary(40), problems.binary(40, seed=9)
Z, OTHER_Z = problems.inputs(6, seed=5), problems.inputs(6, seed=6)


def test_a_journal_resumes_and_drops_a_line_that_was_cut_off(tmp_path) -> None:
    path = tmp_path / "found.jsonl"
    journal = Journal(path)
    journal.heading = {"environment": {}}
    journal.once({"set": "a", "split": 0}, lambda: {"nll": 0.5, "trace": [1.0]})
    journal.once({"set": "a", "split": 1}, lambda: {"nll": 0.25})
    path.write_text(path.read_text()[:-5])
    again = Journal(path)
    again.once({"set": "a", "split": 0}, lambda: pytest.fail("measured twice"))
    again.once({"set": "a", "split": 1}, lambda: {"nll": 0.75})
    expected = [{"environment": {}}, {"set": "a", "split": 0, "nll": 0.5, "trace": [1.0]}]
    assert Journal(path).records == [*expected, {"set": "a", "split": 1, "nll": 0.75}]


def test_a_journal_renews_what_another_commit_has_measured(tmp_path) -> None:
    path = tmp_path / "runs.jsonl"
    journal = Journal(path)
    journal.heading = {"environment": {"commit": "old"}}
    journal.once({"set": "a"}, lambda: {"nll": 1.0})
    journal.once({"set": "b"}, lambda: {"nll": 2.0})
    for _ in range(2):  # the second finds all of its own commit
        journal = Journal(path)
        journal.heading, journal.renewing = {"environment": {"commit": "new"}}, "new"
        journal.once({"set": "a"}, lambda: {"nll": 3.0})
    assert [record.get("nll") for record in Journal(path).records] == [None, 2.0, None, 3.0]
    journal.once({"set": "b"}, lambda: {"nll": 4.0})
    commits = [each["environment"]["commit"] for each in Journal(path).records if "environment" in each]
    assert commits == ["new", "new"]
    assert [each["nll"] for each in Journal(path).find(set="b")] == [4.0]


def test_step_sizes_follow_the_signs_of_the_gradient() -> None:
    """Matrix: element by element. Vector: one size, a quarter, by the sign of the sum. After the rule by hand."""
    matrix, vector = (tf.Variable(np.zeros(shape)) for shape in ([1, 2], [2]))
    optimizer = methods.SignAgreement(0.1)
    for first, second in (
        ([[1.0, 1.0]], [1.0, 2.0]),
        ([[1.0, -1.0]], [2.0, -1.0]),
        ([[1.0, -1.0]], [-2.0, 1.0]),
    ):
        optimizer.apply_gradients(
            [(tf.constant(first, tf.float64), matrix), (tf.constant(second, tf.float64), vector)]
        )
    np.testing.assert_allclose(matrix, [[-0.1 * (1 + 1.02 + 1.02**2), -0.1 * (1 - 0.5 - 0.51)]], rtol=1e-12)
    sizes = 0.025 * np.array([1.0, 1.02, 0.51])
    np.testing.assert_allclose(vector, [-sizes @ [1, 2, -2], -sizes @ [2, -1, 1]], rtol=1e-12)


@pytest.mark.parametrize(
    "method",
    [
        methods.SEP,
        pytest.param(methods.FITC, marks=pytest.mark.slow),
        pytest.param(methods.SVIAdam, marks=pytest.mark.slow),
    ],
)
def test_a_method_started_again_does_what_it_did(method) -> None:
    contender = method(DATA, Z)

    def train(data, Z) -> tuple[float, float]:
        contender.start(data, Z)
        objective = contender.run(4)
        return objective, contender.scores(data)["nll"]

    first, other, again = train(DATA, Z), train(OTHER, OTHER_Z), train(DATA, Z)
    assert first == again
    assert first != other
    fresh = method(OTHER, OTHER_Z)
    fresh.start(OTHER, OTHER_Z)
    # rounding: the order of sums may depend on the alignment of buffers
    assert fresh.run(4) == pytest.approx(other[0], rel=1e-9)


@pytest.mark.slow
def test_the_uci_experiment_is_written_and_not_repeated(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(uci, "METHODS", {"SEP": methods.SEP})
    load = lambda name, seed, **_: (problems.binary(40, seed=seed), problems.binary(20, seed=seed + 50))  # noqa: E731
    monkeypatch.setattr(uci, "datasets", SimpleNamespace(load=load))
    path = tmp_path / "uci.jsonl"
    uci.run(Journal(path), ["sonar"], [0.15], 2, 3)
    monkeypatch.setattr(
        uci, "METHODS", {"SEP": lambda *_: pytest.fail("measured twice"), "FITC": methods.SEP}
    )
    uci.run(Journal(path), ["sonar"], [0.15], 2, 3)
    monkeypatch.setattr(uci, "datasets", None)
    journal = Journal(path)
    uci.run(journal, ["sonar"], [0.15], 2, 3)
    assert [record["split"] for record in journal.records] == [0, 1, 0, 1]
    assert all(record["inducing"] == 6 and record["seconds"] > 0.0 for record in journal.records)
    mean, error = uci.mean_and_error([record["nll"] for record in journal.find(method="SEP")])
    text = "\n".join(uci.document(journal))
    assert (
        f"| {mean:.3f} ± {error:.3f} | 0.331 | {'yes' if abs(mean - 0.331) <= 2 * error else 'no'} |" in text
    )


def test_a_tracer_leaves_its_evaluations_out_and_ends_the_run() -> None:
    def evaluate() -> dict[str, float]:
        time.sleep(0.02)
        return {"nll": 0.5, "error": 0.25}

    def train(each) -> None:
        for step in range(1, 1000):
            time.sleep(0.002)
            each(step)
        pytest.fail("the budget did not end the run")

    begin = time.perf_counter()
    record = tracer.traced(train, evaluate, 0.2)
    whole = time.perf_counter() - begin
    assert record["seconds"] == sorted(record["seconds"])
    assert record["seconds"][-1] >= 0.2
    assert record["steps"][0] == 1
    assert whole >= record["seconds"][-1] + 0.02 * len(record["nll"])


@pytest.mark.slow
def test_sites_one_at_a_time_and_in_parallel_reach_one_evidence() -> None:
    X, Y = problems.binary(60)
    data = 4.0 * X, Y  # far from the inducing points: the residual counts
    found = sparse_ep.fixed(data, 10, 1)
    assert found["objective"] == pytest.approx(found["sequential_objective"], abs=1e-6)  # sites within 1e-6
    assert 1 < found["sequential_sweeps"] < 50
    costs = sparse_ep.costs(data, 10, 1)
    text = sparse_ep.document(report.environment(), [found, costs])
    assert f"{found['objective']:.6f}" in text


def test_the_title_of_a_figure_has_the_size_that_was_measured() -> None:
    """Reduced forms have fewer images."""
    assert traces._title("mnist", [{"rows": 1000}]) == "MNIST odd against even, 1,000 images"


def test_a_page_is_written_before_all_methods_have_run() -> None:
    """It is written after each: the ends of those that come later cannot be compared yet."""
    ours, other = (
        {"method": name, "nll": [0.7, end]} for name, end in (("SVGP, dual sites", 0.6), ("SVGP, Adam", 0.65))
    )
    assert traces._verdict([other]) == traces._verdict([ours]) == ""
    assert "0.6000, is lower than that of SVGP, Adam (0.6500)" in traces._verdict([other, ours])
