"""The reader of tables: what columns hold is found out or asked for, all problems come at once, nothing is silent."""

from __future__ import annotations

import bz2
import datetime
import importlib.util
import itertools
import json
import lzma
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from problems import raw_parts

from gpflow_ext.data.datasets import TableError, load
from gpflow_ext.data.reading import cells, dates, units
from gpflow_ext.data.reading.text import read_text
from gpflow_ext.data.reading.treatment import Treatment

ROWS = range(1, 31)
MESSY = "id;price;when;colour;size;gap;const;y\n" + "\n".join(
    f"k{i};{i},{i % 10};{1 + i % 28:02d}.{1 + i % 12:02d}.2021;{('red', 'blue')[i % 2]};{'SML'[i % 3]};"
    f"{'NA' if i % 7 == 0 else 2 * i};x;{i % 2}"
    for i in ROWS
)
ASKED = {"drop": ["id"], "categories": {"size": ["S", "M", "L"]}, "missing": "mean"}


def problems(path, **options):
    with pytest.raises(TableError) as caught:
        load(path, **options)
    return caught.value


def whole(path, **options):
    """All rows in their order, in the units of the table, and the split."""
    split = load(path, **{"standardise": False, "test_fraction": 0.0, **options})
    X, Y = raw_parts(split)
    return X, Y, split


def test_a_messy_table_becomes_numbers_with_a_note_on_each_step(write):
    X, Y, split = whole(write(MESSY), **ASKED)
    assert split.feature_names == (
        "price", "when", "colour=blue", "colour=red", "size", "gap", "gap is missing"
    )  # fmt: skip
    days = [datetime.date(2021, 1 + i % 12, 1 + i % 28) for i in ROWS]
    gaps = np.array([i % 7 == 0 for i in ROWS])
    twice = 2.0 * np.array(ROWS)
    expected = {
        "price": [i + (i % 10) / 10 for i in ROWS],
        "when": [(day - min(days)).days for day in days],
        "colour=blue": [i % 2 for i in ROWS],
        "size": [i % 3 for i in ROWS],
        "gap": np.where(gaps, twice[~gaps].mean(), twice),
        "gap is missing": gaps,
    }
    for name, column in expected.items():
        np.testing.assert_allclose(X[:, split.feature_names.index(name)], column, rtol=1e-15, err_msg=name)
    np.testing.assert_array_equal(Y[:, 0], [i % 2 for i in ROWS])
    for note in (
        "column id was dropped as asked",
        "column price was read as numbers with a decimal comma",
        f"column when was read as dates (dmy), in days since {min(days)}",
        "column colour was encoded as 2 columns of 0 and 1, one per level",
        "column const holds 'x' alone and is kept out of the inputs",
        "target 'y' takes 2 values: the task is binary",
    ):
        assert note in split.notes


def test_raw_rows_become_the_inputs_that_the_model_was_trained_on(write):
    path = write(MESSY)
    split = load(path, **ASKED)
    frame = pd.read_csv(path, sep=";", dtype=str, keep_default_na=False)
    by_row = frame.to_dict("records")
    for rows in (frame, by_row, frame.to_dict("list")):
        X = split.inputs(rows)
        for (part, _), chosen in zip(split, split.rows, strict=True):
            np.testing.assert_array_equal(X[chosen], part)
    np.testing.assert_array_equal(split.inputs(by_row[3]), split.inputs(by_row)[3:4])


def test_what_a_raw_row_may_hold_at_the_end(write):
    """Unknown levels, texts that are no dates, gaps: the same rule for each, whatever the table."""
    treatment = load(write(MESSY), **ASKED).treatment
    good = {"price": 1.5, "when": "02.02.2021", "colour": "red", "size": "M", "gap": 3}
    names = treatment.input_names

    def inputs(**changed):
        return dict(zip(names, treatment.inputs({**good, **changed})[0], strict=True))

    assert inputs(colour="green")["colour=red"] == inputs(colour="green")["colour=blue"] == 0.0
    assert np.isnan(inputs(size="XL")["size"])
    assert np.isnan(inputs(when="31.02.2021")["when"])
    [gap] = [column for column in treatment.columns if column.name == "gap"]
    assert inputs(gap=None)["gap"] == inputs(gap="n/a")["gap"] == inputs(gap=np.nan)["gap"] == gap.fill[0]
    assert [inputs(gap=value)["gap is missing"] for value in (None, "?", 4)] == [1.0, 1.0, 0.0]
    [colour] = [column for column in treatment.columns if column.name == "colour"]
    assert (inputs(colour=" ")["colour=blue"], inputs(colour="")["colour=red"]) == colour.fill
    assert inputs(price="1.234,5")["price"] == 1234.5
    for day in (datetime.date(2021, 2, 2), pd.Timestamp("2021-02-02"), np.datetime64("2021-02-02")):
        assert inputs(when=day)["when"] == inputs()["when"]
    with pytest.raises(TableError, match="row 0, column 'price': 'dear' is not a number"):
        inputs(price="dear")
    with pytest.raises(
        TableError, match="the columns colour, gap are not there; there are price, when, size"
    ):
        treatment.inputs({key: [good[key]] for key in ("price", "when", "size")})


def test_a_missing_level_is_no_level(write):
    path = write("a,y\n" + "".join(f"{('u', 'v', 'NA')[i % 3]},{i / 7}\n" for i in range(9)))
    assert (
        "3 values are missing in 3 rows (columns: a), the first in line 4, column 'a'"
        in problems(path).problems[0].what
    )
    split = whole(path, missing="drop")[2]
    assert split.feature_names == ("a=u", "a=v")
    assert np.isnan(split.inputs([{"a": "NA"}])).all()
    np.testing.assert_array_equal(split.inputs([{"a": "w"}]), [[0.0, 0.0]])
    np.savez(path.with_suffix(".npz"), X=np.arange(6.0)[:, None], y=np.arange(6.0))
    with pytest.raises(ValueError, match="was read from arrays"):
        load(path.with_suffix(".npz")).inputs([{"a": 1}])


def test_all_problems_come_at_once_and_each_remedy_mends_its_own(write):
    text = "id,when,level,empty,gap,y\n" + "".join(
        f"k{i},{1 + i % 12:02d}/{1 + i % 11:02d}/2020,{'ten' if i == 3 else i},,{'' if i == 5 else i},{i / 3}\n"
        for i in ROWS
    )
    path = write(text)
    error = problems(path)
    assert [(problem.column, problem.rows) for problem in error.problems] == [
        ("id", ()),
        ("when", (0,)),
        ("level", (2,)),
        ("empty", ()),
        ("gap", (4,)),
    ]
    assert str(error).startswith("data.csv has 5 problems:\n- column 'id' holds text, such as 'k1'")
    spelled = error.said(lambda remedy: f"--{remedy.argument} …")
    assert "pass --drop … or --one_hot …" in spelled
    assert "=[" not in spelled
    for choice in (0, -1):  # the first remedies, and the last
        options = {"drop": [], "one_hot": [], "dates": {}}
        for problem in error.problems:
            argument, value = problem.remedies[choice]
            if isinstance(value, list):
                options[argument] += value
            elif isinstance(value, dict):
                options[argument] |= value
            else:
                options[argument] = value
        options |= {"drop": [*options["drop"], *options.pop("one_hot")]}  # 30 levels in 30 rows teach nothing
        assert load(path, **options).train[0].shape[0] > 0
    assert pickle.loads(pickle.dumps(error)).problems == error.problems


