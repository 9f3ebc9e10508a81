"""Sites settle in each evaluation of L-BFGS as far as its search needs."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.models import VGPKMM, GPLaplace, SparseEP
from gpflow_ext.training import hyperparameters
from gpflow_ext.training.hyperparameters import HyperparameterAscent, enough
from gpflow_ext.training.solver import Settled

ROWS = 40


@pytest.mark.parametrize("of", [float, lambda number: tf.constant(number, tf.float64)])
def test_a_violation_is_enough_far_below_the_gain_that_is_promised(of: Any) -> None:
    """At most 1e-3, and at the start or where little is to be gained what counts as none."""
    for promised, stationarity, expected in [
        (0.0, 1e-5, 1e-5),
        (1e-8, 1e-5, 1e-5),
        (2e-3, 1e-5, 2e-4),
        (5.0, 1e-5, 1e-3),
        (5.0, 1e-2, 1e-2),
    ]:
        np.testing.assert_allclose(enough(of(promised), stationarity), expected, rtol=1e-12)


def _model(kind: type) -> Any:
    points = {"inducing_variable": problems.inputs(8, seed=5)} if kind is SparseEP else {}
    model = kind(problems.binary(ROWS), gpflow.kernels.SquaredExponential(), BernoulliLogit(), **points)
    if points:
        gpflow.set_trainable(model.inducing_variable, False)
    return model


@pytest.mark.parametrize("kind", [VGPKMM, GPLaplace, SparseEP])
def test_far_from_the_optimum_sites_settle_less(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end is that of a run whose sites always settle, which takes about as many evaluations."""
    asked: list[tuple[float, float]] = []
    evaluate = Settled.evaluate

    def spied(self: Settled, most: int, tolerance: float) -> Any:
        found = evaluate(self, most, tolerance)
        asked.append((tolerance, found.violation))
        return found

    monkeypatch.setattr(Settled, "evaluate", spied)
    result = gpx.fit(_model(kind), starts=1, progress=False)
    tolerances, violations = np.transpose(asked)
    least = tolerances.min()
    assert tolerances[0] == tolerances[-1] == least
    assert (tolerances > least).sum() >= 3
    assert (violations > least).any()
    assert violations[-1] <= least
    assert (violations <= tolerances).all()
    number = len(asked)
    monkeypatch.setattr(hyperparameters, "enough", lambda promised, stationarity: stationarity)
    asked.clear()
    exact = gpx.fit(_model(kind), starts=1, progress=False)
    assert all(tolerance == least for tolerance, _ in asked)
    assert result.status is exact.status is gpx.Status.CONVERGED
    np.testing.assert_allclose(result.objective[-1], exact.objective[-1], rtol=1e-7)
    assert number <= 1.3 * len(asked)


def test_in_the_graph_they_settle_as_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same violation at each evaluation of the first iterations."""
    found: list[list[float]] = [[], []]
    evaluate = HyperparameterAscent._evaluate

    def spied(self: HyperparameterAscent) -> Any:
        value = evaluate(self)
        found[0].append(value[0])
        return value

    monkeypatch.setattr(HyperparameterAscent, "_evaluate", spied)
    gpx.fit(_model(VGPKMM), starts=1, progress=False)
    ascents = []
    step = HyperparameterAscent.step

    def kept(self: HyperparameterAscent) -> Any:
        ascents.append(self)
        return step(self)

    monkeypatch.setattr(HyperparameterAscent, "step", kept)
    gpx.fit(_model(VGPKMM), starts=1, in_graph=True, progress=False)
    found[1] = ascents[-1].run.record.numpy().tolist()
    same = min(len(part) for part in found) - 2  # at the end rounding decides where a search ends
    assert same > 4
    np.testing.assert_allclose(found[1][:same], found[0][:same], rtol=1e-9)


def test_a_run_does_not_depend_on_where_its_parts_end() -> None:
    """The sites between two parts are those of the iterate, whether they have settled or not."""
    ends = []
    for steps, hyper_updates in [(1, 4), (4, 1)]:
        model = _model(VGPKMM)
        gpx.fit(model, steps=steps, hyper_updates=hyper_updates, starts=1, progress=False)
        ends.append(np.concatenate([np.ravel(part) for part in model.variables]))
    np.testing.assert_array_equal(*ends)
