"""Scales of each output of a regression network: the amplitude of its weights, and its noise."""

from __future__ import annotations

from typing import NamedTuple

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.data.arguments import check_flag
from gpflow_ext.gprn.outputs import ArrayOutputs, Outputs

FEW = 8  # outputs that have scales of their own by default
LEAST = 1e-3  # of an amplitude or a ratio of variances


class OutputScales(NamedTuple):
    """Weights w_dk ~ GP(0, a_d²k_w) and noise of variance σ²r_d; a, r [D]."""

    amplitude: tf.Tensor
    relative: tf.Tensor


class HasOutputScales:
    """Mixin of networks whose outputs may have scales of their own.

    Attributes
    ----------
    output_amplitude, output_noise
        a and r [D], parameters that start at 1; ``None`` if all outputs share k_w and σ².
    """

    likelihood: gpflow.likelihoods.Gaussian
    output_amplitude: gpflow.Parameter | None = None  # models stored without scales have none
    output_noise: gpflow.Parameter | None = None

    def begin_scales(self, wanted: bool | None, posterior: str, Y: Outputs) -> None:
        """Make the scales of outputs where they are wanted; see the model's ``output_scales``.

        Raises
        ------
        NotImplementedError
            If they are wanted for a posterior other than the collapsed one.
        """
        check_flag(output_scales=wanted)
        collapsed, number = posterior == "collapsed", Y.num_outputs
        if wanted and not collapsed:
            raise NotImplementedError('`output_scales` are for posterior="collapsed".')
        if wanted or (wanted is None and collapsed and number > 1 and (number <= FEW or _are_apart(Y))):
            self.output_amplitude, self.output_noise = _ratio(number), _ratio(number)

    def scales(self) -> OutputScales | None:
        """Return what the outputs have of their own."""
        if self.output_amplitude is None or self.output_noise is None:
            return None
        return OutputScales(*map(tf.convert_to_tensor, (self.output_amplitude, self.output_noise)))

    def noise(self) -> tf.Tensor:
        """Return the variance of the noise: σ² [], or σ²r_d of each output [D] where they have their own."""
        variance = tf.convert_to_tensor(self.likelihood.variance)
        return variance if self.output_noise is None else variance * self.output_noise


def _are_apart(Y: Outputs) -> bool:
    """Tell whether each output lacks other rows, so that scales of their own cost nothing more."""
    if not isinstance(Y, ArrayOutputs) or Y.num_outputs > Y.num_data:
        return False
    return np.unique(np.isnan(Y.data[0]), axis=1).shape[1] == Y.num_outputs


def _ratio(number: int) -> gpflow.Parameter:
    return gpflow.Parameter(np.ones(number), transform=gpflow.utilities.positive(lower=LEAST))
