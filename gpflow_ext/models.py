"""The models of this package: subclasses of GPflow's models."""

from gpflow_ext.ep.model import SparseEP
from gpflow_ext.gprn.model import GPRNTensor
from gpflow_ext.kmm.model import VGPKMM
from gpflow_ext.laplace.model import GPJaakkola, GPLaplace, GPTaylor
from gpflow_ext.sampling.freeform import SGPMCFreeForm
from gpflow_ext.sites.model import SiteModel
from gpflow_ext.svgp.model import SVGPRobustMax

__all__ = [
    "VGPKMM",
    "GPJaakkola",
    "GPLaplace",
    "GPRNTensor",
    "GPTaylor",
    "SGPMCFreeForm",
    "SVGPRobustMax",
    "SiteModel",
    "SparseEP",
]
