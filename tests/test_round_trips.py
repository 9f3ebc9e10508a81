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


# The model, its data and options, and the reads of a step: one of what the call returns, the others of variables for
# the loop's own bookkeeping, which lie on the host.
EIGHT = {"recipe": "gradient_descent", "minibatch_size": 8, "steps_per_call": 8}
FITS = {
    "gradient descent": (_svgp, (X, Y), {**EIGHT, "steps_per_call": 1}, 3),
    "eight steps in a call": (_svgp, (X, Y), EIGHT, 3),
    "tensor network": (_network, None, {"minibatch_size": 2}, 3),
    "natural gradients": (_robust_max, (X, Y), {"minibatch_size": 8}, 4),
}


def _cost(name: str, steps: int) -> Counter[str]:
    build, data, options, _ = FITS[name]
    model = build()
    with counted() as found:
        gpx.fit(model, data, steps=steps, progress=False, **options)
    return found


@pytest.mark.parametrize("name", FITS)
def test_a_step_is_one_call_whose_result_is_read_once(name: str) -> None:
    few, many = _cost(name, 2), _cost(name, 7)
    assert many["calls"] - few["calls"] == 5
    assert many["reads"] - few["reads"] <= 5 * FITS[name][3]


def test_steps_in_one_call_are_those_of_several() -> None:
    def trained(steps: int, **options: Any) -> tuple[gpflow.models.SVGP, gpx.FitResult]:
        model = _svgp()
        options |= {"recipe": "gradient_descent", "minibatch_size": 8, "seed": 3, "progress": False}
        return model, gpx.fit(model, (X, Y), steps=steps, **options)

    (one, singly), (other, together) = trained(12), trained(3, steps_per_call=4)
    for first, second in zip(one.trainable_variables, other.trainable_variables, strict=True):
        np.testing.assert_allclose(first, second, rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(together.objective, singly.objective.reshape(3, 4).mean(axis=1), rtol=1e-12)
