"""Single precision predicts as double does; the same seed gives the same bits; XLA trains the same model."""

from __future__ import annotations

import functools
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from builders import BUILD
from placing import placed

import gpflow_ext as gpx
from gpflow_ext.models import GPRNTensor, SGPMCFreeForm, SVGPRobustMax
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.training.scale import scale_failure

X, Y = problems.binary(200, variance=9.0, lengthscale=1.5)
DATA = {"train": (X[:60], Y[:60]), "few": (X[:16], Y[:16])}
TEST = (X[60:], Y[60:])
SLOW = pytest.mark.slow
FAST = ("SparseEP",)
NAMES = [name if name in FAST else pytest.param(name, marks=SLOW) for name in BUILD]
MONTE_CARLO = 0.03  # of a probability, three times the error
STOCHASTIC = [
    name if name == "SVGPRobustMax" else pytest.param(name, marks=SLOW)
    for name in ("SVGPRobustMax", "SGPMCFreeForm", "SparseEP")
]


@functools.cache
def predicted(
    name: str,
    dtype: type = np.float64,
    data: str = "train",
    jit: bool = False,
    repeat: int = 0,
    steps: int = 30,
) -> np.ndarray:
    """Train a model and return its mean and variance of y at the test inputs, [R, 2 or more]."""
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        pair = tuple(part.astype(dtype) for part in DATA[data])
        model = BUILD[name](pair, problems.kernel(), pair[0][:12].copy())
        if isinstance(model, SGPMCFreeForm):
            for parameter in (model.kernel.variance, model.kernel.lengthscales):
                gpflow.set_trainable(parameter, False)
            options = {"tuner": Setting(0.4, 8), "check": False, "warm_up": 10}
            gpx.sample(model, 300, 4, progress=False, seed=1, jit_compile=jit, **options)
        else:
            external = pair if isinstance(model, SVGPRobustMax) else None
            gpx.fit(model, external, steps=steps, progress=False, seed=1, jit_compile=jit)
        mean, var = model.predict_y(TEST[0].astype(dtype))
        assert mean.dtype == dtype
        return np.concatenate([mean.numpy(), var.numpy()], axis=1).astype(np.float64)


def probability(found: np.ndarray) -> np.ndarray:
    """Of class 1: the mean of a target in {0, 1}, or the second of two classes."""
    return np.clip(found[:, 1 if found.shape[1] == 4 else 0], 1e-6, 1.0 - 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_predicts_as_double(name: str, record_property) -> None:
    """Where the model is sampled, on the rows whose class 1200 draws can decide."""
    single, double = (probability(predicted(name, dtype)) for dtype in (np.float32, np.float64))
    decided = np.abs(double - 0.5) > (MONTE_CARLO if name == "SGPMCFreeForm" else 0.0)
    assert decided.mean() > 0.8
    y = TEST[1][decided, 0]
    scores = [
        (100.0 * np.mean((p > 0.5) != y), -np.mean(np.log(np.where(y, p, 1.0 - p))))
        for p in (single[decided], double[decided])
    ]
    error, nlpd = np.abs(np.subtract(*scores))
    record_property("difference of error, points", error)
    record_property("difference of NLPD", nlpd)
    assert error <= 0.2
    assert nlpd <= 0.01


@pytest.mark.parametrize(("dtype", "shift", "kernel", "warned"), [
    (np.float32, 0.0, gpflow.kernels.SquaredExponential, False),
    (np.float32, 1e3, gpflow.kernels.SquaredExponential, False),  # of which distances are computed centred
    (np.float32, 1e3, gpflow.kernels.ArcCosine, True),
    (np.float64, 1e3, gpflow.kernels.ArcCosine, False),
    (np.float32, 1e5, gpflow.kernels.SquaredExponential, True),
])  # fmt: skip
def test_inputs_whose_distances_are_rounding_are_warned_of(
    dtype: type, shift: float, kernel: type[gpflow.kernels.Kernel], warned: bool
) -> None:
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        inputs = (DATA["few"][0] + shift).astype(dtype)
        failure = scale_failure(BUILD["GPLaplace"]((inputs, DATA["few"][1].astype(dtype)), kernel(), None))
    assert (failure is not None and "subtract its mean" in failure) == warned


@pytest.mark.parametrize(("between", "prior", "warned"), [
    (1e7, None, True), (1e3, None, False), (1e7, "markov", False),
])  # fmt: skip
def test_bursts_far_from_each_other_are_warned_of(between: float, prior: Any, warned: bool) -> None:
    """Within a burst distances are rounding, beside the squares of what lies between the two."""
    times = np.linspace(0.0, 20.0, 60)
    X = np.concatenate([times, between + times])[:, None]
    Y = np.tile(np.sin(times) > 0.0, 2)[:, None].astype(float)
    kernel = gpflow.kernels.Matern32(lengthscales=2.0)
    model = gpx.models.VGPKMM((X, Y), kernel, gpx.likelihoods.BernoulliLogit(), prior=prior)
    failure = scale_failure(model)
    assert (failure is not None and "near values differ by" in failure) == warned


@pytest.mark.filterwarnings("error")
def test_one_row_has_no_distances_to_lose() -> None:
    data = np.ones((1, 1)), np.ones((1, 1))
    assert scale_failure(gpflow.models.GPR(data, gpflow.kernels.Matern32(), noise_variance=0.1)) is None


@pytest.mark.parametrize(("weights", "warned"), [
    (gpflow.kernels.SquaredExponential, False),
    (gpflow.kernels.ArcCosine, True),
])  # fmt: skip
def test_networks_are_warned_of_where_they_do_not_centre(
    weights: type[gpflow.kernels.Kernel], warned: bool
) -> None:
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-5)):
        inputs, targets = ((part + 1e3).astype(np.float32) for part in DATA["few"])
        model = GPRNTensor((inputs, targets), problems.kernel(), weights(), num_latent=1)
        failure = scale_failure(model)
    assert (failure is not None and "subtract its mean" in failure) == warned


