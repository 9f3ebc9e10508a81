"""scikit-learn's estimators, one for each kind of target."""

from gpflow_ext.estimators.classifier import GPClassifier
from gpflow_ext.estimators.counts import GPCountRegressor
from gpflow_ext.estimators.ordinal import GPOrdinal
from gpflow_ext.estimators.outputs import GPMultiOutputRegressor
from gpflow_ext.estimators.regressor import GPRegressor

__all__ = ["GPClassifier", "GPCountRegressor", "GPMultiOutputRegressor", "GPOrdinal", "GPRegressor"]
