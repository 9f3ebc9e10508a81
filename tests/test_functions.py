"""Functions drawn from posteriors: their moments, that they are functions, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from drawn_kernels import KERNELS
from gpflow import kernels as gk
from moments import excess

import gpflow_ext as gpx
from gpflow_ext.functions import frequencies
from gpflow_ext.functions.features import features_of, white_variance
from gpflow_ext.functions.randomness import Numbers

RNG = np.random.default_rng(0)
X = RNG.uniform(-3.0, 3.0, [40, 2])
F = np.sin(2.0 * X[:, :1]) + X[:, 1:]
Y = (RNG.uniform(size=F.shape) < 1.0 / (1.0 + np.exp(-2.0 * F))).astype(float)
COUNTS = RNG.poisson(1.0, [40, 2]).astype(float)
Z = X[:5].copy()
AT = np.concatenate([Z + 0.1, RNG.uniform(-5.0, 5.0, [7, 2])])  # near the points, where α rules, and far off

EXACT = "Linear", "Polynomial", "Cosine", "cosines"


@pytest.mark.parametrize("name", KERNELS)
def test_the_products_of_features_are_the_kernel(name: str) -> None:
    """Over 2¹⁴ features with an error of √(2/F) = 0.011 of the variance at most in each entry: 4.5 of these."""
    kernel = KERNELS[name]()
    at = tf.constant(AT[:, :1] if name == "ChangePoints" else np.abs(AT) if name == "Coregion" else AT)
    features = features_of(kernel)
    phi = features.at(features.draw(Numbers(1, 0, tf.float64), 2**14, at.shape[1]), at)
    expected = kernel(at) - white_variance(kernel) * tf.eye(len(AT), dtype=tf.float64)
    error = tf.abs(tf.matmul(phi, phi, transpose_b=True) - expected)
    variance = tf.sqrt(tf.linalg.diag_part(expected))
    scale = variance[:, None] * variance[None, :]
    heavy = 3.0 if name == "ArcCosine2" else 1.0  # fourth powers of normal variates
    bound = 1e-12 if name in EXACT else 0.05 * heavy
    assert float(tf.reduce_max(error / scale)) < bound


def _kernel(white: float = 0.1) -> gk.Kernel:
    return gk.SquaredExponential(2.0, [0.8, 1.5]) + gk.White(white)


def _several() -> gk.Kernel:
    W = np.array([[1.0, 0.5], [-0.3, 1.0]])
    return gk.LinearCoregionalization([_kernel(), gk.Matern32(1.0, 2.0)], W=W)


def _drawn() -> Any:
    rng = np.random.default_rng(1)
    model = gpx.models.SGPMCFreeForm(
        (X, Y), gk.SquaredExponential(2.0, [0.8, 1.5]), gpx.likelihoods.BernoulliLogit(), inducing_variable=Z
    )
    model.draw_names = ("V", "kernel.variance", "kernel.lengthscales")
    values = rng.normal(size=[4, 5, 1]), rng.uniform(0.5, 2.0, [4]), rng.uniform(0.5, 2.0, [4, 2])
    model.draw_values = [tf.Variable(value) for value in values]
    return model


def _q(latents: int) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    return {"q_mu": rng.normal(size=[5, latents]), "q_sqrt": 0.3 * np.tril(rng.normal(size=[latents, 5, 5]))}


logit, probit = gpx.likelihoods.BernoulliLogit, gpx.likelihoods.BernoulliProbit
MODELS: dict[str, Callable[[], Any]] = {
    "dense": lambda: gpx.models.VGPKMM(
        (X, Y), _kernel(1.0), logit(), gpflow.functions.Linear(0.3 * np.ones([2, 1]))
    ),
    "Laplace": lambda: gpx.models.GPLaplace((X, Y), gk.SquaredExponential() + gk.Linear(0.3), logit()),
    "SparseEP": lambda: gpx.models.SparseEP((X, Y), _kernel(), probit(), inducing_variable=Z),
    "mixed dense": lambda: gpx.models.VGPKMM((X, COUNTS), _several(), gpflow.likelihoods.Poisson()),
    "mixed sparse": lambda: gpx.models.VGPKMM(
        (X, COUNTS), _several(), gpflow.likelihoods.Poisson(), inducing_variable=Z
    ),
    "SVGPRobustMax": lambda: gpx.models.SVGPRobustMax(_kernel(), 3, Z, num_data=40, **_q(3)),
    "free form": _drawn,
    "GPR": lambda: gpflow.models.GPR((X, F), _kernel(), noise_variance=0.1),
    "SGPR": lambda: gpflow.models.SGPR((X, F), _kernel(), Z, noise_variance=0.1),
    "VGP": lambda: gpflow.models.VGP((X, Y), _kernel(), gpflow.likelihoods.Bernoulli()),
    "SVGP": lambda: gpflow.models.SVGP(_kernel(), gpflow.likelihoods.Bernoulli(), Z, whiten=False, **_q(1)),
    "SGPMC": lambda: gpflow.models.SGPMC(
        (X, Y), _kernel(), gpflow.likelihoods.Bernoulli(), inducing_variable=Z
    ),
}
WHITE = {
    "dense": [1.0],
    "mixed dense": [0.1, 0.009],
    "mixed sparse": [0.1, 0.009],
    "Laplace": [0.0],
    "free form": [0.0],
}


@pytest.fixture(scope="module", params=MODELS)
def named(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """Each model, its sites at their fixed point."""
    model = MODELS[request.param]()
    if hasattr(model, "settle_sites"):
        model.settle_sites()
    return request.param, model


def test_moments_are_those_of_the_posterior(named: tuple[str, Any]) -> None:
    """Of 4,000 draws. Those of a free form are of a mixture, and have no groups of features."""
    name, model = named
    mean, cov = (part.numpy() for part in model.predict_f(tf.constant(AT), full_cov=True))
    draws = gpx.sample_functions(model, 4000, 3, num_features=256, groups=20)(AT).numpy()
    for latent in range(mean.shape[1]):
        white = WHITE.get(name, [0.1] * 3)[latent]
        own = cov[latent] - white * np.eye(len(AT))
        options = {"groups": 4000, "heavy": 1.5} if name == "free form" else {}
        assert excess(draws[:, :, latent], mean[:, latent], own, **options) < 1.0


def test_draws_of_q_have_its_covariance() -> None:
    model = MODELS["SparseEP"]()
    model.settle_sites()
    posterior, (_, q) = model.posterior(), model.condition()
    root = posterior._spread(posterior.cache[2], tf.eye(5, dtype=tf.float64)[None])
    np.testing.assert_allclose(tf.matmul(root, root, transpose_b=True), q.covariance(), atol=1e-12)


def test_they_are_functions(named: tuple[str, Any]) -> None:
    _, model = named
    draws = gpx.sample_functions(model, 4, 7, num_features=128)
    values = draws(AT)
    assert values.shape == (4, 12, model.predict_f(AT)[0].shape[1])
    np.testing.assert_allclose(draws(AT[3:4]).numpy()[:, 0], values.numpy()[:, 3], atol=1e-12)
    again = gpx.sample_functions(model, 4, 7, num_features=128)
    np.testing.assert_array_equal(again(AT).numpy(), values.numpy())
    assert (
        np.abs(gpx.sample_functions(model, 4, 8, num_features=128)(AT).numpy() - values.numpy()).max() > 0.1
    )


@pytest.fixture(scope="module")
def dense() -> Any:
    model = MODELS["dense"]()
    model.settle_sites()
    return model


def test_many_inputs_go_by_blocks(dense: Any) -> None:
    draws = gpx.sample_functions(dense, 2, 0, num_features=8)
    many = np.random.default_rng(3).uniform(-3.0, 3.0, [9000, 2])
    values = draws(many).numpy()
    np.testing.assert_allclose(values[:, 8990:], draws(many[8990:]).numpy(), atol=1e-12)
    np.testing.assert_array_equal(draws.numpy(many), values)
    np.testing.assert_allclose(tf.function(draws)(tf.constant(many)), values, atol=1e-12)
    single = gpx.sample_functions(dense, 2, 0, num_features=8, dtype=tf.float32)(many)
    assert single.dtype == tf.float32
    np.testing.assert_allclose(single, values, atol=2e-3)


def test_gradients_in_x(dense: Any) -> None:
    draws, at, step = gpx.sample_functions(dense, 3, 0, num_features=64), tf.constant(AT), 1e-5
    with tf.GradientTape() as tape:
        tape.watch(at)
        value = tf.reduce_sum(draws(at)[1])
    found = tape.gradient(value, at).numpy()
    for d in range(2):
        ahead, behind = (draws(AT + sign * step * np.eye(2)[d]).numpy()[1, :, 0] for sign in (1.0, -1.0))
        np.testing.assert_allclose(found[:, d], (ahead - behind) / (2.0 * step), atol=1e-6)


def test_single_precision_far_from_zero() -> None:
    """Inputs such as years: phases of the features alone are then off, by 2000 ε ω."""
    at = np.linspace(2000.0, 2010.0, 50)[:, None]
    model = gpflow.models.GPR(
        (at[::2], np.sin(at[::2])), gk.SquaredExponential(1.0, 0.7), noise_variance=1e-3
    )
    double, single = (gpx.sample_functions(model, 5, 1, dtype=dtype)(at) for dtype in (None, tf.float32))
    np.testing.assert_allclose(single, double, atol=0.03)


def test_a_draw_stays_when_the_model_moves_on() -> None:
    model = gpflow.models.GPR((X, F), _kernel())
    draws = gpx.sample_functions(model, 2, 0, num_features=16)
    before = draws(AT).numpy()
    model.kernel.kernels[0].variance.assign(0.3)
    np.testing.assert_array_equal(draws(AT).numpy(), before)


@pytest.mark.parametrize("name", ["dense", "SVGP"])
def test_exported_functions_are_the_live_ones(name: str, tmp_path: Any) -> None:
    model = MODELS[name]()
    gpx.export(model, tmp_path / "model", num_samples=5)
    served = gpx.load_exported(tmp_path / "model")
    live = gpx.sample_functions(model, 5, 11)
    np.testing.assert_allclose(served.sample(AT, 11), live(AT), atol=1e-10)
    many = np.random.default_rng(4).uniform(-3.0, 3.0, [4500, 2])
    np.testing.assert_allclose(served.sample(many, 11)[:, 4400:], live(many[4400:]), atol=1e-10)
    assert np.isnan(served.sample(np.array([[np.nan, 0.0], [0.0, 0.0]]), 1)[:, 0]).all()
    for seed in (1.5, 2**31):
        with pytest.raises(ValueError, match="`seed` must be"):
            served.sample(AT, seed)


def test_an_export_without_functions_says_so() -> None:
    folder = Path(__file__).parent.parent / "saved_models" / "sonar_gp_taylor"
    with pytest.raises(ValueError, match="num_samples="):
        gpx.load_exported(folder, verify=False).sample(AT, 0)


class _Mine(gk.SquaredExponential):
    """A user's kernel, whose subclassing says nothing of its spectral density."""


