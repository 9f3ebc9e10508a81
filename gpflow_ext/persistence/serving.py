"""The graph that is exported: raw inputs in, predictions out, owning only the variables that it reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.posteriors import BasePosterior, PrecomputeCacheType

from gpflow_ext import _collector
from gpflow_ext.compiled import examine, gradients, make_exact
from gpflow_ext.data.reading.treatment import Treatment
from gpflow_ext.functions.draws import NUM_FEATURES, by_blocks
from gpflow_ext.functions.product import paths_of
from gpflow_ext.numerics.exposures import at_exposures
from gpflow_ext.numerics.target_moments import has_variance
from gpflow_ext.prediction.composed import ComposedModel, PerOutput
from gpflow_ext.prediction.densities import GaussianPredictions, Predictions
from gpflow_ext.prediction.functions import given_of

from . import joint_draws, raw_rows
from .folding import Store, fold
from .joint_draws import Joint
from .numbered import Numbered, are_known, numbered_columns
from .row_blocks import in_blocks
from .targets import known_targets, of_known_outputs, target_width
from .verify.columns import COUNTS

Profile = Literal["exact", "cached", "portable", "stablehlo"]
# Signatures that are not called in blocks: they have their own, or none.
_WHOLE = ("sample", joint_draws.NAME)
_OPAQUE = (gpflow.Parameter, tfp.bijectors.Bijector, tfp.distributions.Distribution)
Latent = Callable[..., tuple[tf.Tensor, tf.Tensor]]
Draw = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class Served(NamedTuple):
    """A module to save, its signatures, and the arrays of the model that they were made from."""

    module: tf.Module
    signatures: dict[str, Any]
    whole: Any  # serving_default for all rows at once
    sources: list[np.ndarray[Any, Any]]


def build(
    model: gpflow.models.GPModel,
    mean: np.ndarray[Any, Any],
    scale: np.ndarray[Any, Any],
    labels: Sequence[str] | None,
    profile: Profile,
    treatment: Treatment | None = None,
    num_samples: int = 0,
) -> Served:
    """Trace the signatures of a trained model, which is left untouched.

    Parameters
    ----------
    model
        Any GPflow model.
    mean, scale
        Standardisation of raw inputs, ``(x - mean) / scale``, shape [D] each.
    labels
        Names of the classes in order, or ``None``.
    profile
        "exact" keeps the graph that the model itself runs; the others compute once what does not depend on
        the inputs.
    treatment
        How raw columns become inputs; if it is given there is a signature that takes them.
    num_samples
        Number of functions that the signature ``sample`` draws; with 0 there is no such signature.

    Raises
    ------
    ValueError
        For a likelihood that predicts by random numbers, or whose targets have no variance.
    """
    _check_likelihoods(model)
    if mean.dtype == np.float32:
        make_exact()
    frozen = gpflow.utilities.deepcopy(model)
    predictions, per_output, joint = _predictor(frozen, profile)
    graph = _Graph(predictions, mean, scale, labels, numbered_columns(model, len(mean)))
    dtype = tf.as_dtype(mean.dtype)
    inputs = tf.TensorSpec([None, len(mean)], dtype, "inputs")
    predict_f = _trace(graph.predict_f, inputs)
    predict = _trace(graph.predict, inputs)
    outputs = predict.structured_outputs
    targets = tf.TensorSpec([None, target_width(frozen.likelihood, outputs)], dtype, "targets")
    density = functools.partial(graph.predict_log_density, outputs.get("probabilities"))
    signatures = {
        "serving_default": predict,
        "predict_f": predict_f,
        "predict_log_density": _trace(density, inputs, targets),
    }
    num_outputs = predict_f.structured_outputs["mean"].shape[-1]
    exposure = tf.TensorSpec([None, 1], dtype, "exposure")
    if getattr(frozen.likelihood, "exposure", False):
        signatures[COUNTS] = _trace(graph.predict_counts, inputs, exposure)
    if per_output is not None:
        numbers = tf.TensorSpec([None], tf.int32, "outputs")
        some = of_known_outputs(functools.partial(graph.predict_outputs, per_output), num_outputs)
        signatures["predict_outputs"] = _trace(some, inputs, numbers)
    if profile == "stablehlo" and joint is not None:
        normals = tf.TensorSpec([None, None, num_outputs], dtype, "normals")
        drawn = _trace_if_can(functools.partial(graph.sample_joint, joint), inputs, normals)
        signatures |= {} if drawn is None else {joint_draws.NAME: drawn}
    if num_samples:
        seed = tf.TensorSpec([1], tf.int32, "seed")
        draw = functools.partial(graph.sample, _functions(frozen, num_samples))
        signatures["sample"] = _trace(draw, inputs, seed)
    sources = list(_arrays(signatures.values()))
    if profile != "exact":
        store = Store()
        signatures = {key: _fold(signature, store) for key, signature in signatures.items()}
    examine(frozen).clear_caches()
    module = tf.Module(name="served")
    # A signature may read only what the saved module owns, and whatever else it owned would be saved for
    # nothing.
    read = {id(v): v for signature in signatures.values() for v in signature.graph.variables}
    module.variables_read = list(read.values())
    whole = signatures["serving_default"]
    if profile != "portable":  # the runtimes of ONNX have loops of their own
        signatures = {
            key: signature if key in _WHOLE else _trace_blocks(signature)
            for key, signature in signatures.items()
        }
    if treatment is not None:
        function, specs = raw_rows.raw_signature(treatment, signatures["serving_default"], dtype)
        signatures[raw_rows.NAME] = _trace(function, *specs)
        if COUNTS in signatures:
            function, specs = raw_rows.raw_signature(treatment, signatures[COUNTS], dtype, [exposure])
            signatures[raw_rows.COUNTS] = _trace(function, *specs)
    return Served(module, signatures, whole, sources)


def _check_likelihoods(model: gpflow.models.GPModel) -> None:
    monte_carlo = gpflow.likelihoods.MonteCarloLikelihood
    for part in model.submodules:
        if getattr(type(part), "_predict_mean_and_var", None) is monte_carlo._predict_mean_and_var:
            raise ValueError(
                f"{type(part).__name__} predicts by random numbers, other ones at each call: use another "
                "likelihood, such as gpflow_ext.likelihoods.MultinomialLogit for Softmax"
            )
        if isinstance(part, gpflow.likelihoods.Likelihood) and not has_variance(part):
            raise ValueError(
                "targets of StudentT have no variance unless df is above 2, and an exported model predicts it"
            )


def _trace_if_can(function: Callable[..., dict[str, tf.Tensor]], *specs: tf.TensorSpec) -> Any:
    """Trace a function; ``None`` where the posterior has no covariance between rows."""
    try:
        return _trace(function, *specs)
    except NotImplementedError:
        return None


def _fold(signature: Any, store: Store) -> Any:
    folded = fold(signature, store)
    return signature if folded is None else _trace(folded, *signature.structured_input_signature[0])


def _trace_blocks(signature: Any) -> Any:
    return _trace(in_blocks(signature), *signature.structured_input_signature[0])


def _arrays(signatures: Iterable[Any]) -> Iterable[np.ndarray[Any, Any]]:
    """Yield the variables, captured tensors and constants of signatures."""
    for signature in signatures:
        yield from (variable.numpy() for variable in signature.graph.variables)
        yield from (t.numpy() for t in signature.captured_inputs if t.dtype.is_floating)
        constants = (op for op in signature.graph.get_operations() if op.type == "Const")
        yield from (tf.make_ndarray(op.get_attr("value")) for op in constants)


def _trace(function: Callable[..., dict[str, tf.Tensor]], *specs: tf.TensorSpec) -> Any:
    before = gradients.registered()
    with _collector.paused():
        try:
            traced = tf.function(function, autograph=False).get_concrete_function(*specs)
        except tf.errors.OperatorNotAllowedInGraphError:
            # A user's function branches on tensors; GPflow's own do not, and trace three times faster so.
            traced = tf.function(function).get_concrete_function(*specs)
    gradients.release(before, traced.graph)
    return traced


class _Graph:
    """The functions behind the signatures. f is computed once in each."""

    def __init__(
        self,
        predictions: Callable[[tf.Tensor], Predictions],
        mean: np.ndarray[Any, Any],
        scale: np.ndarray[Any, Any],
        labels: Sequence[str] | None,
        numbered: Numbered,
    ) -> None:
        self._predictions, self._labels, self._numbered = predictions, labels, numbered
        self._mean, self._scale = (tf.Variable(a, trainable=False) for a in (mean, scale))

    def predict_f(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        predictions, ok = self._at(inputs)
        mean, variance = predictions.f()
        return {"mean": _keep(mean, ok), "variance": _keep(variance, ok)}

    def predict(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        predictions, ok = self._at(inputs)
        mean, variance = predictions.mean_and_var()
        ok &= _finite_rows(mean, variance)
        outputs = {"mean": _keep(mean, ok), "variance": _keep(variance, ok), "is_finite": ok}
        probabilities = predictions.probabilities()
        if probabilities is not None:
            index = tf.argmax(probabilities, axis=-1)
            outputs["probabilities"] = _keep(probabilities, ok)
            outputs["class"] = tf.where(ok, index, tf.constant(-1, index.dtype))
            if self._labels is not None:
                outputs["label"] = tf.where(ok, tf.gather(tf.constant(list(self._labels)), index), "")
        return outputs

    def predict_log_density(self, probs: Any, inputs: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
        predictions, ok = self._at(inputs)
        targets, ok = known_targets(targets, ok & _finite_rows(targets), probs)
        return {"log_density": _keep(predictions.log_density(targets), ok)}

    def predict_counts(self, inputs: tf.Tensor, exposure: tf.Tensor) -> dict[str, tf.Tensor]:
        predictions, ok = self._at(inputs)
        mean, variance = at_exposures(*predictions.mean_and_var(), exposure)
        ok &= _finite_rows(mean, variance) & (exposure[:, 0] > 0.0)
        return {"mean": _keep(mean, ok), "variance": _keep(variance, ok), "is_finite": ok}

    def predict_outputs(
        self, per_output: PerOutput, inputs: tf.Tensor, outputs: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        X, ok = self._standardised(inputs)
        mean, variance = per_output(X, outputs)
        ok &= _finite_rows(mean, variance)
        return {"mean": _keep(mean, ok), "variance": _keep(variance, ok)}

    def sample(self, draw: Draw, inputs: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        X, ok = self._standardised(inputs)
        return {"samples": _keep(draw(X, tf.ensure_shape(seed, [1])[0]), ok)}

    def sample_joint(self, joint: Joint, inputs: tf.Tensor, normals: tf.Tensor) -> dict[str, tf.Tensor]:
        X, ok = self._standardised(inputs)
        return joint_draws.sample(joint, X, ok, normals)

    def _at(self, inputs: tf.Tensor) -> tuple[Predictions, tf.Tensor]:
        """Predict at standardised inputs, and tell for which rows f is finite."""
        X, ok = self._standardised(inputs)
        predictions = self._predictions(X)
        mean, variance = predictions.f()  # [N, P]
        return predictions, ok & _finite_rows(mean, variance)

    def _standardised(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the model's inputs, rows that have no answer replaced: they must not spoil the others."""
        inputs = tf.ensure_shape(inputs, [None, self._mean.shape[0]])  # others would be broadcast
        X = (inputs - self._mean) / self._scale  # [N, D]
        ok = are_known(X, _finite_rows(X), self._numbered)
        return tf.where(ok[:, None], X, tf.constant(0.0, X.dtype)), ok


