"""Exports that take the raw row: the graph makes the inputs that training made, and what it says of them is checked."""

from __future__ import annotations

import copy
import dataclasses
import html
import json
import random
import re
import subprocess
import sys

import consumers
import gpflow
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from hostile import Edited, into_function
from test_tables import ASKED, MESSY

import gpflow_ext as gpx
from gpflow_ext.data.reading import cells, marks
from gpflow_ext.data.reading.treatment import Column, Treatment
from gpflow_ext.persistence import raw_rows
from gpflow_ext.persistence.card import model_card
from gpflow_ext.persistence.verify import sealed
from gpflow_ext.server.limits import Limits, RefusedError
from gpflow_ext.server.raw_rows import example_row, read_raw, unseen

# The names are such as tables have, and TensorFlow has not.
TEXT = MESSY.replace("price;when;", "Unit price;Größe;").replace(";gap;", ";class;")
ROW = {"Unit price": "3,5", "Größe": "02.03.2021", "colour": "red", "size": "M", "class": 4}
TENSORS = {
    "Unit price": "Unit_price",
    "Größe": "Gr_e",
    "colour": "colour",
    "size": "size",
    "class": "class_column",
}


def built(split):
    model = gpflow.models.VGP(
        split.train, gpflow.kernels.SquaredExponential(lengthscales=3.0), gpx.likelihoods.BernoulliLogit()
    )
    model.q_mu.assign(np.random.default_rng(0).normal(size=model.q_mu.shape))
    return model


@pytest.fixture(scope="module", name="case")
def _case(tmp_path_factory):
    """A split, a model of it, and the folder of its export."""
    folder = tmp_path_factory.mktemp("raw")
    (folder / "table.csv").write_text(TEXT, encoding="utf-8")
    split = gpx.datasets.load(folder / "table.csv", **ASKED)
    model = built(split)
    return split, model, gpx.export(model, folder / "model", data=split)


@pytest.fixture(scope="module", name="served")
def _served(case):
    return gpx.load_exported(case[2])


@pytest.fixture(scope="module", name="frame")
def _frame(case):
    return pd.read_csv(case[2].parents[1] / "table.csv", sep=";", dtype=str, keep_default_na=False)


def test_the_served_answer_is_the_live_one(case, served, frame):
    split, model, _ = case
    found = served.predict_raw(frame)
    mean, variance = model.predict_y(split.inputs(frame))
    for part, live in (("mean", mean), ("variance", variance)):
        np.testing.assert_allclose(found[part], live, rtol=1e-12, atol=1e-12)
    by_inputs = served.predict(split.treatment.inputs(frame))
    assert found.keys() == by_inputs.keys()
    for key, value in by_inputs.items():
        np.testing.assert_array_equal(found[key], value)
    assert found["is_finite"].all()
    assert len(set(found["label"])) == 2
    assert served.treatment == split.treatment
    of_file = served.predict_raw(case[2].parents[1] / "table.csv")
    np.testing.assert_array_equal(of_file["mean"], found["mean"])


def test_times_of_day_are_served(tmp_path):
    times = [f"{1 + n % 12}:{7 * n % 60:02d} {'ap'[n % 2]}m" for n in range(12)]
    (tmp_path / "table.csv").write_text(
        "at,y\n" + "".join(f"{at},{n % 3 > 0}\n" for n, at in enumerate(times))
    )
    split = gpx.datasets.load(tmp_path / "table.csv", target="y")
    model = built(split)
    served = gpx.load_exported(gpx.export(model, tmp_path / "model", data=split))
    rows = [{"at": at} for at in ("9:30 PM", "00:00", "31:00")]
    found = served.predict_raw(rows)
    np.testing.assert_allclose(found["mean"][:2], model.predict_y(split.inputs(rows[:2]))[0], rtol=1e-12)
    assert found["is_finite"].tolist() == [True, True, False]


