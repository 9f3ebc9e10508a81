"""Gaussian-process classification with scikit-learn's interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gpflow.kernels import Kernel, White
from gpflow.likelihoods import Likelihood

from gpflow_ext.estimators import checked
from gpflow_ext.estimators.base import Array
from gpflow_ext.estimators.classes import ClassEstimator
from gpflow_ext.estimators.ladder import Inference
from gpflow_ext.likelihoods import BernoulliLogit, RobustMax, StickBreaking

_SOFT = 1e-3  # variance of white noise where training starts: the largest of functions is a soft choice


class GPClassifier(ClassEstimator):
    """Gaussian-process classifier of two or more classes.

    For two classes it is `VGPKMM` with `BernoulliLogit`, or with label noise `SparseEP` with a share of
    flipped labels. For more it is `VGPKMM` with `StickBreaking`, which decides about ``classes_`` one after
    the other, or with label noise `SVGPRobustMax`. Beyond 20,000 rows GPflow's ``SVGP`` on minibatches
    replaces `VGPKMM`.

    Parameters
    ----------
    kernel
        See `estimators.base.GPEstimator`.
    label_noise
        Initial share of wrong labels, in [0, 1 - 1/K). 0 means no label noise.
    learn_label_noise
        Whether to learn the share if it is above 0.
    num_inducing, minibatch_size, steps, standardise, random_state
        See `estimators.base.GPEstimator`.

    Attributes
    ----------
    classes_
        The K labels in order.
    n_features_in_, scaler_, model_, result_
        Number of inputs D; the fitted ``StandardScaler``, or ``None``; the trained model, whose inputs are
        those that ``scaler_`` returns; the `FitResult` of the training.
    label_noise_
        The share of wrong labels that was learnt.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        label_noise: float = 0.0,
        learn_label_noise: bool = True,
        num_inducing: int | None = None,
        minibatch_size: int | None = None,
        steps: int | None = None,
        standardise: bool = True,
        random_state: Any = 0,
    ) -> None:
        super().__init__(
            kernel,
            num_inducing=num_inducing,
            minibatch_size=minibatch_size,
            steps=steps,
            standardise=standardise,
            random_state=random_state,
        )
        self.label_noise = label_noise
        self.learn_label_noise = learn_label_noise

    def fit(
        self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
    ) -> GPClassifier:
        """Train on inputs [N, D], labels [N] of any kind and weights [N]; return the classifier.

        A row of weight w counts as w copies of it.

        Raises
        ------
        ValueError
            For data that are not such arrays, fewer than two classes, parameters out of range, or weights
            with label noise.
        """
        inputs, numbers = self._encoded(X, y)
        weight = checked.weights(sample_weight, inputs)
        return self._train(inputs, numbers, weight)

    @property
    def _inference(self) -> Inference:
        return "ep" if self.label_noise else "sites"

    def _likelihood(self, Y: Array, weight: Array | None) -> Likelihood:
        learn = self.learn_label_noise and self.label_noise > 0.0
        if len(self.classes_) == 2:
            return BernoulliLogit(flip=self.label_noise, learn_flip=learn)
        if self.label_noise:
            return RobustMax(len(self.classes_), self.label_noise, learn_epsilon=learn)
        return StickBreaking(len(self.classes_))

    def _kernel(self, num_inputs: int, num_latent_gps: int) -> Kernel:
        kernel = super()._kernel(num_inputs, num_latent_gps)
        soft = self.kernel is None and self.label_noise and num_latent_gps > 1
        return kernel + White(_SOFT) if soft else kernel

    @property
    def label_noise_(self) -> float:
        """The share of wrong labels that was learnt."""
        likelihood = self.model_.likelihood
        return float(np.asarray(getattr(likelihood, "epsilon", getattr(likelihood, "flip", 0.0))))
