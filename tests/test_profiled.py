"""The tensor-normal bound with q(W) at its optimum, against the package's own bound of the whole posterior."""

from __future__ import annotations

import functools

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.gprn import network, profiled, profiled_ascent
from gpflow_ext.gprn.profiled_ascent import Profile
from gpflow_ext.models import GPRNTensor
from gpflow_ext.training.loop import Status
from gpflow_ext.training.starts import OWN

N, D, K = 9, 7, 2
X = problems.inputs(N)
SHAPES = [(7,), (2, 4)]  # the second with a cell of padding


def targets(missing: bool) -> np.ndarray:
    rng = np.random.default_rng(0)
    Y = np.sin(X[:, :1]) + 0.5 * rng.normal(size=(N, D))
    if missing:
        Y[rng.uniform(size=Y.shape) < 0.3] = np.nan
    return Y


def model(missing: bool, shape: tuple[int, ...] | None = None, rows: str = "own") -> GPRNTensor:
    """With rows of each node's own, of one for all, or with kernels of each node's own as well."""
    kernel, weight_kernel = problems.kernel(1.0, 1.5), problems.kernel(1.2, 0.9)
    options = {"noise_variance": 0.2, "separate_rows": rows != "shared"}
    nodes = [kernel, problems.kernel(1.0, 0.4)] if rows == "kernels" else kernel
    return GPRNTensor((X, targets(missing)), nodes, weight_kernel, K, shape, "tensor", **options)


def profile_of(new: GPRNTensor) -> tuple[GPRNTensor, Profile]:
    """A profile anywhere, and the network with the collapsed posterior beside it."""
    companion = profiled_ascent.collapsed(new, 0)
    found = Profile(companion.q.patterns, K, int(np.prod(new.q.output_shape)), new.q.has_separate_rows)
    rng = np.random.default_rng(1)
    found.locate(new.prior(), tf.constant(rng.normal(size=(N, K))))
    for part in found.trained:
        part.assign_add(0.3 * rng.normal(size=part.shape))
    return companion, found


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    ("shape", "rows"), [(SHAPES[0], "shared"), (SHAPES[1], "own"), (SHAPES[1], "kernels")]
)
def test_it_is_the_bound_of_the_posterior_that_it_stands_for(missing, shape, rows) -> None:
    new = model(missing, shape, rows)
    companion, found = profile_of(new)
    value, _ = found.bound(new.prior())
    profiled_ascent.assign(new.q, companion, found)
    np.testing.assert_allclose(new.elbo(), value, rtol=1e-9)
    best = network.bound(found.patterns, new.prior().weights, new.prior().noise, new.q.nodes(new.prior()))
    assert value < best  # no Kronecker product is the best covariance


@pytest.mark.parametrize("rows", ["shared", "own"])
def test_the_posterior_of_thousands_of_outputs_without_noise_is_as_narrow_as_its_profile(rows) -> None:
    """Standard deviations of nodes of 1e-8."""
    new = model(False, None, rows)
    companion, found = profile_of(new)
    found.alpha.assign_add(tf.fill(found.alpha.shape, tf.constant(37.0, tf.float64)))
    profiled_ascent.assign(new.q, companion, found)
    cov = profiled.nodes(new.prior(), found.mean(new.prior()), found.factors()).cov
    assert np.sqrt(tf.linalg.diag_part(cov)).max() < 1e-7
    np.testing.assert_allclose(new.q.nodes(new.prior()).cov, cov, rtol=1e-4, atol=1e-18)


@pytest.mark.parametrize("missing", [False, True])
def test_what_is_left_out_is_at_its_optimum(missing) -> None:
    """The gradient of the whole bound vanishes in Ũ and in the scale of Γ₁; without padding in Γ_N as well."""
    new = model(missing, (7,), "shared")
    companion, found = profile_of(new)
    profiled_ascent.assign(new.q, companion, found)
    left_out = [new.q.weight_mean, new.q.weight_factors[0], new.q.weight_factors[1]]
    variables = [parameter.unconstrained_variable for parameter in left_out]
    with tf.GradientTape() as tape:
        value = new.elbo()
    mean, rows, outputs = tape.gradient(value, variables)
    np.testing.assert_allclose(mean, np.zeros_like(mean), atol=1e-8)
    np.testing.assert_allclose(rows, np.zeros_like(rows), atol=1e-7)
    if not missing:
        np.testing.assert_allclose(outputs, np.zeros_like(outputs), atol=1e-7)


