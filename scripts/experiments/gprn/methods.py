"""The regression networks and what they are compared with."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.gprn.network import start as start_nodes

from .mean_field import MeanField
from .mixture import Mixture
from .others import OtherOutputs
from .task import Task, small_jitter

Array = npt.NDArray[Any]
INDEPENDENT, PCA, LMC = "independent GPs", "PCA-GP", "LMC (GPflow)"
OTHERS = "GPR on x and the other outputs"
MEAN_FIELD, MIXTURE = "GPRN, mean field", "GPRN, mixture"
COLLAPSED, JOINT = "GPRN, collapsed", "GPRN, collapsed, joint"
KERNELS = "GPRN, collapsed, joint, node kernels"
CHOSEN = "GPRN, collapsed, joint, nodes chosen on held-out targets"
TENSOR, ADAM, ROWS = "GPRN, tensor", "GPRN, tensor, Adam", "GPRN, tensor, rows per node"


def run(
    method: str,
    task: Task,
    num_latent: int,
    budget: float = 0.0,
    show: Callable[[Array], None] | None = None,
) -> dict[str, float]:
    """Train a method and return its scores on the test targets, its seconds and its bound; show its means.

    ``nrmse`` and ``nmae`` are the root mean squared and the mean absolute error over all test targets, divided
    by their standard deviation; ``nlpd`` is the mean of −log p(y) over them. ``mae`` is the mean absolute error
    in the units of the measurement, where the task has such. ``processor`` are the seconds of the processor for all.
    ``picked`` is the number of nodes where the method chooses it, up to ``num_latent``.
    """
    begin, own = time.perf_counter(), time.process_time()
    with small_jitter(task):
        mean, log_density, bound, seconds, *picked = _METHODS[method](task, num_latent, budget)
    if show is not None:
        show(mean)
    known = ~np.isnan(task.Y_test)
    error, scale = (mean - task.Y_test)[known], task.Y_test[known].std()
    scores = {"processor": time.process_time() - own, **({"picked": picked[0]} if picked else {})}
    if task.measured is not None:
        scores["mae"] = float(np.mean(np.abs(task.measured(mean) - task.measured(task.Y_test))[known]))
    return scores | {
        "nrmse": float(np.sqrt(np.mean(error**2)) / scale),
        "nmae": float(np.mean(np.abs(error)) / scale),
        "nlpd": float(-log_density / known.sum()),
        "bound": float(bound),
        "seconds": seconds or time.perf_counter() - begin,
    }


def network(
    task: Task, num_latent: int, posterior: Literal["collapsed", "tensor"] = "collapsed", form: str = ""
) -> gpx.models.GPRNTensor:
    """Return the untrained network: k_w a squared exponential, both kernels with a length scale for each input.

    ``form`` is the method: with a kernel for each node, or one covariance over the rows for all.
    """
    width = task.X.shape[1]
    # Nodes of a longer length scale: W takes the details, F how their covariance changes.
    kernels = [task.nodes(lengthscales=np.full(width, 3.0)) for _ in range(num_latent)]
    for kernel in kernels:
        gpflow.set_trainable(kernel.variance, False)
    return gpx.models.GPRNTensor(
        (task.X, task.Y),
        kernels if form == KERNELS else kernels[0],
        gpflow.kernels.SquaredExponential(lengthscales=np.ones(width)),
        num_latent,
        posterior=posterior,
        separate_rows=form == ROWS if posterior == "tensor" else None,
        noise_variance=max(1e-2, 2.0 * task.floor),
        noise_bounds=(task.floor, 10.0),
        nugget=max(1e-5, 2.0 * task.floor),
        nugget_bounds=(task.floor, 1.0),
        seed=task.seed,
    )


def _scores(model: gpx.models.GPRNTensor, task: Task) -> tuple[Array, float, float]:
    if task.imputes:
        density = tf.reduce_sum(model.missing_log_density(task.Y_test))
        return model.predict_missing()[0].numpy(), float(density), float(model.elbo())
    density = tf.reduce_sum(model.predict_log_density((task.X_test, task.Y_test)))
    return model.predict_f(task.X_test)[0].numpy(), float(density), float(model.elbo())


def _collapsed(
    task: Task, num_latent: int, budget: float, joint: bool = False, form: str = ""
) -> tuple[Array, float, float, float]:
    model = network(task, num_latent, form=form)
    begin = time.perf_counter()
    gpx.fit(model, steps=task.steps, joint=joint, progress=False)
    seconds = time.perf_counter() - begin
    return *_scores(model, task), seconds


def _chosen(task: Task, most: int, budget: float) -> tuple[Array, float, float, float, int]:
    """Choose the number of nodes on a fifth of the training targets, and train with as many on all."""
    begin = time.perf_counter()
    part = _without_a_fifth(task)
    found = gpx.fit_nodes(
        lambda number: network(part, number),
        most=most,
        score=lambda model: _scores(model, part)[1],
        progress=False,
    )
    number = found.model.num_latent
    model = network(task, number)
    gpx.fit(model, progress=False)
    seconds = time.perf_counter() - begin
    return *_scores(model, task), seconds, number


def _without_a_fifth(task: Task) -> Task:
    """Hold out a fifth of the training rows, or of the targets where those to predict are in these rows."""
    rng = np.random.default_rng(task.seed)
    if not task.imputes:
        rows = rng.permutation(len(task.X))
        held, kept = np.split(rows, [len(rows) // 5])
        return replace(task, X=task.X[kept], Y=task.Y[kept], X_test=task.X[held], Y_test=task.Y[held])
    held = (rng.uniform(size=task.Y.shape) < 0.2) & ~np.isnan(task.Y)
    return replace(task, Y=np.where(held, np.nan, task.Y), Y_test=np.where(held, task.Y, np.nan))


def _tensor(task: Task, num_latent: int, budget: float, form: str = "") -> tuple[Array, float, float, float]:
    """Train the tensor posterior until it settles."""
    model = network(task, num_latent, "tensor", form)
    begin = time.perf_counter()
    gpx.fit(model, progress=False)
    seconds = time.perf_counter() - begin
    return *_scores(model, task), seconds


def _adam(task: Task, num_latent: int, budget: float) -> tuple[Array, float, float, float]:
    """Train by Adam for ``budget`` seconds, compilation included."""
    model = network(task, num_latent, "tensor")
    optimizer = gpflow.keras.tf_keras.optimizers.Adam(0.01)
    begin = time.perf_counter()
    first = gpx.fit(model, steps=20, optimizer=optimizer, progress=False)
    per_step = (first.times[-1] - first.times[0]) / (len(first.times) - 1)
    left = int((budget - first.times[-1]) / per_step)
    gpx.fit(model, steps=max(1, left), optimizer=optimizer, progress=False)
    return *_scores(model, task), time.perf_counter() - begin


def _mean_field(task: Task, num_latent: int, budget: float) -> tuple[Array, float, float, float]:
    """Sweeps for ``budget`` seconds from the start of the collapsed posterior."""
    model = network(task, num_latent)
    begin = time.perf_counter()
    fitted = MeanField(model, task.X, task.Y, _start(model, task, num_latent))
    while time.perf_counter() - begin < budget:
        fitted.sweep()
    seconds = time.perf_counter() - begin
    mean, var = fitted.predict(task.X_test)
    return mean, _gaussian(task.Y_test, mean, var), fitted.elbo(), seconds


def _mixture(task: Task, num_latent: int, budget: float) -> tuple[Array, float, float, float]:
    """L-BFGS for ``budget`` seconds from the start of the collapsed posterior, two components."""
    model = network(task, num_latent)
    begin = time.perf_counter()
    fitted = Mixture(model, task.X, task.Y, _start(model, task, num_latent), 2, task.seed)
    fitted.train(budget - (time.perf_counter() - begin))
    seconds = time.perf_counter() - begin
    mean, var = fitted.predict(task.X_test)
    return mean, _gaussian(task.Y_test, mean, var), float(fitted.elbo()), seconds


def _start(model: gpx.models.GPRNTensor, task: Task, num_latent: int) -> Array:
    """Fit independent regressions and return the nodes where the collapsed posterior starts, [N, K]."""
    _fit_independent(model)
    prior = model.prior()
    draws = np.random.default_rng(task.seed).standard_normal((len(task.X), num_latent - 1))
    return start_nodes(tf.matmul(prior.nodes, draws), prior.weights, prior.noise).numpy()


def _fit_independent(model: gpx.models.GPRNTensor) -> float:
    """Fit k_w and the noise of independent regressions; return their evidence."""
    variables = [*model.weight_kernel.trainable_variables, *model.likelihood.trainable_variables]
    evidence = tf.function(model.independent_log_likelihood)
    gpflow.optimizers.Scipy().minimize(
        lambda: -evidence(), variables, compile=False, options={"maxiter": 200}
    )
    return float(evidence())


def _gaussian(Y: Array, mean: Array, var: Array) -> float:
    return float(np.nansum(-0.5 * (np.log(2.0 * np.pi * var) + (Y - mean) ** 2 / var)))


def _independent(task: Task, num_latent: int, budget: float) -> tuple[Array, float, float, float]:
    """One kernel and noise for all outputs by their common evidence; missing targets are left out."""
    model = network(task, 1)
    begin = time.perf_counter()
    evidence = _fit_independent(model)
    likelihood: Any = model.likelihood
    noise = float(likelihood.variance.numpy())
    K = model.weight_kernel(task.X).numpy()
    cross = model.weight_kernel(task.X, task.X_test).numpy()
    own = model.weight_kernel(task.X_test, full_cov=False).numpy()
    mean, var = np.empty_like(task.Y_test), np.empty_like(task.Y_test)
    kinds, member = np.unique(~np.isnan(task.Y), axis=1, return_inverse=True)
    for kind, rows in enumerate(kinds.T):
        here, jitter = member.ravel() == kind, gpflow.default_jitter()
        gain = np.linalg.solve(K[np.ix_(rows, rows)] + (noise + jitter) * np.eye(rows.sum()), cross[rows])
        mean[:, here] = gain.T @ task.Y[np.ix_(rows, here)]
        var[:, here] = (np.maximum(own - np.sum(gain * cross[rows], axis=0), 0.0) + noise)[:, None]
    return mean, _gaussian(task.Y_test, mean, var), evidence, time.perf_counter() - begin


def _others(task: Task, num_latent: int, budget: float) -> tuple[Array, float, float, float]:
    """Fit a regression for each output, which sees the other outputs at the inputs of the missing targets."""
    begin = time.perf_counter()
    model = OtherOutputs(task.X, task.Y, task.floor)
    mean, var, evidence = np.empty_like(task.Y), np.empty_like(task.Y), 0.0
    for output in range(task.Y.shape[1]):
        evidence += model.fit(output)
        mean[:, output], var[:, output] = model.predict()
    return mean, _gaussian(task.Y_test, mean, var), evidence, time.perf_counter() - begin


def _pca(task: Task, num_latent: int, budget: float) -> tuple[Array, float, float, float]:
    """Independent GPs, each with its own kernel, for the leading principal components (99.99 % of the variance)."""
    begin = time.perf_counter()
    middle = task.Y.mean(axis=0)
    left, scales, right = np.linalg.svd(task.Y - middle, full_matrices=False)
    shares = np.cumsum(scales**2) / np.sum(scales**2)
    number = min(int(np.searchsorted(shares, 0.9999)) + 1, 20)
    mean = np.repeat(middle[None], len(task.X_test), axis=0)
    rest = task.Y - middle - (left[:, :number] * scales[:number]) @ right[:number]
    var = np.full_like(mean, max(float(np.mean(rest**2)), task.floor))
    for k in range(number):
        y = left[:, k].astype(np.float64) * np.sqrt(len(left))  # of variance near 1
        kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(task.X.shape[1]))
        gpr = gpflow.models.GPR(
            (task.X, y[:, None]),
            kernel,
            likelihood=gpflow.likelihoods.Gaussian(1e-2, variance_lower_bound=task.floor),
        )
        gpflow.optimizers.Scipy().minimize(
            gpr.training_loss, gpr.trainable_variables, options={"maxiter": 100}
        )
        unit = scales[k] / np.sqrt(len(left)) * right[k]
        m, v = (part.numpy() for part in gpr.predict_y(task.X_test))
        mean += m * unit
        var += v * unit**2
    return mean, _gaussian(task.Y_test, mean, var), float("nan"), time.perf_counter() - begin


def _lmc(task: Task, num_latent: int, budget: float) -> tuple[Array, float, float, float]:
    """GPflow's linear coregionalisation: K latent GPs, each with its own kernel, mixed by constant weights."""
    begin = time.perf_counter()
    D, width = task.Y.shape[1], task.X.shape[1]
    count = max(num_latent, 2)
    kernels = [gpflow.kernels.SquaredExponential(lengthscales=np.ones(width)) for _ in range(count)]
    mixing = np.random.default_rng(task.seed).normal(size=(D, count)) / np.sqrt(count)
    points = gpflow.inducing_variables.InducingPoints(task.X.copy())
    gpflow.set_trainable(points, False)
    shared = gpflow.inducing_variables.SharedIndependentInducingVariables(points)
    model = gpflow.models.SVGP(
        gpflow.kernels.LinearCoregionalization(kernels, W=mixing),
        gpflow.likelihoods.Gaussian(1e-2, variance_lower_bound=task.floor),
        shared,
        num_latent_gps=count,
        q_mu=np.zeros((len(task.X), count)),
        q_sqrt=np.repeat(0.1 * np.eye(len(task.X))[None], count, axis=0),
    )
    data = tf.constant(task.X), tf.constant(task.Y)
    gpflow.optimizers.Scipy().minimize(
        model.training_loss_closure(data), model.trainable_variables, options={"maxiter": 100}
    )
    mean, var = (part.numpy() for part in model.predict_y(task.X_test))
    return mean, _gaussian(task.Y_test, mean, var), float(model.elbo(data)), time.perf_counter() - begin


_METHODS: dict[str, Callable[[Task, int, float], tuple[Any, ...]]] = {
    INDEPENDENT: _independent,
    PCA: _pca,
    LMC: _lmc,
    OTHERS: _others,
    MEAN_FIELD: _mean_field,
    MIXTURE: _mixture,
    COLLAPSED: _collapsed,
    JOINT: functools.partial(_collapsed, joint=True),
    KERNELS: functools.partial(_collapsed, joint=True, form=KERNELS),
    CHOSEN: _chosen,
    TENSOR: _tensor,
    ROWS: functools.partial(_tensor, form=ROWS),
    ADAM: _adam,
}
BY_FLAG = {
    "independent": INDEPENDENT,
    "pca": PCA,
    "lmc": LMC,
    "others": OTHERS,
    "collapsed": COLLAPSED,
    "joint": JOINT,
    "kernels": KERNELS,
    "chosen": CHOSEN,
    "tensor": TENSOR,
    "rows": ROWS,
    "adam": ADAM,
    "mean_field": MEAN_FIELD,
    "mixture": MIXTURE,
}
COMPLETE_ONLY = (PCA, LMC, MEAN_FIELD, MIXTURE)
PARTLY_OBSERVED_ONLY = (OTHERS,)
