"""The sites behind a q(f) that GPflow holds in full: at its optimum it is determined by them.

With a likelihood of independent data the bound of GPflow's ``VGP`` and ``VGPOpperArchambeau`` is highest
where S⁻¹ is the prior's precision plus one Gaussian site for each datum (Opper & Archambeau 2009). So such a
model is trained as a `SiteModel` that has its kernel, likelihood and mean for its own: natural gradients
bring the sites to their fixed point in each evaluation, and L-BFGS moves the hyperparameters on the bound
there, which has the gradient of the optimised one. ``SVGP`` on all data is for `svgp.whole_data`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.kernels import MultioutputKernel
from gpflow.likelihoods import MonteCarloLikelihood
from gpflow.models import VGP, VGPOpperArchambeau

from gpflow_ext.compiled import Compiled
from gpflow_ext.likelihoods.robust_max import has_curvature
from gpflow_ext.sites import Dense, Sites, condition, expect, latent
from gpflow_ext.sites.method import site_method
from gpflow_ext.sites.model import SiteModel
from gpflow_ext.training import deadline
from gpflow_ext.training.lbfgs_recipe import LBFGSSteps
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.overrides import OBJECTIVES
from gpflow_ext.training.recipe import Plan, Run
from gpflow_ext.training.site_recipe import GAIN, SiteOptions, site_plan
from gpflow_ext.training.solver import Progress, Solver

_SMALL = 1e-7  # relative: what the bound may gain beyond positive sites, and not be sought
_POLISHED = 1e-7  # relative gain of an iteration on all parameters, of which there may be N², that is none
_LEAST = 1e-8  # precision of a site of VGPOpperArchambeau, which takes its inverse
_KINDS = (VGP, VGPOpperArchambeau)


class SiteTwin(SiteModel):
    """A site model with the kernel, likelihood and mean function of another model.

    Parameters
    ----------
    model
        A model for which `has_sites` holds.
    data
        Inputs [N, D] and targets [N, P].
    """

    def __init__(self, model: Any, data: tuple[Any, Any]) -> None:
        self._by_precision = isinstance(model, VGPOpperArchambeau)
        self.allows_indefinite = not self._by_precision  # which takes the root of precisions
        super().__init__(data, model.kernel, model.likelihood, model.mean_function, model.num_latent_gps)

    def prior(self, X: tf.Tensor | None = None) -> Any:
        """See `SiteModel`; without jitter where the model has none."""
        if not self._by_precision:
            return super().prior(X)
        X = self.data[0] if X is None else X
        return Dense(latent.mean(self, X), self.kernel(X)[None])

    def q(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the two parameters of q(f) as the model has them, and about how much they miss, [].

        That is what the bound could gain where precisions are cut at zero, ¼ Σₙ (λ(vₙ) − λₙ)² vₙ²; less by
        other precisions that are not negative.
        """
        prior = self.prior()
        if not self._by_precision:
            return *prior.whiten().message(self.sites).moments(), tf.zeros([], self.nat1.dtype)
        found = condition(prior, self.sites)
        curvature = expect(self.expectation, found.mean, found.var).curvature
        missed = 0.25 * tf.reduce_sum(tf.square(tf.minimum(curvature, 0.0) * found.var))
        return found.alpha, tf.sqrt(tf.maximum(self.prec, _LEAST)), missed


def has_sites(model: Any) -> bool:
    """Tell whether the optimal q of a model is made of sites, and `SiteTwin` finds it."""
    return has_free_q(model) and has_curvature(model.likelihood)


def has_free_q(model: Any) -> bool:
    """Tell whether all of q(f) moves, and the bound is that of independent data."""
    kind = next((kind for kind in _KINDS if isinstance(model, kind)), None)
    if kind is None or isinstance(model.kernel, MultioutputKernel) or not has_plain_bound(model, kind):
        return False
    return all(parameter.trainable and parameter.prior is None for parameter in q_of(model))


def has_plain_bound(model: Any, kind: type[Any]) -> bool:
    """Tell whether a model's objective is that of its class in GPflow, and no estimate by sampling."""
    if any(getattr(type(model), name) is not getattr(kind, name) for name in OBJECTIVES):
        return False
    likelihood = model.likelihood
    return not any(isinstance(each, MonteCarloLikelihood) for each in (likelihood, *likelihood.submodules))


