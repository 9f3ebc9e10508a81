"""The parallel fixed point of `kmm.ascent` whose steps hand their factor on: half of the factorisations.

A step ends with the factor of I + ΛQ at its precisions Λ. The next one begins with Newton's step in the mean,
whose own W = −2 ∂f_b/∂v is Λ but for the last changes: conjugate gradients, preconditioned by the factor,
solve for it. The objective at rest needs the factor once more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from gpflow_ext.kmm import ascent
from gpflow_ext.kmm.ascent import Factored, State
from gpflow_ext.sites import Expectation, Prior, Sites

CLOSE = 0.5  # of Λ + 1/diag Σ, a change of the precisions beyond which a factorisation is quicker


class Held(NamedTuple):
    """A point of the ascent with a factor of precisions that are its own or near them."""

    point: State
    near: Factored

    @property
    def sites(self) -> Sites:
        """See `SiteState`."""
        return self.point.sites

    @property
    def violation(self) -> tf.Tensor:
        """See `SiteState`."""
        return self.point.violation

    @property
    def objective(self) -> tf.Tensor:
        """The bound, []."""
        return self.point.objective

    def factor(self, prior: Prior) -> Any:
        """Return the factor at the point's own precisions."""
        prec = self.point.prec
        return tf.cond(
            tf.reduce_all(prec == self.near.prec), lambda: self.near.factor, lambda: prior.factorise(prec)
        )


def start(
    prior: Prior,
    expectation: Expectation,
    initial: Sites,
    signed: bool = False,
    unit: tf.Tensor | float = 1.0,
) -> Held:
    """Return the point at given sites with their factor; see `ascent.start`."""
    near = ascent.factored(prior, initial.prec)
    if signed:
        initial = ascent.kept(initial, near.factor.finite)
        near = tf.cond(near.factor.finite, lambda: near, lambda: ascent.factored(prior, initial.prec))
    return Held(ascent.start(prior, expectation, initial, near.factor, signed, unit), near)


def step(prior: Prior, expectation: Expectation, held: Held, separate: bool = False) -> Held:
    """Take the step of `ascent.parallel_step`. One factorisation, and one more where W is not near Λ."""
    state, (prec, factor) = held.point, held.near
    curvature = state.bounded(state.curvature)
    close = tf.abs(curvature - prec) <= CLOSE * (tf.abs(prec) + 1.0 / prior.variance())

    def mean_step(state: State, factor: Any) -> State:
        return ascent.mean_step(prior, expectation, state, factor.solve, separate)

    if not tf.executing_eagerly():  # a graph has it once, as a function that is called twice
        mean_step = tf.function(mean_step, autograph=False, experimental_attributes={"_noinline": True})
    first = tf.cond(tf.reduce_all(close), lambda: factor, lambda: prior.factorise(tf.nn.relu(curvature)))
    state, near = ascent.covariance_step(prior, expectation, mean_step(state, first), held.near)
    return Held(mean_step(state, near.factor), near)
