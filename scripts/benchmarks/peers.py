"""The methods that the benchmark compares: the package's and GPflow's, and those of other libraries where installed."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..experiments.kmm.methods import (
    Limit,
    Problem,
    Runner,
    Trace,
    opper_archambeau,
    ours,
    vgp_lbfgs,
    vgp_natural_gradient,
)


def sklearn_laplace(problem: Problem) -> Runner:
    """scikit-learn's Laplace approximation at a fixed kernel; its objective is its own."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    X, Y = problem.data
    variance, lengthscale = problem.plain

    def run(limit: Limit) -> Trace:
        trace = Trace(limit)
        kernel = ConstantKernel(variance) * RBF(lengthscale)
        fitted = GaussianProcessClassifier(kernel, optimizer=None).fit(X, Y[:, 0])
        trace.add(fitted.log_marginal_likelihood_value_)
        return trace

    return run


def gpy_ep(problem: Problem) -> Runner:
    """GPy's expectation propagation, its likelihood a probit; its objective is its own."""
    import GPy

    X, Y = problem.data
    variance, lengthscale = problem.plain

    def run(limit: Limit) -> Trace:
        trace = Trace(limit)
        kernel = GPy.kern.RBF(X.shape[1], variance=variance, lengthscale=lengthscale)
        fitted = GPy.models.GPClassification(X, Y, kernel=kernel)
        trace.add(float(fitted.log_likelihood()))
        return trace

    return run


def bayesnewton_vi(problem: Problem) -> Runner:
    """BayesNewton's variational inference until it gains less than 1e-3; its objective is its own."""
    import bayesnewton
    import jax.numpy as jnp
    import objax

    class SquaredExponential(bayesnewton.kernels.StationaryKernel):  # the library has Matérn kernels only
        def K_r(self, r: Any) -> Any:
            return self.variance * jnp.exp(-0.5 * r**2)

    X, Y = problem.data
    model = bayesnewton.models.VariationalGP(
        kernel=SquaredExponential(*problem.plain),
        likelihood=bayesnewton.likelihoods.Bernoulli(link="logit"),
        X=X,
        Y=Y,
    )
    variables = model.vars()
    start = variables.tensors()
    step = objax.Jit(lambda: (model.inference(lr=1.0), model.energy())[1], variables)

    def run(limit: Limit) -> Trace:
        variables.assign(start)
        trace = Trace(limit)
        previous = -math.inf
        while not trace.objective or not trace.done:
            value = -float(step())
            trace.add(value)
            if abs(value - previous) < 1e-3:
                break
            previous = value
        return trace

    return run


@dataclass(frozen=True)
class Method:
    """A line of the benchmark.

    Attributes
    ----------
    name, build
        What it is called, and how it is built.
    own_objective
        Whether its objective is another than that of the rest.
    module
        The library that it needs.
    warm_up
        Evaluations until all of it is compiled.
    cap
        Seconds that it may take at most.
    """

    name: str
    build: Callable[[Problem], Runner]
    own_objective: bool = False
    module: str | None = None
    warm_up: int = 1
    cap: float = math.inf

    @property
    def installed(self) -> bool:
        """Whether the library that it needs is there."""
        return self.module is None or importlib.util.find_spec(self.module) is not None


METHODS = (
    Method("gpflow_ext, parallel fixed point", functools.partial(ours, method="parallel"), warm_up=2),
    Method("gpflow_ext, Algorithm 1", functools.partial(ours, method="algorithm1"), warm_up=2),
    Method("GPflow VGP, natural gradient", vgp_natural_gradient),
    Method("GPflow VGP, L-BFGS", vgp_lbfgs, cap=30.0),
    Method("GPflow VGPOpperArchambeau, L-BFGS", opper_archambeau, cap=15.0),
    Method("scikit-learn, Laplace", sklearn_laplace, own_objective=True, module="sklearn"),
    Method("BayesNewton, VI", bayesnewton_vi, own_objective=True, module="bayesnewton"),
    Method("GPy, EP", gpy_ep, own_objective=True, module="GPy"),
)
