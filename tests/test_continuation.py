"""A further fit by small steps goes on where the last one has ended."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.training import continuation

DATA = problems.binary(60)
Z = problems.inputs(5, seed=5)


def sparse(whiten: bool = True) -> gpflow.models.SVGP:
    return gpflow.models.SVGP(problems.kernel(), BernoulliLogit(), Z, num_data=60, whiten=whiten)


def sites() -> gpx.models.SparseEP:
    return gpx.models.SparseEP(DATA, problems.kernel(), BernoulliLogit(), inducing_variable=Z)


def digits() -> gpx.models.SVGPRobustMax:
    return gpx.models.SVGPRobustMax(problems.kernel(), 3, Z, num_data=60)


def fit(model: Any, steps: int = 6, data: Any = DATA, **options: Any) -> gpx.FitResult:
    given = () if isinstance(model, gpx.models.SparseEP) else (data,)
    return gpx.fit(model, *given, steps=steps, minibatch_size=10, progress=False, **options)


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "natural gradients": (sparse, {}),
    "unwhitened": (lambda: sparse(whiten=False), {}),
    "dual sites": (sparse, {"recipe": "dual", "last_pass": False, "starts": 2}),
    "Adam": (sparse, {"recipe": "adam"}),
    "expectation propagation": (sites, {"starts": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_two_fits_do_the_steps_of_one(name: str) -> None:
    """The step lengths, the memory of Adam, the minibatches and the start that was chosen go on."""
    build, options = CASES[name]
    whole, halves = build(), build()
    objective = fit(whole, 12, **options).objective
    parts = [fit(halves, 6, **options).objective for _ in range(2)]
    np.testing.assert_allclose(np.concatenate(parts), objective, rtol=1e-9)
    for expected, found in zip(whole.trainable_variables, halves.trainable_variables, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


def moved(model: Any) -> None:
    model.kernel.variance.assign(1.5)


CHANGES: dict[str, tuple[Callable[[Any], None], dict[str, Any]]] = {
    "a parameter": (moved, {}),
    "what is trained": (lambda model: gpflow.set_trainable(model.kernel, False), {}),
    "the data": (lambda _: None, {"data": problems.binary(60, seed=3)}),
    "an option": (lambda _: None, {"seed": 1}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_begins_anew(name: str) -> None:
    change, options = CHANGES[name]
    model = sparse()
    fit(model)
    change(model)
    other = gpflow.utilities.deepcopy(model)
    begun = fit(other, **options).objective
    np.testing.assert_array_equal(fit(model, **options).objective, begun)


def test_the_users_own_rate_counts() -> None:
    """An optimiser whose rate was set between two fits keeps it."""
    model, optimizer = sparse(), tf_keras.optimizers.Adam(1e-3)
    fit(model, recipe="adam", optimizer=optimizer)
    optimizer.learning_rate = 1e-5
    fit(model, recipe="adam", optimizer=optimizer)
    assert float(optimizer.learning_rate) == pytest.approx(1e-5)


class Plain(tf_keras.optimizers.SGD):
    """An optimiser that keeps less than Adam and is told from it by its class alone."""

    def get_config(self) -> dict[str, Any]:
        """Return what Adam does."""
        return tf_keras.optimizers.Adam(1e-3).get_config()


def test_another_optimiser_of_the_same_settings_begins_anew() -> None:
    model = sparse()
    fit(model, recipe="adam", optimizer=tf_keras.optimizers.Adam(1e-3))
    other = gpflow.utilities.deepcopy(model)
    begun = fit(other, recipe="adam", optimizer=Plain(1e-3)).objective
    np.testing.assert_array_equal(fit(model, recipe="adam", optimizer=Plain(1e-3)).objective, begun)


def test_a_run_that_goes_on_has_its_whole_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended when a score had not improved four times; the score never will."""
    monkeypatch.setattr("gpflow_ext.svgp.recipe._scorer", lambda *_: lambda: 1.0)
    data, model = problems.classes(60), digits()
    options = {"validation": data, "validate_every": 1, "patience": 4}
    ends = [fit(model, 9, data, **options) for _ in range(2)]
    assert [(end.status, end.steps) for end in ends] == [
        (gpx.Status.STOPPED_EARLY, 5),
        (gpx.Status.STOPPED_EARLY, 4),
    ]


def test_what_is_left_goes_with_the_model() -> None:
    gc.collect()
    before = len(continuation._LEFT)
    model = sparse()
    fit(model)
    assert len(continuation._LEFT) == before + 1
    del model
    gc.collect()
    assert len(continuation._LEFT) == before


def test_a_folder_holds_a_run_that_went_on(tmp_path: Path) -> None:
    """The lengths that it went on with are in its checkpoints, from which another process resumes."""
    whole = sparse()
    fit(whole)
    objective = fit(whole).objective
    cut = sparse()
    fit(cut)
    fit(cut, 3, checkpoint_dir=tmp_path)
    resumed = fit(sparse(), checkpoint_dir=tmp_path)
    np.testing.assert_allclose(resumed.objective, objective[3:], rtol=1e-9)
