"""The ratios of all benchmarks in a folder on one page, with a picture, from their .jsonl files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

![Left: ratios of seconds against other libraries, by model. Right: seconds of whole fits in a fresh process and after it](benchmarks.png)

Left: the seconds of another library divided by ours, in one run, for the same work once both are compiled. Right: what a user
waits for, from the [fits of binary data](benchmark_fits.md): the import, the compilation and the fit in a fresh process, and the next
fit in the same process. A first fit of a few hundred rows is slower here than in scikit-learn or GPBoost, which compile nothing.

The first table counts the comparisons in which we are faster, and gives the least, median and largest ratio. `python -m scripts.benchmarks`
collects the tables from the pages of the single models, which say what is compared, on which machine and when. "> x" means that the other
library did not reach the result within its time limit. If it has no such model, its nearest one is taken, and only the time of a step is
compared. A ratio in brackets compares chains of which one did not mix. Its effective draws are no estimate, so the first table and the
pictures leave it out. `First call` is the compilation, and for effective draws everything before the draws; the seconds exclude it.
`Share` is the operations per second of our step divided by those of a square matrix product.
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
    mixed: bool = True  # as far as the comparison rests on chains

    @property
    def ratio(self) -> float:
        """Return theirs over ours."""
        return self.theirs / self.ours


def write(folder: Path) -> None:
    """Write benchmarks.md and benchmarks.png, unless the folder has no measurements under their own names."""
    found = _found(folder)
    if found:
        rows = {name: list(COLLECTORS[name](records)) for name, records in found.items()}
        _draw(folder / "benchmarks.png", counted(rows), _read(folder / "benchmark_fits.jsonl"))
        report.write(folder / "benchmarks.md", text(folder))


def _found(folder: Path) -> dict[str, list[Record]]:
    found = {name: _read(folder / f"benchmark_{name}.jsonl") for name in TITLES}
    return {name: records for name, records in found.items() if records}


def text(folder: Path) -> str:
    """Return the page, from the records in the folder."""
    found = _found(folder)
    rows = {name: list(COLLECTORS[name](records)) for name, records in found.items()}
    parts = [TEXT, _verdict(counted(rows))]
    for name, records in found.items():
        where = records[0]["environment"]
        heading = f"## [{TITLES[name]}](benchmark_{name}.md)\n\n{where['date']}, {where['threads']} threads, load {where['load']}.\n"
        parts += [heading, _table(rows[name])]
    return "\n".join(parts)


def counted(rows: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Return the comparisons of each model whose ratios mean something."""
    kept = {name: [row for row in found if row.mixed] for name, found in rows.items()}
    return {name: found for name, found in kept.items() if found}


def _verdict(rows: Mapping[str, Sequence[Row]]) -> str:
    """Return a table of how often each model is faster, and its median ratio."""
    lines = []
    for name, found in rows.items():
        ratios = [row.ratio for row in found]
        faster = sum(ratio > 1.0 for ratio in ratios)
        numbers = [report.number(value, 2) for value in (min(ratios), report.median(ratios), max(ratios))]
        lines.append([f"[{TITLES[name]}](benchmark_{name}.md)", f"{faster} of {len(found)}", *numbers])
    return report.table(("model", "faster in", "least", "median", "most"), lines)


def _read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def _table(rows: Iterable[Row]) -> str:
    lines = []
    for row in rows:
        bound = "> " if row.capped else ""
        ratio = bound + report.number(row.ratio, 2)
        lines.append(
            [
                row.task,
                row.method,
                report.number(row.ours),
                bound + report.number(row.theirs),
                ratio if row.mixed else f"({ratio})",
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
            measured = [r for r in records if r.get("size") == size and r.get("bound") == bound]
            if not measured:
                continue
            ours, *others = measured
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
            mixed = report.mixed(ours) and report.mixed(theirs)
            yield Row(f"effective draw, {problem}", name, mine, other, False, *calls, None, mixed)


def _gprn(records: list[Record]) -> Iterator[Row]:
    """Compare steps of the collapsed posterior, by the number of outputs."""
    steps = [record for record in records if record.get("table") == "step"]
    for size in dict.fromkeys(record["outputs"] for record in steps):
        chosen = [record for record in steps if record["outputs"] == size]
        yield from _steps(chosen, f"step, D = {size:,}", "gpflow_ext, collapsed")


COLLECTORS = {"kmm": _kmm, "sparse_ep": _sparse_ep, "robustmax": _robustmax, "sgpmc": _sgpmc, "gprn": _gprn}


def _draw(path: Path, found: dict[str, list[Row]], fits: list[Record]) -> None:
    """Draw the distribution of the ratios of each model, and beside it the seconds of whole fits."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = 2 if fits else 1
    figure, axes = plt.subplots(1, panels, figsize=(5.5 * panels, 4.2), squeeze=False, layout="constrained")
    _draw_ratios(axes[0, 0], found)
    if fits:
        draw_fits(axes[0, 1], fits)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_ratios(ax: Any, found: dict[str, list[Row]]) -> None:
    """Draw a point for each comparison, and the median of each model, on a logarithmic axis."""
    names = list(found)[::-1]
    for place, name in enumerate(names):
        rows = sorted(found[name], key=lambda row: row.ratio)
        ratios = [row.ratio for row in rows]
        heights = [place + 0.12 * ((number % 5) - 2) for number in range(len(rows))]
        for capped, marker in ((False, "o"), (True, ">")):
            chosen = [number for number, row in enumerate(rows) if row.capped is capped]
            colours = ["tab:blue" if ratios[number] >= 1.0 else "tab:red" for number in chosen]
            ax.scatter(
                [ratios[number] for number in chosen],
                [heights[number] for number in chosen],
                c=colours,
                marker=marker,
                s=22,
                alpha=0.75,
            )
        middle = report.median(ratios)
        ax.plot([middle, middle], [place - 0.38, place + 0.38], color="k", linewidth=2.0)
    ax.axvline(1.0, color="0.5", linewidth=1.0)
    ax.set_yticks(range(len(names)), [f"{TITLES[name]} ({len(found[name])})" for name in names])
    ax.set(xscale="log", xlabel="seconds of the other over ours, compiled work alone")
    ax.set_title("Right of 1: ours is faster; > did not arrive; bar: median", fontsize=10)


def draw_fits(ax: Any, fits: list[Record]) -> None:
    """Draw seconds of a fit in a fresh process, and of the next one, against the number of rows."""
    learnt = [record for record in fits if record.get("learn") and not record.get("folds")]
    for number, method in enumerate(dict.fromkeys(record["method"] for record in learnt)):
        records = sorted((r for r in learnt if r["method"] == method), key=lambda record: record["size"])
        sizes = [record["size"] for record in records]
        fresh = [record["imports"] + record["seconds"][0] for record in records]
        ax.plot(sizes, fresh, "o-", color=f"C{number}", label=method)
        ax.plot(sizes, [record["seconds"][1] for record in records], "o:", color=f"C{number}")
    ax.plot([], [], "-", color="0.4", label="fresh process: import, compile, fit")
    ax.plot([], [], ":", color="0.4", label="the next fit")
    ax.set(xscale="log", yscale="log", xlabel="rows", ylabel="seconds")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.xaxis.set_minor_formatter("")
    ax.set_xticks(sorted({record["size"] for record in learnt}))
    ax.tick_params(axis="x", rotation=30)
    ax.set_title("What a user waits for: binary data, kernel learnt", fontsize=10)
    ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
