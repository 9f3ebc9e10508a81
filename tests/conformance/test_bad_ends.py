"""How a fit ends badly: a start that is not finite is refused by name, any other bad end warns once."""

from __future__ import annotations

import warnings
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from tensorflow_probability import bijectors

import gpflow_ext as gpx
from gpflow_ext.numerics.positive_triangular import PositiveTriangular
from gpflow_ext.training.ends import check_parameters
from gpflow_ext.training.solver import Steps

X, Y = problems.counts(30)


def broken(values: np.ndarray, row: int) -> np.ndarray:
    values = values.copy()
    values[row] = np.nan
    return values


def gpr(X: Any = X, Y: Any = Y, variance: float = 1.0) -> gpflow.models.GPR:
    return gpflow.models.GPR((X, Y), gpflow.kernels.Linear(variance))


def spoilt(model: gpflow.models.GPModel) -> gpflow.models.GPModel:
    model.kernel.variance.unconstrained_variable.assign(np.nan)
    return model


class Positive(gpflow.likelihoods.ScalarLikelihood):
    """A user's own, whose support nothing is known of."""

    def _scalar_log_prob(self, X: Any, F: Any, Y: Any) -> Any:
        return tf.math.log(Y) - tf.square(F)

    _conditional_mean = _conditional_variance = None


def svgp(likelihood: Any = None) -> gpflow.models.SVGP:
    return gpflow.models.SVGP(problems.kernel(), likelihood or gpflow.likelihoods.Poisson(), X[:5].copy())


@pytest.mark.parametrize(
    ("build", "data", "message"),
    [
        (lambda: spoilt(gpr()), None, r"kernel\.variance is not finite: nan"),
        (lambda: spoilt(gpx.models.VGPKMM((X, Y), problems.kernel(), gpflow.likelihoods.Poisson())), None,
         r"kernel\.variance is not finite"),
        (lambda: gpr(X=broken(X, 3)), None, r"X must be finite; row 3"),
        (lambda: gpr(Y=broken(Y, 7)), None, r"Y must be finite; row 7"),
        (svgp, (X, broken(Y, 7)), r"Y must be finite; row 7"),
        (lambda: gpr(X=1e200 * X), None, r"X must be at most 1e\+150 in size"),
        (lambda: gpr(X=1e100 * X, variance=1e200), None, r"the kernel is not finite at the rows 0, 1.* of X"),
        (lambda: svgp(Positive()), (X, np.where(Y > 0, Y + 1.0, -1.0)),
         r"log likelihood of the prior mean is not finite at the rows .* of Y"),
    ],
)  # fmt: skip
def test_a_start_that_is_not_finite_is_refused_by_name(build: Any, data: Any, message: str) -> None:
    model = build()
    with pytest.raises(ValueError, match=message):
        gpx.fit(model, data)


@pytest.mark.parametrize(
    ("transform", "value"),
    [
        (None, np.nan),
        (gpflow.utilities.triangular(), np.inf),
        (PositiveTriangular(), np.nan),
        (bijectors.FillScaleTriL(bijectors.Exp(), np.array(1e-6)), 1e4),  # which only the transform shows
        (bijectors.Exp(), 1e4),
    ],
)
def test_parameters_are_examined_by_their_variables_where_transforms_keep_numbers(
    transform: Any, value: float
) -> None:
    module = gpflow.Module()
    start = np.ones([2, 2]) if isinstance(transform, bijectors.Exp) else np.eye(2)
    module.factor = gpflow.Parameter(start, transform=transform)
    check_parameters(module)
    variable = module.factor.unconstrained_variable
    variable.assign(tf.fill(variable.shape, tf.constant(value, variable.dtype)))
    with pytest.raises(ValueError, match="factor is not finite"):
        check_parameters(module)


def warned(model: Any, **options: Any) -> tuple[gpx.FitResult, str]:
    """The end of a fit and the one warning that it has given."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = gpx.fit(model, **options)
    assert [each.category for each in caught] == [gpx.FitWarning]
    assert caught[0].filename == __file__
    return result, str(caught[0].message)


def test_a_fit_that_cannot_begin_warns_and_leaves_the_model_as_it_was() -> None:
    """The variances of the prior are 1e24, each a number; by default a second start has smaller ones."""
    model = gpx.models.GPLaplace((1e12 * X, Y), gpflow.kernels.Linear(), gpflow.likelihoods.Poisson())
    result, message = warned(model, starts=1)
    assert result.status is gpx.Status.NON_FINITE
    assert message.startswith(result.status.value)
    assert "the state in which the fit began" in message
    assert model.kernel.variance.numpy() == 1.0


def failing(values: list[float], monotone: bool) -> Any:
    """A recipe that gives these objectives."""

    def recipe(model: gpflow.models.GPR, run: gpx.Run) -> gpx.Plan:
        given = iter(values)

        def step() -> float:
            model.likelihood.variance.assign_add(1.0)
            return next(given)

        return gpx.Plan(Steps(step), model.variables, steps=9, tolerance=None, monotone=monotone)

    return recipe


@pytest.mark.parametrize(("last", "status"), [(np.nan, "NON_FINITE"), (0.5, "DIVERGED")])
def test_a_run_that_fails_on_its_way_says_which_state_it_has_restored(last: float, status: str) -> None:
    model = gpr()
    result, message = warned(model, recipe=failing([1.0, 2.0, last], status == "DIVERGED"))
    assert result.status is gpx.Status[status]
    assert "Step 3 has failed" in message
    assert "after step 2 or the one before" in message
    assert np.isfinite(float(tf.convert_to_tensor(model.likelihood.variance)))
