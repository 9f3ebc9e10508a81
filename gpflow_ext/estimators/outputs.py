"""Gaussian-process regression of several targets with scikit-learn's interface."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse
from gpflow.kernels import Kernel, SeparateIndependent
from gpflow.likelihoods import Likelihood
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state

from gpflow_ext.cross_validation import cross_validate
from gpflow_ext.data.datasets import Scaler
from gpflow_ext.estimators import checked, kernels, networks
from gpflow_ext.estimators.base import Array
from gpflow_ext.estimators.real import RealEstimator, gaussian, standardised
from gpflow_ext.prediction import metrics
from gpflow_ext.prediction.rescaled import RescaledTargets

Outputs = Literal["best", "independent", "coregionalised", "network"]
_COMPARED = 300  # rows on which the kinds are compared
_FOLDS = 3


class GPMultiOutputRegressor(RealEstimator):
    """Gaussian-process regression of P targets, each with noise of its own: `VGPKMM`, or `GPRNTensor`.

    Parameters
    ----------
    kernel
        Kernel of each latent function; see `estimators.base.GPEstimator`.
    kind
        ``"independent"``: a latent function for each target. ``"coregionalised"``: linear mixtures of P
        latent functions, which model correlated targets. ``"best"``: the one of these two that predicts
        better in a cross-validation over at most 300 rows. ``"network"``: `GPRNTensor`, mixtures whose
        weights depend on the input; targets may then be missing (NaN). It takes far longer, O((NK)³) a step.
    num_nodes
        K, the number of nodes of the network.
    num_inducing, minibatch_size, steps, standardise, random_state
        See `estimators.base.GPEstimator`.

    Attributes
    ----------
    kind_
        The kind that was chosen.
    n_features_in_, scaler_, model_, result_
        Number of inputs D; the fitted ``StandardScaler``, or ``None``; the trained model, whose inputs are
        those that ``scaler_`` returns, its targets in their own units; the `FitResult` of the training.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        kind: Outputs = "best",
        num_nodes: int = 2,
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
        self.kind = kind
        self.num_nodes = num_nodes

    def __sklearn_tags__(self) -> Any:
        """Tell that targets may have several columns."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(
        self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
    ) -> GPMultiOutputRegressor:
        """Train on inputs [N, D], targets [N, P] or [N] and weights [N]; return the estimator.

        A row of weight w counts as w copies of it. For a network, y may hold NaN for missing targets.

        Raises
        ------
        ValueError
            For data that are not such arrays, parameters out of range, or a network with weights or
            minibatches.
        TypeError
            For sparse targets.
        """
        if self.kind not in get_args(Outputs):
            raise ValueError(f"kind must be one of {', '.join(get_args(Outputs))}; got {self.kind!r}")
        if scipy.sparse.issparse(y):
            raise TypeError("sparse targets were passed, and dense ones are required: use y.toarray()")
        if self.kind == "network":
            return self._train_network(X, y, sample_weight)
        if y is not None and np.asarray(y).dtype.kind == "f" and np.isnan(np.asarray(y)).any():
            raise ValueError('Input y contains NaN: fill or drop these targets, or take kind="network"')
        inputs, targets = checked.training(self, X, y, y_numeric=True, multi_output=True)
        weight = checked.weights(sample_weight, inputs)
        Y = np.asarray(targets, inputs.dtype)
        self._flat = Y.ndim == 1
        Y = Y.reshape(len(Y), -1)
        self.kind_ = self._chosen(inputs, Y, weight)
        return self._train(inputs, Y, weight)

    def _train_network(self, X: Any, y: Any, sample_weight: Any) -> GPMultiOutputRegressor:
        for name, given in (("sample_weight", sample_weight), ("minibatch_size", self.minibatch_size)):
            if given is not None:
                raise ValueError(
                    f'kind="network" takes no {name}: leave it out, or take kind="coregionalised"'
                )
        inputs, Y = networks.training(self, X, y)
        self.kind_, self._flat = "network", np.ndim(y) == 1
        self.scaler_ = StandardScaler().fit(inputs) if self.standardise else None
        self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        units = Scaler.fit_known(Y)
        kernel = RealEstimator._kernel(self, inputs.shape[1], 1)
        rows, Z = self._scaled(inputs), units.transform(Y).astype(inputs.dtype)
        self.model_ = networks.network(rows, Z, kernel, self.num_nodes, self.num_inducing, self._seed)
        self._fitted({})
        self.model_ = RescaledTargets(self.model_, units.mean, units.scale)
        return self

    def _chosen(self, X: Array, Y: Array, weight: Array | None) -> str:
        """Return the kind that predicts better, the simpler one where both do alike."""
        X, Y, weight = checked.merged(X, Y, weight)
        if self.kind != "best" or Y.shape[1] == 1 or len(X) < 2 * _FOLDS:
            return "independent" if self.kind == "best" else self.kind
        rows = np.random.default_rng(0).permutation(len(X))[:_COMPARED]
        weighted = np.column_stack([Y, np.ones(len(Y)) if weight is None else weight])
        scores = {}
        for kind in ("independent", "coregionalised"):
            self.kind_ = kind

            def build(data: Any) -> Any:
                return self.model_of(*_parted(data))[0]

            found = cross_validate(
                build,
                (X[rows], weighted[rows]),
                folds=_FOLDS,
                workers=1,
                stratified=False,
                metrics=_scored,
                progress=False,
            )
            scores[kind] = found.mean["nlpd"]
        return min(scores, key=lambda kind: scores[kind])

    def _likelihood(self, Y: Array, weight: Array | None) -> Likelihood:
        return standardised(gaussian(Y.shape[1]), Y, weight)

    def _kernel(self, num_inputs: int, num_latent_gps: int) -> Kernel:
        each = [super(GPMultiOutputRegressor, self)._kernel(num_inputs, 1) for _ in range(num_latent_gps)]
        if num_latent_gps == 1:
            return each[0]
        if getattr(self, "kind_", self.kind) != "coregionalised":
            return SeparateIndependent(each)
        return kernels.coregionalised(each)

    def predict(self, X: npt.ArrayLike, return_std: bool = False) -> Any:
        """Return the means of y at inputs [N, D], [N, P]; with ``return_std`` also the deviations, [N, P].

        These are the standard deviations of new observations, noise included.
        """
        return self._predict(X, return_std)

    def score_samples(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None) -> Array:
        """Return the sum of the targets' log predictive densities, of y [N, P] at inputs [N, D], as [N].

        Without targets it is that of the predicted means.
        """
        return self._score_samples(X, y)

    def _log_densities(self, X: Any, Y: Array) -> Array:
        if self.kind_ != "network":
            return super()._log_densities(X, Y)
        inputs = self._scaled(checked.inputs(self, X))  # that of the network, which is not Gaussian
        return np.asarray(self.model_.predict_log_density((inputs, Y)))

    def _shaped(self, values: Array) -> Array:
        return values[:, 0] if self._flat else values


def _parted(data: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    """Return inputs [N, D], targets [N, P] and weights [N] of data with the weights behind the targets."""
    X, Y = data
    return X, Y[:, :-1], Y[:, -1]


def _scored(model: Any, data: tuple[Array, Array]) -> dict[str, float]:
    X, Y, weight = _parted(data)
    densities = metrics.evaluated_rows(model, (X, Y))[1]
    return {"nlpd": metrics.negative_log_predictive_density(densities, weight)}
