"""Flights whose law is known, those of the Bureau of Transportation Statistics, and step lengths found by a search."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gpflow_ext as gpx
from scripts.experiments.sparse_ep import rivals
from scripts.shared import flights
from scripts.tools import flights as tool

EXPO = """\
Year,Month,DayofMonth,DayOfWeek,DepTime,ArrTime,UniqueCarrier,TailNum,AirTime,ArrDelay,Distance,Cancelled
2008,1,3,4,2003,2211,WN,N1 ,116,-14,810,0
2008,1,3,4,2400,5,WN,N1,NA,3,810,0
2008,4,30,3,2400,5,WN,N2,50,3,400,0
2008,5,1,4,800,900,WN,N1,50,3,400,0
2008,4,1,2,800,900,WN,unknown,50,3,400,0
2008,4,1,2,800,900,WN,N3,50,3,400,0
"""
BUREAU = """\
"YEAR","MONTH","DAY_OF_MONTH","DAY_OF_WEEK","TAIL_NUM","DEP_TIME","ARR_TIME","ARR_DELAY","AIR_TIME","DISTANCE",
2008,2,29,5,"N2","0930","1045",0.00,55.00,400.00,
"""
PLANES = "tailnum,type,year\nN1,Corporation,1998\nN2,Corporation,2008\nN3,Corporation,None\nN4\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "planes.csv").write_text(PLANES)
    (tmp_path / "2008.csv").write_text(EXPO)
    with zipfile.ZipFile(tmp_path / "2008_2.zip", "w") as archive:
        archive.writestr("On_Time.csv", BUREAU)
        archive.writestr("readme.html", "<html>")
    return tmp_path


def test_records_of_the_bureau_become_the_set_of_the_experiment(folder: Path, monkeypatch, capsys) -> None:
    out = folder / "data/airline_bts.csv.gz"
    files = [str(folder / name) for name in ("2008.csv", "2008_2.zip")]
    assert tool.main([*files, "--planes", str(folder / "planes.csv"), "--out", str(out)]) == 0
    assert "3 flights, 33.3% of them late" in capsys.readouterr().out
    found = pd.read_csv(out)
    assert list(found) == [*flights.ATTRIBUTES, "arr_delay", "y"]
    np.testing.assert_array_equal(
        found,
        [
            [1, 3, 4, 10, 116, 810, 1203, 1331, -14, 0],
            [4, 30, 3, 0, 50, 400, 1440, 5, 3, 1],
            [2, 29, 5, 0, 55, 400, 570, 645, 0, 0],
        ],
    )
    monkeypatch.setenv("GPFLOW_EXT_DATA", str(out.parent))
    split = gpx.datasets.load("airline_bts", test_fraction=0.34)
    assert split.train[0].shape[1] == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("2008.csv", EXPO.replace("AirTime", "Airborne")), "has no column for air_time"),
        (("planes.csv", PLANES.replace("year", "made")), "has no column year"),
        (
            ("2008.csv", EXPO.replace("2008,1,", "2008,9,").replace("2008,4,", "2008,9,")),
            "no flight of the months",
        ),
    ],
)
def test_what_is_missing_is_named(folder: Path, change: tuple[str, str], message: str, capsys) -> None:
    (folder / change[0]).write_text(change[1])
    assert (
        tool.main([str(folder / "2008.csv"), "--planes", str(folder / "planes.csv"), "--out", "unused"]) == 1
    )
    assert message in capsys.readouterr().err


def test_generated_flights_follow_their_law() -> None:
    found = flights.generated(200_000, seed=1)
    assert found.X.shape == (200_000, 8)
    again, other = flights.generated(200_000, seed=1), flights.generated(200_000)
    np.testing.assert_array_equal(found.X, again.X)
    np.testing.assert_array_equal(found.Y, again.Y)
    assert np.abs(found.X - other.X).max() > 0.0
    dates = pd.to_datetime(pd.DataFrame(found.X[:, :2], columns=["month", "day"]).assign(year=2008))
    np.testing.assert_array_equal(dates.dt.dayofweek + 1, found.X[:, 2])
    assert ((found.X[:, 6:] >= 0) & (found.X[:, 6:] < 1440)).all()
    Y, late = found.Y[:, 0], found.late
    for low in np.arange(0.0, 1.0, 0.1):  # within five standard errors in each tenth
        part = (late >= low) & (late < low + 0.1)
        if part.sum() > 100:
            error = np.sqrt((late * (1.0 - late))[part].mean() / part.sum())
            assert abs(Y[part].mean() - late[part].mean()) < 5.0 * error
    best = flights.best_scores(late)
    log = -np.log(np.where(Y > 0.5, late, 1.0 - late))
    assert log.mean() == pytest.approx(best["nll"], abs=5.0 * log.std() / np.sqrt(len(log)))
    wrong = (late > 0.5) != (Y > 0.5)
    assert wrong.mean() == pytest.approx(best["error"], abs=5.0 * wrong.std() / np.sqrt(len(log)))


@pytest.mark.parametrize(
    ("ends", "best"), [([0.5, 0.3, 0.4], 0.1), ([None, 0.6, 0.5], 1.0), ([None] * 3, 0.01)]
)
def test_a_step_length_is_chosen_by_rows_held_out_of_training(ends, best) -> None:
    train = (np.arange(100.0)[:, None], np.zeros([100, 1]))
    test = (np.arange(100.0, 120.0)[:, None], np.zeros([20, 1]))
    lengths, calls = (0.01, 0.1, 1.0), []

    def method(length, rest, judged, Z, budget):
        calls.append((length, rest[0].ravel(), judged[0].ravel(), budget))
        end = ends[lengths.index(length)]
        return {"nll": [end], **({"diverged": 1.0} if end is None else {})}

    record = rivals.tuned(method, lengths, train, test, None, 10.0)
    assert record["step_length"] == best
    assert record["search"] == [list(pair) for pair in zip(lengths, ends, strict=True)]
    *tried, last = calls
    assert last[0] == best
    assert last[3] == 10.0
    np.testing.assert_array_equal(last[2], test[0].ravel())
    for _, rest, judged, budget in tried:
        assert budget == 10.0 * rivals.SEARCH
        assert len(judged) == 10
        np.testing.assert_array_equal(np.sort(np.concatenate([rest, judged])), train[0].ravel())
