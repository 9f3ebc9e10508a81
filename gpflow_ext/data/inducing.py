"""Where to put inducing points: cluster centres of the inputs, or some of the inputs themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_ROUNDING = 1e-6  # distances below this share of a row's norm, from the mean of all, may be rounding


def kmeans(X: npt.ArrayLike, num_inducing: int, *, seed: int = 0) -> Array:
    """Return the centres of clusters of the rows, all different and each the nearest one of some row.

    Mini-batch k-means of Sculley (2010) by scikit-learn. Where it leaves a cluster empty or two centres
    equal, the row farthest from all centres becomes a centre. O(NMD) for each pass over the data.

    Parameters
    ----------
    X
        Inputs, shape [N, D].
    num_inducing
        M <= N. Where there are just M distinct rows, these are returned.
    seed
        Of the starting centres and the minibatches; the same seed gives the same points.

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
    if not 1 <= num_inducing <= len(inputs):
        raise ValueError(
            f"num_inducing must be from 1 to {len(inputs)}, the number of rows of X; got {num_inducing}."
        )
    return inputs if inputs.dtype.kind == "f" else inputs.astype(np.float64)
