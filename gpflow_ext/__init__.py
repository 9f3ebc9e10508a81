"""Gaussian processes with non-conjugate likelihoods for GPflow.

>>> import gpflow, gpflow_ext as gpx
>>> train, test = gpx.datasets.load("breast_cancer")
>>> model = gpx.models.VGPKMM(train, gpflow.kernels.SquaredExponential(), gpx.likelihoods.BernoulliLogit())
>>> result = gpx.fit(model)
>>> scores = gpx.metrics.evaluate(model, test)

Names are imported when they are first used; reading tables needs no TensorFlow.
"""

from typing import TYPE_CHECKING

from gpflow_ext._lazy import attach
from gpflow_ext._version import __version__

if TYPE_CHECKING:
    from gpflow_ext import estimators, features, kernels, likelihoods, models, zoo
    from gpflow_ext.citations import cite
    from gpflow_ext.compiled import allow_tf32, clear_compiled, trace_count
    from gpflow_ext.convolution.kernel import LocatedPatches
    from gpflow_ext.cross_validation import CrossValidation, cross_validate
    from gpflow_ext.data import datasets, inducing
    from gpflow_ext.estimators.auto import auto
    from gpflow_ext.estimators.chosen import Auto
    from gpflow_ext.features.kernel import InducingFeatures
    from gpflow_ext.fitting import fit
    from gpflow_ext.loading import load_checkpoint
    from gpflow_ext.node_choice import NodesFit, fit_nodes
    from gpflow_ext.persistence.export import export
    from gpflow_ext.persistence.exported import load_exported
    from gpflow_ext.persistence.verify import verify
    from gpflow_ext.prediction import metrics, plotting
    from gpflow_ext.prediction.functions import sample_functions
    from gpflow_ext.prediction.predictor import ClassPredictor
    from gpflow_ext.reporting import report
    from gpflow_ext.sampling import coordinates
    from gpflow_ext.sampling.approximation import gaussian_approximation
    from gpflow_ext.sampling.draws import ConvergenceWarning, Draws
    from gpflow_ext.sampling.sample import sample
    from gpflow_ext.sampling.tuning import Setting
    from gpflow_ext.sites.grid.structure import GridOptions
    from gpflow_ext.sites.vecchia.structure import VecchiaOptions
    from gpflow_ext.svgp.labels import start_from_labels
    from gpflow_ext.training import distribute
    from gpflow_ext.training.ends import FitWarning
    from gpflow_ext.training.loop import FitResult, Status
    from gpflow_ext.training.recipe import Plan, Recipe, Run, recipe, register

__all__ = [
    "Auto",
    "ClassPredictor",
    "ConvergenceWarning",
    "CrossValidation",
    "Draws",
    "FitResult",
    "FitWarning",
    "GridOptions",
    "InducingFeatures",
    "LocatedPatches",
    "NodesFit",
    "Plan",
    "Recipe",
    "Run",
    "Setting",
    "Status",
    "VecchiaOptions",
    "__version__",
    "allow_tf32",
    "auto",
    "cite",
    "clear_compiled",
    "coordinates",
    "cross_validate",
    "datasets",
    "distribute",
    "estimators",
    "export",
    "features",
    "fit",
    "fit_nodes",
    "gaussian_approximation",
    "inducing",
    "kernels",
    "likelihoods",
    "load_checkpoint",
    "load_exported",
    "metrics",
    "models",
    "plotting",
    "recipe",
    "register",
    "report",
    "sample",
    "sample_functions",
    "start_from_labels",
    "trace_count",
    "verify",
    "zoo",
]

# The imports above as they happen; tests/test_lazy.py compares the three lists.
__getattr__, __dir__ = attach(
    __name__,
    {
        "Auto": "estimators.chosen:Auto",
        "ClassPredictor": "prediction.predictor:ClassPredictor",
        "ConvergenceWarning": "sampling.draws:ConvergenceWarning",
        "CrossValidation": "cross_validation:CrossValidation",
        "Draws": "sampling.draws:Draws",
        "FitResult": "training.loop:FitResult",
        "FitWarning": "training.ends:FitWarning",
        "GridOptions": "sites.grid.structure:GridOptions",
        "InducingFeatures": "features.kernel:InducingFeatures",
        "LocatedPatches": "convolution.kernel:LocatedPatches",
        "NodesFit": "node_choice:NodesFit",
        "Plan": "training.recipe:Plan",
        "Recipe": "training.recipe:Recipe",
        "Run": "training.recipe:Run",
        "Setting": "sampling.tuning:Setting",
        "Status": "training.loop:Status",
        "VecchiaOptions": "sites.vecchia.structure:VecchiaOptions",
        "allow_tf32": "compiled:allow_tf32",
        "auto": "estimators.auto:auto",
        "cite": "citations:cite",
        "clear_compiled": "compiled:clear_compiled",
        "coordinates": "sampling.coordinates",
        "cross_validate": "cross_validation:cross_validate",
        "datasets": "data.datasets",
        "distribute": "training.distribute",
        "estimators": "estimators",
        "export": "persistence.export:export",
        "features": "features",
        "fit": "fitting:fit",
        "fit_nodes": "node_choice:fit_nodes",
        "gaussian_approximation": "sampling.approximation:gaussian_approximation",
        "inducing": "data.inducing",
        "kernels": "kernels",
        "likelihoods": "likelihoods",
        "load_checkpoint": "loading:load_checkpoint",
        "load_exported": "persistence.exported:load_exported",
        "metrics": "prediction.metrics",
        "models": "models",
        "plotting": "prediction.plotting",
        "recipe": "training.recipe:recipe",
        "register": "fitting:register",  # where the package's own are registered before it
        "report": "reporting:report",
        "sample": "sampling.sample:sample",
        "sample_functions": "prediction.functions:sample_functions",
        "start_from_labels": "svgp.labels:start_from_labels",
        "trace_count": "compiled:trace_count",
        "verify": "persistence.verify:verify",
        "zoo": "zoo",
    },
)
