"""Coordinates of any model, and those scaled by the information about what is sampled."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import tensorflow as tf

from gpflow_ext.sampling.affine import around
from gpflow_ext.sampling.sampleable import Coordinates, Kind, Placed, Sampleable
from gpflow_ext.sampling.target import Target


class Whitened:
    """The parameters' own coordinates: logarithms of positive parameters, and whitened functions."""

    name, scaled = "whitened", False

    def check(self, sampled: Sampleable, kind: Kind) -> None:
        """Accept any model and sampler."""

    def place(self, sampled: Sampleable) -> Placed:
        """See `Coordinates`; chains start from the Gaussian that the model offers."""
        target = own_target(sampled)
        return Placed(target, sampled.around(target).forward)


@runtime_checkable
class Informed(Protocol):
    """Protocol of a model that offers the information about its whitened V."""

    def information_factor(self) -> tf.Tensor:
        """Return F, [P, M, M], FFᵀ the inverse of the expected information about each column of V."""


class Fisher:
    """Coordinates of a `GPRNTensor` scaled by the Fisher information about V where the chains start."""

    name, scaled = "fisher", True

    def check(self, sampled: Sampleable, kind: Kind) -> None:
        """Raise a ``ValueError`` where the information is not known."""
        self._informed(sampled, kind)

    def place(self, sampled: Sampleable) -> Placed:
        """See `Coordinates`."""
        target = own_target(sampled)
        factor = self._informed(sampled).information_factor()
        return Placed(target.within(around(target.start(), factor)), lambda z: z)

    def _informed(self, sampled: Sampleable, kind: Kind = "hmc") -> Informed:
        if not isinstance(sampled, Informed):
            raise refusal(self, sampled, kind, "needs the information about V that GPRNTensor offers")
        return sampled


def own_target(sampled: Sampleable) -> Target:
    """Return the density in the parameters' own coordinates."""
    return Target(sampled.module, sampled.log_likelihood(), recover=sampled.recover)


def refusal(coordinates: Coordinates, sampled: Sampleable, kind: Kind, why: str) -> ValueError:
    """Return the error of coordinates that do not fit, with those that do."""
    best = sampled.coordinates(kind)
    right = "None" if best is None else f"{best.name!r} or None"
    return ValueError(f"precondition={coordinates.name!r} {why}: choose {right}.")