@pytest.mark.parametrize(
    ("written", "options", "values"),
    [
        (["1,5", "2", "-3,25"], {}, [1.5, 2.0, -3.25]),
        (["1.234,5", "2,5", "1.000"], {}, [1234.5, 2.5, 1000.0]),
        (["1,234.5", "12", "1,000"], {}, [1234.5, 12.0, 1000.0]),
        (["1,234", "2,000", "3"], {"decimal": ","}, [1.234, 2.0, 3.0]),
        (["1,234", "2,000", "3"], {"decimal": "."}, [1234.0, 2000.0, 3.0]),
        (["1e-3", " +2 ", ".5"], {}, [1e-3, 2.0, 0.5]),
        (["1.234", "999", "12.345"], {}, [1.234, 999.0, 12.345]),
        (["1.234", "999", "12.345"], {"decimal": "."}, [1.234, 999.0, 12.345]),
        (["1.234", "999", "12.345"], {"decimal": ","}, [1234.0, 999.0, 12345.0]),
        (["1.234", "0.999", "12.345"], {"decimal": ","}, [1.234, 0.999, 12.345]),
    ],
)
def test_marks_before_decimals(write, written, options, values):
    rows = "".join(f'"{cell}",{i / 7}\n' for i, cell in enumerate(written))
    X, _, split = whole(write("a,y\n" + rows), **options)
    np.testing.assert_array_equal(X[:, 0], values)
    noted = any(note.startswith("column a was read as numbers with") for note in split.notes)
    assert noted == ("," in "".join(written) or max(values) > 1e4)


def test_a_point_among_decimal_commas_is_refused_unless_it_is_told(write):
    rows = [("1.234", "1,5"), ("999", "2,5"), ("12.345", "3,5")]
    for name, header, line in (
        ("inputs.csv", "a;b;y", "{a};{b};{n}"),
        ("targets.csv", "b;n;y", "{b};{n};{a}"),
    ):
        table = write(
            header + "\n" + "\n".join(line.format(a=a, b=b, n=n) for n, (a, b) in enumerate(rows)), name
        )
        [problem] = problems(table).problems
        assert "the point of '1.234' may stand before decimals or between thousands" in problem.what
        for decimal, values in ((",", [1234.0, 999.0, 12345.0]), (".", [1.234, 999.0, 12.345])):
            X, Y, _ = whole(table, decimal=decimal)
            np.testing.assert_array_equal((X if name == "inputs.csv" else Y)[:, 0], values)
            np.testing.assert_array_equal(X[:, 1 if name == "inputs.csv" else 0], [1.5, 2.5, 3.5])
    alone = "\n".join(f"{a};{n}" for n, (a, _) in enumerate(rows))
    assert "the point of" in problems(write("a;y\n" + alone, "alone.csv")).problems[0].what
    beside = "\n".join(f"{a};{n}.5;{n}" for n, (a, _) in enumerate(rows))
    np.testing.assert_array_equal(
        whole(write("a;b;y\n" + beside, "points.csv"))[0][:, 0], [1.234, 999.0, 12.345]
    )


def test_a_comma_that_could_be_either_is_refused_unless_the_table_shows_it(write):
    rows = [("1,234", "1,5", 1), ("2,345", "2,5", 2), ("3,456", "3,5", 4)]
    alone = write("a,y\n" + "".join(f'"{a}",{y}\n' for a, _, y in rows))
    [problem] = problems(alone).problems
    assert {remedy.value for remedy in problem.remedies} == {",", "."}
    assert "'1,234' may stand before decimals or between thousands" in problem.what
    beside = write("a,b,y\n" + "".join(f'"{a}","{b}",{y}\n' for a, b, y in rows), "beside.csv")
    np.testing.assert_array_equal(whole(beside)[0][:, 0], [1.234, 2.345, 3.456])
    european = write("a;y\n" + "".join(f"{a};{y}\n" for a, _, y in rows), "european.csv")
    np.testing.assert_array_equal(whole(european)[0][:, 0], [1.234, 2.345, 3.456])
    targets = write("x,y\n" + "".join(f'{y},"{a}"\n' for a, _, y in rows), "targets.csv")
    assert "may stand before" in problems(targets).problems[0].what
    np.testing.assert_array_equal(whole(targets, decimal=".")[1][:, 0], [1234.0, 2345.0, 3456.0])


def test_a_zero_before_a_comma_tells_that_decimals_follow(write):
    """No thousands have one in front: not in that column, and so not in another of the table."""
    rows = [("1,234", "-0,068", "0,125"), ("2,345", "12,345", "3,250"), ("3,456", "1,000", "2,875")]
    table = write("a,b,y\n" + "".join(f'"{a}","{b}","{y}"\n' for a, b, y in rows))
    X, Y, _ = whole(table)
    np.testing.assert_array_equal(X, [[1.234, -0.068], [2.345, 12.345], [3.456, 1.0]])
    np.testing.assert_array_equal(Y[:, 0], [0.125, 3.25, 2.875])


def test_columns_in_doubt_are_read_once(write, monkeypatch):
    """Numbers with commas and a unit, which stood open in all columns, were stripped anew for each of them."""
    calls, unit = [], units._unit
    monkeypatch.setattr(units, "_unit", lambda cell: calls.append(cell) or unit(cell))
    lines = "".join(";".join([f"{n},{234 + n} kg"] * 8) + f";{n}\n" for n in range(1, 6))
    X, _, _ = whole(write("a;b;c;d;e;f;g;h;y\n" + lines))
    np.testing.assert_allclose(X[:, 7], [1.235, 2.236, 3.237, 4.238, 5.239])
    assert len(calls) <= 2 * 6 * 9  # of five rows and a look at the first, for the table and for its column


def test_points_and_commas_before_decimals_do_not_go_together(write):
    [problem] = problems(write('a,y\n"1,5",0.5\n2.5,1.5\n3,2.5\n')).problems
    assert "'1,5' is not a number" in problem.what


