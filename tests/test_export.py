"""Exported models: agreement with the live model, TensorFlow alone, refusal of what was tampered with."""

from __future__ import annotations

import concurrent.futures
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import consumers
import gpflow
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import gpflow_ext as gpx
from gpflow_ext.likelihoods import Weighted
from gpflow_ext.numerics.log_predictive import log_predictive
from gpflow_ext.persistence import durable, row_blocks
from gpflow_ext.persistence.export import export
from gpflow_ext.persistence.exported import load_exported
from gpflow_ext.persistence.verify import verify

ROOT = Path(__file__).resolve().parents[1]
RNG = np.random.default_rng(2)
N, D = 30, 3
X = RNG.normal(size=(N, D))
MEAN, SCALE = np.array([1e3, -2.0, 0.0]), np.array([50.0, 0.1, 1.0])
LABELS = ("ill", "well", "çok iyi")


def kernel():
    return gpflow.kernels.SquaredExponential(lengthscales=2.0)


def trained(model):
    """Give a model values that no default has, in place of training it."""
    rng = np.random.default_rng(3)
    for name, parameter in gpflow.utilities.parameter_dict(model).items():
        if name == ".q_mu":
            parameter.assign(rng.normal(size=parameter.shape))
        if name == ".q_sqrt":
            parameter.assign(
                0.3 * np.tril(rng.normal(size=parameter.shape)) + 0.5 * np.eye(parameter.shape[-1])
            )
    return model


def binary():
    return trained(gpflow.models.SVGP(kernel(), gpflow.likelihoods.Bernoulli(), X[:12] + 0.1, num_data=N))


def multiclass():
    likelihood = gpflow.likelihoods.MultiClass(3)
    return trained(gpflow.models.SVGP(kernel(), likelihood, X[:8].copy(), num_latent_gps=3, whiten=False))


def counts():
    Y = RNG.poisson(2.0, size=(N, 1)).astype(float)
    return trained(gpflow.models.VGP((X, Y), kernel(), gpflow.likelihoods.Poisson()))


def regression():
    mean = gpflow.functions.Linear(np.ones((D, 2)))
    return gpflow.models.GPR((X, X @ RNG.normal(size=(D, 2))), kernel(), mean)


def without_posterior():
    Y = (X[:, :1] > 0).astype(float)
    model = gpflow.models.GPMC((X, Y), kernel(), gpflow.likelihoods.Bernoulli())
    model.V.assign(np.random.default_rng(4).normal(size=(N, 1)))
    return model


MODELS = {f.__name__: f for f in (binary, multiclass, counts, regression, without_posterior)}
NAMES = {"binary": LABELS[:2], "multiclass": LABELS}


class Case:
    def __init__(self, name, folder):
        self.model = MODELS[name]()
        self.labels = NAMES.get(name)
        self.folder = export(self.model, folder / name, scaler=(MEAN, SCALE), labels=self.labels)
        self.loaded = load_exported(self.folder.parent)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("saved_models"), {}

    def case(name):
        if name not in made:
            made[name] = Case(name, folder)
        return made[name]

    return case


def raw(n):
    return MEAN + SCALE * np.random.default_rng(5).normal(size=(n, D))


