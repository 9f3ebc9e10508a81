"""Gaussian sites: q(f) ∝ p(f) ∏ₙ exp(nat1ₙ fₙ − ½ precₙ fₙ²), the algebra every site method shares.

The prior seen from the data is a `Prior`: `Dense`, f ~ N(μ, Σ), or a `Projection`, f = μ + Aᵀv + r with
v ~ N(0, I) and r ~ N(0, diag(residual)), or a user's own. With Q = Σ or AᵀA, Λ = diag(prec) and
ρ = nat1 − Λμ:

    α = (I + ΛQ)⁻¹ ρ      m = μ + Qα      nat1 = α + Λm
    KL[q || p] = ½ log|I + ΛQ| − ½ Σₙ precₙ Varₙ + ½ αᵀ(m − μ)
    log ∫ p(f) ∏ₙ tₙ(fₙ) df = −½ log|I + ΛQ| + ½ ρᵀ(m − μ) + nat1ᵀμ − ½ μᵀΛμ

where Var is the variance of the part of f that the sites see (without the residual). Neither Σ⁻¹ nor
1/prec is ever formed. A `Projection` accepts negative precisions while I + AΛAᵀ stays positive definite;
a `Dense` prior uses Λ^½ and needs prec ≥ 0.

Shapes: N data, M inducing variables, L latent functions; vectors over the data are [N, L].
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import tensorflow as tf

from gpflow_ext.numerics import linalg

Expectation: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Map (mean [N, L], var [N, L]) of q to the expected log likelihood, or a lower bound of it, [N]."""


class Sites(NamedTuple):
    """Natural parameters of the sites t(f) = exp(nat1 f − ½ prec f²), each [N, L]."""

    nat1: tf.Tensor
    prec: tf.Tensor


class Marginals(NamedTuple):
    """Mean and variance of q(fₙ), each [N, L]."""

    mean: tf.Tensor
    var: tf.Tensor


class Pair(NamedTuple):
    """A solution of (I + ΛQ)α = b, and what it moves the mean by, each [N, L]."""

    alpha: tf.Tensor
    shift: tf.Tensor  # Qα


class Factor(Protocol):
    """The factorised I + ΛQ of a prior and the precisions Λ [N, L] of some sites."""

    @property
    def finite(self) -> tf.Tensor:
        """Whether the factorisation worked, []."""

    def solve(self, b: tf.Tensor) -> Pair:
        """Return α = (I + ΛQ)⁻¹ b and Qα for b [N, L]."""

    def variance(self) -> tf.Tensor:
        """Return the variances of q(fₙ), [N, L]."""

    def half_log_det(self) -> tf.Tensor:
        """Return ½ log|I + ΛQ|, summed over the latent functions, []."""


class Prior(Protocol):
    """A Gaussian process as the data see it: f = μ + h + r, Cov[h] = Q, and r independent, with ``residual``.

    A named tuple of tensors, so that it passes through compiled functions. It may have five more attributes.
    ``hands_on``, true if its factors are such tuples too: variational inference hands a factor from step to
    step. ``solves_nearby``, true if a factorisation takes dozens of times as long as a solution: Laplace's
    method then uses one for several Newton steps. ``held_factors``, true if its factors have no derivatives
    in it: only `log_normaliser` and `product` have, and what is made of them, such as `variational_bound`.
    ``forms_covariance``, true if its factors have ``covariance()``, that of all rows, [L, N, N].
    ``whiten()``, the same prior as a `Seen`, whose factors take negative precisions.
    """

    @property
    def mean(self) -> tf.Tensor:
        """The prior mean μ, [N, L]."""

    @property
    def residual(self) -> tf.Tensor:
        """The variance of f that the sites do not see, [N or 1, 1 or L]."""

    def product(self, alpha: tf.Tensor) -> tf.Tensor:
        """Return Qα, [N, L]."""

    def variance(self) -> tf.Tensor:
        """Return the prior variances of f, [N, 1 or L]."""

    def factorise(self, prec: tf.Tensor) -> Factor:
        """Factorise I + ΛQ for prec [N, L]."""

    def log_normaliser(self, sites: Sites, factor: Factor | None = None) -> tf.Tensor:
        """Return log ∫ p(h) ∏ₙ tₙ(μₙ + hₙ) dh, differentiable in the prior, [].

        ``factor`` is that of ``sites.prec``, held fixed, if the caller has it; it need not be used.
        """


