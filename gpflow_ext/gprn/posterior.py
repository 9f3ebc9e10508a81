"""GPflow posteriors of regression networks: of one approximate posterior, and the mixture over draws."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import gpflow
import numpy as np
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow import posteriors
from gpflow.base import MeanAndVariance
from gpflow.posteriors import PrecomputeCacheType

from gpflow_ext.gprn import conditional, outputs
from gpflow_ext.gprn.collapsed import CollapsedPosterior
from gpflow_ext.gprn.conditional import NetworkPrior, View
from gpflow_ext.gprn.tensor import TensorPosterior
from gpflow_ext.numerics import batched
from gpflow_ext.numerics.batched import Rows
from gpflow_ext.numerics.stacked import Stack

Parts = Sequence[tf.Tensor]
Block = tuple[tf.Tensor, tf.Tensor]
Seen = Callable[[Callable[..., Any], int], Callable[..., Any]]
"""Turn a function of a member's view, its number and more tensors, which returns so many tensors, into one of
these tensors that returns the results of all members, [S, ...]."""

At = Callable[[tf.Tensor | None, tf.Tensor], Callable[..., Any]]
"""Turn the number of a member of a batch, where there is one, and its inputs into a function of tensors."""

_MOMENTS = {  # for full_cov and full_output_cov, with the covariance of the members' means
    (False, False): (conditional.moments, "sxb,sxb->xb"),
    (True, False): (conditional.joint_moments, "sxb,syb->bxy"),
    (False, True): (conditional.output_moments, "sxd,sxe->xde"),
}


class Network(Protocol):
    """What the posteriors read from their model."""

    kernel: gpflow.kernels.Kernel
    weight_kernel: gpflow.kernels.Kernel
    likelihood: Any
    mean_function: gpflow.functions.MeanFunction
    num_latent: int
    nugget: gpflow.Parameter
    q: CollapsedPosterior | TensorPosterior
    data: tuple[tf.Tensor, ...]

    def prior(self) -> NetworkPrior:
        """Return the factors of both kernels and the noise."""

    def view(self, parts: Parts, Xnew: tf.Tensor, pairs: bool = False) -> View:
        """Return the approximate posterior as seen from Xnew [X, Q], or from all pairs of its rows."""

    def held(self) -> tuple[tf.Tensor, Stack]:
        """Return the draws that are held: V [S, N, K], and the hyperparameters that were drawn."""


class NetworkPosterior(posteriors.AbstractPosterior):
    """The mean of S members: one approximate posterior, or the exact ones given each of S draws.

    New inputs have any batch axes. The cache holds the targets or the means of the weights, and what `_parts`
    returns. ``update_cache`` reads the model again, so the object follows a model that is trained further.
    """

    def __init__(self, model: Network, precompute_cache: PrecomputeCacheType | str | None) -> None:
        super().__init__(model.kernel, model.data[0], mean_function=model.mean_function)
        self._model = model
        self.update_cache(PrecomputeCacheType(precompute_cache or "nocache"))

    @abstractmethod
    def _parts(self) -> tuple[tf.Tensor, ...]:
        """Return what all outputs share."""

    @abstractmethod
    def _seen(self, parts: Parts, Xnew: tf.Tensor, pairs: bool = False) -> Seen:
        """Return the members as seen from Xnew [X, Q], or from all pairs of its rows."""

    @abstractmethod
    def _size(self, parts: Parts) -> int:
        """Return S."""

    @abstractmethod
    def _chosen(self, parts: Parts, number: int, seed: int) -> tuple[Parts, int]:
        """Return members to draw from, and the number of draws from each."""

    @abstractmethod
    def noise(self) -> tf.Tensor:
        """Return the mean of the members' σ², []."""

    def _precompute(self) -> tuple[posteriors.PrecomputedValue, ...]:
        return tuple(posteriors.PrecomputedValue(part, (False,) * part.shape.rank) for part in self._cached())

    def _cached(self) -> tuple[tf.Tensor, ...]:
        return *self._model.q.payload(), *self._parts()

    def predict_outputs(self, Xnew: tf.Tensor, indices: tf.Tensor) -> MeanAndVariance:
        """Return mean and variance of y for some outputs [B], each [batch..., X, B], from the cache."""
        payload, trait, *parts = self.cache or self._cached()
        payload, trait = tf.convert_to_tensor(payload), tf.convert_to_tensor(trait)  # no lookup in a variable
        return self._some(parts, (tf.gather(payload, indices, axis=1), tf.gather(trait, indices)), Xnew)

    def gathered(self, Xnew: tf.Tensor, indices: tf.Tensor) -> MeanAndVariance:
        """Return the same, reading no other targets than those of the outputs."""
        return self._some(self._parts(), self._model.q.gather(indices), Xnew)

    def _some(self, parts: Parts, block: Block, Xnew: tf.Tensor) -> MeanAndVariance:
        mean, var = self._moments(parts, [block], Rows(Xnew))
        return mean, var + self.noise()

    def log_density(self, Xnew: tf.Tensor, Y: tf.Tensor, draws: int = 200, seed: int = 0) -> tf.Tensor:
        """Return Σ_d log p(y_nd | x_n) for targets [batch..., X, D], [batch..., X].

        Densities are averaged over the members. All members of the batch have the same random numbers.
        """
        parts = self._parts() if self.cache is None else self.cache[2:]
        each = -(-draws // self._size(parts))

        def one(view: View, number: tf.Tensor, *block: tf.Tensor) -> tf.Tensor:
            noise = conditional.normal(_seed(seed, number), each, view.mean[: inputs.length])
            noise = tf.tile(noise, [1, inputs.count, 1])
            payload, trait, y = block
            variance = tf.convert_to_tensor(self._model.likelihood.variance)
            return conditional.log_density(view, payload, trait, y, variance, noise)

        inputs, targets = Rows(Xnew), Rows(Y).flat
        members, begin = self._seen(parts, inputs.flat)(one, 1), 0
        total = tf.zeros([tf.shape(targets)[0]], targets.dtype)
        size = conditional.block_size(inputs.flat.shape[0], self._model.num_latent, each)
        for payload, trait in (
            self._model.q.blocks(size) if self.cache is None else _blocks(self.cache[:2], size)
        ):
            end = begin + int(trait.shape[0])
            part, there = outputs.known(targets[:, begin:end])
            terms = members(payload, trait, part)
            mixed = tf.reduce_logsumexp(terms, axis=0) - np.log(terms.shape[0])
            total += tf.reduce_sum(there * mixed, axis=1)
            begin = end
        return inputs.apart(total)

    def samples(self, Xnew: tf.Tensor, number: int, seed: int) -> tf.Tensor:
        """Return draws of W(x)f(x), jointly over inputs [batch..., X, Q], [batch..., S, X, D].

        Each member of the batch has random numbers of its own, all are of the same draws of a sampler.
        """
        rows = Rows(Xnew)
        parts, each = self._chosen(self._parts(), number, seed)

        def at(batch: tf.Tensor | None, X: tf.Tensor) -> Callable[..., tf.Tensor]:
            stream = _seed(seed) if batch is None else _folded(tf.constant([seed, 2]), batch)

            def one(view: View, member: tf.Tensor, count: tf.Tensor, *block: tf.Tensor) -> tf.Tensor:
                f = conditional.draw_nodes(view, _folded(stream, member), each)
                payload, trait = block
                return conditional.draw(view, payload, trait, f, _folded(stream, member, count + 1))

            members = self._seen(parts, X, pairs=True)(one, 1)

            def drawn(*block: tf.Tensor) -> tf.Tensor:
                found = members(*block)
                return tf.reshape(found, [-1, *batched.sizes(found)[2:]])

            return drawn

        drawn, found = _of_each(rows, at, parts[0].dtype), []
        size = conditional.block_size(_pairs(rows.length), self._model.num_latent, number)
        for count, (payload, trait) in enumerate(self._model.q.blocks(size)):
            found.append(drawn(tf.constant(count), payload, trait))
        return tf.concat(found, axis=-1)

    @inherit_check_shapes
    def _conditional_fused(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        return self._at(self._parts(), None, Xnew, full_cov, full_output_cov)

    @inherit_check_shapes
    def _conditional_with_precompute(
        self, cache: tuple[tf.Tensor, ...], Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        payload, trait, *parts = cache
        return self._at(parts, (payload, trait), Xnew, full_cov, full_output_cov)

    def _at(
        self, parts: Parts, payload: Block | None, Xnew: Any, full_cov: bool, full_output_cov: bool
    ) -> MeanAndVariance:
        """Return mean and (co)variance, from a cached payload or by reading the targets block by block."""
        if full_cov and full_output_cov:
            raise NotImplementedError(
                "full_cov and full_output_cov together are not supported: ask for one of them."
            )
        rows = Rows(tf.cast(Xnew, self._model.data[0].dtype))
        if full_output_cov:
            return self._moments(parts, [payload or self._model.q.payload()], rows, False, True)
        size = conditional.block_size(
            _pairs(rows.length) if full_cov else rows.flat.shape[0], self._model.num_latent
        )
        blocks = self._model.q.blocks(size) if payload is None else _blocks(payload, size)
        return self._moments(parts, blocks, rows, full_cov)

    def _moments(
        self,
        parts: Parts,
        blocks: Iterable[Block],
        rows: Rows,
        full_cov: bool = False,
        full_output_cov: bool = False,
    ) -> MeanAndVariance:
        """Return mean and (co)variance of the mixture."""
        function, between = _MOMENTS[full_cov, full_output_cov]

        def at(_: tf.Tensor | None, X: tf.Tensor) -> Callable[..., MeanAndVariance]:
            members = self._seen(parts, X, full_cov)(lambda view, _, *block: function(view, *block), 2)
            return lambda *block: _mixed(members(*block), between)

        if full_cov:
            mixed = _of_each(rows, at, (parts[0].dtype, parts[0].dtype))
        else:
            flat = at(None, rows.flat)

            def mixed(*block: tf.Tensor) -> Any:
                return tf.nest.map_structure(rows.apart, flat(*block))

        means, covs = zip(*(mixed(*block) for block in blocks), strict=True)
        return tf.concat(means, axis=-1), tf.concat(covs, axis=-3 if full_cov else -1)


class ApproximatePosterior(NetworkPosterior):
    """Of the collapsed or the tensor posterior."""

    def _parts(self) -> tuple[tf.Tensor, ...]:
        return self._model.q.parts(self._model.prior())

    def _seen(self, parts: Parts, Xnew: tf.Tensor, pairs: bool = False) -> Seen:
        view = self._model.view(tuple(parts), Xnew, pairs)
        zero = tf.zeros([], tf.int32)

        def over(function: Callable[..., Any], _: int) -> Callable[..., Any]:
            return lambda *block: tf.nest.map_structure(lambda part: part[None], function(view, zero, *block))

        return over

    def _size(self, parts: Parts) -> int:
        return 1

    def _chosen(self, parts: Parts, number: int, seed: int) -> tuple[Parts, int]:
        return parts, number

    def noise(self) -> tf.Tensor:
        """See `NetworkPosterior`."""
        return tf.convert_to_tensor(self._model.likelihood.variance)


def _mixed(members: MeanAndVariance, between: str) -> MeanAndVariance:
    """Return mean and (co)variance of a mixture of S members, by the law of total variance."""
    means, covs = members
    mean, cov = tf.reduce_mean(means, axis=0), tf.reduce_mean(covs, axis=0)
    if means.shape[0] != 1:
        apart = means - mean
        cov += tf.einsum(between, apart, apart) / float(means.shape[0])
    return mean, cov


def _of_each(rows: Rows, at: At, dtypes: Any) -> Callable[..., Any]:
    """Return what is computed at inputs [X, Q], for each member of a batch of them."""
    if rows.is_one:
        return at(None, rows.flat)

    def over(*tensors: tf.Tensor) -> Any:
        members = (tf.range(rows.count), rows.members)
        return tf.map_fn(lambda member: at(*member)(*tensors), members, fn_output_signature=dtypes)

    found = compiled(over)
    return lambda *tensors: tf.nest.map_structure(rows.of_members, found(*tensors))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is compiled for each shape of its arguments: step by step it would be slow.

    TensorFlow warns of functions that are made anew, as this one is in each prediction, only where it traces
    them itself.
    """
    graph, traced = tf.function(function, autograph=False), {}

    def call(*tensors: tf.Tensor) -> Any:
        if not tf.executing_eagerly():
            return function(*tensors)
        shapes = tuple(map(tuple, (tensor.shape for tensor in tensors)))
        if shapes not in traced:
            traced[shapes] = graph.get_concrete_function(*tensors)
        return traced[shapes](*tensors)

    return call


def _pairs(length: Any) -> int | None:
    """Return the number of pairs of rows where that of rows is known."""
    return length**2 if isinstance(length, int) else None


def _seed(seed: int, *numbers: Any) -> tf.Tensor:
    """Return the seed [2] of one of many streams of random numbers."""
    return _folded(tf.constant([seed, 0]), *numbers)


def _folded(stream: tf.Tensor, *numbers: Any) -> tf.Tensor:
    for number in numbers:
        stream = tf.random.experimental.stateless_fold_in(stream, number)
    return stream


def _blocks(payload: Block, size: int) -> Iterator[Block]:
    for begin in range(0, payload[1].shape[0], size):
        means, traits = payload
        yield means[:, begin : begin + size], traits[begin : begin + size]
