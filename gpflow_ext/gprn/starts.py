"""The starting point of a regression network: the best of several, each after some iterations of L-BFGS."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.gprn import factors
from gpflow_ext.gprn.collapsed import CollapsedPosterior
from gpflow_ext.gprn.coregionalised import Coregionalised
from gpflow_ext.gprn.model import GPRNTensor
from gpflow_ext.gprn.outputs import StreamOutputs
from gpflow_ext.gprn.scales import LEAST
from gpflow_ext.gprn.suited import (
    rescale,
    restore,
    stretch,
    suit_nodes,
    values_of,
    variance_of,
    within_bounds,
)
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
_LEAST_AMPLITUDE = 0.05
_WITHIN = 1.0 + 1e-6  # of a bound, where its inverse transform is finite
_LEAST_NOISE = (
    0.05  # of the mean square of an output: evidence may rise to where an output is a node without any
)


def begin(
    model: GPRNTensor, everything: Sequence[tf.Variable], updates: Updates, settings: Mapping[str, Any]
) -> tuple[Tried, ...]:
    """Move the model to the best of its starts; see `climbed`."""
    tried, ends = climbed(model, everything, updates, settings)
    assign(updates.held, ends[0])
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
    known: dict[float, tf.Tensor] = {}  # nodes by the method of moments, see `_moment_start`
    independent = _once(updates, lambda: _independent_start(model, updates))
    starts: list[tuple[str, Callable[[], None]]] = [(OWN, lambda: None)]
    if settings["independent_start"]:
        starts.append((INDEPENDENT, independent))
    if settings["moment_start"] and model.inducing_variable is None:
        first = independent if settings["independent_start"] else lambda: None
        starts.append((MOMENTS, lambda: _moment_start(model, updates, first, known, suited=False)))
        suited = _once(updates, lambda: _moment_start(model, updates, first, known, suited=True))
        starts += [(SUITED, suited), (DRAWN, lambda: _drawn_start(model, updates, suited))]
    if settings["factor_start"] and _has_factors(model):
        starts.append((FACTORS, lambda: _factor_start(model, updates)))
    if settings["starts"] is not None:
        starts = _as_many(model, starts, settings["starts"], settings["seed"])
    if len(starts) == 1:
        return (), [updates.kept()]
    climb = updates.climb(everything) if everything else None

    def climb_from_here(name: str) -> Tried:
        if climb is None:
            return Tried(name, updates.value())
        climb.restart()
        climb.climb(settings["hyper_updates"])
        return Tried(name, float(climb.best))

    here, ends = updates.kept(), []
    tried: list[Tried] = []
    for name, move in starts:
        if are_enough(tried):
            break
        assign(updates.held, here)
        move()
        begun = updates.kept()
        tried.append(climb_from_here(name))
        climbs_alone = name == INDEPENDENT and not settings["joint"]  # sweeps climb from these themselves
        ends.append(begun if climbs_alone else updates.kept())
    if settings["joint"] and len(tried) > _FURTHER:
        for at in ranked(tried)[:_FURTHER]:
            if are_enough(tried):
                break
            assign(updates.held, ends[at])
            tried[at] = climb_from_here(tried[at].name)
            ends[at] = updates.kept()
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
    updates.start_at(updates.begun("own"))


def _moment_start(
    model: GPRNTensor,
    updates: Updates,
    first: Callable[[], None],
    known: dict[float, tf.Tensor],
    suited: bool,
) -> None:
    """Move the model to nodes by the method of moments, with k_w of the length scale that suits them best.

    ``first`` gives k_w and σ² to begin with, always the same, and ``known`` keeps the nodes that go with
    multiples of its length scales. With ``suited`` k_f and the nugget are of a grid, too, such that the nodes
    are most probable.
    """
    first()
    own, nugget = values_of(model.kernel), model.nugget.numpy()
    lengths = [
        parameter
        for name, parameter in gpflow.utilities.parameter_dict(model.weight_kernel).items()
        if name.endswith("lengthscales") and parameter.trainable
    ]
    before = [length.numpy() for length in lengths]

    def stretched(factor: float) -> tuple[float, list[tf.Tensor]]:
        for length, value in zip(lengths, before, strict=True):
            length.assign(factor * value)
        if factor not in known:
            known[factor] = updates.begun("moments")
        F = known[factor]
        if suited and np.any(F):
            restore(model.kernel, own)
            within_bounds(model.nugget, nugget)
            suit_nodes(model, F.numpy())
        updates.start_at(F)
        found = updates.evaluate()[0]
        return found if np.isfinite(found) else -np.inf, updates.kept()

    starts = [stretched(factor) for factor in (_STRETCHES if lengths else (1.0,))]
    assign(updates.held, max(starts, key=lambda start: start[0])[1])


def _drawn_start(model: GPRNTensor, updates: Updates, suited: Callable[[], None]) -> None:
    """Give nodes the kernels of `_moment_start`, and the model small draws of these, else as it is."""
    here = updates.kept()
    suited()
    kernel, nugget = values_of(model.kernel), model.nugget.numpy()
    assign(updates.held, here)
    restore(model.kernel, kernel)
    within_bounds(model.nugget, nugget)
    updates.start_at(updates.begun("drawn"))


def _has_factors(model: GPRNTensor) -> bool:
    """Tell whether the targets have factors, few numbers to find: with no more outputs than data."""
    outputs = model.outputs
    small = outputs.num_outputs <= outputs.num_data and not isinstance(outputs, StreamOutputs)
    if not (small and model.inducing_variable is None and isinstance(model.q, CollapsedPosterior)):
        return False
    return bool(np.nan_to_num(outputs.gather(range(outputs.num_outputs))).any())


def _factor_start(model: GPRNTensor, updates: Updates) -> None:
    """Move the network to where it is nearly coregionalisation: with weights almost the same at all inputs.

    That of the highest evidence, by L-BFGS from the factors and the noise of `factors.factors` and from the
    length scale and the nugget of k_f, of a grid, under which the factors are most probable.
    """
    targets = model.outputs.gather(range(model.outputs.num_outputs)).numpy()
    F, loadings, noise = factors.factors(targets, model.num_latent)
    within_bounds(model.likelihood.variance, noise)
    variance = variance_of(model.kernel, model.data[0])
    scale = np.sqrt(variance / np.mean(F**2))
    suit_nodes(model, scale * F)
    near = Coregionalised(model, targets, loadings / scale)
    near.fit(_START_UPDATES, updates.in_graph)
    _raise_noise(model, np.nanmean(targets**2, axis=0))
    stretch(model.weight_kernel, model.data[0], _FAR)
    _weigh(model, near.loadings.numpy())
    updates.start_from(*near.sites())


def _raise_noise(model: GPRNTensor, squares: Array) -> None:
    """Give outputs at least a share of their mean squares [D] as noise."""
    if model.output_noise is None:
        within_bounds(
            model.likelihood.variance, max(float(model.noise()), _LEAST_NOISE * float(np.mean(squares)))
        )
    elif model.output_noise.trainable:
        common = float(tf.convert_to_tensor(model.likelihood.variance))
        least = np.maximum(_LEAST_NOISE * squares / common, _WITHIN * LEAST)  # of zeros, the bound itself
        model.output_noise.assign(np.maximum(model.output_noise, least))


def _weigh(model: GPRNTensor, loadings: Array) -> None:
    """Give the weights the mean squares of loadings [D, K], those of each output or of all."""
    own = variance_of(model.weight_kernel, model.data[0])
    squares = np.mean(loadings**2, axis=1) / own
    common = float(np.mean(squares))
    rescale(model.weight_kernel, common)
    if model.output_amplitude is not None and model.output_amplitude.trainable:
        left = common * own / variance_of(model.weight_kernel, model.data[0])
        model.output_amplitude.assign(np.maximum(np.sqrt(left * squares / common), _LEAST_AMPLITUDE))


def _once(updates: Updates, move: Callable[[], None]) -> Callable[[], None]:
    """Return a move that is made once, and afterwards goes to where it has led."""
    there: list[tf.Tensor] = []

    def moved() -> None:
        if there:
            assign(updates.held, there)
            return
        move()
        there.extend(updates.kept())

    return moved
