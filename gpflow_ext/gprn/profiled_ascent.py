"""L-BFGS on the profiled bound of the tensor-normal posterior, in coordinates that suit the targets."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.data.parts import parts
from gpflow_ext.gprn import blocks, network, profiled, starts
from gpflow_ext.gprn.collapsed import CollapsedPosterior
from gpflow_ext.gprn.conditional import NetworkPrior
from gpflow_ext.gprn.model import GPRNTensor
from gpflow_ext.gprn.outputs import BLOCK, known
from gpflow_ext.gprn.tensor import TensorPosterior
from gpflow_ext.gprn.updates import Updates, climb, node_variables, others, trained
from gpflow_ext.training import lbfgs
from gpflow_ext.training.at_values import Objective, differentiated, evaluated
from gpflow_ext.training.lbfgs_in_graph import Climb, GraphRun, if_wanted
from gpflow_ext.training.log_space import LogSpace
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.loss import Raised
from gpflow_ext.training.solver import Progress
from gpflow_ext.training.starts import OWN, Tried, are_enough, best
from gpflow_ext.training.starts import assign as assign_values

COLLAPSED = "the collapsed posterior's best starts"
_LEAST_DIAGONAL = 2e-12  # of a factor of the tensor posterior
_UNIT = 0.7  # of a hyperparameter, next to one of ξ


class Profile(tf.Module):
    """What is trained of q(F) and q(W), see `profiled`; the rest is at its optimum.

    Parameters
    ----------
    patterns
        The targets.
    num_latent
        K.
    cells
        T, the number of cells of the grid of outputs.
    separate
        Whether each node has a covariance over the rows of its own.
    """

    def __init__(
        self, patterns: network.Patterns, num_latent: int, cells: int, separate: bool = False
    ) -> None:
        super().__init__()
        N, dtype = patterns.observed.shape[1], patterns.root.dtype
        self.separate = separate
        self.data, self.cells = tuple(patterns[:3]), float(cells)
        self.C = tf.Variable(tf.eye(N, dtype=dtype), trainable=False)
        self.xi = tf.Variable(tf.zeros([N, num_latent], dtype))
        none = tf.zeros([N, num_latent if separate else 1], dtype)
        self.alpha, self.delta = tf.Variable(none), tf.Variable(none, trainable=separate)
        self.omega, self.column = (tf.Variable(tf.zeros([num_latent] * 2, dtype)) for _ in range(2))

    @property
    def patterns(self) -> network.Patterns:
        """The targets."""
        return network.Patterns(*self.data)

    @property
    def trained(self) -> list[tf.Variable]:
        """The variables that move."""
        return [self.xi, self.alpha, self.omega, self.column, *([self.delta] if self.separate else [])]

    @property
    def units(self) -> list[float]:
        """Standard deviations that the bound leaves them, about: of factors of N·K and T·N numbers."""
        N, _ = self.xi.shape
        own = [self.cells**-0.5] if self.separate else []
        return [1.0, _UNIT, (N / 2.0) ** -0.5, (self.cells * N / 2.0) ** -0.5, *own]

    def factors(self) -> profiled.Factors:
        """Return α, the factors of Ω and Γ_K, and δ."""
        omega, column = (_positive(tf.convert_to_tensor(raw)) for raw in (self.omega, self.column))
        alpha, delta = map(tf.convert_to_tensor, (self.alpha, self.delta))
        return profiled.Factors(alpha, omega, column, delta)

    def mean(self, prior: NetworkPrior) -> tf.Tensor:
        """Return M [N, K]."""
        return profiled.whitened(prior.nodes, tf.convert_to_tensor(self.C), tf.convert_to_tensor(self.xi))

    def bound(self, prior: NetworkPrior) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the bound and t."""
        return profiled.bound(self.patterns, prior, self.mean(prior), self.factors(), self.cells)

    def locate(self, prior: NetworkPrior, M: tf.Tensor) -> None:
        """Take ξ for M, in the coordinates of the information that the targets hold there."""
        gram, F = tf.matmul(prior.weights, prior.weights, transpose_b=True), blocks.applied(prior.nodes, M)
        C = profiled.scale_matrix(network.information(self.patterns, gram, F, prior.noise))
        self.C.assign(C)
        self.xi.assign(profiled.located(prior.nodes, C, M))

    def begin(self, prior: NetworkPrior, prec: tf.Tensor, M: tf.Tensor) -> None:
        """Begin at M [N, K], with all else at its optimum for sites of the nodes [N, K, K]."""
        self.locate(prior, M)
        alpha, *lower, delta = profiled.begin(self.patterns, prior, prec, M, self.cells, self.separate)
        self.alpha.assign(alpha)
        self.delta.assign(delta)
        for raw, value in zip((self.omega, self.column), lower, strict=True):
            raw.assign(tf.linalg.set_diag(value, tf.math.log(tf.linalg.diag_part(value))))


