"""Free-form models of several kernels and of inducing variables of every kind, against GPflow's SGPMC at each draw.

The kernels are Matérn ones, whose matrices are well conditioned: what is compared is equal to rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from check_shapes import disable_check_shapes
from gpflow.inducing_variables import (
    InducingPatches,
    InducingPoints,
    InducingVariables,
    Multiscale,
    SeparateIndependentInducingVariables,
    SharedIndependentInducingVariables,
)
from gpflow.kernels import Kernel, LinearCoregionalization, SeparateIndependent, SharedIndependent
from gpflow.likelihoods import Gaussian
from marks import others_slow
from placing import placed

import gpflow_ext as gpx
from gpflow_ext.likelihoods import PoissonLog
from gpflow_ext.models import VGPKMM, SGPMCFreeForm
from gpflow_ext.numerics import grids
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling import latents
from gpflow_ext.sampling.coordinates import joint_sites
from gpflow_ext.sampling.coordinates.joint_sites import JointSites
from gpflow_ext.sampling.coordinates.sites import ConditionalSites
from gpflow_ext.sampling.target import Target
from gpflow_ext.sampling.tuning import Setting

N, M, P, S, DRAWS, NOISE = 9, 4, 2, 3, 3, 0.3
RNG = np.random.default_rng(0)
X, NEW = RNG.uniform(-2.0, 2.0, (N, 2)), RNG.uniform(-2.0, 2.0, (3, 2))
IMAGES, NEW_IMAGES = RNG.normal(size=(N, 16)), RNG.normal(size=(3, 16))
COUNTS, VALUES = RNG.poisson(2.0, (N, P)).astype(float), RNG.normal(size=(N, P))
W = RNG.normal(size=(P, S))
FLAGS = [(False, False), (False, True), (True, False), (True, True)]


def with_priors(kernel: Kernel) -> Kernel:
    for name, parameter in gpflow.utilities.parameter_dict(kernel).items():
        normal = tfp.distributions.Normal(np.float64(0.0), np.float64(1.0))
        gamma = tfp.distributions.Gamma(np.float64(4.0), np.float64(4.0))
        parameter.prior = normal if name == ".W" else gamma
    return kernel


def matern(k: int = 0) -> Kernel:
    return gpflow.kernels.Matern32(1.0 + k, lengthscales=0.6 + 0.3 * k)


def smooth(k: int = 0) -> Kernel:
    return gpflow.kernels.SquaredExponential(1.0 + k, lengthscales=0.4 + 0.2 * k)


def convolutional(k: int = 0) -> Kernel:
    return gpflow.kernels.Convolutional(
        gpflow.kernels.SquaredExponential(lengthscales=0.8 + k), [4, 4], [2, 2]
    )


def some(k: int = 0) -> InducingVariables:
    return InducingPoints(np.random.default_rng(k).uniform(-2.0, 2.0, (M, 2)))


def scaled(k: int = 0) -> InducingVariables:
    rng = np.random.default_rng(k)
    return Multiscale(rng.uniform(-2.0, 2.0, (M, 2)), rng.uniform(0.1, 0.5, (M, 2)))


def patches(k: int = 0) -> InducingVariables:
    return InducingPatches(np.random.default_rng(k).normal(size=(M, 4)))


def shared(one: Callable[..., Kernel]) -> Kernel:
    return SharedIndependent(one(), P)


def separate(one: Callable[..., Kernel]) -> Kernel:
    return SeparateIndependent([one(k) for k in range(P)])


def mixtures(one: Callable[..., Kernel]) -> Kernel:
    return LinearCoregionalization([one(k) for k in range(S)], W)


def one_set(one: Callable[..., InducingVariables], _: int) -> InducingVariables:
    return SharedIndependentInducingVariables(one())


def sets(one: Callable[..., InducingVariables], count: int) -> InducingVariables:
    return SeparateIndependentInducingVariables([one(k) for k in range(count)])


@pytest.fixture(autouse=True)
def unchecked_shapes():
    """GPflow's conditionals have patches for each output, but refuse them for having fewer columns than X."""
    with disable_check_shapes():
        yield


@dataclass(frozen=True)
class Case:
    """What models are built from, their data, and inputs to predict at."""

    kernel: Callable[[], Kernel]
    points: Callable[[], InducingVariables]
    X: np.ndarray
    new: np.ndarray

    @property
    def count(self) -> int:
        """L."""
        return S if isinstance(self.kernel(), LinearCoregionalization) else P

    def ours(self, likelihood=PoissonLog, Y: np.ndarray = COUNTS) -> SGPMCFreeForm:
        kernel = with_priors(self.kernel())
        return SGPMCFreeForm((self.X, Y), kernel, likelihood(), mean(), inducing_variable=self.points())

    def theirs(self) -> gpflow.models.SGPMC:
        return gpflow.models.SGPMC(
            (self.X, COUNTS), with_priors(self.kernel()), PoissonLog(), mean(), self.count, self.points()
        )


