"""The page of the benchmark of defaults, from its journal alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..shared import report
from . import defaults_kernels
from .defaults_tables import GP, LINEAR

Record = dict[str, Any]
RANDOM = " from random starts"
STARTS = 10  # random ones of a fit, if there is time
NEAR, SHARE = 0.1, 1e-3  # nats, and of the objective: a fit as near as that to the best one known is there
HEADLINES = {  # what the guide recommends for the task
    "binary": "VGPKMM",
    "multiclass": "VGPKMM, StickBreaking",
    "ordinal": "VGPKMM",
    "count": "VGPKMM",
    "regression": "GPR by fit",
    "outputs": "GPRNTensor",
}
OURS = ("VGPKMM", "GPLaplace", "SparseEP", "SVGPRobustMax", "GPR by fit", "GPRNTensor")
OTHERS = {  # columns of the recommended model beside others of the package
    "less SparseEP": ("SparseEP",),
    "less GPLaplace": ("GPLaplace",),
    "less SVGPRobustMax": ("SVGPRobustMax",),
    "less VGPKMM with the other likelihood": ("VGPKMM", "VGPKMM, NegativeBinomialLog"),
}
MOST_ROWS = 5000
TEXT = """\
# Defaults on public tables

Every model of the package that suits the task, at its defaults: a squared exponential with one length scale of 1, or with one for each of up to
20 inputs ("ARD"); inputs are standardised, and real targets too. Other libraries at their defaults for comparison: scikit-learn's Gaussian process with the same
kernel, logistic, ordinal, Poisson and Bayesian linear regression ("linear"), calibrated SVC, gradient boosting, GPflow's own models by its own
optimiser, GPBoost. All run on the same splits in one process, one after the other. Large training sets are cut; each section gives the number of rows. GPflow's optimiser, and
random starts after the first, end when their seconds are over. Wall seconds depend on the other load of the machine; CPU seconds less. Written by
`python -m scripts.benchmarks.defaults`, which says more with `--help`.
"""


PICTURE = (
    "![NLPD of the recommended models less that of each other method, by table](benchmark_defaults.png)\n"
)


class Compared(NamedTuple):
    """The NLPD of ours less that of another on each split, and what that says."""

    name: str
    mean: float
    error: float
    splits: int

    @property
    def behind(self) -> bool:
        """Whether ours is behind by more than a standard error."""
        return self.mean > self.error


def text(records: Sequence[Record]) -> str:
    """Return the page."""
    where = [record["environment"] for record in records if "environment" in record]
    measured = [record for record in records if "table" in record]
    tables = list(dict.fromkeys(record["table"] for record in measured))
    parts = [TEXT, PICTURE, "## Targets\n"]
    parts += [
        report.table(("target", "measured", "met"), verdicts(measured)),
        "## Where the fits end\n",
        ENDS,
    ]
    parts += [
        report.table(("", "", "reached", "best of random starts", "starts", "less by", ""), ends(measured))
    ]
    parts += ["## Recommended models beside the others\n", HEADLINE, _headlines(measured)]
    parts += ["## Recommended models beside others of the package\n", OWN, _beside_own(measured)]
    parts += ["## One length scale, or one for each input\n", *defaults_kernels.section(measured)]
    for name in tables:
        chosen = [record for record in measured if record["table"] == name]
        parts += [
            f"## {name}\n",
            f"{chosen[0]['task']}, {chosen[0]['rows']} training rows, {chosen[0]['inputs']} inputs.\n",
            _table(chosen),
        ]
    parts += ["## Measured on\n", *(report.describe(each) + "\n" for each in where)]
    return "\n".join(parts)


ENDS = """\
On the first split: the objective that the default fit reached, and the best objective of fits from random starts, whose parameters are
multiplied by log-normal factors of deviation 2. A negative number in "less by" means that the default fit is better than all of these.
"""
HEADLINE = f"""\
NLPD of the model that [the guide](../choosing.md) recommends minus that of others: mean and standard error over the splits. Negative is
better. "Behind" means more than one standard error above zero, be it by what optimisers round alone. The kernel is the one with the higher
objective; for classes and levels a length scale for each input has to raise it by more than {defaults_kernels.WORTH:g} nats for each further
one, see below.

