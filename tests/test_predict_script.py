"""Prediction of files: by name, in batches, in constant memory, with errors that name line and column."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import os
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpflow
import numpy as np
import pandas
import pytest

import gpflow_ext as gpx
from gpflow_ext.cli import predict as script
from gpflow_ext.cli import streams
from scripts import predict

ROOT = Path(__file__).resolve().parents[1]


MODEL = ROOT / "saved_models" / "wine_sparse_ep"


@pytest.fixture(scope="module", name="served")
def _served():
    return gpx.load_exported(MODEL)


@pytest.fixture(scope="module", name="unnamed")
def _unnamed(tmp_path_factory):
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = gpflow.models.GPR((X, X), gpflow.kernels.Matern32())
    return gpx.load_exported(gpx.export(model, tmp_path_factory.mktemp("unnamed") / "m"))


def peak():
    """Return the most memory that the process has held, in kB."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def rows(number):
    example = np.load(MODEL / "1" / "example.npz")["inputs"]
    return example.mean(0) + example.std(0) * np.random.default_rng(1).normal(size=(number, 13))


def table(path, served, X, separator=",", order=slice(None, None, -1)):
    """Write X with an id and the columns in another order."""
    names = served.manifest["data"]["feature_names"][order]
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow([*names, "id"])
        writer.writerows([*map(repr, row[order].tolist()), f"row {i}"] for i, row in enumerate(X))
    return path


def read(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.tsv.gz", "\t"), ("a.csv", ";")])
def test_predicts_every_row_by_name(served, tmp_path, name, separator):
    X, out = rows(23), tmp_path / f"out_{name}"
    assert predict.predict(served, table(tmp_path / name, served, X, separator), out, ["id"], 10) == (23, 0)
    found, expected = read(out), served.predict(X)
    assert [row["id"] for row in found] == [f"row {i}" for i in range(23)]
    assert [row["label"] for row in found] == expected["label"].tolist()
    for k, label in enumerate(served.labels):
        ours = [float(row[f"probability_{label}"]) for row in found]
        np.testing.assert_allclose(ours, expected["probabilities"][:, k], rtol=1e-12)
    assert not list(tmp_path.glob("*.partial"))


def test_a_model_without_names_or_classes_takes_the_columns_in_order(unnamed, tmp_path):
    (tmp_path / "a.csv").write_text("u,id,v\n0.5,x,1\n\n,y,2\n")
    assert predict.predict(unnamed, tmp_path / "a.csv", tmp_path / "b.csv", ["id"], 10) == (2, 1)
    first, second = read(tmp_path / "b.csv")
    mean = unnamed.predict([[0.5, 1.0]])["mean"][0]
    np.testing.assert_allclose([float(first["mean_0"]), float(first["mean_1"])], mean)
    assert first["is_finite"] == "1"
    assert (second["id"], second["mean_0"], second["is_finite"]) == ("y", "", "0")


@pytest.mark.parametrize(
    ("target", "ends"),
    [
        ("height, body mass", ("_height", "_body mass")),
        (["height", "a, b"], ("_height", "_a, b")),
        ("one, two, three", ("_0", "_1")),
        ("y, y", ("_0", "_1")),
        (None, ("_0", "_1")),
    ],
)
def test_several_outputs_are_named_by_target(unnamed, tmp_path, target, ends):
    named = types.SimpleNamespace(
        manifest=unnamed.manifest | {"data": unnamed.manifest["data"] | {"target": target}},
        treatment=None,
        predict=unnamed.predict,
    )
    (tmp_path / "a.csv").write_text("u,v\n0.5,1\n")
    predict.predict(named, tmp_path / "a.csv", tmp_path / "b.csv", [], 10)
    [row] = read(tmp_path / "b.csv")
    assert list(row) == [*(f"{what}{end}" for what in ("mean", "variance") for end in ends), "is_finite"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no header line"),
        ("u\n1\n", "2 inputs without names; .* has 1 columns"),
        ("u,v\n1,2\n1,x\n", r"line 3, column 'v': 'x' is not a number"),
        ("u,v\n1,2\n1,1_0\n", r"line 3, column 'v': '1_0' is not a number"),
        ("u,v\n1,2\n1,\u0661\n", r"line 3, column 'v': '\u0661' is not a number"),
        ("u,v\n1,2,3\n", "line 2: 3 cells, but the header has 2 columns"),
    ],
)
def test_a_wrong_file_is_told_where(unnamed, tmp_path, content, message):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        predict.predict(unnamed, tmp_path / "a.csv", tmp_path / "b.csv", [], 1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_missing_and_doubled_columns_are_named(served, tmp_path):
    names = served.manifest["data"]["feature_names"]
    for header, keep, message in (
        (names[1:], [], "lacks 1 of the model's 13 inputs: alcohol"),
        ([*names, names[0]], [], "several columns named alcohol"),
        (names, ["id"], "no column 'id'"),
    ):
        (tmp_path / "a.csv").write_text(",".join(header) + "\n")
        with pytest.raises(ValueError, match=message):
            predict.predict(served, tmp_path / "a.csv", tmp_path / "b.csv", keep, 1)


def test_a_file_without_rows_gives_one_without_rows(served, tmp_path):
    assert predict.predict(served, table(tmp_path / "a.csv", served, rows(0)), tmp_path / "b.csv", [], 5) == (
        0,
        0,
    )
    assert read(tmp_path / "b.csv") == []


def test_memory_does_not_grow_with_the_file(served, tmp_path):
    """Ten times the rows may not raise the peak of the process: the larger file alone is 30 MB of text."""
    small, large = rows(2_000), np.tile(rows(1_000), (100, 1))
    predict.predict(served, table(tmp_path / "a.csv", served, small), tmp_path / "out.csv", [], 500)
    data = table(tmp_path / "b.csv", served, large)
    assert data.stat().st_size > 25e6
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of the tests before
    before = peak()
    predict.predict(served, data, tmp_path / "out.csv", [], 500)
    assert peak() - before < 8_000


def test_from_the_shell(served, tmp_path, monkeypatch, capsys):
    data, out = table(tmp_path / "a.csv", served, rows(3)), tmp_path / "b.csv"
    arguments = ["predict.py", "--model", str(MODEL), "--data", str(data), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    predict.main()
    assert "3 rows predicted" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*arguments[:-1], str(data)])
    with pytest.raises(ValueError, match="another file"):
        predict.main()


