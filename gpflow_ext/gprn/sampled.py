"""The nodes and hyperparameters of a regression network as a sampler sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_ext.gprn import network, node_kernels
from gpflow_ext.gprn.network import Patterns
from gpflow_ext.numerics import linalg, stacked
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling.affine import Affine, around
from gpflow_ext.sampling.coordinates import Coordinates, Fisher
from gpflow_ext.sampling.draws import Draws
from gpflow_ext.sampling.gibbs import TwoSteps
from gpflow_ext.sampling.sampleable import Kind
from gpflow_ext.sampling.target import LogLikelihood, Target


class Parts(Protocol):
    """The parts of a network whose parameters may be stacked."""

    kernel: gpflow.kernels.Kernel
    weight_kernel: gpflow.kernels.Kernel
    nugget: gpflow.Parameter
    data: tuple[tf.Tensor, ...]


def weight_gram(network: Parts, stack: Stack) -> tf.Tensor:
    """Return K_w with GPflow's default jitter for each member, [C or 1, N, N]."""
    return linalg.with_jitter(stacked.gram(network.weight_kernel, stack, network.data[0]))


def node_chol(network: Parts, stack: Stack) -> tf.Tensor:
    """Return L_f, the factor of K_f with the nugget and GPflow's default jitter, [C or 1, N, N].

    [C or 1, K, N, N] where each node has a kernel of its own.
    """
    grams = [stacked.gram(kernel, stack, network.data[0]) for kernel in node_kernels.each(network.kernel)]
    gram = stacked.beside(grams, 1) if node_kernels.are_separate(network.kernel) else grams[0]
    return tf.linalg.cholesky(linalg.with_jitter(gram, stack[network.nugget]))


def drawn_nodes(chol: tf.Tensor, V: tf.Tensor) -> tf.Tensor:
    """Return F = L_f V for L_f as of `node_chol` and V [C, N, K], as [C, N, K]."""
    if chol.shape.rank == 3:
        return tf.matmul(chol, V)
    return tf.einsum("...knm,...mk->...nk", chol, V)


class SampledNetwork(tf.Module):
    """p(V, θ | Y) of a regression network, the weights integrated out, with whitened nodes F = L_f V.

        p(θ) N(V; 0, I) Π_d N(y_d; 0, K_w ∘ FFᵀ + σ²I)

    Parameters
    ----------
    network
        Its kernels, likelihood and nugget are shared: their parameters are sampled.
    patterns
        The targets.
    mean
        Whitened nodes to start from, [N, K].

    Attributes
    ----------
    V
        [N, K], with its prior.
    """

    def __init__(self, network: Any, patterns: Patterns, mean: tf.Tensor) -> None:
        super().__init__()
        zero, one = (np.array(value, mean.dtype.as_numpy_dtype) for value in (0.0, 1.0))
        self.V = gpflow.Parameter(mean, prior=tfp.distributions.Normal(zero, one))
        self.kernel, self.weight_kernel = network.kernel, network.weight_kernel
        self.likelihood, self.nugget = network.likelihood, network.nugget
        self.data, self._patterns = network.data[:1], patterns

    def log_likelihoods(self, stack: Stack) -> tf.Tensor:
        """Return log p(Y | F, θ) of each member, [C]. O(C(P + 1)N³)."""
        noise = stack[self.likelihood.variance]
        return network.log_likelihood(self._patterns, weight_gram(self, stack), self.nodes(stack), noise)

    def nodes(self, stack: Stack) -> tf.Tensor:
        """Return F = L_f V, [C, N, K]."""
        return drawn_nodes(node_chol(self, stack), stack[self.V])

    def spread(self) -> tf.Tensor:
        """Return a lower factor [N, N] of what the data leave of the prior of a column of V.

        (I + L_fᵀJL_f)⁻¹ at the current V and θ, J the `network.information`. The same for all K columns where
        they share a kernel, as the posterior is the same for all rotations of them; else [K, N, N].
        """
        now = Stack([])
        chol, gram, F = node_chol(self, now)[0], weight_gram(self, now)[0], self.nodes(now)[0]
        J = network.information(self._patterns, gram, F, tf.convert_to_tensor(self.likelihood.variance))
        A = tf.matmul(chol, tf.matmul(J, chol), transpose_a=True)
        eye = tf.eye(A.shape[-1], batch_shape=A.shape[:-2], dtype=A.dtype)
        cov = tf.linalg.cholesky_solve(tf.linalg.cholesky(_symmetric(A) + eye), eye)
        return tf.linalg.cholesky(_symmetric(cov))

    def aligned(self, stack: Stack) -> Stack:
        """Return the stack with the nodes rotated to the current ones: a rotation changes no prediction.

        Without it the chains, which turn the nodes as they please, could not be compared. Nodes with kernels
        of their own are reflected only.
        """
        F, now = self.nodes(stack), self.nodes(Stack([]))
        if node_kernels.are_separate(self.kernel):
            one = tf.ones([], F.dtype)
            sign = tf.where(tf.reduce_sum(F * now, axis=1, keepdims=True) < 0.0, -one, one)
            return stack.replaced(self.V, stack[self.V] * sign)
        return stack.replaced(self.V, tf.matmul(stack[self.V], network.rotation(F, now)))


class SampleableNetwork:
    """See `gpflow_ext.sampling.sampleable.Sampleable`; chains start around the current nodes.

    Parameters
    ----------
    module
        What is drawn.
    hold
        Gives the network the draws that it predicts from, or ``None``.
    """

    def __init__(self, module: SampledNetwork, hold: Callable[[Draws | None], None]) -> None:
        self.module, self.hold = module, hold

    def log_likelihood(self) -> LogLikelihood:
        """See `Sampleable`."""
        return self.module.log_likelihoods

    def recover(self, stack: Stack) -> Stack:
        """Return the stack with the nodes rotated to the current ones."""
        return self.module.aligned(stack)

    def around(self, target: Target) -> Affine:
        """Return the coordinates of what the data leave of the prior of V."""
        return around(target.start(), self.information_factor())

    def information_factor(self) -> tf.Tensor:
        """See `gpflow_ext.sampling.coordinates.Fisher`; [K, N, N], the same for all columns."""
        own = self.module.spread()
        return own if own.shape.rank == 3 else tf.repeat(own[None], self.module.V.shape[1], axis=0)

    def coordinates(self, kind: Kind) -> Coordinates:
        """See `Sampleable`."""
        return Fisher()

    def prepare(self, approximate: bool | None, jit_compile: bool | None) -> None:
        """See `Sampleable`: `gpflow_ext.fit` has found the nodes."""

    def in_two_steps(self) -> TwoSteps | None:
        """See `Sampleable`."""
        return None


def _symmetric(matrix: tf.Tensor) -> tf.Tensor:
    return 0.5 * (matrix + tf.linalg.matrix_transpose(matrix))
