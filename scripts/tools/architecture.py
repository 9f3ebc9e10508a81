"""The floors of the package as `tests/test_layers.py` enforces them, drawn."""

from __future__ import annotations

import runpy
import textwrap
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2] / "tests"
SAYS = {
    "numerics": "tensors in, tensors out",
    "data": "data sets, checks at the door, rows",
    "sites": "Gaussian sites: algebra, priors, models",
    "likelihoods": "gpflow.likelihoods",
    "prediction": "densities, scores, classes",
    "persistence": "checkpoints, exports",
    "training": "loop, optimisers, devices",
    "sampling": "chains, tuners, coordinates",
    "fitting": "knows every method",
    "cli": "the command gpflow-ext",
    "compiled": "one graph for each structure",
}

_INCHES = 0.45  # of a unit of height: a line of names takes 0.27


def picture() -> Any:
    """Return the figure: floors from the ground up, the rooms of a floor side by side."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    tower = runpy.run_path(str(TESTS / "test_layers.py"))["TOWER"]
    figure, ax = plt.subplots(layout="constrained")
    colours = plt.colormaps["Blues"]
    height, width = 0.0, 10.0
    for number, rooms in enumerate(tower):
        wide = width / len(rooms)
        texts = {
            room: textwrap.wrap(", ".join(name for name in names.split() if name != "."), int(11.3 * wide))
            for room, names in rooms.items()
        }
        tall = 0.55 + 0.27 * max(map(len, texts.values()))
        for place, (room, lines) in enumerate(texts.items()):
            left = place * wide
            colour = colours(0.5 - 0.03 * number)
            ax.add_patch(Rectangle((left, height), wide - 0.06, tall - 0.08, color=colour))
            title = f"{room}: {SAYS[room]}" if room in SAYS else room
            ax.text(left + 0.1, height + tall - 0.16, title, weight="bold", va="top", fontsize=9)
            body = "\n".join(lines)
            ax.text(left + 0.1, height + tall - 0.46, body, family="monospace", fontsize=7, va="top")
        height += tall
    ax.annotate("", (-0.25, 0.1), (-0.25, height - 0.2), arrowprops={"arrowstyle": "->", "lw": 1.5})
    ax.text(-0.45, height / 2, "imports", rotation=90, ha="center", va="center")
    ax.set(xlim=(-0.7, 10.0), ylim=(0, height))
    figure.set_size_inches(9.5, _INCHES * height)
    ax.axis("off")
    return figure
