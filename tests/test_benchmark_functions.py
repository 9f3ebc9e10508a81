"""The benchmarks of functions and of convolutional kernels at a tiny size."""

from __future__ import annotations

import argparse

import pytest

from scripts.benchmarks import convolution, functions

WHERE = {"date": "", "cpu": "", "cores": 1, "threads": 1, "load": 0.0, "python": "", "versions": {}}


def test_functions_are_timed_beside_the_joint_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "JOINT", 20)
    records = functions.run(argparse.Namespace(sizes=[30], repeats=1))
    assert {(each["by"], each["size"]) for each in records} == {
        ("gpflow_ext", 20),
        ("gpflow_ext", 30),
        ("GPflow", 20),
    }
    page = functions.document(WHERE, records)
    assert page.count("GPflow's joint draw at N = 20 over ours") == 2


def test_sums_over_patches_are_timed_beside_gpflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "SIDE", 8)
    monkeypatch.setattr(convolution, "INDUCING", 4)
    records = convolution.run(argparse.Namespace(sizes=[2], repeats=1))
    assert len(records) == 6
    [(label, measured, met)] = convolution.verdicts(records)
    assert label.startswith("both sums with gradients, N = 2")
    assert measured.endswith(" of 5")
    assert met in convolution.document(WHERE, records)
