"""Any site method on any site model, by any road: `gpx.fit`, GPflow's optimisers, a class of one's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras
from marks import others_slow

import gpflow_ext as gpx
from gpflow_ext import sites
from gpflow_ext.kmm.method import KMM
from gpflow_ext.likelihoods import (
    BernoulliLogit,
    BernoulliProbit,
    MultinomialLogit,
    RobustMax,
    StudentT,
    Weighted,
)
from gpflow_ext.models import VGPKMM, GPJaakkola, GPLaplace, GPTaylor, SGPMCFreeForm, SiteModel, SparseEP
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.training.ends import bad_end
from gpflow_ext.training.site_iteration import SiteOptimum

DATA = problems.binary(30, variance=40.0, lengthscale=1.0)  # with a signal: the optimum is not the prior
XNEW = problems.inputs(7, seed=11)
Z = problems.inputs(8, seed=5)
JAAKKOLA = BernoulliLogit(bound="jaakkola")


class Own(SiteModel):
    """A user's class, which says nothing at all."""


class Damped(sites.SiteMethod):
    """A user's method: half of a natural-gradient step."""

    name: ClassVar[str] = "damped"

    def step(self, model: Any, prior: Any, state: sites.Step) -> sites.Step:
        q = sites.condition(prior, state.sites)
        new = sites.variational_sites(model.expectation, sites.Marginals(q.mean, q.var))
        change = tf.reduce_max(tf.abs(new.prec - state.sites.prec) / (1.0 + state.sites.prec))
        half = (0.5 * (a + b) for a, b in zip(state.sites, new, strict=True))
        return sites.Step(sites.Sites(*half), change)

    def objective(self, model: Any, prior: Any, current: sites.Sites) -> tf.Tensor:
        return sites.variational_bound(prior, model.expectation, current)


class OwnMethod(SiteModel):
    """A user's class with a user's method."""

    site_method = Damped()


def _same(a: Any, b: Any, atol: float) -> None:
    for left, right in zip(a.predict_f(XNEW), b.predict_f(XNEW), strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("kind", "learn"),
    [
        (Own, True),
        (OwnMethod, True),
        pytest.param(SiteModel, True, marks=pytest.mark.slow),
        pytest.param(Own, False, marks=pytest.mark.slow),
        pytest.param(OwnMethod, False, marks=pytest.mark.slow),
    ],
)
def test_a_users_site_model_trains_as_vgp_kmm_does(kind: type[SiteModel], learn: bool) -> None:
    models = [cls(DATA, problems.kernel(), BernoulliLogit()) for cls in (kind, VGPKMM)]
    for model in models:
        gpflow.set_trainable(model.kernel, learn)
    results = [gpx.fit(model) for model in models]
    assert [result.status for result in results] == [gpx.Status.CONVERGED] * 2
    assert np.abs(models[0].predict_f(DATA[0])[0]).max() > 0.3
    _same(*models, atol=1e-3 if learn else 1e-4)
    np.testing.assert_allclose(results[0].objective[-1], results[1].objective[-1], rtol=1e-6)


ROADS: dict[str, Callable[[], SiteModel]] = {
    "kmm": lambda: VGPKMM(DATA, problems.kernel(), BernoulliLogit()),
    "kmm-inducing": lambda: VGPKMM(DATA, problems.kernel(), BernoulliLogit(), inducing_variable=Z),
    "laplace": lambda: GPLaplace(DATA, problems.kernel(), BernoulliLogit()),
    "jaakkola": lambda: GPJaakkola(DATA, problems.kernel(), JAAKKOLA),
    "ep": lambda: SparseEP(DATA, problems.kernel(), BernoulliProbit(), inducing_variable=Z),
    "own": lambda: Own(DATA, problems.kernel(), BernoulliLogit()),
}


@pytest.mark.parametrize("name", others_slow(ROADS, "kmm", "ep"))
def test_gpflows_own_optimiser_reaches_the_optimum_of_fit(name: str) -> None:
    """`gpx.fit` and ``gpflow.optimizers.Scipy`` maximise one objective; neither predicts the prior."""
    ours, theirs = ROADS[name](), ROADS[name]()
    for model in (ours, theirs):
        if model.inducing_variable is not None:
            gpflow.set_trainable(model.inducing_variable, False)
    result = gpx.fit(ours, **({"optimizer": "lbfgs"} if name == "ep" else {}))
    found = gpflow.optimizers.Scipy().minimize(
        theirs.training_loss, theirs.trainable_variables, tf_fun_args={"autograph": False}
    )
    np.testing.assert_allclose(-found.fun, result.objective[-1], rtol=1e-4)
    assert np.abs(theirs.predict_f(DATA[0])[0]).max() > 0.3
    _same(ours, theirs, atol=0.05)  # where L-BFGS ends along the flat ridge of variance and length scale


