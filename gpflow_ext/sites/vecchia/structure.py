"""The parts of a Vecchia prior that do not depend on hyperparameters: order, neighbours, elimination tree."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.compiled.structure import Apart
from gpflow_ext.data import inducing
from gpflow_ext.data.arguments import check_number, check_whole
from gpflow_ext.numerics.open_sizes import Sizes
from gpflow_ext.sites.vecchia import dissection, fronts, grouping, ordering, residual
from gpflow_ext.sites.vecchia.prior import TreeAt

Array = npt.NDArray[Any]
CANDIDATES = 4  # nearest data for each neighbour of a residual process
LARGEST = 16 * 2**30  # bytes that an evaluation may take
SOLVERS = ("auto", "direct", "iterative")
DIRECT = 50_000  # data up to which "auto" is direct
FACTORED = 300_000  # data up to which it has the variances of predictions by a factor all the same
# The numbers held at once in an evaluation, in those of the factor, of the largest fronts, and of Φ.
_FACTOR, _FRONTS, _FEATURES = 7, 8, 18
_HELD = 3  # more of the factor where the steps of a method hand it on
_INSTEAD = (
    "give it fewer neighbours, VecchiaOptions(neighbours=...), use GPLaplace with "
    'VecchiaOptions(solver="iterative"), or `inducing_variable`. Inputs of many columns need one of the '
    "latter two in any case: no separator between their halves is small."
)


@dataclass
class VecchiaOptions:
    """Options of a Vecchia prior (Vecchia 1988), for ``SiteModel(prior=...)``; "vecchia" means the defaults.

    Attributes
    ----------
    neighbours
        The maximum number of earlier data that each datum is conditioned on, and the number of data for a new
        place, which comes after all. With all N data the prior is exact; with inducing points and no
        neighbours it is FITC (Snelson & Ghahramani 2006).
    ordering
        ``"random"``; ``"maximin"``, each datum as far as possible from all before it (Guinness 2018), O(N²);
        ``"coordinate"``, by the sum of the coordinates.
    seed
        Seed of the order.
    inducing
        The number of inducing points of a full-scale approximation (Gyger, Furrer & Sigrist 2024): neighbours
        then stand for what these leave of the process, and are those that it correlates most with. They are
        chosen among the inputs by conditional variance. Zero is Vecchia's approximation alone.
    solver
        ``"direct"``, by a sparse factor; ``"iterative"``, by conjugate gradients and stochastic Lanczos
        quadrature, in O(N) memory, for Laplace's method and Taylor's without inducing points; ``"auto"``,
        iterative for these where there are more than 50,000 data, but for the variances of predictions, which
        a factor gives up to 300,000 data if it takes at most 16 GiB.
    probes
        Probes of the iterative solver's log determinant. Where it has no factor, the variances from which a
        model predicts are those of twice as many draws.
    tolerance
        Relative tolerance of the iterative solver.

    Raises
    ------
    ValueError
        For fewer than one neighbour without inducing points, negative numbers, an unknown ordering or solver,
        an iterative solver with inducing points, fewer than two probes, or a tolerance that is not between 0
        and 0.1.
    """

    neighbours: int = 20
    ordering: str = "random"
    seed: int = 0
    inducing: int = 0
    solver: str = "auto"
    probes: int = 32
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_whole(neighbours=self.neighbours, seed=self.seed, inducing=self.inducing, probes=self.probes)
        check_number(tolerance=self.tolerance)
        if self.inducing < 0:
            raise ValueError(f"`inducing` must be at least 0; got {self.inducing}.")
        least = 0 if self.inducing else 1
        if self.neighbours < least:
            raise ValueError(f"`neighbours` must be at least {least}; got {self.neighbours}.")
        if self.ordering not in ordering.ORDERINGS:
            raise ValueError(f"`ordering` must be one of {ordering.ORDERINGS}; got {self.ordering!r}.")
        if self.solver not in SOLVERS:
            raise ValueError(f"`solver` must be one of {SOLVERS}; got {self.solver!r}.")
        if self.solver == "iterative" and self.inducing:
            raise ValueError('`solver="iterative"` is for priors without `inducing` points: leave one out.')
        if self.probes < 2:
            raise ValueError(f"`probes` must be at least 2; got {self.probes}.")
        if not 0.0 < self.tolerance <= 0.1:
            raise ValueError(f"`tolerance` must be above 0 and at most 0.1; got {self.tolerance}.")

    def iterates(self, size: int, estimates: bool) -> bool:
        """Tell whether the prior of as many data is solved by iteration.

        Where that is left open it is, of many data, if the model's method can do with ``estimates`` of
        variances.
        """
        if self.solver == "auto":
            return estimates and size > DIRECT and not self.inducing
        return self.solver == "iterative"


def cliques_of(order: Array, near: Array) -> Array:
    """Return each datum and its neighbours, [N, m + 1], from places in the order [N, m]; −1 for none."""
    found = np.empty((len(near), near.shape[1] + 1), int)
    found[order, 0] = order
    found[order, 1:] = np.where(near < 0, -1, order[near])
    return found


class _Memory(Apart):
    """An estimate of the bytes of an evaluation, which decides no graph."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes


class Tree(tf.Module):
    """The elimination tree of cliques, as variables that are not trained, so that checkpoints keep them.

    Trees of any sizes whose groups have the same numbers of children share their graphs.

    Parameters
    ----------
    points
        Places [N, D], in units of the length scales.
    cliques
        Each datum and its neighbours, [N, m + 1]; −1 for none.
    functions
        The number of latent functions L, each of which has a factor.
    inducing
        The number of inducing points.
    hands_on
        Whether the steps of the model's method hand their factor on.

    Raises
    ------
    ValueError
        If an evaluation would take more than `LARGEST` bytes.
    """

    def __init__(
        self, points: Array, cliques: Array, functions: int = 1, inducing: int = 0, hands_on: bool = False
    ) -> None:
        super().__init__()
        factor = _FACTOR + _HELD * hands_on
        taken = functools.partial(_taken, functions, _pairs(*cliques.shape), len(points) * inducing, factor)
        tree = dissection.dissect(points, cliques, lambda *sizes: refuse(taken(*sizes)))
        shapes, self._children, places = grouping.packed(tree.root)
        self._sizes: Any = Sizes([len(points), *itertools.chain(*shapes)])
        front = max(nodes * (o + b) ** 2 for nodes, o, b in shapes)
        self._memory = _Memory(taken(self.num_entries, front))
        refuse(self.num_bytes)
        self.cliques = _kept_rows(np.where(cliques < 0, len(points), cliques))
        self.entries = _kept_rows(tree.entries)
        self.places = _kept_rows(places)

    def tree(self) -> TreeAt:
        """Return the tree as tensors."""
        root = fronts.unpacked(self.shapes, self._children, tf.convert_to_tensor(self.places))
        return TreeAt(self.members(), root, self._by_rows(self.entries))

    def members(self) -> tf.Tensor:
        """Return each datum and its neighbours, N for none, [N, m + 1]."""
        return self._by_rows(self.cliques)

    def _by_rows(self, part: tf.Variable) -> tf.Tensor:
        known = self.num_data if isinstance(self.num_data, int) else None
        return tf.ensure_shape(part, [known, part.shape[1]])

    @property
    def _numbers(self) -> Sequence[Any]:
        """The number of data, and those of `shapes`: of a copy in a graph for any rows, tensors."""
        if isinstance(self._sizes, Sizes):
            return self._sizes.values
        return tf.unstack(self._sizes)

    @property
    def shapes(self) -> list[Sequence[Any]]:
        """The numbers of nodes, their own data and their boundaries, of each group."""
        _, *rest = self._numbers
        return [rest[start : start + 3] for start in range(0, len(rest), 3)]

    @property
    def num_data(self) -> Any:
        """The number of data."""
        return self._numbers[0]

    @property
    def num_entries(self) -> Any:
        """The number of entries in the panels of the tree."""
        return sum(nodes * o * (o + b) for nodes, o, b in self.shapes)

    @property
    def num_bytes(self) -> int:
        """About how much memory an evaluation with its gradient takes, beside its graph."""
        return self._memory.num_bytes


