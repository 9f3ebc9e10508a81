"""GPflow posteriors of regression networks: of one approximate posterior, and the mixture over draws."""

from __future__ import annotations

import math
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

from gpflow_ext.functions.draws import SamplesFunctions
from gpflow_ext.functions.product import Product
from gpflow_ext.gprn import conditional, members, outputs
from gpflow_ext.gprn.collapsed import CollapsedPosterior
from gpflow_ext.gprn.conditional import NetworkPrior, View
from gpflow_ext.gprn.functions import of_network
from gpflow_ext.gprn.members import Question
from gpflow_ext.gprn.predictions import NetworkPredictions
from gpflow_ext.gprn.scales import OutputScales
from gpflow_ext.gprn.tensor import TensorPosterior
from gpflow_ext.numerics import batched, linalg
from gpflow_ext.numerics.batched import Rows, TakesNumbers
from gpflow_ext.numerics.stacked import Stack

Parts = Sequence[tf.Tensor]
Block = tuple[tf.Tensor, tf.Tensor]
Seen = Callable[..., Any]
"""Ask a question of all members: map (question, *tensors) to its results, each [S, ...]."""

_MOMENTS = {  # for full_cov and full_output_cov, with the covariance of the members' means
    (False, False): (conditional.moments, "sxb,sxb->xb"),
    (True, False): (conditional.joint_moments, "sbxd,sbyd->bdxy"),
    (False, True): (conditional.output_moments, "sxd,sxe->xde"),
}


class Network(Protocol):
    """Protocol of the model of a posterior."""

    kernel: gpflow.kernels.Kernel
    weight_kernel: gpflow.kernels.Kernel
    likelihood: Any
    output_noise: gpflow.Parameter | None
    mean_function: gpflow.functions.MeanFunction
    num_latent: int
    nugget: gpflow.Parameter
    q: CollapsedPosterior | TensorPosterior
    data: tuple[tf.Tensor, ...]

    def prior(self) -> NetworkPrior:
        """Return the factors of both kernels and the noise."""

    def view(self, parts: Parts, Xnew: tf.Tensor | None, pairs: bool = False) -> View:
        """Return the posterior as seen from Xnew [X, Q], the data, or pairs within members [B, X', Q]."""

    def scales(self) -> OutputScales | None:
        """Return what the outputs have of their own."""

    def noise(self) -> tf.Tensor:
        """Return σ² [], or that of each output [D]."""

    def held(self) -> tuple[tf.Tensor, Stack]:
        """Return the draws that are held: V [S, N, K], and the hyperparameters that were drawn."""


