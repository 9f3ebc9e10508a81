"""The bound of a whitened sparse model at the optimal q, as a function of the hyperparameters, on all data.

At given hyperparameters steps of Newton's method in E[v], see `svgp.newton_mean`, and of the natural gradient
in Var[v]⁻¹, see `svgp.natural_gradient`, bring q(v) to the maximum of the bound. There the gradient of the
bound with q(v) held is that of the optimised bound (the envelope theorem), which L-BFGS maximises.

The steps use Anderson mixing, see `numerics.anderson`, as a fixed-point iteration may circle the optimum or
creep along a ridge. Where one does not raise the bound, the next is plain, and shorter if that does not help;
the memory keeps failed trials too. Weights wₙ may be negative, so the optimum is also found if the likelihood
is not log-concave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.likelihoods import RobustMax
from gpflow_ext.numerics import anderson, triangular
from gpflow_ext.sites import Projection, products
from gpflow_ext.svgp import joint_ascent, newton_mean
from gpflow_ext.svgp.natural_gradient import Minibatch, WhitenedVariational
from gpflow_ext.svgp.whitened_normal import divergence, marginals, precision, root_of, site_weights
from gpflow_ext.training import lbfgs, site_recipe
from gpflow_ext.training.hyperparameters import HyperparameterAscent
from gpflow_ext.training.lbfgs_in_graph import where
from gpflow_ext.training.log_space import inducing_inputs
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.mean_units import mean_units
from gpflow_ext.training.recipe import Plan, Run
from gpflow_ext.training.solver import Progress, Settled
from gpflow_ext.training.starts import among, further_starts, number_of_starts

STEPS = 100  # of L-BFGS, of `_ITERATIONS` iterations each: it ends by itself
_ITERATIONS, _UPDATES = 20, 200  # of L-BFGS in a step, and steps of q in an evaluation, at most
_LENGTH = 0.5  # of the first steps
_MEMORY = 5  # steps that are mixed
_SHORTEST = 2.0**-40  # a length of a step below which the bound rises no more; see `kmm.ascent`
_ROUNDING = 1e-13, 1e-6  # relative, in double and single precision: a bound that is lower by less is none
_STATIONARITY = 1e-3, 1e-2  # in both: on nearly separable data the last steps creep along a ridge
_GIVING_UP = RobustMax, gpflow.likelihoods.MultiClass  # labels at a bounded loss: which, makes several optima
_GAIN = 1e-7, 1e-6  # relative, of an iteration that ends a fit; the second with those, whose q is less exact


class Point(NamedTuple):
    """A Gaussian q(v), the bound there, and where a step of length 1 would lead.

    Precisions are those of v in reversed order.
    """

    prec: tf.Tensor  # Var[v]⁻¹, [1 or K, M, M]
    mean: tf.Tensor  # E[v], [M, K]
    root: tf.Tensor  # lower triangular R, Var[v] = RRᵀ, [1 or K, M, M]
    value: tf.Tensor  # Σₙ Eₙ − KL, []
    shift: tf.Tensor  # Newton's step in E[v], [M, K]
    gram: tf.Tensor  # Σₙ wₙ aₙaₙᵀ, [1 or K, M, M]
    violation: tf.Tensor  # of the fixed point, in standard deviations of q and relative to its precision, []

    def aim(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return E[v] [M, K] and Var[v]⁻¹ [1 or K, M, M] to which a step of length 1 leads."""
        return self.mean + self.shift, tf.linalg.set_diag(self.gram, tf.linalg.diag_part(self.gram) + 1.0)


class _Settling(NamedTuple):
    """The state of the iteration of `OptimalPosterior`."""

    done: tf.Tensor  # steps, []
    length: tf.Tensor  # β of the next step, []
    mixing: tf.Tensor  # whether it is by the memory, []
    point: Point
    memory: anderson.Memory


