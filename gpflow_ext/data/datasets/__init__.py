"""Real data, ready for a model: a known name or a CSV file in, standardised training and test arrays out."""

from gpflow_ext.data.datasets.catalogue import known_names
from gpflow_ext.data.datasets.grids import GridCounts, grid_counts
from gpflow_ext.data.datasets.loading import load
from gpflow_ext.data.datasets.split import Scaler, Split

__all__ = ["GridCounts", "Scaler", "Split", "grid_counts", "known_names", "load"]
