"""The protocols of models that can be sampled, and of coordinates in which chains move.

`gpflow_ext.sample` knows no class of models. It asks `sampleable` for a `Sampleable`: the model's own, from a
method of that name, or a `PlainSampleable` of any GPflow model whose trainable parameters have priors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import tensorflow as tf
from gpflow.models import ExternalDataTrainingLossMixin

from gpflow_ext.data import checks
from gpflow_ext.numerics import stacked
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling.affine import Affine, around
from gpflow_ext.sampling.draws import Draws
from gpflow_ext.sampling.gibbs import TwoSteps
from gpflow_ext.sampling.target import LogLikelihood, Target
from gpflow_ext.training.overrides import inherits, overrides

Kind = Literal["hmc", "nuts", "gibbs"]
"""Kind of a sampler."""


class Sampleable(Protocol):
    """A model as it is now, seen by a sampler."""

    @property
    def module(self) -> tf.Module:
        """What is drawn: its trainable parameters, each with a prior; one named V comes first."""

    def log_likelihood(self) -> LogLikelihood:
        """Return the log likelihood of a stack [C], or what replaces it.

        Called after `prepare`: what does not depend on the sampled parameters can be computed here, once.
        """

    def recover(self, stack: Stack) -> Stack:
        """Return the values to report from those in which the density is written."""

    def around(self, target: Target) -> Affine:
        """Return the coordinates of a Gaussian about where the posterior is; chains start from its draws."""

    def coordinates(self, kind: Kind) -> Coordinates | None:
        """Return what ``precondition="auto"`` means for a kind of sampler; ``None`` for the whitened ones."""

    def prepare(self, approximate: bool | None, jit_compile: bool | None) -> None:
        """Make the model ready before chains start, where they do not resume; see `gpflow_ext.sample`."""

    def hold(self, draws: Draws | None) -> None:
        """Give the model the draws it predicts from; ``None`` makes it forget those that it holds."""

    def in_two_steps(self) -> TwoSteps | None:
        """Return the log likelihood for Gibbs sampling; ``None`` where there is none."""


class Placed(NamedTuple):
    """A density in the coordinates z of the chains."""

    target: Target
    start: Callable[[tf.Tensor], tf.Tensor]  # where standard normals [C, d] start them, z [C, d]


@runtime_checkable
class Coordinates(Protocol):
    """Coordinates in which chains move, given to ``sample(precondition=...)``.

    Attributes
    ----------
    name
        What tells them from others, in the settings that a resumed run must share.
    scaled
        Whether the posterior is nearly N(0, I) in them: the tuner then tries longer steps.
    """

    name: str
    scaled: bool

    def check(self, sampled: Sampleable, kind: Kind) -> None:
        """Raise a ``ValueError`` where they are not for what is sampled, or not for the kind of sampler."""

    def place(self, sampled: Sampleable) -> Placed:
        """Return the density in these coordinates, and where its chains start."""


class PlainSampleable:
    """Any GPflow model whose trainable parameters have priors.

    Parameters
    ----------
    model
        With a deterministic ``maximum_log_likelihood_objective``; a method ``log_likelihoods`` that maps a
        stack to [C] is taken in its place.

    Raises
    ------
    ValueError
        For a model without this method or without its data, or data that its likelihood cannot have.
    """

    def __init__(self, model: Any) -> None:
        if not hasattr(model, "maximum_log_likelihood_objective"):
            raise ValueError(
                f"{type(model).__name__} has no `maximum_log_likelihood_objective` to sample from: give a "
                "GPflow model, or one with a method `sampleable`."
            )
        if isinstance(model, ExternalDataTrainingLossMixin):
            raise ValueError(
                f"{type(model).__name__} does not hold its data, and has no density without them: sample "
                "one that does, as `gpflow_ext.models.SGPMCFreeForm.from_gaussian(svgp, data)` for an SVGP."
            )
        checks.check_held(model)
        self.module = model

    def log_likelihood(self) -> LogLikelihood:
        """Return what the model has.

        Raises
        ------
        ValueError
            For a model with an objective of its own, but the inherited density of a stack.
        """
        own = getattr(self.module, "log_likelihoods", None)
        objective = "maximum_log_likelihood_objective"
        if overrides(self.module, objective) and inherits(self.module, "log_likelihoods"):
            raise ValueError(
                f"{type(self.module).__name__} has {objective!r} of its own, but the `log_likelihoods` of "
                "its base, which would be sampled: let it have `log_likelihoods(stack)`, [C], of its own too."
            )
        return own or functools.partial(stacked.each, self.module.maximum_log_likelihood_objective)

    def recover(self, stack: Stack) -> Stack:
        """See `Sampleable`."""
        return stack

    def around(self, target: Target) -> Affine:
        """Return the model's parameters, spread by a quarter on the log scale."""
        return around(target.start())

    def coordinates(self, kind: Kind) -> Coordinates | None:
        """See `Sampleable`."""
        return None

    def prepare(self, approximate: bool | None, jit_compile: bool | None) -> None:
        """See `Sampleable`."""

    def hold(self, draws: Draws | None) -> None:
        """See `Sampleable`."""

    def in_two_steps(self) -> TwoSteps | None:
        """See `Sampleable`."""
        return None


def sampleable(model: Any) -> Sampleable:
    """Return what the model's own method ``sampleable`` gives, or a `PlainSampleable`."""
    own = getattr(model, "sampleable", None)
    return PlainSampleable(model) if own is None else own()
