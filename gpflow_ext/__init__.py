"""Gaussian processes with non-conjugate likelihoods for GPflow.

>>> import gpflow, gpflow_ext as gpx
>>> train, test = gpx.datasets.load("breast_cancer")
>>> model = gpx.models.VGPKMM(train, gpflow.kernels.SquaredExponential(), gpx.likelihoods.BernoulliLogit())
>>> result = gpx.fit(model)
>>> scores = gpx.metrics.evaluate(model, test)
"""

from gpflow_ext import datasets, distribute, inducing, likelihoods, metrics, models, plotting
from gpflow_ext._version import __version__
from gpflow_ext.citations import cite
from gpflow_ext.inference.loops import FitResult, Status
from gpflow_ext.mcmc.draws import ConvergenceWarning, Draws
from gpflow_ext.mcmc.tuning import Setting
from gpflow_ext.persistence import export, load_exported, verify
from gpflow_ext.prediction import ClassPredictor
from gpflow_ext.recipes import fit, gaussian_approximation, sample

__all__ = [
    "ClassPredictor",
    "ConvergenceWarning",
    "Draws",
    "FitResult",
    "Setting",
    "Status",
    "__version__",
    "cite",
    "datasets",
    "distribute",
    "export",
    "fit",
    "gaussian_approximation",
    "inducing",
    "likelihoods",
    "load_exported",
    "metrics",
    "models",
    "plotting",
    "sample",
    "verify",
]
