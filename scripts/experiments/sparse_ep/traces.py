"""Test scores of SparseEP and its rivals over the seconds of their training: small batch, MNIST, airline."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext import datasets
from gpflow_ext.ep.sign_agreement import SignAgreement
from gpflow_ext.training import gradient

from ...shared import report, segments
from ...shared.journal import Journal, Record
from .methods import (
    FITC,
    SEP,
    SVI,
    Contender,
    Data,
    SVIAdam,
    paper_kernel,
    scores,
    set_hyperparameters,
)
from .tracer import Tracer, traced

INDUCING, MINIBATCH, IMAGE_TRAINING = 200, 200, 1565
SETS = {  # experiment: data sets
    "time": ("image",),
    "mnist": ("mnist_odd_even",),
    "airline": ("airline_2008", "airline_houston_2011"),
}
TITLES = {
    "time": "Image, batch methods",
    "mnist": "MNIST odd against even, 60,000 images",
    "airline_2008": "Airline 2008",
    "airline_houston_2011": "Airline, Houston 2011",
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
at the median distance of the inducing points. Minibatches of {minibatch}. SparseEP in batch moves the hyperparameters by
the authors' rule from step sizes 1e-3 and damps by 0.5, with minibatches by ADADELTA (rate 1, decay 0.9, ε 1e-5) or
Adam(0.01). SVGP has the same kernel, likelihood and start: all parameters by Adam(0.01), or the variational ones by natural
gradients (γ = 0.1) and the rest by Adam(0.01).
""",
    "airline": """\
## Airline delays

Eight attributes, standardised, late against on time, a tenth of the rows drawn with seed 0 for testing. Neither set is
that of the paper (2,127,068 flights of January to April 2008): error rates are not comparable with it. M = {inducing},
{float}, minibatches of {minibatch}. All start from variance 1, noise variance 1e-3 and length scales at the median
distance of the inducing points. SparseEP by ADADELTA (rate 1, decay 0.9, ε 1e-5) or Adam(0.01); SVGP by Adam(0.01), or its
variational parameters by natural gradients (γ = 0.1) and the rest by Adam(0.01).
""",
}
COMMON = (
    "Seconds are those after the first step, in which a method compiles; the evaluations are not in them.\n"
)


def run(
    journal: Journal, experiment: str, budget: float, rows: int | None, inducing: int, folder: Path
) -> None:
    """Measure what the journal lacks of one experiment, ``budget`` seconds to a method; draw the figures."""
    for name in SETS[experiment]:
        key = {"experiment": experiment, "set": name, "inducing": inducing, "budget": budget}
        methods = _methods(experiment)
        missing = [method for method in methods if not journal.find(**key, method=method)]
        if not missing:
            continue
        single = experiment == "mnist"
        with _precision(np.float32 if single else np.float64):
            train, test = load(name, rows)
            Z = train[0][np.random.default_rng(0).choice(len(train[0]), inducing, replace=False)]
            sizes = {
                "rows": len(train[0]),
                "test_rows": len(test[0]),
                "float": "float32" if single else "float64",
            }
            for method in missing:
                measured = methods[method](train, test, Z, budget)
                journal.add({**key, "method": method, **sizes, **measured})
                print(f"{experiment}, {name}, {method}: done", flush=True)
                stem = _stem(experiment, name)
                figure(folder / f"sparse_ep_{stem}.png", TITLES[stem], _found(journal, experiment, name))


def _methods(experiment: str) -> dict[str, Method]:
    if experiment == "time":
        return BATCH
    return {"SparseEP, batch": sep_batch, **STOCHASTIC} if experiment == "mnist" else STOCHASTIC


@contextlib.contextmanager
def _precision(dtype: Any) -> Iterator[None]:
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        yield


