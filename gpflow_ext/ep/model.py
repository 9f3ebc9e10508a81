"""Sparse Gaussian process with expectation propagation, Hernández-Lobato & Hernández-Lobato (2016)."""

from __future__ import annotations

from typing import Any

import gpflow
import tensorflow as tf
from gpflow.models.util import InducingVariablesLike

from gpflow_ext.data import checks, held
from gpflow_ext.data.rows import ArrayRows, Batch, DatasetRows, Rows
from gpflow_ext.ep import moment_matching
from gpflow_ext.ep.method import EP
from gpflow_ext.ep.moment_matching import WHOLE_DATUM, Factors, Layout
from gpflow_ext.numerics.log_predictive import log_predictive
from gpflow_ext.sites import Message, Seen, Sites, Whitened, sparse_prior
from gpflow_ext.sites.model import SiteModel


class SparseEP(SiteModel):
    """Sparse GP by expectation propagation, for classification or any likelihood of independent data.

    The model is FITC (Naish-Guzman & Holden 2008): given the inducing variables u the latent values fₙ are
    independent, fₙ = hₙ + rₙ with hₙ = E[fₙ | u] and rₙ ~ N(0, residualₙ). Each factor p(yₙ | fₙ), its
    residual integrated out, is replaced by a Gaussian site in hₙ: two numbers per datum and latent function.
    Expectation propagation matches their moments in parallel at O(NM²), memory O(NM);
    see `gpflow_ext.ep.moment_matching` for the equations.

    ``likelihood.predict_log_density(X, m, v, Y)`` is the normaliser log Ẑ of a factor, and the sites follow
    from its first two derivatives in m: in closed form for `gpflow_ext.likelihoods.BernoulliProbit` and
    GPflow's ``Gaussian``, else by the likelihood's own quadrature. A site may have a negative precision if
    the likelihood is not log-concave.

    With `gpflow_ext.likelihoods.RobustMax` the K − 1 comparisons of f_y with the other latent functions are
    the factors, each with a site on both of its functions (Villacampa-Calvo & Hernández-Lobato 2017): the
    sites are [N, K, 2], in closed form. They depend on differences of the functions only: give the kernel a
    ``White`` part, and expect some hundreds of sweeps.

    The hyperparameters and the inducing inputs maximise the evidence log Z; `gpflow_ext.fit` moves them
    inside the loop over the sites, as the paper does, or by L-BFGS with the sites at their fixed point.
    Give a likelihood of GPflow's that is narrow compared with the prior more than its 20 nodes
    (``likelihood.quadrature``): if the quadrature of log Ẑ is inaccurate there may be no fixed point. For
    Student's t use `likelihoods.StudentT`.

    Sums over the data run `gpflow_ext.data.rows.CHUNK` rows at a time, so that prediction and the evidence
    need memory O(N + M²), not O(NM). With a ``tf.data.Dataset`` only the two numbers of each site are in
    memory. Such a model trains with ``minibatch_size``, and reads the whole dataset to predict: keep its
    ``posterior()`` for further predictions.

    The paper's noise σ₀² is ``kernel + gpflow.kernels.White(σ₀²)``: it enters K_uu and k(xₙ, xₙ), not K_uf.

    Parameters
    ----------
    data
        Inputs [N, D] and targets [N, P], or a ``tf.data.Dataset`` of single rows (x [D], y [P]) that gives
        the same rows in the same order each time it is read; see `gpflow_ext.data.rows.DatasetRows`.
    kernel, likelihood, mean_function, num_latent_gps
        As for `SiteModel`.
    inducing_variable
        Inducing points [M, D], or others as for `SiteModel`; the training inputs themselves give full
        expectation propagation. Given points are trained unless they are held fixed. Those of ``"auto"`` are
        held fixed: log Z of FITC is not a bound, and rises as they move to overfit the data.

    Raises
    ------
    ValueError
        As for `SiteModel`, and without inducing points.
    NotImplementedError
        For multi-output kernels that `SiteModel` does not take, or a likelihood whose predictive density is
        a Monte Carlo estimate.
    """

    site_method = EP.name

    def __init__(
        self,
        data: tuple[Any, Any] | tf.data.Dataset,
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        mean_function: gpflow.functions.MeanFunction | None = None,
        num_latent_gps: int | None = None,
        *,
        inducing_variable: InducingVariablesLike | str,
    ) -> None:
        if inducing_variable is None:
            raise ValueError("SparseEP needs `inducing_variable`: inducing points [M, D], such as X itself.")
        super().__init__(
            data, kernel, likelihood, mean_function, num_latent_gps, inducing_variable=inducing_variable
        )
        if isinstance(inducing_variable, str):
            gpflow.set_trainable(self.inducing_variable, False)
        X, Y = self.data if self._stream is None else self._stream.head
        one = self.layout((X[:1], Y[:1])).select(tf.zeros([1, self.num_latent_gps], self.nat1.dtype))
        zeros = tf.zeros([self.rows.num_data, *one.shape[1:]], one.dtype)
        open_rows = [None, *one.shape[1:]]
        self.nat1 = gpflow.Parameter(zeros, trainable=False, shape=open_rows)
        self.prec = gpflow.Parameter(zeros, trainable=False, shape=open_rows)

    def _hold(
        self, data: Any, likelihood: gpflow.likelihoods.Likelihood
    ) -> tuple[tuple[checks.Array, checks.Array], int]:
        self.data = None
        if isinstance(data, tf.data.Dataset):
            stream = DatasetRows(data, lambda Y: checks.check_targets(likelihood, Y))
            self._stream: DatasetRows | None = stream
            return stream.head, stream.num_data
        self._stream = None
        return super()._hold(data, likelihood)

    @property
    def sites(self) -> Sites:
        """See `SiteModel.sites`."""
        if self._stream is None:
            return super().sites
        rows = self._stream.num_data
        return Sites(*(tf.ensure_shape(part, [rows, *part.shape[1:]]) for part in (self.nat1, self.prec)))

    def update_data(self, data: tuple[Any, Any] | tf.data.Dataset, index: Any | None = None) -> None:
        """See `HoldsData.update_data`; a dataset is replaced by a dataset."""
        if isinstance(data, tf.data.Dataset) is not (self._stream is not None):
            raise ValueError("`data` must be of the same kind as before: arrays, or a tf.data.Dataset.")
        if self._stream is None:
            super().update_data(data, index)
            return
        stream = DatasetRows(data, lambda Y: checks.check_targets(self.likelihood, Y))
        now, old = ((part[0].shape[1], part[1].shape[1]) for part in (stream.head, self._stream.head))
        checks.check_widths(now, old)
        rows = held.kept_rows(index, self._stream.num_data, stream.num_data)
        self._stream = stream
        self._keep_sites(rows)

    def _held(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the data in memory."""
        if self._stream is not None:
            raise ValueError(
                "The data of this model are a dataset, which is not held in memory: train it with "
                "`fit(model, minibatch_size=...)`."
            )
        return self.data

    @property
    def rows(self) -> Rows:
        """The data, row by row."""
        return ArrayRows(*self.data) if self._stream is None else self._stream

    def gather_sites(self, rows: tf.Tensor) -> Sites:
        """Return the sites of the data ``rows`` [R], each [R, L] or [R, F, L']. O(R)."""
        parts = self.sites if self.follows else (self.nat1, self.prec)
        return Sites(*(_some(part, rows) for part in parts))

    def scatter_sites(self, rows: tf.Tensor, new: Sites) -> None:
        """Replace the sites of the data ``rows`` [R]. O(R)."""
        for parameter, value in zip((self.nat1, self.prec), new, strict=True):
            parameter.unconstrained_variable.scatter_update(tf.IndexedSlices(value, rows))

    def prior(self, X: tf.Tensor | None = None, chol: tf.Tensor | None = None) -> Seen:
        """Return the prior at the training inputs, or at X [N, D]. O(NM²).

        ``chol`` is the Cholesky factor of K_uu [1 or L, M, M] where it is known; see `sparse_prior.project`.
        """
        return sparse_prior.project(self, self._held()[0] if X is None else X, chol)

    def gram(self) -> tf.Tensor:
        """Return K_uu, [1 or L, M, M]."""
        return sparse_prior.gram(self)

    def no_message(self, gram: tf.Tensor) -> Message:
        """Return the message of no sites to the inducing variables, zeros, for a K_uu."""
        return sparse_prior.no_message(self, gram)

    def without_data(self) -> SparseEP:
        """Return a model that shares all parameters with this one and holds no data."""
        other = object.__new__(type(self))
        kept = {name: value for name, value in vars(self).items() if not name.startswith("_self_")}
        other.__dict__.update(kept, data=None, _stream=None)  # set as attributes they would be tracked
        return other

    def prior_copy(self) -> sparse_prior.PriorCopy:
        """Return a copy of what decides the prior."""
        return sparse_prior.PriorCopy(self)

    def message(self, chol: tf.Tensor) -> Message:
        """Return the message of all sites to the inducing variables for the factor of K_uu. O(NM²)."""

        def part(batch: Batch) -> Message:
            rows, X, Y = batch
            return self.prior(X, chol).message(self.layout((X, Y)).combine(self.gather_sites(rows)))

        return self.rows.total(self.no_message(chol), part)

    def condition(self) -> tuple[tf.Tensor, Whitened]:
        """See `SiteModel.condition`. O(NM²), memory O(M²)."""
        chol = tf.linalg.cholesky(self.gram())
        return chol, self.message(chol).posterior()

    def whitened_message(self) -> Message:
        """See `SiteModel.whitened_message`. O(NM²), memory O(M²)."""
        return self.message(tf.linalg.cholesky(self.gram()))

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
        return None if split is None else split((self._held() if data is None else data)[1])

    def log_normaliser(
        self, mean: tf.Tensor, var: tf.Tensor, data: tuple[tf.Tensor, tf.Tensor] | None = None
    ) -> tf.Tensor:
        """Return log Ẑₙ = log ∫ p(yₙ | f) N(f; mean, var) df for f [N, L], as [N].

        With ``data`` (X [R, D], Y [R, P]) of these data instead of the model's. Where the layout has several
        factors to a datum: that of each factor, in the shape of the layout without its last axis.
        """
        factors = self._factors(data)
        if factors is not None:
            return factors.log_normaliser(mean, var)
        X, Y = self._held() if data is None else data
        return log_predictive(self.likelihood, X, mean, var, Y)

    def log_evidence(self) -> tf.Tensor:
        """Return log Z of expectation propagation at the current sites, a scalar; O(NM²).

        It is an approximation of log p(y), not a bound. As a function of the hyperparameters with the sites
        held fixed it has the exact gradient of the evidence at a fixed point of the sites.
        """
        chol = tf.linalg.cholesky(self.gram())
        message = self.message(chol)

        def terms(batch: Batch) -> tf.Tensor:
            rows, X, Y = batch
            return moment_matching.evaluate(
                self.prior(X, chol),
                lambda mean, var: self.log_normaliser(mean, var, (X, Y)),
                self.gather_sites(rows),
                message,
                self.layout((X, Y)),
            ).log_evidence

        return message.posterior().log_normaliser() + self.rows.total(tf.zeros([], chol.dtype), terms)

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        """Return the log evidence at the fixed point of the sites; see `SiteModel`.

        Raises
        ------
        ValueError
            If the data are a dataset, whose rows cannot be swept over within one evaluation.
        """
        self._held()
        return super().maximum_log_likelihood_objective()


def _some(values: Any, rows: tf.Tensor) -> tf.Tensor:
    """Return some rows of values; of a parameter without reading the others."""
    variable = getattr(values, "unconstrained_variable", None)
    if variable is None or isinstance(variable, tf.distribute.DistributedValues):
        return tf.gather(values, rows)
    return variable.sparse_read(rows)