def test_one_table_in_every_dialect_is_one_table(tmp_path):
    """Separators, decimal marks, orders of dates, endings of lines: the same inputs, to the last digit."""
    rng = np.random.default_rng(0)
    numbers, days = rng.normal(size=40).tolist(), rng.integers(700_000, 740_000, 40)
    first = None
    for separator, decimal, order, end in itertools.product(",;\t|", ".,", dates.ORDERS, ("\n", "\r\n")):
        lines = [separator.join(("number", "day", "y"))]
        for i, (number, day) in enumerate(zip(numbers, days, strict=True)):
            cells_ = [
                repr(number).replace(".", decimal),
                dates.written(datetime.date.fromordinal(int(day)), order),
            ]
            lines.append(separator.join([*(f'"{cell}"' for cell in cells_), str(i % 2)]))
        (tmp_path / "data.csv").write_bytes(end.join(lines).encode())
        X, Y, _ = whole(tmp_path / "data.csv")
        first = (X, Y) if first is None else first
        np.testing.assert_array_equal(X, first[0])
        np.testing.assert_array_equal(Y, first[1])
    np.testing.assert_array_equal(first[0][:, 0], numbers)
    np.testing.assert_array_equal(first[0][:, 1], days - days.min())


CELLS = [
    *["0", "1", "2.5", "-1e3", "1,5", "1.234,5", "1_0", "0x10", "1e400", "+", "NA", "nan", "inf", "?", "red", "blue", "S", "True", "é", "١", "2020-01-01", "03/04/2020"],
    "31.12.2020", "x y", '"a,b"', '"q""q"', "", " ", "\x00", "1;2", "a|b", "\t",
]  # fmt: skip
LIKE = [["1", "3.5", "-1e3"], ["1,5", "2,5", "7"], ["red", "blue"], ["2020-01-01", "2021-02-03"], CELLS]


def test_any_text_ends_in_finite_arrays_or_in_words(tmp_path):
    """Of 300 tables at random: what loads is finite, and its raw rows become it again; the others say why."""
    rng, loaded = random.Random(0), 0
    for _ in range(300):
        mark, rows = rng.choice(",;\t|"), rng.randint(0, 12)
        pools = [rng.choice([*LIKE, rng.sample(CELLS, 3)]) for _ in range(rng.randint(1, 4))]
        pools.append(rng.choice([["0", "1"], ["0", "1", "2.5"], CELLS]))
        columns = [[rng.choice(pool) for _ in range(rows)] for pool in pools]
        header = [*(f"c{number}" for number in range(len(pools) - 1)), rng.choice(["y", "y", "c0", ""])]
        lines = [mark.join(header), *(mark.join(row) for row in zip(*columns, strict=True))]
        path = tmp_path / "data.csv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
        options = {"missing": rng.choice(["error", "drop", "mean"]), "decimal": rng.choice([None, ",", "."])}
        try:
            split = load(path, task=rng.choice([None, "binary", "counts", "ordinal"]), **options)
        except ValueError:
            continue
        loaded += 1
        table = read_text(path)
        again = split.inputs(dict(zip(table.names, table.columns, strict=True)))
        for (X, Y), chosen in zip(split, split.rows, strict=True):
            assert np.isfinite(X).all()
            assert np.isfinite(Y).all()
            np.testing.assert_array_equal(again[chosen], X)
    assert loaded > 10


@pytest.mark.parametrize("cell", ["1_0", "0x10", "\u0661", "1,5.2", "1.5,2,3", "1 000", "--1", "1.5.2"])
def test_what_is_no_number_does_not_become_one(write, cell):
    [problem] = problems(write(f'a,y\n1,0.5\n"{cell}",1.5\n3,2.5\n')).problems
    assert (problem.column, problem.rows) == ("a", (1,))
    assert f"line 3, column 'a': {cell!r} is not a number" in problem.what


@pytest.mark.parametrize("cell", ["1 234,5", "1\u202f234", "1'234.50"])
def test_spaces_between_thousands_do_not_make_words(write, cell):
    path = write("a;y\n" + "".join(f"{i}{cell};{i}{cell[:5]}\n" for i in range(1, 9)))
    for problem, remedies in zip(problems(path).problems, (2, 1), strict=True):
        assert problem.what.startswith(f"line 2, column {problem.column!r}: ")
        assert "has a mark between thousands that is no comma or point" in problem.what
        assert len(problem.remedies) == remedies
    split = whole(path, one_hot=["a"], task="multiclass")[2]
    assert (split.feature_names[0], split.labels[0]) == (f"a=1{cell}", f"1{cell[:5]}")
    beside = write("a;y\n" + "".join(f"{each};{i}.5\n" for i, each in enumerate([f"1{cell}", "word"] * 4)))
    assert whole(beside)[2].feature_names == (f"a=1{cell}", "a=word")


@pytest.mark.parametrize("cell", ["nan", " NaN ", "NA", "n/a", "#N/A", "", "null", "?", "#DIV/0!", "#NAME?"])
def test_marks_of_missing_values(write, cell):
    path = write(f'a,y\n1,0.5\n"{cell}",1.5\n3,2.5\n')
    assert "1 values are missing in 1 rows" in problems(path).problems[0].what
    np.testing.assert_array_equal(whole(path, missing="mean")[0], [[1, 0], [2, 1], [3, 0]])
    assert cells.is_missing(cell)


@pytest.mark.parametrize(
    ("written", "options", "days", "order"),
    [
        (["2020-02-28", "2020-03-01", "2021-02-28"], {}, [0, 2, 366], "ymd"),
        (["28/02/2020", "1/3/2020", "28/2/2021"], {}, [0, 2, 366], "dmy"),
        (["02/28/2020", "3/1/2020", "2/28/2021"], {}, [0, 2, 366], "mdy"),
        (["01.02.2020", "02.02.2020", "03.02.2020"], {}, [0, 1, 2], "dmy"),
        (["01/02/2020", "02/02/2020", "03/02/2020"], {"dates": {"a": "mdy"}}, [0, 31, 60], "mdy"),
        (["1900-03-01T06:00", "1900-02-28 12:00:30", "1900-03-01T00:00:00.5Z"], {},
         [1.25, 0.5 + 30 / 86400, 1 + 0.5 / 86400], "ymd"),
        (["01/02/2020 03:15 PM", "13/2/2020, 12:00:30 a.m.", "2/2/2020 12:30pm +0530"], {},
         [15.25 / 24, 12 + 30 / 86400, 1 + 7 / 24], "dmy"),
        (["3 Jan 2020", "Sat, 04-JAN-2020 10:00 GMT+0200", "5th January, 2020", "06jan2020"], {},
         [0, 1 + 8 / 24, 2, 3], "dmy"),
        (["Jan 3, 2020", "Sept. 4 2020", "february 29th, 2020"], {}, [0, 245, 57], "mdy"),
        (["2020-03", "2020/1", "2019-12"], {}, [91, 31, 0], "ymd"),
        (["Mar 2020", "Jan. 2020", "01/2021"], {}, [60, 0, 366], "mdy"),
        (["2020Q1", "2020-q3", "2020 Q4"], {}, [0, 182, 274], "ymd"),
        (["Q1 2020", "Q4/2020", "q3-2020"], {}, [0, 274, 182], "mdy"),
    ],
)  # fmt: skip
def test_dates_are_days_since_the_first(write, written, options, days, order):
    path = write("a,y\n" + "".join(f'"{cell}",{i / 7}\n' for i, cell in enumerate(written)))
    X, _, split = whole(path, **options)
    np.testing.assert_array_equal(X[:, 0], days)
    [note] = [each for each in split.notes if f"column a was read as dates ({order}), in days since" in each]
    longer = written[0] in ("2020-03", "Mar 2020", "2020Q1", "Q1 2020")
    assert note.endswith("; of months and quarters the first day") == longer


