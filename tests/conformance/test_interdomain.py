"""Inducing variables that are no values of f: patches of images, and points seen at scales of their own.

GPflow's sparse models with the same variables are the reference, equal to rounding: matrices of small
condition numbers are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.inducing_variables import (
    InducingPatches,
    InducingVariables,
    Multiscale,
    SeparateIndependentInducingVariables,
    SharedIndependentInducingVariables,
)
from gpflow.kernels import Convolutional, Kernel, SeparateIndependent, SquaredExponential
from gpflow.likelihoods import Gaussian

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit, PoissonLog, RobustMax
from gpflow_ext.models import VGPKMM, GPJaakkola, GPLaplace, GPTaylor, SparseEP, SVGPRobustMax

N, NOISE = 14, 0.3
RNG = np.random.default_rng(0)
VALUES, BINARY = RNG.normal(size=(N, 1)), RNG.integers(0, 2, (N, 1)).astype(float)
COUNTS, CLASSES = RNG.poisson(2.0, (N, 2)).astype(float), (np.arange(N) % 3)[:, None].astype(float)


@dataclass(frozen=True)
class Domain:
    """Inputs [N, D], a kernel, and inducing variables whose Z has M rows."""

    X: np.ndarray
    kernel: Callable[[float], Kernel]
    variables: Callable[[int], InducingVariables]


def convolutional(lengthscale: float = 0.8) -> Kernel:
    return Convolutional(SquaredExponential(lengthscales=lengthscale), [4, 4], [2, 2])


def patches(seed: int = 1) -> InducingVariables:
    return InducingPatches(np.random.default_rng(seed).normal(size=(5, 4)))


def wide(lengthscale: float = 0.8) -> Kernel:
    return SquaredExponential(1.5, lengthscales=[lengthscale, 1.0])


def multiscale(seed: int = 1) -> InducingVariables:
    rng = np.random.default_rng(seed)
    return Multiscale(rng.uniform(-2.0, 2.0, (5, 2)), rng.uniform(0.1, 0.5, (5, 2)))


DOMAINS = {
    "patches": Domain(RNG.normal(size=(N, 16)), convolutional, patches),
    "multiscale": Domain(RNG.uniform(-2.0, 2.0, (N, 2)), wide, multiscale),
}
each_domain = pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
patches_always = pytest.mark.parametrize(
    "domain",
    [DOMAINS["patches"], pytest.param(DOMAINS["multiscale"], marks=pytest.mark.slow)],
    ids=["patches", "multiscale"],
)


def held(model: gpflow.models.GPModel) -> gpflow.models.GPModel:
    """Hold all parameters, bring the sites to their fixed point."""
    gpflow.set_trainable(model, False)
    _, finite = model.settle_sites(300, 1e-11)
    assert finite
    return model


def check_predictions(ours: gpflow.models.GPModel, theirs: gpflow.models.GPModel, X: np.ndarray) -> None:
    for options in ({}, {"full_cov": True}):
        for found in (ours.predict_f(X[:4], **options), ours.posterior().predict_f(X[:4], **options)):
            for a, b in zip(found, theirs.predict_f(X[:4], **options), strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-8)


@each_domain
@pytest.mark.parametrize("kind", [VGPKMM, GPTaylor, GPLaplace, SparseEP])
def test_with_gaussian_noise_they_are_gpflows_regression(domain: Domain, kind: type) -> None:
    """SGPR, and GPRFITC."""
    data, parts = (domain.X, VALUES), (domain.kernel(), domain.variables())
    model = held(kind(data, parts[0], Gaussian(NOISE), inducing_variable=parts[1]))
    reference = gpflow.models.GPRFITC if kind is SparseEP else gpflow.models.SGPR
    theirs = reference(data, *parts, noise_variance=NOISE)
    expected = theirs.maximum_log_likelihood_objective()
    np.testing.assert_allclose(model.maximum_log_likelihood_objective(), expected, rtol=1e-9)
    if kind is not SparseEP:  # SGPR has no predictions for patches, but their q(u)
        q_mu, cov = theirs.compute_qu()
        q_sqrt = tf.linalg.cholesky(cov)[None]
        theirs = gpflow.models.SVGP(
            parts[0], Gaussian(NOISE), parts[1], q_mu=q_mu, q_sqrt=q_sqrt, whiten=False
        )
    check_predictions(model, theirs, domain.X)


@each_domain
@pytest.mark.parametrize("kind", [VGPKMM, GPJaakkola])
def test_other_bounds_are_at_the_optimum_of_svgp(domain: Domain, kind: type) -> None:
    likelihood = BernoulliLogit("piecewise" if kind is VGPKMM else "jaakkola")
    parts = domain.kernel(), likelihood
    model = held(kind((domain.X, BINARY), *parts, inducing_variable=domain.variables()))
    q_mu, q_sqrt = model.whitened()
    theirs = gpflow.models.SVGP(*parts, domain.variables(), q_mu=q_mu, q_sqrt=q_sqrt)
    with tf.GradientTape() as tape:
        elbo = theirs.elbo((domain.X, BINARY))
    slope = tape.gradient(elbo, [p.unconstrained_variable for p in (theirs.q_mu, theirs.q_sqrt)])
    np.testing.assert_allclose(model.elbo(), elbo, rtol=1e-10)
    for part in slope:
        np.testing.assert_allclose(part, 0.0, atol=1e-7)
    check_predictions(model, theirs, domain.X)


@patches_always
def test_robust_max_is_svgp(domain: Domain) -> None:
    kernel, points = domain.kernel(), domain.variables()
    ours = SVGPRobustMax(kernel, 3, points, num_data=N)
    theirs = gpflow.models.SVGP(kernel, RobustMax(3, 1e-3), points, num_latent_gps=3, num_data=N)
    rng, results = np.random.default_rng(2), []
    q = rng.normal(size=(5, 3)), np.tril(rng.uniform(0.1, 0.5, (3, 5, 5)))
    for model in (ours, theirs):
        model.q_mu.assign(q[0])
        model.q_sqrt.assign(q[1])
        with tf.GradientTape() as tape:
            elbo = model.elbo((domain.X, CLASSES))
        moved = [*kernel.trainable_variables, *points.trainable_variables]
        results.append([elbo, *tape.gradient(elbo, moved)])
    for mine, yours in zip(*results, strict=True):
        np.testing.assert_allclose(mine, yours, rtol=1e-8, atol=1e-8)
    check_predictions(ours, theirs, domain.X)
    gpx.fit(ours, (domain.X, CLASSES), steps=5, progress=False)
    assert ours.elbo((domain.X, CLASSES)) > results[0][0]


@patches_always
def test_minibatches_are_batch_mode(domain: Domain) -> None:
    found = []
    for options in ({}, {"minibatch_size": 5, "steps": 60}):
        model = SparseEP(
            (domain.X, BINARY), domain.kernel(), BernoulliProbit(), inducing_variable=domain.variables()
        )
        gpflow.set_trainable(model, False)
        assert gpx.fit(model, progress=False, **options).status is gpx.Status.CONVERGED
        found.append((model.log_evidence(), model.prec.numpy()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-8)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=0, atol=1e-5)


@each_domain
@pytest.mark.parametrize("shared", [False, True])
def test_each_output_may_have_its_own(domain: Domain, shared: bool) -> None:
    seeds = (1, 1) if shared else (1, 2)
    if shared:
        sets = SharedIndependentInducingVariables(domain.variables(1))
    else:
        sets = SeparateIndependentInducingVariables([domain.variables(seed) for seed in seeds])
    kernel = SeparateIndependent([domain.kernel(0.8), domain.kernel(1.2)])
    model = held(VGPKMM((domain.X, COUNTS), kernel, PoissonLog(), inducing_variable=sets))
    parts = [
        held(
            VGPKMM(
                (domain.X, COUNTS[:, [p]]),
                domain.kernel(0.8 + 0.4 * p),
                PoissonLog(),
                inducing_variable=domain.variables(seed),
            )
        )
        for p, seed in enumerate(seeds)
    ]
    np.testing.assert_allclose(model.elbo(), sum(part.elbo() for part in parts), rtol=1e-10)
    for found, *own in zip(
        model.predict_f(domain.X[:4]), *(part.predict_f(domain.X[:4]) for part in parts), strict=True
    ):
        np.testing.assert_allclose(found, np.hstack(own), rtol=0, atol=1e-9)


@patches_always
def test_a_fit_learns_them(domain: Domain, tmp_path) -> None:
    """And the model is taken up from its checkpoint and exported."""
    model = GPJaakkola(
        (domain.X, BINARY),
        domain.kernel(),
        BernoulliLogit("jaakkola"),
        inducing_variable=domain.variables(),
    )
    before = [variable.numpy() for variable in model.inducing_variable.trainable_variables]
    gpx.fit(model, steps=3, checkpoint_dir=tmp_path / "saved", progress=False)
    for variable, old in zip(model.inducing_variable.trainable_variables, before, strict=True):
        assert np.abs(variable - old).max() > 1e-3
    gpx.export(model, tmp_path / "exported", example=domain.X[:2])
    mean, variance = model.predict_f(domain.X[:4])
    served = gpx.load_exported(tmp_path / "exported").predict_f(domain.X[:4])
    loaded = gpx.load_checkpoint(tmp_path / "saved").predict_f(domain.X[:4])
    for found in (served["mean"], loaded[0]):
        np.testing.assert_allclose(found, mean, rtol=0, atol=1e-10)
    for found in (served["variance"], loaded[1]):
        np.testing.assert_allclose(found, variance, rtol=0, atol=1e-10)
