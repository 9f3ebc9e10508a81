"""One contract for every model: what a GPflow user expects to work, works."""

from __future__ import annotations

import inspect
import json
from types import SimpleNamespace

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.models import ExternalDataTrainingLossMixin, GPModel
from gpflow.posteriors import PrecomputeCacheType
from marks import others_slow

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit
from gpflow_ext.models import (
    VGPKMM,
    GPJaakkola,
    GPLaplace,
    GPRNTensor,
    GPTaylor,
    SGPMCFreeForm,
    SiteModel,
    SparseEP,
    SVGPRobustMax,
)
from gpflow_ext.prediction.average import ModelAverage
from gpflow_ext.sites import Sites

DATA = problems.binary(20)
XNEW = problems.inputs(6, seed=11)
MODELS = {
    "VGPKMM": lambda: VGPKMM(DATA, problems.kernel(), BernoulliLogit()),
    "SiteModel": lambda: SiteModel(DATA, problems.kernel(), BernoulliLogit()),
    "VGPKMM-inducing": lambda: VGPKMM(
        DATA, problems.kernel(), BernoulliLogit(), inducing_variable=problems.inputs(5, seed=5)
    ),
    "VGPKMM-probit": lambda: VGPKMM(
        DATA, problems.kernel(), BernoulliProbit(), gpflow.functions.Constant(0.3)
    ),
    "SparseEP": lambda: SparseEP(
        DATA, problems.kernel(), BernoulliProbit(), inducing_variable=problems.inputs(5, seed=5)
    ),
    "GPLaplace": lambda: GPLaplace(DATA, problems.kernel(), BernoulliLogit()),
    "GPTaylor-inducing": lambda: GPTaylor(
        DATA, problems.kernel(), BernoulliProbit(), inducing_variable=problems.inputs(5, seed=5)
    ),
    "GPJaakkola": lambda: GPJaakkola(DATA, problems.kernel(), BernoulliLogit(bound="jaakkola")),
    "SVGPRobustMax": lambda: SVGPRobustMax(problems.kernel(), 2, problems.inputs(5, seed=5), num_data=20),
    "SGPMCFreeForm": lambda: SGPMCFreeForm(
        DATA, problems.kernel(), BernoulliProbit(), inducing_variable=problems.inputs(5, seed=5)
    ),
    "GPRNTensor": lambda: GPRNTensor(DATA, problems.kernel(), problems.kernel(), 2),
    "GPRNTensor-tensor": lambda: GPRNTensor(
        DATA, problems.kernel(), problems.kernel(), 2, posterior="tensor"
    ),
}


# One of each way to infer.
FEW = others_slow(MODELS, "VGPKMM", "GPRNTensor")
SOME = others_slow(MODELS, "VGPKMM", "SparseEP", "GPTaylor-inducing", "SVGPRobustMax", "GPRNTensor")


@pytest.fixture(params=MODELS)
def model(request):
    return _settled(MODELS[request.param]())


def _settled(model: GPModel) -> GPModel:
    """Give the posterior values without the cost of a compiled fit."""
    if isinstance(model, GPRNTensor):
        _state(model).assign_add(np.random.default_rng(0).normal(size=_state(model).shape))
        return model
    if isinstance(model, SGPMCFreeForm):
        model.V.assign(np.random.default_rng(0).normal(size=model.V.shape))
        return model
    if not isinstance(model, SiteModel):
        model.q_mu.assign(np.random.default_rng(0).normal(size=model.q_mu.shape))
        model.q_sqrt.assign(0.5 * model.q_sqrt)
        return model
    prec = np.random.default_rng(0).uniform(0.1, 0.3, model.sites.prec.shape)
    model.assign_sites(Sites(tf.constant(model.data[1].numpy() - 0.5), tf.constant(prec)))
    return model


def _state(model: GPModel) -> gpflow.Parameter:
    """What holds the mean of the posterior."""
    if isinstance(model, GPRNTensor):
        return model.q.location if hasattr(model.q, "location") else model.q.weight_mean
    if isinstance(model, SGPMCFreeForm):
        return model.V
    return model.nat1 if isinstance(model, SiteModel) else model.q_mu


def _loss(model: GPModel) -> tf.Tensor:
    external = isinstance(model, ExternalDataTrainingLossMixin)
    return model.training_loss(DATA) if external else model.training_loss()


def test_every_concrete_model_is_under_contract() -> None:
    concrete = {
        name for name, cls in vars(gpx.models).items() if inspect.isclass(cls) and not inspect.isabstract(cls)
    }
    assert {name.split("-")[0] for name in MODELS} == concrete


