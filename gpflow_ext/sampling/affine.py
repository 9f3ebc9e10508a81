"""Affine coordinates of the sampled vector, those of a Gaussian near the posterior."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

_OTHER_SCALE = 0.25  # of the parameters beside v, on the log scale


class Affine(NamedTuple):
    """x = loc + [F z₁ + J(s∘z₂), s∘z₂] with the lower triangular blocks F of a Gaussian approximation.

    Chains that move in z with a unit mass matrix move in x with that of the approximation's covariance.
    """

    loc: tf.Tensor  # [d]
    blocks: tf.Tensor  # F, [P, M, M]: of the first M·P coordinates, in the order [M, P]; or [1, M·P, M·P]
    scale: tf.Tensor  # s, [d − M·P]: of the others
    tilt: tf.Tensor  # J, [M·P, d − M·P]: how the approximation's mean moves with the others

    def forward(self, z: tf.Tensor) -> tf.Tensor:
        """Return x for z, [C, d]. O(CPM²)."""
        P, M = self.blocks.shape[0], self.blocks.shape[-1]
        first, rest = z[:, : M * P], self.scale * z[:, M * P :]
        moved = tf.einsum("pmn,cnp->cmp", self.blocks, tf.reshape(first, [-1, M, P]))
        moved = tf.reshape(moved, tf.shape(first)) + tf.matmul(rest, self.tilt, transpose_b=True)
        return self.loc + tf.concat([moved, rest], axis=1)

    def inverse(self, x: tf.Tensor) -> tf.Tensor:
        """Return z for x, [C, d]. O(CPM²)."""
        P, M = self.blocks.shape[0], self.blocks.shape[-1]
        first, rest = tf.split(x - self.loc, [M * P, -1], axis=1)
        first = tf.reshape(first - tf.matmul(rest, self.tilt, transpose_b=True), [-1, M, P])
        solved = tf.linalg.triangular_solve(self.blocks, tf.transpose(first, [2, 1, 0]))
        solved = tf.reshape(tf.transpose(solved, [2, 1, 0]), [-1, M * P])
        return tf.concat([solved, rest / self.scale], axis=1)


def around(loc: tf.Tensor, blocks: tf.Tensor | None = None, tilt: tf.Tensor | None = None) -> Affine:
    """Return coordinates around a point, v in those of its Gaussian approximation, the rest scaled by 1/4.

    Parameters
    ----------
    loc
        The point, [d].
    blocks
        Factors of the covariance of v, [P, M, M] or [1, M·P, M·P]; by default there is no v.
    tilt
        How the mean of v moves with the rest, [M·P, d − M·P]; by default it does not.
    """
    blocks = tf.zeros([1, 0, 0], loc.dtype) if blocks is None else blocks
    first = int(blocks.shape[0]) * int(blocks.shape[-1])
    rest = int(loc.shape[0]) - first
    scale = tf.fill([rest], tf.constant(_OTHER_SCALE, loc.dtype))
    return Affine(loc, blocks, scale, tf.zeros([first, rest], loc.dtype) if tilt is None else tilt)
