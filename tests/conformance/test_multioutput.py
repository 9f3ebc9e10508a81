"""Kernels of several outputs: independent ones are as many models of one output, mixtures one model of all values.

The kernels are Matérn ones, whose matrices are well conditioned: what is compared is equal to rounding, and
where two fits are compared, to their tolerance.
"""

from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.inducing_variables import (
    FallbackSharedIndependentInducingVariables,
    InducingPoints,
    SeparateIndependentInducingVariables,
    SharedIndependentInducingVariables,
)
from gpflow.kernels import Coregion, LinearCoregionalization, SeparateIndependent, SharedIndependent
from gpflow.likelihoods import Gaussian, Poisson

import gpflow_ext as gpx
from gpflow_ext.ep.engine import MomentMatcher
from gpflow_ext.ep.stochastic import StochasticMatcher
from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit, PoissonLog, RobustMax
from gpflow_ext.models import VGPKMM, GPJaakkola, GPLaplace, GPTaylor, SparseEP, SVGPRobustMax

N, P, S, NOISE, JITTER = 12, 2, 3, 0.3, 1e-6
RNG = np.random.default_rng(0)
X, NEW = RNG.uniform(-2.0, 2.0, (N, 2)), RNG.uniform(-2.0, 2.0, (3, 2))
POINTS = [RNG.uniform(-2.0, 2.0, (5, 2)) for _ in range(S)]
VALUES, COUNTS = RNG.normal(size=(N, P)), RNG.poisson(2.0, (N, P)).astype(float)
BINARY, CLASSES = RNG.integers(0, 2, (N, P)).astype(float), (np.arange(N) % 3)[:, None].astype(float)
W = RNG.normal(size=(P, S))
FLAGS = [(False, False), (False, True), (True, False), (True, True)]


def kernels(count: int) -> list[gpflow.kernels.Kernel]:
    """Of which the last sees one input alone."""
    parts = [gpflow.kernels.Matern32(1.0 + k, lengthscales=0.6 + 0.3 * k) for k in range(count - 1)]
    return [*parts, gpflow.kernels.Matern12(0.7, active_dims=[1])]


def points(count: int) -> SeparateIndependentInducingVariables:
    return SeparateIndependentInducingVariables([InducingPoints(Z) for Z in POINTS[:count]])


def mixtures() -> LinearCoregionalization:
    return LinearCoregionalization(kernels(S), W)


def held(model: gpflow.models.GPModel) -> gpflow.models.GPModel:
    """Hold all parameters, bring the sites to their fixed point."""
    gpflow.set_trainable(model, False)
    _, finite = model.settle_sites(300, 1e-11)
    assert finite
    return model


def value(model: gpflow.models.GPModel) -> tf.Tensor:
    return model.maximum_log_likelihood_objective()


def slopes(model: gpflow.models.GPModel, parameters: list[gpflow.Parameter]) -> list[tf.Tensor]:
    variables = [p.unconstrained_variable for p in parameters]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(variables)
        objective = value(model)
    return tape.gradient(objective, variables)


METHODS = {
    "kmm": (VGPKMM, PoissonLog, COUNTS),
    "laplace": (GPLaplace, PoissonLog, COUNTS),
    "taylor": (GPTaylor, PoissonLog, COUNTS),
    "jaakkola": (GPJaakkola, lambda: BernoulliLogit("jaakkola"), BINARY),
    "ep": (SparseEP, BernoulliProbit, BINARY),
}


