"""Problems that are badly scaled or degenerate: the answer of the well-scaled problem, or a warning, never silence."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
from builders import BUILD, Data

import gpflow_ext as gpx
from gpflow_ext.models import SVGPRobustMax
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.training.scale import scale_failure

N, M = 16, 6
QUICK = "SparseEP"  # its steps compile fastest
DATA = problems.binary(N)
XNEW = problems.inputs(5, seed=11)


def spread(data: Data) -> np.ndarray:
    """Inducing points at rows of the data."""
    return data[0][np.linspace(0, len(data[0]) - 1, min(M, len(data[0]))).astype(int)].copy()


def predictions(
    name: str, data: Data, Xnew: np.ndarray, kernel: gpflow.kernels.Kernel, Z: np.ndarray | None = None
) -> np.ndarray:
    """Mean and variance of y at Xnew after a few steps with the kernel held, [R, 2 or more].

    Of a free-form model at the mean of its Gaussian approximation: chains follow every rounding.
    """
    model = BUILD[name](data, kernel, spread(data) if Z is None else Z)
    for part in (
        model.kernel,
        getattr(model, "weight_kernel", None),
        getattr(model, "inducing_variable", None),
    ):
        if part is not None:
            gpflow.set_trainable(part, False)
    if name == "SGPMCFreeForm":
        gpx.gaussian_approximation(model, free_inducing=False)
    else:
        external = isinstance(model, SVGPRobustMax)
        result = gpx.fit(model, data if external else None, steps=15, progress=False)
        assert result.status not in (gpx.Status.NON_FINITE, gpx.Status.DIVERGED), result
    mean, var = model.predict_y(Xnew)
    found = np.concatenate([mean.numpy(), var.numpy()], axis=1)
    assert np.isfinite(found).all()
    assert (var.numpy() >= 0.0).all()
    return found


def repeated(data: Data, gap: float) -> Data:
    """Half of the rows, each twice, the twin at a distance."""
    X, Y = (part[: N // 2] for part in data)
    return np.concatenate([X, X + gap]), np.concatenate([Y, Y])


def wide(X: np.ndarray) -> np.ndarray:
    """The inputs among 500 columns."""
    return np.concatenate([X, np.random.default_rng(5).normal(size=(len(X), 498))], axis=1)


DEGENERATE: dict[str, Callable[[], tuple[Data, np.ndarray, dict[str, Any], np.ndarray | None]]] = {
    "twins": lambda: (repeated(DATA, 0.0), XNEW, {}, None),
    "gaps of 1e-9": lambda: (repeated(DATA, 1e-9), XNEW, {}, None),
    "twin inducing points": lambda: (DATA, XNEW, {}, np.repeat(DATA[0][:3], 2, axis=0)),
    "more inducing points than data": lambda: (DATA, XNEW, {}, problems.inputs(N + 4, seed=3)),
    "one datum": lambda: ((DATA[0][:1], DATA[1][:1]), XNEW, {}, None),
    "one class": lambda: ((DATA[0], np.ones_like(DATA[1])), XNEW, {}, None),
    "500 columns": lambda: ((wide(DATA[0]), DATA[1]), wide(XNEW), {"lengthscale": 20.0}, None),
    "variance 1e10": lambda: (DATA, XNEW, {"variance": 1e10}, None),
    "variance 1e-10": lambda: (DATA, XNEW, {"variance": 1e-10}, None),
}


def cross(names: Iterable[str], cases: Iterable[Any], quick: Any) -> list[Any]:
    """Every model with every case; slow but where the model is `QUICK`, or the case is."""
    return [
        pytest.param(name, *(case if isinstance(case, tuple) else (case,)), marks=marks)
        for name in names
        for case in cases
        for marks in [() if name == QUICK or case == quick else pytest.mark.slow]
    ]


@pytest.mark.parametrize(("name", "case"), cross(BUILD, DEGENERATE, "twins"))
def test_degenerate_problems_have_finite_predictions(name: str, case: str) -> None:
    data, Xnew, scales, Z = DEGENERATE[case]()
    predictions(name, data, Xnew, problems.kernel(**scales), Z)


@pytest.mark.parametrize(
    "name", [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in BUILD]
)
def test_the_unit_of_the_inputs_does_not_matter(name: str) -> None:
    """Inputs in any unit with a length scale in the same unit, and a column that says nothing."""
    X, Y = DATA
    expected = predictions(name, DATA, XNEW, problems.kernel(lengthscale=0.7))
    for unit in (1e8, 1e-8):
        found = predictions(name, (unit * X, Y), unit * XNEW, problems.kernel(lengthscale=0.7 * unit))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    constant, constant_new = (np.c_[part, np.full(len(part), 3.0)] for part in (X, XNEW))
    found = predictions(name, (constant, Y), constant_new, problems.kernel(lengthscale=0.7))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


BLIND = [
    (1e8, 1.0, "relates no input to another one.*standardise"),
    (1e-8, 1.0, "does not tell the inputs apart.*standardise"),
    (1.0, 1e-6, "relates no input"),
    (1.0, 1e6, "does not tell the inputs apart"),
]


@pytest.mark.parametrize(
    ("name", "unit", "lengthscale", "message"),
    cross([n for n in BUILD if n != "SGPMCFreeForm"], BLIND, None),
)
def test_a_scale_that_makes_the_model_blind_is_told(
    name: str, unit: float, lengthscale: float, message: str
) -> None:
    X, Y = DATA
    with pytest.warns(UserWarning, match=message):
        predictions(name, (unit * X, Y), unit * XNEW, problems.kernel(lengthscale=lengthscale))


@pytest.mark.parametrize(
    ("unit", "fix"), [(1.0, "start from .*, unless they tell nothing"), (9.0, "standardise")]
)
def test_standardised_inputs_need_no_scaling(unit: float, fix: str) -> None:
    X = unit * np.random.default_rng(0).normal(size=(50, 2))
    model = gpflow.models.GPR((X, X[:, :1]), gpflow.kernels.SquaredExponential(lengthscales=1e-6))
    assert re.search(f"They spread over [0-9.]+: {fix}", str(scale_failure(model)))


def test_a_good_scale_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictions(QUICK, DATA, XNEW, gpflow.kernels.Linear() + gpflow.kernels.Constant())


def test_chains_of_a_blind_model_are_warned_of_and_finite() -> None:
    model = BUILD["SGPMCFreeForm"](DATA, problems.kernel(variance=1e6, lengthscale=1e-6), DATA[0].copy())
    gpflow.set_trainable(model.kernel, False)
    with pytest.warns(UserWarning, match="relates no input"):
        draws = gpx.sample(model, 10, 2, tuner=Setting(0.2, 3), progress=False, check=False, warm_up=5)
    assert all(np.isfinite(values).all() for values in draws.values.values())
    assert np.isfinite(model.predict_y(XNEW)[0]).all()
