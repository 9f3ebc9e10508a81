"""The recipe "dual": GPflow's SVGP by minibatches of dual sites, on lengths that fall by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from gpflow.models import SVGP

from gpflow_ext.sites import latent
from gpflow_ext.svgp.dual import DualUpdates
from gpflow_ext.svgp.last_pass import last_pass
from gpflow_ext.svgp.minibatch_ascent import MinibatchAscent
from gpflow_ext.svgp.natural_gradient import AscentUpdates
from gpflow_ext.svgp.recipe import batch_shards, per_call, reader, several
from gpflow_ext.svgp.whitened import WhitenedSVGP
from gpflow_ext.training.gradient import check_per_call, first_look, period
from gpflow_ext.training.gradient_descent import training_data
from gpflow_ext.training.optimizers import LogSpaceAdam, built, coordinates
from gpflow_ext.training.recipe import Plan, Run, recipe
from gpflow_ext.training.schedules import ROOT, Schedule
from gpflow_ext.training.trials import StartOptions, tried

_RATE = 0.1  # of Adam in log space


@dataclass(frozen=True)
class DualOptions(StartOptions):
    """Options of the recipe "dual", with those of `StartOptions`.

    The step lengths at step t = 0, 1, … are their first values divided by √(1 + t/``decay_steps``): large
    steps far from the optimum, and averages over ever more minibatches later, whatever the number of steps.

    Attributes
    ----------
    minibatch_size
        B, rows in a minibatch of arrays; all data by default.
    gamma
        First step length γ in (0, 1] of the natural-gradient steps of q, which falls to no less than 0.01; by
        default 0.1 with minibatches. Without them it is constant; by default 1, halved where the bound falls,
        to 1/8 at least.
    rate
        First learning rate of Adam for the hyperparameters, which moves positive ones by their logarithms.
    inducing_share
        Learning rate of inducing points as a share of ``rate``. Their many coordinates move at once: at the
        full rate they would move faster than q can follow.
    decay_steps
        Steps after which lengths and rates have fallen to 0.7; ``None`` keeps them constant.
    optimizer
        Another tf_keras optimiser of hyperparameters and inducing points, with its own rate.
    hold
        Steps for which q alone moves.
    follow
        Whether q follows the hyperparameters as the posterior of the same sites does, see `svgp.dual`; else
        it is held in whitened coordinates.
    steps_per_call
        Steps on minibatches of arrays in one call of the compiled function, a single step of `fit`; see
        `training.gradient_descent.GradientOptions`. ``decay_steps`` and ``hold`` count minibatches, and the
        latter is a multiple of it.
    last_pass
        Whether a training on minibatches of arrays that has gone through all rows once ends by a step of q on
        all of them, if that raises the bound; see `svgp.last_pass`. Its time is beyond that of the steps.
    starts
        As there; by default as many as `training.site_recipe.SiteOptions` says where the data are arrays.
    """

    minibatch_size: int | None = None
    gamma: float | None = None
    rate: float = _RATE
    inducing_share: float = 0.1
    decay_steps: int | None = ROOT
    optimizer: Any = None
    hold: int = 0
    follow: bool = True
    steps_per_call: int = 1
    last_pass: bool = True
    starts: int | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        check_per_call(self.steps_per_call, self.minibatch_size, hold=self.hold)
        if self.gamma is not None and not 0.0 < self.gamma <= 1.0:
            raise ValueError(f"`gamma` must be in (0, 1]; got {self.gamma}.")
        if not self.rate > 0.0 or not 0.0 < self.inducing_share <= 1.0:
            raise ValueError(
                "`rate` must be positive and `inducing_share` in (0, 1]; got "
                f"{self.rate} and {self.inducing_share}."
            )
        if self.hold < 0 or not (self.decay_steps is None or self.decay_steps >= 1):
            raise ValueError(
                "`hold` must not be negative, and `decay_steps` at least 1 or None; got "
                f"{self.hold} and {self.decay_steps}."
            )


@recipe("dual", DualOptions, distributes=True, knows_objective=True)
def dual(model: SVGP, run: Run, options: DualOptions) -> Plan:
    """Return the plan of dual sites on minibatches; the options are `DualOptions`.

    For a whitened ``SVGP`` with a full q_sqrt and independent latent functions, any likelihood, on arrays or
    on a ``tf.data.Dataset`` of minibatches that repeats without end. With a ``strategy`` each minibatch of
    arrays is sharded over its replicas; the result is the same up to rounding.
    """
    target = WhitenedSVGP(model, "dual")
    return tried(lambda: _plan(target, model, run, options), model, run, options.starts)


def _plan(target: WhitenedSVGP, model: SVGP, run: Run, options: DualOptions) -> Plan:
    size = options.minibatch_size
    arrays, iterator = training_data(model, run.data, size, run.seed)
    if arrays is not None:
        latent.check_inducing(model.inducing_variable, model.kernel, arrays[0])
    q = {id(part.unconstrained_variable) for part in (model.q_mu, model.q_sqrt)}
    hypers = [variable for variable in model.trainable_variables if id(variable) not in q]
    optimizer = _optimizer(model, hypers, options)
    shards = None if run.strategy is None else batch_shards(run.strategy, arrays, size, run.jit_compile)
    engine = MinibatchAscent(
        target,
        hypers,
        optimizer,
        reader(model, arrays, iterator),
        gamma=lengths(options, iterator is not None),
        hold=options.hold,
        concave=iterator is not None,
        shorten=iterator is None and options.gamma is None,
        shards=shards,
        jit_compile=False if shards is not None else run.jit_compile,
        updates=DualUpdates if options.follow else AscentUpdates,
        several=several(iterator, options.steps_per_call, run.strategy),
    )
    trackables = {"engine": engine} | ({} if iterator is None else {"batches": iterator})

    def finish() -> bool:
        if arrays is None or size is None or not size < len(arrays[0]) <= int(engine.steps) * size:
            return False
        return last_pass(target, arrays, run.jit_compile)

    return Plan(
        engine,
        engine.state,
        steps=first_look(options.steps_per_call),
        period=period(arrays, size, options.steps_per_call),
        tolerance=None,
        trackables=trackables | ({} if optimizer is None else {"optimizer": optimizer}),
        settings={
            "recipe": "dual",
            **per_call(options.steps_per_call),
            "seed": None if size is None else run.seed,
            "optimizer": None if optimizer is None else optimizer.get_config(),
            **{
                name: getattr(options, name)
                for name in ("minibatch_size", "gamma", "decay_steps", "inducing_share", "hold", "follow")
            },
        },
        data=arrays,
        shards=shards,
        finish=finish if options.last_pass else lambda: False,
    )


class SparseAdam(LogSpaceAdam):
    """Adam in log space whose steps of inducing points are a share of the others.

    Parameters
    ----------
    points
        The variables of inducing points.
    share
        Share of Adam's step that inducing points take.
    """

    def __init__(
        self, *arguments: Any, points: Sequence[tf.Variable] = (), share: float = 1.0, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._points, self._share = tuple(map(id, points)), share
        self._slow: tuple[bool, ...] | None = None

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Make the slots, and note which of the variables are inducing points."""
        super().build(var_list)
        if self._slow is None:
            self._slow = tuple(id(variable) in self._points for variable in var_list)
            self._points = ()

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Take one step down the gradient in the variable."""
        assert self._slow is not None
        before = tf.identity(variable.read_value())
        super().update_step(gradient, variable)
        if self._slow[self._index_dict[self._var_key(variable)]]:
            variable.assign(before + self._share * (variable - before))


def _optimizer(model: SVGP, hypers: Sequence[tf.Variable], options: DualOptions) -> Any | None:
    """Return what moves the hyperparameters; ``None`` where all are held."""
    if not hypers:
        return None
    if options.optimizer is not None:
        return built(options.optimizer, hypers)
    rate = _schedule(options).rate(options.rate)
    points = model.inducing_variable.trainable_variables
    adam = SparseAdam(rate, **coordinates(model), points=points, share=options.inducing_share)
    return built(adam, hypers)


def lengths(options: DualOptions, minibatches: bool) -> Any:
    """Return γ as a function of the step."""
    if not minibatches:
        return lambda step: 1.0 if options.gamma is None else options.gamma
    return _schedule(options).lengths(0.1 if options.gamma is None else options.gamma, warm_up=1)


def _schedule(options: DualOptions) -> Schedule:
    return Schedule() if options.decay_steps is None else Schedule("root", options.decay_steps)
