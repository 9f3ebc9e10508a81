"""The starting point of a regression network: the best of several, each after some iterations of L-BFGS."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.data import length_scales
from gpflow_ext.gprn import factors, network, node_kernels, renewal
from gpflow_ext.gprn.collapsed import CollapsedPosterior
from gpflow_ext.gprn.coregionalised import Coregionalised
from gpflow_ext.gprn.model import GPRNTensor
from gpflow_ext.gprn.outputs import StreamOutputs
from gpflow_ext.gprn.scales import LEAST
from gpflow_ext.gprn.updates import Updates
from gpflow_ext.training.starts import OWN, Tried, are_enough, assign, further_starts, ranked

Array = npt.NDArray[np.float64]

INDEPENDENT, MOMENTS, FACTORS = "independent regressions", "moments of the targets", "factors of the targets"
SUITED, DRAWN = "moments of the targets, whose kernels suit them", "small nodes with such kernels"
_FURTHER = 2  # starts that are climbed further, by as many iterations
_START_UPDATES = 200  # iterations of L-BFGS on independent regressions, at most
# Of the length scales of k_w, which are those of the targets at first.
_STRETCHES = (1.0, 1.5, 2.5, 5.0, 10.0)
_FAR = 5.0  # length scales of k_w over those that the inputs suggest: weights are almost constant
_LENGTHS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)  # of k_f, in the same units
_LEAST_AMPLITUDE = 0.05
_WITHIN = 1.0 + 1e-6  # of a bound, where its inverse transform is finite
_LEAST_NOISE = (
    0.05  # of the mean square of an output: evidence may rise to where an output is a node without any
)
_SHARES = (0.01, 0.1, 0.3, 0.6)  # of the nugget in the variance of a node


def begin(
    model: GPRNTensor, everything: Sequence[tf.Variable], updates: Updates, settings: Mapping[str, Any]
) -> tuple[Tried, ...]:
    """Move the model to the best of its starts; see `climbed`."""
    tried, ends = climbed(model, everything, updates, settings)
    back(model, ends[0])
    return tried


def climbed(
    model: GPRNTensor, everything: Sequence[tf.Variable], updates: Updates, settings: Mapping[str, Any]
) -> tuple[tuple[Tried, ...], list[list[tf.Tensor]]]:
    """Climb from each start by some iterations of L-BFGS on everything, from the best two further.

    Parameters
    ----------
    model
        The network.
    everything
        What is climbed: all that is trainable.
    updates
        Updates of the network, differentiated in these variables.
    settings
        Which starts there are, by the names of `recipe.GPRNOptions`, and ``hyper_updates``, the iterations;
        with ``starts`` also the ``seed`` of random ones.

    Returns
    -------
    What was tried, nothing if there is one start, and the values of the model's variables at the ends of the
    best starts, at most two, the best first.
    """
    independent = _once(model, lambda: _independent_start(model, updates))
    starts: list[tuple[str, Callable[[], None]]] = [(OWN, lambda: None)]
    if settings["independent_start"]:
        starts.append((INDEPENDENT, independent))
    if settings["moment_start"] and model.inducing_variable is None:
        first = independent if settings["independent_start"] else lambda: None
        starts.append((MOMENTS, lambda: _moment_start(model, updates, first, suited=False)))
        suited = _once(model, lambda: _moment_start(model, updates, first, suited=True))
        starts += [(SUITED, suited), (DRAWN, lambda: _drawn_start(model, updates, suited))]
    if settings["factor_start"] and _has_factors(model):
        starts.append((FACTORS, lambda: _factor_start(model, updates.in_graph)))
    if settings["starts"] is not None:
        starts = _as_many(model, starts, settings["starts"], settings["seed"])
    if len(starts) == 1:
        return (), [kept(model)]
    climb = updates.climb(everything) if everything else None

    def climb_from_here(name: str) -> Tried:
        if climb is None:
            return Tried(name, updates.value())
        climb.restart()
        climb.climb(settings["hyper_updates"])
        return Tried(name, float(climb.best))

    here, ends = kept(model), []
    tried: list[Tried] = []
    for name, move in starts:
        if are_enough(tried):
            break
        back(model, here)
        move()
        begun = kept(model)
        tried.append(climb_from_here(name))
        climbs_alone = name == INDEPENDENT and not settings["joint"]  # sweeps climb from these themselves
        ends.append(begun if climbs_alone else kept(model))
    if settings["joint"] and len(tried) > _FURTHER:
        for at in ranked(tried)[:_FURTHER]:
            if are_enough(tried):
                break
            back(model, ends[at])
            tried[at] = climb_from_here(tried[at].name)
            ends[at] = kept(model)
    return tuple(tried), [ends[at] for at in ranked(tried)[:_FURTHER]]


def _as_many(
    model: GPRNTensor, starts: list[tuple[str, Callable[[], None]]], number: int, seed: int
) -> list[tuple[str, Callable[[], None]]]:
    """Return the first of the starts, or further ones of random hyperparameters beside all of them."""
    further = further_starts(model, max(0, number - len(starts)), seed)
    moves = [
        (start.name, functools.partial(assign, model.trainable_variables, start.values)) for start in further
    ]
    return [*starts[:number], *moves]


def _independent_start(model: GPRNTensor, updates: Updates) -> None:
    """Move k_w and σ² to those of independent regressions, and the nodes to where these lead."""
    climb = updates.independent_climb()
    if climb is not None:
        climb.climb(_START_UPDATES)
    updates.start_at(model.q.start(model.prior()))


def _moment_start(model: GPRNTensor, updates: Updates, first: Callable[[], None], suited: bool) -> None:
    """Move the model to nodes by the method of moments, with k_w of the length scale that suits them best.

    ``first`` gives k_w and σ² to begin with. With ``suited`` k_f and the nugget are of a grid, too, such that
    the nodes are most probable.
    """
    first()
    own, nugget = _values(model.kernel), model.nugget.numpy()
    lengths = [
        parameter
        for name, parameter in gpflow.utilities.parameter_dict(model.weight_kernel).items()
        if name.endswith("lengthscales") and parameter.trainable
    ]
    before = [length.numpy() for length in lengths]

    def stretched(factor: float) -> tuple[float, list[tf.Tensor]]:
        for length, value in zip(lengths, before, strict=True):
            length.assign(factor * value)
        prior = model.prior()
        gram = tf.matmul(prior.weights, prior.weights, transpose_b=True)
        F = network.moment_nodes(model.q.seen(prior.scales), gram, prior.noise, model.num_latent)
        if suited and np.any(F):
            _restore(model.kernel, own)
            _assign(model.nugget, nugget)
            _suit_nodes(model, F.numpy())
        updates.start_at(F)
        found = updates.evaluate()[0]
        return found if np.isfinite(found) else -np.inf, kept(model)

    starts = [stretched(factor) for factor in (_STRETCHES if lengths else (1.0,))]
    back(model, max(starts, key=lambda start: start[0])[1])


def _drawn_start(model: GPRNTensor, updates: Updates, suited: Callable[[], None]) -> None:
    """Give nodes the kernels of `_moment_start`, and the model small draws of these, else as it is."""
    here = kept(model)
    suited()
    kernel, nugget = _values(model.kernel), model.nugget.numpy()
    back(model, here)
    _restore(model.kernel, kernel)
    _assign(model.nugget, nugget)
    prior = model.prior()
    updates.start_at(network.start(renewal.draws(prior, model.num_latent, 0), prior.weights, prior.noise))


def _has_factors(model: GPRNTensor) -> bool:
    """Tell whether the targets have factors, few numbers to find: with no more outputs than data."""
    outputs = model.outputs
    small = outputs.num_outputs <= outputs.num_data and not isinstance(outputs, StreamOutputs)
    if not (small and model.inducing_variable is None and isinstance(model.q, CollapsedPosterior)):
        return False
    return bool(np.nan_to_num(outputs.gather(range(outputs.num_outputs))).any())


def _factor_start(model: GPRNTensor, in_graph: bool | None) -> None:
    """Move the network to where it is nearly coregionalisation: with weights almost the same at all inputs.

    That of the highest evidence, by L-BFGS from the factors and the noise of `factors.factors` and from the
    length scale and the nugget of k_f, of a grid, under which the factors are most probable.
    """
    targets = model.outputs.gather(range(model.outputs.num_outputs)).numpy()
    F, loadings, noise = factors.factors(targets, model.num_latent)
    _assign(model.likelihood.variance, noise)
    variance = node_kernels.variance(model.kernel, model.data[0])
    scale = np.sqrt(variance / np.mean(F**2))
    _suit_nodes(model, scale * F)
    near = Coregionalised(model, targets, loadings / scale)
    near.fit(_START_UPDATES, in_graph)
    _raise_noise(model, np.nanmean(targets**2, axis=0))
    _stretch(model.weight_kernel, model.data[0], _FAR)
    _weigh(model, near.loadings.numpy())
    prior = model.prior()
    model.q.update(prior, network.nodes(prior.nodes, *near.sites()))


def _raise_noise(model: GPRNTensor, squares: Array) -> None:
    """Give outputs at least a share of their mean squares [D] as noise."""
    if model.output_noise is None:
        _assign(model.likelihood.variance, max(float(model.noise()), _LEAST_NOISE * float(np.mean(squares))))
    elif model.output_noise.trainable:
        common = float(tf.convert_to_tensor(model.likelihood.variance))
        least = np.maximum(_LEAST_NOISE * squares / common, _WITHIN * LEAST)  # of zeros, the bound itself
        model.output_noise.assign(np.maximum(model.output_noise, least))


def _suit_nodes(model: GPRNTensor, F: Array) -> None:
    """Give k_f the length scales, and nodes the nugget, under which F [N, K] is most probable, of a grid."""
    if not node_kernels.are_separate(model.kernel):
        _assign(model.nugget, _suit(model.kernel, model.data[0], F))
        return
    kernels, columns = node_kernels.each(model.kernel), np.split(F, F.shape[1], axis=1)
    shares = [_suit(kernel, model.data[0], f) for kernel, f in zip(kernels, columns, strict=True)]
    _assign(model.nugget, np.array(shares))


def _suit(kernel: gpflow.kernels.Kernel, X: tf.Tensor, F: Array) -> float:
    """Give a kernel the length scales under which the nodes F [N, K] that have it are most probable.

    The Gram matrix of a sum of kernels is scaled as a whole, even where only some variances are trainable.

    Returns
    -------
    The nugget that goes with them.
    """
    before, variance, own = _values(kernel), float(np.mean(F**2)), node_kernels.variance(kernel, X)
    scales = []
    for share in _SHARES:
        _scale(kernel, (1.0 - share) * variance / own)
        scales.append((share, node_kernels.variance(kernel, X) / own))
        _restore(kernel, before)
    found = []
    for length in _LENGTHS:
        _stretch(kernel, X, length)
        eigenvalues, vectors = np.linalg.eigh(node_kernels.gram(kernel, X).numpy().astype(np.float64))
        squares = np.sum((vectors.T @ F) ** 2, axis=1)
        for share, scale in scales:
            variances = scale * np.maximum(eigenvalues, 0.0) + share * variance + gpflow.default_jitter()
            density = -0.5 * np.sum(squares / variances + F.shape[1] * np.log(variances))
            found.append((density, length, share))
    _, length, share = max(found)
    _stretch(kernel, X, length)
    _scale(kernel, (1.0 - share) * variance / own)
    return share * variance


def _weigh(model: GPRNTensor, loadings: Array) -> None:
    """Give the weights the mean squares of loadings [D, K], those of each output or of all."""
    own = float(tf.reduce_mean(model.weight_kernel(model.data[0], full_cov=False)))
    squares = np.mean(loadings**2, axis=1) / own
    common = float(np.mean(squares))
    _scale(model.weight_kernel, common)
    if model.output_amplitude is not None and model.output_amplitude.trainable:
        left = common * own / float(tf.reduce_mean(model.weight_kernel(model.data[0], full_cov=False)))
        model.output_amplitude.assign(np.maximum(np.sqrt(left * squares / common), _LEAST_AMPLITUDE))


def _stretch(kernel: gpflow.kernels.Kernel, X: tf.Tensor, factor: float) -> None:
    """Give the stationary parts of a kernel a multiple of the length scales that the inputs suggest."""
    for part in length_scales.stationary(kernel):
        value = length_scales.suggested(part, X)
        if value is not None:
            part.lengthscales.assign(factor * value)


def _scale(kernel: gpflow.kernels.Kernel, factor: float) -> None:
    """Multiply the variances of the stationary parts of a kernel, where they are trainable."""
    for part in length_scales.stationary(kernel):
        if part.variance.trainable:
            part.variance.assign(factor * part.variance)


def _assign(parameter: Any, value: Any) -> None:
    """Assign a value to a parameter, where it is trainable, well within its bounds if it has any."""
    if not parameter.trainable:
        return
    low, high = (getattr(parameter.transform, end, np.nan) for end in ("low", "high"))
    bounded = np.isfinite(low) and np.isfinite(high)
    parameter.assign(np.clip(value, 1.01 * float(low), 0.99 * float(high)) if bounded else value)


def _values(module: tf.Module) -> list[tf.Tensor]:
    return [parameter.numpy() for parameter in module.trainable_parameters]


def _restore(module: tf.Module, values: Sequence[Any]) -> None:
    for parameter, value in zip(module.trainable_parameters, values, strict=True):
        parameter.assign(value)


def _once(model: GPRNTensor, move: Callable[[], None]) -> Callable[[], None]:
    """Return a move that is made once, and afterwards goes to where it has led."""
    there: list[tf.Tensor] = []

    def moved() -> None:
        if there:
            back(model, there)
            return
        move()
        there.extend(kept(model))

    return moved


def kept(model: GPRNTensor) -> list[tf.Tensor]:
    """Return the values of all variables of a model."""
    return [variable.read_value() for variable in model.variables]


def back(model: GPRNTensor, values: Sequence[tf.Tensor]) -> None:
    """Give all variables of a model values that were `kept`."""
    for variable, value in zip(model.variables, values, strict=True):
        variable.assign(value)
