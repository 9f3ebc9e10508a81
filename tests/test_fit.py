"""`gpx.fit`: exact resume, honest statuses, clear refusals."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import resuming
import tensorflow as tf
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.kmm.method import KMM
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.models import VGPKMM
from gpflow_ext.training.ends import bad_end
from gpflow_ext.training.loop import Trail, iterate
from gpflow_ext.training.starts import Tried


def _kmm(learn: bool, **changes) -> VGPKMM:
    model = VGPKMM(problems.binary(), problems.kernel(**changes), BernoulliLogit())
    gpflow.set_trainable(model.kernel, learn)
    return model


def _svgp() -> gpflow.models.SVGP:
    return gpflow.models.SVGP(problems.kernel(), BernoulliLogit(), problems.inputs(6, seed=5), num_data=30)


def _values(model: tf.Module) -> list[np.ndarray]:
    return [variable.numpy() for variable in model.variables]


@pytest.mark.parametrize(
    ("method", "learn"),
    [
        ("parallel", True),
        pytest.param("algorithm1", False, marks=pytest.mark.slow),
        pytest.param("parallel", False, marks=pytest.mark.slow),
        pytest.param("algorithm1", True, marks=pytest.mark.slow),
    ],
)
def test_kmm_resumes_exactly(tmp_path, method: str, learn: bool) -> None:
    steps, own = (4, {"hyper_updates": 2}) if learn else (8, {})
    options = {"tolerance": 0.0, "method": method} | own
    resuming.check(lambda: _kmm(learn), tmp_path, steps=steps, cut=steps // 2, options=lambda: options)


@pytest.mark.slow
def test_a_restarted_run_converges_at_the_same_step(tmp_path) -> None:
    whole = gpx.fit(_kmm(False))
    assert whole.status is gpx.Status.CONVERGED
    for _ in range(2):
        result = gpx.fit(_kmm(False), checkpoint_dir=tmp_path)
    assert (result.first_step, result.steps, result.status) == (whole.steps, whole.steps, whole.status)
    tighter = gpx.fit(_kmm(False), tolerance=1e-15, stationarity=1e-9, checkpoint_dir=tmp_path)
    assert tighter.steps > whole.steps


def test_minibatch_training_resumes_exactly(tmp_path) -> None:
    options = {"minibatch_size": 7, "seed": 3}
    resuming.check(_svgp, tmp_path, problems.binary(), steps=40, cut=20, options=lambda: options)


def test_a_finished_run_is_not_repeated(tmp_path) -> None:
    first = gpx.fit(_kmm(False), steps=3, tolerance=0.0, checkpoint_dir=tmp_path)
    again = gpx.fit(model := _kmm(False), steps=3, tolerance=0.0, checkpoint_dir=tmp_path)
    assert len(again.objective) == 0
    assert again.steps == 3
    np.testing.assert_allclose(model.elbo(), first.objective[-1], rtol=1e-12)


def test_wrong_checkpoints_are_refused_naming_both_values(tmp_path) -> None:
    gpx.fit(_kmm(False), steps=2, tolerance=0.0, checkpoint_dir=tmp_path)
    other = VGPKMM(problems.binary(), gpflow.kernels.Matern52(), BernoulliLogit())
    gpflow.set_trainable(other.kernel, False)
    with pytest.raises(ValueError, match=r"(?s)SquaredExponential.*Matern52"):
        gpx.fit(other, checkpoint_dir=tmp_path)
    bound = VGPKMM(problems.binary(), problems.kernel(), BernoulliLogit(num_pieces=5))
    gpflow.set_trainable(bound.kernel, False)
    with pytest.raises(ValueError, match=r"(?s)20.*5"):
        gpx.fit(bound, checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match=r"(?s)parallel.*algorithm1"):
        gpx.fit(_kmm(False), method="algorithm1", checkpoint_dir=tmp_path)


@pytest.mark.slow
def test_learning_raises_the_bound_to_its_maximum_over_hyperparameters() -> None:
    model = _kmm(True)
    result = gpx.fit(model)
    assert result.status is gpx.Status.CONVERGED
    assert (np.diff(result.objective) >= -1e-9 * np.abs(result.objective[1:])).all()
    reference = gpflow.models.VGP(problems.binary(), problems.kernel(), BernoulliLogit())
    options = {"maxiter": 3000, "ftol": 1e-14, "gtol": 1e-8}
    gpflow.optimizers.Scipy().minimize(
        reference.training_loss,
        reference.trainable_variables,
        options=options,
        tf_fun_args={"autograph": False},
    )
    np.testing.assert_allclose(model.elbo(), reference.elbo(), rtol=1e-6)


@pytest.mark.slow
def test_more_starts_find_a_better_optimum_and_resume_exactly(tmp_path) -> None:
    """From a length scale of 15 the data look like noise: L-BFGS alone ends at the constant, −N log 2."""
    data = problems.binary(40, variance=40.0, lengthscale=1.0)

    def poor() -> VGPKMM:
        return VGPKMM(data, problems.kernel(1.0, 15.0), BernoulliLogit())

    several, resumed = poor(), poor()
    options = {"starts": 3, "seed": 4, "hyper_updates": 10}
    gpx.fit(several, **options)
    assert several.elbo() > -40.0 * np.log(2.0) + 2.0
    gpx.fit(poor(), steps=1, checkpoint_dir=tmp_path, **options)
    assert gpx.fit(resumed, checkpoint_dir=tmp_path, **options).first_step == 1
    for a, b in zip(_values(resumed), _values(several), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_prior_on_a_hyperparameter_enters_the_objective() -> None:
    import tensorflow_probability as tfp

    free, held = _kmm(True), _kmm(True)
    held.kernel.lengthscales.prior = tfp.distributions.LogNormal(np.log(0.2), np.float64(0.01))
    gpx.fit(free)
    result = gpx.fit(held)
    assert abs(held.kernel.lengthscales.numpy() - 0.2) < 0.02  # ten prior deviations in log space
    assert abs(free.kernel.lengthscales.numpy() - 0.2) > 0.1
    np.testing.assert_allclose(result.objective[-1], -held.training_loss(), rtol=1e-10)


def test_sparse_kmm_learns_its_inducing_inputs() -> None:
    model = VGPKMM(
        problems.binary(), problems.kernel(), BernoulliLogit(), inducing_variable=problems.inputs(5, seed=5)
    )
    before = model.inducing_variable.Z.numpy()
    result = gpx.fit(model, steps=2)
    assert result.objective[-1] >= result.objective[0]
    assert np.abs(model.inducing_variable.Z.numpy() - before).max() > 1e-3
    with pytest.raises(ValueError, match="dense"):
        gpx.fit(model, method="algorithm1")


def test_monitor_sees_every_step_and_the_bar_is_quiet_off_a_terminal(capfd) -> None:
    seen: list[int] = []
    monitor = gpflow.monitor.Monitor(
        gpflow.monitor.MonitorTaskGroup(gpflow.monitor.ExecuteCallback(lambda: seen.append(1)), period=2)
    )
    gpx.fit(_kmm(False), steps=4, tolerance=0.0, monitor=monitor)
    assert len(seen) == 2
    assert capfd.readouterr() == ("", "")
    gpx.fit(_kmm(False), steps=2, tolerance=0.0, progress=True)
    assert "objective" in capfd.readouterr().err


class _Cliff:
    """An update that walks up and then falls over."""

    def __init__(self, values: list[float]) -> None:
        self.variable, self.values = tf.Variable(0.0), iter(values)

    def __call__(self) -> tuple[float, bool]:
        self.variable.assign_add(1.0)
        return next(self.values), True


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_objective_restores_the_last_good_state(bad: float) -> None:
    cliff = _Cliff([1.0, 2.0, bad])
    result = iterate(cliff, [cliff.variable], steps=9)
    assert result.status is gpx.Status.NON_FINITE
    # The objective may belong to the variables before its step: 1 was the last point known to give 2.
    assert cliff.variable.numpy() == 1.0
    np.testing.assert_array_equal(result.objective, [1.0, 2.0])


def test_a_first_step_that_is_not_finite_is_undone() -> None:
    cliff = _Cliff([np.nan])
    assert iterate(cliff, [cliff.variable], steps=9).status is gpx.Status.NON_FINITE
    assert cliff.variable.numpy() == 0.0


def test_sites_that_are_not_finite_are_refused_before_any_step() -> None:
    model = _kmm(False)
    model.nat1.unconstrained_variable.assign(np.where(np.arange(30)[:, None] == 4, np.nan, 0.0))
    with pytest.raises(ValueError, match="The parameter nat1 is not finite: 0, 0, 0, 0, nan"):
        gpx.fit(model)


def test_a_falling_objective_of_a_monotone_method_is_a_failure() -> None:
    cliff = _Cliff([1.0, 2.0, 1.5])
    assert iterate(cliff, [cliff.variable], steps=9, monotone=True).status is gpx.Status.DIVERGED
    assert cliff.variable.numpy() == 2.0


@pytest.mark.parametrize(("dtype", "fall", "failed"), [
    (np.float64, 1e-7, True), (np.float64, 1e-10, False), (np.float32, 1e-7, False), (np.float32, 1e-4, True),
])  # fmt: skip
def test_a_fall_by_rounding_is_no_failure(dtype: type, fall: float, failed: bool) -> None:
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        cliff = _Cliff([1.0, 40.0, 40.0 * (1.0 - fall), 41.0])
        result = iterate(cliff, [cliff.variable], steps=4, monotone=True)
    assert (result.status is gpx.Status.DIVERGED) == failed


def test_convergence_needs_the_methods_own_conditions_too() -> None:
    flags = iter([True, False, False, True, True])
    result = iterate(lambda: (1.0, next(flags)), [], steps=9, tolerance=1e-8)
    assert (result.status, result.steps) == (gpx.Status.CONVERGED, 4)


def test_a_run_goes_on_from_the_trail_that_a_checkpoint_restored() -> None:
    """It stops at once where the earlier steps had settled, and knows from which objective a step must not fall."""
    trail = Trail()
    trail.objectives.assign([1.0, 1.0])
    trail.settled.assign(True)
    result = iterate(lambda: (1.0, True), [], steps=9, first_step=3, tolerance=1e-8, trail=trail)
    assert (result.status, result.steps) == (gpx.Status.CONVERGED, 3)
    fallen = iterate(lambda: (0.5, True), [], steps=9, first_step=3, monotone=True, trail=trail)
    assert (fallen.status, fallen.steps) == (gpx.Status.DIVERGED, 3)


def test_gradient_training_stops_at_a_non_finite_loss_with_finite_parameters() -> None:
    model = _svgp()
    result = gpx.fit(model, problems.binary(), steps=30, optimizer=tf_keras.optimizers.SGD(1e12))
    assert result.status is gpx.Status.NON_FINITE
    assert all(np.isfinite(value).all() for value in _values(model))


def test_a_run_that_changes_nothing_ends_though_its_conditions_do_not_hold() -> None:
    stuck = iterate(lambda: (1.0, False), [], steps=99, tolerance=1e-8)
    assert (stuck.status, stuck.steps) == (gpx.Status.STALLED, 11)
    assert iterate(lambda: (1.0, False), [], steps=99).status is gpx.Status.MAX_STEPS  # as asked for
    values = iter(np.cumsum([1.0, *10 * [0.0, 1e-9]]))
    assert iterate(lambda: (next(values), False), [], steps=20, tolerance=1e-8).status is gpx.Status.MAX_STEPS
    rounding = iter(1.0 - 1e-10 * (np.arange(99) % 3))
    stuck = iterate(lambda: (next(rounding), False), [], steps=99, tolerance=1e-8, monotone=True)
    assert (stuck.status, stuck.steps) == (gpx.Status.STALLED, 11)


@pytest.mark.slow
def test_sites_without_a_fixed_point_end_the_run_and_say_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where precisions that should be negative are cut at zero."""
    monkeypatch.setattr(KMM, "signed", False)
    X, Y = problems.continuous(30)
    Y[::7] += 3.0
    model = VGPKMM((X, Y), problems.kernel(), gpflow.likelihoods.StudentT(0.1, 3.0))
    with pytest.warns(gpx.FitWarning, match="not log-concave"):
        result = gpx.fit(model, progress=False)
    assert result.status is gpx.Status.STALLED
    assert result.steps < 100


