"""Functions of each member of a batch, one after the other."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import tensorflow as tf

import gpflow_ext
from gpflow_ext.numerics import mapped


def test_a_function_outside_a_graph_runs_as_it_is_written() -> None:
    """AutoGraph would run another one, from a file that it has written."""
    files = []

    def doubled(x: tf.Tensor) -> tf.Tensor:
        frame = inspect.currentframe()
        assert frame is not None
        files.append(frame.f_code.co_filename)
        return 2.0 * x

    np.testing.assert_array_equal(mapped.one_by_one(doubled, tf.constant([1.0, 2.0])), [2.0, 4.0])
    assert set(files) == {__file__}


def test_nothing_else_maps_by_autograph() -> None:
    folder = Path(gpflow_ext.__file__).parent
    found = [path.relative_to(folder) for path in folder.rglob("*.py") if "tf.map_fn(" in path.read_text()]
    assert found == [Path("numerics/mapped.py")]
