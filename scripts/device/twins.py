"""Densities that `scripts/device/run.py` times beside the package's, as one writes them in JAX by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import log_ndtr

Timer = Callable[[Callable[[], Any], int, float], tuple[float, int]]
Programs = Mapping[str, Any]  # of `loaded.Loaded`
ROWS, POINTS, INPUTS, NODES = 1000, 64, 18, 20
CELLS, AXIS, SIDE = 512, 15, 10.0
JITTER = 1e-6


def squared_exponential(X: Any, X2: Any, variance: Any, lengths: Any) -> Any:
    """Return k(X, X2), [N, N2]."""
    X, X2 = X / lengths, X2 / lengths
    squares = jnp.sum(X**2, -1)[:, None] + jnp.sum(X2**2, -1)[None, :] - 2.0 * X @ X2.T
    return variance * jnp.exp(-0.5 * jnp.maximum(squares, 0.0))


def classifier() -> Callable[[Any], Any]:
    """Return the whitened density of a sparse probit classifier, of z [M + 1 + D]: v, then logarithms."""
    rng = np.random.default_rng(1)
    X, Y = rng.standard_normal((ROWS, INPUTS)), np.sign(rng.standard_normal(ROWS))
    Z = X[:POINTS]
    at, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()

    def density(z: Any) -> Any:
        v, variance, lengths = z[:POINTS], jnp.exp(z[POINTS]), jnp.exp(z[POINTS + 1 :])
        K = squared_exponential(Z, Z, variance, lengths) + JITTER * jnp.eye(POINTS)
        A = solve_triangular(jnp.linalg.cholesky(K), squared_exponential(Z, X, variance, lengths), lower=True)
        mean, var = A.T @ v, jnp.maximum(variance - jnp.sum(A**2, 0), 1e-12)
        f = mean[:, None] + jnp.sqrt(var)[:, None] * at
        expected = jnp.sum(log_ndtr(Y[:, None] * f) * weights)
        return expected - 0.5 * jnp.sum(v**2) - 0.5 * jnp.sum(z[POINTS:] ** 2)

    return density


def counts() -> Callable[[Any], Any]:
    """Return the whitened density of counts on a map, by Kronecker products, of z [M² + 3]."""
    cell = (np.arange(CELLS) + 0.5) * SIDE / CELLS
    axis = (np.arange(AXIS) + 0.5) * SIDE / AXIS
    Y = np.random.default_rng(1).poisson(127.0 / CELLS**2, (CELLS, CELLS)).astype(float)
    area = (SIDE / CELLS) ** 2

    def density(z: Any) -> Any:
        V = z[: AXIS**2].reshape(AXIS, AXIS)
        mean, variance, length = z[AXIS**2], jnp.exp(z[AXIS**2 + 1]), jnp.exp(z[AXIS**2 + 2])
        K = squared_exponential(axis[:, None], axis[:, None], 1.0, length) + JITTER * jnp.eye(AXIS)
        cross = squared_exponential(axis[:, None], cell[:, None], 1.0, length)
        A = solve_triangular(jnp.linalg.cholesky(K), cross, lower=True)
        f = mean + jnp.sqrt(variance) * A.T @ V @ A
        explained = jnp.sum(A**2, 0)
        var = variance * (1.0 - explained[:, None] * explained[None, :])
        expected = jnp.sum(Y * f - area * jnp.exp(f + 0.5 * var))
        return expected - 0.5 * jnp.sum(V**2) - 0.5 * jnp.sum(z[AXIS**2 :] ** 2)

    return density


def gradients(
    density: Callable[[Any], Any], size: int, chains: int, timed: Timer, scale: float = 0.1
) -> dict[str, Any]:
    """Time the density and its gradient for many chains at once, 50 in a call as a sampler takes them."""
    both = jax.vmap(jax.value_and_grad(density))

    @jax.jit
    def many(z: Any) -> Any:
        return jax.lax.fori_loop(0, 50, lambda _, z: z + 1e-6 * both(z)[1], z)

    z = scale * jax.random.normal(jax.random.key(0), (chains, size), "float64")
    jax.block_until_ready(many(z))
    seconds, calls = timed(lambda: many(z), 10, 3.0)
    return {"chains": chains, "ms_per_gradient": 1e3 * seconds / 50, "calls": calls}


def numbers(programs: Programs) -> list[int]:
    """Return how many chains the programs have."""
    return sorted({one.about["chains"] for one in programs.values()})


def chains(timed: Timer, programs: Programs) -> Iterator[dict[str, Any]]:
    """Time the classifier with as many chains as the programs have."""
    for number in numbers(programs):
        found = gradients(classifier(), POINTS + 1 + INPUTS, number, timed)
        yield {"of": "chains, by hand", "dtype": "float64", **found}


def maps(timed: Timer, programs: Programs) -> Iterator[dict[str, Any]]:
    """Time the map with as many chains as the programs have."""
    for number in numbers(programs):
        yield {"of": "map, by hand", "cells": CELLS, **gradients(counts(), AXIS**2 + 3, number, timed)}
