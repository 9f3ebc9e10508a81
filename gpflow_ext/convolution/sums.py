"""Weighted sums of a squared exponential over all patches of images, in memory of one block of images.

Both sums are of E = exp(−½ Σ_s (z_s − x_s)²/ℓ_s²) between patches, which one matrix product and one
exponential make: with z̃ = (z/ℓ, −½‖z/ℓ‖², 1) and x̃ = (x/ℓ, 1, −½‖x/ℓ‖²) it is exp(z̃ᵀx̃). What gradients in the
patches z and in ℓ need of it are the sums of E x and E x², which the same pass makes:

    ∂/∂z Σ_p w_p E_p = Σ_p w_p E_p (x_p − z)/ℓ²,    ∂/∂ℓ_s Σ_p w_p E_p = Σ_p w_p E_p (z_s − x_ps)²/ℓ_s³
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gpflow_ext.numerics import batched
from gpflow_ext.numerics.mapped import one_by_one

_ELEMENTS = 2**19  # of a block of E, which then stays in the cache of a processor


def cross(Z: tf.Tensor, patches: tf.Tensor, lengthscales: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return Σ_p W_mp exp(−½‖(z_m − x_np)/ℓ‖²), [M, N]. O(NPMS), differentiable once.

    Parameters
    ----------
    Z
        Patches [M, S].
    patches
        All patches of N images, [N, P, S].
    lengthscales
        ℓ, [] or [S].
    weights
        W, [1 or M, P].
    """
    S = batched.sizes(Z)[1]

    @tf.custom_gradient
    def value(Z: tf.Tensor, patches: tf.Tensor, scale: tf.Tensor, W: tf.Tensor) -> Any:
        (N, P), M = batched.sizes(patches)[:2], batched.sizes(Z)[0]
        blocks, left, shared = _blocks(patches, M * P), _augmented(Z / scale, True), W.shape[0] == 1
        c = batched.sizes(blocks)[1]

        def exponentials(block: tf.Tensor) -> tf.Tensor:
            right = tf.reshape(_augmented(block / scale, False), [-1, S + 2])
            return tf.reshape(tf.exp(tf.matmul(right, left, transpose_b=True)), [-1, P, M])

        def forward(block: tf.Tensor) -> tf.Tensor:
            """Return Σ_p W_mp E_mp (1, x, x²), [c, M, 1 + S + 1 or S]."""
            squares = _folded(block**2, isotropic)
            E, moments = (
                exponentials(block),
                tf.concat([tf.ones_like(block[..., :1]), block, squares], axis=-1),
            )
            if shared:
                return tf.matmul(E, tf.transpose(W) * moments, transpose_a=True)
            return tf.matmul(E * tf.transpose(W), moments, transpose_a=True)

        found = _joined(_over(forward, blocks, Z.dtype), N)
        K, first, second = found[..., 0], found[..., 1 : 1 + S], found[..., 1 + S :]

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            G = tf.transpose(upstream)  # [N, M]
            of_z = tf.reduce_sum(G * K, axis=0)[:, None]
            of_x = tf.einsum("nm,nms->ms", G, first)
            spread = _folded(of_z * Z**2 - 2.0 * Z * of_x, isotropic) + tf.einsum("nm,nms->ms", G, second)
            by_block = _split(G, c)

            def in_weights(arguments: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
                block, own = arguments
                E = exponentials(block)
                if shared:
                    return tf.reduce_sum(tf.linalg.matvec(E, own), axis=0)[None]
                return tf.reduce_sum(tf.transpose(E, [0, 2, 1]) * own[..., None], axis=0)

            def in_patches(arguments: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
                block, own = arguments
                T = exponentials(block) * own[:, None, :] * tf.transpose(W)
                return (tf.matmul(T, Z) - block * tf.reduce_sum(T, axis=-1, keepdims=True)) / scale**2

            # Loops of their own, which a graph leaves out where nobody asks for these gradients.
            by_W = _total(in_weights, (blocks, by_block), W)
            by_patches = _joined(_over(in_patches, (blocks, by_block), Z.dtype), N)
            by_scale = tf.reshape(tf.reduce_sum(spread, axis=0), tf.shape(scale)) / scale**3
            return (of_x - Z * of_z) / scale**2, by_patches, by_scale, by_W

        return tf.transpose(K), gradient

    scale = tf.convert_to_tensor(lengthscales)
    isotropic = scale.shape.rank == 0
    return value(Z, patches, scale, weights)


def diagonal(
    patches: tf.Tensor, lengthscales: tf.Tensor, weights: tf.Tensor, relation: tf.Tensor | None = None
) -> tf.Tensor:
    """Return Σ_pq w_p w_q R_pq exp(−½‖(x_np − x_nq)/ℓ‖²), [N]. O(NP²S), differentiable once.

    Parameters
    ----------
    patches
        All patches of N images, [N, P, S].
    lengthscales
        ℓ, [] or [S].
    weights
        w [P].
    relation
        R, symmetric [P, P]; ones where there is none.
    """
    given = relation is not None

    @tf.custom_gradient
    def value(patches: tf.Tensor, scale: tf.Tensor, w: tf.Tensor, R: tf.Tensor) -> Any:
        N, P = batched.sizes(patches)[:2]
        blocks, column = _blocks(patches, P * P), w[:, None]
        c = batched.sizes(blocks)[1]

        def exponentials(block: tf.Tensor) -> tf.Tensor:
            x = block / scale
            return tf.exp(tf.matmul(_augmented(x, True), _augmented(x, False), transpose_b=True))  # [c, P, P]

        def forward(block: tf.Tensor) -> tf.Tensor:
            """Return Σ_q R_pq E_pq w_q (1, x_q), [c, P, 1 + S]."""
            E = exponentials(block) * R if given else exponentials(block)
            return tf.matmul(E, column * tf.concat([tf.ones_like(block[..., :1]), block], axis=-1))

        found = _joined(_over(forward, blocks, w.dtype), N)
        sums, first = found[..., :1], found[..., 1:]  # [N, P, 1], [N, P, S]

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            G = upstream[:, None, None]
            apart = tf.reduce_sum(2.0 * G * column * patches * (patches * sums - first), axis=[0, 1])
            by_scale = tf.reduce_sum(apart) if scale.shape.rank == 0 else apart
            by_patches = 2.0 * G * column * (first - patches * sums) / scale**2

            def in_relation(arguments: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
                block, own = arguments
                return tf.reduce_sum(exponentials(block) * own[:, None, None], axis=0)

            by_R = tf.zeros_like(R)
            if given:  # a loop that a graph leaves out where nobody asks for it
                by_R = column * w * _total(in_relation, (blocks, _split(upstream, c)), R)
            by_w = tf.reduce_sum(2.0 * G * sums, axis=[0, 2])
            return by_patches, by_scale / scale**3, by_w, by_R

        return tf.reduce_sum(sums * column, axis=[1, 2]), gradient

    one = tf.ones([], patches.dtype)
    return value(patches, tf.convert_to_tensor(lengthscales), weights, relation if given else one)


def _augmented(patches: tf.Tensor, left: bool) -> tf.Tensor:
    """Return z̃ or x̃ along the last axis, whose products are −½‖z − x‖²."""
    norm, one = -0.5 * tf.reduce_sum(patches**2, axis=-1, keepdims=True), tf.ones_like(patches[..., :1])
    return tf.concat([patches, norm, one] if left else [patches, one, norm], axis=-1)


def _folded(values: tf.Tensor, isotropic: bool) -> tf.Tensor:
    """Return values [..., S], or their sum [..., 1] where all dimensions share a length scale."""
    return tf.reduce_sum(values, axis=-1, keepdims=True) if isotropic else values


def _joined(blocks: tf.Tensor, number: int | tf.Tensor) -> tf.Tensor:
    """Return what blocks [blocks, c, ...] hold of a number of images."""
    return tf.reshape(blocks, [-1, *batched.sizes(blocks)[2:]])[:number]


def _blocks(patches: tf.Tensor, each: int) -> tf.Tensor:
    """Return images [N, P, S] by blocks, [blocks, c, P, S], zeros at the end; ``each`` is E's size of one."""
    N = batched.sizes(patches)[0]
    most = max(_ELEMENTS // each, 1)
    return _split(patches, tf.clip_by_value(N, 1, most) if tf.is_tensor(N) else min(max(N, 1), most))


def _split(values: tf.Tensor, c: int) -> tf.Tensor:
    """Return [N, ...] as [blocks, c, ...], zeros at the end."""
    N, *rest = batched.sizes(values)
    some = tf.maximum(N, 1) if tf.is_tensor(N) else max(N, 1)  # no images make a block of zeros
    missing = some - N + (c - some % c) % c  # ONNX takes remainders of negative numbers for negative
    padding = [[0, missing], *([0, 0] for _ in rest)]
    return tf.reshape(tf.pad(values, padding), [-1, c, *rest])


def _over(function: Callable[..., Any], blocks: Any, dtype: Any) -> Any:
    """Return function(block) of all blocks along a first axis, one after the other."""
    one = tf.nest.flatten(blocks)[0].shape[0] == 1
    if one:
        found = function(tf.nest.map_structure(lambda part: part[0], blocks))
        return tf.nest.map_structure(lambda part: part[None], found)
    return one_by_one(function, blocks, fn_output_signature=dtype)


def _total(function: Callable[..., tf.Tensor], blocks: Any, like: tf.Tensor) -> tf.Tensor:
    """Return the sum of function(block) over all blocks, which has the shape of ``like``."""
    return tf.foldl(lambda total, block: total + function(block), blocks, tf.zeros_like(like))
