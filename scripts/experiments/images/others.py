"""Two more problems: odd against even digits by `SparseEP`, and textures that are generated."""

from __future__ import annotations

import time
from typing import Any

import gpflow
import numpy as np

import gpflow_ext as gpx

from . import runs
from .runs import CLASSES, NOISE, SIDE, VARIANCE, Array, Images

INDUCING, DIMS = 1000, 200  # of odd and even
TEXTURES = (1000, 2000)  # training and test images
DIRECTIONS, WAVELENGTHS = 4, (3.0, 4.0)  # of textures; pixels
STRENGTH, GRAIN = 0.5, 1.0  # amplitude of the wave and standard deviation of its noise


def odd_even(images: Images, seed: int) -> dict[str, Any]:
    """Return scores and CPU seconds of `SparseEP` on all digits: sites from the labels, then to their fixed point."""
    (X, Y), (X_test, Y_test) = images
    begin = time.process_time()
    features = gpx.features.Scattering((SIDE, SIDE), order=2, dims=DIMS).fit(X, seed=seed)
    model = gpx.models.SparseEP(
        (X, Y % 2),
        _kernel(features, 1.5),
        gpx.likelihoods.BernoulliProbit(),
        inducing_variable=gpx.InducingFeatures(features(gpx.inducing.subset(X, INDUCING, seed=seed))),
    )
    gpx.start_from_labels(model)
    gpflow.set_trainable(model, False)  # the inducing features too: a step is a sweep over the sites
    result = gpx.fit(model, progress=False)
    seconds = time.process_time() - begin
    found = runs.scores(runs.probabilities(model, X_test), Y_test % 2)
    return {"inducing": INDUCING, "seconds": seconds, "status": result.status.name, **found}


def textures(number: int, seed: int) -> tuple[Array, Array]:
    """Return noisy waves [N, 784] in 0, …, 1, of eight classes of direction and length, with any phase; and the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(DIRECTIONS * len(WAVELENGTHS), size=number)
    angle = np.pi / DIRECTIONS * (labels % DIRECTIONS)
    length = np.array(WAVELENGTHS)[labels // DIRECTIONS]
    y, x = np.mgrid[:SIDE, :SIDE]
    along = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y
    phase = rng.uniform(0.0, 2.0 * np.pi, number)[:, None, None]
    waves = STRENGTH * np.sin(2.0 * np.pi * along / length[:, None, None] + phase)
    seen = 0.5 + 0.25 * (waves + GRAIN * rng.standard_normal(waves.shape))
    return np.clip(seen, 0.0, 1.0).reshape(number, -1).astype(np.float32), labels[:, None].astype(float)


def on_textures(by: str, seed: int) -> dict[str, Any]:
    """Return scores and CPU seconds of `SVGPRobustMax`, q from the labels, on ``"scattering"`` or ``"pixels"``."""
    (X, Y), (X_test, Y_test) = textures(TEXTURES[0], seed), textures(TEXTURES[1], seed + 1000)
    begin = time.process_time()
    points: Any
    if by == "scattering":
        features = gpx.features.Scattering((SIDE, SIDE), dims=100).fit(X, seed=seed)
        kernel, points = _kernel(features, 1.5), gpx.InducingFeatures(features(X[:500]))
    else:
        scale = float(np.sqrt(((X - X.mean(axis=0)) ** 2).sum(axis=1).mean()))
        kernel = gpflow.kernels.SquaredExponential(VARIANCE, 1.5 * scale) + gpflow.kernels.White(NOISE)
        points = X[:500]
    classes = DIRECTIONS * len(WAVELENGTHS)
    model = gpx.models.SVGPRobustMax(kernel, classes, points, num_data=len(X), learn_epsilon=True)
    gpx.start_from_labels(model, (X, Y), seed=seed)
    seconds = time.process_time() - begin
    return {"by": by, "seconds": seconds, **runs.scores(runs.probabilities(model, X_test), Y_test)}


def far(model: Any, number: int, seed: int) -> dict[str, float]:
    """Return confidence and entropy, in nats, of a classifier of digits on textures, which are no digits."""
    p = runs.probabilities(model, textures(number, seed)[0])
    entropy = -(p * np.log(np.maximum(p, 1e-12))).sum(axis=1)
    return {"confidence": float(p.max(axis=1).mean()), "entropy": float(entropy.mean()), "classes": CLASSES}


def _kernel(features: gpx.features.Scattering, lengthscale: float) -> gpflow.kernels.Kernel:
    base = gpflow.kernels.SquaredExponential(VARIANCE, lengthscale)
    return gpx.kernels.Feature(base, features) + gpflow.kernels.White(NOISE)