def test_adam_on_the_closure_trains_the_sites_too() -> None:
    model = VGPKMM(DATA, problems.kernel(1.0, 3.0), BernoulliLogit())
    optimizer, closure = tf_keras.optimizers.Adam(0.05), model.training_loss_closure(compile=False)
    step = tf.function(lambda: optimizer.minimize(closure, model.trainable_variables), autograph=False)
    optimizer.build(model.trainable_variables)
    for _ in range(40):
        step()
    reference = VGPKMM(DATA, gpflow.utilities.deepcopy(model.kernel), BernoulliLogit())
    gpflow.set_trainable(reference.kernel, False)
    gpx.fit(reference)
    np.testing.assert_allclose(
        model.elbo(), reference.elbo(), atol=0.05
    )  # the sites are those of a step before
    assert float(model.training_loss()) < float(ROADS["kmm"]().training_loss())


def test_the_objective_leaves_sites_at_rest_as_they_are() -> None:
    model = ROADS["kmm"]()
    first = float(model.training_loss())
    kept = model.nat1.numpy()
    assert float(model.training_loss()) == pytest.approx(first, abs=1e-12)
    np.testing.assert_allclose(model.nat1, kept, rtol=0, atol=1e-7)


def test_the_objective_is_nan_where_the_sites_cannot_be_found() -> None:
    model = ROADS["kmm"]()
    model.kernel.variance.unconstrained_variable.assign(np.nan)
    assert np.isnan(model.training_loss())
    assert np.isfinite(model.nat1).all()


