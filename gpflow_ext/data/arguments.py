"""Checks of single arguments: numbers, flags, functions, classes; they need NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_whole(**values: Any) -> None:
    """Raise ``ValueError`` unless all values are whole numbers, which the message has by their names."""
    for name, value in values.items():
        if np.ndim(value) or np.asarray(value).dtype.kind not in "iu":
            raise ValueError(f"`{name}` must be a whole number; got {value!r}.")


def check_seed(seed: Any) -> None:
    """Raise ``ValueError`` unless ``seed`` is a whole number of 32 bits: others would stand for one."""
    check_whole(seed=seed)
    if not -(2**31) <= seed < 2**31:
        raise ValueError(f"`seed` must be from -2^31 to 2^31 - 1; got {seed}.")


def check_number(**values: Any) -> None:
    """Raise ``ValueError`` unless all values are numbers, which the message has by their names."""
    for name, value in values.items():
        if np.ndim(value) or np.asarray(value).dtype.kind not in "iuf":
            raise ValueError(f"`{name}` must be a number; got {value!r}.")


def check_flag(**values: Any) -> None:
    """Raise ``ValueError`` unless all values are ``True`` or ``False``, or ``None`` for a default."""
    for name, value in values.items():
        if value is not None and not isinstance(value, bool | np.bool_):
            raise ValueError(f"`{name}` must be True or False; got {value!r}.")


def check_callable(**values: Any) -> None:
    """Raise ``ValueError`` unless all values are functions, which the message has by their names."""
    for name, value in values.items():
        if not callable(value):
            raise ValueError(f"`{name}` must be a function; got {value!r}.")


def check_kind(kind: type, **values: Any) -> None:
    """Raise ``ValueError`` unless all values are of a class, which the message has by its name."""
    for name, value in values.items():
        if not isinstance(value, kind):
            raise ValueError(f"`{name}` must be of the class {kind.__name__}; got {value!r}.")
