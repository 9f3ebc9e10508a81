"""What a fit says of its end: that it still rose, that its seconds were over, which parameters are odd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit, RobustMax, StudentT
from gpflow_ext.models import VGPKMM, SparseEP, SVGPRobustMax
from gpflow_ext.training.ends import bad_end
from gpflow_ext.training.findings import findings
from gpflow_ext.training.log_space import TAIL
from gpflow_ext.training.loop import FitResult, Status
from gpflow_ext.training.optimizers import LogSpaceAdam, built
from gpflow_ext.training.rising import LastSteps

Z = problems.inputs(5, seed=5)


def ended(objective: np.ndarray, status: Status = Status.MAX_STEPS) -> str | None:
    """What is said of a run of a kernel whose variance grows with the steps."""
    kernel = problems.kernel()
    last = LastSteps(kernel, len(objective))
    for step, value in enumerate(objective, start=1):
        kernel.variance.assign(float(step))
        last(step, value)
    return last.slope(FitResult(objective, np.arange(float(len(objective))), 0, status))


class Mapped(gpflow.kernels.SquaredExponential):
    """A user's kernel of linear features, whose weights are a plain variable."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = tf.Variable(np.eye(2))

    def K(self, X: tf.Tensor, X2: tf.Tensor | None = None) -> tf.Tensor:
        return super().K(X @ self.weights, None if X2 is None else X2 @ self.weights)


class Tempered(BernoulliLogit):
    """A user's likelihood with a plain variable."""

    def __init__(self) -> None:
        super().__init__()
        self.power = tf.Variable(np.float64(1.0))

    def _variational_expectations(self, X, Fmu, Fvar, Y):
        return self.power * super()._variational_expectations(X, Fmu, Fvar, Y) - self.power**2


