"""What `sample` draws from: the optimised objective wherever the hyperparameters are, and priors as it advises."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit, PoissonLog
from gpflow_ext.models import VGPKMM, GPLaplace, GPTaylor, SparseEP
from gpflow_ext.sampling.coordinates import coordinates_from
from gpflow_ext.sampling.sampleable import sampleable
from gpflow_ext.sites.model import SiteModel

real = gpflow.utilities.to_default_float
COUNTS, CLASSES = problems.counts(30, 1.0, 1.0), problems.binary(30)
MODELS = {
    "VGPKMM": (VGPKMM, COUNTS, PoissonLog, False),
    "VGPKMM, sparse": (VGPKMM, COUNTS, PoissonLog, True),
    "GPLaplace": (GPLaplace, COUNTS, PoissonLog, False),
    "GPTaylor": (GPTaylor, CLASSES, BernoulliLogit, True),
    "SparseEP": (SparseEP, CLASSES, gpflow.likelihoods.Bernoulli, True),
}


def build(name: str) -> SiteModel:
    cls, data, likelihood, sparse = MODELS[name]
    kernel = problems.kernel(1.0, 1.0)
    for parameter in kernel.parameters:
        parameter.prior = tfp.distributions.Gamma(real(2.0), real(1.0))
    if not sparse:
        return cls(data, kernel, likelihood())
    model = cls(data, kernel, likelihood(), inducing_variable=problems.inputs(8, seed=5))
    gpflow.set_trainable(model.inducing_variable, False)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_the_density_is_that_of_sites_settled_where_the_hyperparameters_are(name: str) -> None:
    """Length scales 2.2 times smaller and larger than where the sites are: a tenth of a nat if they stayed."""
    model = build(name)
    gpx.fit(model)
    sampled = sampleable(model)
    target, _ = coordinates_from("auto", sampled, "hmc").place(sampled)
    for factor in (1.0, 1.0 / 2.2, 2.2):
        moved = build(name)
        for mine, theirs in zip(moved.kernel.parameters, model.kernel.parameters, strict=True):
            mine.assign(theirs)
        moved.kernel.lengthscales.assign(factor * model.kernel.lengthscales)
        moved.settle_sites(2000, 1e-10)
        pair = moved.kernel.lengthscales, moved.kernel.variance  # in the order of their names
        logs = tf.math.log(tf.stack(pair))
        expected = moved.maximum_log_likelihood_objective()
        priors = tf.add_n([p.prior.log_prob(tf.convert_to_tensor(p)) for p in moved.kernel.parameters])
        z = logs if target.affine is None else target.affine.inverse(logs[None])[0]
        np.testing.assert_allclose(
            target(z[None])[0], expected + priors + tf.reduce_sum(logs), rtol=0.0, atol=1e-6
        )


class Everything(gpflow.models.BayesianModel):
    """A parameter of each kind, on a likelihood that does not matter."""

    def __init__(self) -> None:
        super().__init__()
        triangular = gpflow.utilities.triangular()
        between = tfp.bijectors.Sigmoid(real(-1.0), real(3.0))
        self.positive = gpflow.Parameter(2.0, transform=gpflow.utilities.positive())
        self.above = gpflow.Parameter(2.0, transform=gpflow.utilities.positive(lower=0.1))
        self.coefficients = gpflow.Parameter([-2.0, 1.0])
        self.share = gpflow.Parameter(0.5, transform=between)
        self.factor = gpflow.Parameter(np.eye(2)[None], transform=triangular)

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        return tf.zeros([], gpflow.default_float())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_advice_for_missing_priors_runs_as_it_is_printed(dtype: type) -> None:
    with gpflow.config.as_context():
        gpflow.config.set_default_float(dtype)
        model = Everything()
        with pytest.raises(ValueError, match="without a prior") as caught:
            gpx.sample(model)
        lines = str(caught.value).splitlines()
        exec("\n".join(lines[lines.index("") :]), {"model": model})
        assert isinstance(model.positive.prior, tfp.distributions.Gamma)
        assert isinstance(model.above.prior, tfp.distributions.Gamma)
        assert isinstance(model.coefficients.prior, tfp.distributions.Normal)
        assert isinstance(model.share.prior, tfp.distributions.Uniform)
        assert np.isfinite(model.log_prior_density())
        draws = gpx.sample(model, 2, 1, tuner=gpx.Setting(0.1, 2), warm_up=1, check=False, progress=False)
        assert np.isfinite(draws.values["coefficients"]).all()
