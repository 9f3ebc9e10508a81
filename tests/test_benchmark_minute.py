"""The benchmark of 5,000 rows: its problems, and verdicts that come from the figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scripts.benchmarks import minute


def _record(model: str, seconds: float, cpu: float, nlpd: float) -> dict[str, Any]:
    where = {"table": "drawn levels", "task": "ordinal", "rows": 5000, "model": model}
    return {**where, "seconds": seconds, "cpu": cpu, "nlpd": nlpd}


@pytest.mark.parametrize(("name", "classes"), [("drawn levels", 5), ("drawn classes", 4)])
def test_the_drawn_problems_have_all_classes_in_both_parts(name: str, classes: int) -> None:
    part = minute.DRAWN[name](200)
    assert part.X.shape == (200, 8)
    assert len(part.X_test) == len(part.Y_test) == minute.TEST
    assert set(np.unique(part.Y)) == set(np.unique(part.Y_test)) == set(range(classes))


def test_a_fit_is_judged_by_its_seconds_and_beside_the_linear_model() -> None:
    records = [
        _record("GPOrdinal", 50.0, 70.0, 1.1),
        _record("SparseEP", 90.0, 80.0, 1.5),
        _record("linear", 0.1, 0.1, 1.4),
    ]
    assert [met for *_, met in minute.verdicts(records)] == ["yes", "yes", "no", "no"]
    page = minute.text([*records, {"table": "MNIST", "model": "linear", "failed": "ValueError: none"}])
    assert "| drawn levels | GPOrdinal | 50 | 70 | 1.100 | – |" in page
    assert "| MNIST | linear | – | – | – | ValueError: none |" in page
