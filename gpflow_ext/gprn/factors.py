"""Common factors of outputs of which some are missing: probabilistic principal components."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_STEPS = 200
_SMALLEST_GAIN = 1e-6  # relative change of σ² in a step that counts as none
_LEAST = 1e-6  # of the variance of the targets, which the noise is at least


def factors(Y: Array, number: int) -> tuple[Array, Array, float]:
    """Return factors of outputs [N, K], their loadings [D, K], and the variance of the noise.

        y_n = Λf_n + ε,    f_n ~ N(0, I),    ε ~ N(0, σ²I)

    The likelihood of the targets that are known is maximised by expectation maximisation (Tipping and Bishop
    1999), without a mean, as the network has none; f_n are the posterior means. O(NDK² + NK³) a step. They
    are determined up to a rotation: here the columns of Λ are orthogonal, the largest first.

    Parameters
    ----------
    Y
        Targets [N, D], NaN where one is missing.
    number
        K.

    Returns
    -------
    F [N, K], Λ [D, K] and σ².
    """
    known = ~np.isnan(Y)
    seen, filled = known.astype(np.float64), np.where(known, Y, 0.0)
    least = _LEAST * np.sum(filled**2) / known.sum()
    loadings = _principal(filled, number)
    noise = max(np.sum((filled - seen * (filled @ _projection(loadings))) ** 2) / known.sum(), least)
    for _ in range(_STEPS):
        F, second = _posterior(seen, filled, loadings, noise)
        moments = np.einsum("nd,nkl->dkl", seen, second) + least * np.eye(number)
        loadings = np.linalg.solve(moments, (filled.T @ F)[:, :, None])[:, :, 0]
        fit = np.sum(filled**2) - 2.0 * np.sum((filled.T @ F) * loadings)
        fit += np.einsum("dk,dkl,dl->", loadings, np.einsum("nd,nkl->dkl", seen, second), loadings)
        before, noise = noise, max(fit / known.sum(), least)
        if abs(noise - before) <= _SMALLEST_GAIN * before:
            break
    F, _ = _posterior(seen, filled, loadings, noise)
    rotation = np.linalg.svd(loadings, full_matrices=True)[2].T
    return F @ rotation, loadings @ rotation, float(noise)


def _principal(filled: Array, number: int) -> Array:
    """Return the loadings [D, K] of the largest principal components, zero beyond the number of outputs."""
    _, scale, vectors = np.linalg.svd(filled, full_matrices=False)
    kept = (vectors[:number] * scale[:number, None] / np.sqrt(len(filled))).T
    return np.pad(kept, [(0, 0), (0, number - kept.shape[1])])


def _projection(loadings: Array) -> Array:
    """Return the projection on the columns of loadings [D, K], [D, D]."""
    return loadings @ np.linalg.pinv(loadings)


def _posterior(seen: Array, filled: Array, loadings: Array, noise: float) -> tuple[Array, Array]:
    """Return the means [N, K] of the factors and their second moments [N, K, K], given what is known."""
    eye = np.eye(loadings.shape[1])
    precision = eye + np.einsum("nd,dk,dl->nkl", seen, loadings, loadings, optimize=True) / noise
    cov = np.linalg.inv(precision)
    F = np.einsum("nkl,nl->nk", cov, filled @ loadings / noise)
    return F, cov + F[:, :, None] * F[:, None, :]
