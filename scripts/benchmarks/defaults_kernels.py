"""One length scale or one for each input: which rule that sees no test row chooses best, from the journal of defaults."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..shared import report
from .defaults_tables import ARD

Record = dict[str, Any]
Pair: TypeAlias = tuple[Record, Record]  # of one length scale, and of one for each input
WORTH = 2.0  # nats of the objective that each further length scale has to gain, for classes and levels
CLASSES = ("binary", "multiclass", "ordinal")
SEEN = 3  # splits whose test rows were known when that was chosen
FAMILIES = ("VGPKMM", "VGPKMM, StickBreaking", "VGPKMM, NegativeBinomialLog", "SparseEP", "GPR by fit")
TEXT = f"""\
A length scale for each input ("ARD") raises the objective on every table, and often worsens predictions: it overfits. The first table shows
the mean gain of the objective for each further length scale, and the NLPD with a length scale for each input minus that with one. The second
table compares rules that see no test row, by the NLPD that they reach minus that of one length scale, a mean over tables. "Left out" takes
the kernel with the higher density of the training rows, each left out, computed from the cavities of one fit (Vehtari et al. 2016). "BIC" asks
for half the logarithm of the number of rows for each further length scale. "The better" knows the test rows: no rule can do better.

The threshold of {WORTH:g} nats was chosen when the test rows of the first {SEEN} splits had been seen. The second table leaves these splits out;
the others are of the same tables, so their rows are not new. That the guide asks for it where targets are classes or levels only, and
for counts and numbers takes the higher objective as before, was decided by the second table.
"""


def pairs(records: Sequence[Record], name: str) -> dict[int, Pair]:
    """Return the records of a model with both kernels on one table, by split."""
    found: dict[str, dict[int, Record]] = {name: {}, name + ARD: {}}
    for record in records:
        if record["model"] in found and "failed" not in record:
            found[record["model"]][record["split"]] = record
    one, each = found.values()
    return {split: (one[split], each[split]) for split in sorted(one.keys() & each.keys())}


def gain(one: Record, each: Record) -> float:
    """Return by how many nats each further length scale raises the objective."""
    return float((each["objective"] - one["objective"]) / max(one["inputs"] - 1, 1))


def is_worth(one: Record, each: Record) -> bool:
    """Return whether a length scale for each input is recommended."""
    return gain(one, each) > (WORTH if one["task"] in CLASSES else 0.0)


RULES: dict[str, Callable[[Record, Record], bool]] = {
    "one for each input": lambda one, each: True,
    "1 nat": lambda one, each: gain(one, each) > 1.0,
    f"{WORTH:g} nats": lambda one, each: gain(one, each) > WORTH,
    "BIC": lambda one, each: gain(one, each) > 0.5 * math.log(one["rows"]),
    "left out": lambda one, each: each["left_out"] < one["left_out"],
    "the better": lambda one, each: each["nlpd"] < one["nlpd"],
}


def section(records: Sequence[Record]) -> list[str]:
    """Return the section of the page."""
    found: dict[tuple[str, str], dict[str, list[Pair]]] = {}
    for table in dict.fromkeys(record["table"] for record in records):
        chosen = [record for record in records if record["table"] == table]
        for family in FAMILIES:
            if both := list(pairs(chosen, family).values()):
                found.setdefault((family, chosen[0]["task"]), {})[table] = both
    single, rules = [], []
    for (family, task), tables in found.items():
        for table, both in tables.items():
            single.append((table, family, str(both[0][0]["inputs"]), str(len(both)), *_single(both)))
        later = [[pair for pair in both if pair[0]["split"] >= SEEN] for both in tables.values()]
        later = [both for both in later if both]
        if later:
            means = (_mean(later, rule) for rule in RULES.values())
            rules.append((family, task, str(len(later)), *means))
    columns = ("", "", "inputs", "splits", "gain", "NLPD of one for each less one")
    return [TEXT, report.table(columns, single), report.table(("", "task", "tables", *RULES), rules)]


def _single(both: Sequence[Pair]) -> tuple[str, str]:
    gaps = [each["nlpd"] - one["nlpd"] for one, each in both]
    error = np.std(gaps, ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
    gained = float(np.mean([gain(*pair) for pair in both]))
    return f"{gained:.2f}", f"{np.mean(gaps):+.3f} ± {error:.3f}"


def _mean(tables: Sequence[Sequence[Pair]], rule: Callable[[Record, Record], bool]) -> str:
    """Return the NLPD that a rule reaches less that of one length scale, a mean over tables of means over splits."""
    means = []
    for both in tables:
        try:
            means.append(np.mean([pair[rule(*pair)]["nlpd"] - pair[0]["nlpd"] for pair in both]))
        except KeyError:  # what the rule needs was not measured
            return "–"
    return f"{np.mean(means):+.4f}"