@pytest.mark.parametrize(
    "trained", [["2020-03", "2020-05"], ["13.3.2020", "1.5.2020"], ["3/13/2020", "5/1/2020"]]
)
def test_new_dates_may_be_in_any_form_that_has_one_meaning(write, trained):
    path = write("a,y\n" + "".join(f"{cell},{i / 7}\n" for i, cell in enumerate(trained * 5)))
    _, _, split = whole(path)
    column = split.treatment.columns[0]
    plain = [
        "2020-03-05",
        "2020-03",
        "Mar 2020",
        "5 Mar 2020",
        "Mar 5th, 2020",
        "2020Mar-5",
        "Q1 2020 ",
        "2020 Mar",
    ]
    expected = np.array([5, 1, 1, 5, 5, 5, -59, 1]) + dates.julian_day(2020, 3, 1) - 1 - column.origin
    np.testing.assert_array_equal(column.values(plain)[:, 0], expected)
    timed = [f"{cell.strip()} 6:00 pm" for cell in plain]
    np.testing.assert_array_equal(column.values(timed)[:, 0], expected + 0.75)
    others = {"ymd": "5.3.2020", "dmy": "3/25/2020", "mdy": "25/3/2020"}
    assert np.isnan(column.values([others[column.date_order], "Mar 32 2020", "May"])).all()


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (["1/2/20", "3/4/21"], "looks like dates, such as '1/2/20', in no one form"),
        (["03.01.20", "05.02.21"], "looks like dates"),
        (["3-Jan-20", "4-Feb-21"], "looks like dates"),
        (["Jan-20", "Feb-20"], "looks like dates"),
        (["3 Jan", "4 Feb"], "looks like dates"),
        (["3. Mai 2020", "4. März 2020"], "looks like dates"),
        (["2020-W05", "2020-W06"], "looks like dates"),
        (["13/01/2020", "01/13/2020"], "looks like dates"),
        (["2020-01-01 10h30", "2020-01-02 11h00"], "looks like dates"),
        (["2020-01-01", "2020-01-02", "2020-13-45"], "'2020-13-45' is not a date (ymd); 6 such cells"),
        (["2020-01-01", "2020-01-02", "later"], "'later' is not a date (ymd)"),
    ],
)
def test_what_looks_like_dates_is_never_levels_in_silence(write, written, said):
    cells = written * (18 // len(written))
    path = write("a;b;y\n" + "".join(f"{cell};{i % 7};{i / 7}\n" for i, cell in enumerate(cells)))
    [problem] = problems(path).problems
    assert said in problem.what + "; " + problem.advice
    assert problem.remedies == (("drop", ["a"]), ("one_hot", ["a"]))
    assert load(path, one_hot=["a"]).feature_names[0].startswith("a=")
    path = write("a;y\n" + "".join(f"{i % 7};{cell}\n" for i, cell in enumerate(cells)))
    assert "holds dates or times" in problems(path).problems[0].what


@pytest.mark.parametrize(
    "written",
    [["2010/11", "2011/12"], ["05-1234", "06-2345"], ["3-20", "5-10"], ["1.2.10", "1.3.12"], ["Jan", "Feb"]],
)
def test_levels_that_are_no_dates_stay_levels(write, written):
    path = write("a;y\n" + "".join(f"{cell};{i / 7}\n" for i, cell in enumerate(written * 4)))
    assert load(path).feature_names == tuple(f"a={level}" for level in sorted(written))


def test_times_of_day_are_hours(write):
    written = ["0:00", "14:30", " 9:05:30.5", "12:15 am", "12:15 p.m.", "2:30PM", "23:59:59", "3 pm"]
    hours = [0.0, 14.5, 9.0 + 330.5 / 3600.0, 0.25, 12.25, 14.5, 23.0 + 3599.0 / 3600.0, 15.0]
    path = write("a,y\n" + "".join(f"{cell},{i / 7}\n" for i, cell in enumerate(written)))
    X, _, split = whole(path)
    np.testing.assert_allclose(X[:, 0], hours, rtol=1e-15)
    assert "column a was read as times of day, in hours since midnight" in split.notes
    rows = [{"a": cell} for cell in ("24:00", "13:00 pm", "0:30 am", "7:60", "noon", datetime.time(6, 45))]
    np.testing.assert_array_equal(
        split.inputs(rows)[:, 0], [np.nan] * 5 + [split.inputs([{"a": "6:45"}])[0, 0]]
    )
    levels = load(path, target="y", one_hot=["a"])
    assert len(levels.feature_names) == len(written)
    frame = pd.DataFrame({"a": [datetime.time(5, n) for n in range(8)], "y": np.arange(8) / 7})
    np.testing.assert_allclose(whole(frame)[0][:, 0], 5.0 + np.arange(8) / 60.0, rtol=1e-15)


@pytest.mark.parametrize(
    ("written", "numbers", "unit"),
    [
        (["€ 101,89", "€ 1.000,5", "€ -3"], [101.89, 1000.5, -3.0], "€"),
        (["$1,234.50", "-$2", "$.5"], [1234.5, -2.0, 0.5], "$"),
        (["101,89\N{NO-BREAK SPACE}€", "", "7,5€"], [101.89, np.nan, 7.5], "€"),
        (["12.5%", "3 %", "n/a"], [12.5, 3.0, np.nan], "%"),
        (["45 kg", "1e-3kg", "+6. kg"], [45.0, 1e-3, 6.0], "kg"),
        (["US$5", "US$ 6", "US$7"], [5.0, 6.0, 7.0], "US$"),
    ],
)
def test_numbers_with_a_unit_are_numbers(write, written, numbers, unit):
    path = write("a;b;y\n" + "".join(f"{cell};{i};{i / 7}\n" for i, cell in enumerate(written * 2)))
    X, _, split = whole(path, missing="mean")
    gaps = np.isnan(np.tile(numbers, 2))
    np.testing.assert_allclose(X[~gaps, 0], np.tile(numbers, 2)[~gaps], rtol=1e-15)
    assert f"column a was read as numbers in {unit}" in split.notes
    again = Treatment.from_plain(json.loads(json.dumps(split.treatment.plain())))
    bare = {written[0]: numbers[0], "8": 8.0}
    np.testing.assert_array_equal(
        again.inputs([{"a": cell, "b": 0} for cell in bare])[:, 0], list(bare.values())
    )
    with pytest.raises(TableError, match="'9 parsec' is not a number"):
        again.inputs([{"a": "9 parsec", "b": 0}])


@pytest.mark.parametrize(
    "written", [["5 kg", "6 g"], ["A1", "A2"], ["10-20 kg", "20-30 kg"], ["5h 30m", "6h 10m"]]
)
def test_other_texts_with_digits_are_levels(write, written):
    path = write("a,y\n" + "".join(f"{cell},{i / 7}\n" for i, cell in enumerate(written * 3)))
    assert load(path, target="y").feature_names == tuple(f"a={level}" for level in sorted(written))


def test_numbers_with_a_unit_tell_what_a_point_is(write):
    path = write("area;price\n" + "".join(f"{i},5 m;€ {i}.500\n" for i in range(1, 13)))
    assert load(path, target="price", decimal=",", test_fraction=0.0).train[1].min() == 1500.0
    with pytest.raises(TableError, match="may stand before decimals or between thousands"):
        load(path, target="price")
    path = write("area;price\n" + "".join(f"{i}.5 m;€ {i}.500\n" for i in range(1, 13)))
    assert load(path, target="price", test_fraction=0.0).train[1].min() == 1.5


def test_a_target_with_a_unit_is_a_number_unless_it_is_a_class(write):
    path = write("a,price\n" + "".join(f"{i},${100.25 + i}\n" for i in range(12)))
    split = load(path, target="price", test_fraction=0.0)
    np.testing.assert_array_equal(split.train[1][:, 0], 100.25 + split.rows[0])
    assert split.task == "regression"
    assert "target price was read as numbers in $" in split.notes
    path = write("a,size\n" + "".join(f"{i},{40 + i % 3} EU\n" for i in range(12)))
    assert load(path, target="size", task="multiclass").labels == ("40 EU", "41 EU", "42 EU")


def test_offsets_from_utc_are_those_of_python(write):
    """Zones of a frame and the same times as text give the same days."""
    written = [
        "2024-01-01T01:30:00+02:00",
        "2024-01-02 01:30-0330",
        "2024-01-03 05:00:07.25 +05",
        "2024-01-01T00:00Z",
    ]
    there = pd.to_datetime(pd.Series(written), format="ISO8601", utc=True).dt.tz_convert("Asia/Kolkata")
    X, _, split = whole(write("a,y\n" + "".join(f"{cell},{i / 7}\n" for i, cell in enumerate(written))))
    of_frame, _, other = whole(pd.DataFrame({"a": there, "y": np.arange(4) / 7}))
    np.testing.assert_array_equal(X, of_frame)
    assert split.treatment == other.treatment
    assert X[0, 0] == 23.5 / 24  # of the last day of 2023, which is the first one in UTC


def test_periods_begin_at_their_start_and_ordered_dates_are_dates():
    y = np.arange(3) / 7
    months = pd.period_range("2024-09", periods=3, freq="M")
    ordered = pd.Categorical(months.to_timestamp(), ordered=True)
    X, _, split = whole(pd.DataFrame({"a": months, "b": ordered, "y": y}))
    np.testing.assert_array_equal(X, np.repeat([[0.0], [30.0], [61.0]], 2, axis=1))
    np.testing.assert_array_equal(
        split.treatment.inputs({"a": [months[1]], "b": [ordered[2]]}), [[30.0, 61.0]]
    )


def test_levels_that_are_dates_are_known_by_any_value_of_that_day(write):
    days = pd.to_datetime(["2024-01-01", "2024-01-02"] * 4)
    for table in (
        pd.DataFrame({"a": days, "y": np.arange(8) / 7}),
        write("a,y\n" + "".join(f"{day.date()},{i / 7}\n" for i, day in enumerate(days))),
    ):
        _, _, split = whole(table, one_hot=["a"])
        for day in (days[1], datetime.date(2024, 1, 2), np.datetime64("2024-01-02")):
            np.testing.assert_array_equal(split.treatment.inputs({"a": [day]}), [[0.0, 1.0]])


def test_errors_of_spreadsheets_are_missing_with_a_note(write):
    rows = zip(["1", "#REF!", "3", "#Value!"] * 3, ["a", "b", "#N/A", "c"] * 3, strict=True)
    path = write("a,b,y\n" + "".join(f"{a},{b},{i / 7}\n" for i, (a, b) in enumerate(rows)))
    X, _, split = whole(path, missing="mean")
    np.testing.assert_array_equal(X[:4, 0], [1.0, 2.0, 3.0, 2.0])
    assert "column a holds errors of a spreadsheet, #REF!, #Value!: they are missing values" in split.notes
    assert not any("column b holds errors" in note for note in split.notes)
    _, _, split = whole(path, target="a", missing="drop", drop=["b"])
    assert "target a holds errors of a spreadsheet, #REF!, #Value!: they are missing values" in split.notes


@pytest.mark.parametrize(
    ("name", "column", "said"),
    [
        (
            "a",
            np.arange(12),
            "column a counts the rows: if that says nothing of them, leave it out by drop=['a']",
        ),
        ("a", np.arange(1, 13), "column a counts the rows"),
        ("ID", np.arange(12) * 7 % 13 + 100, "column ID has another number in each row, as an ID has"),
        ("a", np.arange(12) * 7 % 13 + 100, ""),
        ("id", np.arange(12) // 2, ""),
        ("a", np.arange(12) + 1990, ""),
    ],
)
def test_a_column_that_looks_like_an_id_stays_with_a_note(name, column, said):
    frame = pd.DataFrame({name: column, "b": np.arange(12) % 5, "y": np.arange(12) / 7})
    notes = [note for note in load(frame).notes if "drop=" in note]
    assert len(notes) == bool(said)
    assert all(note.startswith(said) for note in notes)
    assert not any("drop=" in note for note in load(frame.drop(columns="b")).notes)


def test_numbers_that_are_days_have_a_note():
    frame = pd.DataFrame({"a": 20200101 + np.arange(12), "y": np.arange(12) / 7})
    assert "column a was read as numbers: if 20200101 is a date, write it as 2020-01-01" in load(frame).notes
    assert not any("is a date" in note for note in load(frame.assign(a=frame["a"] + 60)).notes)


def test_durations_are_seconds(write):
    minutes = pd.to_timedelta([3.0, 0.5, None, 90.0], unit="min")
    frame = pd.DataFrame({"a": minutes, "y": np.arange(4) / 7})
    X, _, split = whole(frame, missing="mean")
    np.testing.assert_array_equal(X[[0, 1, 3], 0], [180.0, 30.0, 5400.0])
    assert "column a holds durations, and was read in seconds" in split.notes
    hours = [
        {"a": one} for one in (pd.Timedelta(hours=1), datetime.timedelta(hours=1), np.timedelta64(1, "h"))
    ]
    np.testing.assert_array_equal(split.treatment.inputs(hours), [[3600.0, 0.0]] * 3)
    np.testing.assert_array_equal(split.treatment.inputs(frame)[:, 0], X[:, 0])
    other = frame.iloc[[0, 1, 3]].rename(columns={"a": "y", "y": "a"})
    np.testing.assert_array_equal(whole(other)[1][:, 0], [180.0, 30.0, 5400.0])
    for written, said in (
        (["0 days 00:15:00", "1 days 02:00:00"], "column 'a' holds durations, such as '0 days 00:15:00'"),
        (["26:15:00", "01:00:00"], "column 'a' holds durations"),
        (["PT15M", "P1DT2H"], "column 'a' holds durations"),
        (["10:00", "11:30", "24:00"], "line 4, column 'a': '24:00' is not a time of day"),
    ):
        text = "".join(f"{cell},{i / 7}\n" for i, cell in enumerate(written * 4))
        [problem] = problems(write("a,y\n" + text)).problems
        assert said in problem.what


def test_intervals_are_levels_where_they_are_categories():
    y = np.arange(12) / 7
    cut = pd.cut(y, 3)
    X, _, split = whole(pd.DataFrame({"a": cut, "y": y}))
    np.testing.assert_array_equal(X[:, 0], cut.codes)
    np.testing.assert_array_equal(split.treatment.inputs([{"a": each} for each in cut]), X)
    bare = pd.arrays.IntervalArray.from_breaks(np.arange(13))
    assert (
        "give the middle of each interval, its .mid"
        in problems(pd.DataFrame({"a": bare, "y": y})).problems[0].advice
    )


def test_new_rows_may_be_mappings_with_the_names_of_a_frame_that_are_numbers():
    frame = pd.DataFrame({0: [1.0, 2.0, 3.0], "y": [0.0, 0.5, 0.7]})
    X, _, split = whole(frame)
    series = [row for _, row in frame.iterrows()]
    for rows in (frame.to_dict("records"), frame.to_dict("list"), series):
        np.testing.assert_array_equal(split.treatment.inputs(rows), X)
    np.testing.assert_array_equal(split.treatment.inputs(series[1]), X[1:2])


def test_names_of_several_levels_are_refused():
    frame = pd.DataFrame(np.eye(3), columns=pd.MultiIndex.from_product([["in"], ["a", "b", "y"]]))
    assert "names of 2 levels" in problems(frame).problems[0].what
    _, _, split = whole(pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0.0, 0.5, 0.7]}))
    with pytest.raises(ValueError, match="its columns have names of 2 levels"):
        split.treatment.inputs(frame)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "a data frame, .* the type is NoneType"),
        (np.zeros((2, 1)), "the type is ndarray"),
        ({"a": [10**400]}, "is not a number"),
        ({"a": np.zeros((2, 2))}, r"one cell for each row; its shape is \(2, 2\)"),
    ],
)
def test_rows_that_cannot_be_read_are_refused_in_words(rows, message):
    _, _, split = whole(pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0.0, 0.5, 0.7]}))
    with pytest.raises(ValueError, match=message):
        split.treatment.inputs(rows)


