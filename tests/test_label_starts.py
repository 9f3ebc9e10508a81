"""Starts from labels on sets that are known: the bound is higher than at the prior."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest

import gpflow_ext as gpx

OPTIONS = {"mnist": {"standardise": "common"}, "image": {"drop": ["class7", "uci_test", "duplicate"]}}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_the_start_raises_the_bound(name: str) -> None:
    """All 2,310 rows of image, and as many of MNIST's."""
    try:
        (X, Y), _ = gpx.datasets.load(name, test_fraction=0.0, **OPTIONS[name])
    except ValueError as error:
        pytest.skip(f"needs its file in GPFLOW_EXT_DATA: {error}")
    X, Y = X[:2310], Y[:2310]
    kernel = gpflow.kernels.SquaredExponential(10.0, np.sqrt(X.shape[1]))
    points = gpx.inducing.subset(X, 100, seed=0)
    model = gpx.models.SVGPRobustMax(kernel, int(Y.max()) + 1, points, num_data=len(X), epsilon=0.02)
    prior = float(model.elbo((X, Y)))
    gpx.start_from_labels(model, (X, Y), seed=0)
    assert float(model.elbo((X, Y))) > prior
