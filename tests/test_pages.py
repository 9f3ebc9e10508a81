"""The pages of results: each says what its records say, and every record says where it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.benchmarks import pictures, state_space
from scripts.shared import report
from scripts.tools import pages

RESULTS = pages.RESULTS
BEFORE_COMMITS = "2026-11-23"  # records of earlier days have none; their pages say so
RECORDS = sorted(RESULTS.glob("*.jsonl"))


def test_every_page_of_results_has_a_writer() -> None:
    assert {path.stem for path in RESULTS.glob("*.md")} == set(pages.WRITERS) - {"conformance"} | {"index"}


@pytest.mark.parametrize("name", pages.WRITERS)
def test_a_page_says_what_its_records_say(name: str) -> None:
    assert pages.path(name).read_text(encoding="utf-8").strip() == pages.written(name).strip(), (
        f"run python -m scripts.tools.pages {name}"
    )


@pytest.mark.parametrize("name", pages.WRITERS)
def test_a_page_shows_a_picture_that_is_there(name: str) -> None:
    if name in ("conformance", "journey", "lowering", "quick_forms", "benchmark_fits", "gpu"):
        pytest.skip("a table of programs or features; the picture of fits is on benchmarks.md")
    shown = [part.partition(")")[0] for part in pages.path(name).read_text(encoding="utf-8").split("](")[1:]]
    pictures = [target for target in shown if target.endswith(".png")]
    assert pictures
    assert all((RESULTS / picture).is_file() for picture in pictures)


@pytest.mark.parametrize(
    "name", ["gprn", "dual"]
)  # whose picture its writer places, and one that places its own
def test_a_page_of_another_name_shows_the_picture_beside_it(name: str, tmp_path: Path) -> None:
    page = tmp_path / "one_thread.md"
    records = (RESULTS / f"benchmark_{name}.jsonl").read_text(encoding="utf-8")
    page.with_suffix(".jsonl").write_text(records, encoding="utf-8")
    text = pictures.illustrated(pages.written(f"benchmark_{name}"), name, page)
    pictures.write(page, name)
    assert "](one_thread.png)" in text
    assert f"benchmark_{name}.png" not in text
    assert page.with_suffix(".png").is_file()


def test_a_page_without_targets_has_no_section_of_them() -> None:
    """The small sizes of `--quick` have none in some benchmarks."""
    where, *records = pages._records("benchmark_state_space")
    small = [{**record, "size": 300} for record in records if record["size"] == 1000]
    assert "Target" not in state_space.document(where["environment"], small)
    assert "## Targets" in state_space.document(where["environment"], records)


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [(0.0301, 2, "0.03"), (999.4, 3, "999"), (999.6, 3, "1,000"), (99.7, 2, "100"), (1746.7, 3, "1,747")],
)
def test_numbers_are_not_written_with_a_power_of_ten(value: float, digits: int, shown: str) -> None:
    assert report.number(value, digits) == shown


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_every_record_follows_a_machine_a_date_versions_and_a_commit(path: Path) -> None:
    where: dict | None = None
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        where = (
            record.get("environment")
            or record.get("where")
            or (record if "cpu" in record and "versions" in record else where)
        )
        assert where is not None, record
        assert {"cpu", "cores", "threads", "date", "versions", "python"} <= set(where)
        assert where.get("commit") or where["date"] < BEFORE_COMMITS