@pytest.mark.parametrize("starts", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_plain_variables_of_a_users_classes_are_trained(starts: int) -> None:
    model = VGPKMM(problems.binary(30), Mapped(), Tempered())
    before = float(model.elbo())
    result = gpx.fit(model, steps=3, starts=starts, progress=False)
    assert result.objective[-1] > before
    assert not np.array_equal(model.kernel.weights, np.eye(2))


def test_plain_variables_are_not_sampled() -> None:
    with pytest.raises(ValueError, match=r"no prior: kernel\.weights"):
        gpx.sample(gpflow.models.GPMC(problems.binary(30), Mapped(), BernoulliLogit()), 2)


def test_a_rise_is_told_from_noise() -> None:
    rising, noise = np.linspace(-200.0, -100.0, 200), np.random.default_rng(0).normal(size=200)
    said = ended(rising)
    assert said is not None
    assert "by 10.1 in the last 20 (variance 180 to 200)" in said
    assert ended(rising + noise) is not None
    assert ended(-100.0 + noise) is None
    assert ended(-rising) is None
    assert ended(rising, Status.CONVERGED) is None
    assert ended(-100.0 - 10.0 * np.exp(-np.arange(200) / 10.0)) is None


def test_a_rise_is_said_of_seconds_that_are_over_too() -> None:
    """At which step they will be is not known before."""
    kernel = problems.kernel()
    last = LastSteps(kernel, 1000, timed=True)
    for step in range(1, 38):
        kernel.variance.assign(float(step))
        last(step, float(step))
    rising, flat = (
        FitResult(values, np.arange(37.0), 0, Status.OUT_OF_TIME)
        for values in (np.arange(37.0), np.zeros(37))
    )
    assert last.slope(flat) is None
    assert "The seconds cut step 37 short (variance 33 to 37)" in str(last.slope(flat, cut=True))
    said = str(last.slope(rising))
    assert "when the seconds were over, by 4 in the last 4 of 37 steps (variance 33 to 37)" in said


def test_parameters_with_zeros_in_single_precision_are_named_too() -> None:
    """Their change was 0/0, a warning of NumPy, and they were left out."""
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        model = tf.Module()
        model.factor = gpflow.Parameter(np.eye(2, dtype=np.float32), transform=gpflow.utilities.triangular())
        last = LastSteps(model, 200)
        for step in range(1, 201):
            model.factor.assign(float(step) * np.eye(2, dtype=np.float32))
            last(step, float(step))
    said = last.slope(FitResult(np.arange(200.0), np.arange(200.0), 0, Status.MAX_STEPS))
    assert said is not None
    assert "(factor" in said


def test_a_default_that_ends_on_a_slope_warns_and_a_given_number_of_steps_does_not() -> None:
    def model() -> SparseEP:
        data = problems.binary(40, variance=100.0)
        return SparseEP(data, problems.kernel(0.1, 0.1), BernoulliProbit(), inducing_variable=Z)

    slow = tf_keras.optimizers.Adam(1e-3)
    with pytest.warns(gpx.FitWarning, match=r"still rising.*`fit` the model again"):
        result = gpx.fit(model(), optimizer=slow, progress=False)
    assert "still rising" in str(result)
    given = gpx.fit(model(), optimizer=tf_keras.optimizers.Adam(1e-3), steps=60, progress=False)
    assert "still rising" in given.notes[0]


def test_the_default_of_sparse_ep_reaches_a_large_variance() -> None:
    """Where the optimum is far: first-order steps on the softplus end 10 nats below."""
    X, Y = problems.binary(40, variance=400.0)
    model = SparseEP((X, Y), problems.kernel(1.0, 1.0), BernoulliProbit(), inducing_variable=Z)
    gpflow.set_trainable(model.inducing_variable, False)
    result = gpx.fit(model, progress=False)
    assert result.status is gpx.Status.CONVERGED
    others = []
    for variance, length in ((30.0, 0.5), (300.0, 2.0)):
        other = SparseEP((X, Y), problems.kernel(variance, length), BernoulliProbit(), inducing_variable=Z)
        gpflow.set_trainable(other.inducing_variable, False)
        others.append(gpx.fit(other, progress=False).objective[-1])
    assert result.objective[-1] > max(others) - 1e-3


def test_classes_with_several_fixed_points_are_climbed_from_the_iterate() -> None:
    """A trial far away must not leave the sites at another fixed point, where no step is a gain."""
    from sklearn.datasets import load_wine

    X, labels = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    rows = np.random.default_rng(1).permutation(len(X))[:90]
    data = X[rows], labels[rows, None].astype(float)
    ends = []
    for scale in (0.5, 1.0, 2.0):
        kernel = gpflow.kernels.SquaredExponential(scale, scale * 13**0.5)
        model = SparseEP(data, kernel, RobustMax(3), inducing_variable=data[0][:20])
        gpflow.set_trainable(model.inducing_variable, False)
        ends.append(gpx.fit(model, progress=False).objective[-1])
    np.testing.assert_allclose(ends, max(ends), rtol=0, atol=0.1)


def test_seconds_end_a_run() -> None:
    model = VGPKMM(problems.binary(30), problems.kernel(), BernoulliLogit())
    result = gpx.fit(model, recipe="adam", seconds=1e-9, progress=False)
    assert result.status is gpx.Status.OUT_OF_TIME
    assert len(result.objective) == 1
    assert "The seconds were over after step 1 (" in str(result)
    with pytest.raises(ValueError, match="`seconds` must be positive; got 0"):
        gpx.fit(model, seconds=0.0)


@pytest.mark.parametrize("recipe", ["kmm", "lbfgs"])
def test_a_step_of_iterations_ends_early_and_a_resumed_run_goes_on_from_there(
    recipe: str, tmp_path: Path
) -> None:
    def fitted(**options: Any) -> tuple[FitResult, list[np.ndarray]]:
        model = VGPKMM(problems.binary(60), problems.kernel(), BernoulliLogit())
        result = gpx.fit(model, recipe=recipe, starts=1, progress=False, **options)
        return result, [parameter.numpy() for parameter in model.trainable_parameters]

    whole, end = fitted()
    cut, _ = fitted(seconds=1e-9, checkpoint_dir=tmp_path)
    resumed, there = fitted(checkpoint_dir=tmp_path)
    assert cut.status is gpx.Status.OUT_OF_TIME
    assert cut.objective[0] < whole.objective[0] - 1e-4
    assert "The seconds cut step 1 short (kernel." in cut.notes[0]
    assert whole.notes == ()
    assert resumed.status is gpx.Status.CONVERGED
    for value, expected in zip(there, end, strict=True):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("in_graph", [False, True])
def test_no_further_start_is_tried_when_the_seconds_are_over(in_graph: bool) -> None:
    model = gpflow.models.GPR(problems.binary(30), problems.kernel())
    result = gpx.fit(model, starts=3, in_graph=in_graph, seconds=1e-9, progress=False)
    assert result.status is gpx.Status.OUT_OF_TIME
    assert [start.name for start in result.starts] == ["the model's own"]


def test_steps_in_log_space_are_those_of_the_optimiser_on_logarithms() -> None:
    values = np.array([1e-20, 1e-3, 2.0, 5e3])
    parameter = gpflow.Parameter(values, transform=gpflow.utilities.positive())
    plain = gpflow.Parameter(values)
    optimizer = LogSpaceAdam(0.01, parameters=[parameter])
    optimizer.build([parameter.unconstrained_variable, plain.unconstrained_variable])
    logs = tf.Variable(np.log(values))
    reference = tf_keras.optimizers.Adam(0.01)
    for _ in range(3):
        with tf.GradientTape(persistent=True) as tape:
            losses = tf.reduce_sum(tf.math.log(parameter) ** 2), tf.reduce_sum(logs**2)
        by_raw = tape.gradient(losses[0], parameter.unconstrained_variable)
        optimizer.apply_gradients(
            [
                (by_raw, parameter.unconstrained_variable),
                (tf.zeros(4, tf.float64), plain.unconstrained_variable),
            ]
        )
        reference.apply_gradients([(tape.gradient(losses[1], logs), logs)])
    assert np.log(values[0]) < -TAIL
    np.testing.assert_allclose(np.log(parameter.numpy()), logs, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(plain.numpy(), values)


def test_minibatches_move_a_large_variance_by_its_logarithm() -> None:
    X, Y = problems.classes(30)
    model = SVGPRobustMax(problems.kernel(1000.0, 1.0), 3, Z, num_data=30)
    gpx.fit(model, (X, Y), minibatch_size=10, steps=60, progress=False)
    assert (
        abs(model.kernel.variance.numpy() - 1000.0) > 60 * 0.01
    )  # more than as many steps of the softplus's variable
    assert isinstance(built(None, model.trainable_variables), LogSpaceAdam)


def test_findings_name_what_is_odd() -> None:
    X, Y = problems.binary(30)
    X = np.c_[X, np.random.default_rng(3).normal(size=30)]
    last = X.shape[1] - 1
    ard = gpflow.kernels.SquaredExponential(
        1e6, np.r_[np.ones(last - 1), 1e4], active_dims=range(1, last + 1)
    )
    model = VGPKMM((X, Y), ard + gpflow.kernels.White(1e-9), BernoulliLogit())
    said = findings(model)
    assert said[0] == f"kernel.kernels[0].lengthscales: the inputs {last} (counted from 0) are switched off."
    assert said[1].startswith("kernel.kernels[0].variance: 1e+06 has run away")
    assert said[2].startswith("kernel.kernels[1].variance: 1e-09, this part of the kernel is switched off")
    assert len(said) == 3
    gpflow.set_trainable(model, False)
    assert findings(model) == ()
    data = problems.continuous(20)
    regression = gpflow.models.GPR(data, problems.kernel(1.0, 1e3), noise_variance=1.01e-6)
    assert [part.split(":")[0] for part in findings(regression)] == [
        "kernel.lengthscales",
        "likelihood.variance",
    ]
    regression.kernel.lengthscales.assign(1e-5)
    assert "white noise" in findings(regression)[0]
    assert findings(gpflow.models.GPR(data, problems.kernel())) == ()
    robust = SVGPRobustMax(problems.kernel(), 3, Z, num_data=30, epsilon=1e-9, learn_epsilon=True)
    assert "pinned at 1e-09" in findings(robust)[0]
    noisy = VGPKMM((X, Y), problems.kernel(), BernoulliLogit(flip=1e-9, learn_flip=True))
    assert findings(noisy) == ("likelihood.flip: pinned at 1e-09, no label is taken for a mistake.",)


def test_classes_that_are_separable_are_said() -> None:
    """A logit of 100 is as certain as any."""
    for likelihood, said in ((BernoulliLogit(), True), (RobustMax(2, epsilon=1e-3), False)):
        model = VGPKMM(problems.binary(20), problems.kernel(2e4), likelihood)
        assert findings(model) == (
            ("kernel.variance: 2e+04 has run away: the classes are separable; a prior would hold it.",)
            if said
            else ()
        )
        model.kernel.variance.assign(5e3)
        assert findings(model) == ()
    sparse = SparseEP(problems.binary(20), problems.kernel(2e4), BernoulliLogit(), inducing_variable=Z.copy())
    assert "separable, or seem so to the points, which move; a prior" in findings(sparse)[0]
    gpflow.set_trainable(sparse.inducing_variable, False)
    assert "separable; a prior" in findings(sparse)[0]


def test_a_share_of_wrong_labels_that_its_prior_holds_back_is_said() -> None:
    """Labels that are mere noise: at 1e-3 the prior counts as a thousand labels, at 0.3 as three."""
    X, _ = problems.classes(30)
    for first, share, said in ((1e-3, 0.08, True), (1e-3, 0.009, False), (0.3, 0.6, False)):
        model = SVGPRobustMax(
            problems.kernel(), 4, X[:5].copy(), num_data=30, epsilon=first, learn_epsilon=True
        )
        model.likelihood.epsilon.assign(share)
        assert (len(findings(model)) == 1) == said
        assert not said or findings(model)[0].startswith("likelihood.epsilon: a share of 0.08 of the labels")


def test_what_was_odd_at_the_start_is_said_too() -> None:
    X = np.linspace(0.0, 1.0, 20)[:, None]
    model = gpflow.models.GPR((X, np.sin(6.0 * X)), gpflow.kernels.SquaredExponential(1e7))
    result = gpx.fit(model, progress=False)
    assert result.notes[0].startswith("At the start, kernel.variance: 1e+07 has run away")
    assert gpx.fit(model, progress=False).notes == result.notes[1:]


@pytest.mark.parametrize("unit", [1.0, 1e3])
def test_noise_that_vanishes_is_said_and_named_as_the_cause_of_a_failure(unit: float) -> None:
    """The scale of GPflow's Student's t may fall to 1e-6, where rounding makes the bound fall."""
    X = np.linspace(0.0, 1.0, 20)[:, None]
    kernel = gpflow.kernels.SquaredExponential(unit**2)
    model = VGPKMM((X, unit * np.sin(6.0 * X)), kernel, StudentT(1e-2 * unit))
    assert findings(model) == ()
    model.likelihood.scale.assign(5e-5 * unit)
    (said,) = findings(model)
    assert said.startswith(f"likelihood.scale: {5e-5 * unit:.3g} is next to nothing")
    failed = FitResult(np.zeros(1), np.zeros(1), 0, Status.DIVERGED, notes=(said,))
    assert said in bad_end(failed, model)
    assert "Standardise" not in bad_end(failed, model)


@pytest.mark.parametrize("unit", [1e-5, 1.0, 1e4])
def test_the_variance_of_a_regression_is_odd_beside_its_targets(unit: float) -> None:
    X = np.linspace(0.0, 1.0, 20)[:, None]
    targets = unit * np.sin(6.0 * X)
    model = gpflow.models.GPR((X, targets), gpflow.kernels.SquaredExponential(unit**2))
    assert findings(model) == ()
    model.kernel.variance.assign(1e6 * unit**2)
    assert "has run away" in findings(model)[0]
    model.kernel.variance.assign(1e-8 * unit**2)
    assert "switched off" in findings(model)[0]
    far = gpflow.models.GPR((X, targets + 1e4 * unit), gpflow.kernels.SquaredExponential(unit**2))
    assert findings(far) == ()