def agree(ours, live):
    """Equal to 1e-12 relative to the size of the quantity, and of the same shape."""
    live = np.asarray(live)
    assert ours.shape == live.shape
    np.testing.assert_allclose(ours, live, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_the_live_model(cases, name):
    case = cases(name)
    for n in (0, 1, 7, 1000):
        inputs = raw(n)
        standardised = (inputs - MEAN) / SCALE
        f, ours_f = case.model.predict_f(standardised), case.loaded.predict_f(inputs)
        agree(ours_f["mean"], f[0])
        agree(ours_f["variance"], f[1])
        ours, y = case.loaded.predict(inputs), case.model.predict_y(standardised)
        agree(ours["mean"], y[0])
        agree(ours["variance"], y[1])
        assert ours["is_finite"].all()
        shape = case.loaded.manifest["signatures"]["predict_log_density"]["inputs"]["targets"]["shape"]
        targets = np.ones((n, shape[1]))
        agree(
            case.loaded.predict_log_density(inputs, targets),
            log_predictive(case.model.likelihood, tf.constant(standardised), *f, tf.constant(targets)),
        )


@pytest.mark.parametrize("name", ["multiclass", "without_posterior"])
def test_rows_of_several_blocks_agree_with_the_live_model(tmp_path, monkeypatch, name):
    monkeypatch.setattr(row_blocks, "_MOST", 7)
    model = MODELS[name]()
    loaded = load_exported(export(model, tmp_path, scaler=(MEAN, SCALE), labels=NAMES.get(name)))
    inputs, targets = raw(30), np.arange(30.0)[:, None] % 2
    standardised = (inputs - MEAN) / SCALE
    inputs[8] = np.nan
    for part, live in zip(("mean", "variance"), model.predict_y(standardised), strict=True):
        agree(np.delete(loaded.predict(inputs)[part], 8, 0), np.delete(live, 8, 0))
    density = model.predict_log_density((standardised, targets))
    agree(np.delete(loaded.predict_log_density(inputs, targets), 8), np.delete(density, 8))
    answer = loaded.predict(inputs)
    np.testing.assert_array_equal(np.flatnonzero(~answer["is_finite"]), [8])
    one_by_one = [loaded.predict(row[None])["class"] for row in inputs]
    np.testing.assert_array_equal(answer["class"], np.concatenate(one_by_one))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path):
    Y = (X[:, :1] > 0).astype(float)
    rows = np.random.default_rng(0).normal(size=(400, D))
    model = gpflow.models.VGP((rows, np.resize(Y, (400, 1))), kernel(), gpflow.likelihoods.Bernoulli())
    export(model, tmp_path / "model")
    program = (
        "import sys, numpy as np, tensorflow as tf\n"
        "peak = lambda: int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) / 1024\n"
        "predict = tf.saved_model.load(sys.argv[1]).signatures['serving_default']\n"
        "call = lambda n: predict(inputs=tf.constant(np.random.default_rng(0).normal(size=(n, 3))))\n"
        "call(20_000); before = peak(); call(200_000); print(peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model" / "1")],
        capture_output=True,
        check=True,
        text=True,
    )
    assert float(done.stdout) < 60.0  # MB; the answer is 11, K(X, rows) alone would be 640


@pytest.mark.parametrize("name", ["binary", "multiclass"])
def test_classes_and_labels(cases, name):
    case = cases(name)
    out = case.loaded.predict(raw(50))
    assert out["probabilities"].shape == (50, len(case.labels))
    np.testing.assert_allclose(
        out["probabilities"].sum(1), 1.0, atol=3e-3
    )  # robust-max rows sum to 0.997 to 1.001
    np.testing.assert_array_equal(out["class"], out["probabilities"].argmax(1))
    assert out["class"].dtype == np.int64
    assert len(set(out["class"])) > 1
    assert [case.labels[k] for k in out["class"]] == out["label"].tolist()
    assert case.loaded.labels == case.labels


@pytest.mark.parametrize("name", MODELS)
def test_a_bad_row_is_marked_and_does_not_spoil_the_others(cases, name):
    loaded = cases(name).loaded
    good = raw(6)
    bad = good.copy()
    bad[1, 0], bad[3, 2], bad[4] = np.nan, np.inf, -np.inf
    fine = np.array([True, False, True, False, False, True])
    expected, out = loaded.predict(good), loaded.predict(bad)
    np.testing.assert_array_equal(out["is_finite"], fine)
    for key in ("mean", "variance"):
        np.testing.assert_allclose(out[key][fine], expected[key][fine], rtol=1e-11)
        assert np.isnan(out[key][~fine]).all()
    if "class" in out:
        assert (out["class"][~fine] == -1).all()
        assert np.isnan(out["probabilities"][~fine]).all()
    if "label" in out:
        assert (out["label"][~fine] == "").all()
    density = loaded.predict_log_density(bad, np.ones((6, 2 if name == "regression" else 1)))
    np.testing.assert_array_equal(np.isfinite(density), fine)