@pytest.mark.parametrize(
    ("method", "sparse"),
    [(method, sparse) for method in METHODS for sparse in (False, True) if sparse or method != "ep"],
)
def test_independent_outputs_are_as_many_models(method: str, sparse: bool) -> None:
    """Objective, gradient in the kernels, predictions with every flag, from a call and from a cache."""
    kind, likelihood, Y = METHODS[method]
    sets = points(P) if sparse else None
    alone = [None] * P if sets is None else [part.Z.numpy() for part in sets.inducing_variable_list]
    kernel = SeparateIndependent(kernels(P))
    model = held(kind((X, Y), kernel, likelihood(), inducing_variable=sets))
    parts = [
        held(kind((X, Y[:, [p]]), one, likelihood(), inducing_variable=alone[p]))
        for p, one in enumerate(kernels(P))
    ]
    np.testing.assert_allclose(value(model), sum(map(value, parts)), rtol=1e-10)
    found = [slopes(model, list(part.parameters)) for part in kernel.kernels]
    for ours, theirs in zip(found, parts, strict=True):
        np.testing.assert_allclose(ours, slopes(theirs, list(theirs.kernel.parameters)), rtol=1e-7, atol=1e-9)
    separate = [part.predict_f(NEW, full_cov=True) for part in parts]
    mean, cov = np.hstack([m for m, _ in separate]), np.concatenate([c for _, c in separate])
    joint = np.einsum("pnm,pq->npmq", cov, np.eye(P))
    check_predictions(model, mean, joint, 1e-9)


def check_predictions(model: gpflow.models.GPModel, mean: np.ndarray, joint: np.ndarray, atol: float) -> None:
    """Compare predictions at NEW, and at a batch of it, with mean [R, P] and covariance [R, P, R, P]."""
    expected = {
        (False, False): np.einsum("npnp->np", joint),
        (False, True): np.einsum("npnq->npq", joint),
        (True, False): np.einsum("npmp->pnm", joint),
        (True, True): joint,
    }
    for predict in (model.predict_f, model.posterior().predict_f):
        for full_cov, full_output_cov in FLAGS:
            m, v = predict(NEW, full_cov=full_cov, full_output_cov=full_output_cov)
            np.testing.assert_allclose(m, mean, rtol=0, atol=atol)
            np.testing.assert_allclose(v, expected[full_cov, full_output_cov], rtol=0, atol=atol)
    _, batched = model.predict_f(np.stack([NEW + 1.0, NEW]), full_cov=True, full_output_cov=True)
    np.testing.assert_allclose(batched[1], joint, rtol=0, atol=atol)


@pytest.mark.parametrize("sets", [POINTS[0], SharedIndependentInducingVariables(InducingPoints(POINTS[0]))])
def test_a_shared_kernel_is_that_of_one_output(sets) -> None:
    one, many = (
        held(VGPKMM((X, COUNTS), kernel, PoissonLog(), inducing_variable=where))
        for kernel, where in ((kernels(1)[0], POINTS[0]), (SharedIndependent(kernels(1)[0], P), sets))
    )
    assert many.prior().A.shape[0] == 1  # nothing is computed twice
    np.testing.assert_allclose(value(many), value(one), rtol=1e-13)
    np.testing.assert_allclose(many.predict_f(NEW)[1], one.predict_f(NEW)[1], rtol=0, atol=1e-12)


def test_a_dense_model_of_independent_outputs_is_gpr() -> None:
    """GPflow's has no jitter on K, and gets it as noise."""
    model = held(VGPKMM((X, VALUES), SeparateIndependent(kernels(P)), Gaussian(NOISE)))
    references = [
        gpflow.models.GPR((X, VALUES[:, [p]]), one, noise_variance=NOISE + JITTER)
        for p, one in enumerate(kernels(P))
    ]
    total = sum(reference.log_marginal_likelihood() for reference in references)
    np.testing.assert_allclose(model.elbo(), total, rtol=1e-10)
    for p, reference in enumerate(references):
        for ours, theirs in zip(model.predict_f(NEW), reference.predict_f(NEW), strict=True):
            np.testing.assert_allclose(ours[:, p], theirs[:, 0], rtol=0, atol=1e-10)


