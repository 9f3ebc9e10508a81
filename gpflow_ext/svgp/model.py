"""Sparse variational classifier of many classes with the robust-max likelihood, Hensman et al. (2015)."""

from __future__ import annotations

import functools

import gpflow
import tensorflow as tf
from gpflow.base import MeanAndVariance, RegressionData
from gpflow.inducing_variables import InducingVariables, MultioutputInducingVariables
from gpflow.kernels import MultioutputKernel
from gpflow.models import SVGP
from gpflow.models.util import InducingVariablesLike
from gpflow.posteriors import PrecomputeCacheType

from gpflow_ext.data import arguments, checks
from gpflow_ext.likelihoods import RobustMax
from gpflow_ext.likelihoods.largest import SecondOrder
from gpflow_ext.numerics import batched
from gpflow_ext.sites import Projection, latent, sparse_prior
from gpflow_ext.sites.triangular_posterior import WhitenedPosterior
from gpflow_ext.svgp import newton_mean
from gpflow_ext.svgp.whitened_normal import divergence, marginals


class SVGPRobustMax(SVGP):
    """Sparse variational classifier with K latent functions, the largest of which gives the class.

    It is a whitened GPflow ``SVGP``, with a kernel and inducing points shared by the K functions or one of
    each per function, and the robust-max likelihood instead of GPflow's ``MultiClass``: probabilities are
    exact and sum to one, where GPflow's 20 Gauss-Hermite nodes are off by up to 0.1. With u = Lv,
    q(v_k) = N(m_k, S_k), A = L⁻¹K_uf and N/B times the sum over a minibatch of B rows (Hensman et al. 2015,
    sections 2 and 4.4)

        elbo = N/B Σₙ E_q[log p(yₙ | f(xₙ))] − Σ_k KL[N(m_k, S_k) || N(0, I)]

    A step costs O(KM²B + M³). The ``White`` part of ``SquaredExponential() + White(1e-3)`` makes the
    likelihood softer: the class is that of the largest of K functions with noise. `gpflow_ext.fit` trains on
    all data by L-BFGS with q at its optimum, or for many rows on q too; on minibatches by natural gradients
    for q and Adam for the rest.

    Parameters
    ----------
    kernel
        Kernel of one output, which all share, ``SharedIndependent`` or ``SeparateIndependent``.
    num_classes
        K. Targets are one column of class numbers 0, …, K − 1.
    inducing_variable
        Inducing points [M, D], see `gpflow_ext.inducing.kmeans`, or any inducing variables that GPflow has
        for the kernel.
    num_data
        N, the number of training rows; ``None`` means that each call is given all of them.
    epsilon
        ε in (0, 1 − 1/K), the share of wrong labels.
    learn_epsilon
        Train ε, under a Beta prior with its mode at the given value and the weight of 1/ε labels. If ε is
        held below the share of labels that the model cannot explain, predictions are far too confident.
    mean_function
        Mean function of the latent functions; zero by default.
    q_mu, q_sqrt
        Initial m [M, K] and lower triangular factors of S [K, M, M]; the prior by default.
    shared_covariance
        Whether all classes have one S, whose factor is then [1, M, M]: a bound that is a little lower, for a
        step of O(M²B + M³) and a Kth of the memory. The classes must share kernel and inducing points.
        ``gpflow.optimizers.NaturalGradient`` does not take it; `gpflow_ext.fit` does.

    Raises
    ------
    ValueError
        For fewer than two classes, ε out of range, inducing points that are not finite, an initial q of other
        shapes, a multi-output kernel whose number of outputs is not K, or one with ``shared_covariance``.
    NotImplementedError
        For ``LinearCoregionalization`` and other multi-output kernels.
    """

    likelihood: RobustMax
    centres_inputs = True  # before it computes distances

    def __init__(
        self,
        kernel: gpflow.kernels.Kernel,
        num_classes: int,
        inducing_variable: InducingVariablesLike,
        *,
        num_data: int | None,
        epsilon: float = 1e-3,
        learn_epsilon: bool = True,
        mean_function: gpflow.functions.MeanFunction | None = None,
        q_mu: tf.Tensor | None = None,
        q_sqrt: tf.Tensor | None = None,
        shared_covariance: bool = False,
    ) -> None:
        arguments.check_number(epsilon=epsilon)
        arguments.check_flag(shared_covariance=shared_covariance)
        if mean_function is not None:
            arguments.check_callable(mean_function=mean_function)
        if num_data is not None:
            arguments.check_whole(num_data=num_data)
            if num_data < 1:
                raise ValueError(f"`num_data` must be at least 1, or None; got {num_data}.")
        inducing_variable = checks.as_inducing(inducing_variable)
        if latent.mixing(kernel) is not None:
            raise NotImplementedError(
                f"SVGPRobustMax has independent latent functions, which {type(kernel).__name__} mixes: give "
                "gpflow.models.SVGP the likelihood gpflow_ext.likelihoods.RobustMax."
            )
        latent.check_kinds(kernel, inducing_variable, type(self).__name__)
        latent.check_numbers(kernel, inducing_variable, num_classes)
        if not epsilon > 0.0:
            raise ValueError(f"epsilon must be positive: the bound is -inf at 0; got {epsilon}.")
        likelihood = RobustMax(num_classes, epsilon, learn_epsilon=learn_epsilon)
        if shared_covariance:
            q_sqrt = _one_factor(kernel, inducing_variable, q_sqrt)
        factors = 1 if shared_covariance else num_classes
        _check_shapes(q_mu, q_sqrt, int(inducing_variable.num_inducing), num_classes, factors)
        super().__init__(
            kernel,
            likelihood,
            inducing_variable,
            mean_function=mean_function,
            num_latent_gps=num_classes,
            q_sqrt=q_sqrt,
            num_data=num_data,
        )
        self.num_latent_gps = num_classes  # GPflow takes the number of factors
        if q_mu is not None:
            self.q_mu.assign(q_mu)

    def elbo(self, data: RegressionData) -> tf.Tensor:
        """Return the lower bound of log p(Y | X) on data (X [B, D], Y [B, 1]), scaled to N rows, []."""
        X, Y = data
        mean, var = self.marginals(self.prior(X))
        return self.scale(X) * tf.reduce_sum(self.expectations(X, Y, mean, var)) - self.prior_kl()

    def prior(self, X: tf.Tensor) -> Projection:
        """Return the prior at X [B, D]. O(M³ + BM²)."""
        return sparse_prior.project_independent(self, batched.numbers(X, self.q_mu.dtype))

    def marginals(self, prior: Projection) -> MeanAndVariance:
        """Return mean and variance of q(f) where the prior was projected, each [B, K]. O(KM²B)."""
        return marginals(prior, self.q_mu, tf.convert_to_tensor(self.q_sqrt))

    def scale(self, X: tf.Tensor) -> tf.Tensor:
        """Return N/B for a minibatch X [B, D]."""
        rows = tf.cast(tf.shape(X)[0], gpflow.default_float())
        if self.num_data is None:
            return tf.ones_like(rows)
        return tf.cast(self.num_data, rows.dtype) / rows

    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> WhitenedPosterior:
        """Return a GPflow posterior that caches what prediction needs; see `gpflow.posteriors`."""
        return WhitenedPosterior(self, precompute_cache)

    def expectations(self, X: tf.Tensor, Y: tf.Tensor, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        """Return E[log p(yₙ | f)] for f ~ N(mean, var) [B, K], as [B]."""
        return self.likelihood.variational_expectations(X, mean, var, Y)

    def second_order(self, X: tf.Tensor, Y: tf.Tensor, mean: tf.Tensor, var: tf.Tensor) -> SecondOrder:
        """Return the `expectations` with their derivatives; see `newton_mean.second_order`."""
        plain = type(self).expectations is SVGPRobustMax.expectations
        of_moments = functools.partial(self.expectations, X, Y)
        return newton_mean.second_order(of_moments, self.likelihood if plain else None, Y, mean, var)

    def num_correct(self, Y: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
        """Return for how many rows the largest mean [B, K] is that of the label Y [B, 1], []."""
        hits = tf.argmax(mean, axis=-1, output_type=tf.int32) == tf.cast(Y[..., 0], tf.int32)
        return tf.math.count_nonzero(hits)

    def prior_kl(self) -> tf.Tensor:
        """Return Σ_k KL[N(m_k, S_k) || N(0, I)], []. O(KM²)."""
        return divergence(tf.convert_to_tensor(self.q_mu), tf.convert_to_tensor(self.q_sqrt))


def _one_factor(
    kernel: gpflow.kernels.Kernel, points: InducingVariables, q_sqrt: tf.Tensor | None
) -> tf.Tensor:
    """Return the initial factor of an S that all classes share, [1, M, M]."""
    many = MultioutputKernel, MultioutputInducingVariables
    if any(isinstance(part, kind) for part, kind in zip((kernel, points), many, strict=True)):
        raise ValueError(
            "`shared_covariance` is for classes that share kernel and inducing points: give those of one "
            "output."
        )
    M = points.num_inducing
    return tf.eye(M, batch_shape=[1], dtype=gpflow.default_float()) if q_sqrt is None else q_sqrt


def _check_shapes(q_mu: tf.Tensor | None, q_sqrt: tf.Tensor | None, M: int, K: int, factors: int) -> None:
    """Raise ``ValueError`` unless the initial q is of M inducing points, K classes and so many factors."""
    for name, given, shape in (("q_mu", q_mu, [M, K]), ("q_sqrt", q_sqrt, [factors, M, M])):
        if given is not None and (found := tuple(tf.convert_to_tensor(given).shape)) != tuple(shape):
            raise ValueError(f"`{name}` must be {shape}; its shape is {found}.")
