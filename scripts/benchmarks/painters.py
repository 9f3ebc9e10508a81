"""Draw what the page of a benchmark says, from its records: one function for each page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..shared import report
from . import summary

Record = Mapping[str, Any]


def _axes(width: float, height: float, panels: int = 1) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, panels, figsize=(width, height), squeeze=False, layout="constrained")
    return figure, axes[0]


def _bars(
    ax: Any, groups: Sequence[str], series: Mapping[str, Sequence[float]], text: str = "{:.3g}"
) -> None:
    """Draw groups of bars side by side, each with its value above it."""
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        places = np.arange(len(groups)) + (number - (len(series) - 1) / 2) * width
        drawn = ax.bar(places, values, width, label=name, color=f"C{number}")
        ax.bar_label(drawn, [text.format(value) for value in values], fontsize=7, padding=1)
    ax.set_xticks(range(len(groups)), groups)
    ax.margins(y=0.12)


def _below(ax: Any, columns: int = 2) -> None:
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=columns, frameon=False, fontsize=8)


def serving(records: Sequence[Record]) -> Any:
    """Draw the microseconds of a prediction beside those that nothing avoids."""
    figure, (ax,) = _axes(6.6, 3.8)
    found = [
        {name: report.median(values) for name, values in each["microseconds"].items()} for each in records
    ]
    series = {
        "arithmetic and an empty call": [each["arithmetic"] + each["empty"] for each in found],
        'profile="cached", the default': [each["cached"] for each in found],
        'profile="exact"': [each["exact"] for each in found],
    }
    _bars(ax, [f"N = {each['size']:,}" for each in records], series, "{:,.0f}")
    ax.set(yscale="log", ylabel="microseconds for one row")
    _below(ax, 3)
    return figure


def server(records: Sequence[Record]) -> Any:
    """Draw the memory of many rows in one call, and requests of one row by the number of clients."""
    figure, (left, right) = _axes(9.0, 3.8, 2)
    for name, label in (("whole", "whole"), ("blocks", "in blocks, as exported")):
        found = [each for each in records if each["what"] == name and "memory" in each]
        left.plot([each["size"] for each in found], [each["memory"] for each in found], "o-", label=label)
    left.set(xscale="log", yscale="log", xlabel="rows in one call", ylabel="MB beyond the idle process")
    _below(left)
    asked = [each for each in records if each["what"] == "http"]
    rates = [report.median([one["requests_per_second"] for one in each["rounds"]]) for each in asked]
    late = [report.median([one["late"] for one in each["rounds"]]) for each in asked]
    drawn = right.bar([str(each["clients"]) for each in asked], rates, 0.5)
    right.bar_label(drawn, [f"99 % within {value:.1f} ms" for value in late], fontsize=8, padding=2)
    right.margins(y=0.12)
    right.set(xlabel="clients", ylabel="requests a second")
    return figure


def classifier(records: Sequence[Record]) -> Any:
    """Draw the CPU seconds of a fit by rows, and the log loss where labels are wrong."""
    figure, (left, right) = _axes(9.4, 3.9, 2)
    timed = [each for each in records if each["what"] == "seconds"]
    names = {
        "GPClassifier": "GPClassifier, first fit",
        "GPClassifier, again": "GPClassifier, next fit",
        "scikit-learn GP": "scikit-learn",
    }
    sizes = sorted({each["rows"] for each in timed})
    series = {
        label: [next(e["cpu"] for e in timed if (e["rows"], e["model"]) == (n, name)) for n in sizes]
        for name, label in names.items()
    }
    _bars(left, [f"{n:,} rows" for n in sizes], series)
    left.set(yscale="log", ylabel="CPU seconds of a fit")
    _below(left, 1)
    noise = [each for each in records if each["what"] == "noise"]
    tables = list(dict.fromkeys(each["table"] for each in noise))
    losses = {
        name: [np.mean([e["nlpd"] for e in noise if (e["table"], e["model"]) == (t, name)]) for t in tables]
        for name in dict.fromkeys(each["model"] for each in noise)
    }
    _bars(right, tables, losses)
    right.set(ylabel="log loss, 15 % of the training labels wrong")
    _below(right, 1)
    return figure


def minute(records: Sequence[Record]) -> Any:
    """Draw the seconds of each fit, and its NLPD less that of the linear model."""
    figure, (left, right) = _axes(11.0, 4.2, 2)
    linear = {each["table"]: each["nlpd"] for each in records if each["model"] == "linear"}
    fits = [each for each in records if each["model"] != "linear" and "seconds" in each]
    names = [f"{each['table']}\n{each['model']}" for each in fits]
    _bars(left, names, {"seconds": [each["seconds"] for each in fits]})
    left.axhline(60.0, color="0.5", linewidth=1.0)
    left.set(ylabel="Seconds of a fit of 5,000 rows")
    _bars(right, names, {"NLPD": [each["nlpd"] - linear[each["table"]] for each in fits]})
    right.set(ylabel="NLPD less that of the linear model")
    for ax in (left, right):
        ax.tick_params(axis="x", labelrotation=90, labelsize=8)
    return figure


def auto(records: Sequence[Record]) -> Any:
    """Draw for each table the NLPD of `auto` less that of each other method."""
    measured = [{**each, "of": f"{each['table']}, {each['rows']:,}"} for each in records if "nlpd" in each]
    tables = list(
        dict.fromkeys(each["of"] for each in sorted(measured, key=lambda each: each["rows"] > 1000))
    )

    def mean(table: str, name: str) -> float:
        found = [each["nlpd"] for each in measured if (each["of"], each["model"]) == (table, name)]
        return float(np.mean(found)) if found else float("nan")

    others = [name for name in dict.fromkeys(each["model"] for each in measured) if name != "auto"]
    behind = {name: [mean(table, "auto") - mean(table, name) for table in tables] for name in others}
    return differences(tables, behind, "auto")


def differences(tables: Sequence[str], behind: Mapping[str, Sequence[float]], ours: str) -> Any:
    """Draw for each table the NLPD of a method of ours less that of each other method; NaN for none."""
    figure, (ax,) = _axes(9.0, 0.24 * len(tables) + 1.2)
    for number, (name, values) in enumerate(behind.items()):
        marker = "os^vDP*X<>"[number % 10]
        ax.plot(values, range(len(tables)), marker, color=f"C{number}", markersize=5, label=name)
    ax.axvline(0.0, color="k", linewidth=0.8)
    ax.set_yticks(range(len(tables)), tables, fontsize=8)
    ax.invert_yaxis()
    ax.grid(axis="y", linewidth=0.3)
    ax.set_xscale("symlog", linthresh=0.1)
    ax.set(xlabel=f"NLPD of {ours} less that of the other: left of 0 {ours} is better")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return figure


def gpflow_models(records: Sequence[Record]) -> Any:
    """Draw for each model the seconds of GPflow's fit over those of ours, and which objective is higher."""
    figure, (ax,) = _axes(8.2, 4.2)
    names = list(dict.fromkeys(each["model"] for each in records))[::-1]
    kinds = {
        "ours ends higher, or both alike": ("o", "tab:blue"),
        "ours ends lower": ("x", "tab:red"),
    }
    for label, (marker, colour) in kinds.items():
        chosen = [
            each
            for each in records
            if (each["ours"]["objective"] < each["theirs"]["objective"] - 1e-3) == (marker == "x")
        ]
        ratios = [each["theirs"]["seconds"] / each["ours"]["seconds"][1] for each in chosen]
        ax.plot(ratios, [names.index(each["model"]) for each in chosen], marker, color=colour, label=label)
    ax.axvline(1.0, color="0.5", linewidth=1.0)
    ax.set_yticks(range(len(names)), names)
    ax.set(
        xscale="log", xlabel="seconds of GPflow's optimiser over ours, second fit; right of 1 ours is faster"
    )
    _below(ax)
    return figure


