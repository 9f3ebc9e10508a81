"""Images as outputs of a network: a generated task of a million pixels, and pictures of what is predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt

from .task import Task

Array = npt.NDArray[Any]
SIDE, ROWS, TEST = 1000, 100, 10
CORRELATED = 0.025  # the deviation of the smoothing filter, in sides of the image
NOISE = 0.1


def field(seed: int, side: int = SIDE, rows: int = ROWS, test: int = TEST) -> Task:
    """Images of 1000 × 1000 pixels, draws of a network with two nodes whose weights change smoothly from pixel to pixel; 100 training and 10 test inputs."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (rows + test, 2))
    across_weights, across_nodes = (root(X, length) for length in (3.0, 1.2))
    Y = NOISE * rng.standard_normal((len(X), side**2), np.float32)
    for node in (across_nodes @ rng.standard_normal((len(X), 2))).T:
        images = np.stack([smooth(rng, side).ravel() for _ in X])
        Y += node[:, None].astype(np.float32) * (across_weights.astype(np.float32) @ images)
    return Task(X[:rows], Y[:rows], X[rows:], Y[rows:], seed=seed)


def root(X: Array, length: float) -> Array:
    """Return the Cholesky factor of a squared exponential's Gram matrix, with which draws of it are made."""
    gram = gpflow.kernels.SquaredExponential(lengthscales=length)(X).numpy()
    return np.linalg.cholesky(gram + 1e-8 * np.eye(len(X)))


def smooth(rng: np.random.Generator, side: int) -> Array:
    """Return white noise through a Gaussian filter, of unit variance and periodic, [side, side]."""
    rows, columns = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)
    filtered = np.exp(-2.0 * (np.pi * CORRELATED * side) ** 2 * (rows**2 + columns**2))
    image = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((side, side))) * filtered, s=(side, side))
    return (image / image.std()).astype(np.float32)


def draw(path: Path, truth: Array, mean: Array, rows: int = 2) -> None:
    """Draw the first test targets [T, D] as square images, what was predicted for them, and the difference."""
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    side = round(truth.shape[1] ** 0.5)
    figure = Figure(figsize=(9.6, 3.0 * rows), layout="constrained")
    for number, line in enumerate(figure.subplots(rows, 3, squeeze=False)):
        images = [part[number].reshape(side, side) for part in (truth, mean, mean - truth)]
        low, high = images[0].min(), images[0].max()
        widest = np.quantile(np.abs(images[2]), 0.99)
        limits = ((low, high), (low, high), (-widest, widest))
        titles = (f"test image {number + 1}", "predicted", "difference")
        for ax, image, (least, most), title in zip(line, images, limits, titles, strict=True):
            colours = "viridis" if title != "difference" else "coolwarm"
            shown = ax.imshow(image, vmin=least, vmax=most, cmap=colours)
            ax.set(title=title, xticks=(), yticks=())
            figure.colorbar(shown, ax=ax, shrink=0.85)
    figure.savefig(path, dpi=90)
