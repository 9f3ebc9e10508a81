"""Plots: pure functions of axes and arrays. The caller imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpflow_ext.prediction.metrics import _ROUNDING, _counts

Array = npt.NDArray[Any]
_SHORT, _LONGEST = 6, 16  # characters of levels that are written upright, and of any


def convergence(ax: Any, objectives: Mapping[str, Array]) -> None:
    """Draw by how much each method falls short of the best objective of all, after each of its steps.

    Parameters
    ----------
    ax
        matplotlib axes.
    objectives
        Objective after each step, shape [steps], by the name of the method.
    """
    objectives = {name: np.asarray(objective) for name, objective in objectives.items()}
    best = max(objective.max() for objective in objectives.values())
    floor = np.finfo(float).eps * max(1.0, abs(best))
    for name, objective in objectives.items():
        ax.semilogy(
            np.arange(1, len(objective) + 1), np.maximum(best - objective, floor), marker="o", label=name
        )
    ax.set_xlabel("step")
    ax.set_ylabel("below the best objective")
    ax.legend()


def calibration(
    ax: Any, probabilities: Array, labels: Array, bins: int = 10, weights: Array | None = None
) -> None:
    """Draw the observed frequency of class 1 against its predicted probability, binned.

    Parameters
    ----------
    ax
        matplotlib axes.
    probabilities
        Predicted probability of class 1, shape [N].
    labels
        Observed classes 0 and 1, shape [N].
    bins
        Number of equal bins of [0, 1]; the area of a marker is proportional to the data in its bin.
    weights
        As how many copies each datum counts, [N]; once by default.

    Raises
    ------
    ValueError
        For other shapes or values.
    """
    probabilities, labels = np.asarray(probabilities, float), np.asarray(labels, float)
    if probabilities.ndim != 1 or labels.shape != probabilities.shape:
        raise ValueError(
            "probabilities of class 1 and labels must be [N] each; their shapes are "
            f"{probabilities.shape} and {labels.shape}"
        )
    if not (np.abs(probabilities - 0.5) <= 0.5 + _ROUNDING).all() or not np.isin(labels, (0.0, 1.0)).all():
        raise ValueError("probabilities must be from 0 to 1, and labels 0 or 1")
    index = np.minimum((probabilities * bins).astype(int), bins - 1)
    weight = _counts(weights, len(labels))
    counts = np.bincount(index, weight, bins)
    used = counts > 0.0
    predicted = np.bincount(index, weight * probabilities, bins)[used] / counts[used]
    observed = np.bincount(index, weight * labels, bins)[used] / counts[used]
    ax.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    ax.scatter(predicted, observed, s=20 + 200 * counts[used] / counts.sum())
    ax.set_xlabel("predicted probability")
    ax.set_ylabel("observed frequency")


def dependence(ax: Any, at: Array, mean: Array, band: Array, levels: Sequence[str] = ()) -> list[Any]:
    """Draw means along one column, each with its band; return their lines.

    Parameters
    ----------
    ax
        matplotlib axes.
    at
        Values of the column, shape [G].
    mean, band
        Means of K predictions, shape [G, K], and the ends of their bands, [2, G, K].
    levels
        Names of the G values of a category, which are drawn one beside the other.
    """
    colours = ["k"] if mean.shape[1] == 1 else [f"C{number}" for number in range(mean.shape[1])]
    if levels:
        shifts = (np.arange(len(colours)) + 0.5) / len(colours) - 0.5
        places = [np.asarray(at) + 0.6 * shift for shift in shifts]
        for place, colour, (low, high) in zip(places, colours, band.transpose(2, 0, 1), strict=True):
            ax.vlines(place, low, high, color=(colour, 0.4), linewidth=4)
        ax.set_xlim(-0.5, len(levels) - 0.5)
        tilt = {"rotation": 20, "ha": "right"} if max(map(len, levels)) > _SHORT else {}
        for tick in ax.set_xticks(at, [_short(level) for level in levels], **tilt):
            tick.label1.set_parse_math(False)
        lines = zip(places, colours, mean.T, strict=True)
        return [ax.plot(place, line, "o", color=colour)[0] for place, colour, line in lines]
    for colour, (low, high) in zip(colours, band.transpose(2, 0, 1), strict=True):
        ax.fill_between(at, low, high, facecolor=(colour, 0.12), edgecolor=(colour, 0.4), linewidth=0.7)
    return [ax.plot(at, line, color=colour)[0] for colour, line in zip(colours, mean.T, strict=True)]


def _short(level: str) -> str:
    return level if len(level) <= _LONGEST else f"{level[: _LONGEST - 1]}…"


def class_probability(
    ax: Any, grid: tuple[Array, Array], probabilities: Array, X: Array, labels: Array
) -> Any:
    """Draw the probability of class 1 over a plane with the data on top; return the filled contours.

    Parameters
    ----------
    ax
        matplotlib axes.
    grid
        Coordinates from ``numpy.meshgrid``, each [A, B].
    probabilities
        Probability of class 1 on the grid, shape [A, B].
    X, labels
        Data, shape [N, 2], and their classes 0 and 1, shape [N].
    """
    filled = ax.contourf(*grid, probabilities, levels=np.linspace(0.0, 1.0, 11), cmap="RdBu_r", alpha=0.8)
    ax.contour(*grid, probabilities, levels=[0.5], colors="k", linewidths=1)
    for value, marker in ((0, "o"), (1, "s")):
        chosen = X[np.ravel(labels) == value]
        ax.scatter(
            *chosen.T,
            marker=marker,
            s=14,
            edgecolors="k",
            linewidths=0.4,
            facecolors="w",
            label=f"class {value}",
        )
    return filled


def tuning(ax: Any, optimizer: Any, chosen: Any) -> Any:
    """Draw the surrogate's mean reward over step size and leapfrog steps; return the filled contours.

    Parameters
    ----------
    ax
        matplotlib axes.
    optimizer
        A `sampling.tuning.BayesianOptimizer` with its trials, such as `Draws.optimizer` returns.
    chosen
        The `sampling.tuning.Setting` of the long run.
    """
    filled = ax.contourf(*optimizer.grid(), levels=20, cmap="viridis")
    trials = [trial.setting for trial in optimizer.trials]
    ax.scatter(
        [each.step_size for each in trials],
        [each.max_leapfrogs for each in trials],
        s=16,
        c="w",
        edgecolors="k",
        linewidths=0.5,
        label="trial",
    )
    ax.scatter([chosen.step_size], [chosen.max_leapfrogs], s=90, c="r", marker="*", label="chosen")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("step size")
    ax.set_ylabel("largest number of leapfrog steps")
    ax.legend(loc="upper left")
    return filled
