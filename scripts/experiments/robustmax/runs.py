"""The experiments: the toy problem and MNIST, their records, figures and text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gpflow
import numpy as np
import numpy.typing as npt
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.training.schedules import Schedule

from ...shared import report
from ...train_svgp_robustmax import Curve
from . import schedules

Array = npt.NDArray[Any]

PHASES_TEXT = "Adam moves the unconstrained variables: in log space, its default, length scales move ten times as fast at this rate; the first fifth of a run by that had worse scores, and it was not run to the end. Four fifths of the steps start from lengths 0.1 and 0.01, one fifth from half of them, each falling along a cosine"
TOY_SIZE, TOY_INDUCING = 750, 50
MNIST_INDUCING, MNIST_BATCH, HOLD, SHOWN_DIGITS = 500, 1000, 30, 3
PHASES = ((0.8, 0.01, 0.1), (0.2, 0.005, 0.05))  # share of the steps, rate of Adam, γ; each ends in a cosine
SINGLE = gpflow.config.Config(float=np.float32, jitter=1e-4)
PAPER = {"error": 1.96, "nlpd": 0.068}  # MNIST, per cent and nats, the variational posterior of the paper


def toy_data(seed: int) -> tuple[Array, Array]:
    """Return points of the unit square, and which of three draws of a Gaussian process is the largest there."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(2 * TOY_SIZE, 2))
    K = gpflow.kernels.SquaredExponential(lengthscales=0.15)(X).numpy() + 1e-8 * np.eye(len(X))
    F = np.linalg.cholesky(K) @ rng.normal(size=(len(X), 3))
    return X, F.argmax(axis=1).astype(float)[:, None]


def toy(folder: Path, where: Mapping[str, Any], steps: int) -> None:
    """Train on the toy problem, record the scores on as many other points and draw the plane."""
    X, Y = toy_data(seed=1)
    train, test = (X[:TOY_SIZE], Y[:TOY_SIZE]), (X[TOY_SIZE:], Y[TOY_SIZE:])
    kernel = gpflow.kernels.SquaredExponential(lengthscales=0.3) + gpflow.kernels.White(1e-3)
    Z = gpx.inducing.kmeans(train[0], TOY_INDUCING)
    model = gpx.models.SVGPRobustMax(kernel, 3, Z, num_data=TOY_SIZE, learn_epsilon=False)
    result = gpx.fit(model, train, steps=steps, gamma=0.3, decay_steps=steps, hold=20)
    record = {
        "where": dict(where),
        "steps": result.steps,
        "seconds": result.seconds,
        "bound": float(result.objective[-1]),
        "lengthscale": float(model.kernel.kernels[0].lengthscales.numpy()),
        **gpx.metrics.evaluate(model, test),
    }
    print(f"toy: {result}", flush=True)
    report.write_lines(folder / "robustmax_toy.jsonl", [record])
    _draw_toy(folder / "robustmax_toy.png", model, train, Z)


def _draw_toy(path: Path, model: Any, train: Any, start: Array) -> None:
    """Draw the probability of each class, the data, and where the inducing points went."""
    import matplotlib.pyplot as plt

    axis = np.linspace(0.0, 1.0, 120)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    p = gpx.ClassPredictor(model, batch_size=2400).probabilities(grid).reshape(120, 120, 3)
    colours = ("tab:red", "tab:green", "tab:blue")
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.6), sharex=True, sharey=True, layout="constrained")
    for k, colour in enumerate(colours):
        rows = train[1][:, 0] == k
        axes[0].plot(*train[0][rows].T, ".", color=colour, markersize=3, alpha=0.6)
        for ax in axes:
            ax.contour(axis, axis, p[..., k], levels=[0.3, 0.95, 0.99], colors=colour, linewidths=[2, 1, 0.6])
    Z = model.inducing_variable.Z.numpy()
    axes[1].plot(*start.T, "o", mfc="none", color="0.6", markersize=4, label="inducing points at the start")
    axes[1].plot(*Z.T, "k.", markersize=6, label="at the end")
    axes[0].set_title("750 points; probabilities 0.3, 0.95, 0.99")
    axes[1].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    axes[0].set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes[1].set_aspect("equal")
    figure.savefig(path, dpi=110)
    plt.close(figure)


