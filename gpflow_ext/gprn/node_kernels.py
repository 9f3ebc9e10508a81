"""The kernels of the nodes of a regression network: one for all, or one for each."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from gpflow.kernels import Kernel, MultioutputKernel, SeparateIndependent, SharedIndependent

from gpflow_ext.data.arguments import check_kind
from gpflow_ext.numerics import batched
from gpflow_ext.numerics.centred import covariance


def chosen(kernel: Kernel | Sequence[Kernel], num_latent: int) -> Kernel:
    """Return the kernel of all nodes, or ``SeparateIndependent`` of those of each.

    Raises
    ------
    ValueError
        For another number of kernels than of nodes.
    NotImplementedError
        For another multi-output kernel than ``SharedIndependent`` and ``SeparateIndependent``.
    """
    if isinstance(kernel, Sequence):
        kernel = SeparateIndependent(list(kernel))
    if type(kernel) is SharedIndependent:
        kernel = kernel.kernel
    if type(kernel) is SeparateIndependent:
        if len(kernel.kernels) != num_latent or any(
            isinstance(part, MultioutputKernel) for part in kernel.kernels
        ):
            raise ValueError(
                f"A list of kernels has one of one output for each of the {num_latent} nodes; got "
                f"{[type(part).__name__ for part in kernel.kernels]}."
            )
        return kernel
    return of_one_output(kernel)


def of_one_output(kernel: Kernel) -> Kernel:
    """Return a kernel, refused if it is none or of several outputs."""
    check_kind(Kernel, kernel=kernel)
    if isinstance(kernel, MultioutputKernel):
        raise NotImplementedError(
            "GPRNTensor takes kernels of one output, and for the nodes one for each; "
            f"got {type(kernel).__name__}."
        )
    return kernel


def each(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the kernels: that of all nodes, or those of each."""
    return tuple(kernel.kernels) if are_separate(kernel) else (kernel,)


def are_separate(kernel: Kernel) -> bool:
    """Tell whether each node has a kernel of its own."""
    return isinstance(kernel, SeparateIndependent)


def gram(kernel: Kernel, X: tf.Tensor, X2: tf.Tensor | None = None) -> tf.Tensor:
    """Return k(X, X2) of centred inputs, [N, N2], or those of each node, [K, N, N2]."""
    if not are_separate(kernel):
        return covariance(kernel, X, X2)
    return tf.stack([covariance(part, X, X2) for part in each(kernel)])


def variances(kernel: Kernel, X: tf.Tensor) -> tf.Tensor:
    """Return k(xₙ, xₙ), [N] or [K, N]."""
    if not are_separate(kernel):
        return kernel(X, full_cov=False)
    return tf.stack([part(X, full_cov=False) for part in each(kernel)])


def of_members(kernel: Kernel, members: tf.Tensor) -> tf.Tensor:
    """Return the covariances within members [B, N, Q] of a batch, [B, N, N] or [K, B, N, N]."""
    if not are_separate(kernel):
        return batched.gram(kernel, members)
    return tf.stack([batched.gram(part, members) for part in each(kernel)])