def test_predictions_go_to_streams_and_through_links_which_stay(unnamed, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.csv").write_text("u,v\n0.5,1\n")
    monkeypatch.setattr(gpx, "load_exported", lambda _: unnamed)
    arguments = ["--model", str(tmp_path), "--data", str(tmp_path / "a.csv"), "--out"]
    script.main([*arguments, "-"])
    told = capsys.readouterr()
    assert told.out.startswith("mean_0,")
    assert len(told.out.splitlines()) == 2
    assert "1 rows predicted" in told.err
    assert not Path("-").exists()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.csv").symlink_to(tmp_path / "b.csv")
    with ThreadPoolExecutor() as pool:
        read_pipe = pool.submit((tmp_path / "pipe").read_text)
        script.main([*arguments, str(tmp_path / "pipe")])
        assert read_pipe.result(10) == told.out
        assert (tmp_path / "pipe").is_fifo()
    script.main([*arguments, str(tmp_path / "link.csv")])
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "b.csv").read_text() == told.out


def test_predictions_are_no_parquet_and_no_folder(tmp_path):
    (tmp_path / "a.csv").write_text("u,v\n0.5,1\n")
    for out, what in ((tmp_path / "b.parquet", "no name of a text file"), (tmp_path, "a folder")):
        with pytest.raises(ValueError, match=f"{what}: predictions are written as CSV"):
            script.main(["--model", str(tmp_path), "--data", str(tmp_path / "a.csv"), "--out", str(out)])


@pytest.fixture(scope="module", name="table_model")
def _table_model(tmp_path_factory):
    """A model of a table with words, dates and decimal commas, and the table's file."""
    folder = tmp_path_factory.mktemp("table")
    lines = [
        f"n{i};{i % 7},{i % 4}5;{1 + i % 28:02d}.03.2024;{('red', 'blue')[i % 2]};{i % 5}" for i in range(30)
    ]
    path = folder / "parts.csv"
    path.write_text("\n".join(["name;weight;made;colour;y", *lines]) + "\n")
    split = gpx.datasets.load(path, target="y", drop=["name"], test_fraction=0.0)
    model = gpflow.models.GPR(split.train, gpflow.kernels.Matern32())
    return gpx.load_exported(gpx.export(model, folder / "m", data=split)), path, split


