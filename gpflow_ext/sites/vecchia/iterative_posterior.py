"""GPflow's cached posterior of a Vecchia prior that is solved by iteration."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gpflow_ext.numerics import philox
from gpflow_ext.sites.vecchia.posterior import VecchiaPosterior
from gpflow_ext.sites.vecchia.rows import DTYPE

DRAWS = 2  # for each probe


class IterativePosterior(VecchiaPosterior):
    """GPflow's cached posterior, its variances at the data those of draws from q(f).

    That is the mean square of S draws, with a standard error of √(2/S) of itself; the draws are always the
    same. Means are exact to the tolerance of the solver.
    """

    _model: Any  # whose prior is an `IterativeVecchia`

    def _variance(self, system: Any) -> tf.Tensor:
        """Return the variances at the data, [N, L]."""
        options = self._model.structure.options
        seeds = iter(philox.split(tf.constant([options.seed, 2]), 2 * self._model.num_latent_gps))

        def normal(shape: Any) -> tf.Tensor:
            return philox.normal(shape, next(seeds), DTYPE)

        drawn = system.draw(tf.zeros_like(system.prec), DRAWS * options.probes, normal)
        return tf.reduce_mean(drawn**2, axis=-1)
