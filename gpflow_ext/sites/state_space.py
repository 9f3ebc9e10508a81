"""Kernels of one input as f(t) = h(t)ᵀx(t), x a stationary Gauss-Markov process (Hartikainen & Särkkä 2010).

    x(t + Δ) = F(Δ)x(t) + w,  w ~ N(0, P − F(Δ)PF(Δ)ᵀ),  P = Cov[x(t)]

Derivatives among the states are in units of the length scale, so that P does not depend on it. Sums stack the
states of their parts, products take Kronecker products (Solin & Särkkä 2014).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.kernels import Kernel
from scipy import special

DTYPE = tf.float64
MOST_STATES = 16
MOST_HARMONICS = 7  # of a periodic kernel
_SHAPES = (  # the covariances of Matérn states, for variance one
    [[1.0]],
    [[1.0, 0.0], [0.0, 1.0]],
    [[1.0, 0.0, -1.0 / 3.0], [0.0, 1.0 / 3.0, 0.0], [-1.0 / 3.0, 0.0, 1.0]],
)
_NODES = 256  # of the trapezoidal rule for its Fourier coefficients, which errs by those beyond


class StateSpace(NamedTuple):
    """A kernel as a linear model of d states."""

    transition: Callable[[tf.Tensor], tf.Tensor]  # Δ ≥ 0 [n, C] to F [n, d, d, C]
    covariance: tf.Tensor  # P, [d, d]
    observation: Callable[[tf.Tensor], tf.Tensor]  # t [n, C] to h [n, d, C]


class Family(NamedTuple):
    """Conversion of a class of kernels to a `StateSpace`."""

    size: Callable[[Any, int], int]  # (kernel, harmonics) to d
    build: Callable[[Any, int], StateSpace]


def size(kernel: Kernel, harmonics: int = 0) -> int:
    """Return the number of states of a kernel, with so many harmonics of each periodic part."""
    return _family(kernel).size(kernel, harmonics)


def harmonics(kernel: Kernel, most: int = MOST_STATES) -> int:
    """Return how many harmonics, at most 7, leave a kernel at most so many states.

    Raises
    ------
    NotImplementedError
        For a kernel without state-space form, or with more states.
    ValueError
        For a kernel with several length scales.
    """
    for number in range(MOST_HARMONICS, 0, -1):
        if size(kernel, number) <= most:
            return number
    raise NotImplementedError(
        f'prior="markov" takes kernels of at most {most} states, but {describe(kernel)} has '
        f"{size(kernel, 1)}: the states of sums add up and those of products multiply. Use fewer parts, "
        "Matern12 in place of Matern52, or `inducing_variable`."
    )


def cut_off(kernel: Kernel, harmonics: int) -> float:
    """Return the share of its variance that so many harmonics leave out, of the part that loses most.

    Of exp(−½ sin²(πτ/γ)/ℓ²) they leave out 1 − e⁻ᶻ(I₀(z) + 2 Σ_j I_j(z)), z = 1/4ℓ².
    """
    if isinstance(kernel, gpflow.kernels.Combination):
        return max(cut_off(part, harmonics) for part in kernel.kernels)
    if not isinstance(kernel, gpflow.kernels.Periodic):
        return 0.0
    z = 0.25 / float(np.ravel(kernel.base_kernel.lengthscales)[0]) ** 2
    kept = special.ive(np.abs(np.arange(-harmonics, harmonics + 1)), z)
    return float(1.0 - np.sum(kept))


def build(kernel: Kernel, harmonics: int) -> StateSpace:
    """Return the state-space form of a kernel."""
    return _family(kernel).build(kernel, harmonics)


def describe(kernel: Kernel) -> str:
    """Return a kernel as text, by the classes of its parts."""
    parts = getattr(kernel, "kernels", None)
    if parts is None:
        return type(kernel).__name__
    sign = " + " if isinstance(kernel, gpflow.kernels.Sum) else " * "
    return f"({sign.join(map(describe, parts))})"


def _family(kernel: Kernel) -> Family:
    """Return the family of a kernel; that of a user's subclass is not known, and inputs have one column."""
    found = FAMILIES.get(type(kernel))
    if found is None:
        raise NotImplementedError(
            f'{type(kernel).__name__} has no state-space form here. prior="markov" takes sums and products '
            f"of {_NAMED}: use Matern52 for smooth functions, or leave `prior` out for the dense model, or "
            "give `inducing_variable`."
        )
    lengths = getattr(kernel, "lengthscales", None)
    if lengths is not None and (lengths.shape.num_elements() or 1) > 1:
        raise ValueError(
            f'prior="markov" has inputs of one column, but {type(kernel).__name__} has '
            f"{lengths.shape.num_elements()} length scales: give it one."
        )
    return found


