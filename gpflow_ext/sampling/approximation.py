"""The first step of Hensman et al. (2015, section 3): a Gaussian approximation, from which chains start."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.inducing_variables import MultioutputInducingVariables
from gpflow.kernels import MultioutputKernel
from gpflow.models import SVGP, GPModel

from gpflow_ext.data.arguments import check_kind
from gpflow_ext.sampling.density import FreeForm, FreeFormDensity
from gpflow_ext.training import lbfgs
from gpflow_ext.training.at_values import Objective
from gpflow_ext.training.ends import FitWarning
from gpflow_ext.training.findings import findings
from gpflow_ext.training.lbfgs_in_graph import Climb, GraphRun, if_wanted
from gpflow_ext.training.log_space import LogSpace, inducing_inputs
from gpflow_ext.training.loop import FitResult, Status
from gpflow_ext.training.loss import Loss
from gpflow_ext.training.rising import LastSteps
from gpflow_ext.training.starts import (
    OWN,
    Start,
    Tried,
    assign,
    best,
    check_starts,
    further_starts,
    number_of_starts,
)

STEPS = 500  # of L-BFGS in a stage
_FIRST = 50  # from each of several starts
_AGAIN = "Give more `steps`."
Arrived: TypeAlias = Callable[[float], None]


class Approximated(FreeForm, Protocol):
    """A free-form model that takes over a Gaussian approximation."""

    @property
    def density(self) -> FreeFormDensity:
        """The density."""

    def assign_gaussian(self, svgp: SVGP) -> None:
        """Take over q(v)."""


def gaussian_approximation(
    model: Approximated,
    *,
    steps: int | None = None,
    free_inducing: bool | None = None,
    starts: int | None = None,
    seed: int = 0,
    jit_compile: bool | None = None,
    in_graph: bool | None = None,
) -> FitResult:
    """Fit q(v) = N(m, S) and the most probable hyperparameters of a free-form model.

    L-BFGS maximises the bound of GPflow's ``SVGP`` with the model's own kernel, likelihood and inducing
    points, first with the inducing points held, then with all free. The model's parameters are set to the
    optimum, where chains start (Hensman et al. 2015, section 3).

    Parameters
    ----------
    model
        A `SGPMCFreeForm`.
    steps
        Maximum number of iterations of each of the two stages, 500 by default.
    free_inducing
        Whether there is a second stage; by default if there are fewer inducing points than data and they do
        not share a grid with the data.
    starts
        Number of starting points of the hyperparameters, the model's own among them; see
        `training.site_recipe.SiteOptions`. The first 50 iterations climb from each, and the best goes on.
    seed
        Seed of random starting points.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.
    in_graph
        Whether the iterations are done in the graph, without the host; by default on a GPU or TPU, if the
        bound can be traced. Iterations of one call then have the time at which it returned.

    Returns
    -------
    The bound after each iteration from the best start on, and what was tried.

    Raises
    ------
    ValueError
        If the bound is not finite at the start, for a number of starts or steps below one, or to free the
        points of a grid.

    Warns
    -----
    FitWarning
        If the default number of steps ran out while the bound was still rising.
    """
    check_kind(GPModel, model=model)
    check_starts(starts)
    if steps is not None and steps < 1:
        raise ValueError(f"`steps` must be at least 1; got {steps}.")
    if free_inducing and model.structure is not None:
        raise ValueError(
            "`free_inducing` would move the inducing points off the grid that they share with the data, by "
            "which the bound is computed: leave it out, or give points that form no such grid."
        )
    points = model.inducing_variable
    svgp = SVGP(
        model.kernel,
        model.likelihood,
        points,
        mean_function=model.mean_function,
        num_latent_gps=model.num_latent_gps,
    )
    number = number_of_starts(svgp, starts, model.data[0])
    stages = Stages(model, svgp, STEPS if steps is None else steps, jit_compile, in_graph)
    bound = stages.climb(further_starts(svgp, number - 1, seed, model.data[0]))
    fewer = model.structure is None and len(model.data[0]) > points.num_inducing
    if fewer if free_inducing is None else free_inducing:
        gpflow.set_trainable(points, True)
        try:
            bound = stages.climb()
        finally:
            gpflow.set_trainable(points, False)
    if not np.isfinite(bound):
        raise ValueError(
            "The bound of the Gaussian approximation is not finite where it starts: start from other "
            "hyperparameters, or standardise the data."
        )
    model.assign_gaussian(svgp)
    result = stages.result()
    if stages.slope is not None and steps is None:
        warnings.warn(stages.slope, FitWarning, stacklevel=2)
    return dataclasses.replace(result, notes=(*result.notes, *findings(svgp, model.data)))


class Search(Protocol):
    """Protocol of L-BFGS on a bound."""

    def climb(self, steps: int, arrived: Arrived | None = None, pause: int = 0) -> float:
        """Do some iterations of a new run, and return the bound.

        ``arrived`` is called with the bound after each. In its call after iteration ``pause``, the parameters
        are where that has led.
        """


class OnHost:
    """SciPy's L-BFGS-B."""

    def __init__(
        self, variables: Sequence[tf.Variable], objective: Objective, parameters: Any, inputs: Any
    ) -> None:
        self._variables, self._objective = variables, objective
        self._parameters, self._inputs = parameters, inputs

    def climb(self, steps: int, arrived: Arrived | None = None, pause: int = 0) -> float:
        """See `Search`."""
        parts = {"parameters": self._parameters, "inputs": self._inputs}
        lbfgs.climb(self._variables, self._objective, steps, arrived=arrived, **parts)
        return self._objective()[0]


