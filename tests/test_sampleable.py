"""Models that the package does not know are sampled, in coordinates of their own; wrong calls end before any work."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from placing import placed

import gpflow_ext as gpx
from gpflow_ext.likelihoods import PoissonLog
from gpflow_ext.models import SGPMCFreeForm
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.persistence.manifest import describe
from gpflow_ext.sampling import sampled_freeform
from gpflow_ext.sampling.options import BayesOptOptions, GibbsOptions, NUTSOptions
from gpflow_ext.sampling.sampleable import PlainSampleable
from gpflow_ext.sampling.target import log_scale
from gpflow_ext.sampling.tuners import METHODS, tuner_from
from gpflow_ext.sampling.tuning import Setting

tfb, tfd = tfp.bijectors, tfp.distributions
X = np.array([[1.0, 1.0], [1.0, 1.3], [1.0, 0.8], [1.0, 1.6], [1.0, 1.1]])
Y, NOISE = np.array([0.7, 1.4, 0.1, 1.9, 1.2]), 0.2
QUICK = {"warm_up": 20, "progress": False, "check": False, "seed": 2}


class Line(gpflow.models.BayesianModel):
    """y ~ N(Xw, noise), w ~ N(0, I): the posterior is Gaussian, its two weights correlated."""

    def __init__(self) -> None:
        super().__init__()
        self.w = gpflow.Parameter(np.zeros(2), prior=tfd.Normal(np.float64(0.0), np.float64(1.0)))

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        return -0.5 * tf.reduce_sum((Y - tf.linalg.matvec(X, self.w)) ** 2) / NOISE


def posterior() -> tuple[np.ndarray, np.ndarray]:
    cov = np.linalg.inv(np.eye(2) + X.T @ X / NOISE)
    return cov @ X.T @ Y / NOISE, cov


class Standardised:
    """The posterior's own coordinates: z ~ N(0, I)."""

    name, scaled = "standardised", True

    def check(self, sampled, kind) -> None:
        assert isinstance(sampled, Served)
        assert kind == "hmc"

    def place(self, sampled) -> gpx.coordinates.Placed:
        mean, cov = map(tf.constant, posterior())
        target = gpx.coordinates.Target(sampled.module, sampled.log_likelihood(), recover=sampled.recover)
        affine = gpx.coordinates.Affine(
            mean, tf.linalg.cholesky(cov)[None], tf.zeros([0], mean.dtype), tf.zeros([2, 0], mean.dtype)
        )
        return gpx.coordinates.Placed(target.within(affine), lambda z: z)


class Served(PlainSampleable):
    """The weights, their density in closed form, reported with the other sign."""

    def __init__(self, model: ServedLine) -> None:
        super().__init__(model)
        self._model = model

    def log_likelihood(self):
        return lambda stack: (
            -0.5
            * tf.reduce_sum((Y - tf.matmul(stack[self._model.w], X, transpose_b=True)) ** 2, axis=1)
            / NOISE
        )

    def recover(self, stack: Stack) -> Stack:
        return stack.replaced(self._model.w, -stack[self._model.w])

    def coordinates(self, kind) -> Standardised:
        return Standardised()

    def prepare(self, approximate, jit_compile) -> None:
        self._model.calls.append("prepare")

    def hold(self, draws) -> None:
        self._model.calls.append(draws)


