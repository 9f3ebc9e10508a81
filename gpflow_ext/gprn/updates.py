"""The computations of training a regression network, compiled once for each structure."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.data.parts import parts
from gpflow_ext.gprn import network, renewal
from gpflow_ext.gprn.model import GPRNTensor
from gpflow_ext.training import lbfgs
from gpflow_ext.training.at_values import Objective, differentiated, evaluated
from gpflow_ext.training.lbfgs_in_graph import AnyRun, Climb, GraphRun, if_wanted
from gpflow_ext.training.log_space import LogSpace, inducing_inputs
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.loss import Raised

MOVES = "sweep", "nodes", "sites"  # from q(F), known nodes or other sites, each given the optimal q(W)
BEGINNINGS = "own", "drawn", "moments"  # of q, of other draws, and by the method of moments
_PREDICTED_FROM = ("_outputs", "_pattern")  # what predictions alone read


class NetworkUpdates:
    """Functions to compile, of a network's variables and data without any state of their own.

    Parameters
    ----------
    model
        The network.
    variables
        In what the bound is differentiated.
    optimizer
        A tf_keras optimiser, built on variables.
    moved
        What it moves, some of the variables.
    """

    def __init__(
        self,
        model: GPRNTensor,
        variables: Sequence[tf.Variable],
        optimizer: Any | None = None,
        moved: Sequence[tf.Variable] = (),
    ) -> None:
        self._model, self._variables = trained(model), list(variables)
        self._optimizer, self._moved = optimizer, list(moved)

    def value(self) -> tf.Tensor:
        """Return the bound and the log density of the priors, []."""
        return self._model.elbo() + self._model.log_prior_density()

    def evaluate(self, values: tf.Tensor) -> tf.Tensor:
        """Return the same and its gradient where the variables have values, see `evaluated`."""
        return evaluated(lambda: differentiated(self.value, self._variables), self._variables, values)

    def independent_value(self) -> tf.Tensor:
        """Return the objective of independent regressions, []."""
        return self._model.independent_log_likelihood() + self._model.log_prior_density()

    def independent(self, values: tf.Tensor) -> tf.Tensor:
        """Return the same and its gradient where `independent_variables` have values, see `evaluated`."""
        own = independent_variables(self._model)
        return evaluated(lambda: differentiated(self.independent_value, own), own, values)

    def move(self, kind: tf.Tensor, F: tf.Tensor, nat1: tf.Tensor, prec: tf.Tensor) -> tuple[()]:
        """Sweep, or go to where known nodes F [N, K] lead, or sites [N, K] and [N, K, K]; see `MOVES`."""
        q, prior = self._model.q, self._model.prior()
        nodes = [
            lambda: q.nodes(prior),
            lambda: network.known(F),
            lambda: network.nodes(prior.nodes, nat1, prec, prior.residuals[1]),
        ]
        q.update(prior, tf.switch_case(kind, nodes))
        return ()

    def begun(self, kind: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        """Return nodes to start from, [N, K], see `BEGINNINGS`; ``noise`` [N or M, K − 1] is for draws."""
        model, prior = self._model, self._model.prior()
        q, weights = model.q, (prior.weights, prior.noise)
        nodes = [lambda: q.start(prior), lambda: network.start(renewal.drawn(prior, noise), *weights)]
        if prior.inducing is None:
            gram = tf.matmul(prior.weights, prior.weights, transpose_b=True)
            of_targets = q.seen(prior.scales), gram, prior.noise, model.num_latent
            nodes.append(lambda: network.moment_nodes(*of_targets))
        return tf.switch_case(kind, nodes)

    def descend(self, *batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """Do one step of the optimiser, on all outputs or a minibatch; return the objective before it, []."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._moved)
            loss = -(self._model.elbo(*batch) + self._model.log_prior_density())
        gradient = tape.gradient(loss, self._moved, unconnected_gradients="zero")
        self._optimizer.apply_gradients(zip(gradient, self._moved, strict=True))  # type: ignore[union-attr]
        return -loss


