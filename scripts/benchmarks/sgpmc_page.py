"""The page of the benchmark of SGPMCFreeForm: which chains mixed, effective draws in a second, and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpflow_ext.sampling import diagnostics

from ..experiments.sgpmc import coal as accidents
from ..shared import report

Records = list[dict[str, Any]]
CHAINS = 10
OURS = ("ours, 1 chain", f"ours, {CHAINS} chains")
BURN_IN, LEAPFROGS, TARGET = 300, 10, 0.75  # of GPflow's documented recipe
NUTS_SHARE = 4  # NumPyro's chain has as many times fewer draws than GPflow's
INPUTS = 18  # of the binary data

TEXT = """\
## Effective draws in a second

The smallest bulk ESS of all coordinates (ArviZ) over the seconds of sampling, without tuning, warm-up and compilation,
which have their own column. All start at the same Gaussian approximation. Ours: `gpx.sample`, {draws} draws of one
chain or half as many of each of ten, tuned by {trials} trials with at most 20 leapfrog steps, on the grid 50. GPflow: its `SGPMC` with the same priors, `SamplingHelper` and TFP's
`HamiltonianMonteCarlo` with {leapfrogs} leapfrog steps. The step size is adapted to an acceptance of {target} in a burn-in of
{burn} iterations, then {theirs} draws of the one chain that it can run. NumPyro, where installed: the same density in JAX, sampled by its
NUTS with a diagonal mass matrix, adapted in as many iterations, then {nuts} draws; compilation and a first run are in its `before`.

`coal`: the coal-mining dates, Poisson counts in {coal_n} bins, M = {coal_m}. `binary`: {binary_n} rows of {inputs} inputs drawn from the model itself, a
probit likelihood, a length scale for each input, M = {binary_m}.
"""
MIXING = """\
The ESS of chains that did not mix, with an R-hat above {most:g} or fewer than {least:.0f} effective draws, is no estimate. {these}
A rate or ratio that rests on one stands in brackets. It says that a chain did not mix in its draws, not how many times faster another is. Of these
{runs} runs {strict} within the limits of `gpx.sample`'s own warnings, an R-hat of {rhat:g} and an ESS of {bulk_ess:.0f}. The ratios leave out tuning and
burn-in, which are in `before`.
"""
GRADIENTS = """\
## Log densities with their gradients

Medians of {repeats} interleaved rounds of {calls} calls, in milliseconds of a call for all its chains, compiled. `grid`: Poisson
counts in {side} × {side} cells, inducing points on a grid of {axis} × {axis}: its Kronecker structure is used. Preconditioned
as `gpx.sample` does by default: coal and binary by `conditional`, the grid by `rescaled`. The share is that of the operations
per second of a 1,000 × 1,000 matrix product in the same rounds. Where one chain reaches a good part of it, ten take ten times
as long. Where it waits for the calls of small operations, ten cost little more.
"""


class Sizes(NamedTuple):
    """Of the problems and runs."""

    rows: int
    binary: int  # inducing points
    side: int
    axis: int
    draws: int
    trials: int
    theirs: int
    calls: int


def document(where: dict[str, Any], records: Records) -> str:
    """Return the report."""
    sizes = Sizes(**records[0]["sizes"])
    filled = {
        "draws": sizes.draws, "trials": sizes.trials, "theirs": sizes.theirs, "leapfrogs": LEAPFROGS, "burn": BURN_IN,
        "target": TARGET, "coal_n": accidents.BINS, "coal_m": accidents.INDUCING, "binary_n": sizes.rows, "binary_m": sizes.binary,
        "inputs": INPUTS, "nuts": sizes.theirs // NUTS_SHARE,
    }  # fmt: skip
    draws = [record for record in records if record["table"] == "ess"]
    lines = GRADIENTS.format(
        repeats=records[0]["repeats"], calls=sizes.calls, side=sizes.side, axis=sizes.axis
    )
    return "\n".join(
        [
            "# SGPMCFreeForm: speed\n",
            f"{report.describe(where)} Written by `python -m scripts.benchmarks sgpmc`.{_dates(records)}\n",
            TEXT.format(**filled),
            draws_table(draws),
            mixing(draws),
            lines,
            gradient_table([record for record in records if record["table"] == "gradient"]),
        ]
    )


def _dates(records: Records) -> str:
    """Say when each problem was begun, where they are of several runs."""
    dates = {record["problem"]: record["date"] for record in records}
    if len({date[:10] for date in dates.values()}) == 1:
        return ""
    return " Begun: " + ", ".join(f"{problem} {date}" for problem, date in dates.items()) + "."


def draws_table(records: Records) -> str:
    """Return the table of effective draws, and each rate over GPflow's, in brackets where chains did not mix."""
    theirs = {r["problem"]: r for r in records if "GPflow" in r["method"]}
    rows = [
        [
            f"{r['problem']}: {r['method']}",
            f"{r['ess']:.0f}",
            f"{r['rhat']:.3f}",
            f"{r['acceptance']:.2f}",
            report.number(r["seconds"]),
            report.number(r["before"]),
            report.number(1e3 * r["ess"] / r["gradients"]),
            _rate(1.0, r),
            _rate(rate(theirs[r["problem"]]), r, theirs[r["problem"]]) if r["problem"] in theirs else "",
        ]
        for r in records
    ]
    columns = ("", "min ESS", "R-hat", "acceptance", "sampling, s", "before, s", "ESS / 1000 gradients", "ESS / s", "times GPflow")  # fmt: skip
    return report.table(columns, rows)


