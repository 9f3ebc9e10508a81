"""Oddities of trained parameters: they have diverged, are at a bound, or have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gpflow
import numpy as np
from gpflow.kernels import Kernel, Linear, Stationary
from tensorflow_probability import distributions

from gpflow_ext.data import on_host
from gpflow_ext.data.checks import Array
from gpflow_ext.likelihoods.binary import BinaryLikelihood
from gpflow_ext.likelihoods.categorical import MultinomialLogit, StickBreaking
from gpflow_ext.sites.units import is_unlinked, squares, unweighted

_CLASSES = (
    gpflow.likelihoods.Bernoulli,
    gpflow.likelihoods.Softmax,
    BinaryLikelihood,
    MultinomialLogit,
    StickBreaking,
)  # not robust-max, which has no unit
_FLAT, _ROUGH = 30.0, 1e-3  # length scales by the spread of a column, beyond which it is flat, or noise
_LARGE, _SMALL = 1e5, 1e-6  # variances of a latent function beyond which it decides everything, or nothing
_CERTAIN = 1e4  # variance of what a link takes, beyond which all labels are certain
_NONE = 1e-8  # of the variance of the targets: noise that is none
_NEAR = 1.1  # times its lower bound: a parameter is at it
_PINNED = 1e-8  # ε
_HELD = 10.0  # times the mode of its prior: ε is held back
_SHOWN = 5


def findings(model: Any, data: Any = None) -> tuple[str, ...]:
    """Say what is odd about the trainable parameters of a model, a sentence each.

    Parameters
    ----------
    model
        The model.
    data
        The data that it was trained on, where it does not hold them: (X [N, D], Y), or a dataset, which is
        not examined.
    """
    held = data if data is not None else getattr(model, "data", None)
    X, sizes, noise = None, (1.0, 1.0), 0.0
    if isinstance(held, tuple | list):
        X = np.asarray(held[0])
        if is_unlinked(model):
            square, spread = squares(model, held[1])
            sizes, noise = (square or 1.0, spread or 1.0), spread
    said: list[str] = []
    for name in ("kernel", "weight_kernel"):
        kernel = getattr(model, name, None)
        for path, part in _parts(kernel, name):
            said += [] if X is None or X.ndim != 2 else _of_lengthscales(path, part, X)
            said += _of_variance(path, part, X, *sizes, _of_certainty(model))
    return (*said, *_of_likelihood(model, noise))


def noted(slope: str | None, before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    """Return the notes of a fit: its slope if it still rose, what was odd before it, what is so after it."""
    first = (f"At the start, {note}" for note in before if note not in after)
    return (*([slope] if slope else []), *first, *after)


def _parts(kernel: Any, path: str) -> Iterator[tuple[str, Kernel]]:
    """Yield a kernel, or the parts of a sum or a product, with their paths."""
    parts = getattr(kernel, "kernels", None)
    if parts is None:
        if isinstance(kernel, Kernel):
            yield path, kernel
        return
    for number, part in enumerate(parts):
        yield from _parts(part, f"{path}.kernels[{number}]")


def _of_lengthscales(path: str, kernel: Kernel, X: Array) -> Iterator[str]:
    if not isinstance(kernel, Stationary) or not kernel.lengthscales.trainable:
        return
    spread = np.ptp(on_host.columns(kernel, X), axis=0)
    lengths = np.broadcast_to(on_host.value(kernel.lengthscales), spread.shape)
    varies = spread > 0.0
    flat, rough = varies & (lengths > _FLAT * spread), varies & (lengths < _ROUGH * spread)
    read = np.arange(X.shape[1])[kernel.active_dims]
    numbers = read if len(read) == len(varies) else np.arange(len(varies))  # those of features
    if kernel.ard and flat.any() and not flat[varies].all():
        yield f"{path}.lengthscales: the inputs {_some(numbers[flat])} (counted from 0) are switched off."
    elif flat[varies].all() and varies.any():
        yield (
            f"{path}.lengthscales: {lengths.max():.3g} is {_FLAT:g} times the spread of the inputs or more, "
            "the function is almost straight."
        )
    if rough.any():
        yield (
            f"{path}.lengthscales: {lengths[rough].min():.3g} is below a thousandth of the spread of the "
            f"inputs {_some(numbers[rough])} (counted from 0), the function is almost white noise."
        )


def _of_certainty(model: Any) -> str:
    """Return why labels may become certain, nothing where the likelihood is not of classes."""
    if not isinstance(unweighted(model), _CLASSES):
        return ""
    points = getattr(model, "inducing_variable", None)
    moving = getattr(points, "trainable_variables", ())
    return ": the classes are separable" + (", or seem so to the points, which move" if moving else "")


def _of_variance(
    path: str, kernel: Kernel, X: Array | None, square: float, spread: float, certainty: str
) -> Iterator[str]:
    """Yield what is said of a variance, in units of the targets' mean square and of their variance.

    That of a slope is judged by the variance of its functions at the inputs. ``certainty`` is why a variance
    may grow until all labels are certain, if it may.
    """
    variance = getattr(kernel, "variance", None)
    if not isinstance(variance, gpflow.Parameter) or not variance.trainable:
        return
    largest = float(np.max(on_host.value(variance)))
    size, told = largest, f"{path}.variance: {largest:.3g}"
    if isinstance(kernel, Linear) and X is not None and X.ndim == 2:
        size = float(np.mean(kernel(X, full_cov=False)))
        told += f", {size:.3g} of functions at the inputs,"
    if size > (_CERTAIN if certainty else _LARGE * square):
        yield f"{told} has run away{certainty}; a prior would hold it."
    elif size < _SMALL * spread:
        yield f"{told.removesuffix(',')}, this part of the kernel is switched off."


def _of_likelihood(model: Any, spread: float) -> Iterator[str]:
    """Yield what is said of noise at its lower bound or beside the targets' variance, and of wrong labels."""
    named = gpflow.utilities.parameter_dict(getattr(model, "likelihood", None) or gpflow.base.Module())
    for name, parameter in named.items():
        plain = not isinstance(parameter, gpflow.Parameter)  # a variable, which has no bound
        if plain or not parameter.trainable or 0 in parameter.shape:  # two levels: thresholds without widths
            continue
        least = on_host.lower_bound(parameter.transform)
        value = float(np.min(on_host.value(parameter)))
        if least is not None and 0.0 < value < _NEAR * least:
            yield f"likelihood{name}: {value:.3g} is its lower bound: there is less noise, or it overfits."
        elif name.endswith(("scale", "variance")):
            if (value**2 if name.endswith("scale") else value) < _NONE * spread:
                yield (
                    f"likelihood{name}: {value:.3g} is next to nothing beside the spread of the targets: "
                    "there is no noise, or it overfits."
                )
        elif name.endswith(("epsilon", "flip")):
            yield from _of_share(f"likelihood{name}", value, parameter.prior)


def _of_share(name: str, value: float, prior: Any) -> Iterator[str]:
    """Yield what is said of a share of wrong labels: that it is none, or held back by its prior."""
    if value < _PINNED:
        yield f"{name}: pinned at {value:.2g}, no label is taken for a mistake."
    elif isinstance(prior, distributions.Beta) and value > _HELD * float(prior.mode()):
        expected = float(prior.mode())
        yield (
            f"{name}: a share of {value:.2g} of the labels is wrong, where its prior expects {expected:.2g} "
            "and holds it back; with a larger one to begin with the prior is weaker."
        )


def _some(numbers: Array) -> str:
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return ", ".join(map(str, numbers[:_SHOWN])) + more
