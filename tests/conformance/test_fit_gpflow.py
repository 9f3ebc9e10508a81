"""GPflow's own models in `fit`: no worse an objective than GPflow's optimiser reaches, in fewer evaluations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gpflow
import numpy as np
import problems
import pytest
import resuming
import tensorflow as tf
import tensorflow_probability as tfp
from marks import others_slow

import gpflow_ext as gpx
from gpflow_ext.training import lbfgs

models, likelihoods = gpflow.models, gpflow.likelihoods
N, M = 60, 10
REAL, BINARY, COUNTS = problems.continuous(N), problems.binary(N, 30.0, 1.2), problems.counts(N)
Z = problems.inputs(M, seed=5)
Model = gpflow.models.BayesianModel


def kernel() -> gpflow.kernels.Kernel:
    return problems.kernel(1.0, 1.0)


def svgp(likelihood: likelihoods.Likelihood, learn: bool = False, **options: Any) -> models.SVGP:
    """An SVGP whose inducing points stay unless they ``learn``."""
    model = models.SVGP(kernel(), likelihood, Z.copy(), num_data=N, **options)
    gpflow.set_trainable(model.inducing_variable, learn)
    return model


def held(model: Model) -> Model:
    """The model with its inducing points held."""
    gpflow.set_trainable(model.inducing_variable, False)
    return model


def two_outputs() -> models.SVGP:
    """An SVGP of two kernels, whose objective is that of two independent ones."""
    points = gpflow.inducing_variables.SharedIndependentInducingVariables(
        gpflow.inducing_variables.InducingPoints(Z.copy())
    )
    kernels = gpflow.kernels.SeparateIndependent([kernel(), gpflow.kernels.Matern52()])
    return held(models.SVGP(kernels, likelihoods.Gaussian(), points, num_latent_gps=2, num_data=N))


def partly() -> models.SVGP:
    """An SVGP with a fixed variance, and a mean that is learnt."""
    model = svgp(likelihoods.Bernoulli(), mean_function=gpflow.functions.Constant())
    gpflow.set_trainable(model.kernel.variance, False)
    return model


def fixed_q() -> models.SVGP:
    """An SVGP with a covariance that is held."""
    model = svgp(likelihoods.Bernoulli())
    gpflow.set_trainable(model.q_sqrt, False)
    return model


def with_prior() -> models.VGP:
    """A VGP with a prior on its length scale."""
    model = models.VGP(BINARY, kernel(), likelihoods.Bernoulli())
    model.kernel.lengthscales.prior = tfp.distributions.LogNormal(np.log(0.5), np.float64(0.1))
    return model


class Case(NamedTuple):
    """A model and what it is trained on."""

    build: Callable[[], Model]
    data: Any = None
    is_collapsed: bool = False  # whether L-BFGS moves the hyperparameters alone


BOTH = (REAL[0], np.hstack([REAL[1], REAL[1][::-1]]))
CASES = {
    "GPR": Case(lambda: models.GPR(REAL, kernel())),
    "SGPR": Case(lambda: held(models.SGPR(REAL, kernel(), Z.copy()))),
    "GPRFITC": Case(lambda: held(models.GPRFITC(REAL, kernel(), Z.copy()))),
    "VGP": Case(lambda: models.VGP(BINARY, kernel(), likelihoods.Bernoulli()), None, True),
    "VGP, prior": Case(with_prior, None, True),
    "VGP, counts": Case(lambda: models.VGP(COUNTS, kernel(), likelihoods.Poisson()), None, True),
    "VGP, not log-concave": Case(lambda: models.VGP(REAL, kernel(), likelihoods.StudentT(0.1)), None),
    "Opper & Archambeau": Case(
        lambda: models.VGPOpperArchambeau(BINARY, kernel(), likelihoods.Bernoulli()), None, True
    ),
    "SVGP": Case(lambda: svgp(likelihoods.Bernoulli()), BINARY, True),
    "SVGP, free points": Case(lambda: svgp(likelihoods.Bernoulli(), learn=True), BINARY, True),
    "SVGP, Gaussian": Case(lambda: svgp(likelihoods.Gaussian()), REAL, True),
    "SVGP, not whitened": Case(lambda: svgp(likelihoods.Poisson(), whiten=False), COUNTS, True),
    "SVGP, part of it": Case(partly, BINARY, True),
    "SVGP, q held in part": Case(fixed_q, BINARY),
    "SVGP, diagonal": Case(lambda: svgp(likelihoods.Bernoulli(), q_diag=True), BINARY),
    "SVGP, two kernels": Case(two_outputs, BOTH),
    "GPMC": Case(lambda: models.GPMC(BINARY, kernel(), likelihoods.Bernoulli())),
}

QUICK = [
    "GPR",
    "VGP",
    "VGP, not log-concave",
    "Opper & Archambeau",
    "SVGP",
    "SVGP, not whitened",
    "SVGP, q held in part",
    "SVGP, two kernels",
]


def loss(model: Model, data: Any) -> float:
    return float(
        model.training_loss() if data is None else model.training_loss(tuple(map(tf.constant, data)))
    )


def by_gpflow(case: Case, maxiter: int = 2000) -> tuple[float, int]:
    """The loss at the end of GPflow's optimiser, and its evaluations."""
    model = case.build()
    closure = model.training_loss if case.data is None else model.training_loss_closure(case.data)
    found = gpflow.optimizers.Scipy().minimize(
        closure, model.trainable_variables, options={"maxiter": maxiter}, tf_fun_args={"autograph": False}
    )
    return float(found.fun), int(found.nfev)


