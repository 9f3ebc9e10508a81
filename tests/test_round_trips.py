"""How often a step of a fit leaves the compiled function: on a GPU each call is a launch, and each read a wait."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow_probability as tfp
from tensorflow.python.framework import ops

import gpflow_ext as gpx
from gpflow_ext.compiled.functions import Entry

X, Y = problems.binary(40)
Z = X[:8].copy()
READS = ("numpy", "__float__", "__int__", "__bool__", "__array__", "__index__")


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count compiled calls, and reads of tensors by the host, of which one may be made of others."""
    found: Counter[str] = Counter()
    within = False

    def counting(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def counts(*args: Any, **kwargs: Any) -> Any:
            nonlocal within
            outer, within = within, True
            found[kind] += not outer
            try:
                return original(*args, **kwargs)
            finally:
                within = outer

        return counts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Entry, "__call__", counting(Entry.__call__, "calls"))
        for name in READS:
            owner = ops.EagerTensor if name in vars(ops.EagerTensor) else ops._EagerTensorBase
            patch.setattr(owner, name, counting(getattr(owner, name), "reads"))
        yield found


def _svgp() -> gpflow.models.SVGP:
    kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli()
    return gpflow.models.SVGP(kernel, likelihood, Z, num_data=len(X))


def _network() -> gpflow.models.BayesianModel:
    kernels = [gpflow.kernels.SquaredExponential() for _ in range(2)]
    return gpx.models.GPRNTensor((X, np.hstack([Y, X])), *kernels, 2, posterior="tensor")


def _robust_max() -> gpflow.models.BayesianModel:
    return gpx.models.SVGPRobustMax(gpflow.kernels.SquaredExponential(), 2, Z, num_data=len(X))


def _svgp_whitened() -> gpflow.models.SVGP:
    model = _svgp()
    gpflow.set_trainable(model.inducing_variable, False)
    return model


def _sparse_ep() -> gpflow.models.BayesianModel:
    kernel, likelihood = gpflow.kernels.SquaredExponential(), gpx.likelihoods.BernoulliProbit()
    return gpx.models.SparseEP((X, Y), kernel, likelihood, inducing_variable=Z)


EIGHT = {"recipe": "gradient_descent", "minibatch_size": 8, "steps_per_call": 8}
SEVERAL = {"minibatch_size": 8, "steps_per_call": 4}
# The model, its data and options, and the reads of a step: one of what the call returns, the others of variables
# which lie on the host: whether the start is chosen, the number of steps and the share of their length, or of the
# epoch, of the minibatches done in it, and whether it has begun.
FITS = {
    "gradient descent": (_svgp, (X, Y), {**EIGHT, "steps_per_call": 1}, 1),
    "eight steps in a call": (_svgp, (X, Y), EIGHT, 1),
    "tensor network": (_network, None, {"minibatch_size": 2}, 1),
    "natural gradients": (_robust_max, (X, Y), {"minibatch_size": 8}, 4),
    "four natural gradients in a call": (_robust_max, (X, Y), SEVERAL, 3),
    "four dual steps in a call": (_svgp, (X, Y), {"recipe": "dual", **SEVERAL}, 3),
    # An epoch of ten calls: its end, which sums the sites of all data, is not among those that are counted.
    "four minibatches of sites in a call": (_sparse_ep, None, {"minibatch_size": 1, "steps_per_call": 4}, 5),
}


@pytest.mark.parametrize("name", FITS)
def test_a_step_is_one_call_whose_result_is_read_once(name: str) -> None:
    """Of the third to the sixth step of nine: the first ones begin, the last ones note what still moves."""
    build, data, options, reads = FITS[name]
    after: list[Counter[str]] = []
    with counted() as found:
        gpx.fit(
            build(), data, steps=9, progress=False, monitor=lambda _: after.append(found.copy()), **options
        )
    assert after[5] - after[1] == {"calls": 4, "reads": 4 * reads}


@pytest.mark.parametrize("tuner", ["dual_averaging", "bayesopt"])
def test_iterations_of_chains_are_read_once_in_a_call(tuner: str) -> None:
    """Ten times as many iterations in tuning, warm-up and thinning have no further call and no further read."""

    def cost(iterations: int) -> Counter[str]:
        model = gpflow.models.GPMC(
            (X, Y), gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli()
        )
        for parameter in model.kernel.trainable_parameters:
            parameter.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.0))
        few = {"trials": 2, "samples": iterations, "max_leapfrogs": (1, 2)}
        options = few if tuner == "bayesopt" else {"iterations": iterations, "max_leapfrogs": 2}
        with counted() as found:
            shared = {"warm_up": iterations, "progress": False, "check": False}
            gpx.sample(model, 4, 2, thin=iterations // 4, tuner=tuner, tuning=options, **shared)
        return found

    cost(4)  # to trace reads too
    assert cost(4) == cost(40)


STEPS: dict[str, tuple[Callable[[], Any], Any, dict[str, Any]]] = {
    "gradient descent": (_svgp, (X, Y), {"recipe": "gradient_descent"}),
    "robust max": (_robust_max, (X, Y), {"hold": 4}),
    "optimiser alone": (_robust_max, (X, Y), {"gamma": None}),
    "natural gradients": (_svgp_whitened, (X, Y), {"recipe": "svi_natural"}),
    "dual sites": (_svgp, (X, Y), {"recipe": "dual"}),
}


QUICK = ("gradient descent", "dual sites")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in STEPS]
)
def test_steps_in_one_call_are_those_of_several(name: str) -> None:
    build, data, options = STEPS[name]

    def trained(steps: int, **more: Any) -> tuple[gpflow.models.BayesianModel, gpx.FitResult]:
        model = build()
        given = {"minibatch_size": 8, "seed": 3, "progress": False, **options, **more}
        return model, gpx.fit(model, data, steps=steps, **given)

    (one, singly), (other, together) = trained(12), trained(3, steps_per_call=4)
    for first, second in zip(one.variables, other.variables, strict=True):
        np.testing.assert_allclose(first, second, rtol=0.0, atol=1e-10)
    np.testing.assert_allclose(together.objective, singly.objective.reshape(3, 4).mean(axis=1), rtol=1e-12)


def test_minibatches_of_sites_in_one_call_are_those_of_several() -> None:
    """Two epochs of five minibatches of seven data and one of five."""

    def trained(steps: int, **options: Any) -> gpflow.models.BayesianModel:
        model = _sparse_ep()
        result = gpx.fit(model, minibatch_size=7, steps=steps, progress=False, seed=3, **options)
        assert result.steps == steps
        return model

    one, other = trained(12), trained(6, steps_per_call=3)
    for first, second in zip(one.variables, other.variables, strict=True):
        np.testing.assert_allclose(first, second, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize(
    ("build", "options", "words"),
    [
        (_robust_max, {"steps_per_call": 4}, "give `minibatch_size`"),
        (_robust_max, {**SEVERAL, "hold": 6}, "`hold` must be a multiple"),
        (_robust_max, {**SEVERAL, "validation": (X, Y), "validate_every": 6}, "`validate_every` must be"),
        (_sparse_ep, {"minibatch_size": 8, "steps_per_call": 0}, "at least 1"),
    ],
)
def test_steps_that_no_call_can_hold_are_refused(
    build: Callable[[], Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        gpx.fit(build(), None if build is _sparse_ep else (X, Y), steps=1, progress=False, **options)
