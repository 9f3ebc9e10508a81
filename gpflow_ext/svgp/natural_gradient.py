"""Natural gradients of a whitened Gaussian q(v) beside gradient steps of all else, one minibatch at a time.

For the bound N/B Σₙ Eₙ(mₙ, vₙ) − KL[q(v) || N(0, I)] with mₙ = μₙ + aₙᵀE[v], vₙ = rₙ + aₙᵀVar[v]aₙ and
wₙ = −2 N/B ∂Eₙ/∂vₙ, gₙ = N/B ∂Eₙ/∂mₙ, the natural-gradient step of length γ in the natural parameters is

    Var[v]⁻¹ ← (1 − γ) Var[v]⁻¹ + γ (I + Σₙ wₙ aₙaₙᵀ)
    Var[v]⁻¹E[v] ← (1 − γ) Var[v]⁻¹E[v] + γ Σₙ aₙ (gₙ + wₙ aₙᵀE[v])

for each latent function (Khan & Lin 2017; Salimbeni, Eleftheriadis & Hensman 2018): dual sites, which need
no derivative in q_sqrt and one factorisation. Where Eₙ is not concave some wₙ are negative.
``concave`` sets those to zero: the precision never falls below the prior's and the mean keeps its fixed
point, but the variance is a little too small. Otherwise a step that would leave q improper, or wider than
what it forgot explains, is repeated that way. Minibatches need it: among a few rows with N/B times their
weight the negative ones can outweigh all that q knows about a direction.

The hyperparameters move by the optimiser in the same pass over the minibatch, from the same point: q is
whitened, so that it follows the prior. Without γ the optimiser moves q too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import gpflow
import tensorflow as tf

from gpflow_ext.likelihoods.largest import SecondOrder
from gpflow_ext.numerics import triangular
from gpflow_ext.sites import Projection, products
from gpflow_ext.svgp.whitened_normal import natural_step, precision, site_weights
from gpflow_ext.training.distribute import Shards, total

Minibatch: TypeAlias = tuple[tf.Tensor, tf.Tensor]
"""Inputs X [B, D] and targets Y [B, 1]."""


class WhitenedVariational(Protocol):
    """Protocol of a model for the engine."""

    q_mu: gpflow.Parameter  # E[v], [M, K]
    q_sqrt: gpflow.Parameter  # lower triangular factors of Var[v], [1 or K, M, M]

    def prior(self, X: tf.Tensor) -> Projection:
        """Return the prior at X [B, D]."""

    def marginals(self, prior: Projection) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance of q(f), each [B, K]."""

    def expectations(self, X: tf.Tensor, Y: tf.Tensor, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        """Return E[log p(yₙ | fₙ)], [B]."""

    def second_order(self, X: tf.Tensor, Y: tf.Tensor, mean: tf.Tensor, var: tf.Tensor) -> SecondOrder:
        """Return E[log p(yₙ | fₙ)] with its derivatives; see `newton_mean.second_order`."""

    def num_correct(self, Y: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
        """Return how many rows are classified as their labels say, []."""

    def scale(self, X: tf.Tensor) -> tf.Tensor:
        """Return N/B, []."""

    def prior_kl(self) -> tf.Tensor:
        """Return KL[q(v) || N(0, I)], []."""

    def log_prior_density(self) -> tf.Tensor:
        """Return the log density of the priors of the hyperparameters, []."""


class Sums(NamedTuple):
    """Sums over a minibatch, of all replicas."""

    value: tf.Tensor  # N/B Σₙ Eₙ, []
    correct: tf.Tensor  # rows classified as their labels say, []
    gradient: list[tf.Tensor]  # of the value in what the optimiser moves
    gram: tf.Tensor | None  # the lower triangle of Σₙ wₙ aₙaₙᵀ, v in reversed order, [1 or K, M, M]
    pull: tf.Tensor | None  # Σₙ aₙ (gₙ + wₙ aₙᵀE[v]), [M, K]


class AscentUpdates(tf.Module):
    """Functions to compile: a step on a minibatch, with the natural parameters of q that it keeps.

    Parameters
    ----------
    target, hypers, optimizer, shards
        As for `minibatch_ascent.MinibatchAscent`.
    natural
        Whether q moves by natural gradients.
    """

    def __init__(
        self,
        target: WhitenedVariational,
        hypers: Sequence[tf.Variable],
        optimizer: Any,
        natural: bool,
        shards: Shards | None,
    ) -> None:
        super().__init__()
        self._target, self._optimizer, self._natural, self._shards = target, optimizer, natural, shards
        q = () if natural else (target.q_mu, target.q_sqrt)
        self._q = [variable for part in q for variable in part.trainable_variables]
        self._hypers = list(hypers)
        self.moved = [*self._q, *self._hypers]
        if natural:
            self.nat1, self.prec = (
                tf.Variable(tf.zeros(part.shape, part.dtype), trainable=False)
                for part in (target.q_mu, target.q_sqrt)
            )

    @property
    def of_q(self) -> list[tf.Variable]:
        """The variables of q that the optimiser does not move, and what follows them."""
        if not self._natural:
            return []
        parts = (self._target.q_mu, self._target.q_sqrt)
        return [*(part.unconstrained_variable for part in parts), self.nat1, self.prec]

    def start(self) -> tf.Tensor:
        """Take the natural parameters from q; return nothing, []. O(KM³)."""
        prec = precision(tf.convert_to_tensor(self._target.q_sqrt))
        self.nat1.assign(products.matvec(prec, tf.convert_to_tensor(self._target.q_mu)))
        self.prec.assign(tf.reverse(prec, [-1, -2]))
        return tf.zeros([])

    def step(self, X: tf.Tensor, Y: tf.Tensor, least: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        """Do one step where it is sound.

        Parameters
        ----------
        X, Y
            The minibatch, [B, D] and [B, 1].
        least
            What smaller weights wₙ are raised to.
        length
            γ.

        Returns
        -------
            The bound before the step, whether it and its gradient are finite, whether the step was done, and
            how many rows were classified as their labels say, [4].
        """
        return self._step(X, Y, least, length, self.moved)

    def step_held(self, X: tf.Tensor, Y: tf.Tensor, least: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        """Do a step that leaves the hyperparameters; see `step`."""
        return self._step(X, Y, least, length, self._q)

    def steps(
        self, rows: tf.Tensor, X: tf.Tensor, Y: tf.Tensor, least: tf.Tensor, lengths: tf.Tensor
    ) -> tf.Tensor:
        """Do steps on minibatches until one is not sound.

        Parameters
        ----------
        rows
            Row numbers of each minibatch, [S, B].
        X, Y
            The data, [N, D] and [N, 1].
        least
            See `step`.
        lengths
            γ of each step, [S].

        Returns
        -------
            The mean of the bounds before the steps, whether all were done, and how many rows of each
            minibatch were classified as their labels say, [2 + S].
        """
        return self._steps(rows, X, Y, least, lengths, self.moved)

    def steps_held(
        self, rows: tf.Tensor, X: tf.Tensor, Y: tf.Tensor, least: tf.Tensor, lengths: tf.Tensor
    ) -> tf.Tensor:
        """Do steps that leave the hyperparameters; see `steps`."""
        return self._steps(rows, X, Y, least, lengths, self._q)

    def _steps(
        self,
        rows: tf.Tensor,
        X: tf.Tensor,
        Y: tf.Tensor,
        least: tf.Tensor,
        lengths: tf.Tensor,
        moving: Sequence[tf.Variable],
    ) -> tf.Tensor:
        number = lengths.shape[0]

        def turn(k: tf.Tensor, _: tf.Tensor, values: tf.Tensor, correct: tf.Tensor) -> Any:
            batch = tf.gather(X, rows[k]), tf.gather(Y, rows[k])
            value, *flags, right = tf.unstack(self._step(*batch, least, lengths[k], moving))
            at = tf.one_hot(k, number, dtype=value.dtype)
            return k + 1, tf.reduce_all([flag > 0.0 for flag in flags]), values + value, correct + right * at

        none = tf.zeros([], lengths.dtype)
        _, sound, values, correct = tf.while_loop(
            lambda k, sound, *_: sound & (k < number),
            turn,
            (0, tf.constant(True), none, tf.zeros_like(lengths)),
            parallel_iterations=1,
        )
        return tf.concat([[values / number, tf.cast(sound, none.dtype)], correct], axis=0)

    def _step(
        self, X: tf.Tensor, Y: tf.Tensor, least: tf.Tensor, length: tf.Tensor, moving: Sequence[tf.Variable]
    ) -> tf.Tensor:
        value, finite, sums = self._look(X, Y, least, moving)
        sound = finite & self._turn(sums, length, finite) if self._natural else finite
        if moving:
            tf.cond(sound, lambda: self._descend(sums.gradient, moving), lambda: False)
        flags = (tf.cast(part, value.dtype) for part in (finite, sound))
        return tf.stack([value, *flags, sums.correct])

    def _look(
        self, X: tf.Tensor, Y: tf.Tensor, least: tf.Tensor, moving: Sequence[tf.Variable]
    ) -> tuple[tf.Tensor, tf.Tensor, Sums]:
        """Return the bound, whether all is finite, and the sums, their gradient that of the bound."""
        scale = self._target.scale(X)
        if self._shards is None:
            sums = self._sums(X, Y, scale, least, moving)
        else:

            def part(rows: tf.Tensor) -> Sums:
                return total(self._sums(tf.gather(X, rows), tf.gather(Y, rows), scale, least, moving))

            sums = self._shards.equal(self._shards.run(part, self._shards.rows))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(moving)
            kl = self._target.prior_kl()
            shared = self._target.log_prior_density() - kl
        by_shared = tape.gradient(shared, moving, unconnected_gradients="zero")
        sums = sums._replace(gradient=[a + b for a, b in zip(sums.gradient, by_shared, strict=True)])
        value = sums.value + shared
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(part)) for part in (value, *sums.gradient)])
        return value, finite, sums

    def _sums(
        self, X: tf.Tensor, Y: tf.Tensor, scale: tf.Tensor, least: tf.Tensor, moving: Sequence[tf.Variable]
    ) -> Sums:
        """Return the sums over the rows X [b, D], Y [b, 1]."""
        target = self._target
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(moving)
            prior = target.prior(X)
            mean, var = target.marginals(prior)
        with tf.GradientTape(watch_accessed_variables=False) as likelihood:
            likelihood.watch([mean, var, *moving])
            value = scale * tf.reduce_sum(target.expectations(X, Y, mean, var))
        by_mean, by_var, *direct = likelihood.gradient(
            value, [mean, var, *moving], unconnected_gradients="zero"
        )
        gram, pull, adjoints = None, None, [(mean, by_mean), (var, by_var)]
        if self._natural:
            weight = tf.maximum(site_weights(by_var, target.q_sqrt.shape[0]), least)
            gram = triangular.weighted_gram(prior.A[:, ::-1], weight)
            pull = products.matvec(prior.A, by_mean + weight * (mean - prior.mean))
            adjoints += self._further_adjoints(prior, gram, pull)
        parts, upstream = map(list, zip(*adjoints, strict=True))
        indirect = tape.gradient(parts, moving, upstream, unconnected_gradients="zero")
        gradient = [a + b for a, b in zip(direct, indirect, strict=True)]
        return Sums(value, tf.cast(target.num_correct(Y, mean), value.dtype), gradient, gram, pull)

    def _further_adjoints(
        self, prior: Projection, gram: tf.Tensor, pull: tf.Tensor
    ) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Return parts of the prior with the gradient of the bound that comes by q: none, which is held."""
        return []

    def _turn(self, sums: Sums, length: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
        """Take the natural-gradient step if it is safe; return whether it is, []."""
        *new, safe = self._natural_step(sums.gram, sums.pull, length)
        for variable, value in zip((self.nat1, self.prec), new[:2], strict=True):
            variable.assign(tf.where(finite & safe, value, variable))
        for parameter, value in zip((self._target.q_mu, self._target.q_sqrt), new[2:], strict=True):
            parameter.assign(tf.where(finite & safe, value, parameter))
        return safe

    def _natural_step(self, gram: tf.Tensor, pull: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return the natural parameters and the moments after a step, and whether it is safe. O(KM³)."""
        pull, gram = tf.ensure_shape(pull, self.nat1.shape), tf.ensure_shape(gram, self.prec.shape)
        *new, finite = natural_step(self.nat1, self.prec, gram, pull, length)
        before, after = (tf.reduce_sum(tf.square(r), axis=[-2, -1]) for r in (self._target.q_sqrt, new[-1]))
        safe = tf.reduce_all(after <= before / (1.0 - tf.minimum(1.1 * length, 0.99)))
        return *new, finite & safe

    def _descend(self, gradient: Sequence[tf.Tensor], moving: Sequence[tf.Variable]) -> bool:
        self._optimizer.apply_gradients(
            (-part, variable) for part, variable in zip(gradient, moving, strict=True)
        )
        return True
