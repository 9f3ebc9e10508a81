"""L-BFGS on q(v) and the hyperparameters of `SVGPRobustMax` together, which many rows have."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.svgp import joint_ascent
from gpflow_ext.svgp.joint_ascent import JointBound
from gpflow_ext.training.starts import FROM_DATA, OWN

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (60, 1))
Y = np.digitize(X + 0.3 * RNG.standard_normal((60, 1)), [-0.7, 0.7]).astype(float)


def build() -> gpx.models.SVGPRobustMax:
    points = np.linspace(-2.0, 2.0, 7)[:, None]
    return gpx.models.SVGPRobustMax(gpflow.kernels.Matern52(), 3, points, num_data=len(X))


@pytest.fixture(name="jointly")
def _jointly(monkeypatch):
    monkeypatch.setattr(joint_ascent, "_MANY", 1)


def test_it_ends_where_q_at_its_optimum_in_each_evaluation_does(jointly, monkeypatch):
    model = build()
    result = gpx.fit(model, (X, Y), progress=False)
    assert result.status is gpx.Status.CONVERGED
    assert [each.name for each in result.starts] == [OWN, FROM_DATA]
    assert np.all(np.diff(result.objective) >= -1e-9)
    bound = float(model.elbo((X, Y)) + model.log_prior_density())
    assert bound == pytest.approx(result.objective[-1], abs=1e-9)
    monkeypatch.setattr(joint_ascent, "_MANY", 10**9)
    assert bound == pytest.approx(gpx.fit(build(), (X, Y), progress=False).objective[-1], abs=0.1)


def test_it_resumes_exactly(jointly, tmp_path):
    straight, resumed = build(), build()
    gpx.fit(straight, (X, Y), steps=3, progress=False)
    options = {"checkpoint_dir": tmp_path, "checkpoint_every": 1, "progress": False}
    gpx.fit(build(), (X, Y), steps=2, **options)
    gpx.fit(resumed, (X, Y), steps=3, **options)
    for new, old in zip(resumed.variables, straight.variables, strict=True):
        np.testing.assert_array_equal(new.numpy(), old.numpy())


def test_the_bound_of_the_best_q_bends_by_about_one_in_any_direction(jointly):
    model = build()
    gpx.fit(model, (X, Y), progress=False)
    bound = JointBound(model, [])
    value, (slope, turn) = bound.evaluate(X, Y)
    assert float(value) == pytest.approx(float(model.elbo((X, Y)) + model.log_prior_density()), abs=1e-9)
    assert max(float(tf.reduce_max(tf.abs(part))) for part in (slope, turn)) < 1e-2
    for _ in range(3):
        way = RNG.standard_normal(slope.shape)
        bound.shift.assign(1e-4 * way)
        bend = np.sum(way * (slope - bound.evaluate(X, Y)[1][0])) / (1e-4 * np.sum(way**2))
        assert 0.3 < bend < 3.0
    moved = bound.evaluate(X, Y)[0]
    bound.take()
    assert float(bound.evaluate(X, Y)[0]) == pytest.approx(float(moved), abs=1e-9)
    assert not np.any(bound.shift.numpy())
