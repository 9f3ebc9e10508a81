"""The prior of a regression network at its inputs: the factors of both kernels."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gpflow_ext.gprn import conditional, node_kernels
from gpflow_ext.gprn.conditional import Inducing, NetworkPrior
from gpflow_ext.numerics import linalg


def of(model: Any) -> NetworkPrior:
    """Return the prior of a network; see `GPRNTensor.prior`."""
    X, base = model.data[0], model.points
    noise, nugget = map(tf.convert_to_tensor, (model.likelihood.variance, model.nugget))
    scales = model.scales()
    if model.inducing_variable is None:
        nodes = _factor(node_kernels.gram(model.kernel, X), nugget)
        return NetworkPrior(weights(model), nodes, noise, None, scales)
    chols = (
        _factor(node_kernels.gram(model.weight_kernel, base)),
        _factor(node_kernels.gram(model.kernel, base)),
    )
    w = conditional.condition(model.weight_kernel, base, chols[0], X, False)
    f = conditional.condition(model.kernel, base, chols[1], X, False, nugget)
    inducing = Inducing(*chols, w.residual, f.residual)
    return NetworkPrior(tf.transpose(w.A), tf.linalg.matrix_transpose(f.A), noise, inducing, scales)


def weights(model: Any) -> tf.Tensor:
    """Return L_w [N, N] of a network without inducing inputs."""
    return _factor(node_kernels.gram(model.weight_kernel, model.data[0]))


def _factor(gram: tf.Tensor, nugget: tf.Tensor | float = 0.0) -> tf.Tensor:
    return tf.linalg.cholesky(linalg.with_jitter(gram, nugget))
