"""Copies of an object that share its compiled functions."""

from __future__ import annotations

from typing import TypeVar

import tensorflow as tf

from gpflow_ext.compiled.structure import examine

T = TypeVar("T")


def replica(owner: T) -> T:
    """Return a copy of an object with variables of its own; data and constants are the same tensors.

    Its structure is that of the object. ``copy.deepcopy`` alone would close the open axes of variables.
    """
    structure = examine(owner)
    memo = {id(part): part for part in structure.data}
    for part in structure.variables:
        memo[id(part)] = tf.Variable(part.read_value(), part.trainable, name=part.name[:-2], shape=part.shape)
    copied: T = structure.copied(owner, memo)
    return copied