class Digits(NamedTuple):
    """MNIST: a model to train, where its inducing images start, and the data."""

    model: gpx.models.SVGPRobustMax
    Z: Array
    train: Any
    test: Any


def digits(rows: int | None = None) -> Digits:
    """Return the untrained model, for the first ``rows`` of each part; to be used in `SINGLE` precision throughout."""
    train, test = (
        tuple(part[:rows] for part in split) for split in gpx.datasets.load("mnist", standardise="common")
    )
    width = train[0].shape[1]
    kernel = gpflow.kernels.SquaredExponential(variance=5.0, lengthscales=np.full(width, np.sqrt(width) / 2))
    Z = gpx.inducing.kmeans(train[0], MNIST_INDUCING)
    kernel += gpflow.kernels.White(1e-3)
    model = gpx.models.SVGPRobustMax(kernel, 10, Z, num_data=len(train[0]), learn_epsilon=False)
    return Digits(model, Z, train, test)


def optimiser(rate: float, steps: int, hold: int) -> Any:
    """Return Adam on the unconstrained variables, its rate falling along a cosine after ``hold`` steps.

    In log space, the default, the length scales of all pixels move ten times as fast at this rate.
    """
    return tf_keras.optimizers.Adam(Schedule("cosine", steps).rate(rate, hold))


class Printed(Curve):
    """A curve that prints the scores as it takes them: hours pass until the page is written."""

    def __call__(self, step: int) -> None:
        """Score and print if it is time."""
        super().__call__(step)
        if step % self._every == 0:
            scores = self.lines()[-1]
            print(
                f"mnist, {self._path.parent.name}, step {step:,}: error {scores['error']:.4f}, NLPD {scores['nlpd']:.4f}",
                flush=True,
            )


def train_on(found: Digits, run_dir: Path, steps: int, every: int) -> list[dict[str, float]]:
    """Train, or go on with what the folder holds; return the scores on the way."""
    lines: list[dict[str, float]] = []
    for number, (share, rate, gamma) in enumerate(PHASES, 1):
        phase, own_steps = run_dir / f"phase{number}", round(share * steps)
        curve = Printed(phase / "curve.jsonl", found.model, found.test, every)
        gpx.fit(
            found.model,
            found.train,
            steps=own_steps,
            minibatch_size=MNIST_BATCH,
            optimizer=optimiser(rate, own_steps, HOLD),
            gamma=gamma,
            decay_steps=own_steps,
            hold=HOLD,
            monitor=curve,
            checkpoint_dir=phase / "checkpoints",
            checkpoint_every=250,
            seed=number - 1,
        )
        done, spent = (lines[-1]["step"], lines[-1]["seconds"]) if lines else (0, 0.0)
        for line in curve.lines():
            lines.append({**line, "step": line["step"] + done, "seconds": line["seconds"] + spent})
    return lines


def mnist(
    folder: Path, where: Mapping[str, Any], run_dir: Path, steps: int, every: int, rows: int | None = None
) -> None:
    """Train on MNIST, or go on with it, record the scores on the way and draw them and the inducing digits."""
    with gpflow.config.as_context(SINGLE):
        found = digits(rows)
        lines = train_on(found, run_dir, steps, every)
    heading = {"where": dict(where), "steps": steps, "seeds": list(range(len(PHASES)))}
    report.write_lines(folder / "robustmax_mnist.jsonl", [heading, *lines])
    _draw_curve(folder / "robustmax_mnist.png", lines)
    _draw_digits(folder / "robustmax_digits.png", found.Z, found.model.inducing_variable.Z.numpy())


