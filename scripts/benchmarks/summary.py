"""The ratios of all benchmarks in a folder on one page, with a picture, from their .jsonl files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..shared import report

TITLES = {
    "kmm": "VGPKMM",
    "sparse_ep": "SparseEP",
    "robustmax": "SVGPRobustMax",
    "sgpmc": "SGPMCFreeForm",
    "gprn": "GPRNTensor",
}
Record = dict[str, Any]

TEXT = """\
# Speed against other libraries

Collected by `python -m scripts.benchmarks` from the pages of the single models, which say what is compared, on which machine and when.
`Times ours`: the seconds of another library over ours, in one run; above 1 ours is faster, "> x" did not arrive within its cap.
Where another library has no such model it is compared by the nearest one it has, and by the time of a step alone. `First call` is
the compilation, and of effective draws all that comes before them; it is not in the seconds. `Share`: operations per second of our step over those of a square matrix product.

![Seconds of other libraries over ours](benchmarks.png)
"""


class Row(NamedTuple):
    """A comparison."""

    task: str
    method: str
    ours: float  # seconds
    theirs: float  # seconds, or the cap
    capped: bool
    first_call: float | None  # ours
    their_first_call: float | None
    share: float | None  # ours


def write(folder: Path) -> None:
    """Write benchmarks.md and benchmarks.png, unless the folder has no measurements under their own names."""
    found = {name: _read(folder / f"benchmark_{name}.jsonl") for name in TITLES}
    found = {name: records for name, records in found.items() if records}
    if not found:
        return
    rows = {name: list(COLLECTORS[name](records)) for name, records in found.items()}
    _draw(folder / "benchmarks.png", rows)
    parts = [TEXT]
    for name, records in found.items():
        where = records[0]["environment"]
        heading = f"## [{TITLES[name]}](benchmark_{name}.md)\n\n{where['date']}, {where['threads']} threads, load {where['load']}.\n"
        parts += [heading, _table(rows[name])]
    report.write(folder / "benchmarks.md", "\n".join(parts))


def _read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def _table(rows: Iterable[Row]) -> str:
    lines = []
    for row in rows:
        bound = "> " if row.capped else ""
        lines.append(
            [
                row.task,
                row.method,
                report.number(row.ours),
                bound + report.number(row.theirs),
                bound + report.number(row.theirs / row.ours, 2),
                "" if row.first_call is None else report.number(row.first_call),
                "" if row.their_first_call is None else report.number(row.their_first_call),
                "" if row.share is None else f"{row.share:.0%}",
            ]
        )
    columns = (
        "task",
        "against",
        "ours, s",
        "theirs, s",
        "times ours",
        "our first call, s",
        "their first call, s",
        "share",
    )
    return report.table(columns, lines)


def _kmm(records: list[Record]) -> Iterator[Row]:
    """Compare seconds to within 1e-3 of the optimum; where the objective is another, to its own end."""
    costs = {record["size"]: record for record in records if record.get("table") == "costs"}
    for size in costs:
        for bound in ("exact", "piecewise"):
            ours, *others = (r for r in records if r.get("size") == size and r.get("bound") == bound)
            seconds = report.median(ours["seconds"])
            for other in others:
                if other["method"].startswith("gpflow_ext"):
                    continue
                theirs = report.median(other["seconds"])
                capped = theirs == float("inf")
                yield Row(
                    f"dense, N = {size:,}, {'exact' if bound == 'exact' else '20 pieces'}",
                    other["method"] + (" (own objective)" if other["own_objective"] else ""),
                    seconds,
                    other["cap"] if capped else theirs,
                    capped,
                    ours["first_call"],
                    other["first_call"],
                    _kmm_share(costs[size]),
                )


def _kmm_share(record: Record) -> float | None:
    if "flops" not in record:
        return None
    seconds = {name: report.median(values) for name, values in record["seconds"].items()}
    rate = 2.0 * record["size"] ** 3 / seconds["product"]
    return record["flops"]["parallel step"] / seconds["parallel step"] / rate


def _steps(records: list[Record], task: str, ours: str, kind: str = "") -> Iterator[Row]:
    """Compare the other methods of some records with one, those whose name contains ``kind``."""
    base = next(record for record in records if record["method"] == ours)
    seconds = report.median(base["seconds"])
    share = base["flops"] / seconds / base["rate"] if base.get("flops") else None
    for record in records:
        if record["method"].startswith(("ours", "gpflow_ext", "SparseEP")) or kind not in record["method"]:
            continue
        calls = base["first_call"], record["first_call"]
        yield Row(task, record["method"], seconds, report.median(record["seconds"]), False, *calls, share)


def _sparse_ep(records: list[Record]) -> Iterator[Row]:
    """Compare minibatch steps, and sites one at a time."""
    for record in records:
        if record.get("table") == "fixed":
            seconds = report.median(record["seconds"])
            calls = record["first_call"], None
            loop = record["sequential_seconds"]
            yield Row(
                f"sites, N = {record['rows']:,}", "one at a time, NumPy", seconds, loop, False, *calls, None
            )
    steps = [record for record in records if record.get("table") == "stochastic"]
    for size in dict.fromkeys(record["rows"] for record in steps):
        chosen = [record for record in steps if record["rows"] == size]
        yield from _steps(chosen, f"minibatch step, N = {size:,}", "SparseEP")


def _robustmax(records: list[Record]) -> Iterator[Row]:
    """Compare training steps and predictions in both precisions."""
    for dtype in ("float32", "float64"):
        for table, ours, kind in (
            ("step", "ours, Adam", "Adam"),
            ("step", "ours, natural gradients", "natural"),
            ("prediction", "ours, cached", ""),
        ):
            chosen = [r for r in records if r.get("table") == table and r.get("dtype") == dtype]
            yield from _steps(chosen, f"{table}, {dtype}", ours, kind)


def _sgpmc(records: list[Record]) -> Iterator[Row]:
    """Compare gradients of one chain, and seconds of sampling for an effective draw."""
    for problem in dict.fromkeys(record["problem"] for record in records if "problem" in record):
        chosen = [r for r in records if r.get("table") == "gradient" and r["problem"] == problem]
        yield from _steps(chosen, f"gradient, {problem}", "ours, 1 chain")
        runs = {r["method"]: r for r in records if r.get("table") == "ess" and r["problem"] == problem}
        names = {"GPflow, 1 chain": "GPflow's SGPMC, TFP's HMC", "NumPyro's NUTS, 1 chain": "NumPyro's NUTS"}
        for theirs, name in ((runs[key], name) for key, name in names.items() if key in runs):
            ours = runs["ours, 10 chains"]
            mine, other = (run["seconds"] / run["ess"] for run in (ours, theirs))
            calls = ours["before"], theirs["before"]
            yield Row(f"effective draw, {problem}", name, mine, other, False, *calls, None)


def _gprn(records: list[Record]) -> Iterator[Row]:
    """Compare steps of the collapsed posterior, by the number of outputs."""
    steps = [record for record in records if record.get("table") == "step"]
    for size in dict.fromkeys(record["outputs"] for record in steps):
        chosen = [record for record in steps if record["outputs"] == size]
        yield from _steps(chosen, f"step, D = {size:,}", "gpflow_ext, collapsed")


COLLECTORS = {"kmm": _kmm, "sparse_ep": _sparse_ep, "robustmax": _robustmax, "sgpmc": _sgpmc, "gprn": _gprn}


def _draw(path: Path, found: dict[str, list[Row]]) -> None:
    """Draw a bar for each comparison, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = [name for name in found if found[name]]
    heights = [len(found[name]) + 1.5 for name in names]
    figure, axes = plt.subplots(
        len(names),
        1,
        figsize=(9.0, 0.21 * sum(heights) + 0.6),
        sharex=True,
        squeeze=False,
        height_ratios=heights,
        layout="constrained",
    )
    for ax, name in zip(axes[:, 0], names, strict=True):
        rows = found[name][::-1]
        ratios = [row.theirs / row.ours for row in rows]
        colours = ["tab:blue" if ratio >= 1.0 else "tab:red" for ratio in ratios]
        ax.barh(range(len(rows)), [ratio - 1.0 for ratio in ratios], left=1.0, color=colours)
        ax.set_yticks(range(len(rows)), [f"{row.task}: {row.method}" for row in rows], fontsize=7)
        for place, (row, ratio) in enumerate(zip(rows, ratios, strict=True)):
            text = f"{'> ' if row.capped else ''}{report.number(ratio, 2)}"
            ax.text(max(ratio, 1.0) * 1.05, place, text, va="center", fontsize=7)
        ax.set(xscale="log", title=TITLES[name], ylim=(-0.6, len(rows) - 0.4))
        ax.axvline(1.0, color="k", linewidth=0.8)
    axes[-1, 0].set_xlabel("seconds of the other over ours")
    axes[-1, 0].set_xlim(right=3.0 * axes[-1, 0].get_xlim()[1])
    figure.savefig(path, dpi=110)
    plt.close(figure)
