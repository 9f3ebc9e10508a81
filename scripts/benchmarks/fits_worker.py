"""One contender in a process of its own: what a user pays for imports, the first fit and the next ones.

    python -m scripts.benchmarks.fits_worker '{"method": "GPLaplace", "size": 351, "learn": true, "folds": 0}'

Binary classification with a logistic likelihood and a squared exponential kernel, from log s = 1.5 and log σ = 1.
The last line of the output is the record, as JSON.
"""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Fit = Callable[[Array, Array, bool], tuple[float, int | None]]
"""Fits inputs [N, D] and labels [N], learning the hyperparameters or not; returns the objective and evaluations."""

LENGTHSCALE, VARIANCE = math.exp(1.5), math.exp(2.0)


def scikit_learn() -> Fit:
    """Return scikit-learn's Laplace approximation, with bounds that do not bind."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    def fit(X: Array, y: Array, learn: bool) -> tuple[float, int | None]:
        wide: Any = (1e-6, 1e10) if learn else "fixed"
        kernel = ConstantKernel(VARIANCE, wide) * RBF(LENGTHSCALE, wide)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = GaussianProcessClassifier(kernel, optimizer="fmin_l_bfgs_b" if learn else None).fit(X, y)
        return float(model.log_marginal_likelihood_value_), None

    return fit


def gpboost() -> Fit:
    """Return GPBoost's Laplace approximation, dense, with its own optimiser."""
    import gpboost as gpb

    def fit(X: Array, y: Array, learn: bool) -> tuple[float, int | None]:
        model = gpb.GPModel(
            gp_coords=X, cov_function="gaussian", likelihood="bernoulli_logit", gp_approx="none"
        )
        start = np.array([VARIANCE, math.sqrt(2.0) * LENGTHSCALE])  # its kernel is exp(-r²/ρ²)
        if not learn:
            return -float(model.neg_log_likelihood(cov_pars=start, y=y)), None
        model.fit(y=y, params={"init_cov_pars": start})
        return -float(model.get_current_neg_log_likelihood()), None

    return fit


def ours(name: str) -> Fit:
    """Return a model of this package by its own recipe."""
    import gpflow

    import gpflow_ext as gpx
    from gpflow_ext.training.site_iteration import SiteOptimum

    counted = 0
    evaluate = SiteOptimum.evaluate

    def counting(self: Any, *arguments: Any) -> Any:
        nonlocal counted
        counted += 1
        return evaluate(self, *arguments)

    SiteOptimum.evaluate = counting  # type: ignore[assignment, method-assign]

    def fit(X: Array, y: Array, learn: bool) -> tuple[float, int | None]:
        nonlocal counted
        counted = 0
        kernel = gpflow.kernels.SquaredExponential(variance=VARIANCE, lengthscales=LENGTHSCALE)
        model = getattr(gpx.models, name)((X, y[:, None]), kernel, gpx.likelihoods.BernoulliLogit())
        if not learn:
            gpflow.set_trainable(model, False)
        result = gpx.fit(model, progress=False)
        return float(result.objective[-1]), counted or None

    return fit


CONTENDERS: dict[str, Callable[[], Fit]] = {
    "GPLaplace": lambda: ours("GPLaplace"),
    "VGPKMM": lambda: ours("VGPKMM"),
    "scikit-learn": scikit_learn,
    "GPBoost": gpboost,
}


def drawn(size: int) -> tuple[Array, Array]:
    """Return inputs [N, 4] and labels [N] drawn from a squared exponential, variance 9 and length scale 1."""
    rng = np.random.default_rng(size)
    X = rng.uniform(-2.0, 2.0, (size, 4))
    squared = ((X[:, None] - X[None]) ** 2).sum(-1)
    f = np.linalg.cholesky(9.0 * np.exp(-0.5 * squared) + 1e-6 * np.eye(size)) @ rng.standard_normal(size)
    return X, (rng.uniform(size=size) < 1.0 / (1.0 + np.exp(-f))).astype(float)


def cross_validate(task: dict[str, Any], X: Array, y: Array) -> None:
    """Validate in ten folds, by the library's own means."""
    if task["method"] == "scikit-learn":
        from sklearn.gaussian_process import GaussianProcessClassifier
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel
        from sklearn.model_selection import cross_val_score

        wide: Any = (1e-6, 1e10) if task["learn"] else "fixed"
        kernel = ConstantKernel(VARIANCE, wide) * RBF(LENGTHSCALE, wide)
        optimizer = "fmin_l_bfgs_b" if task["learn"] else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cross_val_score(GaussianProcessClassifier(kernel, optimizer=optimizer), X, y, cv=task["folds"])
        return
    import gpflow

    import gpflow_ext as gpx

    def build(data: tuple[Any, Any]) -> Any:
        kernel = gpflow.kernels.SquaredExponential(variance=VARIANCE, lengthscales=LENGTHSCALE)
        model = getattr(gpx.models, task["method"])(data, kernel, gpx.likelihoods.BernoulliLogit())
        if not task["learn"]:
            gpflow.set_trainable(model, False)
        return model

    gpx.cross_validate(build, (X, y[:, None]), folds=task["folds"], progress=False)


def measure(task: dict[str, Any], X: Array, y: Array) -> dict[str, Any]:
    """Import, fit three times, the third with a twentieth fewer rows, or cross-validate twice."""
    begin = time.perf_counter()
    fit = CONTENDERS[task["method"]]()
    record: dict[str, Any] = {**task, "imports": time.perf_counter() - begin, "seconds": []}
    fewer = len(X) - len(X) // 20
    for rows in (len(X), len(X), fewer):
        begin = time.perf_counter()
        if task["folds"]:
            cross_validate(task, X, y)
        else:
            objective, evaluations = fit(X[:rows], y[:rows], task["learn"])
            record |= {"objective": objective, "evaluations": evaluations} if rows == len(X) else {}
        record["seconds"].append(time.perf_counter() - begin)
        if task["folds"] and len(record["seconds"]) == 2:
            break
    return record


def main() -> None:
    task = json.loads(sys.argv[1])
    if task["size"] == 351:
        data = np.load(task["data"])
        X, y = data["X"], data["y"]
    else:
        X, y = drawn(task["size"])
    print(json.dumps(measure(task, X, y)))


if __name__ == "__main__":
    main()