def test_a_bad_row_does_not_trip_a_check_inside_the_model(tmp_path):
    class Checked(gpflow.functions.Zero):
        def __call__(self, X):
            return super().__call__(tf.debugging.check_numerics(X, "the mean function refuses this batch"))

    model = gpflow.models.SVGP(kernel(), gpflow.likelihoods.Gaussian(), X[:4].copy(), mean_function=Checked())
    loaded = load_exported(export(model, tmp_path / "m"))
    assert loaded.predict([[0.0, 0.0, 0.0], [np.nan, 0.0, 0.0]])["is_finite"].tolist() == [True, False]


@pytest.mark.parametrize("build", [counts, without_posterior])
def test_the_live_model_is_not_changed(tmp_path, build):
    model = build()
    before = {k: v.numpy() for k, v in gpflow.utilities.parameter_dict(model).items()}
    data = model.data
    export(model, tmp_path)
    after = gpflow.utilities.parameter_dict(model)
    assert all(np.array_equal(before[k], after[k]) for k in before)
    assert model.data is data
    assert all(isinstance(array, tf.Tensor) for array in data)


def test_large_arrays_are_variables_not_constants(cases):
    folder = cases("counts").folder
    graph = saved_model_pb2.SavedModel()
    graph.ParseFromString((folder / "saved_model.pb").read_bytes())
    nodes = [*graph.meta_graphs[0].graph_def.node]
    for function in graph.meta_graphs[0].graph_def.library.function:
        nodes += function.node_def
    sizes = [
        np.prod([d.size for d in n.attr["value"].tensor.tensor_shape.dim]) for n in nodes if n.op == "Const"
    ]
    assert max(sizes) < N * D
    shapes = {tuple(shape) for _, shape in tf.train.list_variables(str(folder / "variables" / "variables"))}
    assert {(N, N), (N, D), (N, 1)} <= shapes


TENSORFLOW_ONLY = (
    consumers.REFUSE
    + """import numpy as np, tensorflow as tf
for folder in sys.argv[1:]:
    served = tf.saved_model.load(folder).signatures["serving_default"]
    example = np.load(f"{folder}/example.npz", allow_pickle=False)
    outputs = served(inputs=tf.constant(example["inputs"]))
    assert set(outputs) | {"inputs"} == set(example.files)
    for key, value in outputs.items():
        if key == "label":
            assert [v.decode() for v in value.numpy()] == example[key].tolist()
        else:
            np.testing.assert_allclose(value, example[key], rtol=1e-12, atol=1e-12)
import importlib.util
spec = importlib.util.spec_from_file_location("verify", "gpflow_ext/persistence/verify/__init__.py")
module = sys.modules["verify"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print([module.verify(folder).files for folder in sys.argv[1:]])
assert not {"gpflow", "tensorflow_probability", "tf_keras", "gpflow_ext"} & set(sys.modules)
"""
)


def run(*command, cwd=ROOT):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=1800,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_an_export_says_what_it_is(cases):
    served = gpx.load_exported(cases("binary").folder)
    assert repr(served) == "Exported('binary', version 1, classification, 2 classes, 3 inputs)"


def test_tensorflow_alone_loads_predicts_and_verifies(cases):
    folders = [cases(name).folder for name in ("binary", "multiclass", "counts", "regression")]
    assert run(sys.executable, "-c", TENSORFLOW_ONLY, *folders).split() == ["[6,", "6,", "6,", "6]"]


@pytest.mark.slow
def test_saved_model_cli(cases, tmp_path):
    folder = cases("binary").folder
    tool = Path(sys.executable).with_name("saved_model_cli")
    where = ("--dir", folder, "--tag_set", "serve", "--signature_def", "serving_default")
    run(tool, "run", *where, "--inputs", f"inputs={folder}/example.npz[inputs]", "--outdir", tmp_path)
    example = np.load(folder / "example.npz")
    for key in ("mean", "variance", "probabilities", "class", "is_finite"):
        np.testing.assert_allclose(np.load(tmp_path / f"{key}.npy"), example[key], rtol=1e-12, atol=1e-12)


