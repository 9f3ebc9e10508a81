"""The Kronecker structure on grids equals the dense computation; counts on grids."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import kernels
from marks import others_slow
from placing import placed

import gpflow_ext as gpx
from gpflow_ext.likelihoods import RobustMax
from gpflow_ext.models import SGPMCFreeForm
from gpflow_ext.numerics import grids, linalg, stacked
from gpflow_ext.sampling.coordinates.sites import ConditionalSites
from gpflow_ext.sampling.density import FreeFormDensity
from gpflow_ext.sampling.target import Target

X = grids.grid(np.linspace(0.0, 4.0, 6), np.linspace(0.0, 3.0, 5))
Z = grids.grid(np.linspace(0.2, 3.9, 4), np.linspace(0.1, 2.8, 3))
Y = np.random.default_rng(0).poisson(2.0, (len(X), 1)).astype(float)
KERNELS = {
    "isotropic": lambda: kernels.SquaredExponential(lengthscales=0.8),
    "one length scale each": lambda: kernels.SquaredExponential(lengthscales=[0.8, 0.6]),
    "product": lambda: (
        kernels.Matern32(active_dims=[0]) * kernels.Matern12(lengthscales=0.7, active_dims=[1])
    ),
}


def model_of(kernel: gpflow.kernels.Kernel, Z: np.ndarray = Z, X: np.ndarray = X) -> SGPMCFreeForm:
    for parameter in kernel.trainable_parameters:
        parameter.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(2.0))
    return SGPMCFreeForm((X, Y), kernel, gpflow.likelihoods.Poisson(binsize=0.5), inducing_variable=Z)


def value_and_gradient(target: Target, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = target(x)
    return value, tape.gradient(value, x)


@pytest.mark.parametrize("name", KERNELS)
def test_the_density_is_that_of_the_dense_model(name: str) -> None:
    """And of GPflow's SGPMC, whose jitter is on K_uu, with little jitter on either."""
    with gpflow.config.as_context(gpflow.config.Config(jitter=1e-12)):
        model = model_of(KERNELS[name]())
        assert model.structure is not None
        target = Target(model, model.density.log_likelihoods)
        x = 0.3 * tf.constant(np.random.default_rng(1).standard_normal((3, target.num_dimensions)))
        ours = value_and_gradient(target, x)
        dense = Target(
            model,
            lambda stack: model.density.expected(
                stack, model.density.project(stack, model.data[0]), stack[model.V]
            ),
        )
        for a, b in zip(ours, value_and_gradient(dense, x), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-8)
        stack = target.values(x)
        for c in target.coordinates:
            c.parameter.assign(stack[c.parameter][0])
        theirs = gpflow.models.SGPMC(
            (X, Y), model.kernel, model.likelihood, num_latent_gps=1, inducing_variable=Z.copy()
        )
        theirs.V.assign(model.V)
        np.testing.assert_allclose(
            model.density.log_likelihoods(stack)[0], theirs.log_likelihood_lower_bound(), rtol=0, atol=1e-8
        )


