"""Models made of others predict by them, and are not trained."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import scipy.special
import scipy.stats

from gpflow_ext.prediction.average import ModelAverage
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