def test_tensorflow_rejects_a_wrong_width_or_dtype(cases):
    served = tf.saved_model.load(str(cases("binary").folder)).signatures["serving_default"]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"Shape of tensor inputs \[2,4\] is not compatible"
    ):
        served(inputs=tf.zeros([2, 4], tf.float64))
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected to be a double tensor but is a float"):
        served(inputs=tf.zeros([2, 3], tf.float32))


def test_inputs_are_cast_or_refused_by_name(cases):
    loaded = cases("binary").loaded
    inputs = np.round(raw(4))
    expected = loaded.predict(inputs)["mean"]
    for same in (inputs.tolist(), inputs.astype(np.float32), inputs.astype(int), np.asfortranarray(inputs)):
        np.testing.assert_array_equal(loaded.predict(same)["mean"], expected)
    for wrong in (inputs[0], inputs[:, :2], inputs[None], []):
        with pytest.raises(ValueError, match=r"X must have shape \[N, 3\]; found"):
            loaded.predict(wrong)
    for wrong in ([["a", "b", "c"]], [[1, 2, 3], [4, 5]], inputs + 1j):
        with pytest.raises(ValueError, match="X must hold real numbers"):
            loaded.predict(wrong)
    with pytest.raises(ValueError, match=r"as many rows; found 4 and 3"):
        loaded.predict_log_density(inputs, np.ones((3, 1)))
    with pytest.raises(ValueError, match=r"class indices 0 to 1; found \[2\.0\]"):
        loaded.predict_log_density(inputs, np.full((4, 1), 2))


def test_what_is_no_class_has_no_density_and_leaves_other_rows_alone(cases, tmp_path):
    """It had the density of some class, or ended the call in an error of TensorFlow."""
    likelihood = gpx.likelihoods.CumulativeLogit(3)
    ordinal = export(trained(gpflow.models.SVGP(kernel(), likelihood, X[:8].copy())), tmp_path)
    targets = np.array([0.0, 2.0, 3.0, -1.0, 0.5])[:, None]
    for folder in (cases("multiclass").folder, ordinal):
        served = tf.saved_model.load(str(folder)).signatures["predict_log_density"]
        found = served(inputs=tf.constant(raw(5)), targets=tf.constant(targets))["log_density"]
        np.testing.assert_array_equal(np.isfinite(found), [True, True, False, False, False])


def test_each_row_is_scored_by_the_likelihood_that_it_names(tmp_path):
    """Targets had to have as many columns as there are likelihoods, so that no row could be scored."""
    parts = [gpflow.likelihoods.Gaussian(0.1), gpflow.likelihoods.Gaussian(2.0), gpflow.likelihoods.Poisson()]
    model = trained(gpflow.models.SVGP(kernel(), gpflow.likelihoods.SwitchedLikelihood(parts), X[:8].copy()))
    loaded = load_exported(export(model, tmp_path))
    which, Y = np.array([0, 1, 2, 3, np.nan]), np.arange(5.0)
    found = loaded.predict_log_density(X[:5], np.stack([Y, which], axis=1))
    for row, part in enumerate(parts):
        at, y = X[row : row + 1], Y[row : row + 1, None]
        agree(found[row : row + 1], log_predictive(part, at, *model.predict_f(at), y))
    assert np.isnan(found[3:]).all()


def test_versions_grow_and_the_newest_is_loaded(tmp_path):
    model = regression()
    first, second = export(model, tmp_path / "m"), export(model, tmp_path / "m")
    assert (first.name, second.name) == ("1", "2")
    assert load_exported(tmp_path / "m").path == second
    assert load_exported(first).path == first
    with pytest.raises(ValueError, match="above versions"):
        export(model, first)
    with pytest.raises(ValueError, match="no exported model"):
        load_exported(tmp_path)


