"""The script that watches what is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.shared import every_class
from scripts.tools import soak, soak_classes


def _records(graphs: list[int], memory: list[float]) -> list[dict]:
    return [
        {"what": "fit", "done": n, "graphs": g, "in_use": m, "resident": 1000.0 * n, "files": 9}
        for n, (g, m) in enumerate(zip(graphs, memory, strict=True))
    ]


def _few() -> dict[str, every_class.Kind]:
    return {"GPflow's GPR": every_class.KINDS["GPflow's GPR"]._replace(rows=20)}


def _rounds() -> list[dict]:
    return list(soak_classes.watch(soak.watched, 3))


def test_a_model_that_is_kept_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_classes, "KINDS", _few())
    monkeypatch.setattr(soak_classes, "EXPORTS", 3)
    assert soak.flat(_rounds())
    kept, build = [], every_class.KINDS["GPflow's GPR"].build

    def keeping(X: object, Y: object) -> object:
        kept.append(build(X, Y))
        return kept[-1]

    leaking = {name: kind._replace(build=keeping) for name, kind in _few().items()}
    monkeypatch.setattr(soak_classes, "KINDS", leaking)
    assert not soak.flat(_rounds())


def test_growth_is_seen() -> None:
    assert soak.flat(_records([3, 3, 3, 3], [500.0, 600.0, 610.0, 613.0]))
    assert not soak.flat(_records([3, 3, 3, 4], [500.0, 600.0, 610.0, 613.0]))
    assert not soak.flat(_records([3, 3, 3, 3], [500.0, 600.0, 610.0, 616.0]))
    assert not soak.flat(_records([3, 5], [500.0, 500.0]))
    requests = [{"graphs": None, "resident": m, "files": 9} for m in (500.0, 600.0, 610.0, 613.0)]
    assert soak.flat(requests)
    assert not soak.flat([*requests, requests[-1] | {"resident": 620.0}])


@pytest.mark.slow
def test_a_short_run_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("--fits", "4", "--runs", "2", "--exports", "2", "--rounds", "2", "--requests", "60")
    monkeypatch.setattr(soak_classes, "KINDS", _few())
    soak.main([*few, "--out", str(tmp_path)])
    page = (tmp_path / "soak.md").read_text()
    assert "fit of VGPKMM" in page
    assert "| GPflow's GPR | 2 |" in page
    assert "| request | 60 | - |" in page
    assert len((tmp_path / "soak.jsonl").read_text().splitlines()) > 12


def test_open_files_are_watched() -> None:
    records = _records([3, 3, 3, 3], [500.0, 600.0, 610.0, 613.0])
    records[-1]["files"] += 1
    assert not soak.flat(records)


def test_what_a_server_tells_is_read() -> None:
    text = '# HELP x\nrequests_total{call="a b"} 3.0\nprocess_resident_memory_bytes 1.048576e+06\nprocess_open_fds 12.0\n'
    assert soak.told(text) == {"resident": 1.0, "files": 12}
