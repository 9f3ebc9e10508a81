"""The start of q from the labels: one pass of regression on them, in closed form.

Class labels are taken for values of the latent functions with Gaussian noise, y_nk = c t_nk with
t_nk = [label n is k] − 1/K, and noise of variance s²: for f = μ + Aᵀv + r, v ~ N(0, I),

    Var[v]⁻¹ = I + AAᵀ / s²        E[v] = Var[v] A (c t − μ) / s²

which is q for the sites prec = 1/s², nat1 = c t / s². The noise of the labels is not the likelihood's: of
some pairs (c, s²), in units of the prior's standard deviation and variance, the one with the highest bound on
some of the rows is taken. The classes share Var[v] where they share a kernel. O(NM² + M³).
"""

from __future__ import annotations

from collections.abc import Iterator
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
from gpflow_ext.svgp.whitened_normal import divergence

_SCALES = 1.0, 2.0, 4.0, 8.0  # c, in standard deviations of the prior
_NOISES = 0.025, 0.1, 0.4, 1.6  # s², in its variances
_LOOKED_AT = 3000  # rows on which the bounds are compared


class LabelStart(NamedTuple):
    """What q was started from."""

    scale: float  # c
    noise: float  # s²
    bound: float  # there, estimated from some of the rows


def start_from_labels(model: Any, data: Any = None, *, seed: int = 0) -> LabelStart:
    """Start q of a classifier, or its sites, from a regression on the labels, and leave all else as it is.

    Parameters
    ----------
    model
        A whitened ``SVGP`` such as `SVGPRobustMax`, or a `SiteModel` such as `SparseEP`, with a likelihood of
        two classes and one latent function, or of K classes and K latent functions, and independent latent
        functions.
    data
        (X [N, D], Y [N, 1]) for a model that does not hold its data.
    seed
        Of the rows on which bounds are compared.

    Returns
    -------
    The pair (c, s²) that was taken, and the bound there.

    Raises
    ------
    ValueError
        For data where the model holds its own, or none where it does not.
    NotImplementedError
        For another model or likelihood.
    """
    if isinstance(model, SiteModel):
        if data is not None or model.data is None:
            raise ValueError(
                f"{type(model).__name__} starts from the arrays that it holds: leave `data` out, and "
                "build it on arrays."
            )
        twin = Twin(model)
        return _start_sites(twin.model)
    if data is None:
        raise ValueError(f"{type(model).__name__} does not hold its data: give `data` as (X, Y).")
    twin = Twin(model, data)
    return start_q(twin.model, checks.check_data(twin.data), seed)


def start_q(model: SVGP, data: tuple[Any, Any], seed: int = 0) -> LabelStart:
    """Start q of a whitened ``SVGP`` from its data X [N, D], Y [N, 1]; see `start_from_labels`."""
    reason = refusal(model, "start_from_labels") if isinstance(model, SVGP) else "no SVGP and no SiteModel"
    if reason is not None:
        raise NotImplementedError(f"{type(model).__name__} cannot start from labels: {reason}.")
    X, T = data[0], targets(model.likelihood, data[1], model.num_latent_gps)
    regression = LabelRegression(model)
    compiled = Compiled(regression, batches=True)
    sums = compiled(regression.sums, X, T.astype(X.dtype))
    chosen = np.random.default_rng(seed).permutation(len(X))[:_LOOKED_AT]
    some, share = (X[chosen], np.asarray(data[1])[chosen]), (model.num_data or len(X)) / len(chosen)
    best: tuple[LabelStart, tf.Tensor, tf.Tensor] | None = None
    for scale, noise, mean, root in _candidates(sums, _variance(model, some[0]), X.dtype):
        bound = float(compiled(regression.bound, *some, mean, root, tf.constant(share, X.dtype)))
        if np.isfinite(bound) and (best is None or bound > best[0].bound):
            best = LabelStart(scale, noise, bound), mean, root
    if best is None:
        raise ValueError("No start from the labels has a finite bound: start from other hyperparameters.")
    model.q_mu.assign(best[1])
    model.q_sqrt.assign(tf.broadcast_to(best[2], model.q_sqrt.shape))
    return best[0]