def test_manifest_and_card_record_where_it_came_from(tmp_path):
    train = (X, (X[:, :1] > 0).astype(float))
    split = SimpleNamespace(
        scaler=SimpleNamespace(mean=MEAN, scale=SCALE),
        labels=LABELS[:2],
        name="ward 7",
        seed=11,
        sha256="ab" * 32,
        feature_names=("age", "dose", "noise"),
        source="a hospital; CC-BY-4.0",
        train=train,
    )
    folder = export(
        binary(), tmp_path / "m", data=split, metrics={"error": np.float64(0.125)}, notes="A trial."
    )
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["labels"] == list(LABELS[:2])
    assert manifest["data"] == {
        "name": "ward 7",
        "source": "a hospital; CC-BY-4.0",
        "sha256": "ab" * 32,
        "feature_names": ["age", "dose", "noise"],
        "target": None,
        "N": N,
        "D": D,
    }
    assert manifest["seed"] == 11
    assert manifest["metrics"] == {"error": 0.125}
    assert manifest["sha256"].keys() | {"manifest.json"} == {
        file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()
    }
    card = (folder / "MODEL_CARD.md").read_text(encoding="utf-8")
    for text in (
        "ward 7",
        "CC-BY-4.0",
        "A trial.",
        "0.125",
        "float64",
        "| seed | 11 |",
        "ill, well",
        "tf.saved_model",
    ):
        assert text in card
    assert str(tmp_path) not in (folder / "manifest.json").read_text() + card


def test_holding_training_inputs_is_told_truly(cases, tmp_path):
    assert cases("counts").loaded.manifest["holds_training_inputs"] is True  # a dense model keeps X
    assert cases("binary").loaded.manifest["holds_training_inputs"] is None  # nobody said what X was
    split = SimpleNamespace(train=(X, X[:, :1]))
    moved = export(binary(), tmp_path / "moved", data=split)
    assert load_exported(moved).manifest["holds_training_inputs"] is False
    subset = export(multiclass(), tmp_path / "subset", data=split)
    assert load_exported(subset).manifest["holds_training_inputs"] is True
    given = export(
        binary(), tmp_path / "given", data=split, scaler=(MEAN, SCALE), example=(MEAN + SCALE * X)[4:6]
    )
    assert load_exported(given).manifest["holds_training_inputs"] is True


def test_no_absolute_path_in_any_file(cases):
    for name in ("binary", "counts"):
        folder = cases(name).folder
        for file in folder.rglob("*"):
            content = file.read_bytes() if file.is_file() else b""
            source = (".py",) if file.suffix == ".pb" else ()  # a stack trace would name the module's file
            for path in (str(folder.parents[1]), str(ROOT), str(Path.home()) + "/", sys.prefix, *source):
                assert path.encode() not in content, (file, path)


def test_an_export_leaves_no_graph_behind(tmp_path):
    def graphs() -> set[int]:
        gc.collect()
        return {id(thing) for thing in gc.get_objects() if type(thing).__name__ == "FuncGraph"}

    before = graphs()
    for number in range(2):
        export(gpflow.models.GPR((X, X[:, :1]), kernel()), tmp_path / str(number))
    assert graphs() <= before


