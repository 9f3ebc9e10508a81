"""The tutorials: each runs in a short form, whole it prints what it shows; each becomes a notebook."""

from __future__ import annotations

import json
import re
from pathlib import Path

import examples
import pytest

from scripts.tools import tutorials

PAGES = tutorials.pages()


def _id(page: Path) -> str:
    return page.stem


def test_there_are_seven() -> None:
    assert len(PAGES) == 7
    index = (tutorials.PAGES / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\((\w+)\.md\)", index)) == {page.stem for page in PAGES}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_whole_it_prints_what_it_shows(page, tmp_path, monkeypatch, capsys) -> None:
    _needs(page)
    examples.run(page, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_it_runs_in_short(page, tmp_path, monkeypatch, capsys) -> None:
    _needs(page)
    names = examples.run(page, tmp_path, monkeypatch, capsys, short=True)
    assert names["shown"]
    drawn = {picture.name for picture in tmp_path.glob("*.png")}
    assert drawn == set(re.findall(r"images/tutorials/(\w+\.png)", page.read_text(encoding="utf-8")))


def test_notebooks_hold_the_code_of_the_pages(tmp_path) -> None:
    pytest.importorskip("jupytext", reason="the extra docs")
    tutorials.write_notebooks(PAGES, tmp_path)
    for page in PAGES:
        cells = json.loads((tmp_path / f"{page.stem}.ipynb").read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        blocks = [block.rstrip("\n") for block, _ in examples.BLOCK.findall(page.read_text(encoding="utf-8"))]
        assert code == blocks
        prose = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        assert not re.search(r"\.md\)|\.png\)|```", prose)


def _needs(page: Path) -> None:
    pytest.importorskip("matplotlib", reason="the tutorials draw").use("Agg")
    pytest.importorskip("sklearn", reason="the tutorials load sets that scikit-learn bundles")
    if page.stem == "served":
        pytest.importorskip("uvicorn", reason="the extra serve")
