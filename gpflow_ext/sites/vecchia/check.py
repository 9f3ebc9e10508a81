"""Check whether a model can have a Vecchia prior, and why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gpflow.kernels import Constant, Cosine, Kernel, Stationary, White

from gpflow_ext.sites import latent

Array = npt.NDArray[Any]


def misfit(kernel: Kernel, X: Any) -> str | None:
    """Say why a kernel and inputs X [N, D] have no Vecchia prior; return ``None`` where they have one.

    The kernel is made of stationary ones, but ``Cosine``, by sums and products, with ``White`` and
    ``Constant`` beside them; equal inputs need a ``White`` among the terms of the sum.
    """
    inputs = np.asarray(X)
    if latent.mixing(kernel) is not None:
        return (
            f"it has independent latent functions, but {type(kernel).__name__} mixes them: use "
            "SharedIndependent or SeparateIndependent"
        )
    for part in latent.kernels(kernel):
        leaves = list(latent.parts(part))
        strangers = [leaf for leaf in leaves if not _fits(leaf)]
        if strangers:
            return (
                f"{type(strangers[0]).__name__} does not fall with the distance, so that near data would "
                "not stand for all: use Matérn kernels or other stationary ones, with White and Constant "
                "beside them"
            )
        if not any(isinstance(leaf, Stationary) for leaf in leaves):
            return "none of its kernels is stationary: add a Matérn kernel"
        if len(inputs) > 1 and not any(isinstance(leaf, White) for leaf in leaves):
            read = inputs[:, np.isfinite(scales(part, inputs.shape[1]))]
            equal = len(inputs) - len(np.unique(read, axis=0))
            if equal:
                return (
                    f"{equal:,} of the {len(inputs):,} inputs repeat others, at which {type(part).__name__} "
                    "has one and the same value: add a White kernel, or merge these rows"
                )
    return None


def check(kernel: Kernel, X: Any, owner: str) -> None:
    """Raise ``ValueError`` where a model has no Vecchia prior; see `misfit`."""
    if len(X) < 2:
        raise ValueError(f'prior="vecchia" is for two data or more; {owner} has {len(X)}.')
    reason = misfit(kernel, X)
    if reason is not None:
        raise ValueError(f'prior="vecchia" does not fit {owner}: {reason}; or leave `prior` out.')


def scales(kernel: Kernel, columns: int) -> Array:
    """Return the shortest length scale along each of the columns, [D], infinite where no kernel reads it."""
    found = np.full(columns, np.inf)
    for part in latent.kernels(kernel):
        for leaf in latent.parts(part):
            if isinstance(leaf, Stationary):
                read = np.arange(columns)[leaf.active_dims]
                found[read] = np.minimum(found[read], np.asarray(leaf.lengthscales))
    return found


def _fits(leaf: Kernel) -> bool:
    return isinstance(leaf, (Stationary, White, Constant)) and not isinstance(leaf, Cosine)
