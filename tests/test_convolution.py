"""Convolutional kernels: GPflow's numbers and gradients, places of patches, sums of kernels, and a served model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.covariances import Kuf, Kuu
from gpflow.inducing_variables import InducingPatches
from gpflow.kernels import SquaredExponential

import gpflow_ext as gpx
from gpflow_ext.convolution import sums
from gpflow_ext.data import length_scales
from gpflow_ext.features.kernel import input_width
from gpflow_ext.training import scale
from gpflow_ext.training.starts import further_starts

IMAGE, PATCH = [5, 4], [3, 2]
RNG = np.random.default_rng(0)
Z = RNG.normal(size=[4, 6])
PLACES = RNG.uniform(0.0, 2.0, [4, 2])

QUANTITIES: dict[str, Callable[[Any, Any, Any, Any], tf.Tensor]] = {
    "Kuf": lambda kernel, points, X, X2: Kuf(points, kernel, X),
    "Kuu": lambda kernel, points, X, X2: Kuu(points, kernel, jitter=1e-6),
    "K": lambda kernel, points, X, X2: kernel(X),
    "cross": lambda kernel, points, X, X2: kernel(X, X2),
    "diagonal": lambda kernel, points, X, X2: kernel(X, full_cov=False),
}


def _images(number: int, channels: int = 1, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=[number, 20 * channels])


def _kernel(kind: Any, channels: int = 1, separate: bool = True) -> Any:
    rng = np.random.default_rng(2)
    lengthscales = rng.uniform(0.5, 2.0, 6) if separate else 0.8
    return kind(SquaredExponential(1.3, lengthscales), IMAGE, PATCH, rng.normal(size=9 * channels), channels)


def _with_gradients(function: Callable[[], tf.Tensor], sources: list[Any]) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        value = function()
        total = tf.reduce_sum(tf.sin(value + 0.3))
    return [value, *tape.gradient(total, sources, unconnected_gradients="zero")]


@pytest.mark.parametrize("elements", [1, 2**25])
@pytest.mark.parametrize(("channels", "separate"), [(1, True), (2, False)])
@pytest.mark.parametrize("name", QUANTITIES)
def test_numbers_and_gradients_are_gpflows(
    name: str, channels: int, separate: bool, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With blocks of one image, and all images in one."""
    monkeypatch.setattr(sums, "_ELEMENTS", elements)
    X, X2, points = (
        tf.Variable(_images(5, channels)),
        tf.constant(_images(3, channels, 3)),
        InducingPatches(Z),
    )
    found = []
    for kind in (gpx.kernels.Convolutional, gpflow.kernels.Convolutional):
        kernel = _kernel(kind, channels, separate)
        sources = [*kernel.trainable_variables, points.Z.unconstrained_variable, X]
        found.append(_with_gradients(lambda: QUANTITIES[name](kernel, points, X, X2), sources))  # noqa: B023
    (value, *gradients), (expected, *others) = found
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())
    for ours, gpflows in zip(gradients, others, strict=True):
        np.testing.assert_allclose(ours, gpflows, rtol=1e-10, atol=1e-13)


def _translation_insensitive() -> Any:
    rng = np.random.default_rng(2)
    base = SquaredExponential(1.3, rng.uniform(0.5, 2.0, 6))
    where = gpflow.kernels.Matern32(1.0, 2.0)
    return gpx.kernels.TranslationInsensitive(base, IMAGE, PATCH, rng.normal(size=9), location_kernel=where)


