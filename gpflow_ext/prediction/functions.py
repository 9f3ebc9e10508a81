"""Functions drawn from the posterior of any model, GPflow's own too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from gpflow.models import GPMC, GPR, SGPMC, SGPR, SVGP, VGP

from gpflow_ext.functions.draws import NUM_FEATURES, FunctionDraws, SamplesFunctions
from gpflow_ext.functions.given import Given, domain
from gpflow_ext.functions.product import Product
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.numerics import linalg
from gpflow_ext.sites import latent


def sample_functions(
    model: Any,
    num_samples: int,
    seed: int,
    *,
    num_features: int = NUM_FEATURES,
    groups: int = 1,
    dtype: Any = None,
) -> FunctionDraws:
    """Draw functions of a model's posterior, which can then be called at any inputs (Wilson et al. 2020).

    Parameters
    ----------
    model
        A model of this package, or GPflow's ``GPR``, ``SGPR``, ``VGP``, ``SVGP``, ``GPMC`` or ``SGPMC``, the
        last two at their current values.
    num_samples, seed, num_features, groups, dtype
        See `gpflow_ext.functions.draws.SamplesFunctions.sample_functions`.

    Returns
    -------
    A callable of inputs X [N, D] that returns [S, N, P] and is differentiable in X.

    Raises
    ------
    NotImplementedError
        For other models, kernels without random features, and inducing variables other than points or
        features.
    ValueError
        For a seed that is not a whole number of 32 bits, numbers below one, an odd ``num_features``, or a
        ``num_samples`` not divisible by ``groups``.
    """
    posterior = None if type(model) in _GIVEN or not hasattr(model, "posterior") else model.posterior()
    return FunctionDraws(given_of(model, posterior), num_samples, seed, num_features, groups, dtype)


def given_of(model: Any, posterior: Any) -> Given | Product:
    """Return what the functions of a model are drawn from; ``posterior`` is for models of this package."""
    if isinstance(posterior, SamplesFunctions):
        return posterior.functions()
    if type(model) in _GIVEN:
        return _GIVEN[type(model)](model)
    own = "" if posterior is None else f", whose posterior is a {type(posterior).__name__}"
    raise NotImplementedError(
        f"sample_functions has no rule for {type(model).__name__}{own}: draw at given inputs instead, by "
        "predict_f_samples(X), where the model has it."
    )


def _regression(model: GPR) -> Given:
    """α = (K + Σ)⁻¹(y − μ − f̃ − ε), ε ~ N(0, Σ)."""
    X, Y = model.data
    noise = tf.reshape(model.likelihood.variance_at(X), [-1])
    K = model.kernel(X)
    chol = tf.linalg.cholesky(tf.linalg.set_diag(K, tf.linalg.diag_part(K) + noise))
    residual = tf.transpose(Y - model.mean_function(X))[..., None]  # [L, N, 1]

    def condition(prior: tf.Tensor, numbers: Numbers) -> tf.Tensor:
        apart = residual - prior - tf.sqrt(noise)[:, None] * numbers.normal(tf.shape(prior))
        return tf.linalg.cholesky_solve(tf.broadcast_to(chol, [apart.shape[0], *chol.shape]), apart)

    return _given(model, (X,), condition, jitter=0.0)


def _sparse_regression(model: SGPR) -> Given:
    cache: Any = model.posterior().cache
    chol, factor, c = cache
    mean = tf.linalg.triangular_solve(factor, c, adjoint=True)

    def draw(numbers: Numbers, shape: tf.Tensor) -> tf.Tensor:
        noise = numbers.normal(shape)
        return tf.linalg.triangular_solve(
            tf.broadcast_to(factor, [shape[0], *factor.shape]), noise, adjoint=True
        )

    return _given(model, latent.sets(model.inducing_variable), _whitened(chol[None], mean, draw))


def _variational(model: SVGP | VGP | GPMC | SGPMC) -> Given:
    """With q(v) of a whitened model, or q(u) = q(Lv)."""
    if hasattr(model, "inducing_variable"):
        points: Sequence[Any] = latent.sets(model.inducing_variable)
        chol = tf.linalg.cholesky(latent.inducing_gram(model.inducing_variable, model.kernel))
    else:
        points = (tf.convert_to_tensor(model.data[0]),)
        chol = tf.linalg.cholesky(linalg.jittered(latent.gram(model.kernel, points[0])))
    mean, root = tf.convert_to_tensor(getattr(model, "V", getattr(model, "q_mu", None))), None
    if hasattr(model, "q_sqrt"):
        root = tf.convert_to_tensor(model.q_sqrt)
        root = tf.linalg.diag(tf.transpose(root)) if root.shape.rank == 2 else root

    def draw(numbers: Numbers, shape: tf.Tensor) -> tf.Tensor:
        return 0.0 if root is None else tf.matmul(root, numbers.normal(shape))

    whitened = getattr(model, "whiten", True)
    return _given(model, points, _whitened(chol, mean, draw, whitened))


def _whitened(chol: tf.Tensor, mean: tf.Tensor, draw: Any, whitened: bool = True) -> Any:
    """Return α = L⁻ᵀ(v − L⁻¹f̃) as a function, for the factors L [1 or L, M, M] and draws of v, or u = Lv."""

    def condition(prior: tf.Tensor, numbers: Numbers) -> tf.Tensor:
        L = tf.broadcast_to(chol, tf.concat([tf.shape(prior)[:2], tf.shape(prior)[1:2]], axis=0))
        values = tf.transpose(mean)[..., None] + draw(numbers, tf.shape(prior))
        if whitened:
            return tf.linalg.triangular_solve(L, values - tf.linalg.triangular_solve(L, prior), adjoint=True)
        return tf.linalg.cholesky_solve(L, values - prior)

    return condition


def _given(model: Any, points: Sequence[Any], condition: Any, jitter: float | None = None) -> Given:
    latent.check_kinds(model.kernel, getattr(model, "inducing_variable", None), "sample_functions")
    return Given(
        domain=domain(type(model).__name__, latent.kernels(model.kernel), points),
        mean_function=model.mean_function,
        num_latent=latent.num_functions(model),
        condition=condition,
        mixing=latent.mixing(model.kernel),
        jitter=jitter,
    )


_GIVEN: dict[type, Callable[[Any], Given]] = {
    GPR: _regression,
    SGPR: _sparse_regression,
    VGP: _variational,
    SVGP: _variational,
    GPMC: _variational,
    SGPMC: _variational,
}
