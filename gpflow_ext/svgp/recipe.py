"""The recipe of `SVGPRobustMax`: natural gradients for q; L-BFGS, or on minibatches Adam, for the rest."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.models import SVGP

from gpflow_ext.compiled import Compiled
from gpflow_ext.data import checks
from gpflow_ext.data.rows import CHUNK
from gpflow_ext.sites import latent
from gpflow_ext.svgp.early_stopping import EarlyStopping, Watched
from gpflow_ext.svgp.labels import start_as_asked
from gpflow_ext.svgp.minibatch_ascent import MinibatchAscent
from gpflow_ext.svgp.model import SVGPRobustMax
from gpflow_ext.svgp.natural_gradient import Minibatch
from gpflow_ext.svgp.whole_data import whole_data_plan
from gpflow_ext.training.distribute import Shards
from gpflow_ext.training.gradient import Minibatches, check_per_call, first_look, next_minibatch, period
from gpflow_ext.training.gradient_descent import training_data
from gpflow_ext.training.loop import Status
from gpflow_ext.training.optimizers import built
from gpflow_ext.training.options import refuse_unused
from gpflow_ext.training.recipe import Plan, Run, recipe
from gpflow_ext.training.schedules import Schedule, ScheduleOptions
from gpflow_ext.training.starts import check_starts
from gpflow_ext.training.trials import tried

_RATE = 0.01  # of Adam


@dataclass(frozen=True)
class RobustMaxOptions(ScheduleOptions):
    """Options of the recipe "robust_max", with those of `training.schedules.ScheduleOptions`.

    On all data q is brought to its optimum in each evaluation of L-BFGS, see `svgp.whole_data`, or for many
    rows q and the hyperparameters move together, see `svgp.joint_ascent`. Minibatches, a ``strategy`` and all
    options but ``starts``, ``start`` and ``in_graph`` ask for first-order steps.

    Lengths and rates fall by a root on minibatches by default.

    Attributes
    ----------
    minibatch_size
        B, rows in a minibatch of arrays; all data by default.
    gamma
        Length γ in (0, 1] of the natural-gradient steps of q, reached after ten steps. With minibatches they
        leave out non-concave parts of the likelihood, see `svgp.natural_gradient`. ``None`` leaves q to the
        optimiser; the paper used AdaDelta for everything.
    optimizer
        A tf_keras optimiser of the hyperparameters and inducing points; by default Adam at ``rate``.
    rate
        Learning rate of the default optimiser, 0.01 by default.
    hold
        Number of first steps in which the kernel, ε and the inducing points stay fixed, as in the paper, and
        only q moves.
    validation
        Held-out (X [V, D], Y [V, 1]); the model ends with the parameters of the best NLPD (negative log
        predictive density) on them.
    validate_every
        Steps between two evaluations of it.
    patience
        Evaluations without improvement after which training stops; ``None`` trains to the last step.
    starts
        Starting points; see `training.site_recipe.SiteOptions`, and for first-order steps
        `training.trials.StartOptions`.
    start
        ``"labels"`` starts q from one pass of regression on the labels, see `svgp.labels`; ``None`` from the
        model's own.
    steps_per_call
        Steps on minibatches of arrays in one call of the compiled function, a single step of `fit`; see
        `training.gradient_descent.GradientOptions`. ``decay_steps``, ``hold`` and ``validate_every`` count
        minibatches, and the last two are multiples of it.
    in_graph
        Whether the iterations of L-BFGS on all data are done in the graph; see
        `training.site_recipe.SiteOptions`.
    """

    minibatch_size: int | None = None
    gamma: float | None = 0.1
    optimizer: Any = None
    rate: float | None = None
    hold: int = 0
    validation: Any = None
    validate_every: int = 200
    patience: int | None = 10
    starts: int | None = None
    start: str | None = None
    steps_per_call: int = 1
    in_graph: bool | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        check_starts(self.starts)
        if self.in_graph and self.by_first_order:
            raise ValueError(
                "`in_graph` is for the iterations of L-BFGS on all data: leave out all options but `starts` "
                "and `start`."
            )
        watched = {} if self.validation is None else {"validate_every": self.validate_every}
        check_per_call(self.steps_per_call, self.minibatch_size, hold=self.hold, **watched)
        if self.optimizer is not None:
            refuse_unused(self, ["rate"], "it is that of the default optimiser, and `optimizer` is another")
        if self.validation is None:
            refuse_unused(self, ["validate_every", "patience"], "give `validation`")
        if self.gamma is not None and not 0.0 < self.gamma <= 1.0:
            raise ValueError(f"`gamma` must be in (0, 1], or None; got {self.gamma}.")
        if self.hold < 0 or self.validate_every < 1 or not (self.patience is None or self.patience >= 1):
            raise ValueError(
                "`hold` must not be negative, `validate_every` and `patience` at least 1; got "
                f"{self.hold}, {self.validate_every} and {self.patience}."
            )

    @property
    def by_first_order(self) -> bool:
        """Whether an option asks for first-order steps."""
        others = dataclasses.replace(self, starts=None, start=None, in_graph=None)
        return others != RobustMaxOptions()


@recipe("robust_max", RobustMaxOptions, distributes=True, knows_objective=True, models=SVGPRobustMax)
def robust_max(model: SVGPRobustMax, run: Run, options: RobustMaxOptions) -> Plan:
    """Return the plan of a sparse variational classifier; the options are `RobustMaxOptions`.

    The data are (X [N, D], Y [N, 1]), or a ``tf.data.Dataset`` of minibatches that repeats without end. With
    a ``strategy`` each minibatch of arrays is sharded over its replicas; the result is the same up to
    rounding. The model is built outside its scope. Without XLA.
    """
    arrays, iterator = training_data(model, run.data, options.minibatch_size, run.seed)
    if arrays is not None:
        latent.check_inducing(model.inducing_variable, model.kernel, arrays[0])
    q = [model.q_mu.unconstrained_variable, model.q_sqrt.unconstrained_variable]
    if options.gamma is not None and not all(variable.trainable for variable in q):
        raise ValueError("q_mu and q_sqrt are not trainable: pass `gamma=None` to leave them.")
    started = start_as_asked(model, arrays, options.start, run.seed)
    if arrays is not None and run.strategy is None and not options.by_first_order:
        return whole_data_plan(model, model, arrays, run, "robust_max", options.starts, options.in_graph)
    if options.in_graph:
        raise ValueError("`in_graph` is for arrays on one device: leave it out for a dataset or a strategy.")

    def again() -> Plan:
        data = training_data(model, run.data, options.minibatch_size, run.seed)
        return _first_order(model, run, options, *data, started)

    plan = _first_order(model, run, options, arrays, iterator, started)
    return tried(again, model, run, options.starts, plan)


def _first_order(
    model: SVGPRobustMax,
    run: Run,
    options: RobustMaxOptions,
    arrays: tuple[Any, Any] | None,
    iterator: Any,
    started: dict[str, Any],
) -> Plan:
    size, gamma, hold = options.minibatch_size, options.gamma, options.hold
    schedule = options.falling(Schedule("constant" if iterator is None else "root"))
    named = {parameter.unconstrained_variable.ref() for parameter in (model.q_mu, model.q_sqrt)}
    hypers = [variable for variable in model.trainable_variables if variable.ref() not in named]
    moved = hypers if gamma is not None else list(model.trainable_variables)
    settings = {"gamma": gamma, "hold": hold, "minibatch_size": size, **schedule._asdict(), **started}
    rate = schedule.rate(_RATE if options.rate is None else options.rate, hold)
    optimizer = built(options.optimizer, moved, rate, model=model)
    shards = None if run.strategy is None else batch_shards(run.strategy, arrays, size, run.jit_compile)
    engine = MinibatchAscent(
        model,
        hypers,
        optimizer,
        reader(model, arrays, iterator),
        gamma=None if gamma is None else schedule.lengths(gamma),
        hold=hold,
        concave=iterator is not None,
        shards=shards,
        jit_compile=False if shards is not None else run.jit_compile,
        several=several(iterator, options.steps_per_call, run.strategy),
    )
    trackables = {"engine": engine, "optimizer": optimizer} | (
        {} if iterator is None else {"batches": iterator}
    )
    watch = None
    if options.validation is not None:
        held_out = checks.check_data(options.validation)
        checks.check_targets(model.likelihood, held_out[1])
        watch = EarlyStopping(_scorer(model, held_out), model.trainable_variables, options.patience)
        trackables["early_stopping"] = watch
        settings |= {"validate_every": options.validate_every, "patience": options.patience}
    return Plan(
        engine if watch is None else Watched(engine, watch, options.validate_every),
        engine.state,
        steps=first_look(options.steps_per_call),
        period=period(arrays, size, options.steps_per_call),
        tolerance=None if watch is None else math.inf,
        stationarity=0.0,
        trackables=trackables,
        settings={
            "recipe": "robust_max",
            "optimizer": optimizer.get_config(),
            "seed": None if size is None else run.seed,
            **per_call(options.steps_per_call),
            **settings,
        },
        data=arrays,
        shards=shards,
        settled=Status.STOPPED_EARLY,
        report=lambda: _report(engine, watch),
        finish=(lambda: False) if watch is None else watch.finish,
    )


def _report(engine: MinibatchAscent, watch: EarlyStopping | None) -> str:
    """Return what the progress bar shows beside the bound."""
    text = f"accuracy {float(engine.accuracy):.4f}"
    if watch is None or not np.isfinite(float(watch.last)):
        return text
    return f"{text}, held-out NLPD {float(watch.last):.4f} (best {float(watch.best):.4f})"


class HeldOut(tf.Module):
    """Functions to compile: the log density of held-out data."""

    def __init__(self, model: SVGPRobustMax) -> None:
        super().__init__()
        self._model = model

    def log_density(self, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        """Return the sum over the rows X [B, D], Y [B, 1], []."""
        mean, var = self._model.marginals(self._model.prior(X))
        return tf.reduce_sum(self._model.likelihood.predict_log_density(X, mean, var, Y))


def _scorer(model: SVGPRobustMax, held_out: tuple[Any, Any]) -> Callable[[], float]:
    """Return the function that gives the NLPD on held-out data."""
    scores = HeldOut(model)
    compiled = Compiled(scores, batches=True)

    def score() -> float:
        X, Y = held_out
        parts = (slice(begin, begin + CHUNK) for begin in range(0, len(X), CHUNK))
        return -sum(float(compiled(scores.log_density, X[p], Y[p])) for p in parts) / len(X)

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


def several(
    batches: Minibatches | None, steps_per_call: int, strategy: tf.distribute.Strategy | None
) -> tuple[Minibatches, int] | None:
    """Return minibatches and the steps in a call; ``None`` where a call does one."""
    if steps_per_call > 1 and strategy is not None:
        raise ValueError("`steps_per_call` is for one device: leave it out with `strategy`.")
    return None if batches is None or steps_per_call == 1 else (batches, steps_per_call)


def per_call(steps_per_call: int) -> dict[str, int]:
    """Return what a resumed run must share where a call does several steps."""
    return {} if steps_per_call == 1 else {"steps_per_call": steps_per_call}


def batch_shards(
    strategy: tf.distribute.Strategy,
    arrays: tuple[Any, Any] | None,
    minibatch_size: int | None,
    jit_compile: bool | None,
) -> Shards:
    """Return the rows of a minibatch sharded over the replicas."""
    if jit_compile:
        raise NotImplementedError("`jit_compile=True` does not go with `strategy`.")
    if arrays is None:
        raise ValueError(
            "`strategy` shards minibatches of arrays; give `data` as (X, Y) and `minibatch_size`."
        )
    return Shards(strategy, minibatch_size or len(arrays[0]))
