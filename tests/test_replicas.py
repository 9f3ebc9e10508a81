"""Copies that share compiled functions, and climbs from several starts on them."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from gpflow.models import SVGP

import gpflow_ext as gpx
from gpflow_ext.compiled import examine, replica, trace_count
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.models import VGPKMM, GPLaplace
from gpflow_ext.training import hyperparameters


def model(kind: type = GPLaplace) -> Any:
    return kind(problems.binary(25), problems.kernel(), BernoulliLogit())


def test_a_replica_has_the_structure_and_values_and_goes_its_own_way() -> None:
    ours = model()
    ours.kernel.variance.assign(3.0)
    copied = replica(ours)
    assert examine(copied).key == examine(ours).key
    assert copied.nat1.unconstrained_variable.shape.as_list() == [None, 1]
    assert copied.data[0] is ours.data[0]
    assert float(copied.kernel.variance.numpy()) == 3.0
    assert copied.kernel.variance.trainable
    assert not copied.nat1.trainable
    copied.kernel.variance.assign(5.0)
    assert float(ours.kernel.variance.numpy()) == 3.0


def test_what_is_shared_within_is_shared_within_the_replica() -> None:
    ours = SVGP(problems.kernel(), BernoulliLogit(), problems.inputs(4))
    ours.mean_function.scale = ours.kernel.variance
    copied = replica(ours)
    assert copied.mean_function.scale is copied.kernel.variance


def test_a_function_of_a_replica_closes_over_the_parts_of_the_replica() -> None:
    ours = model()
    ours.mean_function.scale = lambda x, kernel=ours.kernel: kernel.variance * x
    copied = replica(ours)
    copied.kernel.variance.assign(5.0)
    assert float(copied.mean_function.scale(2.0)) == 10.0
    assert float(ours.mean_function.scale(2.0)) == 2.0 * float(ours.kernel.variance.numpy())


class Single(gpflow.kernels.SquaredExponential):
    """A kernel that cannot be copied."""

    def __deepcopy__(self, memo: object) -> Any:
        raise TypeError("not to be copied")


def test_a_model_that_cannot_be_copied_is_climbed_from_each_start() -> None:
    ours = GPLaplace(problems.binary(25), Single(), BernoulliLogit())
    assert len(gpx.fit(ours, starts=2, steps=1).starts) == 2


class Walled(GPLaplace):
    """A model that shares no function, because of what it holds."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.held = (n for n in ())


@pytest.mark.parametrize("kind", [GPLaplace, pytest.param(VGPKMM, marks=pytest.mark.slow), Walled])
def test_starts_end_the_same_whatever_the_number_of_threads(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for workers in (1, 3):
        monkeypatch.setattr(hyperparameters, "WORKERS", workers)
        fitted, before = model(kind), trace_count()
        result = gpx.fit(fitted, starts=3, seed=4, steps=2)
        found.append([result.objective, *map(tf.convert_to_tensor, fitted.parameters)])
        assert kind is Walled or workers == 1 or trace_count() == before
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    best = [gpx.fit(model(kind), starts=1, steps=1).objective[0], found[0][0][0]]
    assert best[1] >= best[0]
