"""Functions that stochastic expectation propagation compiles; see `ep.stochastic` for the equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext.ep import moment_matching
from gpflow_ext.ep.minibatch_model import MinibatchModel
from gpflow_ext.ep.removal import remove
from gpflow_ext.ep.sweeps import ATTEMPTS
from gpflow_ext.numerics import linalg
from gpflow_ext.sites import Message, Projection, Sites, Whitened, products, units


class State(NamedTuple):
    """The sums, and q as they give it; at the current hyperparameters K_uu = LLᵀ."""

    prec: tf.Tensor  # S, [L, M, M]
    nat1: tf.Tensor  # s, [M, L]
    chol: tf.Tensor  # L, [1 or L, M, M]
    shift: tf.Tensor  # W = L₀⁻¹L, [1 or L, M, M]
    mean: tf.Tensor  # of q(v), [M, L]
    q_chol: tf.Tensor  # R with Var[v] = (RRᵀ)⁻¹, [L, M, M]
    log_normaliser: tf.Tensor  # log ∫ N(v; 0, I) times the message, []


class Visit(NamedTuple):
    """Results of a minibatch."""

    objective: tf.Tensor  # estimate of log Z plus the log prior density, []
    gradient: list[tf.Tensor]  # of the objective
    proposal: Sites  # the sites that match the moments, in the shape of the sites
    violation: tf.Tensor  # largest change of a site relative to 1 + |prec|, ∞ where one is passed over, []
    sound: tf.Tensor  # whether all but the violation is finite, []
    mean: tf.Tensor  # μ now, [B, L]
    A: tf.Tensor  # W⁻ᵀa, the current projection in the coordinates of the anchor, [1 or L, M, B]
    old_mean: tf.Tensor  # μ of the anchor, [B, L]
    old_A: tf.Tensor  # b, [1 or L, M, B]


class MinibatchUpdates:
    """The minibatch steps, with the variables that they remember between them.

    Parameters
    ----------
    target
        The model; it need not hold its data.
    variables
        Its hyperparameters.
    optimizer
        A tf_keras optimiser built on them that takes one step in each step; ``None`` holds them fixed.
    """

    def __init__(
        self, target: MinibatchModel, variables: Sequence[tf.Variable], optimizer: Any | None
    ) -> None:
        self._target, self._optimizer = target, optimizer
        self.moving = [] if optimizer is None else list(variables)
        like = tf.convert_to_tensor(target.gram())
        prec, nat1 = target.no_message(like)
        zeros = State(prec, nat1, like, like, nat1, prec, tf.zeros([], like.dtype))
        self.sums = State(*(tf.Variable(tf.zeros_like(part), trainable=False) for part in zeros))
        self.anchor = target.prior_copy()
        self.anchor_chol = tf.Variable(tf.zeros_like(like), trainable=False)
        self.violation = tf.Variable(tf.zeros([], like.dtype), trainable=False)  # largest one in the epoch
        self.seen = tf.Variable(tf.zeros([], like.dtype), trainable=False)  # data that had a visit

    def begin(self) -> tf.Tensor:
        """Make the current hyperparameters the anchor, the sums empty; tell whether K_uu is sound, []."""
        chol, finite = linalg.cholesky(self._target.gram())
        self.anchor.copy_from(self._target)
        self.anchor_chol.assign(chol)
        for part in (self.sums.prec, self.sums.nat1, self.seen):
            part.assign(tf.zeros_like(part))
        return finite

    def add(self, rows: tf.Tensor, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        """Add the sites of some data to the sums, where the anchor is; return how many data they are, []."""
        target, sites = self._target, self._target.gather_sites(rows)
        self.seen.assign_add(tf.cast(tf.shape(rows)[0], self.seen.dtype) - _unseen(sites))
        sites = target.layout((X, Y)).combine(sites)
        message = target.prior(X, tf.convert_to_tensor(self.anchor_chol)).message(sites)
        self.sums.prec.assign_add(message.prec)
        self.sums.nat1.assign_add(message.nat1)
        return tf.shape(rows)[0]

    def close(self, weight: tf.Tensor) -> tf.Tensor:
        """Derive the posterior from the sums, where the anchor is, and tell whether it is sound, [].

        ``weight`` is what the sums count for, [].
        """
        message = Message(*map(tf.convert_to_tensor, (self.sums.prec, self.sums.nat1)))
        new, sound = self._posterior(message, weight, tf.convert_to_tensor(self.anchor_chol))
        self._assign(new, tf.constant(True))
        return sound

    def visit(self, sites: Sites, X: tf.Tensor, Y: tf.Tensor, num_data: tf.Tensor) -> Visit:
        """Match the moments of a minibatch and differentiate its share of the evidence. O(M³ + BM²)."""
        target, state = self._target, State(*(tf.convert_to_tensor(part) for part in self.sums))
        q = Whitened(state.mean, state.q_chol, state.mean, tf.constant(True))
        scale = num_data / tf.cast(tf.shape(X)[0], X.dtype)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.moving)
            prior = target.prior(X, state.chol)
            residual = prior.residual
        if self.moving:
            old_mean, old_A = self.anchor.project(X, tf.convert_to_tensor(self.anchor_chol))
            own = tf.matmul(state.shift, old_A, transpose_a=True)
            A = tf.linalg.triangular_solve(state.shift, prior.A, adjoint=True)
        else:
            old_mean, old_A, own, A = prior.mean, prior.A, prior.A, prior.A
        layout = target.layout((X, Y))
        counted = Sites(sites.nat1 - sites.prec * layout.select(old_mean), sites.prec)
        left = remove(q, prior, own, counted, layout)
        cav, unseen = left.cavity, layout.select(residual)
        usable, var = tf.reduce_all(cav.ratio > 0.0, axis=-1), cav.var + unseen

        def log_normaliser(mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
            value = target.log_normaliser(mean, var, (X, Y))
            return tf.where(usable, value, tf.zeros_like(value))

        with tf.GradientTape(watch_accessed_variables=False) as factors:
            factors.watch([cav.mean, var, *self.moving])
            log_factors = scale * tf.reduce_sum(log_normaliser(cav.mean, var))
            value = log_factors + target.log_prior_density()
        by_mean, by_var, *direct = factors.gradient(
            value, [cav.mean, var, *self.moving], unconnected_gradients="zero"
        )
        shift, spread = layout.combine(Sites(by_mean, by_var))  # [B, L]
        through = tape.gradient(
            [prior.mean, prior.A, residual],
            self.moving,
            [shift, left.adjoint(q, by_mean, by_var), _as_one(spread, residual)],
            unconnected_gradients="zero",
        )
        gradient = [a + b for a, b in zip(direct, through, strict=True)]
        matched = moment_matching.matched_sites(log_normaliser, cav, unseen)
        proposal = Sites(*(tf.where(usable[..., None], *pair) for pair in zip(matched, sites, strict=True)))
        change = Sites(proposal.nat1 - sites.nat1, proposal.prec - sites.prec)
        violation = units.violation(change, sites.prec, units.unit_of(target, Y, sites.nat1.dtype))
        violation = tf.where(tf.reduce_all(usable), violation, tf.constant(np.inf, violation.dtype))
        overlap = tf.reduce_sum(tf.where(usable[..., None], left.overlap, tf.zeros_like(left.overlap)))
        whole = value + state.log_normaliser - scale * overlap
        objective = tf.where(self.seen >= num_data, whole, value)
        sound = tf.reduce_all([_finite(part) for part in (objective, *change, cav.ratio, *gradient)])
        return Visit(objective, gradient, proposal, violation, sound, prior.mean, A, old_mean, old_A)

    def take(
        self, rows: tf.Tensor, X: tf.Tensor, Y: tf.Tensor, length: tf.Tensor, share: tf.Tensor, N: tf.Tensor
    ) -> tf.Tensor:
        """Try a step on a minibatch of N data, and commit or undo it.

        The sums count N/n-fold while n < N data have had a visit.

        Parameters
        ----------
        rows, X, Y
            The minibatch.
        length
            The share of the way to the matching sites, [].
        share
            The share of the optimiser's step, and the root of that of the weight beyond 1, [].
        N
            The number of data, [].

        Returns
        -------
        The objective before it, and 1 if the step was sound, else 0; [2].
        """
        old = self._target.gather_sites(rows)
        moved = [*self.moving, *([] if self._optimizer is None else self._optimizer.variables)]
        kept = [variable.read_value() for variable in moved]
        visit = self.visit(old, X, Y, N)
        new = Sites(*(a + length * (b - a) for a, b in zip(old, visit.proposal, strict=True)))
        if self.moving:
            descent = [-part for part in visit.gradient]
            self._optimizer.apply_gradients(zip(descent, self.moving, strict=True))  # type: ignore[union-attr]
            for variable, before in zip(self.moving, kept, strict=False):
                variable.assign(before + tf.cast(share, variable.dtype) * (variable - before))
        layout, count = self._target.layout((X, Y)), self.sums.nat1.shape[1]  # one of coupled functions

        def joined(before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
            return tf.concat([tf.reshape(before, [-1, count]), tf.reshape(after, [-1, count])], axis=0)

        both = Projection(
            joined(visit.old_mean, visit.mean), tf.concat([visit.old_A, visit.A], 2), share, share
        )
        parts = zip(layout.combine(old), layout.combine(new), strict=True)
        change = both.message(Sites(*(joined(-a, b) for a, b in parts)))
        seen = self.seen + _unseen(old)
        weight = 1.0 + (N / tf.maximum(seen, 1.0) - 1.0) * share**2
        message = Message(self.sums.prec + change.prec, self.sums.nat1 + change.nat1)
        state, sound = self._posterior(message, weight)
        sound &= visit.sound
        self.seen.assign(tf.where(sound, seen, self.seen))
        self._target.scatter_sites(
            rows, Sites(*(tf.where(sound, a, b) for a, b in zip(new, old, strict=True)))
        )
        self._assign(state, sound)
        for variable, before in zip(moved, kept, strict=True):
            variable.assign(tf.where(sound, variable, before))
        self.violation.assign(tf.where(sound, tf.maximum(self.violation, visit.violation), self.violation))
        return tf.stack([visit.objective, tf.cast(sound, visit.objective.dtype)])

    def take_several(
        self, rows: tf.Tensor, X: tf.Tensor, Y: tf.Tensor, count: tf.Tensor, length: tf.Tensor, N: tf.Tensor
    ) -> tf.Tensor:
        """Do steps on minibatches, each repeated at half the length while it is not sound; see `take`.

        Parameters
        ----------
        rows
            Row numbers of each minibatch, [S, B].
        X, Y
            All data.
        count
            How many of the minibatches are taken, [].
        length, N
            As for `take`.

        Returns
        -------
        The mean of the objectives before the steps, and how many were done before one that could not be; [2].
        """

        def turn(k: tf.Tensor, attempt: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, ...]:
            share = tf.pow(tf.constant(0.5, length.dtype), tf.cast(attempt, length.dtype))
            batch = tf.gather(X, rows[k]), tf.gather(Y, rows[k])
            value, sound = tf.unstack(self.take(rows[k], *batch, share * length, share, N))
            done = sound > 0.0
            value = tf.where(done, value, tf.zeros_like(value))
            return k + tf.cast(done, tf.int32), tf.where(done, 0, attempt + 1), values + value

        done, _, values = tf.while_loop(
            lambda k, attempt, _: (k < count) & (attempt < ATTEMPTS),
            turn,
            (tf.constant(0), tf.constant(0), tf.zeros([], length.dtype)),
            parallel_iterations=1,
        )
        done = tf.cast(done, values.dtype)
        return tf.stack([values / tf.maximum(done, 1.0), done])

    def _assign(self, new: State, sound: tf.Tensor) -> None:
        for variable, value in zip(self.sums, new, strict=True):
            variable.assign(tf.where(sound, value, variable))

    def _posterior(
        self, message: Message, weight: tf.Tensor, chol: tf.Tensor | None = None
    ) -> tuple[State, tf.Tensor]:
        """Return the state that a message in the coordinates of the anchor gives, and if it is sound. O(M³).

        The message counts ``weight``-fold. With ``chol`` the anchor is where the hyperparameters are, W = I.
        """
        prec, nat1 = message
        message = Message(weight * prec, weight * nat1)
        if chol is None and not self.moving:
            chol = tf.convert_to_tensor(self.anchor_chol)
        if chol is not None:
            finite, shift = tf.constant(True), tf.eye(chol.shape[1], dtype=chol.dtype) + tf.zeros_like(chol)
            q = message.posterior()
        else:
            chol, finite = linalg.cholesky(self._target.gram())
            shift = tf.linalg.triangular_solve(self.anchor_chol, chol)
            seen = tf.matmul(shift, message.prec @ shift, transpose_a=True)
            q = Message(seen, products.matvec(shift, message.nat1, transpose=True)).posterior()
        state = State(prec, nat1, chol, shift, q.mean, q.chol, q.log_normaliser())
        sound = finite & q.finite & _finite(state.log_normaliser) & _finite(q.mean)
        return state, sound


def _as_one(by_each: tf.Tensor, residual: tf.Tensor) -> tf.Tensor:
    """Return an adjoint [B, L] as that of residuals [B, L], or [B, 1] where the functions share them."""
    return tf.reduce_sum(by_each, axis=1, keepdims=True) if residual.shape[1] == 1 else by_each


def _unseen(sites: Sites) -> tf.Tensor:
    """Return how many data have sites that are all zero, []."""
    zero = [tf.reduce_all(part == 0.0, axis=list(range(1, part.shape.rank))) for part in sites]
    return tf.reduce_sum(tf.cast(zero[0] & zero[1], sites.nat1.dtype))


def _finite(part: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(part))
