"""`report`: one page of HTML that shows how good a model is and what it has learnt."""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import scipy.special
import tensorflow as tf

from gpflow_ext.citations import cite
from gpflow_ext.data.datasets import Scaler, Split
from gpflow_ext.data.datasets.missing import without_missing_tests
from gpflow_ext.data.datasets.targets import names_of
from gpflow_ext.likelihoods import CountLikelihood
from gpflow_ext.numerics.target_moments import innermost
from gpflow_ext.persistence.manifest import recorded, versions
from gpflow_ext.prediction import baselines, dependence, learnt, metrics, plotting
from gpflow_ext.prediction.batches import Predicted
from gpflow_ext.prediction.held_out import without_weights
from gpflow_ext.training.loop import FitResult

Array = npt.NDArray[Any]
_ROWS = 1000  # of the test part that are predicted for pictures
_BARS = 10
_MOST_TERMS = 20_000  # probabilities of counts that are summed up for a picture
_BASELINE_ROWS = 5000  # of the training part that a linear model is fitted to
_RANGES = 20  # inputs whose ranges are told
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .8rem;border-bottom:1px solid #ddd;"
    "text-align:left}img{max-width:100%}pre{overflow-x:auto;background:#f6f6f6;padding:.8rem}"
)


def report(
    model: Any,
    split: Split,
    path: str | os.PathLike[str],
    *,
    result: FitResult | None = None,
    notes: str | Sequence[str] = (),
) -> Path:
    """Write a page about a model and its data, and return its path.

    It is a model card: the data and their notes, how the training ended and its seconds, versions, the limits
    of the model, scores of the test part with 95 % intervals (`metrics.intervals`) beside those of a linear
    model and of none (`prediction.baselines`), a picture of calibration, the hyperparameters (of an average a
    line for each model), the partial dependence of each class or target on the inputs that move it the most
    (`prediction.dependence`), and the references to cite. The pictures are in the page.

    Parameters
    ----------
    model
        A trained GPflow model of ``split.train``, or an object that holds one as ``model`` or ``model_``,
        such as the result of `auto` or an estimator that takes the inputs of the split, and may scale them.
    split
        The data, with a test part. Test rows with missing targets are left out.
    path
        The file to write, such as ``"report.html"``.
    result
        What `fit` has returned; estimators and the result of `auto` hold it.
    notes
        Sentences about the limits of the model, as `export` takes them.

    Raises
    ------
    ValueError
        If the split has no test rows or is not a `Split`, ``model`` is no model or an estimator whose classes
        are not those of the split in their order, ``notes`` are no text, or there is no folder for the page.
    ImportError
        Without matplotlib.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError('report needs matplotlib: pip install "gpflow-ext[plot]".') from error
    if not isinstance(split, Split):
        raise ValueError(
            f"split must be what datasets.load returns, with names and notes; got a {type(split).__name__}"
        )
    _check_classes(getattr(model, "classes_", None), split.labels)
    result = result or getattr(getattr(model, "estimator", model), "result_", None)
    why = getattr(model, "why", None)
    limits = recorded(None, None, notes, None)["notes"]
    split = without_missing_tests(_scaled(split, getattr(model, "scaler_", None)))
    model = getattr(model, "model", getattr(model, "model_", model))
    X, Y = split.test
    if not len(X):
        raise ValueError("split has no test rows with targets: give load, or auto, test_fraction above 0")
    if not isinstance(getattr(model, "likelihood", None), gpflow.likelihoods.Likelihood):
        raise ValueError(
            f"model must be a GPflow model or hold one as `model` or `model_`; got a {type(model).__name__}"
        )
    if not isinstance(path, str | os.PathLike) or Path(path).is_dir() or not Path(path).parent.is_dir():
        raise ValueError(f"path must be that of a file in a folder that is there; got {path!r}")
    if split.exposure is not None and Y.shape[1] == 1:
        Y = np.column_stack([Y, split.exposure[1]])
    if split.weights is not None and Y.shape[1] == getattr(model.likelihood, "num_targets", 0):
        Y = np.column_stack([Y, split.weights[1]])
    parts = [
        f"<h1>{html.escape(split.name)}: {html.escape(split.target)}</h1>",
        _data(model, split, result, why),
        "<h2>Limits</h2>",
        _limits(split, limits),
        "<h2>Scores</h2>",
        _scores(model, (X, Y), baselines.scores(_with_weights_apart(model, split), _BASELINE_ROWS)),
        "<h2>Calibration</h2>",
        _calibration(model, X, Y, split.labels),
        "<h2>What was learnt</h2>",
        _parameters(model, split),
        "<h2>Partial dependence</h2>",
        _dependence(model, split),
        "<h2>Reference</h2>",
        f"<pre>{html.escape(cite(model))}</pre>",
    ]
    title = html.escape(f"{type(model).__name__} on {split.name}")
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    )
    written = Path(path)
    written.write_text(page + "\n".join(parts) + "</html>\n", encoding="utf-8")
    return written


def _check_classes(classes: Array | None, labels: Sequence[str] | None) -> None:
    """Refuse an estimator that numbers classes in another way than the split: its scores would be wrong."""
    if classes is None or labels is None:
        return
    names = names_of(classes)
    if names != list(map(str, range(len(labels)))) and names != list(labels):
        raise ValueError(
            f"the estimator has the classes {', '.join(names)}, and the split {', '.join(labels)} in this "
            f"order: fit it to the numbers of all classes in split.train, 0 to {len(labels) - 1}"
        )


def _scaled(split: Split, scaler: Any) -> Split:
    """Return the data with the inputs that an estimator with this scaler gives its model."""
    if scaler is None:
        return split
    train, test = ((scaler.transform(X).astype(X.dtype), Y) for X, Y in split)
    before = split.scaler
    whole = Scaler(before.mean + before.scale * scaler.mean_, before.scale * scaler.scale_)
    return replace(split, train=train, test=test, scaler=whole)


def _with_weights_apart(model: Any, split: Split) -> Split:
    """Return the data without the weights that a `Weighted` likelihood may have after the targets."""
    width = getattr(model.likelihood, "num_targets", split.test[1].shape[1]) + 1
    apart = [without_weights(model, Y) if Y.shape[1] == width else (Y, None) for _, Y in split]
    if all(weights is None for _, weights in apart):
        return split
    train, test = ((X, Y) for (X, _), (Y, _) in zip(split, apart, strict=True))
    found = (np.ones((len(Y), 1)) if weights is None else weights[:, None] for Y, weights in apart)
    of_train, of_test = split.weights or found
    return replace(split, train=train, test=test, weights=(of_train, of_test))


def _table(rows: Sequence[Sequence[str]], heads: Sequence[str] = ()) -> str:
    head = "<tr>" + "".join(f"<th>{html.escape(each)}</th>" for each in heads) + "</tr>" if heads else ""
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table>{head}{body}</table>"


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(each)}</li>' for each in sentences)}</ul>"


def _data(model: Any, split: Split, result: FitResult | None, why: str | None) -> str:
    rows = [
        ("model", f"{type(model).__name__}, {type(innermost(model.likelihood)).__name__} likelihood"),
        ("task", split.task),
        ("rows", f"{len(split.train[0])} for training, {len(split.test[0])} for testing"),
        ("inputs", ", ".join(split.feature_names)),
        *([("classes", ", ".join(split.labels))] if split.labels else []),
        ("source", split.source),
        ("training", "unknown: give report(result=...)" if result is None else str(result)),
        *([("chosen by auto", why)] if why else []),
        ("versions", ", ".join(f"{library} {version}" for library, version in versions().items())),
    ]
    return _table(rows) + _list(split.notes)


def _limits(split: Split, notes: Sequence[str]) -> str:
    """Return what the model is not for: inputs beyond those of its training, and what its maker says."""
    X = split.scaler.inverse(split.train[0])
    ranges = [
        f"{name} {low:.4g} to {high:.4g}"
        for name, low, high in zip(split.feature_names, X.min(axis=0), X.max(axis=0), strict=True)
    ]
    more = f"; and {len(ranges) - _RANGES} further inputs" if len(ranges) > _RANGES else ""
    return _list(
        [
            f"The training rows have {'; '.join(ranges[:_RANGES])}{more}. Beyond them predictions rest on "
            "the kernel alone.",
            "The test rows are from the same source as the training rows. Intervals of scores are for the "
            "choice of test rows, not of training rows.",
            *notes,
        ]
    )


def _scores(model: Any, data: tuple[Array, Array], others: Mapping[str, Mapping[str, float]]) -> str:
    found, ends = metrics.evaluate(model, data), metrics.intervals(model, data)
    rows = [
        (
            name,
            f"{value:.4g}",
            "–" if name not in ends else f"{ends[name][0]:.4g} to {ends[name][1]:.4g}",
            *(f"{scores[name]:.4g}" for scores in others.values()),
        )
        for name, value in found.items()
    ]
    return _table(rows, ("score", "on the test rows", "95 % interval", *others))


def _calibration(model: Any, X: Array, Y: Array, labels: Sequence[str] | None) -> str:
    X, Y, weights = _counted(model, X, Y)
    found = Predicted(model)
    scored = found(found.of.scored, tf.constant(X), tf.constant(Y))
    figure, ax = _axes()
    if "probabilities" in scored:
        p = scored["probabilities"].numpy()
        chosen = p[:, 1] if p.shape[1] == 2 else p.max(axis=1)
        hit = Y[:, 0] if p.shape[1] == 2 else p.argmax(axis=1) == Y[:, 0]
        plotting.calibration(ax, chosen, hit.astype(float), weights=weights)
        second = labels[1] if labels else "the second class"
        what = html.escape(second) if p.shape[1] == 2 else "the predicted class being right"
        text = (
            f"Observed frequency of {what} against its predicted probability; on the line it is calibrated."
        )
    else:
        levels = _levels_of_counts(model, X, Y)
        below, upto = levels or _normal_levels(model, X, Y)
        each = np.repeat(weights, len(below) // len(weights))  # of several targets
        edges = np.linspace(0.0, 1.0, _BARS + 1)
        heights = _BARS * np.diff(_shares(below, upto, edges, each))
        ax.bar(edges[:-1], heights, 1.0 / _BARS, align="edge", color="0.6")
        ax.axhline(1.0, color="k", linewidth=1)
        normal = ", as if it were normal" if levels is None else ""
        ax.set_xlabel(f"predicted probability of a smaller value{normal}")
        ax.set_ylabel("density of the targets")
        text = "Where the targets lie in their predicted distributions; a flat picture is calibrated."
    return f"<p>{text}</p>" + _picture(figure)


def _counted(model: Any, X: Array, Y: Array) -> tuple[Array, Array, Array]:
    """Return the first rows that count, inputs and targets, and their weights [B]."""
    Y, weights = without_weights(model, Y)
    weights = np.ones(len(Y)) if weights is None else weights
    rows = np.flatnonzero(weights)[:_ROWS]
    return X[rows], Y[rows], weights[rows]


def _shares(below: Array, upto: Array, edges: Array, weights: Array | None = None) -> Array:
    """Return the share of the data below each level, each spread evenly from P(y' < y) to P(y' <= y).

    The probability integral transform of Czado, Gneiting & Held (2009, equation 2), for counts and numbers.
    """
    step = np.maximum(upto - below, np.finfo(float).tiny)[:, None]
    return np.average(np.clip((edges - below[:, None]) / step, 0.0, 1.0), axis=0, weights=weights)


def _levels_of_counts(model: Any, X: Array, Y: Array) -> tuple[Array, Array] | None:
    """Return P(y' < y) and P(y' <= y) of counts at their exposures; ``None`` for others, and large ones."""
    likelihood = getattr(model.likelihood, "likelihood", model.likelihood)
    counts = Y[:, 0]
    known = isinstance(likelihood, CountLikelihood | gpflow.likelihoods.Poisson)
    if not known or Y.shape[1] > 1 + bool(getattr(likelihood, "exposure", False)):
        return None
    terms = counts.astype(int) + 1
    if (counts != np.round(counts)).any() or terms.sum() > _MOST_TERMS:
        return None
    row = np.repeat(np.arange(len(Y)), terms)
    first = np.cumsum(terms) - terms
    many = Y[row]
    many[:, 0] = np.arange(len(row)) - first[row]
    found = Predicted(model)
    p = np.exp(found(found.of.scored, tf.constant(X[row]), tf.constant(many))["log_density"].numpy())
    upto = np.bincount(row, weights=p, minlength=len(Y))
    return upto - p[first + terms - 1], upto


def _normal_levels(model: Any, X: Array, Y: Array) -> tuple[Array, Array]:
    """Return P(y' <= y) twice, by the moments of the prediction."""
    found = Predicted(model)
    mean, variance = (part.numpy() for part in found(found.of.moments, tf.constant(X)))
    if getattr(model.likelihood, "exposure", False):
        exposure, Y = Y[:, 1:], Y[:, :1]
        mean, variance = exposure * mean, exposure * mean + exposure**2 * (variance - mean)
    level = scipy.special.ndtr((Y - mean) / np.sqrt(variance)).ravel()
    return level, level


def _parameters(model: Any, split: Split) -> str:
    """Return what a model has learnt: all of it, of an average a line for each member."""
    (_, first), *others = members = learnt.trained(model)
    scaler, names = split.scaler, split.feature_names
    plain = not scaler.mean.any() and (scaler.scale == 1.0).all()
    units = (
        f"Length scales are in {'the units of the inputs' if plain else 'standardised units'}; where each "
        "input has one, the most relevant input is the first."
    )
    if not others:
        return f"<p>{units}</p>" + _table(learnt.parameters(first, names), ("parameter", "value"))
    rows = [
        (
            f"{weight:.0%}",
            learnt.in_words(one.kernel),
            "; ".join(learnt.scales(one.kernel, names)),
            learnt.with_values(type(one.likelihood).__name__, one.likelihood),
        )
        for weight, one in members
    ]
    text = f"The predictions are averages over {len(members)} models. {units}"
    return f"<p>{text}</p>" + _table(rows, ("weight", "kernel", "length scales", "likelihood"))


def _dependence(model: Any, split: Split) -> str:
    text, figure = dependence.picture(model, split)
    return f"<p>{html.escape(text)}</p>" + _picture(figure)


def _axes() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.0), layout="constrained")
    return figure, figure.subplots()


def _picture(figure: Any) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