The guide's recommendation for several classes was changed after these tables had been seen. It had been `VGPKMM` with either likelihood,
and this page had `MultinomialLogit`, which is "VGPKMM" below. The bound on that likelihood is loose, and stick-breaking's is not, as Khan,
Mohamed, Marlin and Murphy (2012, A stick-breaking likelihood for categorical data analysis with latent Gaussian models) had said.
"""

OWN = """\
NLPD of the recommended model minus that of others, each with its kernel chosen by the same rule, on the splits that both have. The other
likelihood of `VGPKMM` is `MultinomialLogit` for several classes and `NegativeBinomialLog` for counts. `GPLaplace` and `SVGPRobustMax` have
one length scale. For two classes the guide recommends `VGPKMM` beside `SparseEP`: this table decided that.
"""


def ends(records: Sequence[Record]) -> list[Sequence[str]]:
    """Return how far each default fit of the first split is from the best one known."""
    found: list[Sequence[str]] = []
    for table, model, reached, best, starts in _pairs(records):
        less = best - reached
        is_there = "there" if less <= allowed(best) else "no"
        values = f"{reached:.3f}", f"{best:.3f}", str(starts), f"{less:.3g}"
        found.append((table, model, *values, is_there))
    return found


def allowed(best: float) -> float:
    """Return by how many nats a fit may be lower than the best one known."""
    return max(NEAR, SHARE * abs(best))


def _pairs(records: Iterable[Record]) -> list[tuple[str, str, float, float, int]]:
    by_key = {(r["table"], r["model"]): r for r in records if r["split"] == 0 and "failed" not in r}
    found = []
    for (table, model), record in by_key.items():
        other = by_key.get((table, model + RANDOM))
        if other is not None and other["objective"] is not None:
            found.append((table, model, record["objective"], other["objective"], other["starts"]))
    return found


def headline(records: Sequence[Record], table: str) -> dict[int, Record]:
    """Return for each split the record of the recommended model, with the recommended kernel."""
    tasks = [record["task"] for record in records if record["table"] == table]
    return _fitted(records, table, HEADLINES[tasks[0]]) if tasks else {}


def _fitted(records: Sequence[Record], table: str, name: str) -> dict[int, Record]:
    """Return for each split the record of a model with the recommended kernel, on those with both if it has two."""
    chosen = [r for r in records if r["table"] == table and "failed" not in r]
    pairs = defaults_kernels.pairs(chosen, name)
    if not pairs:
        return {r["split"]: r for r in chosen if r["model"] == name}
    return {split: pair[defaults_kernels.is_worth(*pair)] for split, pair in pairs.items()}


def comparisons(records: Sequence[Record], table: str) -> list[Compared]:
    """Return the recommended model less each model of another library."""
    mine = headline(records, table)
    others: dict[str, dict[int, Record]] = {}
    for record in records:
        foreign = not record["model"].startswith(OURS)
        if record["table"] == table and foreign and "nlpd" in record:
            others.setdefault(record["model"], {})[record["split"]] = record
    found = [_less(mine, theirs, name) for name, theirs in others.items()]
    return [each for each in found if each is not None]


def _less(mine: dict[int, Record], theirs: dict[int, Record], name: str) -> Compared | None:
    """Return the NLPD of one model less that of another, on the splits that both have."""
    gaps = [mine[split]["nlpd"] - theirs[split]["nlpd"] for split in sorted(mine.keys() & theirs.keys())]
    if not gaps:
        return None
    return Compared(name, float(np.mean(gaps)), _standard_error(gaps), len(gaps))


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def verdicts(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Return each target, what was measured, and whether it is met."""
    found = []
    pairs = _pairs(records)
    near = {pair[:2]: pair[3] - pair[2] <= allowed(pair[3]) for pair in pairs}
    if near:
        far = ", ".join(f"{model} on {table}" for (table, model), there in near.items() if not there)
        few = sum(starts < STARTS for *_, starts in pairs)
        says = f"{sum(near.values())} of {len(near)}" + (f"; not {far}" if far else "")
        says += f"; {few} have fewer than {STARTS} random starts, whose seconds were over" if few else ""
        found.append(
            (
                "default fits within 0.1 nat or 0.1 % of the best objective known",
                says,
                _yes(all(near.values())),
            )
        )
    tables = [name for name in dict.fromkeys(r["table"] for r in records) if headline(records, name)]
    compared = {name: comparisons(records, name) for name in tables}
    behind = {
        name: [each for each in found_ if each.name in (GP, LINEAR) and each.behind]
        for name, found_ in compared.items()
    }
    late = ", ".join(f"{name} ({each[0].mean:+.3f})" for name, each in behind.items() if each)
    says = f"{sum(not each for each in behind.values())} of {len(tables)}" + (
        f"; behind on {late}" if late else ""
    )
    target = "NLPD not behind scikit-learn's GP or the linear model by more than a standard error"
    found.append((target, says, _yes(not late)))
    level = [name for name in tables if not any(each.behind for each in compared[name])]
    lost = ", ".join(name for name in tables if name not in level)
    says = f"{len(level)} of {len(tables)}" + (f"; not {lost}" if lost else "")
    target = f"best or level with the best of all on most tables under {MOST_ROWS:,} rows"
    return [*found, (target, says, _yes(2 * len(level) > len(tables)))]


