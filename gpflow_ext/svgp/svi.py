"""The svi family of Izmailov's review (2016, sections 2.1.2 and 2.2) over GPflow's SVGP.

All of them take X [N, D] and Y [N, P], and leave inducing points where they are: the review places them by
k-means.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from gpflow.keras import tf_keras
from gpflow.models import SVGP

from gpflow_ext.svgp.minibatch_ascent import MinibatchAscent
from gpflow_ext.svgp.recipe import per_call, reader, several
from gpflow_ext.svgp.sag import StochasticAverageGradient
from gpflow_ext.svgp.unwhitened import has_twin, unwhitened_plan
from gpflow_ext.svgp.vi_means import Box, box_of, check_box, moved, starts_of
from gpflow_ext.svgp.whitened import WhitenedSVGP
from gpflow_ext.training import gradient
from gpflow_ext.training.gradient_descent import check_weights, training_data
from gpflow_ext.training.lbfgs_recipe import LBFGSSteps
from gpflow_ext.training.optimizers import built
from gpflow_ext.training.recipe import Plan, Run, recipe
from gpflow_ext.training.solver import Steps
from gpflow_ext.training.trials import StartOptions, tried


@dataclass(frozen=True)
class LBFGSBOptions(StartOptions):
    """Options of the recipe "svi_lbfgsb"; ``starts`` as of `training.site_recipe.SiteOptions`.

    Attributes
    ----------
    iterations
        Iterations of L-BFGS-B in a step.
    bounds
        As for `vi_means`.
    """

    iterations: int = 20
    bounds: Box | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        check_box(self.bounds)


@recipe("svi_lbfgsb", LBFGSBOptions, knows_objective=True)
def svi_lbfgsb(model: SVGP, run: Run, options: LBFGSBOptions) -> Plan:
    """Return the plan svi-L-BFGS-B: q(u), by its Cholesky factor, and the hyperparameters on all data.

    An unwhitened model is trained in whitened coordinates, where L-BFGS-B does not creep, and q first: it may
    begin far from its prior, to which the kernel would be fitted.
    """
    arrays = _arrays(model, run.data, "svi_lbfgsb")

    def in_whitened(twin: SVGP) -> Plan:
        q = [part.unconstrained_variable for part in (twin.q_mu, twin.q_sqrt)]
        return _lbfgsb(twin, run, options, arrays, q)

    return (
        unwhitened_plan(model, run, in_whitened) if has_twin(model) else _lbfgsb(model, run, options, arrays)
    )


def _lbfgsb(
    model: SVGP,
    run: Run,
    options: LBFGSBOptions,
    arrays: tuple[Any, Any],
    first: Sequence[tf.Variable] = (),
) -> Plan:
    variables = moved(model)
    constants = tuple(tf.constant(part) for part in arrays)
    box = box_of(model, variables, options.bounds)
    starts = starts_of(model, variables, options.starts, run, arrays)
    solver = LBFGSSteps(
        model,
        (constants,),
        variables,
        options.iterations,
        run.jit_compile,
        box,
        starts=starts,
        posterior=first,
    )
    return Plan(
        solver,
        [*model.variables, *solver.state],
        steps=100,
        tolerance=1e-9,
        monotone=True,
        trackables={"solver": solver},
        settings={"recipe": "svi_lbfgsb", "seed": run.seed, **dataclasses.asdict(options)},
        data=arrays,
        tried=lambda: solver.tried,
    )


@recipe("svi_fg", StartOptions, knows_objective=True)
def svi_fg(model: SVGP, run: Run, options: StartOptions) -> Plan:
    """Return the plan svi-FG: gradient descent on all data, its step length searched; see `svi_sag`."""
    return _average_gradient("svi_fg", model, run, None, options.starts)


@dataclass(frozen=True)
class MinibatchOptions(StartOptions):
    """Options of the recipe "svi_sag", with those of `StartOptions`.

    Attributes
    ----------
    minibatch_size
        B, by default max(M, N/100); the table of gradients takes O(N M²/B) memory, see `svgp.sag`.
    """

    minibatch_size: int | None = None


@recipe("svi_sag", MinibatchOptions, knows_objective=True)
def svi_sag(model: SVGP, run: Run, options: MinibatchOptions) -> Plan:
    """Return the plan svi-SAG: the stochastic average gradient for q(u) and the hyperparameters."""
    arrays = _arrays(model, run.data, "svi_sag", minibatches=True)
    size = max(model.inducing_variable.num_inducing, math.ceil(len(arrays[0]) / 100))
    return _average_gradient("svi_sag", model, run, options.minibatch_size or size, options.starts)


@dataclass(frozen=True)
class NaturalOptions(StartOptions):
    """Options of the recipe "svi_natural", with those of `StartOptions`.

    Attributes
    ----------
    minibatch_size
        B; all data by default.
    gamma
        Length in (0, 1] of natural-gradient steps: by default 0.1 with minibatches; 1 without, halved
        where the bound falls, to 1/8 at least. With a Gaussian likelihood and all data one step of length 1
        reaches the optimal q(u).
    optimizer
        A tf_keras optimiser of the hyperparameters; by default Adam at the rate 0.01.
    steps_per_call
        Steps on minibatches of arrays in one call of the compiled function, a single step of `fit`; see
        `training.gradient_descent.GradientOptions`.
    """

    minibatch_size: int | None = None
    gamma: float | None = None
    optimizer: Any = None
    steps_per_call: int = 1

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        gradient.check_per_call(self.steps_per_call, self.minibatch_size)
        if self.gamma is not None and not 0.0 < self.gamma <= 1.0:
            raise ValueError(f"`gamma` must be in (0, 1]; got {self.gamma}.")


@recipe("svi_natural", NaturalOptions, knows_objective=True)
def svi_natural(model: SVGP, run: Run, options: NaturalOptions) -> Plan:
    """Return the plan svi-natural: natural gradients for q(u), gradients for the hyperparameters.

    For a whitened ``SVGP`` with one kernel and a full q_sqrt, on arrays, or with ``minibatch_size=None`` on a
    dataset of minibatches that has no end.
    """
    target = WhitenedSVGP(model)
    return tried(lambda: _natural(target, model, run, options), model, run, options.starts)


def _natural(target: WhitenedSVGP, model: SVGP, run: Run, options: NaturalOptions) -> Plan:
    size = options.minibatch_size
    arrays, iterator = training_data(model, run.data, size, run.seed)
    length = (1.0 if iterator is None else 0.1) if options.gamma is None else options.gamma
    q = {id(part.unconstrained_variable) for part in (model.q_mu, model.q_sqrt)}
    hypers = [variable for variable in moved(model) if id(variable) not in q]
    optimizer = built(options.optimizer, hypers, model=model) if hypers else None
    engine = MinibatchAscent(
        target,
        hypers,
        optimizer,
        reader(model, arrays, iterator),
        gamma=lambda step: length,
        concave=iterator is not None,
        shorten=iterator is None and options.gamma is None,
        jit_compile=run.jit_compile,
        several=several(iterator, options.steps_per_call, None),
    )
    trackables = {"engine": engine} | ({} if iterator is None else {"batches": iterator})
    return Plan(
        engine,
        engine.state,
        steps=gradient.first_look(options.steps_per_call),
        period=gradient.period(arrays, size, options.steps_per_call),
        tolerance=None,
        trackables=trackables | ({} if optimizer is None else {"optimizer": optimizer}),
        settings={
            "recipe": "svi_natural",
            "minibatch_size": size,
            "seed": None if size is None else run.seed,
            "gamma": length,
            **per_call(options.steps_per_call),
            "optimizer": None if optimizer is None else optimizer.get_config(),
        },
        data=arrays,
    )


@dataclass(frozen=True)
class ClassificationOptions(StartOptions):
    """Options of the recipe "svi_classification", with those of `StartOptions`.

    Attributes
    ----------
    minibatch_size
        B, by default N/100 as in the author's code, at least one.
    optimizer
        A tf_keras optimiser; by default the author's AdaDelta, rate 1, decay 0.9, offset 1e-4.
    """

    minibatch_size: int | None = None
    optimizer: Any = None


@recipe("svi_classification", ClassificationOptions, knows_objective=True)
def svi_classification(model: SVGP, run: Run, options: ClassificationOptions) -> Plan:
    """Return the plan svi-classification (section 2.2): AdaDelta for everything, on minibatches."""
    arrays = _arrays(model, run.data, "svi_classification", minibatches=True)
    size = max(1, len(arrays[0]) // 100) if options.minibatch_size is None else options.minibatch_size
    return tried(lambda: _classification(model, run, options, arrays, size), model, run, options.starts)


def _classification(
    model: SVGP, run: Run, options: ClassificationOptions, arrays: tuple[Any, Any], size: int
) -> Plan:
    _, batches = training_data(model, run.data, size, run.seed)
    variables = moved(model)
    author = tf_keras.optimizers.Adadelta(1.0, rho=0.9, epsilon=1e-4)
    optimizer = built(options.optimizer or author, variables)
    solver = gradient.gradient_steps(model.training_loss, variables, optimizer, batches, run.jit_compile)
    return Plan(
        solver,
        [*model.variables, *solver.state],
        steps=gradient.first_look(),
        period=gradient.period(arrays, size),
        tolerance=None,
        trackables={"optimizer": optimizer, "batches": batches},
        settings={
            "recipe": "svi_classification",
            "optimizer": optimizer.get_config(),
            "minibatch_size": size,
            "seed": run.seed,
        },
        data=arrays,
    )


def _average_gradient(
    name: str, model: SVGP, run: Run, minibatch_size: int | None, starts: int | None
) -> Plan:
    arrays = _arrays(model, run.data, name, minibatches=minibatch_size is not None)
    return tried(lambda: _averaging(name, model, run, arrays, minibatch_size), model, run, starts)


def _averaging(name: str, model: SVGP, run: Run, arrays: tuple[Any, Any], minibatch_size: int | None) -> Plan:
    count = 1 if minibatch_size is None else math.ceil(len(arrays[0]) / minibatch_size)
    variables = moved(model)
    engine = StochasticAverageGradient(
        model.training_loss,
        variables,
        arrays,
        num_batches=count,
        seed=run.seed,
        jit_compile=run.jit_compile,
    )
    return Plan(
        Steps(lambda: -engine.step()),
        variables,  # a failed step undoes itself; a copy of the table would cost more than a step
        steps=gradient.first_look(),
        period=count,
        tolerance=None,
        trackables={"engine": engine},
        settings={"recipe": name, "minibatch_size": minibatch_size, "seed": run.seed},
        data=arrays,
    )


def _arrays(model: SVGP, data: Any, name: str, minibatches: bool = False) -> tuple[Any, Any]:
    """Return the checked arrays of a recipe that does not read a dataset."""
    if not isinstance(model, SVGP):
        raise ValueError(f'recipe="{name}" is for SVGP; {type(model).__name__} is another model.')
    arrays, _ = training_data(model, data, None, 0)
    if arrays is None:
        raise ValueError(f'recipe="{name}" needs `data` as a pair of arrays, not a dataset.')
    check_weights(model, len(arrays[0]), minibatches)
    return arrays
