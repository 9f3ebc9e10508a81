"""Small tables for notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    """Return a table in HTML: a heading, a line for each row, and paragraphs below; all is escaped."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    below = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return (
        f"<div><p><b>{html.escape(title)}</b></p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}</div>"
    )
