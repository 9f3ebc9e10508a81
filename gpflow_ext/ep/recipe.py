"""The recipe of `SparseEP`."""

from __future__ import annotations

from typing import Any, Literal

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.ep import distributed as distributed_ep
from gpflow_ext.ep import engine as ep
from gpflow_ext.ep.model import SparseEP
from gpflow_ext.ep.stochastic_recipe import stochastic_expectation_propagation
from gpflow_ext.training.distribute import Shards
from gpflow_ext.training.optimizers import built
from gpflow_ext.training.recipe import Recipe


def expectation_propagation(
    model: SparseEP,
    data: None = None,
    *,
    seed: int = 0,
    jit_compile: bool | None = None,
    optimizer: Any | Literal["lbfgs"] | None = None,
    minibatch_size: int | None = None,
    damping: float | None = None,
    stationarity: float | None = None,
    site_updates: int = 200,
    hyper_updates: int = 20,
    strategy: tf.distribute.Strategy | None = None,
) -> Recipe:
    """Return the recipe of Hernández-Lobato & Hernández-Lobato (2016) for `SparseEP`.

    With trainable hyperparameters a step is one parallel sweep over the sites and one step of ``optimizer``
    on log Z, 500 steps by default. With ``optimizer="lbfgs"`` it is ``hyper_updates`` iterations of L-BFGS,
    the sites at their fixed point in each evaluation. Without trainable hyperparameters it is one sweep.
    The last two end when log Z and the sites settle; the first does where ``tolerance`` is given.

    With ``minibatch_size`` a step is one minibatch, its cost independent of N; ten epochs by default, and
    less where all hyperparameters are fixed and the sites settle. Its objective is an estimate from the
    minibatch. See `ep.stochastic`.

    Parameters
    ----------
    model
        The model, which holds its data, or with minibatches may read them from a dataset.
    data
        Must be ``None``.
    seed
        Seed of the minibatches.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    optimizer
        A tf_keras optimiser such as ``Adadelta(1.0)``, by default Adam at the rate 0.01; or ``"lbfgs"``.
    minibatch_size
        Rows in a minibatch; all data by default.
    damping
        Share of the way that a sweep moves the sites, in (0, 1]; by default a secant estimate in [0.1, 1], or
        in [0.1, 100] where a datum has several factors, and 1 with minibatches, which are never
        over-relaxed. It does not change the fixed point.
    stationarity
        Largest change of a site, relative to 1 + |prec|, that counts as converged; 1e-6 in float64, or
        1e-4 where a datum has several factors (log Z is then within about 1e-3); 1e-3 in float32.
    site_updates
        Sweeps in an evaluation of L-BFGS, at most.
    hyper_updates
        Iterations of L-BFGS in a step.
    strategy
        A ``tf.distribute`` strategy over whose replicas the data are dealt; the result is the same up to
        rounding. The model is built outside of its scope and holds its data. Without XLA and minibatches.
    """
    if data is not None:
        raise ValueError(f"{type(model).__name__} holds its data: call `fit(model)` without `data`.")
    double = gpflow.default_float() == np.float64
    if stationarity is None:
        stationarity = 1e-3 if not double else 1e-4 if model.nat1.shape.rank > 2 else 1e-6
    hypers = model.trainable_variables
    outer = isinstance(optimizer, str)
    if outer and optimizer != "lbfgs":
        raise ValueError(f'`optimizer` must be a tf_keras optimiser or "lbfgs"; got {optimizer!r}.')
    if outer and minibatch_size is not None:
        raise ValueError('`minibatch_size` needs a tf_keras optimiser: "lbfgs" takes all data at once.')
    if strategy is not None and minibatch_size is not None:
        raise ValueError(
            "`strategy` deals all data to its devices in each step, minibatches are for one device: give "
            "`strategy` or `minibatch_size`, not both."
        )
    inner = None if outer or not hypers else built(optimizer, hypers, otherwise=' or "lbfgs"')
    if minibatch_size is not None:
        return stochastic_expectation_propagation(
            model,
            minibatch_size=minibatch_size,
            seed=seed,
            jit_compile=jit_compile,
            optimizer=inner,
            damping=damping,
            stationarity=stationarity,
        )
    shards = factors = None
    if strategy is not None:
        shards, jit_compile = _shards(model, strategy, jit_compile), False
        factors = distributed_ep.ShardedFactors(model, shards)
    matcher = ep.MomentMatcher(model, hypers, inner, damping, jit_compile, factors)
    settings: dict[str, Any] = {"recipe": "expectation_propagation", "damping": damping}
    if hypers and outer:
        settings |= {"optimizer": optimizer, "site_updates": site_updates, "hyper_updates": hyper_updates}
        update = ep.outer_update(
            matcher,
            model,
            hypers,
            site_updates=site_updates,
            hyper_updates=hyper_updates,
            stationarity=stationarity,
        )
    else:
        settings |= {} if inner is None else {"optimizer": inner.get_config()}
        update = ep.inner_update(matcher, stationarity)
    return Recipe(
        update,
        [*model.variables, *matcher.state],
        steps=50 if hypers and outer else 500,
        tolerance=None if inner is not None else 1e-8 if double else 1e-5,
        monotone=False,
        trackables={"matcher": matcher} | ({} if inner is None else {"optimizer": inner}),
        settings=settings,
        shards=shards,
        gather=(lambda: None) if shards is None else distributed_ep.gatherer(model, matcher, shards),
    )


def _shards(model: SparseEP, strategy: tf.distribute.Strategy, jit_compile: bool | None) -> Shards:
    """Return the model's rows dealt to the replicas."""
    if jit_compile:
        raise NotImplementedError("`jit_compile=True` does not go with `strategy`.")
    if model.data is None:
        raise ValueError("`strategy` deals data in memory; the data of this model are a dataset.")
    if any(isinstance(variable, tf.distribute.DistributedValues) for variable in model.variables):
        raise ValueError("Build the model outside of `strategy.scope()`: only the data are distributed.")
    return Shards(strategy, model.rows.num_data)