def test_months_and_names_of_months_are_served(tmp_path):
    days = [
        f"{1 + 2 * n} {('Jan', 'March', 'oct.')[n % 3]} 202{n % 4}, {1 + n % 12}:05 pm" for n in range(12)
    ]
    (tmp_path / "table.csv").write_text(
        "at;in;y\n" + "".join(f"{at};202{n % 4}Q{1 + n % 3};{n % 3 > 0}\n" for n, at in enumerate(days))
    )
    split = gpx.datasets.load(tmp_path / "table.csv", target="y")
    assert [column.kind for column in split.treatment.columns] == ["date", "date"]
    model = built(split)
    served = gpx.load_exported(gpx.export(model, tmp_path / "model", data=split))
    rows = [{"at": "4 June 2021 12:00 am", "in": "2021-05"}, {"at": "June 4, 2021", "in": "2021Q5"}]
    found = served.predict_raw(rows)
    assert found["is_finite"].tolist() == [True, False]
    np.testing.assert_allclose(found["mean"][:1], model.predict_y(split.inputs(rows[:1]))[0], rtol=1e-12)
    same = {"at": pd.Timestamp("2021-06-04"), "in": pd.Period("2021-05", "M")}
    np.testing.assert_array_equal(served.predict_raw([same])["mean"], found["mean"][:1])


