"""The measuring scripts at a tiny size, and the counter of operations against known costs."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from scripts.benchmarks import __main__ as benchmark
from scripts.benchmarks import kmm as measured
from scripts.benchmarks import peers
from scripts.experiments.kmm import __main__ as kmm
from scripts.experiments.kmm import convergence, methods, sets, tables
from scripts.shared import report
from scripts.shared.flops import counting

N, K = 7, 5
SQUARE, TALL = tf.eye(N, dtype=tf.float64), tf.ones([N, K], tf.float64)
WIDE = tf.ones([K, N], tf.float64)


def _loop() -> tf.Tensor:
    body = lambda turn, x: (turn + 1, x @ SQUARE)  # noqa: E731
    return tf.while_loop(lambda turn, _: turn < 3, body, (tf.constant(0), SQUARE))[1]


def _branch() -> tf.Tensor:
    return tf.cond(tf.constant(False), lambda: SQUARE @ SQUARE, lambda: tf.linalg.cholesky(SQUARE))


def _gradient() -> tf.Tensor:
    """A product in the forward pass, two in the backward pass."""
    with tf.GradientTape() as tape:
        tape.watch((WIDE, TALL))
        product = tf.matmul(WIDE, TALL)
    return tape.gradient(product, (WIDE, TALL))


@pytest.mark.parametrize(
    ("compute", "flops"),
    [
        (lambda: tf.linalg.cholesky(SQUARE), N**3 / 3),
        (lambda: tf.linalg.triangular_solve(SQUARE, TALL), N**2 * K),
        (lambda: tf.linalg.solve(SQUARE, TALL), 2 * N**3 / 3 + 2 * N**2 * K),
        (lambda: tf.matmul(WIDE, TALL), 2 * K * N * K),
        (lambda: tf.matmul(TALL, TALL, transpose_a=True), 2 * K * N * K),
        (lambda: tf.matmul(TALL[None], TALL[None], transpose_b=True), 2 * N * K * N),
        (lambda: tf.exp(TALL), N * K),
        (lambda: tf.gather(TALL, [1, 2]), 0),
        (_loop, 3 * 2 * N**3),
        (_branch, N**3 / 3),
        (_gradient, 3 * 2 * K * N * K),
    ],
)
def test_operations_are_counted_as_they_run(compute, flops: float) -> None:
    with counting() as counter:
        compiled = tf.function(compute, autograph=False)
        compiled()
    counter.reset()
    compiled()
    compiled()
    assert counter.flops == pytest.approx(2 * flops, rel=1e-12)


def test_a_trace_keeps_the_best_and_stops_at_its_limit() -> None:
    trace = methods.Trace(methods.Limit(target=-1.0))
    for value in (-5.0, math.nan, -7.0, -2.0):
        trace.add(value)
        assert not trace.done
    trace.add(-0.5)
    assert trace.done
    assert trace.objective == [-5.0, -5.0, -5.0, -2.0, -0.5]
    assert trace.reached(-2.0) == 3
    assert trace.reached(0.0) is None
    assert trace.seconds == sorted(trace.seconds)


def test_a_curve_tells_when_it_arrives_and_when_it_settles() -> None:
    curve = convergence.Curve(np.arange(1.0, 6.0), np.ones(5), np.array([-9.0, -3.0, -2.9995, -1.0, -1.0]))
    assert curve.settled == 2  # the paper's rule stops on the flat stretch
    assert curve.within(-1.001) == 4.0
    assert curve.within(0.0) is None


def test_a_record_restores_its_outcome() -> None:
    curve = convergence.Curve(np.array([10.0, 20.0]), np.array([0.5, 0.75]), np.array([-3.0, -2.0]))
    outcome = convergence.Outcome((1.0, -1.0), {"Algorithm 1": curve}, {"nlpd": 0.25})
    record = json.loads(json.dumps({"log_s": 1.0, "log_sigma": -1.0, **convergence.recorded(outcome)}))
    restored = convergence.restored(record)
    assert (restored.setting, restored.scores) == (outcome.setting, outcome.scores)
    for part in ("flops", "seconds", "objective"):
        np.testing.assert_array_equal(getattr(restored.curves["Algorithm 1"], part), getattr(curve, part))


@pytest.mark.parametrize(("value", "text"), [(4.39e7, "43.9M"), (9.999e8, "1G"), (2e13, "20T"), (5e3, "5k")])
def test_operations_are_written_in_the_papers_units(value: float, text: str) -> None:
    assert report.flops(value) == text


def test_missing_data_are_named(monkeypatch) -> None:
    monkeypatch.delenv("GPFLOW_EXT_DATA", raising=False)
    with pytest.raises(ValueError, match="Set GPFLOW_EXT_DATA to the folder that holds sonar"):
        sets.binary("sonar")
    assert len(kmm.arguments().format_help().splitlines()) > 20


@pytest.mark.slow
def test_the_benchmark_measures_and_writes(monkeypatch, tmp_path) -> None:
    kept = ("gpflow_ext, parallel fixed point", "GPflow VGP, natural gradient", "scikit-learn, Laplace")
    monkeypatch.setattr(peers, "METHODS", tuple(method for method in peers.METHODS if method.name in kept))
    monkeypatch.setattr(measured, "BOUNDS", (None,))
    out = tmp_path / "results.md"
    flags = ["kmm", "--sizes", "20", "--repeats", "2", "--cap", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *flags])
    benchmark.main()
    where, *records = (json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines())
    assert where["environment"]["cores"] >= 1
    fixed = {record["method"]: record for record in records if record["table"] == "fixed"}
    assert set(fixed) == set(kept)
    for name in kept[:2]:  # both arrive at the optimum of one objective, and neither above it
        record = fixed[name]
        assert len(record["seconds"]) == 2
        assert min(record["seconds"]) > 0.0
        assert -1e-3 <= record["objective"] - record["optimum"] < 1e-6
    ours, theirs = (record for record in records if record["table"] == "learnt")
    assert ours["objective"] > theirs["objective"] - 1e-2
    text = out.read_text()
    assert all(name in text for name in kept)
    assert "## One iteration" in text


def test_the_page_says_where_the_best_of_two_bounds_ended_below_one_of_them() -> None:
    def rows(best: float) -> list[dict]:
        bounds = {"log": -60.0, "Bouchard, piecewise": -53.0, "best": best}
        return [
            {"data": "wine", "method": f"multinomial logit, {name}", "bound": bound}
            for name, bound in bounds.items()
        ]

    assert "On wine `best` ended 2.000 below `Bouchard, piecewise`." in tables.introduction(
        "classes", rows(-55.0)
    )
    assert "On wine" not in tables.introduction("classes", rows(-52.0))
    assert tables.introduction("counts", []) == tables.COUNTS


def test_the_form_of_opper_and_archambeau_is_the_same_in_whitened_coordinates_and_sooner_there() -> None:
    """Equal bounds at α = L⁻ᵀv; from one start the whitened one needs a fifth of the evaluations at most."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    Y = (X[:, :1] + rng.normal(size=(30, 1)) > 0.0).astype(float)
    problem = methods.Problem.new((X, Y), gpx.likelihoods.BernoulliLogit).set(2.0, 2.0)
    plain, white = (problem.build(form) for form in convergence.FORMS.values())
    white.v.assign(rng.normal(size=(30, 1)))
    bound = white.elbo()
    plain.q_alpha.assign(white.q_alpha)
    np.testing.assert_allclose(plain.elbo(), bound, rtol=1e-6)
    optimum = methods.ours(problem)(methods.Limit()).objective[-1]
    limit = methods.Limit(target=optimum - convergence.PRECISION, evaluations=600)
    runs = [methods.opper_archambeau(problem, form)(limit) for form in convergence.FORMS.values()]
    assert runs[1].done
    assert 5 * len(runs[1].objective) <= len(runs[0].objective) == 600
