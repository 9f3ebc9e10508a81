"""Draw the pictures of single pages of benchmarks from their records alone.

    python -m scripts.benchmarks.pictures              into docs/results
    python -m scripts.benchmarks.pictures --out runs   elsewhere, from the records there

A benchmark draws its own picture when it writes its page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import _cli
from . import defaults_page, painters

Record = dict[str, Any]
RESULTS = Path(__file__).resolve().parents[2] / "docs/results"


def write(page: Path, name: str) -> None:
    """Draw the picture of a page of a benchmark beside it, from the records beside it, if it has a picture."""
    path = page.with_suffix(".jsonl")
    if name not in PAINTERS or not path.is_file():
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    figure = PAINTERS[name]([record for record in records if "environment" not in record])
    figure.savefig(path.with_suffix(".png"), dpi=110)
    plt.close(figure)


def dual(records: Sequence[Record]) -> Any:
    """Draw test scores against seconds: ours, and the best loop of GPflow of each kind."""
    import matplotlib.pyplot as plt

    titles = {"mnist_odd_even": "MNIST, odd against even", "airline_2008": "Airline delays, 2008"}
    sets = list(dict.fromkeys(record["set"] for record in records))
    figure, axes = plt.subplots(
        1, len(sets), figsize=(5.0 * len(sets), 3.9), squeeze=False, layout="constrained"
    )
    for ax, name in zip(axes[0], sets, strict=True):
        runs: dict[str, list[Record]] = {}
        for record in records:
            if record["set"] == name:
                runs.setdefault(record["method"], []).append(record)
        ends = {method: np.mean([run["nll"][-1] for run in found]) for method, found in runs.items()}
        loops = [method for method in runs if method.startswith("GPflow")]
        kinds = ("natural gradients", "Adam")
        best = [min((m for m in loops if kind in m), key=ends.__getitem__) for kind in kinds]
        for number, method in enumerate(["dual", "SparseEP", *best]):
            seconds, scores = (
                np.mean([run[key] for run in runs[method]], axis=0) for key in ("seconds", "nll")
            )
            ax.plot(
                seconds, scores, color=f"C{number}", label=method.replace("GPflow SVGP, ", "GPflow, best ")
            )
        ax.set(xscale="log", title=titles.get(name, name), xlabel="CPU seconds", ylabel="test NLL")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False, fontsize=8)
    return figure


def state_space(records: Sequence[Record]) -> Any:
    """Draw the CPU seconds of a fit, and of predictions, against the number of data."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(6.6, 3.8), layout="constrained")
    kinds = dict.fromkeys((record["method"], record["by"]) for record in records)
    for method, by in kinds:
        found = [record for record in records if (record["method"], record["by"]) == (method, by)]
        style = "-" if by == "gpflow_ext" else "--"
        colour = f"C{list(dict.fromkeys(kind for kind, _ in kinds)).index(method)}"
        sizes, seconds = ([record[key] for record in found] for key in ("size", "cpu"))
        ax.plot(sizes, seconds, f"o{style}", color=colour, markersize=4, label=f"{method}, {by}")
    ax.set(xscale="log", yscale="log", xlabel="data", ylabel="CPU seconds after the first time")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return figure


def defaults(records: Sequence[Record]) -> Any:
    """Draw for each table the NLPD of the recommended model less that of each other method."""
    measured = [record for record in records if "table" in record]
    tables = [
        name for name in dict.fromkeys(r["table"] for r in measured) if defaults_page.headline(measured, name)
    ]
    compared = {name: defaults_page.comparisons(measured, name) for name in tables}
    methods = list(dict.fromkeys(each.name for found in compared.values() for each in found))
    nothing = float("nan")
    behind = {
        method: [next((e.mean for e in compared[name] if e.name == method), nothing) for name in tables]
        for method in methods
    }
    return painters.differences(tables, behind, "ours")


PAINTERS: dict[str, Callable[[Sequence[Record]], Any]] = {
    "dual": dual,
    "state_space": state_space,
    "defaults": defaults,
    "serving": painters.serving,
    "server": painters.server,
    "classifier": painters.classifier,
    "minute": painters.minute,
    "auto": painters.auto,
    "gpflow_models": painters.gpflow_models,
    "functions": painters.functions,
    "convolution": painters.convolution,
    "precision": painters.precision,
    "vecchia": painters.vecchia,
    "vecchia_large": painters.vecchia_large,
    "grids": painters.grids,
    **{name: painters.ratios(name) for name in ("kmm", "sparse_ep", "robustmax", "sgpmc", "gprn")},
}
CAPTIONS = {  # of the pictures that a page does not place itself
    "serving": "Microseconds of a prediction of one row, beside those that nothing avoids",
    "server": "Left: memory of many rows in one call. Right: requests of one row, by clients",
    "classifier": "Left: CPU seconds of a fit. Right: log loss where training labels are wrong",
    "minute": "Left: seconds of a fit of 5,000 rows. Right: NLPD less that of a linear model",
    "auto": "NLPD of auto less that of each other method, by table",
    "gpflow_models": "Seconds of GPflow's optimiser over those of fit, by model",
    "functions": "CPU seconds of a hundred functions, by the number of inputs",
    "convolution": "CPU milliseconds of a step's sums over patches, with gradients",
    "precision": "CPU seconds of a step in float64 over those in another form",
    "grids": "CPU seconds of fits against the number of cells",
    "vecchia": "CPU seconds of the parts of a model, beside GPBoost",
    "vecchia_large": "CPU seconds and memory of the parts of a model",
    **dict.fromkeys(
        ("kmm", "sparse_ep", "robustmax", "sgpmc", "gprn"),
        "Seconds of other libraries over ours, by comparison",
    ),
}


def illustrated(text: str, name: str, page: Path | None = None) -> str:
    """Return the text of a page with its picture below the title: that of the page's own file, if it has another name."""
    usual = f"benchmark_{name}.png"
    if name in CAPTIONS:
        title, _, rest = text.partition("\n")
        text = f"{title}\n\n![{CAPTIONS[name]}]({usual})\n\n{rest.lstrip()}"
    return text if page is None else text.replace(f"({usual})", f"({page.stem}.png)")


def main() -> None:
    """Draw all pictures again."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.benchmarks.pictures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="default: docs/results")
    folder = parser.parse_args().out
    for name in PAINTERS:
        write(folder / f"benchmark_{name}.md", name)


if __name__ == "__main__":
    _cli.run(main)
