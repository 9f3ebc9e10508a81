"""What each model says of data that it cannot use: a ValueError that tells what was seen and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from builders import BUILD, Data
from gpflow.kernels import Kernel

import gpflow_ext as gpx
from gpflow_ext.data import checks
from gpflow_ext.likelihoods import (
    BernoulliLogit,
    BernoulliProbit,
    NegativeBinomialLog,
    PoissonLog,
    RobustMax,
    Weighted,
)
from gpflow_ext.models import VGPKMM, GPLaplace, GPRNTensor, SGPMCFreeForm, SparseEP, SVGPRobustMax

X, Y = problems.binary(12)
REGRESSION = "GPRNTensor"  # any target will do, and a missing one is NaN


def start(name: str, data: Data, Z: np.ndarray | None = None) -> None:
    """Give the data to a model, at the door of its constructor or of `fit`."""
    kernel, Z = problems.kernel(), problems.inputs(4, seed=5) if Z is None else Z
    if name == "SVGPRobustMax":
        gpx.fit(SVGPRobustMax(kernel, 2, Z, num_data=12), data, steps=1, progress=False)
    else:
        BUILD[name](data, kernel, Z)


def put(value: object, part: np.ndarray = X, dtype: type = float) -> np.ndarray:
    """A copy with a cell replaced."""
    changed = part.astype(dtype)
    changed[3, -1] = value
    return changed


CASES: dict[str, tuple[object, str]] = {
    "NaN in X": ((put(np.nan), Y), "row 3, column 1.*Drop or fill"),
    "inf in X": ((put(np.inf), Y), "row 3, column 1.*Drop or fill"),
    "inf in Y": ((X, put(np.inf, Y)), "finite"),
    "the largest X": ((put(1.7e308), Y), "row 3, column 1.*Standardise"),
    "the largest Y": ((X, put(-1.7e308, Y)), "Standardise|0 and 1"),
    "labels 1 and 2": ((X, Y + 1.0), "0 and 1|numbers 0 to 1"),
    "labels 0.3 and 0.7": ((X, np.where(Y > 0, 0.7, 0.3)), "0 and 1|numbers 0 to 1"),
    "strings": ((X, np.where(Y > 0, "yes", "no")), "[Ee]ncode|numbers"),
    "one axis": ((X, Y[:, 0]), r"reshape\(-1, 1\)|two axes"),
    "lengths": ((X, Y[:-1]), "12 and Y has 11|11"),
    "no rows": ((X[:0], Y[:0]), "empty"),
    "no columns": ((X[:, :0], Y), "empty"),
    "no pair": (X, "pair"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", BUILD)
def test_wrong_data_are_refused(name: str, case: str) -> None:
    if name == REGRESSION and case.startswith("labels"):
        pytest.skip("any number is a target")
    data, message = CASES[case]
    with pytest.raises(ValueError, match=message):
        start(name, data)


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_other_numbers_are_cast(name: str, dtype: type) -> None:
    start(name, ((2 * X).astype(dtype), Y.astype(dtype)))


@pytest.mark.parametrize(
    ("likelihood", "targets", "message"),
    [
        (RobustMax(3), Y + 2.0, "0, 1, 2|0 to 2|classes"),
        (RobustMax(3), np.eye(3)[np.arange(12) % 3], "one column|one-hot|argmax|columns"),
        (PoissonLog(), Y - 1.0, "counts"),
        (PoissonLog(), Y + 0.5, "counts"),
        (gpflow.likelihoods.Poisson(), Y + 0.5, "counts"),
        (BernoulliLogit(), np.c_[Y, 1.0 - Y], "one-hot"),
    ],
)
def test_targets_of_other_likelihoods(likelihood, targets: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SGPMCFreeForm((X, targets), problems.kernel(), likelihood, inducing_variable=X.copy())


LIKELIHOODS = gpflow.likelihoods
CLASSES = np.arange(12.0)[:, None] % 3


def _train(model: str, likelihood, targets: np.ndarray) -> None:
    kernel, latent = problems.kernel(), likelihood.latent_dim or 1
    if model == "SVGP":
        svgp = gpflow.models.SVGP(kernel, likelihood, X[:4].copy(), num_latent_gps=latent)
        gpx.fit(svgp, (X, targets), steps=1, progress=False)
    elif model == "VGPKMM":
        gpx.models.VGPKMM((X, targets), kernel, likelihood, num_latent_gps=latent)
    else:
        built = getattr(gpflow.models, model)((X, targets), kernel, likelihood, num_latent_gps=latent)
        gpx.fit(built, steps=1) if model == "VGP" else gpx.sample(built, 2, 1, progress=False)


@pytest.mark.parametrize(
    ("likelihood", "targets", "message"),
    [
        (LIKELIHOODS.Bernoulli(), 2.0 * Y - 1.0, "0 and 1"),
        (LIKELIHOODS.Poisson(), Y - 1.0, "counts"),
        (LIKELIHOODS.Poisson(), Y + 0.5, "counts"),
        (LIKELIHOODS.Beta(), 2.0 * Y, "from 0 to 1"),
        (LIKELIHOODS.Exponential(), Y - 1.0, "negative"),
        (LIKELIHOODS.Gamma(), Y, "positive"),
        (LIKELIHOODS.MultiClass(3), CLASSES + 1.0, "Y - 1"),
        (LIKELIHOODS.MultiClass(3), CLASSES + 0.5, "0 to 2"),
        (LIKELIHOODS.MultiClass(3), np.eye(3)[np.arange(12) % 3], "argmax"),
        (LIKELIHOODS.Softmax(3), CLASSES + 1.0, "Y - 1"),
        (LIKELIHOODS.Softmax(3), CLASSES, r"MultinomialLogit\(3\)"),
        (LIKELIHOODS.Ordinal(np.array([-1.0, 1.0])), CLASSES + 1.0, "Y - 1"),
        (LIKELIHOODS.SwitchedLikelihood([LIKELIHOODS.Bernoulli()]), np.c_[Y, Y], "number the likelihoods"),
        (
            LIKELIHOODS.SwitchedLikelihood([LIKELIHOODS.Bernoulli(), LIKELIHOODS.Gaussian()]),
            np.c_[Y + 2.0, np.arange(12) % 2],
            "0 and 1",
        ),
        (Weighted(LIKELIHOODS.Poisson()), np.c_[Y - 1.0, np.ones(12)], "counts"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, LIKELIHOODS.Likelihood) else "",
)
@pytest.mark.parametrize("model", ["VGP", "SVGP", "GPMC", "VGPKMM"])
def test_targets_outside_the_support_of_a_likelihood_of_gpflow(
    model: str, likelihood, targets: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _train(model, likelihood, targets)


def test_levels_of_gpflow_have_no_derivative_in_their_noise_at_either_end() -> None:
    """It is zero times infinity, also where erf is one at infinity, as in single precision."""
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        likelihood = LIKELIHOODS.Ordinal(np.array([-1.0, 1.0], np.float32))
        with pytest.raises(ValueError, match=r"derivative in sigma .*CumulativeLogit\(3\)"):
            checks.check_targets(likelihood, CLASSES)
        gpflow.set_trainable(likelihood.sigma, False)
        checks.check_targets(likelihood, CLASSES)


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [
        (LIKELIHOODS.Beta(), Y),
        (LIKELIHOODS.Exponential(), Y),
        (LIKELIHOODS.Gamma(), Y + 0.5),
        (LIKELIHOODS.MultiClass(3), CLASSES),
        (LIKELIHOODS.Softmax(3), CLASSES.astype(int)),
    ],
)
def test_targets_within_the_support_of_a_likelihood_of_gpflow(likelihood, targets: np.ndarray) -> None:
    kernel, latent = problems.kernel(), likelihood.latent_dim or 1
    checks.check_held(gpflow.models.VGP((X, targets), kernel, likelihood, num_latent_gps=latent))


def test_floating_labels_of_a_dataset_are_refused_for_softmax() -> None:
    """By name; TensorFlow would tell of a parameter 'labels'. Integers are taken."""
    likelihood, Z = LIKELIHOODS.Softmax(3), X[:4].copy()
    model = gpflow.models.SVGP(problems.kernel(), likelihood, Z, num_latent_gps=3, num_data=12)
    for targets in (CLASSES.astype(int), CLASSES):
        batches = tf.data.Dataset.from_tensor_slices((X, targets)).batch(4).repeat()
        with (
            pytest.raises(ValueError, match=r"MultinomialLogit\(3\)")
            if targets is CLASSES
            else contextlib.nullcontext()
        ):
            gpx.fit(model, batches, recipe="adam", steps=1, progress=False)


@pytest.mark.parametrize("model", ["SVGPRobustMax", "SVGP"])
def test_an_empty_minibatch_is_refused(model: str) -> None:
    kernel, Z = problems.kernel(), problems.inputs(4, seed=5)
    if model == "SVGP":
        built = gpflow.models.SVGP(kernel, gpflow.likelihoods.Bernoulli(), Z, num_data=12)
    else:
        built = SVGPRobustMax(kernel, 2, Z, num_data=12)
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(6).map(lambda x, y: (x[:0], y[:0])).repeat()
    with pytest.raises(ValueError, match="empty"):
        gpx.fit(built, batches, steps=2, progress=False)


def test_deterministic_optimisers_and_minibatches() -> None:
    model = SparseEP((X, Y), problems.kernel(), BernoulliProbit(), inducing_variable=X[:4].copy())
    with pytest.raises(ValueError, match="minibatch"):
        gpx.fit(model, optimizer="lbfgs", minibatch_size=4)
    svgp = gpflow.models.SVGP(problems.kernel(), gpflow.likelihoods.Bernoulli(), X[:4].copy(), num_data=12)
    with pytest.raises(ValueError, match="tf_keras optimiser"):
        gpx.fit(svgp, (X, Y), optimizer=gpflow.optimizers.Scipy(), minibatch_size=4)


@pytest.mark.parametrize(
    "build",
    [
        lambda kernel: gpflow.models.GPR((X, Y), kernel),
        lambda kernel: gpflow.models.SGPR((X, Y), kernel, X[:4].copy()),
        lambda kernel: gpflow.models.GPRFITC((X, Y), kernel, X[:4].copy()),
        lambda kernel: gpflow.models.VGP((X, Y), kernel, BernoulliLogit()),
        lambda kernel: gpflow.models.VGPOpperArchambeau((X, Y), kernel, BernoulliLogit()),
        lambda kernel: gpflow.models.GPMC((X, Y), kernel, BernoulliLogit()),
    ],
)
def test_kernels_of_several_outputs_are_refused_for_models_of_one(build: Callable[[Kernel], Any]) -> None:
    model = build(gpflow.kernels.SharedIndependent(problems.kernel(), output_dim=1))
    for fit in (gpx.fit, lambda model: gpx.fit(model, recipe="adam")):
        with pytest.raises(NotImplementedError, match="SharedIndependent has several: use gpflow_ext"):
            fit(model)


def test_a_parameter_without_a_prior_is_not_sampled() -> None:
    model = SGPMCFreeForm((X, Y), problems.kernel(), BernoulliProbit(), inducing_variable=X.copy())
    with pytest.raises(ValueError, match=r"(?s)kernel\.lengthscales.*set_trainable.*lengthscales\.prior = "):
        gpx.sample(model, 2, 1, progress=False)


@pytest.mark.parametrize("name", sorted(set(BUILD) - {"VGPKMM", "GPLaplace", "GPJaakkola", "GPRNTensor"}))
def test_inducing_points_of_another_width_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="3 columns and X has 2"):
        start(name, (X, Y), np.zeros((4, 3)))


@pytest.mark.parametrize("name", [*sorted(BUILD), "vecchia", "grid"])
def test_new_inputs_of_another_width_are_refused(name: str) -> None:
    """A kernel whose inputs are centred would broadcast one column; a structured prior would leave columns out."""
    if name in BUILD:
        model = BUILD[name]((X, Y), problems.kernel(), X[:4].copy())
    else:
        cells = np.stack(np.meshgrid(np.arange(4.0), np.arange(3.0)), axis=-1).reshape(-1, 2)
        columns = gpflow.kernels.Matern32(active_dims=[0]) * gpflow.kernels.Matern32(active_dims=[1])
        model = GPLaplace((cells, Y), columns, BernoulliLogit(), prior=name)
    for width in (1, 3):
        for predict in (model.predict_f, model.posterior().predict_f):
            with pytest.raises(ValueError, match=f"have {width} columns, where those of the model have 2"):
                predict(np.full((5, width), 0.3))


@pytest.mark.parametrize("wrong", ["2", None, 2.5, [1, 2], np.nan])
def test_numbers_that_are_none_are_refused_by_name(wrong: object) -> None:
    model = GPLaplace((X, Y), problems.kernel(), BernoulliLogit())
    for name, build in {
        "num_classes": lambda: RobustMax(wrong),
        "num_levels": lambda: gpx.likelihoods.CumulativeLogit(wrong),
        "probes": lambda: gpx.GridOptions(probes=wrong),
        "neighbours": lambda: gpx.VecchiaOptions(neighbours=wrong),
        "checkpoint_every": lambda: gpx.fit(model, checkpoint_every=wrong),
        "folds": lambda: gpx.cross_validate(lambda data: model, (X, Y), folds=wrong),
    }.items():
        with pytest.raises(ValueError, match=f"`{name}` must be a whole number"):
            build()


Z = X[:3]
NETWORK = X, X[:, :1]
WRONG_ARGUMENTS: dict[str, tuple[Callable[[], object], str]] = {
    "kernel of a site model": (lambda: VGPKMM((X, Y), 3, BernoulliLogit()), "`kernel` must be"),
    "kernel of a sampled model": (
        lambda: SGPMCFreeForm((X, Y), 3, BernoulliLogit(), inducing_variable=Z),
        "`kernel` must be",
    ),
    "kernel of a classifier": (lambda: SVGPRobustMax(3, 2, Z, num_data=12), "`kernel` must be"),
    "kernel of a network": (lambda: gprn(kernel=3), "`kernel` must be"),
    "likelihood": (lambda: VGPKMM((X, Y), problems.kernel(), 3), "`likelihood` must be"),
    "weighted likelihood": (lambda: Weighted(None), "`likelihood` must be"),
    "number of targets": (lambda: Weighted(BernoulliLogit(), "a"), "`num_targets` must be a whole"),
    "mean function": (lambda: VGPKMM((X, Y), problems.kernel(), BernoulliLogit(), 3), "`mean_function`"),
    "mean function of a classifier": (lambda: robust_max(mean_function=3), "`mean_function`"),
    "latent functions": (
        lambda: VGPKMM((X, Y), problems.kernel(), BernoulliLogit(), None, 1.5),
        "`num_latent_gps` must be a whole",
    ),
    "inducing points": (lambda: robust_max(Z=None), r"`inducing_variable` must be a matrix"),
    "no rows": (lambda: robust_max(num_data=0), "`num_data` must be at least 1"),
    "negative rows": (lambda: robust_max(num_data=-5), "`num_data` must be at least 1"),
    "half a row": (lambda: robust_max(num_data=2.5), "`num_data` must be a whole"),
    "epsilon": (lambda: robust_max(epsilon=None), "`epsilon` must be a number"),
    "learn epsilon": (lambda: robust_max(learn_epsilon="no"), "`learn_epsilon` must be True or False"),
    "shared covariance": (lambda: robust_max(shared_covariance="no"), "`shared_covariance` must be True"),
    "learn flip": (lambda: BernoulliLogit(flip=0.1, learn_flip="no"), "`learn_flip` must be True or False"),
    "exposure": (lambda: PoissonLog("no"), "`exposure` must be True or False"),
    "dispersion": (lambda: NegativeBinomialLog(learn_dispersion="no"), "`learn_dispersion` must be True"),
    "number of nodes": (lambda: gprn(num_latent=1.5), "`num_latent` must be a whole"),
    "noise": (lambda: gprn(noise_variance=None), "`noise_variance` must be a number"),
    "bounds": (lambda: gprn(nugget_bounds=3), "bounds of nugget must be a pair"),
    "seed of a network": (lambda: gprn(seed=1.5), "`seed` must be a whole"),
    "points of a network": (lambda: gprn(inducing_variable=3), "`inducing_variable` must be a matrix"),
    "scales": (lambda: gprn(output_scales="no"), "`output_scales` must be True or False"),
    "rows": (lambda: gprn(separate_rows="no", posterior="tensor"), "`separate_rows` must be True"),
    "half a side": (lambda: gprn(output_shape=(1.5, 2), posterior="tensor"), r"output_shape\[0\]"),
    "side": (lambda: gprn(output_shape=3, posterior="tensor"), "output_shape must be"),
    "model of fit": (lambda: gpx.fit(3), "`model` must be"),
    "monitor": (lambda: gpx.fit(model(), monitor=3), "`monitor` must be a function"),
    "seed of fit": (lambda: gpx.fit(model(), seed=1.5), "`seed` must be a whole"),
    "progress": (lambda: gpx.fit(model(), progress="no"), "`progress` must be True or False"),
    "jit": (lambda: gpx.fit(model(), jit_compile="no"), "`jit_compile` must be True or False"),
    "seed of folds": (lambda: gpx.cross_validate(model, (X, Y), seed=1.5), "`seed` must be a whole"),
    "build": (lambda: gpx.cross_validate(3, (X, Y)), "`build` must be a function"),
    "build of nodes": (lambda: gpx.fit_nodes(3), "`build` must be a function"),
    "score of nodes": (lambda: gpx.fit_nodes(lambda _: 3, score=3), "`score` must be a function"),
    "built": (lambda: gpx.fit_nodes(lambda _: 3), r"`build\(1\)` must be"),
    "approximation": (lambda: gpx.gaussian_approximation(None), "`model` must be"),
    "centres": (lambda: gpx.inducing.kmeans(X, 1.5), "`num_inducing` must be a whole"),
    "seed of centres": (lambda: gpx.inducing.kmeans(X, 3, seed="a"), "`seed` must be a whole"),
    "most points": (lambda: gpx.inducing.conditional_variance(X, problems.kernel(), "a"), "`most` must be"),
}


def model(*_: object) -> GPLaplace:
    return GPLaplace((X, Y), problems.kernel(), BernoulliLogit())


def robust_max(Z: object = Z, **options: Any) -> SVGPRobustMax:
    return SVGPRobustMax(problems.kernel(), 2, Z, **({"num_data": 12} | options))


def gprn(kernel: Any = None, num_latent: Any = 1, **options: Any) -> GPRNTensor:
    kernel = problems.kernel() if kernel is None else kernel
    return GPRNTensor(NETWORK, kernel, problems.kernel(), num_latent, **options)


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_arguments_of_another_kind_are_refused_by_name(name: str) -> None:
    build, message = WRONG_ARGUMENTS[name]
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("wrong", ["0.2", [0.1, 0.2], np.nan, 1j])
def test_what_is_no_number_is_refused_by_name(wrong: object) -> None:
    model = GPLaplace((X, Y), problems.kernel(), BernoulliLogit())
    for name, build in {
        "flip": lambda: BernoulliLogit(flip=wrong),
        "dispersion": lambda: gpx.likelihoods.NegativeBinomialLog(wrong),
        "df": lambda: gpx.likelihoods.StudentT(df=wrong),
        "tolerance": lambda: gpx.VecchiaOptions(tolerance=wrong),
        "seconds": lambda: gpx.fit(model, seconds=wrong),
        "`tolerance": lambda: gpx.fit(model, tolerance=wrong),
    }.items():
        with pytest.raises(ValueError, match=f"{name}`? must be"):
            build()
    with pytest.raises(ValueError, match="dispersion must be finite"):
        gpx.likelihoods.NegativeBinomialLog(np.inf)
