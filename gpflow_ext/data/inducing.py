"""Choice of inducing points and of their number: cluster centres of the inputs, or some of the inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from gpflow.kernels import Kernel, MultioutputKernel

from gpflow_ext.compiled import Preferred
from gpflow_ext.data import length_scales
from gpflow_ext.data.arguments import check_kind, check_number, check_whole

Array = npt.NDArray[Any]
MOST = 300  # points by themselves
SHARE = 0.01  # of the prior variance that they may leave
_BLOCK = 64  # rows whose variances are computed at once
_AHEAD, _COLUMNS = 32, 16  # the most rows whose covariances are computed at once, and columns to each of them
_ROUNDING = 1e-6  # distances below this share of a row's norm, from the mean of all, may be rounding


def kmeans(X: npt.ArrayLike, num_inducing: int, *, seed: int = 0) -> Array:
    """Return k-means centres of the rows, all different and each the nearest centre of some row.

    It uses mini-batch k-means (Sculley 2010) by scikit-learn. If that leaves a cluster empty or two centres
    equal, the row farthest from all centres becomes a centre. O(NMD) for each pass over the data.

    Parameters
    ----------
    X
        Inputs, shape [N, D].
    num_inducing
        M <= N. If there are exactly M distinct rows, these are returned.
    seed
        Seed of the initial centres and the minibatches; the same seed gives the same points.

    Returns
    -------
    Inducing points, shape [M, D], of the dtype of X (float64 for integers).

    Raises
    ------
    ValueError
        For inputs that are not a finite matrix, M out of range, or fewer than M distinct rows.
    ImportError
        Without scikit-learn.
    """
    inputs = _check(X, num_inducing)
    check_whole(seed=seed)
    rows = distinct(inputs)
    if len(rows) < num_inducing:
        raise ValueError(
            f"num_inducing is {num_inducing}, but X has only {len(rows)} distinct rows: "
            f"ask for at most {len(rows)}."
        )
    if len(rows) == num_inducing:
        return rows
    try:
        from sklearn.cluster import MiniBatchKMeans
    except ImportError as error:
        raise ImportError('kmeans needs scikit-learn: pip install "gpflow-ext[data]".') from error
    middle = inputs.mean(axis=0, dtype=np.float64)
    centred = inputs - middle  # distances are differences of large squares where the data are far from 0
    clusters = MiniBatchKMeans(num_inducing, random_state=seed, n_init=1, compute_labels=False).fit(centred)
    centres = (clusters.cluster_centers_ + middle).astype(inputs.dtype)
    return _use_all(inputs, centres, middle)


def subset(X: npt.ArrayLike, num_inducing: int, *, seed: int = 0) -> Array:
    """Return M rows of X [N, D], drawn at random without replacement, as [M, D] of the dtype of X.

    Rows that occur several times may be drawn several times.

    Raises
    ------
    ValueError
        For inputs that are not a finite matrix, or M out of range.
    """
    inputs = _check(X, num_inducing)
    return inputs[np.random.default_rng(seed).choice(len(inputs), num_inducing, replace=False)]


def conditional_variance(
    X: npt.ArrayLike, kernel: Kernel, most: int = MOST, *, share: float = SHARE
) -> Array:
    """Return rows of X chosen greedily by conditional variance (Burt, Rasmussen and van der Wilk 2020).

    Each is the row with the largest prior variance given those before it, until these variances sum to a
    share of the prior's: a pivoted Cholesky factorisation of K. The remaining sum is the trace that bounds
    the loss of a sparse approximation. O(NM²).

    Parameters
    ----------
    X
        Inputs, shape [N, D].
    kernel
        The kernel, whose hyperparameters decide what is near. White noise cannot be explained and is left
        out; the variances of several outputs are added.
    most
        The largest M.
    share
        Share of the sum of the prior variances at which the choice ends; in [0, 1).

    Returns
    -------
    Inducing points, shape [M, D], of the dtype of X (float64 for integers), in the order of their choice.

    Raises
    ------
    ValueError
        For inputs that are not a finite matrix, ``most`` below 1 or ``share`` out of range.
    """
    inputs = _check(X, 1)
    check_kind(Kernel, kernel=kernel)
    check_whole(most=most)
    check_number(share=share)
    if most < 1 or not 0.0 <= share < 1.0:
        raise ValueError(f"most must be at least 1 and share in [0, 1); got {most} and {share}.")
    covariance, rows = _covariance(kernel), tf.constant(inputs, gpflow.default_float())
    blocks = (rows[begin : begin + _BLOCK] for begin in range(0, len(inputs), _BLOCK))
    left = np.concatenate([np.diagonal(covariance(block, block)) for block in blocks])
    total, least = left.sum(), _ROUNDING**2 * left.max()
    factor = np.empty([min(most, len(inputs)), len(inputs)])
    row_of, chosen = _rows_ahead(covariance, rows), list[int]()
    for m in range(len(factor)):
        n = int(np.argmax(left))
        if chosen and (left.sum() <= share * total or left[n] <= least):
            break
        chosen.append(n)
        if left[n] == 0.0:  # there is nothing to explain, as under white noise alone: one row is enough
            break
        row = row_of(n, left) - factor[:m, n] @ factor[:m]
        factor[m] = row / np.sqrt(left[n])
        left = np.maximum(left - factor[m] ** 2, 0.0)
        left[n] = 0.0
    return inputs[chosen]


class _Covariance:
    """K(A, B), of several outputs the sum, without white noise: as between different rows."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernels = kernel.latent_kernels if isinstance(kernel, MultioutputKernel) else [kernel]

    def between(self, A: tf.Tensor, B: tf.Tensor) -> tf.Tensor:
        """Return it for rows A [N, D] and B [M, D], as [N, M]."""
        return sum(kernel(A, B) for kernel in self.kernels)


