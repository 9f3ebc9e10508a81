"""Stochastic expectation propagation: a minibatch of sites and one gradient step at a time, O(M³ + BM²).

A step moves the B sites of a minibatch towards the ones that match their moments, by a share ρ, and takes one
gradient step of the hyperparameters, both from the state before it. Each datum keeps its two numbers
(τ, ν) only. Their message to the inducing variables is kept as a sum, and that needs a rule about age:

    anchor      the hyperparameters and inducing inputs at the start of the epoch, K_uu = L₀L₀ᵀ
    sums        S = Σₙ τₙ bₙbₙᵀ and s = Σₙ ρₙbₙ, ρ = ν − τμ, where E[hₙ | u] = μₙ + bₙᵀL₀⁻¹u
    now         K_uu = LLᵀ, u = Lv, W = L₀⁻¹L:   q(v) ∝ N(v; 0, I) exp(vᵀWᵀs − ½ vᵀWᵀSWv)

so that a site is a function of u that stays what it is while the hyperparameters move. An epoch visits each
datum once: it takes the datum's site out of the sums with the projection of the anchor, b, and puts the new
one in with the present one, W⁻ᵀa for a = L⁻¹k_u. At its end the sums are recomputed from stored numbers at
the current hyperparameters, which become the anchor. So no site is older than an epoch, rounding does not
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

Until the end of the first epoch the sums hold the sites of n < N data, those visited so far, and q would be
the posterior of these alone. They count N/n-fold there: those seen stand for the data to come, as in the
average that natural gradients on minibatches take, and the weight ends at 1, where all is as above. A datum
whose sites are zero has not been visited. In that time the objective is N/B Σₙ log Ẑₙ alone, of data not yet
seen.

Where a datum has several factors each has sites of its own, [B, F, L'], and those of a minibatch move in
parallel; ρ <= 1, without the over-relaxation of batch mode. A factor whose removal leaves no positive
variance is passed over: its sites stay, it adds nothing to the gradient, and its epoch has not settled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.data.rows import PIECE, ArrayRows, Batch
from gpflow_ext.ep.engine import check_damping
from gpflow_ext.ep.minibatch_model import MinibatchModel
from gpflow_ext.ep.minibatch_updates import MinibatchUpdates
from gpflow_ext.ep.sweeps import ATTEMPTS
from gpflow_ext.sites import Sites
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.solver import Progress


class StochasticMatcher(tf.Module):
    """Minibatch steps, compiled once for each structure of a model.

    Their state is in variables that a checkpoint can hold.

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
        Compile with XLA; ``None`` means on GPU and TPU only. The sums over all data are never compiled by it.
    per_call
        Minibatches in one call of the compiled function, a step of the solver, at most: a call ends with the
        epoch, and where the last minibatch is smaller before it.

    Raises
    ------
    ValueError
        For several minibatches of a dataset in one call.
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
        per_call: int = 1,
    ) -> None:
        super().__init__()
        check_damping(damping)
        if per_call > 1 and not isinstance(target.rows, ArrayRows):
            raise ValueError("`steps_per_call` is for arrays: leave it out where the data are a dataset.")
        self._per_call = per_call
        self._target, self._optimizer = target, optimizer
        self._size, self._seed = minibatch_size, seed
        self._batches: Iterator[Batch] | None = None
        N, updates = target.rows.num_data, MinibatchUpdates(target.without_data(), variables, optimizer)
        open_rows = [n for n in (minibatch_size, N % minibatch_size) if n > 1]
        self._updates = updates
        self._compiled = Compiled(updates, resolve_jit(jit_compile), open_rows)
        self._summing = Compiled(updates, rows=[PIECE, N % PIECE] if N % PIECE > 1 else [PIECE])
        self.sums, self.anchor, self.anchor_chol = updates.sums, updates.anchor, updates.anchor_chol
        self.violation, self.seen = updates.violation, updates.seen
        self._whole = tf.constant(damping, self.violation.dtype)
        self._num_data = tf.constant(N, self.violation.dtype)
        with tf.device("CPU"):  # the host reads and moves them
            self.epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.position = tf.Variable(0, dtype=tf.int64, trainable=False)  # minibatches done in the epoch
            self.started = tf.Variable(False, trainable=False)

    @property
    def state(self) -> list[tf.Variable]:
        """See `Solver`: none, as a step undoes itself; with copies of all sites a step would cost O(N)."""
        return []

    def start(self) -> Progress:
        """Recompute the sums at the current hyperparameters; the objective is NaN if they give no posterior.

        Where they do not, all sites are set to zero first. O(NM²), and O(N + M³) where all sites are zero.
        """
        return self._start(all_seen=False)

    def _start(self, all_seen: bool) -> Progress:
        """Do so; tell whether all data have had their visit, whatever their sites are."""
        for _ in range(2):
            if self._sum_all(all_seen):
                self.started.assign(True)
                return Progress(0.0, np.inf)
            self._target.assign_sites(Sites(*(tf.zeros_like(part) for part in self._target.sites)))
            all_seen = False
        return Progress(np.nan, np.inf)

    def step(self) -> Progress:
        """Do one minibatch; return the objective before it, and at the end of an epoch its largest violation.

        The objective is an estimate of log Z, N/B times the terms of the minibatch plus what the sums give,
        exact for B = N; before all data have had a visit the former alone. A step is undone and repeated at
        half the length where afterwards K_uu or I + WᵀSW cannot be factorised or something is not finite;
        NaN, and nothing changed, if that does not help. Of several minibatches in a call the objective is the
        mean, and those before the one that failed are done.
        """
        if not self.started and np.isnan(self.start().objective):
            return Progress(np.nan, np.inf)
        before, number = int(self.position), self._target.rows.num_data
        wanted = min(self._per_call, number // self._size - before) if self._per_call > 1 else 1
        objective, taken = self._take() if wanted <= 1 else self._take_several(before, wanted)
        self.position.assign(before + taken)
        if taken < max(wanted, 1):
            self._batches = None
            return Progress(np.nan, np.inf)
        done = (before + taken) * self._size >= number
        if done:
            self._batches = None
            self.position.assign(0)
            self.epoch.assign_add(1)
            if np.isnan(self._start(all_seen=True).objective):
                return Progress(np.nan, np.inf)
        violation = float(self.violation) if done else np.inf
        if done:
            self.violation.assign(tf.zeros_like(self.violation))
        return Progress(objective, violation)

    def _take(self) -> tuple[float, int]:
        """Do one minibatch; return the objective before it, and how many were done, 1 or 0."""
        batch = self._next()
        for attempt in range(ATTEMPTS):
            share = tf.constant(0.5**attempt, self.violation.dtype)
            given = *batch, share * self._whole, share, self._num_data
            objective, sound = self._compiled(self._updates.take, *given).numpy().tolist()
            if sound:
                return objective, 1
        return np.nan, 0

    def _take_several(self, first: int, count: int) -> tuple[float, int]:
        """Do some of the epoch's minibatches in one call; return the mean objective and how many it did."""
        rows = self._target.rows
        assert isinstance(rows, ArrayRows)
        self._batches = None
        order = rows.order(self._seed, int(self.epoch))[first * self._size :][: count * self._size]
        given = np.zeros([self._per_call, self._size], np.int64)  # of one shape, whatever the count
        given[:count] = order.reshape(count, self._size)
        numbers = tf.constant(count), self._whole, self._num_data
        outcome = self._compiled(self._updates.take_several, given, *rows.arrays, *numbers)
        objective, done = outcome.numpy().tolist()
        return objective, int(done)

    def _next(self) -> Batch:
        if self._batches is None:
            self._batches = self._target.rows.batches(
                self._size, self._seed, int(self.epoch), int(self.position)
            )
        return next(self._batches)

    def _sum_all(self, all_seen: bool) -> bool:
        """Recompute the sums, the anchor where the hyperparameters are; tell whether they are sound.

        They are not where the weighted ones of some data leave no posterior; then their weight is 1. Sites
        that are zero add nothing: before the first step no data are read.
        """
        updates, compiled = self._updates, self._summing
        finite = compiled(updates.begin)
        if any(bool(tf.reduce_any(part != 0.0)) for part in self._target.sites):
            for piece in self._target.rows.pieces():
                compiled(updates.add, *piece)
        if all_seen:
            self.seen.assign(self._num_data)
        weights = {float(self._num_data / tf.maximum(self.seen, 1.0)), 1.0}
        closed = (compiled(updates.close, tf.constant(w, self.seen.dtype)) for w in sorted(weights)[::-1])
        return bool(finite) and any(map(bool, closed))
