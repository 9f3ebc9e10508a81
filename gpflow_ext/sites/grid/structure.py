"""The parts of a grid prior that do not depend on hyperparameters: axes, cells of the data, probes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.data.arguments import check_number, check_whole
from gpflow_ext.numerics import lanczos, philox
from gpflow_ext.sites import latent
from gpflow_ext.sites.grid import factors
from gpflow_ext.sites.grid.kronecker import spectrum
from gpflow_ext.sites.grid.prior import DTYPE, Grid
from gpflow_ext.sites.grid.trace import BLOCK, Probes

Array = npt.NDArray[Any]
LARGEST = 16 * 2**30  # bytes that the probes may take
SPARSEST = 4  # cells of a grid to a datum
LONGEST = 4096  # points of an axis
SINGLE = 1e-6  # tolerance from which logarithms are computed in single precision
SAME = 1e-8  # of the length of an axis: coordinates that lie closer are one


@dataclass
class GridOptions:
    """Options of a grid prior, for ``SiteModel(prior=...)``; "grid" means the defaults.

    Attributes
    ----------
    probes
        Probes of the log determinant and the variances, at most; as many as cells make both exact.
    tolerance
        Relative tolerance of the iterative solver. Below 1e-6 the probes are in double precision, which takes
        four times as long.
    seed
        Seed of the signs of the probes.

    Raises
    ------
    ValueError
        For fewer than one probe, or a tolerance that is not between 0 and 0.1.
    """

    probes: int = 32
    tolerance: float = 1e-6
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_whole(probes=self.probes, seed=self.seed)
        check_number(tolerance=self.tolerance)
        if self.probes < 1:
            raise ValueError(f"`probes` must be at least 1; got {self.probes}.")
        if not 0.0 < self.tolerance <= 0.1:
            raise ValueError(f"`tolerance` must be above 0 and at most 0.1; got {self.tolerance}.")


class GridStructure(tf.Module):
    """Axes, and cells of the data, as variables that are not trained, so that checkpoints keep them.

    Parameters
    ----------
    X
        Inputs [N, D].
    options
        See `GridOptions`.
    num_latent
        The number of latent functions.

    Raises
    ------
    ValueError
        If the probes would take more than `LARGEST` bytes.
    """

    def __init__(self, X: Array, options: GridOptions, num_latent: int) -> None:
        super().__init__()
        axes, numbers = zip(*map(_axis, X.T), strict=True)
        self.sizes = tuple(len(axis) for axis in axes)
        self.colours = colours(self.sizes, options.probes)
        self.options = options
        _check_memory(self.sizes, math.prod(self.colours), num_latent)
        self.axes = [tf.Variable(axis, trainable=False, dtype=DTYPE) for axis in axes]
        # Its shape is open: one compiled graph serves any number of rows.
        cells = np.ravel_multi_index(numbers, self.sizes)
        self.cells = tf.Variable(cells, trainable=False, dtype=tf.int32, shape=[None])

    def probes(self) -> Probes:
        """Return the probes."""
        size, seed = math.prod(self.sizes), (self.options.seed, 0)
        coin = philox.integers([size], seed, 0, 2)
        which = np.indices(self.colours).reshape(len(self.sizes), -1)  # [D, P]
        number = tf.float32 if self.options.tolerance >= SINGLE else DTYPE
        masks = [
            np.arange(size) % step == here[:, None]
            for size, step, here in zip(self.sizes, self.colours, which, strict=True)
        ]
        return Probes(tf.cast(2 * coin - 1, number), tuple(tf.constant(mask, number) for mask in masks))


def at(model: latent.Functions, structure: GridStructure, X: tf.Tensor) -> Grid:
    """Return the prior at the data X [N, D]. O(∑ n_d³)."""
    axes = [tf.convert_to_tensor(axis) for axis in structure.axes]
    kernels = latent.kernels(model.kernel)
    grams = tuple(factors.gram(kernels, d, axis, axis, len(axes)) for d, axis in enumerate(axes))
    held = spectrum([tf.stop_gradient(gram) for gram in grams])
    error = tf.constant(structure.options.tolerance, gpflow.default_float())
    return Grid(
        latent.mean(model, X),
        tf.convert_to_tensor(structure.cells),
        grams,
        held,
        structure.probes(),
        tf.cast(error, DTYPE),
    )


def colours(sizes: tuple[int, ...], probes: int) -> tuple[int, ...]:
    """Return how far apart along each axis cells of one colour are, at most ``probes`` colours in all."""
    found = [1] * len(sizes)
    while True:
        open_axes = [
            d
            for d, size in enumerate(sizes)
            if found[d] < size and math.prod(found) // found[d] * (found[d] + 1) <= probes
        ]
        if not open_axes:
            return tuple(found)
        found[min(open_axes, key=lambda d: found[d])] += 1


def misfit(kernel: gpflow.kernels.Kernel, X: Any) -> str | None:
    """Say why a kernel and inputs X [N, D] have no grid prior; return ``None`` where they have one."""
    if latent.mixing(kernel) is not None:
        return (
            f"it has independent latent functions, but {type(kernel).__name__} mixes them: use "
            "SharedIndependent or SeparateIndependent"
        )
    inputs = np.asarray(X)
    for part in latent.kernels(kernel):
        reason = factors.misfit(part, inputs.shape[1])
        if reason is not None:
            return reason
    sizes = [len(_axis(column)[0]) for column in inputs.T]
    if max(sizes) > LONGEST:
        instead = "markov" if len(sizes) == 1 else "vecchia"
        return f'an axis has {max(sizes):,} points, of at most {LONGEST:,}: use prior="{instead}"'
    if math.prod(sizes) > SPARSEST * len(inputs):
        shape = " × ".join(f"{size:,}" for size in sizes)
        return (
            f"the {len(inputs):,} rows are no grid: their coordinates make one of {shape} cells, of which at "
            f'least one in {SPARSEST} must have a row; round them to a grid, or use prior="vecchia"'
        )
    return None


def check(kernel: gpflow.kernels.Kernel, X: Any, owner: str) -> None:
    """Raise ``ValueError`` where a model has no grid prior; see `misfit`."""
    reason = misfit(kernel, X)
    if reason is not None:
        raise ValueError(f'prior="grid" does not fit {owner}: {reason}; or leave `prior` out.')


def _axis(column: Array) -> tuple[Array, Array]:
    """Return the points of an axis [n], and which of them each coordinate is, [N]."""
    values, number = np.unique(np.asarray(column, float), return_inverse=True)
    apart = np.diff(values) > SAME * (values[-1] - values[0])
    group = np.concatenate([[0], np.cumsum(apart)])
    return values[np.concatenate([[True], apart])], group[number.ravel()]


def _check_memory(sizes: tuple[int, ...], probes: int, num_latent: int) -> None:
    cells = math.prod(sizes)
    modes = 4 * lanczos.RANK * probes * num_latent * cells
    largest = 8 * (modes + num_latent * sum(size**2 for size in sizes)) + 2 * BLOCK
    if largest > LARGEST:
        raise ValueError(
            f'prior="grid" would take some {largest / 2**30:.0f} GiB for {probes} probes of {cells:,} cells, '
            f"of at most {LARGEST / 2**30:.0f}: give it fewer, GridOptions(probes=...), or a coarser grid."
        )