def test_tables_of_arrow_are_taken_as_the_frames_that_they_make():
    arrow = pytest.importorskip("pyarrow")
    days = [datetime.date(2024, 1, 1 + n) for n in range(8)]
    made = {
        "whole": [1, None, 3, 4, 5, 6, 7, 8],
        "word": arrow.array(["b", "a", "b", "a", "b", None, "a", "b"]).dictionary_encode(),
        "day": arrow.array([None, *days[1:]]),
        "y": [0.5 * n for n in range(8)],
    }
    table = arrow.table(made)
    options = {"target": "y", "missing": "mean", "seed": 1}
    found, expected = load(table, **options), load(table.to_pandas(), **options)
    for part, other in zip((*found.train, *found.test), (*expected.train, *expected.test), strict=True):
        np.testing.assert_array_equal(part, other)
    assert found.feature_names == expected.feature_names
    assert found.sha256 == expected.sha256
    np.testing.assert_array_equal(found.inputs(table), expected.inputs(table.to_pandas()))
    apart = load(table, target="y", missing="mean", test=table.slice(2))
    np.testing.assert_array_equal(apart.test[1][:, 0], made["y"][2:])


@pytest.mark.parametrize(
    ("numbers", "task"), [((0, 1), None), ((0, 1, 1000), "multiclass"), ((0, 2000), None)]
)
def test_classes_whose_numbers_would_be_rounded_are_refused(numbers, task):
    y = np.resize([2**60 + number for number in numbers], 12)
    frame = pd.DataFrame({"a": np.arange(12.0), "y": y})
    with pytest.raises(TableError, match=r"numbers from 2\^53.*put a letter before them"):
        load(frame, task=task)
    _, _, split = whole(frame.assign(y=[f"n{each}" for each in y]))
    assert split.labels == tuple(f"n{2**60 + number}" for number in numbers)


