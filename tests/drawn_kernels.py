"""Kernels that have random features, for the tests of drawn functions."""

from __future__ import annotations

from collections.abc import Callable

from gpflow import kernels as gk

KERNELS: dict[str, Callable[[], gk.Kernel]] = {
    "SquaredExponential": lambda: gk.SquaredExponential(2.0, [0.8, 1.5]),
    "Matern12": lambda: gk.Matern12(2.0, 1.5),
    "Matern32": lambda: gk.Matern32(2.0, [0.8, 1.5]),
    "Matern52": lambda: gk.Matern52(2.0, 1.2),
    "Exponential": lambda: gk.Exponential(2.0, 1.0),
    "RationalQuadratic": lambda: gk.RationalQuadratic(2.0, 1.0, alpha=1.5),
    "Periodic": lambda: gk.Periodic(gk.SquaredExponential(2.0, 0.8), [2.0, 3.0]),
    "Cosine": lambda: gk.Cosine(2.0, [1.0, 2.0]),
    "cosines": lambda: gk.Cosine(2.0, 1.0) * gk.Cosine(1.0, [2.3, 1.1]),
    "envelope": lambda: gk.SquaredExponential(2.0) * gk.Cosine(1.0, 2.3) * gk.Cosine(1.0, 1.1),
    "ArcCosine0": lambda: gk.ArcCosine(0, 2.0, [0.5, 2.0], 0.3),
    "ArcCosine2": lambda: gk.ArcCosine(2, 0.2, [0.5, 0.3], 0.3),
    "Polynomial": lambda: gk.Polynomial(3, 0.2, 0.5),
    "Linear": lambda: gk.Linear([0.3, 0.6]),
    "Coregion": lambda: gk.SquaredExponential(active_dims=[0]) * gk.Coregion(6, 2, active_dims=[1]),
    "product": lambda: (
        gk.SquaredExponential(2.0, 0.8, active_dims=[0]) * gk.Matern32(1.0, 1.5, active_dims=[1])
    ),
    "sum": lambda: (
        gk.Linear(0.3) * gk.SquaredExponential() + gk.Constant(0.4) * gk.Constant(2.0) + gk.White(0.1)
    ),
    "distributed": lambda: (
        (gk.SquaredExponential() + gk.Linear(0.2, active_dims=[1])) * gk.Matern52(active_dims=[0])
    ),
    "ChangePoints": lambda: gk.ChangePoints(
        [gk.SquaredExponential(), gk.Matern32(2.0) + gk.Linear(0.1)], [0.3], 2.0
    ),
}