def moved(name: str, dtype: type, shift: float, scale: float) -> tuple[np.ndarray, gpx.Status]:
    """Train on inputs that are shifted and scaled, the length scales with them; return probabilities."""
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        at, test = ((scale * (part + shift)).astype(dtype) for part in (DATA["train"][0], TEST[0]))
        kernel = problems.kernel()
        kernel.lengthscales.assign(scale * kernel.lengthscales)
        model = BUILD[name]((at, DATA["train"][1].astype(dtype)), kernel, at[:12].copy())
        result = gpx.fit(model, steps=30, progress=False, seed=1)
        return probability(np.asarray(model.predict_y(test)[0], float)), result.status


def test_a_constant_column_is_not_taken_for_a_distant_one() -> None:
    """Its standard deviation is not zero but rounding."""
    rows, labels = DATA["train"]
    inputs = np.column_stack([rows, np.full(len(rows), 0.7)])
    assert 0.0 < inputs.std(axis=0)[-1] < 1e-15
    assert scale_failure(BUILD["GPLaplace"]((inputs, labels), gpflow.kernels.ArcCosine(), None)) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shift", "scale"), [(1e2, 1.0), (1e3, 1.0), (1e4, 1.0), (0.0, 1e-3), (0.0, 1e3), (1e3, 1e3)]
)
@pytest.mark.parametrize("name", ["VGPKMM", "GPLaplace", "GPTaylor", "GPJaakkola"])
def test_single_precision_of_shifted_and_scaled_inputs(name: str, shift: float, scale: float) -> None:
    """Single precision rounds inputs that are 10,000 deviations from zero by a thousandth of one."""
    (single, status), (double, _) = (moved(name, dtype, shift, scale) for dtype in (np.float32, np.float64))
    assert status is gpx.Status.CONVERGED
    nlpd = [-np.mean(np.log(np.where(TEST[1][:, 0], p, 1.0 - p))) for p in (single, double)]
    assert abs(nlpd[0] - nlpd[1]) <= 0.003


def _sparse_ep(dtype: type, scale: float) -> gpx.models.SparseEP:
    (rows, labels), kernel = DATA["train"], problems.kernel()
    kernel.lengthscales.assign(scale * kernel.lengthscales)
    at = (scale * rows).astype(dtype)
    return BUILD["SparseEP"]((at, labels.astype(dtype)), kernel, at[:12].copy())


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_single_precision_ends_at_an_optimum_of_double(scale: float) -> None:
    """With trained inducing inputs not always the same one; the variance may creep up a flat ridge."""
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        single = _sparse_ep(np.float32, scale)
        end = gpx.fit(single, progress=False).objective[-1]
        values = gpflow.utilities.read_values(single)
    double = _sparse_ep(np.float64, scale)
    places = {path: value.astype(np.float64) for path, value in values.items()}
    gpflow.utilities.multiple_assign(double, places)
    np.testing.assert_allclose(-double.training_loss(), end, rtol=1e-5)
    further = gpx.fit(double, progress=False, starts=1)
    assert end - 1e-3 < further.objective[-1] < end + 0.03


def _network(dtype: type, shift: float, **options: object) -> tuple[GPRNTensor, np.ndarray, np.ndarray]:
    """Two outputs of two inputs, and the inputs and targets of a test."""
    rng = np.random.default_rng(0)
    at = (rng.uniform(-2.0, 2.0, (60, 2)) + shift).astype(np.float32)
    outputs = np.sin((at.astype(float) - shift) @ rng.standard_normal((2, 2)))
    outputs += 0.1 * rng.standard_normal(outputs.shape)
    if options.pop("sparse", False):
        options["inducing_variable"] = at[:10].astype(dtype)
    data = at[:40].astype(dtype), outputs[:40].astype(dtype)
    model = GPRNTensor(data, problems.kernel(), problems.kernel(), num_latent=2, **options)
    return model, at[40:].astype(dtype), outputs[40:].astype(dtype)


@pytest.mark.parametrize("full_cov", [False, True])
@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"posterior": "tensor"}])
def test_networks_of_shifted_inputs_in_single_precision(options: dict[str, object], full_cov: bool) -> None:
    found = []
    for dtype in (np.float32, np.float64):
        with gpflow.config.as_context(gpflow.config.Config(float=dtype, jitter=1e-4)):
            model, test, _ = _network(dtype, 1e4, **options)
            found.append([part.numpy() for part in model.predict_f(test, full_cov=full_cov)])
    for single, double in zip(*found, strict=True):
        np.testing.assert_allclose(single, double, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [1e3, 1e4])
@pytest.mark.parametrize("posterior", ["collapsed", "tensor"])
def test_single_precision_of_networks_of_shifted_inputs(posterior: str, shift: float) -> None:
    """Of fits that have settled; on the way there they differ by more, also without a shift."""
    nlpd = []
    for dtype in (np.float32, np.float64):
        with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
            model, *test = _network(dtype, shift, posterior=posterior)
            gpx.fit(model, steps=20, progress=False)
            nlpd.append(gpx.metrics.evaluate(model, tuple(test))["nlpd"])
    assert abs(nlpd[0] - nlpd[1]) <= 0.003


@pytest.mark.parametrize("name", STOCHASTIC)
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    np.testing.assert_array_equal(predicted(name, repeat=0), predicted(name, repeat=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BUILD if name != "SGPMCFreeForm"])
def test_xla_trains_the_same_model(name: str, record_property) -> None:
    """After few steps, one where it is twenty iterations of L-BFGS: further on rounding is amplified.

    Each evaluation of SVGPRobustMax settles q to a stationarity of 1e-3, where the two may end a step of q apart.
    """
    few = {"data": "few", "steps": 1 if name in ("SparseEP", "SVGPRobustMax") else 3}
    difference = np.abs(predicted(name, jit=True, **few) - predicted(name, **few)).max()
    record_property("largest difference", difference)
    assert difference <= (1e-4 if name == "SVGPRobustMax" else 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("precondition", ["conditional", "vb", None])
def test_xla_samples_the_same_density(precondition: str | None, record_property) -> None:
    """And its gradient; the random numbers of XLA are others, so that chains differ."""
    model = BUILD["SGPMCFreeForm"](DATA["few"], problems.kernel(), X[:12].copy())
    for parameter in (model.kernel.variance, model.kernel.lengthscales):
        gpflow.set_trainable(parameter, False)
    gpx.gaussian_approximation(model, steps=30, free_inducing=False)
    target, start = placed(model, precondition)
    x = start(tf.random.stateless_normal([4, target.num_dimensions], [0, 1], dtype=tf.float64))
    plain, compiled = (
        tf.function(lambda at: tfp.math.value_and_gradient(target, at), jit_compile=jit, autograph=False)(x)
        for jit in (False, True)
    )
    difference = max(np.abs(a - b).max() for a, b in zip(plain, compiled, strict=True))
    record_property("largest difference", difference)
    assert difference <= 1e-8