def test_rows_are_read_as_the_table_was(table_model, tmp_path):
    served, path, split = table_model
    assert predict.predict(served, path, tmp_path / "b.csv", ["name"], 7) == (30, 0)
    found = read(tmp_path / "b.csv")
    assert [row["name"] for row in found] == [f"n{i}" for i in range(30)]
    mean = served.predict(split.scaler.inverse(split.train[0]))["mean"][:, 0]
    ours = np.array([float(row["mean"]) for row in found])[split.rows[0]]
    np.testing.assert_allclose(ours, mean, rtol=1e-12)


def test_rows_of_parquet_are_predicted_as_those_of_text(table_model, tmp_path):
    """Numbers, dates and words as they are, though the model was trained on decimal commas and days first."""
    pytest.importorskip("pyarrow", reason="needs the extra parquet")
    served, path, _ = table_model
    frame = pandas.read_csv(path, sep=";", decimal=",")
    frame["made"] = pandas.to_datetime(frame["made"], format="%d.%m.%Y")
    frame["colour"] = frame["colour"].astype("category")
    frame.loc[4, "weight"] = np.nan
    frame.loc[5, "name"] = None
    frame.to_parquet(tmp_path / "a.parquet")
    lines = path.read_text().splitlines()
    for row, column in ((5, 1), (6, 0)):
        cells = lines[row].split(";")
        lines[row] = ";".join("" if place == column else cell for place, cell in enumerate(cells))
    (tmp_path / "a.csv").write_text("\n".join(lines))
    for kind in ("csv", "parquet"):
        out = tmp_path / f"{kind}.csv"
        assert predict.predict(served, tmp_path / f"a.{kind}", out, ["name"], 7) == (30, 1)
    assert (tmp_path / "csv.csv").read_text() == (tmp_path / "parquet.csv").read_text()
    with pytest.raises(ValueError, match=r"--keep: .*a.parquet has no column 'id'; it has name, weight"):
        predict.predict(served, tmp_path / "a.parquet", tmp_path / "b.csv", ["id"], 7)
    frame["weight"] = ["heavy", *map(str, frame["weight"][1:])]
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="line 1, column 'weight': 'heavy' is not a number"):
        predict.predict(served, tmp_path / "a.parquet", tmp_path / "b.csv", [], 7)
    (tmp_path / "a.parquet").write_bytes(b"PAR1\x15\x04\x15\x80")
    with pytest.raises(ValueError, match="is not a complete Parquet file"):
        predict.predict(served, tmp_path / "a.parquet", tmp_path / "b.csv", [], 7)


