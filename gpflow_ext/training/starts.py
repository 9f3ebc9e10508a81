"""Starting points of training: the model's own parameters, those that the data suggest, and random ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gpflow.base import Parameter
from gpflow.kernels import Kernel, Stationary
from gpflow.models import BayesianModel

from gpflow_ext.compiled.structure import Apart
from gpflow_ext.data import length_scales, on_host
from gpflow_ext.sites.units import is_unlinked, squares, unweighted
from gpflow_ext.training import deadline

OWN, FROM_DATA, FROM_TARGETS = "the model's own", "length scales of the inputs", "variances of the targets"
_DEVIATION = 2.0  # of the logarithm of a random factor
_MANY, _FEW = 5, 500  # starts of three length scales or more, where there are no more latent values than this
_SPARE = 2  # further starts where there is no objective at the only one
_FAR = 8.0  # times the length scales that the inputs suggest, or a share of them
_ABOVE = 2.0  # times the lower bound of a parameter, the least that it starts from
_OFF = 1e3  # times the mean square of the targets, or a share of it, that the variance of the kernel is


class Start(NamedTuple):
    """Values for the trainable variables of a model, and what they are called."""

    name: str
    values: list[tf.Tensor]


@dataclass(frozen=True)
class Further:
    """Further starts of a solver. Checkpoints hold none: how many there are depends on where the model is."""

    starts: Sequence[Start] = ()


@dataclass(frozen=True)
class Spare(Apart):
    """Starts for where the only one fails. They are made when they are asked for: most fits need none."""

    number: int = 0
    seed: int = 0
    data: tuple[Any, ...] = ()

    def starts(self, model: Any) -> list[Start]:
        """Return `further_starts` of a model, as it is now."""
        return further_starts(model, self.number, self.seed, *self.data)


class Tried(NamedTuple):
    """A start, and the objective that the first step has reached from it."""

    name: str
    objective: float


def number_of_starts(
    model: BayesianModel, given: int | None, X: Any = None, Y: Any = None, *, several_optima: bool = False
) -> int:
    """Return the number asked for; by default one, and two or five if one may not lead to the optimum.

    The objective of a kernel with a length scale for each input has several optima, and more with more
    inputs; random starts search among them if they are cheap. With one length scale it rarely has several,
    unless the likelihood makes them (``several_optima``). But far from the length scales that inputs X [N, D]
    suggest, a kernel may correlate no two of them, or tell none apart, and the objective is flat. So it is
    with a variance far from the mean square of targets Y [N, P] that have no link, and with a linear or
    polynomial kernel whose functions are, of inputs in thousands say, far from that, or from one with a link.
    """
    if given is not None:
        return given
    lengths = [part.lengthscales for part in _stationary(model) if part.ard and part.lengthscales.trainable]
    values = math.inf if X is None else len(X) * (getattr(model, "num_latent_gps", None) or 1)
    if any(each.shape[0] > 2 for each in lengths) and values <= _FEW:
        return _MANY
    far = _is_far(model, X) or _ratio(model, Y) != 1.0 or bool(_slopes(model, X, Y))
    return 1 + (several_optima or bool(lengths) or far)


def _is_far(model: BayesianModel, X: Any) -> bool:
    """Tell whether a trainable length scale is far from what the inputs suggest."""
    if X is None or np.ndim(X) != 2:
        return False
    for part in _stationary(model):
        value = length_scales.suggested(part, X)
        if value is None:
            continue
        if np.max(np.abs(np.log(value.numpy() / on_host.value(part.lengthscales)))) > np.log(_FAR):
            return True
    return False


def further_starts(model: BayesianModel, number: int, seed: int, X: Any = None, Y: Any = None) -> list[Start]:
    """Return further starts than the model's own.

    The first has the length scales that inputs X [N, D] suggest, their standard deviations times √D, if its
    kernels have length scales to train, and where the variance of the kernel is far from the mean square of
    targets Y [N, P], variances and noise that suit these. In the others every positive parameter is
    multiplied by a log-normal factor of deviation 2.
    """
    if number < 1:
        return []
    rng = np.random.default_rng(seed)
    starts = _from_data(model, X, Y)[:number]
    return starts + [_random(model, rng, count + 1) for count in range(number - len(starts))]


def spare_starts(given: int | None, number: int, seed: int, *data: Any) -> Spare:
    """Return starts to try where the only one fails, none if the user has ``given`` their number."""
    return Spare(_SPARE, seed, data) if given is None and number == 1 else Spare()


def among(starts: Sequence[Start], model: Any, variables: Sequence[tf.Variable]) -> list[Start]:
    """Return starts of all trainable variables of a model as starts of some of them."""
    places = [n for n, each in enumerate(model.trainable_variables) if any(each is v for v in variables)]
    return [Start(start.name, [start.values[n] for n in places]) for start in starts]


def are_enough(tried: Sequence[Tried]) -> bool:
    """Tell whether no further start is tried: past the deadline, where one has reached an objective."""
    return any(math.isfinite(each.objective) for each in tried) and deadline.current().cuts()


def assign(variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]) -> None:
    """Set variables to the values of a start, or to others that were kept."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def check_starts(starts: int | None) -> None:
    """Raise ``ValueError`` for a number of starts below one."""
    if starts is not None and starts < 1:
        raise ValueError(f"`starts` must be at least 1; got {starts}.")


