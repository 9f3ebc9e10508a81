"""The recipe of `SVGPRobustMax`: natural gradients for q and an optimiser for the rest, on minibatches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.keras import tf_keras
from gpflow.models import SVGP

from gpflow_ext.data import checks
from gpflow_ext.data.rows import CHUNK
from gpflow_ext.svgp.early_stopping import EarlyStopping
from gpflow_ext.svgp.model import SVGPRobustMax
from gpflow_ext.svgp.natural_gradient import Minibatch, MinibatchAscent
from gpflow_ext.training.distribute import Shards
from gpflow_ext.training.gradient import next_minibatch
from gpflow_ext.training.gradient_descent import training_data
from gpflow_ext.training.loop import Status
from gpflow_ext.training.optimizers import built
from gpflow_ext.training.recipe import Recipe

_WARM_UP = 10  # steps over which γ rises to its value
_LAST_SHARE = 0.05  # of γ and of the learning rate, where a cosine ends


def stochastic_variational(
    model: SVGPRobustMax,
    data: Any = None,
    *,
    seed: int = 0,
    jit_compile: bool | None = None,
    minibatch_size: int | None = None,
    gamma: float | None = 0.1,
    optimizer: Any | None = None,
    rate: float = 0.01,
    decay_steps: int | None = None,
    hold: int = 0,
    validation: tuple[Any, Any] | None = None,
    validate_every: int = 200,
    patience: int | None = 10,
    strategy: tf.distribute.Strategy | None = None,
) -> Recipe:
    """Return the recipe that trains a sparse variational classifier on minibatches.

    Parameters
    ----------
    model
        The model.
    data
        (X [N, D], Y [N, 1]), or a ``tf.data.Dataset`` of minibatches that repeats without end.
    seed
        Seed of the minibatches.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    minibatch_size
        B, rows in a minibatch of arrays; all data by default.
    gamma
        Length γ in (0, 1] of the natural-gradient steps of q, reached after ten steps. With minibatches they
        leave out what is not concave in the likelihood, see `svgp.natural_gradient`. ``None`` leaves q
        to the optimiser: the paper used AdaDelta for all.
    optimizer
        A tf_keras optimiser of the hyperparameters and inducing points; by default Adam at ``rate``.
    rate
        Learning rate of the default optimiser.
    decay_steps
        Steps over which γ and the default optimiser's rate fall to a twentieth, by a cosine; ``None`` keeps
        them constant.
    hold
        Steps for which the kernel, ε and the inducing points stay, as in the paper; q alone moves.
    validation
        Held-out (X [V, D], Y [V, 1]); the model ends with the parameters of the best NLPD on them.
    validate_every
        Steps between two evaluations of it.
    patience
        Evaluations without improvement after which training stops; ``None`` trains to the last step.
    strategy
        A ``tf.distribute`` strategy over whose replicas each minibatch of arrays is dealt; the result is the
        same up to rounding. The model is built outside of its scope. Without XLA.
    """
    if gamma is not None and not 0.0 < gamma <= 1.0:
        raise ValueError(f"`gamma` must be in (0, 1], or None; got {gamma}.")
    if hold < 0 or validate_every < 1 or not (patience is None or patience >= 1):
        raise ValueError(
            "`hold` must not be negative, `validate_every` and `patience` at least 1; got "
            f"{hold}, {validate_every} and {patience}."
        )
    if decay_steps is not None and decay_steps < 1:
        raise ValueError(f"`decay_steps` must be at least 1, or None; got {decay_steps}.")
    arrays, iterator = training_data(model, data, minibatch_size, seed)
    if arrays is not None:
        checks.check_targets(model.likelihood, arrays[1])
        checks.check_inducing(model.inducing_variable, arrays[0])
    q = [model.q_mu.unconstrained_variable, model.q_sqrt.unconstrained_variable]
    if gamma is not None and not all(variable.trainable for variable in q):
        raise ValueError("q_mu and q_sqrt are not trainable: pass `gamma=None` to leave them.")
    named = {variable.ref() for variable in q}
    hypers = [variable for variable in model.trainable_variables if variable.ref() not in named]
    moved = hypers if gamma is not None else list(model.trainable_variables)
    settings = {"gamma": gamma, "decay_steps": decay_steps, "hold": hold, "minibatch_size": minibatch_size}
    optimizer = built(optimizer, moved, _decaying(rate, decay_steps, hold))
    shards = None if strategy is None else _shards(strategy, arrays, minibatch_size, jit_compile)
    engine = MinibatchAscent(
        model,
        hypers,
        optimizer,
        reader(model, arrays, iterator),
        gamma=None if gamma is None else _lengths(gamma, decay_steps),
        hold=hold,
        concave=iterator is not None,
        shards=shards,
        jit_compile=False if shards is not None else jit_compile,
    )
    trackables = {"engine": engine, "optimizer": optimizer} | (
        {} if iterator is None else {"batches": iterator}
    )
    watch = None
    if validation is not None:
        held_out = checks.check_data(validation)
        checks.check_targets(model.likelihood, held_out[1])
        watch = EarlyStopping(_scorer(model, held_out), model.trainable_variables, patience)
        trackables["early_stopping"] = watch
        settings |= {"validate_every": validate_every, "patience": patience}
    return Recipe(
        _watched(engine, watch, validate_every),
        [*moved, *optimizer.variables],  # q moves only where it is sound
        steps=1000,
        tolerance=None if watch is None else math.inf,
        monotone=False,
        trackables=trackables,
        settings={
            "recipe": "stochastic_variational",
            "optimizer": optimizer.get_config(),
            "seed": None if minibatch_size is None else seed,
            **settings,
        },
        data=arrays,
        shards=shards,
        settled=Status.STOPPED_EARLY,
        report=lambda: _report(engine, watch),
        finish=(lambda: None) if watch is None else watch.restore_best,
    )


def _watched(
    engine: MinibatchAscent, watch: EarlyStopping | None, every: int
) -> Callable[[], tuple[float, bool]]:
    """Return the update that also takes the score on held-out data."""

    def update() -> tuple[float, bool]:
        value = engine.step()
        due = watch is not None and int(engine.steps) % every == 0 and math.isfinite(value)
        return value, due and watch is not None and watch.evaluate()

    return update


def _report(engine: MinibatchAscent, watch: EarlyStopping | None) -> str:
    """Return what the progress bar shows beside the bound."""
    text = f"accuracy {float(engine.accuracy):.4f}"
    if watch is None or not np.isfinite(float(watch.last)):
        return text
    return f"{text}, held-out NLPD {float(watch.last):.4f} (best {float(watch.best):.4f})"


def _scorer(model: SVGPRobustMax, held_out: tuple[Any, Any]) -> Callable[[], float]:
    """Return the function that gives the NLPD on held-out data."""

    @tf.function(reduce_retracing=True, autograph=False)
    def log_density(X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(model.likelihood.predict_log_density(X, *model.marginals(model.prior(X)), Y))

    def score() -> float:
        X, Y = held_out
        parts = (slice(begin, begin + CHUNK) for begin in range(0, len(X), CHUNK))
        return -sum(float(log_density(tf.constant(X[p]), tf.constant(Y[p]))) for p in parts) / len(X)

    return score


def reader(
    model: SVGPRobustMax | SVGP, arrays: tuple[Any, Any] | None, iterator: Any | None
) -> Callable[[], Minibatch]:
    """Return the function that gives the next minibatch; labels of a user's dataset are checked."""
    if iterator is None:
        whole = itertools.repeat(tuple(tf.constant(part) for part in arrays or ()))
        return lambda: next(whole)
    if arrays is not None:
        return lambda: next(iterator)

    def read() -> Minibatch:
        X, Y = next_minibatch(iterator)
        checks.check_targets(model.likelihood, Y.numpy())
        return X, Y

    return read


