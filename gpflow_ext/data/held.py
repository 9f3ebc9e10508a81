"""Data that a model holds: tensors, or variables that it follows."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.data import checks

Array = npt.NDArray[Any]


class KeepsData:
    """Mixin of models whose data may be variables, which are never trained, whatever ``trainable`` says."""

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """All trainable variables but those of the data."""
        found: Sequence[tf.Variable] = super().trainable_variables  # type: ignore[misc]
        data = {id(part) for part in vars(self).get("data") or ()}
        return tuple(variable for variable in found if id(variable) not in data)


class HoldsData(KeepsData):
    """Mixin, to be the first base, of models that hold data (X [N, D], Y [N, P]) and their Gaussian sites.

    As in GPflow, a ``tf.Variable`` is kept as it is: the model uses its current values whenever it is called,
    in graphs too, and also another number of rows if the variable has the shape [None, D]. It is never
    trained, whatever its ``trainable`` says.

    Attributes
    ----------
    nat1, prec
        The sites, non-trainable parameters of the shape [None, ...].
    """

    likelihood: gpflow.likelihoods.Likelihood
    variables: Sequence[tf.Variable]
    nat1: gpflow.Parameter
    prec: gpflow.Parameter

    @property
    def data(self) -> Any:
        """The data as tensors, with the current values of variables."""
        held: Any = vars(self).get("data")
        return tuple(map(_read, held)) if self.follows else held

    @data.setter
    def data(self, held: Any) -> None:
        vars(self)["data"] = held

    @property
    def follows(self) -> bool:
        """Whether the data are in variables."""
        return any(isinstance(part, tf.Variable) for part in vars(self).get("data") or ())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy whose variables have the open shapes of these; TensorFlow's own would close them."""
        return copied(self, memo)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of a pickle, where TensorFlow has closed the shapes of variables."""
        vars(self).update(state)
        for name in ("nat1", "prec"):
            part = state[name]
            if isinstance(part, gpflow.Parameter):
                opened = gpflow.Parameter(
                    part.numpy(), trainable=part.trainable, shape=[None, *part.shape[1:]]
                )
                setattr(self, name, opened)
        if self.follows:
            self.data = tuple(map(_opened, state["data"]))

    def follow_data(self) -> None:
        """Adapt the sites to the number of rows that variables have now.

        Sites of rows that keep their positions are kept, those of new rows are zero.

        Raises
        ------
        ValueError
            If X and Y have different numbers of rows.
        """
        if not self.follows:
            return
        X, Y = self.data
        if len(X) != len(Y):
            raise ValueError(
                f"The variable of X has {len(X)} rows and that of Y has {len(Y)}: assign to both before the "
                "model is used."
            )
        for part in (self.nat1, self.prec):
            values = tf.convert_to_tensor(part)
            if len(values) != len(X):
                part.assign(resized(values, len(X)))

    def update_data(self, data: tuple[Any, Any], index: Any | None = None) -> None:
        """Replace the data; the sites of rows that stay are kept, so that training continues from there.

        If the model was built on variables, the new data are assigned to them.

        Parameters
        ----------
        data
            Inputs [N', D] and targets [N', P].
        index
            For each new row the number of the old row that it is, or -1, [N']; ``None`` if old rows keep
            their positions, for example if others are appended. The sites of new rows are zero.

        Raises
        ------
        ValueError
            As by the constructor; for another number of columns, or an index that does not fit. The model is
            then unchanged.
        """
        X, Y = checks.check_data(data)
        checks.check_targets(self.likelihood, Y)
        old = self.data
        checks.check_widths((X.shape[1], Y.shape[1]), (old[0].shape[1], old[1].shape[1]))
        rows = kept_rows(index, len(old[0]), len(X))
        self.follow_data()
        self._replace(X, Y)
        self._keep_sites(rows)

    def _keep_sites(self, rows: Array) -> None:
        """Replace the sites by those of some rows, zero where the number is -1."""
        for part in (self.nat1, self.prec):
            part.unconstrained_variable.assign(taken(part.unconstrained_variable.read_value(), rows))

    def _replace(self, X: Array, Y: Array) -> None:
        parts = list(zip(vars(self)["data"], (X, Y), "XY", strict=True))
        for part, new, name in parts:
            check_fits(part, new, name)
        self.data = tuple(replaced(part, new) for part, new, _ in parts)


def follow(model: Any) -> None:
    """Bring a model that holds its data to their present number of rows; see `HoldsData.follow_data`."""
    if hasattr(model, "follow_data"):
        model.follow_data()


def refuse_trained(model: Any) -> None:
    """Raise ``ValueError`` where training would move the data, in variables of one of GPflow's own models."""
    held = () if hasattr(model, "follow_data") else vars(model).get("data")
    parts = held if isinstance(held, tuple | list) else ()
    if any(isinstance(part, tf.Variable) and part.trainable for part in parts):
        raise ValueError(
            f"The data of {type(model).__name__} are trainable variables, which would be fitted to the "
            "model: make them by tf.Variable(..., trainable=False)."
        )


def copied(owner: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy of a module whose variables have the open shapes of its own."""
    for part in owner.variables:
        if id(part) not in memo and not part.shape.is_fully_defined():
            memo[id(part)] = tf.Variable(part.read_value(), part.trainable, shape=part.shape)
    made = memo[id(owner)] = object.__new__(type(owner))
    vars(made).update(copy.deepcopy(vars(owner), memo))
    return made


def check_fits(part: Any, new: Array, name: str) -> None:
    """Raise ``ValueError`` where data are held in a variable that cannot take others."""
    if isinstance(part, tf.Variable) and not part.shape.is_compatible_with(new.shape):
        raise ValueError(
            f"{name} is held in a tf.Variable of shape {part.shape}, which cannot take {new.shape}: "
            "build the model with tf.Variable(..., shape=[None, columns]) for other numbers of rows."
        )


def hold(given: tuple[Any, Any], checked: tuple[Array, Array]) -> tuple[Any, Any]:
    """Return what a model holds: the variables among the data that it was given, and all else as tensors.

    Parameters
    ----------
    given, checked
        The data, and the same by `checks.check_data`.

    Raises
    ------
    ValueError
        For a variable of another dtype than GPflow's default float type, or a `gpflow.Parameter`.
    """
    X, Y = (kept(part, values, name) for part, values, name in zip(given, checked, "XY", strict=True))
    return X, Y


def kept_rows(index: Any | None, before: int, now: int) -> Array:
    """Return for each of ``now`` rows of new data the number of the old row that it is, or -1, [now].

    Parameters
    ----------
    index
        The same, or ``None`` for rows that stay at their places.
    before
        The number of old rows.

    Raises
    ------
    ValueError
        For an index of another length, or of numbers that are no row's.
    """
    if index is None:
        rows = np.arange(now)
        return np.where(rows < before, rows, -1)
    rows = np.asarray(index)
    if rows.shape != (now,) or rows.dtype.kind not in "iu":
        raise ValueError(
            f"`index` must hold a whole number for each of the {now} rows of the new data; got shape "
            f"{rows.shape} and dtype {rows.dtype}."
        )
    if ((rows < -1) | (rows >= before)).any():
        raise ValueError(
            f"`index` must hold the numbers 0 to {before - 1} of old rows, and -1 for a row that is new."
        )
    return rows


def taken(values: tf.Tensor, rows: Array) -> tf.Tensor:
    """Return some rows of values [N, ...], zero where the number is -1, as [R, ...]."""
    known = tf.reshape(rows >= 0, [-1] + [1] * (values.shape.rank - 1))
    if values.shape[0] == 0:
        return tf.zeros([len(rows), *values.shape[1:]], values.dtype)
    return tf.where(known, tf.gather(values, np.maximum(rows, 0)), tf.zeros([], values.dtype))


def resized(values: tf.Tensor, number: tf.Tensor | int) -> tf.Tensor:
    """Return the first ``number`` rows of values [N, ...], with zeros added where there are fewer."""
    first = values[:number]
    missing = tf.maximum(number - tf.shape(values)[0], 0)
    zeros = tf.zeros(tf.concat([[missing], tf.shape(values)[1:]], axis=0), values.dtype)
    return tf.ensure_shape(tf.concat([first, zeros], axis=0), [None, *values.shape[1:]])


def of_rows(part: tf.Tensor, number: int | None) -> tf.Tensor:
    """Return values [N, ...] with a number of rows; it is an error if they have another."""
    known = number is not None and part.shape[0] == number
    return part if known else tf.ensure_shape(part, [number, *part.shape[1:]])


def _read(part: Any) -> tf.Tensor:
    return part.read_value() if isinstance(part, tf.Variable) else part


def _opened(part: Any) -> Any:
    if not isinstance(part, tf.Variable):
        return part
    return tf.Variable(part.read_value(), part.trainable, shape=[None, *part.shape[1:]])


def replaced(part: Any, new: Array) -> Any:
    """Return what holds the new data: the variable that held the old ones, or a tensor."""
    if not isinstance(part, tf.Variable):
        return tf.constant(new)
    part.assign(new)
    return part


def kept(given: Any, checked: Array, name: str) -> Any:
    """Return a part of the data as it is held; see `hold`."""
    if isinstance(given, gpflow.Parameter):
        raise ValueError(
            f"{name} is a gpflow.Parameter, but data are not trained: give an array or a tf.Variable."
        )
    if not isinstance(given, tf.Variable):
        return tf.constant(checked)
    if given.dtype != gpflow.default_float():
        raise ValueError(
            f"{name} is a tf.Variable of {given.dtype.name}; make it of GPflow's default float type: "
            f"tf.Variable(tf.cast({name}, gpflow.default_float()))."
        )
    return given
