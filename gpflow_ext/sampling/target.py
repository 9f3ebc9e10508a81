"""A GPflow model as a pure log density over an unconstrained vector, many chains at once.

    log π(x) = log likelihood(θ) + Σ log p(θᵢ) + Σ log |dTᵢ/dxᵢ|,    θᵢ = Tᵢ(xᵢ)

for the trainable parameters θ of a model, their values joined to x [C, d]. No variable is assigned, so that
chains are a leading axis and the density can be compiled and differentiated like any other function. What is
positive is sampled as its logarithm, whatever transform the model trains it with: a length scale of 10 to 20
has a standard deviation near 10 through a softplus, compared with 1 of the whitened latent functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.base import PriorOn

from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling.affine import Affine

tfb = tfp.bijectors

LogLikelihood = Callable[[Stack], tf.Tensor]
"""Map values [C, ...] of the parameters to the log likelihood, or what replaces it, [C]."""


class Coordinate(NamedTuple):
    """A parameter as a part of the sampled vector."""

    name: str  # its path in the model
    parameter: gpflow.Parameter
    bijector: Any  # from the sampled to the constrained value

    @property
    def size(self) -> int:
        """The number of its coordinates; the bijectors keep shapes."""
        return int(np.prod(self.parameter.unconstrained_variable.shape))


class Target:
    """The log density of a model's trainable parameters.

    Parameters
    ----------
    model
        The model; each trainable parameter must have a prior.
    log_likelihood
        The rest of the density, batched over chains.
    affine
        Coordinates in which the chains move; by default those of the parameters.
    recover
        Makes the values of the parameters from those of the coordinates, where ``log_likelihood`` counts some
        of these from elsewhere.

    Raises
    ------
    ValueError
        For a trainable parameter without a prior or with one of another dtype or shape, or a model without
        trainable parameters.
    """

    def __init__(
        self,
        model: tf.Module,
        log_likelihood: LogLikelihood,
        affine: Affine | None = None,
        recover: Callable[[Stack], Stack] = lambda stack: stack,
    ) -> None:
        self.coordinates = coordinates(model)
        self._model, self._log_likelihood, self._recover = model, log_likelihood, recover
        self.affine = affine

    def within(self, affine: Affine) -> Target:
        """Return the same density in affine coordinates."""
        return Target(self._model, self._log_likelihood, affine, self._recover)

    @property
    def num_dimensions(self) -> int:
        """D."""
        return sum(each.size for each in self.coordinates)

    def __call__(self, z: tf.Tensor) -> tf.Tensor:
        """Return the log density of z [C, d], up to the constant of the affine map, [C]."""
        return self.density(z, self._log_likelihood)

    def density(self, z: tf.Tensor, log_likelihood: LogLikelihood) -> tf.Tensor:
        """Return the log density with another log likelihood in the place of the target's own, [C]."""
        parts = self._parts(self.position(z))
        stack = self._stack(parts)
        value = log_likelihood(stack)
        for (_, parameter, bijector), part in zip(self.coordinates, parts, strict=True):
            value += _log_prior(parameter, stack[parameter], part, bijector)
        return value

    def position(self, z: tf.Tensor) -> tf.Tensor:
        """Return the unconstrained parameters x of chains at z, [C, d]."""
        return z if self.affine is None else self.affine.forward(z)

    def values(self, x: tf.Tensor) -> Stack:
        """Return the constrained parameters of x [C, d]."""
        return self._recover(self._stack(self._parts(x)))

    def start(self) -> tf.Tensor:
        """Return the model's own parameters as x, [d]."""
        own = [
            tf.reshape(c.bijector.inverse(tf.convert_to_tensor(c.parameter)), [-1]) for c in self.coordinates
        ]
        return tf.concat(own, axis=0)

    def _parts(self, x: tf.Tensor) -> list[tf.Tensor]:
        shapes = [[-1, *c.parameter.unconstrained_variable.shape] for c in self.coordinates]
        sizes = [c.size for c in self.coordinates]
        return [
            tf.reshape(part, shape) for part, shape in zip(tf.split(x, sizes, axis=1), shapes, strict=True)
        ]

    def _stack(self, parts: Sequence[tf.Tensor]) -> Stack:
        return Stack(
            (c.parameter, c.bijector.forward(part)) for c, part in zip(self.coordinates, parts, strict=True)
        )


