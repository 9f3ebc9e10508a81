"""The committed models: whole, verified, the same numbers as when they were made, and served by others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import consumers
import numpy as np
import pytest
from tensorflow.core.protobuf import saved_model_pb2

import gpflow_ext as gpx
from scripts.tools import make_zoo

ROOT = Path(__file__).resolve().parents[1]
ZOO = ROOT / "saved_models"


CLASSES = {"VGPKMM", "SVGPRobustMax", "SparseEP", "SGPMCFreeForm", "GPRNTensor", "GPLaplace"}


def folder(name):
    return gpx.verify(ZOO / name).folder


def manifest(name):
    return json.loads((folder(name) / "manifest.json").read_text(encoding="utf-8"))


def test_every_class_has_a_model_and_the_table_tells_of_each():
    found = {manifest(name)["model"]["model"]["class"].rpartition(".")[2] for name in make_zoo.ZOO}
    assert found >= CLASSES
    assert {path.name for path in ZOO.iterdir() if path.is_dir()} == set(make_zoo.ZOO)
    assert (ZOO / "README.md").read_text(encoding="utf-8") == make_zoo.readme(ZOO)


@pytest.mark.parametrize("name", make_zoo.ZOO)
def test_predicts_what_it_did_when_it_was_made(name):
    served = gpx.load_exported(ZOO / name)
    with np.load(served.path / "example.npz", allow_pickle=False) as example:
        found = served.predict(example["inputs"])
        assert found.keys() | {"inputs"} == set(example.files)
        for key, value in found.items():
            if value.dtype.kind == "f":  # other processors round and order sums otherwise
                np.testing.assert_allclose(value, example[key], rtol=1e-8, atol=1e-10)
            else:
                np.testing.assert_array_equal(value, example[key])


@pytest.mark.parametrize("name", make_zoo.ZOO)
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
        "`serving_default`",
        f"gpflow {about['versions']['gpflow']}",
    ):
        assert text in card, text


def test_a_tampered_model_is_refused(tmp_path):
    name = next(iter(make_zoo.ZOO))
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
    np.testing.assert_allclose(served(inputs=tf.constant(example["inputs"]))["mean"], example["mean"], rtol=1e-8)
print(len(sys.argv) - 1)
"""
)


def test_tensorflow_alone_predicts():
    folders = [folder(name) for name in make_zoo.ZOO]
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
