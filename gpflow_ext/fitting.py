"""Training: `fit` chooses the recipe of a model, runs its plan, reports and checkpoints."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from gpflow.models import BayesianModel

from gpflow_ext.data import arguments, held
from gpflow_ext.ep.recipe import ep
from gpflow_ext.features.twin import Twin
from gpflow_ext.gprn.recipe import gprn
from gpflow_ext.kmm.recipe import kmm
from gpflow_ext.laplace.recipe import jaakkola, laplace, taylor
from gpflow_ext.models import (
    VGPKMM,
    GPJaakkola,
    GPLaplace,
    GPRNTensor,
    GPTaylor,
    SGPMCFreeForm,
    SiteModel,
    SparseEP,
    SVGPRobustMax,
)
from gpflow_ext.svgp.dual_recipe import dual
from gpflow_ext.svgp.gpflow_models import gpflow_model
from gpflow_ext.svgp.recipe import robust_max
from gpflow_ext.svgp.svi import svi_classification, svi_fg, svi_lbfgsb, svi_natural, svi_sag
from gpflow_ext.svgp.vi_means import vi_means
from gpflow_ext.training.distribute import hold_fixed, in_scope
from gpflow_ext.training.ends import FitWarning, bad_end, check_parameters
from gpflow_ext.training.execution import Asked, Execution
from gpflow_ext.training.gradient_descent import gradient_descent
from gpflow_ext.training.lbfgs_recipe import lbfgs_of_all
from gpflow_ext.training.loop import FitResult, Status
from gpflow_ext.training.memory import check_memory
from gpflow_ext.training.recipe import NoOptions, Plan, Recipe, Run, as_recipe, recipe, recipe_of, register
from gpflow_ext.training.scale import scale_failure
from gpflow_ext.training.site_recipe import site_inference


@recipe("sampled", NoOptions)
def sampled(model: BayesianModel, run: Run, options: NoOptions) -> Plan:
    """Refuse a model that is not trained."""
    raise ValueError(
        f"{type(model).__name__} is sampled, not trained: call gpflow_ext.sample(model), or "
        "gpflow_ext.gaussian_approximation(model) for its Gaussian approximation alone; "
        'fit(model, recipe="gradient_descent") climbs to the mode of V and the hyperparameters.'
    )


for _model, _recipe in (
    (BayesianModel, gpflow_model),
    (SiteModel, site_inference),
    (VGPKMM, kmm),
    (GPLaplace, laplace),
    (GPTaylor, taylor),
    (GPJaakkola, jaakkola),
    (SparseEP, ep),
    (SVGPRobustMax, robust_max),
    (GPRNTensor, gprn),
    (SGPMCFreeForm, sampled),
):
    register(_model, _recipe)

_BY_NAME: dict[str, Recipe] = {
    each.name: each
    for each in (
        kmm, laplace, taylor, jaakkola, ep, site_inference, robust_max, gprn, gpflow_model, lbfgs_of_all,
        gradient_descent,
        dual, vi_means, svi_natural, svi_lbfgsb, svi_fg, svi_sag, svi_classification,
    )
} | {"adam": gradient_descent}  # fmt: skip


def fit(
    model: BayesianModel,
    data: Any = None,
    *,
    recipe: str | Callable[..., Plan] | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    tolerance: float | None = None,
    monitor: Callable[[int], None] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10,
    progress: bool | None = None,
    seed: int = 0,
    jit_compile: bool | None = None,
    strategy: tf.distribute.Strategy | None = None,
    **options: Any,
) -> FitResult:
    """Train a model by the method of its paper, or any other GPflow model by one that converges for it.

    ====================  ========================  ============================================
    model                 recipe                    its options, further arguments
    ====================  ========================  ============================================
    `VGPKMM`              ``"kmm"``                 `kmm.recipe.KMMOptions`
    `GPLaplace`           ``"laplace"``             `training.site_recipe.SiteOptions`
    `GPTaylor`            ``"taylor"``              the same
    `GPJaakkola`          ``"jaakkola"``            the same
    another `SiteModel`   ``"sites"``               the same
    `SparseEP`            ``"ep"``                  `ep.recipe.EPOptions`
    `SVGPRobustMax`       ``"robust_max"``          `svgp.recipe.RobustMaxOptions`
    `GPRNTensor`          ``"gprn"``                `gprn.recipe.GPRNOptions`
    any other             ``"gpflow"``              `svgp.gpflow_models.GPflowOptions`
    any                   ``"lbfgs"``               `training.lbfgs_recipe.LBFGSOptions`
    any                   ``"adam"``                `training.gradient_descent.GradientOptions`
    ``SVGP``              ``"dual"``                `svgp.dual_recipe.DualOptions`
    ``GPR``, ``SGPR``     ``"vi_means"``            `svgp.vi_means.MeansOptions`
    ``SVGP``              ``"svi_natural"``         `svgp.svi.NaturalOptions`
    ``SVGP``              ``"svi_lbfgsb"``          `svgp.svi.LBFGSBOptions`
    ``SVGP``              ``"svi_sag"``             `svgp.svi.MinibatchOptions`
    ``SVGP``              ``"svi_fg"``              `training.trials.StartOptions`
    ``SVGP``              ``"svi_classification"``  `svgp.svi.ClassificationOptions`
    ====================  ========================  ============================================

    `SGPMCFreeForm` is sampled, see `sample`.

    Parameters
    ----------
    model
        The model; its class decides the recipe, see `register`.
    data
        Training data (X [N, D], Y [N, P]) or a ``tf.data.Dataset`` of minibatches, for a model that does
        not hold its data.
    recipe
        A recipe other than the model's own: a name from the table, for models that it fits (the site methods
        ``"kmm"``, ``"laplace"``, ``"taylor"``, ``"jaakkola"`` and ``"ep"`` fit every site model whose
        likelihood allows it); a `Recipe`; or a function (model, `Run`, **options) -> `Plan`.
    steps
        Number of the last step, counting those before a restart. By default the recipe runs until it has
        settled. One by small steps looks for that after so many of them, 1,000 mostly, and goes on while the
        objective rises, without ``seconds`` for 60 at most; see `training.open_end`.
    seconds
        Wall-clock seconds after which no further step begins. A step of iterations of L-BFGS ends early then,
        as ``OUT_OF_TIME``, at the first iterate that follows, or in the graph after up to 50 evaluations. It
        counts as a step; a resumed run goes on from its best parameters, and tries no start that it has left
        out. One iteration is always made, and before it the functions are traced, however long that takes. Of
        trials of starts by small steps each has a tenth of the seconds, and none begins after them. Steps of
        several workers are whole.
    tolerance
        Relative change of the objective below which training stops.
    monitor
        Called with the number of each step, for example a ``gpflow.monitor.Monitor``.
    checkpoint_dir
        Folder for checkpoints. If it holds one of the same model and settings, training resumes there
        and ends exactly as if it had never stopped. SIGINT and SIGTERM then end the run after the current
        step, with a checkpoint.
    checkpoint_every
        Steps between checkpoints; the last step is always saved.
    progress
        Show a progress bar; by default (``None``) only if standard error is a terminal.
    seed
        Seed of the minibatches, and of random starting points of the hyperparameters.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only, because XLA's Cholesky is slow on CPU.
    strategy
        A ``tf.distribute`` strategy. `SparseEP` shards its data over its devices or machines,
        `SVGPRobustMax` and the recipe ``"dual"`` their minibatches; a recipe of your own may too if it
        ``distributes``; see `gpflow_ext.distribute`. Of several workers only the chief shows progress, calls
        ``monitor`` and writes checkpoints.
    **options
        Options of the recipe: see its dataclass in the table.

    Returns
    -------
    The trace of the objective and why the run ended.

    Raises
    ------
    ValueError
        For data or options that do not fit the model, before any work is done and naming the right ones;
        for a start that is not finite, naming the parameter or the rows at fault; for a model that no recipe
        fits; for one whose matrices the memory of the machine cannot hold; for a checkpoint of another model;
        for a call inside ``strategy.scope()``.
    NotImplementedError
        For ``strategy`` with a model that cannot be distributed.
    gpflow_ext.distribute.WorkerLostError
        When another worker died: restart all of them.

    Warns
    -----
    FitWarning
        If the run ends ``NON_FINITE`` or ``DIVERGED``; it says which state was restored. Also if the
        recipe's own steps or seconds were over while the objective rose; of given ones the notes say it.
    UserWarning
        If a trained kernel correlates no two inputs, or cannot tell them apart: its length scales do not
        suit the scale of the inputs.
    """
    asked = Asked(steps, seconds, tolerance, monitor, checkpoint_dir, checkpoint_every, progress)
    arguments.check_whole(seed=seed)
    arguments.check_kind(tf.Module, model=model)
    arguments.check_flag(jit_compile=jit_compile)
    if in_scope():
        raise ValueError("Call `fit` outside of `strategy.scope()`; it takes the strategy as `strategy`.")
    held.follow(model)
    held.refuse_trained(model)
    hold_fixed(model)
    check_parameters(model)
    if strategy is None and options.get("minibatch_size") is None:  # else each device has a part of them
        check_memory(model)
    twin = Twin(model, data)
    if "validation" in options:
        options["validation"] = twin.rows(options["validation"])
    shared = {"seed": seed, "jit_compile": jit_compile, "strategy": strategy}
    limits = {"seconds": asked.time, "steps": steps}
    plan = _chosen(model, recipe)(twin.model, twin.data, **shared, **limits, **options)
    twin.carry_back()
    execution = Execution(model, plan, asked, twin.model, twin.data)
    result, slope = execution.run()
    if execution.is_chief:
        own = steps is None and (result.status is Status.MAX_STEPS or not asked.is_timed)
        if slope and own:
            warnings.warn(slope, FitWarning, stacklevel=2)
        if result.status in (Status.NON_FINITE, Status.DIVERGED, Status.STALLED):
            warnings.warn(bad_end(result, twin.model), FitWarning, stacklevel=2)
        elif (failure := scale_failure(twin.model, twin.data)) is not None:
            warnings.warn(failure, stacklevel=2)
    return result


def _chosen(model: BayesianModel, recipe: str | Callable[..., Plan] | None) -> Recipe:
    if recipe is None:
        found = recipe_of(model)
        if found is None:
            raise ValueError(
                f"No recipe trains a {type(model).__name__}, which is not a GPflow BayesianModel: give one "
                "by `fit(recipe=...)` or gpflow_ext.register."
            )
        return found
    if callable(recipe):
        return as_recipe(recipe)
    if recipe not in _BY_NAME:
        raise ValueError(
            f"`recipe` must be one of {', '.join(_BY_NAME)}, a function (model, run, **options) -> Plan, or "
            f"None; got {recipe!r}."
        )
    return _BY_NAME[recipe]
