"""Coregionalisation: a network of constant, known weights, whose evidence is in closed form."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.gprn import blocks, network
from gpflow_ext.gprn.outputs import known
from gpflow_ext.gprn.updates import climb, trained
from gpflow_ext.training.at_values import Objective, differentiated, evaluated


class Sites(NamedTuple):
    """Sites of the nodes: nat1 [N, K] and prec [N, K, K]."""

    nat1: tf.Tensor
    prec: tf.Tensor


class Coregionalised(tf.Module):
    """y_n = Λf_n + ε, with the nodes and the noise of a network (linear coregionalisation).

    Given the nodes' prior the targets are sites on them, precₙ = Σ_d o_nd λ_dλ_dᵀ/σ_d² and nat1ₙ = Σ_d o_nd
    y_nd λ_d/σ_d², and with R the factor of I + Σₙ lₙlₙᵀ ⊗ precₙ, lₙ rows of L_f, and h = Σₙ lₙ ⊗ nat1ₙ

        log p(Y) = −½ Σ_nd o_nd [log 2πσ_d² + y_nd²/σ_d²] + ½‖R⁻¹h‖² − log|R|

    Parameters
    ----------
    model
        The network; k_f, the nugget and the noise are its own.
    Y
        Targets [N, D], NaN where one is missing.
    loadings
        Λ to start from, [D, K].
    """

    def __init__(self, model: Any, Y: Any, loadings: Any) -> None:
        super().__init__()
        self.model = trained(model)
        self.data = known(tf.convert_to_tensor(Y))
        self.loadings = tf.Variable(loadings, dtype=self.data[0].dtype)

    @property
    def variables_of_it(self) -> list[tf.Variable]:
        """What is trained: Λ, and what is trainable of k_f, the nugget and the noise."""
        model = self.model
        parts: list[tf.Module | None] = [model.kernel, model.nugget, model.likelihood, model.output_noise]
        own = [variable for part in parts if part is not None for variable in part.trainable_variables]
        return [self.loadings, *own]

    def sites(self) -> Sites:
        """Return what the targets are to the nodes."""
        Y, there = self.data
        share = there / self.model.noise()
        prec = tf.einsum("nd,dk,dl->nkl", share, self.loadings, self.loadings)
        return Sites(tf.matmul(share * Y, self.loadings), prec)

    def log_evidence(self, chol: tf.Tensor) -> tf.Tensor:
        """Return log p(Y) for L_f, []. O((NK)³)."""
        (Y, there), (nat1, prec) = self.data, self.sites()
        q, noise = network.node_factor(chol, nat1, prec), self.model.noise()
        explained = tf.reduce_sum(blocks.pulled(chol, nat1) * q.mean)
        log_det = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(q.chol)))
        squares = tf.reduce_sum(there * (tf.math.log(2.0 * np.pi * noise) + tf.square(Y) / noise))
        return 0.5 * (explained - squares) - log_det

    def objective(self) -> tf.Tensor:
        """Return the log evidence with the log density of the priors, []."""
        return self.log_evidence(self.model.prior().nodes) + self.model.log_prior_density()

    def evaluate(self, values: tf.Tensor) -> tf.Tensor:
        """Return the same and its gradient where what is trained has values, see `evaluated`."""
        variables = self.variables_of_it
        return evaluated(lambda: differentiated(self.objective, variables), variables, values)

    def fit(self, iterations: int, in_graph: bool | None = None) -> None:
        """Climb the evidence by L-BFGS; ``in_graph`` is that of `recipe.GPRNOptions`."""
        compiled, variables = Compiled(self, False, rows=None), self.variables_of_it
        evaluate = Objective(functools.partial(compiled.bound, self.evaluate), variables)
        run = climb(variables, self.model, evaluate, self.objective, in_graph, False)
        run.climb(iterations)