@pytest.fixture(name="evaluations")
def _evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of coordinates at which L-BFGS has asked for the objective."""
    asked: list[int] = []
    made = lbfgs.in_coordinates

    def counting(objective, coordinates):
        evaluate = made(objective, coordinates)

        def counted(x: np.ndarray) -> Any:
            asked.append(len(x))
            return evaluate(x)

        return counted

    monkeypatch.setattr(lbfgs, "in_coordinates", counting)
    return asked


@pytest.mark.parametrize("name", others_slow(CASES, *QUICK))
def test_the_end_is_no_worse_than_that_of_gpflow(name: str, evaluations: list[int]) -> None:
    case = CASES[name]
    model = case.build()
    result = gpx.fit(model, case.data)
    theirs, most = by_gpflow(case)
    assert result.status is gpx.Status.CONVERGED
    assert loss(model, case.data) <= theirs + 1e-5 * abs(theirs)
    np.testing.assert_allclose(-loss(model, case.data), result.objective[-1], rtol=1e-6)
    if case.is_collapsed:
        assert max(evaluations) <= 3 + (Z.size if name == "SVGP, free points" else 0)
        assert len(evaluations) <= most
    assert all(parameter.trainable for parameter in model.trainable_parameters)


def test_what_is_held_stays() -> None:
    model = partly()
    gpx.fit(model, BINARY)
    assert model.kernel.variance.numpy() == 1.0
    np.testing.assert_array_equal(model.inducing_variable.Z, Z)
    assert abs(model.mean_function.c.numpy()) > 1e-3
    other = fixed_q()
    before = other.q_sqrt.numpy()
    gpx.fit(other, BINARY, steps=3)
    np.testing.assert_array_equal(other.q_sqrt, before)


def test_cglb_is_trained_although_it_cannot_be_traced() -> None:
    """Its bound is above that of SGPR, which the same inducing points give."""
    model = held(models.CGLB(REAL, kernel(), inducing_variable=Z.copy(), cg_tolerance=1e-3))
    result = gpx.fit(model, steps=1)
    reference = held(models.SGPR(REAL, kernel(), Z.copy()))
    gpx.fit(reference)
    assert result.objective[-1] > -loss(reference, None) - 1e-3


def test_a_trained_q_is_where_training_goes_on() -> None:
    case = CASES["SVGP"]
    model = case.build()
    end = gpx.fit(model, case.data).objective[-1]
    again = gpx.fit(model, case.data)
    assert again.objective[0] > end - 1e-6 * abs(end)
    q_mu = model.q_mu.numpy()
    gpx.fit(model, case.data, steps=0)
    np.testing.assert_array_equal(model.q_mu, q_mu)


class Halved(models.VGP):
    """A user's own bound."""

    def elbo(self) -> tf.Tensor:
        return 0.5 * super().elbo()


