"""Draws of whole functions by Matheron's rule, Wilson et al. (2020, 2021).

A draw of a posterior is a draw of the prior, corrected at the inputs z on which the posterior depends:

    f(x) = μ(x) + φ(x)ᵀw + k(x, z)α,    w ~ N(0, I)

with random features φ, and α from the prior draw at z and the posterior's own randomness. The correction is
exact; the features are what is approximate, with an error of about √(2/F) of the variance far from z.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import gpflow
import tensorflow as tf

from gpflow_ext.data.arguments import check_whole
from gpflow_ext.functions.features import features_of, white_variance
from gpflow_ext.functions.given import Given, by_kernel
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.numerics import stacked
from gpflow_ext.numerics.mapped import one_by_one

BLOCK = 4096  # rows evaluated at once, whose features stay in a cache
_FEATURE_BLOCK = 512  # the same where inputs have features of their own, such as images


class State(NamedTuple):
    """Random quantities of the draws, with a leading axis of groups [G, ...]."""

    hyperparameters: tuple[tf.Tensor, ...]
    features: Any
    weights: tuple[tf.Tensor, ...]  # [G, F, cS] of each kernel, c of the latent functions having it
    points: tuple[tf.Tensor, ...]  # [G, M, D]
    update: Any  # what `Given.condition` returned, each [G, ...]


class Paths:
    """Draws of the functions of a posterior, as two functions: of a seed, and of inputs.

    Parameters
    ----------
    given
        What they are drawn from.
    num_samples
        S.
    num_features
        F, of each product of a kernel's sum.
    groups
        Groups of functions with frequencies of their own; S is a multiple of it. Draws of a sampler have
        one for each function.
    dtype
        Type of the inputs and the values; by default that of the kernels.
    streams
        The number of the first group, and that whose random numbers choose the draws of a sampler: other
        numbers have other random numbers. By default 0 and the number of groups.
    """

    def __init__(
        self,
        given: Given,
        num_samples: int,
        num_features: int,
        groups: int,
        dtype: tf.DType | None = None,
        streams: tuple[int, int] | None = None,
    ) -> None:
        _check(num_samples, num_features, groups)
        self.num_samples, self.groups = num_samples, num_groups(given, num_samples, groups)
        self.num_features, (self._first, self._choosing) = num_features, streams or (0, self.groups)
        self._each = num_samples // self.groups
        self._domain, self._correction = given.domain, given.correction
        self._features = [features_of(kernel) for kernel in given.domain.kernels]
        self._num_latent, self.own_dtype = given.num_latent, given.domain.points[0].dtype
        self.dtype = self.own_dtype if dtype is None else tf.as_dtype(dtype)
        self.num_outputs = given.num_latent if given.mixing is None else int(given.mixing.shape[0])
        self.width = given.domain.num_inputs
        self.block = BLOCK if given.domain.part is None else _FEATURE_BLOCK
        self._copied = _copies(given, self.dtype, self.own_dtype if given.correction else self.dtype)

    def state(self, seed: int | tf.Tensor, given: Given) -> State:
        """Draw the functions of a seed, from ``given`` as it was or as a graph has it. O(S(MF + M²))."""
        if self.groups == 1 and not given.members:
            found = tf.nest.map_structure(lambda part: part[None], self._group(given, seed, 0, ()))
        else:
            numbers = Numbers(seed, self._choosing, self.own_dtype)
            members: tuple[tf.Tensor, ...] = ()
            if given.members:
                chosen = numbers.uniform_below([self.groups], tf.shape(given.members[0])[0])
                members = tuple(tf.gather(part, chosen) for part in given.members)

            def one(group: tuple[tf.Tensor, tuple[tf.Tensor, ...]]) -> Any:
                return self._group(given, seed, *group)

            first = self._shapes(given, seed, tuple(part[0] for part in members))
            found = one_by_one(one, (tf.range(self.groups), members), fn_output_signature=first)
        if self._correction is None:
            return tf.nest.map_structure(lambda part: tf.cast(part, self.dtype), found)
        drawn = found.features, found.weights  # the correction is in the precision of the model
        features, weights = tf.nest.map_structure(lambda part: tf.cast(part, self.dtype), drawn)
        return found._replace(features=features, weights=weights)

    def rows(self, state: State, X: tf.Tensor) -> tf.Tensor:
        """Return the functions at X [N, D], [N, S, P], all rows at once."""
        if self.groups == 1:
            values = self._values(tf.nest.map_structure(lambda part: part[0], state), X)
        else:
            each = one_by_one(lambda own: self._values(own, X), state, fn_output_signature=self.dtype)
            values = tf.transpose(each, [1, 0, 2, 3])  # [N, G, S/G, P]
            values = tf.reshape(values, [-1, self.num_samples, self.num_outputs])
        return values

    def _group(
        self, given: Given, seed: int | tf.Tensor, group: int | tf.Tensor, members: Sequence[tf.Tensor]
    ) -> State:
        """Draw one group, in the dtype of the model."""
        numbers = Numbers(seed, self._first + group, self.own_dtype)
        values, own = members[: len(given.parameters)], members[len(given.parameters) :]
        kernels, points = given.domain.kernels, given.domain.points
        count = max(len(kernels), len(points))
        columns = given.num_latent // count * self._each
        with stacked.substituted(zip(given.parameters, values, strict=True)):
            parts, weights, prior = [], [], []
            for i in range(count):
                features, kernel = self._features[i % len(kernels)], kernels[i % len(kernels)]
                own_points = points[i % len(points)]
                drawn = features.draw(numbers, self.num_features, int(own_points.shape[-1]))
                phi = features.at(drawn, own_points)
                w = numbers.normal([phi.shape[1], columns])
                jitter = gpflow.default_jitter() if given.jitter is None else given.jitter
                nugget = tf.sqrt(tf.cast(white_variance(kernel) + jitter, w.dtype))
                noise = numbers.normal([tf.shape(own_points)[0], columns])
                parts.append(drawn)
                weights.append(w)
                prior.append(tf.matmul(phi, w) + nugget * noise)
            at_points = tf.stack(prior)  # [n, M, cS]
            laid = tf.reshape(at_points, [count, -1, given.num_latent // count, self._each])
            laid = tf.reshape(tf.transpose(laid, [0, 2, 1, 3]), [given.num_latent, -1, self._each])
            update = given.condition(laid, numbers, *own)
        return State(tuple(values), tuple(parts), tuple(weights), points, update)

    def _shapes(self, given: Given, seed: int | tf.Tensor, members: Sequence[tf.Tensor]) -> Any:
        """Return the specifications of what one group is."""
        found: list[Any] = []

        def trace() -> tf.Tensor:
            found.append(self._group(given, seed, 0, members))
            return tf.constant(0)

        tf.function(trace, autograph=False).get_concrete_function()
        return tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape, part.dtype), found[0])

    def _values(self, state: State, X: tf.Tensor) -> tf.Tensor:
        """Return the functions of one group, [N, S/G, P]."""
        kernels, mean_function, mixing, parameters = self._copied
        own, correction = self._domain.at(X), self._correction or by_kernel
        with stacked.substituted(zip(parameters, state.hyperparameters, strict=True)):
            parts = []
            for i, w in enumerate(state.weights):
                phi = self._features[i % len(self._features)].at(state.features[i], own)
                parts.append(tf.matmul(phi, w))
            latents = tf.reshape(tf.concat(parts, axis=1), [-1, self._num_latent, self._each])  # [N, L, S]
            own = tf.cast(own, state.points[0].dtype)
            latents += tf.cast(correction(kernels, state.points, state.update, own), self.dtype)
            values = tf.transpose(latents, [0, 2, 1])
            if mixing is not None:
                values = tf.einsum("nsl,pl->nsp", values, mixing)
            return values + mean_function(X)[:, None, :]


def num_groups(given: Given, num_samples: int, groups: int) -> int:
    """Return the number of groups: that asked for, or that of the functions where each is of its own draw."""
    return num_samples if given.members else groups


def _copies(given: Given, dtype: tf.DType, of_kernels: tf.DType) -> tuple[Any, ...]:
    """Return copies of the kernels in a dtype, of mean function and W in another, and of what draws vary."""
    memo: dict[int, Any] = {}
    of_mean = gpflow.utilities.parameter_dict(given.mean_function).values()
    others = [*of_mean, *given.parameters, *([] if given.mixing is None else [given.mixing])]
    in_kernels = [
        p for kernel in given.domain.kernels for p in gpflow.utilities.parameter_dict(kernel).values()
    ]
    for held, kind in ((in_kernels, of_kernels), (others, dtype)):
        for part in held:
            value = tf.cast(tf.convert_to_tensor(part), kind)
            memo.setdefault(id(part), gpflow.Parameter(value, trainable=False, dtype=kind))
    copied = [memo[id(parameter)] for parameter in given.parameters]
    return *copy.deepcopy((given.domain.kernels, given.mean_function, given.mixing), memo), copied


def _check(num_samples: int, num_features: int, groups: int) -> None:
    for name, value in (("num_samples", num_samples), ("num_features", num_features), ("groups", groups)):
        check_whole(**{name: value})
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value!r}.")
    if num_features % 2:
        raise ValueError(f"num_features must be even, cosines and sines in pairs; got {num_features}.")
    if num_samples % groups:
        raise ValueError(f"num_samples must be a multiple of groups; got {num_samples} and {groups}.")
