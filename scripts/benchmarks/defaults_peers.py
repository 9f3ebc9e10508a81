"""Other libraries on the same tables, at their defaults: scikit-learn, statsmodels and GPBoost where installed."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats

from gpflow_ext.prediction import baselines, metrics

from .defaults_models import Record, coverage
from .defaults_tables import GP, LINEAR, Array, Part

Scores = Callable[[Part], Record]
_MOST_CLASS_ROWS = 1000  # training rows up to which scikit-learn's GP of several classes is fitted
_MOST_DENSE_ROWS = 5000  # up to which a kernel matrix of all is decomposed
_FOLDS = 5
_LEAST = 1e-300


def peers(part: Part) -> dict[str, Scores]:
    """Return what fits the task of a table."""
    has_gpboost = importlib.util.find_spec("gpboost") is not None
    if part.task in ("binary", "multiclass", "ordinal"):
        found: dict[str, Scores] = {LINEAR: _logistic_regression}
        found |= {name: _classifier(make) for name, make in _classifiers(part).items()}
        if part.task == "ordinal":
            found["multinomial logistic regression"] = found.pop(LINEAR)
            if importlib.util.find_spec("statsmodels"):
                found[LINEAR] = _ordinal_regression
        if part.task == "binary" and has_gpboost and len(part.X) <= _MOST_DENSE_ROWS:
            found["GPBoost"] = _gpboost_classes
        return found
    if part.task == "count":
        return {LINEAR: _poisson_regression, "gradient boosting": _poisson_boosting}
    found = {LINEAR: _bayesian_ridge, "gradient boosting": _boosting}
    if len(part.X) <= _MOST_DENSE_ROWS:
        found = {GP: _gaussian_process, **found}
        if part.task == "regression" and has_gpboost:
            found["GPBoost"] = _gpboost_numbers
    return found


def measure(fit: Scores, part: Part) -> Record:
    """Fit and score; the seconds are those of the fit."""
    cpu = time.process_time()
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fit(part)
    return {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu, **found}


def _classifiers(part: Part) -> dict[str, Callable[[], Any]]:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel
    from sklearn.svm import SVC

    folds = max(2, min(_FOLDS, int(np.bincount(part.Y[:, 0].astype(int)).min())))
    found: dict[str, Callable[[], Any]] = {
        "gradient boosting": lambda: HistGradientBoostingClassifier(random_state=0)
    }
    if len(part.X) > _MOST_DENSE_ROWS:
        return found
    found["calibrated SVC"] = lambda: CalibratedClassifierCV(SVC(), cv=folds)
    if part.task == "binary" or len(part.X) <= _MOST_CLASS_ROWS:
        found[GP] = lambda: GaussianProcessClassifier(ConstantKernel(1.0) * RBF(1.0))
    return found


def _logistic_regression(part: Part) -> Record:
    return _of_classes(
        baselines.class_probabilities(part.X, part.Y[:, 0], part.X_test, part.num_classes), part
    )


def _classifier(make: Callable[[], Any]) -> Scores:
    def fit(part: Part) -> Record:
        model = make().fit(part.X, part.Y[:, 0])
        seen = model.predict_proba(part.X_test)
        probabilities = np.zeros((len(seen), part.num_classes))  # a class without a training row has none
        probabilities[:, model.classes_.astype(int)] = seen
        return _of_classes(probabilities, part)

    return fit


def _of_classes(probabilities: Array, part: Part) -> Record:
    safe = np.maximum(probabilities, _LEAST)
    return {
        "error": metrics.error_rate(probabilities, part.Y_test),
        "nlpd": metrics.nlpd_from_probabilities(np.minimum(safe, 1.0), part.Y_test),
        "calibration": metrics.expected_calibration_error(probabilities, part.Y_test),
    }


def _ordinal_regression(part: Part) -> Record:
    from statsmodels.miscmodels.ordinal_model import OrderedModel

    varying = np.ptp(part.X, axis=0) > 0.0
    fitted = OrderedModel(part.Y[:, 0].astype(int), part.X[:, varying], distr="logit").fit(
        method="bfgs", maxiter=500, disp=False
    )
    found = np.asarray(fitted.predict(part.X_test[:, varying]))
    probabilities = np.zeros((len(found), part.num_classes))
    probabilities[:, np.unique(part.Y).astype(int)] = found
    return _of_classes(probabilities, part)


def _gpboost_classes(part: Part) -> Record:
    positive = _gpboost(part, "bernoulli_logit")["mu"]
    return _of_classes(np.stack([1.0 - positive, positive], axis=1), part)


def _gpboost_numbers(part: Part) -> Record:
    found = _gpboost(part, "gaussian")
    return _of_numbers(found["mu"][:, None], found["var"][:, None], part)


def _gpboost(part: Part, likelihood: str) -> dict[str, Array]:
    import gpboost

    model = gpboost.GPModel(
        gp_coords=part.X, cov_function="gaussian", likelihood=likelihood, gp_approx="none"
    )
    model.fit(y=part.Y[:, 0])
    return dict(model.predict(gp_coords_pred=part.X_test, predict_var=True, predict_response=True))


def _gaussian_process(part: Part) -> Record:
    """Return those of one kernel for all outputs; each is fitted alone where not all have the same rows."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    def fit(X: Array, y: Array, X_test: Array) -> tuple[Array, Array]:
        kernel = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(1.0)
        mean, deviation = GaussianProcessRegressor(kernel).fit(X, y).predict(X_test, return_std=True)
        return mean.reshape(len(X_test), -1), np.square(deviation).reshape(len(X_test), -1)

    return _of_numbers(*_by_output(fit, part, together=True), part)


