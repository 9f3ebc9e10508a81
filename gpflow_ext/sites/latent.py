"""Multi-output kernels: the kernel of each latent function, and how outputs mix these.

A kernel of one output is shared by all latent functions, as ``SharedIndependent`` is;
``SeparateIndependent`` has one for each. ``LinearCoregionalization``, f = Wg, has one for each of the
independent functions g [S]. What is computed here has a leading axis of length one where all share a kernel,
else S. GPflow's dispatch is asked for one output at a time, so that inducing variables may be of any kind
that it knows for the kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Protocol

import gpflow
import tensorflow as tf
from gpflow.covariances import Kuf, Kuu
from gpflow.inducing_variables import (
    FallbackSeparateIndependentInducingVariables,
    FallbackSharedIndependentInducingVariables,
    InducingPoints,
    InducingVariables,
    MultioutputInducingVariables,
)
from gpflow.kernels import (
    Combination,
    Kernel,
    LinearCoregionalization,
    MultioutputKernel,
    SeparateIndependent,
    SharedIndependent,
)

from gpflow_ext.data import arguments, checks
from gpflow_ext.numerics.centred import covariance, keeps_digits

KERNELS = SharedIndependent, SeparateIndependent, LinearCoregionalization
POINTS = FallbackSharedIndependentInducingVariables, FallbackSeparateIndependentInducingVariables


class Functions(Protocol):
    """Protocol of what determines the prior of the latent functions."""

    kernel: Kernel
    mean_function: gpflow.functions.MeanFunction
    num_latent_gps: int


def kernels(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the kernels of one output, one or S."""
    return tuple(kernel.latent_kernels) if isinstance(kernel, MultioutputKernel) else (kernel,)


def parts(kernel: Kernel, of: type[Combination] = Combination) -> Iterator[Kernel]:
    """Yield the parts of which sums and products, or combinations of one class, are made, however nested."""
    if isinstance(kernel, of):
        for part in kernel.kernels:
            yield from parts(part, of)
    else:
        yield kernel


def sets(points: InducingVariables) -> tuple[InducingVariables, ...]:
    """Return the inducing variables of one output, one set or S."""
    return tuple(points.inducing_variables) if isinstance(points, POINTS) else (points,)


def mixing(kernel: Kernel) -> gpflow.Parameter | None:
    """Return W [P, S] of outputs f = Wg, or ``None`` where each output is a latent function of its own."""
    return kernel.W if isinstance(kernel, LinearCoregionalization) else None


def num_outputs(kernel: Kernel) -> int | None:
    """Return the number of outputs that a kernel has, ``None`` for one that any number of them may share."""
    if not isinstance(kernel, MultioutputKernel):
        return None
    W = mixing(kernel)
    return int(kernel.num_latent_gps if W is None else W.shape[0])


def num_functions(prior: Functions) -> int:
    """Return the number of latent functions, S of those g that outputs f = Wg mix."""
    return prior.num_latent_gps if mixing(prior.kernel) is None else len(kernels(prior.kernel))


def mean(prior: Functions, X: tf.Tensor) -> tf.Tensor:
    """Return the prior mean at X [N, D], as [N, L]."""
    found = tf.broadcast_to(prior.mean_function(X), [tf.shape(X)[0], prior.num_latent_gps])
    return tf.ensure_shape(found, [X.shape[0], prior.num_latent_gps])


def gram(kernel: Kernel, X: tf.Tensor) -> tf.Tensor:
    """Return the covariances within X [batch..., N, D], [1 or S, batch..., N, N]."""
    return tf.stack([covariance(part, X) for part in kernels(kernel)])


def cross(kernel: Kernel, X: tf.Tensor, X2: tf.Tensor) -> tf.Tensor:
    """Return the covariances of X [N, D] with X2 [R, D], [1 or S, N, R]."""
    return tf.stack([covariance(part, X, X2) for part in kernels(kernel)])


def variances(kernel: Kernel, X: tf.Tensor) -> tf.Tensor:
    """Return the variances of outputs at X [N, D], [N, 1 or P]."""
    own, W = tf.stack([part(X, full_cov=False) for part in kernels(kernel)], axis=-1), mixing(kernel)
    return own if W is None else tf.matmul(own, tf.square(W), transpose_b=True)


def pairs(points: InducingVariables, kernel: Kernel) -> list[tuple[Any, Any]]:
    """Return the inducing variables and the kernel of each latent function, one pair if all share both."""
    own, parts = sets(points), kernels(kernel)
    count = max(len(own), len(parts))
    return list(itertools.islice(zip(itertools.cycle(own), itertools.cycle(parts), strict=False), count))


