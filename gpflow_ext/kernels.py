"""Kernels in addition to GPflow's own."""

from gpflow_ext.convolution.kernel import Convolutional, TranslationInsensitive
from gpflow_ext.features.kernel import Feature

__all__ = ["Convolutional", "Feature", "TranslationInsensitive"]
