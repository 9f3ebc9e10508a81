"""Features of inputs for `gpflow_ext.kernels.Feature`."""

from gpflow_ext.features.scattering import Scattering

__all__ = ["Scattering"]
