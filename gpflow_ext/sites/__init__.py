"""Gaussian sites: the algebra that every site method shares, the priors seen from the data, the models."""

from gpflow_ext.sites.algebra import (
    Expectation,
    Expected,
    Factor,
    Marginals,
    Pair,
    Posterior,
    Prior,
    Sites,
    condition,
    coupling,
    divergence,
    expect,
    log_normaliser,
    variational_bound,
    variational_sites,
)
from gpflow_ext.sites.coupled import Coupled
from gpflow_ext.sites.dense import Dense, DenseFactor
from gpflow_ext.sites.method import (
    SitedModel,
    SiteMethod,
    SiteState,
    Step,
    envelope,
    register_method,
    site_method,
)
from gpflow_ext.sites.projection import Message, ProjectedFactor, Projection, Seen, Whitened

__all__ = [
    "Coupled",
    "Dense",
    "DenseFactor",
    "Expectation",
    "Expected",
    "Factor",
    "Marginals",
    "Message",
    "Pair",
    "Posterior",
    "Prior",
    "ProjectedFactor",
    "Projection",
    "Seen",
    "SiteMethod",
    "SiteState",
    "SitedModel",
    "Sites",
    "Step",
    "Whitened",
    "condition",
    "coupling",
    "divergence",
    "envelope",
    "expect",
    "log_normaliser",
    "register_method",
    "site_method",
    "variational_bound",
    "variational_sites",
]
