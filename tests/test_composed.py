"""Models made of others predict by them, and are not trained."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import scipy.special
import scipy.stats

from gpflow_ext.prediction.average import ModelAverage, stacking_weights
from gpflow_ext.prediction.rescaled import RescaledTargets

X, XNEW = problems.inputs(8), problems.inputs(3, seed=7)
Y, YNEW = np.sin(X[:, :1]), np.full((3, 1), 0.3)
SHIFT, SCALE = 2.0, 3.0


def member(noise: float) -> gpflow.models.GPR:
    return gpflow.models.GPR((X, Y), problems.kernel(), noise_variance=noise)


def test_an_average_has_the_moments_and_density_of_the_mixture() -> None:
    members, weights = [member(0.1), member(0.7)], np.array([0.75, 0.25])
    average = ModelAverage(members, weights)
    for name in ("predict_f", "predict_y"):
        means, variances = (
            np.stack(part) for part in zip(*(getattr(m, name)(XNEW) for m in members), strict=True)
        )
        mean = np.tensordot(weights, means, 1)
        found = getattr(average, name)(XNEW)
        np.testing.assert_allclose(found[0], mean, rtol=1e-12)
        np.testing.assert_allclose(
            found[1], np.tensordot(weights, variances + (means - mean) ** 2, 1), rtol=1e-12
        )
    each = np.stack([m.predict_log_density((XNEW, YNEW)) for m in members])
    expected = scipy.special.logsumexp(each, axis=0, b=weights[:, None])
    np.testing.assert_allclose(average.predict_log_density((XNEW, YNEW)), expected, rtol=1e-12)


def test_a_member_of_weight_zero_adds_nothing_where_its_variance_is_infinite() -> None:
    heavy = gpflow.models.VGP((X, Y), problems.kernel(), gpflow.likelihoods.StudentT(df=2.0))
    found = ModelAverage([member(0.1), heavy], [1.0, 0.0]).predict_y(XNEW)
    np.testing.assert_allclose(found, member(0.1).predict_y(XNEW), rtol=1e-12)
    assert np.isinf(ModelAverage([member(0.1), heavy], [0.5, 0.5]).predict_y(XNEW)[1]).all()


def test_rows_that_no_model_thinks_possible_have_no_say_in_stacking() -> None:
    densities = np.log(np.random.default_rng(0).uniform(size=(6, 2)))
    densities[0] = -np.inf, -1.0
    expected = stacking_weights(densities)
    found = stacking_weights(np.r_[densities, np.full((2, 2), -np.inf)])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(stacking_weights(np.full((2, 4), -np.inf)), np.full(4, 0.25))


@pytest.mark.parametrize("wrong", [[1.0, 2.0], [[np.nan, 0.0]], [[np.inf, 0.0]], np.zeros((3, 0))])
def test_densities_that_cannot_be_stacked_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match="log_densities must be"):
        stacking_weights(wrong)


def test_a_rescaled_model_predicts_in_the_units_of_its_targets() -> None:
    model = RescaledTargets(member(0.1), [SHIFT], [SCALE])
    mean, var = (part.numpy() for part in member(0.1).predict_y(XNEW))
    found = model.predict_y(XNEW)
    np.testing.assert_allclose(found[0], SHIFT + SCALE * mean, rtol=1e-12)
    np.testing.assert_allclose(found[1], SCALE**2 * var, rtol=1e-12)
    np.testing.assert_allclose(
        model.predict_f(XNEW)[1], SCALE**2 * member(0.1).predict_f(XNEW)[1], rtol=1e-12
    )
    expected = scipy.stats.norm.logpdf(YNEW, SHIFT + SCALE * mean, SCALE * np.sqrt(var))[:, 0]
    np.testing.assert_allclose(model.predict_log_density((XNEW, YNEW)), expected, rtol=1e-10)


@pytest.mark.parametrize(
    "model", [ModelAverage([member(0.1)], [1.0]), RescaledTargets(member(0.1), [0.0], [1.0])]
)
def test_covariances_and_training_are_refused(model) -> None:
    with pytest.raises(NotImplementedError, match="marginal"):
        model.predict_f(XNEW, full_cov=True)
    with pytest.raises(NotImplementedError, match="is not trained"):
        model.maximum_log_likelihood_objective()
