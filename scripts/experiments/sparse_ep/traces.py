"""Test scores of SparseEP and its rivals over the seconds of their training: small batch, MNIST, airline."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gpflow
import numpy as np

from gpflow_ext import datasets

from ...shared import flights, report, segments
from ...shared.journal import Journal, Record
from .methods import Data
from .rivals import (
    BATCH,
    FEW_ROWS,
    FIRST,
    HELD_OUT,
    LARGE,
    LENGTHS,
    MANY_POINTS,
    MINIBATCH,
    POINTS_OF_MANY,
    RATES,
    SEARCH,
    STEPS,
    STOCHASTIC,
    Method,
    batch,
)

INDUCING, IMAGE_TRAINING = 200, 1565
FLIGHTS, TEST_FLIGHTS = 2_127_068, 100_000  # generated, as many as the paper has; those for testing
SETS = {  # experiment: data sets
    "time": ("image",),
    "mnist": ("mnist_odd_even",),
    "airline": ("airline_2008", "airline_houston_2011", "airline_generated", "airline_bts"),
}
TITLES = {
    "time": "Image, batch methods",
    "mnist": "MNIST odd against even, {rows:,} images",
    "airline_2008": "Airline 2008",
    "airline_houston_2011": "Airline, Houston 2011",
    "airline_generated": "Generated flights",
    "airline_bts": "Airline, all carriers",
}
TEXT = {
    "time": """\
## Test scores as a function of time

The `image` set: {about}
{rows:,} rows for training, the other {test_rows:,} for testing, drawn with seed 0, M = {inducing}, {float}; the available text of the
paper gives neither M nor the split. Seconds are those of the processor, one thread. Batch methods and starting point as in
the table above, except for the length scales, which start at the median distance of the inducing points.
""",
    "mnist": """\
## MNIST, odd against even

{rows:,} training and {test_rows:,} test images, pixels standardised, M = {inducing}, {float}, one length scale to a pixel, started
at the median distance of the inducing points. SparseEP in batch moves the hyperparameters by
the authors' rule from step sizes 1e-3 and damps by 0.5. {methods}.
""",
    "airline": """\
## Airline delays

Eight attributes, standardised, late against on time. The two real sets, of which a tenth drawn with seed 0 is for testing,
are not that of the paper (2,127,068 flights of January to April 2008): error rates are not comparable with it. There are as many
generated flights as the paper has, which follow a known law; the last line is what the law itself is expected to score on the test
flights, the best that is possible. `python -m scripts.tools.flights` makes the paper's own set from the records of the Bureau of
Transportation Statistics, for those who have them, and this experiment then uses it too.

M = {inducing}, {float}. All start from variance 1, noise variance 1e-3 and length scales at the median distance of the inducing
points. {methods},
but for those with {many} points and those that begin after {few:,} rows. These have it once {share:.0%} of the seconds are over, and
no trials of starts.

