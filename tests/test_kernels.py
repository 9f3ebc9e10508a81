"""What TensorFlow keeps of operations that are done."""

from __future__ import annotations

import gpflow
import numpy as np
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.compiled import kernels
from scripts.tools.soak import memory


def test_kernels_of_variables_of_other_sizes_are_forgotten() -> None:
    """Without, each round leaves 14 MB."""
    after = []
    for begin in range(100, 1100, 200):
        for size in range(begin, begin + 200):
            tf.Variable(np.zeros([size, 1]))
        kernels.forget()
        after.append(memory()["in_use"])
    assert after[-1] - after[1] <= 1.0


def test_an_export_forgets_those_of_what_it_holds(tmp_path, monkeypatch) -> None:
    forgotten, forget = [], kernels.forget

    def counted() -> None:
        forgotten.append((tmp_path / "model" / "1").exists())
        forget()

    monkeypatch.setattr(kernels, "forget", counted)
    X = np.linspace(0.0, 1.0, 9)[:, None]
    gpx.export(gpflow.models.GPR((X, X), gpflow.kernels.SquaredExponential()), tmp_path / "model")
    assert forgotten == [True]
