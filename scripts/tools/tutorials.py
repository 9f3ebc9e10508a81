"""Run the tutorials: write the outputs that they show, their pictures and their notebooks.

    python -m scripts.tools.tutorials                        all pages, some minutes
    python -m scripts.tools.tutorials --only disease counts  some of them
    python -m scripts.tools.tutorials --notebooks notebooks  notebooks alone, nothing is run

A tutorial is a page of docs/tutorials/. Its Python blocks run one after the other in an empty folder. A ``text`` fence
after a block is filled with what the block prints; each picture that a block saves goes to docs/images/tutorials/.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .. import _cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/tutorials"
PICTURES = ROOT / "docs/images/tutorials"
BLOCK = re.compile(r"```python\n(.*?)```(\n\n```text\n.*?```)?", re.DOTALL)
SHOWN = re.compile(
    r"\n```text\n.*?```\n|\n!\[[^\]]*\]\([^)]*\)\n", re.DOTALL
)  # what a notebook shows by itself


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(
        prog="python -m scripts.tools.tutorials",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [page.stem for page in pages()]
    new.add_argument("--only", choices=names, nargs="+", metavar="NAME", help="default: all")
    new.add_argument(
        "--notebooks", type=Path, metavar="DIR", help="write notebooks into this folder, run nothing"
    )
    return new


def main() -> None:
    """Run the pages, or turn them into notebooks."""
    options = arguments().parse_args()
    chosen = [page for page in pages() if options.only is None or page.stem in options.only]
    if options.notebooks is not None:
        write_notebooks(chosen, options.notebooks)
        return
    import matplotlib

    matplotlib.use("Agg")
    for page in chosen:
        begin = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(shown(page, Path(folder)), encoding="utf-8")
        print(f"{page.stem}: {time.process_time() - begin:.0f} CPU seconds", flush=True)


def pages() -> list[Path]:
    """Return the tutorials."""
    return sorted(page for page in PAGES.glob("*.md") if page.stem != "index")


def shown(page: Path, folder: Path) -> str:
    """Run a page in a folder, keep its pictures, and return its text with the outputs filled in."""
    import matplotlib.pyplot as plt

    names: dict[str, Any] = {}

    def run(found: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(found[1], str(page), "exec"), names)
        text = f"\n\n```text\n{printed.getvalue().rstrip()}\n```" if found[2] else ""
        return f"```python\n{found[1]}```{text}"

    here = Path.cwd()
    os.chdir(folder)
    try:
        text = BLOCK.sub(run, page.read_text(encoding="utf-8"))
    finally:
        os.chdir(here)
        plt.close("all")
    PICTURES.mkdir(parents=True, exist_ok=True)
    for picture in folder.glob("*.png"):
        (PICTURES / picture.name).write_bytes(picture.read_bytes())
    return text


def write_notebooks(chosen: Iterable[Path], folder: Path) -> None:
    """Write each page as a notebook, without the outputs that running it will show."""
    import jupytext

    folder.mkdir(parents=True, exist_ok=True)
    for page in chosen:
        text = re.sub(
            r"\]\((?!http)(?:\.\./)*[^)]*?([\w#]+)\.md[^)]*\)", r"]", SHOWN.sub("\n", page.read_text("utf-8"))
        )
        notebook = jupytext.reads(text, fmt="md")
        notebook.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        for number, cell in enumerate(notebook.cells):
            cell["id"] = f"{page.stem}-{number}"  # the same each time
        jupytext.write(notebook, folder / f"{page.stem}.ipynb")


if __name__ == "__main__":
    _cli.run(main)