def test_the_card_tells_what_a_row_holds(case):
    card = (case[2] / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert (
        "| raw row | Unit price (number), Größe (date), colour (one-hot, blue, red), size (ordinal, S, M, L)"
        in card
    )
    assert "- `predict_raw`: " in card


def test_no_cell_ends_a_row_of_the_card(case):
    """Not a bar nor a line break in a unit, a level, a label, a metric or the source of the data."""
    manifest = json.loads((case[2] / "manifest.json").read_text(encoding="utf-8"))
    odd = "a|b\r\nc\\"
    one = {"name": odd, "kind": "one-hot", "levels": [odd, "x"], "unit": odd}
    changed = {
        **manifest, "columns": [one, {**one, "levels": []}], "labels": [odd], "metrics": {odd: 1.0},
        "data": manifest["data"] | {"source": odd},
    }  # fmt: skip
    lines = model_card(changed).split("\n")
    bars = [len(re.findall(r"(?:\\.|[^|\\])*\|", line)) for line in lines if line.startswith("|")]
    assert bars == [3] * 12 + [4] * 3
    assert sum("a\\|b c\\\\" in line for line in lines) == 4


def test_what_training_has_not_seen_is_treated_alike(case, served):
    split, model, _ = case
    changes = [
        {}, {"colour": "green"}, {"colour": None}, {"size": "XL"}, {"size": ""}, {"Größe": "31.02.2021"},
        {"Größe": "soon"}, {"Größe": None}, {"class": None}, {"class": np.inf}, {"Unit price": "1.234,5"},
    ]  # fmt: skip
    rows = [{**ROW, **change} for change in changes]
    found, inputs = served.predict_raw(rows), split.inputs(rows)
    finite = [True, True, True, False, True, False, False, True, True, False, True]
    np.testing.assert_array_equal(found["is_finite"], finite)
    np.testing.assert_allclose(
        found["mean"][finite], model.predict_y(inputs[finite])[0], rtol=1e-12, atol=1e-12
    )
    assert np.isnan(found["mean"][~np.array(finite)]).all()
    strict = dataclasses.replace(split.treatment.columns[0], fill=(), flagged=False)
    assert np.isnan(Treatment((strict,)).inputs({"Unit price": [None]})).all()


def encode(treatment):
    """The inputs that the graph makes."""
    same = tf.function(lambda inputs: {"inputs": inputs}).get_concrete_function(
        tf.TensorSpec([None, len(treatment.input_names)], tf.float64)
    )
    function, specs = raw_rows.raw_signature(treatment, same, tf.float64)
    return tf.function(function, autograph=False).get_concrete_function(*specs)


PIECES = [
    "", "NA", "n/a", "NaN", "NULL", "?", "??", " ", "\t", "\u00a0", "S", "s", "S ", " S", "M", "çok", "ÇOK", "\u212a",
    "2020-02-29", "2021-02-29", "29.02.2020", "1/2/2020", "01-02-2020", "2020.1.1", "2020-01-01T23:59:59.125Z",
    "2020-01-01T00:30+05:30", "2020-12-31 23:59:59.5 -0845", "2020-01-01 12:00+05", "2020-01-01 12:00+24:00",
    "2020-01-01T00:30+05:60", "2020-01-01+05:00", "2020-01-01T00:30+00:00Z",
    "2020-01-01 7:05", "2020-01-01T07:5", "2020-01-01T24:00", "2020-01-01T10:00:60", "0000-01-01", "9999-12-31",
    "2020-1-1\n", "２０20-01-01", "2020-01-01T10:00+02:00", "20200101", "1_0", "\x00", "31/12/1999 00:00:00.000000001",
]  # fmt: skip


def test_the_graph_reads_every_cell_as_numpy_does():
    fill = {"fill": (0.25,), "flagged": True}
    columns = [
        Column("number"),
        Column("filled", **fill),
        Column("hot", "one-hot", ("M", "S", "çok")),
        Column("hot filled", "one-hot", ("M", "S"), fill=(0.5, 0.25), flagged=True),
        Column("order", "ordinal", ("S", "çok", "M")),
        Column("order filled", "ordinal", ("S", "M"), **fill),
        *(
            Column(f"date {order}", "date", date_order=order, origin=2458000)
            for order in ("ymd", "dmy", "mdy")
        ),
        Column("date filled", "date", date_order="ymd", origin=2458000, **fill),
        Column("time", "time"),
        Column("time filled", "time", **fill),
    ]
    treatment = Treatment(tuple(columns))
    graph = encode(treatment)
    rng = random.Random(0)
    dates = [f"{rng.randint(0, 2100):04d}-{rng.randint(0, 13)}-{rng.randint(0, 32)}" for _ in range(300)]
    halves = ("", ":07", ":07.25", " am", "PM", " p.m.", "  am", ":61", " xm")
    times = [f"{rng.randint(0, 25)}:{rng.randint(0, 62):02d}{rng.choice(halves)}" for _ in range(300)]
    times += [f"{hour} pm" for hour in range(15)]
    months = ("Jan", "march", "MAY.", "Sept", "december", "Q1", "q4", "q5", "mayor")
    parts = [[str(rng.randint(0, 32)), rng.choice(months), str(rng.randint(1990, 2030))] for _ in range(900)]
    named = []
    for each in parts:
        order = rng.choice(([0, 1, 2], [1, 0, 2], [2, 1, 0], [1, 2], [2, 1]))
        later = rng.choice(("", "", " 3:15 PM", ", 12:00:30 a.m.", " 13:00 pm", " 10:00 GMT-0300", "Z"))
        named.append(rng.choice(" -, ").join(each[place] for place in order) + later)
    texts = [*PIECES, *dates, *named, *times, *("/".join(date.split("-")[::-1]) for date in dates)]
    numbers = [*np.random.default_rng(0).normal(size=len(texts) - 4), np.nan, np.inf, -np.inf, 1e300]
    rows = {column.name: texts if column.is_text else numbers for column in columns}
    cells = treatment.cells(rows)
    tensors = dict(zip(raw_rows.tensor_names(list(cells)), map(tf.constant, cells.values()), strict=True))
    expected = treatment.inputs(rows)
    np.testing.assert_array_equal(graph(**tensors)["inputs"], expected)
    days = expected[:, treatment.input_names.index("date ymd")]
    assert 0.1 < np.isnan(days).mean() < 0.97  # some are dates, some are none
    hours = expected[:, treatment.input_names.index("time")]
    assert 0.1 < np.isnan(hours).mean() < 0.95
    assert np.nanmax(hours) > 23.0
    empty = {name: tensor[:0] for name, tensor in tensors.items()}
    assert graph(**empty)["inputs"].shape == (0, len(treatment.input_names))


def test_names_of_tensors():
    names = ["a", "A", "a b", "a-b", "é", "1st", "_x", "self", "class", "lambda", "x" * 300, "a_2"]
    found = raw_rows.tensor_names(names)
    assert found[:10] == [
        "a", "A_2", "a_b", "a_b_2", "column", "column_1st", "x", "self_column", "class_column", "lambda_column"
    ]  # fmt: skip
    assert len({name.lower() for name in found}) == len(names)
    assert found[-1] == "a_2_2"


def test_single_precision_and_names_of_all_kinds(tmp_path):
    """The row is encoded in double precision, and rounded then; the names are those of arguments elsewhere."""
    rng = np.random.default_rng(0)
    names = ["self", "name", "inputs", "a b", "A B", "args", "kwargs", "labels", "mean", "signature"]
    table = pd.DataFrame(rng.normal(size=(30, len(names))) + 1e3, columns=names).assign(y=rng.normal(size=30))
    split = gpx.datasets.load(table, dtype="float32")
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        model = gpflow.models.GPR(split.train, gpflow.kernels.Matern52(lengthscales=3.0))
        loaded = gpx.load_exported(gpx.export(model, tmp_path / "m", data=split, profile="exact"))
    live = model.predict_y(split.inputs(table))[0]
    np.testing.assert_allclose(loaded.predict_raw(table)["mean"], live, atol=2e-3)  # X is rounded to 6e-5
    assert loaded.manifest["columns"][0]["tensor"] == "self_column"


def test_without_a_table_there_is_no_such_signature(case, exported, tmp_path):
    split = case[0]
    loaded = gpx.load_exported(exported)
    assert "columns" not in loaded.manifest
    assert "predict_raw" not in loaded.manifest["signatures"]
    with pytest.raises(ValueError, match="exported without its table"):
        loaded.predict_raw([ROW])
    other = gpflow.models.GPR((split.train[0][:, :3], split.train[1]), gpflow.kernels.Matern52())
    with pytest.raises(ValueError, match="make 7 inputs, and the model takes 3"):
        gpx.export(other, tmp_path / "other", data=split, scaler=(np.zeros(3), np.ones(3)))


def test_many_columns_of_numbers_are_inputs_alone(case, tmp_path, monkeypatch):
    monkeypatch.setattr(raw_rows, "_MOST_COLUMNS", 1)
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(9, 3)), columns=list("aby"))
    split = gpx.datasets.load(table)
    model = gpflow.models.GPR(split.train, gpflow.kernels.Matern52())
    folder = gpx.export(model, tmp_path / "m", data=split, profile="exact")
    assert gpx.load_exported(folder).treatment is None
    assert not case[0].treatment.is_plain


