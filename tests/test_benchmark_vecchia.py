"""The benchmark's evidence of a Vecchia prior without a factor, against dense algebra and the package's factor."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import pytest
from scipy.sparse.linalg import splu

import gpflow_ext as gpx
from scripts.benchmarks import vecchia
from scripts.benchmarks import vecchia_iterative as iterative

N = 200


@pytest.fixture(scope="module")
def at_mode() -> tuple[Any, ...]:
    """The approximation, B, its triangular solutions, and the mode."""
    prior = iterative.conditional(N)
    B = prior.rows()
    lower = splu(B, permc_spec="NATURAL", diag_pivot_thresh=0.0)
    return prior, B, lower, iterative.find_mode(prior, B, lower)[0]


def test_the_evidence_is_that_of_the_factor(at_mode: tuple[Any, ...]) -> None:
    """With the exact log determinant that of the package; the estimated one is within three standard errors."""
    prior, B, lower, f = at_mode
    X, Y, *_ = vecchia.places(N, "counts")
    model = gpx.models.GPLaplace(
        (X, Y), gpflow.kernels.Matern32(1.0, vecchia.SCALE), gpflow.likelihoods.Poisson(), prior="vecchia"
    )
    gpflow.set_trainable(model, False)
    expected = gpx.fit(model, progress=False).objective[-1]
    A = iterative.preconditioned(prior, lower, np.exp(f))(np.eye(N))
    exact = np.linalg.slogdet(A)[1]
    given = iterative.log_joint(prior, B, f)
    assert iterative.evidence(prior, given, f, exact) == pytest.approx(expected, rel=1e-8)
    found, _ = iterative.log_traces(lambda v: A @ v, N)
    assert abs(found.mean() - exact) < 3.0 * found.std(ddof=1) / np.sqrt(iterative.PROBES)


def test_the_error_falls_with_the_root_of_the_probes(at_mode: tuple[Any, ...], monkeypatch: Any) -> None:
    """The deviation of 400 probes is that of random signs, √2 of what lies off the diagonal of log A, to a tenth."""
    prior, _, lower, f = at_mode
    monkeypatch.setattr(iterative, "PROBES", 400)
    A = iterative.preconditioned(prior, lower, np.exp(f))(np.eye(N))
    values, vectors = np.linalg.eigh(A)
    log_A = (vectors * np.log(values)) @ vectors.T
    beside = np.sqrt(2.0) * np.linalg.norm(log_A - np.diag(np.diag(log_A)))
    found, _ = iterative.log_traces(lambda v: A @ v, N)
    assert abs(found.mean() - log_A.trace()) < 3.0 * beside / 20.0
    assert found.std(ddof=1) == pytest.approx(beside, rel=0.1)


def test_a_graph_has_the_same_solutions(at_mode: tuple[Any, ...]) -> None:
    """By levels, with the data in their order."""
    prior, _, lower, _ = at_mode
    order = np.argsort(iterative.levels(prior.near), kind="stable")
    b = np.random.default_rng(0).normal(size=(N, 3))
    expected = lower.solve(lower.solve(b), "T")[order]
    found = iterative.in_a_graph(prior, 3)(b[order])
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-10 * np.abs(expected).max())
