"""Every Python block of the README runs, one after the other, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gpflow_ext as gpx

README = Path(__file__).parent.parent / "README.md"


def test_readme_examples_run(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("sklearn", reason="the README loads a set that scikit-learn bundles")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    shown = capsys.readouterr().out
    assert "nlpd" in shown
    assert "probabilities" in shown
    assert names["result"].status is gpx.Status.CONVERGED


def test_serving_guide_runs(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("sklearn", reason="the guide loads a set that scikit-learn bundles")
    pytest.importorskip("tf2onnx", reason="needs the extra onnx")
    (tmp_path / "saved_models").mkdir()
    zoo = README.parent / "saved_models"
    (tmp_path / "saved_models" / "wine_sparse_ep").symlink_to(zoo / "wine_sparse_ep")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for path in (README.parent / "docs" / "serving.md", zoo / "README.md"):
        for block in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL):
            exec(compile(block, str(path), "exec"), names)
    shown = capsys.readouterr().out
    assert "class_" in shown
    assert "array(" in shown


def test_readme_names_only_what_exists() -> None:
    text = README.read_text(encoding="utf-8")
    package = README.parent / "gpflow_ext"
    for path in set(re.findall(r"`([a-z_0-9/]+\.py)`", text)):
        assert (package / path).is_file() or (README.parent / path).is_file(), path
    for image in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (README.parent / image).is_file()
