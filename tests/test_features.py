"""Kernels on features: scattering, inducing features, the twin that `fit` trains, and starts from labels."""

from __future__ import annotations

import gpflow
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from gpflow.covariances import Kuf, Kuu

import gpflow_ext as gpx
from gpflow_ext.features.twin import Twin
from gpflow_ext.features.wavelets import morlets

Array = npt.NDArray[np.float64]
SIDE, CLASSES = 8, 3


@pytest.fixture(scope="module")
def images() -> tuple[Array, Array]:
    """Return 90 noisy images of 8 x 8 pixels with a bar in one of three directions, and its number."""
    rng = np.random.default_rng(0)
    labels = np.arange(90) % CLASSES
    X = rng.uniform(0.0, 0.3, size=(90, SIDE, SIDE))
    for image, label in zip(X, labels, strict=True):
        place = rng.integers(2, 6)
        if label == 0:
            image[place] += 1.0
        elif label == 1:
            image[:, place] += 1.0
        else:
            image += np.eye(SIDE, k=place - 4)
    return X.reshape(90, -1), labels[:, None].astype(float)


@pytest.fixture(scope="module")
def features(images: tuple[Array, Array]) -> gpx.features.Scattering:
    """Return fitted features of the images."""
    return gpx.features.Scattering((SIDE, SIDE), angles=4, dims=12).fit(images[0])


def base() -> gpflow.kernels.Kernel:
    return gpflow.kernels.SquaredExponential(3.0, 1.2)


def kernel(features: gpx.features.Scattering) -> gpflow.kernels.Kernel:
    return gpx.kernels.Feature(base(), features) + gpflow.kernels.White(1e-2)


def kernel_on_features() -> gpflow.kernels.Kernel:
    return base() + gpflow.kernels.White(1e-2)


def classifier(kernel: gpflow.kernels.Kernel, points: object, num_data: int = 90) -> gpx.models.SVGPRobustMax:
    return gpx.models.SVGPRobustMax(kernel, CLASSES, points, num_data=num_data, learn_epsilon=True)


def pair(
    images: tuple[Array, Array], features: gpx.features.Scattering, M: int = 20
) -> tuple[gpx.models.SVGPRobustMax, gpx.models.SVGPRobustMax, Array]:
    """Return the model on images, that on their features, and these."""
    phi = features(images[0]).numpy()
    own = classifier(kernel(features), gpx.InducingFeatures(phi[:M]))
    return own, classifier(base() + gpflow.kernels.White(1e-2), phi[:M]), phi


def test_scattering_of_a_turned_image_is_turned() -> None:
    net = gpx.features.Scattering((9, 9), angles=4, dims=None, order=2)
    image = np.random.default_rng(0).uniform(size=(9, 9)).astype(np.float32)
    maps = [net(each[None]).numpy().reshape(3, 3, -1) for each in (image, np.rot90(image))]
    first, paths = 1 + 4 + 4, [0, *(1 + np.roll(np.arange(4), 2)), *(5 + np.roll(np.arange(4), 2))]
    turned = np.rot90(maps[0])
    np.testing.assert_allclose(maps[1][..., :first], turned[..., paths], atol=1e-5)
    grid = 9 + np.arange(16).reshape(4, 4)
    second = np.roll(np.roll(grid, 2, axis=0), 2, axis=1).ravel()
    np.testing.assert_allclose(maps[1][..., first:], turned[..., second], atol=1e-5)


def test_scattering_against_sums_over_pixels() -> None:
    """The same by loops over the definition, on an image whose sides differ."""
    net = gpx.features.Scattering((8, 10), scales=1, angles=2, dims=None)
    image = np.random.default_rng(1).uniform(size=(8, 10))
    y, x = np.mgrid[:8, :10].astype(float)
    found = net(image[None]).numpy().reshape(4, 5, 3)
    offset = np.arange(-2, 3.0)
    for number, turn in enumerate((0.0, 0.5 * np.pi)):
        v, u = np.meshgrid(offset, offset, indexing="ij")
        along, across = u * np.cos(turn) + v * np.sin(turn), v * np.cos(turn) - u * np.sin(turn)
        envelope = np.exp(-(along**2 + across**2 / 4.0) / (2.0 * 0.8**2))
        wave = np.exp(0.75j * np.pi * along)
        psi = envelope * (wave - (envelope * wave).sum() / envelope.sum()) / (4.0 * np.pi * 0.8**2)
        padded = np.pad(image, 2)
        strength = np.array(
            [[np.abs((padded[i : i + 5, j : j + 5] * psi).sum()) for j in range(10)] for i in range(8)]
        )
        for maps, place in ((image, 0), (strength, 1 + number)):
            window = np.exp(-0.5 * ((y - 2.5) ** 2 + (x - 4.5) ** 2)) / (2.0 * np.pi)
            assert found[1, 2, place] == pytest.approx(np.sqrt((maps * window).sum()), rel=2e-5)


