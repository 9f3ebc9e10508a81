"""The tensor-normal posterior of the weights and matrix-normal posterior of the nodes, Li et al. (2020).

Or with a covariance over the rows for each node instead of one for all, see `profiled`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.data import arguments, checks
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.gprn import blocks, conditional, network, tensor_normal
from gpflow_ext.gprn.conditional import Conditional, NetworkPrior
from gpflow_ext.gprn.functions import Draw
from gpflow_ext.gprn.outputs import BLOCK, known
from gpflow_ext.numerics import batched, philox
from gpflow_ext.numerics.positive_triangular import PositiveTriangular

_START_SCALE = 0.1  # of the whitened factors of Γ_N and Σ at the start
_LEAST_SCALE = 1e-12  # on the diagonal of a factor: the entropy stays finite


class TensorPosterior(tf.Module):
    """q(W) = TN(L_wŨ; L_wΓ_NL_wᵀ, Γ₁, …, Γ_M, Γ_K) and q(F) = MN(L_fM; L_fΣL_fᵀ, Ω), trained by gradients.

    Parameters
    ----------
    Y
        The targets [N, D], NaN where one is missing; a variable is read again at each use.
    shape
        d₁, …, d_M with a product of at least D: the grid that the outputs fill in row-major order. Weights
        of cells beyond D have mean zero and no targets.
    draws
        Draws of all nodes but the first, [N, K − 1], see `network.start`.
    prior
        The prior at the start; the means of q(W) start at their optimum given F at the start.
    separate
        Whether each node has a Σ and a Γ_N of its own.

    Attributes
    ----------
    weight_mean
        Ũ [N, D, K].
    weight_factors
        Lower factors of Γ_N [N, N] or [K, N, N], Γ₁, …, Γ_M, Γ_K.
    node_mean, node_factors
        M [N, K], and lower factors of Σ [N, N] or [K, N, N] and Ω.
    """

    def __init__(
        self, Y: tf.Tensor, shape: Sequence[int], draws: tf.Tensor, prior: NetworkPrior, separate: bool
    ) -> None:
        super().__init__()
        self.data, self._num_outputs = (Y,), int(Y.shape[1])
        Y = tf.convert_to_tensor(Y)
        if not isinstance(shape, Sequence | np.ndarray):
            raise ValueError(f"output_shape must be whole numbers (d₁, …, d_M); got {shape!r}.")
        arguments.check_whole(**{f"output_shape[{number}]": size for number, size in enumerate(shape)})
        self.output_shape = tuple(int(size) for size in shape)
        if min(self.output_shape, default=0) < 1 or np.prod(self.output_shape) < self._num_outputs:
            raise ValueError(
                f"output_shape must have a product of at least {self._num_outputs}, the number of outputs; "
                f"got {self.output_shape}."
            )
        start = network.start(draws, prior.weights, prior.noise)
        N, K = start.shape
        self._complete, means = True, []
        T = _smoother(start, prior)
        for begin in range(0, self._num_outputs, BLOCK):
            block, there = known(Y[:, begin : begin + BLOCK])
            if not np.isfinite(block).all():
                raise ValueError("Y must not be infinite; a missing target is NaN.")
            checks.check_size(block.numpy(), "Y")
            self._complete &= bool(tf.reduce_all(there > 0.0))
            means.append(tf.transpose(tf.reshape(tf.matmul(T, block), [N, K, -1]), [0, 2, 1]))
        self.weight_mean = gpflow.Parameter(tf.concat(means, axis=1))
        sizes = (N, *self.output_shape, K)
        each = [K] if separate else []
        self.weight_factors = [_factor(N, _START_SCALE, each), *(_factor(size, 1.0) for size in sizes[1:])]
        self.node_mean = gpflow.Parameter(blocks.whitened(prior.nodes, start))
        self.node_factors = [_factor(N, _START_SCALE, each), _factor(K, 1.0)]

    @property
    def has_separate_rows(self) -> bool:
        """Whether each node has a Σ and a Γ_N of its own."""
        return len(self.node_factors[0].shape) == 3

    def elbo(self, prior: NetworkPrior, batch: tuple[tf.Tensor, tf.Tensor] | None = None) -> tf.Tensor:
        """Return the bound of log p(Y | X). O(N²DK + NDK²).

        With a ``batch`` of outputs drawn at random, their numbers [B] and their targets [N, B], it is an
        unbiased estimate at O(N²BK + NBK²).
        """
        mean, output_var = self.payload()
        scale = tf.ones([], prior.noise.dtype)
        if batch is None:
            Y = tf.ensure_shape(
                tf.convert_to_tensor(self.data[0]), [self.node_mean.shape[0], self._num_outputs]
            )
        else:
            indices, Y = batch
            mean, output_var = tf.gather(mean, indices, axis=1), tf.gather(output_var, indices)
            scale = float(self._num_outputs) / tf.cast(tf.shape(indices)[0], scale.dtype)
        Y, there = known(Y)
        N, K = self.node_mean.shape
        rows, *_, column = factors = list(map(tf.convert_to_tensor, self.weight_factors))
        row, omega = map(tf.convert_to_tensor, self.node_factors)
        squares = tensor_normal.expected_squares(
            Y,
            tf.reshape(tf.matmul(prior.weights, tf.reshape(mean, [N, -1])), [N, -1, K]),
            _moments(prior.weights, rows, column),
            output_var,
            blocks.applied(prior.nodes, tf.convert_to_tensor(self.node_mean)),
            _moments(prior.nodes, row, omega),
            None if self._complete else there,
        )
        constant = tf.reduce_sum(there) * tf.math.log(2.0 * np.pi * prior.noise)
        fit = -0.5 * scale * (constant + tf.reduce_sum(squares) / prior.noise)
        kl = tensor_normal.kl(tf.sqrt(scale) * mean, factors)
        return fit - kl - tensor_normal.kl(tf.convert_to_tensor(self.node_mean), [row, omega])

    def nodes(self, prior: NetworkPrior) -> network.Nodes:
        """Return the moments of q(F)."""
        row, omega = map(tf.convert_to_tensor, self.node_factors)
        M = tf.convert_to_tensor(self.node_mean)
        cov = _moments(prior.nodes, row, omega)
        return network.Nodes(blocks.applied(prior.nodes, M), cov, tensor_normal.kl(M, [row, omega]))

    def parts(self, prior: NetworkPrior) -> tuple[tf.Tensor, ...]:
        """Return what prediction needs besides the means of the weights."""
        held = (self.node_mean, *self.node_factors, *self.weight_factors)
        return prior.weights, prior.nodes, *map(tf.convert_to_tensor, held)

    def payload(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return Ũ [N, D, K] and the variances of the outputs [D]."""
        return tf.convert_to_tensor(self.weight_mean), self._output_var()

    def blocks(self, size: int) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Yield the same by blocks of outputs."""
        mean, var = self.payload()
        for begin in range(0, self._num_outputs, size):
            yield mean[:, begin : begin + size], var[begin : begin + size]

    def gather(self, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the same for some outputs [B]."""
        mean, var = self.payload()
        return tf.gather(mean, indices, axis=1), tf.gather(var, indices)

    def drawing(
        self, parts: tuple[tf.Tensor, ...], payload: tf.Tensor, trait: tf.Tensor
    ) -> tuple[Draw, Draw, tf.Tensor]:
        """Return what draws W̃ and F̃, see `functions.Draw`, and the amplitudes of the outputs, ones [D]."""
        _, _, mean, row, omega, weight_row, *output_factors, column = parts
        (N, K), D = mean.shape, int(trait.shape[0])

        def nodes(numbers: Numbers, S: int) -> tf.Tensor:
            mixed = tf.einsum("kl,lns->kns", omega, numbers.normal([K, N, S]))
            return tf.transpose(mean)[..., None] + tf.matmul(row, mixed)

        def weights(numbers: Numbers, S: int) -> tf.Tensor:
            noise = numbers.normal([K, N, S, *self.output_shape])
            zero = tf.zeros(self.output_shape, noise.dtype)
            noise = tf.reshape(tensor_normal.sample(zero, output_factors, noise), [K, N, S, -1])[..., :D]
            mixed = tf.reshape(tf.einsum("kl,lnsd->knsd", column, noise), [K, N, -1])
            moved = tf.reshape(tf.matmul(weight_row, mixed), [K, N, S, D])
            found = tf.transpose(payload, [1, 2, 0])[..., None] + tf.transpose(moved, [3, 0, 1, 2])
            return tf.reshape(found, [D * K, N, S])

        return weights, nodes, tf.ones([D], mean.dtype)

    def view(self, parts: tuple[tf.Tensor, ...], w: Conditional, f: Conditional) -> TensorView:
        """Return the posterior as seen from new inputs, or pairs of them."""
        _, _, mean, row, omega, weight_row, *output_factors, column = parts
        K = mean.shape[1]
        own = tf.reshape(conditional.on_diagonal(f.residual, K, f.is_of_pairs), [-1, K, K])
        return TensorView(
            f.mean(mean),
            own + _seen_moments(row, f, omega),
            w.A,
            tf.reshape(w.residual, [-1]),
            _seen_moments(weight_row, w, column),
            tuple(output_factors),
        )

    def _output_var(self) -> tf.Tensor:
        factors = [tf.convert_to_tensor(factor) for factor in self.weight_factors[1:-1]]
        return tensor_normal.diagonal(factors)[: self._num_outputs]


