"""Base of GPflow's cached posteriors that predict new inputs one by one."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import tensorflow as tf
from check_shapes import inherit_check_shapes

from gpflow_ext.numerics import batched
from gpflow_ext.numerics.batched import Rows
from gpflow_ext.numerics.centred import check_width
from gpflow_ext.numerics.mapped import one_by_one
from gpflow_ext.sites.posterior import SitePosterior


class MarginalPosterior(SitePosterior):
    """A cached posterior of a structured prior, perhaps without covariances between new inputs.

    Attributes
    ----------
    prior_name, one_input
        What the prior and an input are called where covariances are refused.
    """

    prior_name: str
    one_input: str

    @abstractmethod
    def _at(self, cache: tuple[tf.Tensor, ...], new: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance, less the mean function, at inputs [R, D], [R, L]."""

    def _covariance(self, cache: tuple[tf.Tensor, ...], new: tf.Tensor) -> tf.Tensor:
        """Return covariances at inputs [R, D], [L, R, R]."""
        raise NotImplementedError(
            f'prior="{self.prior_name}" predicts each {self.one_input} by itself: for covariances between '
            "new inputs take the dense model or `inducing_variable`, and for joint draws "
            "`gpx.sample_functions`."
        )

    @inherit_check_shapes
    def _conditional_with_precompute(
        self, cache: tuple[tf.Tensor, ...], Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        rows = Rows(Xnew)
        check_width(rows.flat, self.X_data)
        cov = self._covariances(cache, rows) if full_cov else None  # refused before anything is computed
        mean, var = (rows.apart(tf.cast(part, rows.flat.dtype)) for part in self._at(cache, rows.flat))
        return mean, batched.independent_outputs(var if cov is None else cov, full_cov, full_output_cov)

    def _covariances(self, cache: tuple[tf.Tensor, ...], rows: Rows) -> tf.Tensor:
        """Return covariances within members of a batch, [batch..., L, N, N]."""
        found = one_by_one(lambda X: tf.cast(self._covariance(cache, X), X.dtype), rows.members)
        return rows.of_members(found)
