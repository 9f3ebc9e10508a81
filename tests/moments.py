"""How far moments of drawn functions are from those of a posterior, in what chance and random features allow."""

from __future__ import annotations

from typing import Any

import numpy as np


def excess(
    values: Any, mean: Any, cov: Any, *, num_features: float = 256, groups: int = 20, heavy: float = 1.0
) -> float:
    """Return the largest error of a mean or covariance over its allowance; above one moments are wrong.

    Means [R] may be 4.5 standard errors off and covariances [R, R] five, which are those of the draws and of F
    features in G groups, √(2/F)/√G of the variances: of a hundred numbers one in a thousand seeds would fail.

    Parameters
    ----------
    values
        Draws [S, R].
    num_features
        F; infinite where the features of the kernel are exact.
    heavy
        Factor on the standard errors of covariances, for mixtures, whose fourth moments are larger.
    """
    own, error = np.diag(cov), np.sqrt(np.diag(cov) / len(values))
    products = np.outer(own, own)
    spread = heavy * np.sqrt((cov**2 + products) / len(values))
    features = np.sqrt(2.0 / num_features / groups * products)
    of_means = np.abs(values.mean(axis=0) - mean) / (4.5 * error)
    of_covariances = np.abs(np.cov(values.T) - cov) / (5.0 * np.hypot(spread, features))
    worst = float(np.maximum(of_means.max(), of_covariances.max()))
    return worst if np.isfinite(worst) else np.inf