def _covariance(kernel: Kernel) -> Callable[[tf.Tensor, tf.Tensor], Array]:
    """Return the covariance of two tensors of rows, compiled: a choice asks for it once for each point."""
    of = _Covariance(kernel)
    compiled = Preferred(of, lasting=True)
    return lambda A, B: compiled(of.between, A, B).numpy()


def _rows_ahead(
    covariance: Callable[[tf.Tensor, tf.Tensor], Array], rows: tf.Tensor
) -> Callable[[int, Array], Array]:
    """Return a function of n and the variances left [N] that returns the covariances of a row with all, [N].

    Of many columns, which take longest to read, it computes those of the rows with the largest variances at
    once: they are likely to be chosen next.
    """
    number = min(max(1, rows.shape[1] // _COLUMNS), _AHEAD, rows.shape[0])
    known: dict[int, Array] = {}

    def row_of(n: int, left: Array) -> Array:
        if n not in known:
            known.clear()
            ahead = np.union1d(n, np.argpartition(left, -number)[-number:]) if number > 1 else np.array([n])
            known.update(zip(ahead.tolist(), covariance(tf.gather(rows, ahead), rows), strict=True))
        return known.pop(n)

    return row_of


def by_name(name: str, X: npt.ArrayLike, kernel: Kernel) -> Array:
    """Return what ``inducing_variable="auto"`` stands for: points for the length scales that X suggest.

    Raises
    ------
    ValueError
        For another name.
    """
    if name != "auto":
        raise ValueError(f'inducing_variable must be points, inducing variables or "auto"; got {name!r}.')
    return conditional_variance(X, length_scales.with_suggested(kernel, X))


def distinct(X: Array) -> Array:
    """Return the rows of X [N, D] without repetition, in the order of their first occurrence. O(ND)."""
    first: dict[bytes, int] = {}
    for n, row in enumerate(X):
        first.setdefault((row + 0.0).tobytes(), n)  # -0.0 becomes 0.0: equal numbers have equal bytes
    return X[list(first.values())]


def _use_all(X: Array, Z: Array, middle: Array) -> Array:
    """Return the centres Z [M, D] after moving each without a row of X [N, D] to the row farthest from all.

    Of equal centres the first has all the rows. A centre put at a row keeps it, because no other comes
    as near as rounding: at most M rounds.
    """
    from sklearn.metrics import pairwise_distances_argmin_min

    centred = X - middle
    rounding = _ROUNDING * np.linalg.norm(centred, axis=1)
    while True:
        nearest, distance = pairwise_distances_argmin_min(centred, Z - middle)
        used = np.isin(np.arange(len(Z)), nearest)
        if used.all():
            return Z
        for m in np.flatnonzero(~used):
            farthest = np.argmax(np.where(distance > rounding, distance, 0.0))
            if distance[farthest] <= rounding[farthest]:
                raise ValueError(
                    f"num_inducing is {len(Z)}, but fewer rows of X differ by more than rounding: "
                    "ask for fewer, or scale the inputs."
                )
            Z[m] = X[farthest]
            distance = np.minimum(distance, np.linalg.norm(X - Z[m], axis=1))


def _check(X: npt.ArrayLike, num_inducing: int) -> Array:
    inputs = np.asarray(X)
    if inputs.ndim != 2 or not inputs.shape[1] or inputs.dtype.kind not in "biuf":
        raise ValueError(
            f"X must be a matrix [N, D] of numbers; got shape {inputs.shape} and dtype {inputs.dtype}."
        )
    if not np.isfinite(inputs).all():
        raise ValueError(f"X must be finite; row {np.argwhere(~np.isfinite(inputs))[0, 0]} is not.")
    check_whole(num_inducing=num_inducing)
    if not 1 <= num_inducing <= len(inputs):
        raise ValueError(
            f"num_inducing must be from 1 to {len(inputs)}, the number of rows of X; got {num_inducing}."
        )
    return inputs if inputs.dtype.kind == "f" else inputs.astype(np.float64)
