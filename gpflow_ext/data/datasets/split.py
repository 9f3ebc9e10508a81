"""The result of ``load``: a training and a test part, with all that is needed to use and to cite them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpflow_ext import _html
from gpflow_ext.data.reading.problems import listed
from gpflow_ext.data.reading.treatment import Treatment

Array = NDArray[Any]
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
_SHOWN = 12  # inputs of a notebook's table


@dataclass(frozen=True, eq=False)
class Scaler:
    """The affine map ``(X - mean) / scale`` that was fitted to the training inputs.

    Parameters
    ----------
    mean, scale
        Shape [D], in the units of the raw inputs.
    """

    mean: Floats
    scale: Floats

    @classmethod
    def fit(cls, X: ArrayLike, weights: ArrayLike | None = None) -> Scaler:
        """Take mean and standard deviation of each column of X [N, D]; a constant column has scale 1.

        A row of weight w, of ``weights`` [N], all positive, counts as w copies of it.

        Raises
        ------
        ValueError
            If X has no rows, or cells that are not finite.
        """
        X = np.asarray(X, np.float64)
        if X.ndim != 2 or not len(X) or not np.isfinite(X).all():
            raise ValueError(
                f"X must be finite, of shape [N, D]; its shape is {X.shape}: drop or fill rows with gaps."
            )
        constant = np.ptp(X, axis=0) == 0.0
        mean = np.where(constant, X[0], np.average(X, axis=0, weights=weights))
        # Squares are taken relative to the largest deviation, so that no magnitude over- or underflows.
        deviation = X - mean
        peak = np.where(constant, 1.0, np.abs(deviation).max(axis=0))
        deviation /= peak
        each = np.ones(len(X)) if weights is None else np.asarray(weights, np.float64)
        deviation *= np.sqrt(each)[:, None]
        variance = np.einsum("nd,nd->d", deviation, deviation) / each.sum()
        return cls(mean, np.where(constant, 1.0, peak * np.sqrt(variance)))

    @classmethod
    def fit_known(cls, X: Floats) -> Scaler:
        """Take those of the cells of X [N, D] that are not NaN; every column must have one."""
        low, high = np.nanmin(X, axis=0), np.nanmax(X, axis=0)
        mean, deviation = np.nanmean(X, axis=0), np.nanstd(X, axis=0)
        return cls(np.where(low < high, mean, high), np.where(low < high, deviation, 1.0))

    @classmethod
    def fit_common(cls, X: Floats, weights: Floats | None = None) -> Scaler:
        """Take one mean and one standard deviation of all elements of X [N, D]; weights as in `fit`."""
        all_inputs = cls.fit(X.reshape(-1, 1), None if weights is None else np.repeat(weights, X.shape[1]))
        return cls(np.full(X.shape[1], all_inputs.mean), np.full(X.shape[1], all_inputs.scale))

    @classmethod
    def identity(cls, num_inputs: int) -> Scaler:
        """Return the map that changes nothing."""
        return cls(np.zeros(num_inputs), np.ones(num_inputs))

    def transform(self, X: ArrayLike) -> Floats:
        """Map raw inputs [..., D] to the inputs of the model."""
        return (self._checked(X) - self.mean) / self.scale

    def inverse(self, X: ArrayLike) -> Floats:
        """Map inputs of the model [..., D] back to raw units."""
        return self._checked(X) * self.scale + self.mean

    def _checked(self, X: ArrayLike) -> Floats:
        values = np.asarray(X, np.float64)
        if values.shape[-1:] != self.mean.shape:
            raise ValueError(f"X has shape {values.shape}; its last axis must be {self.mean.size} wide.")
        return values


@dataclass(frozen=True, eq=False)
class Split:
    """A data set in two parts; ``train, test = split`` unpacks it.

    Parameters
    ----------
    train, test
        Pairs of inputs [N, D] and targets [N, 1] ([N, P] for sets with several outputs). Targets keep
        their own units; classes are counted from 0.
    name
        The name or the file that was loaded.
    task
        "binary", "multiclass", "ordinal", "count" or "regression".
    feature_names
        Names of the D inputs.
    target
        Name of the target.
    labels
        Class names in class order; None for counts and regression.
    scaler
        The map from raw to standardised inputs; the identity where nothing was standardised.
    seed
        The seed that chose the test rows.
    sha256
        SHA-256 of the raw file or arrays.
    source
        Where the data came from, with the licence as it is stated there.
    notes
        One sentence for every treatment that was applied.
    rows
        Which rows of the source, counted from 0, form the training and the test part.
    exposure
        Exposures [N, 1] of the training and the test counts, or None.
    weights
        Weights [N, 1] of the training and the test rows, all positive, or None.
    treatment
        How the raw columns of a table became inputs, which ``export`` stores; None for sets of arrays.
    """

    train: tuple[Array, Array]
    test: tuple[Array, Array]
    name: str
    task: str
    feature_names: tuple[str, ...]
    target: str
    labels: tuple[str, ...] | None
    scaler: Scaler
    seed: int
    sha256: str
    source: str
    notes: tuple[str, ...]
    rows: tuple[Rows, Rows]
    exposure: tuple[Array, Array] | None = None
    treatment: Treatment | None = None
    weights: tuple[Array, Array] | None = None

    def inputs(self, rows: Any) -> Array:
        """Return the inputs of the model [N, D], standardised, of raw rows: see ``Treatment.inputs``.

        Raises
        ------
        ValueError
            If the set was not a table, or the rows are not of its columns.
        """
        if self.treatment is None:
            raise ValueError(f"{self.name!r} was read from arrays: use split.scaler.transform(X)")
        return self.scaler.transform(self.treatment.inputs(rows)).astype(self.train[0].dtype)

    def __repr__(self) -> str:
        train, test = (len(X) for X, _ in self)
        return (
            f"Split({self.name!r}, {self.task} of {self.target!r}, {train} training and {test} test rows, "
            f"{self.train[0].shape[1]} inputs)"
        )

    def _repr_html_(self) -> str:
        columns = ("task", "target", "training rows", "test rows", "inputs", "source")
        cells = (
            self.task,
            self.target,
            *(str(len(X)) for X, _ in self),
            listed(self.feature_names, _SHOWN),
            self.source,
        )
        return _html.table(self.name, columns, [cells], self.notes)

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        """Yield the training part, then the test part."""
        return iter((self.train, self.test))


def choose_rows(classes: Floats | None, num_rows: int, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Divide rows at random into training and test rows, each in random order.

    Parameters
    ----------
    classes
        Class of each row, shape [N]: every class then gives its share to the test part, and keeps at least
        one training row. None divides without regard to the target.
    num_rows
        N.
    fraction
        Share of the test part; 0 leaves it empty, any other share gives it at least one row.
    seed
        Seed of the permutation.
    """
    order = np.random.default_rng(seed).permutation(num_rows)
    size = 0 if fraction == 0.0 else min(max(1, round(num_rows * fraction)), num_rows - 1)
    if classes is None:
        return order[size:], order[:size]
    _, member, counts = np.unique(classes[order], return_inverse=True, return_counts=True)
    exact = counts * (size / num_rows)
    quota = np.floor(exact).astype(int)  # below counts, as size < num_rows
    largest_remainder = [c for c in np.argsort(quota - exact, kind="stable") if quota[c] < counts[c] - 1]
    quota[largest_remainder[: size - quota.sum()]] += 1
    is_test = np.zeros(num_rows, bool)
    for c, share in enumerate(quota):
        is_test[np.flatnonzero(member == c)[:share]] = True
    return order[~is_test], order[is_test]