def load(name: str, rows: int | None) -> tuple[Data, Data]:
    """Return the training and test part, at most ``rows`` of each, standardised."""
    if name == "image":
        train, test = segments.parts(0, IMAGE_TRAINING, 2086)
    else:
        train, test = datasets.load(name, seed=0, test_fraction=0.1)
    (X, Y), (X_test, Y_test) = train, test
    return (X[:rows], Y[:rows]), (X_test[:rows], Y_test[:rows])


def _contender(
    method: Callable[[Any, Any], Contender], train: Data, test: Data, Z: Any, budget: float
) -> Record:
    """Trace a batch method of the UCI experiment by the seconds of the processor."""
    contender = method(train, Z)
    contender.start(train, Z, median_distance(Z))
    scores = functools.partial(contender.scores, test)
    return traced(lambda each: contender.run(10**6, each), scores, budget, time.process_time)


def median_distance(Z: Any) -> float:
    """Return the median distance of the inducing points."""
    squares = (Z**2).sum(1)
    squared = squares[:, None] + squares - 2.0 * Z @ Z.T
    return float(np.sqrt(np.median(np.maximum(squared, 0.0)[np.triu_indices(len(Z), 1)])))


def starting_kernel(Z: Any) -> gpflow.kernels.Kernel:
    """Return the paper's kernel, its length scales at the median distance of the inducing points."""
    kernel = paper_kernel(Z.shape[1])
    set_hyperparameters(kernel, median_distance(Z))
    return kernel


def _fitted(model: Any, test: Data, budget: float, data: Data | None = None, **options: Any) -> Record:
    """Trace `gpflow_ext.fit`."""
    predict = tf.function(model.predict_f)
    return traced(
        lambda tracer: gpx.fit(model, data, steps=10**9, monitor=tracer, progress=False, seed=0, **options),
        lambda: scores(model.likelihood, predict, test),
        budget,
    )


def sep_batch(train: Data, test: Data, Z: Any, budget: float) -> Record:
    """`SparseEP`, all data in each step, by the authors' rule."""
    model = gpx.models.SparseEP(
        train, starting_kernel(Z), gpx.likelihoods.BernoulliProbit(), inducing_variable=Z.copy()
    )
    return _fitted(model, test, budget, optimizer=SignAgreement(1e-3), damping=0.5)


def sep_minibatches(optimizer: Callable[[], Any], train: Data, test: Data, Z: Any, budget: float) -> Record:
    """`SparseEP` by minibatches."""
    model = gpx.models.SparseEP(
        train, starting_kernel(Z), gpx.likelihoods.BernoulliProbit(), inducing_variable=Z.copy()
    )
    return _fitted(model, test, budget, optimizer=optimizer(), minibatch_size=MINIBATCH)


def _svgp(train: Data, Z: Any) -> gpflow.models.SVGP:
    return gpflow.models.SVGP(
        starting_kernel(Z), gpx.likelihoods.BernoulliProbit(), Z.copy(), num_data=len(train[0])
    )


def svgp_adam(train: Data, test: Data, Z: Any, budget: float) -> Record:
    """`SVGP`, all parameters by Adam."""
    optimizer = tf_keras.optimizers.Adam(0.01)
    return _fitted(_svgp(train, Z), test, budget, train, optimizer=optimizer, minibatch_size=MINIBATCH)


def svgp_natural_gradients(train: Data, test: Data, Z: Any, budget: float) -> Record:
    """`SVGP`, the variational parameters by natural gradients and the rest by Adam."""
    model = _svgp(train, Z)
    for part in (model.q_mu, model.q_sqrt):
        gpflow.set_trainable(part, False)
    variables = model.trainable_variables
    natural = gpflow.optimizers.NaturalGradient(gamma=0.1)
    adam = tf_keras.optimizers.Adam(0.01)
    adam.build(variables)
    batches = gradient.Minibatches(train, MINIBATCH, 0)
    predict = tf.function(model.predict_f)

    @tf.function
    def step(batch: Any) -> None:
        loss = functools.partial(model.training_loss, batch)
        natural.minimize(loss, [(model.q_mu, model.q_sqrt)])
        adam.minimize(loss, variables)

    def train_steps(tracer: Tracer) -> None:
        for number, batch in enumerate(batches, 1):
            step(batch)
            tracer(number)

    return traced(train_steps, lambda: scores(model.likelihood, predict, test), budget)