def _scalar(parameter: Any) -> tf.Tensor:
    """Return a parameter of one input in double precision, []."""
    return tf.cast(tf.reshape(parameter, []), DTYPE)


def _stacked(rows: Sequence[Sequence[tf.Tensor]]) -> tf.Tensor:
    """Return entries [n, C] in rows and columns as [n, d, d, C]."""
    return tf.stack([tf.stack(row, axis=1) for row in rows], axis=1)


def _first(count: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return h of a function that is the first of ``count`` states."""

    def observation(t: tf.Tensor) -> tf.Tensor:
        return tf.stack([tf.ones_like(t), *([tf.zeros_like(t)] * (count - 1))], axis=1)

    return observation


def _of_matern(order: int, unit: float) -> Family:
    """Return the family of the Matérn kernels of smoothness order + ½, with rate ``unit`` by length scale."""

    def entries(z: tf.Tensor) -> list[list[tf.Tensor]]:
        half = 0.5 * z**2
        if order == 0:
            return [[tf.ones_like(z)]]
        if order == 1:
            return [[1.0 + z, z], [-z, 1.0 - z]]
        return [
            [1.0 + z + half, z + 2.0 * half, half],
            [-half, 1.0 + z - 2.0 * half, z - half],
            [half - z, 2.0 * half - 3.0 * z, 1.0 - 2.0 * z + half],
        ]

    def build(kernel: Any, _: int) -> StateSpace:
        rate = unit / _scalar(kernel.lengthscales)

        def transition(delta: tf.Tensor) -> tf.Tensor:
            z = rate * delta
            return tf.exp(-z)[:, None, None] * _stacked(entries(z))

        covariance = _scalar(kernel.variance) * tf.constant(_SHAPES[order], DTYPE)
        return StateSpace(transition, covariance, _first(order + 1))

    return Family(lambda kernel, _: order + 1, build)


def _rotation(angle: tf.Tensor) -> tf.Tensor:
    return _stacked([[tf.cos(angle), -tf.sin(angle)], [tf.sin(angle), tf.cos(angle)]])


def _build_cosine(kernel: Any, _: int) -> StateSpace:
    rate = 2.0 * math.pi / _scalar(kernel.lengthscales)
    covariance = _scalar(kernel.variance) * tf.eye(2, dtype=DTYPE)
    return StateSpace(lambda delta: _rotation(rate * delta), covariance, _first(2))


def _periodic_size(kernel: Any, harmonics: int) -> int:
    """Return the number of states; refuse a repeated kernel other than the squared exponential."""
    base = type(kernel.base_kernel)
    if base is not gpflow.kernels.SquaredExponential:
        raise NotImplementedError(
            f'Periodic({base.__name__}) has no state-space form here; prior="markov" takes '
            "Periodic(SquaredExponential())."
        )
    return 1 + 2 * harmonics


def _build_periodic(kernel: Any, harmonics: int) -> StateSpace:
    """Return σ² Σ_j q_j cos(2πjτ/γ), the Fourier series of exp(−½ sin²(πτ/γ)/ℓ²) up to some harmonic.

    The coefficients are scaled so that the variance is σ² (Solin & Särkkä 2014, section 3).
    """
    base = kernel.base_kernel
    angle = 2.0 * math.pi * tf.range(_NODES, dtype=DTYPE) / _NODES
    values = tf.exp(0.25 * (tf.cos(angle) - 1.0) / _scalar(base.lengthscales) ** 2)
    orders = tf.range(harmonics + 1, dtype=DTYPE)
    q = tf.nn.relu(tf.linalg.matvec(tf.cos(orders[:, None] * angle), values))
    q *= tf.where(orders == 0.0, tf.ones_like(q), 2.0 * tf.ones_like(q))
    q *= _scalar(base.variance) / tf.reduce_sum(q)
    rate = 2.0 * math.pi / _scalar(kernel.period)

    def turning(order: int) -> StateSpace:
        covariance = q[order] * tf.eye(2, dtype=DTYPE)
        return StateSpace(lambda delta: _rotation(order * rate * delta), covariance, _first(2))

    return _added([_constant(q[0]), *map(turning, range(1, harmonics + 1))])


def _constant(variance: tf.Tensor) -> StateSpace:
    covariance = tf.reshape(variance, [1, 1])
    return StateSpace(lambda delta: tf.ones_like(delta)[:, None, None], covariance, _first(1))


def _build_constant(kernel: Any, _: int) -> StateSpace:
    return _constant(_scalar(kernel.variance))


def _build_white(kernel: Any, _: int) -> StateSpace:
    still = _constant(_scalar(kernel.variance))
    return still._replace(transition=lambda delta: tf.zeros_like(delta)[:, None, None])


def _build_linear(kernel: Any, _: int) -> StateSpace:
    """Return f = wt with a constant state w."""
    return _constant(_scalar(kernel.variance))._replace(observation=lambda t: t[:, None])


def _added(parts: Sequence[StateSpace]) -> StateSpace:
    """Return the sum of independent functions: the states of all, side by side."""

    def diagonal(blocks: list[tf.Tensor]) -> tf.Tensor:
        """Put [n, d, d, C] of each part on the diagonal."""
        total, at, rows = sum(block.shape[1] for block in blocks), 0, []
        for block in blocks:
            width = block.shape[1]
            rows.append(tf.pad(block, [[0, 0], [0, 0], [at, total - at - width], [0, 0]]))
            at += width
        return tf.concat(rows, axis=1)

    covariance = diagonal([part.covariance[None, :, :, None] for part in parts])[0, :, :, 0]
    return StateSpace(
        lambda delta: diagonal([part.transition(delta) for part in parts]),
        covariance,
        lambda t: tf.concat([part.observation(t) for part in parts], axis=1),
    )


def _multiplied(a: StateSpace, b: StateSpace) -> StateSpace:
    """Return the process whose kernel is the product: states x_a ⊗ x_b."""

    def kron(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        """Multiply [n, i, k, C] by [n, j, l, C] to [n, ij, kl, C]."""
        height, width = a.shape[1:3]
        rows = [[a[:, i, None, k, None] * b for k in range(width)] for i in range(height)]
        return tf.concat([tf.concat(row, axis=2) for row in rows], axis=1)

    covariance = kron(a.covariance[None, :, :, None], b.covariance[None, :, :, None])[0, :, :, 0]
    return StateSpace(
        lambda delta: kron(a.transition(delta), b.transition(delta)),
        covariance,
        lambda t: kron(a.observation(t)[:, :, None], b.observation(t)[:, :, None])[:, :, 0],
    )


def _build_product(kernel: Any, harmonics: int) -> StateSpace:
    first, *others = (build(part, harmonics) for part in kernel.kernels)
    for other in others:
        first = _multiplied(first, other)
    return first


def _own(count: int) -> Callable[[Any, int], int]:
    return lambda kernel, harmonics: count


FAMILIES: dict[type, Family] = {
    gpflow.kernels.Matern12: _of_matern(0, 1.0),
    gpflow.kernels.Exponential: _of_matern(0, 0.5),
    gpflow.kernels.Matern32: _of_matern(1, math.sqrt(3.0)),
    gpflow.kernels.Matern52: _of_matern(2, math.sqrt(5.0)),
    gpflow.kernels.Cosine: Family(_own(2), _build_cosine),
    gpflow.kernels.Periodic: Family(_periodic_size, _build_periodic),
    gpflow.kernels.Constant: Family(_own(1), _build_constant),
    gpflow.kernels.White: Family(_own(1), _build_white),
    gpflow.kernels.Linear: Family(_own(1), _build_linear),
    gpflow.kernels.Sum: Family(
        lambda kernel, harmonics: sum(size(part, harmonics) for part in kernel.kernels),
        lambda kernel, harmonics: _added([build(part, harmonics) for part in kernel.kernels]),
    ),
    gpflow.kernels.Product: Family(
        lambda kernel, harmonics: math.prod(size(part, harmonics) for part in kernel.kernels),
        _build_product,
    ),
}
_NAMED = ", ".join(
    kind.__name__ for kind in FAMILIES if kind not in (gpflow.kernels.Sum, gpflow.kernels.Product)
)
