"""Algorithm 1 of Khan, Mohamed & Murphy (2012), its rank-one updates applied in blocks.

The covariance V is visited one diagonal element after the other. With the cavity precision
c = 1/Vₙₙ − λₙ (the paper's Ω₂₂ − k̃₂₂, so that neither Ω = Σ⁻¹ nor K = V⁻¹ is needed) the element solves

    v = 1 / (c − 2 ∂f_b/∂v)                                                (their equation 16),

and the change δ = λ_new − λ_old moves all of V by the one formula that replaces their equations 17-20
(the sign of equation 19 is printed wrong):

    V ← V − δ / (1 + δ v) V[:, n] V[:, n]ᵀ.

Within a block J only V[J, J] is kept up to date; the delayed changes D = diag(δ_J) then reach the whole
of V in one matrix product, V ← V − V[:, J] (I + D V[J, J])⁻¹ D V[:, J]ᵀ: the same iterates at BLAS-3 speed.

The paper's proof of monotone ascent does not hold (an element changes the variance of all others), so a
sweep is kept only if the bound rises, and is otherwise replaced by the damped parallel step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from gpflow_ext import sites
from gpflow_ext.kmm import ascent
from gpflow_ext.kmm.ascent import State, diagonal_elements
from gpflow_ext.numerics import batched, linalg
from gpflow_ext.sites import Dense, Expectation, Pair, products

SiteExpectation: TypeAlias = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
"""Map (rows [R], mean [R, L], var [R, L]) to the bound of those data, [R]."""

NEWTON_STEPS = 10  # at most, for the mean


def sweep_step(
    prior: Dense,
    expectation: Expectation,
    at_rows: SiteExpectation,
    state: State,
    V: tf.Tensor,
    block: int = 64,
) -> tuple[State, tf.Tensor]:
    """Sweep once over all sites, then maximise over the mean (equation 21).

    Parameters
    ----------
    prior
        The dense prior; a sparse one has no V to sweep over.
    expectation, at_rows
        The bound of all data, and of chosen rows.
    state
        Where to start.
    V
        The covariance there, [L, N, N]; see `covariance`.
    block
        Sites whose rank-one updates are delayed and applied together. It does not change the iterates.

    Returns
    -------
    The next state, its bound not below the last one, up to rounding, and its covariance. 2N³ multiply-adds
    and O(N²) an iteration of the conjugate gradients that find the mean, preconditioned by V.
    """
    prec, new_V, log_det = covariance_sweep(at_rows, state, V, block)
    var = tf.transpose(tf.linalg.diag_part(new_V))
    spread = state.spread + 0.5 * (log_det + tf.reduce_sum(state.prec * state.var - prec * var))
    swept = ascent.at_variance(prior, expectation, state, prec, var, spread)

    def parallel() -> tuple[State, tf.Tensor]:
        stepped, _ = ascent.covariance_step(prior, expectation, state, ascent.factored(prior, state.prec))
        return stepped, covariance(prior, stepped.prec)

    accepted = swept.objective >= state.objective - linalg.rounding_slack(state.objective)
    moved, V = tf.cond(accepted, lambda: (swept, new_V), parallel)
    return _maximise_mean(prior, expectation, State(*moved), V), V


def covariance(prior: Dense, prec: tf.Tensor) -> tf.Tensor:
    """Return V = (Σ⁻¹ + Λ)⁻¹, [L, N, N], for precisions [N, L]. O(N³), unless all precisions are zero."""
    N, L = batched.sizes(prec)
    return tf.cond(
        tf.reduce_any(prec != 0.0),
        lambda: prior.factorise(prec).covariance(),
        lambda: tf.broadcast_to(prior.cov, [L, N, N]),
    )


def covariance_sweep(
    at_rows: SiteExpectation, state: State, V: tf.Tensor, block: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Do step 2(a) of Algorithm 1, the mean held fixed.

    Return the precisions λ [N, L], the covariance [L, N, N] and the change of log|I + ΛΣ|, [].
    """
    num_data = batched.sizes(state.prec)[0]
    block = min(block, num_data) if isinstance(num_data, int) else block
    rest = num_data % block

    def visit(
        first: tf.Tensor, V: tf.Tensor, prec: tf.Tensor, log_det: tf.Tensor, size: int | tf.Tensor = block
    ) -> tuple[tf.Tensor, ...]:
        rows = first + tf.range(size)
        U = tf.gather(V, rows, axis=1)  # [L, size, N]
        G = tf.gather(U, rows, axis=2)  # [L, size, size]
        old = tf.gather(prec, rows)
        new, change = _visit_sites(at_rows, rows, G, tf.gather(state.mean, rows), old)
        delta = tf.transpose(new - old)[:, :, None]  # [L, size, 1]
        eye = tf.eye(size, dtype=V.dtype)
        middle = tf.linalg.solve(eye + delta * G, delta * eye)  # (I + D V_JJ)⁻¹ D, δ may be 0 or negative
        V = V - tf.matmul(U, tf.matmul(middle, U), transpose_a=True)
        return first + size, V, tf.tensor_scatter_nd_update(prec, rows[:, None], new), log_det + change

    begin = (tf.constant(0), V, state.prec, tf.zeros([], V.dtype))
    whole = tf.while_loop(lambda first, *_: first < num_data - rest, visit, begin)

    def last() -> tuple[tf.Tensor, ...]:
        first, V, prec, log_det = whole
        return visit(first, V, prec, log_det, rest)

    if not isinstance(rest, int):
        _, V, prec, log_det = tf.cond(rest > 0, last, lambda: tuple(whole))
    else:
        _, V, prec, log_det = last() if rest else whole
    return prec, V, log_det


