"""What `fit` does by default where TensorFlow sees a GPU: XLA, L-BFGS in the graph, whole factorisations; here on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import builders
import gpflow
import numpy as np
import problems
import pytest

import gpflow_ext as gpx
from gpflow_ext.numerics import linalg
from gpflow_ext.training import lbfgs_in_graph, loop, site_recipe

pytestmark = pytest.mark.slow  # XLA takes some ten seconds for each model
X, Y = problems.binary(24)
Z = X[:6].copy()
TIMES = np.sort(np.random.default_rng(0).uniform(0.0, 5.0, (24, 1)), axis=0)
CELLS = np.stack(np.meshgrid(*[np.arange(5.0)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
COUNTS = np.random.default_rng(1).poisson(2.0, (len(CELLS), 1)).astype(float)
ONE_START: dict[str, Any] = {"starts": 1}
# A model, its data where it holds none, and options.
Built = tuple[gpflow.models.BayesianModel, Any, dict[str, Any]]


def _own(name: str) -> Callable[[], Built]:
    def build() -> Built:
        model = builders.BUILD[name]((X, Y), problems.kernel(), Z.copy())
        return model, None if hasattr(model, "data") else (X, Y), ONE_START

    return build


def _product() -> gpflow.kernels.Kernel:
    return gpflow.kernels.Matern32(active_dims=[0]) * gpflow.kernels.Matern32(active_dims=[1])


def _with_prior(prior: str) -> Callable[[], Built]:
    parts = {
        "markov": ((TIMES, Y), gpflow.kernels.Matern32, gpx.likelihoods.BernoulliLogit),
        "vecchia": ((X, Y), gpflow.kernels.Matern32, gpx.likelihoods.BernoulliLogit),
        "grid": ((CELLS, COUNTS), _product, gpx.likelihoods.PoissonLog),
    }
    data, kernel, likelihood = parts[prior]
    return lambda: (gpx.models.GPLaplace(data, kernel(), likelihood(), prior=prior), None, ONE_START)


def _svgp(**options: Any) -> Callable[[], Built]:
    def build() -> Built:
        likelihood = gpflow.likelihoods.Bernoulli()
        model = gpflow.models.SVGP(problems.kernel(), likelihood, Z.copy(), num_data=len(X))
        return model, (X, Y), options

    return build


CASES: dict[str, Callable[[], Built]] = {
    **{name: _own(name) for name in builders.BUILD if name != "SGPMCFreeForm"},  # which is sampled
    **{f"GPLaplace, {prior}": _with_prior(prior) for prior in ("markov", "vecchia", "grid")},
    "GPR": lambda: (gpflow.models.GPR((X, Y), problems.kernel()), None, ONE_START),
    "SVGP": _svgp(**ONE_START),
    "SVGP, minibatches": _svgp(minibatch_size=8, recipe="svi_natural", steps=3, **ONE_START),
    "SVGP, dual": _svgp(minibatch_size=8, recipe="dual", steps=3),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fit_ends_where_it_does_by_the_defaults_of_a_cpu(name: str, monkeypatch) -> None:
    ends = []
    for accelerator in (False, True):
        for module in (linalg, loop, lbfgs_in_graph, site_recipe):
            monkeypatch.setattr(module, "has_accelerator", lambda: accelerator)  # noqa: B023
        model, data, options = CASES[name]()
        gpflow.set_trainable(model.likelihood, False)
        ends.append(gpx.fit(model, data, **options).objective[-1])
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-5)
