"""A short table of draws: mean, deviation, quantiles, and whether the chains have mixed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpflow_ext.sampling import diagnostics

Array = npt.NDArray[Any]
COLUMNS = ("", "mean", "sd", "5 %", "95 %", "R-hat", "ESS")
_SHOWN = 20  # rows
_FEWEST = 4  # draws of a chain, for its halves to be compared


class Summary(NamedTuple):
    """The rows of a table, and how many coordinates it leaves out."""

    rows: list[tuple[str, ...]]
    left: int

    def __str__(self) -> str:
        cells = [COLUMNS, *self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join(_line(row, widths) for row in cells)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    return "  ".join([row[0].ljust(len(first)), *others])


def coordinates(name: str, value: Array) -> Iterator[tuple[str, Array]]:
    """Yield each scalar of a parameter's draws [C, S, *shape] by name, [C, S], such as ``V[3, 0]``."""
    flat = value.reshape(*value.shape[:2], -1)
    for number, index in enumerate(np.ndindex(value.shape[2:])):
        yield (f"{name}{[*index]}" if index else name), flat[:, :, number]


def summarise(values: Mapping[str, Array]) -> Summary:
    """Return the table of draws [C, S, *shape] by name; if there are many, only those of small parameters.

    R-hat and the bulk effective sample size need ArviZ; without it, or with too few draws, they are empty.
    """
    shown: dict[str, Array] = {}
    for name, value in sorted(values.items(), key=lambda item: item[1][0, 0].size):
        for each, draws in coordinates(name, value):
            if len(shown) == _SHOWN:
                break
            shown[each] = np.asarray(draws, float)
    total = sum(value[0, 0].size for value in values.values())
    rows = []
    for name, draws in shown.items():
        numbers = (draws.mean(), draws.std(), *np.quantile(draws, (0.05, 0.95)))
        rows.append((name, *(f"{number:.4g}" for number in numbers), *_mixing(draws)))
    return Summary(rows, total - len(shown))


def _mixing(draws: Array) -> tuple[str, str]:
    """Return R-hat and the bulk effective sample size of a coordinate [C, S], if they can be computed."""
    if draws.shape[1] < _FEWEST:
        return "", ""
    try:
        rhat, size = diagnostics.mixing(draws)
    except ImportError:
        return "", ""
    return "" if math.isnan(rhat) else f"{rhat:.3f}", "" if math.isnan(size) else f"{size:.0f}"
