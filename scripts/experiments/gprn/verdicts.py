"""How the network that the bound picks compares with baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...shared import report
from . import methods

OURS = methods.COLLAPSED, methods.JOINT, methods.KERNELS, methods.TENSOR, methods.ROWS
BASELINES = methods.INDEPENDENT, methods.PCA, methods.LMC, methods.OTHERS


def by_the_bound(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return a table of differences in nRMSE and NLPD on the splits, or nothing without networks to pick from."""
    picked: dict[int, dict[str, Any]] = {}
    for record in records:
        before = picked.get(record["seed"])
        if record["method"] in OURS and (before is None or record["bound"] > before["bound"]):
            picked[record["seed"]] = record
    rows = []
    for baseline in BASELINES:
        theirs = {r["seed"]: r for r in records if r["method"] == baseline and r["seed"] in picked}
        if theirs:
            differences = (
                [picked[seed][key] - theirs[seed][key] for seed in theirs] for key in ("nrmse", "nlpd")
            )
            rows.append([baseline, *map(_difference, differences)])
    if not rows:
        return []
    names = sorted({f"{r['method']}, K = {r['nodes']}" for r in picked.values()})
    table = report.table(["network picked by the bound, minus", "nRMSE", "NLPD"], rows)
    return [f"Picked by the bound: {'; '.join(names)}.\n", table]


def _difference(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):+.3f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.3f}"