def _finite_rows(*parts: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(tf.concat(parts, axis=-1)), axis=-1)


def _keep(x: tf.Tensor, ok: tf.Tensor) -> tf.Tensor:
    """Set the rows of ``x`` that are not ``ok`` to NaN."""
    rows = tf.reshape(ok, [-1] + [1] * (x.shape.rank - 1))
    return tf.where(rows, x, tf.constant(np.nan, x.dtype))


def _predictor(
    model: gpflow.models.GPModel, profile: Profile
) -> tuple[Callable[[tf.Tensor], Predictions], PerOutput | None, Joint | None]:
    """Return what the model predicts at X, by the operations of the live model.

    Where the posterior has ``predict_outputs`` the second is ``X, outputs -> mean, variance`` of y for some
    of many outputs; the third is the joint distribution at all rows, of a Gaussian posterior.

    GPflow's own posteriors cache ``Qinv``, which differs from the live model by about cond(Kuu) times the
    rounding unit (2e-10 is typical): they cache nothing here, and folding finds the factors.
    """
    if isinstance(model, ComposedModel):
        parts = [_predictor(part, profile) for part in model.parts()]
        _to_variables(model, {})
        some = model.some_outputs([part[1] for part in parts])
        return (lambda X: model.combined([predict(X) for predict, *_ in parts])), some, None
    if not hasattr(model, "posterior"):
        _to_variables(model, {})
        return (lambda X: GaussianPredictions(model.likelihood, X, *model.predict_f(X))), None, None
    posterior = model.posterior(precompute_cache=PrecomputeCacheType.NOCACHE)
    fused = profile == "exact" or isinstance(posterior, BasePosterior)
    if not fused:
        posterior.update_cache(PrecomputeCacheType.TENSOR)
    _to_variables(posterior, {})
    per_output = getattr(posterior, "predict_outputs", None)
    if hasattr(posterior, "predictions"):
        return posterior.predictions, per_output, None
    latent: Latent = posterior.fused_predict_f if fused else posterior.predict_f
    lowers = getattr(posterior, "lowers_covariances", True)
    joint: Joint | None = functools.partial(latent, full_cov=True) if lowers else None
    return (lambda X: GaussianPredictions(model.likelihood, X, *latent(X))), per_output, joint


