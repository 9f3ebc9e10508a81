"""Check an exported model before loading it: its files, its manifest, its graph and its variables.

The files of this folder import nothing but the standard library and TensorFlow's protocol buffers, so the
folder can be copied to a machine that has only TensorFlow. docs/trust.md tells what is promised.
"""

from .check import Verified, read_manifest, verified_copy, verify
from .folder import DRAWS, ONNX, STABLEHLO, WEIGHTS, as_path, sha256_file, version_folder, versions
from .manifest import FORMAT, sealed

__all__ = [
    "DRAWS",
    "FORMAT",
    "ONNX",
    "STABLEHLO",
    "WEIGHTS",
    "Verified",
    "as_path",
    "read_manifest",
    "sealed",
    "sha256_file",
    "verified_copy",
    "verify",
    "version_folder",
    "versions",
]
