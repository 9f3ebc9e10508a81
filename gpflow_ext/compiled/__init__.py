"""Compile once for each structure of a model, not once for each model.

Names are imported when they are first used: loading an exported model needs ``make_exact``, but no GPflow.
"""

from typing import TYPE_CHECKING

from gpflow_ext._lazy import attach

if TYPE_CHECKING:
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

__getattr__, __dir__ = attach(
    __name__,
    {
        "Compiled": "functions:Compiled",
        "Preferred": "preferred:Preferred",
        "Structure": "structure:Structure",
        "allow_tf32": "products:allow_tf32",
        "clear_compiled": "functions:clear_compiled",
        "examine": "structure:examine",
        "make_exact": "products:make_exact",
        "replica": "replicas:replica",
        "trace_count": "functions:trace_count",
    },
)
