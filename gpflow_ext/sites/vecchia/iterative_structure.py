"""The parts of an iteratively solved Vecchia prior that do not depend on hyperparameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.numerics import philox
from gpflow_ext.sites.vecchia import levels, ordering, preconditioned
from gpflow_ext.sites.vecchia.structure import FACTORED, Tree, VecchiaOptions, cliques_of, kept, refuse
from gpflow_ext.sites.vecchia.sweeps import ScheduleAt, StepsAt

Array = npt.NDArray[Any]
_BYTES = 210  # that an evaluation takes for each neighbour of a datum
_COMPILED = 5 * 2**24  # bytes that it takes whatever the data
_INSTEAD = "give it fewer neighbours or probes, see VecchiaOptions, or use `inducing_variable`."


class IterativeStructure(tf.Module):
    """Neighbours, and steps by levels, as variables that are not trained, so that checkpoints keep them.

    Parameters
    ----------
    X
        Inputs [N, D].
    scales
        The length of a unit of each column, [D], by which distances are measured; infinite for columns that
        no kernel reads.
    options
        See `VecchiaOptions`.
    functions
        The number of latent functions L.

    Attributes
    ----------
    num_bytes
        About how much memory an evaluation with its gradient takes.
    num_neighbours
        The number of data that a new place is conditioned on.
    rates
        One over each of the scales, [D], zero for columns that no kernel reads.
    factored
        The tree of a factor for the variances of predictions, or ``None``, where they are those of draws.

    Raises
    ------
    ValueError
        If an evaluation would take more than `structure.LARGEST` bytes.
    """

    Z = None  # no inducing points

    def __init__(self, X: Array, scales: Array, options: VecchiaOptions, functions: int = 1) -> None:
        super().__init__()
        points = X / scales
        N = len(points)
        self.options = options
        self.num_neighbours = min(options.neighbours, N)
        most = min(options.neighbours, N - 1)
        self.num_bytes = (
            functions * _BYTES * N * most + preconditioned.num_bytes(options.probes, N) + _COMPILED
        )
        refuse(self.num_bytes, _INSTEAD)
        order = ordering.order(points, options.ordering, options.seed)
        near = ordering.nearest_before(points[order], most)
        cliques, found = cliques_of(order, near), levels.schedule(near, order)
        self.factored = _tree(points, cliques, functions) if options.solver == "auto" else None
        if self.factored is not None:
            self.num_bytes += sum(part.numpy().nbytes for part in self.factored.variables)
        self.rates = kept(1.0 / scales, tf.float64)
        self.cliques = kept(np.where(cliques < 0, N, cliques))
        self.slots, self.owner = kept(found.slots), kept(found.owner)
        self.forth, self.back = (list(map(kept, steps)) for steps in (found.forth, found.back))

    def schedule(self) -> ScheduleAt:
        """Return the steps as tensors."""
        slots, owner = map(tf.convert_to_tensor, (self.slots, self.owner))
        forth, back = (StepsAt(*map(tf.convert_to_tensor, steps)) for steps in (self.forth, self.back))
        return ScheduleAt(slots, owner, forth, back)

    def members(self) -> tf.Tensor:
        """Return each datum and its neighbours, N for none, [N, m + 1]."""
        return tf.convert_to_tensor(self.cliques)

    def seeds(self) -> tf.Tensor:
        """Return a seed for each probe, [R, 2]."""
        return tf.stack(philox.split(tf.constant([self.options.seed, 1]), self.options.probes))

    @property
    def num_data(self) -> int:
        """The number of data."""
        return int(self.cliques.shape[0])


def _tree(points: Array, cliques: Array, functions: int) -> Tree | None:
    """Return the tree of a factor, unless it would take too much memory."""
    if len(points) > FACTORED:
        return None
    try:
        return Tree(points, cliques, functions)
    except ValueError:
        return None
