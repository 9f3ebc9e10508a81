"""The base of all Gaussian-site models: q(f) ∝ p(f) ∏ₙ tₙ(fₙ)."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow import posteriors
from gpflow.models import GPModel, InternalDataTrainingLossMixin
from gpflow.models.util import InducingVariablesLike
from gpflow.posteriors import PrecomputeCacheType

from gpflow_ext.data import checks, held, inducing
from gpflow_ext.data.own_parts import check_own_parts
from gpflow_ext.numerics import batched, stacked
from gpflow_ext.numerics.log_predictive import log_predictive
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.numerics.target_moments import target_moments
from gpflow_ext.sites import (
    Coupled,
    Dense,
    Message,
    Prior,
    Projection,
    Sites,
    Whitened,
    dense_prior,
    latent,
    markov_prior,
    sparse_prior,
)
from gpflow_ext.sites.grid import structure as grid
from gpflow_ext.sites.grid.posterior import GridPosterior
from gpflow_ext.sites.grid.structure import GridStructure
from gpflow_ext.sites.markov_posterior import MarkovPosterior
from gpflow_ext.sites.method import SiteMethod, SiteState, site_method
from gpflow_ext.sites.mixed_posterior import MixedDensePosterior, MixedSparsePosterior
from gpflow_ext.sites.posterior import DenseSitePosterior
from gpflow_ext.sites.structured import HasStructure, PriorLike
from gpflow_ext.sites.triangular_posterior import SparseSitePosterior
from gpflow_ext.sites.vecchia import conditionals
from gpflow_ext.sites.vecchia.full_scale_posterior import of_space

KINDS: dict[tuple[bool, bool], Any] = {  # is it dense, are the latent functions independent
    (True, True): DenseSitePosterior,
    (True, False): MixedDensePosterior,
    (False, True): SparseSitePosterior,
    (False, False): MixedSparsePosterior,
}
UPDATES = 200  # of all sites on the way to their fixed point, at most
STRUCTURED: dict[str, Any] = {"markov": MarkovPosterior, "vecchia": of_space, "grid": GridPosterior}


class SiteModel(HasStructure, GPModel, InternalDataTrainingLossMixin):
    """A Gaussian process whose posterior is the prior times one Gaussian site per datum and latent function.

    The sites are non-trainable parameters ``nat1`` and ``prec``, [N, L]: the model's site method computes
    them, gradients train everything else. `gpflow_ext.fit` trains the model by that method; with GPflow's own
    optimisers each evaluation of the objective brings the sites to their fixed point.

    A subclass chooses another method by ``site_method``, a `gpflow_ext.sites.SiteMethod` or the name of a
    known one, and may override `prior` and `posterior`.

    Parameters
    ----------
    data
        Inputs [N, D] and targets [N, P], as arrays or as variables, see `HoldsData`.
    kernel
        A kernel of one output is shared by all latent functions; ``SharedIndependent`` and
        ``SeparateIndependent`` have independent ones. The outputs of ``LinearCoregionalization`` are the
        latent functions f = Wg, whose sites are conditioned on together: O((NL)³), or O(NLT²) for the T
        inducing variables of all g. Likelihoods see the marginals of each fₙₗ, as in GPflow.
    likelihood
        Any GPflow likelihood whose data are independent given the latent functions.
    mean_function
        Zero by default.
    num_latent_gps
        L, the number of latent functions; by default as many as the likelihood and the targets need.
    prior
        ``None``: the dense prior, or the sparse one with ``inducing_variable``. ``"markov"``: the exact prior
        of a function of one input, such as time, at O(Nd³), by a Kalman filter and smoother over d states.
        Inputs may be irregular, unsorted and equal; leave out missing data. The kernel is made of
        ``Matern12``, ``Matern32``, ``Matern52``, ``Exponential``, ``Cosine``, ``Constant``, ``Linear``,
        ``Periodic(SquaredExponential())`` and ``White`` by sums and products, with at most 16 states; see
        docs/models/state_space.md. ``"vecchia"`` or `VecchiaOptions`: for functions of space, each value
        depends on its nearest neighbours among those before it; about O(N^1.5) in the plane, or by iteration
        with O(N) memory; see docs/models/vecchia.md. ``"grid"`` or `GridOptions`: for the cells of a grid,
        some of which may be missing, and a product of kernels of one column each; see docs/models/grids.md.
    inducing_variable
        ``None`` for the dense model with cost O(N³), else inducing points [M, D] with cost O(NM²), or any
        inducing variables that GPflow has for the kernel: ``Multiscale``, ``InducingPatches``, and
        ``SharedIndependentInducingVariables`` or ``SeparateIndependentInducingVariables`` of these.
        ``"auto"`` takes as many of the inputs as explain the prior, at most 300; see
        `gpflow_ext.inducing.conditional_variance`.

    Raises
    ------
    ValueError
        For data that are not finite matrices of equal length or lie outside the likelihood's support.
    NotImplementedError
        For other multi-output kernels, or a likelihood that the site method does not support.
    """

    site_method: SiteMethod | str = "kmm"
    centres_inputs = True  # before it computes distances
    indefinite = False  # whether sites of the site method may have precisions below zero; see `SiteMethod`
    allows_indefinite = True  # whether they may in this class of models
    separate = False  # whether the likelihood is known not to couple its several latent functions

    def __init__(
        self,
        data: tuple[Any, Any],
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        mean_function: gpflow.functions.MeanFunction | None = None,
        num_latent_gps: int | None = None,
        *,
        inducing_variable: InducingVariablesLike | str | None = None,
        prior: PriorLike | None = None,
    ) -> None:
        (X, Y), num_data = self._hold(data, likelihood)
        if isinstance(inducing_variable, str):
            inducing_variable = inducing.by_name(inducing_variable, X, kernel)
        points = None if inducing_variable is None else checks.as_inducing(inducing_variable)
        latent.check_kinds(kernel, points, type(self).__name__)
        if num_latent_gps is None:
            num_latent_gps = likelihood.latent_dim or self.calc_num_latent_gps(
                latent.kernels(kernel)[0], likelihood, Y.shape[1]
            )
        latent.check_numbers(kernel, points, num_latent_gps)
        self._check_prior(prior, points, kernel, X)
        check_own_parts(kernel, likelihood, mean_function, (X, Y), num_latent_gps)
        super().__init__(kernel, likelihood, mean_function, num_latent_gps)
        self.inducing_variable = points
        self._take_prior(prior)
        if points is not None:
            latent.check_inducing(points, kernel, X)
        none = tf.zeros([num_data, num_latent_gps], X.dtype)
        open_rows = [None, num_latent_gps]  # one compiled graph serves every number of data
        self.nat1 = gpflow.Parameter(none, trainable=False, shape=open_rows)
        self.prec = gpflow.Parameter(none, trainable=False, shape=open_rows)
        site_method(self.site_method).check(self)

    def _hold(
        self, data: Any, likelihood: gpflow.likelihoods.Likelihood
    ) -> tuple[tuple[checks.Array, checks.Array], int]:
        """Check and keep the data; return their first rows, which tell the widths, and their number."""
        X, Y = checks.check_data(data)
        checks.check_targets(likelihood, Y)
        self.data = held.hold(data, (X, Y))
        return (X, Y), len(X)

    @property
    def sites(self) -> Sites:
        """The current sites as tensors; if data in variables have grown, the sites of new rows are zero."""
        nat1, prec = map(_read, (self.nat1, self.prec))
        X = self.data[0]
        if self.follows:
            nat1, prec = (held.resized(part, tf.shape(X)[0]) for part in (nat1, prec))
        return Sites(*(held.of_rows(part, X.shape[0]) for part in (nat1, prec)))

    @property
    def latent_sites(self) -> Sites:
        """The current sites, one per datum and latent function, [N, L]."""
        return self.sites

    def assign_sites(self, new: Sites) -> None:
        """Replace the sites."""
        for parameter, value in zip((self.nat1, self.prec), new, strict=True):
            value = tf.cast(value, parameter.dtype)
            value = tf.debugging.assert_all_finite(value, "Sites must be finite.")
            parameter.unconstrained_variable.assign(value)

    def prior(self, X: tf.Tensor | None = None) -> Dense | Projection | Coupled | Any:
        """Return the prior at the training inputs, or at X [N, D], with GPflow's default jitter on K.

        That of a dense model is whitened where precisions may be below zero, of which a `DenseFactor` would
        take the root.
        """
        X = self.data[0] if X is None else X
        if self.prior_name == "markov":
            return markov_prior.at(self, X)
        if isinstance(self.structure, GridStructure):
            return grid.at(self, self.structure, X)
        if self.structure is not None:
            return conditionals.at(self, self.structure, X)
        if self.inducing_variable is not None:
            return sparse_prior.project(self, X)
        prior = dense_prior.at(self, X)
        return prior.whiten() if self.indefinite and site_method(self.site_method).signed else prior

    def expectation(self, mean: tf.Tensor, var: tf.Tensor, rows: tf.Tensor | None = None) -> tf.Tensor:
        """Return Eq[log p(yₙ | fₙ)], or the likelihood's lower bound of it, for marginals [N, L], as [N].

        With ``rows`` [R] the marginals are those of these data alone, [R, L].
        """
        X, Y = self.data if rows is None else (tf.gather(part, rows) for part in self.data)
        return self.likelihood.variational_expectations(X, mean, var, Y)

    def log_density(self, F: tf.Tensor) -> tf.Tensor:
        """Return log p(yₙ | fₙ) for latent values F [N, L], as [N]."""
        X, Y = self.data
        return self.likelihood.log_prob(X, F, Y)

    def settle_sites(
        self, steps: int = UPDATES, tolerance: float | None = None
    ) -> tuple[SiteState, tf.Tensor]:
        """Bring the sites to their fixed point at the current hyperparameters, by the model's site method.

        Sites already at the fixed point stay as they are, and so do all if the iteration is not finite.

        Parameters
        ----------
        steps
            Maximum number of updates of all sites.
        tolerance
            The violation of the fixed point at which the updates end; by default a hundredth of the method's
            `stationarity`, for a gradient with six correct digits, or all of it in single precision and where
            the prior is solved by iteration with a tolerance of 1e-6 or more.

        Returns
        -------
        The state of the method there, and whether it is finite, [].
        """
        return self._settle(self.prior(), steps, tolerance)

    def _settle(
        self, prior: Prior, steps: int = UPDATES, tolerance: float | None = None
    ) -> tuple[SiteState, tf.Tensor]:
        method, before = site_method(self.site_method), self.sites
        if tolerance is None:
            precise = before.nat1.dtype == tf.float64 and self.solver_error < 1e-6
            tolerance = method.stationarity() * (0.01 if precise else 1.0)
        state, finite = method.solve(self, prior, before, steps, tolerance)
        self.assign_sites(
            Sites(*(tf.where(finite, new, old) for new, old in zip(state.sites, before, strict=True)))
        )
        return state, finite

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        """Return the objective of the model's site method, the sites brought to their fixed point first.

        As a function of the hyperparameters it is the optimised objective, with its exact gradient. Sites
        that have not reached the fixed point after the updates of `settle_sites`, as where the likelihood is
        not log-concave, give the objective there, a finite one that a line search can go on from, and an
        approximate gradient: `settle_sites` returns the violation. NaN if the sites are not finite.
        """
        prior = self.prior()
        state, finite = self._settle(prior)
        value = site_method(self.site_method).at_rest(self, prior, state)
        return tf.where(finite, value, tf.constant(np.nan, value.dtype))

    def log_likelihoods(self, stack: Stack) -> tf.Tensor:
        """Return the objective at the fixed point of the sites for each member of a stack of parameters, [C].

        `gpflow_ext.sample` draws hyperparameters from it: the latent functions are integrated out as the
        method does. The model's own sites stay as they are; each member starts from them. NaN for a member
        whose sites have no fixed point near; see `SiteMethod.is_near`. Differentiable once, in the stack.
        """
        method, start = site_method(self.site_method), self.sites

        def one() -> tf.Tensor:
            prior = self.prior()
            state, finite = method.solve(self, prior, start, UPDATES, method.stationarity())
            value = method.at_rest(self, prior, state)
            finite &= method.is_near(state.violation, UPDATES)
            return tf.where(finite, value, tf.constant(np.nan, value.dtype))

        return stacked.each_with_slopes(one, stack)

    def condition(self) -> tuple[tf.Tensor, Whitened]:
        """Return R [1 or L, M, M], RRᵀ = K_uu, or K at the data for a dense model, and q(v) for u = Rv."""
        self._check_whitened()
        seen = self.prior().whiten()
        return seen.chol, seen.message(self.latent_sites).posterior()

    def whitened(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (q_mu [M, L], q_sqrt [L, M, M]) for GPflow's whitened VGP (M = N) or SVGP.

        Raises
        ------
        NotImplementedError
            If the latent functions are mixtures: q couples these, and GPflow's q_sqrt cannot.
        """
        if latent.mixing(self.kernel) is not None:
            raise NotImplementedError(
                f"GPflow's q_sqrt has no covariances between the functions that {type(self.kernel).__name__} "
                "mixes: use `condition` for q(v), or `posterior` to predict."
            )
        return self.whitened_message().moments()

    def whitened_message(self) -> Message:
        """Return the message of all sites to v, where u = Rv."""
        self._check_whitened()
        return self.prior().whiten().message(self.latent_sites)

    def _check_whitened(self) -> None:
        if self.is_structured:
            raise NotImplementedError(
                f'prior="{self.prior_name}" forms no matrix of N rows, and so no '
                "whitened q(v): use `posterior` to predict, or the dense model."
            )

    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> posteriors.AbstractPosterior:
        """Return a GPflow posterior that caches what prediction needs; see `gpflow.posteriors`."""
        if self.prior_name is not None:
            return STRUCTURED[self.prior_name](self, precompute_cache)
        kind = KINDS[self.inducing_variable is None, latent.mixing(self.kernel) is None]
        return kind(self, precompute_cache)

    @inherit_check_shapes
    def predict_f(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean and (co)variance of the latent functions at Xnew, as GPflow's models do."""
        return self.posterior(None).fused_predict_f(Xnew, full_cov, full_output_cov)

    @inherit_check_shapes
    def predict_y(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean and variance of y at Xnew, as GPflow's models do; see `target_moments`."""
        if full_cov or full_output_cov:
            return super().predict_y(Xnew, full_cov, full_output_cov)
        return target_moments(self.likelihood, Xnew, *self.predict_f(Xnew))

    @inherit_check_shapes
    def predict_log_density(
        self, data: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tf.Tensor:
        """Return log p(yₙ | xₙ) of data (X [batch..., N, D], Y [batch..., N, Q]), [batch..., N]."""
        X, Y = (batched.numbers(part, self.nat1.dtype) for part in data)
        if full_cov or full_output_cov:
            return super().predict_log_density((X, Y), full_cov, full_output_cov)
        rows, targets = batched.Rows(X), batched.Rows(Y).flat
        return rows.apart(log_predictive(self.likelihood, rows.flat, *self.predict_f(rows.flat), targets))


def _read(parameter: Any) -> tf.Tensor:
    """Return the value of a parameter without a transform, at a twentieth of what the identity costs.

    In a frozen model it is a constant.
    """
    return tf.convert_to_tensor(getattr(parameter, "unconstrained_variable", parameter))