def test_whole_numbers_of_parquet_are_kept_whole(table_model, tmp_path):
    """Also beside gaps, and where they are too large for a floating number."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    parquet = pytest.importorskip("pyarrow.parquet")
    served, path, _ = table_model
    frame = pandas.read_csv(path, sep=";", decimal=",").iloc[:3]
    table = pyarrow.Table.from_pandas(frame.drop(columns="name"))
    table = table.append_column("id", pyarrow.array([12, None, 2**60 + 1]))
    table = table.append_column("half", pyarrow.array([12.0, None, 0.5]))
    parquet.write_table(table, tmp_path / "a.parquet")
    predict.predict(served, tmp_path / "a.parquet", tmp_path / "a.csv", ["id", "half"], 7)
    kept = [(row["id"], row["half"]) for row in read(tmp_path / "a.csv")]
    assert kept == [("12", "12"), ("", ""), (str(2**60 + 1), "0.5")]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_words_that_no_training_row_had_are_told(table_model, tmp_path, capsys, kind):
    """Their rows are predicted as none of the known words; a missing one is none of them."""
    served, path, _ = table_model
    frame = pandas.read_csv(path, sep=";", decimal=",")
    frame.loc[[3, 8], "colour"] = "green"
    frame.loc[9, "colour"] = None
    data = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="needs the extra parquet")
        frame.to_parquet(data)
    else:
        frame.to_csv(data, sep=";", decimal=",", index=False)
    arguments = ["--model", str(served.path), "--data", str(data), "--out", str(tmp_path / "b.csv")]
    script.main(arguments)
    shown = capsys.readouterr().out
    assert "2 of them have words that no training row had" in shown
    assert "known ones: colour 'green'\n" in shown
    script.main([*arguments[:3], str(path), *arguments[4:]])
    assert "have words" not in capsys.readouterr().out


def test_a_cell_that_is_no_number_is_told_by_its_line(table_model, tmp_path):
    served, path, _ = table_model
    lines = path.read_text().splitlines()
    lines[12] = lines[12].replace(lines[12].split(";")[1], "heavy")
    (tmp_path / "a.csv").write_text("\n".join(lines))
    with pytest.raises(ValueError, match="line 13, column 'weight': 'heavy' is not a number"):
        predict.predict(served, tmp_path / "a.csv", tmp_path / "b.csv", [], 5)
    lines[12] = ";;;;"
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert predict.predict(served, tmp_path / "a.csv", tmp_path / "b.csv", [], 5) == (30, 1)
    (tmp_path / "a.csv").write_text("name;weight;y\n")
    with pytest.raises(ValueError, match="lacks 2 of the model's 3 columns: made, colour"):
        predict.predict(served, tmp_path / "a.csv", tmp_path / "b.csv", [], 5)


def test_cells_are_divided_as_those_of_the_table_were(table_model, tmp_path):
    """Quotes behind spaces, separators in names, empty lines on top."""
    served, path, _ = table_model
    rows = [line.split(";") for line in path.read_text().splitlines()]
    rows[0][0] = "name, of, the, part"
    quoted = "\n\n" + "\n".join("; ".join(f'"{cell}"' for cell in row) for row in rows)
    (tmp_path / "a.csv").write_text(quoted)
    for data, out in ((path, "b.csv"), (tmp_path / "a.csv", "c.csv")):
        assert predict.predict(served, data, tmp_path / out, ["y"], 7) == (30, 0)
    assert (tmp_path / "c.csv").read_text() == (tmp_path / "b.csv").read_text()


@pytest.mark.parametrize(
    ("cell", "separator", "exposure"),
    [
        ("1,234", ",", None), ("1,234", ";", 1.234), ("1,5", ",", 1.5), ("1,234,567", ",", 1234567.0),
        ("1,234.5", "\t", 1234.5), ("2.5", ";", 2.5), ("0,000", ";", None), ("x", ",", None),
    ],
)  # fmt: skip
def test_commas_of_exposures_are_not_guessed(cell, separator, exposure):
    marks = script.marks_of(None, separator)
    if exposure is None:
        with pytest.raises(ValueError, match=r"may stand before|not a positive number"):
            script._exposure(cell, marks, "line 2")
    else:
        assert script._exposure(cell, marks, "line 2") == exposure


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("cut", [False, True])
def test_packed_files_that_are_none_or_cut_are_named(tmp_path, suffix, cut):
    path = tmp_path / f"a.csv{suffix}"
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[suffix]
    content = pack(b"a,b\n" + b"1,2\n" * 99)
    path.write_bytes(content[:-9] if cut else b"a,b\n1,2\n")
    with pytest.raises(ValueError, match=f"is not a complete {suffix} file .*: compress it again"):  # noqa: SIM117
        with streams.reading(path) as (text, _):
            text.read()


@pytest.mark.parametrize("suffix", [".bz2", ".xz"])
def test_files_are_packed_by_their_suffix(unnamed, tmp_path, suffix):
    opened = {".bz2": bz2.open, ".xz": lzma.open}[suffix]
    with opened(tmp_path / f"a.csv{suffix}", "wt") as file:
        file.write("u|v\n0.5|1\n")
    out = tmp_path / f"b.csv{suffix}"
    assert predict.predict(unnamed, tmp_path / f"a.csv{suffix}", out, [], 10) == (1, 0)
    with opened(out, "rt") as file:
        assert len(file.read().splitlines()) == 2