def test_days_agree_with_the_calendar():
    rng = np.random.default_rng(0)
    ordinals = rng.integers(1, datetime.date.max.toordinal(), 3000)
    there = [datetime.date.fromordinal(int(n)) for n in ordinals]
    for order in dates.ORDERS:
        found, seconds, valid = dates.parse([dates.written(day, order) for day in there], order)
        assert valid.all()
        assert not seconds.any()
        np.testing.assert_array_equal(found - found[0], ordinals - ordinals[0])
    wrong = ["2021-02-29", "1900-02-29", "2020-13-01", "2020-00-10", "2020-04-31", "2020-01-01T24:00",
             "2020-01-01T10:60", "0000-01-01", "2020-1-1x", "20-01-01", "2020-01-01T10:00:60",
             "2020-01-01+05:00", "2020-01-01T10:00+24:00", "2020-01-01T10:00+05:60", "2020-01-01T10:00+1",
             "2020-01-01T10:00+00:00Z"]  # fmt: skip
    assert not dates.parse(wrong, "ymd")[2].any()
    assert dates.parse(["2000-02-29", " 2024-02-29T23:59:59.999 "], "ymd")[2].all()


def test_text_of_many_levels_is_not_encoded_in_silence(write):
    rows = "".join(f"level {i % 60},{i / 7}\n" for i in range(180))
    [problem] = problems(write("a,y\n" + rows)).problems
    assert "of 60 levels, of which 50 can be encoded" in problem.what
    assert problem.remedies == (("drop", ["a"]),)
    codes = write("a,y\n" + "".join(f"{i % 3},{i / 7}\n" for i in range(9)), "codes.csv")
    assert whole(codes, one_hot=["a"])[2].feature_names == ("a=0", "a=1", "a=2")
    assert (
        "has the levels b besides a, c"
        in problems(write("a,y\na,1\nb,2.5\nc,3\n", "levels.csv"), categories={"a": ["a", "c"]})
        .problems[0]
        .what
    )


def test_a_target_of_ordered_words(write):
    path = write("a,y\n" + "".join(f"{i},{('low', 'mid', 'high')[i % 3]}\n" for i in range(12)))
    _, Y, split = whole(path, categories={"y": ["low", "mid", "high"]})
    np.testing.assert_array_equal(Y[:, 0], np.arange(12) % 3)
    assert (split.task, split.labels) == ("ordinal", ("low", "mid", "high"))
    [problem] = problems(path, task="ordinal").problems
    assert problem.remedies == (("categories", {"y": ["high", "low", "mid"]}),)


