"""Compile once for each structure of a model, not once for each model."""

from gpflow_ext.compiled.functions import Compiled, clear_compiled, trace_count
from gpflow_ext.compiled.preferred import Preferred
from gpflow_ext.compiled.products import allow_tf32, make_exact
from gpflow_ext.compiled.replicas import replica
from gpflow_ext.compiled.structure import Structure, examine

__all__ = [
    "Compiled",
    "Preferred",
    "Structure",
    "allow_tf32",
    "clear_compiled",
    "examine",
    "make_exact",
    "replica",
    "trace_count",
]
