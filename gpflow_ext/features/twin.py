"""The twin of a model on features that are computed once, with the same parameters."""

from __future__ import annotations

from typing import Any

import gpflow
import tensorflow as tf
from gpflow.functions import Constant, Function
from gpflow.inducing_variables import (
    FallbackSeparateIndependentInducingVariables,
    FallbackSharedIndependentInducingVariables,
    InducingPoints,
)
from gpflow.kernels import Kernel

from gpflow_ext.data import checks
from gpflow_ext.data.parts import parts
from gpflow_ext.features.kernel import Feature, InducingFeatures, check_width, on_features, sharing

_OURS = ("gpflow.models.", "gpflow_ext.")  # packages whose models look at inputs by kernel and mean alone


class Twin:
    """A model on features of its inputs, trained instead of the model, with which it shares all parameters.

    It is the model itself if φ cannot be computed once: if there are no `Feature` kernels, if a part of the
    kernel, the mean function or the likelihood depends on the inputs themselves, if inducing points are in
    their space, or if data are in variables or in a dataset.

    Parameters
    ----------
    model
        The model.
    data
        The data that it is trained on, where it does not hold them.

    Attributes
    ----------
    model, data
        The twin and the data on features.

    Raises
    ------
    ValueError
        For data that are not finite matrices of equal length, or of another width than φ takes.
    """

    def __init__(self, model: Any, data: Any = None) -> None:
        self._original, self.model, self.data = model, model, data
        self._part: Feature | None = None
        held = data if data is not None else vars(model).get("data")
        made = _on_features(model) if _is_pair(held) else None
        if made is None:
            return
        changed, self._part = made
        rows = self.rows(held)
        if data is None:
            self.model = sharing(model, data=tuple(map(tf.constant, rows)), **changed)
        else:
            self.model, self.data = sharing(model, **changed), rows

    def rows(self, data: Any) -> Any:
        """Return data (X [N, D], Y [N, P]) with φ(X) for X, or as they are where the twin is the model."""
        if self._part is None or data is None:
            return data
        X, Y = checks.check_data(data)
        dtype = gpflow.default_float()
        return self._part.features(self._part.slice(tf.constant(X), None)[0]).numpy().astype(dtype), Y

    def carry_back(self) -> None:
        """Give the model what a recipe has set on its twin beside parameters: the site method."""
        if "site_method" in vars(self.model):
            self._original.site_method = self.model.site_method


def _is_pair(data: Any) -> bool:
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    return not any(isinstance(part, tf.Variable) for part in data)


def _on_features(model: Any) -> tuple[dict[str, Any], Feature] | None:
    """Return the attributes of the twin that differ, and a feature kernel; ``None`` where there is none."""
    kernel = getattr(model, "kernel", None)
    place = f"{type(model).__module__}."
    if not isinstance(kernel, Kernel) or not place.startswith(_OURS):
        return None
    if not any(isinstance(part, Feature) for part in _modules(kernel)) or _sees_inputs(model, kernel):
        return None
    try:
        alone, part = on_features(kernel)
    except ValueError:
        return None
    changed: dict[str, Any] = {"kernel": alone}
    if getattr(model, "inducing_variable", None) is not None:
        points = _points(model.inducing_variable, part)
        if points is None:
            return None
        changed["inducing_variable"] = points
    return changed, part


def _sees_inputs(model: Any, kernel: Kernel) -> bool:
    """Tell whether anything but the kernel looks at the inputs."""
    own = {id(part) for part in _modules(kernel)}
    others = [part for part in model.submodules if id(part) not in own]
    return any(
        isinstance(part, Kernel) or (isinstance(part, Function) and not isinstance(part, Constant))
        for part in others
    )


def _modules(module: tf.Module) -> list[tf.Module]:
    return [module, *parts(module, tf.Module)]


def _points(found: Any, part: Feature) -> Any:
    """Return inducing features as inducing points; ``None`` for other inducing variables."""
    if isinstance(found, InducingFeatures):
        check_width(found, part)
        return InducingPoints(found.Z)
    if isinstance(found, FallbackSharedIndependentInducingVariables):
        shared = _points(found.inducing_variable, part)
        return None if shared is None else sharing(found, inducing_variable=shared)
    if isinstance(found, FallbackSeparateIndependentInducingVariables):
        parts = [_points(each, part) for each in found.inducing_variable_list]
        return None if None in parts else sharing(found, inducing_variable_list=parts)
    return None