def test_the_spread_is_that_of_the_dense_covariance() -> None:
    rng = np.random.default_rng(0)
    rows, alpha = rng.normal(size=(K, N, N)), rng.normal(size=(N, K))
    weighted = np.exp(alpha.T)[:, :, None] * rows
    dense = np.linalg.inv(np.eye(N) + rows.transpose(0, 2, 1) @ weighted)
    found = profiled.spread(tf.constant(rows), tf.constant(alpha))
    variances = np.sum(found.half.numpy() ** 2, axis=1)
    np.testing.assert_allclose(variances, np.einsum("kni,kij,knj->kn", rows, dense, rows), rtol=1e-9)
    np.testing.assert_allclose(found.trace, np.trace(dense, axis1=1, axis2=2), rtol=1e-9)
    np.testing.assert_allclose(found.log_det, np.linalg.slogdet(dense)[1], rtol=1e-9)
    factor = profiled.row_factor(tf.constant(rows), tf.constant(alpha)).numpy()
    np.testing.assert_array_equal(factor, np.tril(factor))
    np.testing.assert_allclose(factor @ factor.transpose(0, 2, 1), dense, rtol=1e-8, atol=1e-10)
    across = np.einsum("ni,ij,nj->n", rows[0], factor[0] @ factor[1].T, rows[1])
    halves = found.half.numpy()
    np.testing.assert_allclose(np.sum(halves[0] * halves[1], axis=0), across, rtol=1e-8, atol=1e-10)


def test_one_covariance_for_all_nodes_is_within_those_of_each() -> None:
    """Where both begin at one factor for all: the bounds are equal, so that the wider family begins no lower."""
    new = model(False)
    companion, _ = profile_of(new)
    prior, patterns = new.prior(), companion.q.patterns
    M, prec = (
        tf.constant(np.random.default_rng(3).normal(size=(N, K))),
        tf.convert_to_tensor(companion.q.prec),
    )
    shared = profiled.begin(patterns, prior, prec, M, float(D), False)
    own = profiled._for_each(patterns, prior, M, shared, float(D))
    values = [float(profiled.bound(patterns, prior, M, factors, float(D))[0]) for factors in (shared, own)]
    np.testing.assert_allclose(values[1], values[0], rtol=1e-10)
    best = profiled.begin(patterns, prior, prec, M, float(D), True)
    assert profiled.bound(patterns, prior, M, best, float(D))[0] >= values[0] - 1e-9


def test_independent_nodes_have_the_covariances_of_the_factorised_posterior() -> None:
    """Γ_N of each node, with Γ_K = I, is (I + σ⁻² Σₙ E[f_nk²] lₙlₙᵀ)⁻¹, the optimum; and t is one."""
    new = model(False, (D,), "kernels")
    _, found = profile_of(new)
    prior = new.prior()
    M, eye, zero = found.mean(prior), tf.eye(K, dtype=tf.float64), tf.zeros([N, K], tf.float64)
    factors = profiled.Factors(tf.convert_to_tensor(found.alpha), eye, eye, zero)
    q = profiled.nodes(prior, M, factors)
    beta = profiled.beta(found.patterns, prior, q, factors, float(D)).numpy()
    expected = (q.mean.numpy() ** 2 + np.diagonal(q.cov.numpy(), axis1=1, axis2=2)) / float(prior.noise)
    np.testing.assert_allclose(np.exp(beta), expected, rtol=1e-10)
    np.testing.assert_allclose(profiled.bound(found.patterns, prior, M, factors, float(D))[1], 1.0, rtol=1e-9)
    with tf.GradientTape() as tape:
        tape.watch(zero)
        value = profiled.bound(found.patterns, prior, M, factors._replace(delta=zero), float(D))[0]
    np.testing.assert_allclose(tape.gradient(value, zero), np.zeros([N, K]), atol=1e-8)


