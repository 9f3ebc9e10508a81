"""Partial dependence: what a model predicts as one column of the data moves, for each class or target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.data.datasets import Split
from gpflow_ext.data.datasets.targets import CLASSIFICATION
from gpflow_ext.prediction import plotting
from gpflow_ext.prediction.batches import Predicted

Array = npt.NDArray[Any]
_BACKGROUND = 40  # training rows whose other inputs are averaged over
_GRID = 25
_BAND = 0.1, 0.9
_LEVELS = 10  # of a category
_SHOWN = 6  # columns
_TARGETS = 6  # each of which has a row of panels
_IN_ROW = 3  # panels
_CLASSES = 10  # as many as there are colours


class Curve(NamedTuple):
    """Predictions along a column: its values [G], means [G, K] over rows, and a band [2, G, K] of these.

    The values of a category are the numbers of its ``levels``, G of them.
    """

    name: str
    at: Array
    mean: Array
    band: Array
    levels: tuple[str, ...] = ()

    @property
    def moved(self) -> Array:
        """By how much each mean moves, [K]."""
        return np.ptp(self.mean, axis=0)

    def of(self, which: Sequence[int]) -> Curve:
        """Return those of some of the means."""
        return self._replace(mean=self.mean[:, which], band=self.band[..., which])


class Move(NamedTuple):
    """What a column of the data does to the inputs that it has become."""

    name: str
    inputs: Array  # their numbers, [k]
    to: Array  # their values in turn, as the model has them, [G, k]
    at: Array  # that of the column, [G]
    levels: tuple[str, ...] = ()


class Shown(NamedTuple):
    """What is drawn: rows of panels, what moves in each row, names of the lines, and a remark."""

    rows: list[list[Curve]]
    what: list[str]
    lines: list[str]
    remark: str


def curves(model: Any, split: Split, rows: Array, most: int | None = None) -> list[Curve]:
    """Return the partial dependence (Friedman 2001) of the predicted means on each column of the data.

    A number takes values from the 2nd to the 98th percentile of the training rows, or from the least to the
    largest where these are equal, in the units of the data; a category its levels, those ten that most rows
    have. The other inputs are those of each of the rows [B, D]. The band holds four fifths of the rows.

    Parameters
    ----------
    model
        A model with ``predict_f`` and a ``likelihood``.
    split
        The data.
    rows
        Inputs of the model.
    most
        How many of the means are kept, the first ones; by default all.
    """
    moves = [*_of_numbers(split), *_of_categories(split)]

    def moved() -> Iterator[list[Array]]:
        for move in moves:
            many = np.tile(rows, (len(move.at), 1))
            many[:, move.inputs] = np.repeat(move.to, len(rows), axis=0)
            yield [many]

    found = Predicted(model)
    means = (mean.numpy()[:, :most] for mean, _ in found.over(found.of.moments, moved()))
    lines = (mean.reshape(-1, len(rows), mean.shape[1]) for mean in means)
    return [
        Curve(move.name, move.at, each.mean(axis=1), np.quantile(each, _BAND, axis=1), move.levels)
        for move, each in zip(moves, lines, strict=True)
    ]


def _of_numbers(split: Split) -> Iterator[Move]:
    """Yield the move of each input that is no level of a category."""
    of_levels = {number for numbers, *_ in _categories(split) for number in numbers}
    ends = np.quantile(split.train[0], (0.02, 0.98, 0.0, 1.0), axis=0)
    low, high = np.where(ends[0] < ends[1], ends[:2], ends[2:])
    grids = np.linspace(low, high, _GRID, axis=1)
    units = grids * split.scaler.scale[:, None] + split.scaler.mean[:, None]
    for number, name in enumerate(split.feature_names):
        if number not in of_levels:
            yield Move(name, np.array([number]), grids[number, :, None], units[number])


def _of_categories(split: Split) -> Iterator[Move]:
    """Yield the move of each category, whose levels exclude one another."""
    for numbers, levels, name in _categories(split):
        mean, scale = split.scaler.mean[numbers], split.scaler.scale[numbers]
        rows = split.train[0][:, numbers].mean(axis=0) * scale + mean
        most = np.sort(np.argsort(-rows, kind="stable")[:_LEVELS])
        to = (np.eye(len(numbers))[most] - mean) / scale
        yield Move(name, numbers, to, np.arange(len(most)), tuple(levels[place] for place in most))


def _categories(split: Split) -> Iterator[tuple[Array, list[str], str]]:
    """Yield the inputs and levels of each category that the table had, and its name."""
    places = {name: number for number, name in enumerate(split.feature_names)}
    for column in () if split.treatment is None else split.treatment.columns:
        if column.kind == "one-hot" and places.keys() >= set(column.input_names):
            yield np.array([places[name] for name in column.input_names]), list(column.levels), column.name


def shown(model: Any, split: Split, rows: Array) -> Shown:
    """Return the panels of a model: of one target six inputs, of several three inputs for each of six.

    The inputs are those that move the predictions the most. Several classes are lines of one panel, at most
    the ten that move the most; of two the second one is enough, and ordered levels have a mean.
    """
    predicted = Predicted(model)
    width = int(predicted(predicted.of.moments, tf.constant(rows[:1]))[0].shape[-1])
    if split.task in CLASSIFICATION:
        return _of_classes(split, curves(model, split, rows))
    found = curves(model, split, rows, _TARGETS)
    names = split.target.split(", ")
    if width == 1:
        what = f"mean of {split.target}" + (" at exposure one" if split.exposure is not None else "")
        return Shown(_in_rows(_moving_most(found, _SHOWN)), [what], [], "")
    names = names if len(names) == width else [f"target {number + 1}" for number in range(width)]
    few = range(min(width, _TARGETS))
    panels = [_moving_most([each.of([target]) for each in found], _IN_ROW) for target in few]
    remark = f" Of {width} targets the first {_TARGETS} are shown." if width > _TARGETS else ""
    return Shown(panels, [f"mean of {names[target]}" for target in few], [], remark)


def picture(model: Any, split: Split) -> tuple[str, Any]:
    """Return sentences about the partial dependence of a model, and a matplotlib figure of it."""
    from matplotlib.figure import Figure

    X = split.train[0]
    rows = X[np.random.default_rng(0).permutation(len(X))[:_BACKGROUND]]
    panels, what, lines, remark = shown(model, split, rows)
    columns = max(map(len, panels))
    size = 4.0 * columns if columns > 1 else 6.0, 3.0 * len(panels) + 0.4 * bool(lines)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(panels), columns, squeeze=False, sharey="all" if len(what) == 1 else "row")
    for ax in axes.ravel():
        ax.set_axis_off()
    labels = what * len(panels) if len(what) == 1 else what
    for row, drawn, label in zip(axes, panels, labels, strict=True):
        for ax, curve in zip(row, drawn, strict=False):
            ax.set_axis_on()
            handles = plotting.dependence(ax, curve.at, curve.mean, curve.band, curve.levels)
            ax.set_xlabel(curve.name, parse_math=False)  # $ is a currency
        row[0].set_ylabel(label, parse_math=False)
    if lines:
        legend = figure.legend(handles, lines, loc="outside upper center", ncols=min(len(lines), _IN_ROW))
        for text in legend.get_texts():
            text.set_parse_math(False)
    said = what[0] if len(what) == 1 else "mean of each target"
    return (
        f"The {said} as one column moves, averaged over {len(rows)} training rows, and the band that holds "
        f"four fifths of them. The columns are those that move it the most.{remark}"
    ), figure


def _of_classes(split: Split, found: list[Curve]) -> Shown:
    """Return the panels of classes: lines of probabilities, or the mean of ordered levels."""
    labels = split.labels or ()
    width = found[0].mean.shape[1]
    if width == 1 and len(labels) > 2:
        what, which = f"mean level of {split.target} ({labels[0]} is 0)", [0]
    elif width <= 2:
        what, which = f"probability of {labels[-1] if labels else 'the second class'}", [width - 1]
    else:
        order = np.argsort(-np.max([each.moved for each in found], axis=0), kind="stable")
        what, which = "probability of each class", sorted(order[:_CLASSES])
    names = labels if len(labels) == width else [str(number) for number in range(width)]
    remark = f" Of {width} classes those {_CLASSES} that move the most are shown." if width > _CLASSES else ""
    kept = _moving_most([each.of(which) for each in found], _SHOWN)
    return Shown(
        _in_rows(kept), [what], [names[number] for number in which] if len(which) > 1 else [], remark
    )


def _moving_most(found: list[Curve], most: int) -> list[Curve]:
    """Return the curves of the inputs that move the predictions the most."""
    order = np.argsort([-each.moved.max() for each in found], kind="stable")
    return [found[place] for place in order[:most]]


def _in_rows(found: list[Curve]) -> list[list[Curve]]:
    return [found[first : first + _IN_ROW] for first in range(0, len(found), _IN_ROW)]
