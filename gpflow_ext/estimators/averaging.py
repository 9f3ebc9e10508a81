"""Averaging of the candidates of `auto`: which are averaged, and with what weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gpflow_ext.prediction.average import stacking_weights

Array = npt.NDArray[Any]
_MOST = 4  # candidates in an average
_NATS = 0.1  # of all rows together, which a candidate must add


def weights(log_densities: Mapping[str, Array], rows: Array | None = None) -> dict[str, float]:
    """Return the weights of the candidates that are averaged, the largest one first.

    From the stacking weights of all, the candidate whose absence costs least is removed, one after the
    other, until at most four are left, each of which adds a tenth of a nat over all held-out rows.

    Parameters
    ----------
    log_densities
        Log densities of the same held-out rows, [N], for each candidate.
    rows
        As how many copies each row counts, [N]; once by default.
    """
    names = [name for name, values in log_densities.items() if len(values) and np.isfinite(values).all()]
    if not names:
        return {}
    values = np.stack([log_densities[name] for name in names], axis=1)  # [N, K]
    kept, found = np.arange(len(names)), stacking_weights(values, rows)
    best = _total(values, found, rows)
    while len(kept) > 1:
        fewer = [np.delete(kept, place) for place in range(len(kept))]
        shares = [stacking_weights(values[:, some], rows) for some in fewer]
        totals = [_total(values[:, some], share, rows) for some, share in zip(fewer, shares, strict=True)]
        least = int(np.argmax(totals))
        if best - totals[least] > _NATS and len(kept) <= _MOST:
            break
        kept, found = fewer[least], shares[least]
    order = np.argsort(-found, kind="stable")
    return {names[kept[place]]: float(found[place]) for place in order}


def shares(weights: Mapping[str, float]) -> str:
    """Return the weights as text."""
    return ", ".join(f"{name} {weight:.0%}" for name, weight in weights.items())


def _total(values: Array, weights: Array, rows: Array | None) -> float:
    """Return the log density of all rows [N, K] under the mixture."""
    each = np.logaddexp.reduce(values + np.log(np.maximum(weights, 1e-300)), axis=1)
    return float(each.sum() if rows is None else rows @ each)
