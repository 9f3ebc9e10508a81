"""The prior of a state-space model: that of the values at the data, in the order of time."""

from __future__ import annotations

from collections.abc import Sequence

import gpflow
import tensorflow as tf

from gpflow_ext.numerics.batched import sizes
from gpflow_ext.sites import chunked, latent, state_space
from gpflow_ext.sites.markov import Markov
from gpflow_ext.sites.state_space import DTYPE, StateSpace

_CUT = 0.01  # of the variance of a periodic kernel, from where its truncation is named


def check(kernel: gpflow.kernels.Kernel, columns: int, owner: str) -> None:
    """Raise where a model has no state-space prior.

    Raises
    ------
    ValueError
        For inputs of several columns, or kernels with several length scales.
    NotImplementedError
        For kernels that have no state-space form, or more than 16 states, or that mix outputs.
    """
    if columns != 1:
        raise ValueError(
            f'prior="markov" is for functions of one input, such as time; the inputs of this {owner} have '
            f"{columns} columns: use `inducing_variable`, or leave `prior` out."
        )
    if latent.mixing(kernel) is not None:
        raise NotImplementedError(
            f'prior="markov" has independent latent functions, but {type(kernel).__name__} mixes them: use '
            "SharedIndependent or SeparateIndependent, or leave `prior` out."
        )
    for part in latent.kernels(kernel):
        state_space.harmonics(part)


def truncation(kernel: gpflow.kernels.Kernel) -> str | None:
    """Say how much of a periodic kernel is cut off, or return ``None`` for up to 0.01 of its variance."""
    for part in latent.kernels(kernel):
        number = state_space.harmonics(part)
        share = state_space.cut_off(part, number)
        if share > _CUT:
            return (
                f'prior="markov" has room for {number} harmonics of the periodic part of the kernel, which '
                f"leave out {share:.2g} of its variance at its length scale: functions are smoother than "
                "those of the kernel. Give it a longer length scale, or simpler other parts, or leave "
                "`prior` out."
            )
    return None


def spaces_of(kernel: gpflow.kernels.Kernel) -> list[StateSpace]:
    """Return the state-space forms of the kernels of one output, one or S."""
    return spaces(latent.kernels(kernel))


def spaces(kernels: Sequence[gpflow.kernels.Kernel]) -> list[StateSpace]:
    """Return the state-space forms of some kernels."""
    return [state_space.build(part, state_space.harmonics(part)) for part in kernels]


def transitions(spaces: list[StateSpace], delta: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return F and Q for time differences [n, C], each [n, d, d, S, C]; d is that of the largest space."""
    pairs = []
    for space in spaces:
        F, P = space.transition(delta), space.covariance
        FP = tf.einsum("nijc,jk->nikc", F, P)
        Q = P[None, :, :, None] - tf.einsum("nijc,nkjc->nikc", FP, F)
        pairs.append((F, 0.5 * (Q + tf.transpose(Q, [0, 2, 1, 3]))))
    return _stacked([F for F, _ in pairs], 2), _stacked([Q for _, Q in pairs], 2)


def observations(spaces: list[StateSpace], times: tf.Tensor) -> tf.Tensor:
    """Return h at times [n, C], [n, d, S, C]."""
    return _stacked([space.observation(times) for space in spaces], 1)


def covariances(spaces: list[StateSpace]) -> tf.Tensor:
    """Return the prior covariances of the states, [d, d, S]."""
    return _stacked([space.covariance[None, :, :, None] for space in spaces], 2)[0, ..., 0]


def _stacked(parts: list[tf.Tensor], axes: int) -> tf.Tensor:
    """Stack [n, ..., C] of all functions, with ``axes`` axes of states filled up by zeros, [n, ..., S, C]."""
    most = max(part.shape[1] for part in parts)
    short = [[[0, most - part.shape[1]]] * axes for part in parts]
    filled = [tf.pad(part, [[0, 0], *by, [0, 0]]) for part, by in zip(parts, short, strict=True)]
    return tf.stack(filled, axis=-2)


def sort(times: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the datum of each of the sorted times [N], and the place of each datum among them, each [N].

    At no cost where they are sorted.
    """

    def found() -> tuple[tf.Tensor, tf.Tensor]:
        order = tf.argsort(times, stable=True)
        return order, tf.argsort(order)

    here = tf.range(tf.shape(times)[0])
    increasing = tf.reduce_all(times[1:] >= times[:-1])
    order, rank = tf.cond(increasing, lambda: (here, here), found)
    return tf.ensure_shape(order, times.shape), tf.ensure_shape(rank, times.shape)


def at(prior: latent.Functions, X: tf.Tensor) -> Markov:
    """Return the prior at X [N, 1]. O(N d²), O(N log N) where X is not sorted."""
    return of_kernel(prior.kernel, X, latent.mean(prior, X))


def of_kernel(kernel: gpflow.kernels.Kernel, X: tf.Tensor, mean: tf.Tensor) -> Markov:
    """Return the prior at X [N, 1] of a kernel and a prior mean [N, L]."""
    spaces, N = spaces_of(kernel), sizes(X)[0]
    order, rank = sort(X[:, 0])
    times = tf.cast(tf.gather(X[:, 0], order), DTYPE)
    chunks = chunked.chunk_count(N)
    laid = chunked.lay(times, chunks)  # [n, C]
    F, Q = transitions(spaces, laid - _entering(laid))
    first, lane = (tf.one_hot(0, size, dtype=DTYPE) for size in sizes(laid))
    starts = (first[:, None] * lane)[:, None, None, None]  # [n, 1, 1, 1, C]
    F, Q = (1.0 - starts) * F, (1.0 - starts) * Q + starts * covariances(spaces)[None, ..., None]
    leap, _ = transitions(spaces, laid[-1:] - _entering(laid)[:1])
    own = latent.variances(kernel, X)
    return Markov(mean, order, rank, F, Q, observations(spaces, laid), leap[0], own)


def _entering(laid: tf.Tensor) -> tf.Tensor:
    """Return the time before each, [n, C]; before the first that itself."""
    previous = chunked.before(laid)
    return tf.concat([tf.concat([laid[:1, :1], previous[:1, 1:]], axis=1), previous[1:]], axis=0)
