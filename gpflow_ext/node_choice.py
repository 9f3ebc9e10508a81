"""Choose the number of nodes of a regression network by the variational bound or a score of your own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpflow_ext.data import arguments
from gpflow_ext.fitting import fit
from gpflow_ext.models import GPRNTensor
from gpflow_ext.training.loop import FitResult


class NodesFit(NamedTuple):
    """The network with the highest score, the result of its fit, and bounds and scores by number of nodes."""

    model: GPRNTensor
    result: FitResult
    bounds: dict[int, float]
    scores: dict[int, float]


def fit_nodes(
    build: Callable[[int], GPRNTensor],
    *,
    most: int = 4,
    score: Callable[[GPRNTensor], Any] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> NodesFit:
    """Fit networks of 1, 2, … nodes until one more does not raise their score, and return the best.

    By default the score is the bound. A further node costs it the KL divergences of itself and its weights,
    and must explain more than that. But the bound does not estimate errors at new inputs, least of all with
    thousands of outputs, each of which it counts as evidence about the nodes. If predictions are what
    matters, hold out some targets and score networks by their density, then train one with as many nodes on
    all targets; or compare networks by `cross_validate`.

    Parameters
    ----------
    build
        Returns an untrained network for a number of nodes K, on the same data and with the same posterior.
    most
        The largest K.
    score
        Returns a number for a trained network, the higher the better, such as the sum of its
        ``predict_log_density`` of rows, or of its ``missing_log_density`` of targets, that were held out.
    checkpoint_dir
        Folder with one folder of checkpoints for each network, ``nodes_1`` and so on. The same call resumes
        with the network at which it was interrupted.
    options
        Further options of `fit`.

    Raises
    ------
    ValueError
        For ``most`` below one, or if ``build`` returns a network with another number of nodes, or ``score``
        more than a number.
    """
    arguments.check_callable(build=build)
    arguments.check_whole(most=most)
    if most < 1:
        raise ValueError(f"`most` must be at least 1; got {most}.")
    if score is not None:
        arguments.check_callable(score=score)
    bounds: dict[int, float] = {}
    scores: dict[int, float] = {}
    best: tuple[GPRNTensor, FitResult] | None = None
    for number in range(1, most + 1):
        model = build(number)
        arguments.check_kind(GPRNTensor, **{f"build({number})": model})
        if model.num_latent != number:
            raise ValueError(f"`build({number})` must return {number} nodes; got {model.num_latent}.")
        folder = None if checkpoint_dir is None else Path(checkpoint_dir) / f"nodes_{number}"
        result = fit(model, checkpoint_dir=folder, **options)
        bounds[number] = float(model.elbo())
        scores[number] = bounds[number] if score is None else _number(score(model))
        if best is not None and not scores[number] > max(list(scores.values())[:-1]):
            break
        best = model, result
    assert best is not None
    return NodesFit(*best, bounds, scores)


def _number(value: Any) -> float:
    if np.size(value) != 1:
        raise ValueError(f"`score` must return a number; its shape is {np.shape(value)}: sum it, say.")
    return float(np.ravel(value)[0])