def test_a_sparse_model_at_all_data_is_at_the_optimum_of_svgp() -> None:
    model = VGPKMM((X, COUNTS), SeparateIndependent(kernels(P)), PoissonLog(), inducing_variable=X.copy())
    q_mu, q_sqrt = held(model).whitened()
    points = SharedIndependentInducingVariables(InducingPoints(X.copy()))
    kernel = SeparateIndependent([gpflow.kernels.Matern32(1.0, lengthscales=0.6), whole_last()])
    reference = gpflow.models.SVGP(
        kernel, Poisson(), points, num_latent_gps=P, q_mu=q_mu, q_sqrt=q_sqrt, whiten=True
    )
    with tf.GradientTape() as tape:
        elbo = reference.elbo((X, COUNTS))
    slope = tape.gradient(elbo, [p.unconstrained_variable for p in (reference.q_mu, reference.q_sqrt)])
    np.testing.assert_allclose(elbo, model.elbo(), rtol=1e-10)
    for part in slope:
        np.testing.assert_allclose(part, 0.0, atol=1e-7)
    for ours, theirs in zip(model.predict_f(NEW), reference.predict_f(NEW), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


def whole_last() -> gpflow.kernels.Kernel:
    """The last kernel on inputs that another one masks: GPflow's own kernels of several outputs slice none."""
    return gpflow.kernels.Matern12(0.7, active_dims=[1]) + gpflow.kernels.Constant(1e-300)


def mixed_gaussian(sparse: bool) -> tuple[np.ndarray, ...]:
    """Return K at the data and its part Q that inducing variables see, across to NEW, and at NEW, by NumPy."""
    inputs = np.concatenate([X, NEW])
    grams = np.stack([part(inputs).numpy() for part in kernels(S)])
    K = np.einsum("snm,ps,qs->npmq", grams, W, W).reshape(len(inputs) * P, -1)
    if not sparse:
        return K, K
    seen = []
    for part, Z in zip(kernels(S), POINTS, strict=True):
        cross = part(Z, inputs).numpy()
        seen.append(cross.T @ np.linalg.solve(part(Z).numpy() + JITTER * np.eye(len(Z)), cross))
    return K, np.einsum("snm,ps,qs->npmq", np.stack(seen), W, W).reshape(K.shape)


@pytest.mark.parametrize("kind", ["dense", "variational", "fitc"])
def test_mixtures_are_one_gaussian(kind: str) -> None:
    """The joint covariance of all outputs at all data, with jitter where the dense model has it."""
    noise = NOISE * np.eye(N * P)
    if kind == "fitc":
        model = SparseEP((X, VALUES), mixtures(), Gaussian(NOISE), inducing_variable=points(S))
    else:
        sets = None if kind == "dense" else points(S)
        model = VGPKMM((X, VALUES), mixtures(), Gaussian(NOISE), inducing_variable=sets)
    held(model)
    K, Q = mixed_gaussian(kind != "dense")
    data, y = slice(0, N * P), VALUES.reshape(-1)
    residual = np.diag((K - Q)[data, data])
    noise += np.diag(residual) if kind == "fitc" else 0.0
    noise += JITTER * np.eye(N * P) if kind == "dense" else 0.0
    C = Q[data, data] + noise
    expected = -0.5 * (y @ np.linalg.solve(C, y) + np.linalg.slogdet(2.0 * np.pi * C)[1])
    expected -= 0.5 * residual.sum() / NOISE if kind == "variational" else 0.0
    np.testing.assert_allclose(value(model), expected, rtol=1e-9)
    across, after = Q[data, N * P :], slice(N * P, None)
    mean = across.T @ np.linalg.solve(C, y)
    cov = K[after, after] - across.T @ np.linalg.solve(C, across)
    check_predictions(model, mean.reshape(-1, P), cov.reshape(len(NEW), P, len(NEW), P), 1e-9)


def tall(rows: np.ndarray) -> np.ndarray:
    """Return a row of inputs and the number of the output for each value."""
    return np.column_stack([np.repeat(rows, P, axis=0), np.tile(np.arange(P), len(rows))])


def tall_kernel() -> gpflow.kernels.Kernel:
    """The kernel of mixtures as one of a single output on `tall` inputs."""
    parts = []
    for s, one in enumerate(kernels(S)):
        if not isinstance(one.active_dims, np.ndarray):
            one = type(one)(one.variance.numpy(), one.lengthscales.numpy(), active_dims=[0, 1])
        outputs = Coregion(P, 1, active_dims=[2])
        outputs.W.assign(W[:, [s]])
        outputs.kappa.assign(np.full(P, 1e-30))
        parts.append(one * outputs)
    return gpflow.kernels.Sum(parts)


@pytest.mark.parametrize("method", ["kmm", "laplace", "jaakkola", "probit"])
def test_mixtures_are_a_model_of_all_values(method: str) -> None:
    """Objective, predictions, and the gradient in W, of a model with a datum for each value."""
    kind, likelihood, Y = METHODS["ep" if method == "probit" else method]
    kind = VGPKMM if method == "probit" else kind
    if method == "probit":
        kind = type("EPModel", (VGPKMM,), {"site_method": "ep"})
    model = held(kind((X, Y), mixtures(), likelihood()))
    reference = held(kind((tall(X), Y.reshape(-1, 1)), tall_kernel(), likelihood()))
    np.testing.assert_allclose(value(model), value(reference), rtol=1e-9)
    found = slopes(model, [model.kernel.W])[0]
    outputs = [part.kernels[1].W for part in reference.kernel.kernels]
    np.testing.assert_allclose(found, np.hstack(slopes(reference, outputs)), rtol=1e-6, atol=1e-8)
    mean, cov = reference.predict_f(tall(NEW), full_cov=True)
    shape = len(NEW), P
    check_predictions(model, np.reshape(mean, shape), np.reshape(cov, (*shape, *shape)), 1e-8)


def test_mixtures_are_at_the_optimum_of_vgp() -> None:
    """That of GPflow, on a datum for each value."""
    model = held(VGPKMM((X, COUNTS), mixtures(), PoissonLog()))
    chol, q = model.condition()
    reference = gpflow.models.VGP((tall(X), COUNTS.reshape(-1, 1)), tall_kernel(), Poisson())
    reference.q_mu.assign(q.mean)
    reference.q_sqrt.assign(tf.linalg.cholesky(q.covariance()))
    with tf.GradientTape() as tape:
        elbo = reference.elbo()
    slope = tape.gradient(elbo, [p.unconstrained_variable for p in (reference.q_mu, reference.q_sqrt)])
    np.testing.assert_allclose(elbo, model.elbo(), rtol=1e-10)
    for part in slope:
        np.testing.assert_allclose(part, 0.0, atol=1e-6)
    assert chol.shape == [1, N * P, N * P]


@pytest.mark.parametrize("sets", ["points", "fallback"])
def test_mixtures_share_inducing_points(sets: str) -> None:
    """They are of the functions that are mixed, in whatever class they come."""
    own = {
        "points": POINTS[0],
        "fallback": FallbackSharedIndependentInducingVariables(InducingPoints(POINTS[0])),
    }
    many = SeparateIndependentInducingVariables([InducingPoints(POINTS[0]) for _ in range(S)])
    found, expected = (
        held(VGPKMM((X, COUNTS), mixtures(), PoissonLog(), inducing_variable=each))
        for each in (own[sets], many)
    )
    np.testing.assert_allclose(value(found), value(expected), rtol=1e-12)


def ep(kernel: gpflow.kernels.Kernel, sets) -> SparseEP:
    return SparseEP((X, BINARY), kernel, BernoulliProbit(), inducing_variable=sets)


@pytest.mark.parametrize(
    ("kernel", "count"),
    [pytest.param(SeparateIndependent(kernels(P)), P, marks=pytest.mark.slow), (mixtures(), S)],
)
def test_minibatches_are_batch_mode(kernel: gpflow.kernels.Kernel, count: int) -> None:
    """The fixed point, and there the gradient, which three minibatches share."""
    model = ep(kernel, points(count))
    matcher = MomentMatcher(model, (), None, None, None)
    assert matcher.settle(300, 1e-12)[1] < 1e-11
    sites, evidence = model.sites, model.log_evidence()
    variables = model.trainable_variables
    slope = MomentMatcher(model, variables, None, None, None).differentiate()[1]
    steps = stochastic(model)
    visits = [
        steps._updates.visit(model.gather_sites(n), x, y, tf.constant(float(N), tf.float64))
        for n, x, y in model.rows.batches(4, 0, 0)
    ]
    for parts, exact in zip(zip(*(visit.gradient for visit in visits), strict=True), slope, strict=True):
        np.testing.assert_allclose(sum(parts) / 3, exact, rtol=0, atol=1e-9)
    np.testing.assert_allclose(sum(visit.objective for visit in visits) / 3, evidence, rtol=1e-9)
    for visit, (n, _, _) in zip(visits, model.rows.batches(4, 0, 0), strict=True):
        np.testing.assert_allclose(visit.proposal.prec, tf.gather(sites.prec, n), rtol=0, atol=1e-8)


def stochastic(model: SparseEP) -> StochasticMatcher:
    """Steps on minibatches of four data, in each of which the hyperparameters move."""
    optimizer = gpflow.keras.tf_keras.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)
    steps = StochasticMatcher(model, model.trainable_variables, optimizer, minibatch_size=4, damping=0.6)
    steps.start()
    return steps


