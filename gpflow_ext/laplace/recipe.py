"""The recipes "laplace", "taylor" and "jaakkola": local quadratics on any site model."""

from __future__ import annotations

from gpflow_ext.laplace.method import Jaakkola, Laplace, Taylor
from gpflow_ext.sites.model import SiteModel
from gpflow_ext.training.recipe import Plan, Run, recipe
from gpflow_ext.training.site_recipe import SiteOptions, site_plan

_STEPS = 500  # at most, with the hyperparameters held


@recipe("laplace", SiteOptions, knows_objective=True, models=SiteModel)
def laplace(model: SiteModel, run: Run, options: SiteOptions) -> Plan:
    """Return the plan of Laplace's approximation (Izmailov 2016, section 1.3.1); options `SiteOptions`.

    With trainable hyperparameters a step is ``hyper_updates`` iterations of L-BFGS, the sites near their
    fixed point in each evaluation; without any it is up to eight safeguarded Newton steps. The violation that
    counts as converged is 1e-7 in float64: each Newton step squares it, and the gradient's error is
    proportional to it.
    """
    return site_plan(model, run, Laplace(), options, steps=_STEPS)


@recipe("taylor", SiteOptions, knows_objective=True, models=SiteModel)
def taylor(model: SiteModel, run: Run, options: SiteOptions) -> Plan:
    """Return the plan of vi-Taylor (Izmailov 2016, section 2.3.2), which is `laplace`."""
    return site_plan(model, run, Taylor(), options, steps=_STEPS)


@recipe("jaakkola", SiteOptions, knows_objective=True, models=SiteModel)
def jaakkola(model: SiteModel, run: Run, options: SiteOptions) -> Plan:
    """Return the plan of vi-JJ (Izmailov 2016, section 2.3.1); the options are `SiteOptions`.

    An update never lowers the bound. It converges linearly: in float64 1e-5 counts as converged.
    """
    return site_plan(model, run, Jaakkola(), options, steps=_STEPS)
