"""How far and where to a parallel sweep moves the sites: secant lengths and safeguarded Anderson mixing.

Parallel sweeps at ρ = 1 overshoot where many data share what they see: the change of the sites, r, alternates
in sign. So by default ρ is the secant (Barzilai-Borwein) estimate ρ ← ρ ⟨r₋, r₋⟩ / ⟨r₋, r₋ − r⟩ kept within
[0.1, 1]: exact for one dominant mode, never an over-relaxation, 1 where nothing alternates. It does not move
the fixed point.

One length cannot serve modes that alternate beside modes that creep, as the sum of the latent functions does
where factors compare them: there sweeps take hundreds of steps, or lose the fixed point. `numerics.anderson`
takes such modes at once. Far from a fixed point it may mislead: where the change that is proposed at a mixed
point is more than GROWTH times the least so far, or the point is not sound, the sweep is taken anew without
mixing, and so are the next PAUSE ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext.ep import factors
from gpflow_ext.ep.factors import FactoredModel
from gpflow_ext.numerics import anderson
from gpflow_ext.sites import Seen, Sites

SMALLEST_DAMPING = 0.1
ATTEMPTS = 20  # of a sweep, each with half the length of the last
MEMORY = 10  # sweeps
GROWTH, PAUSE = 2.0, 10


class Path(NamedTuple):
    """What a sweep knows of those before it."""

    direction: tf.Tensor  # the change that the last sweep proposed, nat1 and prec stacked, [2, N, L]
    length: tf.Tensor  # ρ of the last sweep, 0 if there was none, []
    memory: anderson.Memory  # of the sites and their proposed changes
    least: tf.Tensor  # norm of the smallest change proposed, []
    pause: tf.Tensor  # sweeps still to be taken without mixing, []


class Taken(NamedTuple):
    """The sweep that is tried."""

    sites: tf.Tensor  # nat1 and prec stacked, [2, N, L]
    direction: tf.Tensor  # the change proposed, [2, N, L]
    length: tf.Tensor  # ρ, []
    mixed: tf.Tensor  # whether by mixing, []


def beginning(sites: tf.Tensor) -> Path:
    """Return the path before the first sweep from stacked sites [2, N, L]."""
    zero = tf.zeros([], sites.dtype)
    return Path(tf.zeros_like(sites), zero, anderson.empty(sites, MEMORY), zero + np.inf, tf.constant(0))


def relaxation(
    direction: tf.Tensor,
    before: tf.Tensor,
    length: tf.Tensor,
    longest: float,
    total: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Return ρ of the next sweep, [], the secant estimate within its bounds.

    Parameters
    ----------
    direction, before
        The changes that this sweep and the last one propose, nat1 and prec stacked, [2, N, L].
    length
        ρ of the last sweep, 0 if there was none, [].
    longest
        The upper end of ρ.
    total
        Sums values [K, N, L] over all factors, [K].
    """
    products = tf.stack([before**2, before * direction])  # [2, 2, N, L]
    last, along = tf.unstack(total(tf.reduce_sum(products, axis=1)))
    turned = last - along
    known = (turned > 0.0) & (length > 0.0)
    secant = tf.where(known, length * last / turned, tf.ones_like(last))
    return tf.clip_by_value(secant, SMALLEST_DAMPING, longest)


def take(path: Path, sites: tf.Tensor, proposal: tf.Tensor, share: tf.Tensor) -> Taken:
    """Return the sweep from stacked sites [2, N, L] towards a proposal, by a share of its length, [].

    Only a whole one, of share 1, is by mixing.
    """
    direction = proposal - sites
    whole = relaxation(direction, path.direction, path.length, 1.0, factors.sum_over_factors)
    mixed = (path.pause <= 0) & (path.memory.count > 0) & (share >= 1.0)
    vector, change = (tf.reshape(part, [-1]) for part in (sites, direction))
    further = tf.reshape(anderson.mixed(path.memory, vector, change, whole), tf.shape(sites))
    length = share * whole
    return Taken(tf.where(mixed, further, sites + length * direction), direction, length, mixed)


def follow(
    path: Path, sites: tf.Tensor, taken: Taken, change: tf.Tensor, sound: tf.Tensor
) -> tuple[Path, tf.Tensor]:
    """Return the path after a sweep from stacked sites [2, N, L], and whether the sweep stands.

    Parameters
    ----------
    path
        That before it.
    sites
        Where it began.
    taken
        The sweep.
    change
        What is proposed where it ended, [2, N, L].
    sound
        Whether all is sound there, [].
    """
    norm = tf.norm(change)
    stands = sound & ~(taken.mixed & (norm > GROWTH * path.least))
    vector, last = (tf.reshape(part, [-1]) for part in (sites, taken.direction))
    memory = anderson.remember(path.memory, vector, last)
    memory = memory._replace(count=tf.where(stands, memory.count, 0))
    pause = tf.where(taken.mixed, PAUSE, path.pause)
    new = Path(
        tf.where(stands, taken.direction, path.direction),
        tf.where(stands, taken.length, path.length),
        memory,
        tf.where(stands, tf.minimum(path.least, norm), path.least),
        tf.where(stands, tf.maximum(path.pause - 1, 0), pause),
    )
    return new, stands


class Sweep(NamedTuple):
    """A point of parallel sweeps."""

    sites: Sites
    proposal: Sites  # the sites that match the moments
    violation: tf.Tensor  # NaN where no length of the last sweep was sound, []
    objective: tf.Tensor  # log Z, []
    path: Path


def sweep(
    target: FactoredModel, prior: Seen, point: Sweep, share: tf.Tensor, damping: float | None
) -> tuple[Sweep, tf.Tensor]:
    """Try a sweep, or a share of it, []; return where that leads, and whether it stands, [].

    Where it does not, that is the point before, whose path knows of it. A damping given is ρ, without mixing.
    """
    old = tf.stack(point.sites)
    if damping is None:
        taken = take(point.path, old, tf.stack(point.proposal), share)
    else:
        direction = tf.stack(point.proposal) - old
        taken = Taken(old + damping * share * direction, direction, damping * share, tf.constant(False))
    new = Sites(*tf.unstack(taken.sites))
    found = factors.evaluate(target, prior, new)
    path, stands = follow(point.path, old, taken, tf.stack(found.proposal) - taken.sites, found.sound)
    reached = Sweep(
        _either(stands, new, point.sites),
        _either(stands, found.proposal, point.proposal),
        tf.where(stands, found.violation, point.violation),
        tf.where(stands, found.objective, point.objective),
        path,
    )
    return tf.nest.map_structure(lambda a, b: tf.ensure_shape(a, b.shape), reached, point), stands


def _either(condition: tf.Tensor, new: Sites, old: Sites) -> Sites:
    return Sites(*(tf.where(condition, *pair) for pair in zip(new, old, strict=True)))
