"""What is trained and measured: images in, scores and CPU seconds out."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import gpflow
import numpy as np
import numpy.typing as npt

import gpflow_ext as gpx

Array = npt.NDArray[Any]

SIDE, CLASSES, VALIDATION = 28, 10, 10_000
VARIANCE, NOISE = 10.0, 1e-3  # of the kernel, and its White part
SINGLE = gpflow.config.Config(float=np.float32, jitter=1e-4)
BINS = 15  # of the calibration error
FEW, FEW_TESTED = 2000, 1000  # images of the reduced form
ANGLES = (0, 15, 30, 45, 60, 90)  # degrees
SHIFTS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))  # pixels down, right


class Setting(NamedTuple):
    """What one run does."""

    order: int
    dims: int
    inducing: int
    lengthscale: float
    steps: int = 0  # after the start from labels
    batch: int = 500
    gamma: float = 0.03
    rate: float = 0.01
    copies: int = 1  # of each training image, the first of SHIFTS
    scales: int = 2


SETTINGS = {
    "quick": Setting(1, 200, 1000, 1.5),
    "medium": Setting(2, 200, 1000, 1.5),
    "large": Setting(2, 200, 3000, 1.5),
    "shifted": Setting(2, 200, 5000, 1.5, copies=5),
    "wide": Setting(2, 200, 8000, 1.5, scales=3),
}


class Images(NamedTuple):
    """Pixels [N, 784] and labels [N, 1], in single precision."""

    train: tuple[Array, Array]
    test: tuple[Array, Array]


def load(validation: bool, name: str = "mnist") -> Images:
    """Return a set; for validation its training part alone, the last 10,000 images in place of the test set."""
    train, test = gpx.datasets.load(name, standardise=False)
    X, Y = (np.asarray(part, np.float32) for part in train)
    if not validation:
        return Images((X, Y), (np.asarray(test[0], np.float32), np.asarray(test[1], np.float32)))
    return Images((X[:-VALIDATION], Y[:-VALIDATION]), (X[-VALIDATION:], Y[-VALIDATION:]))


def first(images: Images) -> Images:
    """Return the first images of a set, for the reduced form."""
    (X, Y), (X_test, Y_test) = images
    return Images((X[:FEW], Y[:FEW]), (X_test[:FEW_TESTED], Y_test[:FEW_TESTED]))


def shifted(X: Array, copies: int) -> Array:
    """Return copies of images [N, 784] shifted by `SHIFTS`, zeros moving in, [copies N, 784]."""
    padded = np.pad(X.reshape(-1, SIDE, SIDE), ((0, 0), (1, 1), (1, 1)))
    found = [padded[:, 1 - y : SIDE + 1 - y, 1 - x : SIDE + 1 - x] for y, x in SHIFTS[:copies]]
    return np.concatenate(found).reshape(-1, SIDE**2)


class Trained(NamedTuple):
    """A model of images, its features, and the CPU seconds from pixels to the model."""

    model: gpx.models.SVGPRobustMax
    features: gpx.features.Scattering
    seconds: float


def train(images: Images, setting: Setting, seed: int) -> Trained:
    """Return a model trained on the images; its seconds are those of the process, on all of its threads."""
    X, Y = images.train
    begin = time.process_time()
    features = gpx.features.Scattering(
        (SIDE, SIDE), scales=setting.scales, order=setting.order, dims=setting.dims
    ).fit(X, seed=seed)
    groups = np.tile(np.arange(len(X)), setting.copies)
    X, Y = shifted(X, setting.copies), np.tile(Y, (setting.copies, 1))
    base = gpflow.kernels.SquaredExponential(VARIANCE, setting.lengthscale)
    model = gpx.models.SVGPRobustMax(
        gpx.kernels.Feature(base, features) + gpflow.kernels.White(NOISE),
        CLASSES,
        gpx.InducingFeatures(features(gpx.inducing.subset(X, setting.inducing, seed=seed))),
        num_data=len(X),
        learn_epsilon=True,
        shared_covariance=True,
    )
    gpx.start_from_labels(model, (X, Y), seed=seed, groups=groups)
    if setting.steps:
        gpx.fit(
            model,
            (X, Y),
            steps=setting.steps,
            minibatch_size=setting.batch,
            gamma=setting.gamma,
            rate=setting.rate,
            decay_steps=setting.steps,
            hold=10,
            seed=seed,
            progress=False,
        )
    return Trained(model, features, time.process_time() - begin)


def probabilities(model: gpx.models.SVGPRobustMax, X: Array) -> Array:
    """Return the class probabilities of images [N, 784]."""
    return np.asarray(gpx.ClassPredictor(model, batch_size=500).probabilities(X))


def scores(p: Array, Y: Array) -> dict[str, float]:
    """Return error, NLPD and expected calibration error of probabilities [N, K]."""
    labels = Y[:, 0].astype(int)
    hit, sure = p.argmax(axis=1) == labels, p.max(axis=1)
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    gaps = [np.abs((hit[place == b] - sure[place == b]).sum()) for b in range(BINS)]
    return {
        "error": float(1.0 - hit.mean()),
        "nlpd": float(-np.log(p[np.arange(len(p)), labels]).mean()),
        "calibration": float(sum(gaps) / len(p)),
    }


def turned(model: gpx.models.SVGPRobustMax, test: tuple[Array, Array], number: int) -> list[dict[str, float]]:
    """Return scores and mean entropy on the first test images, turned by growing angles."""
    from scipy.ndimage import rotate

    images, Y = test[0][:number].reshape(-1, SIDE, SIDE), test[1][:number]
    found = []
    for angle in ANGLES:
        X = np.clip(rotate(images, angle, axes=(1, 2), reshape=False, order=1), 0.0, None).reshape(number, -1)
        p = probabilities(model, X)
        entropy = float(-(p * np.log(np.maximum(p, 1e-12))).sum(axis=1).mean())
        found.append(
            {"angle": angle, "entropy": entropy, "confidence": float(p.max(axis=1).mean()), **scores(p, Y)}
        )
    return found


def nearest(trained: Trained, images: Images, number: int) -> Array:
    """Return the training images whose features are nearest to some of the inducing ones, [number, 28, 28]."""
    phi = trained.features(images.train[0]).numpy()
    Z = trained.model.inducing_variable.Z.numpy()
    Z = Z[np.linspace(0, len(Z) - 1, number).astype(int)]
    squared = (phi**2).sum(axis=1)[None, :] - 2.0 * Z @ phi.T
    return images.train[0][squared.argmin(axis=1)].reshape(-1, SIDE, SIDE)
