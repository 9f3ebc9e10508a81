"""The recipe of any site model by any site method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.numerics.devices import has_accelerator
from gpflow_ext.sites.method import SiteMethod, adopt, site_method
from gpflow_ext.sites.model import SiteModel
from gpflow_ext.training import lbfgs
from gpflow_ext.training.hyperparameters import HyperparameterAscent
from gpflow_ext.training.lbfgs_in_graph import where
from gpflow_ext.training.mean_units import mean_units
from gpflow_ext.training.recipe import Plan, Run, recipe
from gpflow_ext.training.site_iteration import SiteOptimum, SiteSteps
from gpflow_ext.training.solver import GraphSolver, InGraph
from gpflow_ext.training.starts import check_starts, further_starts, number_of_starts, spare_starts

GAIN = 1e-8  # relative: an iteration of L-BFGS that raises the objective by less raises it no more
UPDATES = 8  # of the sites in a step, where the hyperparameters are held
STEPS = 1000  # of L-BFGS: it ends by itself


@dataclass(frozen=True)
class SiteOptions:
    """Options of a site method.

    Attributes
    ----------
    site_updates
        Maximum number of updates of all sites in an evaluation of L-BFGS.
    hyper_updates
        Iterations of L-BFGS in a step.
    stationarity
        Largest violation of the fixed point, relative to 1 + |prec|, that counts as converged; by default the
        method's own. An evaluation far from the optimum may leave a larger one.
    starts
        Number of starting points of the hyperparameters: the model's own values, then those that the inputs
        suggest, then random ones; see `training.starts`. The first step climbs from each and keeps the best.
        By default five if a kernel has three length scales or more and there are at most 500 latent values,
        two if it has several or one that is far from what the inputs suggest, else one, and two more where
        the objective is not finite there.
    in_graph
        Whether the iterations of L-BFGS are done in the graph, without the host; see `LBFGSOptions`.
    """

    site_updates: int = 200
    hyper_updates: int = 20
    stationarity: float | None = None
    starts: int | None = None
    in_graph: bool | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_starts(self.starts)
        if self.site_updates < 1 or self.hyper_updates < 1:
            raise ValueError(
                f"`site_updates` and `hyper_updates` must be at least 1; got {self.site_updates} and "
                f"{self.hyper_updates}."
            )


def site_plan(
    model: SiteModel,
    run: Run,
    method: SiteMethod,
    options: SiteOptions,
    *,
    settings: dict[str, Any] | None = None,
    steps: int = 200,
) -> Plan:
    """Return the plan that trains a site model by a site method.

    With trainable hyperparameters a step is ``hyper_updates`` iterations of L-BFGS on the objective, the
    sites near their fixed point in each evaluation, see `hyperparameters.enough`; without any it is up to
    eight updates of all sites.

    Parameters
    ----------
    model
        The model; from now on it names the method as its own.
    run, options
        What `fit` was asked for.
    method
        The method.
    settings
        What else a resumed run must share.
    steps
        Of the fit, at most, where the hyperparameters are held.
    """
    run.without_data(model)
    double = gpflow.default_float() == np.float64
    stationarity = method.stationarity() if options.stationarity is None else options.stationarity
    hypers, error = model.trainable_variables, getattr(model, "solver_error", 0.0)
    settings = {"recipe": method.name, **(settings or {})}
    check_moves(hypers, options.in_graph)
    if not hypers:
        optimum = SiteOptimum(model, method, (), run.jit_compile)  # refuses a model it is not for
        iteration = SiteSteps(optimum, UPDATES, stationarity)
        adopt(model, method)
        return Plan(
            iteration,
            model.variables,
            steps=steps,
            tolerance=max(1e-8 if double else 1e-5, error),
            monotone=method.monotone and not error,
            stationarity=stationarity,
            trackables={"solver": iteration},
            settings=settings,
            rests=True,
        )
    optimum = SiteOptimum(model, method, hypers, run.jit_compile)  # refuses a model it is not for
    adopt(model, method)
    starts = number_of_starts(model, options.starts, *model.data[:2])
    ascent = HyperparameterAscent(
        optimum,
        model,
        hypers,
        site_updates=options.site_updates,
        hyper_updates=options.hyper_updates,
        tolerance=max(GAIN if double else 1e-6, 0.1 * error),
        stationarity=stationarity,
        starts=further_starts(model, starts - 1, run.seed, *model.data[:2]),
        spare=spare_starts(options.starts, starts, run.seed, *model.data[:2]),
        units=mean_units(model, hypers, model.data),
        in_graph=in_graph(optimum, (model.nat1, model.prec), options.in_graph),
    )
    names = ("hyper_updates", "site_updates")
    return Plan(
        ascent,
        [*model.variables, *ascent.state],
        steps=STEPS,
        tolerance=max(lbfgs.gain_of_a_step(hypers), 0.1 * error),
        monotone=not error,
        stationarity=stationarity,
        trackables={"solver": ascent},
        settings={
            **settings,
            "seed": run.seed,
            "starts": options.starts,
            **{name: getattr(options, name) for name in names},
            **where(ascent.run),
        },
        tried=lambda: ascent.tried,
    )


def in_graph(
    solver: GraphSolver,
    sites: Sequence[gpflow.Parameter],
    wanted: bool | None,
    data: Sequence[tf.Tensor] = (),
) -> InGraph | None:
    """Return what a run in the graph needs, if it is wanted: by default on a GPU or TPU."""
    if not (has_accelerator() if wanted is None else wanted):
        return None
    moved = [part.unconstrained_variable for part in sites]
    return InGraph(solver.settling, solver.jit_compile, moved, data)


def check_moves(variables: Sequence[tf.Variable], in_graph: bool | None) -> None:
    """Refuse `in_graph` where there is nothing for L-BFGS to move."""
    if in_graph and not variables:
        raise ValueError(
            "`in_graph` is for the iterations of L-BFGS on hyperparameters, and none is trainable: each step "
            "is some updates of the sites, which are in the graph in any case. Leave it out."
        )


@recipe("sites", SiteOptions, knows_objective=True, models=SiteModel)
def site_inference(model: SiteModel, run: Run, options: SiteOptions) -> Plan:
    """Return the plan of a model by the site method that it names, ``model.site_method``; see `site_plan`."""
    return site_plan(model, run, site_method(model.site_method), options)