def test_wavelets_on_a_coarser_grid_weigh_the_same() -> None:
    fine = morlets(np.arange(-8, 9.0), np.arange(-8, 9.0), 2, 4, 1)
    coarse = morlets(np.arange(-8, 9.0, 2), np.arange(-8, 9.0, 2), 2, 4, 2)
    assert np.abs(coarse).sum() == pytest.approx(np.abs(fine).sum(), rel=0.05)


def test_features_are_scaled_to_a_mean_square_norm_of_one(
    images: tuple[Array, Array], features: gpx.features.Scattering
) -> None:
    phi = features(images[0]).numpy()
    assert phi.shape == (90, 12)
    np.testing.assert_allclose(phi.mean(axis=0), 0.0, atol=1e-5)
    assert np.square(phi).sum(axis=1).mean() == pytest.approx(89.0 / 90.0, abs=1e-4)


def test_features_of_many_rows_and_in_graphs_are_the_same(
    images: tuple[Array, Array], features: gpx.features.Scattering
) -> None:
    X = np.tile(images[0], [7, 1])
    many = features(X).numpy()
    np.testing.assert_allclose(many[-90:], features(images[0]).numpy(), atol=1e-6)
    in_graph = tf.function(features.__call__, autograph=False)(tf.constant(X))
    np.testing.assert_allclose(in_graph, many, atol=1e-6)
    np.testing.assert_allclose(features(X.reshape(-1, SIDE, SIDE)), many, atol=1e-6)


