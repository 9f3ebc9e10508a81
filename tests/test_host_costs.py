"""What a fit does outside of compiled functions: it looks at small numbers in NumPy, and moves no sites in vain."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.kernels import Matern32, SquaredExponential

import gpflow_ext as gpx
from gpflow_ext.data import on_host
from gpflow_ext.data.parts import parts
from gpflow_ext.models import GPLaplace
from gpflow_ext.sites.vecchia import residual

N = 30
X = problems.inputs(N)


def model() -> GPLaplace:
    Y = (problems.latent(X, 1.0, 1.2, seed=3) > 0.0).astype(float)[:, None]
    return GPLaplace((X, Y), SquaredExponential(), gpx.likelihoods.BernoulliLogit())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_of_parameters_are_those_of_gpflow(dtype: Any) -> None:
    values = np.array([0.2, 1.0, 50.0], dtype)
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        positive = gpflow.utilities.positive
        for transform in (None, positive(), positive(lower=0.1), tfp.bijectors.Exp()):
            parameter = gpflow.Parameter(values, transform=transform)
            found = on_host.value(parameter)
            assert found.dtype == dtype
            np.testing.assert_allclose(found, parameter.numpy(), rtol=4.0 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(on_host.value(tf.constant(values)), values)


@pytest.mark.parametrize("dims", [None, [2, 0], slice(1, 3)])
def test_columns_are_those_that_a_kernel_reads(dims: Any) -> None:
    inputs = np.arange(12.0).reshape(4, 3)
    kernel = Matern32(active_dims=dims)
    np.testing.assert_array_equal(on_host.columns(kernel, inputs), kernel.slice(inputs, None)[0])


def test_columns_of_a_kernel_that_slices_by_itself_are_its_own() -> None:
    class Last(Matern32):
        def slice(self, X: Any, X2: Any = None) -> Any:
            return X[..., -1:], None if X2 is None else X2[..., -1:]

    np.testing.assert_array_equal(on_host.columns(Last(), np.eye(3)), np.eye(3)[:, 2:])


def test_parts_are_those_of_the_lists_of_tensorflow() -> None:
    kernel = SquaredExponential() + Matern32() * SquaredExponential()
    for kind in (tf.Variable, gpflow.Parameter, gpflow.kernels.Stationary, tf.Module):
        expected = {id(part) for part in (*kernel.variables, *kernel.submodules) if isinstance(part, kind)}
        found = parts(kernel, kind)
        assert {id(part) for part in found} == expected
        assert len(found) == len(expected) > 0


def test_a_fit_transforms_no_parameter_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    gpx.fit(model(), progress=False)
    second, called = model(), []
    for name in ("forward", "inverse"):
        own = getattr(tfp.bijectors.Bijector, name)
        monkeypatch.setattr(
            tfp.bijectors.Bijector, name, lambda *given, own=own: called.append(1) or own(*given)
        )
    gpx.fit(second, progress=False)
    assert not called


def test_sites_are_put_back_after_a_trial_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each evaluation begins at the sites of the iterate, where the last one has left them if that was accepted."""
    ours, put_back, evaluated = model(), [], []
    own, evaluate = GPLaplace.assign_sites, gpx.training.site_iteration.SiteOptimum.evaluate
    eager = tf.executing_eagerly

    def assigned(self: Any, new: Any) -> None:
        if eager():
            put_back.append(1)
        own(self, new)

    monkeypatch.setattr(GPLaplace, "assign_sites", assigned)
    monkeypatch.setattr(
        gpx.training.site_iteration.SiteOptimum,
        "evaluate",
        lambda *given: evaluated.append(1) or evaluate(*given),
    )
    gpx.fit(ours, progress=False)
    assert len(put_back) < len(evaluated) / 2


def test_without_neighbours_no_correlation_is_computed() -> None:
    none = np.zeros((N, 0), int)
    found = residual.closest(None, X[:3], X, none, 0)  # type: ignore[arg-type]
    assert found.shape == (N, 0)
