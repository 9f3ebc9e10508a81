"""Newton's direction in the means of a whitened q(v), whose K functions the likelihood couples.

With gₙ = ∂Eₙ/∂mₙ and Hₙ = −∂²Eₙ/∂mₙ², [K, K], at mₙ = μₙ + aₙᵀE[v] the direction δ solves

    δ + Σₙ aₙ Hₙ aₙᵀδ = Σₙ aₙgₙ − E[v]

A natural-gradient step has diag(Hₙ) in place of Hₙ. For labels of classes, which say nothing of what all
functions have in common, it creeps along that, and overshoots in the differences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gpflow_ext.likelihoods.largest import SecondOrder
from gpflow_ext.likelihoods.robust_max import counterpart
from gpflow_ext.sites import Projection, products

ITERATIONS = 50  # of conjugate gradients, at most
TOLERANCE = 0.1  # of the direction, in the norm of the preconditioner


def second_order(
    expectations: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    likelihood: Any,
    Y: tf.Tensor,
    mean: tf.Tensor,
    var: tf.Tensor,
) -> SecondOrder:
    """Return Eₙ at the moments of q(f) [N, K] with its derivatives.

    Those of a likelihood with a ``second_order`` of its own, such as `RobustMax`, are its; GPflow's
    ``MultiClass`` has the second derivatives of that. Others are taken to leave the functions uncoupled, as
    natural gradients do: ∂²Eₙ/∂mₙₖ² = 2 ∂Eₙ/∂vₙₖ, [N, K], are all.

    Parameters
    ----------
    expectations
        Maps the moments to Eₙ, [N].
    likelihood
        The likelihood whose expectations these are; ``None`` for others.
    """
    if _knows_curvature(type(likelihood)):
        found: SecondOrder = likelihood.second_order(mean, var, Y)
        return found
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch([mean, var])
        value = expectations(mean, var)
    by_mean, by_var = tape.gradient(value, [mean, var])
    exact = counterpart(likelihood)
    by_means = 2.0 * by_var if exact is None else exact.second_order(mean, var, Y).by_means
    return SecondOrder(value, by_mean, by_var, by_means)


def _knows_curvature(kind: type) -> bool:
    """Tell whether a class of likelihoods has a ``second_order`` of the expectations that it has.

    A subclass that changes these alone has none.
    """
    names = "second_order", "_variational_expectations", "variational_expectations"
    own, *expectations = (next((each for each in kind.__mro__ if name in vars(each)), None) for name in names)
    return own is not None and all(each is not None and issubclass(own, each) for each in expectations)


def direction(prior: Projection, root: tf.Tensor, bend: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
    """Return δ, [M, K], by conjugate gradients preconditioned by Var[v]. O(KMN + KM²) an iteration.

    They end at a direction along which the bound is not concave: δ always leads upwards.

    Parameters
    ----------
    prior
        The projection, with the aₙ.
    root
        R of Var[v] = RRᵀ, [1 or K, M, M].
    bend
        Hₙ, [N, K, K], or their diagonals, [N, K].
    slope
        The right-hand side, [M, K].
    """

    def times(p: tf.Tensor) -> tf.Tensor:
        f = products.matvec(prior.A, p, transpose=True)
        return p + products.matvec(prior.A, tf.linalg.matvec(bend, f) if len(bend.shape) == 3 else bend * f)

    def precondition(r: tf.Tensor) -> tf.Tensor:
        return products.matvec(root, products.matvec(root, r, transpose=True))

    def iterate(
        k: tf.Tensor, _: tf.Tensor, delta: tf.Tensor, r: tf.Tensor, rz: tf.Tensor, p: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        product = times(p)
        curved = tf.reduce_sum(p * product)
        concave = curved > 0.0
        step = tf.where(concave, rz / curved, tf.where(tf.equal(k, 0), tf.ones_like(rz), tf.zeros_like(rz)))
        r -= step * product
        z = precondition(r)
        new = tf.reduce_sum(r * z)
        return k + 1, concave, delta + step * p, r, new, z + tf.math.divide_no_nan(new, rz) * p

    z = precondition(slope)
    rz = tf.reduce_sum(slope * z)
    enough = TOLERANCE**2 * rz
    begin = (tf.constant(0), tf.constant(True), tf.zeros_like(slope), slope, rz, z)
    going = lambda k, concave, delta, r, rz, p: concave & (k < ITERATIONS) & (rz > enough)  # noqa: E731
    return tf.while_loop(going, iterate, begin)[2]