def test_a_bound_of_ones_own_is_the_one_that_is_raised() -> None:
    model = Halved(BINARY, kernel(), likelihoods.Bernoulli())
    result = gpx.fit(model)
    np.testing.assert_allclose(result.objective[-1], 0.5 * float(models.VGP.elbo(model)), rtol=1e-6)


def estimated() -> models.SVGP:
    """An SVGP whose expectations are Monte Carlo estimates."""
    return svgp(likelihoods.GaussianMC())


def test_an_objective_that_is_an_estimate_is_left_to_adam() -> None:
    result = gpx.fit(estimated(), REAL, steps=5)
    assert (result.steps, result.status) == (5, gpx.Status.MAX_STEPS)


@pytest.mark.parametrize("name", ["VGP, not log-concave", "SVGP, not whitened", "SVGP, diagonal", "GPR"])
def test_a_resumed_run_ends_as_the_whole_one(tmp_path, name: str) -> None:
    case = CASES[name]
    resuming.check(case.build, tmp_path, case.data, steps=4, cut=2, options=dict)


def on_minibatches(model: models.SVGP, **options: Any) -> float:
    gpx.fit(model, BINARY, minibatch_size=10, **options)
    return loss(model, BINARY)


def test_minibatches_come_near_what_all_data_give() -> None:
    """And far nearer than Adam on everything in as many steps."""
    best, natural, adam = (svgp(likelihoods.Bernoulli()) for _ in range(3))
    gpx.fit(best, BINARY)
    for model in (natural, adam):
        for mine, theirs in zip(model.kernel.parameters, best.kernel.parameters, strict=True):
            mine.assign(theirs)
    gap = on_minibatches(natural, steps=200, decay_steps=200) - loss(best, BINARY)
    assert -1e-6 < gap < 0.5
    assert 3.0 * gap < on_minibatches(adam, steps=200, recipe="adam") - loss(best, BINARY)


def test_minibatches_of_other_models_go_by_adam() -> None:
    model = CASES["SVGP, diagonal"].build()
    before = loss(model, BINARY)
    assert on_minibatches(model, steps=50) < before


def test_an_optimizer_moves_everything() -> None:
    model = svgp(likelihoods.Bernoulli())
    optimizer = gpflow.keras.tf_keras.optimizers.Adam(0.05)
    gpx.fit(model, BINARY, steps=7, optimizer=optimizer)
    assert int(optimizer.iterations) == 7


def test_wrong_options_are_named() -> None:
    with pytest.raises(ValueError, match="decay_steps"):
        gpx.fit(svgp(likelihoods.Bernoulli()), BINARY, minibatch_size=5, decay_steps=0)
    with pytest.raises(ValueError, match="arrays"):
        gpx.fit(
            svgp(likelihoods.Bernoulli()), tf.data.Dataset.from_tensor_slices(BINARY).batch(4), recipe="lbfgs"
        )


def test_the_kernel_does_not_follow_a_q_that_the_data_have_not_moved() -> None:
    """Where all moves at once from the prior, the run ends at an almost constant function, 1.5 nats below."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-3.0, 3.0, (100, 2))
    f = np.sin(2.0 * X[:, :1]) + 0.5 * X[:, 1:]
    rng.standard_normal(f.shape)
    Y = (rng.uniform(size=f.shape) < 1.0 / (1.0 + np.exp(-3.0 * f))).astype(float)
    wide = gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0])
    model = held(models.SVGP(wide, likelihoods.Bernoulli(), X[:30].copy(), num_data=100, q_diag=True))
    result = gpx.fit(model, (X, Y), progress=False)
    assert result.objective[-1] > -46.9
