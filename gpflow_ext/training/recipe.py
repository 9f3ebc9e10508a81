"""Recipes: training strategies, each a function of a model and options that makes a `Plan` for `fit`."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from gpflow_ext.training.distribute import Shards
from gpflow_ext.training.loop import Status
from gpflow_ext.training.options import options_from
from gpflow_ext.training.overrides import refuse_own_objective
from gpflow_ext.training.solver import Solver
from gpflow_ext.training.starts import Tried


@dataclass(frozen=True)
class Run:
    """The arguments of `gpflow_ext.fit` that every recipe is given.

    Attributes
    ----------
    data
        Training data that the model does not hold, (X [N, D], Y [N, P]) or a ``tf.data.Dataset``.
    seed
        Seed of all random numbers.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.
    strategy
        A ``tf.distribute`` strategy, only given to a recipe that ``distributes``.
    seconds
        Those of `gpflow_ext.fit`, of which a recipe may spend some on trials.
    steps
        Those of `gpflow_ext.fit`, ``None`` for a run that ends when it has settled.
    """

    data: Any = None
    seed: int = 0
    jit_compile: bool | None = None
    strategy: tf.distribute.Strategy | None = None
    seconds: float = math.inf
    steps: int | None = None

    @property
    def open_ended(self) -> bool:
        """Whether `gpflow_ext.fit` was given no steps: their lengths fall whatever their number."""
        return self.steps is None

    def without_data(self, model: Any) -> None:
        """Raise ``ValueError`` where data were given for a model that holds its own."""
        if self.data is not None:
            raise ValueError(f"{type(model).__name__} holds its data: call `fit(model)` without `data`.")


@dataclass(frozen=True)
class Plan:
    """A training strategy bound to a model, ready to run.

    Attributes
    ----------
    solver
        Does the steps.
    variables
        All that a step changes; copied before each step, so that a failed one can be undone.
    steps, tolerance
        Defaults of `fit`.
    monotone
        Whether the objective can only rise.
    stationarity
        The largest violation of the solver's own conditions that counts as settled.
    trackables
        What a checkpoint must hold besides the model.
    settings
        What a resumed run must share, as plain values.
    data
        Training data that the model does not hold.
    shards
        How the data are sharded over the replicas of a ``tf.distribute`` strategy.
    gather
        Makes the variables complete in each process if the data are sharded over several.
    settled
        The status of a run whose solver has settled.
    rests
        Whether a step after a settled one would change nothing, so that none is done to see that.
    report
        What a progress bar shows beside the objective.
    finish
        Called once at the end, after the last checkpoint; returns whether it has changed the model in a way
        that the checkpoint does not hold, which is then saved beside it.
    tried
        The starting points of which the best was kept, once it was chosen.
    period
        Of a run by small steps, which has no end of its own: the steps of a pass through the data. ``steps``
        is then where it first looks whether it has settled, see `training.open_end`. 0 for any other.
    """

    solver: Solver
    variables: Sequence[tf.Variable]
    steps: int
    tolerance: float | None
    monotone: bool = False
    stationarity: float = math.inf
    trackables: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    data: tuple[Any, Any] | None = None
    shards: Shards | None = None
    gather: Callable[[], None] = lambda: None
    settled: Status = Status.CONVERGED
    rests: bool = False
    report: Callable[[], str] = lambda: ""
    finish: Callable[[], bool] = lambda: False
    tried: Callable[[], tuple[Tried, ...]] = lambda: ()
    period: int = 0

    @property
    def is_open(self) -> bool:
        """Whether a run without a number of steps ends when it has settled; several processes count them."""
        return self.period > 0 and (self.shards is None or self.shards.num_processes == 1)

    def update(self) -> tuple[float, bool]:
        """Do one step; return the objective, and whether the solver's own conditions hold."""
        progress = self.solver.step()
        return progress.objective, progress.violation <= self.stationarity


@dataclass(frozen=True)
class NoOptions:
    """The options of a recipe that has none."""


