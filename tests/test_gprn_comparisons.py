"""GPRNTensor beside independent regression: where there is something to gain, where there is not, what a step costs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import gpflow
import numpy as np
import pytest
import tensorflow as tf

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "scripts")]

import _gprn  # noqa: E402
import _gprn_methods as methods  # noqa: E402

from gpflow_ext.models import GPRNTensor  # noqa: E402


def graph_of_a_step(outputs: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the operations of a bound, its gradient and a sweep, with the shapes of their results."""
    X, Y = np.random.default_rng(0).normal(size=(10, 2)), np.random.default_rng(1).normal(size=(10, outputs))
    model = GPRNTensor(
        (X, Y), gpflow.kernels.SquaredExponential(), gpflow.kernels.SquaredExponential(), num_latent=2
    )
    variables = model.trainable_variables

    def step() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = model.training_loss()
        model.q.sweep(model.prior())
        return [loss, *tape.gradient(loss, variables)]

    graph = tf.function(step, autograph=False).get_concrete_function().graph
    return [(op.type, *(str(out.shape) for out in op.outputs)) for op in graph.get_operations()]


def test_a_step_of_the_collapsed_posterior_is_the_same_for_any_number_of_outputs() -> None:
    """Acceptance check C9: no operation and no shape of the graph depends on D; seconds are in the results."""
    assert graph_of_a_step(20) == graph_of_a_step(3000)


def _ratio(rows: int, outputs: int, width: int, steps: int, stationary: bool) -> float:
    """Return the mean squared error of a network over that of independent regressions, on held-out inputs."""
    task = _gprn.generated(0, stationary, outputs, rows, width)
    task = methods.Task(task.X, task.Y, task.X_test, task.Y_test, steps=steps)
    own, alone = (methods.run(name, task, 2)["nrmse"] for name in (methods.COLLAPSED, methods.INDEPENDENT))
    return float((own / alone) ** 2)


SMALL, LARGE = (25, 40, 1, 4), (60, 200, 2, 20)


@pytest.mark.slow
def test_a_network_predicts_its_own_draws_better_than_independent_regression() -> None:
    """Acceptance check C10, draws of a network with two nodes."""
    assert _ratio(*LARGE, stationary=False) < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [SMALL, LARGE])
def test_a_network_loses_little_where_there_is_nothing_to_gain(sizes) -> None:
    """Acceptance check C10, independent draws of one kernel: at most 5 % worse."""
    assert _ratio(*sizes, stationary=True) < 1.05


def test_results_of_networks_stand_beside_baselines() -> None:
    """Acceptance check C11: independent GPs everywhere, PCA-GP where no target is missing."""
    text = (ROOT / "docs/results/gprn.md").read_text(encoding="utf-8")
    tables = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    compared = [name for name, body in tables.items() if "| GPRN" in body]
    assert len(compared) >= 3
    for name in compared:
        assert "| independent GPs |" in tables[name], name
        assert name in ("germany", "stationary") or "| PCA-GP |" in tables[name], name
