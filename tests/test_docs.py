"""The guide: its examples run and print what it shows, and all that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import examples
import pytest

from scripts.tools import links, mkdocs_hook

ROOT = Path(__file__).parent.parent


PAGES = sorted((ROOT / "docs").rglob("*.md"))
EXECUTED = [  # test_readme.py runs serving.md, which needs the zoo beside it, and test_tutorials.py the tutorials
    page
    for page in PAGES
    if page.name != "serving.md"
    and page.parent.name != "tutorials"
    and examples.BLOCK.search(page.read_text(encoding="utf-8"))
]


OFTEN = {"gpflow", "extend", "resume", "priors"}  # how-tos that take a second or two; the others take turns


def _id(page: Path) -> str:
    return str(page.relative_to(ROOT / "docs"))


def _marked(page: Path) -> object:
    slow = page.parent.name == "howto" and page.stem not in OFTEN
    return pytest.param(page, id=_id(page), marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("page", map(_marked, EXECUTED))
def test_examples_run_and_print_what_is_shown(page, tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("sklearn", reason="the guide loads sets that scikit-learn bundles")
    examples.run(page, tmp_path, monkeypatch, capsys)


def test_every_model_has_an_executed_page() -> None:
    assert {page.stem for page in EXECUTED if page.parent.name == "models"} == {
        "vgp_kmm",
        "sparse_ep",
        "svgp_robustmax",
        "sgpmc_freeform",
        "gprn_tensor",
        "review",
        "state_space",
        "vecchia",
        "grids",
        "images",
    }


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_pages_name_only_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    mkdocs_hook.filled(text)  # raises for code, paragraphs or tables that are not there
    for target in re.findall(r"\]\(((?!http|#)[^)#]+)[^)]*\)", text):
        assert (page.parent / target).exists(), target
    for path in set(re.findall(r"(?:scripts|tests|gpflow_ext)/[a-z_0-9/]+\.py", text)):
        assert (ROOT / path).is_file(), path
    assert not examples.missing_programs(text)
    for module in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE):
        assert _defines(module), module


def test_symbols_are_in_the_files_that_the_table_names() -> None:
    rows = re.findall(r"^\|.*\|(.*)\|(.*)\|$", (ROOT / "docs/symbols.md").read_text("utf-8"), re.MULTILINE)
    checked = 0
    for names, places in rows:
        files = re.findall(r"`([\w/]+\.py)`", places)
        source = "".join((ROOT / "gpflow_ext" / file).read_text(encoding="utf-8") for file in files)
        for name in re.findall(r"`([\w.]+)`", names) if files else ():
            for part in name.split("."):
                assert part == "likelihood" or re.search(rf"\b{part}\b", source), f"{name} is not in {files}"
                checked += 1
    assert checked > 40


def test_the_code_points_to_the_derivations_that_there_are() -> None:
    page = (ROOT / "docs/derivations.md").read_text(encoding="utf-8")
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "gpflow_ext").rglob("*.py"))
    pointers = set(re.findall(r"docs/derivations\.md,\s+section\s+(\d+)", code))
    assert pointers == set(re.findall(r"^## (\d+)\. ", page, re.MULTILINE))
    assert len(pointers) > 5


def test_links_of_a_site_that_lead_nowhere_are_found(tmp_path) -> None:
    (tmp_path / "there.html").write_text('<h1 id="top"></h1>', encoding="utf-8")
    targets = ("there.html", "there.html#top", "gone.html", "there.html#gone", "https://example.org/gone")
    page = "".join(f'<a href="{target}"></a>' for target in targets) + '<img src="gone.png">'
    (tmp_path / "index.html").write_text(page, encoding="utf-8")
    assert links.broken(tmp_path) == [
        f"index.html: {link}" for link in ("gone.html", "there.html#gone", "gone.png")
    ]


def test_missing_names_are_refused() -> None:
    for fence in (
        "source\ngpflow_ext/sites/algebra.py: nothing",
        "quote\nresults/kmm.md: None",
        "table\nindex.md: None",
        "section\nREADME.md: None",
    ):
        with pytest.raises(ValueError, match="has no"):
            mkdocs_hook.filled(f"```{fence}\n```")


def test_formulas_become_mathml() -> None:
    pytest.importorskip("latex2mathml", reason="the extra docs")
    content = (
        r'<p><span class="arithmatex">\(a &lt; \frac{1}{2}\)</span></p><div class="arithmatex">\[x^2\]</div>'
    )
    shown = mkdocs_hook.on_page_content(content)
    assert shown.count("<math") == 2
    assert "<mfrac>" in shown
    assert "arithmatex" not in shown
    with pytest.raises(ValueError, match="not known"):
        mkdocs_hook.mathml(r"\(\nosuchcommand\)", display=False)


def test_text_is_compared_up_to_small_differences_of_numbers() -> None:
    assert examples.alike("error 0.101\n", "error 0.1\n")
    assert not examples.alike("error 0.2\n", "error 0.1\n")
    assert not examples.alike("done\n", "failed\n")


def _defines(name: str) -> bool:
    """Tell whether a dotted name is a module of the package or something that one defines at its top."""
    path = ROOT.joinpath(*name.split("."))
    if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
        return True
    folder = path.parent
    file = folder.with_suffix(".py") if folder.with_suffix(".py").is_file() else folder / "__init__.py"
    return file.is_file() and any(
        getattr(node, "name", None) == path.name for node in ast.parse(file.read_text(encoding="utf-8")).body
    )