def mean() -> gpflow.functions.MeanFunction:
    function = gpflow.functions.Constant(np.array([0.4, -0.2]))
    function.c.prior = tfp.distributions.Normal(np.float64(0.0), np.float64(1.0))
    return function


def _case(kernels, sets_of, kernel, points) -> Case:
    where = (IMAGES, NEW_IMAGES) if points is patches else (X, NEW)
    count = S if kernels is mixtures else P
    return Case(lambda: kernels(kernel), lambda: sets_of(points, count), *where)


KINDS = {"points": (matern, some), "multiscale": (smooth, scaled), "patches": (convolutional, patches)}
CASES = {
    f"{kernels.__name__}, {sets_of.__name__} of {kind}": _case(kernels, sets_of, *parts)
    for kernels in (shared, separate, mixtures)
    for sets_of in (one_set, sets)
    for kind, parts in KINDS.items()
}
CASES["one kernel for all, points at scales"] = Case(smooth, scaled, X, NEW)
CASES["one kernel for all, patches"] = Case(convolutional, patches, IMAGES, NEW_IMAGES)
QUICK = [
    "shared, sets of points",
    "separate, sets of points",
    "separate, one_set of multiscale",
    "mixtures, sets of points",
    "mixtures, one_set of patches",
    "one kernel for all, patches",
]
TWO = ["separate, sets of points", "mixtures, sets of points"]


def drawn(model: SGPMCFreeForm) -> dict[str, np.ndarray]:
    """Values of V, of W, and of the first two parameters that are positive, for each draw."""
    rng, named = np.random.default_rng(5), model._named()
    values = {"V": rng.normal(size=(DRAWS, *model.V.shape))}
    if "kernel.W" in named:
        values["kernel.W"] = rng.normal(size=(DRAWS, *W.shape))
    positive = [name for name in named if name.startswith("kernel.") and named[name].shape.rank == 0]
    return values | {name: rng.uniform(0.5, 1.5, DRAWS) for name in positive[:2]}


def stack_of(model: SGPMCFreeForm, values: dict[str, np.ndarray]) -> Stack:
    return Stack((model._named()[name], tf.constant(value)) for name, value in values.items())


def hold(model: SGPMCFreeForm, values: dict[str, np.ndarray]) -> None:
    stats = {"log_density": np.zeros((1, DRAWS))}
    given = {name: value[None] for name, value in values.items()}
    model.assign_draws(gpx.Draws(given, stats, Setting(0.1, 3), 1.0))


def at(model: gpflow.models.SGPMC, values: dict[str, np.ndarray], draw: int) -> gpflow.models.SGPMC:
    named = {name.lstrip("."): part for name, part in gpflow.utilities.parameter_dict(model).items()}
    for name, value in values.items():
        named[name].assign(value[draw])
    return model


def stretch(parameter: gpflow.Parameter) -> tf.Tensor:
    """The slope of a positive number by its unconstrained variable."""
    with tf.GradientTape() as tape:
        value = tf.convert_to_tensor(parameter)
    return tape.gradient(value, parameter.unconstrained_variable)


def assert_close(found, expected, tolerance: float = 1e-9) -> None:
    for one, other in zip(found, expected, strict=True):
        assert np.shape(one) == np.shape(other)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def between(means: np.ndarray, full_cov: bool, full_output_cov: bool) -> np.ndarray:
    """The covariance of means [S, N, P] in the shapes of GPflow."""
    apart = means - means.mean(axis=0)
    joint = np.einsum("snp,smq->npmq", apart, apart) / len(means)
    axes = {(False, False): "npnp->np", (False, True): "npnq->npq", (True, False): "npmp->pnm"}
    return np.einsum(axes.get((full_cov, full_output_cov), "npmq->npmq"), joint)


@pytest.mark.parametrize("name", others_slow(CASES, *QUICK))
def test_at_a_value_of_V_it_is_gpflows_sgpmc(name: str) -> None:
    case = CASES[name]
    ours, theirs = case.ours(), case.theirs()
    values = np.random.default_rng(1).normal(size=theirs.V.shape)
    ours.V.assign(values)
    theirs.V.assign(values)
    assert_close([ours.log_posterior_density()], [theirs.log_posterior_density()])
    for flags in FLAGS:
        assert_close(ours.predict_f(case.new, *flags), theirs.predict_f(case.new, *flags))
    assert_close(ours.predict_y(case.new), theirs.predict_y(case.new))