def test_a_model_without_sites_that_stalls_is_not_told_to_use_another() -> None:
    stalled = gpx.FitResult(np.zeros(11), np.zeros(11), 0, gpx.Status.STALLED)
    said = bad_end(stalled, _svgp())
    assert "after step 11" in said
    assert "starts" in said
    assert "SVGP" not in said
    assert "SparseEP" in bad_end(stalled, VGPKMM(problems.binary(), problems.kernel(), BernoulliLogit()))


def test_statuses_are_sentences() -> None:
    assert all(status.value.endswith(".") and len(status.value.split()) > 5 for status in gpx.Status)
    result = gpx.fit(_kmm(True), steps=1, hyper_updates=1)
    assert result.status is gpx.Status.MAX_STEPS
    assert result.status.value in str(result)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gpx.fit(_kmm(True), problems.binary()), "holds its data"),
        (lambda: gpx.fit(_svgp()), r"data=\(X, Y\)"),
        (lambda: gpx.fit(_svgp(), problems.binary(), minibatch_size=31), "from 1 to 30"),
        (lambda: gpx.fit(_svgp(), problems.binary(), optimizer="adam"), "tf_keras optimiser"),
        (lambda: gpx.fit(_kmm(True), method="newton"), "algorithm1"),
        (lambda: gpx.fit(_kmm(True), steps=-1), "negative"),
        (lambda: gpx.fit(_kmm(True), starts=0), "at least 1"),
        (lambda: gpx.fit(_kmm(True), checkpoint_every=0), "at least 1"),
        (
            lambda: gpx.fit(gpflow.models.GPR(problems.continuous(), problems.kernel()), minibatch_size=5),
            "pair of arrays",
        ),
    ],
)
def test_wrong_calls_say_what_to_do(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_any_gpflow_model_trains_by_gradient() -> None:
    model = gpflow.models.GPR(problems.continuous(), problems.kernel())
    result = gpx.fit(model, steps=20, recipe="adam")
    assert (result.steps, result.status) == (20, gpx.Status.MAX_STEPS)
    assert result.objective[-1] > result.objective[0]


@pytest.mark.parametrize("bayesian", [False, True])
def test_models_of_outputs_alone_are_fitted(bayesian: bool) -> None:
    Y = np.random.default_rng(0).standard_normal((12, 3))
    model: gpflow.models.BayesianModel
    if bayesian:
        kernel, start = gpflow.kernels.SquaredExponential(), Y[:, :1]
        model = gpflow.models.BayesianGPLVM(Y, start, np.ones_like(start), kernel, 4)
    else:
        model = gpflow.models.GPLVM(Y, latent_dim=1)
    before = float(model.training_loss())
    result = gpx.fit(model, steps=2)
    after = float(model.training_loss())
    assert -result.objective[-1] == pytest.approx(after)
    assert after < before


def test_a_result_is_shown_in_notebooks() -> None:
    tried = (Tried("length < 1", -3.0),)
    result = gpx.FitResult(
        np.array([-2.0, -1.5]), np.array([0.1, 0.25]), 3, gpx.Status.CONVERGED, tried, ("odd",)
    )
    page = result._repr_html_()
    for part in (
        "<td>5</td>",
        "<td>-1.5</td>",
        "<td>0.25</td>",
        "<p>odd</p>",
        "length &lt; 1: -3",
        "settled within",
    ):
        assert part in page
    nothing = gpx.FitResult(np.array([]), np.array([]), 0, gpx.Status.NON_FINITE)
    assert "<td></td><td>0.00</td>" in nothing._repr_html_()


def _in_variables(trainable: bool) -> tuple[tf.Variable, tf.Variable]:
    X, Y = (tf.Variable(part, trainable, shape=[None, part.shape[1]]) for part in problems.continuous())
    return X, Y


def test_a_model_of_gpflow_follows_data_in_variables() -> None:
    X, Y = _in_variables(trainable=False)
    model = gpflow.models.GPR((X, Y), problems.kernel(), noise_variance=0.5)
    gpx.fit(model)
    for part in (X, Y):
        part.assign(part[:20])
    gpx.fit(model)
    other = gpflow.models.GPR((X.numpy(), Y.numpy()), problems.kernel(), noise_variance=0.5)
    assert gpx.fit(other).objective[-1] == pytest.approx(-float(model.training_loss()), abs=1e-6)


def test_a_vgp_follows_data_in_variables() -> None:
    X, Y = _in_variables(trainable=False)
    Y.assign(tf.cast(Y > 0.0, Y.dtype))
    model, other = (
        gpflow.models.VGP(data, problems.kernel(), BernoulliLogit())
        for data in ((X, Y), (X.numpy(), Y.numpy()))
    )
    assert gpx.fit(model).objective[-1] == pytest.approx(gpx.fit(other).objective[-1], abs=1e-6)
    assert gpx.fit(model, recipe="lbfgs", steps=1).steps == 1


def test_data_in_trainable_variables_are_not_fitted() -> None:
    model = gpflow.models.GPR(_in_variables(trainable=True), problems.kernel(), noise_variance=0.5)
    with pytest.raises(ValueError, match="trainable=False"):
        gpx.fit(model)


@pytest.mark.parametrize("options", [{}, {"recipe": "adam"}, {"recipe": "dual"}])
def test_minibatches_need_the_number_of_data(options: dict[str, str]) -> None:
    model = gpflow.models.SVGP(problems.kernel(), BernoulliLogit(), problems.inputs(6, seed=5))
    with pytest.raises(ValueError, match="num_data=30"):
        gpx.fit(model, problems.binary(), minibatch_size=8, steps=1, **options)
    dataset = tf.data.Dataset.from_tensor_slices(problems.binary()).repeat().batch(8)
    with pytest.raises(ValueError, match="num_data=N"):
        gpx.fit(model, dataset, steps=1, **options)
    gpx.fit(model, problems.binary(), minibatch_size=30, steps=1, recipe="adam")


@pytest.mark.parametrize("kind", [gpflow.models.SVGP, gpx.models.SVGPRobustMax])
@pytest.mark.parametrize("size", [None, 8, 30])
@pytest.mark.parametrize("recipe", [None, "adam", "lbfgs"])
def test_another_number_of_data_is_refused(kind: type, size: int | None, recipe: str | None) -> None:
    """The likelihood would count twice."""
    likelihood = 2 if kind is gpx.models.SVGPRobustMax else BernoulliLogit()
    model = kind(problems.kernel(), likelihood, problems.inputs(6, seed=5), num_data=60)
    options = {} if recipe == "lbfgs" else {"minibatch_size": size}
    with pytest.raises(ValueError, match="num_data=60, but `data` has 30 rows: build it with num_data=30"):
        gpx.fit(model, problems.binary(), recipe=recipe, steps=1, **options)
