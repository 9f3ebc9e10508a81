"""Nearly separable data, on which variances grow without bound: every model and recipe stays finite.

The line search of L-BFGS then tries points where a kernel matrix cannot be factorised, or overflows. Such a
trial is a value that the search steps away from, never an exception, and never assigned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import pytest
from marks import others_slow

import gpflow_ext as gpx
from gpflow_ext import Status

GOOD = (Status.CONVERGED, Status.MAX_STEPS, Status.STOPPED_EARLY)
# Noise of the labels, starting length scale and variance: from each VGPKMM once ended in an exception.
PROBLEMS = {
    "noisy": (40, 0.3, 3.0, 1.0),
    "separable": (80, 0.0, 30.0, 1.0),
    "variance": (40, 0.1, 3.0, 1e4),
}


def _data(num_data: int, noise: float) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((num_data, 10))
    return X, (X[:, :1] + noise * rng.standard_normal((num_data, 1)) > 0.0).astype(float)


def _kmm(data: Any, kernel: Any, **options: Any) -> Any:
    return gpx.models.VGPKMM(data, kernel, gpx.likelihoods.BernoulliLogit(), **options)


def _ep(data: Any, kernel: Any) -> Any:
    return gpx.models.SparseEP(
        data, kernel, gpx.likelihoods.BernoulliProbit(), inducing_variable=data[0][:20].copy()
    )


def _svgp(data: Any, kernel: Any) -> Any:
    Z = data[0][:20].copy()
    return gpflow.models.SVGP(kernel, gpx.likelihoods.BernoulliLogit(), Z, num_data=len(data[0]))


def _robust_max(data: Any, kernel: Any) -> Any:
    return gpx.models.SVGPRobustMax(kernel, 2, data[0][:20].copy(), num_data=len(data[0]))


def _gprn(data: Any, kernel: Any) -> Any:
    X, Y = data
    targets = (Y - 0.5) * np.linspace(1.0, 2.0, 5)
    return gpx.models.GPRNTensor((X, targets), kernel, gpflow.kernels.SquaredExponential(lengthscales=3.0), 2)


def _of(kind: Callable[..., Any], likelihood: Any, **options: Any) -> Callable[..., Any]:
    return lambda data, kernel: kind(data, kernel, likelihood(), **options)


JAAKKOLA = lambda: gpx.likelihoods.BernoulliLogit(bound="jaakkola")  # noqa: E731
FITS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "kmm": (_kmm, {}),
    "kmm sparse": (
        lambda data, kernel: _kmm(data, kernel, inducing_variable=data[0][:20].copy()),
        {"steps": 1},
    ),
    "kmm algorithm1": (_kmm, {"method": "algorithm1", "steps": 1}),
    "kmm starts": (_kmm, {"starts": 3, "steps": 1}),
    "laplace": (_of(gpx.models.GPLaplace, gpx.likelihoods.BernoulliLogit), {}),
    "taylor": (_of(gpx.models.GPTaylor, gpx.likelihoods.BernoulliLogit), {}),
    "jaakkola": (_of(gpx.models.GPJaakkola, JAAKKOLA), {}),
    "ep": (_ep, {"steps": 30}),
    "ep lbfgs": (_ep, {"optimizer": "lbfgs", "steps": 3}),
    "ep minibatches": (_ep, {"minibatch_size": 20, "steps": 20}),
    "robust max": (_robust_max, {"steps": 20}),
    "svgp": (_svgp, {"steps": 20}),
    "svi_natural": (_svgp, {"recipe": "svi_natural", "steps": 20}),
    "svi_lbfgsb": (_svgp, {"recipe": "svi_lbfgsb", "steps": 5}),
    "svi_sag": (_svgp, {"recipe": "svi_sag", "steps": 20}),
    "svi_fg": (_svgp, {"recipe": "svi_fg", "steps": 20}),
    "svi_classification": (_svgp, {"recipe": "svi_classification", "steps": 20}),
    "gprn": (_gprn, {"steps": 1}),
}


@pytest.mark.parametrize(
    ("problem", "fit"),
    others_slow([(problem, fit) for problem in PROBLEMS for fit in FITS], *(("noisy", fit) for fit in FITS)),
)
def test_a_fit_ends_finite(problem: str, fit: str) -> None:
    num_data, noise, lengthscale, variance = PROBLEMS[problem]
    build, options = FITS[fit]
    data = _data(num_data, noise)
    model = build(data, gpflow.kernels.SquaredExponential(variance, lengthscale))
    external = isinstance(model, gpflow.models.ExternalDataTrainingLossMixin)
    result = gpx.fit(model, data if external else None, **options)
    assert result.status in GOOD
    assert np.isfinite(result.objective).all()
    for part in model.predict_y(data[0]):
        assert np.isfinite(part).all()
    assert all(np.isfinite(value).all() for value in gpflow.utilities.read_values(model).values())


@pytest.mark.parametrize("problem", others_slow(PROBLEMS, "noisy"))
def test_a_gaussian_approximation_ends_finite(problem: str) -> None:
    num_data, noise, lengthscale, variance = PROBLEMS[problem]
    data = _data(num_data, noise)
    kernel = gpflow.kernels.SquaredExponential(variance, lengthscale)
    model = gpx.models.SGPMCFreeForm(
        data, kernel, gpx.likelihoods.BernoulliLogit(), inducing_variable=data[0][:20].copy()
    )
    assert np.isfinite(gpx.gaussian_approximation(model, steps=100).objective).all()
    assert np.isfinite(model.predict_y(data[0])[0]).all()
