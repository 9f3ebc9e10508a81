"""One small model of each class, and controls of GPflow's own, built from data that the test chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gpflow
import numpy as np
import problems
import tensorflow as tf

from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit, RobustMax
from gpflow_ext.models import (
    VGPKMM,
    GPJaakkola,
    GPLaplace,
    GPRNTensor,
    GPTaylor,
    SGPMCFreeForm,
    SparseEP,
    SVGPRobustMax,
)
from gpflow_ext.sites.model import SiteModel

Data = tuple[np.ndarray, np.ndarray]
Build = Callable[[Any], gpflow.models.BayesianModel]


@dataclass(frozen=True)
class Holder:
    """How a model is built from data, and from which."""

    build: Build
    sample: Callable[[int, int], Data] = lambda number, seed: problems.binary(number, seed=seed)


def points() -> np.ndarray:
    return problems.inputs(5, seed=7)


def _site(kind: type[SiteModel], likelihood: Callable[[], Any], sparse: bool = False) -> Holder:
    options: dict[str, Any] = {"inducing_variable": points()} if sparse else {}
    return Holder(lambda data: kind(data, problems.kernel(), likelihood(), **options))


def _classes(number: int, seed: int) -> Data:
    return problems.classes(number, seed=seed)


def _outputs(number: int, seed: int) -> Data:
    X = problems.inputs(number, seed)
    return X, np.stack([problems.latent(X, seed=seed + k) for k in range(3)], axis=1)


class EPOnDense(SiteModel):
    """A site model of another method."""

    site_method = "ep"


def _jaakkola() -> BernoulliLogit:
    return BernoulliLogit(bound="jaakkola")


SITES: dict[str, Holder] = {
    "VGPKMM": _site(VGPKMM, BernoulliLogit),
    "VGPKMM-sparse": _site(VGPKMM, BernoulliLogit, sparse=True),
    "GPLaplace": _site(GPLaplace, BernoulliLogit),
    "GPLaplace-sparse": _site(GPLaplace, BernoulliLogit, sparse=True),
    "GPTaylor": _site(GPTaylor, BernoulliLogit),
    "GPTaylor-sparse": _site(GPTaylor, BernoulliLogit, sparse=True),
    "GPJaakkola": _site(GPJaakkola, _jaakkola),
    "GPJaakkola-sparse": _site(GPJaakkola, _jaakkola, sparse=True),
    "SparseEP": _site(SparseEP, BernoulliProbit, sparse=True),
    "SparseEP-classes": Holder(
        lambda data: SparseEP(
            data,
            problems.kernel() + gpflow.kernels.White(0.1),
            RobustMax(3),
            inducing_variable=points(),
        ),
        _classes,
    ),
    "EP-dense": _site(EPOnDense, BernoulliProbit),
}

NETWORKS: dict[str, Holder] = {
    "GPRN": Holder(lambda data: GPRNTensor(data, problems.kernel(1.0), problems.kernel(1.0), 2), _outputs),
    "GPRN-sparse": Holder(
        lambda data: GPRNTensor(
            data, problems.kernel(1.0), problems.kernel(1.0), 2, inducing_variable=points()
        ),
        _outputs,
    ),
    "GPRN-tensor": Holder(
        lambda data: GPRNTensor(data, problems.kernel(1.0), problems.kernel(1.0), 2, posterior="tensor"),
        _outputs,
    ),
}

FREE: dict[str, Holder] = {
    "SGPMCFreeForm": Holder(
        lambda data: SGPMCFreeForm(data, problems.kernel(), BernoulliProbit(), inducing_variable=points())
    ),
}

OTHERS: dict[str, Holder] = {
    "SVGPRobustMax": Holder(
        lambda data: SVGPRobustMax(problems.kernel(), 3, points(), num_data=len(data[0])), _classes
    ),
}

CONTROLS: dict[str, Holder] = {
    "gpflow.GPR": Holder(lambda data: gpflow.models.GPR(data, problems.kernel())),
    "gpflow.SGPR": Holder(lambda data: gpflow.models.SGPR(data, problems.kernel(), points())),
    "gpflow.SGPMC": Holder(
        lambda data: gpflow.models.SGPMC(
            data, problems.kernel(), gpflow.likelihoods.Bernoulli(), inducing_variable=points()
        )
    ),
}

HOLDERS = {**SITES, **NETWORKS, **FREE}
ALL = {**HOLDERS, **OTHERS}


def variables(data: Data) -> tuple[tf.Variable, tf.Variable]:
    """The data in variables of any number of rows."""
    X, Y = (tf.Variable(part, trainable=False, shape=[None, part.shape[1]]) for part in data)
    return X, Y


def loss(model: Any, data: Data) -> Callable[[], tf.Tensor]:
    """The closure that GPflow's optimisers minimise."""
    external = isinstance(model, gpflow.models.ExternalDataTrainingLossMixin)
    return model.training_loss_closure(data, compile=False) if external else model.training_loss