def test_sites_without_a_fixed_point_give_the_objective_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the docstring says: a line search goes on from a number, and `settle_sites` tells the violation."""
    monkeypatch.setattr(KMM, "signed", False)  # precisions that should be negative are cut at zero
    X, Y = problems.continuous(30)
    Y[::7] += 3.0
    model = VGPKMM((X, Y), problems.kernel(), gpflow.likelihoods.StudentT(0.1, 3.0))
    value = tf.function(model.maximum_log_likelihood_objective, autograph=False)()
    np.testing.assert_allclose(value, model.elbo(), rtol=1e-8)
    violation = tf.function(lambda: model.settle_sites()[0].violation, autograph=False)()
    assert float(violation) > sites.site_method("kmm").stationarity()


STRUCTURED = ("markov", "vecchia", "full scale", "grid")


def _structured(name: str, model: type) -> Any:
    """Return a settled model of counts with a structured prior."""
    cells = np.stack(np.meshgrid(np.arange(5.0), np.arange(4.0)), axis=-1).reshape(-1, 2)
    X = cells[:, :1] if name == "markov" else cells
    Y = np.random.default_rng(0).poisson(1.0, (len(X), 1)).astype(float)
    prior = {
        "vecchia": gpx.VecchiaOptions(neighbours=5),
        "full scale": gpx.VecchiaOptions(neighbours=5, inducing=3),
    }.get(name, name)
    parts = [gpflow.kernels.Matern32(lengthscales=1.5, active_dims=[d]) for d in range(X.shape[1])]
    kernel = parts[0] * parts[1] if name == "grid" else gpflow.kernels.Matern32(lengthscales=1.5)
    found = model((X, Y), kernel, gpflow.likelihoods.Poisson(), prior=prior)
    found.settle_sites()
    return found


@pytest.mark.parametrize("model", [GPLaplace, GPTaylor])
@pytest.mark.parametrize("name", STRUCTURED)
def test_the_evidence_of_the_current_sites_has_the_gradient_of_the_optimised_one(
    name: str, model: type
) -> None:
    found = _structured(name, model)
    pairs = []
    for objective in (found.log_evidence, found.maximum_log_likelihood_objective):
        with tf.GradientTape() as tape:
            value = objective()
        pairs.append((value, *tape.gradient(value, found.trainable_variables)))
    np.testing.assert_allclose(*pairs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", STRUCTURED)
def test_a_users_method_has_the_gradient_of_the_optimised_bound(name: str) -> None:
    """On priors whose factors have no derivatives too: that of VGPKMM, which does not come from them."""
    model = _structured(name, VGPKMM)
    gradients = []
    for method in ("kmm", Damped()):
        model.site_method = method
        with tf.GradientTape() as tape:
            value = model.maximum_log_likelihood_objective()
        gradients.append(tape.gradient(value, model.trainable_variables))
    with tf.GradientTape() as tape:
        value = model.elbo()
    gradients.append(tape.gradient(value, model.trainable_variables))
    np.testing.assert_allclose(gradients[1:], [gradients[0]] * 2, rtol=1e-3, atol=1e-3)


def test_a_model_of_a_dataset_refuses_gpflows_optimisers() -> None:
    rows = tf.data.Dataset.from_tensor_slices(DATA)
    model = SparseEP(rows, problems.kernel(), BernoulliProbit(), inducing_variable=Z)
    with pytest.raises(ValueError, match="minibatch_size"):
        model.training_loss()


@pytest.mark.parametrize(
    ("kind", "recipe", "inducing"),
    [
        (GPLaplace, "kmm", None),
        (VGPKMM, "laplace", None),
        (Own, "taylor", Z),
        (VGPKMM, "ep", None),
        (GPLaplace, "ep", Z),
    ],
)
def test_any_method_runs_on_any_model(kind: type[SiteModel], recipe: str, inducing: Any) -> None:
    """The class of the model does not matter: the sites and the objective are those of the method."""
    models = []
    for cls in (kind, SiteModel):
        model = cls(DATA, problems.kernel(), BernoulliLogit(), inducing_variable=inducing)
        gpflow.set_trainable(model, False)
        models.append(model)
    gpx.fit(models[0], recipe=recipe, tolerance=1e-12)
    models[1].site_method = recipe
    models[1].training_loss()
    assert models[0].site_method.name == recipe
    np.testing.assert_allclose(models[0].training_loss(), models[1].training_loss(), rtol=1e-8)
    _same(*models, atol=1e-4)


def test_full_expectation_propagation_on_a_dense_model_is_sparse_ep_with_all_inputs() -> None:
    dense = VGPKMM(DATA, problems.kernel(), BernoulliProbit())
    sparse = SparseEP(DATA, problems.kernel(), BernoulliProbit(), inducing_variable=DATA[0].copy())
    for model in (dense, sparse):
        gpflow.set_trainable(model, False)
    ends = [gpx.fit(dense, recipe="ep", stationarity=1e-9), gpx.fit(sparse, stationarity=1e-9)]
    np.testing.assert_allclose(ends[0].objective[-1], ends[1].objective[-1], atol=1e-4)  # jitter of 1e-6
    _same(dense, sparse, atol=1e-4)


@pytest.mark.parametrize(
    ("build", "recipe", "message"),
    [
        (lambda: ROADS["kmm"](), "jaakkola", "bound"),
        (
            lambda: _classes(MultinomialLogit(3)),
            "laplace",
            "couple its latent .* use .*StickBreaking for several",
        ),
        (lambda: _noisy(), "laplace", "couple its latent .* use gpflow_ext.models.VGPKMM"),
        (lambda: _classes(RobustMax(3)), "ep", "SparseEP"),
        (lambda: _classes(RobustMax(3, 1e-3)), "kmm", "SVGPRobustMax, or SparseEP"),
        (lambda: _classes(Weighted(RobustMax(3, 1e-3)), 1.0), "kmm", "SVGPRobustMax, or SparseEP"),
        (lambda: _factors(), "kmm", "factors"),
        (lambda: _factors(), "laplace", "factors"),
    ],
)
def test_what_theory_does_not_allow_is_refused(
    build: Callable[[], SiteModel], recipe: str, message: str
) -> None:
    with pytest.raises((ValueError, NotImplementedError), match=message):
        gpx.fit(build(), recipe=recipe)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda step: step.sites, r"got Sites, \(30, 1\) float64, \(30, 1\) float64\."),
        (lambda step: None, "got None"),
        (lambda step: step._replace(violation=step.violation[None]), r"\(1,\) float64\."),
        (lambda step: tf.nest.map_structure(lambda part: tf.cast(part, tf.float32), step), "float32"),
    ],
)
def test_a_step_of_a_user_that_returns_another_kind_of_state_is_told(change: Any, found: str) -> None:
    class Wrong(Damped):
        def step(self, model: Any, prior: Any, state: sites.Step) -> Any:
            return change(super().step(model, prior, state))

    model = Own(DATA, problems.kernel(), BernoulliLogit())
    model.site_method = Wrong()
    with pytest.raises(ValueError, match=rf'"damped" must return .* Step, .*; .*{found}'):
        gpx.fit(model)


def _noisy() -> SiteModel:
    """Regression whose noise is a second function."""
    return SiteModel(
        problems.continuous(20), problems.kernel(), gpflow.likelihoods.HeteroskedasticTFPConditional()
    )


@pytest.mark.parametrize(
    ("likelihood", "recipe", "message"),
    [
        (gpflow.likelihoods.StudentT(0.1), "laplace", "StudentT is not log-concave: Laplace's method may"),
        (gpflow.likelihoods.StudentT(0.1), "ep", "may have no fixed point: start from a larger scale"),
        (StudentT(0.1), "ep", "may have no fixed point: start from a larger scale"),
        (gpflow.likelihoods.Gaussian(0.1), "laplace", "Standardise the data"),
        (gpflow.likelihoods.Gaussian(0.1), "ep", "Standardise the data"),
    ],
)
def test_a_fit_that_is_not_finite_says_what_to_use(likelihood: Any, recipe: str, message: str) -> None:
    X, Y = problems.continuous(20)
    model = SiteModel((X, np.exp(Y)), problems.kernel(), likelihood)
    model.site_method = recipe
    result = gpx.FitResult(np.zeros(0), np.zeros(0), 0, gpx.Status.NON_FINITE)
    assert re.search(message, bad_end(result, model))


def _classes(likelihood: Any, *weight: float) -> SiteModel:
    X, Y = DATA
    Y = np.column_stack([Y + (X[:, :1] > 0.5), *(np.full(len(X), w) for w in weight)])
    return SiteModel((X, Y), problems.kernel(), likelihood)


def _factors() -> SiteModel:
    X, Y = DATA
    return SparseEP((X, Y), problems.kernel(), RobustMax(2), inducing_variable=Z)


def test_an_unknown_site_method_lists_the_known_ones() -> None:
    model = ROADS["kmm"]()
    model.site_method = "newton"
    with pytest.raises(ValueError, match=r"'ep'.*'kmm'.*'laplace'"):
        model.training_loss()


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    model = ROADS["kmm"]()
    gpx.fit(model, steps=1, hyper_updates=1)
    optimum, kept = SiteOptimum(model, sites.site_method("kmm"), ()), model.nat1.numpy()
    model.kernel.variance.unconstrained_variable.assign(np.nan)
    assert np.isnan(optimum.evaluate(5, 0.0).objective)
    np.testing.assert_array_equal(model.nat1, kept)


def test_a_free_form_model_is_not_trained() -> None:
    model = SGPMCFreeForm(DATA, problems.kernel(), BernoulliLogit(), inducing_variable=Z)
    with pytest.raises(ValueError, match=r"gpflow_ext\.sample"):
        gpx.fit(model)


def test_hyperparameters_are_sampled_with_the_sites_at_rest() -> None:
    """With a Gaussian likelihood the objective of a stack is the evidence of GPflow's GPR at each member."""
    data = problems.continuous(6)
    model = SiteModel(data, problems.kernel(), gpflow.likelihoods.Gaussian(0.1))
    lengths = np.array([0.3, 2.0])
    stack = Stack([(model.kernel.lengthscales, tf.constant(lengths))])
    found = tf.function(lambda: model.log_likelihoods(stack), autograph=False)()
    for length, value in zip(lengths, found.numpy(), strict=True):
        kernel = gpflow.kernels.SquaredExponential(model.kernel.variance.numpy(), length)
        exact = gpflow.models.GPR(data, kernel, noise_variance=0.1).log_marginal_likelihood()
        np.testing.assert_allclose(value, exact, rtol=0, atol=1e-3)  # jitter; the values are some -40
    assert not model.nat1.numpy().any()


