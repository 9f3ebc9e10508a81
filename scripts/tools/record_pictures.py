"""Draw what the pages of the tools say, from the records beside them alone.

    python -m scripts.tools.record_pictures              into docs/results
    python -m scripts.tools.record_pictures --out runs   elsewhere, from the records there

A tool draws its own picture when it writes its page.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import _cli
from ..shared.journal import Journal, Record

RESULTS = Path(__file__).resolve().parents[2] / "docs/results"
COLOURS = {
    "passed": "tab:blue",
    "failed": "tab:red",
    "not applicable": "tab:orange",
    "skipped": "0.75",
}


def _counted(counts: Sequence[Counter[str]], names: Sequence[str], height: float) -> Any:
    """Draw how many tests ended how, a bar of shares for each name, with the numbers in it."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(9.0, height * len(names) + 1.2), layout="constrained")
    start = np.zeros(len(names))
    for kind, colour in COLOURS.items():
        values = np.array([count[kind] for count in counts])
        shares = values / [max(1, sum(count.values())) for count in counts]
        bars = ax.barh(range(len(names)), shares, left=start, color=colour, label=kind)
        ax.bar_label(bars, [str(value) if value else "" for value in values], label_type="center", fontsize=7)
        start += shares
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.margins(y=0.01)
    ax.invert_yaxis()
    ax.set(xlim=(0.0, 1.0), xlabel="share of the tests, their number inside")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def reliability(records: Sequence[Record]) -> Any:
    """Draw how the tests of each invariant ended."""
    from .reliability_rows import ROWS

    names = [f"{each['row']}  {_short(ROWS[each['row'] - 1].what)}" for each in records]
    counts = [
        Counter(test["outcome"].replace("error", "failed") for test in each["tests"]) for each in records
    ]
    return _counted(counts, names, 0.23)


def gpflow_tests(records: Sequence[Record]) -> Any:
    """Draw how GPflow's own tests ended with each class of ours in place of GPflow's."""
    from .gpflow_tests import ending

    counts = [Counter(map(ending, each["tests"])) for each in records]
    return _counted(counts, [each["substitute"] for each in records], 0.4)


def soak(records: Sequence[Record]) -> Any:
    """Draw the resident memory of long runs, beyond that after a quarter of them."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(7.4, 3.8), layout="constrained")
    found = [each for each in records if "what" in each]
    for what in dict.fromkeys(each["what"] for each in found):
        runs = [each for each in found if each["what"] == what][1:]
        done, memory = ([each[key] for each in runs] for key in ("done", "resident"))
        ax.plot(np.array(done) / done[-1], np.array(memory) - memory[0], "o-", label=f"{done[-1]:,} × {what}")
    ax.axhline(0.0, color="0.7", linewidth=1.0)
    ax.set(xlabel="share of the run", ylabel="resident memory beyond a quarter of it, MB")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return figure


def _short(text: str, length: int = 62) -> str:
    return text if len(text) <= length else text[: text.rfind(" ", 0, length)] + " …"


PAINTERS: dict[str, tuple[Callable[[Sequence[Record]], Any], str]] = {
    "reliability": (reliability, "reliability"),
    "gpflow_tests": (gpflow_tests, "gpflow_tests"),
    "soak": (soak, "soak"),
}


def write(folder: Path, name: str) -> None:
    """Draw the picture of a page from its records, where there are any."""
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    painter, file = PAINTERS[name]
    figure = painter(Journal(path).records)
    figure.savefig(folder / f"{file}.png", dpi=110)
    plt.close(figure)


def main() -> None:
    """Draw all of them."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.tools.record_pictures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="default: docs/results")
    folder = parser.parse_args().out
    for name in PAINTERS:
        write(folder, name)


if __name__ == "__main__":
    _cli.run(main)