@pytest.mark.parametrize("mixed", [False, True])
def test_minibatches_of_independent_outputs_are_as_many_models(mixed: bool) -> None:
    """Five steps, two of them of a second epoch, while the kernels move; mixed by W = I as well."""
    joint = LinearCoregionalization(kernels(P), np.eye(P)) if mixed else SeparateIndependent(kernels(P))
    if mixed:
        gpflow.set_trainable(joint.W, False)
    model, found = ep(joint, points(P)), []
    alone = [
        SparseEP((X, BINARY[:, [p]]), one, BernoulliProbit(), inducing_variable=POINTS[p])
        for p, one in enumerate(kernels(P))
    ]
    for each in (model, *alone):
        steps = stochastic(each)
        for _ in range(5):
            steps.step()
        found.append(steps.sums)
    assert np.abs(alone[0].kernel.variance - 1.0) > 1e-3
    for p, theirs in enumerate(alone):
        np.testing.assert_allclose(joint.kernels[p].variance, theirs.kernel.variance, rtol=1e-9)
        np.testing.assert_allclose(model.prec[:, p], theirs.prec[:, 0], rtol=0, atol=1e-9)
        own = slice(5 * p, 5 * p + 5)
        ours = found[0].prec[0, own, own] if mixed else found[0].prec[p]
        np.testing.assert_allclose(ours, found[1 + p].prec[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "kernel", [pytest.param(SeparateIndependent(kernels(P)), marks=pytest.mark.slow), mixtures()]
)
def test_a_fit_learns_the_kernels(kernel: gpflow.kernels.Kernel, tmp_path) -> None:
    """All of them, and the model is taken up from its checkpoint and exported."""
    model = VGPKMM((X, COUNTS), gpflow.utilities.deepcopy(kernel), PoissonLog(), inducing_variable=POINTS[0])
    gpflow.set_trainable(model.inducing_variable, False)
    start = float(value(model))
    result = gpx.fit(model, steps=5, checkpoint_dir=tmp_path / "saved", progress=False)
    assert result.objective[-1] > start + 0.1
    for part, before in zip(model.kernel.parameters, kernel.parameters, strict=True):
        assert np.abs(part - before).max() > 1e-3
    loaded = gpx.load_checkpoint(tmp_path / "saved")
    gpx.export(model, tmp_path / "exported", example=X[:2])
    served = gpx.load_exported(tmp_path / "exported").predict_f(NEW)
    mean, variance = model.predict_f(NEW)
    np.testing.assert_allclose(loaded.predict_f(NEW)[1], variance, rtol=0, atol=1e-12)
    np.testing.assert_allclose(served["mean"], mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(served["variance"], variance, rtol=0, atol=1e-10)


def robust_max(kernel: gpflow.kernels.Kernel, sets) -> SVGPRobustMax:
    return SVGPRobustMax(kernel, 3, sets, num_data=N)


def test_robust_max_with_kernels_of_each_class_is_svgp() -> None:
    ours = robust_max(SeparateIndependent([*kernels(3)[:2], whole_last()]), points(3))
    q = RNG.normal(size=(5, 3)), np.tril(RNG.uniform(0.1, 0.5, (3, 5, 5)))
    theirs = gpflow.models.SVGP(
        ours.kernel, RobustMax(3, 1e-3), ours.inducing_variable, num_latent_gps=3, num_data=N
    )
    for model in (ours, theirs):
        model.q_mu.assign(q[0])
        model.q_sqrt.assign(q[1])
    results = []
    for model in (ours, theirs):
        shared = [*model.kernel.trainable_variables, *model.inducing_variable.trainable_variables]
        with tf.GradientTape() as tape:
            elbo = model.elbo((X, CLASSES))
        moved = [*shared, model.q_mu.unconstrained_variable, model.q_sqrt.unconstrained_variable]
        results.append([elbo, *tape.gradient(elbo, moved), *model.predict_f(NEW)])
    for mine, yours in zip(*results, strict=True):
        np.testing.assert_allclose(mine, yours, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("recipe", ["robust_max", pytest.param("svi_natural", marks=pytest.mark.slow)])
def test_equal_kernels_of_each_class_train_as_one_that_is_shared(recipe: str) -> None:
    """Natural gradients of stacked projections are those of a shared one."""
    same = [gpflow.kernels.Matern32(lengthscales=0.6) for _ in range(3)]
    sets = SeparateIndependentInducingVariables([InducingPoints(POINTS[0]) for _ in range(3)])
    found = []
    for kernel, where in ((SeparateIndependent(same), sets), (same[0], POINTS[0])):
        if recipe == "robust_max":
            model = robust_max(gpflow.utilities.deepcopy(kernel), gpflow.utilities.deepcopy(where))
        else:
            likelihood = RobustMax(3, 1e-3)
            model = gpflow.models.SVGP(
                kernel, likelihood, gpflow.utilities.deepcopy(where), num_latent_gps=3, num_data=N
            )
        gpflow.set_trainable(model.kernel, False)
        gpflow.set_trainable(model.inducing_variable, False)
        options = {} if recipe == "robust_max" else {"recipe": recipe}
        gpx.fit(model, (X, CLASSES), steps=5, progress=False, **options)
        found.append((model.q_mu.numpy(), model.q_sqrt.numpy(), model.elbo((X, CLASSES)).numpy()))
    assert np.abs(found[0][0]).max() > 0.01
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10)


class Unknown(gpflow.kernels.MultioutputKernel):
    """Some other kernel of several outputs."""

    num_latent_gps, latent_kernels = P, ()
    K = K_diag = None


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: VGPKMM((X, COUNTS), Unknown(), PoissonLog()), NotImplementedError, "Unknown.*LinearCor"),
        (lambda: ep(Unknown(), POINTS[0]), NotImplementedError, "SparseEP.*Unknown"),
        (lambda: robust_max(mixtures(), POINTS[0]), NotImplementedError, "LinearCoreg.*models.SVGP"),
        (
            lambda: VGPKMM((X, COUNTS), mixtures(), PoissonLog()).whitened(),
            NotImplementedError,
            "LinearCoregionalization.*condition",
        ),
        (
            lambda: gpx.fit(VGPKMM((X, COUNTS), mixtures(), PoissonLog()), method="algorithm1"),
            ValueError,
            "parallel",
        ),
        (
            lambda: gpx.fit(
                gpflow.models.SVGP(mixtures(), Poisson(), points(S), num_latent_gps=S, num_data=N),
                (X, COUNTS),
                recipe="svi_natural",
            ),
            NotImplementedError,
            "SeparateIndependent",
        ),
        (
            lambda: VGPKMM((X, COUNTS), SeparateIndependent(kernels(3)), PoissonLog()),
            ValueError,
            "3 outputs, but there are 2",
        ),
        (
            lambda: ep(mixtures(), SharedIndependentInducingVariables(InducingPoints(X[:, :1]))),
            ValueError,
            "1 col",
        ),
        (lambda: ep(mixtures(), points(2)), ValueError, "2 sets for 3 functions"),
        (
            lambda: ep(
                kernels(1)[0],
                SeparateIndependentInducingVariables([InducingPoints(X), InducingPoints(POINTS[0])]),
            ),
            ValueError,
            r"\[5, 12\] elements",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
