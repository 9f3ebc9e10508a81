"""Loading a CSV file: what comes out is right, what goes wrong is said, nothing changes in silence."""

from __future__ import annotations

import gzip
import html

import gpflow
import numpy as np
import pytest
from problems import raw_parts

from gpflow_ext.data.datasets import Scaler, load
from gpflow_ext.data.datasets.split import choose_rows

GOOD = "a,b,y\n1,10,0\n2,20,1\n3,30,0\n4,40,1\n5,50,0\n6,65,1\n"


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (GOOD, "data.csv"),
        (GOOD, "data.csv.gz"),
        (GOOD.replace(",", ";"), "data.csv"),
        (GOOD.replace(",", "\t"), "data.tsv"),
        ("\ufeff" + GOOD.replace("\n", "\r\n"), "data.csv"),
        (GOOD.replace("a,b,y", ' "a" ,b, y') + "\n\n", "data.csv"),
    ],
)
def test_one_table_in_many_dialects(write, content, name):
    split = load(write(content, name), seed=3)
    X, Y = raw_parts(split)
    np.testing.assert_allclose(X, [[1, 10], [2, 20], [3, 30], [4, 40], [5, 50], [6, 65]], rtol=1e-14)
    np.testing.assert_array_equal(Y, [[0], [1], [0], [1], [0], [1]])
    assert (split.feature_names, split.target, split.task) == (("a", "b"), "y", "binary")
    assert (split.labels, split.name, len(split.sha256)) == (("0", "1"), name, 64)


def test_a_split_shows_what_it_holds_and_no_arrays(write):
    split = load(write(GOOD), test_fraction=0.5)
    assert repr(split) == "Split('data.csv', binary of 'y', 3 training and 3 test rows, 2 inputs)"
    shown = split._repr_html_()
    assert "<td>a, b</td>" in shown
    assert all(html.escape(note) in shown for note in split.notes)


def test_arrays_have_the_default_dtype_unless_told(write):
    path = write(GOOD)
    for dtype in (np.float32, np.float64):
        with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
            assert {array.dtype for part in load(path) for array in part} == {np.dtype(dtype)}
    assert load(path, dtype="float32").train[0].dtype == np.float32
    big = write(GOOD.replace("65", "1e300"))
    with pytest.raises(ValueError, match="beyond the range of float32"):
        load(big, dtype="float32", standardise=False)


