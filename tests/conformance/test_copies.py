"""Copies, saved models and checkpoints of models whose data are in variables, and strategies that build models."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from marks import others_slow

import gpflow_ext as gpx
from conformance.holders import ALL, FREE, SITES, EPOnDense, points, variables
from gpflow_ext.persistence.checkpoint import Checkpoints

MODELS = ALL
XNEW = points()
SIGNATURE = [tf.TensorSpec([None, XNEW.shape[1]], tf.float64)]
FOLLOWERS = {**SITES, **FREE}


def build(name: str, held_in_variables: bool = False) -> tuple[Any, Any]:
    """A model off its start, and its data."""
    data = MODELS[name].sample(12, 0)
    model = MODELS[name].build(variables(data) if held_in_variables else data)
    for number, part in enumerate(gpflow.utilities.parameter_dict(model).values()):
        if isinstance(part, gpflow.Parameter):
            unconstrained = part.unconstrained_variable
            unconstrained.assign(unconstrained + 0.05 / (1 + number))
    return model, data


def moments(model: Any) -> list[np.ndarray]:
    return [part.numpy() for part in (*model.predict_f(XNEW), *model.predict_y(XNEW))]


def assert_same(found: Any, expected: Any) -> None:
    for mine, its in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-9, atol=1e-12)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "gpflow's deepcopy": gpflow.utilities.deepcopy,
    "frozen": gpflow.utilities.freeze,
    "pickled": lambda model: pickle.loads(pickle.dumps(model)),
    "frozen and pickled": lambda model: pickle.loads(pickle.dumps(gpflow.utilities.freeze(model))),
}


@pytest.mark.parametrize("name", others_slow(FOLLOWERS, "VGPKMM", "SparseEP", "SGPMCFreeForm"))
def test_copies_of_models_that_follow_variables(name: str) -> None:
    """Each with variables of its own, that take other numbers of rows as well."""
    model, _ = build(name, held_in_variables=True)
    before = moments(model)
    copies = [make(model) for make in COPIES.values()]
    X, Y = vars(model)["data"]
    X.assign(X + 0.3)
    for made in copies:
        assert_same(moments(made), before)
    assert np.abs(moments(model)[0] - before[0]).max() > 1e-6 or name.startswith("SGPMC")
    for made, kind in zip(copies, COPIES, strict=True):
        if not kind.startswith("frozen"):
            assert made.follows
            made.update_data((X.numpy()[:9], Y.numpy()[:9]))
            assert len(made.data[0]) == 9
            made.predict_f(XNEW)
    assert len(model.data[0]) == 12


def predicted_when_loaded(root: tf.Module, folder: Path) -> Any:
    tf.saved_model.save(root, str(folder))
    loaded = tf.saved_model.load(str(folder))
    return loaded.predict(XNEW)


@pytest.mark.parametrize("name", others_slow(FOLLOWERS, "VGPKMM", "SparseEP", "SGPMCFreeForm"))
def test_the_saved_models_of_gpflow_s_recipes(name: str, tmp_path: Path) -> None:
    """Of a frozen model beside a module, and of a module that holds the model."""
    model, _ = build(name, held_in_variables=True)
    expected = model.predict_y(XNEW)
    frozen, module = gpflow.utilities.freeze(model), tf.Module()
    module.predict = tf.function(frozen.predict_y, input_signature=SIGNATURE, autograph=False)
    assert_same(predicted_when_loaded(module, tmp_path / "frozen"), expected)
    model.predict = tf.function(model.predict_y, input_signature=SIGNATURE, autograph=False)
    assert_same(predicted_when_loaded(model, tmp_path / "model"), expected)


@pytest.mark.parametrize("name", others_slow(FOLLOWERS, "VGPKMM", "SparseEP", "SGPMCFreeForm"))
def test_a_checkpoint_holds_the_data_of_variables(name: str, tmp_path: Path) -> None:
    """Also of another number of rows."""
    model, data = build(name, held_in_variables=True)
    model.update_data(MODELS[name].sample(15, 3))
    other = MODELS[name].build(variables(data))
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "model"))
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    assert_same(moments(other), moments(model))


@pytest.mark.parametrize("name", others_slow(FOLLOWERS, "VGPKMM", "SparseEP", "SGPMCFreeForm"))
def test_a_model_that_follows_variables_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model, _ = build(name, held_in_variables=True)
    Checkpoints(tmp_path, model).save(1)
    loaded = gpx.load_checkpoint(tmp_path, classes=[EPOnDense])
    assert_same(moments(loaded), moments(model))
    assert loaded.follows


@pytest.mark.parametrize("strategy", ["mirrored", "one device"])
def test_a_model_built_in_the_scope_of_a_strategy_trains(strategy: str) -> None:
    name = "SVGPRobustMax"
    data = MODELS[name].sample(30, 0)
    made = {
        "mirrored": lambda: tf.distribute.MirroredStrategy(
            ["/cpu:0"], cross_device_ops=tf.distribute.ReductionToOneDevice()
        ),
        "one device": lambda: tf.distribute.OneDeviceStrategy("/cpu:0"),
    }[strategy]()
    with made.scope():
        model = MODELS[name].build(data)
    plain = MODELS[name].build(data)
    found, expected = (gpx.fit(each, data, steps=4, progress=False) for each in (model, plain))
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-8)
    assert_same(moments(model), moments(plain))


def test_what_does_not_go_with_the_scope_of_a_strategy() -> None:
    name = "SVGPRobustMax"
    data = MODELS[name].sample(30, 0)
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        model = MODELS[name].build(data)
        with pytest.raises(ValueError, match=r"outside of `strategy.scope\(\)`"):
            gpx.fit(model, data, progress=False)
    with pytest.raises(ValueError, match=r"Build the model outside of `strategy.scope\(\)`"):
        gpx.fit(model, data, strategy=strategy, progress=False)
    adam = gpflow.keras.tf_keras.optimizers.Adam()
    with pytest.raises(ValueError, match="make both there"):
        gpx.fit(model, data, optimizer=adam, progress=False)