def test_a_graph_that_would_differ_is_not_exported(tmp_path, monkeypatch):
    table = pd.DataFrame({"a": list("uvuvuvuvu"), "y": np.arange(9.0)})
    split = gpx.datasets.load(table, missing="mean")
    model = gpflow.models.GPR(split.train, gpflow.kernels.Matern52())
    monkeypatch.setattr(raw_rows.cells, "MISSING", "gone")
    with pytest.raises(ValueError, match="makes other inputs of raw rows"):
        gpx.export(model, tmp_path / "m", data=split, profile="exact")
    assert not list((tmp_path / "m").glob("*"))


def test_rows_that_do_not_fit_are_named(served):
    for rows, message in (
        ([{**ROW, "class": "many"}], "row 0, column 'class': 'many' is not a number"),
        (
            [{key: ROW[key] for key in ("colour", "size")}],
            "the columns Unit price, Größe, class are not there",
        ),
        ({key: [cell] * (2 if key == "size" else 1) for key, cell in ROW.items()}, "not as many rows each"),
        ([1, 2], "a data frame, a mapping of columns, a list of mappings, or a path"),
    ):
        with pytest.raises(ValueError, match=message):
            served.predict_raw(rows)


ALONE = (
    consumers.REFUSE
    + """import json, numpy as np, tensorflow as tf
folder, row = sys.argv[1], json.loads(sys.argv[2])
served = tf.saved_model.load(folder).signatures["predict_raw"]
cells = {k: tf.constant([v], tf.string if isinstance(v, str) else tf.float64) for k, v in row.items()}
print(float(served(**cells)["mean"][0, 0]))
"""
)


