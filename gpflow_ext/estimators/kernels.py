"""The kernels of the estimators, for standardised inputs, with priors on variances and length scales."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow_probability as tfp
from gpflow.kernels import Constant, Kernel, Linear, LinearCoregionalization, Matern52, SquaredExponential
from gpflow.utilities import set_trainable, to_default_float

from gpflow_ext.data import length_scales
from gpflow_ext.numerics.arc_cosine import RoundedArcCosine

LINEAR = "linear"  # the name of the kernel that `auto` always compares
_WIDTH = 1.5  # of the logarithm of a variance: the targets' own is one
_SPREAD = 1.0  # of the logarithm of a length scale, where each input has one
_WIDE = 3.0  # of that of all inputs together: the rows decide, but where no input is of use it ran to 1e-17
_MIXED = 0.3  # weight of the other functions in an output where training starts
_MANY = 2000  # rows which tell the length scales of all inputs
_MOST_SCALES = 40  # inputs up to which each may have a length scale of its own


def matern(num_inputs: int, *, ard: bool = False) -> Kernel:
    """Return a Matérn kernel of smoothness 5/2 with length scales √D for inputs of variance one.

    Its variance has the prior LogNormal(0, 1.5): if the targets are almost linear, variance and length scale
    would otherwise diverge together, until K is numerically singular. The length scale has a log-normal prior
    of width 3 with the mode √D. With ``ard`` each input has one with the prior LogNormal(log √D, 1): a few
    hundred rows do not tell dozens of them, and the largest evidence is then that of too few inputs.
    """
    scale = float(np.sqrt(num_inputs))
    kernel = Matern52(lengthscales=np.full(num_inputs, scale) if ard else scale)
    if ard:
        kernel.lengthscales.prior = _log_normal(scale, _SPREAD)
    return held(kernel)


def linear(num_inputs: int) -> Kernel:
    """Return the kernel of linear functions with an intercept."""
    return Linear(variance=1.0 / num_inputs) + Constant()


def network(num_inputs: int) -> Kernel:
    """Return the kernel of a network of infinitely many rectified units, Cho & Saul (2009), degree one.

    Its functions grow as linear ones do. Only the products of its variance with those of weights and bias
    matter: it is held, and these have the prior of the variance in `matern`, for the same reason.
    """
    kernel = RoundedArcCosine(order=1, weight_variances=1.0 / num_inputs)
    set_trainable(kernel.variance, False)
    kernel.weight_variances.prior = _log_normal(1.0 / num_inputs, _WIDTH)
    kernel.bias_variance.prior = _log_normal(1.0, _WIDTH)
    return kernel


def coregionalised(each: Sequence[Kernel]) -> Kernel:
    """Return the kernel of as many outputs, each a linear mixture of functions with these kernels."""
    mixing = np.eye(len(each)) + _MIXED * (1.0 - np.eye(len(each)))
    return LinearCoregionalization(each, W=to_default_float(mixing))


def held(kernel: Kernel) -> Kernel:
    """Give variances of stationary parts their prior, and length scales that have none a wide one."""
    for part in length_scales.stationary(kernel):
        part.variance.prior = _log_normal(1.0, _WIDTH)
        if part.lengthscales.prior is None:
            mode = part.lengthscales.numpy()
            part.lengthscales.prior = _log_normal(mode * np.exp(_WIDE**2), _WIDE)
    return kernel


def _log_normal(median: npt.ArrayLike, width: float) -> tfp.distributions.Distribution:
    return tfp.distributions.LogNormal(to_default_float(np.log(median)), to_default_float(width))


def compared(num_inputs: int, num_rows: int = 0) -> dict[str, Kernel]:
    """Return the kernels that `auto` compares for D inputs and N rows, the most different ones first.

    Where there are thousands of rows, those with a length scale for each input come before them.
    """
    D = num_inputs
    each: dict[str, Kernel] = {}
    if 1 < D <= _MOST_SCALES:
        each["Matérn 5/2 with a length scale for each input + linear"] = matern(D, ard=True) + linear(D)
        each["Matérn 5/2 with a length scale for each input"] = matern(D, ard=True)
    few: dict[str, Kernel] = {"Matérn 5/2": matern(D), LINEAR: linear(D), "network": network(D)}
    last: dict[str, Kernel] = {
        "Matérn 5/2 + linear": matern(D) + linear(D),
        "squared exponential": held(SquaredExponential(lengthscales=float(np.sqrt(D)))),
    }
    if num_rows <= _MANY:
        return few | each | last
    return {LINEAR: few[LINEAR]} | each | few | last
