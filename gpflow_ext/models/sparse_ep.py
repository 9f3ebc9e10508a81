"""Sparse Gaussian process with expectation propagation, Hernández-Lobato & Hernández-Lobato (2016)."""

from __future__ import annotations

from typing import Any

import gpflow
import tensorflow as tf
from gpflow.models.util import InducingVariablesLike

from gpflow_ext import moment_matching
from gpflow_ext.models.site_model import SiteModel
from gpflow_ext.moment_matching import WHOLE_DATUM, Factors, Layout
from gpflow_ext.sites import Dense, Projection, Sites


class SparseEP(SiteModel):
    """Scalable classification by expectation propagation, and any other likelihood of independent data.

    The model is FITC (Naish-Guzman & Holden 2008): given the inducing variables u the latent values fₙ are
    independent, fₙ = hₙ + rₙ with hₙ = E[fₙ | u] and rₙ ~ N(0, residualₙ). Each factor p(yₙ | fₙ), its
    residual integrated out, is replaced by a Gaussian site in hₙ: two numbers to a datum and latent function.
    Expectation propagation matches their moments in parallel at O(NM²), memory O(NM);
    see `gpflow_ext.moment_matching` for the equations.

    ``likelihood.predict_log_density(X, m, v, Y)`` is the normaliser log Ẑ of a factor, and the sites follow
    from its first two derivatives in m: in closed form for `gpflow_ext.likelihoods.BernoulliProbit` and
    GPflow's ``Gaussian``, else by the likelihood's own quadrature. A site may have a negative precision where
    the likelihood is not log-concave.

    With `gpflow_ext.likelihoods.RobustMax` the K − 1 comparisons of f_y with the other latent functions are
    the factors, each with a site on both of its own (Villacampa-Calvo & Hernández-Lobato 2017): the sites are
    [N, K, 2], in closed form. It only sees differences: give the kernel a ``White`` part, and expect some
    hundreds of sweeps.

    The hyperparameters and the inducing inputs maximise the evidence log Z; `gpflow_ext.fit` moves them
    inside the loop over the sites, as the paper does, or by L-BFGS with the sites at their fixed point.
    Give a likelihood that is narrow beside the prior, such as ``StudentT``, more than GPflow's 20 nodes
    (``likelihood.quadrature``): where the quadrature of log Ẑ is rough there may be no fixed point.
    The paper's noise σ₀² is ``kernel + gpflow.kernels.White(σ₀²)``: it enters K_uu and k(xₙ, xₙ), not K_uf.

    Parameters
    ----------
    data, kernel, likelihood, mean_function, num_latent_gps
        As for `SiteModel`.
    inducing_variable
        Inducing points [M, D]; the training inputs themselves give full expectation propagation.

    Raises
    ------
    ValueError
        As for `SiteModel`, and without inducing points.
    NotImplementedError
        For a multi-output kernel, or a likelihood whose predictive density is a Monte Carlo estimate.
    """

    def __init__(
        self,
        data: tuple[Any, Any],
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        mean_function: gpflow.functions.MeanFunction | None = None,
        num_latent_gps: int | None = None,
        *,
        inducing_variable: InducingVariablesLike,
    ) -> None:
        if inducing_variable is None:
            raise ValueError("SparseEP needs `inducing_variable`: inducing points [M, D], such as X itself.")
        if isinstance(likelihood, gpflow.likelihoods.MonteCarloLikelihood):
            raise NotImplementedError(
                f"The predictive density of {type(likelihood).__name__} is a Monte Carlo estimate, which has "
                "no fixed point; use a likelihood with a deterministic `predict_log_density`."
            )
        super().__init__(
            data, kernel, likelihood, mean_function, num_latent_gps, inducing_variable=inducing_variable
        )
        zeros = self.layout().select(tf.zeros_like(self.nat1))
        self.nat1 = gpflow.Parameter(zeros, trainable=False)
        self.prec = gpflow.Parameter(zeros, trainable=False)

    def prior(self, X: tf.Tensor | None = None) -> Projection:
        """Return the prior at the training inputs, or at X [N, D]. O(NM²)."""
        prior = super().prior(X)
        assert not isinstance(prior, Dense)
        return prior

    @property
    def latent_sites(self) -> Sites:
        """The current sites, those of all factors added up, [N, L]."""
        return self.layout().combine(self.sites)

    def layout(self, data: tuple[tf.Tensor, tf.Tensor] | None = None) -> Layout:
        """Return which latent functions each factor sees, of the model's data or of ``data``.

        One factor to a datum sees all of them, unless ``likelihood.factors(Y)`` returns others.
        """
        return self._factors(data) or WHOLE_DATUM

    def _factors(self, data: tuple[tf.Tensor, tf.Tensor] | None) -> Factors | None:
        split = getattr(self.likelihood, "factors", None)
        return None if split is None else split((self.data if data is None else data)[1])

    def log_normaliser(
        self, mean: tf.Tensor, var: tf.Tensor, data: tuple[tf.Tensor, tf.Tensor] | None = None
    ) -> tf.Tensor:
        """Return log Ẑₙ = log ∫ p(yₙ | f) N(f; mean, var) df for f [N, L], as [N].

        With ``data`` (X [R, D], Y [R, P]) of these data in place of the model's. Where the layout has several
        factors to a datum: that of each factor, in the shape of the layout without its last axis.
        """
        factors = self._factors(data)
        if factors is not None:
            return factors.log_normaliser(mean, var)
        X, Y = self.data if data is None else data
        return self.likelihood.predict_log_density(X, mean, var, Y)

    def log_evidence(self) -> tf.Tensor:
        """Return log Z of expectation propagation at the current sites, a scalar; O(NM²).

        An approximation of log p(y), not a bound of it. As a function of the hyperparameters with the sites
        held fixed it has the exact gradient of the evidence at a fixed point of the sites.
        """
        at = moment_matching.evaluate(self.prior(), self.log_normaliser, self.sites, layout=self.layout())
        return at.log_evidence

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        """Return the log evidence, which training maximises."""
        return self.log_evidence()