Method: TypeAlias = Callable[[Data, Data, Any, float], Record]
BATCH: dict[str, Method] = {
    **{contender.__name__: functools.partial(_contender, contender) for contender in (FITC, SEP, SVI)},
    "SVI, Adam": functools.partial(_contender, SVIAdam),
}
STOCHASTIC: dict[str, Method] = {
    "SparseEP, minibatches": functools.partial(
        sep_minibatches, functools.partial(tf_keras.optimizers.Adadelta, 1.0, rho=0.9, epsilon=1e-5)
    ),
    "SparseEP, minibatches, Adam": functools.partial(
        sep_minibatches, functools.partial(tf_keras.optimizers.Adam, 0.01)
    ),
    "SVGP, Adam": svgp_adam,
    "SVGP, natural gradients": svgp_natural_gradients,
}


def _stem(experiment: str, name: str) -> str:
    """Return what distinguishes the file of a figure."""
    return name if experiment == "airline" else experiment


def document(journal: Journal, experiment: str) -> list[str]:
    """Return the tables of what the journal holds, as Markdown."""
    text: list[str] = []
    for name in SETS[experiment]:
        records = _found(journal, experiment, name)
        if not records:
            continue
        if not text:
            text = [TEXT[experiment].format(**records[0], minibatch=MINIBATCH, about=segments.ABOUT), COMMON]
        stem = _stem(experiment, name)
        if experiment == "airline":
            text.append(f"### {TITLES[stem]}: {records[0]['rows']:,} + {records[0]['test_rows']:,} flights\n")
        text += [_table(records), f"![{TITLES[stem]}](sparse_ep_{stem}.png)\n"]
    return text


def _found(journal: Journal, experiment: str, name: str) -> list[Record]:
    """Return what the journal holds, in the order of the methods."""
    order = list(_methods(experiment))
    found = journal.find(experiment=experiment, set=name)
    return sorted(found, key=lambda record: order.index(record["method"]))


def _table(records: Sequence[Record]) -> str:
    """Return the scores at a tenth of the budget and at its end."""
    rows = []
    for record in records:
        late = np.array(record["seconds"]) >= record["budget"] / 10.0
        early = int(np.argmax(late)) if late.any() else -1
        end = f" (not finite after {record['diverged']:.0f} s)" if "diverged" in record else ""
        row = [record["method"] + end, f"{record['first_call']:.1f}"]
        for index in (early, -1):
            row += [
                f"{record['seconds'][index]:.0f}",
                f"{record['steps'][index]}",
                f"{record['nll'][index]:.3f}",
                f"{100.0 * record['error'][index]:.2f}",
            ]
        rows.append(row)
    shown = ("seconds", "steps", "test NLL", "test error, %")
    return report.table(("method", "first step, s", *shown, *shown), rows)


def figure(path: Path, title: str, records: Sequence[Record]) -> None:
    """Draw test NLL and error against seconds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    styles = ("-o", "--^", ":s", "-.D", "-x")
    colours = ("#0b5fa5", "#c8500a", "black", "#4a8c2a", "#8a3ffc")
    drawn, axes = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    for record, style, colour in zip(records, styles, colours, strict=False):
        for ax, name in zip(axes, ("nll", "error"), strict=True):
            seconds = np.maximum(record["seconds"], 1e-2)
            ax.plot(seconds, record[name], style, color=colour, label=record["method"], markersize=3.5)
    for ax, label in zip(axes, ("test negative log-likelihood", "test error"), strict=True):
        ax.set(xscale="log", xlabel="seconds of training", ylabel=label)
        ax.grid(color="0.9", linewidth=0.6)
    drawn.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=8
    )
    drawn.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=92)
    plt.close(drawn)
