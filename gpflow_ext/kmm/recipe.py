"""The recipe of `VGPKMM`: variational inference on any site model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpflow_ext.kmm.method import KMM, Algorithm1
from gpflow_ext.sites import SiteMethod
from gpflow_ext.sites.model import SiteModel
from gpflow_ext.training.recipe import Plan, Run, recipe
from gpflow_ext.training.site_recipe import SiteOptions, site_plan


@dataclass(frozen=True)
class KMMOptions(SiteOptions):
    """Options of the recipe "kmm", in addition to those of every site method.

    Attributes
    ----------
    method
        ``"parallel"`` for the safeguarded parallel fixed point, ``"algorithm1"`` for the paper's sweep.
    site_updates
        Maximum number of iterations of the fixed point in an evaluation.
    stationarity
        Largest violation of the fixed point, relative to 1 + λ, that counts as converged; by default 1e-5 in
        float64, 1e-3 in float32.
    block
        Sites in a block of Algorithm 1; it does not change the iterates.
    """

    method: Literal["parallel", "algorithm1"] = "parallel"
    site_updates: int = 50
    block: int = 64


@recipe("kmm", KMMOptions, knows_objective=True, models=SiteModel)
def kmm(model: SiteModel, run: Run, options: KMMOptions) -> Plan:
    """Return the plan of Khan, Mohamed & Murphy (2012) for any site model; the options are `KMMOptions`.

    With trainable hyperparameters a step is ``hyper_updates`` iterations of L-BFGS on the bound, the sites
    near their fixed point in each evaluation; without any it is up to eight iterations of the fixed point
    (sweeps of Algorithm 1).
    """
    method: SiteMethod = KMM() if options.method == "parallel" else Algorithm1(options.block)
    return site_plan(model, run, method, options, settings={"method": options.method})