def _bayesian_ridge(part: Part) -> Record:
    return _of_numbers(*baselines.moments(part.X, part.Y, part.X_test), part)


def _boosting(part: Part) -> Record:
    """Return those of a Gaussian whose variance is that of the residuals in cross-validation."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import cross_val_predict

    def fit(X: Array, y: Array, X_test: Array) -> tuple[Array, Array]:
        model = HistGradientBoostingRegressor(random_state=0)
        left = y[:, 0] - cross_val_predict(model, X, y[:, 0], cv=min(_FOLDS, len(X)))
        mean = model.fit(X, y[:, 0]).predict(X_test)[:, None]
        return mean, np.full_like(mean, np.mean(np.square(left)))

    return _of_numbers(*_by_output(fit, part), part)


def _by_output(
    fit: Callable[[Array, Array, Array], tuple[Array, Array]], part: Part, together: bool = False
) -> tuple[Array, Array]:
    """Fit each output by the rows in which it is known; return means and variances [N, P]."""
    known = ~np.isnan(part.Y)
    if together and known.all():
        return fit(part.X, part.Y, part.X_test)
    found = [
        fit(part.X[rows], part.Y[rows, number : number + 1], part.X_test)
        for number, rows in enumerate(known.T)
    ]
    mean, var = (np.concatenate(each, axis=1) for each in zip(*found, strict=True))
    return mean, var


def _of_numbers(mean: Array, var: Array, part: Part) -> Record:
    known = ~np.isnan(part.Y_test)
    mean, var, Y = mean[known], np.broadcast_to(var, part.Y_test.shape)[known], part.Y_test[known]
    density = scipy.stats.norm.logpdf(Y, mean, np.sqrt(var))
    return {
        "error": float(np.sqrt(np.mean(np.square(mean - Y)))),
        "nlpd": float(-density.mean()),
        "calibration": coverage(mean, var, Y),
    }


def _poisson_regression(part: Part) -> Record:
    return _of_rates(baselines.rates(part.X, *_counted(part.Y), part.X_test), part)


def _poisson_boosting(part: Part) -> Record:
    from sklearn.ensemble import HistGradientBoostingRegressor

    (y, exposure), model = _counted(part.Y), HistGradientBoostingRegressor(loss="poisson", random_state=0)
    return _of_rates(model.fit(part.X, y / exposure, sample_weight=exposure).predict(part.X_test), part)


def _of_rates(rates: Array, part: Part) -> Record:
    y, exposure = _counted(part.Y_test)
    mean = exposure * rates
    return {
        "error": float(np.sqrt(np.mean(np.square(mean - y)))),
        "nlpd": float(-scipy.stats.poisson.logpmf(y, mean).mean()),
        "calibration": coverage(mean, mean, y),
    }


def _counted(Y: Array) -> tuple[Array, Array]:
    return Y[:, 0], Y[:, 1] if Y.shape[1] == 2 else np.ones(len(Y))