def _yes(met: bool) -> str:
    return "yes" if met else "no"


def _headlines(records: Sequence[Record]) -> str:
    rows = []
    for name in dict.fromkeys(record["table"] for record in records):
        mine = headline(records, name)
        if not mine:
            continue
        found = {each.name: each for each in comparisons(records, name)}
        best = max(found.values(), key=lambda each: each.mean, default=None)
        used = sorted({record["model"] for record in mine.values()})
        nlpd = float(np.mean([record["nlpd"] for record in mine.values()]))
        cells = [_gap(found.get(GP)), _gap(found.get(LINEAR))]
        cells.append("–" if best is None else f"{best.name}: {_gap(best)}")
        rows.append((name, " / ".join(used), f"{nlpd:.3f}", *cells))
    return report.table(
        ("", "model", "NLPD", "less scikit-learn's GP", "less linear", "less the best other"), rows
    )


def _beside_own(records: Sequence[Record]) -> str:
    """Return the table of the recommended models beside others of the package."""
    rows = []
    for table in dict.fromkeys(record["table"] for record in records):
        mine = headline(records, table)
        name = HEADLINES[next(r["task"] for r in records if r["table"] == table)]
        found = [
            [
                _less(mine, _fitted(records, table, other), other)
                for other in others
                if other != name and _fitted(records, table, other)
            ]
            for others in OTHERS.values()
        ]
        if any(found):
            splits = str(len(mine))
            rows.append((table, name, splits, *(_gap(each[0]) if each else "–" for each in found)))
    return report.table(("", "recommended", "splits", *OTHERS), rows)


def _gap(each: Compared | None) -> str:
    if each is None:
        return "–"
    error = f" ± {each.error:.3f}" if each.splits > 1 else ""
    return f"{each.mean:+.3f}{error}" + (", behind" if each.behind else "")


def _table(records: Sequence[Record]) -> str:
    rows = []
    for name in dict.fromkeys(record["model"] for record in records):
        if name.endswith(RANDOM):
            continue
        mine = sorted((r for r in records if r["model"] == name), key=lambda r: int(r["split"]))
        good = [record for record in mine if "failed" not in record]
        if not good:
            rows.append((name, mine[0]["failed"][:60], *["–"] * 6))
            continue
        scores = [
            f"{np.mean(values):.3f}" + (f" ± {_standard_error(values):.3f}" if len(values) > 1 else "")
            for values in ([record[key] for record in good] for key in ("nlpd", "error", "calibration"))
        ]
        objective = f"{good[0]['objective']:.2f}" if "objective" in good[0] else "–"
        paid = [report.number(good[0][key]) for key in ("seconds", "cpu")]
        later = report.number(float(np.median([r["cpu"] for r in good[1:]]))) if len(good) > 1 else "–"
        rows.append((name, *scores, objective, *paid, later))
    columns = ("", "NLPD", "error", "calibration", "objective", "seconds", "CPU s", "CPU s, later splits")
    return report.table(columns, rows)
