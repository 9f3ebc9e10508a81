"""The methods whose test scores are traced over time: SparseEP, and SVGP with the best of a few step lengths."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.ep.sign_agreement import SignAgreement
from gpflow_ext.svgp.last_pass import last_pass
from gpflow_ext.svgp.whitened import WhitenedSVGP
from gpflow_ext.training import gradient

from ...shared.journal import Record
from .methods import FITC, SEP, SVI, Contender, Data, SVIAdam, paper_kernel, scores, set_hyperparameters
from .tracer import POINTS, Tracer, traced

MINIBATCH, LARGER = 200, 1000
FEW_ROWS = 20_000  # from which L-BFGS learns
POINTS_OF_MANY = 500  # inducing points
STEPS = 0.9  # the share of the seconds of dual sites after which the last pass begins
FEW_POINTS, MANY = 6, 500_000  # times at which the scores of more rows are taken
RATES = (0.003, 0.01, 0.03)  # of Adam
LENGTHS = (0.01, 0.03, 0.1)  # of natural gradients
SEARCH = 0.2  # the share of the budget that a step length is tried for
HELD_OUT = 10_000  # training rows, at most a tenth, that choose among them
Method: TypeAlias = Callable[[Data, Data, Any, float], Record]


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


def contender(
    method: Callable[[Any, Any], Contender], train: Data, test: Data, Z: Any, budget: float
) -> Record:
    """Trace a batch method of the UCI experiment."""
    made = method(train, Z)
    made.start(train, Z, median_distance(Z))
    score = functools.partial(made.scores, test)
    return traced(lambda each: made.run(10**6, each), score, budget, time.process_time)


def sparse_ep(train: Data, test: Data, Z: Any, budget: float, **options: Any) -> Record:
    """Trace `SparseEP`."""
    probit = gpx.likelihoods.BernoulliProbit()
    model = gpx.models.SparseEP(train, starting_kernel(Z), probit, inducing_variable=Z.copy())
    return by_fit(model, train, test, budget, **options)


def batch(train: Data, test: Data, Z: Any, budget: float) -> Record:
    """Trace `SparseEP`, all data in each step, by the authors' rule."""
    return sparse_ep(train, test, Z, budget, optimizer=SignAgreement(1e-3), damping=0.5, starts=1)


def adadelta(train: Data, test: Data, Z: Any, budget: float) -> Record:
    """Trace `SparseEP` by minibatches with the authors' optimiser."""
    optimizer = tf_keras.optimizers.Adadelta(1.0, rho=0.9, epsilon=1e-5)
    return sparse_ep(train, test, Z, budget, optimizer=optimizer, minibatch_size=MINIBATCH)


def defaults(train: Data, test: Data, Z: Any, budget: float, size: int = MINIBATCH) -> Record:
    """Trace `SparseEP` by minibatches as `gpflow_ext.fit` does them."""
    return sparse_ep(train, test, Z, budget, minibatch_size=size)


def svgp(train: Data, Z: Any) -> gpflow.models.SVGP:
    """Return GPflow's model with the same kernel, likelihood and start."""
    probit = gpx.likelihoods.BernoulliProbit()
    return gpflow.models.SVGP(starting_kernel(Z), probit, Z.copy(), num_data=len(train[0]))


def dual(
    train: Data, test: Data, Z: Any, budget: float, size: int = MINIBATCH, starts: int | None = None
) -> Record:
    """Trace `SVGP` by dual sites as `gpflow_ext.fit` does them, the last pass among it."""
    return by_dual_sites(svgp(train, Z), train, test, budget, size, starts)


def after_few_rows(train: Data, test: Data, Z: Any, budget: float) -> Record:
    """Trace the same where L-BFGS first learns from some of the rows, for a third of the seconds."""
    rows = np.random.default_rng(0).choice(len(train[0]), min(FEW_ROWS, len(train[0])), replace=False)
    part = train[0][rows], train[1][rows]
    few, model, begin = svgp(part, Z), svgp(train, Z), time.process_time()
    gpx.fit(few, part, seconds=budget / 3.0, starts=1, progress=False)
    gpflow.utilities.multiple_assign(model, gpflow.utilities.read_values(few))
    spent = time.process_time() - begin
    record = by_dual_sites(model, train, test, budget - spent, LARGER, 1)
    return record | {"seconds": [spent + seconds for seconds in record["seconds"]]}


def by_dual_sites(
    model: gpflow.models.SVGP, train: Data, test: Data, budget: float, size: int, starts: int | None
) -> Record:
    """Trace dual sites from where a model is."""
    options = {"recipe": "dual", "minibatch_size": size, "starts": starts}
    record = by_fit(model, train, test, STEPS * budget, **options)
    begin = time.process_time()
    last_pass(WhitenedSVGP(model, "dual"), train, None)
    end = {"seconds": record["seconds"][-1] + time.process_time() - begin, "steps": record["steps"][-1]}
    for name, value in {**end, **scores(model.likelihood, model.predict_f, test)}.items():
        record[name].append(value)
    return record


