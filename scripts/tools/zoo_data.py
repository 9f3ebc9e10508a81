"""Data that are made for models of the zoo, each written to a file before it is read."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np

WAVES, FIELD, JURA = (Path("runs/zoo") / name for name in ("waves.csv", "field.npz", "jura.csv"))
_ROWS = 30  # images
_SIDE = 1000  # pixels


def write_waves() -> None:
    """Write four outputs of two waves, mixed by weights that change with the input, and noise."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0.0, 10.0, 100))
    waves = np.stack([np.sin(2.0 * x), np.cos(1.3 * x)], axis=1)  # [N, 2]
    phases = rng.uniform(0.0, 2.0 * np.pi, (4, 2))
    weights = np.sin(0.3 * x[:, None, None] + phases)  # [N, 4, 2]
    Y = np.einsum("ndk,nk->nd", weights, waves) + 0.1 * rng.standard_normal((100, 4))
    table = np.column_stack([x, Y])
    np.savetxt(WAVES, table, fmt="%.6f", delimiter=",", header="x,y1,y2,y3,y4", comments="")


def write_field() -> None:
    """Write images of a million pixels at 30 inputs, drawn from a network with two nodes; see `field`."""
    from ..experiments.gprn.field import field

    task = field(0, _SIDE, _ROWS, 0)
    np.savez(FIELD, X=task.X.astype(np.float32), Y=task.Y)


def write_jura() -> None:
    """Write logarithms of three metals in the soil of the Jura, without cadmium at the validation sites."""
    from ..shared import jura

    X, log, hidden = jura.sites()
    names = ["x_km", "y_km", *(f"log_{metal}" for metal in jura.METALS)]
    with JURA.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(names)
        for place, metals, is_hidden in zip(X, log, hidden, strict=True):
            cadmium, *others = (f"{value:.6f}" for value in metals)
            rows.writerow([*place, "" if is_hidden else cadmium, *others])


_DRAWN = "drawn by scripts/tools/zoo_data.py; licence: CC0, as all it draws"
_WRITERS: dict[Path, tuple[Callable[[], None], str]] = {
    WAVES: (write_waves, _DRAWN),
    FIELD: (write_field, _DRAWN),
    JURA: (write_jura, "Goovaerts (1997), from the R package gstat; licence as stated: GPL (>= 2.0)"),
}


def made(path: str) -> str | None:
    """Write the data of a path if they are made here; return their source, or ``None`` if they are not."""
    if Path(path) not in _WRITERS:
        return None
    write, source = _WRITERS[Path(path)]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write()
    return source
