"""Coordinates from the Gaussian approximation of a free-form model: of one θ, or of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.numerics import grids
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling.affine import Affine, around
from gpflow_ext.sampling.coordinates.general import own_target, refusal
from gpflow_ext.sampling.coordinates.joint_sites import JointSites, are_coupled
from gpflow_ext.sampling.coordinates.rescaled import RescaledSites
from gpflow_ext.sampling.coordinates.sites import ConditionalSites
from gpflow_ext.sampling.density import FreeFormDensity
from gpflow_ext.sampling.sampleable import Coordinates, Kind, Placed, Sampleable
from gpflow_ext.sampling.target import Target


class VB:
    """Coordinates in which the Gaussian approximation of v is N(0, I), its mean linear in θ."""

    name, scaled = "vb", True

    def check(self, sampled: Sampleable, kind: Kind) -> None:
        """Raise a ``ValueError`` where there is no free-form density."""
        _density(self, sampled, kind)

    def place(self, sampled: Sampleable) -> Placed:
        """See `Coordinates`."""
        target = own_target(sampled)
        return Placed(target.within(approximation(target, _density(self, sampled))), lambda z: z)


class Conditional:
    """Coordinates in which the Gaussian that the approximation's sites give v at each θ is N(0, I).

    An evaluation costs about twice as much as with `VB`, and the hyperparameters move freely. The sites of
    several latent functions are taken together, as in `Joint`, if there is no grid and V has at most 8192
    entries.
    """

    name, scaled = "conditional", True

    def check(self, sampled: Sampleable, kind: Kind) -> None:
        """Raise a ``ValueError`` where there is no free-form density, and for Gibbs sampling."""
        _check_moving(self, sampled, kind)

    def place(self, sampled: Sampleable) -> Placed:
        """See `Coordinates`."""
        return _placed(sampled, _density(self, sampled), _sites)


class Joint:
    """Coordinates as `Conditional`, the sites of all latent functions of a datum together at any size."""

    name, scaled = "joint", True

    def check(self, sampled: Sampleable, kind: Kind) -> None:
        """Raise a ``ValueError`` where there is no free-form density, and for Gibbs sampling."""
        _check_moving(self, sampled, kind)

    def place(self, sampled: Sampleable) -> Placed:
        """See `Coordinates`."""
        return _placed(sampled, _density(self, sampled), JointSites)


class Rescaled:
    """Coordinates close to `Conditional` on a grid, at little more cost than `VB`; see `RescaledSites`."""

    name, scaled = "rescaled", True

    def check(self, sampled: Sampleable, kind: Kind) -> None:
        """Raise a ``ValueError`` where there is no free-form density or no grid, and for Gibbs sampling."""
        _check_moving(self, sampled, kind)
        self._structure(sampled)

    def place(self, sampled: Sampleable) -> Placed:
        """See `Coordinates`."""
        structure = self._structure(sampled)
        return _placed(sampled, _density(self, sampled), lambda density: RescaledSites(density, structure))

    def _structure(self, sampled: Sampleable) -> grids.Structure:
        found = _density(self, sampled).model.structure
        if found is None:
            raise ValueError(
                "precondition='rescaled' is for inducing points and data on grids and a separable kernel: "
                "choose 'conditional' or 'vb'."
            )
        return found


class Sites(Protocol):
    """v as a function of z and θ."""

    def log_likelihoods(self, stack: Stack) -> tf.Tensor:
        """Return the log likelihood with the change of variables, [C], of z in the place of V."""

    def recover(self, stack: Stack) -> Stack:
        """Return the stack with v in the place of z."""


def approximation(target: Target, density: FreeFormDensity) -> Affine:
    """Return the coordinates of q(v), whose mean moves with θ as its sites imply, to first order.

    Parameters
    ----------
    target
        The density in the parameters' own coordinates.
    density
        Of a model with a Gaussian approximation, at the hyperparameters where that was made.
    """
    sites, size = _sites(density), int(tf.size(density.model.V))
    return around(target.start(), sites.factor(), _tilt(target, size, sites.mean))


def _sites(density: FreeFormDensity) -> ConditionalSites | JointSites:
    return JointSites(density) if are_coupled(density.model) else ConditionalSites(density)


def _density(coordinates: Coordinates, sampled: Sampleable, kind: Kind = "hmc") -> FreeFormDensity:
    found = getattr(sampled, "density", None)
    if not isinstance(found, FreeFormDensity):
        raise refusal(coordinates, sampled, kind, "needs the Gaussian sites that SGPMCFreeForm offers")
    return found


def _check_moving(coordinates: Coordinates, sampled: Sampleable, kind: Kind) -> None:
    _density(coordinates, sampled, kind)
    if kind == "gibbs":
        raise ValueError(
            f"precondition={coordinates.name!r} moves v with θ, Gibbs sampling moves them in turn: "
            "choose None or 'vb'."
        )


class _Recovered:
    """The values to report from those of z and θ."""

    def __init__(self, sampled: Sampleable, sites: Sites) -> None:
        self._sampled, self._sites = sampled, sites

    def recover(self, stack: Stack) -> Stack:
        return self._sampled.recover(self._sites.recover(stack))


def _placed(
    sampled: Sampleable, density: FreeFormDensity, build: Callable[[FreeFormDensity], Sites]
) -> Placed:
    """Return the density of z and θ around z = 0, where the sites have their mean, and the model's θ."""
    sites, (M, P) = build(density), density.model.V.shape

    target = Target(sampled.module, sites.log_likelihoods, recover=_Recovered(sampled, sites).recover)
    affine = around(target.start(), tf.eye(M, batch_shape=[P], dtype=target.start().dtype))
    own = tf.range(target.num_dimensions) < M * P
    centred = affine._replace(loc=tf.where(own, tf.zeros_like(affine.loc), affine.loc))
    return Placed(target.within(centred), lambda z: z)


def _tilt(target: Target, size: int, mean: Callable[[Stack], tf.Tensor]) -> tf.Tensor:
    """Return dm/dθ of the mean m(θ) [C, M, P] that sites of the data give v, by central differences."""
    start = target.start()
    moving = _Moving(target, size, mean)
    compiled = Compiled(moving)
    units = tf.unstack(tf.eye(target.num_dimensions - size, dtype=start.dtype))
    if not units:
        return tf.zeros([size, 0], start.dtype)
    return tf.stack([compiled(moving.slope, start, unit) for unit in units], axis=1)


class _Moving:
    """The mean m(θ) as θ moves."""

    def __init__(self, target: Target, size: int, mean: Callable[[Stack], tf.Tensor]) -> None:
        self._target, self._size, self._mean = target, size, mean

    def slope(self, start: tf.Tensor, unit: tf.Tensor) -> tf.Tensor:
        """Return the slope of m(θ), [M·P], along a direction [rest]; few members at a time, for memory."""
        step = tf.constant(float(np.finfo(start.dtype.as_numpy_dtype).eps) ** (1.0 / 3.0), start.dtype)
        moved = start[self._size :] + step * tf.stack([unit, -unit])
        at = tf.concat([tf.zeros([2, self._size], start.dtype), moved], axis=1)
        ahead, back = tf.unstack(tf.reshape(self._mean(self._target.values(at)), [2, self._size]))
        return (ahead - back) / (2.0 * step)
