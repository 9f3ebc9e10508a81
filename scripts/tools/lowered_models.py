"""What `scripts.tools.lower` runs: ordinary fits, samples and predictions of small models, each with its own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal
from unittest import mock

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import gpflow_ext as gpx
from gpflow_ext import likelihoods, models
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.svgp import whole_data

N, M, D = 48, 12, 3
Run = Callable[[], Any]  # returns the model


def _data(kind: str) -> tuple[Any, Any]:
    """Return inputs [N, D] and targets with noise, [N, 1] or, of ``"outputs"``, [N, 3]."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    F = np.stack([X[:, 0], np.sin(2.0 * X[:, 1]), X[:, 2] ** 2 - 1.0], axis=1)
    noise = 0.3 * rng.normal(size=(N, 1))
    targets = {
        "binary": F[:, :1] + noise > 0.0,
        "classes": F.argmax(axis=1)[:, None],
        "counts": rng.poisson(np.exp(F[:, 1:2])),
        "real": F[:, :1] + noise,
        "outputs": F + 0.3 * rng.normal(size=F.shape),  # a network without noise solves singular systems
    }
    dtype = gpflow.default_float()
    return X.astype(dtype), targets[kind].astype(dtype)


def _kernel() -> gpflow.kernels.Kernel:
    return gpflow.kernels.SquaredExponential(lengthscales=1.5)


def _points() -> Any:
    return _data("real")[0][:M].copy()


def _fit(model: Any, data: Any = None, *, steps: int = 2, **options: Any) -> Any:
    gpx.fit(model, data, steps=steps, progress=False, **options)
    return model


def _kmm(**options: Any) -> Any:
    where = {"inducing_variable": _points()} if options.pop("inducing", False) else {}
    model = models.VGPKMM(_data("binary"), _kernel(), likelihoods.BernoulliLogit(), **where)
    return _fit(model, hyper_updates=2, site_updates=3, **options)


def _kmm_alone() -> Any:
    model = models.VGPKMM(_data("binary"), _kernel(), likelihoods.BernoulliLogit())
    gpflow.set_trainable(model.kernel, False)
    return _fit(model)


def _ep(kind: str = "binary", **options: Any) -> Any:
    likelihood = likelihoods.BernoulliProbit() if kind == "binary" else likelihoods.RobustMax(3)
    model = models.SparseEP(_data(kind), _kernel(), likelihood, inducing_variable=_points())
    return _fit(model, **options)


def _sites(model: Any, **options: Any) -> Any:
    return _fit(model, hyper_updates=2, site_updates=3, **options)


def _robust_max(**options: Any) -> Any:
    return _fit(models.SVGPRobustMax(_kernel(), 3, _points(), num_data=N), _data("classes"), **options)


def _network(posterior: Literal["collapsed", "tensor"] = "collapsed", **options: Any) -> Any:
    return _fit(models.GPRNTensor(_data("outputs"), _kernel(), _kernel(), 2, posterior=posterior), **options)


def _approximated(**options: Any) -> Any:
    model = models.SGPMCFreeForm(
        _data("binary"), _kernel(), likelihoods.BernoulliProbit(), inducing_variable=_points()
    )
    gpx.gaussian_approximation(model, steps=3, starts=1, free_inducing=False, **options)
    return model


def _svgp(recipe: str | None, **options: Any) -> Any:
    likelihood = likelihoods.PoissonLog()
    model = gpflow.models.SVGP(_kernel(), likelihood, _points(), num_data=N, whiten=True)
    return _fit(model, _data("counts"), recipe=recipe, **options)


def _in_steps(build: Run, updates: int = 3, iterations: int = 20) -> Any:
    """Settle q in some steps: where a tolerance ends them, rounding decides on one more."""
    fixed: dict[str, Any] = {"_UPDATES": updates, "_STATIONARITY": (0.0, 0.0), "_ITERATIONS": iterations}
    with mock.patch.multiple(whole_data, **fixed):
        return build()


def _in_time() -> Any:
    X, Y = _data("counts")
    kernel = gpflow.kernels.Matern32(lengthscales=1.5)
    model = models.VGPKMM((X[:, :1], Y), kernel, likelihoods.PoissonLog(), prior="markov")
    return _fit(model, hyper_updates=2, site_updates=3)