class ServedLine(Line):
    """The model with a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list = []

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        raise AssertionError("The model has a density of its own.")

    def sampleable(self) -> Served:
        return Served(self)


def agree(draws: np.ndarray, sign: float = 1.0) -> None:
    """Means and products of weights [C, S, 2] within 4 standard errors: five of them, 3e-4 to fail."""
    import arviz

    mean, cov = posterior()
    centred = sign * draws - mean
    functions = [(centred[..., 0], 0.0), (centred[..., 1], 0.0)]
    functions += [(centred[..., i] * centred[..., j], cov[i, j]) for i, j in ((0, 0), (0, 1), (1, 1))]
    for chains, expected in functions:
        size = float(arviz.ess(chains))
        assert size > 200.0
        assert abs(chains.mean() - expected) <= 4.0 * chains.std() / np.sqrt(size)


def test_any_model_with_priors_is_sampled() -> None:
    draws = gpx.sample(Line(), 1500, 4, tuner=Setting(0.12, 12), **QUICK)
    assert draws.info["precondition"] == "whitened"
    agree(draws.values["w"])


def test_a_model_and_coordinates_of_ones_own() -> None:
    model = ServedLine()
    draws = gpx.sample(model, 1000, 4, tuner=Setting(1.0, 3), **QUICK)
    assert draws.info["precondition"] == "standardised"
    assert model.calls == [None, "prepare", draws]
    assert draws.stats["accepted"].mean() > 0.7  # at a step that the weights' own coordinates do not bear
    agree(draws.values["w"], sign=-1.0)
    again = gpx.sample(ServedLine(), 1000, 4, tuner=Setting(1.0, 3), precondition=Standardised(), **QUICK)
    np.testing.assert_array_equal(again.values["w"], draws.values["w"])


def process() -> SGPMCFreeForm:
    kernel = gpflow.kernels.SquaredExponential()
    kernel.lengthscales.prior = tfd.Gamma(np.float64(3.0), np.float64(2.0))
    gpflow.set_trainable(kernel.variance, False)
    return SGPMCFreeForm(
        problems.counts(12), kernel, PoissonLog(), inducing_variable=problems.inputs(4, seed=5)
    )


@pytest.fixture(scope="module", name="approximated")
def _approximated() -> SGPMCFreeForm:
    model = process()
    gpx.gaussian_approximation(model, steps=40, free_inducing=False)
    return model


@pytest.mark.parametrize("where", [gpx.coordinates.VB(), gpx.coordinates.Whitened()])
def test_an_object_means_what_its_name_does(approximated, where) -> None:
    found = [
        gpx.sample(approximated, 5, 2, tuner=Setting(0.3, 3), precondition=each, **QUICK)
        for each in (where, where.name)
    ]
    np.testing.assert_array_equal(found[0].values["V"], found[1].values["V"])
    assert found[0].info == found[1].info


def test_the_sites_of_one_function_together_are_its_own(approximated) -> None:
    """Bonnet and Price: −∂²E/∂m² = −2 ∂E/∂var; the former by central differences."""
    z = tf.constant(np.random.default_rng(0).standard_normal((3, 5)))
    joint, own = (placed(approximated, name).target for name in ("joint", "conditional"))
    np.testing.assert_allclose(joint(z), own(z), rtol=1e-7)
    v = [target.values(target.position(z))[approximated.V] for target in (joint, own)]
    np.testing.assert_allclose(*v, rtol=0, atol=1e-7)


def line(**options) -> None:
    gpx.sample(Line(), 5, **options)


def free_form(**options) -> None:
    gpx.sample(process(), 5, **options)


def held_v() -> None:
    model = process()
    gpflow.set_trainable(model.V, False)
    gpx.sample(model, 5)


def free_points() -> None:
    model = process()
    model.inducing_variable.Z.prior = tfd.Normal(np.float64(0.0), np.float64(1.0))
    gpflow.set_trainable(model.inducing_variable, True)
    gpx.sample(model, 5)


def in_scope() -> None:
    with tf.distribute.MirroredStrategy(["CPU:0"], tf.distribute.ReductionToOneDevice()).scope():
        gpx.sample(process(), 5)


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        (free_form, {"tuner": "best"}, "'best': give one of bayesopt, dual_averaging, chees, nuts, gibbs, or"),
        (free_form, {"tuner": ["nuts"]}, r"Unknown tuner \['nuts'\]"),
        (free_form, {"tuning": {"trial": 3}}, "no option 'trial'; its options are trials, samples, step_sizes"),
        (free_form, {"tuning": {"trials": 2.5}}, "'trials' of tuner 'bayesopt' must be int; got 2.5"),
        (free_form, {"tuning": {"trials": 0}}, "`trials` must be at least 1; got 0"),
        (free_form, {"tuning": {"step_sizes": (1.0, 0.5)}}, "two positive bounds in order"),
        (free_form, {"tuning": {"max_leapfrogs": (0, 5)}}, "two bounds of at least 1 in order"),
        (free_form, {"tuning": {"penalty": -1.0}}, "`penalty` must not be negative"),
        (free_form, {"tuning": BayesOptOptions(samples=2.5)}, "'samples' of tuner 'bayesopt' must be int"),
        (free_form, {"tuning": NUTSOptions()}, "must be a mapping of options or BayesOptOptions; got NUTSOp"),
        (free_form, {"tuning": 3}, "must be a mapping of options or BayesOptOptions; got 3"),
        (free_form, {"tuner": "nuts", "tuning": {"acceptance": 1.0}}, "between 0 and 1"),
        (free_form, {"tuner": "nuts", "tuning": {"max_leapfrogs": 3}}, "no option 'max_leapfrogs'"),
        (free_form, {"tuner": "dual_averaging", "tuning": {"max_leapfrogs": 0}}, "must be at least 1"),
        (free_form, {"tuner": "chees", "tuning": {"step_size": 0.0}}, "`step_size` must be positive"),
        (free_form, {"tuner": "gibbs", "tuning": {"walk": -0.1}}, "`walk` must be positive"),
        (free_form, {"tuner": Setting(0.1, 3), "tuning": {"trials": 3}}, "not tuned: leave out `tuning`"),
        (free_form, {"tuner": "chees", "num_chains": 1}, "`num_chains` of at least 2"),
        (free_form, {"precondition": "x"}, "'auto', 'whitened', 'vb', 'conditional', 'joint', 'rescaled', 'fish"),
        (free_form, {"precondition": gpx.coordinates.VB}, "an object such as gpflow_ext.coordinates.VB()"),
        (free_form, {"precondition": "rescaled"}, "grids and a separable kernel: choose 'conditional' or 'vb'"),
        (free_form, {"precondition": "fisher"}, "that GPRNTensor offers: choose 'conditional' or None"),
        (line, {"precondition": "vb"}, "that SGPMCFreeForm offers: choose None"),
        (line, {"precondition": gpx.coordinates.Conditional()}, "that SGPMCFreeForm offers: choose None"),
        (free_form, {"tuner": Setting(0.0, 3)}, "`step_size` must be positive and `walk` not negative; got Set"),
        (free_form, {"tuner": Setting(np.nan, 3)}, "`step_size` must be positive and `walk` not negative; got S"),
        (free_form, {"tuner": Setting(0.1, 3, -1.0)}, "`walk` not negative; got Setting"),
        (free_form, {"tuner": Setting(0.1, 0)}, "`max_leapfrogs` must be a whole number of at least 1; got 0"),
        (free_form, {"thin": 1.5}, "`thin` must be a whole number of at least 1; got 1.5"),
        (free_form, {"warm_up": -1}, "`warm_up` must be a whole number of at least 0; got -1"),
        (free_form, {"seed": None}, "`seed` must be a whole number; got None"),
        (held_v, {}, r"held fixed, but it is what is sampled.*set_trainable\(model\.V, True\)"),
        (free_points, {}, r"points .* never sampled.*set_trainable\(model\.inducing_variable, False\)"),
        (in_scope, {}, r"outside of `strategy\.scope\(\)`"),
        (lambda: gpx.sample(tf.Module(), 5), {}, "has no `maximum_log_likelihood_objective`"),
    ],
)  # fmt: skip
def test_wrong_calls_end_before_any_work(call, options, message: str, monkeypatch) -> None:
    def worked(*arguments, **options) -> None:
        raise AssertionError("The Gaussian approximation was fitted.")

    monkeypatch.setattr(sampled_freeform, "gaussian_approximation", worked)
    with pytest.raises(ValueError, match=message):
        call(**options)


def test_a_wrong_call_does_not_forget_the_draws() -> None:
    model = ServedLine()
    with pytest.raises(ValueError, match="has no option 'x'"):
        gpx.sample(model, 5, tuning={"x": 1})
    assert not model.calls


def test_a_model_without_its_data_is_refused() -> None:
    model = gpflow.models.SVGP(gpflow.kernels.Matern52(), PoissonLog(), X)
    with pytest.raises(ValueError, match=r"SVGP does not hold its data, .*SGPMCFreeForm\.from_gaussian"):
        gpx.sample(model, 4, 2, **QUICK)


def test_options_by_name_and_as_an_object_are_the_same() -> None:
    given = {"rounds": 3, "walk": 0.5}
    assert tuner_from("gibbs", given, 1) == tuner_from("gibbs", GibbsOptions(**given), 1)
    for name, method in METHODS.items():
        assert tuner_from(name, None, 2).options == method.options()


@pytest.mark.parametrize(("scaled", "box"), [(True, (0.02, 1.0)), (False, (1e-4, 1.0))])
def test_step_sizes_are_searched_where_the_coordinates_need_them(scaled: bool, box: tuple) -> None:
    assert tuner_from("bayesopt", {}, 1).within(scaled).options.step_sizes == box
    assert tuner_from("bayesopt", {"step_sizes": (0.1, 0.2)}, 1).within(scaled).options.step_sizes == (
        0.1,
        0.2,
    )


def test_a_prior_of_more_axes_than_its_parameter_is_refused() -> None:
    """Three chains would each have one of three priors of a number."""
    model = gpflow.models.GPR((X, Y[:, None]), gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]))
    gpflow.set_trainable(model.likelihood, False)
    model.kernel.lengthscales.prior = tfd.Gamma(np.array([2.0, 3.0]), np.float64(1.0))
    model.kernel.variance.prior = tfd.Gamma(np.array([2.0, 3.0, 4.0]), np.float64(1.0))
    with pytest.raises(ValueError, match=r"kernel\.variance is of several distributions, \(3,\)"):
        placed(model, None)
    model.kernel.variance.prior = tfd.Gamma(np.float64(2.0), np.float64(1.0))
    assert placed(model, None).target.num_dimensions == 3


def test_a_prior_that_its_parameter_would_be_broadcast_to_is_refused() -> None:
    """W [3, 1] with three priors has nine log densities, as each row meets that of each other one."""
    X = np.stack([np.arange(6.0), np.arange(6.0) % 3], axis=1)
    kernel = gpflow.kernels.Coregion(3, 1, active_dims=[1])
    kernel.W.prior = tfd.Normal(np.zeros(3), np.ones(3))
    model = gpflow.models.GPR((X, X[:, :1]), kernel)
    for held in (kernel.kappa, model.likelihood):
        gpflow.set_trainable(held, False)
    with pytest.raises(ValueError, match=r"kernel\.W is of several distributions, \(3,\), .* shape \(3, 1\)"):
        placed(model, None)
    for prior in (
        tfd.Normal(np.zeros([3, 1]), 1.0),
        tfd.MultivariateNormalDiag(np.zeros([3, 1]), np.ones(1)),
    ):
        kernel.W.prior = prior
        assert placed(model, None).target.num_dimensions == 3


def test_a_parameter_of_two_kernels_is_sampled_once():
    first, second = gpflow.kernels.SquaredExponential(), gpflow.kernels.Matern32()
    second.lengthscales = first.lengthscales
    first.lengthscales.prior = tfd.Gamma(np.float64(2.0), np.float64(1.0))
    for variance in (first.variance, second.variance):
        gpflow.set_trainable(variance, False)
    model = gpflow.models.GPR((X, Y[:, None]), first + second, noise_variance=NOISE)
    gpflow.set_trainable(model.likelihood, False)
    target = gpx.coordinates.Target(model, PlainSampleable(model).log_likelihood())
    assert [each.name for each in target.coordinates] == ["kernel.kernels[0].lengthscales"]
    jacobian = tf.math.log(first.lengthscales)  # of the logarithm
    expected = model.log_posterior_density() + jacobian
    np.testing.assert_allclose(target(target.start()[None])[0], expected, rtol=1e-10)


def test_a_lower_bound_of_a_softplus_holds_for_draws() -> None:
    bounded = gpflow.Parameter(1.0, transform=tfp.bijectors.Softplus(low=np.float64(0.9)))
    bounded.prior = tfd.Gamma(np.float64(2.0), np.float64(4.0))
    model = gpflow.models.GPR((X, Y[:, None]), gpflow.kernels.SquaredExponential(), noise_variance=NOISE)
    model.kernel.lengthscales = bounded
    for held in (model.kernel.variance, model.likelihood):
        gpflow.set_trainable(held, False)
    target = gpx.coordinates.Target(model, PlainSampleable(model).log_likelihood())
    expected = model.log_posterior_density() + tf.math.log(bounded - 0.9)  # the Jacobian
    np.testing.assert_allclose(target(target.start()[None])[0], expected, rtol=1e-10)
    assert np.all(target.values(tf.constant([[-5.0], [5.0]], tf.float64))[bounded] > 0.9)


@pytest.mark.parametrize("inner", [tfb.Sigmoid(), tfb.Softplus()])
def test_a_softplus_of_what_another_transform_leaves_keeps_its_values(inner) -> None:
    """What is positive has a softplus above log 2, and an exponential above 1."""
    least = log_scale(tfb.Chain([tfb.Softplus(), inner])).forward(tf.constant(-30.0, tf.float64))
    np.testing.assert_allclose(least, np.log(2.0), rtol=1e-12)


def test_constants_of_a_transform_are_not_diagnosed() -> None:
    draws = np.random.default_rng(0).normal(size=[2, 40, 2, 2])
    draws[:, :, 0, 1] = 0.0  # above the diagonal
    stats = {name: np.ones([2, 40]) for name in ("energy", "divergent", "accepted", "log_density")}
    stats["gradients"] = np.ones(40)
    made = gpx.Draws({"W": draws, "stuck": np.ones([2, 40])}, stats, Setting(0.1, 3), 1.0)
    assert set(made.diagnose().rhat) == {"W[0, 0]", "W[1, 0]", "W[1, 1]", "stuck"}


def test_what_are_no_draws_of_one_call_is_refused() -> None:
    model, stats = process(), {"log_density": np.zeros([1, 2])}
    draws = gpx.Draws({"V": np.zeros([1, 2, *model.V.shape])}, stats, Setting(0.1, 3), 1.0)
    with pytest.raises(ValueError, match="returned, or None; got list"):
        model.assign_draws([draws, draws])
    with pytest.raises(ValueError, match="`most` must be at least 1"):
        model.assign_draws(draws, most=0)


def test_a_model_that_held_draws_is_described_as_one_that_never_did() -> None:
    """So that it goes on from the checkpoints of either."""
    model, stats = process(), {"log_density": np.zeros([1, 2])}
    before = describe(model)
    draws = gpx.Draws({"V": np.zeros([1, 2, *model.V.shape])}, stats, Setting(0.1, 3), 1.0)
    model.assign_draws(draws)
    assert model.draw_names == ("V",)
    model.assign_draws(None)
    assert not model.draw_names
    assert describe(model) == before


def test_one_draw_of_each_chain_has_no_diagnostics() -> None:
    stats = {name: np.ones([2, 1]) for name in ("energy", "divergent", "accepted", "log_density")}
    draws = gpx.Draws({"v": np.ones([2, 1])}, {**stats, "gradients": np.ones(1)}, Setting(0.1, 3), 1.0)
    with pytest.warns(gpx.ConvergenceWarning, match="E-BFMI is nan") as warned:
        assert np.isnan(draws.check().bfmi).all()
    assert [each.category for each in warned] == [gpx.ConvergenceWarning]


class Halved(gpx.models.GPLaplace):
    """A model whose likelihood counts half."""

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        return 0.5 * super().maximum_log_likelihood_objective()


def test_an_objective_of_ones_own_is_not_passed_over_by_an_inherited_density() -> None:
    model = Halved((X, np.round(np.abs(Y))[:, None]), gpflow.kernels.Matern52(), PoissonLog())
    gpflow.set_trainable(model.kernel.variance, False)
    model.kernel.lengthscales.prior = tfd.Gamma(np.float64(2.0), np.float64(1.0))
    with pytest.raises(ValueError, match="Halved has 'maximum_log_likelihood_objective' of its own"):
        gpx.sample(model, 4, 2, **QUICK)
