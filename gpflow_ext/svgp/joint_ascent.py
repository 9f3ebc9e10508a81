"""L-BFGS on a whitened Gaussian q(v) and the hyperparameters together, for many rows.

Where K functions of N rows are many, the optimal q of `svgp.whole_data` takes 50 to 100 passes over the data
in each evaluation. Here an evaluation is one pass. The coordinates are those of q next to the present one,

    E[v] = E₀ + R₀δ,    Var[v] = RRᵀ,    R = R₀T

with lower triangular T, whose diagonal moves by its logarithms. In them the bound bends alike in all
directions of q, since near the optimum its Hessian there is close to −I. After a part of the run steps of
`svgp.whole_data` bring q nearer to its optimum, and the next part has the coordinates of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gpflow
import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.data.parts import parts
from gpflow_ext.sites import products
from gpflow_ext.svgp.natural_gradient import Minibatch, WhitenedVariational
from gpflow_ext.svgp.whitened_normal import divergence, marginals
from gpflow_ext.training import deadline, lbfgs
from gpflow_ext.training.hyperparameters import HyperparameterAscent
from gpflow_ext.training.solver import Progress, SiteSolver

ITERATIONS, UPDATES = 60, 10  # of L-BFGS in a step, and steps of q after them
GAIN = 1e-3  # relative, of a step that ends a fit: inducing inputs creep along a flat ridge for ever
_MANY = 10_000  # latent values from which it is used
_LARGEST = 2**20  # numbers in the factors of q up to which it is
_UNIT, _INPUT_UNIT = 0.1, 0.2  # of hyperparameters, beside 1 of q: the bound of many rows bends more in them


def is_for(target: WhitenedVariational, X: Any) -> bool:
    """Tell whether inputs X [N, D] are many enough, and q small enough."""
    return len(X) * target.q_mu.shape[1] >= _MANY and math.prod(target.q_sqrt.shape) <= _LARGEST


class DataSolver(SiteSolver, Protocol):
    """A `SiteSolver` of a whitened model on all its data."""

    target: WhitenedVariational
    data: Minibatch
    jit_compile: bool


class JointBound(tf.Module):
    """Functions to compile: the bound next to the present q(v), with its gradient.

    Parameters
    ----------
    target
        The model.
    variables
        Its hyperparameters.
    """

    def __init__(self, target: WhitenedVariational, variables: Sequence[tf.Variable]) -> None:
        super().__init__()
        self._target = target
        q = target.q_mu, target.q_sqrt
        self.shift, self.turn = (tf.Variable(tf.zeros(p.shape, p.dtype), trainable=False) for p in q)
        self.moved = [self.shift, self.turn, *variables]

    def evaluate(self, X: tf.Tensor, Y: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the bound, [], and its gradient in δ, T and the hyperparameters. O(KM²N + KM³)."""
        target = self._target
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.moved)
            mean, root = self._q()
            fit = target.expectations(X, Y, *marginals(target.prior(X), mean, root))
            value = target.scale(X) * tf.reduce_sum(fit) - divergence(mean, root) + target.log_prior_density()
        return value, tape.gradient(value, self.moved, unconnected_gradients="zero")

    def take(self) -> tf.Tensor:
        """Make the q that was moved to the present one; return nothing, []."""
        for parameter, new in zip((self._target.q_mu, self._target.q_sqrt), self._q(), strict=True):
            parameter.assign(new)
        for variable in (self.shift, self.turn):
            variable.assign(tf.zeros_like(variable))
        return tf.zeros([])

    def _q(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return E[v], [M, K], and R, [1 or K, M, M]."""
        mean, root = (tf.convert_to_tensor(part) for part in (self._target.q_mu, self._target.q_sqrt))
        lower = tf.linalg.band_part(self.turn, -1, 0)
        lower = tf.linalg.set_diag(lower, tf.exp(tf.linalg.diag_part(self.turn)))
        return mean + products.matvec(root, self.shift), tf.matmul(root, lower)


class JointRun(tf.Module):
    """A run over q and the hyperparameters in parts, each of which begins without memory.

    Parameters
    ----------
    bound
        The bound.
    data
        X [N, D] and Y [N, P].
    parameters, inputs, units
        See `LogSpace`; the units are those of the hyperparameters.
    settle
        Brings q nearer to its optimum before the first part.
    arrived
        Called where a part has left the model.
    jit_compile
        Compile with XLA.
    """

    at_latest = barred = False  # see `lbfgs.Run`

    def __init__(
        self,
        bound: JointBound,
        data: Minibatch,
        parameters: Sequence[gpflow.Parameter],
        inputs: Sequence[tf.Variable],
        units: Sequence[Any],
        settle: Callable[[], Any],
        arrived: Callable[[], None],
        jit_compile: bool,
    ) -> None:
        super().__init__()
        self._bound, self._data, self._parameters, self._inputs = bound, data, parameters, inputs
        self._units, self._settle, self._arrived = units, settle, arrived
        self._compiled = Compiled(bound, jit_compile, batches=True)
        self.begun, self.ended = (tf.Variable(False, trainable=False) for _ in range(2))
        self.best = tf.Variable(math.nan, dtype=tf.float64, trainable=False)

    @property
    def variables(self) -> list[tf.Variable]:
        """What a part changes besides the model."""
        return [self.begun, self.ended, self.best]

    def restart(self) -> None:
        """Begin a new run where the model is."""
        self.begun.assign(False)

    def climb(self, iterations: int) -> bool:
        """Do a part, and leave the model at its best point; return whether it is no worse.

        The first part, of which each start has one, is a third as long: it chooses among the starts.
        """
        if not self.begun:
            self._settle()
            self.begun.assign(True)
            iterations //= 3
        raised = lbfgs.climb(
            self._bound.moved,
            self._evaluate,
            iterations,
            parameters=self._parameters,
            arrived=self._arrive,
            inputs=self._inputs,
            units=[1.0, 1.0, *self._units],
            pairs=iterations,
        )
        self._compiled(self._bound.take)
        self._arrived()
        return raised

    def _evaluate(self) -> tuple[float, Sequence[tf.Tensor]]:
        value, gradient = self._compiled(self._bound.evaluate, *self._data)
        return float(value), gradient

    def _arrive(self, value: float) -> None:
        self.best.assign(value)
        if deadline.current().cuts():
            raise StopIteration


class JointAscent(HyperparameterAscent):
    """The ascent on all data by a `JointRun`; see `HyperparameterAscent`."""

    solver: DataSolver

    def _new_run(
        self, inputs: Sequence[tf.Variable], units: Sequence[Any] | None, tolerance: float, in_graph: Any
    ) -> JointRun:
        solver = self.solver
        bound = JointBound(solver.target, self._variables)
        own = [1.0] * len(self._variables) if units is None else units
        places = {id(variable) for variable in inputs}
        each = zip(self._variables, own, strict=True)
        scaled = [(_INPUT_UNIT if id(variable) in places else _UNIT) * unit for variable, unit in each]
        of_model = parts(self._model, gpflow.Parameter), inputs, scaled
        return JointRun(bound, solver.data, *of_model, self._near, self._arrive, solver.jit_compile)

    def _near(self) -> Progress:
        return Progress(*self.solver.evaluate(UPDATES, self._stationarity)[:2])

    def _settle(self) -> Progress:
        """Bring q nearer to its optimum, or where the step has gained little to it."""
        found, before = self._near(), float(self.last[0])
        return super()._settle() if found.objective - before <= GAIN * abs(found.objective) else found