def test_single_precision(tmp_path):
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-4)):
        model = gpflow.models.SVGP(kernel(), gpflow.likelihoods.Bernoulli(), X[:6].copy())
        loaded = load_exported(export(model, tmp_path / "m", scaler=(MEAN, SCALE)))
        standardised = ((raw(9).astype("f4") - MEAN.astype("f4")) / SCALE.astype("f4")).astype("f4")
        live = model.predict_y(standardised)[0]
    out = loaded.predict(raw(9))
    assert loaded.manifest["dtype"] == "float32"
    assert out["mean"].dtype == np.float32
    np.testing.assert_allclose(out["mean"], live, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scaler": (MEAN[:2], SCALE[:2])}, r"shape \[D\] = \[3\]; found \(2,\)"),
        ({"scaler": (MEAN, 0 * SCALE)}, "positive scale"),
        ({"example": X[0]}, r"example must be finite, of shape \[n, D\] = \[n, 3\]"),
        ({"example": X * np.nan}, "example must be finite"),
        ({"labels": LABELS}, "name the 2 classes in order; found 3"),
        ({"scaler": "a"}, "scaler must have a mean"),
        ({"scaler": (MEAN, SCALE, SCALE)}, "scaler must have a mean"),
        ({"metrics": 3}, "metrics must be a mapping"),
        ({"metrics": {"nlpd": "low"}}, r"metrics\['nlpd'\]` must be a number"),
        ({"intervals": {"nlpd": 3.0}}, "two ends"),
        ({"notes": 3}, "notes must be text"),
        ({"seed": "a"}, "seed` must be a whole number"),
        ({"example": 3.0}, "example must be finite, of shape"),
        ({"labels": "ab"}, "labels must be a list"),
        ({"num_samples": "a"}, "num_samples` must be a whole number"),
        ({"name": "diseases/heart"}, r"without a slash.*got 'diseases/heart'"),
        ({"name": ".."}, "address"),
        ({"name": ""}, "address"),
        ({"name": "a\nb"}, "printable"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        export(binary(), tmp_path / "m", **arguments)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("call", [load_exported, verify, lambda path: export(binary(), path)])
def test_a_path_is_text(call):
    with pytest.raises(ValueError, match="path of a folder is needed; got 3"):
        call(3)


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`model` must be of the class GPModel; got 3"):
        export(3, tmp_path)


def test_labels_of_a_regression_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no classes"):
        export(regression(), tmp_path, labels=["a"])


def test_a_broken_model_is_not_exported(tmp_path):
    model = binary()
    model.q_mu.unconstrained_variable.assign(np.full((12, 1), np.nan))
    with pytest.raises(ValueError, match="not finite"):
        export(model, tmp_path / "m")


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (gpflow.likelihoods.StudentT(0.3, 2.0), "df is above 2"),
        (Weighted(gpflow.likelihoods.StudentT(0.3, 1.5)), "df is above 2"),
        (gpflow.likelihoods.Softmax(3), "Softmax predicts by random numbers"),
    ],
)
def test_a_likelihood_without_moments_to_serve_is_refused(tmp_path, likelihood, message):
    model = gpflow.models.SVGP(kernel(), likelihood, X[:4].copy(), num_latent_gps=likelihood.latent_dim or 1)
    with pytest.raises(ValueError, match=message):
        export(model, tmp_path / "m")


def test_a_posterior_that_disagrees_with_the_model_is_not_exported(tmp_path):
    class Other(gpflow.models.SVGP):
        def predict_f(self, *args, **kwargs):
            mean, variance = super().predict_f(*args, **kwargs)
            return mean + 1e-3, variance

    model = Other(kernel(), gpflow.likelihoods.Gaussian(), X[:4].copy())
    with pytest.raises(ValueError, match=r"differs from model\.predict_f by 1\.0e-03"):
        export(model, tmp_path / "m")


def test_a_mean_function_that_branches_on_tensors_is_exported(tmp_path):
    class Branching(gpflow.functions.MeanFunction):
        def __call__(self, X):
            sign = tf.ones_like(X[:, :1])
            if tf.reduce_sum(X) < 0.0:
                sign = -sign
            return sign

    model = gpflow.models.SVGP(
        kernel(), gpflow.likelihoods.Gaussian(), X[:4].copy(), mean_function=Branching()
    )
    loaded = load_exported(export(model, tmp_path / "m"))
    for inputs in (np.ones((2, D)), -np.ones((2, D))):
        agree(loaded.predict_f(inputs)["mean"], model.predict_f(inputs)[0])


@pytest.fixture
def copy(cases, tmp_path):
    """A private copy of an exported model, to tamper with."""
    folder = cases("binary").folder
    target = tmp_path / "1"
    for file in folder.rglob("*"):
        if file.is_file():
            (target / file.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            (target / file.relative_to(folder)).write_bytes(file.read_bytes())
    return target


def test_tampered_files_are_refused_by_name(copy):
    assert verify(copy).files == 6
    assert verify(copy.parent).folder == copy
    variables = copy / "variables" / "variables.data-00000-of-00001"
    content = bytearray(variables.read_bytes())
    content[100] ^= 1
    variables.write_bytes(content)
    with pytest.raises(ValueError, match=r"variables\.data-00000-of-00001 has changed"):
        load_exported(copy)
    (copy / "example.npz").unlink()
    with pytest.raises(ValueError, match=r"not what was exported: example\.npz is missing"):
        load_exported(copy)
    (copy / "extra.so").write_bytes(b"")
    with pytest.raises(ValueError, match=r"'extra\.so' is not a file that an export writes"):
        load_exported(copy)


def reads_a_file(X):
    return tf.cast(tf.strings.length(tf.io.read_file("/etc/hostname")), X.dtype) + X[:, :1]


def calls_python(X):
    return tf.ensure_shape(tf.numpy_function(lambda x: x, [X[:, :1]], X.dtype), [None, 1])


@pytest.mark.parametrize(("function", "operation"), [(reads_a_file, "ReadFile"), (calls_python, "PyFunc")])
def test_a_model_that_does_more_than_compute_is_not_exported(tmp_path, function, operation):
    class Mean(gpflow.functions.MeanFunction):
        def __call__(self, X):
            return function(X)

    model = gpflow.models.SVGP(kernel(), gpflow.likelihoods.Gaussian(), X[:4].copy(), mean_function=Mean())
    with pytest.raises(ValueError, match=f"{operation} .* not on the list of harmless operations"):
        export(model, tmp_path / "m", profile="exact")
    assert list((tmp_path / "m").iterdir()) == []


def test_exports_to_one_path_at_once_each_take_a_version(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: export(regression(), tmp_path / "m"), range(4)))
    assert sorted(folder.name for folder in found) == ["1", "2", "3", "4"]
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["1", "2", "3", "4"]
    for folder in found:
        assert load_exported(folder).manifest["version"] == int(folder.name)
        assert f"version {folder.name}\n" in (folder / "MODEL_CARD.md").read_text()


def test_without_locks_the_one_that_is_too_late_says_so(tmp_path, monkeypatch):
    writer = sys.modules["gpflow_ext.persistence.export"]
    monkeypatch.setattr(durable, "fcntl", None)

    def overtaken(folder):
        (tmp_path / "m" / "1").mkdir()
        (tmp_path / "m" / "1" / "saved_model.pb").write_bytes(b"another")

    monkeypatch.setattr(writer, "verify", overtaken)
    with pytest.raises(ValueError, match="was made by another export meanwhile: export again"):
        export(regression(), tmp_path / "m")
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["1"]


def test_an_interrupted_export_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "m"
    writer = sys.modules["gpflow_ext.persistence.export"]
    seen = []

    def interrupt(folder):
        seen.extend(p.name for p in path.iterdir())
        assert (folder / "manifest.json").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "verify", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export(regression(), path)
    assert [name[:9] for name in seen] == [".partial-"]  # all was written, and no version was visible yet
    assert list(path.iterdir()) == []


KILL = '''
"""Export in a child, kill it with SIGKILL, look at what is there; argv: folder, times."""
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
import gpflow
from forks import child
from gpflow_ext.persistence.export import export
from gpflow_ext.persistence.verify import verify

folder, times = Path(sys.argv[1]), int(sys.argv[2])

def model():
    return gpflow.models.GPR((np.ones((300, 1)), np.ones((300, 1))), gpflow.kernels.SquaredExponential())

def train():
    while True:
        export(model(), folder)

def clean():
    export(model(), folder)
    strangers = [p.name for p in folder.iterdir() if not p.name.isdigit()]
    assert not strangers, strangers

partial = 0
for _ in range(times):
    old = set(folder.glob(".partial-*"))
    pid = child(train)
    while not set(folder.glob(".partial-*")) - old:  # until it writes
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        time.sleep(0.002)
    time.sleep(random.uniform(0.0, 0.15))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    partial += any(p.name.startswith(".partial-") for p in folder.iterdir())
    for version in (p for p in folder.iterdir() if p.name.isdigit()):
        assert verify(version).folder == version
_, status = os.waitpid(child(clean), 0)
assert status == 0
print(partial)
'''


def test_killed_while_exporting(tmp_path):
    assert int(run(sys.executable, "-c", KILL, tmp_path, 2, cwd=ROOT / "tests")) <= 2


@pytest.mark.slow
def test_killed_while_exporting_a_hundred_times(tmp_path):
    assert (
        int(run(sys.executable, "-c", KILL, tmp_path, 100, cwd=ROOT / "tests")) > 10
    )  # about a third fall into the writing
