"""A run that was cut off and goes on from its checkpoint ends as one that was never cut off, bit by bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gpflow.models import BayesianModel

import gpflow_ext as gpx

Model = TypeVar("Model", bound=BayesianModel)


def check(
    build: Callable[[], Model],
    folder: Path,
    *arguments: Any,
    steps: int,
    cut: int,
    options: Callable[[], dict[str, Any]] = dict,
) -> tuple[Model, gpx.FitResult]:
    """Compare both; return the model and the result of the run that was not cut off.

    ``options`` is called for each run, for it may make an optimiser.
    """

    def fit(model: Model, name: str) -> gpx.FitResult:
        where = {"checkpoint_dir": folder / name, "checkpoint_every": cut}
        return gpx.fit(model, *arguments, steps=steps, **where, **options())

    whole, resumed = build(), build()
    done = fit(whole, "whole")
    later = [f"ckpt-{step}.*" for step in range(cut + 1, steps + 1)]
    shutil.copytree(folder / "whole", folder / "cut", ignore=shutil.ignore_patterns(*later))
    rest = fit(resumed, "cut")
    assert (rest.first_step, rest.steps, done.first_step) == (cut, done.steps, 0)
    np.testing.assert_array_equal(rest.objective, done.objective[cut:])
    for a, b in zip(resumed.variables, whole.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    return whole, done
