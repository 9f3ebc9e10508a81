"""GPflow's own SVGP as the engine of natural gradients sees a model."""

from __future__ import annotations

import functools
from typing import Any, cast

import gpflow
import tensorflow as tf
from gpflow.inducing_variables import MultioutputInducingVariables
from gpflow.kernels import MultioutputKernel
from gpflow.models import SVGP, VGP

from gpflow_ext.likelihoods.largest import SecondOrder
from gpflow_ext.sites import Projection, dense_prior, latent, sparse_prior
from gpflow_ext.svgp import newton_mean
from gpflow_ext.svgp.whitened_normal import marginals


def refusal(model: SVGP, recipe: str = "svi_natural") -> str | None:
    """Say what of an SVGP a recipe of natural gradients does not take; ``None`` where it takes all."""
    if not model.whiten or not has_independent(model):
        return (
            f"{recipe} needs SVGP(whiten=True) with a kernel and inducing variables of one output, or "
            "with SharedIndependent or SeparateIndependent ones of several."
        )
    if not has_full_q(model):
        return f"{recipe} needs a full q_sqrt, and q_mu and q_sqrt trainable."
    return None


def has_independent(model: SVGP) -> bool:
    """Tell whether the inducing variables of an SVGP are those of its outputs, none of which are mixed."""
    points = model.inducing_variable
    many = isinstance(model.kernel, MultioutputKernel), isinstance(points, MultioutputInducingVariables)
    return latent.mixing(model.kernel) is None and many[0] == many[1]


def has_full_q(model: SVGP) -> bool:
    """Tell whether an SVGP has a full q_sqrt, and q moves."""
    return len(model.q_sqrt.shape) == 3 and model.q_mu.trainable and model.q_sqrt.trainable


class WhitenedSVGP:
    """A whitened SVGP of independent latent functions as an `svgp.dual.SparseVariational`.

    Parameters
    ----------
    model
        The model.
    recipe
        What the errors name.

    Raises
    ------
    ValueError
        For another model.
    NotImplementedError
        For an SVGP that is not whitened, mixes latent functions, or has a diagonal or fixed q_sqrt.
    """

    def __init__(self, model: SVGP, recipe: str = "svi_natural") -> None:
        if not isinstance(model, SVGP):
            raise ValueError(f'recipe="{recipe}" is for SVGP; {type(model).__name__} is another model.')
        reason = refusal(model, recipe)
        if reason is not None:
            raise NotImplementedError(reason)
        latent.check_kinds(model.kernel, model.inducing_variable, recipe)
        self._see(model)

    def _see(self, model: SVGP | VGP) -> None:
        self._model = model
        self.q_mu, self.q_sqrt = model.q_mu, model.q_sqrt

    def gram(self) -> tf.Tensor:
        """Return K_uu, [1 or L, M, M]."""
        return sparse_prior.gram(self._model)

    def prior(self, X: tf.Tensor) -> Projection:
        """Return the prior at X [B, D]."""
        return sparse_prior.project_independent(self._model, X)

    def marginals(self, prior: Projection) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance of q(f), each [B, L]."""
        return marginals(prior, self.q_mu, tf.convert_to_tensor(self.q_sqrt))

    def expectations(self, X: tf.Tensor, Y: tf.Tensor, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        """Return E[log p(yₙ | fₙ)], [B]."""
        return self._model.likelihood.variational_expectations(X, mean, var, Y)

    def second_order(self, X: tf.Tensor, Y: tf.Tensor, mean: tf.Tensor, var: tf.Tensor) -> SecondOrder:
        """Return the `expectations` with their derivatives; see `newton_mean.second_order`."""
        of_moments = functools.partial(self.expectations, X, Y)
        return newton_mean.second_order(of_moments, self._model.likelihood, Y, mean, var)

    def num_correct(self, Y: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
        """Return zero: what counts as correct depends on the likelihood."""
        return tf.zeros([], mean.dtype)

    def scale(self, X: tf.Tensor) -> tf.Tensor:
        """Return N/B, []."""
        rows = tf.cast(tf.shape(X)[0], gpflow.default_float())
        if self._model.num_data is None:
            return tf.ones_like(rows)
        return tf.cast(self._model.num_data, rows.dtype) / rows

    def prior_kl(self) -> tf.Tensor:
        """Return KL[q(v) || N(0, I)], []."""
        return self._model.prior_kl()

    def log_prior_density(self) -> tf.Tensor:
        """Return the log density of the priors of the hyperparameters, []."""
        return self._model.log_prior_density()


class WhitenedVGP(WhitenedSVGP):
    """A VGP on its own data as `svgp.whole_data` sees a model: f = μ + Lv, with LLᵀ the prior covariance.

    Parameters
    ----------
    model
        The model.
    """

    def __init__(self, model: VGP) -> None:
        self._see(model)

    def prior(self, X: tf.Tensor) -> Projection:
        """Return the prior at all inputs X [N, D] of the model. O(N³)."""
        found: Any = dense_prior.at(self._model, X)  # uncoupled, as its kernel is of one output
        return cast(Projection, found.whiten())

    def scale(self, X: tf.Tensor) -> tf.Tensor:
        """Return one, []."""
        return tf.ones([], gpflow.default_float())
