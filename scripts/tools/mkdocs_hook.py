"""What the pages of the guide use beside Markdown, for MkDocs (`make docs`) and for the tests.

Four fences are filled in when the site is built, so that nothing they show can go stale:

- ``source``: ``path: name`` shows a function, method or class of this repository without its docstring;
- ``quote``: ``page: beginning`` repeats the paragraph of another page that begins so, for numbers that a script wrote;
- ``table``: ``page: heading`` repeats the first table below that heading;
- ``section``: ``README.md: heading`` repeats what stands below that heading of the README, whose code the tests run.

Tutorials have their notebooks beside them, and a link of the site that leads nowhere ends the build.

Mathematics, $…$ and $$…$$, becomes MathML, which browsers show without scripts, fonts or a network.
"""

from __future__ import annotations

import ast
import html
import re
import textwrap
from pathlib import Path
from typing import Any

from scripts.tools import links, tutorials

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(source|quote|table|section)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BESIDE = re.compile(
    r"\[([^]]+)\]\((?:\.\./)*(saved_models/README\.md)\)"
)  # a link to what is no page of the site
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Fill in the fences, and name files beside the site in place of links; MkDocs calls it for each page."""
    text = BESIDE.sub(r"\1 (`\2`)", filled(markdown))
    if page is not None and page.file.src_uri.startswith("results/"):
        page.meta["search"] = {"boost": 0.2}  # a search finds the how-tos and models first
        records = ROOT / "docs" / Path(page.file.src_uri).with_suffix(".jsonl")
        if records.is_file():
            text += f"\n\nRaw records: [{records.name}]({records.name}).\n"
    if page is not None and page.file.src_uri in {
        f"tutorials/{tutorial.name}" for tutorial in tutorials.pages()
    }:
        link = f'<a href="{Path(page.file.src_uri).stem}.ipynb" download>This page as a notebook</a>'
        text = text.replace("\n\n", f"\n\n{link}\n\n", 1)
    return text


def on_post_build(config: Any, **_: Any) -> None:
    """Write the notebooks of the tutorials beside their pages, and look at all links of the site."""
    site = Path(config["site_dir"])
    tutorials.write_notebooks(tutorials.pages(), site / "tutorials")
    broken = links.broken(site)
    if broken:
        raise ValueError("Links lead nowhere:\n" + "\n".join(broken))


def on_page_content(content: str, **_: Any) -> str:
    """Turn the formulas into MathML; MkDocs calls it for each page."""
    return FORMULA.sub(lambda found: mathml(found[2], display=found[1] == "div"), content)


def filled(markdown: str) -> str:
    """Return the text of a page with its fences filled in.

    Raises
    ------
    ValueError
        For a name that does not exist.
    """
    kinds = {"source": _source_block, "quote": quotation, "table": table, "section": section}

    def fill(found: re.Match[str]) -> str:
        entries = [line.split(": ", 1) for line in found[2].strip().splitlines()]
        return "\n\n".join(kinds[found[1]](place, name) for place, name in entries)

    return FENCE.sub(fill, markdown)


def _source_block(path: str, name: str) -> str:
    return f'```python title="{path}: {name}"\n{source(path, name)}\n```'


def source(path: str, name: str) -> str:
    """Return the code of a function, method (``Class.method``) or class, without docstrings."""
    text = (ROOT / path).read_text(encoding="utf-8")
    node: Any = ast.parse(text)
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        node = next((n for n in ast.walk(node) if isinstance(n, kinds) and n.name == part), None)
        if node is None:
            raise ValueError(f"{path} has no {name}.")
    lines = text.splitlines()
    hidden = {line for inner in ast.walk(node) for line in _docstring_lines(inner)}
    begin = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    shown = [lines[n - 1] for n in range(begin, node.end_lineno + 1) if n not in hidden]
    return textwrap.dedent("\n".join(shown)).strip("\n")


def _docstring_lines(node: Any) -> range:
    if not isinstance(node, ast.FunctionDef | ast.ClassDef) or ast.get_docstring(node) is None:
        return range(0)
    return range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def quotation(page: str, beginning: str) -> str:
    """Return the paragraph of a page that begins so, as a quotation with its links made good."""
    for paragraph in _page(page).split("\n\n"):
        if paragraph.startswith(beginning):
            return "\n".join(f"> {line}" for line in paragraph.strip().splitlines())
    raise ValueError(f"docs/{page} has no paragraph that begins with {beginning!r}.")


def table(page: str, heading: str) -> str:
    """Return the first table below a heading of a page."""
    _, found, below = _page(page).partition(f"# {heading}\n")
    rows = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    if not found or rows is None:
        raise ValueError(f"docs/{page} has no table below {heading!r}.")
    return rows[0].rstrip()


def section(path: str, heading: str) -> str:
    """Return what stands below a heading of a file beside docs/, its links as seen from there."""
    _, found, below = (ROOT / path).read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    if not found:
        raise ValueError(f"{path} has no heading {heading!r}.")
    return below.partition("\n## ")[0].replace("](docs/", "](").strip()


def _page(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def mathml(formula: str, display: bool) -> str:
    r"""Return MathML for LaTeX between ``\(`` and ``\)`` or ``\[`` and ``\]``.

    Raises
    ------
    ValueError
        For a command that the converter does not know.
    """
    from latex2mathml.converter import convert

    tex = html.unescape(formula).strip()[2:-2].strip()
    result = convert(tex, display="block" if display else "inline")
    if "\\" in result:
        raise ValueError(f"A command of this formula is not known: {tex}")
    return result
