"""GPflow models."""

from gpflow_ext.models.gprn_tensor import GPRNTensor
from gpflow_ext.models.quadratic import GPJaakkola, GPLaplace, GPTaylor
from gpflow_ext.models.sgpmc_freeform import SGPMCFreeForm
from gpflow_ext.models.site_model import SiteModel
from gpflow_ext.models.sparse_ep import SparseEP
from gpflow_ext.models.svgp_robustmax import SVGPRobustMax
from gpflow_ext.models.vgp_kmm import VGPKMM

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
