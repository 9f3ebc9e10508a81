"""The script that watches what is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.tools import soak


def _records(graphs: list[int], memory: list[float]) -> list[dict]:
    return [
        {"what": "fit", "done": n, "graphs": g, "memory": m}
        for n, (g, m) in enumerate(zip(graphs, memory, strict=True))
    ]


def test_growth_is_seen() -> None:
    assert soak.flat(_records([3, 3, 3, 3], [500.0, 600.0, 610.0, 613.0]))
    assert not soak.flat(_records([3, 3, 3, 4], [500.0, 600.0, 610.0, 613.0]))
    assert not soak.flat(_records([3, 3, 3, 3], [500.0, 600.0, 610.0, 616.0]))
    assert not soak.flat(_records([3, 5], [500.0, 500.0]))


@pytest.mark.slow
def test_a_short_run_writes_its_page(tmp_path: Path) -> None:
    soak.main(["--fits", "4", "--out", str(tmp_path)])
    assert "fit of VGPKMM" in (tmp_path / "soak.md").read_text()
    assert len((tmp_path / "soak.jsonl").read_text().splitlines()) > 8