@pytest.mark.parametrize("name", others_slow(CASES, *QUICK[:2], TWO[1]))
def test_at_draws_it_is_gpflows_sgpmc_at_each(name: str) -> None:
    """The density that is sampled, with its gradient, and the mixtures that are predicted."""
    case = CASES[name]
    ours, theirs = case.ours(), case.theirs()
    values = drawn(ours)
    stack = stack_of(ours, values)
    tensors = [value for _, value in stack.values]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(tensors)
        found = ours.density.log_likelihoods(stack)
    slopes = tape.gradient(found, tensors)
    for draw in range(DRAWS):
        reference = at(theirs, values, draw)
        named = gpflow.utilities.parameter_dict(reference)
        parameters = [named[f".{key}"] for key in values]
        with tf.GradientTape() as own:
            expected = reference.log_likelihood_lower_bound()
        by_variable = own.gradient(expected, [part.unconstrained_variable for part in parameters])
        stretched = [
            slope[draw] * (1.0 if part.transform is None else stretch(part))
            for slope, part in zip(slopes, parameters, strict=True)
        ]
        assert_close([found[draw]], [expected])
        assert_close(stretched, by_variable, 1e-7)
    hold(ours, values)
    for flags in FLAGS:
        each = [at(theirs, values, draw).predict_f(case.new, *flags) for draw in range(DRAWS)]
        means, covs = (np.array([part[k] for part in each]) for k in range(2))
        expected = means.mean(axis=0), covs.mean(axis=0) + between(means, *flags)
        assert_close(ours.predict_f(case.new, *flags), expected)
        assert_close(ours.posterior().predict_f(case.new, *flags), expected)
        batched = ours.predict_f(np.stack([case.new + 1.0, case.new]), *flags)
        assert_close([part[1] for part in batched], expected)
    Y = COUNTS[: len(case.new)]
    logs = [at(theirs, values, draw).predict_log_density((case.new, Y)) for draw in range(DRAWS)]
    assert_close([ours.predict_log_density((case.new, Y))], [np.log(np.exp(logs).mean(axis=0))])


def approximated(name: str, likelihood=PoissonLog, Y: np.ndarray = COUNTS) -> SGPMCFreeForm:
    model = CASES[name].ours(likelihood, Y)
    gpx.gaussian_approximation(model, steps=20, free_inducing=False)
    return model


