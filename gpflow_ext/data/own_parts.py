"""Parts of a model that users have written: what they return for a few rows.

GPflow checks the shapes of a kernel, but not those of the parts of likelihoods. A log density [N] in place of
[N, 1], say, is broadcast to all pairs of rows, and would be trained on silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.kernels import Kernel
from gpflow.likelihoods import Likelihood, ScalarLikelihood

from gpflow_ext.data.arguments import check_callable
from gpflow_ext.data.checks import Array

_LIBRARIES = ("gpflow", "gpflow_ext")
_APART = 1e-3  # of the largest variance, which jitter and single precision do not reach


def check_own_parts(
    kernel: Kernel,
    likelihood: Likelihood,
    mean_function: gpflow.functions.MeanFunction | None,
    data: tuple[Array, Array],
    num_latent_gps: int,
) -> None:
    """Raise ``ValueError`` where a part of a user's own is not what it must be.

    A log density or a mean function of another shape; a kernel whose variances are not the diagonal of its
    matrix. Parts are called at a few rows of X [N, D] and Y [N, P], as many as no other axis has.
    """
    if mean_function is not None:
        check_callable(mean_function=mean_function)
    X, Y = data
    count = max(num_latent_gps, Y.shape[1]) + 2
    rows = np.arange(count) % len(X)
    inner = [part for part in likelihood.submodules if isinstance(part, Likelihood)]
    if any(map(_is_own, (likelihood, *inner))):
        _check_density(likelihood, X[rows], Y[rows], np.zeros([count, num_latent_gps], X.dtype))
    if mean_function is not None and _is_own(mean_function):
        found = _shape(mean_function(X[rows]))
        if found not in ([count, 1], [count, num_latent_gps]):
            raise _mismatch(mean_function, "", f"X [{count}, {X.shape[1]}]", [count, num_latent_gps], found)
    for part in filter(_is_own, _of_one_output(kernel)):
        _check_kernel(part, X[rows])


def of_a_library(kind: type) -> bool:
    """Tell whether a class is one of GPflow or of this package, and not a user's own."""
    return kind.__module__.split(".")[0] in _LIBRARIES


def _is_own(part: Any) -> bool:
    return not of_a_library(type(part))


def _of_one_output(kernel: Kernel) -> Iterator[Kernel]:
    """Yield the kernels of one output whose inputs are those of the data, not patches or features of them."""
    parts: Sequence[Kernel] = ()
    if isinstance(kernel, gpflow.kernels.MultioutputKernel):
        parts = kernel.latent_kernels
    else:
        yield kernel
        if isinstance(kernel, gpflow.kernels.Combination):
            parts = kernel.kernels
    for part in parts:
        yield from _of_one_output(part)


def _check_density(likelihood: Likelihood, X: Array, Y: Array, F: Array) -> None:
    scalar = isinstance(likelihood, ScalarLikelihood)
    name, expected = ("_scalar_log_prob", list(F.shape)) if scalar else ("_log_prob", [len(F)])
    try:
        found = _shape(getattr(likelihood, name)(X, F, Y))
    except NotImplementedError:  # it has expectations alone
        return
    if found != expected:
        given = f"F {list(F.shape)} and Y {list(Y.shape)}"
        raise _mismatch(likelihood, f".{name}", given, expected, found)


def _check_kernel(part: Kernel, X: Array) -> None:
    own, variances = np.diag(part(X)), np.asarray(part(X, full_cov=False))
    apart = np.max(np.abs(own - variances))
    if apart > _APART * np.max(np.abs(variances)):
        raise ValueError(
            f"{type(part).__name__}.K_diag must return the diagonal of K; at rows of the data they differ by "
            f"up to {apart:.3g}."
        )


def _shape(value: Any) -> Sequence[int]:
    return list(tf.convert_to_tensor(value).shape)


def _mismatch(part: Any, name: str, given: str, expected: Sequence[int], found: Sequence[int]) -> ValueError:
    return ValueError(
        f"{type(part).__name__}{name} must return the shape {expected} for {given}; it returns {found}."
    )