class NetworkPosterior(TakesNumbers, posteriors.AbstractPosterior):
    """The mean of S members: one approximate posterior, or the exact ones given each of S draws.

    New inputs have any batch axes. The cache holds the targets or the means of the weights, and what `_parts`
    returns. ``update_cache`` reads the model again, so the object follows a model that is trained further.

    Attributes
    ----------
    repeats_cache
        See `sites.posterior.SitePosterior`.
    """

    repeats_cache = True

    def __init__(self, model: Network, precompute_cache: PrecomputeCacheType | str | None) -> None:
        super().__init__(model.kernel, model.data[0], mean_function=model.mean_function)
        self._model = model
        self.update_cache(PrecomputeCacheType(precompute_cache or "nocache"))

    @abstractmethod
    def _parts(self) -> tuple[tf.Tensor, ...]:
        """Return what all outputs share."""

    @abstractmethod
    def _seen(self, parts: Parts, Xnew: tf.Tensor | None, pairs: bool = False) -> Seen:
        """Return the members as seen from Xnew [X, Q], or from pairs within inputs of a batch [B, X', Q].

        ``None`` is the rows of the data.
        """

    @abstractmethod
    def _size(self, parts: Parts) -> int:
        """Return S."""

    @abstractmethod
    def _chosen(self, parts: Parts, number: int, seed: int) -> tuple[Parts, int]:
        """Return members to draw from, and the number of draws from each."""

    @abstractmethod
    def noise(self) -> tf.Tensor:
        """Return the mean of the members' σ², [], or that of each output [D]."""

    def _precompute(self) -> tuple[posteriors.PrecomputedValue, ...]:
        return tuple(posteriors.PrecomputedValue(part, (False,) * part.shape.rank) for part in self._cached())

    def _cached(self) -> tuple[tf.Tensor, ...]:
        return *self._model.q.payload(), *linalg.finite(self._parts(), self._model)

    def predictions(self, X: tf.Tensor) -> NetworkPredictions:
        """Return what the members predict at X [X, Q]."""
        return NetworkPredictions(self, X)

    def predict_outputs(self, Xnew: tf.Tensor, indices: tf.Tensor) -> MeanAndVariance:
        """Return mean and variance of y for some outputs [B], each [batch..., X, B], from the cache."""
        payload, trait, *parts = self.cache or self._cached()
        payload, trait = tf.convert_to_tensor(payload), tf.convert_to_tensor(trait)  # no lookup in a variable
        block = (tf.gather(payload, indices, axis=1), tf.gather(trait, indices))
        return self._some(parts, block, Xnew, indices)

    def gathered(self, Xnew: tf.Tensor, indices: tf.Tensor) -> MeanAndVariance:
        """Return the same, reading no other targets than those of the outputs."""
        return self._some(self._parts(), self._model.q.gather(indices), Xnew, indices)

    def _some(self, parts: Parts, block: Block, Xnew: tf.Tensor, indices: tf.Tensor) -> MeanAndVariance:
        (mean, var), noise = self._moments(parts, [block], Rows(Xnew)), self.noise()
        return mean, var + (tf.gather(noise, indices) if noise.shape.rank == 1 else noise)

    def at_data(self) -> MeanAndVariance:
        """Return mean and variance of W(x)f(x) in the rows of the data, the nodes' white noise included."""
        rows = Rows(self._model.data[0])
        blocks = self._model.q.blocks(self._block_size(rows, False))
        return self._mixed(self._seen(self._parts(), None), _MOMENTS[False, False], blocks)

    def log_density(self, Xnew: tf.Tensor | None, Y: tf.Tensor, draws: int = 200, seed: int = 0) -> tf.Tensor:
        """Return Σ_d log p(y_nd | x_n) for targets [batch..., X, D], [batch..., X]; ``None`` as for `_seen`.

        Densities are averaged over the members. All members of the batch have the same random numbers.
        """
        parts = self._parts() if self.cache is None else self.cache[2:]
        each = -(-draws // self._size(parts))

        inputs, targets = Rows(self._model.data[0] if Xnew is None else Xnew), Rows(Y).flat
        question = members.LogDensity(each, inputs.count, inputs.length)
        seen, begin = self._seen(parts, None if Xnew is None else inputs.flat), 0
        total = tf.zeros([tf.shape(targets)[0]], targets.dtype)
        size = self._block_size(inputs, False, each)
        for payload, trait in (
            self._model.q.blocks(size) if self.cache is None else _blocks(self.cache[:2], size)
        ):
            end = begin + int(trait.shape[0])
            part, there = outputs.known(targets[:, begin:end])
            terms = seen(question, payload, trait, part, tf.constant([seed, 0]))
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

        seen, found, own = self._seen(parts, rows.members, pairs=True), [], tf.constant([seed, 0])
        for count, block in enumerate(self._model.q.blocks(self._block_size(rows, True, number))):
            drawn = seen(members.Draw(each), *block, tf.constant(count), own)
            found.append(tf.reshape(drawn, [number, *batched.sizes(drawn)[2:]]))
        return rows.of_members(tf.transpose(tf.concat(found, axis=-1), [1, 0, 2, 3]))

    def _block_size(self, rows: Rows, pairs: bool, draws: int = 1) -> int:
        """Return the number of outputs that are treated at once."""
        sizes = [rows.count, rows.length, rows.length if pairs else 1]
        known = None if any(tf.is_tensor(size) for size in sizes) else math.prod(sizes)
        return conditional.block_size(known, self._model.num_latent, draws)

    @inherit_check_shapes
    def _conditional_fused(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        return self._at(linalg.finite(self._parts(), self._model), None, Xnew, full_cov, full_output_cov)

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
        size = self._block_size(rows, full_cov)
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
        """Return mean and (co)variance of the mixture, by the law of total variance."""
        inputs, restored = (rows.members, rows.of_members) if full_cov else (rows.flat, rows.apart)
        seen = self._seen(parts, inputs, full_cov)
        mean, cov = self._mixed(seen, _MOMENTS[full_cov, full_output_cov], blocks, full_cov)
        return restored(mean), restored(cov)

    def _mixed(
        self, seen: Seen, moments: tuple[Any, str], blocks: Iterable[Block], full_cov: bool = False
    ) -> MeanAndVariance:
        """Return the same, as the members see it."""
        (function, between), found = moments, []
        question = members.Moments(function)
        for block in blocks:
            means, covs = seen(question, *block)
            mean, cov = tf.reduce_mean(means, axis=0), tf.reduce_mean(covs, axis=0)
            if means.shape[0] != 1:
                apart = means - mean
                cov += tf.einsum(between, apart, apart) / float(means.shape[0])
            found.append((mean, cov))
        joined, joint = zip(*found, strict=True)
        return tf.concat(joined, axis=-1), tf.concat(joint, axis=-3 if full_cov else -1)


class ApproximatePosterior(SamplesFunctions, NetworkPosterior):
    """The GPflow posterior of the collapsed or the tensor posterior."""

    def functions(self) -> Product:
        """See `SamplesFunctions`: of the nodes and the weights, which are independent under q."""
        payload, trait, *parts = self.cache or self._cached()
        block = tf.convert_to_tensor(payload), tf.convert_to_tensor(trait)
        weights, nodes, scales = self._model.q.drawing(tuple(parts), *block)
        return of_network(self._model, tuple(parts[:2]), weights, nodes, scales)

    def _parts(self) -> tuple[tf.Tensor, ...]:
        return self._model.q.parts(self._model.prior())

    def _seen(self, parts: Parts, Xnew: tf.Tensor | None, pairs: bool = False) -> Seen:
        view = self._model.view(tuple(parts), Xnew, pairs)
        zero = tf.zeros([], tf.int32)

        def ask(question: Question, *tensors: tf.Tensor) -> Any:
            return tf.nest.map_structure(lambda part: part[None], question(self._model, view, zero, *tensors))

        return ask

    def _size(self, parts: Parts) -> int:
        return 1

    def _chosen(self, parts: Parts, number: int, seed: int) -> tuple[Parts, int]:
        return parts, number

    def noise(self) -> tf.Tensor:
        """See `NetworkPosterior`."""
        return self._model.noise()


def _blocks(payload: Block, size: int) -> Iterator[Block]:
    for begin in range(0, payload[1].shape[0], size):
        means, traits = payload
        yield means[:, begin : begin + size], traits[begin : begin + size]
