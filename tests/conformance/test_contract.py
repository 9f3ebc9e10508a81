"""GPflow's and TensorFlow's recipes on every model of the registry, GPflow's own among them: one test a feature.

The marker of a test names the column of docs/conformance.md that it fills; a test that is skipped says why the
model has no such thing.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.monitor import ModelToTensorBoard, Monitor, MonitorTaskGroup, ScalarToTensorBoard
from marks import SLOW

from conformance import models
from conformance.holders import loss, variables
from conformance.models import Entry
from gpflow_ext.likelihoods import BernoulliLogit, PoissonLog
from gpflow_ext.models import GPJaakkola, SVGPRobustMax

XNEW = models.POINTS
SIGNATURE = [tf.TensorSpec([None, models.WIDTH], tf.float64)]
feature = pytest.mark.feature


FEW = {"SparseEP, classes", "SVGPRobustMax", "GPRNTensor"}  # where a test compiles, or writes graphs


def every(quick: Container[str] = models.QUICK) -> pytest.MarkDecorator:
    """Parametrise a test by all entries; those that are not ``quick`` in long runs only."""
    cases = [
        pytest.param(entry, id=name, marks=[] if name in quick else SLOW)
        for name, entry in models.ENTRIES.items()
    ]
    return pytest.mark.parametrize("entry", cases)


def moments(model: Any) -> list[np.ndarray]:
    return [part.numpy() for part in (*model.predict_f(XNEW), *model.predict_y(XNEW))]


def assert_same(found: Any, expected: Any) -> None:
    for mine, its in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-9, atol=1e-11)


def holds_data(entry: Entry) -> None:
    if "external-data" in entry.tags:
        pytest.skip("It holds no data: they are an argument of its loss.")


def follows(entry: Entry) -> bool:
    """Whether its data may be in variables."""
    return "external-data" not in entry.tags


def check_copies(entry: Entry, *makes: Callable[[Any], Any]) -> None:
    """They predict the same, also after the model itself has moved."""
    model = entry.build()
    before, density = moments(model), model.predict_log_density((XNEW, entry.Y[: len(XNEW)]))
    made = [make(model) for make in makes]
    for each in made:
        assert_same(moments(each), before)
        assert_same([each.predict_log_density((XNEW, entry.Y[: len(XNEW)]))], [density])
    entry.move(model)
    assert np.abs(moments(model)[0] - before[0]).max() > 1e-6
    for each in made:
        assert_same(moments(each), before)


@feature("deepcopy")
@every()
def test_deep_copies(entry: Entry) -> None:
    check_copies(entry, copy.deepcopy, gpflow.utilities.deepcopy)


@feature("freeze")
@every()
def test_a_frozen_model_has_constants_alone(entry: Entry) -> None:
    check_copies(entry, gpflow.utilities.freeze)
    model = entry.build(variables(entry.data)) if follows(entry) else entry.build()
    frozen = gpflow.utilities.freeze(model)
    drawn = set(getattr(model, "draw_names", ()))  # in whose places the draws go
    assert {name.lstrip(".") for name in gpflow.utilities.parameter_dict(frozen)} <= drawn
    assert frozen.variables == ()
    assert_same(moments(frozen), moments(model))
    if hasattr(frozen, "posterior"):
        assert_same(frozen.posterior().predict_f(XNEW), model.predict_f(XNEW))


@feature("pickle")
@every()
def test_pickles(entry: Entry) -> None:
    def pickled(model: Any) -> Any:
        return pickle.loads(pickle.dumps(model))

    check_copies(entry, pickled, lambda model: pickled(gpflow.utilities.freeze(model)))


def predicted_when_loaded(root: tf.Module, folder: Path) -> Any:
    tf.saved_model.save(root, str(folder))
    loaded = tf.saved_model.load(str(folder))
    return loaded.predict(XNEW)


@feature("SavedModel")
@every(quick=FEW)
def test_the_saved_models_of_gpflow_s_recipes(entry: Entry, tmp_path: Path) -> None:
    """Of a frozen model beside a module, and of a module that holds the model."""
    model = entry.build()
    expected = model.predict_y(XNEW)
    frozen, module = gpflow.utilities.freeze(model), tf.Module()
    module.predict = tf.function(frozen.predict_y, input_signature=SIGNATURE, autograph=False)
    assert_same(predicted_when_loaded(module, tmp_path / "frozen"), expected)
    model.predict = tf.function(model.predict_y, input_signature=SIGNATURE, autograph=False)
    assert_same(predicted_when_loaded(model, tmp_path / "model"), expected)


def elsewhere(entry: Entry) -> Any:
    """The model at other values of all parameters."""
    model = entry.build()
    for part in gpflow.utilities.parameter_dict(model).values():
        if isinstance(part, gpflow.Parameter) and part.dtype.is_floating:
            part.unconstrained_variable.assign(part.unconstrained_variable + 0.1)
    return model


@feature("Checkpoint")
@every()
def test_values_go_through_a_checkpoint(entry: Entry, tmp_path: Path) -> None:
    model, other = elsewhere(entry), entry.build()
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "model"))
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    assert_same(moments(other), moments(model))


@feature("parameter_dict")
@every()
def test_values_go_through_the_dictionaries_of_gpflow(entry: Entry) -> None:
    model, other = elsewhere(entry), entry.build()
    gpflow.utilities.multiple_assign(other, gpflow.utilities.read_values(model))
    assert_same(moments(other), moments(model))


@feature("print_summary")
@every(quick=models.ENTRIES)
def test_a_summary_names_every_parameter(entry: Entry, capsys: pytest.CaptureFixture[str]) -> None:
    model = entry.build()
    gpflow.utilities.print_summary(model, "simple")
    table = capsys.readouterr().out
    assert all(part.lstrip(".") in table for part in gpflow.utilities.parameter_dict(model))


@feature("set_trainable")
@every(quick=models.ENTRIES)
def test_what_is_set_trainable_is_trained(entry: Entry) -> None:
    model = entry.build()
    gpflow.set_trainable(model, False)
    assert model.trainable_variables == ()
    gpflow.set_trainable(model.kernel, True)
    assert {id(v) for v in model.trainable_variables} == {id(v) for v in model.kernel.variables}


@feature("priors")
@every()
def test_a_prior_enters_the_loss(entry: Entry) -> None:
    """Of the kernel, of the inducing points, and of whatever else is trained."""
    model = entry.build()
    objective = loss(model, entry.data)
    before, added = objective(), tf.zeros([], tf.float64)
    for parameter in model.trainable_parameters:
        if parameter.prior is None:
            parameter.prior = tfp.distributions.Normal(np.float64(0.3), np.float64(2.0))
            added += tf.reduce_sum(parameter.prior.log_prob(tf.convert_to_tensor(parameter)))
    np.testing.assert_allclose(before - objective(), added, rtol=1e-8)


def minimise(entry: Entry, model: Any, **options: Any) -> None:
    gpflow.optimizers.Scipy().minimize(
        loss(model, entry.data),
        model.trainable_variables,
        compile=entry.is_ours,  # AutoGraph takes seconds for GPflow's own
        options={"maxiter": 2},
        **options,
    )


@feature("Scipy", "monitor")
@every(quick=FEW)
def test_gpflow_s_optimiser_and_its_monitor(entry: Entry, tmp_path: Path) -> None:
    model = entry.build()
    objective = loss(model, entry.data)
    before = float(objective())
    group = MonitorTaskGroup(
        [ModelToTensorBoard(str(tmp_path), model), ScalarToTensorBoard(str(tmp_path), objective, "loss")]
    )
    minimise(entry, model, step_callback=Monitor(group))
    assert float(objective()) < before
    assert list(tmp_path.glob("events*"))


@feature("NaturalGradient")
@every(quick=models.ENTRIES)
def test_natural_gradients_of_q(entry: Entry) -> None:
    if "q_mu" not in entry.tags:
        pytest.skip(
            "Its posterior is in closed form: there are no q_mu and q_sqrt."
            if entry.name == "GPR"
            else "Its posterior is sampled: there are no q_mu and q_sqrt."
            if "free-form" in entry.tags
            else "It updates q itself: no q_mu and q_sqrt are trained."
        )
    model = entry.build()
    objective = loss(model, entry.data)
    before = float(objective())
    natural = gpflow.optimizers.NaturalGradient(gamma=0.1)
    for _ in range(2):
        natural.minimize(objective, [(model.q_mu, model.q_sqrt)])
    assert float(objective()) < before


def other_data(entry: Entry) -> tuple[np.ndarray, np.ndarray]:
    """Of as many rows."""
    X, Y = entry.data
    return X + 0.3, np.roll(Y, 3, axis=0)


@feature("data replaced")
@every()
def test_other_data_take_the_place_of_the_first(entry: Entry) -> None:
    """The model is that of the new data, with what it knew of the posterior."""
    holds_data(entry)
    if not entry.is_ours:
        pytest.skip("GPflow replaces the data of a model only where they are variables.")
    model, fresh = entry.build(), entry.build(other_data(entry))
    kept = {name: part for name, part in gpflow.utilities.parameter_dict(model).items() if ".q." in name}
    model.update_data(other_data(entry))
    assert_same(model.data[:1], fresh.data[:1])
    if "network" in entry.tags:
        assert not model.draw_names
        fresh.assign_draws(None)
        now = gpflow.utilities.parameter_dict(model)
        if "tensor" not in entry.name:
            assert_same([now[name] for name in kept], kept.values())
        gpflow.utilities.multiple_assign(fresh, gpflow.utilities.read_values(model))
    assert_same(moments(model), moments(fresh))


@feature("data in variables")
@every()
def test_data_in_variables_are_followed(entry: Entry) -> None:
    holds_data(entry)
    held = variables(entry.data)
    model, fresh = entry.build(held), entry.build(variables(other_data(entry)))
    if "grid" not in entry.tags:  # whose structure is for data that stay
        assert_same(moments(model), moments(entry.build()))
    for variable, value in zip(held, other_data(entry), strict=True):
        variable.assign(value)
    if "network" in entry.tags:  # whose start depends on its data
        gpflow.utilities.multiple_assign(fresh, gpflow.utilities.read_values(model))
    assert_same(moments(model), moments(fresh))
    assert_same([loss(model, None)()], [loss(fresh, None)()])


def latent_functions(entry: Entry, kernel: gpflow.kernels.Kernel, points: Any, number: int) -> Any:
    """An untrained model of the class of an entry with two outputs, of another kernel and inducing variables."""
    kind = type(entry.build())
    if kind is SVGPRobustMax:
        return kind(kernel, 2, points, num_data=None)
    if kind is gpflow.models.SVGP:
        return kind(kernel, gpflow.likelihoods.Gaussian(), points, num_latent_gps=number)
    data, likelihood = (models.INPUTS, models.COUNTS), PoissonLog()
    if kind is GPJaakkola:
        data, likelihood = (
            (models.INPUTS, np.c_[models.BINARY, 1.0 - models.BINARY[::-1]]),
            BernoulliLogit("jaakkola"),
        )
    if kind is gpflow.models.SGPMC:
        return kind(data, kernel, likelihood, num_latent_gps=number, inducing_variable=points)
    return kind(data, kernel, likelihood, inducing_variable=points if "inducing" in entry.tags else None)


def check_prior(entry: Entry, kernel: gpflow.kernels.Kernel, points: Any, number: int = 2) -> None:
    """An untrained q is the prior; what is trained is compared with references by the tests of such kernels."""
    model = latent_functions(entry, kernel, points, number)
    if "free-form" in entry.tags:
        theirs = latent_functions(models.ENTRIES["SGPMC"], kernel, points, number)
        values = np.random.default_rng(5).normal(size=theirs.V.shape)
        model.V.assign(values)
        theirs.V.assign(values)
        for flags in ((False, False), (True, False), (False, True)):
            assert_same(model.predict_f(XNEW, *flags), theirs.predict_f(XNEW, *flags))
        np.testing.assert_allclose(model.training_loss(), theirs.training_loss(), rtol=1e-9)
        return
    _, cov = model.predict_f(XNEW, full_output_cov=True)
    if isinstance(kernel, gpflow.kernels.MultioutputKernel):
        expected = kernel(XNEW, full_cov=False, full_output_cov=True)
    else:
        expected = kernel(XNEW, full_cov=False)[:, None, None] * np.eye(2)
    np.testing.assert_allclose(cov, expected, rtol=1e-9, atol=1e-9)
    assert np.isfinite(
        loss(model, (models.INPUTS, models.CLASSES % 2 + np.zeros([1, 2 if "gpflow" in entry.tags else 1])))()
    )


def takes_one_kernel(entry: Entry) -> None:
    if "network" in entry.tags:
        pytest.skip(
            "Its outputs are mixtures already, of nodes by weights; nodes may have kernels of their own, which other tests cover."
        )
    if entry.name in ("GPR", "VGP"):
        pytest.skip("GPflow's class takes kernels of one output only.")


@feature("kernels of each output")
@every()
def test_each_output_may_have_a_kernel(entry: Entry) -> None:
    takes_one_kernel(entry)
    check_prior(entry, models.separate(2), models.points(2))


@feature("mixtures of outputs")
@every()
def test_outputs_may_be_mixtures(entry: Entry) -> None:
    takes_one_kernel(entry)
    if entry.name.startswith("SVGPRobustMax"):
        pytest.skip(
            "Its latent functions are independent; GPflow's SVGP takes mixtures with the likelihood RobustMax."
        )
    check_prior(entry, models.mixtures(2), models.points(3), 3)


@feature("inter-domain")
@every()
def test_inducing_variables_may_be_no_values_of_f(entry: Entry) -> None:
    if "inducing" not in entry.tags:
        pytest.skip("It has no inducing variable.")
    if "network" in entry.tags:
        pytest.skip("Its inducing variable is a set of points, shared by nodes and weights.")
    scales = np.full(models.POINTS.shape, 0.3)
    points = gpflow.inducing_variables.Multiscale(models.POINTS, scales)
    check_prior(entry, gpflow.kernels.SquaredExponential(lengthscales=0.8), points)


@feature("non-finite")
@every(quick=models.ENTRIES)
def test_a_posterior_that_is_not_finite_is_refused(entry: Entry) -> None:
    """As by GPflow, in place of predictions that are NaN."""
    model = entry.build()
    if not hasattr(model, "posterior"):
        pytest.skip("GPflow's SGPMC has no posterior().")
    for parameter in model.parameters:
        if parameter.shape.rank == 0 and parameter.transform is not None and parameter.dtype.is_floating:
            parameter.unconstrained_variable.assign(np.nan)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"non-finite|not successful"):
        model.posterior()
    if entry.is_ours:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"non-finite|not successful"):
            model.predict_f(XNEW)
