"""A signal, or an error, in the middle of a fit that writes no checkpoints: what the model is then."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import gpflow
import numpy as np
import problems
import pytest

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.svgp.minibatch_ascent import MinibatchAscent
from gpflow_ext.training import lbfgs
from gpflow_ext.training.solver import Progress


@pytest.fixture(autouse=True)
def _signals_are_heard() -> Iterator[None]:
    """A shell lets what it runs in the background ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def laplace() -> gpx.models.GPLaplace:
    return gpx.models.GPLaplace(problems.binary(12), problems.kernel(5.0), BernoulliLogit())


def at_evaluation(number: int, act: Callable[[], None], patch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Let something happen before an evaluation of L-BFGS; return where they are, as they come."""
    places: list[np.ndarray] = []
    made = lbfgs.in_coordinates

    def watched(*arguments: Any) -> Callable[[np.ndarray], Any]:
        evaluate = made(*arguments)

        def there(x: np.ndarray) -> Any:
            places.append(x)
            if len(places) == number:
                act()
            return evaluate(x)

        return there

    patch.setattr(lbfgs, "in_coordinates", watched)
    return places


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_it_ends_at_the_next_iterate_and_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at the end of a step of many iterations, nor where the search along a line happens to be."""
    model = laplace()
    before = model.maximum_log_likelihood_objective()
    with monkeypatch.context() as patch:
        places = at_evaluation(4, interrupt, patch)
        with pytest.raises(KeyboardInterrupt, match=r"after step 1\. Another `fit` goes on\."):
            gpx.fit(model, progress=False)
    assert 4 <= len(places) <= 6
    reached = model.maximum_log_likelihood_objective()
    best = gpx.fit(model, progress=False).objective[-1]
    assert before + 0.1 < reached < best - 1e-6
    assert gpx.fit(laplace(), progress=False).objective[-1] == pytest.approx(best, abs=1e-5)


def test_small_steps_go_on_as_if_none_had_come() -> None:
    def model() -> gpflow.models.SVGP:
        Z = problems.inputs(5, seed=5)
        return gpflow.models.SVGP(problems.kernel(), BernoulliLogit(), Z, num_data=30)

    def fit(model: gpflow.models.SVGP, steps: int, monitor: Callable[[int], None] | None = None) -> None:
        options = {"minibatch_size": 10, "schedule": "root", "progress": False}
        gpx.fit(model, problems.binary(), steps=steps, monitor=monitor, **options)

    cut, whole = model(), model()
    with pytest.raises(KeyboardInterrupt, match="Interrupted after step 3"):
        fit(cut, 8, lambda step: interrupt() if step == 3 else None)
    fit(cut, 5)
    fit(whole, 8)
    for found, expected in zip(cut.variables, whole.variables, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


def test_an_error_within_a_step_leaves_no_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("out of order")

    model = laplace()
    before = [variable.numpy() for variable in model.variables]
    at_evaluation(4, fail, monkeypatch)
    with pytest.raises(RuntimeError, match="out of order"):
        gpx.fit(model, progress=False)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_no_further_start_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of small steps, a tenth of a thousand from each start; the model goes on at the best one so far."""
    steps: list[int] = []
    step = MinibatchAscent.step

    def watched(engine: MinibatchAscent) -> Progress:
        steps.append(1)
        if len(steps) == 4:
            interrupt()
        return step(engine)

    monkeypatch.setattr(MinibatchAscent, "step", watched)
    Z = problems.inputs(5, seed=5)
    model = gpflow.models.SVGP(problems.kernel(), BernoulliLogit(), Z, num_data=30)
    options = {"recipe": "dual", "starts": 3, "minibatch_size": 10, "progress": False}
    with pytest.raises(KeyboardInterrupt, match="Interrupted after step 1"):
        gpx.fit(model, problems.binary(), **options)
    assert len(steps) == 5
