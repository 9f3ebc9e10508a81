"""Estimators for scikit-learn's pipelines; see `gpflow_ext.estimators`."""

from gpflow_ext.estimators import (
    GPClassifier,
    GPCountRegressor,
    GPMultiOutputRegressor,
    GPOrdinal,
    GPRegressor,
)

__all__ = ["GPClassifier", "GPCountRegressor", "GPMultiOutputRegressor", "GPOrdinal", "GPRegressor"]
