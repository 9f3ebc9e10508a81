"""Base of GPflow's cached posteriors that predict new inputs one by one."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.posteriors import AbstractPosterior, PrecomputeCacheType

from gpflow_ext.numerics import batched, linalg
from gpflow_ext.numerics.batched import Rows, TakesNumbers
from gpflow_ext.sites.posterior import SiteConditioned


class MarginalPosterior(TakesNumbers, AbstractPosterior):
    """A cached posterior of a structured prior, without covariances between new inputs.

    Parameters
    ----------
    model
        The model.
    precompute_cache
        As for GPflow's posteriors.

    Attributes
    ----------
    prior_name, one_input
        What the prior and an input are called where covariances are refused.
    """

    prior_name: str
    one_input: str

    def __init__(
        self, model: SiteConditioned[Any], precompute_cache: PrecomputeCacheType | str | None
    ) -> None:
        super().__init__(model.kernel, model.data[0], mean_function=model.mean_function)
        self._model = model
        self.update_cache(PrecomputeCacheType(precompute_cache or "nocache"))

    @abstractmethod
    def _parts(self) -> tuple[tf.Tensor, ...]:
        """Return what the cache holds."""

    @abstractmethod
    def _at(self, cache: tuple[tf.Tensor, ...], new: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance, less the mean function, at inputs [R, D], [R, L]."""

    @inherit_check_shapes
    def _conditional_fused(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        parts = linalg.finite(self._parts(), self._model)
        return self._conditional_with_precompute(parts, Xnew, full_cov, full_output_cov)

    @inherit_check_shapes
    def _conditional_with_precompute(
        self, cache: tuple[tf.Tensor, ...], Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        if full_cov:
            raise NotImplementedError(
                f'prior="{self.prior_name}" predicts each {self.one_input} by itself: for covariances '
                "between new inputs take the dense model or `inducing_variable`."
            )
        rows = Rows(Xnew)
        mean, var = (tf.cast(part, rows.flat.dtype) for part in self._at(cache, rows.flat))
        return rows.apart(mean), batched.independent_outputs(rows.apart(var), full_cov, full_output_cov)
