"""The classes and functions that the record of a model may name: those of which GPflow models are made."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from typing import Any

import gpflow
import tensorflow as tf
import tensorflow_probability as tfp

_ROOMS = {
    "gpflow": ("functions", "inducing_variables", "kernels", "likelihoods", "models", "quadrature"),
    "gpflow_ext": (
        "numerics",
        "features",
        "sites",
        "likelihoods",
        "prediction",
        "kmm",
        "ep",
        "laplace",
        "svgp",
        "gprn",
        "sampling",
    ),
}
_LIBRARIES = {"tensorflow", "tensorflow_probability", "keras", "tf_keras"}  # no plain state
_MATHS = (
    "abs atan cos cosh digamma erf erfc exp expm1 lgamma log log1p log_sigmoid ndtri reciprocal rsqrt "
    "sigmoid sign sin sinh softplus sqrt square tan tanh"
)

FUNCTIONS: dict[str, Any] = {
    "tensorflow.identity": tf.identity,
    "tensorflow.nn.relu": tf.nn.relu,
    "gpflow.likelihoods.utils.inv_probit": gpflow.likelihoods.utils.inv_probit,
    **{f"tensorflow.math.{name}": getattr(tf.math, name) for name in _MATHS.split()},
}

CONSTRUCTED = (tfp.bijectors.Bijector, tfp.distributions.Distribution)
"""What is made by its constructor; all else is made by its state."""


def _built(module: Any, prefix: str) -> dict[str, type]:
    public = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    kinds = {name: each for name, each in public.items() if isinstance(each, type)}
    return {f"{prefix}.{name}": kind for name, kind in kinds.items() if issubclass(kind, CONSTRUCTED)}


BUILT = {
    **_built(tfp.bijectors, "tensorflow_probability.bijectors"),
    **_built(tfp.distributions, "tensorflow_probability.distributions"),
}
_NAMES = {id(value): name for name, value in {**FUNCTIONS, **BUILT}.items()}


def name_of(value: Any) -> str:
    """Return the name by which a record knows a class or function: ``module:qualname``, or a public one."""
    return _NAMES.get(id(value), f"{value.__module__}:{value.__qualname__}")


def is_own(kind: type) -> bool:
    """Tell whether a class is one that `Known` finds without being given it."""
    return _of_a_room(kind.__module__) or id(kind) in _NAMES


def is_foreign(kind: type) -> bool:
    """Tell whether a class belongs to a library whose objects cannot be written down by their attributes."""
    return kind.__module__.split(".")[0] in _LIBRARIES


def hides(kind: type, name: str) -> bool:
    """Tell whether an attribute of an object would hide a method or a property of its class.

    Properties of this package that can be set do not count: what setting them does is known.
    """
    found = inspect.getattr_static(kind, name, None)
    setter = getattr(found, "fset", None)
    own = getattr(setter, "__module__", "").split(".")[0] == __name__.split(".")[0]
    return hasattr(type(found), "__get__") and not own


class Known:
    """Looks names up; nothing is imported, and nothing is called.

    Parameters
    ----------
    given
        Classes and functions of the user's own, found by their qualified name within their module: that of a
        script is another one when the script is imported.

    Raises
    ------
    ValueError
        Where two of them share a name, or one is neither a class nor a function.
    """

    def __init__(self, given: Iterable[Any] = ()) -> None:
        self._given: dict[str, Any] = {}
        for one in given:
            if not (isinstance(one, type) or inspect.isfunction(one)):
                raise ValueError(
                    f"`classes` holds classes and functions themselves; got {type(one).__name__}."
                )
            if self._given.setdefault(one.__qualname__, one) is not one:
                raise ValueError(f"`classes` holds two of the name {one.__qualname__}: rename one.")

    def find(self, name: str) -> Any:
        """Return the class or function of a name.

        Raises
        ------
        ValueError
            For a name that is not known.
        """
        if name in FUNCTIONS:
            return FUNCTIONS[name]
        if name in BUILT:
            return BUILT[name]
        module, _, qualified = name.partition(":")
        found = _own(module, qualified) if _of_a_room(module) else self._given.get(qualified)
        if found is None:
            raise ValueError(
                f"{name} is neither a class of GPflow's or gpflow_ext's models, nor a bijector, distribution "
                "or function that a model may hold. If it is your own, pass it in: "
                f"load_checkpoint(folder, classes=[{qualified or name}])."
            )
        return found


def _of_a_room(module: str) -> bool:
    root, _, rest = module.partition(".")
    return rest.split(".")[0] in _ROOMS.get(root, ())


def _own(module: str, qualified: str) -> type | None:
    """Return a class that a module defines itself; what it imports is not its own."""
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = None if found is None else vars(found).get(part)
        if not isinstance(found, type) or found.__module__ != module:
            return None
    return found
