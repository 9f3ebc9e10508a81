"""Metrics against values worked out by hand."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.inducing_variables import InducingPoints
from matplotlib.figure import Figure
from scipy.stats import norm, poisson

import gpflow_ext as gpx
from gpflow_ext import export, metrics, plotting
from gpflow_ext.likelihoods import BernoulliLogit, PoissonLog, Standardised, Weighted
from gpflow_ext.likelihoods.classes import class_probabilities
from gpflow_ext.models import VGPKMM, GPRNTensor

P = np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5], [0.25, 0.75]])
Y = np.array([[0.0], [0.0], [0.0], [1.0]])


def test_classification_by_hand():
    assert metrics.error_rate(P, Y) == 0.25  # the tie goes to class 0
    assert metrics.error_rate(P, Y[:, 0].astype(int)) == 0.25
    expected = -np.log([0.9, 0.4, 0.5, 0.75]).mean()
    np.testing.assert_allclose(metrics.nlpd_from_probabilities(P, Y), expected, rtol=1e-15)
    assert metrics.nlpd_from_probabilities([[1.0, 0.0]], [1]) == np.inf


def test_calibration_by_hand():
    # Two bins: (0, 0.5] holds the tie (right, 0.5); (0.5, 1] holds 0.9 right, 0.6 wrong, 0.75 right.
    expected = 0.25 * abs(1.0 - 0.5) + 0.75 * abs(2 / 3 - 0.75)
    np.testing.assert_allclose(metrics.expected_calibration_error(P, Y, bins=2), expected, rtol=1e-14)
    # One bin: over- and underconfidence cancel, so only the means differ.
    np.testing.assert_allclose(metrics.expected_calibration_error(P, Y, bins=1), 0.75 - 0.6875, rtol=1e-14)
    assert metrics.expected_calibration_error(np.eye(3), [0, 1, 2]) == 0.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_confidence_on_an_edge_counts_in_the_bin_below(dtype: type) -> None:
    """Each k/100 beside the middle of its bin: the gaps, of opposite signs, would not cancel across bins."""
    edges = np.arange(51, 101) / 100.0
    for edge in edges:
        confidence = np.array([edge, edge - 0.005], dtype)
        seen = metrics.expected_calibration_error(np.c_[confidence, 1.0 - confidence], [0, 1], bins=100)
        np.testing.assert_allclose(seen, abs(1.0 - edge - (edge - 0.005)) / 2.0, atol=1e-7)


def test_weights_are_numbers_of_copies() -> None:
    rng = np.random.default_rng(2)
    p, y, counts = rng.dirichlet(np.ones(3), 20), rng.integers(3, size=20), rng.integers(3, size=20)
    copies = np.repeat(np.arange(20), counts)
    for metric in (metrics.error_rate, metrics.expected_calibration_error):
        np.testing.assert_allclose(metric(p, y, weights=list(counts)), metric(p[copies], y[copies]))
    for metric in (metrics.rmse, metrics.nmae):
        np.testing.assert_allclose(metric(p, 2.0 * p[::-1], counts), metric(p[copies], 2.0 * p[::-1][copies]))
    density = np.where(counts > 0, np.log(p[:, 0]), -np.inf)  # of a row that does not count
    seen = metrics.negative_log_predictive_density(density, counts)
    np.testing.assert_allclose(seen, metrics.negative_log_predictive_density(density[copies]))


@pytest.mark.parametrize(
    "weights", [[0.0] * 4, [1.0] * 3, [[1.0]] * 4, [2.0, -1.0, 1.0, 1.0], [1, 1, 1, np.nan]]
)
def test_weights_that_count_no_copies_are_refused(weights: list[float]) -> None:
    for metric in (metrics.error_rate, metrics.expected_calibration_error):
        with pytest.raises(ValueError, match=r"weights must be \[4\]"):
            metric(P, Y, weights=weights)
    for metric in (metrics.rmse, metrics.nmae):
        with pytest.raises(ValueError, match=r"weights must be \[4\]"):
            metric(P, P + 1.0, weights)


def test_calibration_of_calibrated_predictions_vanishes():
    # Labels drawn from the probabilities: each bin's gap has deviation <= 0.5 / sqrt(N_b), so the error is
    # about 0.003; 0.02 is beyond 15 deviations of it.
    rng = np.random.default_rng(0)
    p = rng.uniform(size=20000)
    probabilities = np.stack([1 - p, p], axis=1)
    y = rng.uniform(size=p.size) < p
    assert metrics.expected_calibration_error(probabilities, y.astype(int)) < 0.02
    assert metrics.expected_calibration_error(probabilities, 1 - y.astype(int)) > 0.4


def test_regression_by_hand():
    prediction, y = np.array([[1.0, -2.0], [3.0, 0.0]]), np.array([[2.0, -2.0], [1.0, 5.0]])
    np.testing.assert_allclose(metrics.rmse(prediction, y), np.sqrt((1 + 0 + 4 + 25) / 4), rtol=1e-15)
    np.testing.assert_allclose(metrics.nmae(prediction, y), (1 + 0 + 2 + 5) / (2 + 2 + 1 + 5), rtol=1e-15)
    assert metrics.negative_log_predictive_density([-1.0, -2.0]) == 1.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.error_rate(np.zeros((0, 2)), []), r"shape \(0, 2\)"),
        (lambda: metrics.error_rate(P[:, 0], Y), r"probabilities has shape \(4,\)"),
        (lambda: metrics.error_rate(P, np.eye(2)[[0, 0, 0, 1]]), r"y has shape \(4, 2\).*not one-hot"),
        (lambda: metrics.error_rate(P, [0, 1, 2, 0]), r"y is 2 at row 2.*0 to 1"),
        (lambda: metrics.error_rate(P, [0, 1, -1, 0]), r"y is -1 at row 2"),
        (lambda: metrics.error_rate(P, [0, 1, 0.5, 0]), r"y is 0.5 at row 2"),
        (lambda: metrics.error_rate(P, [0, 1, np.nan, 0]), r"y is nan at row 2"),
        (lambda: metrics.error_rate(P * 1.2, Y), r"outside \[0, 1\]"),
        (lambda: metrics.error_rate([[0.9, -0.1]], [0]), r"outside \[0, 1\]"),
        (lambda: metrics.error_rate(P * np.nan, Y), r"outside \[0, 1\] or NaN"),
        (lambda: metrics.expected_calibration_error(P, Y, bins=0), r"bins=0"),
        (lambda: metrics.rmse(np.zeros(3), np.zeros((3, 1))), r"shape \(3,\) and y \(3, 1\)"),
        (lambda: metrics.rmse([], []), r"not empty"),
        (lambda: metrics.rmse([1.0], [np.nan]), r"y holds values that are not finite"),
        (lambda: metrics.nmae([1.0], [0.0]), r"use rmse"),
        (lambda: metrics.negative_log_predictive_density([[0.0]]), r"shape \(1, 1\)"),
        (lambda: metrics.negative_log_predictive_density([0.0, np.nan]), r"NaN at row 1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (11, 1))
    return X, np.sin(X) + 0.1 * rng.normal(size=X.shape)


def test_evaluate_regression(data):
    X, y = data
    model = gpflow.models.GPR((X[:6], y[:6]), gpflow.kernels.SquaredExponential(), noise_variance=0.05)
    mean, variance = (part.numpy() for part in model.predict_f(X))
    seen = metrics.evaluate(model, (X, y), batch_size=4)
    # Batches change the order of operations of a well-conditioned 6 x 6 solve: rounding only.
    expected = {
        "nlpd": -norm.logpdf(y, mean, np.sqrt(variance + 0.05)).mean(),
        "rmse": np.sqrt(np.mean((mean - y) ** 2)),
        "nmae": np.abs(mean - y).sum() / np.abs(y).sum(),
    }
    assert seen.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(seen[name], value, rtol=1e-10, err_msg=name)


def test_evaluate_counts(data):
    X, _ = data
    model = gpflow.models.SVGP(gpflow.kernels.Constant(), gpflow.likelihoods.Poisson(binsize=2.0), X[:1])
    model.q_mu.assign([[0.3]])
    model.q_sqrt.assign([[[1e-9]]])  # q(f) is the point 0.3, up to jitter
    y = np.arange(11.0)[:, None]
    seen = metrics.evaluate(model, (X, y))
    rate = 2.0 * np.exp(0.3)
    # The jitter of 1e-6 gives f a variance and a shift of that size, the densities an error near 1e-5.
    np.testing.assert_allclose(seen["nlpd"], -poisson.logpmf(y, rate).mean(), rtol=1e-4)
    np.testing.assert_allclose(seen["rmse"], np.sqrt(np.mean((y - rate) ** 2)), rtol=1e-4)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_evaluate_classification(data, num_classes):
    X, _ = data
    rng = np.random.default_rng(2)
    binary = num_classes == 2
    likelihood = gpflow.likelihoods.Bernoulli() if binary else gpflow.likelihoods.MultiClass(3)
    num_latent = 1 if binary else 3
    model = gpflow.models.SVGP(
        gpflow.kernels.SquaredExponential(), likelihood, X[:5], num_latent_gps=num_latent
    )
    model.q_mu.assign(rng.normal(size=(5, num_latent)))
    y = rng.integers(0, num_classes, (11, 1)).astype(float)
    p = model.predict_y(X)[0].numpy()
    p = np.concatenate([1 - p, p], axis=1) if binary else p
    seen = metrics.evaluate(model, (X, y), batch_size=5)
    assert seen.keys() == {"nlpd", "error", "ece"}
    assert seen["error"] == np.mean(p.argmax(axis=1) != y[:, 0])
    np.testing.assert_allclose(seen["ece"], metrics.expected_calibration_error(p, y), rtol=1e-10)
    np.testing.assert_allclose(seen["nlpd"], metrics.nlpd_from_probabilities(p, y), rtol=1e-10)


@pytest.mark.parametrize("likelihood", [BernoulliLogit(), gpflow.likelihoods.Bernoulli()])
def test_several_binary_outputs_are_scored_and_served_by_their_probabilities(data, likelihood, tmp_path):
    X, _ = data
    kernel = gpflow.kernels.SharedIndependent(gpflow.kernels.SquaredExponential(), 2)
    points = gpflow.inducing_variables.SharedIndependentInducingVariables(InducingPoints(X[:5]))
    model = gpflow.models.SVGP(kernel, likelihood, points, num_latent_gps=2)
    rng = np.random.default_rng(2)
    model.q_mu.assign(rng.normal(size=(5, 2)))
    y = rng.integers(0, 2, (11, 2)).astype(float)
    p = model.predict_y(X)[0].numpy()
    seen = metrics.evaluate(model, (X, y), batch_size=5)
    assert seen.keys() == {"nlpd", "rmse", "nmae"}
    np.testing.assert_allclose(seen["rmse"], np.sqrt(np.mean((p - y) ** 2)), rtol=1e-10)
    density = np.log(np.where(y == 1.0, p, 1.0 - p)).sum(axis=1)
    np.testing.assert_allclose(seen["nlpd"], -density.mean(), rtol=1e-10)
    served = gpx.load_exported(export(model, tmp_path / "model")).predict(X)
    assert not served.keys() & {"class", "probabilities"}
    np.testing.assert_allclose(served["mean"], p, rtol=1e-9)


def test_a_binary_output_whose_number_is_open_has_classes():
    open_shape = tf.TensorSpec([None, None], tf.float64)

    @tf.function(input_signature=[open_shape, open_shape], autograph=False)
    def probabilities(mean, var):
        return class_probabilities(gpflow.likelihoods.Bernoulli(), mean, mean, var)

    zeros = tf.zeros([3, 1], tf.float64)
    np.testing.assert_allclose(probabilities(zeros, zeros + 1.0), np.full((3, 2), 0.5), rtol=1e-12)


def test_missing_targets_of_a_network_do_not_count(data):
    X, y = data
    kernel = gpflow.kernels.SquaredExponential()
    model = GPRNTensor((X, np.c_[y, -y]), kernel, gpflow.kernels.SquaredExponential(), 1)
    targets = np.c_[y, -y]
    targets[::2, 0], targets[5] = np.nan, np.nan
    seen = metrics.evaluate(model, (X, targets))
    mean, variance = (part.numpy() for part in model.predict_y(X))
    there = ~np.isnan(targets)
    error = (mean - targets)[there]
    density = norm.logpdf(error, 0.0, np.sqrt(variance[there])).sum()
    np.testing.assert_allclose(seen["nlpd"], -density / 10, rtol=1e-9)  # one row has no target
    np.testing.assert_allclose(seen["rmse"], np.sqrt(np.mean(error**2)), rtol=1e-9)
    np.testing.assert_allclose(seen["nmae"], np.abs(error).sum() / np.abs(targets[there]).sum(), rtol=1e-9)
    alone = gpflow.models.GPR((X, y), kernel)
    with pytest.raises(ValueError, match="NaN at row 5"):
        metrics.evaluate(alone, (X, targets[:, 1:]))


def test_evaluate_predicts_each_batch_once(data):
    X, y = data
    model = gpflow.models.GPR((X, y), gpflow.kernels.SquaredExponential())
    sizes = []
    predict_f = model.predict_f
    model.predict_f = lambda Xnew: sizes.append(len(Xnew)) or predict_f(Xnew)
    metrics.evaluate(model, (X, y), batch_size=4)
    assert sizes == [4, 4, 3]


def test_evaluate_refuses_bad_data(data):
    X, y = data
    model = gpflow.models.SVGP(gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli(), X[:3])
    for bad, message in (
        ((X[:0], y[:0]), "data is empty"),
        ((X, y[:, 0]), r"Y of shape \(11,\)"),
        ((X, y[:-1]), r"Y of shape \(10, 1\)"),
        ((X, np.sign(y)), r"0 and 1; found the values -1, 1. Encode"),
        ((X[:, [0, 0]], (y > 0).astype(float)), "X has 2 columns, and the inputs of the model have 1"),
        (X, "a pair"),
    ):
        with pytest.raises(ValueError, match=message):
            metrics.evaluate(model, bad)
    for size in (0, "10", 2.5):
        with pytest.raises(ValueError, match=f"batch_size.*{size!r}"):
            metrics.evaluate(model, (X, (y > 0).astype(float)), batch_size=size)
    with pytest.raises(ValueError, match="with a likelihood; got a NoneType"):
        metrics.evaluate(None, (X, y))


@pytest.mark.parametrize(
    ("likelihood", "targets", "message"),
    [
        (PoissonLog(), [0.5, 2.0], "counts"),
        (gpflow.likelihoods.Poisson(), [-1.0, 2.0], "counts"),
        (gpflow.likelihoods.Exponential(), [-1.0, 2.0], "negative"),
        (Weighted(PoissonLog()), [0.5, 2.0], "counts"),
        (gpflow.likelihoods.Softmax(3), [0.0, 2.0], "use the same likelihood as .*MultinomialLogit"),
    ],
)
def test_targets_outside_the_support_are_not_scored(likelihood, targets, message) -> None:
    latent = likelihood.latent_dim or 1
    Z = np.zeros((1, 1))
    model = gpflow.models.SVGP(gpflow.kernels.SquaredExponential(), likelihood, Z, num_latent_gps=latent)
    with pytest.raises(ValueError, match=message):
        metrics.evaluate(model, (np.zeros((2, 1)), np.array(targets)[:, None]))


def test_targets_of_rows_that_do_not_count_may_be_anything() -> None:
    model = gpflow.models.SVGP(gpflow.kernels.SquaredExponential(), Weighted(PoissonLog()), np.zeros((1, 1)))
    Y = np.array([[2.0, 1.0], [0.5, 0.0]])
    seen = metrics.evaluate(model, (np.zeros((2, 1)), Y))
    assert seen == metrics.evaluate(model, (np.zeros((1, 1)), Y[:1]))


@pytest.mark.parametrize("label", [-7.0, 0.5, np.nan])
def test_labels_of_rows_that_do_not_count_may_be_anything(label: float) -> None:
    likelihood = Weighted(BernoulliLogit())
    model = gpflow.models.SVGP(gpflow.kernels.SquaredExponential(), likelihood, np.zeros((1, 1)))
    X, Y = np.zeros((3, 1)), np.array([[1.0, 2.0], [label, 0.0], [0.0, 1.0]])
    for score in (metrics.evaluate, metrics.intervals):
        assert score(model, (X, Y)) == score(model, (X[::2], Y[::2]))
    with pytest.raises(ValueError, match="classes"):
        metrics.evaluate(model, (X[:2], np.array([[1.0, 2.0], [label, 1.0]])))


def test_evaluate_multiplies_rates_by_their_exposures():
    from gpflow_ext.likelihoods import PoissonLog
    from gpflow_ext.models import VGPKMM

    X = np.linspace(0.0, 1.0, 8)[:, None]
    Y = np.stack([np.arange(8.0), np.arange(8.0) + 0.5], axis=1)
    model = VGPKMM((X, Y), gpflow.kernels.SquaredExponential(), PoissonLog(exposure=True))
    rate = model.predict_y(X)[0].numpy()[:, 0]  # of the prior
    scores = metrics.evaluate(model, (X, Y))
    np.testing.assert_allclose(scores["rmse"], np.sqrt(np.mean((rate * Y[:, 1] - Y[:, 0]) ** 2)), rtol=1e-12)
    np.testing.assert_allclose(scores["nlpd"], -np.mean(model.predict_log_density((X, Y))), rtol=1e-12)


def test_intervals_hold_the_metrics_and_shrink_with_the_rows() -> None:
    import problems

    from gpflow_ext import metrics

    model = gpflow.models.GPR(problems.continuous(20), gpflow.kernels.SquaredExponential())
    widths = []
    for rows in (40, 640):
        data = problems.continuous(rows, seed=7)
        scores, found = metrics.evaluate(model, data), metrics.intervals(model, data, resamples=200)
        assert found.keys() == scores.keys()
        assert all(low < scores[name] < high for name, (low, high) in found.items())
        widths.append(found["rmse"][1] - found["rmse"][0])
    assert widths[1] < 0.5 * widths[0]


def test_intervals_of_few_counts_and_of_infinite_scores_are_numbers() -> None:
    """A third of the resamples has targets 0 alone, and the last row has density 0, to rounding."""
    X, Y = np.arange(4.0)[:, None], np.array([[0.0], [0.0], [0.0], [1e154]])
    model = gpflow.models.GPR((X, np.zeros_like(Y)), gpflow.kernels.SquaredExponential(), noise_variance=0.01)
    for seed in range(4):  # the first resample holds the last row, or not
        found = metrics.intervals(model, (X, Y), resamples=100, seed=seed)
        assert found.keys() == {"nlpd", "rmse", "nmae"}
        assert found["nmae"] == (1.0, 1.0)
        assert -np.inf < found["nlpd"][0] < found["nlpd"][1] == np.inf


class _Waiting(gpflow.likelihoods.ScalarLikelihood):
    """Waiting times with mean exp(f): a density is all that training needs."""

    def _scalar_log_prob(self, X, F, Y):
        return -F - Y * tf.exp(-F)


def test_a_likelihood_without_moments_is_told_which_functions_it_needs(tmp_path):
    X = np.linspace(0.0, 1.0, 8)[:, None]
    model = VGPKMM((X, np.exp(X)), gpflow.kernels.Matern52(), _Waiting())
    needed = r"_Waiting does not say .* `_conditional_mean"
    with pytest.raises(NotImplementedError, match=needed):
        metrics.evaluate(model, model.data)
    with pytest.raises(NotImplementedError, match=needed):
        export(model, tmp_path / "waiting", example=X)


@pytest.mark.parametrize("degrees", [1.0, 1.5, 2.0])
def test_students_t_of_few_degrees_has_a_centre_and_no_variance(degrees):
    X = np.linspace(0.0, 1.0, 5)[:, None]
    likelihood = Standardised(gpflow.likelihoods.StudentT(0.3, degrees), 2.0, 3.0)
    model = VGPKMM((X, X), gpflow.kernels.Matern52(), likelihood)
    mean, variance = model.predict_y(X)
    np.testing.assert_array_equal(mean, 2.0 + 3.0 * model.predict_f(X)[0])
    assert np.all(variance.numpy() == np.inf)
    residual = np.asarray(mean) - X
    assert metrics.evaluate(model, (X, X))["rmse"] == pytest.approx(np.sqrt(np.mean(residual**2)))


@pytest.mark.parametrize("wrong", ["10", None, 2.5, 0, True])
def test_numbers_that_are_not_whole_are_refused_by_name(data, wrong) -> None:
    X, y = data
    model = gpflow.models.GPR((X, y), gpflow.kernels.SquaredExponential())
    with pytest.raises(ValueError, match="bins"):
        metrics.expected_calibration_error(P, Y, bins=wrong)
    with pytest.raises(ValueError, match="resamples"):
        metrics.intervals(model, (X, y), resamples=wrong)
    with pytest.raises(ValueError, match="level"):
        metrics.intervals(model, (X, y), level="0.9" if wrong == "10" else 1)


def test_plots_take_lists_and_refuse_other_shapes() -> None:
    ax = Figure().subplots()
    plotting.convergence(ax, {"one": [1.0, 2.0], "other": np.array([0.0, 3.0])})
    plotting.calibration(ax, [0.15, 0.05, 0.95], [1, 0, 1])
    np.testing.assert_allclose(ax.collections[-1].get_offsets(), [[0.05, 0.0], [0.15, 1.0], [0.95, 1.0]])
    for probabilities, labels, message in (
        (np.full((3, 2), 0.5), np.zeros((3, 1)), r"their shapes are \(3, 2\) and \(3, 1\)"),
        ([0.5, 1.5], [0, 1], "from 0 to 1"),
        ([0.5, 0.5], [1, 2], "labels 0 or 1"),
    ):
        with pytest.raises(ValueError, match=message):
            plotting.calibration(ax, probabilities, labels)