def q_of(model: Any) -> tuple[gpflow.Parameter, gpflow.Parameter]:
    """Return the parameters of q(f)."""
    if isinstance(model, VGPOpperArchambeau):
        return model.q_alpha, model.q_lambda
    return model.q_mu, model.q_sqrt


class TwinSteps(tf.Module):
    """Steps of the twin, after each of which the model has its q; then, where needed, of the model itself.

    Where they do not come to rest, or ``VGPOpperArchambeau`` has precisions of zero because its likelihood is
    not log-concave, L-BFGS on all parameters goes on from where the twin ends.

    Parameters
    ----------
    model, twin
        The model and its twin.
    solver
        The solver of the twin.
    polish
        L-BFGS on the model.
    stationarity
        The violation at which the twin has settled.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.
    """

    def __init__(
        self,
        model: Any,
        twin: SiteTwin,
        solver: Solver,
        polish: LBFGSSteps,
        stationarity: float,
        jit_compile: bool | None,
    ) -> None:
        super().__init__()
        self._q, self._twin, self._solver, self._polish = q_of(model), twin, solver, polish
        self._stationarity = stationarity
        self._compiled = Compiled(twin, resolve_jit(jit_compile))
        self.polishing = tf.Variable(False, trainable=False)
        self.last = tf.Variable(math.nan, dtype=tf.float64, trainable=False)  # the objective of the twin

    @property
    def state(self) -> list[tf.Variable]:
        """See `Solver`."""
        return [*self._solver.state, *self._polish.state, self.polishing, self.last]

    def start(self) -> Progress:
        """See `Solver`."""
        self.polishing.assign(False)
        self.last.assign(math.nan)
        self._polish.start()
        return self._solver.start()

    def step(self) -> Progress:
        """See `Solver`."""
        if self.polishing:
            return self._polish.step()
        progress = self._solver.step()
        *q, missed = self._compiled(self._twin.q)
        sound = math.isfinite(progress.objective) and all(np.isfinite(part).all() for part in q)
        if not sound:
            return Progress(math.nan)
        for parameter, value in zip(self._q, q, strict=True):
            parameter.assign(value)
        size = max(1.0, abs(progress.objective))
        stalled = progress.objective - float(self.last) <= GAIN * size  # false for NaN
        stalled &= not deadline.current().has_cut
        self.last.assign(progress.objective)
        settled = progress.violation <= self._stationarity
        if settled and float(missed) <= _SMALL * size:
            return progress
        self.polishing.assign(settled or stalled)
        return Progress(progress.objective, math.inf)


def twin_plan(
    model: Any,
    arrays: tuple[Any, Any] | None,
    run: Run,
    starts: int | None = None,
    in_graph: bool | None = None,
) -> Plan:
    """Return the plan that trains a model as its twin.

    Parameters
    ----------
    model
        A model for which `has_sites` holds.
    arrays
        Its data, where it does not hold them.
    run
        What `fit` was asked for.
    starts, in_graph
        See `SiteOptions`.
    """
    X, Y = model.data if arrays is None else arrays
    twin = SiteTwin(model, (np.asarray(X), np.asarray(Y)))
    _begin_at(model, twin)
    options = SiteOptions(starts=starts, in_graph=in_graph)
    plan = site_plan(twin, dataclasses.replace(run, data=None), site_method("kmm"), options)
    data = () if arrays is None else (twin.data,)
    polish = LBFGSSteps(
        model,
        data,
        model.trainable_variables,
        50,
        run.jit_compile,
        tolerance=_POLISHED,
        in_graph=in_graph,
    )
    solver = TwinSteps(model, twin, plan.solver, polish, plan.stationarity, run.jit_compile)
    return dataclasses.replace(
        plan,
        solver=solver,
        steps=200,
        variables=[*plan.variables, *(part.unconstrained_variable for part in q_of(model)), *solver.state],
        monotone=False,
        trackables={"solver": solver, "lbfgs": polish.run},
        settings={"recipe": "sites of q", **({"in_graph": True} if plan.settings.get("in_graph") else {})},
        data=arrays,
    )


def _begin_at(model: Any, twin: SiteTwin) -> None:
    """Give the twin the sites of the model's q, by one natural-gradient step, if that has a mean already."""
    if not np.any(q_of(model)[0].numpy()):
        return
    mean, var = model.predict_f(twin.data[0])
    found = expect(twin.expectation, mean, var)
    prec = tf.nn.relu(found.curvature)
    sites = Sites(found.grad + prec * mean, prec)
    if all(np.isfinite(part).all() for part in sites):
        twin.assign_sites(sites)