def test_what_has_no_features_is_refused_by_name() -> None:
    for kernel, name in (
        (_Mine(), "_Mine"),
        (gk.White() * gk.Matern12(), "White"),
        (gk.ArcCosine() * gk.Matern12(), "ArcCosine and Matern12"),
        (gk.Polynomial(2.5), "Polynomial"),
        (gk.Periodic(gk.Matern12()), "Matern12"),
        (gk.Convolutional(gk.SquaredExponential(), [2, 1], [1, 1]), "Convolutional"),
    ):
        model = gpflow.models.GPR((X, F), kernel)
        with pytest.raises(NotImplementedError, match=f"{name}.*predict_f_samples"):
            gpx.sample_functions(model, 2, 0)


def test_other_inducing_variables_are_refused() -> None:
    scales = gpflow.inducing_variables.Multiscale(Z, 0.1 * np.ones_like(Z))
    model = gpflow.models.SVGP(gk.SquaredExponential(), gpflow.likelihoods.Bernoulli(), scales)
    with pytest.raises(NotImplementedError, match="InducingPoints; Multiscale"):
        gpx.sample_functions(model, 2, 0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_samples": 0}, "num_samples"),
        ({"num_features": 7}, "even"),
        ({"groups": 3}, "multiple of groups"),
    ],
)
def test_options_are_checked(options: dict[str, Any], match: str, dense: Any) -> None:
    with pytest.raises(ValueError, match=match):
        gpx.sample_functions(dense, **{"num_samples": 4, "seed": 0, **options})
    with pytest.raises(ValueError, match=r"\[N, 2\]"):
        gpx.sample_functions(dense, 2, 0, num_features=2)(AT[:, :1])


def test_a_kernel_of_ones_own_is_registered() -> None:
    frequencies.register(_Mine)(frequencies.FREQUENCIES[gk.SquaredExponential])
    try:
        assert gpx.sample_functions(gpflow.models.GPR((X, F), _Mine()), 2, 0)(AT).shape == (2, 12, 1)
    finally:
        del frequencies.FREQUENCIES[_Mine]


@pytest.mark.parametrize("seed", [1.5, "1", None, np.nan, 2**31, 2**40])
def test_seeds_that_another_number_would_stand_for_are_refused(seed: Any) -> None:
    model = gpflow.models.GPR((X[:5], F[:5]), gk.SquaredExponential())
    with pytest.raises(ValueError, match="`seed` must be"):
        gpx.sample_functions(model, 2, seed)