@pytest.mark.slow
def test_tensorflow_alone_takes_the_raw_row(case, served):
    row = {TENSORS[name]: cell for name, cell in {**ROW, "Unit price": 3.5, "class": 4.0}.items()}
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(case[2]), json.dumps(row)],
        capture_output=True,
        text=True,
        check=True,
    )
    np.testing.assert_allclose(float(done.stdout), served.predict_raw([ROW])["mean"][0, 0], rtol=1e-12)


def _first(manifest, kind):
    return next(column for column in manifest["columns"] if column["kind"] == kind)


SENSELESS = {
    "no columns": (lambda m: m.pop("columns"), "only one of the columns in manifest.json and the signature predict_raw is there"),
    "null": (lambda m: m.update(columns=None), "columns in manifest.json must be a list"),
    "a column less": (lambda m: m["columns"].pop(), "make other inputs than data has"),
    "another order": (lambda m: m["columns"].reverse(), "make other inputs than data has"),
    "levels of others": (lambda m: _first(m, "ordinal").update(levels=["A", "B", "C"]), "levels of 'size'"),
    "levels reversed": (lambda m: _first(m, "ordinal")["levels"].reverse(), "levels of 'size'"),
    "doubled level": (lambda m: _first(m, "ordinal").update(levels=["S", "S", "L"]), "contradicts its kind"),
    "levels of a number": (lambda m: _first(m, "number").update(levels=["a", "b"]), "contradicts its kind"),
    "another kind": (lambda m: _first(m, "date").update(kind="number"), "contradicts its kind"),
    "unknown kind": (lambda m: _first(m, "date").update(kind="zip"), r"columns\[1\].kind .* one of number"),
    "no order of dates": (lambda m: _first(m, "date").update(date_order=""), "contradicts its kind"),
    "two fills": (lambda m: _first(m, "number").update(fill=[1.0, 2.0]), "contradicts its kind"),
    "unit of a date": (lambda m: _first(m, "date").update(unit="kg"), "contradicts its kind"),
    "flag without fill": (lambda m: m["columns"][-1].update(fill=[]), "contradicts its kind"),
    "not flagged": (lambda m: m["columns"][-1].update(flagged=False), "make other inputs than data has"),
    "another tensor": (lambda m: _first(m, "number").update(tensor="other"), "not those of the signature"),
    "two of a tensor": (lambda m: m["columns"][0].update(tensor="size"), "two of one tensor"),
    "strange tensor": (lambda m: m["columns"][0].update(tensor="a b"), r"columns\[0\].tensor"),
    "another key": (lambda m: m["columns"][0].update(evil=1), r"has 'columns\[0\].evil'"),
    "a key less": (lambda m: m["columns"][0].pop("fill"), r"lacks columns\[0\].fill"),
}  # fmt: skip


def test_units_and_times_of_day_are_in_the_manifest_and_in_an_example(tmp_path):
    rows = "".join(f"{i},5 kg;{i}:30 pm;{i % 2}\n" for i in range(1, 12))
    (tmp_path / "table.csv").write_text("mass;at;y\n" + rows)
    split = gpx.datasets.load(tmp_path / "table.csv", target="y")
    folder = gpx.export(built(split), tmp_path / "model", data=split)
    served = gpx.load_exported(folder)
    kinds = [(column["kind"], column["unit"]) for column in served.manifest["columns"]]
    assert kinds == [("number", "kg"), ("time", "")]
    assert "| raw row | mass (number in kg), at (time) |" in (folder / "MODEL_CARD.md").read_text()
    inputs = split.inputs([{"mass": "7,5 kg", "at": "11:29 pm"}])
    example = example_row(served.manifest["columns"], split.feature_names, split.scaler.inverse(inputs)[0])
    assert example == {"mass": 7.5, "at": "23:29"}
    np.testing.assert_array_equal(split.inputs([example]), inputs)


def test_what_a_manifest_says_of_columns_is_checked(case, tmp_path):
    model = Edited(case[2], tmp_path / "model")
    assert gpx.verify(model.folder).files == 6
    for edit, reason in SENSELESS.values():
        manifest = copy.deepcopy(model.manifest)
        edit(manifest)
        (model.folder / "manifest.json").write_bytes(sealed(manifest))
        with pytest.raises(ValueError, match=reason):
            gpx.verify(model.folder)


