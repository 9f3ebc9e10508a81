"""Refuse matrices of all rows that memory cannot hold, before they are compiled."""

from __future__ import annotations

import math
import os
from typing import Any

import tensorflow as tf
from gpflow.models import GPR, SGPR, VGP, VGPOpperArchambeau

from gpflow_ext.numerics.devices import has_accelerator
from gpflow_ext.sites import latent
from gpflow_ext.sites.model import SiteModel

_COPIES = 2  # at the least: a matrix, and its factor or the adjoint of it
_DENSE = (SiteModel, GPR, VGP, VGPOpperArchambeau)
_SPARSE = (SiteModel, SGPR)


def check_memory(model: Any) -> None:
    """Raise ``ValueError`` for a model whose matrices alone take more than the memory of the machine.

    They would be factorised in blocks by a graph that takes minutes to trace, before memory ends.
    """
    size, instead = _least(model)
    memory = math.inf if has_accelerator() else _physical()
    if size > memory:
        raise ValueError(
            f"{type(model).__name__} would form matrices of some {size / 2**30:,.0f} GiB for these "
            f"{_rows(model):,} rows, and the machine has {memory / 2**30:,.0f}: {instead}."
        )


def _least(model: Any) -> tuple[int, str]:
    """Return how many bytes the matrices of a model take at the least, and what to use instead."""
    if getattr(model, "data", None) is None or getattr(model, "prior_name", None) is not None:
        return 0, ""
    points = getattr(model, "inducing_variable", None)
    if isinstance(model, _SPARSE) and points is not None:
        pairs = int(points.num_inducing) * _rows(model)
        instead = 'give it fewer inducing points, or train a GPflow SVGP on minibatches, recipe="dual"'
    elif isinstance(model, _DENSE) and points is None:
        pairs = _rows(model) ** 2
        instead = (
            'use `inducing_variable="auto"`, `prior="markov"` for one input, `prior="vecchia"` for places, '
            'or a GPflow SVGP on minibatches, recipe="dual"'
        )
    else:
        return 0, ""
    return _COPIES * len(latent.kernels(model.kernel)) * pairs * model.data[0].dtype.size, instead


def _rows(model: Any) -> int:
    return int(tf.shape(model.data[0])[0])


def _physical() -> float:
    """Return the bytes of the machine's memory, infinite where the system does not tell."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf
