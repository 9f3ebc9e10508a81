"""The committed models: whole, verified, the same numbers as when they were made, and served by others."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import types
from pathlib import Path

import consumers
import numpy as np
import pytest
from marks import others_slow
from tensorflow.core.protobuf import saved_model_pb2

import gpflow_ext as gpx
from scripts.tools import make_zoo, zoo_data
from scripts.tools.zoo_models import LARGER, MODELS, Recipe

ROOT = Path(__file__).resolve().parents[1]
ZOO = ROOT / "saved_models"


CLASSES = {
    *("VGPKMM", "SVGPRobustMax", "SparseEP", "SGPMCFreeForm", "GPRNTensor"),
    *("GPLaplace", "GPJaakkola", "GPTaylor", "SGPR", "SVGP", "ModelAverage"),
}
TASKS = {"binary", "multiclass", "ordinal", "count", "regression"}
QUICK = (
    "wine_sparse_ep",
    "wine_sgpmc_freeform",
    "pima_vgp_kmm_float32",
    "waves_gprn_tensor",
    "scotland_vgp_kmm",
)


def folder(name):
    return gpx.verify(ZOO / name).folder


def manifest(name):
    return json.loads((folder(name) / "manifest.json").read_text(encoding="utf-8"))


def test_every_class_and_task_has_a_model_and_the_table_tells_of_each():
    found = [manifest(name) for name in MODELS]
    assert len(found) >= 20
    assert {about["model"]["model"]["class"].rpartition(".")[2] for about in found} >= CLASSES
    assert {about["task"] for about in found} == TASKS
    assert {about["dtype"] for about in found} == {"float32", "float64"}
    assert {path.name for path in ZOO.iterdir() if path.is_dir()} == set(MODELS)
    assert (ZOO / "README.md").read_text(encoding="utf-8") == make_zoo.readme(ZOO)
    assert make_zoo.size(ZOO) < 60e6


@pytest.mark.parametrize("name", others_slow(MODELS, *QUICK))
def test_predicts_what_it_did_when_it_was_made(name):
    served = gpx.load_exported(ZOO / name)
    with np.load(served.path / "example.npz", allow_pickle=False) as example:
        found = served.predict(example["inputs"])
        assert found.keys() | {"inputs"} == set(example.files)
        for key, value in found.items():
            if value.dtype.kind == "f":  # other processors round and order sums otherwise
                single = value.dtype == np.float32
                rtol, atol = (1e-3, 1e-5) if single else (1e-8, 1e-10)
                np.testing.assert_allclose(value, example[key], rtol, atol)
            else:
                np.testing.assert_array_equal(value, example[key])


@pytest.mark.parametrize("name", MODELS)
def test_is_small_and_its_card_tells_what_it_must(name):
    about = manifest(name)
    assert make_zoo.size(ZOO / name) < make_zoo.LARGEST
    assert about["metrics"]
    for metric, value in about["metrics"].items():
        if metric != "ece":
            low, high = about["intervals"][metric]
            assert low <= value <= high
    card = (folder(name) / "MODEL_CARD.md").read_text(encoding="utf-8")
    for text in (
        "licence",
        "95 % interval",
        f"make_zoo {name}",
        f"| dtype | {about['dtype']} |",
        f"| seed | {about['seed']} |",
        "holds training inputs",
        f"Limits. {MODELS[name].limits}",
        "CPU seconds",
        "`serving_default`",
        f"gpflow {about['versions']['gpflow']}",
    ):
        assert text in card, text


@pytest.mark.slow
def test_larger_models_go_into_an_archive(tmp_path, monkeypatch):
    """Made again here from a smaller network; what is unpacked is a zoo."""
    assert not LARGER.keys() & MODELS.keys()
    recipe = Recipe(
        f"gprn-tensor --data {zoo_data.WAVES} --target y1 y2 --drop y3 y4 --nodes 1 --steps 1", "None."
    )
    monkeypatch.setattr(make_zoo, "LARGER", {"two_waves": recipe})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "larger").mkdir()
    make_zoo.make("two_waves", tmp_path / "larger")
    with tarfile.open(make_zoo.archive(tmp_path / "larger")) as file:
        file.extractall(tmp_path / "unpacked", filter="data")
    [found] = gpx.zoo.list(tmp_path / "unpacked")
    assert (found.kind, found.inputs) == ("GPRNTensor", 1)
    assert gpx.zoo.load("two_waves", tmp_path / "unpacked").predict([[2.4]])["mean"].shape == (1, 2)
    assert "licence" in (found.path / "MODEL_CARD.md").read_text(encoding="utf-8")


def test_cadmium_is_left_out_at_the_validation_sites(tmp_path, monkeypatch):
    if "GPFLOW_EXT_DATA" not in os.environ:
        pytest.skip("needs the soil of the Jura: set GPFLOW_EXT_DATA to a folder that holds jura.csv.gz")
    monkeypatch.chdir(tmp_path)
    assert "licence" in zoo_data.made(str(zoo_data.JURA))
    columns = np.genfromtxt(zoo_data.JURA, delimiter=",", names=True)
    assert columns.dtype.names == ("x_km", "y_km", "log_Cd", "log_Ni", "log_Zn")
    assert [int(np.isnan(columns[name]).sum()) for name in columns.dtype.names] == [0, 0, 100, 0, 0]
    assert zoo_data.made("another.csv") is None


def test_a_tampered_model_is_refused(tmp_path):
    name = next(iter(MODELS))
    copy = Path(shutil.copytree(ZOO / name, tmp_path / name))
    [file] = copy.rglob("variables.data-*")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    for call in (gpx.verify, gpx.load_exported):
        with pytest.raises(ValueError, match=r"variables\.data-00000-of-00001 has changed"):
            call(copy)


def run(*command, **options):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, env=environment, timeout=600, check=False, **options
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


TENSORFLOW_ONLY = (
    consumers.REFUSE
    + """import numpy as np, tensorflow as tf
for folder in sys.argv[1:]:
    served = tf.saved_model.load(folder).signatures["serving_default"]
    example = np.load(f"{folder}/example.npz", allow_pickle=False)
    np.testing.assert_allclose(served(inputs=tf.constant(example["inputs"]))["mean"], example["mean"], rtol=1e-3 if example["mean"].dtype == "f" else 1e-8)
print(len(sys.argv) - 1)
"""
)


@pytest.mark.parametrize("names", [QUICK[:3], pytest.param(tuple(MODELS), marks=pytest.mark.slow)], ids=len)
def test_tensorflow_alone_predicts(names):
    folders = [folder(name) for name in names]
    assert int(run(sys.executable, "-c", TENSORFLOW_ONLY, *folders)) == len(folders)


@pytest.fixture(scope="module", name="program")
def _program(tmp_path_factory):
    return consumers.compiled(ROOT / "scripts" / "predict.c", tmp_path_factory.mktemp("c") / "predict")


def test_the_c_loader_returns_the_same_bits_from_eight_threads(program):
    chosen = folder("wine_sparse_ep")
    inputs = np.load(chosen / "example.npz")["inputs"]
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((chosen / "saved_model.pb").read_bytes())
    signature = model.meta_graphs[0].signature_def["serving_default"]
    names = signature.inputs["inputs"].name, signature.outputs["mean"].name
    bits = run(program, chosen, *names, 8, inputs.shape[1], input=inputs.tobytes())
    assert bits == gpx.load_exported(chosen).predict(inputs)["mean"].tobytes()


# ------------------------------------------------------------------------------------------------ by name


def test_the_zoo_is_listed_as_its_manifests_say(monkeypatch):
    found = {one.name: one for one in gpx.zoo.list(ZOO)}
    assert set(found) == set(MODELS)
    one = found["wine_sparse_ep"]
    about = manifest(one.name)
    assert (one.kind, one.task, one.inputs, one.version) == ("SparseEP", "multiclass", 13, 1)
    assert (one.scores, one.sha256) == (about["metrics"], about["manifest_sha256"])
    assert one.size == make_zoo.size(ZOO / one.name)
    monkeypatch.setenv("GPFLOW_EXT_ZOO", str(ZOO))
    assert gpx.zoo.list() == list(found.values())
    monkeypatch.delenv("GPFLOW_EXT_ZOO")
    assert gpx.zoo.list() == list(found.values())  # of the checkout


def test_a_model_is_loaded_by_name_and_hash():
    one = next(one for one in gpx.zoo.list(ZOO) if one.name == "wine_sparse_ep")
    served = gpx.zoo.load(one.name, ZOO, sha256=one.sha256)
    assert served.path == one.path
    assert gpx.zoo.load(f"{one.name}/1", ZOO).path == one.path
    with pytest.raises(ValueError, match="another model than was asked for"):
        gpx.zoo.load(one.name, ZOO, sha256="0" * 64)
    for name, message in (
        ("wine", "has no model 'wine'; it has airline_sparse_ep, boston"),
        ("wine_sparse_ep/2", "no version 2 of wine_sparse_ep; it has 1"),
    ):
        with pytest.raises(ValueError, match=message):
            gpx.zoo.load(name, ZOO)
    for name in ("../saved_models", "a/b", "", ".hidden", "a/..", "wine_sparse_ep/01", "c:wine", None):
        with pytest.raises(ValueError, match="name must be"):
            gpx.zoo.load(name, ZOO)


def test_what_is_listed_can_be_loaded_and_other_folders_are_passed_over(tmp_path):
    folder = tmp_path / "Zoo für jeden"
    for name in ("mein Wein ü", "wine+2.0"):
        shutil.copytree(ZOO / "wine_sparse_ep", folder / name)
    shutil.copytree(folder / "wine+2.0" / "1", folder / "wine+2.0" / "1.bak")
    (folder / "notes").mkdir()
    found = gpx.zoo.list(folder)
    assert [one.name for one in found] == ["mein Wein ü", "wine+2.0"]
    for one in found:
        assert gpx.zoo.load(one.name, folder).path == one.path
        assert gpx.zoo.load(f"{one.name}/1", folder).path == one.path


def test_where_there_is_no_zoo_the_ways_to_one_are_told(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPFLOW_EXT_ZOO", raising=False)
    monkeypatch.setattr("gpflow_ext.zoo._CHECKOUT", tmp_path / "none")
    with pytest.raises(ValueError, match="set GPFLOW_EXT_ZOO"):
        gpx.zoo.list()
    with pytest.raises(ValueError, match="a folder or an address, as text; got 3"):
        gpx.zoo.list(3)
    with pytest.raises(ValueError, match="no folder 'nowhere'"):
        gpx.zoo.list("nowhere")
    with pytest.raises(ValueError, match="must begin with https://"):
        gpx.zoo.load("a", "http://example.org/zoo")
    with pytest.raises(ValueError, match="cannot be listed"):
        gpx.zoo.list("https://example.org/zoo")
    with pytest.raises(ValueError, match="hub address is"):
        gpx.zoo.list("hf://owner")


@pytest.fixture(name="web")
def _web(tmp_path, monkeypatch):
    """The wine model on a server of this machine, from a copy that a test may spoil; and the cache."""
    root = tmp_path / "web"
    shutil.copytree(ZOO / "wine_sparse_ep", root / "wine_sparse_ep")
    monkeypatch.setenv("GPFLOW_EXT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GPFLOW_EXT_OFFLINE", raising=False)
    asked = []

    class Files(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Files, directory=root)
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", root / "wine_sparse_ep" / "1", asked
        server.shutdown()


def test_a_model_of_the_web_is_fetched_once_and_checked(web, tmp_path, monkeypatch):
    address, _, asked = web
    pin = manifest("wine_sparse_ep")["manifest_sha256"]
    served = gpx.zoo.load("wine_sparse_ep", address, sha256=pin)
    assert served.labels == ("class_0", "class_1", "class_2")
    number = len(asked)
    assert number == 7  # the manifest and six files
    monkeypatch.setenv("GPFLOW_EXT_OFFLINE", "1")
    gpx.zoo.load("wine_sparse_ep", address)
    assert len(asked) == number
    with pytest.raises(ValueError, match="not in the cache"):
        gpx.zoo.load("other", address)
    monkeypatch.delenv("GPFLOW_EXT_OFFLINE")
    with pytest.raises(ConnectionError, match=r"other/1/manifest\.json could not be fetched"):
        gpx.zoo.load("other", address)
    [kept] = (tmp_path / "cache").rglob("saved_model.pb")
    kept.write_bytes(b"spoilt")
    with pytest.raises(ValueError, match=r"saved_model\.pb has changed"):
        gpx.zoo.load("wine_sparse_ep", address)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda folder: (folder / "example.npz").write_bytes(b"other"),
            "example.npz of .* not what its manifest says",
        ),
        (
            lambda folder: spoil_manifest(folder, {"../../../evil": "0" * 64}),
            "lists '../../../evil', which no export",
        ),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "not that of an exported model"),
        (lambda folder: spoil_manifest(folder, []), "not that of an exported model"),
        (lambda folder: (folder / "manifest.json").write_bytes(b" " * (5 << 20)), "has more than"),
    ],
)
def test_what_the_web_gives_instead_is_not_kept(web, tmp_path, spoil, message):
    address, folder, _ = web
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        gpx.zoo.load("wine_sparse_ep", address)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def spoil_manifest(folder, hashes):
    about = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**about, "sha256": hashes}))


def test_an_address_may_have_spaces_and_letters_of_any_language(web):
    address, folder, _ = web
    shutil.copytree(folder, folder.parents[1] / "für jeden" / "mein Wein" / "1")
    for place in ("für jeden", "f%C3%BCr%20jeden/"):
        assert gpx.zoo.load("mein Wein", f"{address}/{place}").labels


@pytest.mark.parametrize("port", ["abc", "99999", "0"])
def test_an_address_without_a_port_is_refused(port):
    with pytest.raises(ValueError, match="a number from 1 to 65535"):
        gpx.zoo.load("wine", f"https://localhost:{port}/zoo")


@pytest.mark.parametrize(
    "answer", ["hello\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"]
)
def test_what_is_no_answer_of_a_server_is_a_failed_download(answer, tmp_path, monkeypatch):
    monkeypatch.setenv("GPFLOW_EXT_CACHE", str(tmp_path))

    class Broken(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.wfile.write(answer.encode())

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ConnectionError, match=r"manifest\.json could not be fetched"):
            gpx.zoo.load("wine", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_what_another_process_has_fetched_meanwhile_is_used(web, monkeypatch):
    address, _, _ = web
    get = gpx.zoo._get

    def late(url, most, path):
        if url.endswith("manifest.json"):
            monkeypatch.setattr("gpflow_ext.zoo._get", get)
            gpx.zoo.load("wine_sparse_ep", address)  # as another process would
        return get(url, most, path)

    monkeypatch.setattr("gpflow_ext.zoo._get", late)
    assert gpx.zoo.load("wine_sparse_ep", address).labels


def test_a_repository_of_the_hub_is_a_zoo(monkeypatch):
    """Of the hub itself only the call is tested: what it returns is a folder."""
    calls = []

    def snapshot_download(repository, revision, allow_patterns):
        calls.append((repository, revision, allow_patterns))
        return str(ZOO)

    monkeypatch.setitem(
        sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download)
    )
    assert gpx.zoo.load("wine_sparse_ep", "hf://owner/models@v1.0").labels
    assert len(gpx.zoo.list("hf://owner/models")) == len(MODELS)
    assert calls == [
        ("owner/models", "v1.0", ["wine_sparse_ep/*"]),
        ("owner/models", None, ["*/manifest.json"]),
    ]
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"gpflow-ext\[hub\]"):
        gpx.zoo.list("hf://owner/models")