def _draw_curve(path: Path, lines: list[dict[str, float]]) -> None:
    """Draw error and NLPD on the test images against the seconds of training."""
    import matplotlib.pyplot as plt

    seconds = [line["seconds"] for line in lines]
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
    for ax, name, scale, label in (
        (axes[0], "error", 100.0, "test error, %"),
        (axes[1], "nlpd", 1.0, "test NLPD"),
    ):
        ax.plot(seconds, [scale * line[name] for line in lines], label="SVGPRobustMax")
        ax.axhline(PAPER[name], color="0.5", linestyle="--", label="Hensman et al. (2015)")
        ax.set(xlabel="seconds of training", ylabel=label)
        ax.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_digits(path: Path, before: Array, after: Array) -> None:
    """Draw the inducing digits that moved farthest: before, after, difference."""
    import matplotlib.pyplot as plt

    moved = np.argsort(-np.linalg.norm(after - before, axis=1))[:SHOWN_DIGITS]
    figure, axes = plt.subplots(SHOWN_DIGITS, 3, figsize=(5.2, 5.4), layout="constrained")
    for number, index in enumerate(moved):
        change = after[index] - before[index]
        for ax, image, title, cmap in zip(
            axes[number],
            (before[index], after[index], change),
            ("before", "after", "difference"),
            ("gray", "gray", "RdBu"),
            strict=True,
        ):
            bound = np.abs(change).max()
            limits = {"vmin": -bound, "vmax": bound} if cmap == "RdBu" else {}
            ax.imshow(image.reshape(28, 28), cmap=cmap, **limits)
            ax.set(xticks=[], yticks=[])
            if number == 0:
                ax.set_title(title)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def text(folder: Path) -> str:
    """Return the report of all that was recorded in the folder."""
    parts = [
        "# SVGP-robustmax: the multi-class experiments of Hensman et al. (2015)\n",
        "Variational inference; written by `python -m scripts.experiments.robustmax`.\n",
    ]
    for name, section in (("toy", _toy_text), ("mnist", _mnist_text), ("schedules", schedules.text)):
        path = folder / f"robustmax_{name}.jsonl"
        if path.exists():
            parts.append(
                section([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])
            )
    return "\n".join(parts)


def _toy_text(lines: list[dict[str, Any]]) -> str:
    found = lines[0]
    return (
        "## Toy problem\n\n"
        f"{TOY_SIZE} points of three classes in the unit square, each the largest of three draws of a Gaussian process "
        f"(length scale 0.15), {TOY_INDUCING} inducing points, as many test points.\n\n{report.describe(found['where'])}\n\n"
        f"{found['steps']} steps in {found['seconds']:.1f} s: bound {found['bound']:.2f}, length scale "
        f"{found['lengthscale']:.3f}, test error {100 * found['error']:.1f} %, test NLPD {found['nlpd']:.3f}.\n\n"
        "![Probabilities of the three classes, data and inducing points](robustmax_toy.png)\n"
    )


def _mnist_text(lines: list[dict[str, Any]]) -> str:
    heading, *curve = lines
    marks = [line for i, line in enumerate(curve) if i in {0, 1, 3, 7, 15, 31, len(curve) - 1}]
    rows = [
        [
            f"{line['step']:,}",
            f"{line['seconds']:,.0f}",
            f"{100 * (1 - line['error']):.2f}",
            f"{line['nlpd']:.4f}",
        ]
        for line in marks
    ]
    return (
        f"## MNIST\n\n60,000 training and 10,000 test images, pixels with one shift and scale, {MNIST_INDUCING} inducing "
        f"points from k-means, one length scale to a pixel, minibatches of {MNIST_BATCH:,}, natural gradients and Adam "
        f"over {heading['steps']:,} steps. {PHASES_TEXT}. Seconds are those of training; the paper has "
        f"98.04 % and {PAPER['nlpd']}.\n\n{report.describe(heading['where'], 'float32')}\n\n"
        + report.table(["step", "seconds", "test accuracy, %", "test NLPD"], rows)
        + "\n![Test error and NLPD against seconds](robustmax_mnist.png)\n\n"
        "The inducing digits that moved farthest:\n\n![Inducing digits before, after and difference](robustmax_digits.png)\n"
    )
