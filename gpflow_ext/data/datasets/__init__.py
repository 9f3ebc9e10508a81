"""Load data for a model: from a name, a file or a data frame to standardised arrays."""

from gpflow_ext.data.datasets.catalogue import known_names
from gpflow_ext.data.datasets.grids import GridCounts, grid_counts
from gpflow_ext.data.datasets.loading import load
from gpflow_ext.data.datasets.split import Scaler, Split
from gpflow_ext.data.reading.problems import Problem, Remedy, TableError

__all__ = [
    "GridCounts",
    "Problem",
    "Remedy",
    "Scaler",
    "Split",
    "TableError",
    "grid_counts",
    "known_names",
    "load",
]
