"""A line of progress on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column


@contextmanager
def bar(
    description: str,
    total: int,
    done: int = 0,
    enabled: bool | None = None,
    report: Callable[[], str] = lambda: "",
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
    report
        Returns what else to show.
    """
    console = Console(stderr=True)
    if not (console.is_terminal if enabled is None else enabled):
        yield lambda step, objective: None
        return
    columns = (  # the text last: it is what a narrow terminal may cut off
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        _Speed(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[objective]}", table_column=Column(ratio=1, no_wrap=True)),
    )
    with Progress(*columns, console=console, expand=True) as display:
        task = display.add_task(description, total=total, completed=done, objective="")

        def show(step: int, objective: float) -> None:
            parts = [f"objective {objective:.7g}", report()]
            shown = ", ".join(part for part in parts if part)
            display.update(task, completed=step, total=max(step, total), objective=shown)

        yield show


class _Speed(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> str:
        return "" if task.speed is None else f"{task.speed:.3g}/s"