class Structure(Tree):
    """Neighbours and tree of some data.

    Parameters
    ----------
    X
        Inputs [N, D].
    scales
        The length of a unit of each column, [D], by which distances are measured; infinite for columns that
        no kernel reads.
    options
        See `VecchiaOptions`.
    kernel
        The kernel, by which inducing points and their neighbours are chosen, if there are to be any.
    functions
        The number of latent functions L.
    hands_on
        Whether the steps of the model's method hand their factor on.

    Attributes
    ----------
    num_neighbours
        The number of data that a new place is conditioned on.
    rates
        One over each of the scales, [D], zero for columns that no kernel reads.
    Z
        The inducing points of a full-scale approximation [M, D], or ``None``.

    Raises
    ------
    ValueError
        If an evaluation would take more than `LARGEST` bytes, or for inducing points of single precision.
    """

    def __init__(
        self,
        X: Array,
        scales: Array,
        options: VecchiaOptions,
        kernel: gpflow.kernels.Kernel | None = None,
        functions: int = 1,
        hands_on: bool = False,
    ) -> None:
        points, N = X / scales, len(X)
        most = min(options.neighbours, N - 1)
        refuse(_taken(functions, _pairs(N, most + 1), N * options.inducing, 0, 0, 0))
        order = ordering.order(points, options.ordering, options.seed)
        Z: tf.Variable | None = None
        if options.inducing and kernel is not None:
            if X.dtype != np.float64:
                raise ValueError(
                    "VecchiaOptions(inducing=...) takes differences of covariances: use float64."
                )
            chosen = inducing.conditional_variance(X, kernel, options.inducing, share=0.0)
            candidates = ordering.nearest_before(points[order], min(CANDIDATES * most, N - 1))
            near = residual.closest(kernel, chosen, X[order], candidates, most)
            Z = kept(chosen, tf.float64)
        else:
            near = ordering.nearest_before(points[order], most)
        super().__init__(points, cliques_of(order, near), functions, options.inducing, hands_on)
        self.num_neighbours = min(options.neighbours, N)
        self.Z = Z
        self.rates = kept(1.0 / scales, tf.float64)


def kept(values: Array, dtype: tf.DType = tf.int32) -> tf.Variable:
    """Return a variable that is not trained."""
    return tf.Variable(values, trainable=False, dtype=dtype)


def _kept_rows(values: Array) -> tf.Variable:
    """Return whole numbers [n, ...] as one whose n a graph leaves open."""
    return tf.Variable(values, trainable=False, dtype=tf.int32, shape=[None, *values.shape[1:]])


def _pairs(size: int, members: int) -> int:
    """Return the number of pairs within as many cliques of as many members, each with itself too."""
    return size * members * (members + 1) // 2


def _taken(functions: int, pairs: int, features: int, factor: int, entries: int, front: int) -> int:
    """Return about how many bytes an evaluation takes; see the tests.

    By the numbers of latent functions, pairs within cliques, entries of Φ, copies of the factor, its entries,
    and those of the fronts of a group.
    """
    numbers = functions * (factor * entries + _FRONTS * front + _FEATURES * features)
    return 8 * numbers + 4 * pairs


def refuse(size: int, instead: str = _INSTEAD) -> None:
    """Raise ``ValueError`` where an evaluation takes too many bytes, which says what to do ``instead``."""
    if size > LARGEST:
        raise ValueError(
            f'prior="vecchia" would take some {size / 2**30:.0f} GiB, of at most '
            f"{LARGEST / 2**30:.0f}: {instead}"
        )