def adam(rate: float, train: Data, test: Data, Z: Any, budget: float, size: int = MINIBATCH) -> Record:
    """Trace `SVGP`, all parameters by Adam."""
    optimizer = tf_keras.optimizers.Adam(rate)
    options = {"recipe": "adam", "optimizer": optimizer, "minibatch_size": size}
    return by_fit(svgp(train, Z), train, test, budget, **options)


def natural_gradients(length: float, train: Data, test: Data, Z: Any, budget: float) -> Record:
    """Trace `SVGP`, the variational parameters by natural gradients and the rest by Adam(0.01)."""
    model = svgp(train, Z)
    for part in (model.q_mu, model.q_sqrt):
        gpflow.set_trainable(part, False)
    variables = model.trainable_variables
    natural = gpflow.optimizers.NaturalGradient(gamma=length)
    first_order = tf_keras.optimizers.Adam(0.01)
    first_order.build(variables)

    @tf.function
    def step(rows: Any) -> None:
        loss = functools.partial(model.training_loss, rows)
        natural.minimize(loss, [(model.q_mu, model.q_sqrt)])
        first_order.minimize(loss, variables)

    def run(tracer: Tracer) -> None:
        for number, rows in enumerate(gradient.Minibatches(train, MINIBATCH, 0), 1):
            step(rows)
            tracer(number)

    return scored(run, model, train, test, budget)


def by_fit(model: Any, train: Data, test: Data, budget: float, **options: Any) -> Record:
    """Trace `gpflow_ext.fit`."""
    data = train if isinstance(model, gpflow.models.SVGP) else None
    fit = functools.partial(gpx.fit, model, data, steps=10**9, progress=False, seed=0, **options)
    return scored(lambda tracer: fit(monitor=tracer), model, train, test, budget)


def scored(run: Callable[[Tracer], Any], model: Any, train: Data, test: Data, budget: float) -> Record:
    """Trace a training by the seconds of the processor, and by the scores of a model."""

    def score() -> Mapping[str, float]:  # sites are summed once: of two million that takes a minute
        return scores(model.likelihood, model.posterior().predict_f, test)

    points = FEW_POINTS if len(train[0]) > MANY else POINTS
    return traced(run, score, budget, time.process_time, points)


def tuned(
    method: Callable[..., Record],
    lengths: Sequence[float],
    train: Data,
    test: Data,
    Z: Any,
    budget: float,
) -> Record:
    """Trace a method with the step length, the least if all diverge, that scores best on rows held out of training."""
    held = min(HELD_OUT, len(train[0]) // 10)
    order = np.random.default_rng(0).permutation(len(train[0]))
    rest, out = (tuple(part[rows] for part in train) for rows in (order[held:], order[:held]))
    tried = {length: method(length, rest, out, Z, SEARCH * budget) for length in lengths}
    ends = {length: record["nll"][-1] for length, record in tried.items() if "diverged" not in record}
    best = min(ends or lengths, key=lambda length: ends.get(length, length))
    search = [[length, ends.get(length)] for length in lengths]
    return {"step_length": best, "search": search, **method(best, train, test, Z, budget)}


def with_many_points(method: Method, train: Data, test: Data, Z: Any, budget: float) -> Record:
    """Trace a method with more inducing points, drawn from the training rows as the fewer ones are."""
    order = np.random.default_rng(0).choice(len(train[0]), POINTS_OF_MANY, replace=False)
    return {"points": POINTS_OF_MANY, **method(train, test, train[0][order], budget)}


BATCH: dict[str, Method] = {
    **{each.__name__: functools.partial(contender, each) for each in (FITC, SEP, SVI)},
    "SVI, Adam": functools.partial(contender, SVIAdam),
}
STOCHASTIC: dict[str, Method] = {
    "SparseEP, ADADELTA": adadelta,
    "SparseEP": defaults,
    "SVGP, dual sites": dual,
    "SVGP, Adam": functools.partial(tuned, adam, RATES),
    "SVGP, natural gradients": functools.partial(tuned, natural_gradients, LENGTHS),
}
_DUAL = f"{LARGER:,} rows: SVGP, dual sites"
LARGE: dict[str, Method] = {
    _DUAL: functools.partial(dual, size=LARGER),
    f"{LARGER:,} rows: SVGP, Adam": functools.partial(tuned, functools.partial(adam, size=LARGER), RATES),
    f"{LARGER:,} rows: SparseEP": functools.partial(defaults, size=LARGER),
}
FIRST: dict[str, Method] = {f"{LARGER:,} rows after {FEW_ROWS:,}: SVGP, dual sites": after_few_rows}
_LARGE_MODELS: dict[str, Method] = {**LARGE, _DUAL: functools.partial(dual, size=LARGER, starts=1)}
MANY_POINTS: dict[str, Method] = {
    f"{POINTS_OF_MANY} points, {name}": functools.partial(with_many_points, method)
    for name, method in _LARGE_MODELS.items()
}
