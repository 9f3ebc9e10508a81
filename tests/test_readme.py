"""Every Python block of the README runs, one after the other, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import examples
import pytest

import gpflow_ext as gpx

README = Path(__file__).parent.parent / "README.md"


def test_readme_examples_run(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("sklearn", reason="the README loads a set that scikit-learn bundles")
    assert len(examples.BLOCK.findall(README.read_text(encoding="utf-8"))) >= 4
    names = examples.run(README, tmp_path, monkeypatch, capsys)
    assert "nlpd" in names["shown"]
    assert "probabilities" in names["shown"]
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
    for target in re.findall(r"\]\(((?!http)[^)]+)\)", text):
        assert (README.parent / target).exists(), target
    for path in set(re.findall(r"scripts/[a-z_0-9/]+\.py", text)):
        assert (README.parent / path).is_file(), path
    assert not examples.missing_programs(text)
