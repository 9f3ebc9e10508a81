"""A progress bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@contextmanager
def bar(
    description: str, total: int, done: int = 0, enabled: bool | None = None
) -> Iterator[Callable[[int, float], None]]:
    """Show a bar on standard error and yield the callback ``(step, objective)`` that moves it.

    Parameters
    ----------
    description
        What is being done.
    total, done
        Steps in all, and those already done.
    enabled
        ``None`` shows the bar only where standard error is a terminal.
    """
    console = Console(stderr=True)
    if not (console.is_terminal if enabled is None else enabled):
        yield lambda step, objective: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[objective]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as display:
        task = display.add_task(description, total=total, completed=done, objective="")
        yield lambda step, objective: display.update(
            task, completed=step, objective=f"objective {objective:.4f}"
        )