FRAME = pd.DataFrame(
    {
        "a": [1, 2, None, 4],
        "n": pd.array([1, None, 3, 4], dtype="Int64"),
        "when": pd.to_datetime(["2020-01-01 00:00", "2020-01-02 12:00", None, "2021-01-01 00:00"]),
        "c": pd.Categorical(["l", "h", "l", "m"], ["l", "m", "h"], ordered=True),
        "b": [True, False, True, True],
        "y": [1.0, 2.0, 3.5, 1.0],
    }
)


def test_data_frames(tmp_path):
    X, Y, split = whole(FRAME, missing="mean")
    flags = ("a is missing", "n is missing", "when is missing")
    assert split.feature_names == ("a", "n", "when", "c", "b=False", "b=True", *flags)
    np.testing.assert_allclose(
        X,
        [
            [1, 1, 0, 0, 0, 1, 0, 0, 0],
            [2, 8 / 3, 1.5, 2, 1, 0, 0, 1, 0],
            [7 / 3, 3, (1.5 + 366) / 3, 0, 0, 1, 1, 0, 1],
            [4, 4, 366, 1, 0, 1, 0, 0, 0],
        ],
        rtol=1e-15,
    )
    np.testing.assert_array_equal(Y[:, 0], FRAME["y"])
    assert (split.name, split.task, len(split.sha256)) == ("frame", "regression", 64)
    np.testing.assert_array_equal(split.inputs(FRAME), X)
    if importlib.util.find_spec("pyarrow") is not None:
        FRAME.to_parquet(tmp_path / "table.parquet")
        np.testing.assert_array_equal(whole(tmp_path / "table.parquet", missing="mean")[0], X)
        (tmp_path / "half.parquet").write_bytes((tmp_path / "table.parquet").read_bytes()[:-20])
        assert "not a complete Parquet file" in str(problems(tmp_path / "half.parquet"))
    odd = FRAME.assign(lists=[[1], [2], [3], [4]])
    assert "a list in row 1" in problems(odd).problems[0].what
    doubled = pd.concat([FRAME, FRAME[["a"]]], axis=1)
    assert "repeats 'a'" in str(problems(doubled))
    later = FRAME.assign(y=["l", "h", "l", "m"]).assign(
        y=lambda f: pd.Categorical(f.y, ["l", "m", "h"], ordered=True)
    )
    assert (whole(later, missing="mean")[2].task, whole(later, missing="mean")[2].labels) == (
        "ordinal",
        ("l", "m", "h"),
    )


def test_rows_that_pandas_has_read_are_those_of_the_file(write):
    """Its types write levels in another way: TRUE, 01 and 2.0 are True, 1 and 2."""
    lines = "".join(f"{'TRUE' if i % 2 else 'FALSE'},0{i % 3},{i % 4}.0,{i}\n" for i in range(9))
    path = write("flag,code,grade,y\n" + lines)
    X, _, split = whole(path, one_hot=["code"], categories={"grade": ["0.0", "1.0", "2.0", "3.0"]})
    np.testing.assert_array_equal(split.inputs(pd.read_csv(path)), X)
    large = pd.DataFrame({"id": [10**17 + i % 3 * 1000 for i in range(9)], "y": range(9)})
    X, _, split = whole(large, one_hot=["id"])
    np.testing.assert_array_equal(split.inputs(large), X)
    np.testing.assert_array_equal(split.inputs({"id": 10**17 + 500}), [[0.0, 0.0, 0.0]])


@pytest.mark.parametrize("level", ["NaT", "<NA>"])
def test_text_that_looks_like_a_gap_of_pandas_is_a_level(write, level):
    """Of a file, and so of its new rows, which are cells of text too."""
    path = write("c,y\n" + "".join(f"{(level, 'b', 'c')[i % 3]},{i}\n" for i in range(9)))
    X, _, split = whole(path)
    np.testing.assert_array_equal(split.inputs([{"c": cell} for cell in (level, "b", "c")]), X[:3])
    assert np.isnan(split.inputs([{"c": pd.NaT}, {"c": pd.NA}, {"c": np.nan}])).all()


def test_columns_of_a_frame_are_named_by_their_text():
    frame = pd.DataFrame({0: [1.0, 2.0, 3.0], 1: ["u", "v", "u"], 2: [0.5, 1.5, 3.0]})
    X, _, split = whole(frame, target="2")
    np.testing.assert_array_equal(split.inputs(frame), X)
    with pytest.raises(TableError, match="several columns are named 1"):
        split.inputs(pd.concat([frame, frame[[1]]], axis=1))


def test_row_numbers_without_a_name_are_no_input(tmp_path):
    frame = pd.DataFrame({"a": [0.5, 1.5, 3.0, 4.0], "y": [1.0, 2.5, 3.0, 5.0]}, index=[2, 0, 3, 1])
    frame.to_csv(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("a;y;;\n1;0.5;;\n2;1.5;NA;\n3;3.5;;\n")
    note = "the first column numbers the rows and has no name: it is left out"
    for table in (tmp_path / "a.csv", pd.read_csv(tmp_path / "a.csv")):
        X, _, split = whole(table)
        np.testing.assert_array_equal(X[:, 0], frame["a"])
        assert split.notes[0] == note
    X, _, split = whole(tmp_path / "b.csv")
    np.testing.assert_array_equal(X, [[1.0], [2.0], [3.0]])
    assert split.notes[1] == "column 4 has neither name nor cells: it is left out"
    assert whole(tmp_path / "a.csv", target=["a", "y"], task="events", bins=2)[2].notes[0] == note
    (tmp_path / "c.csv").write_text(",y\n0.5,1\n1.5,2\n2.5,4\n")
    assert "column 1 has no name" in str(problems(tmp_path / "c.csv"))


def test_categories_that_are_numbers_are_levels():
    codes = pd.Categorical([3, 10, 5, 3, 10, 5])
    frame = pd.DataFrame({"code": codes, "a": np.arange(6.0), "y": np.arange(6.0) / 7})
    X, _, split = whole(frame)
    assert split.feature_names == ("code=10", "code=3", "code=5", "a")
    np.testing.assert_array_equal(split.inputs(frame), X)
    np.testing.assert_array_equal(split.inputs([{"code": 10, "a": 0}]), [[1, 0, 0, 0]])
    _, Y, split = whole(frame, target="code")
    assert (split.task, split.labels) == ("multiclass", ("3", "5", "10"))
    assert "target 'code' holds categories: the task is multiclass" in split.notes
    np.testing.assert_array_equal(Y[:, 0], [0, 2, 1, 0, 2, 1])
    assert whole(frame, target="code", task="regression")[2].task == "regression"


def test_test_rows_have_the_columns_in_any_order():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 7.0], "y": [0.5, 1.5, 2.0]})
    other = pd.DataFrame({"y": [3.5], "id": ["k"], "b": [8.0], "a": [9.0]})
    split = load(frame, test=other, standardise=False)
    np.testing.assert_array_equal(split.test[0], [[9.0, 8.0]])
    assert split.notes[0] == "columns of the test rows alone are left out: id"
    with pytest.raises(TableError, match="test= lacks the columns b of frame; it has y, id, a"):
        load(frame, test=other.drop(columns="b"))


