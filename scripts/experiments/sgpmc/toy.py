"""The toy problem of three classes, after Figure 4 of Hensman et al. (2015): the Gaussian beside the free form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt

import gpflow_ext as gpx

from ...shared import report
from ...shared.journal import Journal, Record
from . import runs

Array = npt.NDArray[Any]

Model = gpx.models.SGPMCFreeForm
SIZE, INDUCING, CHAINS = 750, 50, 4
NUGGET = 0.1  # variance of the white part, which makes the robust maximum soft
LEVELS, CONFIDENT = (0.3, 0.95, 0.99), 0.95
COLOURS = ("tab:red", "tab:green", "tab:blue")
MEANS = ((-1.4, -0.6), (1.4, -0.6), (0.0, 1.2))
FACTORS = (((0.8, 0.0), (0.5, 0.6)), ((0.8, 0.0), (-0.5, 0.6)), ((1.1, 0.0), (0.0, 0.4)))  # LLᵀ covariances
TEXT = """\
## Three classes

{size} points of three Gaussian distributions on the plane, as many for testing. The robust-max likelihood, a squared
exponential kernel with Gamma(3, rate 2) on its length scale and Gamma(3, rate 3) on its variance, and a nugget of {nugget}. {inducing}
inducing points, by k-means and then optimised under the Gaussian approximation. {chains} chains of {draws} draws. `confident` is the
share of the square below where one class has a probability above {confident}; the paper finds it smaller for the free form.
`correlation` is the largest correlation between values v of two latent functions, which the Gaussian approximation takes as independent.
"""


def data(seed: int) -> tuple[Array, Array]:
    """Return points X [2·SIZE, 2] of three Gaussian distributions and which they are of, Y [2·SIZE, 1]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=2 * SIZE)
    noise = rng.standard_normal((2 * SIZE, 2, 1))
    points = np.array(MEANS)[labels] + (np.array(FACTORS)[labels] @ noise)[..., 0]
    return points, labels[:, None].astype(float)


def build(ard: bool) -> Model:
    """Return the model of the first half of the points, inducing points by k-means."""
    X, Y = (part[:SIZE] for part in data(seed=1))
    smooth = runs.kernel(np.full(2, 1.0) if ard else 1.0, (3.0, 2.0), (3.0, 3.0))
    white = gpflow.kernels.White(NUGGET)
    gpflow.set_trainable(white, False)
    Z = gpx.inducing.kmeans(X, INDUCING, seed=0)
    likelihood = gpx.likelihoods.RobustMax(3, 1e-3)
    return Model((X, Y), smooth + white, likelihood, num_latent_gps=3, inducing_variable=Z)


def plane(number: int) -> tuple[Array, Array]:
    """Return an axis [number] and the points [number², 2] of the square that is drawn."""
    axis = np.linspace(-4.0, 4.0, number)
    return axis, np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)


def measure(path: Path, num_draws: int, quick: bool) -> Record:
    """Approximate, sample, score, and draw both posteriors."""
    model = build(ard=False)
    X, Y = data(seed=1)
    test = (X[SIZE:], Y[SIZE:])
    gpx.gaussian_approximation(model, steps=20 if quick else 200, free_inducing=True)
    points = plane(20 if quick else 80)[1]
    before = runs.gaussian(model).predict_y(points)[0].numpy()
    gaussian = runs.gaussian_log_density(model, test)
    tuning = {"trials": 3, "samples": 3, "max_leapfrogs": (1, 5)} if quick else runs.TUNING
    draws = gpx.sample(model, num_draws, CHAINS, tuning=tuning, seed=1, progress=False, check=False)
    free_form = runs.free_form_log_density(model, draws, test)
    after = model.predict_y(points)[0].numpy()
    V = draws.values["V"].reshape(-1, INDUCING, 3)
    inducing, pair, correlation = correlated(V)
    draw(path, model, (before, after), V[:, inducing, pair], inducing)
    return {
        **runs.record(draws),
        "gaussian": gaussian,
        "free_form": free_form,
        "confident": [float((p.max(axis=1) > CONFIDENT).mean()) for p in (before, after)],
        "correlation": correlation,
    }


def correlated(V: Array) -> tuple[int, list[int], float]:
    """Return the row of V [S, M, K] where two latent functions correlate most, which two, and how much."""
    found = []
    for row in range(V.shape[1]):
        matrix = np.corrcoef(V[:, row].T)
        found += [(abs(matrix[i, j]), row, [i, j]) for i in range(len(matrix)) for j in range(i)]
    most, row, pair = max(found)
    return row, pair, float(most)


def draw(path: Path, model: Model, probabilities: tuple[Any, Any], pair: Array, inducing: int) -> None:
    """Draw the contours of the classes by both posteriors, and draws [S, 2] of v of two latent functions."""
    figure, axes = runs.figure(path, 12.0, 4.0, columns=3)
    X, Y = model.data[0].numpy(), model.data[1].numpy()[:, 0]
    Z = model.inducing_variable.Z.numpy()
    for ax, p, title in zip(axes, probabilities, ("Gaussian", "free form"), strict=False):
        number = round(len(p) ** 0.5)
        axis, _ = plane(number)
        for k, colour in enumerate(COLOURS):
            ax.plot(*X[k == Y].T, ".", color=colour, markersize=2, alpha=0.5)
            level = p[:, k].reshape(number, number)
            ax.contour(axis, axis, level, levels=LEVELS, colors=colour, linewidths=[2, 1.2, 0.6])
        ax.plot(*Z.T, "k.", markersize=5)
        ax.set(title=title, xlim=(axis[0], axis[-1]), ylim=(axis[0], axis[-1]), aspect="equal")
    axes[2].plot(*pair.T, ".", markersize=2, alpha=0.4)
    axes[2].set_title(f"draws of v at inducing point {inducing}")
    axes[2].set(xlabel="of one latent function", ylabel="of another")
    figure.savefig(path, dpi=90)


def run(journal: Journal, folder: Path, num_draws: int, quick: bool) -> None:
    """Measure and draw, unless the journal has it."""
    journal.once({"experiment": "toy"}, lambda: measure(folder / "sgpmc_toy.png", num_draws, quick))


def document(journal: Journal) -> list[str]:
    """Return the table and the picture, as Markdown."""
    records = journal.find(experiment="toy")
    if not records:
        return []
    one = records[-1]
    text = TEXT.format(
        size=SIZE,
        nugget=NUGGET,
        inducing=INDUCING,
        chains=CHAINS,
        draws=one["draws"],
        confident=CONFIDENT,
    )
    confident = [f"{share:.1%}" for share in one["confident"]]
    rows = [
        ["Gaussian", f"{one['gaussian']:.4f}", confident[0], "0"],
        ["free form", f"{one['free_form']:.4f}", confident[1], f"{one['correlation']:.2f}"],
    ]
    return [
        text,
        report.table(("", "log density of test points", "confident", "correlation"), rows),
        report.table(runs.COLUMNS, [runs.cells(one)]),
        "![Contours of the classes by both posteriors, draws of v](sgpmc_toy.png)\n",
    ]
