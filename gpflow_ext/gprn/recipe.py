"""The recipe of `GPRNTensor`: coordinate ascent, rounds on a profiled bound, or gradients of everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.data.order import shuffled
from gpflow_ext.gprn import starts
from gpflow_ext.gprn.block_ascent import BlockAscent
from gpflow_ext.gprn.collapsed import CollapsedPosterior
from gpflow_ext.gprn.model import GPRNTensor
from gpflow_ext.gprn.outputs import Outputs
from gpflow_ext.gprn.profiled_ascent import ProfiledAscent
from gpflow_ext.gprn.updates import Updates, node_variables, others
from gpflow_ext.training import lbfgs
from gpflow_ext.training.lbfgs_in_graph import AnyRun, where
from gpflow_ext.training.optimizers import built
from gpflow_ext.training.options import refuse_unused
from gpflow_ext.training.recipe import Plan, Run, recipe
from gpflow_ext.training.solver import Steps
from gpflow_ext.training.starts import check_starts
from gpflow_ext.training.trials import tried

_STARTS = ("joint", "independent_start", "moment_start", "factor_start", "starts")
_SMALLEST_GAIN = 1e-5  # relative, of some iterations on everything
_STEPS = 200  # of L-BFGS, at most: they end by themselves
_LARGEST = 4000**3  # P(NK)³, up to which the tensor posterior is trained by its profiled bound


@dataclass(frozen=True)
class GPRNOptions:
    """Options of the recipe "gprn".

    Attributes
    ----------
    optimizer
        ``"lbfgs"`` or a tf_keras optimiser. By default L-BFGS for the collapsed posterior. For the tensor
        posterior by default L-BFGS on the bound at the best q(W), see `gprn.profiled`; with minibatches, or
        where P(NK)³ is above 4,000³, Adam with learning rate 0.01.
    sweeps
        Closed-form updates of q(F) in a step of the collapsed posterior.
    hyper_updates
        Iterations of L-BFGS in a step; five times as many for the tensor posterior's profiled bound.
    joint
        Optimise the locations of the sites together with the hyperparameters. It reaches far higher bounds,
        because sweeps alternate between q(W) and q(F), which are strongly coupled, and leave the nodes near
        their initial values.
    independent_start
        Let the first step of the collapsed posterior also try k_w and σ² of independent regressions.
    moment_start
        Let it also try nodes that explain the second moments of the targets, with k_w of the length scale
        that suits them best (`network.moment_nodes`), with k_f as it is and as suits these nodes, and small
        draws of nodes with such a k_f. Without inducing inputs.
    factor_start
        Let it also try nodes that are common factors of the outputs, with weights that hardly depend on the
        input (`factors.factors`). Without inducing inputs, for no more outputs than data.

        Of these starts, the model as it is among them, training goes on from the one from which
        ``hyper_updates`` iterations of L-BFGS on everything reach the highest bound, and with ``joint``
        as many more of the best two. The profiled bound of the tensor posterior is climbed from the best two,
        and from the posterior as it is.
    minibatch_size
        Outputs in a step of the tensor posterior; all by default.
    starts
        Number of these starts, in the order of the options; beyond them the model's own parameters times
        random factors, see `training.starts`. By default all of them, and no random ones. Steps of an
        optimiser on the tensor posterior have the starts of `training.trials.StartOptions`, by default one.
    in_graph
        Whether the iterations of L-BFGS are done in the graph; see `training.site_recipe.SiteOptions`.
    """

    optimizer: Any = None
    sweeps: int = 2
    hyper_updates: int = 20
    joint: bool = True
    independent_start: bool = True
    moment_start: bool = True
    factor_start: bool = True
    minibatch_size: int | None = None
    starts: int | None = None
    in_graph: bool | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_starts(self.starts)
        if self.sweeps < 0 or self.hyper_updates < 1:
            raise ValueError(
                f"`sweeps` must not be negative and `hyper_updates` at least 1; got {self.sweeps} and "
                f"{self.hyper_updates}."
            )
        if self.in_graph and (self.minibatch_size is not None or self.optimizer not in (None, "lbfgs")):
            raise ValueError(
                "`in_graph` is for the iterations of L-BFGS: leave out `minibatch_size`, and `optimizer` or "
                'give "lbfgs".'
            )


@recipe("gprn", GPRNOptions, knows_objective=True, models=GPRNTensor)
def gprn(model: GPRNTensor, run: Run, options: GPRNOptions) -> Plan:
    """Return the plan of `GPRNTensor`; the options are `GPRNOptions`.

    Collapsed posterior: a step is ``sweeps`` closed-form updates of q(F), then ``hyper_updates`` iterations
    of L-BFGS, or one step of the optimiser, on the hyperparameters with the sites of q(F) held; neither can
    lower the bound. With sweeps, L-BFGS moves those of the nodes alone first, see `updates.node_variables`,
    and ``joint`` moves everything after the hyperparameters: from a sweep, where the sites are at their
    optimum and stiff, so few iterations on everything hardly reach k_w and the noise.

    Tensor posterior: a round of L-BFGS on the profiled bound; or a step of the optimiser on everything, on
    all outputs or a minibatch of them, or ``hyper_updates`` iterations of L-BFGS on everything.
    """
    run.without_data(model)
    model.assign_draws(None)
    size = options.minibatch_size
    settings: dict[str, Any] = {"recipe": "gprn", "hyper_updates": options.hyper_updates}
    random = {} if options.starts is None else {"seed": run.seed}
    if isinstance(model.q, CollapsedPosterior):
        if size is not None:
            raise ValueError(
                "`minibatch_size` is for the tensor posterior: the collapsed one needs no outputs."
            )
        settings |= {name: getattr(options, name) for name in ("sweeps", *_STARTS)} | random
        return _collapsed(model, options, settings, run.jit_compile)
    refuse_unused(options, ["sweeps"], "they are of the collapsed posterior")
    D = model.num_latent_gps
    if size is not None and not 1 <= size <= D:
        raise ValueError(f"`minibatch_size` must be from 1 to {D}, the number of outputs; got {size}.")
    settings |= {"minibatch_size": size, "seed": None if size is None else run.seed}
    if options.optimizer is None and size is None and _is_small(model):
        settings |= {name: getattr(options, name) for name in _STARTS} | random
        return _profiled(model, settings, run, options.in_graph)

    refuse_unused(options, _STARTS[:-1], "they are of the collapsed posterior and of the profiled bound")

    def build() -> Plan:
        return _tensor(model, options, settings, run.jit_compile)

    return tried(build, model, run, options.starts or 1)


def _collapsed(
    model: GPRNTensor, options: GPRNOptions, settings: dict[str, Any], jit_compile: bool | None
) -> Plan:
    location = model.q.location.unconstrained_variable
    nodes = node_variables(model)
    hypers = [*nodes, *others(model.trainable_variables, [*nodes, location])]
    everything = [*hypers, location] if location.trainable else hypers
    last = everything if settings["joint"] else hypers
    alone = [nodes, hypers] if settings["sweeps"] else []
    blocks = [*(block for block in alone if block is not last), last]
    climbs = options.optimizer in (None, "lbfgs")
    optimizer: Any = None if climbs else built(options.optimizer, blocks[-1], model=model)
    updates = Updates(model, everything, optimizer, blocks[-1], jit_compile, options.in_graph)
    runs = [updates.climb(block) for block in blocks if block] if climbs else []
    ascent = BlockAscent(
        updates,
        runs,
        sweeps=settings["sweeps"],
        hyper_updates=settings["hyper_updates"],
        optimizer_state=None if climbs else optimizer.variables,
        begin=lambda: starts.begin(model, everything, updates, settings),
    )
    double = gpflow.default_float() == np.float64
    return Plan(
        ascent,
        [*model.variables, *ascent.state],
        steps=_STEPS if climbs else 500,
        period=0 if climbs else 1,
        tolerance=_gain(blocks[-1], settings["joint"]) if climbs else None,
        monotone=climbs and double,
        trackables={"ascent": ascent} | ({} if climbs else {"optimizer": optimizer}),
        settings=settings
        | {"optimizer": "lbfgs" if climbs else optimizer.get_config()}
        | (where(runs[0]) if runs else {}),
        tried=lambda: ascent.tried,
    )


def _is_small(model: GPRNTensor) -> bool:
    """Tell whether a step of the profiled bound is one of seconds."""
    N, K = model.q.node_mean.shape
    patterns = {column.tobytes() for column in np.isnan(model.outputs.gather(range(model.num_latent_gps))).T}
    return len(patterns) * (N * K) ** 3 <= _LARGEST


def _profiled(model: GPRNTensor, settings: dict[str, Any], run: Run, in_graph: bool | None) -> Plan:
    """Return the plan whose steps are rounds on the bound with q(W) at its optimum."""
    iterations = 5 * settings["hyper_updates"]
    ascent = ProfiledAscent(model, settings, iterations, run.seed, run.jit_compile, in_graph)
    return Plan(
        ascent,
        [*model.variables, *ascent.state],
        steps=_STEPS,
        tolerance=1e-6,
        monotone=gpflow.default_float() == np.float64,
        trackables={"profile": ascent.profile, "started": ascent.started},
        settings=settings | {"optimizer": "profiled"} | where(ascent.run),
        tried=lambda: ascent.tried,
    )


def _gain(variables: list[tf.Variable], joint: bool) -> float:
    """Return the relative gain below which steps end; locations would otherwise creep along flat ridges."""
    return _SMALLEST_GAIN if joint else max(lbfgs.gain_of_a_step(variables, valley=False), 1e-7)


def _tensor(
    model: GPRNTensor, options: GPRNOptions, settings: dict[str, Any], jit_compile: bool | None
) -> Plan:
    variables, size = model.trainable_variables, settings["minibatch_size"]
    if options.optimizer == "lbfgs":
        if size is not None:
            raise ValueError("L-BFGS needs all outputs in a step: leave `minibatch_size` out.")
        updates = Updates(model, variables, jit_compile=jit_compile, in_graph=options.in_graph)
        return _climbing(model, updates.climb(variables), settings)
    if options.in_graph:
        raise ValueError(
            "`in_graph` is for the iterations of L-BFGS, and Adam trains a network as large as this. "
            'Leave it out, or give optimizer="lbfgs".'
        )
    optimizer = built(options.optimizer, variables, model=model)
    updates = Updates(model, variables, optimizer, variables, jit_compile)
    batches = None if size is None else OutputBatches(model.outputs, size, settings["seed"])
    step = updates.descend if batches is None else lambda: updates.descend(next(batches))
    return Plan(
        Steps(step, optimizer.variables),
        [*model.variables, *optimizer.variables],
        steps=2000,
        period=1 if size is None else -(-model.num_latent_gps // size),
        tolerance=None,
        trackables={"optimizer": optimizer} | ({} if batches is None else {"batches": batches.order}),
        settings=settings | {"optimizer": optimizer.get_config()},
    )


def _climbing(model: GPRNTensor, run: AnyRun, settings: dict[str, Any]) -> Plan:
    """Return the plan whose steps are some iterations of one run of L-BFGS on everything."""

    def step() -> float:
        run.climb(settings["hyper_updates"])
        return float(run.best)

    return Plan(
        Steps(step, run.variables),
        [*model.variables, *run.variables],
        50,
        1e-7,
        monotone=True,
        trackables={"ascent": run},
        settings=settings | {"optimizer": "lbfgs"} | where(run),
    )


class OutputBatches:
    """An endless iterator over random outputs: their numbers [B] and their targets [N, B].

    ``order``, the iterator over the numbers, is what a checkpoint must hold.
    """

    def __init__(self, outputs: Outputs, size: int, seed: int) -> None:
        D = outputs.num_outputs
        order = shuffled(tf.data.Dataset.range(D), D, seed, repeated=True)
        self.order = iter(order.repeat().batch(size, drop_remainder=True))
        self._outputs = outputs

    def __next__(self) -> tuple[tf.Tensor, tf.Tensor]:
        indices = next(self.order)
        return indices, self._outputs.gather(indices)