def functions(records: Sequence[Record]) -> Any:
    """Draw the CPU seconds of a hundred functions, by the number of inputs."""
    figure, (ax,) = _axes(6.6, 3.8)
    kinds = dict.fromkeys((each["by"], each["dtype"], each.get("features")) for each in records)
    for by, dtype, features in kinds:
        found = [e for e in records if (e["by"], e["dtype"], e.get("features")) == (by, dtype, features)]
        label = f"{dtype}, F = {features}" if features else "GPflow's joint draw, float64"
        ax.plot(
            [e["size"] for e in found], [e["cpu"] for e in found], "o-" if features else "k*", label=label
        )
    ax.set(xscale="log", yscale="log", xlabel="inputs", ylabel="CPU seconds for 100 functions")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return figure


def convolution(records: Sequence[Record]) -> Any:
    """Draw the milliseconds of a step's two sums with their gradients."""
    figure, (ax,) = _axes(6.6, 2.4)
    names = list(dict.fromkeys(each["by"] for each in records))[::-1]
    start = np.zeros(len(names))
    for kind in dict.fromkeys(each["sum"] for each in records):
        values = [next(e["gradient"] for e in records if (e["by"], e["sum"]) == (n, kind)) for n in names]
        ax.barh(names, values, left=start, label=kind)
        start += values
    ax.set(xlabel="CPU milliseconds of a step with its gradient, 100 images")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return figure