def test_new_coordinates_leave_the_means() -> None:
    new = model(False)
    _, found = profile_of(new)
    prior = new.prior()
    before = found.mean(prior).numpy()
    found.locate(prior, tf.constant(before))
    np.testing.assert_allclose(found.mean(prior), before, rtol=1e-6, atol=1e-8)


@functools.cache
def trained(missing: bool) -> tuple[GPRNTensor, gpx.FitResult]:
    new = model(missing, (D,))
    return new, gpx.fit(new, progress=False)


@pytest.mark.parametrize("missing", [False, True])
def test_fit_ends_at_an_optimum_of_the_whole_bound(missing) -> None:
    """L-BFGS on all the parameters of the posterior, from where the fit has ended, gains nothing."""
    new, result = trained(missing)
    assert result.status == Status.CONVERGED
    assert result.starts[0].name == OWN
    np.testing.assert_allclose(result.objective[-1], new.elbo(), rtol=1e-8)
    held = [new.q.weight_mean, *new.q.weight_factors, new.q.node_mean, *new.q.node_factors]
    own = [parameter.unconstrained_variable for parameter in held]
    values = [variable.read_value() for variable in own]
    gpflow.optimizers.Scipy().minimize(lambda: -new.elbo(), own, options={"maxiter": 100})
    gain = float(new.elbo()) - result.objective[-1]
    for variable, value in zip(own, values, strict=True):
        variable.assign(value)
    # With missing rows outputs could have variances of their own, which the profile gives them in common.
    assert gain < (0.5 if missing else 1e-3)


def test_the_prior_of_nodes_climbs_alone_before_each_round(monkeypatch) -> None:
    new = model(False)
    ascent = profiled_ascent.ProfiledAscent(new, {}, 50, 0, None, False)
    prec = tf.convert_to_tensor(ascent._companion.q.prec)
    ascent.profile.begin(new.prior(), prec, tf.convert_to_tensor(new.q.node_mean))
    monkeypatch.setattr(ascent.run, "climb", lambda iterations: None)
    before, weights = float(ascent._of.objective()), new.weight_kernel.lengthscales.numpy()
    ascent._round()
    assert float(ascent._of.objective()) > before + 0.1
    np.testing.assert_array_equal(new.weight_kernel.lengthscales, weights)


def test_fit_goes_on_where_it_has_ended() -> None:
    new, result = trained(False)
    again = gpx.fit(new, steps=2, progress=False)
    assert again.objective[-1] >= result.objective[-1] - 1e-6


@pytest.mark.slow
def test_it_ends_above_adam() -> None:
    _, result = trained(False)
    other = model(False, (D,))
    optimizer = gpflow.keras.tf_keras.optimizers.Adam(0.02)
    slow = gpx.fit(other, steps=1000, optimizer=optimizer, progress=False)
    assert result.objective[-1] > slow.objective[-1] - 1e-4


def test_a_round_that_ends_nowhere_leaves_the_posterior_and_ends_the_fit(monkeypatch) -> None:
    """As on targets without noise, where a factor is not positive definite."""
    new = model(False)
    before = [variable.numpy() for variable in new.trainable_variables]

    def lost(self: profiled_ascent.ProfiledAscent) -> float:
        self.profile.xi.assign(tf.fill(self.profile.xi.shape, tf.constant(np.nan, tf.float64)))
        return 1.0

    monkeypatch.setattr(profiled_ascent.ProfiledAscent, "_begin", lost)
    with pytest.warns(gpx.FitWarning, match="NaN or infinite"):
        result = gpx.fit(new, progress=False)
    assert result.status is gpx.Status.NON_FINITE
    for variable, value in zip(new.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_coordinates_of_a_mean_are_not_a_number_where_the_information_is_not() -> None:
    unknown, eye = tf.fill([3, 3], tf.constant(np.nan, tf.float64)), tf.eye(3, dtype=tf.float64)
    assert np.isnan(profiled.located(eye, unknown, tf.ones([3, K], tf.float64))).all()
