"""What the loaders of TensorFlow would do with hostile models, in a watched folder, and that verifying comes first."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import consumers
import numpy as np
import pytest
import tensorflow as tf
from hostile import PLACES, Edited, files, saves_in_the_place_of_another

import gpflow_ext as gpx
from gpflow_ext.persistence.verify import check

PYTHON, SESSION, C = "Python", "TensorFlow 1", "C"
# What runs where, as each loader does it without being asked for more than to load; Python also predicts.
RUN = {
    ("main op without objects", "SaveV2"): {PYTHON, SESSION, C},
    ("restore", "SaveV2"): {SESSION, C},
    ("main op without objects", "WriteFile"): {PYTHON, SESSION, C},
    ("restore", "WriteFile"): {SESSION, C},
    ("restore's function", "WriteFile"): {SESSION, C},
    ("another restore", "WriteFile"): {SESSION, C},
    ("main op", "WriteFile"): {SESSION, C},
    ("main op behind others", "WriteFile"): {SESSION, C},
    ("init op", "WriteFile"): {SESSION, C},
    ("legacy init op", "WriteFile"): {SESSION, C},
    ("variable", "WriteFile"): {SESSION, C},
    ("function of a signature", "WriteFile"): {PYTHON},
    ("nested function", "WriteFile"): {PYTHON},
}


def python(folder):
    loaded = tf.saved_model.load(str(folder))
    loaded.signatures["serving_default"](inputs=tf.zeros([1, 3], tf.float64))


def session(folder):
    with tf.Graph().as_default(), tf.compat.v1.Session() as opened:
        tf.compat.v1.saved_model.load(opened, ["serve"], str(folder))


def hostile(exported, place, operation, sandbox):
    """A model that writes below ``sandbox / "watched"``."""
    (sandbox / "watched").mkdir(parents=True)
    model = Edited(exported, sandbox / "model")
    PLACES[place](model, operation, str(sandbox / "watched" / "evil"))
    return model.write()


def written(sandbox):
    return bool(files(sandbox / "watched"))


@pytest.mark.parametrize(("loader", "load"), [(PYTHON, python), (SESSION, session)])
def test_python_runs_what_verifying_refuses(exported, tmp_path, loader, load):
    for i, ((place, operation), runs) in enumerate(RUN.items()):
        sandbox = tmp_path / str(i)
        folder = hostile(exported, place, operation, sandbox)
        before = files(sandbox)
        for check_it in (gpx.verify, gpx.load_exported):
            with pytest.raises(ValueError, match="do not load this model"):
                check_it(folder)
        assert files(sandbox) == before
        load(folder)
        assert written(sandbox) == (loader in runs), (place, operation)


def test_tensorflow_puts_one_function_in_the_place_of_another(exported, tmp_path):
    model = Edited(exported, tmp_path / "model")
    (tmp_path / "watched").mkdir()
    saves_in_the_place_of_another(model, str(tmp_path / "watched" / "evil"))
    folder = model.write()
    for check_it in (gpx.verify, gpx.load_exported):
        with pytest.raises(ValueError, match="api_implements"):
            check_it(folder)
    assert not written(tmp_path)
    python(folder)
    assert written(tmp_path)


def test_c_runs_what_verifying_refuses(exported, tmp_path):
    program = consumers.compiled(Path(__file__).with_name("load.c"), tmp_path / "load")
    folders = [hostile(exported, *case, tmp_path / str(i)) for i, case in enumerate(RUN)]
    for folder in folders:
        with pytest.raises(ValueError, match="do not load this model"):
            gpx.verify(folder)
    assert not any(written(folder.parent) for folder in folders)
    done = subprocess.run(
        [program, exported, *folders], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.splitlines()[0] == ""  # what was exported loads
    assert [written(folder.parent) for folder in folders] == [C in runs for runs in RUN.values()]


def test_what_was_verified_is_what_is_loaded(exported, tmp_path, monkeypatch):
    """Even if the folder is another one after each step of verifying."""
    evil = hostile(exported, "function of a signature", "WriteFile", tmp_path / "sandbox")
    expected = gpx.load_exported(exported).predict(np.ones((2, 3)))
    steps = ("parse", "check_graph", "check_index", "check_example")
    for step in steps:
        folder = Path(shutil.copytree(exported, tmp_path / step))
        with monkeypatch.context() as patch:
            patch.setattr(check, step, _then(getattr(check, step), folder, evil))
            if step == "parse":  # the graph is read afterwards
                with pytest.raises(ValueError, match=r"saved_model\.pb (has changed|grows)"):
                    gpx.load_exported(folder)
            else:
                found = gpx.load_exported(folder).predict(np.ones((2, 3)))
                np.testing.assert_array_equal(found["mean"], expected["mean"])
        assert (folder / "saved_model.pb").read_bytes() == (evil / "saved_model.pb").read_bytes()
    assert not written(tmp_path / "sandbox")


def _then(function, folder, evil):
    def call(*arguments):
        found = function(*arguments)
        shutil.copytree(evil, folder, dirs_exist_ok=True)
        return found

    return call


def test_nothing_is_left_of_the_private_copy(exported, tmp_path, monkeypatch):
    monkeypatch.setattr(check.tempfile, "tempdir", str(tmp_path))
    seen = []
    load = tf.saved_model.load

    def watched(folder):
        seen.append(Path(folder).parent.stat().st_mode & 0o777)
        return load(folder)

    monkeypatch.setattr(tf.saved_model, "load", watched)
    gpx.load_exported(exported)
    assert seen == [0o700]
    assert list(tmp_path.iterdir()) == []
