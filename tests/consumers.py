"""What stands for a process that has TensorFlow and nothing of this package."""

from __future__ import annotations

REFUSE = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("gpflow", "tensorflow_probability", "tf_keras", "gpflow_ext", "check_shapes"):
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Refuse())
"""
