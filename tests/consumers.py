"""What stands for a process that has TensorFlow and nothing of this package."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import tensorflow as tf

REFUSE = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("gpflow", "tensorflow_probability", "tf_keras", "gpflow_ext", "check_shapes"):
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Refuse())
"""


def compiled(source: Path, program: Path) -> Path:
    """A program in C, built against the libraries of TensorFlow's wheel."""
    compiler = shutil.which("cc")
    libraries = Path(tf.__file__).parent
    if compiler is None or not (libraries / "libtensorflow_cc.so.2").exists():
        pytest.skip("needs a C compiler and the TensorFlow of a Linux wheel")
    linked = ("-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2", "-lpthread")
    flags = ("-O2", "-Wall", "-Werror", f"-I{libraries}/include", f"-L{libraries}", f"-Wl,-rpath,{libraries}")
    subprocess.run([compiler, source, "-o", program, *flags, *linked], check=True)
    return program
