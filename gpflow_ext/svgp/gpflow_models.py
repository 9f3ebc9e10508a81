"""The recipe of GPflow's own models: for each a method that converges for it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from gpflow.models import SVGP, VGP, BayesianModel

from gpflow_ext.svgp.labels import start_as_asked
from gpflow_ext.svgp.minibatch_ascent import MinibatchAscent
from gpflow_ext.svgp.recipe import per_call, reader, several
from gpflow_ext.svgp.unwhitened import has_twin, unwhitened_plan
from gpflow_ext.svgp.whitened import WhitenedSVGP, WhitenedVGP, has_full_q, has_independent, refusal
from gpflow_ext.svgp.whole_data import whole_data_plan
from gpflow_ext.training import schedules
from gpflow_ext.training.gradient import check_per_call, first_look, period
from gpflow_ext.training.gradient_descent import GradientOptions, gradient_descent, training_data
from gpflow_ext.training.lbfgs_recipe import constants, is_an_estimate, lbfgs_plan
from gpflow_ext.training.optimizers import RATE, built
from gpflow_ext.training.options import refuse_unused
from gpflow_ext.training.overrides import own_objective
from gpflow_ext.training.recipe import Plan, Run, recipe
from gpflow_ext.training.schedules import Schedule, ScheduleOptions
from gpflow_ext.training.site_twin import has_free_q, has_plain_bound, has_sites, twin_plan
from gpflow_ext.training.starts import check_starts
from gpflow_ext.training.trials import tried

_GAMMA = 0.1  # of natural gradients, on minibatches
_FALL = 1000  # minibatches over which lengths and rates fall


@dataclass(frozen=True)
class GPflowOptions(ScheduleOptions):
    """Options of the recipe "gpflow", with those of `training.schedules.ScheduleOptions`.

    On minibatches lengths and rates fall by a root by default, along a cosine over 1,000 steps where `fit`
    is given ``steps``: at the end of a cosine the objective is at rest, whether it has settled or not.

    Attributes
    ----------
    minibatch_size
        Rows in a minibatch of arrays; all data by default.
    optimizer
        A tf_keras optimiser of all trainable variables, as in the recipe "adam".
    starts
        Starting points; see `training.site_recipe.SiteOptions`, and for first-order steps
        `training.trials.StartOptions`.
    start
        ``"labels"``: q of a whitened ``SVGP`` starts from regression on the labels, see `svgp.labels`.
    steps_per_call
        Steps on minibatches of arrays in one call of the compiled function, a single step of `fit`; see
        `training.gradient_descent.GradientOptions`. ``decay_steps`` counts minibatches.
    in_graph
        Whether the iterations of L-BFGS are done in the graph; see `training.site_recipe.SiteOptions`.
    """

    minibatch_size: int | None = None
    optimizer: Any = None
    starts: int | None = None
    start: str | None = None
    steps_per_call: int = 1
    in_graph: bool | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        if self.in_graph and (self.minibatch_size is not None or self.optimizer is not None):
            raise ValueError(
                "`in_graph` is for the iterations of L-BFGS: leave out `minibatch_size` and `optimizer`."
            )
        if self.optimizer is not None:
            refuse_unused(
                self, ["start"], "beside `optimizer` call gpflow_ext.start_from_labels before `fit`"
            )
        check_per_call(self.steps_per_call, self.minibatch_size)
        check_starts(self.starts)


@recipe("gpflow", GPflowOptions)
def gpflow_model(model: BayesianModel, run: Run, options: GPflowOptions) -> Plan:
    """Return the plan that converges on a GPflow model; the options are `GPflowOptions`.

    On all data: ``VGP``, ``VGPOpperArchambeau`` and ``SVGP`` by natural gradients for q and L-BFGS for the
    rest, see `training.site_twin` and, for ``SVGP`` and robust-max, `svgp.whole_data`; what that does not
    cover, such as a diagonal q_sqrt, a kernel that mixes outputs, or a model without q, by L-BFGS on
    everything; an objective that is an estimate by Adam. On minibatches: ``SVGP`` of the same kinds by
    natural gradients and Adam, all else by Adam.
    """
    if options.optimizer is not None:
        return _adam(model, run, options, options.optimizer, options.starts or 1)
    arrays, batches = training_data(model, run.data, options.minibatch_size, run.seed)
    started = start_as_asked(model, arrays, options.start, run.seed)
    if batches is not None:
        if options.in_graph:
            raise ValueError("`in_graph` is for arrays: leave it out for a dataset of minibatches.")

        def build(arrays: tuple[Any, Any] | None, batches: Any) -> Plan:
            plan = _on_minibatches(model, run, options, arrays, batches)
            return dataclasses.replace(plan, settings={**plan.settings, **started})

        def again() -> Plan:
            return build(*training_data(model, run.data, options.minibatch_size, run.seed))

        return tried(again, model, run, options.starts, build(arrays, batches))
    whole = arrays if _has_natural_steps(model) else None
    dense = isinstance(model, VGP) and has_free_q(model)  # q of all rows, which may have no sites
    sites = whole is None and has_sites(model)
    if whole is None and not sites and not dense and is_an_estimate(model, constants(arrays), run):
        if options.in_graph:
            raise ValueError("`in_graph` is for L-BFGS, and the objective is an estimate: leave it out.")
        return _adam(model, run, options, None, options.starts)
    refuse_unused(options, schedules.OPTIONS, "L-BFGS finds its step lengths; these are for minibatches")
    if whole is not None:

        def on_all(whitened: SVGP) -> Plan:
            target = WhitenedSVGP(whitened)
            return whole_data_plan(target, whitened, whole, run, "gpflow", options.starts, options.in_graph)

        return on_all(model) if model.whiten else unwhitened_plan(model, run, on_all)
    if dense and not sites:
        held: Any = tuple(np.asarray(part) for part in model.data)
        plan = whole_data_plan(
            WhitenedVGP(model), model, held, run, "gpflow", options.starts, options.in_graph
        )
        return dataclasses.replace(plan, data=None)
    if sites:
        return twin_plan(model, arrays, run, options.starts, options.in_graph)
    return lbfgs_plan(model, arrays, run, starts=options.starts, in_graph=options.in_graph)


def _has_natural_steps(model: BayesianModel) -> bool:
    """Tell whether a model is an ``SVGP`` that natural gradients take whole, whitened or with a twin."""
    if not isinstance(model, SVGP) or not has_plain_bound(model, SVGP):
        return False
    if not model.whiten:
        return has_twin(model)
    if not has_independent(model) or not has_full_q(model):
        return False
    return all(parameter.prior is None for parameter in (model.q_mu, model.q_sqrt))


def _adam(model: BayesianModel, run: Run, options: GPflowOptions, optimizer: Any, starts: int | None) -> Plan:
    names = "minibatch_size", "steps_per_call", "schedule", "decay_steps"
    given = {name: getattr(options, name) for name in names}
    chosen = GradientOptions(optimizer=optimizer, starts=starts, **given)
    return gradient_descent.plan(model, run, chosen)


def _on_minibatches(
    model: Any, run: Run, options: GPflowOptions, arrays: tuple[Any, Any] | None, batches: Any
) -> Plan:
    schedule = options.falling(Schedule("root") if run.open_ended else Schedule("cosine", _FALL))
    if isinstance(model, SVGP) and not own_objective(model):
        if refusal(model) is None:
            return _natural(model, run, options, arrays, batches, schedule)
        if has_twin(model):
            return unwhitened_plan(
                model, run, lambda twin: _natural(twin, run, options, arrays, batches, schedule)
            )
    steps = schedule.steps if schedule.name == "cosine" else None
    chosen = dataclasses.replace(options, schedule=schedule.name, decay_steps=steps)
    return _adam(model, run, chosen, None, 1)


def _natural(
    model: SVGP,
    run: Run,
    options: GPflowOptions,
    arrays: tuple[Any, Any] | None,
    batches: Any,
    schedule: Schedule,
) -> Plan:
    q = {id(part.unconstrained_variable) for part in (model.q_mu, model.q_sqrt)}
    hypers = [variable for variable in model.trainable_variables if id(variable) not in q]
    optimizer = built(None, hypers, schedule.rate(RATE), model=model) if hypers else None
    engine = MinibatchAscent(
        WhitenedSVGP(model),
        hypers,
        optimizer,
        reader(model, arrays, batches),
        gamma=schedule.lengths(_GAMMA),
        jit_compile=run.jit_compile,
        several=several(batches, options.steps_per_call, None),
    )
    return Plan(
        engine,
        engine.state,
        steps=first_look(options.steps_per_call),
        tolerance=None,
        period=period(arrays, options.minibatch_size, options.steps_per_call),
        trackables={"engine": engine, "batches": batches}
        | ({} if optimizer is None else {"optimizer": optimizer}),
        settings={
            "recipe": "gpflow",
            "minibatch_size": options.minibatch_size,
            **schedule._asdict(),
            **per_call(options.steps_per_call),
            "seed": None if options.minibatch_size is None else run.seed,
        },
        data=arrays,
    )
