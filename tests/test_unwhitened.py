"""GPflow's unwhitened `SVGP` on all data: the optimum is that of the whitened model."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest

import gpflow_ext as gpx

RNG = np.random.default_rng(1)
X = RNG.uniform(-3.0, 3.0, (50, 2))
F = np.sin(1.5 * X[:, :1]) + 0.5 * X[:, 1:] + 0.2 * RNG.standard_normal((50, 1))
DATA = X, np.digitize(F, [-0.7, 0.7]).astype(float)


def build(whiten: bool = False) -> gpflow.models.SVGP:
    kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.MultiClass(3)
    model = gpflow.models.SVGP(kernel, likelihood, X[:8].copy(), num_latent_gps=3, whiten=whiten)
    gpflow.set_trainable(model.inducing_variable, False)
    return model


@pytest.fixture(scope="module", name="trained")
def _trained() -> tuple[gpflow.models.SVGP, gpx.FitResult]:
    model = build()
    return model, gpx.fit(model, DATA, progress=False)


def test_it_ends_where_the_whitened_model_does(trained):
    """Sites of positive precision alone led to a bound of -154 here, without a warning."""
    model, result = trained
    whitened = build(whiten=True)
    best = gpx.fit(whitened, DATA, progress=False).objective[-1]
    assert result.status is gpx.Status.CONVERGED
    assert result.objective[-1] == pytest.approx(best, abs=0.01)
    assert float(model.elbo(DATA)) == pytest.approx(result.objective[-1], abs=1e-8)
    for ours, theirs in zip(model.predict_y(X), whitened.predict_y(X), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.02)


@pytest.mark.slow
def test_a_second_fit_goes_on_from_the_first(trained):
    model, result = trained
    again = gpflow.utilities.deepcopy(model)
    gpflow.set_trainable(again.kernel, False)
    held = gpx.fit(again, DATA, progress=False)
    assert held.objective[0] == pytest.approx(result.objective[-1], abs=1e-6)
    np.testing.assert_allclose(again.q_mu, model.q_mu, rtol=1e-2, atol=1e-2)


def test_a_run_resumes_exactly(trained, tmp_path):
    options = {"checkpoint_dir": tmp_path, "checkpoint_every": 1, "progress": False}
    gpx.fit(build(), DATA, steps=1, **options)
    resumed = build()
    result = gpx.fit(resumed, DATA, **options)
    assert (result.first_step, result.objective[-1]) == (1, trained[1].objective[-1])
    for new, old in zip(resumed.variables, trained[0].variables, strict=True):
        np.testing.assert_array_equal(new.numpy(), old.numpy())


def _binary(whiten: bool) -> gpflow.models.SVGP:
    """K_uu has a condition number of 1,000."""
    kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli()
    model = gpflow.models.SVGP(kernel, likelihood, X[:25].copy(), whiten=whiten, num_data=len(X))
    gpflow.set_trainable(model.inducing_variable, False)
    return model


@pytest.mark.parametrize(
    ("options", "close"),
    [
        pytest.param({"minibatch_size": 20, "steps": 400}, 2.0, marks=pytest.mark.slow),
        ({"recipe": "svi_lbfgsb"}, 0.01),
    ],
)
def test_other_steps_end_near_the_optimum(options, close):
    """Steps in q(u) itself ended 7 and 12 nats below it, the latter with a kernel of variance zero."""
    data = X, (F > 0.0).astype(float)
    best = float(gpx.fit(_binary(whiten=True), data, progress=False).objective[-1])
    model = _binary(whiten=False)
    gpx.fit(model, data, progress=False, **options)
    assert best - close < float(model.elbo(data)) < best + 0.01


def test_minibatches_resume_exactly(tmp_path):
    data = X, (F > 0.0).astype(float)
    options = {"minibatch_size": 20, "progress": False}
    whole, resumed = _binary(whiten=False), _binary(whiten=False)
    gpx.fit(whole, data, steps=6, **options)
    gpx.fit(_binary(whiten=False), data, steps=4, checkpoint_dir=tmp_path, **options)
    assert gpx.fit(resumed, data, steps=6, checkpoint_dir=tmp_path, **options).first_step == 4
    for new, old in zip(resumed.variables, whole.variables, strict=True):
        np.testing.assert_array_equal(new.numpy(), old.numpy())