def _cosine(step: int, decay_steps: int | None) -> float:
    """Return the share of a length that is left at a step."""
    if decay_steps is None:
        return 1.0
    turn = math.pi * min(1.0, step / decay_steps)
    return _LAST_SHARE + (1.0 - _LAST_SHARE) * 0.5 * (1.0 + math.cos(turn))


def _lengths(gamma: float, decay_steps: int | None) -> Callable[[int], float]:
    return lambda step: gamma * min(1.0, (step + 1) / _WARM_UP) * _cosine(step, decay_steps)


def _decaying(rate: float, decay_steps: int | None, hold: int) -> Any:
    """Return the rate, or its schedule by the optimiser's own count of steps, which begins after ``hold``."""
    if decay_steps is None:
        return rate
    return tf_keras.optimizers.schedules.CosineDecay(rate, max(1, decay_steps - hold), alpha=_LAST_SHARE)


def _shards(
    strategy: tf.distribute.Strategy,
    arrays: tuple[Any, Any] | None,
    minibatch_size: int | None,
    jit_compile: bool | None,
) -> Shards:
    """Return the rows of a minibatch dealt to the replicas."""
    if jit_compile:
        raise NotImplementedError("`jit_compile=True` does not go with `strategy`.")
    if arrays is None:
        raise ValueError(
            "`strategy` deals minibatches of arrays; give `data` as (X, Y) and `minibatch_size`."
        )
    return Shards(strategy, minibatch_size or len(arrays[0]))