class OptimalPosterior(tf.Module):
    """Functions to compile: the bound at the best q(v), and its gradient in the hyperparameters.

    Parameters
    ----------
    target
        The model.
    variables
        Its hyperparameters.
    """

    def __init__(self, target: WhitenedVariational, variables: Sequence[tf.Variable]) -> None:
        super().__init__()
        self._target, self._variables = target, list(variables)

    def evaluate(
        self, X: tf.Tensor, Y: tf.Tensor, steps: tf.Tensor, tolerance: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Bring q to its optimum; return bound and violation, [2], and the gradient of the bound.

        q is kept where all is finite.
        """
        target = self._target
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._variables)
            prior = target.prior(X)
            with tape.stop_recording():
                fixed = tf.nest.map_structure(tf.stop_gradient, prior)
                best = tf.nest.map_structure(tf.stop_gradient, self._settle(fixed, X, Y, steps, tolerance))
            mean, var = marginals(prior, best.mean, best.root)
            fit = target.scale(X) * tf.reduce_sum(target.expectations(X, Y, mean, var))
            value = fit - divergence(best.mean, best.root) + target.log_prior_density()
        gradient = tape.gradient(value, self._variables, unconnected_gradients="zero")
        outcome = tf.stack([value, best.violation])
        finite = tf.reduce_all(tf.math.is_finite(outcome))
        for parameter, new in ((target.q_mu, best.mean), (target.q_sqrt, best.root)):
            parameter.assign(tf.where(finite, new, parameter))
        return tf.where(finite, outcome, tf.constant(np.nan, outcome.dtype)), gradient

    def _settle(
        self, prior: Projection, X: tf.Tensor, Y: tf.Tensor, steps: tf.Tensor, tolerance: tf.Tensor
    ) -> Point:
        target, one = self._target, tf.ones([], prior.A.dtype)
        mean, root = (tf.convert_to_tensor(each) for each in (target.q_mu, target.q_sqrt))
        prec = tf.reverse(precision(root), [-1, -2])

        def going(state: _Settling) -> tf.Tensor:
            left = (state.done < steps) & (state.length >= _SHORTEST)
            return left & (state.point.violation > tolerance)

        def turn(state: _Settling) -> tuple[_Settling]:
            done, length, mixing, point, memory = state
            x, r = _flat(point.mean, point.prec), _flat(*point.aim())
            count = tf.where(mixing, memory.count, 0)
            trial = anderson.mixed(memory._replace(count=count), x, r - x, length)
            mean, prec = _apart(trial, point)
            root, finite = root_of(prec)
            new = self._at(prior, X, Y, prec, mean, root)
            least = point.value - _of(_ROUNDING, one.dtype) * tf.maximum(one, tf.abs(point.value))
            sound = finite & tf.math.is_finite(new.violation)
            risen = sound & (new.value >= least)
            left = tf.where(risen, x, trial)  # whichever is not the next point
            seen = anderson.remember(memory, left, tf.where(risen, r, _flat(*new.aim())) - left)
            shorter = tf.where(tf.equal(count, 0), 0.5 * length, length)
            length = tf.where(risen, tf.minimum(2.0 * length, _LENGTH), shorter)
            kept = _either(risen, new, point), _either(sound, seen, memory)
            return (_Settling(done + 1, length, risen, *kept),)

        begin = self._at(prior, X, Y, prec, mean, root)
        memory = anderson.empty(_flat(begin.mean, begin.prec), _MEMORY)
        start = _Settling(tf.constant(0), _LENGTH * one, tf.constant(False), begin, memory)
        return Point(*tf.while_loop(going, turn, (start,))[0].point)

    def _at(
        self, prior: Projection, X: tf.Tensor, Y: tf.Tensor, prec: tf.Tensor, mean: tf.Tensor, root: tf.Tensor
    ) -> Point:
        """Return a q(v) with the bound and the aim there. O(KM²N + KM³)."""
        at, var = marginals(prior, mean, root)
        scale = self._target.scale(X)
        fit = self._target.second_order(X, Y, at, var)
        weight = site_weights(scale * fit.by_var, root.shape[0])
        gram = triangular.weighted_gram(prior.A[:, ::-1], weight)
        slope = products.matvec(prior.A, scale * fit.by_mean) - mean
        shift = newton_mean.direction(prior, root, -scale * fit.by_means, slope)
        value = scale * tf.reduce_sum(fit.value) - divergence(mean, root)
        return Point(prec, mean, root, value, shift, gram, _violation(gram, slope, root))


def _flat(mean: tf.Tensor, prec: tf.Tensor) -> tf.Tensor:
    """Return means and precisions as one vector, of the latter the lower triangles."""
    return tf.concat([tf.reshape(part, [-1]) for part in (mean, tf.linalg.band_part(prec, -1, 0))], axis=0)


def _apart(vector: tf.Tensor, like: Point) -> tuple[tf.Tensor, tf.Tensor]:
    """Undo `_flat`."""
    split = tf.size(like.mean)
    return tf.reshape(vector[:split], like.mean.shape), tf.reshape(vector[split:], like.prec.shape)


def _either(condition: tf.Tensor, new: Any, old: Any) -> Any:
    """Return the tuple of tensors ``new`` where a condition holds, else ``old``, in the shapes of this."""
    pairs = zip(new, old, strict=True)
    return type(old)(*(tf.ensure_shape(tf.where(condition, *pair), pair[1].shape) for pair in pairs))


def _violation(gram: tf.Tensor, slope: tf.Tensor, root: tf.Tensor) -> tf.Tensor:
    """Return how far q is from where a step of length 1 leads, []. O(KM³).

    With the aim's precision P it is the largest element of RᵀPR − I and of Rᵀ times the slope in E[v].
    """
    seen = tf.matmul(tf.reverse(triangular.symmetric(gram), [-1, -2]), root)  # Σₙ wₙaₙaₙᵀ R, [K, M, M]
    spread = tf.matmul(root, seen + root, transpose_a=True)
    spread -= tf.eye(tf.shape(root)[-1], dtype=root.dtype)
    lift = products.matvec(root, slope, transpose=True)
    return tf.maximum(tf.reduce_max(tf.abs(spread)), tf.reduce_max(tf.abs(lift)))


class WholeData(Settled):
    """A model and all its data, as L-BFGS sees them: `SiteSolver` and `Sited`.

    Parameters
    ----------
    target, model
        The model as natural gradients see it, and itself.
    data
        X [N, D] and Y [N, P].
    variables
        Its hyperparameters.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.
    """

    def __init__(
        self,
        target: WhitenedVariational,
        model: gpflow.models.BayesianModel,
        data: Minibatch,
        variables: Sequence[tf.Variable],
        jit_compile: bool | None,
    ) -> None:
        settling = OptimalPosterior(target, variables)
        super().__init__(settling, target.q_mu.dtype, resolve_jit(jit_compile), data)
        self.target, self._model = target, model

    @property
    def sites(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The moments of q, which are here what sites are elsewhere."""
        return tuple(each.unconstrained_variable.read_value() for each in self.q)

    def assign_sites(self, new: tuple[tf.Tensor, tf.Tensor]) -> None:
        """Replace them."""
        for parameter, value in zip(self.q, new, strict=True):
            parameter.unconstrained_variable.assign(value)

    @property
    def q(self) -> tuple[gpflow.Parameter, gpflow.Parameter]:
        """The parameters of q(v)."""
        return self.target.q_mu, self.target.q_sqrt


class Settling:
    """A solver each step of which brings q to its optimum, the hyperparameters held.

    Parameters
    ----------
    solver
        The model and its data.
    stationarity
        The violation that ends a step.
    """

    state: Sequence[tf.Variable] = ()

    def __init__(self, solver: WholeData, stationarity: float) -> None:
        self._solver, self._stationarity = solver, stationarity

    def start(self) -> Progress:
        """See `Solver`."""
        return Progress(math.nan)

    def step(self) -> Progress:
        """See `Solver`."""
        return Progress(*self._solver.evaluate(_UPDATES, self._stationarity)[:2])


def whole_data_plan(
    target: WhitenedVariational,
    model: Any,
    arrays: tuple[Any, Any],
    run: Run,
    name: str,
    starts: int | None = None,
    in_graph: bool | None = None,
) -> Plan:
    """Return the plan that trains a whitened sparse model on all its data, or on many by `joint_ascent`.

    Parameters
    ----------
    target, model
        As for `WholeData`.
    arrays
        X [N, D] and Y [N, P].
    run, name
        What `fit` was asked for, and the name of the recipe.
    starts, in_graph
        See `training.site_recipe.SiteOptions`.
    """
    q = {id(part.unconstrained_variable) for part in (target.q_mu, target.q_sqrt)}
    variables = [variable for variable in model.trainable_variables if id(variable) not in q]
    data = (tf.constant(arrays[0]), tf.constant(arrays[1]))
    site_recipe.check_moves(variables, in_graph)
    solver, dtype = WholeData(target, model, data, variables, run.jit_compile), target.q_mu.dtype
    stationarity = _of(_STATIONARITY, dtype)
    if not variables:
        alone, settings = Settling(solver, stationarity), {"recipe": name}
        return Plan(
            alone, model.variables, STEPS, 1e-8, stationarity=stationarity, settings=settings, data=arrays
        )
    several = isinstance(model.likelihood, _GIVING_UP)
    number = number_of_starts(model, starts, *arrays[:2], several_optima=several)
    inside = site_recipe.in_graph(solver, solver.q, in_graph, solver.data)
    jointly = several and inside is None and joint_ascent.is_for(target, arrays[0])
    ascent = (joint_ascent.JointAscent if jointly else HyperparameterAscent)(
        solver,
        solver,
        variables,
        site_updates=_UPDATES,
        hyper_updates=joint_ascent.ITERATIONS if jointly else _ITERATIONS,
        tolerance=_GAIN[several],
        stationarity=stationarity,
        starts=among(further_starts(model, number - 1, run.seed, *arrays[:2]), model, variables),
        inputs=inducing_inputs(model),
        units=mean_units(model, variables, arrays),
        in_graph=inside,
    )
    return Plan(
        ascent,
        [*model.variables, *ascent.state],
        steps=STEPS,
        tolerance=joint_ascent.GAIN if jointly else lbfgs.gain_of_a_step(variables),
        monotone=True,
        stationarity=stationarity,
        trackables={"solver": ascent},
        settings={"recipe": name, "starts": starts, "seed": run.seed, **where(ascent.run)},
        data=arrays,
        tried=lambda: ascent.tried,
    )


def _of(pair: tuple[float, float], dtype: tf.DType) -> float:
    return pair[dtype != tf.float64]
