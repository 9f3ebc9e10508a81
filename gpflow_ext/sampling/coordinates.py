"""Densities and coordinates in which `sample` moves, and where its chains start."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.models import BayesianModel

from gpflow_ext.gprn.sampled import SampledNetwork
from gpflow_ext.numerics import stacked
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling.freeform import SGPMCFreeForm
from gpflow_ext.sampling.gibbs import Blocks
from gpflow_ext.sampling.joint_sites import joint_sites
from gpflow_ext.sampling.rescaled import Rescaled
from gpflow_ext.sampling.target import Affine, LogLikelihood, Target

_HYPER_SCALE = 0.25  # of the other parameters beside the Gaussian approximation of v, on the log scale


def target_and_start(
    model: BayesianModel | SampledNetwork, precondition: str | None
) -> tuple[Target, Callable[[tf.Tensor], tf.Tensor]]:
    """Return the density in the coordinates z of the chains, and where standard normals [C, d] start them."""
    if isinstance(model, SampledNetwork):
        return _network_target(model, precondition)
    if not isinstance(model, SGPMCFreeForm):
        objective = getattr(model, "maximum_log_likelihood_objective", None)
        if objective is None:
            raise ValueError(
                f"{type(model).__name__} has no `maximum_log_likelihood_objective` to sample from."
            )
        target = Target(model, functools.partial(stacked.each, objective))
        nothing = tf.zeros([1, 0, 0], target.start().dtype)
        return target, _spread(target, nothing).forward
    density = _density(model)
    target = Target(model, density)
    if precondition in (None, "vb"):
        affine = _spread(target, *_approximation(model, target))
        if precondition is None:
            return target, affine.forward
        return Target(model, density, affine), lambda z: z
    eye = tf.eye(model.V.shape[0], batch_shape=[model.num_latent_gps], dtype=target.start().dtype)
    affine = _spread(target, eye)
    own = tf.range(target.num_dimensions) < tf.size(model.V)  # z is centred by the density
    affine = affine._replace(loc=tf.where(own, tf.zeros_like(affine.loc), affine.loc))
    if precondition == "rescaled":
        rescaled = Rescaled(model)
        return Target(model, rescaled.log_likelihoods, affine, rescaled.recover), lambda z: z
    joint = joint_sites(model)
    if joint is not None:
        return Target(model, joint.log_likelihoods, affine, joint.recover), lambda z: z
    conditional = model.conditional_log_likelihoods
    return Target(model, conditional, affine, model.from_conditional), lambda z: z


def _density(model: SGPMCFreeForm) -> LogLikelihood:
    """Return the log likelihood of v and θ; with the kernel held the data are projected here, once."""
    if model.kernel.trainable_parameters:
        return model.log_likelihoods
    A = model.projection(Stack([]))
    return lambda stack: model.expected(stack, A, stack[model.V])


def _network_target(
    network: SampledNetwork, precondition: str | None
) -> tuple[Target, Callable[[tf.Tensor], tf.Tensor]]:
    target = Target(network, network.log_likelihoods, recover=network.aligned)
    blocks = tf.repeat(network.spread()[None], network.V.shape[1], axis=0)
    affine = _spread(target, blocks)
    if precondition is None:
        return target, affine.forward
    return Target(network, network.log_likelihoods, affine, network.aligned), lambda z: z


def gibbs_blocks(model: SGPMCFreeForm, target: Target) -> Blocks:
    """Return the density for Gibbs sampling: the projection of the data depends on θ alone."""

    def prepare(z: tf.Tensor) -> Any:
        A = model.projection(target.values(target.position(z)))
        return tf.nest.map_structure(
            lambda part: tf.broadcast_to(part, tf.concat([tf.shape(z)[:1], tf.shape(part)[1:]], axis=0)), A
        )

    def density(z: tf.Tensor, A: Any) -> tf.Tensor:
        return target.density(z, lambda stack: model.expected(stack, A, stack[model.V]))

    return Blocks(int(tf.size(model.V)), prepare, density)


def _spread(target: Target, blocks: tf.Tensor, tilt: tf.Tensor | None = None) -> Affine:
    """Return coordinates around the model's parameters: V in those of its approximation, the rest scaled."""
    first = int(blocks.shape[0]) * int(blocks.shape[-1])
    rest, loc = target.num_dimensions - first, target.start()
    scale = tf.fill([rest], tf.constant(_HYPER_SCALE, loc.dtype))
    return Affine(loc, blocks, scale, tf.zeros([first, rest], loc.dtype) if tilt is None else tilt)


def _approximation(model: SGPMCFreeForm, target: Target) -> tuple[tf.Tensor, tf.Tensor]:
    """Return factors of the covariance of v, [P, M, M] or [1, M·P, M·P], and how its mean moves with θ."""
    joint = joint_sites(model)
    if joint is not None:
        return joint.factor(), _tilt(model, target, joint.mean)
    own = tf.convert_to_tensor(model.q_sqrt)
    return own, _tilt(model, target, lambda stack: model.from_conditional(stack)[model.V])


def _tilt(model: SGPMCFreeForm, target: Target, mean: Callable[[Stack], tf.Tensor]) -> tf.Tensor:
    """Return dm/dθ of the mean m(θ) [C, M, P] that sites of the data give v, by central differences."""
    start, size = target.start(), int(tf.size(model.V))
    step = tf.constant(float(np.finfo(start.dtype.as_numpy_dtype).eps) ** (1.0 / 3.0), start.dtype)

    rest = target.num_dimensions - size

    @tf.function(autograph=False)
    def slope(unit: tf.Tensor) -> tf.Tensor:
        """Return the slope of m(θ), [M·P], along a direction [rest]; few members at a time, for memory."""
        moved = start[size:] + step * tf.stack([unit, -unit])
        at = tf.concat([tf.zeros([2, size], start.dtype), moved], axis=1)
        ahead, back = tf.unstack(tf.reshape(mean(target.values(at)), [2, size]))
        return (ahead - back) / (2.0 * step)

    units = tf.unstack(tf.eye(rest, dtype=start.dtype))
    return tf.stack([slope(unit) for unit in units], axis=1) if units else tf.zeros([size, 0], start.dtype)
