"""Initialise q from the labels by one pass of regression on them, in closed form.

Class labels are taken for values of the latent functions with Gaussian noise, y_nk = c t_nk with
t_nk = [label n is k] − 1/K, and noise of variance s²: for f = μ + Aᵀv + r, v ~ N(0, I),

    Var[v]⁻¹ = I + AAᵀ / s²        E[v] = Var[v] A (c t − μ) / s²

which is q for the sites prec = 1/s², nat1 = c t / s². The noise of the labels is not the likelihood's, and a
small one that classifies well leaves too little variance: q of an ``SVGP`` has Var[v] of a noise of its own.
(c, s², that noise), in units of the prior's standard deviation and variance, are those of a grid that predict
some rows best from all the others, which are then added. Sites, which decide both moments, have the pair
(c, s²) of the highest bound. The classes share Var[v] where they share a kernel. O(NM² + M³).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.models import SVGP

from gpflow_ext.compiled import Compiled
from gpflow_ext.data import checks
from gpflow_ext.data.rows import ArrayRows, Batch
from gpflow_ext.features.twin import Twin
from gpflow_ext.likelihoods.binary import BinaryLikelihood
from gpflow_ext.sites import Message, Sites, latent, products, sparse_prior
from gpflow_ext.sites.algebra import divergence as site_divergence
from gpflow_ext.sites.model import SiteModel
from gpflow_ext.svgp.whitened import refusal

_SCALES = 0.5, 1.0, 2.0, 4.0  # c, in standard deviations of the prior
_NOISES = 0.001, 0.01, 0.1, 1.0  # s², in its variances
_SPREADS = 0.1, 0.4, 1.6, 6.4  # the noise that Var[v] is of, likewise
_SITES = 0.025, 0.1, 0.4, 1.6  # s² of sites
_HELD_OUT, _SHARE = 2000, 0.2  # rows that are predicted, and the largest share of all


class LabelStart(NamedTuple):
    """How q was initialised."""

    scale: float  # c
    noise: float  # s² of the mean
    spread: float  # s² of the covariance
    value: float  # mean log density of the rows held out, or of sites the bound


def start_from_labels(model: Any, data: Any = None, *, seed: int = 0, groups: Any = None) -> LabelStart:
    """Initialise q of a classifier, or its sites, by regression on the labels; all else stays as it is.

    Parameters
    ----------
    model
        A whitened ``SVGP`` such as `SVGPRobustMax`, or a `SiteModel` such as `SparseEP`, with a likelihood of
        two classes and one latent function, or of K classes and K latent functions, and independent latent
        functions.
    data
        (X [N, D], Y [N, 1]) for a model that does not hold its data.
    seed
        Seed of the rows that are held out to choose.
    groups
        The group of each row, [N], such as the image that it is a shifted copy of: rows of a group are held
        out together, and the first of them is predicted. By default each row is alone.

    Returns
    -------
    The scale c, the noise s² and the noise of the covariance that were chosen, and the score they reached.

    Raises
    ------
    ValueError
        If data are given to a model that holds its own, or not given to one that does not; for groups that
        are not one to a row, fewer than two, or given to a `SiteModel`, which holds no rows out.
    NotImplementedError
        For another model or likelihood.
    """
    if isinstance(model, SiteModel):
        if data is not None or model.data is None:
            raise ValueError(
                f"{type(model).__name__} starts from the arrays that it holds: leave `data` out, and "
                "build it on arrays."
            )
        if groups is not None:
            raise ValueError(f"{type(model).__name__} holds no rows out: leave `groups` out.")
        twin = Twin(model)
        return _start_sites(twin.model)
    if data is None:
        raise ValueError(f"{type(model).__name__} does not hold its data: give `data` as (X, Y).")
    twin = Twin(model, data)
    return start_q(twin.model, checks.check_data(twin.data), seed, groups)


def start_q(model: SVGP, data: tuple[Any, Any], seed: int = 0, groups: Any = None) -> LabelStart:
    """Start q of a whitened ``SVGP`` from its data X [N, D], Y [N, 1]; see `start_from_labels`."""
    reason = refusal(model, "start_from_labels") if isinstance(model, SVGP) else "no SVGP and no SiteModel"
    if reason is not None:
        raise NotImplementedError(f"{type(model).__name__} cannot start from labels: {reason}.")
    X, Y = data
    T = targets(model.likelihood, Y, model.num_latent_gps).astype(X.dtype)
    first, held, rest = _held_out(len(X), groups, seed)
    regression = LabelRegression(model)
    compiled = Compiled(regression, batches=True)
    sums, own = (Sums(*compiled(regression.sums, X[part], T[part])) for part in (rest, held))
    variance = _variance(model, X[first])
    found = _best(compiled, regression, sums, (X[first], Y[first]), variance)
    if not np.isfinite(found.value):
        raise ValueError(
            "No start from the labels predicts a finite density: start from other hyperparameters."
        )
    whole = Sums(*(a + b for a, b in zip(sums, own, strict=True)))
    model.q_mu.assign(tf.cast(whole.mean(found.scale, found.noise, whole.root(found.noise)), X.dtype))
    model.q_sqrt.assign(tf.broadcast_to(tf.cast(whole.root(found.spread), X.dtype), model.q_sqrt.shape))
    return found


def _held_out(N: int, groups: Any, seed: int) -> tuple[checks.Array, checks.Array, checks.Array]:
    """Return the rows that are predicted, the rows of their groups, and all others."""
    groups = np.arange(N) if groups is None else np.asarray(groups)
    if groups.shape != (N,):
        raise ValueError(
            f"`groups` must hold one group for each of the {N} rows; its shape is {groups.shape}."
        )
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    if len(first) < 2:
        raise ValueError("`groups` must be at least two: one is held out to choose the start.")
    order = np.random.default_rng(seed).permutation(len(first))
    chosen = order[: max(1, min(_HELD_OUT, int(_SHARE * len(first))))]
    place = np.argsort(order)[group]  # of each row's group in the order
    rows = np.argsort(place, kind="stable")
    return first[chosen], *np.split(rows, [int(np.sum(place < len(chosen)))])


def _best(
    compiled: Compiled, regression: LabelRegression, sums: Sums, held: tuple[Any, Any], variance: float
) -> LabelStart:
    """Return the start of the grid by which held-out rows X [B, D], Y [B, 1] are most probable."""
    X, Y = held
    noises, spreads = variance * np.array(_NOISES), variance * np.array(_SPREADS)
    mean, A, residual = compiled(regression.seen, X)
    means, variances = {}, {}
    for noise in sorted({*noises, *spreads}):
        root = sums.root(noise)  # M² numbers: one at a time
        if noise in noises:
            for scale in np.sqrt(variance) * np.array(_SCALES):
                moved = sums.mean(scale, noise, root)
                means[scale, noise] = compiled(regression.means, mean, A, moved)
        if noise in spreads:
            variances[noise] = compiled(regression.variances, A, residual, root)
    best = LabelStart(np.nan, np.nan, np.nan, -np.inf)
    for (scale, noise), at in means.items():
        for spread, var in variances.items():
            value = float(compiled(regression.log_density, X, Y, at, var))
            if value > best.value:
                best = LabelStart(float(scale), float(noise), float(spread), value)
    return best


def start_as_asked(
    model: SVGP, arrays: tuple[Any, Any] | None, start: str | None, seed: int
) -> dict[str, str]:
    """Start q as the option ``start`` of a recipe says; return what the settings of the run say of it.

    Raises
    ------
    ValueError
        For an unknown start, or data that are not arrays.
    """
    if start is None:
        return {}
    if start != "labels":
        raise ValueError(f'`start` must be "labels" or None; got {start!r}.')
    if arrays is None:
        raise ValueError('start="labels" takes a pass over all data: give them as arrays (X, Y).')
    start_q(model, arrays, seed)
    return {"start": start}


def targets(likelihood: Any, Y: Any, num_latent_gps: int) -> checks.Array:
    """Return what labels [N, 1] say of the latent functions, [N, L]: [label is k] − 1/K, or ± ½ of two.

    Raises
    ------
    ValueError
        For labels that are none of the likelihood's.
    NotImplementedError
        For a likelihood whose classes are not those of the latent functions.
    """
    checks.check_targets(likelihood, np.asarray(Y))
    labels, classes = np.asarray(Y), getattr(likelihood, "num_classes", None)
    if classes is None and isinstance(likelihood, gpflow.likelihoods.Softmax):
        classes = likelihood.latent_dim
    if classes is not None and classes == num_latent_gps and labels.shape[1:] == (1,):
        checks.check_class_numbers(labels, classes)
        return np.eye(classes)[labels[:, 0].astype(int)] - 1.0 / classes
    if isinstance(likelihood, gpflow.likelihoods.Bernoulli | BinaryLikelihood):
        return labels - 0.5
    raise NotImplementedError(
        f"{type(likelihood).__name__} with {num_latent_gps} functions cannot start from labels: that is "
        "for Bernoulli likelihoods, and those of K classes by K functions, such as likelihoods.RobustMax."
    )


class Sums(NamedTuple):
    """The sums over data that the regression needs, in double precision."""

    gram: tf.Tensor  # AAᵀ, [1 or L, M, M]
    by_labels: tf.Tensor  # A t, [M, L]
    by_mean: tf.Tensor  # A μ, [M, L]

    def root(self, noise: float) -> tf.Tensor:
        """Return a lower factor of Var[v], [1 or L, M, M]. O(M³)."""
        return Message(self.gram / noise, self.by_labels).moments()[1]

    def mean(self, scale: float, noise: float, root: tf.Tensor) -> tf.Tensor:
        """Return E[v] for the factor of Var[v] at that noise, [M, L]. O(M²L)."""
        pull = (scale * self.by_labels - self.by_mean) / noise
        return products.matvec(root, products.matvec(root, pull, transpose=True))


class LabelRegression(tf.Module):
    """Functions to compile: the sums of the regression, and what its q predicts."""

    def __init__(self, model: SVGP) -> None:
        super().__init__()
        self._model = model

    def sums(self, X: tf.Tensor, T: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the fields of `Sums` over X [N, D], t [N, L]."""
        model = self._model
        gram = sparse_prior.gram(model)
        chol = tf.linalg.cholesky(gram)
        none = tf.zeros([gram.shape[-1], model.num_latent_gps], tf.float64)

        def part(batch: Batch) -> tuple[tf.Tensor, ...]:
            _, X, T = batch
            A = tf.linalg.triangular_solve(chol, sparse_prior.cross(model, X))
            by_mean = products.matvec(A, latent.mean(model, X))
            found = tf.matmul(A, A, transpose_b=True), products.matvec(A, T), by_mean
            return tuple(tf.cast(each, tf.float64) for each in found)

        return ArrayRows(X, T).total((tf.zeros_like(gram, tf.float64), none, none), part)

    def seen(self, X: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the prior mean [B, L], A [1 or L, M, B] and the residual [B, 1 or L] at X [B, D]."""
        prior = sparse_prior.project_independent(self._model, X)
        return prior.mean, prior.A, prior.residual

    def means(self, mean: tf.Tensor, A: tf.Tensor, moved: tf.Tensor) -> tf.Tensor:
        """Return the means of q(f) for the mean of v, which is [M, L], as [B, L]."""
        return mean + products.matvec(A, tf.cast(moved, A.dtype), transpose=True)

    def variances(self, A: tf.Tensor, residual: tf.Tensor, root: tf.Tensor) -> tf.Tensor:
        """Return the variances of q(f) for a factor of that of v, which is [1 or L, M, M], as [B, 1 or L]."""
        seen = tf.matmul(tf.cast(root, A.dtype), A, transpose_a=True)
        return residual + tf.transpose(tf.reduce_sum(tf.square(seen), axis=-2))

    def log_density(self, X: tf.Tensor, Y: tf.Tensor, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        """Return the mean log density of Y [B, 1] at X [B, D] for the moments of q(f), []."""
        var = tf.broadcast_to(var, tf.shape(mean))
        return tf.reduce_mean(self._model.likelihood.predict_log_density(X, mean, var, Y))


def _variance(model: Any, X: Any) -> float:
    return float(tf.reduce_mean(latent.variances(model.kernel, tf.constant(X))))


def _start_sites(model: SiteModel) -> LabelStart:
    """Start the sites of a model from its data. O(NM²), or O(N³) without inducing points."""
    if latent.mixing(model.kernel) is not None:
        raise NotImplementedError(
            "Mixed latent functions cannot start from labels: each needs labels of its own."
        )
    if model.nat1.shape.rank != 2:
        raise NotImplementedError(
            "Several factors of a datum cannot start from labels: give RobustMax an epsilon > 0."
        )
    X, Y = model.data
    T = tf.constant(targets(model.likelihood, Y, model.num_latent_gps), X.dtype)
    prior, variance = model.prior(), _variance(model, X[:_HELD_OUT])
    best: tuple[LabelStart, Sites] | None = None
    for noise in variance * np.array(_SITES):
        prec = tf.fill(tf.shape(T), tf.cast(1.0 / noise, T.dtype))
        factor = prior.factorise(prec)
        var = factor.variance()
        for scale in np.sqrt(variance) * np.array(_SCALES):
            sites = Sites(tf.cast(scale / noise, T.dtype) * T, prec)
            alpha, shift = factor.solve(sites.nat1 - prec * prior.mean)
            kl = site_divergence(prior, prec, var, factor, alpha, shift)
            bound = float(tf.reduce_sum(model.expectation(prior.mean + shift, var)) - kl)
            if np.isfinite(bound) and (best is None or bound > best[0].value):
                best = LabelStart(float(scale), float(noise), float(noise), bound), sites
    if best is None:
        raise ValueError("No start from the labels has a finite bound: start from other hyperparameters.")
    model.assign_sites(best[1])
    return best[0]
