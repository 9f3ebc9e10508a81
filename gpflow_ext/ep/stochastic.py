"""Stochastic expectation propagation: a minibatch of sites and one gradient step at a time, O(M³ + BM²).

A step moves the B sites of a minibatch towards the ones that match their moments, by a share ρ, and takes one
gradient step of the hyperparameters, both from the state before it. Each datum keeps its two numbers
(τ, ν) only. What all of them tell the inducing variables is kept as a sum, and that needs a rule about age:

    anchor      the hyperparameters and inducing inputs at the start of the epoch, K_uu = L₀L₀ᵀ
    sums        S = Σₙ τₙ bₙbₙᵀ and s = Σₙ ρₙbₙ, ρ = ν − τμ, where E[hₙ | u] = μₙ + bₙᵀL₀⁻¹u
    now         K_uu = LLᵀ, u = Lv, W = L₀⁻¹L:   q(v) ∝ N(v; 0, I) exp(vᵀWᵀs − ½ vᵀWᵀSWv)

so that a site is a function of u that stays what it is while the hyperparameters move. An epoch visits each
datum once: it takes the datum's site out of the sums with the projection of the anchor, b, and puts the new
one in with the present one, W⁻ᵀa for a = L⁻¹k_u. At its end the sums are made anew from the stored numbers at
the present hyperparameters, which become the anchor. So no site is older than an epoch, rounding does not
build up, and nothing of size NM is ever stored (Hernández-Lobato & Hernández-Lobato 2016 keep the projection
of each datum's last visit). With the hyperparameters fixed W = I, a = b and q is exact all the time.

With q(v) = N(c, C) the cavity of a site along bₙ, as it is seen along the present aₙ, is (m, v without the
mean μ; subscripts: a present, b the site's own projection w = Wᵀb; × their covariance)

    d = 1 − τv_b   κ = (τm_b − ρ)/d   q∖ₙ(v) = N(c + κCw, C + (τ/d) Cww ᵀC)
    m_c = μ_a + m_a + κv_×              v_c = v_a + (τ/d) v_×²

The gradient holds q∖ₙ fixed in whitened coordinates, where the terms of the prior vanish and
∂log Z = Σₙ ∂log Ẑₙ(μ + aᵀE[v], aᵀVar[v]a + residual) is a sum over data: N/B times that of the minibatch is
unbiased. It is exact at a fixed point, as the gradient of batch mode is, and does not see the datum's own
site, which may be an epoch old; away from a fixed point the two differ (docs/derivations.md, section 6).

Where a datum has several factors each has sites of its own, [B, F, L'], and those of a minibatch move in
parallel; ρ <= 1, without the over-relaxation of batch mode. A factor whose removal leaves no positive
variance is passed over: its sites stay, it adds nothing to the gradient, and its epoch has not settled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext.data.rows import Batch
from gpflow_ext.ep import moment_matching
from gpflow_ext.ep.minibatch_model import MinibatchModel
from gpflow_ext.ep.removal import remove
from gpflow_ext.numerics import linalg
from gpflow_ext.sites import Message, Projection, Sites, Whitened
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.solver import Progress

ATTEMPTS = 20  # of a step, each with half the length of the last


class State(NamedTuple):
    """The sums, and q as they give it; at the present hyperparameters K_uu = LLᵀ."""

    prec: tf.Tensor  # S, [L, M, M]
    nat1: tf.Tensor  # s, [M, L]
    chol: tf.Tensor  # L, [M, M]
    shift: tf.Tensor  # W = L₀⁻¹L, [M, M]
    mean: tf.Tensor  # of q(v), [M, L]
    q_chol: tf.Tensor  # R with Var[v] = (RRᵀ)⁻¹, [L, M, M]
    log_normaliser: tf.Tensor  # log ∫ N(v; 0, I) times the message, []


class Visit(NamedTuple):
    """What a minibatch finds."""

    objective: tf.Tensor  # estimate of log Z plus the log prior density, []
    gradient: list[tf.Tensor]  # of the objective
    proposal: Sites  # the sites that match the moments, in the shape of the sites
    violation: tf.Tensor  # largest change of a site relative to 1 + |prec|, ∞ where one is passed over, []
    sound: tf.Tensor  # whether all but the violation is finite, []
    mean: tf.Tensor  # μ now, [B, L]
    A: tf.Tensor  # W⁻ᵀa, the present projection in the coordinates of the anchor, [1, M, B]
    old_mean: tf.Tensor  # μ of the anchor, [B, L]
    old_A: tf.Tensor  # b, [1, M, B]


class StochasticMatcher(tf.Module):
    """Minibatch steps, compiled once, their state in variables that a checkpoint can hold.

    The minibatches depend on the seed, the epoch and the position in it alone, so that a run resumes exactly
    at any step.

    Parameters
    ----------
    target
        The model.
    variables
        Its hyperparameters.
    optimizer
        A tf_keras optimiser built on them that takes one step in each step; ``None`` holds them fixed.
    minibatch_size
        B. With B = N a step is that of batch mode at the same sites.
    damping
        The share ρ of the way to the matching sites.
    seed
        Seed of the minibatches.
    jit_compile
        XLA; ``None`` means on GPU and TPU only. The sums over all data are never compiled by it.
    """

    def __init__(
        self,
        target: MinibatchModel,
        variables: Sequence[tf.Variable],
        optimizer: Any | None,
        *,
        minibatch_size: int,
        damping: float = 1.0,
        seed: int = 0,
        jit_compile: bool | None = None,
    ) -> None:
        super().__init__()
        if not 0.0 < damping <= 1.0:
            raise ValueError(f"`damping` must be in (0, 1]; got {damping}.")
        self._target, self._optimizer, self._damping = target, optimizer, damping
        self._moving = [] if optimizer is None else list(variables)
        self._moved = [*self._moving, *([] if optimizer is None else optimizer.variables)]
        self._size, self._seed = minibatch_size, seed
        self._batches: Iterator[Batch] | None = None
        jit = resolve_jit(jit_compile)
        self._visit = tf.function(self._look, jit_compile=jit, autograph=False)
        self._derive = tf.function(self._posterior, jit_compile=jit, autograph=False)
        self._step = tf.function(self._take, reduce_retracing=True, autograph=False)
        self._rebuild = tf.function(self._sum_all, autograph=False)
        like = tf.convert_to_tensor(target.gram())
        M, L, dtype = like.shape[0], target.num_latent_gps, like.dtype
        shapes = State([L, M, M], [M, L], [M, M], [M, M], [M, L], [L, M, M], [])
        self.sums = State(*(tf.Variable(tf.zeros(shape, dtype), trainable=False) for shape in shapes))
        self.anchor = target.prior_copy()
        self.anchor_chol = tf.Variable(tf.zeros_like(like), trainable=False)
        self.epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.position = tf.Variable(0, dtype=tf.int64, trainable=False)  # minibatches done in the epoch
        self.violation = tf.Variable(tf.zeros([], dtype), trainable=False)  # largest one in the epoch
        self.started = tf.Variable(False, trainable=False)

    @property
    def state(self) -> list[tf.Variable]:
        """See `Solver`: none, as a step undoes itself; with copies of all sites a step would cost O(N)."""
        return []

    def start(self) -> Progress:
        """Make the sums anew at the present hyperparameters; the objective is NaN if they give no posterior.

        Where they do not, all sites are set to zero first. O(NM²).
        """
        for _ in range(2):
            if bool(self._rebuild()):
                self.started.assign(True)
                return Progress(0.0, np.inf)
            self._target.assign_sites(Sites(*(tf.zeros_like(part) for part in self._target.sites)))
        return Progress(np.nan, np.inf)

    def step(self) -> Progress:
        """Do one minibatch; return the objective before it, and at the end of an epoch its largest violation.

        The objective is an estimate of log Z, N/B times the terms of the minibatch plus what the sums give,
        exact for B = N. A step is undone and repeated at half the length where afterwards K_uu or I + WᵀSW
        cannot be factorised or something is not finite; NaN, and nothing changed, if that does not help.
        """
        if not self.started and np.isnan(self.start().objective):
            return Progress(np.nan, np.inf)
        batch = self._next()
        for attempt in range(ATTEMPTS):
            objective, sound = self._step(*batch, tf.constant(0.5**attempt, self.violation.dtype))
            if sound:
                break
        else:
            self._batches = None
            return Progress(np.nan, np.inf)
        done = int(self.position.assign_add(1)) * self._size >= self._target.rows.num_data
        if done:
            self._batches = None
            self.position.assign(0)
            self.epoch.assign_add(1)
            if np.isnan(self.start().objective):
                return Progress(np.nan, np.inf)
        violation = float(self.violation) if done else np.inf
        if done:
            self.violation.assign(tf.zeros_like(self.violation))
        return Progress(float(objective), violation)

    def _next(self) -> Batch:
        if self._batches is None:
            self._batches = self._target.rows.batches(
                self._size, self._seed, int(self.epoch), int(self.position)
            )
        return next(self._batches)

    def _sum_all(self) -> tf.Tensor:
        """Make the sums anew, the anchor where the hyperparameters are; tell whether they are sound."""
        chol, finite = linalg.cholesky(self._target.gram())
        message = self._target.message(chol)
        self.anchor.copy_from(self._target)
        self.anchor_chol.assign(chol)
        new, sound = self._posterior(message, chol)
        self._assign(new, tf.constant(True))
        return finite & sound

    def _assign(self, new: State, sound: tf.Tensor) -> None:
        for variable, value in zip(self.sums, new, strict=True):
            variable.assign(tf.where(sound, value, variable))

    def _posterior(self, message: Message, chol: tf.Tensor | None = None) -> tuple[State, tf.Tensor]:
        """Return the state that a message in the coordinates of the anchor gives, and if it is sound. O(M³).

        With ``chol`` the anchor is where the hyperparameters are, W = I.
        """
        prec, nat1 = message
        if chol is None and not self._moving:
            chol = tf.convert_to_tensor(self.anchor_chol)
        if chol is not None:
            finite, shift = tf.constant(True), tf.eye(chol.shape[0], dtype=chol.dtype)
            q = message.posterior()
        else:
            chol, finite = linalg.cholesky(self._target.gram())
            shift = tf.linalg.triangular_solve(self.anchor_chol, chol)
            seen = tf.matmul(shift, prec @ shift, transpose_a=True)
            q = Message(seen, tf.matmul(shift, nat1, transpose_a=True)).posterior()
        state = State(prec, nat1, chol, shift, q.mean, q.chol, q.log_normaliser())
        sound = finite & q.finite & _finite(state.log_normaliser) & _finite(q.mean)
        return state, sound

    def _look(self, sites: Sites, X: tf.Tensor, Y: tf.Tensor) -> Visit:
        """Match the moments of a minibatch and differentiate its share of the evidence. O(M³ + BM²)."""
        target, state = self._target, State(*(tf.convert_to_tensor(part) for part in self.sums))
        q = Whitened(state.mean, state.q_chol, state.mean, tf.constant(True))
        scale = tf.cast(target.rows.num_data, X.dtype) / tf.cast(tf.shape(X)[0], X.dtype)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._moving)
            prior = target.prior(X, state.chol)
        if self._moving:
            old_mean, old_A = self.anchor.project(X, tf.convert_to_tensor(self.anchor_chol))
            own = tf.matmul(state.shift, old_A, transpose_a=True)
            A = tf.linalg.triangular_solve(state.shift[None], prior.A, adjoint=True)
        else:
            old_mean, old_A, own, A = prior.mean, prior.A, prior.A, prior.A
        layout = target.layout((X, Y))
        counted = Sites(sites.nat1 - sites.prec * layout.select(old_mean), sites.prec)
        left = remove(q, prior, own, counted, layout)
        cav, residual = left.cavity, layout.select(prior.residual)
        usable, var = tf.reduce_all(cav.ratio > 0.0, axis=-1), cav.var + residual

        def log_normaliser(mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
            value = target.log_normaliser(mean, var, (X, Y))
            return tf.where(usable, value, tf.zeros_like(value))

        with tf.GradientTape(watch_accessed_variables=False) as factors:
            factors.watch([cav.mean, var, *self._moving])
            log_factors = scale * tf.reduce_sum(log_normaliser(cav.mean, var))
            value = log_factors + target.log_prior_density()
        by_mean, by_var, *direct = factors.gradient(
            value, [cav.mean, var, *self._moving], unconnected_gradients="zero"
        )
        shift, spread = layout.combine(Sites(by_mean, by_var))  # [B, L]
        through = tape.gradient(
            [prior.mean, prior.A, prior.residual],
            self._moving,
            [shift, left.adjoint(q, by_mean, by_var), tf.reduce_sum(spread, axis=1, keepdims=True)],
            unconnected_gradients="zero",
        )
        gradient = [a + b for a, b in zip(direct, through, strict=True)]
        matched = moment_matching.matched_sites(log_normaliser, cav, residual)
        proposal = Sites(*(tf.where(usable[..., None], *pair) for pair in zip(matched, sites, strict=True)))
        change = tf.maximum(tf.abs(proposal.nat1 - sites.nat1), tf.abs(proposal.prec - sites.prec))
        violation = tf.reduce_max(change / (1.0 + tf.abs(sites.prec)))
        violation = tf.where(tf.reduce_all(usable), violation, tf.constant(np.inf, violation.dtype))
        overlap = tf.reduce_sum(tf.where(usable[..., None], left.overlap, tf.zeros_like(left.overlap)))
        objective = value + state.log_normaliser - scale * overlap
        sound = tf.reduce_all([_finite(part) for part in (objective, change, cav.ratio, *gradient)])
        return Visit(objective, gradient, proposal, violation, sound, prior.mean, A, old_mean, old_A)

    def _take(
        self, rows: tf.Tensor, X: tf.Tensor, Y: tf.Tensor, share: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Try a step of the given share of its length, and commit or undo it."""
        old = self._target.gather_sites(rows)
        kept = [variable.read_value() for variable in self._moved]
        visit = self._visit(old, X, Y)
        length = share * self._damping
        new = Sites(*(a + length * (b - a) for a, b in zip(old, visit.proposal, strict=True)))
        if self._moving:
            descent = [-part for part in visit.gradient]
            self._optimizer.apply_gradients(zip(descent, self._moving, strict=True))  # type: ignore[union-attr]
            for variable, before in zip(self._moving, kept, strict=False):
                variable.assign(before + tf.cast(share, variable.dtype) * (variable - before))
        both = Projection(
            tf.concat([visit.old_mean, visit.mean], 0), tf.concat([visit.old_A, visit.A], 2), share, share
        )
        layout = self._target.layout((X, Y))
        parts = zip(layout.combine(old), layout.combine(new), strict=True)
        change = both.message(Sites(*(tf.concat([-a, b], 0) for a, b in parts)))
        state, sound = self._derive(Message(self.sums.prec + change.prec, self.sums.nat1 + change.nat1))
        sound &= visit.sound
        self._target.scatter_sites(
            rows, Sites(*(tf.where(sound, a, b) for a, b in zip(new, old, strict=True)))
        )
        self._assign(state, sound)
        for variable, before in zip(self._moved, kept, strict=True):
            variable.assign(tf.where(sound, variable, before))
        self.violation.assign(tf.where(sound, tf.maximum(self.violation, visit.violation), self.violation))
        return visit.objective, sound


def _finite(part: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(part))