def test_predictions_have_gpflow_shapes(model) -> None:
    L = model.num_latent_gps
    mean, var = model.predict_f(XNEW)
    assert mean.shape == var.shape == (6, L)
    _, cov = model.predict_f(XNEW, full_cov=True)
    assert cov.shape == (L, 6, 6)
    np.testing.assert_allclose(tf.linalg.diag_part(cov)[0], var[:, 0], rtol=0, atol=1e-12)
    assert np.linalg.eigvalsh(cov[0]).min() > 0
    assert model.predict_f(XNEW, full_output_cov=True)[1].shape == (6, L, L)
    assert model.predict_f_samples(XNEW, 3).shape == (3, 6, L)
    assert model.predict_y(XNEW)[0].shape == (6, L)
    assert model.predict_log_density((XNEW, np.ones((6, 1)))).shape == (6,)


@pytest.mark.parametrize("cache", [*PrecomputeCacheType, "tensor", None])
def test_a_cached_posterior_predicts_the_same(model, cache) -> None:
    posterior = model.posterior(cache)
    predict = (
        posterior.fused_predict_f if cache in (None, PrecomputeCacheType.NOCACHE) else posterior.predict_f
    )
    for cached, direct in zip(predict(XNEW), model.predict_f(XNEW), strict=True):
        np.testing.assert_allclose(cached, direct, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", SOME, indirect=True)
def test_a_posterior_follows_its_model(model) -> None:
    posterior = model.posterior(PrecomputeCacheType.VARIABLE)
    stale = posterior.predict_f(XNEW)[0].numpy()
    _state(model).assign(-_state(model))
    np.testing.assert_array_equal(posterior.predict_f(XNEW)[0], stale)
    posterior.update_cache()
    np.testing.assert_allclose(posterior.predict_f(XNEW)[0], model.predict_f(XNEW)[0], rtol=0, atol=1e-12)


def test_sites_are_parameters_that_gradients_do_not_train(model, capsys) -> None:
    if not isinstance(model, SiteModel):
        pytest.skip("has no sites")
    gpflow.utilities.print_summary(model)
    summary = capsys.readouterr().out
    assert "nat1" in summary
    assert "prec" in summary
    trained = {id(variable) for variable in model.trainable_variables}
    assert not trained & {id(model.nat1.unconstrained_variable), id(model.prec.unconstrained_variable)}
    gpflow.set_trainable(model.kernel, False)
    assert not set(map(id, model.kernel.variables)) & set(map(id, model.trainable_variables))


def test_a_prior_enters_the_loss(model) -> None:
    before = _loss(model)
    model.kernel.variance.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.0))
    expected = before - model.kernel.variance.prior.log_prob(model.kernel.variance)
    np.testing.assert_allclose(_loss(model), expected, rtol=0, atol=1e-9)  # of a log density of size 1


def test_a_deep_copy_is_independent(model) -> None:
    copy = gpflow.utilities.deepcopy(model)
    kept = model.predict_f(XNEW)[0].numpy()
    _state(copy).assign(3.0 * _state(copy))
    copy.kernel.variance.assign(9.0)
    np.testing.assert_array_equal(model.predict_f(XNEW)[0], kept)
    assert np.abs(copy.predict_f(XNEW)[0] - kept).max() > 0.1


@pytest.mark.parametrize("model", FEW, indirect=True)
def test_gpflow_optimisers_lower_the_loss(model) -> None:
    before = _loss(model)
    gpflow.optimizers.Scipy().minimize(
        lambda: _loss(model), model.trainable_variables, options={"maxiter": 3}
    )
    assert _loss(model) < before - 1e-3


@pytest.mark.parametrize("model", SOME, indirect=True)
def test_loss_gradient_equals_central_differences(model) -> None:
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = _loss(model)
    step = 1e-5
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        index = (0,) * len(variable.shape)
        unit = np.zeros(variable.shape)
        unit[index] = step
        middle = variable.numpy()
        variable.assign(middle + unit)
        above = _loss(model)
        variable.assign(middle - unit)
        below = _loss(model)
        variable.assign(middle)
        # Rounding 1e-15·|loss|/step and truncation step² leave about 1e-8 of slopes of size 1.
        np.testing.assert_allclose(
            gradient.numpy()[index], (above - below) / (2 * step), rtol=1e-6, atol=1e-7
        )


