"""The Python blocks of a Markdown page, run one after the other; what the page shows as their output is compared."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
QUICK = re.compile(r"= .*?  # or (\S+) for a quick look$", re.MULTILINE)
CLOSE = 0.02  # relative difference of a shown number that other machines may have


def run(
    page: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    short: bool = False,
) -> dict:
    """Run a page in a folder of its own; return the names that it leaves, with what it printed as ``shown``.

    In short, values with a comment ``or ... for a quick look`` are the quick ones, and outputs are not compared.
    """
    monkeypatch.chdir(folder)
    names: dict = {}
    shown = ""
    for code, expected in BLOCK.findall(page.read_text(encoding="utf-8")):
        exec(compile(QUICK.sub(r"= \1", code) if short else code, str(page), "exec"), names)
        printed = capsys.readouterr().out
        if expected and not short:
            assert alike(printed, expected), f"{page.name} shows\n{expected}\nand its code prints\n{printed}"
        shown += printed
    return {**names, "shown": shown}


def alike(one: str, other: str) -> bool:
    """Tell whether two texts are the same but for spaces and small differences of their numbers."""
    texts = [NUMBER.sub("#", text).split() for text in (one, other)]
    numbers = [list(map(float, NUMBER.findall(text))) for text in (one, other)]
    return texts[0] == texts[1] and all(
        math.isclose(a, b, rel_tol=CLOSE, abs_tol=1e-9) for a, b in zip(*numbers, strict=True)
    )


def missing_programs(text: str) -> set[str]:
    """Return the modules that a page runs by ``python -m scripts...`` and that are no programs."""
    found = set(re.findall(r"python -m (scripts[\w.]*\w)", text))
    files = {module: ROOT.joinpath(*module.split(".")) for module in found}
    return {
        module
        for module, file in files.items()
        if not (file.with_suffix(".py").is_file() or (file / "__main__.py").is_file())
    }