@pytest.mark.parametrize("elements", [1, 2**25])
def test_places_of_patches_enter_as_in_the_paper(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the double sums over all patches, gradients too."""
    monkeypatch.setattr(sums, "_ELEMENTS", elements)
    kernel, X = _translation_insensitive(), tf.Variable(_images(4))
    points = gpx.LocatedPatches(Z, PLACES)
    sources = [*kernel.trainable_variables, *points.trainable_variables, X]

    def plain(quantity: str) -> tf.Tensor:
        w, where, base = kernel.weights / 9.0, kernel.location_kernel, kernel.base_kernel
        patches = kernel.get_patches(X)
        if quantity == "Kuu":
            return base(points.Z) * where(points.locations) + 1e-6 * tf.eye(4, dtype=tf.float64)
        if quantity == "Kuf":
            seen = where(points.locations, kernel.locations)[:, None] * base(points.Z, patches)
            return tf.einsum("mnp,p->mn", seen, w)
        own = base(patches, patches) * where(kernel.locations)[None, :, None, :]  # [N, P, N, P]
        full = tf.einsum("npmq,p,q->nm", own, w, w)
        return full if quantity in ("K", "cross") else tf.linalg.diag_part(full)

    for name, function in QUANTITIES.items():
        ours = _with_gradients(lambda: function(kernel, points, X, X), sources)  # noqa: B023
        expected = _with_gradients(lambda: plain(name), sources)  # noqa: B023
        for one, other in zip(ours, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12, err_msg=name)


def test_all_patches_as_inducing_variables_leave_nothing() -> None:
    """Where u holds every patch of every image, f is known: K_ff = K_fu K_uu⁻¹ K_uf."""
    kernel, X = _kernel(gpx.kernels.Convolutional), tf.constant(_images(3))
    points = InducingPatches(tf.reshape(kernel.get_patches(X), [-1, 6]))
    cross = Kuf(points, kernel, X)
    explained = tf.matmul(cross, tf.linalg.solve(Kuu(points, kernel, jitter=1e-12), cross), transpose_a=True)
    np.testing.assert_allclose(explained, kernel(X), atol=1e-9)


def test_white_is_part_of_the_images_alone() -> None:
    kernel, X, points = _kernel(gpx.kernels.Convolutional), tf.constant(_images(3)), InducingPatches(Z)
    noisy = kernel + gpflow.kernels.White(0.5)
    np.testing.assert_array_equal(Kuf(points, noisy, X), Kuf(points, kernel, X))
    np.testing.assert_array_equal(Kuu(points, noisy), Kuu(points, kernel))
    np.testing.assert_allclose(noisy(X, full_cov=False), kernel(X, full_cov=False) + 0.5)
    with pytest.raises(ValueError, match="one convolutional part"):
        Kuf(points, kernel + kernel, X)

    def bound(kernel: Any) -> float:
        q_mu = np.random.default_rng(4).normal(size=[4, 1])
        model = gpflow.models.SVGP(kernel, gpflow.likelihoods.Bernoulli(), points, q_mu=q_mu)
        return float(model.elbo(_binary()))

    assert bound(kernel + gpflow.kernels.White(1e-300)) == pytest.approx(bound(kernel), rel=1e-10)
    assert abs(bound(noisy) - bound(kernel)) > 0.1


def test_no_images_have_no_covariances() -> None:
    kernel, none, points = _kernel(gpx.kernels.Convolutional), np.zeros((0, 20)), InducingPatches(Z)
    assert Kuf(points, kernel, none).shape == (4, 0)
    open_rows = tf.function(kernel.K_diag, input_signature=[tf.TensorSpec([None, 20], tf.float64)])
    assert open_rows(none).shape == kernel.K_diag(none).shape == (0,)


def test_float32_stays_float32() -> None:
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        kernel, points = _kernel(gpx.kernels.Convolutional), InducingPatches(Z.astype(np.float32))
    X = tf.constant(_images(3), tf.float32)
    for value in (
        Kuf(points, kernel, X),
        Kuu(points, kernel, jitter=1e-4),
        kernel(X),
        kernel(X, full_cov=False),
    ):
        assert value.dtype == tf.float32


def test_the_number_of_pixels_is_that_of_the_inputs() -> None:
    kernel = gpflow.kernels.Convolutional(SquaredExponential(), IMAGE, PATCH, colour_channels=3)
    model = gpflow.models.SVGP(kernel, gpflow.likelihoods.Bernoulli(), InducingPatches(Z))
    assert input_width(model) == 60
    model.kernel = gpflow.kernels.Convolutional(SquaredExponential(), IMAGE, PATCH)
    model.kernel.active_dims = np.arange(20)  # of more columns than these
    assert input_width(model) is None


@pytest.mark.parametrize(("dtype", "atol"), [(np.float64, 1e-10), (np.float32, 1e-6)])
def test_a_convolutional_model_is_served(dtype: Any, atol: float, tmp_path: Any) -> None:
    """The guide trains one."""
    with gpflow.config.as_context(gpflow.config.Config(float=dtype, jitter=1e-4)):
        kernel, points = _translation_insensitive(), gpx.LocatedPatches(Z.astype(dtype), PLACES.astype(dtype))
        q_mu = np.random.default_rng(4).normal(size=[4, 1])
        noisy = kernel + gpflow.kernels.White(1e-3)
        model = gpflow.models.SVGP(noisy, gpflow.likelihoods.Bernoulli(), points, q_mu=q_mu)
        X = _images(30).astype(dtype)
        gpx.export(model, tmp_path / "model", example=X[:3])
        served, (mean, var) = gpx.load_exported(tmp_path / "model").predict_f(X), model.predict_f(X)
    np.testing.assert_allclose(served["mean"], mean, atol=atol)
    np.testing.assert_allclose(served["variance"], var, atol=atol)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"SquaredExponential.*Matern32"):
        gpx.kernels.Convolutional(gpflow.kernels.Matern32(), IMAGE, PATCH)
    with pytest.raises(ValueError, match="do not fit"):
        gpx.kernels.Convolutional(SquaredExponential(), IMAGE, [6, 2])
    with pytest.raises(ValueError, match=r"\[N, 20\]"):
        _kernel(gpx.kernels.Convolutional).get_patches(np.zeros([2, 19]))
    with pytest.raises(ValueError, match="LocatedPatches"):
        Kuf(InducingPatches(Z), _translation_insensitive(), _images(2))
    with pytest.raises(ValueError, match=r"\[4, 2\]"):
        gpx.LocatedPatches(Z, PLACES[:3])


def _patches(columns: int = 6) -> InducingPatches:
    return InducingPatches(np.random.default_rng(5).normal(size=[4, columns]))


def _binary(columns: int = 20) -> tuple[np.ndarray, np.ndarray]:
    X = _images(30)[:, :columns]
    return X, (X[:, :1] > 0.0).astype(float)


def _sparse(points: Any, kernel: Any = None, columns: int = 20) -> Any:
    kernel = kernel or _kernel(gpx.kernels.Convolutional)
    return gpx.models.SparseEP(
        _binary(columns), kernel, gpx.likelihoods.BernoulliProbit(), inducing_variable=points
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: _sparse(_patches(5)),
            "InducingPatches do not fit the kernel Convolutional and inputs of 20",
        ),
        (lambda: _sparse(_patches(), columns=19), r"inputs of 19 columns: Images must be \[N, 20\]"),
        (lambda: _sparse(_patches(), SquaredExponential()), "kernel SquaredExponential"),
        (lambda: _sparse(_patches(), SquaredExponential() + gpflow.kernels.White()), "kernel Sum"),
        (lambda: _sparse(np.ones([4, 6]), SquaredExponential(active_dims=[0])), "points have 6 columns"),
        (lambda: _sparse(_images(4)[:, :19]), "points have 19 columns"),
        (lambda: _sparse(_patches(), _translation_insensitive()), "LocatedPatches"),
        (lambda: _sparse(gpx.InducingFeatures(np.ones([4, 6]))), "InducingFeatures do not fit"),
    ],
)
def test_inducing_variables_that_do_not_fit_are_refused_at_once(
    make: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("kind", [gpx.kernels.Convolutional, gpflow.kernels.Convolutional])
def test_patches_and_images_are_taken(kind: Any) -> None:
    noisy = _kernel(kind) + gpflow.kernels.White(0.1)
    for points in (_patches(), _images(4)):
        model = _sparse(points, noisy)
        model.settle_sites()
        assert np.isfinite(model.predict_f(_images(2))[1]).all()


def test_few_images_tell_whether_the_scale_suits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covariances of images are sums over all pairs of patches: after a fit they are taken between ten of them."""
    looked_at: list[int] = []

    def covariance(kernel: Any, X: tf.Tensor) -> tf.Tensor:
        looked_at.append(len(X))
        return kernel(X)

    monkeypatch.setattr(scale, "covariance", covariance)
    kernel, X = _kernel(gpx.kernels.Convolutional, 1, True) + gpflow.kernels.White(0.1), _images(60)
    model = gpx.models.SVGPRobustMax(kernel, 2, InducingPatches(Z), num_data=60)
    assert scale.scale_failure(model, (X, np.zeros([60, 1]))) is None
    assert looked_at == [10]


def test_patches_have_no_length_scales_of_the_inputs() -> None:
    smooth = SquaredExponential(lengthscales=np.ones(20))
    kernel = _kernel(gpx.kernels.Convolutional) + gpflow.kernels.Linear() * smooth + smooth
    assert list(length_scales.stationary(kernel)) == [smooth]
    model = _sparse(_patches())
    assert further_starts(model, 2, 0, model.data[0].numpy())[0].name == "random 1"


def _models() -> dict[str, tuple[Any, Callable[..., Any]]]:
    """Return functions that build a model, and that train it for a number of steps."""
    data, logit = _binary(), gpx.likelihoods.BernoulliLogit
    noisy = lambda: _kernel(gpx.kernels.Convolutional) + gpflow.kernels.White(0.1)  # noqa: E731

    def sites(model: Any, steps: int, **options: Any) -> None:
        gpx.fit(model, steps=steps, starts=1, progress=False, **options)

    def minibatches(model: Any, steps: int, **options: Any) -> None:
        gpx.fit(model, data, steps=steps, minibatch_size=10, progress=False, **options)

    def chain(model: Any, steps: int) -> None:
        gpflow.set_trainable(model.kernel, False)
        gpx.sample(model, steps, num_chains=1, seed=0, tuner="dual_averaging", progress=False)

    def held(kind: Any) -> Callable[[], Any]:
        return lambda: kind(data, noisy(), logit(), inducing_variable=_patches())

    found: dict[str, tuple[Any, Callable[..., Any]]] = {
        name: (held(getattr(gpx.models, name)), sites) for name in ("SparseEP", "VGPKMM", "GPLaplace")
    }
    classifier = lambda: gpx.models.SVGPRobustMax(noisy(), 2, _patches(), num_data=30)  # noqa: E731
    return {
        **found,
        "SVGPRobustMax": (classifier, minibatches),
        "SGPMCFreeForm": (held(gpx.models.SGPMCFreeForm), chain),
    }


MODELS = "SVGPRobustMax", "SparseEP", "VGPKMM", "GPLaplace"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gpflow_ext.sampling.draws.ConvergenceWarning")
@pytest.mark.parametrize("name", [*MODELS, "SGPMCFreeForm"])
def test_every_model_trains_on_patches_and_is_served(name: str, tmp_path: Any) -> None:
    build, train = _models()[name]
    model = build()
    train(model, 4)
    X = _images(5, seed=6)
    mean, var = model.posterior().predict_f(X)
    assert np.isfinite(mean).all()
    gpx.export(model, tmp_path / "model")
    served = gpx.load_exported(tmp_path / "model")
    latent = served.predict_f(X)
    np.testing.assert_allclose(latent["mean"], mean, atol=1e-10)
    np.testing.assert_allclose(latent["variance"], var, atol=1e-10)
    of_last_class = served.predict(X)["probabilities"][:, -1]
    np.testing.assert_allclose(of_last_class, model.predict_y(X)[0][:, -1], atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_training_on_patches_resumes_bit_for_bit(name: str, tmp_path: Any) -> None:
    found, (build, train) = [], _models()[name]
    for stops in ((4,), (2, 4)):
        for steps in stops:
            model = build()
            train(model, steps, checkpoint_every=2, checkpoint_dir=tmp_path / str(len(stops)))
        found.append(gpflow.utilities.parameter_dict(model))
    for path, one in found[0].items():
        np.testing.assert_array_equal(one, found[1][path], err_msg=path)
