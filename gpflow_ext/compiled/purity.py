"""Whether a graph is a function: it returns the same whenever it is called with the same arguments."""

from __future__ import annotations

import itertools
from typing import Any

from tensorflow.python.framework import op_def_registry  # which operations have a state has no public name

OF_ARGUMENTS = "values_of_arguments"  # scope in which a function gives variables values out of its arguments
_HARMLESS = {
    "Assert",
    "Case",
    "CheckNumerics",
    "If",
    "PartitionedCall",
    "ReadVariableOp",
    "ResourceGather",
    "StatefulPartitionedCall",
    "While",
}  # among those that count as having a state; what the branches, loops and calls hold is looked at too


def is_pure(graph: Any) -> bool:
    """Tell whether a graph draws no random numbers, assigns no variable and calls no Python.

    What it returns is then decided by its arguments and the variables that it reads. It errs towards no. What
    it assigns in the scope `OF_ARGUMENTS` does not count.
    """
    definition = graph.as_graph_def()
    called = {function.signature.name for function in definition.library.function}
    own = (node for node in definition.node if OF_ARGUMENTS not in node.name.split("/"))
    nodes = itertools.chain(own, *(each.node_def for each in definition.library.function))
    return all(name in called or _is_harmless(name) for name in {node.op for node in nodes})


def _is_harmless(name: str) -> bool:
    found = op_def_registry.get(name)
    return name in _HARMLESS or (found is not None and not found.is_stateful)
