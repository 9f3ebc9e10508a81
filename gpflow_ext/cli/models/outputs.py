"""Train a regression of several targets by a function for each, or by linear mixtures of as many functions."""

from __future__ import annotations

import argparse
from typing import Any

from gpflow_ext.cli import flags, kernels, likelihoods, tables

EPILOG = """\
examples
  {command} --data sensors.csv --target no2 ozone pm10   your own table, several targets
  {command} --data sensors.csv --target no2 ozone --ard --export saved_models/air

Each target has noise and, with --kind independent, a function and a kernel of its own: nothing is shared. With --kind
coregionalised every target is a linear mixture of all functions, the same at all inputs (Alvarez et al. 2012). The
objective is the log evidence; a step is up to 20 iterations of L-BFGS at O(P N^3) for P targets that share nothing,
O((P N)^3) for mixtures, and with --num-inducing M at O(P N M^2) and O(P^3 N M^2). --scale-targets subtracts the training mean
of each target and divides by its deviation; the exported model predicts in the units of the table.
"""
DATA = "linnerud"
OBJECTIVE = "bound"
TASKS = ("several",)


def add_flags(new: argparse.ArgumentParser) -> None:
    """Add the flags of this model."""
    model = new.add_argument_group("model")
    model.add_argument(
        "--kind",
        choices=["independent", "coregionalised"],
        default="independent",
        help="a function for each target, or mixtures of functions (default: %(default)s)",
    )
    model.add_argument(
        "--num-inducing",
        type=flags.positive,
        metavar="M",
        help="inducing points drawn from the training rows (default: none, the dense model)",
    )


def load(options: argparse.Namespace) -> Any:
    """Return the data for the flags."""
    return tables.load(options)


def check(options: argparse.Namespace, split: Any) -> None:
    """Raise ``ValueError`` for gaps in the targets, and more inducing points than rows."""
    if tables.has_gaps(split):
        raise ValueError(
            f"{options.kind} needs every target of a row: give --missing drop, or take --model gprn-tensor."
        )
    kernels.check_inducing(options.num_inducing, len(split.train[0]), "--num-inducing")


def build(options: argparse.Namespace, split: Any) -> Any:
    """Return the untrained model for the flags and the data."""
    import gpflow
    import numpy as np

    import gpflow_ext as gpx
    from gpflow_ext.estimators.kernels import coregionalised

    X, _ = split.train
    number = tables.outputs(split)
    each = [kernels.kernel(options, X.shape[1]) for _ in range(number)]
    if number == 1:
        [kernel] = each
    elif options.kind == "independent":
        kernel = gpflow.kernels.SeparateIndependent(each)
    else:
        kernel = coregionalised(each)
    noise = gpflow.likelihoods.Gaussian(np.full(number, 0.1) if number > 1 else 0.1)
    if options.fixed:
        gpflow.set_trainable(noise, False)
    return gpx.models.VGPKMM(
        split.train,
        kernel,
        likelihoods.weighted(split, noise),
        num_latent_gps=number,
        inducing_variable=options.num_inducing and kernels.some_rows(options.num_inducing, X, options.seed),
    )


def fit_options(options: argparse.Namespace, num_rows: int) -> dict[str, Any]:
    """Return the options of `gpflow_ext.fit`."""
    return {"checkpoint_every": 1}
