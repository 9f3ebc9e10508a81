"""The adapter of a free-form model for sampling."""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf

from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling.affine import Affine
from gpflow_ext.sampling.approximation import STEPS, Approximated, gaussian_approximation
from gpflow_ext.sampling.coordinates import VB, Conditional, Coordinates, Rescaled
from gpflow_ext.sampling.coordinates.freeform import approximation
from gpflow_ext.sampling.density import FreeFormDensity
from gpflow_ext.sampling.draws import Draws
from gpflow_ext.sampling.gibbs import TwoSteps
from gpflow_ext.sampling.sampleable import Kind
from gpflow_ext.sampling.target import LogLikelihood, Target

_JOINTLY_CONDITIONAL = 1024  # entries of V whose joint precision is factorised at each θ


class Holding(Approximated, Protocol):
    """A free-form model that predicts from draws."""

    @property
    def is_approximated(self) -> bool:
        """Whether it has a Gaussian approximation."""

    def assign_draws(self, draws: Draws | None) -> None:
        """Hold draws; ``None`` forgets them."""


class HeldProjection:
    """The density of a free-form model whose kernel is held: its data are projected once."""

    def __init__(self, density: FreeFormDensity) -> None:
        self._density, self._projection = density, density.projection(Stack([]))

    def log_likelihoods(self, stack: Stack) -> tf.Tensor:
        """Return Σₙ E[log p(yₙ | fₙ)] for each member, [C]."""
        return self._density.projected(stack, self._projection)


class SampledFreeForm:
    """See `Sampleable`: v and θ of a free-form model, from its Gaussian approximation on.

    Parameters
    ----------
    model
        The model.

    Raises
    ------
    ValueError
        If V is held fixed, or the inducing points are not.
    """

    def __init__(self, model: Holding) -> None:
        if not model.V.trainable:
            raise ValueError(
                f"V of {type(model).__name__} is held fixed, but it is what is sampled, with the "
                "hyperparameters or without: call `gpflow.set_trainable(model.V, True)`."
            )
        if model.inducing_variable.trainable_parameters:
            raise ValueError(
                f"The inducing points of {type(model).__name__} are never sampled, but they are trainable: "
                "call `gpflow.set_trainable(model.inducing_variable, False)`."
            )
        self._model = model
        self.density = model.density

    @property
    def module(self) -> Any:
        """See `Sampleable`."""
        return self._model

    def log_likelihood(self) -> LogLikelihood:
        """See `Sampleable`; with the kernel held the data are projected here, once."""
        if self._model.kernel.trainable_parameters:
            return self.density.log_likelihoods
        return HeldProjection(self.density).log_likelihoods

    def recover(self, stack: Stack) -> Stack:
        """See `Sampleable`."""
        return stack

    def around(self, target: Target) -> Affine:
        """Return the coordinates of the Gaussian approximation."""
        return approximation(target, self.density)

    def coordinates(self, kind: Kind) -> Coordinates | None:
        """Return coordinates conditional on θ if they are cheap, else for one θ; none for Gibbs sampling."""
        if kind == "gibbs":
            return None
        if self._model.structure is not None:
            return Rescaled()
        few = self._model.num_latent_gps == 1 or int(tf.size(self._model.V)) <= _JOINTLY_CONDITIONAL
        return Conditional() if few and self._model.kernel.trainable_parameters else VB()

    def prepare(self, approximate: bool | None, jit_compile: bool | None) -> None:
        """Fit the Gaussian approximation; by default only if the model has none yet."""
        if approximate or (approximate is None and not self._model.is_approximated):
            gaussian_approximation(self._model, steps=STEPS, jit_compile=jit_compile)

    def hold(self, draws: Draws | None) -> None:
        """See `Sampleable`."""
        self._model.assign_draws(draws)

    def in_two_steps(self) -> TwoSteps:
        """Return the density in two steps: the projection of the data depends on θ alone."""
        size = int(tf.size(self._model.V))
        return TwoSteps(size, self.density.projection, self.density.projected)