def test_the_gradient_in_blank_images_is_finite(features: gpx.features.Scattering) -> None:
    X = tf.zeros([1, SIDE**2], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(X)
        value = tf.reduce_sum(features(X))
    assert np.isfinite(tape.gradient(value, X)).all()


@pytest.mark.parametrize("order", [1, 2])
def test_a_shift_moves_scattering_less_than_pixels(order: int) -> None:
    pytest.importorskip("sklearn")
    try:
        (X, _), _ = gpx.datasets.load("mnist", standardise=False)
    except (ValueError, OSError) as error:
        pytest.skip(f"needs mnist.npz in GPFLOW_EXT_DATA: {error}")
    before = X[:500].reshape(-1, 28, 28)
    after = np.roll(before, 1, axis=2)
    net = gpx.features.Scattering((28, 28), order=order, dims=None)

    def moved(first: Array, second: Array) -> float:
        return float(np.sqrt(np.square(first - second).sum() / np.square(first - first.mean(axis=0)).sum()))

    pixels = moved(before.reshape(500, -1), after.reshape(500, -1))
    assert moved(net(before).numpy(), net(after).numpy()) <= 0.55 * pixels


def test_a_feature_model_is_that_on_features(
    images: tuple[Array, Array], features: gpx.features.Scattering
) -> None:
    own, plain, phi = pair(images, features)
    rng = np.random.default_rng(2)
    for model in (own, plain):
        gpx.start_from_labels(model, (images[0] if model is own else phi, images[1]))
    X, Y = (tf.constant(part) for part in images)
    data = {id(own): (X, Y), id(plain): (tf.constant(phi), Y)}
    np.testing.assert_allclose(own.elbo((X, Y)), plain.elbo(data[id(plain)]), rtol=1e-10)
    gradients = []
    for model in (own, plain):
        with tf.GradientTape() as tape:
            loss = model.training_loss(data[id(model)])
        gradients.append(tape.gradient(loss, model.trainable_variables))
    for first, second in zip(*gradients, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-10, atol=1e-10)
    new = rng.uniform(size=(5, SIDE**2))
    for first, second in zip(own.predict_f(new), plain.predict_f(features(new)), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-10, atol=1e-12)


def test_training_with_features_at_hand_is_training_on_them(
    images: tuple[Array, Array], features: gpx.features.Scattering
) -> None:
    own, plain, phi = pair(images, features)
    options = {"steps": 4, "minibatch_size": 30, "start": "labels", "progress": False}
    gpx.fit(own, images, validation=images, validate_every=2, **options)
    gpx.fit(plain, (phi, images[1]), validation=(phi, images[1]), validate_every=2, **options)
    for first, second in zip(own.trainable_variables, plain.trainable_variables, strict=True):
        assert np.array_equal(first, second)
    assert np.abs(own.q_mu).max() > 0.1


def test_phi_is_computed_once(
    images: tuple[Array, Array], features: gpx.features.Scattering, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = gpx.features.Scattering.coordinates
    monkeypatch.setattr(
        gpx.features.Scattering, "coordinates", lambda self, X: calls.append(1) or real(self, X)
    )
    points = gpx.InducingFeatures(np.eye(12)[:5])
    gpx.fit(classifier(kernel(features), points), images, steps=3, minibatch_size=30, progress=False)
    assert len(calls) == 1


@pytest.mark.parametrize("case", ["linear on pixels", "mean", "points among images", "other features"])
def test_there_is_no_twin_where_the_inputs_are_looked_at(
    case: str, images: tuple[Array, Array], features: gpx.features.Scattering
) -> None:
    points: object = gpx.InducingFeatures(np.eye(12)[:5])
    k, mean = kernel(features), None
    if case == "linear on pixels":
        k = k + gpflow.kernels.Linear()
        points = images[0][:5]
    elif case == "mean":
        mean = gpflow.functions.Linear(np.ones([SIDE**2, 1]))
    elif case == "points among images":
        points = images[0][:5]
    else:
        k = k + gpx.kernels.Feature(
            base(), gpx.features.Scattering((SIDE, SIDE), angles=4, dims=12).fit(images[0])
        )
        points = images[0][:5]
    model = gpx.models.SVGPRobustMax(k, CLASSES, points, num_data=90, mean_function=mean)
    twin = Twin(model, images)
    assert twin.model is model
    assert twin.data is images


def test_the_features_of_all_inputs_leave_nothing(
    images: tuple[Array, Array], features: gpx.features.Scattering
) -> None:
    """u = f at the features of all inputs decides f: the sparse prior has no residual."""
    X = tf.constant(images[0][:20])
    k = gpx.kernels.Feature(base(), features)
    points = gpx.InducingFeatures(features(X))
    A = tf.linalg.triangular_solve(tf.linalg.cholesky(Kuu(points, k, jitter=1e-12)), Kuf(points, k, X))
    np.testing.assert_allclose(tf.matmul(A, A, transpose_a=True), base()(features(X)), atol=1e-10)
    np.testing.assert_allclose(Kuf(points, k + gpflow.kernels.White(1.0), X), Kuf(points, k, X), atol=1e-12)


def binary(images: tuple[Array, Array]) -> tuple[Array, Array]:
    return images[0], (images[1] > 0).astype(float)


def site_models(
    data: tuple[Array, Array], features: gpx.features.Scattering
) -> dict[str, gpflow.models.GPModel]:
    k, points = kernel(features), gpx.InducingFeatures(features(data[0]).numpy()[:15])
    return {
        "ep": gpx.models.SparseEP(data, k, gpx.likelihoods.BernoulliProbit(), inducing_variable=points),
        "kmm": gpx.models.VGPKMM(
            data, kernel(features), gpx.likelihoods.BernoulliLogit(), inducing_variable=points
        ),
        "dense": gpx.models.VGPKMM(data, kernel(features), gpx.likelihoods.BernoulliLogit()),
    }


@pytest.mark.parametrize("name", ["ep", "kmm", "dense"])
def test_site_models_train_on_features(
    name: str, images: tuple[Array, Array], features: gpx.features.Scattering
) -> None:
    data = binary(images)
    model = site_models(data, features)[name]
    gpx.fit(model, steps=1, starts=1, progress=False)
    assert np.mean((model.predict_y(data[0])[0] > 0.5) == data[1]) > 0.95


@pytest.mark.parametrize("name", ["ep", "kmm", "dense"])
def test_sites_start_from_labels(
    name: str, images: tuple[Array, Array], features: gpx.features.Scattering
) -> None:
    data = binary(images)
    model = site_models(data, features)[name]
    start = gpx.start_from_labels(model)
    np.testing.assert_allclose(model.nat1, start.scale / start.noise * (data[1] - 0.5), rtol=1e-12)
    np.testing.assert_allclose(model.prec, 1.0 / start.noise, rtol=1e-12)
    if name == "dense":
        K = model.kernel(data[0]).numpy() + gpflow.default_jitter() * np.eye(90)
        mean = K @ np.linalg.solve(K + start.noise * np.eye(90), start.scale * (data[1] - 0.5))
        new = model.predict_f(data[0])[0].numpy()
        white = 1e-2 * np.linalg.solve(K + start.noise * np.eye(90), start.scale * (data[1] - 0.5))
        np.testing.assert_allclose(new, mean - white, atol=1e-4)


def test_q_starts_from_a_regression_on_labels(
    images: tuple[Array, Array], features: gpx.features.Scattering
) -> None:
    own, _, phi = pair(images, features)
    wrong = np.arange(90)[:, None] % 5 == 0  # so that rows held out are not all foreseen
    images = images[0], np.where(wrong, (images[1] + 1.0) % CLASSES, images[1])
    prior = own.elbo(tuple(map(tf.constant, images)))
    start = gpx.start_from_labels(own, images, seed=1)
    K = kernel_on_features()(phi[:20]).numpy() + gpflow.default_jitter() * np.eye(20)
    A = np.linalg.solve(np.linalg.cholesky(K), base()(phi[:20], phi).numpy())
    T = start.scale * (np.eye(CLASSES)[images[1][:, 0].astype(int)] - 1.0 / CLASSES)

    def moments(rows: Array) -> tuple[Array, Array]:
        P, Q = (np.eye(20) + A[:, rows] @ A[:, rows].T / noise for noise in (start.noise, start.spread))
        return np.linalg.solve(P, A[:, rows] @ T[rows] / start.noise), Q

    mean, Q = moments(np.arange(90))
    np.testing.assert_allclose(own.q_mu, mean, atol=1e-8)
    root = own.q_sqrt.numpy()
    assert np.array_equal(root, np.tril(root))
    np.testing.assert_allclose(root @ np.swapaxes(root, 1, 2) @ Q, np.tile(np.eye(20), [3, 1, 1]), atol=1e-8)
    assert own.elbo(tuple(map(tf.constant, images))) > prior
    held, rest = np.split(np.random.default_rng(1).permutation(90), [18])
    mean, Q = moments(rest)
    own.q_mu.assign(mean)
    own.q_sqrt.assign(np.tile(np.linalg.cholesky(np.linalg.inv(Q)), [3, 1, 1]))
    density = own.predict_log_density((images[0][held], images[1][held]))
    assert np.mean(density) == pytest.approx(start.value, rel=1e-8)


@pytest.mark.slow
def test_copies_of_an_image_are_held_out_together(images: tuple[Array, Array]) -> None:
    X, Y = images
    phi, copy = X[:, :3], X[:, :3] + 1e-3
    data = np.concatenate([copy, phi])[::-1], np.concatenate([Y, Y])[::-1]
    groups = np.tile(np.arange(90)[::-1], 2)
    own = classifier(base(), phi[:10])
    start = gpx.start_from_labels(own, data, groups=groups, seed=1)
    held = np.random.default_rng(1).permutation(90)[:18]
    rows = np.isin(groups, held)
    A = np.linalg.solve(
        np.linalg.cholesky(base()(phi[:10]).numpy() + gpflow.default_jitter() * np.eye(10)),
        base()(phi[:10], data[0]).numpy(),
    )
    T = start.scale * (np.eye(CLASSES)[data[1][:, 0].astype(int)] - 1.0 / CLASSES)

    def moments(some: Array) -> tuple[Array, Array]:
        P, Q = (np.eye(10) + A[:, some] @ A[:, some].T / noise for noise in (start.noise, start.spread))
        return np.linalg.solve(P, A[:, some] @ T[some] / start.noise), np.linalg.inv(Q)

    np.testing.assert_allclose(own.q_mu, moments(np.arange(180))[0], atol=1e-7)
    mean, cov = moments(np.flatnonzero(~rows))
    own.q_mu.assign(mean)
    own.q_sqrt.assign(np.tile(np.linalg.cholesky(cov), [3, 1, 1]))
    first = [int(np.flatnonzero(groups == group)[0]) for group in held]
    density = own.predict_log_density((data[0][first], data[1][first]))
    assert np.mean(density) == pytest.approx(start.value, rel=1e-8)


def test_a_mean_function_is_taken_off_the_labels(images: tuple[Array, Array]) -> None:
    phi, model = images[0][:, :3], None
    constant = gpflow.functions.Constant(np.array([1.0, -2.0, 0.5]))
    model = gpx.models.SVGPRobustMax(base(), CLASSES, phi[:10], num_data=90, mean_function=constant)
    start = gpx.start_from_labels(model, (phi, images[1]))
    K = base()(phi[:10]).numpy() + gpflow.default_jitter() * np.eye(10)
    A = np.linalg.solve(np.linalg.cholesky(K), base()(phi[:10], phi).numpy())
    T = start.scale * (np.eye(CLASSES)[images[1][:, 0].astype(int)] - 1.0 / CLASSES) - constant.c.numpy()
    P = np.eye(10) + A @ A.T / start.noise
    np.testing.assert_allclose(model.q_mu, np.linalg.solve(P, A @ T / start.noise), atol=1e-7)


def test_export_takes_raw_images(
    images: tuple[Array, Array], features: gpx.features.Scattering, tmp_path: object
) -> None:
    own, _, _ = pair(images, features)
    gpx.start_from_labels(own, images)
    folder = gpx.export(own, f"{tmp_path}/bars")
    served = gpx.load_exported(folder)
    found = served.predict(images[0][:7])
    np.testing.assert_allclose(found["probabilities"], own.predict_y(images[0][:7])[0], atol=1e-6)


def test_a_checkpoint_is_the_models_own(
    images: tuple[Array, Array], features: gpx.features.Scattering, tmp_path: object
) -> None:
    own, _, _ = pair(images, features)
    run = {"steps": 4, "minibatch_size": 30, "progress": False}
    gpx.fit(own, images, checkpoint_dir=str(tmp_path), checkpoint_every=2, **run)
    again = gpx.load_checkpoint(str(tmp_path))
    np.testing.assert_array_equal(again.predict_f(images[0][:4])[0], own.predict_f(images[0][:4])[0])
    resumed, _, _ = pair(images, features)
    gpx.fit(resumed, images, checkpoint_dir=str(tmp_path), **run)
    np.testing.assert_array_equal(resumed.q_mu, own.q_mu)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gpx.features.Scattering((3, 28)), "at least 2\\*\\*scales"),
        (lambda: gpx.features.Scattering((8, 8), order=3), "`order` must be 1 or 2"),
        (lambda: gpx.features.Scattering((8, 8), dims=9999), "`dims` must be from 1"),
        (lambda: gpx.features.Scattering((8, 8), dims=5)(np.zeros([2, 64])), "call `fit"),
        (lambda: gpx.features.Scattering((8, 8), dims=5).fit(-np.ones([9, 64])), "not negative"),
        (lambda: gpx.features.Scattering((8, 8), dims=5).fit(np.ones([9, 64])), "All images are equal"),
        (lambda: gpx.features.Scattering((8, 8), dims=5).fit(np.ones([9, 63])), "64 columns; got 63"),
        (lambda: gpx.features.Scattering((8, 8), dims=5).fit(np.ones([4, 64])), "at least dims = 5"),
        (lambda: gpx.kernels.Feature(base(), lambda X: X), "`num_inputs`"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_starts_that_cannot_be_are_refused(images: tuple[Array, Array]) -> None:
    phi, Y = images[0][:, :2], images[1]
    poisson = gpx.models.VGPKMM((phi, Y), base(), gpx.likelihoods.PoissonLog())
    with pytest.raises(NotImplementedError, match="PoissonLog"):
        gpx.start_from_labels(poisson)
    with pytest.raises(NotImplementedError, match="whiten=True"):
        gpx.start_from_labels(
            gpflow.models.SVGP(base(), gpflow.likelihoods.Bernoulli(), phi[:5], whiten=False), (phi, Y > 0)
        )
    exact = gpx.models.SparseEP(
        (phi, Y), base(), gpx.likelihoods.RobustMax(CLASSES), inducing_variable=phi[:5]
    )
    with pytest.raises(NotImplementedError, match="epsilon > 0"):
        gpx.start_from_labels(exact)
    model = classifier(base(), phi[:5])
    with pytest.raises(ValueError, match="`start` must be"):
        gpx.fit(model, (phi, Y), start="prior", steps=1, minibatch_size=9, progress=False)
    with pytest.raises(ValueError, match="give `data`"):
        gpx.start_from_labels(model)
    with pytest.raises(ValueError, match="one group for each of the 90 rows"):
        gpx.start_from_labels(model, (phi, Y), groups=[1, 2])
    with pytest.raises(ValueError, match="at least two"):
        gpx.start_from_labels(model, (phi, Y), groups=np.zeros(90))
    sites = gpx.models.VGPKMM((phi, Y > 0), base(), gpx.likelihoods.BernoulliLogit())
    with pytest.raises(ValueError, match="leave `groups` out"):
        gpx.start_from_labels(sites, groups=np.arange(90))


def test_inducing_features_of_another_width_are_refused(
    images: tuple[Array, Array], features: gpx.features.Scattering
) -> None:
    model = classifier(kernel(features), gpx.InducingFeatures(np.eye(64)[:5]))
    with pytest.raises(ValueError, match="64 columns and the features of the kernel 12"):
        gpx.start_from_labels(model, images)
    with pytest.raises(ValueError, match="64 columns"):
        model.predict_f(images[0][:2])
    with pytest.raises(ValueError, match="looks at the inputs themselves"):
        Kuu(gpx.InducingFeatures(np.eye(64)[:5]), base())
