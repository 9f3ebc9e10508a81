"""Recipes of one's own, by registration or by name: checkpoints, resume, progress, options that are checked."""

from __future__ import annotations

import dataclasses
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.models import VGPKMM, GPRNTensor, SparseEP, SVGPRobustMax
from gpflow_ext.training import recipe as recipes
from gpflow_ext.training.solver import Steps

X, Y = problems.continuous(20)


class Mine(gpflow.models.GPR):
    """A user's class of GPflow model."""


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """Options of `stepping`."""

    length: float = 0.01

    def __post_init__(self) -> None:
        if self.length <= 0.0:
            raise ValueError(f"`length` must be positive; got {self.length}.")


@gpx.recipe("stepping", StepOptions)
def stepping(model: gpflow.models.GPR, run: gpx.Run, options: StepOptions) -> gpx.Plan:
    """Plain gradient descent."""
    return _plan(model, options.length)


def plain(model: gpflow.models.GPR, run: gpx.Run, *, length: float = 0.01) -> gpx.Plan:
    """The same as a function."""
    return _plan(model, length)


def _plan(model: gpflow.models.GPR, length: float) -> gpx.Plan:
    optimizer = tf_keras.optimizers.SGD(length, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = model.training_loss()
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return gpx.Plan(
        Steps(lambda: -float(step()), optimizer.variables),
        [*model.variables, *optimizer.variables],
        steps=30,
        tolerance=None,
        trackables={"optimizer": optimizer},
        settings={"recipe": "stepping", "length": length},
    )


def _model() -> Mine:
    return Mine((X, Y), problems.kernel())


@pytest.fixture
def registered():
    gpx.register(Mine, stepping)
    yield
    del recipes._REGISTERED[Mine]


@pytest.mark.parametrize("recipe", [None, stepping, plain])
def test_a_recipe_of_ones_own_is_run_checkpointed_and_resumed_exactly(tmp_path, registered, recipe) -> None:
    whole, first, again = _model(), _model(), _model()
    options = {"length": 0.02, **({} if recipe is None else {"recipe": recipe})}
    seen: list[int] = []
    result = gpx.fit(whole, steps=12, monitor=seen.append, **options)
    assert seen == list(range(1, 13))
    folder = gpx.export(whole, tmp_path / "exported", example=X[:3])
    assert np.isfinite(gpx.load_exported(folder).predict_f(X[:3])["mean"]).all()
    assert result.objective[-1] > result.objective[0]
    gpx.fit(first, steps=7, checkpoint_dir=tmp_path, checkpoint_every=3, **options)
    resumed = gpx.fit(again, steps=12, checkpoint_dir=tmp_path, **options)
    assert resumed.first_step == 7
    for a, b in zip(whole.variables, again.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match=r"(?s)0\.02.*0\.5"):
        gpx.fit(_model(), checkpoint_dir=tmp_path, **{**options, "length": 0.5})


def test_registration_goes_by_the_nearest_class(registered) -> None:
    class Below(Mine):
        pass

    assert recipes.recipe_of(Below((X, Y), problems.kernel())) is stepping
    assert recipes.recipe_of(gpflow.models.GPR((X, Y), problems.kernel())).name == "gpflow"


def test_a_strategy_is_refused_by_recipes_that_do_not_distribute(registered) -> None:
    with pytest.raises(NotImplementedError, match="one device"):
        gpx.fit(_model(), strategy=tf.distribute.OneDeviceStrategy("CPU:0"))


class Plain(tf.Module):
    """No GPflow model."""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gpx.fit(Plain()), "No recipe trains a Plain"),
        (lambda: gpx.fit(_model(), recipe="stepping"), "kmm, laplace"),
        (lambda: gpx.fit(_model(), recipe=stepping, lenght=0.1), r"no option 'lenght'.*length"),
        (lambda: gpx.fit(_model(), recipe=plain, lenght=0.1), r"no option 'lenght'.*length"),
        (lambda: gpx.fit(_model(), recipe=stepping, length=-1.0), "positive"),
        (lambda: gpx.register("GPR", stepping), "model class"),
    ],
)
def test_wrong_calls_are_refused_with_the_right_ones(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def _untouched(*_: Any) -> None:
    raise AssertionError("work was done before the options were checked")


MODELS = {
    "kmm": lambda: VGPKMM(problems.binary(), problems.kernel(), BernoulliLogit()),
    "ep": lambda: SparseEP(
        problems.binary(), problems.kernel(), BernoulliLogit(), inducing_variable=X[:3, :]
    ),
    "robust_max": lambda: SVGPRobustMax(problems.kernel(), 2, X[:3, :], num_data=20),
    "gprn": lambda: GPRNTensor((X, Y), problems.kernel(), problems.kernel(), 1),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_recipe_lists_its_options_before_any_work(monkeypatch, name: str) -> None:
    model, fit = MODELS[name](), gpx.fit  # to import it registers the recipes
    found = recipes.recipe_of(model)
    assert found.name == name
    monkeypatch.setattr(type(model), "trainable_variables", property(_untouched))
    options = [each.name for each in dataclasses.fields(found.options)]
    with pytest.raises(ValueError, match=rf"no option 'stepz'.*{', '.join(options)}"):
        fit(model, stepz=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "newton"}, "'parallel' or 'algorithm1'"),
        ({"starts": 0}, "at least 1"),
        ({"starts": 2.5}, "starts"),
        ({"hyper_updates": 0}, "at least 1"),
        ({"stationarity": "small"}, "stationarity"),
    ],
)
def test_wrong_values_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpx.fit(MODELS["kmm"](), **options)


