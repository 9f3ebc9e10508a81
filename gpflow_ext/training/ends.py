"""Failed fits: a start that is at fault is refused by name, any other failure gives a warning."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.kernels import MultioutputKernel
from gpflow.models import GPModel
from tensorflow_probability import bijectors

from gpflow_ext.data.checks import Array
from gpflow_ext.data.on_host import is_softplus
from gpflow_ext.numerics.positive_triangular import PositiveTriangular
from gpflow_ext.sites.method import REMEDY, site_method
from gpflow_ext.training.loop import FitResult, Status

# What is finite stays so.
_KEEP_FINITE = (
    type(None),
    bijectors.FillTriangular,
    bijectors.Identity,
    bijectors.Sigmoid,
    PositiveTriangular,
)
_HOLD = "Hold such parameters by priors or `gpflow.set_trainable`, or start from others."
_SHOWN = 5  # rows that are named
_LOOKED_AT = 10_000  # rows


class FitWarning(UserWarning):
    """Warning that a fit failed (its objective was not finite, or fell) or stopped while still improving."""


def check_parameters(model: tf.Module) -> None:
    """Raise ``ValueError`` where a parameter of a model is not finite."""
    for name, parameter in gpflow.utilities.parameter_dict(model).items():
        if parameter.dtype.is_floating and not np.isfinite(_looked_at(parameter).numpy()).all():
            raise ValueError(
                f"The parameter {name.lstrip('.')} is not finite: {_some(np.ravel(parameter.numpy()))}. "
                "Assign it another value before `fit`."
            )


def check_first_step(model: Any, data: Any = None) -> None:
    """Raise ``ValueError`` for rows at which the objective is not finite although the parameters are.

    At them the prior variance, the prior mean, or the log likelihood at that mean is not finite. There may be
    none. Only some of the rows are examined.

    Parameters
    ----------
    model
        The model.
    data
        The data that it is trained on, where it does not hold them: (X [N, D], Y [N, P]), or a dataset, which
        is not examined.
    """
    held = data if data is not None else getattr(model, "data", None)
    if not isinstance(model, GPModel) or not isinstance(held, tuple | list):
        return
    X, Y = (tf.constant(np.asarray(part)[:_LOOKED_AT], gpflow.default_float()) for part in held)
    if not isinstance(model.kernel, MultioutputKernel):
        _refuse("X", "the kernel", model.kernel(X, full_cov=False))
    F = tf.broadcast_to(model.mean_function(X), [len(X), model.num_latent_gps])
    _refuse("X", "the mean function", F)
    _refuse("Y", "the log likelihood of the prior mean", model.likelihood.log_prob(X, F, Y))


def bad_end(result: FitResult, model: Any) -> str:
    """Say how a fit has failed, in what state it has left the model, and what to do."""
    named = getattr(model, "site_method", None)
    method = None if named is None else site_method(named)
    if result.status is Status.STALLED:
        if method is None:
            return (
                f"{result.status.value} The model is in the state after step {result.steps}. Give several "
                "`starts`, or priors to the hyperparameters."
            )
        other = "" if method.name == "ep" else "SparseEP or "
        return (
            f"{result.status.value} If the likelihood is not log-concave the sites may have no fixed point: "
            f"use gpflow_ext.models.{other}SGPMCFreeForm, or GPflow's SVGP."
        )
    done = len(result.objective)
    kept = f"after step {result.steps} or the one before" if done else "in which the fit began"
    remedy = REMEDY if method is None else method.remedy(model)
    if remedy == REMEDY and result.notes:  # which name the cause
        remedy = " ".join([*result.notes, _HOLD])
    return (
        f"{result.status.value} Step {result.steps + 1} has failed, and the model is in the state {kept}. "
        f"{remedy}"
    )


def _looked_at(parameter: Any) -> Any:
    """Return what is finite where a parameter is: its variable, unless the transform may overflow."""
    if isinstance(parameter, gpflow.Parameter) and _keeps_finite(parameter.transform):
        return parameter.unconstrained_variable
    return parameter


def _keeps_finite(transform: Any) -> bool:
    return isinstance(transform, _KEEP_FINITE) or is_softplus(transform)


def _refuse(name: str, what: str, values: tf.Tensor) -> None:
    rows = np.flatnonzero(~np.isfinite(values.numpy().reshape(len(values), -1)).all(axis=1))
    if len(rows):
        raise ValueError(
            f"The objective of the start is not finite: {what} is not finite at the rows {_some(rows)} "
            f"(counted from 0) of {name}. Scale or drop them, or start from other parameters."
        )


def _some(values: Array) -> str:
    text = ", ".join(f"{value:g}" for value in values[:_SHOWN])
    return text + (f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else "")