BROKEN = {
    "empty": ("", {}, r"is empty"),
    "header only": ("a,y\n", {}, r"0 data rows"),
    "one row": ("a,y\n1,2\n", {}, r"1 data rows"),
    "separator first": ("sep=;\na;y\n1;2\n3;4\n", {}, r"first line, sep=, tells Excel the separator"),
    "no header": ("1,2,0\n3,4,1\n5,6,0\n", {}, r"no header.*1, 2, 0"),
    "repeated name": ("a,a,y\n1,2,0\n3,4,1\n", {}, r"repeats 'a'"),
    "unnamed column": ("a,,y\n0,1,0\n1,2,1\n", {}, r"column 2 has no name"),
    "ragged": ("a,b,y\n1,2,0\n3,1\n5,6,0\n", {}, r"line 3: 2 cells where the header has 3"),
    "one column": ("y\n1\n2\n", {}, r"one column, 'y'"),
    "not text": (b"\xff\xfea\x00,\x00", {}, r"it is UTF-16 and not UTF-8 text; save it as UTF-8"),
    "packed without a name of it": (
        b"\x1f\x8b\x08\xff",
        {},
        r"is gzip and not UTF-8 text; name it .*\.csv\.gz",
    ),
    "comments": (
        "# of 2024\na,b,y\n1,2,3\n4,5,7\n# end\n",
        {},
        r"comments are no part of a table: line 1, line 5; take these lines out",
    ),
    "no target": ("a,b\n1,2\n3,4\n", {}, r"target= is needed.*choose one of a, b"),
    "unknown target": (GOOD, {"target": "z"}, r"target 'z' is not a column; the columns are a, b, y"),
    "word": ("a,y\n1,0\n2,1\n\nthree,0\n", {}, r"line 5, column 'a': 'three' is not a number"),
    "number of Python alone": ("a,y\n1,0\n1_0,1\n3,0\n", {}, r"line 3, column 'a': '1_0' is not a number"),
    "digits of elsewhere": ("a,y\n1,0\n\u0661,1\n3,0\n", {}, r"line 3, column 'a': '\u0661' is not a number"),
    "text column": (
        "a,c,y\n1,red,0\n2,blue,1\n",
        {},
        r"column 'c' holds text, such as 'red'.*one_hot=\['c'\]",
    ),
    "infinite input": ("a,b,y\n1,2,0\n2,-inf,1\n3,4,0\n", {}, r"line 3, column 'b' is infinite"),
    "target without a square": (
        "a,y\n1,0.5\n2,1e300\n3,1.5\n",
        {},
        r"line 3, column 'y' is 1e\+300, whose square",
    ),
    "infinite target": ("a,y\n1,0.5\n2,inf\n3,1.5\n", {}, r"line 3, column 'y' is infinite"),
    "missing": ("a,b,y\n1,2,0\n2,,1\nNaN,,0\n", {}, r"3 values are missing in 2 rows.*line 3, column 'b'"),
    "missing target": ("a,y\n1,0.1\n2,\n3,0.3\n", {"missing": "mean"}, r"target 'y' is missing in line 3"),
    "nothing left": ("a,b,y\n1,,0\n,2,1\n3,4,1\n", {"missing": "drop"}, r"leaves 1 of 3 rows"),
    "one class": ("a,y\n1,0\n2,0\n3,0\n", {"task": "binary"}, r"one class only \(0\)"),
    "one word": ("a,y\n1,no\n2,no\n", {}, r"one class only \('no'\)"),
    "constant target": ("a,y\n1,2.5\n2,2.5\n", {}, r"one value only \(2.5\)"),
    "three classes": ("a,y\n1,u\n2,v\n3,w\n", {"task": "binary"}, r"has 3: u, v, w"),
    "mixed target": ("a,y\n1,1\n2,2\n3,other\n", {}, r"line 4, target 'y': 'other'.*task='multiclass'"),
    "words as numbers": ("a,y\n1,u\n2,v\n", {"task": "regression"}, r"needs a numeric target.*'u'"),
    "negative count": ("a,y\n1,1\n2,-2\n3,0\n", {"task": "count"}, r"line 3, target 'y' is -2"),
    "fractional count": ("a,y\n1,1\n2,2\n3,0.5\n", {"task": "count"}, r"line 4, target 'y' is 0.5"),
    "line after a dropped row": (
        "a,y\n1,1\n,2\n3,0.5\n",
        {"task": "count", "missing": "drop"},
        r"line 4, target 'y' is 0.5",
    ),
    "unknown task": (GOOD, {"task": "rank"}, r"task='rank'.*binary, multiclass"),
    "unknown drop": (GOOD, {"drop": ["c"]}, r"drop 'c' is not a column"),
    "target dropped": (GOOD, {"drop": ["y"]}, r"target 'y' cannot be in drop"),
    "no input": (GOOD, {"drop": ["a", "b"]}, r"no input left"),
    "drop is a word": (GOOD, {"drop": "a"}, r"lists of column names"),
    "levels": ("a,c,y\n1,u,0\n2,u,1\n", {"one_hot": ["c"]}, r"'c' has 1 levels"),
    "missing=": (GOOD, {"missing": "zero"}, r"missing='zero'"),
    "test_fraction": (GOOD, {"test_fraction": 1.0}, r"test_fraction=1.0.*\[0, 1\)"),
    "seed": (GOOD, {"seed": -1}, r"seed=-1"),
    "split": (GOOD, {"split": "mine"}, r"split='mine'"),
    "no published split": (GOOD, {"split": "published"}, r"no published split"),
    "whole numbers": (GOOD, {"dtype": "int32"}, r"dtype='int32' must be a floating type"),
    "no type": (GOOD, {"dtype": "foo"}, r"dtype='foo' is no type"),
    "a target twice": (GOOD, {"target": ["a", "a"]}, r"several, each once"),
    "a target by its place": (GOOD, {"target": 2}, r"target=2 must be the name of a column, as text"),
    "no bins": (GOOD, {"bins": 5}, r"bins=5 is for task='events'"),
    "bins of no width": (GOOD, {"task": "events", "target": "a", "bins": 0}, r"bins=0 must be a positive"),
    "bins of two axes": (GOOD, {"task": "events", "target": "a", "bins": [2, 3]}, r"or 1 of them"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_or_argument_is_named(write, case):
    content, options, message = BROKEN[case]
    with pytest.raises(ValueError, match=r"(?s)" + message):
        load(write(content), **options)


def test_a_set_of_arrays_holds_no_events():
    with pytest.raises(ValueError, match="task='events' counts the rows of a table; 'iris' is not one"):
        load("iris", task="events")


@pytest.mark.parametrize("name", [None, 3, {"a": [1, 2], "y": [1, 2]}, np.ones((3, 2))])
def test_what_is_no_table_is_refused(name):
    with pytest.raises(ValueError, match=r"load takes the name of a set.*got a"):
        load(name)


def test_unreadable_files(write, tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*absent.csv"):
        load(tmp_path / "absent.csv")
    broken = write("", "broken.csv")
    broken.with_suffix(".csv.gz").write_bytes(gzip.compress(GOOD.encode())[:-12])
    with pytest.raises(ValueError, match="not a complete gzip file"):
        load(str(broken) + ".gz")


def test_labels_are_encoded_and_keep_their_names(write):
    cases = {
        ("ham", "spam", "ham", "spam"): ("binary", ("ham", "spam"), [0, 1, 0, 1]),
        ("1", "2", "2", "1"): ("binary", ("1", "2"), [0, 1, 1, 0]),
        ("0.7", "0.3", "0.3", "0.7"): ("binary", ("0.3", "0.7"), [1, 0, 0, 1]),
        ("True", "False", "True", "False"): ("binary", ("False", "True"), [1, 0, 1, 0]),
        ("c", "a", "b", "a"): ("multiclass", ("a", "b", "c"), [2, 0, 1, 0]),
    }
    for cells, (task, labels, classes) in cases.items():
        rows = "".join(f"{number},{cell}\n" for number, cell in enumerate(cells))
        split = load(write("a,y\n" + rows), test_fraction=0.25)
        assert (split.task, split.labels) == (task, labels)
        np.testing.assert_array_equal(raw_parts(split)[1][:, 0], classes)
        assert any(f"encoded as 0 to {len(labels) - 1}" in note for note in split.notes)


def test_whole_numbers_need_a_task_to_be_classes(write):
    path = write("a,y\n" + "".join(f"{n},{2 * (n % 3)}\n" for n in range(9)))
    split = load(path)
    assert split.task == "regression"
    assert any("pass task=" in note for note in split.notes)
    ordinal = load(path, task="ordinal")
    assert ordinal.labels == ("0", "2", "4")
    assert load(path, task="count").labels is None
    np.testing.assert_array_equal(raw_parts(ordinal)[1], raw_parts(split)[1] / 2)


def test_missing_values_dropped_or_filled_from_the_training_part(write):
    path = write("a,b,y\n1,10,0.5\n2,?,1.5\n3,30,2.5\n4,,3.5\n5,50,4.5\n6,60,5.5\n")
    dropped = load(path, missing="drop", test_fraction=0.25)
    assert "2 rows with missing b were dropped (line 3, line 5)" in dropped.notes
    np.testing.assert_array_equal(np.sort(np.concatenate(dropped.rows)), [0, 2, 4, 5])
    np.testing.assert_array_equal(raw_parts(dropped)[0][:, 0], [1, 3, 5, 6])
    for seed in range(5):
        filled = load(path, missing="mean", seed=seed, test_fraction=0.5)
        b = np.array([10, np.nan, 30, np.nan, 50, 60])
        expected = np.where(np.isnan(b), np.nanmean(b[filled.rows[0]]), b)
        np.testing.assert_allclose(raw_parts(filled)[0][:, 1], expected, rtol=1e-14)
        assert any(note.startswith("2 missing values of b were set") for note in filled.notes)


def test_drop_and_one_hot(write):
    path = write("a,id,colour,y\n1,p,red,0\n2,q,blue,1\n3,r,red,1\n4,s,green,0\n")
    split = load(path, drop=["id"], one_hot=["colour"], standardise=False, test_fraction=0)
    assert split.feature_names == ("a", "colour=blue", "colour=green", "colour=red")
    np.testing.assert_array_equal(
        raw_parts(split)[0], [[1, 0, 0, 1], [2, 1, 0, 0], [3, 0, 0, 1], [4, 0, 1, 0]]
    )
    assert "column id was dropped as asked" in split.notes
    assert split.test[0].shape == (0, 4)


def test_a_second_file_is_the_test_part(write):
    train, test = write(GOOD), write("a,b,y\n7,70,1\n", "test.csv")
    split = load(train, test=test)
    np.testing.assert_allclose(split.scaler.inverse(split.test[0]), [[7, 70]], rtol=1e-14)
    np.testing.assert_allclose(split.scaler.mean, [3.5, 215 / 6], rtol=1e-14)
    assert any("seed and test_fraction had no effect" in note for note in split.notes)
    write("a,b,y\n7,seventy,1\n", "test.csv")
    with pytest.raises(ValueError, match=r"line 2 of test.csv, column 'b': 'seventy'"):
        load(train, test=test)
    with pytest.raises(ValueError, match="lacks the columns b"):
        load(train, test=write("a,y\n7,1\n", "test.csv"))


def test_split_is_a_seeded_stratified_partition():
    classes = np.repeat([0.0, 1.0, 2.0, 3.0], [60, 25, 14, 1])
    train, test = choose_rows(classes, 100, 0.2, seed=1)
    assert sorted([*train, *test]) == list(range(100))
    np.testing.assert_array_equal(np.bincount(classes[test].astype(int), minlength=4), [12, 5, 3, 0])
    again, other = choose_rows(classes, 100, 0.2, seed=1), choose_rows(classes, 100, 0.2, seed=2)
    np.testing.assert_array_equal(again[1], test)
    assert set(other[1]) != set(test)
    assert len(set(classes[train[:20]])) > 1  # the training rows are shuffled too
    assert sorted(choose_rows(np.array([0.0, 0.0, 1.0]), 3, 0.5, seed=0)[0])[-1] == 2  # a lone row trains
    train, test = choose_rows(None, 10, 0.25, seed=0)
    assert (len(train), len(test)) == (8, 2)
    assert [len(part) for part in choose_rows(None, 3, 0.01, seed=0)] == [2, 1]
    assert [len(part) for part in choose_rows(classes, 100, 0.0, seed=0)] == [100, 0]


def test_standardised_with_the_training_part_only(write):
    rng = np.random.default_rng(0)
    # Each column has another magnitude: squares of the last two over- and underflow.
    columns = rng.normal(size=(50, 4)) * [1e8, 1e-8, 1e200, 1e-200] + [1e8, 0.0, 0.0, 0.0]
    rows = [",".join(map(repr, [*map(float, row), 2.0, float(row[0])])) for row in columns]
    split = load(write("a,b,c,d,e,y\n" + "\n".join(rows)))
    X, X_test = split.train[0], split.test[0]
    np.testing.assert_allclose(X[:, :4].mean(axis=0), 0.0, atol=1e-14)  # 40 rounded terms of size 1
    np.testing.assert_allclose(X[:, :4].std(axis=0), 1.0, rtol=1e-13)
    np.testing.assert_array_equal(X[:, 4], 0.0)
    assert (split.scaler.mean[4], split.scaler.scale[4]) == (2.0, 1.0)
    assert "column e is constant (2.0): kept, centred to 0 by standardising" in split.notes
    # The file's numbers come back through the scaler; test rows went through it unchanged.
    np.testing.assert_allclose(split.scaler.transform(split.scaler.inverse(X_test)), X_test, atol=1e-13)
    np.testing.assert_allclose(split.scaler.inverse(X_test)[:, 0], columns[split.rows[1], 0], rtol=1e-14)
    np.testing.assert_array_equal(split.train[1][:, 0], columns[split.rows[0], 0])  # targets keep their units
    plain = load(write("a,b,c,d,e,y\n" + "\n".join(rows)), standardise=False)
    np.testing.assert_array_equal(plain.train[0][:, :4], columns[plain.rows[0]])


def test_scaler_refuses_another_width():
    with pytest.raises(ValueError, match="last axis must be 2 wide"):
        Scaler.identity(2).transform(np.zeros((3, 4)))


@pytest.mark.parametrize(
    "cells", [[[1.0, np.nan], [2.0, 3.0]], [[np.inf], [1.0]], np.zeros((0, 2)), [1.0, 2.0]]
)
def test_scaler_refuses_gaps(cells):
    with pytest.raises(ValueError, match=r"X must be finite, of shape \[N, D\]"):
        Scaler.fit(cells)


def test_a_column_of_one_value_has_scale_one_whatever_its_rounding():
    X = np.full((10, 2), 0.1)
    X[:5, 0] = np.nan
    scaler = Scaler.fit_known(X)
    np.testing.assert_array_equal([scaler.mean, scaler.scale], [[0.1, 0.1], [1.0, 1.0]])
    varied = np.where(np.isnan(X), X, np.arange(20.0).reshape(10, 2))
    scaler = Scaler.fit_known(varied)
    np.testing.assert_allclose(
        [scaler.mean, scaler.scale], [np.nanmean(varied, axis=0), np.nanstd(varied, axis=0)]
    )


def test_scaler_takes_lists():
    scaler = Scaler.fit([[1, 2], [3, 2]])
    np.testing.assert_array_equal([scaler.mean, scaler.scale], [[2.0, 2.0], [1.0, 1.0]])


def test_several_targets_keep_their_gaps(write, tmp_path) -> None:
    text = "a,p,b,q\n" + "\n".join(f"{i},{i / 2},{i % 3},{'' if i == 4 else 2 * i}" for i in range(1, 11))
    path = write(text + "\n")
    split = load(path, target=["p", "q"], missing="keep", test_fraction=0.0)
    assert (split.target, split.task, split.feature_names) == ("p, q", "regression", ("a", "b"))
    order = np.argsort(split.rows[0])
    expected = [[i / 2, np.nan if i == 4 else 2 * i] for i in range(1, 11)]
    np.testing.assert_array_equal(split.train[1][order], expected)
    assert "1 missing targets are kept as NaN" in split.notes
    assert len(load(path, target=["p", "q"], missing="drop", test_fraction=0.0).train[0]) == 9
    for options, message in (
        ({"target": ["p", "q"]}, "missing='keep'"),
        ({"target": ["p", "q"]}, r"\(columns: q\), the first in line 5, column 'q'"),
        ({"target": ["p", "z"]}, "'z' is not a column"),
        ({"target": "q", "missing": "keep"}, "several targets"),
        ({"target": "q", "missing": ["mean", "keep"]}, "several targets"),
        ({"target": ["p", "q"], "missing": "mean"}, r"missing=\['mean', 'keep'\]"),
        ({"target": ["p", "q"], "drop": ["q"]}, "cannot be in drop"),
    ):
        with pytest.raises(ValueError, match=message):
            load(path, **options)
    np.savez(tmp_path / "own.npz", X=np.arange(6.0)[:, None], Y=np.arange(12.0).reshape(6, 2))
    assert load(tmp_path / "own.npz", test_fraction=0.0).train[1].shape == (6, 2)
    words = write("a,p,q\n1,2,u\n2,3,v\n3,4,u\n", "words.csv")
    with pytest.raises(ValueError, match="words such as 'u'"):
        load(words, target=["p", "q"])


def test_gaps_of_inputs_are_filled_while_those_of_targets_are_kept(write) -> None:
    rows = (f"{'' if i == 2 else i},{i / 2},{i % 3},{'' if i == 4 else 2 * i}" for i in range(1, 11))
    path = write("a,p,b,q\n" + "\n".join(rows) + "\n")
    options = {"target": ["p", "q"], "test_fraction": 0.0, "standardise": False}
    for missing in ("keep", "error"):
        with pytest.raises(ValueError, match=r"or missing=\['mean', 'keep'\]"):
            load(path, missing=missing, **options)
    X, Y = load(path, missing=["mean", "keep"], **options).train
    filled = load(path, missing="mean", drop=["q"], **{**options, "target": "p"})
    np.testing.assert_array_equal(X, filled.train[0])
    assert filled.feature_names == ("a", "b", "a is missing")
    assert np.isnan(Y).sum() == 1
    for wrong in (["mean", "drop"], [], "mean keep", None):
        with pytest.raises(ValueError, match=r"missing=.* is unknown"):
            load(path, missing=wrong, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"categories": ["a", "b"]}, "a list of levels for each column"),
        ({"categories": {"a": "SML"}}, "a list of levels for each column"),
        ({"categories": {"a": 3}}, "a list of levels for each column"),
        ({"categories": {3: ["S", "M"]}}, "a list of levels for each column"),
        ({"dates": ["a"]}, "an order for each column"),
        ({"exposure": ["a"]}, "the name of a column, as text"),
        ({"test_fraction": "0.2"}, r"must lie in \[0, 1\)"),
        ({"test_fraction": None}, r"must lie in \[0, 1\)"),
        ({"drop": None}, "lists of column names"),
        ({"drop": [3]}, "lists of column names"),
        ({"one_hot": (name for name in "a")}, "lists of column names"),
        ({"task": ["binary"]}, "is unknown; choose one of"),
        ({"test": 3}, "the path of a table or a data frame"),
    ],
)
def test_arguments_of_another_type_are_refused_in_words(write, options, message):
    with pytest.raises(ValueError, match=message):
        load(write(GOOD), **options)
