"""Checkpoints that refuse the wrong model, and SavedModels that TensorFlow alone can serve."""

from .checkpoint import Checkpoints
from .export import export
from .exported import Exported, load_exported
from .manifest import check_same, describe
from .verify import verify

__all__ = ["Checkpoints", "Exported", "check_same", "describe", "export", "load_exported", "verify"]
