"""GPflow's unwhitened SVGP, trained in the whitened coordinates of its inducing variables.

q(u) = N(m, S) of u = Lv, LLᵀ = K_uu, is q(v) = N(L⁻¹m, L⁻¹SL⁻ᵀ), at which the bound is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf
from gpflow.models import SVGP

from gpflow_ext.compiled import Compiled
from gpflow_ext.sites import latent, products, sparse_prior
from gpflow_ext.svgp.whitened import has_full_q, has_independent
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.recipe import Plan, Run
from gpflow_ext.training.site_twin import has_plain_bound
from gpflow_ext.training.solver import Progress, Solver


def has_twin(model: SVGP) -> bool:
    """Tell whether q(u) of an unwhitened ``SVGP`` is that of a whitened one, and both have one objective."""
    if model.whiten or not has_plain_bound(model, SVGP):
        return False
    single = latent.num_outputs(model.kernel) is None
    free = all(parameter.prior is None for parameter in (model.q_mu, model.q_sqrt))
    return single and free and has_independent(model) and has_full_q(model)


def whitened_twin(model: SVGP) -> SVGP:
    """Return the whitened model with the kernel, likelihood, mean and inducing variables of a model."""
    return SVGP(
        model.kernel,
        model.likelihood,
        model.inducing_variable,
        mean_function=model.mean_function,
        num_latent_gps=model.num_latent_gps,
        num_data=model.num_data,
        whiten=True,
    )


class Coordinates(tf.Module):
    """Functions to compile: q of a whitened model as q(u), and q(u) as that of the whitened model.

    Parameters
    ----------
    model, twin
        The model and its whitened twin.
    """

    def __init__(self, model: SVGP, twin: SVGP) -> None:
        super().__init__()
        self._model, self._twin = model, twin

    def coloured(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean [M, L] and factor [L, M, M] of q(u). O(LM³)."""
        chol, q_sqrt = self._chol(), tf.convert_to_tensor(self._twin.q_sqrt)
        return products.matvec(chol, tf.convert_to_tensor(self._twin.q_mu)), tf.matmul(chol, q_sqrt)

    def whitened(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean [M, L] and factor [L, M, M] of q(v). O(LM³)."""
        q_mu, q_sqrt = map(tf.convert_to_tensor, (self._model.q_mu, self._model.q_sqrt))
        return products.whitened(self._chol(), q_mu, q_sqrt)

    def _chol(self) -> tf.Tensor:
        return tf.linalg.cholesky(sparse_prior.gram(self._model))


class UnwhitenedSteps(tf.Module):
    """Steps of the whitened twin, after each of which the model has its q(u).

    Parameters
    ----------
    model, twin
        The model and its whitened twin.
    solver
        The solver of the twin.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.
    """

    def __init__(self, model: SVGP, twin: SVGP, solver: Solver, jit_compile: bool | None) -> None:
        super().__init__()
        self._model, self._twin, self._solver = model, twin, solver
        self._coordinates = Coordinates(model, twin)
        self._compiled = Compiled(self._coordinates, resolve_jit(jit_compile))

    @property
    def state(self) -> Sequence[tf.Variable]:
        """See `Solver`."""
        return [*self._twin.variables, *self._solver.state]

    def begin(self) -> None:
        """Give the twin the q of the model."""
        _assign(self._twin, self._compiled(self._coordinates.whitened))

    def start(self) -> Progress:
        """See `Solver`."""
        self.begin()
        return self._solver.start()

    def step(self) -> Progress:
        """See `Solver`."""
        progress = self._solver.step()
        _assign(self._model, self._compiled(self._coordinates.coloured))
        return progress


def _assign(model: SVGP, moments: tuple[tf.Tensor, tf.Tensor]) -> None:
    for parameter, value in zip((model.q_mu, model.q_sqrt), moments, strict=True):
        parameter.assign(value)


def unwhitened_plan(model: SVGP, run: Run, build: Callable[[SVGP], Plan]) -> Plan:
    """Return the plan that trains an unwhitened model as ``build`` trains its whitened twin."""
    twin = whitened_twin(model)
    plan = build(twin)
    solver = UnwhitenedSteps(model, twin, plan.solver, run.jit_compile)
    solver.begin()
    return dataclasses.replace(
        plan,
        solver=solver,
        variables=[*model.variables, *solver.state],
        trackables=plan.trackables | {"solver": solver},
    )
