"""The recipe of `SparseEP`: expectation propagation on any site model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.ep import distributed, engine
from gpflow_ext.ep.method import EP, factored
from gpflow_ext.ep.minibatches import minibatch_plan
from gpflow_ext.ep.model import SparseEP
from gpflow_ext.ep.optimum import Optimum
from gpflow_ext.ep.sign_agreement import SignAgreement
from gpflow_ext.sites.method import adopt
from gpflow_ext.sites.model import SiteModel
from gpflow_ext.training import lbfgs
from gpflow_ext.training.distribute import Shards
from gpflow_ext.training.gradient import check_per_call
from gpflow_ext.training.hyperparameters import HyperparameterAscent
from gpflow_ext.training.lbfgs_in_graph import where
from gpflow_ext.training.mean_units import mean_units
from gpflow_ext.training.optimizers import RATE, built, coordinates
from gpflow_ext.training.options import refuse_unused
from gpflow_ext.training.recipe import Plan, Run, recipe
from gpflow_ext.training.schedules import Schedule
from gpflow_ext.training.site_recipe import GAIN, STEPS, SiteOptions, check_moves, in_graph, site_plan
from gpflow_ext.training.solver import Solver
from gpflow_ext.training.starts import check_starts, further_starts, number_of_starts, spare_starts
from gpflow_ext.training.trials import tried

_NOISE = 1e-3  # relative error of log Z, as a share of the violation that counts as none
_NAMED = ("lbfgs", "sign_agreement")
_OR = f", or one of {', '.join(map(repr, _NAMED))}"


@dataclass(frozen=True)
class EPOptions:
    """Options of the recipe "ep".

    Attributes
    ----------
    optimizer
        ``"lbfgs"``; ``"sign_agreement"`` for the rule of the paper's batch code, see `ep.sign_agreement`; or
        a tf_keras optimiser such as ``Adadelta(1.0)``. By default L-BFGS, and with minibatches Adam in log
        space, whose rate falls as 0.01/√(1 + t/50) at step t.
    minibatch_size
        Rows in a minibatch; all data by default. For `SparseEP`.
    damping
        Share of the way that a sweep moves the sites, in (0, 1]. By default a secant estimate in [0.1, 1]
        with Anderson mixing of the last sweeps. Where an ``optimizer`` moves along, or with a ``strategy``,
        it is the estimate alone, in [0.1, 100] if a datum has several factors. With minibatches it is 1. It
        does not change the fixed point.
    stationarity
        Largest change of a site, relative to 1 + |prec|, that counts as converged; by default 1e-6, and
        1e-3 in float32.
    site_updates
        Maximum number of sweeps in an evaluation of L-BFGS.
    hyper_updates
        Iterations of L-BFGS in a step.
    in_graph
        Whether these are done in the graph; see `LBFGSOptions`. Not with a ``strategy``, by which each sweep
        comes back to the host.
    starts
        Starting points; see `training.site_recipe.SiteOptions`, and for another ``optimizer`` or minibatches
        `training.trials.StartOptions`.
    steps_per_call
        Minibatches of arrays in one call of the compiled function, a single step of `fit` whose objective is
        their mean. A call ends with the epoch, and before its last minibatch where that is smaller.
    """

    optimizer: Any = None
    minibatch_size: int | None = None
    damping: float | None = None
    stationarity: float | None = None
    site_updates: int = 200
    hyper_updates: int = 20
    starts: int | None = None
    in_graph: bool | None = None
    steps_per_call: int = 1

    def __post_init__(self) -> None:
        """Check what does not depend on the model."""
        check_per_call(self.steps_per_call, self.minibatch_size)
        if isinstance(self.optimizer, str) and self.optimizer not in _NAMED:
            raise ValueError(f"`optimizer` must be a tf_keras optimiser{_OR}; got {self.optimizer!r}.")
        if self.outer and self.minibatch_size is not None:
            raise ValueError('`minibatch_size` needs a tf_keras optimiser: "lbfgs" takes all data at once.')
        if self.in_graph and not self.outer:
            raise ValueError(
                "`in_graph` is for the iterations of L-BFGS: leave out `minibatch_size`, and `optimizer` or "
                'give "lbfgs".'
            )
        if not self.outer:
            refuse_unused(self, ["site_updates", "hyper_updates"], "they are of L-BFGS, on all data")
        if self.damping is not None and not 0.0 < self.damping <= 1.0:
            raise ValueError(f"`damping` must be in (0, 1]; got {self.damping}.")
        check_starts(self.starts)
        if self.site_updates < 1 or self.hyper_updates < 1:
            raise ValueError(
                f"`site_updates` and `hyper_updates` must be at least 1; got {self.site_updates} and "
                f"{self.hyper_updates}."
            )

    @property
    def outer(self) -> bool:
        """Whether L-BFGS moves the hyperparameters, outside the sweeps."""
        return self.optimizer == "lbfgs" or (self.optimizer is None and self.minibatch_size is None)


@recipe("ep", EPOptions, distributes=True, knows_objective=True, models=SiteModel)
def ep(model: SiteModel, run: Run, options: EPOptions) -> Plan:
    """Return the plan of Hernández-Lobato & Hernández-Lobato (2016); the options are `EPOptions`.

    With trainable hyperparameters a step is ``hyper_updates`` iterations of L-BFGS on log Z, the sites
    near their fixed point in each evaluation. With another ``optimizer`` it is one parallel sweep over the
    sites and one step of the optimiser. Without trainable hyperparameters it is one sweep. The first and the
    last end when log Z and the sites settle; the other looks after 500 steps whether log Z still rises.

    With ``minibatch_size`` a step is one minibatch, at a cost independent of N, and its objective an estimate
    from it, see `ep.stochastic`. It looks whether that still rises after ten epochs, or sooner, after 1,000
    minibatches and two epochs. With all hyperparameters fixed there are ten epochs, or fewer if the sites
    settle.

    With a ``strategy`` the data are sharded over its replicas; the result is the same up to rounding, or, as
    sweeps do not mix there, up to ``stationarity``. The model is built outside its scope and holds its data.
    Without XLA and minibatches.
    """
    run.without_data(model)
    EP().check(model)
    adopt(model, EP())
    stationarity = EP().stationarity() if options.stationarity is None else options.stationarity
    hypers = model.trainable_variables
    check_moves(hypers, options.in_graph)
    if run.strategy is not None and options.in_graph:
        raise NotImplementedError(
            "`in_graph` does not go with `strategy`: the host adds up the shards after each sweep."
        )
    if run.strategy is not None and options.minibatch_size is not None:
        raise ValueError(
            "`strategy` shards all data over its devices in each step, minibatches are for one device: give "
            "`strategy` or `minibatch_size`, not both."
        )
    if options.minibatch_size is not None:
        sparse, size = _sparse(model, "`minibatch_size`"), options.minibatch_size

        def build() -> Plan:
            return minibatch_plan(
                sparse,
                run,
                minibatch_size=size,
                optimizer=_inner(model, options.optimizer) if hypers else None,
                damping=options.damping,
                stationarity=stationarity,
                steps_per_call=options.steps_per_call,
            )

        return tried(build, model, run, options.starts) if hypers else build()
    if model.is_structured:
        return _structured_plan(model, run, options)
    if options.outer or not hypers:
        return _on_all_data(model, run, options, stationarity)
    return tried(lambda: _on_all_data(model, run, options, stationarity), model, run, options.starts)


def _on_all_data(model: SiteModel, run: Run, options: EPOptions, stationarity: float) -> Plan:
    hypers = model.trainable_variables
    inner = None if options.outer or not hypers else _inner(model, options.optimizer)
    jit_compile, shards, factors = run.jit_compile, None, None
    if run.strategy is not None:
        shards, jit_compile = _shards(_sparse(model, "`strategy`"), run.strategy, jit_compile), False
        factors = distributed.ShardedFactors(model, shards)
    target = factored(model)
    by_lbfgs = bool(hypers) and options.outer
    whole: Any  # what brings the sites to their fixed point
    if by_lbfgs and shards is None:
        whole = Optimum(target, hypers, options.damping, jit_compile)
    else:
        whole = engine.MomentMatcher(target, hypers, inner, options.damping, jit_compile, factors)
    solver: Solver = whole
    settings: dict[str, Any] = {"recipe": "ep", "damping": options.damping}
    if by_lbfgs:
        names = ("optimizer", "site_updates", "hyper_updates")
        settings |= {name: getattr(options, name) for name in names}
        known = () if model.data is None else model.data[:2]
        starts = number_of_starts(model, options.starts, *known)
        settings["starts"] = options.starts
        solver = HyperparameterAscent(
            whole,
            model,
            hypers,
            site_updates=options.site_updates,
            hyper_updates=options.hyper_updates,
            tolerance=max(GAIN if gpflow.default_float() == np.float64 else 1e-6, _NOISE * stationarity),
            stationarity=stationarity,
            starts=further_starts(model, starts - 1, run.seed, *known),
            spare=spare_starts(options.starts, starts, run.seed, *known),
            units=mean_units(model, hypers, model.data),
            in_graph=in_graph(whole, (model.nat1, model.prec), options.in_graph) if shards is None else None,
        )
        settings |= where(solver.run)
    else:
        settings |= {} if inner is None else {"optimizer": inner.get_config()}
    return Plan(
        solver,
        [*model.variables, *solver.state],
        steps=STEPS if by_lbfgs else 500,
        period=0 if inner is None else 1,
        tolerance=None if inner is not None else lbfgs.gain_of_a_step(hypers),
        stationarity=stationarity,
        trackables={"solver": solver} | ({} if inner is None else {"optimizer": inner}),
        settings=settings,
        shards=shards,
        gather=(lambda: None) if shards is None else distributed.gatherer(model, whole, shards),
        tried=lambda: getattr(solver, "tried", ()),
    )


def _structured_plan(model: SiteModel, run: Run, options: EPOptions) -> Plan:
    """Return the plan of a model whose prior is conditioned on all sites at once, without whitening."""
    given = {"optimizer": options.optimizer, "damping": options.damping, "strategy": run.strategy}
    unused = [name for name, value in given.items() if value not in (None, "lbfgs")]
    if unused:
        raise NotImplementedError(
            f'prior="{model.prior_name}" takes no `{unused[0]}`: its expectation propagation is by adaptive '
            "sweeps, with L-BFGS for the hyperparameters, on one device."
        )
    names = "site_updates", "hyper_updates", "stationarity", "starts", "in_graph"
    chosen = SiteOptions(**{name: getattr(options, name) for name in names})
    return site_plan(model, run, EP(), chosen, steps=500)


def _inner(model: SiteModel, optimizer: Any) -> Any:
    """Return what takes one step in each sweep."""
    if optimizer == "sign_agreement":
        optimizer = SignAgreement(**coordinates(model))
    rate = Schedule("root").rate(RATE)  # of minibatches, the only ones that are by Adam unasked
    return built(optimizer, model.trainable_variables, rate, otherwise=_OR, model=model)


def _sparse(model: SiteModel, option: str) -> SparseEP:
    """Return a model whose sites can be read in parts."""
    if not isinstance(model, SparseEP):
        raise ValueError(f"{option} of expectation propagation is for SparseEP; got {type(model).__name__}.")
    return model


def _shards(model: SparseEP, strategy: tf.distribute.Strategy, jit_compile: bool | None) -> Shards:
    """Return the model's rows sharded over the replicas."""
    if jit_compile:
        raise NotImplementedError("`jit_compile=True` does not go with `strategy`.")
    if model.data is None:
        raise ValueError("`strategy` shards data in memory; the data of this model are a dataset.")
    return Shards(strategy, model.rows.num_data)
