"""Label noise: a share of the labels is wrong, each of the other classes being equally likely.

With the share ρ of wrong labels among K classes, p(y | f) = (1 − ρ) P + ρ/(K − 1) (1 − P), where P is the
probability of the class y without errors. The log density has a floor at log ρ/(K − 1): no label costs more,
however far on the other side of the boundary it lies (Hernández-Lobato et al. 2011). It is not log-concave.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import default_float
from gpflow.base import Parameter
from gpflow.utilities import to_default_float

from gpflow_ext.data.arguments import check_flag, check_number

Bound = TypeVar("Bound", bound=str)


def wrong_share(share: float, num_classes: int, *, learn: bool, name: str) -> float | Parameter:
    """Return ρ as a number, or as a parameter in (0, 1 − 1/K) with the prior Beta(2, 1/ρ).

    The prior has its mode at the given value and weighs as much as 1/ρ labels of which one is wrong.

    Raises
    ------
    ValueError
        If ρ is out of range, or is to be learnt from zero; ``name`` is what the message calls it.
    """
    check_number(**{name: share})
    check_flag(**{f"learn_{name}": learn})
    highest = 1.0 - 1.0 / num_classes
    if not 0.0 <= share < highest:
        raise ValueError(
            f"{name} must be in [0, 1 - 1/K) = [0, {highest:g}); got {share}: at the upper end the label "
            "says nothing"
        )
    if not learn:
        return float(share)
    if not share:
        raise ValueError(f"learn_{name} needs a positive {name} to start from, such as 1e-3; got 0")
    upper, start = to_default_float(highest), to_default_float(share)
    transform = tfp.bijectors.Sigmoid(to_default_float(0.0), upper)
    prior = tfp.distributions.Beta(to_default_float(2.0), 1.0 / start)
    return Parameter(start, transform=transform, prior=prior)


def is_noisy(share: float | Parameter) -> bool:
    """Tell whether any label can be wrong."""
    return not isinstance(share, float) or share > 0.0  # a tensor where frozen


def bound_beside(share: float, bound: Bound | Literal["auto"] | None, default: Bound) -> Bound | None:
    """Return the bound that is meant: "auto" is ``default``, or without bound where labels can be wrong.

    Raises
    ------
    ValueError
        For a bound given together with a positive share: it bounds another expectation.
    """
    if not share:
        return default if bound == "auto" else bound
    if bound not in ("auto", None):
        raise ValueError(
            f"bound={bound!r} does not bound the expectation with flip={share:g}, which is exact: leave out "
            "one of them"
        )
    return None


def levels(share: float | Parameter, num_classes: int, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """Return 1 − ρ and ρ/(K − 1), the probabilities of a label where P is one and zero."""
    share = tf.cast(tf.convert_to_tensor(share, default_float()), dtype)
    return 1.0 - share, share / (num_classes - 1)


def log_mixture(log_p: tf.Tensor, share: float | Parameter, num_classes: int) -> tf.Tensor:
    """Return log[(1 − ρ) P + ρ/(K − 1) (1 − P)] for log P of any shape."""
    if not is_noisy(share):
        return log_p
    hit, missed = levels(share, num_classes, log_p.dtype)
    log_missed = tf.math.log(missed)
    return log_missed + tf.math.softplus(log_p + tf.math.log(hit - missed) - log_missed)