@pytest.mark.parametrize(
    ("name", "together"),
    others_slow(
        itertools.product([*TWO, "shared, sets of multiscale"], [True, False]),
        *((TWO[0], False), (TWO[1], True)),
    ),
)
def test_coordinates_are_a_change_of_variables(
    name: str, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """log π(z, θ) − log π(v(z, θ), θ) = log |∂v/∂z|, and the gradient is that of central differences."""
    monkeypatch.setattr(joint_sites, "MOST", 8192 if together else 0)
    model = approximated(name)
    here, _ = placed(model, "conditional")
    plain = Target(model, model.density.log_likelihoods)
    z = 0.3 * tf.constant(np.random.default_rng(0).standard_normal((2, here.num_dimensions)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(z)
        value = here(z)
        v = tf.reshape(here.values(here.position(z))[model.V], [2, -1])
    size = v.shape[1]
    jacobian = tape.batch_jacobian(v, z)[:, :, :size]
    difference = value - plain(tf.concat([v, here.position(z)[:, size:]], axis=1))
    np.testing.assert_allclose(difference, tf.linalg.slogdet(jacobian)[1], rtol=0, atol=1e-9)
    slope, step = tape.gradient(value, z), 1e-5
    for direction in np.random.default_rng(1).standard_normal((2, *z.shape)):
        numeric = (here(z + step * direction) - here(z - step * direction)) / (2.0 * step)
        np.testing.assert_allclose(tf.reduce_sum(slope * direction, 1), numeric, rtol=1e-6, atol=1e-6)


def exact(name: str) -> tuple[SGPMCFreeForm, VGPKMM]:
    """With Gaussian noise, at the same hyperparameters: with the approximation of q, and the exact posterior."""
    model = CASES[name].ours(lambda: Gaussian(NOISE), VALUES)
    for part in (model.kernel, model.likelihood, model.mean_function):
        gpflow.set_trainable(part, False)
    gpx.gaussian_approximation(model, steps=500, free_inducing=False)
    case = CASES[name]
    reference = VGPKMM((X, VALUES), case.kernel(), Gaussian(NOISE), mean(), inducing_variable=case.points())
    gpflow.set_trainable(reference, False)
    reference.settle_sites(300, 1e-11)
    return model, reference


@pytest.mark.parametrize("name", TWO)
def test_with_gaussian_noise_the_sites_give_the_posterior(name: str) -> None:
    """Those of all outputs together q(v) itself; those of each function its own moments, the others held."""
    model, reference = exact(name)
    _, q = reference.condition()
    mean, count = q.mean.numpy(), model.V.shape[1]
    mean = mean.reshape(count, M).T if mean.shape[1] == 1 else mean
    zero = Stack([(model.V, tf.zeros([1, M, count], tf.float64))])
    joint, apart = JointSites(model.density), ConditionalSites(model.density)
    np.testing.assert_allclose(joint.mean(zero)[0], mean, rtol=0, atol=1e-5)
    factor = tf.reshape(joint.factor(), [M, count, M, count])
    found = tf.einsum("mlnk,rsnk->mlrs", factor, factor).numpy()
    expected = q.covariance().numpy()
    if len(expected) == 1:
        expected = expected.reshape(count, M, count, M).transpose(1, 0, 3, 2)
    else:
        expected = np.einsum("lmr,ls->mlrs", expected, np.eye(count))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.q_mu, mean, rtol=0, atol=1e-3)  # as far as it was climbed
    np.testing.assert_allclose(apart.mean(zero)[0], model.q_mu, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", others_slow(TWO, TWO[1]))
def test_draws_of_a_gaussian_posterior_are_those_of_exact_regression(name: str) -> None:
    """|z| <= 4 for 18 means and 18 variances: a false failure in 400 seeds."""
    import arviz

    model, reference = exact(name)
    draws = gpx.sample(
        model, 1500, 4, tuner=Setting(0.6, 4), warm_up=20, approximate=False, progress=False, seed=1
    )
    stack = stack_of(model, draws.flat())
    f, residual = (part.numpy().reshape(1500, 4, N, P) for part in model.density.moments(stack, X))
    mean, var = (part.numpy() for part in reference.predict_f(X))
    for n in range(N):
        for p in range(P):
            chain = f[:, :, n, p].T
            square = (chain - mean[n, p]) ** 2 + residual[:, :, n, p].T
            for function, expected in ((chain, mean[n, p]), (square, var[n, p])):
                error = function.std() / np.sqrt(float(arviz.ess(function)))
                assert abs(function.mean() - expected) <= 4.0 * error + 1e-4


OPTIONS = {
    "num_chains": 2,
    "warm_up": 5,
    "chunk": 5,
    "progress": False,
    "check": False,
    "seed": 1,
    "approximate": False,
}
SHORT = {"trials": 3, "samples": 3, "max_leapfrogs": (1, 3)}


def loaded_predictions(model: SGPMCFreeForm, X: np.ndarray) -> list[tf.Tensor]:
    return [*model.predict_f(X), *model.predict_y(X)]


@pytest.mark.parametrize(
    ("name", "tuner"),
    others_slow(
        [(name, tuner) for name in QUICK for tuner in ("bayesopt", "dual_averaging", "gibbs")],
        ("mixtures, sets of points", "bayesopt"),
    ),
)
def test_draws_are_made_exported_and_restored(name: str, tuner: str, tmp_path) -> None:
    case, model = CASES[name], approximated(name)
    options = {**OPTIONS, "tuner": tuner} | ({"tuning": SHORT} if tuner == "bayesopt" else {})
    draws = gpx.sample(model, 6, checkpoint_dir=tmp_path / "run", **options)
    assert draws.values["V"].shape == (2, 6, M, model.num_latent_gps)
    assert all(np.isfinite(value).all() for value in draws.values.values())
    assert any(".lengthscales" in key for key in draws.values)
    assert ("kernel.W" in draws.values) == name.startswith("mixtures")
    live = loaded_predictions(model, case.new)
    gpx.export(model, tmp_path / "exported", example=case.new[:2])
    served = gpx.load_exported(tmp_path / "exported").predict_f(case.new)
    assert_close([served["mean"], served["variance"]], live[:2])
    loaded = gpx.load_checkpoint(tmp_path / "run")
    assert_close(loaded_predictions(loaded, case.new), live)
    resumed = gpx.sample(case.ours(), 9, checkpoint_dir=tmp_path / "run", **options)
    for key, value in draws.values.items():
        np.testing.assert_array_equal(resumed.values[key][:, :6], value)


@pytest.mark.parametrize("whiten", [True, False])
def test_a_gaussian_approximation_of_gpflow_is_taken_over(whiten: bool) -> None:
    for name in TWO:
        case = CASES[name]
        svgp = gpflow.models.SVGP(
            case.kernel(), PoissonLog(), case.points(), num_latent_gps=case.count, whiten=whiten
        )
        rng = np.random.default_rng(2)
        svgp.q_mu.assign(rng.normal(size=svgp.q_mu.shape))
        svgp.q_sqrt.assign(np.tril(rng.uniform(0.1, 0.5, svgp.q_sqrt.shape)))
        model = SGPMCFreeForm.from_gaussian(svgp, (X, COUNTS))
        assert_close(model.density.gaussian_moments(model.q_mu, model.q_sqrt), svgp.predict_f(X))


def test_samples_of_mixtures_covary_as_they_are_predicted() -> None:
    case = CASES["mixtures, sets of points"]
    model = case.ours()
    hold(model, drawn(model))
    tf.random.set_seed(0)
    found = model.predict_f_samples(case.new, 20_000).numpy().reshape(20_000, -1)
    mean, cov = model.predict_f(case.new, full_cov=True, full_output_cov=True)
    cov = cov.numpy().reshape(found.shape[1], -1)
    scale = np.sqrt(np.diagonal(cov))
    # Five standard errors: a chance of 6e-7 for each of the 6 means; those of correlations are 0.007 at most.
    assert (np.abs(found.mean(axis=0) - np.ravel(mean)) < 5.0 * scale / np.sqrt(20_000)).all()
    np.testing.assert_allclose(
        np.cov(found.T) / np.outer(scale, scale), cov / np.outer(scale, scale), atol=0.06
    )


def test_what_is_shared_is_computed_once() -> None:
    """On a grid also by Kronecker products: a kernel and points that are said to be shared are those of one output."""
    grid = grids.grid([-1.0, 0.0, 1.0], [-1.0, 0.5, 1.0])
    where = grids.grid([-1.0, 1.0], [-0.8, 0.8])
    values, found = np.random.default_rng(0).normal(size=(4, P)), []
    for kernel, points in (
        (smooth(), where),
        (SharedIndependent(smooth(), P), SharedIndependentInducingVariables(InducingPoints(where))),
    ):
        model = SGPMCFreeForm((grid, COUNTS), kernel, PoissonLog(), inducing_variable=points)
        model.V.assign(values)
        assert model.structure is not None
        assert isinstance(model.density.project(Stack([]), X), grids.Dense)
        found.append([model.training_loss(), *model.predict_f(X, full_cov=True)])
    assert_close(*found, 1e-14)
    one = SGPMCFreeForm((X, COUNTS), shared(matern), PoissonLog(), inducing_variable=some())
    assert latents.gram(one, Stack([])).shape == (1, M, M)


class Unknown(gpflow.kernels.MultioutputKernel):
    """Some other kernel of several outputs."""

    num_latent_gps, latent_kernels = P, ()
    K = K_diag = None


def free_form(kernel: Kernel, points, number: int | None = None) -> SGPMCFreeForm:
    return SGPMCFreeForm((X, COUNTS), kernel, PoissonLog(), None, number, inducing_variable=points)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: free_form(Unknown(), some()), NotImplementedError, "SGPMCFreeForm.*Unknown.*SeparateInd"),
        (
            lambda: free_form(SeparateIndependent([matern(k) for k in range(3)]), some()),
            ValueError,
            "3 outputs, but there are 2",
        ),
        (lambda: free_form(mixtures(matern), sets(some, 2)), ValueError, "2 sets for 3 functions"),
        (lambda: free_form(mixtures(matern), some(), 2), ValueError, "mixes 3 functions: leave it out"),
        (lambda: free_form(separate(matern), some(), 3), ValueError, "2 outputs, but there are 3"),
        (
            lambda: free_form(matern(), SharedIndependentInducingVariables(InducingPoints(X[:, :1]))),
            ValueError,
            "1 columns and X has 2",
        ),
        (
            lambda: free_form(matern(), SeparateIndependentInducingVariables([InducingPoints(X), some()])),
            ValueError,
            r"\[4, 9\] elements",
        ),
        (
            lambda: gpx.sample(free_form(with_priors(separate(matern)), some()), 2, precondition="rescaled"),
            ValueError,
            "grids",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