class Posterior(NamedTuple):
    """q(f) conditioned on sites, as far as the data see it."""

    alpha: tf.Tensor  # m = μ + Qα, [N, L]
    mean: tf.Tensor  # [N, L]
    var: tf.Tensor  # [N, L]
    kl: tf.Tensor  # KL[q || p], []
    finite: tf.Tensor  # whether the factorisation worked, []


def condition(prior: Prior, sites: Sites, factor: Factor | None = None) -> Posterior:
    """Return q(f) ∝ p(f) ∏ₙ tₙ(fₙ): one Cholesky factorisation and one triangular solve.

    ``factor`` is that of the sites' precisions, if it is known.
    """
    factor = prior.factorise(sites.prec) if factor is None else factor
    alpha, shift = factor.solve(sites.nat1 - sites.prec * prior.mean)
    var = factor.variance()
    kl = divergence(prior, sites.prec, var, factor, alpha, shift)
    return Posterior(alpha, prior.mean + shift, var, kl, factor.finite)


def divergence(
    prior: Prior, prec: tf.Tensor, var: tf.Tensor, factor: Factor, alpha: tf.Tensor, shift: tf.Tensor
) -> tf.Tensor:
    """Return KL[q || p] from the precisions, the variances, the factor of I + ΛQ, α and m − μ = Qα."""
    spread = factor.half_log_det() - 0.5 * tf.reduce_sum(prec * (var - prior.residual))
    return spread + 0.5 * tf.reduce_sum(alpha * shift)


def coupling(prior: Prior, a: Pair, b: Pair) -> tf.Tensor:
    """Return aᵀQb for known pairs, differentiable in the prior alone, [].

    By the prior's own ``coupling(a, b)`` where it has one that needs no product.
    """
    own = getattr(prior, "coupling", None)
    return own(a, b) if own is not None else tf.reduce_sum(a.alpha * prior.product(b.alpha))