@pytest.mark.parametrize(
    "operation",
    ["HashTableV2", "InitializeTableFromTextFileV2", "InitializeTableV2", "RegexReplace", "ReadFile"],
)
def test_tables_and_files_stay_out_of_the_graph(case, tmp_path, operation):
    """The list of operations holds what cells need and no more: a table that is looked up could read a file."""
    model = Edited(case[2], tmp_path / "model")
    call = next(iter(model.meta.signature_def["predict_raw"].outputs.values())).name.split(":")[0]
    into_function(model.called(call), operation, str(tmp_path / "target"))
    with pytest.raises(ValueError, match=f"has {operation} .*not on the list of harmless operations"):
        gpx.verify(model.write())


@pytest.fixture(scope="module", name="client")
def _client(case):
    pytest.importorskip("starlette", reason="needs the extra serve")
    testing = pytest.importorskip("starlette.testclient")
    from gpflow_ext.server.app import make_app
    from gpflow_ext.server.model import ServedModel

    return testing.TestClient(make_app(ServedModel(case[2]), Limits(rows=50)))


def test_the_server_takes_raw_rows(client, served, frame):
    cells = served.treatment.cells(frame)
    columns = {
        TENSORS[name]: [None if cell != cell else cell for cell in column.tolist()]
        for name, column in cells.items()
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    expected = served.predict_raw(frame)

    def post(**body):
        answer = client.post("/v1/models/model:predict", json={"signature_name": "predict_raw", **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    by_column = post(inputs=columns)["outputs"]
    np.testing.assert_array_equal(by_column["mean"], expected["mean"])
    assert by_column["label"] == expected["label"].tolist()
    by_row = post(instances=rows)["predictions"]
    assert [row["probabilities"] for row in by_row] == by_column["probabilities"]
    named = {**ROW, "Unit price": 3.5}
    answer = client.post("/predict", json=named).json()
    np.testing.assert_array_equal(answer["mean"], served.predict_raw([ROW])["mean"][0])
    lost = client.post("/predict", json={**named, "size": "XL"}).json()
    assert (lost["is_finite"], lost["mean"], lost["label"]) == (False, [None], "")
    page = html.unescape(client.get("/").text)
    body = json.loads(re.search(r"curl -d '(.*)' http://HOST", page)[1])
    [shown] = post(**{key: value for key, value in body.items() if key != "signature_name"})["predictions"]
    assert shown["is_finite"]
    assert set(body["instances"][0]) == set(TENSORS.values())
    assert "Unit price (Unit_price)" in page
    assert "predict_raw" in page


def test_the_server_names_words_that_training_has_not_seen(client, served):
    """They are predicted as none of the known ones, and the answer was like that of any other row."""
    row = {TENSORS[name]: cell for name, cell in {**ROW, "Unit price": 3.5}.items()}
    colours = " green", "red", "N/A", None, "x" * 300
    body = {"signature_name": "predict_raw", "instances": [{**row, "colour": each} for each in colours]}
    answer = client.post("/v1/models/model:predict", json=body).json()
    assert answer["unseen"] == {"colour": ["green", "x" * 200]}
    expected = served.predict_raw([{**ROW, "colour": each} for each in colours])["mean"]
    np.testing.assert_array_equal([each["mean"] for each in answer["predictions"]], expected)
    columns = {key: [cell, cell] for key, cell in row.items()}
    by_column = {"signature_name": "predict_raw", "inputs": columns | {"colour": ["red", "green"]}}
    assert client.post("/v1/models/model:predict", json=by_column).json()["unseen"] == {"colour": ["green"]}
    one = {**ROW, "Unit price": 3.5, "colour": "green"}
    answer = client.post("/predict", json=one).json()
    assert (answer["unseen"], answer["is_finite"]) == ({"colour": ["green"]}, True)
    assert "unseen" not in client.post("/predict", json=one | {"colour": "blue"}).json()
    assert "unseen" in html.unescape(client.get("/").text)
    column = {"kind": "one-hot", "name": "a", "tensor": "a", "levels": ["x"]}
    for mark in (*marks.MISSING, "NA", " nan\v", "-", "none"):
        assert (unseen([column], {"a": [mark]}) == {}) == cells.is_missing(mark)


def test_truth_values_and_numbers_of_json_are_the_levels_that_they_spell():
    columns = [
        {"tensor": "open", "levels": ["FALSE", "TRUE"]},
        {"tensor": "zip", "levels": ["01067", "8001"]},
        {"tensor": "size", "levels": []},
    ]
    inputs = {"open": {"dtype": "string", "shape": [None]}, "zip": {"dtype": "string", "shape": [None]}}
    inputs["size"] = {"dtype": "float64", "shape": [None]}
    cells = {"open": [True, False, None, "TRUE"], "zip": [1067, 8001.0, "8001", None], "size": [1, 2, 3, 4]}
    found = read_raw({"inputs": cells}, inputs, Limits(), columns)
    assert found["open"].tolist() == ["TRUE", "FALSE", "", "TRUE"]
    assert found["zip"].tolist() == ["01067", "8001", "8001", ""]
    for wrong in ({"zip": True}, {"open": 1}, {"zip": 8002}, {"zip": 10**400}, {"size": True}):
        row = {key: column[0] for key, column in cells.items()} | wrong
        with pytest.raises(RefusedError, match=" is not "):
            read_raw({"instances": [row]}, inputs, Limits(), columns)


def test_the_server_refuses_other_rows(client):
    good = {TENSORS[name]: cell for name, cell in {**ROW, "Unit price": 3.5}.items()}
    for body, reason in (
        ({"instances": [{**good, "size": 1}]}, "row 0, size: 1 is not text: write it as the table does"),
        ({"instances": [{**good, "Unit_price": "3,5"}]}, "row 0, Unit_price: '3,5' is not a number"),
        ({"instances": [{**good, "Unit_price": True}]}, "True is not a number"),
        ({"instances": [{**good, "Unit_price": 10**400}]}, "is not a number"),
        ({"instances": [{**good, "size": "\ud800"}]}, "is not text"),
        ({"instances": [good, {**good, "more": 1}]}, "missing: []; unknown: ['more']"),
        ({"instances": [{k: v for k, v in good.items() if k != "size"}]}, "missing: ['size']; unknown: []"),
        (
            {"signature_name": "serving_default", "instances": [good]},
            'go with "signature_name": "predict_raw"',
        ),
        ({"instances": [[1, 2]]}, "row 0 must be an object with"),
        ({"instances": []}, "there are 0 rows"),
        ({"instances": [good] * 51}, "1 to 50 rows"),
        ({"instances": "x"}, "must be a list"),
        ({"inputs": {name: [cell] * (1 + (name == "size")) for name, cell in good.items()}}, "as many rows"),
        ({"inputs": {**{key: [None] for key in good}, "size": "S"}}, "size is not a list of cells"),
        ({"inputs": [1]}, "inputs must be an object with"),
        ({"inputs": {key: [None] * 51 for key in good}}, "there are 51 rows"),
    ):
        text = json.dumps({"signature_name": "predict_raw", **body})
        answer = client.post("/v1/models/model:predict", content=text)
        assert (answer.status_code, reason in answer.json()["error"]) == (422, True), (reason, answer.text)
    assert (
        "missing inputs: ['size']"
        in client.post("/predict", json={k: v for k, v in ROW.items() if k != "size"}).text
    )


@pytest.mark.parametrize("data", ["table.csv", 3, (np.zeros((3, 2)), np.zeros((3, 1)))])
def test_data_that_say_nothing_of_columns_are_refused(data) -> None:
    with pytest.raises(ValueError, match=r"data must be what datasets\.load returns; got a"):
        raw_rows.treatment_of(data, 2)


def test_the_name_of_a_table_is_no_data() -> None:
    """It was ignored, and the export had no signature of raw rows."""
    with pytest.raises(ValueError, match=r"what datasets\.load returns; got a str"):
        raw_rows.treatment_of("table.csv", 3)