def _functions(model: gpflow.models.GPModel, num_samples: int) -> Draw:
    """Return what draws functions of the model for a seed and gives their values at X, [N, S, P]."""
    posterior = model.posterior() if hasattr(model, "posterior") else None
    for module in (posterior, model):
        if module is not None:
            _to_variables(module, {})
    paths = paths_of(given_of(model, posterior), num_samples, NUM_FEATURES, 1)

    def draw(X: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        state = paths.state(seed, given_of(model, posterior))
        return by_blocks(paths, state, X)

    return draw


def _to_variables(module: tf.Module, done: dict[Any, tf.Variable]) -> None:
    """Turn the tensors that a module holds into variables: constants count against the 2 GB of a graph."""
    for name, value in list(vars(module).items()):
        if name.startswith("_self_") or name in module._TF_MODULE_IGNORED_PROPERTIES:
            continue
        leaves = list(value) if isinstance(value, list | tuple) else [value]
        for leaf in leaves:
            if isinstance(leaf, tf.Module) and not isinstance(leaf, _OPAQUE):
                _to_variables(leaf, done)
        if any(map(_is_array, leaves)):
            held = [_variable(leaf, done) if _is_array(leaf) else leaf for leaf in leaves]
            setattr(module, name, tuple(held) if isinstance(value, list | tuple) else held[0])


def _is_array(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating and value.shape.rank > 0


def _variable(tensor: tf.Tensor, done: dict[Any, tf.Variable]) -> tf.Variable:
    key = tensor.ref()
    if key not in done:
        done[key] = tf.Variable(tensor, trainable=False)
    return done[key]
