"""GPflow's cached posterior of a Vecchia prior that is solved by iteration."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gpflow_ext.functions.given import Given
from gpflow_ext.numerics import philox
from gpflow_ext.sites.posterior import check_precisions
from gpflow_ext.sites.vecchia import conditionals
from gpflow_ext.sites.vecchia.posterior import VecchiaPosterior
from gpflow_ext.sites.vecchia.rows import DTYPE

DRAWS = 2  # for each probe
SIDE = 16  # draws that are taken side by side, at most


class IterativePosterior(VecchiaPosterior):
    """GPflow's cached posterior, its variances at the data those of a factor or of draws from q(f).

    A factor takes as long as the draws, but more memory. Without one, a variance is the mean square of S
    draws, with a standard error of √(2/S) of itself; the draws are always the same. Means are exact to the
    tolerance of the solver.
    """

    _model: Any  # whose prior is an `IterativeVecchia`

    def functions(self) -> Given:
        """See `SamplesFunctions`; a negative precision has no noise to draw."""
        check_precisions(self._model.latent_sites.prec, type(self._model).__name__)
        return super().functions()

    def _variance(self, system: Any) -> tf.Tensor:
        """Return the variances at the data, [N, L]."""
        tree = self._model.structure.factored
        if tree is not None:
            return conditionals.factored(system.prior, tree).factorise(system.prec).variance()
        return self._of_draws(system)

    def _of_draws(self, system: Any) -> tf.Tensor:
        options, latents = self._model.structure.options, self._model.num_latent_gps
        seed, number = tf.constant([options.seed, 2]), DRAWS * options.probes
        side = next(size for size in range(SIDE, 0, -1) if number % size == 0)
        mean = tf.zeros_like(system.prec)

        def some(k: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            seeds = iter(philox.split(philox.fold_in(seed, k), 2 * latents))
            drawn = system.draw(mean, side, lambda shape: philox.normal(shape, next(seeds), DTYPE))
            return k + 1, total + tf.reduce_sum(drawn**2, axis=-1)

        begin = tf.constant(0), tf.zeros(system.prec.shape, DTYPE)
        _, total = tf.while_loop(lambda k, _: k < number // side, some, begin, parallel_iterations=1)
        return total / number