def rate(run: Mapping[str, Any]) -> float:
    """Return the effective draws of a run in a second."""
    return float(run["ess"] / run["seconds"])


def _rate(unit: float, run: Mapping[str, Any], *others: Mapping[str, Any]) -> str:
    """Return the rate of a run in a unit, in brackets where it or another run that the number rests on did not mix."""
    shown = report.number(rate(run) / unit)
    return shown if all(map(report.mixed, (run, *others))) else f"({shown})"


def mixing(records: Records) -> str:
    """Say which chains did not mix, and how many meet the limits of the package's own warnings."""
    limits = diagnostics.GATES
    names = [f"{r['problem']}, {r['method']}" for r in records if not report.mixed(r)]
    strict = sum(r["rhat"] <= limits["rhat"] and r["ess"] >= limits["bulk_ess"] for r in records)
    return MIXING.format(
        most=report.MOST_RHAT,
        least=report.LEAST_ESS,
        these=f"Here these did not: {'; '.join(names)}." if names else "Here all mixed.",
        strict=f"{strict or 'none'} {'is' if strict < 2 else 'are'}",
        runs=len(records),
        **limits,
    )


def _share(record: dict[str, Any]) -> str:
    """Return what share of the rate of a matrix product a gradient reaches."""
    flops = record.get("flops")
    return f"{flops / report.median(record['seconds']) / record['rate']:.0%}" if flops else ""


def gradient_table(records: Records) -> str:
    """Return the table of gradients."""
    rows = []
    for problem in dict.fromkeys(record["problem"] for record in records):
        of = {r["method"]: 1e3 * report.median(r["seconds"]) for r in records if r["problem"] == problem}
        (one, many), theirs = (of[name] for name in OURS), of["GPflow, 1 chain"]
        cells = (one, many, many / one, theirs, theirs / one, CHAINS * theirs / many)
        shares = (
            _share(r) for name in OURS for r in records if (r["problem"], r["method"]) == (problem, name)
        )
        rows.append([problem, *(report.number(cell) for cell in cells), *shares])
    columns = ("", "1 chain", f"{CHAINS} chains", f"{CHAINS} over 1", "GPflow, 1 chain", "over 1", f"{CHAINS} of it over {CHAINS}", "share, 1", f"share, {CHAINS}")  # fmt: skip
    return report.table(columns, rows)
