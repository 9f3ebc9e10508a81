"""No code comes out of a file, nothing temporary stays."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpflow_ext.persistence import manifest

ROOT = Path(__file__).resolve().parents[1]
CODE = [*ROOT.glob("gpflow_ext/**/*.py"), *ROOT.glob("scripts/**/*.py")]
EXECUTES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml"}
RUNS = {"eval", "exec", "__import__"}
OWN = {"scripts/tools/tutorials.py": ["exec"]}  # of the code blocks of the guide


def offences(source: str) -> list[str]:
    """Imports and calls by which a file could bring code with it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            )
            found += [name for name in names if name.split(".")[0] in EXECUTES]
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if isinstance(node.func, ast.Name) and name in RUNS:
                found.append(name)
            allowed = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg == "allow_pickle"}
            if any(allowed.values()) or (name == "load_model"):
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unpickled(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8")) == OWN.get(path.relative_to(ROOT).as_posix(), [])


@pytest.mark.parametrize(
    "source", ["import pickle", "from joblib import load", "np.load(p, allow_pickle=True)", "eval(text)"]
)
def test_what_would_be_found(source: str) -> None:
    assert offences(source)


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch) -> None:
    path = tmp_path / "manifest.json"
    manifest.write_text(path, "old")

    def interrupt(*_) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(manifest.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        manifest.write_text(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["manifest.json"]
