"""What must predict as a model does: its export, and what its checkpoint rebuilds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import gpflow_ext as gpx


def served_and_rebuilt(model: Any, X: np.ndarray, new: np.ndarray, folder: Path) -> Any:
    """Train a model for a step; export it, and rebuild it from its checkpoint. Returns the latter."""
    gpx.fit(model, steps=1, progress=False, checkpoint_dir=folder / "steps")
    expected = model.predict_f(new)
    served = tf.saved_model.load(str(gpx.export(model, folder / "served", example=X[:3])))
    again = served.signatures["predict_f"](inputs=tf.constant(new))
    for name, one in zip(("mean", "variance"), expected, strict=True):
        np.testing.assert_allclose(again[name], one, rtol=0.0, atol=1e-12)
    rebuilt: Any = gpx.load_checkpoint(folder / "steps")
    rebuilt = getattr(rebuilt, "model", rebuilt)
    for one, other in zip(rebuilt.predict_f(new), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-12)
    return rebuilt