def _visit_sites(
    at_rows: SiteExpectation, rows: tf.Tensor, G: tf.Tensor, mean: tf.Tensor, prec: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Update the precisions [J, L] of a block one after the other, G = V[J, J] [L, J, J] kept current.

    Return them and the change of log|I + ΛΣ|, the sum of log(1 + δv).
    """
    tolerance = 10.0 * float(np.finfo(G.dtype.as_numpy_dtype).eps)

    def curvature_at(j: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
        def of_row(m: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
            return at_rows(rows[j][None], m, var)

        return lambda var: sites.expect(of_row, mean[j][None], var[None]).curvature[0]

    def visit(
        j: tf.Tensor, G: tf.Tensor, prec: tf.Tensor, log_det: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        column = G[:, :, j]  # [L, J]
        v, old = column[:, j], prec[j]  # [L]
        new = diagonal_elements(curvature_at(j), 1.0 / v - old, v, tolerance)
        growth = (new - old) * v
        scale = ((new - old) / (1.0 + growth))[:, None, None]
        G = G - scale * column[:, :, None] * column[:, None, :]
        log_det += tf.reduce_sum(tf.math.log1p(growth))
        return j + 1, G, tf.tensor_scatter_nd_update(prec, [[j]], new[None]), log_det

    begin = (tf.constant(0), G, prec, tf.zeros([], G.dtype))
    _, _, prec, log_det = tf.while_loop(lambda j, *_: j < batched.sizes(prec)[0], visit, begin)
    return prec, log_det


def _maximise_mean(prior: Dense, expectation: Expectation, state: State, V: tf.Tensor) -> State:
    """Repeat Newton's step on equation 21 until the bound gains less than rounding."""

    def solve(b: tf.Tensor) -> Pair:  # α = (I + ΛΣ)⁻¹ b = b − ΛVb, Σα = Vb
        shift = products.matvec(V, b)
        return Pair(b - state.prec * shift, shift)

    def step(k: tf.Tensor, _: tf.Tensor, at: State) -> tuple[tf.Tensor, tf.Tensor, State]:
        new = ascent.mean_step(prior, expectation, at, solve)
        gained = new.objective - at.objective > linalg.rounding_slack(at.objective)
        return k + 1, gained, new

    begin = (tf.constant(0), tf.constant(True), state)
    _, _, state = tf.while_loop(lambda k, gained, _: gained & (k < NEWTON_STEPS), step, begin)
    return state