class InGraph:
    """The same in the graph."""

    def __init__(self, run: GraphRun) -> None:
        self._run = run

    def climb(self, steps: int, arrived: Arrived | None = None, pause: int = 0) -> float:
        """See `Search`."""
        self._run.restart()
        first = max(pause, 0)
        for part in (first, steps - first):
            if part and not self._run.ended:
                self._run.go_on(part, arrived or (lambda bound: None))
        return float(self._run.best)


class Stages:
    """Climbs of L-BFGS on the bound of an SVGP that shares the parts of a model.

    Parameters
    ----------
    model, svgp
        The model, and the SVGP.
    steps
        Iterations of a climb, at most.
    jit_compile, in_graph
        See `gaussian_approximation`.
    """

    def __init__(
        self, model: Approximated, svgp: SVGP, steps: int, jit_compile: bool | None, in_graph: bool | None
    ) -> None:
        self._svgp, self._steps, self._jit_compile, self._in_graph = svgp, steps, jit_compile, in_graph
        bound = Bound(model, svgp)
        self._loss = bound.loss if _is_gpflows(model) else bound.loss_of_outputs
        self._begin, self._rest = time.perf_counter(), True
        self._tried: tuple[Tried, ...] = ()
        self._bounds: list[float] = []
        self._times: list[float] = []
        self.slope: str | None = None  # what is said of a last climb that ended too early

    def climb(self, further: Sequence[Start] = ()) -> float:
        """Climb in all that is trainable, from the best of the starts; return the bound."""
        variables = self._svgp.trainable_variables
        search = self._search(variables)
        if further:
            self._choose(search, variables, further)
        last, first = LastSteps(self._svgp, self._steps, _AGAIN), len(self._bounds)

        def arrived(bound: float) -> None:
            self._bounds.append(bound)
            self._times.append(time.perf_counter() - self._begin)
            last(len(self._bounds) - first, bound)

        bound = search.climb(self._steps, arrived, last.first)
        self._rest = len(self._bounds) - first < self._steps
        trace = np.array(self._bounds[first:]), np.array(self._times[first:])
        self.slope = last.slope(FitResult(*trace, 0, self._status))
        return bound

    def _choose(self, search: Search, variables: Any, further: Sequence[Start]) -> None:
        """Climb some way from each start, the SVGP's own among them, and go to the best end."""
        ends, tried = [], []
        for start in (Start(OWN, [variable.read_value() for variable in variables]), *further):
            assign(variables, start.values)
            tried.append(Tried(start.name, search.climb(min(_FIRST, self._steps))))
            ends.append([variable.read_value() for variable in variables])
        assign(variables, ends[best(tried)])
        self._tried = tuple(tried)

    def _search(self, variables: Sequence[tf.Variable]) -> Search:
        parts = self._svgp.trainable_parameters, inducing_inputs(self._svgp)

        def build() -> GraphRun:
            loss, coordinates = Loss(self._loss, variables), LogSpace(variables, *parts)
            return GraphRun(Climb(loss, coordinates, lbfgs.GAIN, guard=False), self._jit_compile)

        run = if_wanted(self._in_graph, build)
        if run is not None:
            return InGraph(run)
        return OnHost(variables, lbfgs.Evaluation(self._loss, variables, self._jit_compile), *parts)

    @property
    def _status(self) -> Status:
        return Status.CONVERGED if self._rest else Status.MAX_STEPS

    def result(self) -> FitResult:
        """Return the bound after each iteration of all climbs but the first ones."""
        trace, notes = (np.array(self._bounds), np.array(self._times)), (self.slope,) if self.slope else ()
        return FitResult(*trace, 0, self._status, self._tried, notes)


def _is_gpflows(model: Approximated) -> bool:
    """Tell whether GPflow's conditional is that of the model, and no dearer."""
    several = isinstance(model.kernel, MultioutputKernel) or isinstance(
        model.inducing_variable, MultioutputInducingVariables
    )
    return model.structure is None and not several


class Bound:
    """Minus the bound of an SVGP that shares the parts of a model, on the model's data."""

    def __init__(self, model: Approximated, svgp: SVGP) -> None:
        self._svgp, self._density, self.data = svgp, model.density, model.data

    def loss(self) -> tf.Tensor:
        """Return the training loss, []."""
        loss: tf.Tensor = self._svgp.training_loss(self.data)
        return loss

    def loss_of_outputs(self) -> tf.Tensor:
        """Return the same from the model's own moments of f, on grids by Kronecker products, []."""
        svgp, (X, Y) = self._svgp, self.data
        q = tf.convert_to_tensor(svgp.q_mu), tf.convert_to_tensor(svgp.q_sqrt)
        mean, var = self._density.gaussian_moments(*q)
        expected = tf.reduce_sum(svgp.likelihood.variational_expectations(X, mean, var, Y))
        return svgp.prior_kl() - expected - svgp.log_prior_density()
