"""What commands print: the data, tables, the training, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpflow_ext.cli import flags
from gpflow_ext.cli.run import in_flags

_WIDE = 160  # columns where the output is no terminal


def describe(split: Any) -> None:
    """Print what was loaded and every treatment of it."""
    (X, _), (X_test, _) = split
    print(
        f"{split.name}: {len(X)} training and {len(X_test)} test rows, {X.shape[1]} inputs, {flags.task(split.task)}"
    )
    print(f"  source: {split.source}")
    for note in split.notes:
        print(f"  note: {in_flags(note)}")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Column, Table

    first, *others = columns
    drawn = Table(Column(first, no_wrap=True), *others, title=title, title_justify="left")
    for row in rows:
        drawn.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=_WIDE)).print(drawn)


def report(result: Any, metrics: Mapping[str, float], objective: str) -> None:
    """Print the objective after each step and the scores on the test rows."""
    training(result, objective)
    scores(metrics)


def training(result: Any, objective: str) -> None:
    """Print the objective after the first ten steps, every tenth and the last."""
    shown = sorted(
        {
            *range(min(10, len(result.objective))),
            *range(0, len(result.objective), 10),
            len(result.objective) - 1,
        }
    )
    rows = [
        (str(result.first_step + i + 1), f"{result.objective[i]:.4f}", f"{result.times[i]:.2f}")
        for i in shown
        if i >= 0
    ]
    if rows:  # a run that had settled before takes no step
        table("training", ("step", objective, "seconds"), rows)
    print(in_flags(str(result)))


def scores(metrics: Mapping[str, float], title: str = "test rows") -> None:
    """Print the scores on the test rows, if there are any."""
    if metrics:
        table(title, ("score", "value"), [(name, _number(value)) for name, value in metrics.items()])


def _number(value: float) -> str:
    """Return four decimals of a number, and as many digits where these would be zeros."""
    return f"{value:.4g}" if 0.0 < abs(value) < 0.01 else f"{value:.4f}"


def next_commands(*commands: Sequence[object]) -> None:
    """Print what may be run next."""
    print("next:")
    for command in commands:
        print(f"  {shlex.join(map(str, command))}")


def after_export(folder: Path, data: str, exposure: str | None = None) -> None:
    """Print what may be done with a model that was exported from these data, and the column of exposures."""
    rows = "new.csv" if Path(data).suffix.lower() in ("", ".npz") else data  # it takes tables alone
    exposed = () if exposure is None else ("--exposure", exposure)
    next_commands(
        ("gpflow-ext", "predict", "--model", folder, "--data", rows, *exposed, "--out", "predictions.csv"),
        ("gpflow-ext", "serve", folder),
    )
