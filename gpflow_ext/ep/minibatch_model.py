"""The protocol of a model for stochastic expectation propagation."""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf

from gpflow_ext.data.rows import Rows
from gpflow_ext.ep.moment_matching import Layout
from gpflow_ext.sites import Message, Seen, Sites


class Anchor(Protocol):
    """A prior that stays while the model moves."""

    def copy_from(self, live: Any) -> None:
        """Take over the model's parameters."""

    def project(self, X: tf.Tensor, chol: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean [B, L] and the projection A at X for the factor of K_uu."""


class MinibatchModel(Protocol):
    """Protocol of a model for the engine, its data in minibatches."""

    num_latent_gps: int

    @property
    def rows(self) -> Rows:
        """The data."""

    @property
    def sites(self) -> Sites:
        """All sites."""

    def assign_sites(self, new: Sites) -> None:
        """Replace all sites."""

    def gather_sites(self, rows: tf.Tensor) -> Sites:
        """Return some sites, [B, L] or [B, F, L']."""

    def scatter_sites(self, rows: tf.Tensor, new: Sites) -> None:
        """Replace some sites."""

    def gram(self) -> tf.Tensor:
        """Return K_uu, [1 or L, M, M]."""

    def no_message(self, gram: tf.Tensor) -> Message:
        """Return the message of no sites to the inducing variables, zeros, for a K_uu."""

    def prior(self, X: tf.Tensor, chol: tf.Tensor) -> Seen:
        """Return the prior at X for the Cholesky factor of K_uu."""

    def without_data(self) -> MinibatchModel:
        """Return a model of the same parameters that holds no data."""

    def prior_copy(self) -> Anchor:
        """Return what keeps the prior of the anchor."""

    def log_normaliser(self, mean: tf.Tensor, var: tf.Tensor, data: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """Return log ∫ p(yₙ | f) N(f; mean, var) df, [B], or that of each factor, [B, F]."""

    def layout(self, data: tuple[tf.Tensor, tf.Tensor]) -> Layout:
        """Return which latent functions each factor of the given data sees."""

    def log_prior_density(self) -> tf.Tensor:
        """Return the log density of the priors of the hyperparameters."""