@dataclass(frozen=True)
class TensorView:
    """See `conditional.View`: payload are columns of Ũ, the trait is (Γ₁ ⊗ … ⊗ Γ_M)_dd.

    Cov(w_d, w_e) = ``residual``·δ_de·I + ``shared``·(Γ₁ ⊗ … ⊗ Γ_M)_de, [R] and [R, K, K].
    """

    mean: tf.Tensor
    cov: tf.Tensor
    A: tf.Tensor
    residual: tf.Tensor
    shared: tf.Tensor
    output_factors: tuple[tf.Tensor, ...]

    def weights(self, payload: tf.Tensor, trait: tf.Tensor) -> tf.Tensor:
        """See `View`."""
        return tf.einsum("nx,ndk->xdk", self.A, payload)

    def spread(self, M: tf.Tensor, trait: tf.Tensor) -> tf.Tensor:
        """See `View`."""
        own, shared = self._traces(M)
        return own[..., None] + shared[..., None] * trait

    def output_spread(self, M: tf.Tensor, trait: tf.Tensor) -> tf.Tensor:
        """See `View`."""
        D = trait.shape[0]
        own, shared = self._traces(M)
        grams = [tf.matmul(factor, factor, transpose_b=True) for factor in self.output_factors]
        cov = functools.reduce(_kronecker, grams)[:D, :D]
        return own[:, None, None] * tf.eye(D, dtype=cov.dtype) + shared[:, None, None] * cov

    def draw_weights(self, mean: tf.Tensor, trait: tf.Tensor, seed: tf.Tensor, number: int) -> tf.Tensor:
        """See `View`; correlations between outputs are left out."""
        B, X, D, K = batched.sizes(mean)
        own = conditional.joint_factor(self.residual[:, None, None], B, X, 1)  # [B, X, X]
        shared = conditional.joint_factor(self.shared, B, X, K)  # [B, XK, XK]
        noise = philox.normal([2, number, D, B, X, K], seed, mean.dtype)
        moved = tf.matmul(own, noise[0])
        through = tf.linalg.matvec(shared, tf.reshape(noise[1], [number, D, B, X * K]))
        moved += tf.sqrt(trait)[:, None, None, None] * tf.reshape(through, [number, D, B, X, K])
        return mean + tf.transpose(moved, [0, 2, 3, 1, 4])

    def _traces(self, M: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self.residual * tf.linalg.trace(M), tf.reduce_sum(M * self.shared, axis=[-2, -1])


def _smoother(start: tf.Tensor, prior: NetworkPrior) -> tf.Tensor:
    """Return T [NK, N]: W̃_d = T y_d is optimal for F = ``start`` and complete targets."""
    N, dtype = start.shape[0], start.dtype
    complete = network.Patterns(tf.ones([1, N], dtype), tf.zeros([1, N, 1], dtype), tf.ones([1], dtype))
    return network.weights(complete, prior.weights, prior.noise, network.known(start)).smoother[0]


def _factor(size: int, scale: float, lead: Sequence[int] = ()) -> gpflow.Parameter:
    """Return a lower triangular parameter with a positive diagonal, [..., n, n]."""
    dtype = gpflow.default_float()
    start = scale * tf.eye(size, batch_shape=lead, dtype=dtype)
    return gpflow.Parameter(start, transform=PositiveTriangular(_LEAST_SCALE))


def _moments(chol: tf.Tensor, rows: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
    """Return the covariances [N, K, K] at the rows of a factor of the prior, [N, N] or [K, N, N]."""
    half = tf.linalg.matrix_transpose(tf.matmul(chol, rows))
    return tensor_normal.moments(half if half.shape.rank == 3 else half[None], column)


def _seen_moments(rows: tf.Tensor, seen: Conditional, column: tf.Tensor) -> tf.Tensor:
    """Return the same at new inputs or, flattened, the pairs of members, [R, K, K]."""
    half = tf.matmul(rows, seen.A, transpose_a=True)
    half = half if half.shape.rank == 3 else half[None]
    if not seen.is_of_pairs:
        return tensor_normal.moments(half, column)
    *_, B, X, _ = batched.sizes(seen.residual)
    K = column.shape[0]
    half = tf.broadcast_to(half, [K, *batched.sizes(half)[1:]])
    half = tf.reshape(half, [*batched.sizes(half)[:2], B, X])
    cov = tf.einsum("krbx,lrby->bxykl", half, half) * tf.matmul(column, column, transpose_b=True)
    return tf.reshape(cov, [B * X * X, K, K])


def _kronecker(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return tf.reshape(
        a[:, None, :, None] * b[None, :, None, :], [a.shape[0] * b.shape[0], a.shape[1] * b.shape[1]]
    )
