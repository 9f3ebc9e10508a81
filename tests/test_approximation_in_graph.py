"""The Gaussian approximation in the graph has the bounds of that on the host, after every iteration."""

from __future__ import annotations

import compiled_calls
import gpflow
import numpy as np
import pytest
import tensorflow as tf
from test_starts import free_form

import gpflow_ext as gpx
from gpflow_ext.sampling import approximation
from gpflow_ext.training import lbfgs_in_graph


class Undefined(gpflow.functions.MeanFunction):
    """Nowhere a number."""

    def __call__(self, X: tf.Tensor) -> tf.Tensor:
        return tf.fill([tf.shape(X)[0], 1], tf.constant(np.nan, X.dtype))


@pytest.mark.parametrize("free", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_bounds_are_those_of_the_host(free: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    called, found = compiled_calls.record(monkeypatch), []
    for in_graph in (False, True):
        called.clear()
        model = free_form(2.0)
        result = gpx.gaussian_approximation(
            model, steps=25, starts=1 + 2 * free, free_inducing=free, in_graph=in_graph
        )
        found.append((result, gpflow.utilities.read_values(model), len(called)))
    (expected, its, evaluations), (result, mine, calls) = found
    assert result.status == expected.status
    assert len(result.times) == result.steps == expected.steps
    assert (np.diff(result.times) >= 0.0).all()
    np.testing.assert_allclose(result.objective, expected.objective, rtol=1e-6)
    for one, other in zip(result.starts, expected.starts, strict=True):
        np.testing.assert_allclose(one.objective, other.objective, rtol=1e-6)
    for name, value in its.items():
        np.testing.assert_allclose(mine[name], value, rtol=1e-3, atol=1e-3)
    climbs = 2 * (1 + free) + len(result.starts)  # each stage stops once before its end
    assert evaluations > 25 * (1 + free)
    assert calls <= climbs + evaluations // lbfgs_in_graph.CALL


def test_one_that_still_rises_says_by_how_much_and_what_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximation, "STEPS", 10)
    notes = []
    for in_graph in (False, True):
        with pytest.warns(gpx.FitWarning, match="still rising when the 10 steps were over"):
            result = gpx.gaussian_approximation(
                free_form(2.0), starts=1, free_inducing=False, in_graph=in_graph
            )
        notes.append(result.notes[0])
    assert "kernel.lengthscales" in notes[0]
    assert notes[1] == notes[0]


def test_a_bound_that_is_not_finite_is_refused() -> None:
    model = free_form(2.0)
    model.mean_function = Undefined()
    with pytest.raises(ValueError, match="not finite where it starts"):
        gpx.gaussian_approximation(model, starts=1, free_inducing=False, in_graph=True)


@pytest.mark.parametrize("in_graph", [False, True])
def test_no_steps_are_refused(in_graph: bool) -> None:
    with pytest.raises(ValueError, match="`steps` must be at least 1; got 0"):
        gpx.gaussian_approximation(free_form(2.0), steps=0, in_graph=in_graph)