Where a name begins with a number of rows, minibatches have as many, and where with one of points, so many inducing points are
drawn in the same way. After {few:,} rows means that L-BFGS first learns all parameters from so many, drawn with seed 0, for a
third of the seconds, its compilation among them. The processors of the runs, which are listed at the end, differ in the steps
that they take in the same seconds.
""",
}
METHODS = f"""\
Minibatches of {MINIBATCH}. SparseEP is trained with the authors' ADADELTA (rate 1, decay 0.9, ε 1e-5), and as
`gpx.fit` does it by default, as are the dual sites. The same `SVGP` is trained by Adam, or its variational parameters by natural
gradients and the rest by Adam(0.01). The rate of Adam is the best of {", ".join(map(str, RATES))}, the step length of natural
gradients the best of {", ".join(map(str, LENGTHS))}. Each was tried for {SEARCH:.0%} of the seconds on the training rows without at
most {HELD_OUT:,}, which judged it. These seconds are not counted, and a first step does not compile again what the search has
compiled. That of the dual sites includes trials of starting points, as did that of SparseEP by minibatches when most of this was
run. Its rate of Adam was constant then, and falls now. The traces of the dual sites have no last pass through all rows"""
COMMON = (
    "Seconds are those of the processor, one thread, after the first step, in which a method compiles; the evaluations are not in\n"
    "them.\n"
)


def run(
    journal: Journal,
    experiment: str,
    names: Sequence[str],
    budget: float,
    rows: int | None,
    inducing: int,
    folder: Path,
) -> None:
    """Measure what the journal lacks of an experiment on these sets, ``budget`` seconds to a method; draw figures."""
    for name in names:
        key = {"experiment": experiment, "set": name, "inducing": inducing, "budget": budget}
        methods = _methods(experiment)
        if rows is not None:
            methods = {each: method for each, method in methods.items() if each not in FIRST | MANY_POINTS}
        missing = [method for method in methods if not journal.find(**key, method=method)]
        if not missing or not _is_there(name):
            continue
        single = experiment == "mnist"
        with _precision(np.float32 if single else np.float64):
            train, test, best = load(name, rows)
            Z = train[0][np.random.default_rng(0).choice(len(train[0]), inducing, replace=False)]
            about = {
                "rows": len(train[0]),
                "test_rows": len(test[0]),
                "float": "float32" if single else "float64",
                **best,
            }
            for method in missing:
                measured = methods[method](train, test, Z, budget)
                journal.add({**key, "method": method, **about, **measured})
                print(f"{experiment}, {name}, {method}: done", flush=True)
                stem = _stem(experiment, name)
                records = _found(journal, experiment, name)
                figure(folder / f"sparse_ep_{stem}.png", _title(stem, records), records)


def _is_there(name: str) -> bool:
    """Return whether a set can be read; that of all carriers is one that a user has made by `scripts.tools.flights`."""
    return name != "airline_bts" or (Path(os.environ["GPFLOW_EXT_DATA"]) / f"{name}.csv.gz").is_file()


def _methods(experiment: str) -> dict[str, Method]:
    if experiment == "time":
        return BATCH
    if experiment == "mnist":
        return {"SparseEP, batch": batch, **STOCHASTIC}
    return {**STOCHASTIC, **LARGE, **FIRST, **MANY_POINTS}


@contextlib.contextmanager
def _precision(dtype: Any) -> Iterator[None]:
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        yield


def load(name: str, rows: int | None) -> tuple[Data, Data, dict[str, float]]:
    """Return the training and test part, at most ``rows`` of each, standardised, and the best scores if known."""
    best: dict[str, float] = {}
    if name == "image":
        train, test = segments.parts(0, IMAGE_TRAINING, 2086)
    elif name == "airline_generated":
        train, test, best = _generated(rows)
    else:
        train, test = datasets.load(name, seed=0, test_fraction=0.1)
    (X, Y), (X_test, Y_test) = train, test
    return (X[:rows], Y[:rows]), (X_test[:rows], Y_test[:rows]), best


def _generated(rows: int | None) -> tuple[Data, Data, dict[str, float]]:
    training, testing = (rows, rows) if rows else (FLIGHTS - TEST_FLIGHTS, TEST_FLIGHTS)
    found = flights.generated(training + testing)
    X = (found.X - found.X[:training].mean(axis=0)) / found.X[:training].std(axis=0)
    best = {f"best_{name}": value for name, value in flights.best_scores(found.late[training:]).items()}
    return (X[:training], found.Y[:training]), (X[training:], found.Y[training:]), best


def _stem(experiment: str, name: str) -> str:
    """Return what distinguishes the file of a figure."""
    return name if experiment == "airline" else experiment


def _title(stem: str, records: Sequence[Record]) -> str:
    """Return the title of a figure, with the size of what was measured."""
    return TITLES[stem].format(**records[0])


def document(journal: Journal, experiment: str) -> list[str]:
    """Return the tables of what the journal holds, as Markdown."""
    text: list[str] = []
    for name in SETS[experiment]:
        records = _found(journal, experiment, name)
        if not records:
            continue
        if not text:
            about: Record = {"methods": METHODS, "about": segments.ABOUT}
            about |= {"few": FEW_ROWS, "many": POINTS_OF_MANY, "share": STEPS}
            text = [TEXT[experiment].format(**records[0], **about), COMMON]
        stem = _stem(experiment, name)
        if experiment == "airline":
            text.append(f"### {TITLES[stem]}: {records[0]['rows']:,} + {records[0]['test_rows']:,} flights\n")
        text += [
            _table(records),
            *filter(None, [_verdict(records) if experiment == "airline" else ""]),
            f"![{_title(stem, records)}](sparse_ep_{stem}.png)\n",
        ]
    return text


def _found(journal: Journal, experiment: str, name: str) -> list[Record]:
    """Return what the journal holds, in the order of the methods."""
    order = list(_methods(experiment))
    found = journal.find(experiment=experiment, set=name)
    return sorted(found, key=lambda record: order.index(record["method"]))


def _verdict(records: Sequence[Record]) -> str:
    """Compare the best ends of dual sites, Adam and SparseEP in words, as far as there are such."""
    families = ("dual sites", "SVGP, Adam", "SparseEP")
    found = {name: [each["nll"][-1] for each in records if name in each["method"]] for name in families}
    ends = {name: min(each) for name, each in found.items() if each}
    ours = ends.pop("dual sites", None)
    if ours is None or not ends:
        return ""
    than = ", ".join(
        f"{'lower' if ours < other else 'not lower'} than that of {family} ({other:.4f})"
        for family, other in ends.items()
    )
    return f"The lowest test NLL of dual sites at the end, {ours:.4f}, is {than}.\n"


def _table(records: Sequence[Record]) -> str:
    """Return the scores at a tenth of the budget and at its end."""
    rows = []
    for record in records:
        late = np.array(record["seconds"]) >= record["budget"] / 10.0
        early = int(np.argmax(late)) if late.any() else -1
        end = f" (not finite after {record['diverged']:.0f} s)" if "diverged" in record else ""
        length = f" {record['step_length']:g}" if "step_length" in record else ""
        row = [record["method"] + length + end, f"{record['first_call']:.1f}"]
        for index in (early, -1):
            row += [
                f"{record['seconds'][index]:.0f}",
                f"{record['steps'][index]}",
                f"{record['nll'][index]:.3f}",
                f"{100.0 * record['error'][index]:.2f}",
            ]
        rows.append(row)
    if "best_nll" in records[0]:
        best = [f"{records[0]['best_nll']:.3f}", f"{100.0 * records[0]['best_error']:.2f}"]
        rows.append(["the law itself", "", *2 * ["", "", *best]])
    shown = ("seconds", "steps", "test NLL", "test error, %")
    return report.table(("method", "first step, s", *shown, *shown), rows)


def figure(path: Path, title: str, records: Sequence[Record]) -> None:
    """Draw test NLL and error against seconds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    styles = ("-o", "--^", ":s", "-.D", "-x", "--v", "-s", ":o", "-D", "-v", "--o", ":^")
    colours = (
        *("#0b5fa5", "#c8500a", "black", "#4a8c2a", "#8a3ffc", "#b0861b"),
        *("#d12771", "#5a6872", "#00868b", "#e3a008", "#7a1f1f", "#3f51d0"),
    )
    drawn, axes = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    for record, style, colour in zip(records, styles, colours, strict=False):  # a set has twelve at most
        for ax, name in zip(axes, ("nll", "error"), strict=True):
            seconds = np.maximum(record["seconds"], 1e-2)
            ax.plot(seconds, record[name], style, color=colour, label=record["method"], markersize=3.5)
    for ax, label in zip(axes, ("test negative log-likelihood", "test error"), strict=True):
        ax.set(xscale="log", xlabel="seconds of training", ylabel=label)
        ax.grid(color="0.9", linewidth=0.6)
    for ax, name in zip(axes, ("best_nll", "best_error"), strict=True):
        if name in records[0]:
            ax.axhline(records[0][name], color="0.5", linestyle=(0, (1, 1)), label="the law itself")
    drawn.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8
    )
    drawn.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=92)
    plt.close(drawn)
