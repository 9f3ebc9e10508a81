"""Checkpoints that refuse the wrong model, and SavedModels that TensorFlow alone can serve."""

from .checkpoint import Checkpoints
from .export import export
from .exported import Exported, load_exported
from .manifest import check_same, describe
from .rebuild import Rebuilt, rebuild
from .verify import verify

__all__ = [
    "Checkpoints",
    "Exported",
    "Rebuilt",
    "check_same",
    "describe",
    "export",
    "load_exported",
    "rebuild",
    "verify",
]
