"""How the networks that are picked compare with baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...shared import report
from . import methods

OURS = methods.COLLAPSED, methods.JOINT, methods.KERNELS, methods.TENSOR, methods.ROWS
BASELINES = methods.INDEPENDENT, methods.PCA, methods.LMC, methods.OTHERS


def of_networks(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return differences from baselines, of networks picked by the bound and on held-out targets, of what there is."""
    found: list[str] = []
    of_each = {
        "by the bound": _highest([r for r in records if r["method"] in OURS]),
        "on held-out targets": {r["seed"]: r for r in records if r["method"] == methods.CHOSEN},
    }
    for how, picked in of_each.items():
        rows = _against(records, picked)
        if rows:
            names = sorted({f"{r['method']}, K = {r.get('picked', r['nodes'])}" for r in picked.values()})
            table = report.table([f"network picked {how}, minus", "nRMSE", "NLPD"], rows)
            found += [f"Picked {how}: {'; '.join(names)}.\n", table]
    return found


def _highest(records: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the record of the highest bound for each seed."""
    finite = [record for record in records if record["bound"] is not None]
    return {record["seed"]: record for record in sorted(finite, key=lambda record: record["bound"])}


def _against(records: Sequence[dict[str, Any]], picked: dict[int, dict[str, Any]]) -> list[list[str]]:
    rows = []
    for baseline in BASELINES:
        theirs = {r["seed"]: r for r in records if r["method"] == baseline and r["seed"] in picked}
        if theirs:
            differences = (
                [picked[seed][key] - theirs[seed][key] for seed in theirs] for key in ("nrmse", "nlpd")
            )
            rows.append([baseline, *map(_difference, differences)])
    return rows


def _difference(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):+.3f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.3f}"