def precision(records: Sequence[Record]) -> Any:
    """Draw how many times as fast as in float64 a step is."""
    figure, (ax,) = _axes(6.6, 2.6)
    steps, forms = (list(dict.fromkeys(each[key] for each in records)) for key in ("step", "form"))
    seconds = {(each["step"], each["form"]): np.median(each["seconds"]) for each in records}
    for number, form in enumerate(forms):
        places = np.arange(len(steps)) + 0.25 * number
        ax.barh(places, [seconds[step, forms[0]] / seconds[step, form] for step in steps], 0.22, label=form)
    ax.set_yticks(np.arange(len(steps)) + 0.25, steps)
    ax.invert_yaxis()
    ax.set(xlabel="CPU seconds in float64 over those of the form")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return figure


def vecchia(records: Sequence[Record]) -> Any:
    """Draw what the parts of a model cost beside GPBoost."""
    sizes = list(dict.fromkeys(each["size"] for each in records))
    figure, axes = _axes(6.4 * len(sizes), 3.9, len(sizes))
    for ax, size in zip(axes, sizes, strict=True):
        found = [each for each in records if each["size"] == size]
        names = [
            f"{each['kind']}\n{each['by']}" + f"\nM = {each['inducing']}" * bool(each["inducing"])
            for each in found
        ]
        start = np.zeros(len(found))
        for part in ("build", "evidence", "posterior", "predict"):
            values = [each.get(part, 0.0) for each in found]
            ax.bar(range(len(found)), values, bottom=start, label=part)
            start += values
        ax.set_xticks(range(len(found)), names, fontsize=8)
        ax.set(title=f"{size:,} places", ylabel="CPU seconds")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=4, frameon=False, fontsize=8)
    return figure


def vecchia_large(records: Sequence[Record]) -> Any:
    """Draw the CPU seconds and the memory of each part, by the number of places and the solver."""
    height = 0.6 * len(records) + 2.4
    figure, axes = _axes(9.0, height, 2)
    rows = [f"{each['size']:,}, {each['method']}, {each['solver']}" for each in records]
    shown = (
        (("build", "first", "evidence", "mode", "posterior", "predict"), "CPU seconds"),
        (("memory_build", "memory", "memory_all", "estimate"), "GiB"),
    )
    for ax, (parts, unit) in zip(axes, shown, strict=True):
        for place, part in enumerate(parts):
            at = np.arange(len(records)) + 0.8 * place / len(parts)
            label = (
                part.replace("memory_", "").replace("memory", "evidence").replace("first", "first evidence")
            )
            ax.barh(at, [each.get(part, 0.0) for each in records], 0.8 / len(parts), label=label)
        ax.set(xlabel=unit)
        ax.set_yticks(np.arange(len(records)) + 0.3, rows if ax is axes[0] else [])
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.8 / height), ncols=2, frameon=False, fontsize=8)
    return figure


def grids(records: Sequence[Record]) -> Any:
    """Draw the CPU seconds of fits and of gradients, by the number of cells."""
    figure, (ax,) = _axes(6.6, 3.8)
    timed = [each for each in records if each["table"] == "seconds"]
    for method in dict.fromkeys(each["method"] for each in timed):
        for part, style in (("first", "o--"), ("fit", "o-"), ("gradient", "s:")):
            found = [each for each in timed if each["method"] == method and part in each]
            label = f"{method}: {'first fit' if part == 'first' else part}"
            ax.plot([each["size"] ** 2 for each in found], [each[part] for each in found], style, label=label)
    ax.set(xscale="log", yscale="log", xlabel="cells", ylabel="CPU seconds")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return figure


def ratios(name: str) -> Callable[[Sequence[Record]], Any]:
    """Return the function that draws the ratio of each comparison of a model with other libraries."""

    def draw(records: Sequence[Record]) -> Any:
        found = list(summary.COLLECTORS[name]([dict(each) for each in records]))
        rows = summary.counted({name: found}).get(name, [])[::-1]
        figure, (ax,) = _axes(9.0, 0.22 * len(rows) + 1.2)
        for place, row in enumerate(rows):
            colour = "tab:blue" if row.ratio >= 1.0 else "tab:red"
            ax.plot(row.ratio, place, ">" if row.capped else "o", color=colour)
        ax.axvline(1.0, color="0.5", linewidth=1.0)
        ax.set_yticks(range(len(rows)), [f"{row.task}: {row.method}" for row in rows], fontsize=8)
        ax.grid(axis="y", linewidth=0.3)
        ended = "; > did not arrive" if any(row.capped for row in rows) else ""
        ax.set(xscale="log", xlabel=f"seconds of the other over ours, once compiled{ended}")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter("{x:g}" if np.ptp(np.log10(ax.get_xlim())) < 1.0 else "")
        return figure

    return draw