def test_a_function_of_the_user_is_read_by_autograph_without_a_warning(monkeypatch) -> None:
    """It rewrites all that the function calls, and warns where it cannot read the code."""
    model, warned = _settled(MODELS["VGPKMM"]()), []
    monkeypatch.setattr(tf.get_logger(), "warning", lambda *arguments, **_: warned.append(arguments))
    found, expected = tf.function(model.predict_y)(XNEW), model.predict_y(XNEW)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert warned == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_loss_and_prediction_compile_under_xla(request, dtype) -> None:
    gpflow.config.set_default_float(dtype)
    request.addfinalizer(lambda: gpflow.config.set_default_float(np.float64))
    model = VGPKMM(DATA, problems.kernel(), BernoulliLogit())
    gpx.fit(model, steps=1, hyper_updates=1, site_updates=3)
    X = tf.constant(XNEW, gpflow.default_float())
    tolerance = {"rtol": 1e-10, "atol": 1e-10} if dtype == np.float64 else {"rtol": 2e-4, "atol": 2e-4}
    for call in (
        model.training_loss,
        lambda: tf.concat(model.predict_f(X), 0),
        lambda: model.predict_y(X)[0],
    ):
        compiled = tf.function(call, jit_compile=True, autograph=False)()
        assert compiled.dtype == dtype
        np.testing.assert_allclose(compiled, call(), **tolerance)


@pytest.mark.parametrize("model", FEW, indirect=True)
def test_checkpoint_and_export_round_trips(model, request, tmp_path) -> None:
    tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
    fresh = MODELS[request.node.callspec.params["model"]]()
    tf.train.Checkpoint(model=fresh).read(str(tmp_path / "ckpt")).assert_consumed()
    np.testing.assert_array_equal(fresh.predict_f(XNEW)[0], model.predict_f(XNEW)[0])
    folder = gpx.export(model, tmp_path / "model", example=XNEW)
    out = gpx.load_exported(folder).predict(XNEW)
    expected = model.predict_y(XNEW)[0]
    found = out["probabilities"][:, -expected.shape[1] :] if "probabilities" in out else out["mean"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    manifest = json.loads((folder / "manifest.json").read_text())
    known = hasattr(model, "data")  # other models do not hold their data
    dense = getattr(model, "inducing_variable", None) is None
    assert manifest["holds_training_inputs"] is (dense if known else None)


def test_wrong_data_is_refused_at_the_door() -> None:
    X, Y = DATA
    bad = X.copy()
    bad[3, 1] = np.nan
    cases = [
        ((bad, Y), r"row 3, column 1"),
        ((X, np.where(Y > 0, np.inf, 0.0)), "Y must be finite"),
        ((X, Y[:-1]), "X has 20 and Y has 19"),
        ((X, Y[:, 0]), r"reshape\(-1, 1\)"),
        ((X, Y + 1.0), r"0 and 1"),
        ((X, np.where(Y > 0, 0.7, 0.3)), r"0 and 1"),
        ((X, np.where(Y > 0, "yes", "no")), "Encode"),
        ((X[:0], Y[:0]), "empty"),
        (X, "pair"),
    ]
    for data, message in cases:
        with pytest.raises(ValueError, match=message):
            VGPKMM(data, problems.kernel(), BernoulliLogit())
    with pytest.raises(ValueError, match="counts"):
        VGPKMM((X, Y - 0.5), problems.kernel(), gpflow.likelihoods.Poisson())
    with pytest.raises(ValueError, match="`kernel` has 2 outputs, but there are 1"):
        VGPKMM(DATA, gpflow.kernels.SharedIndependent(problems.kernel(), 2), BernoulliLogit())


def test_integers_and_single_precision_are_cast() -> None:
    X, Y = DATA
    model = VGPKMM((X.astype(np.float32), Y.astype(np.int64)), problems.kernel(), BernoulliLogit())
    assert {part.dtype for part in model.data} == {tf.float64}


def test_cite() -> None:
    assert "Fast {B}ayesian Inference" in gpx.cite(VGPKMM)
    assert "{MCMC} for Variationally Sparse" in gpx.cite(SVGPRobustMax)
    assert "Scalable {G}aussian Process Regression Networks" in gpx.cite(GPRNTensor)
    assert r"Hern{\'a}ndez-Lobato, Daniel" in gpx.cite(SparseEP)
    for cls in (GPLaplace, GPJaakkola, GPTaylor):
        assert "Review of materials on {G}aussian Processes" in gpx.cite(cls)
    assert gpx.cite(MODELS["VGPKMM"]()) == gpx.cite(VGPKMM)
    held = SimpleNamespace(model=ModelAverage([MODELS["VGPKMM"](), MODELS["GPLaplace"]()], [0.5, 0.5]))
    assert gpx.cite(held) == gpx.cite(VGPKMM) + "\n\n" + gpx.cite(GPLaplace)
    assert gpx.cite(SimpleNamespace(model_=MODELS["SparseEP"]())) == gpx.cite(SparseEP)
    assert gpx.cite(gpflow.models.VGP) == gpx.cite("GPflow")
    with pytest.raises(ValueError, match=r"dict; the models with one are: .*VGPKMM"):
        gpx.cite(dict)