class ProfiledObjective:
    """Functions to compile, as `updates.NetworkUpdates`."""

    def __init__(self, model: GPRNTensor, profile: Profile, variables: Sequence[tf.Variable]) -> None:
        self._model, self._profile, self._variables = model, profile, list(variables)

    def objective(self) -> tf.Tensor:
        """Return the bound and the log density of the priors, []."""
        return self._profile.bound(self._model.prior())[0] + self._model.log_prior_density()

    def evaluate(self, values: tf.Tensor) -> tf.Tensor:
        """Return the same and its gradient where the variables have values, see `evaluated`."""
        return evaluated(lambda: differentiated(self.objective, self._variables), self._variables, values)

    def locate(self) -> tuple[()]:
        """Renew the coordinates of M."""
        prior = self._model.prior()
        self._profile.locate(prior, self._profile.mean(prior))
        return ()


class ProfiledAscent(tf.Module):
    """Rounds of L-BFGS on the profiled bound and all hyperparameters, each in renewed coordinates.

    It begins at the nodes of the tensor posterior or at the best start of the collapsed one, whichever leads
    higher in a round. After each round the tensor posterior is at its optimum.

    Parameters
    ----------
    model
        With a tensor posterior.
    settings
        See `starts.begin`.
    iterations
        In a round.
    seed
        Seed of the draws of the starting points.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.
    in_graph
        See `recipe.GPRNOptions`.
    """

    def __init__(
        self,
        model: GPRNTensor,
        settings: Mapping[str, Any],
        iterations: int,
        seed: int,
        jit_compile: bool | None,
        in_graph: bool | None,
    ) -> None:
        super().__init__()
        self._model, self._settings, self._jit, self._in_graph = model, settings, jit_compile, in_graph
        self._iterations = iterations
        self._companion = collapsed(model, seed)
        own: CollapsedPosterior = self._companion.q
        cells = int(np.prod(model.q.output_shape))
        self.profile = Profile(own.patterns, model.num_latent, cells, model.q.has_separate_rows)
        held = {id(variable) for variable in model.q.trainable_variables}
        hypers = [variable for variable in model.trainable_variables if id(variable) not in held]
        nodes = node_variables(model)
        rest = others(hypers, nodes)
        variables = [*nodes, *self.profile.trained, *rest]
        self._of = ProfiledObjective(trained(self._companion), self.profile, variables)
        self._compiled = Compiled(self._of, resolve_jit(jit_compile), rows=None)
        evaluate = Objective(functools.partial(self._compiled.bound, self._of.evaluate), variables)
        self._hypers = hypers
        units = [*[_UNIT] * len(nodes), *self.profile.units, *[_UNIT] * len(rest)]
        space = LogSpace(variables, parts(model, gpflow.Parameter), units=units)

        def build() -> GraphRun:
            of_all = Climb(Raised(self._of.objective, variables), space, lbfgs.SMALLEST_GAIN)
            return GraphRun(of_all, jit_compile, rows=None)

        self.run = if_wanted(in_graph, build) or lbfgs.Run(space, evaluate, lbfgs.SMALLEST_GAIN)
        how = evaluate, self._of.objective, in_graph, jit_compile
        self._node_run = climb(nodes, model, *how) if nodes else None
        self.started = tf.Variable(False, trainable=False)
        self.tried: tuple[Tried, ...] = ()

    @property
    def state(self) -> list[tf.Variable]:
        """See `Solver`."""
        return [self.started, *self.profile.variables]

    def start(self) -> Progress:
        """See `Solver`; there is nothing to read."""
        return Progress(float(self._model.elbo() + self._model.log_prior_density()))

    def step(self) -> Progress:
        """Do a round, and move the posterior to where it ends."""
        if bool(self.started):
            reached = self._round()
        else:
            reached = self._begin()
            self.started.assign(True)
        assigned = assign(self._model.q, self._companion, self.profile)
        return Progress(reached if assigned else np.nan)

    def _begin(self) -> float:
        """Do a first round from each start, and stay at the best end."""
        q, companion, prior = self._model.q, self._companion, self._model.prior()
        here = [variable.read_value() for variable in self._hypers]
        companion.q.update(prior, q.nodes(prior))
        ends = [self._end(OWN, prior, tf.convert_to_tensor(q.node_mean))]
        assign_values(self._hypers, here)
        tried, found = ((), []) if are_enough([ends[0][0]]) else self._collapsed_starts()
        held = companion.variables if found else ()
        for values in found:
            if are_enough([end for end, _ in ends]):
                break
            assign_values(held, values)
            prior = companion.prior()
            ends.append(self._end(COLLAPSED, prior, companion.q.mean(prior)))
        if len(ends) > 1:
            further = [end for end, _ in ends[1:]]
            self.tried = (ends[0][0], further[best(further)], *tried[1:])
        end, values = ends[best([end for end, _ in ends])]
        assign_values(self._moved, values)
        return end.objective

    def _collapsed_starts(self) -> tuple[tuple[Tried, ...], list[list[tf.Tensor]]]:
        """See `starts.climbed`, for the companion; nothing where one start is asked for."""
        number, companion = self._settings["starts"], self._companion
        if number == 1:
            return (), []
        settings = {**self._settings, "starts": None if number is None else number - 1}
        companion.q.restart(companion.prior())
        everything = [*self._hypers, companion.q.location.unconstrained_variable]
        updates = Updates(companion, everything, jit_compile=self._jit, in_graph=self._in_graph)
        return starts.climbed(companion, everything, updates, settings)

    @property
    def _moved(self) -> list[tf.Variable]:
        return [*self._hypers, *self.profile.variables]

    def _end(self, name: str, prior: NetworkPrior, M: tf.Tensor) -> tuple[Tried, list[tf.Tensor]]:
        """Do a round from M [N, K] and the companion's sites; return what it has reached, and where."""
        self.profile.begin(prior, tf.convert_to_tensor(self._companion.q.prec), M)
        return Tried(name, self._round()), [variable.read_value() for variable in self._moved]

    def _round(self) -> float:
        self._compiled(self._of.locate)
        if self._node_run is not None:
            self._node_run.restart()
            self._node_run.climb(self._iterations // 5)
        self.run.restart()
        self.run.climb(self._iterations)
        return float(self.run.best)


def collapsed(model: GPRNTensor, seed: int) -> GPRNTensor:
    """Return a network with a collapsed posterior that shares data, kernels and noise with another one."""
    X, Y = vars(model)["data"]
    parts = model.kernel, model.weight_kernel, model.num_latent
    found = GPRNTensor((X, Y), *parts, seed=seed, output_scales=False)
    found.likelihood, found.nugget = model.likelihood, model.nugget
    return found


def assign(q: TensorPosterior, companion: GPRNTensor, profile: Profile) -> bool:
    """Move a tensor posterior to the optimum of a profile if that is finite, and tell whether it is.

    O(P(NK)³ + N²DK).
    """
    prior, factors = companion.prior(), profile.factors()
    M, (_, t) = profile.mean(prior), profile.bound(prior)
    nodes = profiled.nodes(prior, M, factors)
    smoother = network.weights(profile.patterns, prior.weights, prior.noise, nodes).smoother
    means = []
    for block, pattern in companion.q.blocks(BLOCK):
        of = (
            tf.einsum("dvn,nd->vd", tf.gather(smoother, pattern), known(block)[0])
            if len(smoother) > 1
            else (tf.matmul(smoother[0], known(block)[0]))
        )
        means.append(tf.transpose(tf.reshape(of, [*M.shape, -1]), [0, 2, 1]))
    beta = profiled.beta(profile.patterns, prior, nodes, factors, profile.cells)
    row, *between, column = q.weight_factors
    moved = [
        (q.weight_mean, tf.concat(means, axis=1)),
        (q.node_mean, M),
        (row, _above(row, profiled.row_factor(prior.weights, beta))),
        (column, _above(column, factors.column)),
        (q.node_factors[0], _above(q.node_factors[0], profiled.row_factor(prior.nodes, factors.alpha))),
        (q.node_factors[1], _above(q.node_factors[1], factors.omega)),
    ]
    for i, factor in enumerate(between):
        scale = tf.sqrt(t) if i == 0 else tf.ones([], t.dtype)
        moved.append((factor, _above(factor, scale * tf.eye(factor.shape[0], dtype=t.dtype))))
    if not all(np.isfinite(value).all() for _, value in moved):
        return False
    for parameter, value in moved:
        parameter.assign(value)
    return True


def _above(parameter: gpflow.Parameter, factor: tf.Tensor) -> tf.Tensor:
    """Return a factor in the shape of its parameter, its diagonal bounded from below."""
    factor = tf.reshape(factor, parameter.shape)
    return tf.linalg.set_diag(factor, tf.maximum(tf.linalg.diag_part(factor), _LEAST_DIAGONAL))


def _positive(raw: tf.Tensor) -> tf.Tensor:
    """Return a lower factor whose diagonal is given by logarithms, [K, K]."""
    return tf.linalg.set_diag(tf.linalg.band_part(raw, -1, 0), tf.exp(tf.linalg.diag_part(raw)))
