"""Student's t likelihood, for real targets with outliers."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import TensorType

from gpflow_ext.data.arguments import check_number
from gpflow_ext.numerics import student_t
from gpflow_ext.numerics.special import as_tensor, broadcast


class StudentT(gpflow.likelihoods.StudentT):
    """GPflow's ``StudentT``, whose integrals are right however narrow the density is.

    GPflow has 20 Gauss-Hermite nodes for the expected log density and for the predictive density. They miss
    what is narrow compared with the latent function: at scale 0.1, a latent variance of 1 and a target 0.3
    from the mean, log E[p(y | f)] is off by 0.8, which keeps expectation propagation from converging. See
    `numerics.student_t` for the mixtures that take their place (Andrews & Mallows 1974, for the density).

    The density is not log-concave: sites may have negative precisions, under any site method but Jaakkola's,
    and the posterior of a far outlier may have several modes.

    Parameters
    ----------
    scale
        s, a positive number or a function of the inputs.
    df
        Degrees of freedom ν, above 0 and up to 1000, which are not learnt. The variance is infinite up to 2.

    Raises
    ------
    ValueError
        If ``scale`` or ``df`` is not: with more degrees of freedom the density is nearly Gaussian, and the
        mixtures miss how narrow it is.

    Examples
    --------
    >>> likelihood = gpx.likelihoods.StudentT(0.3, df=4.0)
    >>> model = gpx.models.SparseEP((X, Y), kernel, likelihood, inducing_variable="auto")
    """

    def __init__(self, scale: Any = 1.0, df: float = 3.0, **kwargs: Any) -> None:
        check_number(df=df)
        if not 0.0 < df <= student_t.MOST_DEGREES:
            most = f"{student_t.MOST_DEGREES:.0f}"
            raise ValueError(f"df must be above 0 and at most {most}; got {df}: above use Gaussian")
        if not (callable(scale) or isinstance(scale, gpflow.Parameter)):
            given = np.asarray(scale)
            if given.dtype.kind not in "iuf" or not ((given > 0.0) & (given < np.inf)).all():
                raise ValueError(f"scale must be positive and finite; got {scale!r}")
        super().__init__(scale, float(df), **kwargs)

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        return tf.reduce_sum(student_t.expected_log_density(*self._parts(X, Fmu, Fvar, Y)), axis=-1)

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        return tf.reduce_sum(student_t.log_expected_density(*self._parts(X, Fmu, Fvar, Y)), axis=-1)

    def _parts(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, float]:
        mean, var = broadcast(Fmu, Fvar)
        shift = as_tensor(Y) - mean
        return shift, var + tf.zeros_like(shift), tf.convert_to_tensor(self._scale(X)), self.df