def coordinates(model: tf.Module) -> list[Coordinate]:
    """Return the trainable parameters of a model in the order of their paths, whitened V first."""
    trainable: dict[str, Any] = {}
    for name, parameter in gpflow.utilities.parameter_dict(model).items():
        tied = any(parameter is other for other in trainable.values())  # to one under an earlier name
        if parameter.trainable and not tied:
            trainable[name.lstrip(".")] = parameter
    if not trainable:
        raise ValueError("There is nothing to sample: no parameter of the model is trainable.")
    plain = [name for name, part in trainable.items() if not isinstance(part, gpflow.Parameter)]
    if plain:
        raise ValueError(
            f"Variables that are no parameters cannot be sampled, as they have no prior: {', '.join(plain)}. "
            "Make each one a gpflow.Parameter with a prior, or a tf.Variable with trainable=False."
        )
    bare = [name for name, parameter in trainable.items() if parameter.prior is None]
    if bare:
        lines = [
            f"model.{name}.prior = tfp.distributions.{_weak_prior(trainable[name].transform)}"
            for name in bare
        ]
        raise ValueError(
            f"Parameters without a prior cannot be sampled: {', '.join(bare)}. Hold each one fixed, by "
            f"`gpflow.set_trainable(model.{bare[0]}, False)`, or give it one, such as\n\n"
            "import gpflow, tensorflow_probability as tfp\n"
            "real = gpflow.utilities.to_default_float\n" + "\n".join(lines)
        )
    for name, parameter in trainable.items():
        found: Any = getattr(parameter.prior, "dtype", parameter.dtype)
        if found != parameter.dtype:
            raise ValueError(
                f"The prior of {name} is {found.name}, but the parameter {parameter.dtype.name}: make the "
                "prior's arguments with gpflow.utilities.to_default_float."
            )
        sizes = _sizes(parameter.prior)
        if _is_broadcast(parameter, sizes):
            raise ValueError(
                f"The prior of {name} is of several distributions, {sizes}, but the "
                f"parameter has the shape {parameter.shape}: give it one for each of its values."
            )
    named = sorted(trainable.items(), key=lambda item: (item[0] != "V", item[0]))
    return [Coordinate(name, parameter, log_scale(parameter.transform)) for name, parameter in named]


def _sizes(prior: Any) -> tuple[int | None, ...]:
    """Return the sizes of the axes of a prior's values, as far as it tells them."""
    shapes: list[Any] = [getattr(prior, name, None) for name in ("batch_shape", "event_shape")]
    return tuple(n for shape in shapes if getattr(shape, "rank", None) for n in shape.as_list())


def _is_broadcast(parameter: gpflow.Parameter, sizes: Sequence[int | None]) -> bool:
    """Tell whether a parameter would be broadcast to its prior, which has an axis of another size.

    Each value would be counted several times, or further axes be taken for the chains.
    """
    constrained = parameter.prior_on is PriorOn.CONSTRAINED
    own = (parameter if constrained else parameter.unconstrained_variable).shape.as_list()
    last = zip(reversed(sizes), reversed(own), strict=False)
    return len(sizes) > len(own) or any(size not in (1, None, value) for size, value in last)


def _weak_prior(transform: Any) -> str:
    """Return the code of a weak prior on the values that a transform leaves."""
    ends = (-np.inf, np.inf)
    if transform is not None and transform.forward_min_event_ndims == 0:
        far = tf.constant([-1e6, 1e6], transform.dtype or gpflow.default_float())
        ends = tuple(np.sort(transform.forward(far).numpy()).tolist())
    if ends[1] - ends[0] < 1e5:
        return f"Uniform(real({ends[0]:.6g}), real({ends[1]:.6g}))"
    return "Gamma(real(2.0), real(1.0))" if ends[0] >= 0.0 else "Normal(real(0.0), real(1.0))"


def log_scale(transform: Any) -> Any:
    """Return the transform with exp instead of a softplus, its lower bound kept; any other as it is.

    In a chain that is where the softplus comes first, so that it takes all numbers: of what another transform
    leaves, exp would make other values.
    """
    if isinstance(transform, tfb.Softplus):
        return tfb.Exp() if transform.low is None else tfb.Chain([tfb.Shift(transform.low), tfb.Exp()])
    if isinstance(transform, tfb.Chain) and isinstance(transform.bijectors[-1], tfb.Softplus):
        *others, first = transform.bijectors  # the last one is applied first
        return tfb.Chain([*others, log_scale(first)])
    return tfb.Identity() if transform is None else transform


def _log_prior(parameter: gpflow.Parameter, value: tf.Tensor, x: tf.Tensor, bijector: Any) -> tf.Tensor:
    """Return log p(θ) + log |dT/dx| of each chain, [C]."""
    rank, transform, prior = x.shape.rank - 1, parameter.transform, parameter.prior
    assert prior is not None  # `coordinates` has seen to it
    jacobian = bijector.forward_log_det_jacobian(x, event_ndims=rank)
    if parameter.prior_on is PriorOn.UNCONSTRAINED and transform is not None:  # the model's own
        value = transform.inverse(value)
        jacobian -= transform.forward_log_det_jacobian(value, event_ndims=rank)
    log_density = prior.log_prob(value)
    axes = list(range(1, log_density.shape.rank))
    return tf.reduce_sum(log_density, axis=axes) + tf.broadcast_to(jacobian, tf.shape(x)[:1])