class Updates:
    """The methods of `NetworkUpdates`, compiled, at the current values of a network.

    Parameters
    ----------
    model, variables, optimizer, moved
        As for `NetworkUpdates`.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.
    in_graph
        See `recipe.GPRNOptions`.
    """

    def __init__(
        self,
        model: GPRNTensor,
        variables: Sequence[tf.Variable],
        optimizer: Any | None = None,
        moved: Sequence[tf.Variable] = (),
        jit_compile: bool | None = None,
        in_graph: bool | None = None,
    ) -> None:
        self._model, self._of = model, NetworkUpdates(model, variables, optimizer, moved)
        self.jit_compile, self.in_graph, self.held = jit_compile, in_graph, model.variables
        # The number of data is that of rows of variables, which are static.
        self._compiled = Compiled(self._of, resolve_jit(jit_compile), rows=None)
        self.evaluate = Objective(functools.partial(self._compiled.bound, self._of.evaluate), variables)

    def kept(self) -> list[tf.Tensor]:
        """Return the values of all variables of the network, ``held``."""
        return [variable.read_value() for variable in self.held]

    def value(self) -> float:
        """See `NetworkUpdates`."""
        return float(self._compiled(self._of.value))

    def sweep(self) -> None:
        """Move q(F) to its optimum given the optimal q(W)."""
        self._move("sweep")

    def start_at(self, F: tf.Tensor) -> None:
        """Move q(F) to its optimum given the q(W) that is optimal for known nodes [N, K]."""
        self._move("nodes", F=F)

    def start_from(self, nat1: tf.Tensor, prec: tf.Tensor) -> None:
        """Move q(F) to its optimum given the q(W) that is optimal for sites [N, K] and [N, K, K]."""
        self._move("sites", nat1=nat1, prec=prec)

    def _move(self, kind: str, **given: tf.Tensor) -> None:
        """Do one of `MOVES`; what it is not given it does not read."""
        q = self._model.q
        shapes = {"F": q.location.shape, "nat1": q.location.shape, "prec": q.prec.shape}
        parts = [given.get(name, tf.zeros(shape, q.location.dtype)) for name, shape in shapes.items()]
        self._compiled(self._of.move, MOVES.index(kind), *parts)

    def begun(self, kind: str, seed: int = 0) -> tf.Tensor:
        """Return nodes to start from, [N, K], by the name of one of `BEGINNINGS`."""
        model, points = self._model, self._model.points
        noise = np.random.default_rng(seed).standard_normal([points.shape[0], model.num_latent - 1])
        return self._compiled(self._of.begun, BEGINNINGS.index(kind), tf.constant(noise, points.dtype))

    def descend(self, *batch: tuple[tf.Tensor, tf.Tensor]) -> float:
        """See `NetworkUpdates`."""
        return float(self._compiled(self._of.descend, *batch))

    def climb(self, variables: Sequence[tf.Variable]) -> AnyRun:
        """Return a run on the bound in some of the variables that it is differentiated in."""
        how = self.in_graph, self.jit_compile
        return climb(variables, self._model, self.evaluate, self._of.value, *how)

    def independent_climb(self) -> AnyRun | None:
        """Return a run on independent regressions, if anything of these is trainable."""
        own, how = independent_variables(self._model), (self.in_graph, self.jit_compile)
        if not own:
            return None
        objective = Objective(functools.partial(self._compiled.bound, self._of.independent), own)
        return climb(own, self._model, objective, self._of.independent_value, *how)


def climb(
    variables: Sequence[tf.Variable],
    model: GPRNTensor,
    evaluate: Objective,
    objective: Callable[[], tf.Tensor],
    in_graph: bool | None,
    jit_compile: bool | None,
) -> AnyRun:
    """Return a run of L-BFGS on some variables of a network, in the coordinates of `LogSpace`.

    Parameters
    ----------
    variables
        What moves: some of those that the gradient is in.
    model
        What they belong to.
    evaluate, objective
        The objective as the host evaluates it, and as the graph does.
    in_graph
        See `recipe.GPRNOptions`.
    jit_compile
        Compile with XLA, in the graph; ``None`` means on GPU and TPU only.
    """
    space = LogSpace(variables, parts(model, gpflow.Parameter), inducing_inputs(model))

    def build() -> GraphRun:
        return GraphRun(
            Climb(Raised(objective, variables), space, lbfgs.SMALLEST_GAIN), jit_compile, rows=None
        )

    return if_wanted(in_graph, build) or lbfgs.Run(space, evaluate, lbfgs.SMALLEST_GAIN)


def independent_variables(model: GPRNTensor) -> list[tf.Variable]:
    """Return the trainable variables of independent regressions: of k_w, σ² and the scales of the outputs."""
    parts: list[tf.Module] = [model.weight_kernel, model.likelihood]
    parts += [part for part in (model.output_amplitude, model.output_noise) if part is not None]
    return [variable for part in parts for variable in part.trainable_variables]


def node_variables(model: GPRNTensor) -> list[tf.Variable]:
    """Return the trainable variables of k_f and of the nugget.

    The nodes are N·K numbers, and their prior is worth some nats of each: L-BFGS on everything settles, in
    terms of the N·D targets, before it has moved. Yet all outputs are predicted with it. So these climb alone
    too.
    """
    return [*model.kernel.trainable_variables, *model.nugget.trainable_variables]


def others(variables: Sequence[tf.Variable], without: Sequence[tf.Variable]) -> list[tf.Variable]:
    """Return the variables that are not among those to be left out."""
    left_out = {id(variable) for variable in without}
    return [variable for variable in variables if id(variable) not in left_out]


def trained(model: GPRNTensor) -> GPRNTensor:
    """Return the same model, its variables shared, without what predictions alone read."""
    found, q = copy.copy(model), copy.copy(model.q)
    for part in (found, q):
        for name in _PREDICTED_FROM:
            part.__dict__.pop(name, None)
    found.__dict__["q"] = q
    return found
