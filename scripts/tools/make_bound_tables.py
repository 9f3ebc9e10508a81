"""Fit the minimax piecewise quadratic upper bounds on log(1 + eˣ) and write gpflow_ext/numerics/bound_tables.py.

A bound of R pieces is optimal when every piece has the same largest gap ε. The end pieces, ε and x + ε, are
linear and touch the function at ±t(ε). From the centre outwards each inner piece is stretched until its gap
is ε; ε is then the root at which the last inner piece ends exactly at t(ε). As log(1 + e⁻ˣ) = log(1 + eˣ) - x,
only the right half is fitted. The kind of bound is that of Marlin, Khan and Murphy (ICML 2011).
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from .. import _cli

FAR = 60.0  # beyond this the function is a straight line in double precision
DEFAULT_PIECES = (3, 4, 5, 10, 20)
TARGET = Path(__file__).resolve().parents[2] / "gpflow_ext" / "numerics" / "bound_tables.py"


class Quadratic(NamedTuple):
    """The upper bound a x² + b x + c on one piece, and its largest gap there."""

    a: float
    b: float
    c: float
    gap: float


class RightHalf(NamedTuple):
    """Knots >= 0 and the pieces to the right of the centre, from the centre outwards."""

    knots: list[float]
    pieces: list[Quadratic]
    max_gap: float


def llp(x: float) -> float:
    return float(np.logaddexp(0.0, x))


def sigmoid(x: float) -> float:
    return float(np.exp(-np.logaddexp(0.0, -x)))


def fit_central(end: float) -> Quadratic:
    """Fit the even piece on [-end, end].

    log(1 + eˣ) - x/2 is concave in x²: the best line in x² is parallel to the chord and touches once.
    """
    slope = (llp(end) - end / 2 - np.log(2.0)) / end**2
    touch = brentq(lambda x: np.tanh(x / 2) / (4 * x) - slope, 1e-6 * end, end, xtol=1e-15, rtol=1e-15)
    c = llp(touch) - touch / 2 - slope * touch**2
    return Quadratic(slope, 0.5, c, c - np.log(2.0))


def fit_inner(left: float, right: float) -> Quadratic:
    """Fit the piece on [left, right], left >= 0, by Remez exchange in w = (x - middle) / half.

    The third derivative has one sign for x > 0: the error alternates at both ends and two stationary points.
    """
    middle, half = (left + right) / 2, (right - left) / 2
    points, signs = np.array([-1.0, -0.5, 0.5, 1.0]), np.array([-1.0, 1.0, -1.0, 1.0])
    for _ in range(30):
        system = np.column_stack([points**2, points, np.ones(4), -signs])
        a, b, c, error = np.linalg.solve(system, [llp(middle + half * w) for w in points])
        inner = [_stationary(a, b, middle, half, start) for start in (-1.0, 1.0)]
        moved = max(abs(inner[0] - points[1]), abs(inner[1] - points[2]))
        points = np.array([-1.0, *inner, 1.0])
        if moved < 1e-9:  # the error at the points is then exact to the square of this
            break
    a, b = a / half**2, b / half
    return Quadratic(a, b - 2 * a * middle, c - b * middle + a * middle**2 + abs(error), 2 * abs(error))


def _stationary(a: float, b: float, middle: float, half: float, w: float) -> float:
    """Root of the derivative of the error, which is convex: Newton from an end cannot overshoot."""
    for _ in range(60):
        p = sigmoid(middle + half * w)
        step = (2 * a * w + b - half * p) / (2 * a - half**2 * p * (1 - p))
        w -= step
        if abs(step) < 1e-13:
            break
    return w


def stretch(start: float, gap: float) -> float:
    """Largest right end of an inner piece that starts at ``start`` and keeps within ``gap``."""
    width = 0.25
    while fit_inner(start, start + width).gap < gap and start + width < FAR:
        width *= 2
    if start + width >= FAR:
        return FAR
    return brentq(lambda end: fit_inner(start, end).gap - gap, start + width / 16, start + width, xtol=1e-14)


def central_knot(gap: float) -> float:
    """Half width of the central piece that keeps within ``gap``."""
    if fit_central(FAR).gap < gap:
        return FAR
    return brentq(lambda end: fit_central(end).gap - gap, 1e-3, FAR, xtol=1e-14)


def touching(gap: float) -> float:
    """Where the end piece begins: log(1 + e⁻ᵗ) = gap."""
    return float(-np.log(np.expm1(gap)))


def inner_knots(num_pieces: int, gap: float) -> list[float]:
    """Right-half knots up to the end of the last inner piece, or up to the first beyond ``touching(gap)``."""
    knots = [central_knot(gap) if num_pieces % 2 else 0.0]
    while len(knots) < num_pieces // 2 and knots[-1] < touching(gap):
        knots.append(stretch(knots[-1], gap))
    return knots


def fit(num_pieces: int) -> RightHalf:
    """Fit the bound of ``num_pieces`` pieces (at least 3) and return its right half."""
    if num_pieces < 3:
        raise ValueError(f"num_pieces must be at least 3; found {num_pieces}")

    def overshoot(log_gap: float) -> float:
        return inner_knots(num_pieces, np.exp(log_gap))[-1] - touching(np.exp(log_gap))

    guess = np.log(1.2 / num_pieces**3)  # the gap falls as the cube of the number of pieces
    log_gap = brentq(overshoot, guess - 1.5, min(guess + 1.5, np.log(0.6)), xtol=1e-14)
    gap = float(np.exp(log_gap))
    knots = [*inner_knots(num_pieces, gap)[:-1], touching(gap)]
    pieces = [fit_inner(left, right) for left, right in pairwise(knots)]
    central = [fit_central(knots[0])] if num_pieces % 2 else []
    return RightHalf(knots, [*central, *pieces, Quadratic(0.0, 1.0, gap, gap)], gap)


def render(halves: dict[int, RightHalf]) -> str:
    """Return the text of the module that holds the tables."""

    def row(name: str, values: list[float]) -> str:
        items = [f"{float(value)!r}," for value in values]
        if len(items) == 1:
            return f"        {name}=({items[0]}),\n"
        lines = "".join(f"            {item}\n" for item in items)
        return f"        {name}=(\n{lines}        ),\n"

    entries = []
    for num_pieces, half in halves.items():
        columns = [[piece[i] for piece in half.pieces] for i in range(3)]
        body = row("knots", half.knots) + "".join(map(row, "abc", columns))
        entries.append(f"    {num_pieces}: HalfBound(\n{body}        max_gap={half.max_gap!r},\n    ),\n")
    return _HEADER + "TABLES: dict[int, HalfBound] = {\n" + "".join(entries) + "}\n"


_HEADER = '''"""Piecewise quadratic upper bounds on log(1 + eˣ), written by scripts/tools/make_bound_tables.py."""

from __future__ import annotations

from typing import NamedTuple


class HalfBound(NamedTuple):
    """Right half of a bound: knots >= 0 and the pieces a x² + b x + c, from the centre outwards."""

    knots: tuple[float, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]
    c: tuple[float, ...]
    max_gap: float


'''


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.tools.make_bound_tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--num-pieces",
        type=int,
        nargs="+",
        default=DEFAULT_PIECES,
        metavar="R",
        help="numbers of pieces, >= 3",
    )
    parser.add_argument(
        "--output", type=Path, default=TARGET, help="file to write (the package's own by default)"
    )
    arguments = parser.parse_args()
    halves = {num_pieces: fit(num_pieces) for num_pieces in sorted(arguments.num_pieces)}
    arguments.output.write_text(render(halves), encoding="utf-8")
    for num_pieces, half in halves.items():
        print(f"R = {num_pieces:3d}   largest gap {half.max_gap:.6e}   outer knot {half.knots[-1]:.6f}")


if __name__ == "__main__":
    _cli.run(main)
