"""Networks are compiled once for each structure: a second fit traces nothing and repeats the first bit by bit."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import resuming
import tensorflow as tf
from gpflow.keras import tf_keras
from marks import others_slow

import gpflow_ext as gpx
from gpflow_ext.compiled import clear_compiled, trace_count
from gpflow_ext.gprn import renewal
from gpflow_ext.gprn.network import known, moment_nodes, nodes, start
from gpflow_ext.gprn.recipe import gprn
from gpflow_ext.gprn.updates import Updates
from gpflow_ext.models import GPRNTensor

N, D, K = 11, 5, 2
X = problems.inputs(N)


def targets(seed: int = 1) -> np.ndarray:
    Y = np.stack([problems.latent(X, 1.0, 1.2, seed=10 * seed + d) for d in range(D)], axis=1)
    Y += 0.2 * np.random.default_rng(seed).standard_normal((N, D))
    Y[:3, 1] = np.nan
    return Y


def network(Y: Any, posterior: str = "collapsed", length: float = 1.2, **options: Any) -> GPRNTensor:
    kernel, weight_kernel = (gpflow.kernels.SquaredExponential(lengthscales=length) for _ in range(2))
    gpflow.set_trainable(kernel.variance, False)
    return GPRNTensor((X, Y), kernel, weight_kernel, K, posterior=posterior, nugget=1e-3, **options)


def adam() -> tf_keras.optimizers.Optimizer:
    return tf_keras.optimizers.Adam(0.02)


ALONE = {"independent_start": False, "moment_start": False, "factor_start": False}  # from the model as it is
INDUCING = {"inducing_variable": problems.inputs(4, seed=5)}
CASES: dict[
    str, tuple[dict[str, Any], dict[str, Any], int]
] = {  # of the model, of the fit, traces of the first
    "lbfgs": ({}, {"hyper_updates": 3}, 9),
    "not joint": ({}, {"hyper_updates": 3, "joint": False}, 9),
    "without sweeps": ({}, {"hyper_updates": 3, "sweeps": 0}, 9),
    "from here": ({}, {"hyper_updates": 3, **ALONE}, 2),
    "inducing": (INDUCING, {"hyper_updates": 3}, 4),
    "adam": ({}, {"optimizer": adam}, 11),
    "tensor": ({"posterior": "tensor"}, {"hyper_updates": 2}, 11),
    "tensor, adam": ({"posterior": "tensor"}, {"optimizer": adam}, 1),
    "tensor, minibatches": ({"posterior": "tensor"}, {"minibatch_size": 3}, 1),
    "tensor, lbfgs": ({"posterior": "tensor"}, {"optimizer": "lbfgs", "hyper_updates": 3}, 1),
}
QUICK = ("lbfgs", "without sweeps", "tensor, minibatches", "tensor, lbfgs")


def options_of(case: str) -> dict[str, Any]:
    return {name: value() if callable(value) else value for name, value in CASES[case][1].items()}


@pytest.mark.parametrize("case", others_slow(CASES, *QUICK))
def test_a_second_fit_traces_nothing_and_repeats_the_first(case: str) -> None:
    """Between both a network of other targets and other values is fitted by the same functions."""
    clear_compiled()
    found = []
    for Y, length in ((targets(), 1.2), (targets(2), 0.8), (targets(), 1.2)):
        model, before = network(Y, length=length, **CASES[case][0]), trace_count()
        result = gpx.fit(model, steps=3, progress=False, **options_of(case))
        found.append((model, result.objective, trace_count() - before))
    (cold, first, traced), (_, other, for_other), (warm, second, again) = found
    assert (traced, for_other, again) == (CASES[case][2], 0, 0)
    assert np.isfinite(other).all()
    np.testing.assert_array_equal(first, second)
    assert first[-1] != first[0]
    for a, b in zip(cold.variables, warm.variables, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case", others_slow(CASES, "without sweeps", "tensor", "tensor, lbfgs"))
def test_a_run_resumes_exactly_on_a_warm_cache(case: str, tmp_path) -> None:
    """The functions are those of a network of other targets."""
    model, options = CASES[case][0], {"seed": 2}
    gpx.fit(network(targets(2), length=0.8, **model), steps=2, progress=False, **options_of(case))
    before = trace_count()

    def made() -> dict[str, Any]:
        return options | options_of(case) | {"tolerance": 0.0}

    resuming.check(lambda: network(targets(), **model), tmp_path, steps=4, cut=2, options=made)
    assert trace_count() == before


def test_targets_of_a_file_share_the_functions_of_an_array(tmp_path) -> None:
    np.save(tmp_path / "Y.npy", targets())
    clear_compiled()
    results = []
    for Y in (targets(2), targets(), tmp_path / "Y.npy"):
        before = trace_count()
        results.append(gpx.fit(network(Y), steps=2, hyper_updates=3, progress=False).objective)
        assert trace_count() == before or len(results) == 1
    np.testing.assert_array_equal(results[1], results[2])


@pytest.mark.parametrize("options", [{}, INDUCING])
def test_compiled_moves_are_those_of_the_posterior(options: dict[str, Any]) -> None:
    ours, theirs = (network(targets(), length=0.8, **options) for _ in range(2))
    updates, F = (
        Updates(ours, ours.trainable_variables),
        tf.constant(problems.inputs(N, seed=9)[:, :1] * [[1.0, 0.3]]),
    )
    for move, same in (
        (lambda: updates.start_at(F), lambda: theirs.q.update(theirs.prior(), known(F))),
        (updates.sweep, lambda: theirs.q.sweep(theirs.prior())),
        (lambda: updates.start_at(ours.q.start(ours.prior())), lambda: theirs.q.restart(theirs.prior())),
    ):
        move()
        same()
        for a, b in zip(ours.q.sites, theirs.q.sites, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(updates.value(), theirs.elbo(), rtol=1e-10)


def test_compiled_beginnings_are_those_of_the_network() -> None:
    model = network(targets(), length=0.8)
    updates, prior = Updates(model, model.trainable_variables), model.prior()
    gram = prior.weights @ tf.transpose(prior.weights)
    draws = renewal.draws(prior, K, 4)
    for kind, seed, expected in (
        ("own", 0, model.q.start(prior)),
        ("drawn", 4, start(draws, prior.weights, prior.noise)),
        ("moments", 0, moment_nodes(model.q.seen(prior.scales), gram, prior.noise, K)),
    ):
        np.testing.assert_allclose(updates.begun(kind, seed), expected, rtol=1e-9, atol=1e-9)
    nat1, prec = (1.1 * part for part in model.q.sites)
    other = network(targets(), length=0.8)
    other.q.update(prior, nodes(prior.nodes, nat1, prec))
    updates.start_from(nat1, prec)
    for a, b in zip(model.q.sites, other.q.sites, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


def test_a_run_goes_on_with_its_memory_where_nothing_else_moves() -> None:
    """Two parts of three iterations are one of six; the objective is that at the end."""
    ends = []
    for parts in ([6], [3, 3]):
        model = network(targets(), "tensor")
        updates = Updates(model, model.trainable_variables)
        run = updates.climb(model.trainable_variables)
        for part in parts:
            run.climb(part)
            np.testing.assert_allclose(run.best, model.elbo(), rtol=1e-12)
        assert run.iterations == 6
        ends.append(model.elbo())
    assert ends[0] == ends[1]


@pytest.mark.parametrize("sweeps", [0, 1])
def test_an_ascent_keeps_its_run_only_without_sweeps(sweeps: int) -> None:
    """With them each update climbs another function, from where the hyperparameters are."""
    ends = []
    for steps, hyper_updates in ((1, 6), (2, 3)):
        model = network(targets())
        plan = gprn(model, hyper_updates=hyper_updates, sweeps=sweeps, **ALONE)
        objectives = [plan.update()[0] for _ in range(steps)]
        np.testing.assert_allclose(objectives[-1], model.elbo(), rtol=1e-12)
        assert (np.diff(objectives) > 0.0).all()
        assert len(plan.variables) - len(model.variables) == (1 if sweeps else 6)
        ends.append(model.elbo())
    assert (ends[0] == ends[1]) == (sweeps == 0)


def test_a_network_without_anything_to_train_is_swept() -> None:
    model = network(targets())
    gpflow.set_trainable(model, False)
    for options in ({}, {"optimizer": adam()}):
        result = gpx.fit(model, steps=3, progress=False, moment_start=False, **options)
        assert (np.diff(result.objective) > -1e-9).all()
        np.testing.assert_allclose(result.objective[-1], model.elbo(), rtol=1e-12)
