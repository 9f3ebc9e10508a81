"""The packages of scripts/ use each other by ordinary imports, and only from floors below."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
BELOW = {
    "shared": set(),
    "experiments": {"shared"},
    "benchmarks": {"experiments", "shared"},
    "device": {"benchmarks", "experiments", "shared"},
    "tools": {"benchmarks", "device", "experiments", "shared"},
}
MODULES = sorted(path.relative_to(SCRIPTS) for path in SCRIPTS.glob("*/**/*.py"))


def _imported(module: Path) -> set[str]:
    """Return the packages, and the commands, of scripts/ that a module imports relatively."""
    found = set()
    for node in ast.walk(ast.parse((SCRIPTS / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == len(module.parts):
            found |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_packages_import_from_below(module: Path) -> None:
    commands = {path.stem for path in SCRIPTS.glob("*.py")}
    assert _imported(module) - commands <= BELOW[module.parts[0]]


def test_every_package_is_ordered_and_has_its_imports() -> None:
    assert {module.parts[0] for module in MODULES} == set(BELOW)
    assert {path.parent for path in MODULES} == {
        path.parent for path in MODULES if path.name == "__init__.py"
    }
    assert _imported(Path("benchmarks/sgpmc_page.py")) == {"experiments", "shared"}


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("benchmarks.__main__", ["kmm", "--repeats", "0"]),
        ("benchmarks.__main__", ["kmm", "--cap", "0"]),
        ("benchmarks.__main__", ["kmm", "--sizes", "0"]),
        ("benchmarks.__main__", ["kmm", "--threads", "0"]),
        ("benchmarks.auto", ["--threads", "0"]),
        ("benchmarks.defaults", ["--splits", "0"]),
        ("experiments.gprn.__main__", ["--seeds", "0"]),
        ("experiments.robustmax.__main__", ["--steps", "0"]),
        ("experiments.sgpmc.__main__", ["--draws", "0"]),
        ("experiments.sparse_ep.__main__", ["--budget", "0"]),
        ("experiments.sparse_ep.__main__", ["--workers", "0"]),
        ("tools.check", ["--seconds", "0"]),
        ("tools.soak", ["--fits", "0"]),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_zero_is_refused_and_not_taken_for_the_default(
    program: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"scripts.{program}")
    parser = getattr(module, "arguments", None) or module.parser
    with pytest.raises(SystemExit):
        parser().parse_args(arguments)
    assert f"argument {arguments[-2]}: '0' is not a" in capsys.readouterr().err


def test_no_file_is_long() -> None:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SCRIPTS.rglob("*.py")}
    assert max(sizes.values()) <= 350, max(sizes, key=sizes.__getitem__)
