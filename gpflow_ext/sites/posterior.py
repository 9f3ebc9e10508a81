"""GPflow's cached posterior of a site model whose sites stand at the values of f at the data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

import gpflow
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.posteriors import AbstractPosterior, PrecomputeCacheType, PrecomputedValue

from gpflow_ext.functions.draws import SamplesFunctions
from gpflow_ext.functions.given import Given, domain
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.numerics import batched, linalg
from gpflow_ext.numerics.batched import Rows, TakesNumbers
from gpflow_ext.numerics.mapped import one_by_one
from gpflow_ext.sites import latent, products
from gpflow_ext.sites.algebra import Factor, Prior, Sites, whitened
from gpflow_ext.sites.projection import Whitened

P = TypeVar("P", covariant=True)

Draw: TypeAlias = Callable[[tf.Tensor, Numbers], tf.Tensor]
"""Map values of a prior draw that sites see, [L, N, S], to weights of K_*f in a draw of q(f), [L, N, S]."""


class SiteConditioned(Protocol[P]):
    """Protocol of the model of a posterior, whose prior is a ``P``."""

    kernel: gpflow.kernels.Kernel
    mean_function: gpflow.functions.MeanFunction
    data: tuple[tf.Tensor, ...]
    num_latent_gps: int
    indefinite: bool

    @property
    def latent_sites(self) -> Sites:
        """One site to a datum and latent function, [N, L]."""

    def prior(self) -> P:
        """Return the prior at the training inputs."""

    def condition(self) -> tuple[tf.Tensor, Whitened]:
        """Return the Cholesky factor of K at the data, and the whitened q(v); for negative precisions."""


class SitePosterior(TakesNumbers, AbstractPosterior):
    """Base of GPflow's cached posteriors of sites at the data. ``update_cache`` reads the model again.

    Parameters
    ----------
    model
        The model.
    precompute_cache
        As for GPflow's posteriors.

    Attributes
    ----------
    repeats_cache
        Whether a fused prediction computes what the cache holds, and predicts from that.
    """

    repeats_cache = True

    def __init__(
        self, model: SiteConditioned[Any], precompute_cache: PrecomputeCacheType | str | None
    ) -> None:
        super().__init__(model.kernel, model.data[0], mean_function=model.mean_function)
        self._model = model
        self.update_cache(PrecomputeCacheType(precompute_cache or "nocache"))

    @abstractmethod
    def _parts(self) -> tuple[tf.Tensor, ...]:
        """Return what the cache holds."""

    def _finite_parts(self) -> tuple[tf.Tensor, ...]:
        """Return the parts, checked to be finite."""
        return linalg.finite(self._parts(), self._model)

    @inherit_check_shapes
    def _conditional_fused(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        parts = self._finite_parts()
        return self._conditional_with_precompute(parts, Xnew, full_cov, full_output_cov)


class DenseSitePosterior(SamplesFunctions, SitePosterior):
    """GPflow's cached posterior, its cache (α, W, X, Λ) computed from the sites without factorising K.

    For any prior of the values at the data whose covariance is that of the model's kernel. The mean is
    μ* + K_*f α and the covariance K_** − (W K_f*)ᵀ W K_f*, f at the training inputs. ``update_cache`` reads
    the model again, so the object follows a model that is trained further or has got other data.

    Of a prior whose factors have no ``reduction_root`` it holds Qinv = (I + ΛK)⁻¹Λ in place of W, which may
    be indefinite, with an axis more. So it does where precisions are negative; in a graph, in which they are
    not known, where the model says that they may be.
    """

    _model: SiteConditioned[Prior]

    def _parts(self) -> tuple[tf.Tensor, ...]:
        X, prior, current = self._model.data[0], self._model.prior(), self._model.latent_sites
        unknown = self._model.indefinite and not tf.executing_eagerly()
        if unknown or least_precision(current.prec) < 0.0:
            prior = whitened(prior)
        factor = prior.factorise(current.prec)
        alpha = factor.solve(current.nat1 - current.prec * prior.mean).alpha
        return alpha, _root(factor, current.prec), X, current.prec

    def functions(self) -> Given:
        """See `SamplesFunctions`.

        α̃ = (I + ΛK)⁻¹(ν − Λf̃ − Λ^½ξ) = α − Qinv(f̃ + Λ^-½ξ) for the prior draw f̃ at the data, where a site
        of precision zero has no column in Qinv = WᵀW. Negative precisions have no root: there
        α̃ = L⁻ᵀ(v − L⁻¹f̃) for LLᵀ = K and a draw of the whitened q(v).
        """
        alpha, root, X, prec = self.cache or self._parts()
        signed = least_precision(prec) < 0.0
        draw = self._whitened_draw() if signed else self._rooted_draw(alpha, root, prec)

        def condition(prior: tf.Tensor, numbers: Numbers) -> tf.Tensor:
            return self._weights(draw(self._values(prior, numbers), numbers))

        return Given(
            domain=domain(type(self._model).__name__, latent.kernels(self.kernel), (X,)),
            mean_function=self._model.mean_function,
            num_latent=latent.num_functions(self._model),
            condition=condition,
            mixing=latent.mixing(self.kernel),
            jitter=self._jitter(),
        )

    def _rooted_draw(self, alpha: tf.Tensor, root: tf.Tensor, prec: tf.Tensor) -> Draw:
        prec = tf.transpose(prec)[..., None]  # [L, N, 1]
        scale = tf.math.divide_no_nan(tf.ones_like(prec), tf.sqrt(prec))

        def draw(values: tf.Tensor, numbers: Numbers) -> tf.Tensor:
            seen = self._in_line(values + scale * numbers.normal(tf.shape(values)))
            _, columns = explained(root, seen)
            found = tf.matmul(root, columns, transpose_a=True) if _is_root(root) else columns
            return tf.transpose(alpha)[..., None] - self._apart(found, values)

        return draw

    def _whitened_draw(self) -> Draw:
        chol, q = self._model.condition()

        def draw(values: tf.Tensor, numbers: Numbers) -> tf.Tensor:
            line = self._in_line(values)
            noise = tf.linalg.triangular_solve(q.chol, numbers.normal(tf.shape(line)), adjoint=True)
            v = tf.transpose(q.mean)[..., None] + noise - tf.linalg.triangular_solve(chol, line)
            return self._apart(tf.linalg.triangular_solve(chol, v, adjoint=True), values)

        return draw

    def _jitter(self) -> float | None:
        """Return what the latent functions have at the data; ``None`` is GPflow's jitter."""
        return None

    def _values(self, prior: tf.Tensor, numbers: Numbers) -> tf.Tensor:
        """Return what sites see of latent functions [L, N, S]."""
        return prior

    def _in_line(self, values: tf.Tensor) -> tf.Tensor:
        """Return values [L, N, S] in the layout of W's columns."""
        return values

    def _apart(self, line: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        """Undo `_in_line`, for values shaped as ``like``."""
        return line

    def _weights(self, alpha: tf.Tensor) -> tf.Tensor:
        """Return α of the latent functions for that of what sites see."""
        return alpha

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        parts = linalg.finite(self._parts(), self._model)
        square = (*(False,) * (parts[1].shape.rank - 2), True, True)
        axes = (True, False), square, (True, False), (True, False)  # which are as many as the data
        return tuple(map(PrecomputedValue, parts, axes))

    @inherit_check_shapes
    def _conditional_with_precompute(
        self, cache: tuple[tf.Tensor, ...], Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        alpha, root, X, _ = cache  # [N, L], [L, N, N], [N, D]
        rows = Rows(Xnew)
        cross = latent.cross(self.kernel, X, rows.flat)  # [1 or L, N, R]
        left, right = explained(root, cross)  # [1 or L, N, R], [L, N, R]
        if full_cov:
            seen = tf.matmul(rows.columns(left), rows.columns(right), transpose_a=True)
            cov = batched.behind_batch(latent.gram(self.kernel, Xnew) - seen)
        else:
            variances = latent.variances(self.kernel, rows.flat)
            cov = rows.apart(variances - tf.transpose(tf.reduce_sum(left * right, axis=-2)))
        mean = rows.apart(products.matvec(cross, alpha, transpose=True))
        return mean, batched.independent_outputs(cov, full_cov, full_output_cov)


def explained(root: tf.Tensor, cross: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return columns A and B [1 or L, N, R] of which AᵀB is KᵀQinvK, for W or Qinv, and K [1 or L, N, R]."""
    if _is_root(root):
        columns = tf.matmul(root, cross)
        return columns, columns
    return cross, tf.matmul(root[0], cross)


def least_precision(prec: tf.Tensor) -> float:
    """Return the least precision [N, L]; zero in a graph, where it is not known."""
    return float(tf.reduce_min(prec)) if tf.executing_eagerly() else 0.0


def check_precisions(prec: tf.Tensor, owner: str) -> None:
    """Raise ``NotImplementedError`` where sites have negative precisions [N, L]: these have no root."""
    if (least := least_precision(prec)) < 0.0:
        raise NotImplementedError(
            f"sample_functions of {owner} needs sites of non-negative precision; the least is {least:.3g}: "
            "use the dense model or inducing variables, or a likelihood that is log-concave."
        )


def _root(factor: Factor, prec: tf.Tensor) -> tf.Tensor:
    """Return W with WᵀW = Qinv, or Qinv with an axis more where the factor has no such root."""
    own = getattr(factor, "reduction_root", None)
    return _reduction(factor, prec)[None] if own is None else own()


def _is_root(root: tf.Tensor) -> bool:
    return bool(root.shape.rank == 3)


def _reduction(factor: Factor, prec: tf.Tensor) -> tf.Tensor:
    """Return (I + ΛQ)⁻¹Λ, [L, N, N]: a column at a time where the factor can only solve."""
    own = getattr(factor, "reduction", None)
    if own is not None:
        found: tf.Tensor = own()
        return found

    def column(n: tf.Tensor) -> tf.Tensor:
        return factor.solve(prec * tf.one_hot(n, tf.shape(prec)[0], dtype=prec.dtype)[:, None]).alpha

    columns = one_by_one(column, tf.range(tf.shape(prec)[0]), fn_output_signature=prec.dtype)  # [N, N, L]
    return tf.transpose(columns, [2, 1, 0])