@pytest.mark.slow
def test_slopes_of_stacked_objectives_with_a_vecchia_prior() -> None:
    """In a graph its custom gradients met an error about captured tensors."""
    model = VGPKMM(problems.binary(12), problems.kernel(), BernoulliLogit(), prior="vecchia")
    parameter = model.kernel.lengthscales
    step = 1e-3
    values = tf.constant([0.3, 0.3 + step, 0.3 - step], tf.float64)

    @tf.function(autograph=False)
    def evaluate(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            found = model.log_likelihoods(Stack([(parameter, values)]))
        return found, tape.gradient(found, values)

    found, slopes = evaluate(values)
    np.testing.assert_allclose(slopes[0], (found[1] - found[2]) / (2.0 * step), rtol=1e-3)


REFUSED = {
    "markov": ("markov", "algorithm1"),
    "vecchia": ("vecchia", "algorithm1"),
    "full scale": (gpx.VecchiaOptions(inducing=3), "algorithm1"),
    "grid": ("grid", "algorithm1"),
    "grid, cavities": ("grid", "ep"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_prior_that_a_method_cannot_use_is_refused_by_name(name: str) -> None:
    """Sweeps need the covariance of all rows, cavities variances without probes; the sites stay as they are."""
    prior, method = REFUSED[name]
    axis = np.linspace(0.0, 1.0, 4)
    X = axis[:, None] if prior == "markov" else np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    parts = [gpflow.kernels.Matern32(active_dims=[d]) for d in range(X.shape[1])]
    model = VGPKMM((X, np.ones([len(X), 1])), gpflow.kernels.Product(parts), BernoulliLogit(), prior=prior)
    how = {"recipe": "ep"} if method == "ep" else {"method": method}
    named = f'prior="{model.prior_name}".*{"expectation propagation" if method == "ep" else method}'
    with pytest.raises(NotImplementedError, match=named):
        gpx.fit(model, progress=False, **how)
    assert not model.sites.prec.numpy().any()
