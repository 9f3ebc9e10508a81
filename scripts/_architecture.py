"""The floors of the package as `tests/test_layers.py` enforces them, drawn."""

from __future__ import annotations

import runpy
import textwrap
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
TITLES = (
    "ground floor: tensors in, tensors out",
    "likelihoods: gpflow.likelihoods",
    "models: gpflow.models",
    "engines: closures and variables",
    "samplers",
    "recipes: fit and sample",
)


def picture() -> Any:
    """Return the figure: floors from the ground up, the leaves beside them."""
    import matplotlib.pyplot as plt

    layers = runpy.run_path(str(TESTS / "test_layers.py"))
    floors, leaves = layers["FLOORS"], layers["LEAVES"]
    figure, ax = plt.subplots(figsize=(9.0, 5.2), layout="constrained")
    colours = plt.colormaps["Blues"]
    height = 0.0
    for number, (names, title) in enumerate(zip(floors, TITLES, strict=True)):
        lines = textwrap.wrap(", ".join(sorted(names)), 74)
        tall = 0.62 + 0.3 * len(lines)
        ax.add_patch(plt.Rectangle((0, height), 7.4, tall - 0.08, color=colours(0.5 - 0.07 * number)))
        ax.text(0.1, height + tall - 0.2, title, weight="bold", va="top")
        ax.text(0.1, height + tall - 0.52, "\n".join(lines), family="monospace", fontsize=8, va="top")
        height += tall
    ax.add_patch(plt.Rectangle((7.6, 0), 2.4, height - 0.08, color=plt.colormaps["Greens"](0.3)))
    ax.text(7.7, height - 0.2, "leaves: import the\nground floor at most", weight="bold", va="top")
    ax.text(7.7, height - 1.0, "\n".join(sorted(leaves)), family="monospace", fontsize=8, va="top")
    ax.annotate("", (-0.25, 0.1), (-0.25, height - 0.2), arrowprops={"arrowstyle": "->", "lw": 1.5})
    ax.text(-0.45, height / 2, "imports", rotation=90, ha="center", va="center")
    ax.set(xlim=(-0.7, 10.0), ylim=(0, height))
    ax.axis("off")
    return figure