def start_as_asked(
    model: SVGP, arrays: tuple[Any, Any] | None, start: str | None, seed: int
) -> dict[str, str]:
    """Start q as the option ``start`` of a recipe says; return what the settings of the run say of it.

    Raises
    ------
    ValueError
        For an unknown start, or data that are no arrays.
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


class LabelRegression(tf.Module):
    """What is compiled: the sums of the regression, and the bound of its q."""

    def __init__(self, model: SVGP) -> None:
        super().__init__()
        self._model = model

    def sums(self, X: tf.Tensor, T: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return AAᵀ [1 or L, M, M], A t and A μ [M, L] over X [N, D], t [N, L], in double precision."""
        model = self._model
        gram = sparse_prior.gram(model)
        chol = tf.linalg.cholesky(gram)
        none = tf.zeros([gram.shape[-1], model.num_latent_gps], tf.float64)

        def part(batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            _, X, T = batch
            A = tf.linalg.triangular_solve(chol, sparse_prior.cross(model, X))
            found = (
                tf.matmul(A, A, transpose_b=True),
                products.matvec(A, T),
                products.matvec(A, latent.mean(model, X)),
            )
            return tuple(tf.cast(each, tf.float64) for each in found)

        return ArrayRows(X, T).total((tf.zeros_like(gram, tf.float64), none, none), part)

    def bound(
        self, X: tf.Tensor, Y: tf.Tensor, mean: tf.Tensor, root: tf.Tensor, share: tf.Tensor
    ) -> tf.Tensor:
        """Return the bound by the rows X [B, D], Y [B, 1] for E[v], a factor of Var[v] and N/B."""
        model = self._model
        prior = sparse_prior.project_independent(model, X)
        seen = tf.matmul(root, prior.A, transpose_a=True)  # [1 or L, M, B]
        at = prior.mean + products.matvec(prior.A, mean, transpose=True)
        var = tf.broadcast_to(
            prior.residual + tf.transpose(tf.reduce_sum(tf.square(seen), axis=-2)), tf.shape(at)
        )
        fit = tf.reduce_sum(model.likelihood.variational_expectations(X, at, var, Y))
        full = tf.broadcast_to(root, [mean.shape[1], *root.shape[1:]])
        return share * fit - divergence(mean, full)


def _candidates(
    sums: tuple[tf.Tensor, tf.Tensor, tf.Tensor], variance: float, dtype: Any
) -> Iterator[tuple[float, float, tf.Tensor, tf.Tensor]]:
    """Yield pairs (c, s²) with E[v] [M, L] and a lower factor of Var[v], [1 or L, M, M]."""
    gram, by_labels, by_mean = sums
    for noise in variance * np.array(_NOISES):
        told, root = Message(gram / noise, by_labels / noise).moments()
        shift = products.matvec(root, products.matvec(root, by_mean / noise, transpose=True))
        for scale in np.sqrt(variance) * np.array(_SCALES):
            yield float(scale), float(noise), tf.cast(scale * told - shift, dtype), tf.cast(root, dtype)


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
    prior, variance = model.prior(), _variance(model, X[:_LOOKED_AT])
    best: tuple[LabelStart, Sites] | None = None
    for noise in variance * np.array(_NOISES):
        prec = tf.fill(tf.shape(T), tf.cast(1.0 / noise, T.dtype))
        factor = prior.factorise(prec)
        var = factor.variance()
        for scale in np.sqrt(variance) * np.array(_SCALES):
            sites = Sites(tf.cast(scale / noise, T.dtype) * T, prec)
            alpha, shift = factor.solve(sites.nat1 - prec * prior.mean)
            kl = site_divergence(prior, prec, var, factor, alpha, shift)
            bound = float(tf.reduce_sum(model.expectation(prior.mean + shift, var)) - kl)
            if np.isfinite(bound) and (best is None or bound > best[0].bound):
                best = LabelStart(float(scale), float(noise), bound), sites
    if best is None:
        raise ValueError("No start from the labels has a finite bound: start from other hyperparameters.")
    model.assign_sites(best[1])
    return best[0]
