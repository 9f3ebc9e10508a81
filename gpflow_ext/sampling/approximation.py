"""The first step of Hensman et al. (2015, section 3): a Gaussian approximation, from which chains start."""

from __future__ import annotations

from typing import Protocol

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.inducing_variables import MultioutputInducingVariables
from gpflow.kernels import MultioutputKernel
from gpflow.models import SVGP

from gpflow_ext.sampling.density import FreeForm, FreeFormDensity
from gpflow_ext.training import lbfgs


class Approximated(FreeForm, Protocol):
    """A free-form model that takes over a Gaussian approximation."""

    @property
    def density(self) -> FreeFormDensity:
        """The density."""

    def assign_gaussian(self, svgp: SVGP) -> None:
        """Take over q(v)."""


def gaussian_approximation(
    model: Approximated,
    *,
    steps: int = 500,
    free_inducing: bool | None = None,
    jit_compile: bool | None = None,
) -> float:
    """Fit q(v) = N(m, S) and the most probable hyperparameters of a free-form model; return the bound.

    L-BFGS maximises the bound of GPflow's ``SVGP`` with the model's own kernel, likelihood and inducing
    points, first with the inducing points held, then with all free. The model's parameters are set to the
    optimum, where chains start (Hensman et al. 2015, section 3).

    Parameters
    ----------
    model
        A `SGPMCFreeForm`.
    steps
        Maximum number of iterations of each of the two stages.
    free_inducing
        Whether there is a second stage; by default if there are fewer inducing points than data and they do
        not share a grid with the data.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.

    Raises
    ------
    ValueError
        If the bound is not finite at the start.
    """
    points = model.inducing_variable
    svgp = SVGP(
        model.kernel,
        model.likelihood,
        points,
        mean_function=model.mean_function,
        num_latent_gps=model.num_latent_gps,
    )
    closure = Bound(model, svgp).loss if _is_gpflows(model) else Bound(model, svgp).loss_of_outputs

    def climb() -> float:
        variables = svgp.trainable_variables
        objective = lbfgs.evaluation(closure, variables, jit_compile)
        lbfgs.climb(variables, objective, steps)
        return objective()[0]

    bound = climb()
    fewer = model.structure is None and len(model.data[0]) > points.num_inducing
    if fewer if free_inducing is None else free_inducing:
        gpflow.set_trainable(points, True)
        try:
            bound = climb()
        finally:
            gpflow.set_trainable(points, False)
    if not np.isfinite(bound):
        raise ValueError(
            "The bound of the Gaussian approximation is not finite where it starts: start from other "
            "hyperparameters, or standardise the data."
        )
    model.assign_gaussian(svgp)
    return bound


def _is_gpflows(model: Approximated) -> bool:
    """Tell whether GPflow's conditional is that of the model, and no dearer."""
    several = isinstance(model.kernel, MultioutputKernel) or isinstance(
        model.inducing_variable, MultioutputInducingVariables
    )
    return model.structure is None and not several


class Bound:
    """Minus the bound of an SVGP that shares the parts of a model, on the model's data."""

    def __init__(self, model: Approximated, svgp: SVGP) -> None:
        self._svgp, self._density, self.data = svgp, model.density, model.data

    def loss(self) -> tf.Tensor:
        """Return the training loss, []."""
        loss: tf.Tensor = self._svgp.training_loss(self.data)
        return loss

    def loss_of_outputs(self) -> tf.Tensor:
        """Return the same from the model's own moments of f, on grids by Kronecker products, []."""
        svgp, (X, Y) = self._svgp, self.data
        q = tf.convert_to_tensor(svgp.q_mu), tf.convert_to_tensor(svgp.q_sqrt)
        mean, var = self._density.gaussian_moments(*q)
        expected = tf.reduce_sum(svgp.likelihood.variational_expectations(X, mean, var, Y))
        return svgp.prior_kl() - expected - svgp.log_prior_density()