@pytest.mark.parametrize("written", ["{:02d}:30", "2024-01-{:02d}"])
def test_targets_that_are_dates_or_times_are_refused(write, written):
    path = write("a,y\n" + "".join(f"{i},{written.format(i)}\n" for i in range(1, 9)))
    [problem] = problems(path).problems
    assert problem.said().endswith(
        "which no model predicts; give the days or hours since a first one as numbers."
    )
    assert whole(path, task="multiclass")[2].task == "multiclass"


@pytest.mark.parametrize(("ending", "pack"), [(".bz2", bz2.compress), (".XZ", lzma.compress)])
def test_compressed_files(tmp_path, ending, pack):
    path = tmp_path / f"data.csv{ending}"
    path.write_bytes(pack(b"a|b|y\n1|2|0.5\n2|5|1\n3|1|2\n"))
    np.testing.assert_array_equal(whole(path)[0], [[1, 2], [2, 5], [3, 1]])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="is not a complete"):
        load(path)


def test_cells_that_are_arrays_are_refused_unless_they_are_dropped():
    frame = pd.DataFrame({"a": [np.ones(2), np.zeros(2)], "x": [3.0, 4.0], "y": [1.0, 2.0]})
    split = load(frame, target="y", drop=["a"])
    assert split.feature_names == ("x",)
    assert split.inputs(frame).shape == (2, 1)
    assert "column 'a' is neither number, text nor date (a ndarray in row 1)" in str(
        problems(frame, target="y")
    )


def test_the_separator_is_what_divides_all_rows_alike(write):
    text = "price, EUR;size, m\n" + "".join(f"{i},5;{i},25\n" for i in range(1, 9))
    X, _, split = whole(write(text), target="size, m")
    assert split.feature_names == ("price, EUR",)
    np.testing.assert_array_equal(X[:, 0], np.arange(1, 9) + 0.5)
    ragged = problems(write("a,b,y\n1,2\n3,4,5\n6,7,8,9\n"))
    assert "line 2: 2 cells; line 4: 4 cells where the header has 3 columns" in str(ragged)
    assert ragged.problems[0].rows == (0, 2)
    both = problems(write("a,a,,y\n1,2,3,4\n2,3\n", "both.csv"))
    assert len(both.problems) == 3


def test_events_are_counted(write):
    rng = np.random.default_rng(0)
    places = rng.uniform(size=(200, 2))
    path = write("u,v,kind\n" + "".join(f"{u},{v},x\n" for u, v in places))
    X, Y, split = whole(path, task="events", drop=["kind"], bins=5)
    assert (split.task, X.shape, Y.sum()) == ("count", (25, 2), 200)
    counts = np.histogram2d(*places.T, 5)[0]
    np.testing.assert_array_equal(Y.reshape(5, 5), counts)
    area = np.prod(np.ptp(places, axis=0)) / 25
    np.testing.assert_allclose(np.concatenate(split.exposure), area, rtol=1e-12)
    assert whole(path, task="events", target="u")[0].shape == (100, 1)
    [problem] = problems(write("a,b,c\n1,2,3\n4,5,6\n", "cube.csv"), task="events").problems
    assert problem.remedies == (("target", ["a", "b"]),)
    assert "has no place for an event" in str(problems(write("u\n1\nNA\n2\n", "gap.csv"), task="events"))


VISITS = "kind;age;days;visits\n" + "\n".join(f"{'uv'[i % 2]};{i % 7};{i},5;{i % 4}" for i in ROWS)


def test_counts_have_the_exposures_of_a_column(write):
    """It is read as inputs are, decimal commas included, and is none of them; the task follows."""
    split = load(write(VISITS), target="visits", exposure="days", seed=3)
    assert split.task == "count"
    assert split.feature_names == ("kind=u", "kind=v", "age")
    for exposure, rows in zip(split.exposure, split.rows, strict=True):
        np.testing.assert_array_equal(exposure[:, 0], rows + 1.5)
    assert "column days is the exposure of the counts: rates are predicted" in split.notes
    assert not any("days is kept out" in note for note in split.notes)
    assert load(write(VISITS), target="visits", task="counts").exposure is None


def test_exposures_are_positive_numbers_that_are_there(write):
    lines = VISITS.splitlines()
    lines[4], lines[6] = "u;2;-3,0;1", "u;2;;1"
    error = problems(write("\n".join(lines)), target="visits", exposure="days")
    below, gap = error.problems
    assert (below.rows, below.column) == ((3,), "days")
    assert "line 5, column 'days' is -3: an exposure is a positive number" in below.what
    assert gap.rows == (5,)
    assert gap.remedies == (("missing", "drop"),)  # a mean is for inputs
    [both] = problems(write("\n".join(lines)), target="visits", exposure="days", missing="mean").problems
    assert both.rows == (3, 5)
    lines[4] = "u;2;3,0;1"
    split = load(write("\n".join(lines)), target="visits", exposure="days", missing="drop")
    assert len(np.concatenate(split.exposure)) == 29
    words = problems(write(VISITS), target="visits", exposure="kind")
    assert "the exposure 'kind' must hold numbers; it was read as one-hot" in str(words)
    unsure = VISITS.replace(";", "|").replace(",5|", ",500|")
    assert problems(write(unsure), target="visits", exposure="days").problems[0].remedies == (
        ("decimal", ","), ("decimal", ".")
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exposure": "dayz"}, "exposure 'dayz' is not a column; the columns are kind, age, days, visits"),
        ({"exposure": "visits"}, "exposure='visits' cannot be in target, drop or one_hot"),
        ({"exposure": "days", "drop": ["days"]}, "exposure='days' cannot be in target, drop or one_hot"),
        ({"exposure": "days", "task": "ordinal"}, "exposure='days' is for task='counts'"),
        ({"exposure": "days", "task": "events", "target": ["age"]}, "that of an event's bin is its size"),
    ],
)
def test_an_exposure_that_cannot_be_is_refused(write, options, message):
    with pytest.raises(ValueError, match=message):
        load(write(VISITS), **{"target": "visits", **options})


def test_reading_imports_neither_tensorflow_nor_pandas(write):
    """Nor gpflow: the shell answers before they are there."""
    path = write(MESSY)
    code = (
        "import sys, types\n"
        "for name in ('gpflow_ext', 'gpflow_ext.data'):\n"
        "    bare = sys.modules.setdefault(name, types.ModuleType(name))\n"
        f"    bare.__path__ = [{str(Path(__file__).parents[1])!r} + '/' + name.replace('.', '/')]\n"
        "from gpflow_ext.data.datasets import load\n"
        f"split = load({str(path)!r}, drop=['id'], missing='mean')\n"
        "heavy = {'tensorflow', 'gpflow', 'pandas', 'scipy', 'sklearn'} & set(sys.modules)\n"
        "print(sorted(heavy), split.train[0].dtype)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] float64"
