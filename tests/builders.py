"""Every model as a small classifier (or a network of one output), from data, a kernel and inducing points."""

from __future__ import annotations

from collections.abc import Callable

import gpflow
import numpy as np
from gpflow.models import BayesianModel

from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit
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

Data = tuple[np.ndarray, np.ndarray]

BUILD: dict[str, Callable[[Data, gpflow.kernels.Kernel, np.ndarray], BayesianModel]] = {
    "VGPKMM": lambda data, kernel, Z: VGPKMM(data, kernel, BernoulliLogit()),
    "VGPKMM-inducing": lambda data, kernel, Z: VGPKMM(data, kernel, BernoulliLogit(), inducing_variable=Z),
    "SparseEP": lambda data, kernel, Z: SparseEP(data, kernel, BernoulliProbit(), inducing_variable=Z),
    "GPLaplace": lambda data, kernel, Z: GPLaplace(data, kernel, BernoulliLogit()),
    "GPTaylor": lambda data, kernel, Z: GPTaylor(data, kernel, BernoulliLogit(), inducing_variable=Z),
    "GPJaakkola": lambda data, kernel, Z: GPJaakkola(data, kernel, BernoulliLogit(bound="jaakkola")),
    "SVGPRobustMax": lambda data, kernel, Z: SVGPRobustMax(kernel, 2, Z, num_data=len(data[0])),
    "SGPMCFreeForm": lambda data, kernel, Z: SGPMCFreeForm(
        data, kernel, BernoulliProbit(), inducing_variable=Z
    ),
    "GPRNTensor": lambda data, kernel, Z: GPRNTensor(data, kernel, gpflow.utilities.deepcopy(kernel), 2),
}
