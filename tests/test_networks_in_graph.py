"""The search of a network in the graph ends where that on the host does, and comes back a few times in a fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import compiled_calls
import numpy as np
import pytest
import resuming
from test_gprn_compiled import ALONE, adam, network, targets

import gpflow_ext as gpx
from gpflow_ext.compiled import clear_compiled, trace_count
from gpflow_ext.gprn.recipe import GPRNOptions, gprn
from gpflow_ext.training import lbfgs_in_graph
from gpflow_ext.training.lbfgs_in_graph import GraphRun

SLOW = pytest.mark.slow
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of the model, of the fit
    "collapsed": ({}, {"hyper_updates": 8}),
    "from here": ({}, {"hyper_updates": 8, "sweeps": 0, **ALONE}),
    "not joint": ({}, {"hyper_updates": 8, "joint": False, **ALONE}),
    "profiled": ({"posterior": "tensor"}, {"hyper_updates": 2}),
    "tensor": ({"posterior": "tensor"}, {"hyper_updates": 8, "optimizer": "lbfgs"}),
}
# Calls beside those: two sweeps a step, five moves and evaluations of the moments, twice, moves of the regressions,
# the small nodes and the factors, four renewals of the coordinates; seven times nodes to start from, and eight or
# nine times the variances of kernels; and six Gram matrices and four variances of each of two kernels of the nodes,
# for which the kernels are suited three times.
STARTS = 20 + 3 + 7 + 8
SUITED = 3 * 2 * (6 + 4)
OTHERS = {
    "collapsed": 4 + STARTS + 1 + SUITED,
    "from here": 0,
    "not joint": 4,
    "profiled": 4 + STARTS + SUITED,
    "tensor": 0,
}
EACH = [name if name in ("from here", "tensor") else pytest.param(name, marks=SLOW) for name in CASES]


def _fit(name: str, in_graph: bool | None, steps: int) -> tuple[Any, gpx.FitResult]:
    """Return a network after some steps."""
    model = network(targets(), **CASES[name][0])
    return model, gpx.fit(model, steps=steps, in_graph=in_graph, progress=False, **CASES[name][1])


@pytest.mark.parametrize("name", EACH)
def test_it_goes_where_the_host_goes_with_few_calls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = compiled_calls.record(monkeypatch)
    parts: list[tuple[int, int]] = []  # of a search: calls of the graph, and evaluations in them
    go_on = GraphRun.go_on

    def counted(run: GraphRun, *arguments: Any) -> Any:
        before, evaluations = len(calls), len(run.record.numpy())
        ended = go_on(run, *arguments)
        parts.append((len(calls) - before, len(run.record.numpy()) - evaluations))
        return ended

    monkeypatch.setattr(GraphRun, "go_on", counted)
    clear_compiled()
    on_host, expected = _fit(name, False, 2)
    evaluations = len(calls)
    calls.clear()
    model, found = _fit(name, True, 2)
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-6)
    np.testing.assert_allclose(model.elbo(), on_host.elbo(), rtol=1e-6)
    for one, other in zip(found.starts, expected.starts, strict=True):
        assert one.name == other.name
        np.testing.assert_allclose(one.objective, other.objective, rtol=1e-6)
    assert all(some <= 1 + made // lbfgs_in_graph.CALL for some, made in parts)
    searches, evaluated = map(sum, zip(*parts, strict=True))
    assert evaluated > 15
    assert len(calls) - searches == OTHERS[name]
    assert evaluations >= evaluated
    traces = trace_count()
    _, again = _fit(name, True, 2)
    assert trace_count() == traces
    np.testing.assert_array_equal(again.objective, found.objective)


@pytest.mark.parametrize("name", ["from here", pytest.param("profiled", marks=SLOW)])
def test_a_run_resumes_exactly(name: str, tmp_path: Path) -> None:
    options = CASES[name][1] | {"in_graph": True, "hyper_updates": 2, "seed": 2, "tolerance": 0.0}
    resuming.check(
        lambda: network(targets(), **CASES[name][0]), tmp_path, steps=4, cut=2, options=lambda: options
    )


def test_it_is_the_default_on_accelerators_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for accelerator in (False, True):
        monkeypatch.setattr(lbfgs_in_graph, "has_accelerator", lambda: accelerator)  # noqa: B023
        for name in ("from here", "tensor", "profiled"):
            model = network(targets(), **CASES[name][0])
            plan = gprn(model, jit_compile=False, **CASES[name][1])
            assert plan.settings.get("in_graph", False) == accelerator
            runs = [part for part in plan.trackables.values() if isinstance(part, GraphRun)]
            assert bool(runs) == (accelerator and name == "tensor")


@pytest.mark.parametrize("options", [{"minibatch_size": 3}, {"optimizer": adam}])
def test_other_optimisers_are_refused(options: dict[str, Any]) -> None:
    options = {name: value() if callable(value) else value for name, value in options.items()}
    with pytest.raises(ValueError, match="iterations of L-BFGS"):
        GPRNOptions(in_graph=True, **options)


def test_a_network_too_large_for_l_bfgs_by_default_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpflow_ext.gprn.recipe._LARGEST", 1)
    with pytest.raises(ValueError, match="Adam trains a network as large as this"):
        gpx.fit(network(targets(), "tensor"), in_graph=True)