def energy(prior: Prior, alpha: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
    """Return ½αᵀQα for α and Qα [N, L], [].

    By the prior's own ``energy(alpha, shift)`` where it has one, to which rounding between them is no matter.
    """
    own = getattr(prior, "energy", None)
    return own(alpha, shift) if own is not None else 0.5 * tf.reduce_sum(alpha * shift)


def whitened(prior: Prior) -> Prior:
    """Return the same prior for precisions of either sign, by its own ``whiten()`` where it has one."""
    own = getattr(prior, "whiten", None)
    return prior if own is None else own()


def with_inverse(factor: Factor) -> Factor:
    """Return a factor of which both the variances and the gradient in the prior are wanted.

    A dense one has an ``inverted()`` that serves both.
    """
    own = getattr(factor, "inverted", None)
    return factor if own is None else own()


def slack(prior: Prior, value: tf.Tensor) -> tf.Tensor:
    """Return the change of an objective [] that rounding, or the prior's iterative solver, explains."""
    rounding, error = linalg.rounding_slack(value), getattr(prior, "error", None)
    if error is None:
        return rounding
    return tf.maximum(rounding, tf.cast(error, value.dtype) * tf.maximum(tf.abs(value), tf.ones_like(value)))


def log_normaliser(prior: Prior, sites: Sites, factor: Factor, shift: tf.Tensor) -> tf.Tensor:
    """Return −½ log|I + ΛQ| + ½ ρᵀ(m − μ) + nat1ᵀμ − ½ μᵀΛμ from the factor of I + ΛQ and m − μ."""
    mean, (nat1, prec) = prior.mean, sites
    quadratic = 0.5 * (nat1 - prec * mean) * shift + nat1 * mean - 0.5 * prec * mean**2
    return tf.reduce_sum(quadratic) - factor.half_log_det()


class Expected(NamedTuple):
    """The expected log likelihood of q, or its bound, with the derivatives that make sites."""

    value: tf.Tensor  # summed over the data, []
    grad: tf.Tensor  # g = ∂/∂m, [N, L]
    curvature: tf.Tensor  # −H = −2 ∂/∂v, which is −∂²/∂m² of an exact expectation (Price's theorem), [N, L]


def expect(expectation: Expectation, mean: tf.Tensor, var: tf.Tensor) -> Expected:
    """Evaluate the expected log likelihood and its derivatives in one pass; see also `as_one_function`."""
    call = _CALLS.get().get(expectation)
    return _expect(expectation, mean, var) if call is None else call(mean, var)


def _expect(expectation: Expectation, mean: tf.Tensor, var: tf.Tensor) -> Expected:
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch((mean, var))
        value = tf.reduce_sum(expectation(mean, var))
    by_mean, by_var = tape.gradient(value, (mean, var))
    return Expected(value, by_mean, -2.0 * by_var)


_CALLS: contextvars.ContextVar[dict[Expectation, Callable[[tf.Tensor, tf.Tensor], Expected]]]
_CALLS = contextvars.ContextVar("_CALLS", default={})  # noqa: B039  (never changed)


@contextlib.contextmanager
def as_one_function(expectation: Expectation, like: tf.Tensor) -> Iterator[None]:
    """Within, let a graph have `expect` of this expectation once, as a function that is called.

    An update of the sites asks for it in five to ten places, each of which would otherwise have a copy of its
    hundreds of operations. It is not to be differentiated, and only for arguments shaped as ``like``.
    """
    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()

    @functools.cache
    def made() -> Any:
        spec = tf.TensorSpec(like.shape, like.dtype)
        compiled = tf.function(
            lambda mean, var: _expect(expectation, mean, var),
            autograph=False,
            experimental_attributes={"_noinline": True},
        )
        with graph.as_default():  # the caller may be in a loop of it
            return compiled.get_concrete_function(spec, spec)

    token = _CALLS.set({**_CALLS.get(), expectation: lambda mean, var: Expected(*made()(mean, var))})
    try:
        yield
    finally:
        _CALLS.reset(token)


def variational_sites(expectation: Expectation, marginals: Marginals) -> Sites:
    """Propose the sites of a natural-gradient step of length one: prec = −2 ∂v, nat1 = ∂m + prec·m."""
    _, grad, prec = expect(expectation, *marginals)
    return Sites(grad + prec * marginals.mean, prec)


def variational_bound(prior: Prior, expectation: Expectation, sites: Sites) -> tf.Tensor:
    """Return Σₙ E_q[log p(yₙ | fₙ)], or its bound, − KL[q || p] for the q that the sites give, [].

    Where a prior has ``held_factors`` the gradient in it is that at a fixed point of the sites, whatever they
    are: of log ∫ p(f) ∏ tₙ(fₙ) df − ½ Σₙ precₙ residualₙ, by the envelope theorem (docs/derivations.md,
    section 5).
    """
    if not getattr(prior, "held_factors", False):
        q = condition(prior, sites)
        return tf.reduce_sum(expectation(q.mean, q.var)) - q.kl
    held = tf.nest.map_structure(tf.stop_gradient, prior)
    factor, still = held.factorise(sites.prec), Sites(*map(tf.stop_gradient, sites))
    q = condition(held, sites, factor)
    moving = prior.log_normaliser(still, tf.nest.map_structure(tf.stop_gradient, factor))
    moving -= 0.5 * tf.reduce_sum(still.prec * prior.residual)
    return tf.reduce_sum(expectation(q.mean, q.var)) - q.kl + moving - tf.stop_gradient(moving)