def inducing_gram(points: InducingVariables, kernel: Kernel) -> tf.Tensor:
    """Return K_uu with GPflow's default jitter, [1 or S, M, M]."""
    return tf.stack([_inducing_gram(*pair) for pair in pairs(points, kernel)])


def inducing_cross(points: InducingVariables, kernel: Kernel, X: tf.Tensor) -> tf.Tensor:
    """Return K_uf at X [R, D], [1 or S, M, R]."""
    return tf.stack([_inducing_cross(*pair, X) for pair in pairs(points, kernel)])


def _inducing_gram(points: InducingVariables, kernel: Kernel) -> tf.Tensor:
    jitter = gpflow.default_jitter()
    if type(points) is not InducingPoints or not keeps_digits(kernel):
        return Kuu(points, kernel, jitter=jitter)
    K = covariance(kernel, tf.convert_to_tensor(points.Z))
    return tf.linalg.set_diag(K, tf.linalg.diag_part(K) + jitter)


def _inducing_cross(points: InducingVariables, kernel: Kernel, X: tf.Tensor) -> tf.Tensor:
    if type(points) is not InducingPoints or not keeps_digits(kernel):
        return Kuf(points, kernel, X)
    return covariance(kernel, tf.convert_to_tensor(points.Z), X)


def check_kinds(kernel: Kernel, points: InducingVariables | None, owner: str) -> None:
    """Raise ``NotImplementedError`` for a user's own kernels and inducing variables of several outputs.

    Raises
    ------
    ValueError
        For what is no kernel.
    """
    arguments.check_kind(Kernel, kernel=kernel)
    if isinstance(kernel, MultioutputKernel) and not isinstance(kernel, KERNELS):
        raise NotImplementedError(
            f"{owner} has no prior for a kernel of the class {type(kernel).__name__}: use a kernel of one "
            f"output, which all latent functions share, or one of {_names(KERNELS)}."
        )
    if isinstance(points, MultioutputInducingVariables) and not isinstance(points, POINTS):
        raise NotImplementedError(
            f"{owner} knows no inducing variables of the class {type(points).__name__}: use those of one "
            "output, or SharedIndependentInducingVariables or SeparateIndependentInducingVariables."
        )


def check_inducing(points: InducingVariables, kernel: Kernel, X: checks.Array) -> None:
    """Raise ``ValueError`` where inducing variables do not fit a kernel and inputs X [N, D].

    Those that are not inputs are tried: their covariances know what they need of a kernel and the inputs.
    """
    for own, part in pairs(points, kernel):
        if checks.are_inputs(own):
            checks.check_inducing(own, X)
            continue
        try:
            shapes = Kuu(own, part).shape, Kuf(own, part, tf.constant(X[:1])).shape
        except Exception as error:  # those of TensorFlow, check_shapes and dispatch have no common base
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(_misfit(own, part, X, reason)) from error
        M = int(own.num_inducing)
        if shapes != ((M, M), (M, 1)):
            raise ValueError(_misfit(own, part, X, f"their covariances are {shapes[0]} and {shapes[1]}"))


def _misfit(points: InducingVariables, kernel: Kernel, X: checks.Array, reason: str) -> str:
    return (
        f"{type(points).__name__} do not fit the kernel {type(kernel).__name__} and inputs of {X.shape[1]} "
        f"columns: {reason}."
    )


def check_numbers(kernel: Kernel, points: InducingVariables | None, num_latent_gps: int) -> None:
    """Raise ``ValueError`` where a kernel, inducing variables and latent functions are not equally many."""
    arguments.check_whole(num_latent_gps=num_latent_gps)
    if num_outputs(kernel) not in (None, num_latent_gps):
        raise ValueError(
            f"`kernel` has {num_outputs(kernel)} outputs, but there are {num_latent_gps} latent functions: "
            "it must have one output for each that the likelihood and the columns of Y ask for."
        )
    if points is None:
        return
    found, count = sets(points), num_latent_gps if mixing(kernel) is None else len(kernels(kernel))
    if len(found) not in (1, count):
        raise ValueError(
            f"`inducing_variable` has {len(found)} sets for {count} functions: give one set that all share, "
            "or one for each."
        )
    sizes = sorted({int(part.num_inducing) for part in found})
    if len(sizes) > 1:
        raise ValueError(
            f"The sets of `inducing_variable` have {sizes} elements: all functions need equally many."
        )


def _names(classes: tuple[type, ...]) -> str:
    return ", ".join(each.__name__ for each in classes)
