"""Problems too large for memory are refused before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from gpflow.kernels import SeparateIndependent

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit, StickBreaking
from gpflow_ext.models import VGPKMM, GPLaplace, SparseEP
from gpflow_ext.training import memory

SE = gpflow.kernels.SquaredExponential
X, Y = problems.binary(20)


def _two_functions() -> GPLaplace:
    return GPLaplace((X, Y), SeparateIndependent([SE(), SE()]), StickBreaking(3))


# What two matrices of each latent kernel take, in numbers of eight bytes.
LEAST: dict[str, tuple[Callable[[], Any], int]] = {
    "dense": (lambda: VGPKMM((X, Y), SE(), BernoulliLogit()), 2 * 20 * 20),
    "two latent functions": (_two_functions, 4 * 20 * 20),
    "inducing points": (
        lambda: GPLaplace((X, Y), SE(), BernoulliLogit(), inducing_variable=X[:5]),
        2 * 5 * 20,
    ),
    "GPflow's VGP": (lambda: gpflow.models.VGP((X, Y), SE(), BernoulliLogit()), 2 * 20 * 20),
    "GPflow's SGPR": (lambda: gpflow.models.SGPR((X, Y), SE(), X[:5]), 2 * 5 * 20),
    "state space": (
        lambda: VGPKMM((X[:, :1], Y), gpflow.kernels.Matern32(), BernoulliLogit(), prior="markov"),
        0,
    ),
}


@pytest.mark.parametrize("name", LEAST)
def test_what_is_refused_is_larger_than_the_memory_of_the_machine(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, numbers = LEAST[name]
    model = build()
    monkeypatch.setattr(memory, "_physical", lambda: 8.0 * numbers)
    memory.check_memory(model)
    if numbers:
        monkeypatch.setattr(memory, "_physical", lambda: 8.0 * numbers - 1.0)
        with pytest.raises(ValueError, match=r"recipe=\"dual\""):
            gpx.fit(model)


def test_minibatches_and_devices_hold_no_matrix_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SparseEP((X, Y), SE(), BernoulliLogit(), inducing_variable=X[:5])
    monkeypatch.setattr(memory, "_physical", lambda: 1000.0)
    with pytest.raises(ValueError, match=r"recipe=\"dual\""):
        gpx.fit(model)
    gpx.fit(model, minibatch_size=10, steps=0)
    gpx.fit(model, strategy=tf.distribute.MirroredStrategy(["CPU:0"]), steps=0)


def test_hundreds_of_thousands_of_rows_have_no_dense_model() -> None:
    """A covariance of 1,000,000 rows takes 7,451 GiB; nothing is traced."""
    places = np.linspace(0.0, 1.0, 1_000_000)[:, None]
    model = GPLaplace((places, np.round(places)), SE(), BernoulliLogit())
    before = gpx.trace_count()
    with pytest.raises(ValueError, match=r"14,901 GiB for these 1,000,000 rows, .* `prior=\"markov\"`"):
        gpx.fit(model)
    assert gpx.trace_count() == before
