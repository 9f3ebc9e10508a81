"""Inducing variables of another domain than the inputs: patches of images are trained and exported."""

from __future__ import annotations

from collections.abc import Callable

import gpflow
import numpy as np
import pytest

import gpflow_ext as gpx

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(30, 36))
Y = RNG.integers(0, 3, (30, 1)).astype(float)


def kernel() -> gpflow.kernels.Convolutional:
    return gpflow.kernels.Convolutional(gpflow.kernels.SquaredExponential(), [6, 6], [3, 3])


def patches() -> gpflow.inducing_variables.InducingPatches:
    return gpflow.inducing_variables.InducingPatches(np.random.default_rng(1).uniform(size=(5, 9)))


def robust_max() -> gpflow.models.SVGP:
    return gpx.models.SVGPRobustMax(kernel(), 3, patches(), num_data=30)


def svgp() -> gpflow.models.SVGP:
    return gpflow.models.SVGP(kernel(), gpflow.likelihoods.Gaussian(), patches(), num_data=30)


@pytest.mark.parametrize("build", [robust_max, svgp])
def test_a_model_of_patches_is_trained_and_exported(
    tmp_path, build: Callable[[], gpflow.models.SVGP]
) -> None:
    model = build()
    before = float(model.elbo((X, Y)))
    gpx.fit(model, (X, Y), steps=3, progress=False)
    assert model.elbo((X, Y)) > before
    gpx.export(model, tmp_path / "exported", example=X[:2])
    served = gpx.load_exported(tmp_path / "exported").predict_f(X[:4])
    mean, variance = model.predict_f(X[:4])
    np.testing.assert_allclose(served["mean"], mean, atol=1e-10)
    np.testing.assert_allclose(served["variance"], variance, atol=1e-10)


def test_the_width_of_the_inputs_is_asked_for(tmp_path) -> None:
    """Where the kernel does not know it, because it takes some columns of theirs alone."""
    model = svgp()
    model.kernel._active_dims = np.arange(36)
    with pytest.raises(ValueError, match="pass example="):
        gpx.export(model, tmp_path / "exported")


def test_a_sparse_site_model_of_patches_reaches_the_bound_of_gpflow() -> None:
    model = gpx.models.VGPKMM((X, Y), kernel(), gpflow.likelihoods.Gaussian(), inducing_variable=patches())
    gpflow.set_trainable(model, False)
    gpx.fit(model)
    reference = gpflow.models.SGPR((X, Y), kernel(), patches(), noise_variance=1.0)
    np.testing.assert_allclose(model.elbo(), reference.elbo(), rtol=1e-9)
