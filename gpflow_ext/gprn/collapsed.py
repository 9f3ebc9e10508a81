"""The posterior of a regression network whose weights are integrated out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.gprn import blocks, conditional, network
from gpflow_ext.gprn.conditional import Conditional, NetworkPrior
from gpflow_ext.gprn.functions import Draw
from gpflow_ext.gprn.outputs import BLOCK, Outputs, VariableOutputs, known, summarise
from gpflow_ext.gprn.scales import OutputScales
from gpflow_ext.numerics import batched, philox
from gpflow_ext.numerics.mapped import one_by_one
from gpflow_ext.training import distribute


class CollapsedPosterior(tf.Module):
    """q(F) as prior times Gaussian sites, and the optimal q(W) given q(F), which is never stored.

    Parameters
    ----------
    outputs
        The targets, read once here and once in each prediction.
    draws
        Draws of all nodes but the first, [N, K − 1], see `network.start`.
    prior
        The prior at the start.
    strategy
        Over whose devices the outputs are sharded for the sums over them.
    apart
        Whether each output is a pattern of its own, as those with `conditional.OutputScales` are.

    Attributes
    ----------
    location, prec
        The sites: q(F) ∝ p(F) Πₙ N(locationₙ; fₙ, precₙ⁻¹), [N, K] and [N, K, K]; see `gprn.network`.
        The locations can also be trained by gradients.
    """

    _apart = False  # of what was stored before there were scales

    def __init__(
        self,
        outputs: Outputs,
        draws: tf.Tensor,
        prior: NetworkPrior,
        strategy: tf.distribute.Strategy | None = None,
        apart: bool = False,
    ) -> None:
        super().__init__()
        self._apart = apart
        self._followed = outputs if isinstance(outputs, VariableOutputs) else None
        if self._followed is not None and strategy is not None:
            raise NotImplementedError(
                "`strategy` shards targets that are summed once: give an array, no tf.Variable."
            )
        self.data: tuple[tf.Tensor, ...]
        if self._followed is None:
            sharded = {} if strategy is None else {"product": lambda Y: distribute.gram(strategy, Y).numpy()}
            patterns, pattern = summarise(outputs, **sharded, apart=apart)
            self.data = (*patterns[:3], draws)
        else:
            pattern = np.arange(outputs.num_outputs, dtype=np.int32) * apart
            self.data = (draws,)
        self._outputs, self._pattern = outputs, tf.constant(pattern)
        N, K, dtype = draws.shape[0], draws.shape[1] + 1, draws.dtype
        self.location = gpflow.Parameter(tf.zeros([N, K], dtype))
        self.prec = gpflow.Parameter(tf.zeros([N, K, K], dtype), trainable=False)
        self.restart(prior)

    @property
    def patterns(self) -> network.Patterns:
        """What the bound needs of the targets."""
        if self._followed is None:
            return network.Patterns(*self.data[:3])
        return self._followed.patterns_apart if self._apart else self._followed.patterns

    def seen(self, scales: OutputScales | None) -> network.Patterns:
        """Return the same with the scales of the outputs."""
        return self.patterns if scales is None else self.patterns._replace(**scales._asdict())

    @property
    def sites(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The natural parameters of the sites, nat1 [N, K] and prec [N, K, K]."""
        prec = tf.convert_to_tensor(self.prec)
        return tf.linalg.matvec(prec, self.location), prec

    def mean(self, prior: NetworkPrior) -> tf.Tensor:
        """Return the mean of the whitened nodes, [N, K]. O((NK)³)."""
        return network.node_factor(prior.nodes, *self.sites).mean

    def nodes(self, prior: NetworkPrior) -> network.Nodes:
        """Return q(F). O((NK)³)."""
        return network.nodes(prior.nodes, *self.sites, prior.residuals[1])

    def elbo(self, prior: NetworkPrior) -> tf.Tensor:
        """Return the bound of log p(Y | X). O(P(NK)³)."""
        return self.bound(prior, self.nodes(prior))

    def bound(self, prior: NetworkPrior, nodes: network.Nodes) -> tf.Tensor:
        """Return the bound for any q(F)."""
        if prior.inducing is None:
            return network.bound(self.seen(prior.scales), prior.weights, prior.noise, nodes)
        residual, _ = prior.residuals
        return network.sparse_bound(self.seen(prior.scales), prior.weights, residual, prior.noise, nodes)

    def independent(self, prior: NetworkPrior) -> tf.Tensor:
        """Return the bound of independent regressions, F₁ = 1, which is exact without inducing inputs."""
        one = tf.ones([prior.weights.shape[0], 1], prior.noise.dtype)
        if prior.inducing is not None:
            return self.bound(prior, network.Nodes(one, 0.0 * one[..., None], 0.0 * prior.noise))
        gram = tf.matmul(prior.weights, prior.weights, transpose_b=True)
        return network.log_likelihood(self.seen(prior.scales), gram, one, prior.noise)

    def start(self, prior: NetworkPrior) -> tf.Tensor:
        """Return the nodes at the start, [N, K]."""
        return network.start(self.data[-1], prior.weights, prior.noise)

    def restart(self, prior: NetworkPrior) -> None:
        """Replace q(F) by the optimum given the q(W) that is optimal where F is known to be at the start."""
        self.update(prior, network.known(self.start(prior)))

    def sweep(self, prior: NetworkPrior) -> None:
        """Replace q(F) by the optimum given the optimal q(W); never lowers the bound. O(P(NK)³)."""
        self.update(prior, self.nodes(prior))

    def update(self, prior: NetworkPrior, nodes: network.Nodes) -> None:
        """Replace q(F) by the optimum given the q(W) that is optimal for ``nodes``. O(P(NK)³).

        Where that is not finite it stays.
        """
        seen = self.seen(prior.scales)
        w = network.weights(seen, prior.weights, prior.noise, nodes)
        nat1, prec = network.node_sites(seen, prior.weights, prior.noise, w, prior.residuals[0])
        location = _solve(prec, nat1)
        finite = tf.reduce_all(tf.math.is_finite(location)) & tf.reduce_all(tf.math.is_finite(prec))
        self.location.assign(tf.where(finite, location, self.location))
        self.prec.assign(tf.where(finite, prec, self.prec))

    def parts(self, prior: NetworkPrior) -> tuple[tf.Tensor, ...]:
        """Return what prediction needs besides the targets. O(P(NK)³)."""
        q = network.node_factor(prior.nodes, *self.sites)
        seen = self.seen(prior.scales)
        w = network.weights(seen, prior.weights, prior.noise, self.nodes(prior))
        return *prior.chols, q.mean, q.chol, w.smoother, w.chol, seen.gain()

    def payload(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return all targets [N, D], zero where missing, and the pattern of each output [D]."""
        return tf.concat([part for part, _ in self.blocks(BLOCK)], axis=1), self._pattern

    def blocks(self, size: int) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Yield the same by blocks of outputs."""
        begin = 0
        for block in self._outputs.blocks(size):
            end = begin + int(block.shape[1])
            yield known(block)[0], self._pattern[begin:end]
            begin = end

    def gather(self, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the same for some outputs [B]."""
        return known(self._outputs.gather(indices))[0], tf.gather(self._pattern, indices)

    def drawing(
        self, parts: tuple[tf.Tensor, ...], payload: tf.Tensor, trait: tf.Tensor
    ) -> tuple[Draw, Draw, tf.Tensor]:
        """Return what draws W̃ and F̃, see `functions.Draw`, and the amplitudes of the outputs [D]."""
        _, _, mean, node_chol, smoother, weight_chol, gain = parts
        N, K = mean.shape
        D, size = int(trait.shape[0]), mean.shape[0] * mean.shape[1]

        def nodes(numbers: Numbers, S: int) -> tf.Tensor:
            apart = tf.linalg.triangular_solve(node_chol, numbers.normal([size, S]), adjoint=True)
            return tf.transpose(mean[..., None] + tf.reshape(apart, [N, K, S]), [1, 0, 2])

        def weights(numbers: Numbers, S: int) -> tf.Tensor:
            noise = numbers.normal([D, size, S])

            def one(output: tuple[tf.Tensor, ...]) -> tf.Tensor:
                y, pattern, own = output
                apart = tf.linalg.triangular_solve(weight_chol[pattern], own, adjoint=True)
                return tf.linalg.matvec(smoother[pattern], y)[:, None] + apart

            found = one_by_one(one, (tf.transpose(payload), trait, noise), fn_output_signature=mean.dtype)
            found = tf.transpose(tf.reshape(found, [D, N, K, S]), [0, 2, 1, 3])
            return tf.reshape(found, [D * K, N, S])

        return weights, nodes, tf.gather(gain, trait)

    def view(self, parts: tuple[tf.Tensor, ...], w: Conditional, f: Conditional) -> CollapsedView:
        """Return the posterior as seen from new inputs, or pairs of them. O(P(NK)²XK)."""
        _, _, mean, node_chol, smoother, weight_chol, gain = parts
        T = tf.reshape(gain[:, None, None] * smoother, [-1, *mean.shape, smoother.shape[-1]])
        squared = tf.square(gain)[:, None, None, None]
        return CollapsedView(
            f.mean(mean),
            covariance(blocks.half(node_chol, f.A), f.residual),
            tf.einsum("nx,pnki->pxki", w.A, T),
            squared * covariance(blocks.half(weight_chol, w.A), w.residual),
        )


@dataclass(frozen=True)
class CollapsedView:
    """See `conditional.View`: payload are targets [N, B], the trait is the pattern of missing rows.

    E[w_d(x)] = c(x)y_d with ``smoother`` c [P, X, K, N]; ``weight_cov`` is [P, R, K, K].
    """

    mean: tf.Tensor
    cov: tf.Tensor
    smoother: tf.Tensor
    weight_cov: tf.Tensor

    def weights(self, payload: tf.Tensor, trait: tf.Tensor) -> tf.Tensor:
        """See `View`."""
        if self.smoother.shape[0] == 1:
            return tf.einsum("xki,id->xdk", self.smoother[0], payload)
        return tf.einsum("dxki,id->xdk", tf.gather(self.smoother, trait), payload)

    def spread(self, M: tf.Tensor, trait: tf.Tensor) -> tf.Tensor:
        """See `View`."""
        return tf.gather(tf.einsum("...xkl,pxkl->...xp", M, self.weight_cov), trait, axis=-1)

    def output_spread(self, M: tf.Tensor, trait: tf.Tensor) -> tf.Tensor:
        """See `View`; the outputs are independent under q(W)."""
        return tf.linalg.diag(self.spread(M, trait))

    def draw_weights(self, mean: tf.Tensor, trait: tf.Tensor, seed: tf.Tensor, number: int) -> tf.Tensor:
        """See `View`."""
        B, X, D, K = batched.sizes(mean)
        factor = tf.gather(conditional.joint_factor(self.weight_cov, B, X, K), trait)  # [D, B, XK, XK]
        noise = philox.normal([number, D, B, X * K], seed, mean.dtype)
        moved = tf.reshape(tf.linalg.matvec(factor, noise), [number, D, B, X, K])
        return mean + tf.transpose(moved, [0, 2, 3, 1, 4])


def _solve(prec: tf.Tensor, nat1: tf.Tensor) -> tf.Tensor:
    """Return prec⁻¹nat1, zero where no target is known and both are zero."""
    known = tf.linalg.trace(prec) > 0.0
    safe = tf.where(known[:, None, None], prec, tf.eye(prec.shape[-1], dtype=prec.dtype))
    return tf.linalg.cholesky_solve(tf.linalg.cholesky(safe), nat1[:, :, None])[:, :, 0]


def covariance(half: tf.Tensor, residual: tf.Tensor) -> tf.Tensor:
    """Return HᵀH + residual ⊗ I for H [..., NK, X, K], at the inputs or, flattened, the pairs of members.

    ``residual`` is as in `Conditional`.
    """
    K = half.shape[-1]
    if residual.shape.rank < 3:
        cov = tf.einsum("...rxk,...rxl->...xkl", half, half)
        return cov + conditional.on_diagonal(residual, K, pairs=False)
    *_, B, X, _ = batched.sizes(residual)
    half = tf.reshape(half, [*half.shape[:-2], B, X, K])
    cov = tf.einsum("...rbxk,...rbyl->...bxykl", half, half)
    cov += conditional.on_diagonal(residual, K, pairs=True)
    return tf.reshape(cov, [*half.shape[:-4], B * X * X, K, K])
