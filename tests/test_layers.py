"""The import rule: a module imports only from the floors below it; the leaves only from the ground floor."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "gpflow_ext"
FLOORS = [
    {
        "_version",
        "linalg",
        "seen_posterior",
        "special",
        "triangular",
        "logistic",
        "probit",
        "bounds",
        "bound_tables",
        "sites",
        "expansion",
        "moment_matching",
        "checks",
        "rows",
        "network",
        "outputs",
        "tensor_normal",
        "removal",
        "classes",
        "distribute",
        "stacked",
        "grids",
        "predictive",
    },
    {"likelihoods"},
    {"models"},
    {"inference"},
    {"mcmc"},
    {"recipes", "sklearn"},  # sklearn: the estimator, which sees models and recipes
]
LEAVES = {"citations", "datasets", "inducing", "metrics", "persistence", "plotting", "prediction", "progress"}
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}


def _imports(path: Path) -> set[str]:
    """Top-level modules of the package that a file imports."""
    package = path.relative_to(ROOT.parent).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level]) if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            if module[:1] == ["gpflow_ext"]:
                found |= {module[1]} if len(module) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.split(".")[1] for alias in node.names if alias.name.startswith("gpflow_ext.")
            }
    return found


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_come_from_below(path: Path) -> None:
    own = path.relative_to(ROOT).with_suffix("").parts[0]
    assert own in FLOOR or own in LEAVES, f"{own} has no floor: add it to FLOORS or LEAVES"
    for name in _imports(path) - {own}:
        if own in LEAVES:
            assert FLOOR.get(name) == 0, f"the leaf {own} imports {name}"
        elif own not in FLOORS[-1]:  # the top floor sees models, engines and leaves
            assert FLOOR.get(name, 99) <= FLOOR[own], f"{own} imports {name}, which is not below it"
            assert not (own == "inference" and name == "models"), "engines never see a model's inside"


def test_no_file_is_long() -> None:
    long = {path.name: n for path in FILES if (n := len(path.read_text(encoding="utf-8").splitlines())) > 350}
    assert not long


def test_import_is_light() -> None:
    """Where they are installed, GPflow and Keras import matplotlib and scikit-learn themselves."""
    heavy = "names = {'matplotlib', 'sklearn', 'arviz', 'pandas', 'gpflow_ext.sklearn'}; heavy = lambda: names & set(sys.modules)"
    code = (
        f"import sys, gpflow; {heavy}; before = heavy(); import gpflow_ext; print(sorted(heavy() - before))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]", out.stderr
