"""The prose of the pages: no sentence above 40 words, and none of the phrases that read oddly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LONGEST = 40
ODD = (
    "no fall but for",
    "hang together",
    "comes back by steps",
    "that is to be had",
    "not to be had",
    "without a word",
    "something else than",
    "nothing is looked",
    "is at its end",
    "no site tells",
)
FENCE = re.compile(r"^ *```.*?^ *```$|\$\$.*?\$\$", re.MULTILINE | re.DOTALL)
ATOM = re.compile(r"\$[^$]*\$|`[^`]*`")  # a formula or a name counts as a word
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
WORD = re.compile(r"\w[\w'’.,/-]*")


def sentences(text: str) -> list[str]:
    """Return the sentences of Markdown; list items, cells of tables and paragraphs end one, too."""
    plain = LINK.sub(r"\1", ATOM.sub("X", FENCE.sub("\n\n", text)))
    plain = re.sub(r"^ {4,}\S.*$", "", plain, flags=re.MULTILINE)  # commands
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*#>]|\d+\.) )|\||\n(?=#)", plain)
    parts = [piece for part in parts for piece in (part.split("; ") if "\n" not in part.strip() else [part])]
    return [" ".join(s.split()) for part in parts for s in re.split(r"(?<=[.!?])[)\"]?\s+(?=[^a-z])", part)]


def too_long(text: str) -> list[str]:
    return [s for s in sentences(text) if len(WORD.findall(s)) > LONGEST]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path) -> None:
    assert not too_long(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("folder", ["README.md", "CHANGELOG.md", "docs", "gpflow_ext", "scripts"])
def test_no_odd_phrases(folder: str) -> None:
    place = ROOT / folder
    files = [place] if place.is_file() else [*place.rglob("*.md"), *place.rglob("*.py")]
    found = [
        f"{file.relative_to(ROOT)}: {phrase}"
        for file in files
        for phrase in ODD
        if phrase in " ".join(file.read_text(encoding="utf-8").split()).lower()
    ]
    assert not found


def test_a_long_sentence_is_found() -> None:
    short, long = "Word " * LONGEST, "Word " * (LONGEST + 1)
    assert not too_long(f"{short}.")
    assert too_long(f"A short one. {long}.") == [f"{long}."]
    assert not too_long(f"- {short}\n- {short}\n\n| {short} | {short} |\n\n```python\n{long}\n```\n")