def _from_data(model: BayesianModel, X: Any, Y: Any) -> list[Start]:
    if X is None or np.ndim(X) != 2:
        return []
    suggested = {}
    for part in _stationary(model):
        length, value = part.lengthscales, length_scales.suggested(part, X)
        if value is not None and length.transform is not None:
            suggested[id(length.unconstrained_variable)] = length.transform.inverse(value)
    ratio, slopes = _ratio(model, Y), _slopes(model, X, Y)
    name = FROM_TARGETS if slopes or ratio != 1.0 else FROM_DATA
    suggested |= slopes
    if ratio != 1.0:
        suggested |= _multiplied(model, ratio)
    if not suggested:
        return []
    return [Start(name, [suggested.get(id(v), v.read_value()) for v in model.trainable_variables])]


def _ratio(model: Any, Y: Any) -> float:
    """Return the mean square of targets over the kernel's variance where it is far from one, else one.

    With a mean function to train it is their variance.
    """
    variances = _variances(model)
    if Y is None or not variances or not is_unlinked(model):
        return 1.0
    square, spread = squares(model, Y)
    size = spread if model.mean_function.trainable_variables else square
    ratio = size / sum(float(np.mean(on_host.value(variance))) for variance in variances)
    return ratio if _is_off(ratio) else 1.0


def _is_off(ratio: float) -> bool:
    return 0.0 < ratio < np.inf and abs(math.log(ratio)) > math.log(_OFF)


def _slopes(model: Any, X: Any, Y: Any) -> dict[int, tf.Tensor]:
    """Return values of variables at which linear and polynomial functions have the targets' size.

    That is one where they have a link. Only kernels far from it have any: their variance is that of a slope.
    """
    kernel, values = getattr(model, "kernel", None), dict[int, tf.Tensor]()
    if X is None or np.ndim(X) != 2 or not isinstance(kernel, Kernel):
        return values
    size = squares(model, Y)[0] if Y is not None and is_unlinked(model) else 1.0
    for part in length_scales.linear(kernel):
        variance = part.variance
        if variance.trainable and variance.transform is not None:
            present = float(tf.reduce_mean(part(tf.convert_to_tensor(X), full_cov=False)))
            ratio = size / present if present > 0.0 else 1.0
            if _is_off(ratio):
                factor = ratio ** (1.0 / getattr(part, "degree", 1))
                values |= _scaled(variance, factor)
    return values


def _variances(model: Any) -> list[Parameter]:
    """Return the variances to train of the kernel's stationary parts."""
    kernel = getattr(model, "kernel", None)
    parts = length_scales.stationary(kernel) if isinstance(kernel, Kernel) else ()
    return [part.variance for part in parts if part.variance.trainable]


def _multiplied(model: Any, ratio: float) -> dict[int, tf.Tensor]:
    """Return values of variables at which variances, that of the noise too, are multiplied by a ratio."""
    factors = [(variance, ratio) for variance in _variances(model)]
    for name, power in (("variance", 1.0), ("scale", 0.5)):
        noise = getattr(unweighted(model), name, None)
        if isinstance(noise, Parameter) and noise.trainable:
            factors.append((noise, ratio**power))
    values = dict[int, tf.Tensor]()
    for parameter, factor in factors:
        values |= {} if parameter.transform is None else _scaled(parameter, factor)
    return values


def _scaled(parameter: Parameter, factor: float) -> dict[int, tf.Tensor]:
    """Return the value of the variable of a parameter at which that is multiplied by a factor."""
    transform: Any = parameter.transform
    value = tf.constant(_within(transform, factor * on_host.value(parameter)), parameter.dtype)
    return {id(parameter.unconstrained_variable): transform.inverse(value)}


def _random(model: BayesianModel, rng: np.random.Generator, number: int) -> Start:
    parameters = {id(p.unconstrained_variable): p for p in model.trainable_parameters}

    def moved(variable: tf.Variable) -> tf.Tensor:
        parameter = parameters.get(id(variable))
        if parameter is None:  # a plain variable of a user's kernel, such as the weights of a network
            return variable.read_value()
        value = parameter.numpy()
        if parameter.transform is None or (value <= 0.0).any():
            return variable.read_value()
        factor = np.exp(_DEVIATION * rng.standard_normal(value.shape)).astype(value.dtype)
        return parameter.transform.inverse(tf.constant(_within(parameter.transform, value * factor)))

    return Start(f"random {number}", [moved(variable) for variable in model.trainable_variables])


def _within(transform: Any, value: Any) -> Any:
    """Return positive values, within the bounds of their parameter if it has any."""
    low, high = (getattr(transform, end, None) for end in ("low", "high"))
    if low is None or high is None:
        least = on_host.lower_bound(transform)
        return value if least is None else np.maximum(value, value.dtype.type(_ABOVE * least))
    return np.clip(value, 1.01 * np.asarray(low, value.dtype), 0.99 * np.asarray(high, value.dtype))


def _stationary(model: Any) -> Iterator[Stationary]:
    """Yield the stationary kernels of a model."""
    for name in ("kernel", "weight_kernel"):
        kernel = getattr(model, name, None)
        if isinstance(kernel, Kernel):
            yield from length_scales.stationary(kernel)


def best(tried: Sequence[Tried]) -> int:
    """Return the number of the start that has reached the highest objective; NaN is the lowest."""
    return ranked(tried)[0]


def ranked(tried: Sequence[Tried]) -> list[int]:
    """Return the numbers of starts, that with the highest objective first; NaN is the lowest."""
    reached = np.array([np.nan_to_num(each.objective, nan=-np.inf) for each in tried])
    return [int(at) for at in np.argsort(-reached, kind="stable")]