def test_every_option_is_described() -> None:
    """``help(gpx.fit)`` names the dataclass of each recipe, whose docstring describes each field."""
    from gpflow_ext import fit

    for each in fit.__globals__["_BY_NAME"].values():
        if dataclasses.fields(each.options):
            assert f"{each.options.__name__}`" in gpx.fit.__doc__ or each.options.__name__ == "SiteOptions"
        documented = "\n".join(cls.__doc__ or "" for cls in each.options.__mro__)
        for field in dataclasses.fields(each.options):
            assert f"    {field.name}" in documented or f", {field.name}" in documented, field.name


class Pulled(gpx.models.GPLaplace):
    """A model whose objective draws the length scale to 3."""

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        return super().maximum_log_likelihood_objective() - 100.0 * (self.kernel.lengthscales - 3.0) ** 2


class PulledClassifier(SVGPRobustMax):
    """The same of minibatches."""

    def elbo(self, data: Any) -> tf.Tensor:
        return super().elbo(data) - 100.0 * (self.kernel.lengthscales - 3.0) ** 2


class PulledSVGP(gpflow.models.SVGP):
    """The same of GPflow's."""

    def elbo(self, data: Any) -> tf.Tensor:
        return super().elbo(data) - 100.0 * (self.kernel.lengthscales - 3.0) ** 2


LABELS = (np.median(Y) < Y).astype(float)


def pulled() -> Pulled:
    return Pulled((X, LABELS), gpflow.kernels.Matern52(), BernoulliLogit())


def test_an_objective_of_ones_own_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match=r"Pulled has 'maximum_log_likelihood_objective' of its own.*lbfgs"):
        gpx.fit(pulled())
    classifier = PulledClassifier(gpflow.kernels.Matern52(), 2, X[:5].copy(), num_data=len(X))
    with pytest.raises(ValueError, match="PulledClassifier has 'elbo' of its own"):
        gpx.fit(classifier, (X, LABELS))
    model = pulled()
    result = gpx.fit(model, recipe="lbfgs")
    np.testing.assert_allclose(model.kernel.lengthscales, 3.0, atol=0.05)  # 100 times steeper than the rest
    np.testing.assert_allclose(result.objective[-1], model.maximum_log_likelihood_objective(), rtol=1e-6)


def test_a_bound_of_ones_own_is_raised_on_minibatches_too() -> None:
    model = PulledSVGP(
        gpflow.kernels.Matern52(), gpflow.likelihoods.Bernoulli(), X[:5].copy(), num_data=len(X)
    )
    with pytest.raises(ValueError, match="recipe='dual' would not maximise"):
        gpx.fit(model, (X, LABELS), recipe="dual", minibatch_size=10, steps=1)
    gpx.fit(model, (X, LABELS), minibatch_size=10, steps=300, starts=1)
    np.testing.assert_allclose(model.kernel.lengthscales, 3.0, atol=0.2)  # within a few of Adam's steps


@pytest.mark.parametrize("name", ["kmm", "laplace", "ep", "sites", "robust_max", "gprn"])
def test_a_recipe_refuses_models_of_another_class_by_name(name: str) -> None:
    model = gpflow.models.SVGP(problems.kernel(), gpflow.likelihoods.Bernoulli(), np.zeros((2, 2)))
    with pytest.raises(ValueError, match=f'recipe="{name}" is for .*, which SVGP is not'):
        gpx.fit(model, problems.binary(10), recipe=name)
