"""Kernels beside GPflow's own."""

from gpflow_ext.features.kernel import Feature

__all__ = ["Feature"]
