"""The base of the estimators: scaling, training, prediction in batches, and what an export of them needs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
from gpflow.functions import MeanFunction
from gpflow.kernels import Kernel
from gpflow.likelihoods import Likelihood
from gpflow.models import GPModel
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from gpflow_ext.data import arguments
from gpflow_ext.estimators import checked, kernels, ladder, warm
from gpflow_ext.fitting import fit
from gpflow_ext.likelihoods import Weighted
from gpflow_ext.prediction.batches import Predicted
from gpflow_ext.training.deadline import whole_steps
from gpflow_ext.training.ends import FitWarning
from gpflow_ext.training.loop import Status

Array = npt.NDArray[Any]
_BATCH = 1000  # rows predicted at a time


class GPEstimator(BaseEstimator):
    """Base of the estimators; a subclass says what its targets and its likelihood are.

    Parameters
    ----------
    kernel
        A GPflow kernel, which is copied. By default a Matérn-5/2 kernel with the square root of the number of
        inputs as length scale, and a wide prior on its variance.
    num_inducing
        M, the number of inducing points; by default every row is one up to about 1,500 rows (fewer for
        Student's t, label noise or several latent functions, see `estimators.ladder`), and 300 beyond, unless
        there is one input, or a grid, whose prior needs none.
    minibatch_size
        Rows in a training step; by default all rows, and 1,000 if there are more than 20,000.
    steps
        Training steps; by default until the objective has settled, on minibatches for 60 seconds at most.
    standardise
        Whether to give each input mean zero and variance one first.
    random_state
        Seed of inducing points and minibatches: ``None``, an integer or a ``RandomState``.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        num_inducing: int | None = None,
        minibatch_size: int | None = None,
        steps: int | None = None,
        standardise: bool = True,
        random_state: Any = 0,
    ) -> None:
        self.kernel = kernel
        self.num_inducing = num_inducing
        self.minibatch_size = minibatch_size
        self.steps = steps
        self.standardise = standardise
        self.random_state = random_state

    _seconds: float | None = None  # of a training, where `auto` has a budget for it
    _prior: str | None = None  # where `auto` has chosen one
    _rows: int | None = None  # of the table, where `auto` trains on a part of it
    _earlier: tuple[GPModel, ...] = ()  # of fewer rows, where `auto` has trained them
    _held = False  # whether their hyperparameters are kept as they are
    _most: int | None = None  # rows to train on, where `auto` has chosen so

    def _train(self, X: Array, Y: Array, weight: Array | None) -> Any:
        """Train on inputs [N, D], targets [N, P] and weights [N]; return the estimator."""
        self.model_, options = self.model_of(X, Y, weight)
        with warm.begun(self.model_, *self._earlier[:1], held=self._held):
            return self._fitted(options)

    def _fitted(self, options: Mapping[str, Any]) -> Any:
        """Train ``model_`` with options of `fit`; return the estimator."""
        with warnings.catch_warnings(), whole_steps():
            warnings.simplefilter("ignore", FitWarning)  # scikit-learn's own takes its place
            self.result_ = fit(
                self.model_,
                steps=self.steps,
                seed=self._seed,
                progress=False,
                **ladder.timed(self.model_, options, self._seconds, next(iter(self._earlier), None)),
            )
        ends = {Status.NON_FINITE, Status.DIVERGED}
        if self.steps is None and self._seconds is None:
            ends.add(Status.OUT_OF_TIME)  # of the recipe's own seconds
        if self.result_.status in ends:
            warnings.warn(str(self.result_), ConvergenceWarning, stacklevel=4)
        return self

    def model_of(self, X: Array, Y: Array, weight: Array | None = None) -> tuple[GPModel, dict[str, Any]]:
        """Return a model of inputs [N, D] and targets [N, P] as it is before training, and what `fit` takes.

        Classes are numbers from 0. Of rows that occur several times one is left, with their weight, where the
        inference knows weights.
        """
        return ladder.model_of(self.problem_of(X, Y, weight))

    def problem_of(self, X: Array, Y: Array, weight: Array | None = None) -> ladder.Problem:
        """Return the problem that inputs [N, D] and targets [N, P] pose, as `model_of` sees it."""
        if self._inference != "ep":
            X, Y, weight = checked.merged(X, Y, weight)
        elif weight is not None:
            raise ValueError(
                "sample_weight does not go with label noise, where a datum has one site whatever its weight: "
                "repeat the rows instead."
            )
        arguments.check_flag(standardise=self.standardise)
        for name in ("num_inducing", "minibatch_size"):
            if (number := getattr(self, name)) is not None:
                arguments.check_whole(**{name: number})
                if number < 1:
                    raise ValueError(f"{name} must be at least 1; got {number}")
        self.scaler_ = StandardScaler().fit(X, sample_weight=weight) if self.standardise else None
        self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        likelihood = self._likelihood(Y, weight)
        latents = likelihood.latent_dim or Y.shape[1]
        return ladder.Problem(
            self._scaled(X),
            Y if weight is None else np.column_stack([Y, weight]),
            self._kernel(X.shape[1], latents),
            likelihood if weight is None else Weighted(likelihood, Y.shape[1]),
            self._mean_function(Y, weight),
            latents,
            self._inference,
            self.num_inducing,
            self.minibatch_size,
            self._seed,
            self._prior,
            self._rows,
            self._held,
        )

    @property
    def _inference(self) -> ladder.Inference:
        return "sites"

    def _likelihood(self, Y: Array, weight: Array | None) -> Likelihood:
        """Return the likelihood where training starts, for targets [N, P] and weights [N]."""
        raise NotImplementedError

    def _scaled(self, X: Array) -> Array:
        return X if self.scaler_ is None else self.scaler_.transform(X)

    def _mean_function(self, Y: Array, weight: Array | None) -> MeanFunction | None:
        """Return the prior mean of the latent functions, for targets [N, P] and weights [N]."""
        return None

    def _kernel(self, num_inputs: int, num_latent_gps: int) -> Kernel:
        if not isinstance(self.kernel, Kernel | None):
            raise TypeError(
                f"kernel must be a kernel of GPflow, such as gpflow.kernels.Matern52(); got {self.kernel!r}"
            )
        if self.kernel is not None:
            return gpflow.utilities.deepcopy(self.kernel)
        return kernels.matern(num_inputs)

    def _predicted(self, X: Any, method: str, targets: Callable[[int], Array] | None = None) -> list[Any]:
        """Return what a method of `Predicting` says of each batch of inputs [N, D], checked here.

        ``targets`` returns those [N, P] of N rows.
        """
        check_is_fitted(self)
        inputs = self._scaled(checked.inputs(self, X))
        arrays = (inputs,) if targets is None else (inputs, targets(len(inputs)))
        predict = Predicted(self.model_)
        return predict.in_batches(getattr(predict.of, method), *arrays, size=_BATCH)

    def _moments(self, X: Any) -> tuple[Array, Array]:
        """Return mean and variance of y at inputs [N, D], [N, P] each."""
        found = self._predicted(X, "moments")
        mean, variance = (np.concatenate([part[i].numpy() for part in found]) for i in (0, 1))
        return mean, variance

    def _log_densities(self, X: Any, Y: Array) -> Array:
        """Return log p(y | x) of targets [N, P] at inputs [N, D], [N]."""
        return np.concatenate(
            [part["log_density"].numpy() for part in self._predicted(X, "scored", lambda _: Y)]
        )

    def exported_parts(self) -> tuple[GPModel, tuple[Array, Array], list[str] | None, Any]:
        """Return what `gpflow_ext.export` takes of a fitted estimator: model, scaler, labels and data."""
        check_is_fitted(self)
        scaler = self.scaler_
        width = self.n_features_in_
        scale = (np.zeros(width), np.ones(width)) if scaler is None else (scaler.mean_, scaler.scale_)
        names, labels = getattr(self, "feature_names_in_", None), getattr(self, "classes_", None)
        data = SimpleNamespace(feature_names=names, task=self._task())
        return self.model_, scale, None if labels is None else [str(label) for label in labels], data

    def _task(self) -> str:
        raise NotImplementedError