def test_the_gram_matrix_has_the_jitter_of_its_factors() -> None:
    model = model_of(KERNELS["one length scale each"]())
    axes, jitter = grids.axes_of(Z), gpflow.default_jitter()
    parts = [
        np.exp(-0.5 * np.subtract.outer(axis, axis) ** 2 / length**2) + jitter * np.eye(len(axis))
        for axis, length in zip(axes, (0.8, 0.6), strict=True)
    ]
    np.testing.assert_allclose(model.density.gram(grids.Stack([]))[0], np.kron(*parts), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", others_slow(KERNELS, "one length scale each"))
def test_the_gaussian_approximation_is_that_of_the_dense_model(name: str) -> None:
    with gpflow.config.as_context(gpflow.config.Config(jitter=1e-10)):
        model = model_of(KERNELS[name]())
        S = np.tril(np.random.default_rng(2).standard_normal((2, len(Z), len(Z))))
        now = grids.Stack([])
        dense = model.density.project(now, tf.constant(X))
        np.testing.assert_allclose(
            model.density.projection(now).spread(tf.constant(S)), dense.spread(tf.constant(S)), rtol=1e-9
        )
        rng = np.random.default_rng(3)
        rho, prec = (
            tf.constant(rng.standard_normal((1, len(X), 2))),
            tf.constant(rng.uniform(size=(2, len(X)))),
        )
        A = model.density.projection(now)
        np.testing.assert_allclose(A.pull(rho), dense.pull(rho), rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(A.weighted(prec), dense.weighted(prec), rtol=1e-8, atol=1e-9)
        cube = np.einsum("pmk,mn->pkn", S, dense.A[0])
        np.testing.assert_allclose(dense.spread(tf.constant(S)), (cube**2).sum(1).T, rtol=1e-12)
        bound = gpx.gaussian_approximation(model, steps=40).objective[-1]
        svgp = gpflow.models.SVGP(
            model.kernel, model.likelihood, Z.copy(), q_mu=model.q_mu, q_sqrt=model.q_sqrt
        )
        np.testing.assert_allclose(bound, svgp.elbo((X, Y)) + svgp.log_prior_density(), rtol=1e-7)


def test_the_points_of_a_grid_are_not_freed() -> None:
    """They seemed to be, but the bound, of the grid as it was, did not follow them."""
    with pytest.raises(ValueError, match="`free_inducing` would move the inducing points off the grid"):
        gpx.gaussian_approximation(model_of(KERNELS["isotropic"]()), steps=2, free_inducing=True)


def test_the_conditional_density_is_that_of_the_dense_model() -> None:
    with gpflow.config.as_context(gpflow.config.Config(jitter=1e-12)):
        model = model_of(KERNELS["one length scale each"]())
        gpx.gaussian_approximation(model, steps=10)
        target = Target(model, ConditionalSites(model.density).log_likelihoods)
        x = 0.3 * tf.constant(np.random.default_rng(1).standard_normal((3, target.num_dimensions)))
        ours = value_and_gradient(target, x)
        model._structure = None
        for a, b in zip(ours, value_and_gradient(target, x), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-7)


def rescaled(P: int) -> tuple[SGPMCFreeForm, Target]:
    kernel = KERNELS["one length scale each"]()
    for parameter in kernel.trainable_parameters:
        parameter.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(2.0))
    mean = gpflow.functions.Constant(0.3)
    mean.c.prior = tfp.distributions.Normal(np.float64(0.0), np.float64(1.0))
    if P == 1:
        data, likelihood = (X, Y), gpflow.likelihoods.Poisson(binsize=0.5)
    else:
        data, likelihood = (X, np.minimum(Y, P - 1.0)), RobustMax(P, 1e-2)
    model = SGPMCFreeForm(data, kernel, likelihood, mean, inducing_variable=Z)
    gpx.gaussian_approximation(model, steps=60)
    return model, placed(model, "rescaled")[0]


@pytest.mark.parametrize("P", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_rescaled_coordinates_are_a_change_of_variables(P: int) -> None:
    """log π(z, θ) − log π(v(z, θ), θ) = log |∂v/∂z| but for a constant; and the gradient is that of the value."""
    model, here = rescaled(P)
    plain = Target(model, model.density.log_likelihoods)
    z = 0.7 * tf.constant(np.random.default_rng(0).standard_normal((3, here.num_dimensions)))
    with tf.GradientTape() as tape:
        tape.watch(z)
        v = tf.reshape(here.values(here.position(z))[model.V], [len(z), -1])
    jacobian = tape.batch_jacobian(v, z)[:, :, : v.shape[1]]
    x = tf.concat([v, here.position(z)[:, v.shape[1] :]], axis=1)
    gap = here(z) - plain(x) - tf.linalg.slogdet(jacobian)[1]
    np.testing.assert_allclose(gap, np.full(len(z), gap[0]), rtol=0, atol=1e-8)
    value, gradient = value_and_gradient(here, z)
    assert np.ptp(value) > 1.0
    for direction in np.random.default_rng(1).standard_normal((3, *z.shape)):
        ends = [here(z + sign * 1e-5 * direction) for sign in (1.0, -1.0)]
        numeric = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose((gradient * direction).numpy().sum(1), numeric, rtol=1e-6, atol=1e-6)


def test_rescaled_coordinates_start_as_the_gaussian_approximation_and_follow_it() -> None:
    """At θ they are those of q(v); away from it z stays nearly a standard normal, which v does not."""
    model, here = rescaled(1)
    M = len(Z)
    z = tf.constant(np.random.default_rng(0).standard_normal((2, here.num_dimensions)))
    first = tf.concat([z[:, :M], tf.zeros_like(z[:, M:])], axis=1)
    expected = model.q_mu + tf.matmul(model.q_sqrt[0], tf.transpose(z[:, :M]))
    v = here.values(here.position(first))[model.V][:, :, 0]
    np.testing.assert_allclose(v, tf.transpose(expected), rtol=0, atol=2e-4)  # where L-BFGS ends r ≠ 0

    away = tf.concat([tf.zeros([1, M], tf.float64), tf.constant([[2.0, 2.0, 2.0, 2.0]], tf.float64)], axis=1)

    def map_at(precondition: str) -> tuple[np.ndarray, np.ndarray]:
        """v at z = 0 and ∂v/∂z, where length scales, variance and mean have moved by a half."""
        target = placed(model, precondition)[0]
        with tf.GradientTape() as tape:
            tape.watch(away)
            v = target.values(target.position(away))[model.V][:, :, 0]
        return v[0].numpy(), tape.batch_jacobian(v, away)[0, :, :M].numpy()

    exact, root = map_at("conditional")  # the mean, and R⁻ᵀ

    def deviations(precondition: str) -> tuple[float, float]:
        """How far the mean is off, and the largest |log| of a standard deviation of z."""
        mean, jacobian = map_at(precondition)
        whitened = np.linalg.solve(root, jacobian)
        logs = np.log(np.linalg.svd(whitened, compute_uv=False))
        return np.linalg.norm(np.linalg.solve(root, mean - exact)), np.abs(logs).max()

    ours, vb = deviations("rescaled"), deviations("vb")
    assert ours[0] < 0.4 * vb[0]
    assert ours[1] < 0.2 * vb[1]


def test_what_has_no_structure() -> None:
    iso = kernels.SquaredExponential()
    shuffled = np.random.default_rng(0).permutation(X)
    assert grids.structure(iso, Z, X) is not None
    assert grids.structure(iso, Z, shuffled) is None
    assert grids.structure(iso, Z[:-1], X) is None
    assert grids.structure(kernels.Matern32(), Z, X) is None
    assert grids.structure(iso + kernels.White(), Z, X) is None
    assert grids.structure(iso, Z[:4, 1:], X[:5, 1:]) is None
    twice = kernels.Matern32(active_dims=[0]) * kernels.Matern32(active_dims=[0])
    assert grids.structure(twice, Z, X) is None
    assert model_of(kernels.SquaredExponential(), Z[:-1]).structure is None


def test_sampling_on_a_grid_predicts_anywhere() -> None:
    model = model_of(kernels.SquaredExponential(lengthscales=0.8))
    setting = gpx.Setting(0.3, 3)
    gpx.sample(model, 10, 2, tuner=setting, warm_up=5, progress=False, check=False)
    mean, var = model.predict_f(X)
    again = model.predict_f(X[:1] + 1e-9)
    np.testing.assert_allclose(again[0], mean[:1], atol=1e-6)
    assert (var.numpy() > 0.0).all()


def test_counts_are_in_the_order_of_the_grid() -> None:
    events = np.array([[0.1, 0.1], [0.1, 0.9], [1.9, 0.9], [1.9, 0.95]])
    counted = gpx.datasets.grid_counts(events, (2, 3), bounds=[(0.0, 2.0), (0.0, 1.0)])
    assert counted.shape == (2, 3)
    assert counted.cell == pytest.approx(1.0 / 3.0)
    np.testing.assert_array_equal(counted.Y[:, 0], [1, 0, 1, 0, 0, 2])
    np.testing.assert_allclose(counted.X[[0, 5]], [[0.5, 1 / 6], [1.5, 5 / 6]])
    assert grids.axes_of(counted.X) is not None
    assert counted.exposed.shape == (6, 2)
    line = gpx.datasets.grid_counts([0.0, 1.0, 1.0, 4.0], 4)
    np.testing.assert_array_equal(line.Y[:, 0], [1, 2, 0, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0.0, np.nan]], 3), "finite"),
        (([0.0, 5.0], 3, [(0.0, 2.0)]), "1 events lie outside"),
        (([0.0, 5.0], 0), "at least 1"),
        (([0.0, 5.0], 3, [(2.0, 0.0)]), "low < high"),
    ],
)
def test_events_that_cannot_be_counted(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpx.datasets.grid_counts(*arguments)


def test_the_inverse_root_and_its_gradient() -> None:
    """Also where eigenvalues are equal, where a derivative of eigenvectors has none."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    gram = tf.constant(turn @ np.diag([1e-6, 1e-6, 1.0, 1.0, 2.0, 5.0]) @ turn.T)[None]
    root = linalg.inverse_root(gram)[0]
    np.testing.assert_allclose(root @ gram[0] @ root, np.eye(6), rtol=0, atol=1e-8)
    np.testing.assert_allclose(root, tf.transpose(root), rtol=1e-9)
    spoilt = tf.concat([gram, np.nan * gram, np.inf * gram], axis=0)
    np.testing.assert_allclose(linalg.inverse_root(spoilt)[0], root, rtol=1e-12)
    assert np.isnan(linalg.inverse_root(spoilt)[1:]).all()
    wide = gram + tf.eye(6, dtype=tf.float64)
    weights = tf.constant(rng.standard_normal((6, 6)))
    with tf.GradientTape() as tape:
        tape.watch(wide)
        value = tf.reduce_sum(weights * linalg.inverse_root(wide))
    gradient = tape.gradient(value, wide)
    for _ in range(3):
        direction = rng.standard_normal((6, 6))
        direction = tf.constant(direction + direction.T)
        ends = [
            tf.reduce_sum(weights * linalg.inverse_root(wide + sign * 1e-5 * direction)) for sign in (1, -1)
        ]
        np.testing.assert_allclose(
            tf.reduce_sum(gradient * direction), (ends[0] - ends[1]) / 2e-5, rtol=0, atol=1e-8
        )


@pytest.mark.parametrize("on_grid", [True, False])
def test_points_that_are_moved_off_their_grid_or_to_another_are_followed(on_grid: bool) -> None:
    moved = 1.1 * Z if on_grid else Z + np.random.default_rng(6).normal(0.0, 0.1, Z.shape)
    model, built_there = (
        model_of(gpflow.kernels.SquaredExponential(), points.copy()) for points in (Z, moved)
    )
    assert model.structure is not None
    model.inducing_variable.Z.assign(moved)
    for each in (model, built_there):
        each.V.assign(np.linspace(-1.0, 1.0, len(Z))[:, None])
    for a, b in zip(model.predict_f(X), built_there.predict_f(X), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    assert model.log_likelihood_lower_bound() == built_there.log_likelihood_lower_bound()
    assert (model.structure is not None) == on_grid


def test_predictions_on_a_grid_use_its_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    """And are those at the same points in another order, which are no grid, a few rows at a time."""
    model = model_of(KERNELS["one length scale each"]())
    rng = np.random.default_rng(5)
    values = {"V": rng.standard_normal((3, *model.V.shape)), "kernel.variance": rng.uniform(1.0, 2.0, 3)}
    members = grids.Stack([(model.V, tf.constant(values["V"])), (model.kernel.variance, tf.constant(values["kernel.variance"]))])  # fmt: skip
    points = grids.grid(np.linspace(0.1, 3.0, 7), np.linspace(0.0, 2.0, 4))
    order = rng.permutation(len(points))
    dense, sizes = FreeFormDensity.project, []

    def project(self, stack, X, chol=None):
        sizes.append(X.shape[0])
        return dense(self, stack, X, chol)

    monkeypatch.setattr(FreeFormDensity, "project", project)
    on_grid = model.density.moments(members, tf.constant(points))
    assert not sizes
    one_piece = model.density.moments(members, tf.constant(points[order]))
    monkeypatch.setattr(stacked, "ELEMENTS", 3 * len(Z) * 10)
    pieces = model.density.moments(members, tf.constant(points[order]))
    assert sizes == [28, 10, 10, 8]
    for ours, whole, some in zip(on_grid, one_piece, pieces, strict=True):
        np.testing.assert_allclose(ours.numpy()[:, order], whole, rtol=0, atol=1e-10)
        np.testing.assert_allclose(some, whole, rtol=0, atol=1e-10)


def test_an_outer_product_and_its_gradient() -> None:
    rng = np.random.default_rng(0)
    B, weights = (tf.constant(rng.standard_normal(shape)) for shape in ((2, 3, 7), (2, 3, 3)))
    found = []
    for product in (linalg.outer, lambda B: tf.matmul(B, B, transpose_b=True)):
        with tf.GradientTape() as tape:
            tape.watch(B)
            value = tf.reduce_sum(weights * product(B))
        found.append((value, tape.gradient(value, B)))
    for ours, plain in zip(*found, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-12)


@pytest.mark.parametrize("bins", [1.5, "3", None, [2, 2.5]])
def test_bins_that_are_not_whole_are_refused(bins) -> None:
    with pytest.raises(ValueError, match="`bins` must be a whole number"):
        gpx.datasets.grid_counts(np.zeros((3, 2)) + np.arange(3.0)[:, None], bins)
