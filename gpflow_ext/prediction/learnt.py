"""What trained models have learnt: all their parameters, or a line for each member of an average."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gpflow.kernels import Kernel, MultioutputKernel, Product, Stationary, Sum
from gpflow.likelihoods import Likelihood
from gpflow.models import GPModel
from gpflow.utilities import parameter_dict

from gpflow_ext.data.length_scales import stationary
from gpflow_ext.prediction.average import ModelAverage
from gpflow_ext.prediction.composed import ComposedModel

_OF_NETWORKS = "weight_kernel", "nugget", "output_amplitude", "output_noise"
_LEARNT = {"kernel", "likelihood", "mean_function", *_OF_NETWORKS}
_SHOWN = 12  # numbers of a parameter
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_SMOOTHNESS = re.compile(r"matern(\d)(\d)")


def parameters(model: GPModel, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the names and values of what a model on inputs of these names has learnt; see `scales`."""
    lengths = {id(part.lengthscales): lengths_of(part, names) for part in stationary(model)}
    return [
        (name[1:], lengths.get(id(parameter)) or short(parameter.numpy()))
        for name, parameter in parameter_dict(model).items()
        if name.split(".")[1] in _LEARNT
    ]


def trained(model: GPModel, weight: float = 1.0) -> list[tuple[float, GPModel]]:
    """Return the models that were trained, of one that predicts by others, each with its weight there."""
    if not isinstance(model, ComposedModel):
        return [(weight, model)]
    parts = model.parts()
    shares = model.weights.numpy() if isinstance(model, ModelAverage) else np.ones(len(parts))
    return [each for part, share in zip(parts, shares, strict=True) for each in trained(part, weight * share)]


def in_words(kernel: Kernel) -> str:
    """Return a kernel in words, with all of its parameters but the length scales that `scales` returns."""
    if isinstance(kernel, MultioutputKernel):
        return "; ".join(dict.fromkeys(map(in_words, kernel.latent_kernels)))
    if isinstance(kernel, Sum | Product):
        sign = " + " if isinstance(kernel, Sum) else " × "
        parts = ((in_words(part), isinstance(part, Sum)) for part in kernel.kernels)
        return sign.join(f"({said})" if is_sum else said for said, is_sum in parts)
    words = _CAPITAL.sub(" ", type(kernel).__name__).lower()
    return with_values(_SMOOTHNESS.sub(r"Matérn \1/\2", words), kernel)


def with_values(name: str, part: Kernel | Likelihood) -> str:
    """Return a name with the parameters of a part of a model, but its length scales."""
    values = (
        f"{path[1:].replace('_', ' ')} {short(each.numpy())}"
        for path, each in parameter_dict(part).items()
        if path != ".lengthscales"
    )
    shown = ", ".join(values)
    return f"{name} ({shown})" if shown else name


def scales(kernel: Kernel, names: Sequence[str]) -> list[str]:
    """Return the length scales of each stationary part of a kernel on inputs of these names.

    Where each input has one, they have the names of the inputs, the shortest first: along it the function
    varies the most.
    """
    return [lengths_of(part, names) for part in stationary(kernel)]


def lengths_of(part: Stationary, names: Sequence[str]) -> str:
    """Return the length scales of a kernel as `scales` does, the first twelve of several."""
    lengths = part.lengthscales.numpy()
    seen = np.array(names, object)[part.active_dims]
    if lengths.shape != seen.shape:  # one for all, or those of features
        return short(lengths)
    order = np.argsort(lengths, kind="stable")
    more = f", … ({len(order)})" if len(order) > _SHOWN else ""
    return ", ".join(f"{seen[place]} {lengths[place]:.4g}" for place in order[:_SHOWN]) + more


def short(values: npt.NDArray[Any]) -> str:
    """Return the first twelve of some numbers as text."""
    flat = np.ravel(values)
    more = f", … ({len(flat)})" if len(flat) > _SHOWN else ""
    return ", ".join(f"{value:.4g}" for value in flat[:_SHOWN]) + more
