"""Outputs of a regression network with amplitudes and noise of their own."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.gprn import network
from gpflow_ext.models import GPRNTensor
from gpflow_ext.sampling.draws import Draws
from gpflow_ext.sampling.tuning import Setting

N, D, K = 9, 3, 2
X, XNEW = problems.inputs(N), problems.inputs(4, seed=5)
UNITS = np.array([2.0, 0.3, 1.0])  # what the targets are divided by
AMPLITUDE, RELATIVE = np.array([1.5, 0.7, 1.1]), np.array([0.4, 2.0, 1.3])


def targets() -> np.ndarray:
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(N, D))
    Y[rng.uniform(size=Y.shape) < 0.2] = np.nan
    return Y


def model(units: np.ndarray, Y: np.ndarray | None = None, **options) -> GPRNTensor:
    """One network in different units of its targets."""
    new = GPRNTensor(
        (X, (targets() if Y is None else Y) / units),
        gpflow.kernels.SquaredExponential(lengthscales=1.3),
        gpflow.kernels.SquaredExponential(variance=1.2, lengthscales=0.9),
        K,
        output_scales=True,
        **options,
    )
    new.output_amplitude.assign(AMPLITUDE / units)
    new.output_noise.assign(RELATIVE / units**2)
    new.q.restart(new.prior())
    return new


@pytest.mark.parametrize("inducing", [None, X[::2]])
def test_units_of_the_targets_change_nothing_but_the_units(inducing) -> None:
    """Bound, sweeps and all predictions, where rows are missing and where Z are fewer."""
    plain, other = (model(units, inducing_variable=inducing) for units in (np.ones(D), UNITS))
    for each in (plain, other):
        for _ in range(2):
            each.q.sweep(each.prior())
    known = np.sum(~np.isnan(targets()), axis=0)
    np.testing.assert_allclose(plain.elbo() + known @ np.log(UNITS), other.elbo(), rtol=1e-9)
    evidences = [each.independent_log_likelihood() for each in (plain, other)]
    np.testing.assert_allclose(evidences[0] + known @ np.log(UNITS), evidences[1], rtol=1e-9)
    same_predictions(plain, other)


def same_predictions(plain: GPRNTensor, other: GPRNTensor) -> None:
    """The first predicts what the second does, times the units."""
    for predict in ("predict_f", "predict_y"):
        (mean, var), (theirs, own) = (getattr(each, predict)(XNEW) for each in (plain, other))
        np.testing.assert_allclose(mean, theirs * UNITS, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(var, own * UNITS**2, rtol=1e-7)
    mean, var = plain.predict_outputs(XNEW, [2, 0])
    np.testing.assert_allclose(var, plain.predict_y(XNEW)[1].numpy()[:, [2, 0]], rtol=1e-10)
    cached = plain.posterior().predict_outputs(XNEW, [2, 0])
    np.testing.assert_allclose(cached, (mean, var), rtol=1e-9)
    cov, theirs = (each.predict_f(XNEW, full_cov=True)[1] for each in (plain, other))
    np.testing.assert_allclose(cov, theirs * (UNITS**2)[:, None, None], rtol=1e-6, atol=1e-8)
    Ynew = np.random.default_rng(3).normal(size=(len(XNEW), D))
    own, theirs = plain.predict_log_density((XNEW, Ynew)), other.predict_log_density((XNEW, Ynew / UNITS))
    np.testing.assert_allclose(own, theirs - np.sum(np.log(UNITS)), rtol=1e-7)


def test_draws_are_seen_in_units_too() -> None:
    plain, other = model(np.ones(D)), model(UNITS)
    values = {
        "V": np.random.default_rng(1).normal(size=(1, 3, N, K)),
        "likelihood.variance": np.array([[0.1, 0.3, 0.2]]),
    }
    for each in (plain, other):
        each.assign_draws(Draws(values, {"log_density": np.zeros((1, 3))}, Setting(0.1, 1), 0.0))
    same_predictions(plain, other)


def test_one_output_has_the_kernel_and_the_noise_that_its_scales_make() -> None:
    Y = targets()[:, :1]
    scaled = GPRNTensor((X, Y), problems.kernel(1.0, 1.3), problems.kernel(1.2, 0.9), K, output_scales=True)
    scaled.output_amplitude.assign([1.7])
    scaled.output_noise.assign([0.4])
    plain = GPRNTensor((X, Y), problems.kernel(1.0, 1.3), problems.kernel(1.2, 0.9), K)
    plain.weight_kernel.variance.assign(1.2 * 1.7**2)
    plain.likelihood.variance.assign(0.04)
    F = plain.q.start(plain.prior())
    for each in (scaled, plain):
        each.q.update(each.prior(), network.known(F))
    # The jitter of K_w is of the variance 1 in one, and of 1.7² in the other.
    np.testing.assert_allclose(scaled.elbo(), plain.elbo(), rtol=1e-6)
    np.testing.assert_allclose(scaled.noise(), [0.04], rtol=1e-12)
    np.testing.assert_allclose(scaled.q.location, plain.q.location, rtol=1e-4)


def test_information_is_that_of_the_outputs_own_scales() -> None:
    """A sum over outputs, each with the kernel and the noise of its own."""
    new = model(np.ones(D))
    prior = new.prior()
    gram, seen = prior.weights @ tf.transpose(prior.weights), new.q.seen(prior.scales)
    F = new.q.start(prior)
    total = 0.0
    for d in range(D):
        alone = network.Patterns(*(part[d : d + 1] for part in seen[:3]))
        total += network.information(alone, AMPLITUDE[d] ** 2 * gram, F, RELATIVE[d] * prior.noise)
    np.testing.assert_allclose(network.information(seen, gram, F, prior.noise), total, rtol=1e-10)


def test_targets_in_a_variable_are_outputs_apart() -> None:
    Y = np.nan_to_num(targets())
    held, plain = model(np.ones(D), tf.Variable(Y)), model(np.ones(D), Y)
    np.testing.assert_allclose(held.elbo(), plain.elbo(), rtol=1e-12)


def test_moments_are_of_outputs_of_one_scale() -> None:
    plain, other = (model(units, np.nan_to_num(targets())) for units in (np.ones(D), UNITS))
    found = []
    for each in (plain, other):
        prior = each.prior()
        gram = prior.weights @ tf.transpose(prior.weights)
        found.append(network.moment_nodes(each.q.seen(prior.scales), gram, prior.noise, K))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-8, atol=1e-10)


def test_scales_are_learnt_and_stay_with_new_data() -> None:
    rng = np.random.default_rng(0)
    inputs = np.linspace(-2.0, 2.0, 30)[:, None]
    Y = np.sin(2.0 * inputs) * [1.0, 3.0] + rng.normal(size=(30, 2)) * [0.05, 0.6]
    kernels = problems.kernel(1.0, 2.0), problems.kernel(1.0, 1.0)
    new = GPRNTensor((inputs, Y), *kernels, 1)
    gpx.fit(new, steps=2, progress=False)
    noise, amplitude = new.noise().numpy(), new.output_amplitude.numpy()
    assert 36.0 < noise[1] / noise[0] < 576.0  # 144 and a factor of four
    assert 1.5 < amplitude[1] / amplitude[0] < 6.0
    new.update_data((inputs[:20], Y[:20]))
    np.testing.assert_array_equal(new.noise(), noise)


def test_few_outputs_have_scales_unless_they_are_refused() -> None:
    def has(outputs: int, posterior: str = "collapsed", **options) -> bool:
        kernels = problems.kernel(1.0, 1.0), problems.kernel(1.0, 1.0)
        return (
            GPRNTensor((X, np.ones((N, outputs))), *kernels, 1, None, posterior, **options).scales()
            is not None
        )

    assert [has(1), has(2), has(8), has(9)] == [False, True, True, False]
    assert has(9, output_scales=True)
    assert not has(2, output_scales=False)
    assert not has(2, "tensor")
    with pytest.raises(NotImplementedError, match="output_scales"):
        has(2, "tensor", output_scales=True)


def test_outputs_that_lack_different_rows_have_scales() -> None:
    kernels = problems.kernel(1.0, 1.0), problems.kernel(1.0, 1.0)
    Y = np.where(np.eye(N, dtype=bool), np.nan, 1.0)
    assert GPRNTensor((X, Y), *kernels, 1).scales() is not None
    Y[0, 0] = 1.0
    Y[1, 1] = 1.0
    assert GPRNTensor((X, Y), *kernels, 1).scales() is None
