"""What `auto` returns: a model with its data and the reasons for it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpflow_ext import _html
from gpflow_ext.data import datasets
from gpflow_ext.data.datasets.targets import CLASSIFICATION, names_of
from gpflow_ext.data.reading.frames import as_row
from gpflow_ext.data.reading.problems import listed
from gpflow_ext.data.reading.treatment import Column, Treatment
from gpflow_ext.estimators.base import Array, GPEstimator


@dataclass(frozen=True, eq=False)
class Auto:
    """A model that `auto` has chosen; `gpflow_ext.export` writes it with all that raw rows need.

    Attributes
    ----------
    estimator
        The fitted estimator; it takes inputs as ``split`` has them, and classes as numbers.
    split
        The data: inputs, their scaling, labels, and how a table was read.
    table
        A pandas ``DataFrame`` of the candidates: the training rows of the best rung of each; the negative log
        predictive density (NLPD) of the held-out rows there, which is their order; its
        standard error; the error rate or RMSE; the seconds of all rungs; and the weight in the model.
    why
        Two sentences: what was built for these data, and what it was preferred to; further ones if several
        candidates are averaged, if time was too short to compare them, if a training on all rows failed, or
        if the budget was clearly overrun.
    classes
        The values of ``split.labels`` as the table has them, such as whole numbers, [K]; ``None`` where
        nothing is classified.
    """

    estimator: GPEstimator
    split: datasets.Split
    table: Any
    why: str
    classes: npt.NDArray[Any] | None = None

    @property
    def model(self) -> Any:
        """The trained model: a `prediction.average.ModelAverage` where several candidates are averaged."""
        return self.estimator.model_

    def predict(self, rows: Any, exposure: npt.ArrayLike | None = None) -> npt.NDArray[Any]:
        """Return labels or expected values for raw rows, of a table or [N, D].

        Rows are a data frame, the path of a table, or whatever else `datasets.Split.inputs` takes.

        Labels are ``classes``, as the table has them. Counts are those at the exposures [N], by default at
        exposure one.
        """
        exposed = {} if exposure is None else {"exposure": exposure}
        found = self.estimator.predict(self._inputs(rows), **exposed)
        return found if self.classes is None else self.classes[found.astype(int)]

    def predict_proba(self, rows: Any) -> Array:
        """Return the probabilities of ``classes`` for raw rows, [N, K]."""
        return self.estimator.predict_proba(self._inputs(rows))

    def score(
        self,
        rows: Any,
        targets: npt.ArrayLike,
        exposure: npt.ArrayLike | None = None,
        weights: npt.ArrayLike | None = None,
    ) -> float:
        """Return the share of labels predicted right, or R² of numbers, for raw rows and targets [N].

        As scikit-learn scores classifiers and regressors; for several targets [N, P] R² is their mean. Labels
        may be numbers where the table had them. With weights [N] a row counts as its weight of copies.

        Raises
        ------
        ValueError
            If none of the labels is among those of the training, or there are not as many as rows.
        """
        from sklearn.metrics import accuracy_score, r2_score

        predicted = self.predict(rows, exposure)
        if self.split.task not in CLASSIFICATION:
            return float(r2_score(targets, predicted, sample_weight=weights))
        names = names_of(targets)
        if set(names).isdisjoint(self._labels()):
            raise self._unknown(names)
        return float(accuracy_score(names, names_of(predicted), sample_weight=weights))

    def score_samples(
        self, rows: Any, targets: npt.ArrayLike, exposure: npt.ArrayLike | None = None
    ) -> Array:
        """Return the log predictive density of the targets of raw rows, [N]; labels as for `score`.

        Raises
        ------
        ValueError
            For a label that is not among those of the training.
        """
        exposed = {} if exposure is None else {"exposure": exposure}
        found: Any = targets
        if self.split.task in CLASSIFICATION:
            places = {label: place for place, label in enumerate(self._labels())}
            names = names_of(targets)
            if unknown := set(names) - set(places):
                raise self._unknown(unknown)
            found = np.array([places[name] for name in names])
        return self.estimator.score_samples(self._inputs(rows), found, **exposed)

    def exported_parts(self) -> tuple[Any, Any, Any, datasets.Split]:
        """Return what `gpflow_ext.export` takes: model, scaler, labels and data."""
        split = self.split
        return self.model, split.scaler, split.labels if split.task in CLASSIFICATION else None, split

    def _inputs(self, rows: Any) -> Array:
        """Return the inputs of raw rows, [N, D].

        Raises
        ------
        ValueError
            For rows that are not those of the table, and cells that make no input.
        """
        inputs = self._inputs_or_nan(rows)
        bad = np.argwhere(~np.isfinite(inputs))
        if bad.size:
            row, column = bad[0]
            fix = "leave them out"
            if self.split.treatment and not any(each.fill for each in self.split.treatment.columns):
                fix += ", or fill their gaps as auto(..., missing='mean') does"
            raise ValueError(
                f"row {row}: the input {self.split.feature_names[column]!r} is missing, infinite, no date or "
                f"an unknown level ({len(np.unique(bad[:, 0]))} such rows): {fix}"
            )
        return inputs

    def _inputs_or_nan(self, rows: Any) -> Array:
        treatment = self.split.treatment
        if isinstance(rows, str | os.PathLike):
            known = treatment or Treatment(tuple(map(Column, self.split.feature_names)))
            return self.split.scaler.transform(known.inputs(rows))
        if treatment is None:
            return self.split.scaler.transform(rows)
        one = rows[0] if isinstance(rows, list) and rows else rows
        if hasattr(rows, "columns") or isinstance(as_row(one), Mapping):
            return self.split.inputs(rows)
        import pandas

        names = [column.name for column in treatment.columns]
        values = np.asarray(rows)
        if values.ndim != 2 or values.shape[1] != len(names):
            raise ValueError(
                f"rows must be a data frame, or an array [N, {len(names)}] of the columns {listed(names)}; "
                f"the shape is {list(values.shape)}"
            )
        return self.split.inputs(pandas.DataFrame(values, columns=names))

    def _labels(self) -> tuple[str, ...]:
        """Return the names of the classes."""
        return self.split.labels or tuple(names_of(self.estimator.classes_))

    def _unknown(self, names: Iterable[str]) -> ValueError:
        return ValueError(f"the labels are {', '.join(self._labels())}; got {', '.join(sorted(set(names)))}")

    def __repr__(self) -> str:
        best = self.table.iloc[0]
        return (
            f"Auto({type(self.model).__name__} of {self.split.target!r} in {self.split.name!r}, the best of "
            f"{len(self.table)} candidates {best['candidate']!r} with NLPD {best['nlpd']:.4g})"
        )

    def _repr_html_(self) -> str:
        rows = [
            [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
            for row in self.table.itertuples(index=False)
        ]
        title = f"{type(self.model).__name__} of {self.split.target}"
        return _html.table(title, list(self.table.columns), rows, [self.why, *self.split.notes])

    def __str__(self) -> str:
        shown = self.table.to_string(index=False, float_format=lambda x: f"{x:.4g}")
        parts = [self.why, shown]
        if self.split.notes:
            parts.append("\n  note: ".join(["How the data were read:", *self.split.notes]))
        return "\n\n".join(parts)