@dataclass(frozen=True)
class Recipe:
    """A named training strategy: its function, the dataclass of its options, and what it can do.

    Attributes
    ----------
    name
        What ``fit(recipe=...)`` calls it.
    plan
        Maps (model, `Run`, options) to a `Plan`.
    options
        The dataclass of its options.
    distributes
        Whether it takes a ``strategy``.
    knows_objective
        Whether it maximises an objective that it knows, not what the model's class defines: it then refuses a
        class that overrides that.
    models
        The class of the models that it trains.
    """

    name: str
    plan: Callable[[Any, Run, Any], Plan]
    options: type = NoOptions
    distributes: bool = False
    knows_objective: bool = False
    models: type = object

    def __call__(self, model: Any, data: Any = None, **arguments: Any) -> Plan:
        """Return the plan for a model; the arguments are those of `Run` and the recipe's own options.

        Raises
        ------
        ValueError
            For an unknown option or a wrong value; the message lists the right ones. For a model of another
            class than the recipe's. For ``strategy`` and a model whose variables are distributed. For a model
            with an objective of its own, where the recipe maximises another.
        NotImplementedError
            For ``strategy`` where the recipe trains on one device.
        """
        if not isinstance(model, self.models):
            raise ValueError(
                f'recipe="{self.name}" is for {self.models.__name__}, which {type(model).__name__} is not: '
                "leave `recipe` out for one that trains it."
            )
        names = ("seed", "jit_compile", "strategy", "seconds", "steps")
        shared = {key: arguments.pop(key) for key in names if key in arguments}
        run = Run(data, **shared)
        options: Any = options_from(self.options, arguments, f"fit(recipe={self.name!r})")
        if run.strategy is not None and not self.distributes:
            raise NotImplementedError(
                f"`strategy` is for data-parallel recipes; {self.name!r} trains "
                f"{type(model).__name__} on one device."
            )
        if self.knows_objective:
            refuse_own_objective(model, self.name)
        held = () if run.strategy is None else getattr(model, "variables", ())
        if any(isinstance(variable, tf.distribute.DistributedValues) for variable in held):
            raise ValueError("Build the model outside of `strategy.scope()`: only the data are distributed.")
        return self.plan(model, run, options)


def recipe(
    name: str,
    options: type = NoOptions,
    *,
    distributes: bool = False,
    knows_objective: bool = False,
    models: type = object,
) -> Callable[[Callable[[Any, Run, Any], Plan]], Recipe]:
    """Make a function (model, `Run`, options) -> `Plan` a recipe; see `Recipe` for the arguments."""

    def decorate(plan: Callable[[Any, Run, Any], Plan]) -> Recipe:
        made = Recipe(name, plan, options, distributes, knows_objective, models)
        object.__setattr__(made, "__doc__", plan.__doc__)
        return made

    return decorate


def as_recipe(given: Callable[..., Plan]) -> Recipe:
    """Return a recipe as it is, or one made of a function (model, `Run`, **options) -> `Plan`.

    The options of a function are its keyword-only parameters, with their defaults.
    """
    if isinstance(given, Recipe):
        return given
    parameters = [p for p in inspect.signature(given).parameters.values() if p.kind is p.KEYWORD_ONLY]
    fields = [
        (p.name, Any) if p.default is p.empty else (p.name, Any, field(default=p.default)) for p in parameters
    ]
    name = getattr(given, "__name__", type(given).__name__)
    options = dataclasses.make_dataclass(f"{name}_options", fields, frozen=True, kw_only=True)

    def plan(model: Any, run: Run, chosen: Any) -> Plan:
        return given(model, run, **{p.name: getattr(chosen, p.name) for p in parameters})

    return Recipe(name, plan, options)


_REGISTERED: dict[type, Recipe] = {}


def register(model_class: type, recipe: Callable[..., Plan]) -> None:
    """Let `gpflow_ext.fit` train models of a class, and of its subclasses, by a recipe.

    Parameters
    ----------
    model_class
        A class of GPflow models. For a model the recipe of its nearest base class is used.
    recipe
        A `Recipe`, or a function (model, `Run`, **options) -> `Plan`.

    Raises
    ------
    ValueError
        For anything that is not a class and a callable.
    """
    if not isinstance(model_class, type) or not callable(recipe):
        raise ValueError(
            "`register` takes a model class and a recipe, a function (model, run, **options) -> Plan; got "
            f"{model_class!r} and {recipe!r}."
        )
    _REGISTERED[model_class] = as_recipe(recipe)


def recipe_of(model: Any) -> Recipe | None:
    """Return the recipe registered for the model's class or its nearest base class, if there is one."""
    return next((_REGISTERED[cls] for cls in type(model).__mro__ if cls in _REGISTERED), None)
