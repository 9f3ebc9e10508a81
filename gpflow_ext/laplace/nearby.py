"""Newton steps to the mode by one factorisation, whose factor preconditions the systems of all other steps.

For priors whose factor takes as long as some dozens of solutions with it. A step solves (I + WQ)δ = g − α for
the change of α by conjugate gradients, preconditioned by the factor of I + W₀Q for earlier precisions W₀,
roughly while the mode is far (Dembo, Eisenstat & Steihaug 1982).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gpflow_ext.laplace import updates
from gpflow_ext.laplace.expansion import Located
from gpflow_ext.sites import Pair, Sites, conjugate
from gpflow_ext.sites.concavity import LogDensity, expand

_TOLERANCES = 1e-3, 0.1  # of a step, the least and the most; between these a tenth of the violation
_NEAR = 1e-4  # the violation below which a step is exact
_SLOW = 0.25  # where that before it left more than this share


def find_mode(
    prior: Any,
    log_density: LogDensity,
    sites: Sites,
    steps: int | tf.Tensor,
    tolerance: float | tf.Tensor,
    unit: tf.Tensor | float = 1.0,
) -> Located:
    """Return the point within ``tolerance`` of the mode, or after ``steps``.

    Where conjugate gradients take too long, or rounding keeps the violation from falling, the factor is
    renewed and a step is exact.

    Parameters
    ----------
    prior
        A prior whose factor solves `near`-by systems.
    sites
        Where the iteration begins; at the prior mean if all are zero.
    unit
        That of the functions, []; see `sites.units`.
    """
    there = tf.reduce_any(sites.prec != 0.0) | tf.reduce_any(sites.nat1 != 0.0)
    mean = prior.mean + tf.zeros_like(sites.nat1)
    unit = tf.convert_to_tensor(unit, mean.dtype)
    at_prior = Located(tf.zeros_like(mean), mean, expand(log_density, mean), unit)
    system = getattr(prior, "system", prior.factorise)
    factor = system(tf.where(there, sites.prec, at_prior.at.curvature))

    def located() -> Located:
        alpha, shift = factor.solve(sites.nat1 - sites.prec * prior.mean)
        return Located(alpha, prior.mean + shift, expand(log_density, prior.mean + shift), unit)

    first = tf.cond(there, located, lambda: at_prior)

    def going(k: tf.Tensor, before: tf.Tensor, factor: Any, point: Located) -> tf.Tensor:
        return (k < steps) & (point.violation > tolerance)  # false for NaN

    def move(k: tf.Tensor, before: tf.Tensor, factor: Any, point: Located) -> tuple[Any, ...]:
        violation, wanted = point.violation, point.at.grad - point.alpha
        rough = tf.clip_by_value(0.1 * violation, *_TOLERANCES)
        change, close = conjugate.near(factor, point.at.curvature, wanted, rough)
        close &= (violation > _NEAR) | (violation < _SLOW * before)
        close &= updates.rises(point, change)

        def renewed(prec: tf.Tensor) -> tuple[Any, Pair]:
            new = system(prec)
            return _alike(new, factor), _alike(new.solve(wanted), change)

        factor, change = tf.cond(
            close, lambda: (factor, change), lambda: updates.ascent(point, renewed, (factor, change))
        )
        return k + 1, violation, factor, _alike(updates.moved(prior, log_density, point, change), point)

    infinite = tf.constant(float("inf"), mean.dtype)
    *_, found = tf.while_loop(going, move, (tf.constant(0), infinite, factor, first))
    return found


def _alike(new: Any, old: Any) -> Any:
    """Return tensors with the shapes of others, as loops want them."""
    return tf.nest.map_structure(lambda a, b: tf.ensure_shape(a, b.shape), new, old)
