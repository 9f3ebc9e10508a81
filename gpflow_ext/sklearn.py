"""Estimators for scikit-learn's pipelines; see `gpflow_ext.estimators`."""

from gpflow_ext.estimators.classifier import GPClassifier

__all__ = ["GPClassifier"]
