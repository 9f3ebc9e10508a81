"""Single precision predicts as double does; the same seed gives the same bits; XLA trains the same model."""

from __future__ import annotations

import functools

import gpflow
import numpy as np
import problems
import pytest
from builders import BUILD

import gpflow_ext as gpx
from gpflow_ext.mcmc.tuning import Setting
from gpflow_ext.models import SGPMCFreeForm, SVGPRobustMax

X, Y = problems.binary(200, variance=9.0, lengthscale=1.5)
DATA = {"train": (X[:60], Y[:60]), "few": (X[:16], Y[:16])}
TEST = (X[60:], Y[60:])
SLOW = pytest.mark.slow
FAST = ("SparseEP",)
NAMES = [name if name in FAST else pytest.param(name, marks=SLOW) for name in BUILD]
STOCHASTIC = [
    name if name == "SVGPRobustMax" else pytest.param(name, marks=SLOW)
    for name in ("SVGPRobustMax", "SGPMCFreeForm", "SparseEP")
]


@functools.cache
def predicted(
    name: str, dtype: type = np.float64, data: str = "train", jit: bool = False, repeat: int = 0
) -> np.ndarray:
    """Train a model and return its mean and variance of y at the test inputs, [R, 2 or more]."""
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        pair = tuple(part.astype(dtype) for part in DATA[data])
        model = BUILD[name](pair, problems.kernel(), pair[0][:12].copy())
        if isinstance(model, SGPMCFreeForm):
            for parameter in (model.kernel.variance, model.kernel.lengthscales):
                gpflow.set_trainable(parameter, False)
            options = {"tuner": Setting(0.4, 8), "check": False, "warm_up": 10}
            gpx.sample(model, 300, 4, progress=False, seed=1, jit_compile=jit, **options)
        else:
            external = pair if isinstance(model, SVGPRobustMax) else None
            gpx.fit(model, external, steps=30, progress=False, seed=1, jit_compile=jit)
        mean, var = model.predict_y(TEST[0].astype(dtype))
        assert mean.dtype == dtype
        return np.concatenate([mean.numpy(), var.numpy()], axis=1).astype(np.float64)


def probability(found: np.ndarray) -> np.ndarray:
    """Of class 1: the mean of a target in {0, 1}, or the second of two classes."""
    return np.clip(found[:, 1 if found.shape[1] == 4 else 0], 1e-6, 1.0 - 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_predicts_as_double(name: str, record_property) -> None:
    scores = []
    for dtype in (np.float32, np.float64):
        p, y = probability(predicted(name, dtype)), TEST[1][:, 0]
        scores.append((100.0 * np.mean((p > 0.5) != y), -np.mean(np.log(np.where(y, p, 1.0 - p)))))
    error, nlpd = np.abs(np.subtract(*scores))
    record_property("difference of error, points", error)
    record_property("difference of NLPD", nlpd)
    assert error <= 0.2
    assert nlpd <= 0.01


@pytest.mark.parametrize("name", STOCHASTIC)
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    np.testing.assert_array_equal(predicted(name, repeat=0), predicted(name, repeat=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILD)
def test_xla_trains_the_same_model(name: str, record_property) -> None:
    difference = np.abs(predicted(name, data="few", jit=True) - predicted(name, data="few")).max()
    record_property("largest difference", difference)
    assert difference <= 1e-8