def _sampled(precondition: str | None, tuner: Any = None, **options: Any) -> Any:
    model = models.SGPMCFreeForm(
        _data("binary"), _kernel(), likelihoods.BernoulliProbit(), inducing_variable=_points()
    )
    for parameter in model.kernel.trainable_parameters:
        parameter.prior = tfp.distributions.Gamma(*map(gpflow.utilities.to_default_float, (2.0, 1.0)))
    gpx.gaussian_approximation(model, steps=2, free_inducing=False)
    gpx.sample(
        model, 4, 4, tuner=tuner or Setting(0.2, 5), precondition=precondition, approximate=False, warm_up=2,
        progress=False, check=False, **options,
    )  # fmt: skip
    return model


def _gaussian(**options: Any) -> Any:
    return _fit(gpflow.models.GPR(_data("real"), _kernel()), **options)


RUNS: dict[str, Run] = {
    "VGPKMM": _kmm,
    "VGPKMM, kernel held": _kmm_alone,
    "VGPKMM, Algorithm 1": lambda: _kmm(method="algorithm1"),
    "VGPKMM, inducing points": lambda: _kmm(inducing=True),
    "SparseEP": _ep,
    "SparseEP, minibatches": lambda: _ep(
        minibatch_size=16, steps=3
    ),  # an epoch: sums of all sites at its end
    "SparseEP, steps in a call": lambda: _ep(minibatch_size=16, steps_per_call=3),
    "SparseEP, classes": lambda: _ep("classes"),
    "VGPKMM, Markov": _in_time,
    "GPLaplace": lambda: _sites(models.GPLaplace(_data("binary"), _kernel(), likelihoods.BernoulliLogit())),
    "GPTaylor": lambda: _sites(
        models.GPTaylor(_data("binary"), _kernel(), likelihoods.BernoulliLogit(), inducing_variable=_points())
    ),
    "GPJaakkola": lambda: _sites(
        models.GPJaakkola(_data("binary"), _kernel(), likelihoods.BernoulliLogit(bound="jaakkola"))
    ),
    "SVGPRobustMax": lambda: _in_steps(_robust_max),
    "SVGPRobustMax, minibatches": lambda: _robust_max(minibatch_size=16),
    "SVGPRobustMax, steps in a call": lambda: _robust_max(minibatch_size=16, steps_per_call=3),
    "GPRNTensor": _network,
    "GPRNTensor, tensor": lambda: _network("tensor", minibatch_size=3),  # by Adam
    "GPRNTensor, profiled": lambda: _network("tensor", hyper_updates=2),
    "SVGP, whole data": lambda: _in_steps(lambda: _svgp(None)),
    "SVGP, natural gradients": lambda: _svgp("svi_natural", minibatch_size=16),
    "SVGP, dual sites": lambda: _svgp("dual", minibatch_size=16),
    "SGPMCFreeForm, vb": lambda: _sampled("vb"),
    "SGPMCFreeForm, conditional": lambda: _sampled("conditional"),
    "SGPMCFreeForm, ChEES": lambda: _sampled("vb", "chees", tuning={"iterations": 4}),
    "SGPMCFreeForm, Gibbs": lambda: _sampled(None, Setting(0.2, 5, 0.1)),
    "SGPMCFreeForm, NUTS": lambda: _sampled("vb", "nuts", tuning={"iterations": 2}),
    "GPLaplace, L-BFGS in the graph": lambda: _sites(
        models.GPLaplace(_data("binary"), _kernel(), likelihoods.BernoulliLogit()), in_graph=True
    ),
    "SVGP, L-BFGS in the graph": lambda: _in_steps(
        lambda: _svgp(None, in_graph=True, starts=1), updates=15, iterations=2
    ),
    "GPRNTensor, L-BFGS in the graph": lambda: _network(
        in_graph=True, starts=1, sweeps=0, hyper_updates=3, steps=1
    ),
    "GPRNTensor, profiled in the graph": lambda: _network(
        "tensor", in_graph=True, starts=1, hyper_updates=1, steps=1
    ),
    "SGPMCFreeForm, approximation in the graph": lambda: _approximated(in_graph=True),
    "GPR": _gaussian,
    "GPR, L-BFGS in the graph": lambda: _gaussian(recipe="lbfgs", in_graph=True, iterations=5),
}
PREDICTIONS = ("predict_f", "predict_y")
ROWS = 16  # of a prediction


def new_rows(name: str) -> tf.Tensor:
    """Return inputs to predict at by a model of `RUNS`, [ROWS, D], or [ROWS, 1] times."""
    return tf.constant(_data("real")[0][:ROWS, : 1 if "Markov" in name else D] + 0.1)
