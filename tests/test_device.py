"""Full-size programs for a GPU: lowered without being run, and run by JAX alone as TensorFlow runs them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow_probability as tfp

import gpflow_ext as gpx
from gpflow_ext.numerics import linalg
from gpflow_ext.persistence import stablehlo
from scripts.device import page, programs
from scripts.device.programs import QUICK

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs the extra stablehlo")
ROOT = Path(__file__).resolve().parents[1]
WANTED = ("dense-40-float64", "chains-vb-2")


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> list[dict]:
    """What a run of two small programs writes."""
    folder, out = tmp_path_factory.mktemp("programs"), tmp_path_factory.mktemp("out")
    for name in WANTED:
        programs.write(name, programs.cases(QUICK)[name], folder)
    command = [sys.executable, "-m", "scripts.device.run", str(folder), str(out)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    subprocess.run(
        [*command, "--only", "dense", "chains"], check=True, env=environment, cwd=ROOT, stdout=subprocess.PIPE
    )
    return page.read(out / "results.jsonl")


@pytest.mark.slow
def test_a_whole_fit_ends_where_tensorflow_ends(lines) -> None:
    (ours,) = (line for line in lines if line["of"] == "dense")
    with gpflow.config.as_context(programs.DOUBLE):
        result = gpx.fit(programs.dense(QUICK.dense[0]), starts=1, progress=False)
    assert ours["status"] != 0.0
    assert ours["loss"] < ours["loss_before"]
    np.testing.assert_allclose(-ours["loss"], result.objective[-1], rtol=1e-8)


@pytest.mark.slow
def test_chains_count_the_gradients_of_the_draws_that_are_asked_for(lines) -> None:
    (ours,) = (line for line in lines if line["of"] == "chains")
    assert (ours["chains"], ours["coordinates"]) == (2, "vb")
    assert 0.0 < ours["accepted"] <= 1.0
    assert ours["ms_per_gradient"] > 0.0


@pytest.mark.slow
def test_the_page_has_a_row_of_each_and_says_what_is_missing(lines) -> None:
    where = {**lines[0]["environment"], "device": "a GPU"}
    text = page.text([{"of": "device", "environment": where}, *lines[1:]])
    assert len(lines[0]["environment"]["commit"]) >= 10
    assert "| 40 | float64 |" in text
    assert "| 2 | vb |" in text
    assert "Not measured yet: MNIST to its end, maps of counts, networks of many outputs.\n" in text
    with pytest.raises(ValueError, match="on a GPU"):
        page.text(lines)


def test_the_page_gives_what_each_line_of_a_record_says() -> None:
    where = {"versions": {"jax": "1"}, "commit": "c", "date": "d", "driver": "v", "cores": 4, "python": "3"}
    timed = {"seconds": 6.0, "memory_GiB": 2.0, "compile_s": 9.0}
    chains = {"chains": 10, "coordinates": "vb", "ms_per_gradient": 5.0, **timed}
    digits = {
        "of": "digits",
        "step": 20_000,
        "seconds": 60.0,
        "ms_per_step": 3.0,
        "error": 0.02,
        "nlpd": 0.07,
    }
    text = page.text(
        [
            {"of": "device", "environment": {**where, "device": "a GPU"}},
            {"of": "dense", "rows": 40, "dtype": "float64", "evaluations": 4, **timed},
            {"of": "dense", "rows": 80, "dtype": "float64", "left_out": "it would take 99 s"},
            {"of": "chains", **chains},
            {"of": "chains, by hand", "chains": 10, "ms_per_gradient": 7.0},
            {"of": "map", "draws": 64, **chains},
            {"of": "network", "outputs": 1000, "places": 50, "nodes": 2, "seconds": 0.004},
            digits,
            {"of": "device", "environment": {**where, "device": "cpu"}},
            {**digits, "seconds": 999.0, "error": 0.03},
        ]
    )
    rows = (
        "| 40 | float64 | 6 | 4 | 1.5 | 2 | 9 |",
        "| 80 | float64 | it would take 99 s | – | – | – | – |",
        "| 10 | vb | 5 | 7 | 9 |",
        "| 10 | 64 | 6 | 5 | – |",
        "| 1,000 | 50 | 2 | 4 |",
        "| 20,000 | 60 | 3 | 2.00 | 0.0700 | 999 | 3.00 | 0.0700 |",
        "At this speed 20,000 steps take 1 minutes, of 2 wanted.",
    )
    assert [row for row in rows if row not in text] == []
    assert "Not measured yet" not in text


SAMPLED: dict[str, dict[str, Any]] = {
    "constant mean": {"mean_function": gpflow.functions.Constant},
    "kernel": {"kernel": lambda: gpflow.kernels.ArcCosine(1)},
    "likelihood": {"likelihood": gpflow.likelihoods.StudentT},
}


@pytest.mark.parametrize(
    "part",
    ["constant mean", *(pytest.param(part, marks=pytest.mark.slow) for part in ("kernel", "likelihood"))],
)
def test_chains_are_compiled_once_whatever_their_positions(part: str) -> None:
    """These are arguments of the program, though parts are mapped over chains: none is a constant for XLA."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 2))
    Y = (X[:, :1] > 0.0).astype(float)
    parts = {"kernel": gpflow.kernels.SquaredExponential, "likelihood": gpx.likelihoods.BernoulliProbit}
    built = {name: make() for name, make in {**parts, **SAMPLED[part]}.items()}
    model = gpx.models.SGPMCFreeForm((X, Y), inducing_variable=X[:4], **built)
    for name in parts:
        gpflow.set_trainable(built[name], name in SAMPLED[part])
    for parameter in model.trainable_parameters:
        if parameter.prior is None:
            parameter.prior = tfp.distributions.Normal(*map(gpflow.utilities.to_default_float, (0.0, 1.0)))
    gpx.gaussian_approximation(model, free_inducing=False)

    def sample() -> None:
        gpx.sample(
            model, 4, 2, tuner=programs.Setting(0.1, 3), approximate=False, progress=False, jit_compile=True,
            check=False,
        )  # fmt: skip

    call = programs.reached(sample, "Iterations.block")
    program = stablehlo.lower(call.function, call.arguments)
    assert None not in programs.places(call, program)


def test_an_accelerator_factorises_one_matrix_whole_and_many_by_halves(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    half = rng.standard_normal((3, 40, 40))
    matrices = half @ half.transpose(0, 2, 1) + 40.0 * np.eye(40)
    monkeypatch.setattr(linalg, "has_accelerator", lambda: True)
    monkeypatch.setattr(linalg, "LEAF", 8)
    monkeypatch.setattr(linalg, "BATCHED_LEAF", 16)
    sizes: list[int] = []
    cholesky = linalg.tf.linalg.cholesky
    monkeypatch.setattr(linalg.tf.linalg, "cholesky", lambda M: (sizes.append(M.shape[-1]), cholesky(M))[1])
    for some, wanted in ((matrices[:1], [40]), (matrices, [10] * 4)):
        sizes.clear()
        factor, finite = linalg.cholesky(linalg.tf.constant(some))
        assert finite
        assert sizes == wanted
        np.testing.assert_allclose(factor, np.linalg.cholesky(some), rtol=0, atol=1e-12)
