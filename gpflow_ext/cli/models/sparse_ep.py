"""Train SparseEP, the sparse Gaussian process of Hernández-Lobato & Hernández-Lobato (2016)."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from gpflow_ext.cli import flags, kernels, likelihoods, tables

EPILOG = """\
examples
  {command}                                    a bundled set: scikit-learn's breast_cancer
  {command} --data patients.csv --target ill   your own table
  {command} --data pima --ard --inducing 100 --steps 5
  {command} --data airline_2008 --inducing 200 --minibatch-size 200 --optimizer adadelta --steps 5000
  {command} --data wine --run-dir runs/wine --export saved_models/wine    three classes

Two classes are modelled by a probit, more by the robust maximum, ordered ones by cumulative logits, counts by a Poisson
with exponential link. The objective is the log evidence of expectation propagation, an
approximation and not a bound. A step is up to 20 iterations of L-BFGS with the sites at their fixed point; with another
--optimizer one parallel sweep over the sites, or with --minibatch-size over those of a minibatch, and one step of the
hyperparameters and inducing points; with --fixed one sweep. Cost: O(N M^2) per sweep, O(M^3) per minibatch of M rows.
"""
DATA = "breast_cancer"
OBJECTIVE = "log evidence"
NO_WEIGHTS = "sparse-ep takes no weights of rows: its sites match the moments of one datum each"
TASKS = ("binary", "multiclass", "ordinal", "counts")
SHARE, MOST = 0.15, 300  # of the training rows, by default


def count_or_share(text: str) -> int | float:
    """Return a number of rows, or a share of them in (0, 1)."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        if 0.0 < (share := float(text)) < 1.0:
            return share
    raise argparse.ArgumentTypeError(f"{text!r} is neither a number of rows nor a share of them in (0, 1)")


def add_flags(new: argparse.ArgumentParser) -> None:
    """Add the flags of this model."""
    model = new.add_argument_group("model")
    model.add_argument(
        "--inducing",
        type=count_or_share,
        metavar="M",
        help="inducing points drawn from the training rows: how many, or what share of them "
        f"(default: {SHARE}, at most {MOST})",
    )
    flags.add_noise(model)
    model.add_argument(
        "--minibatch-size",
        type=flags.positive,
        metavar="B",
        help="rows in a step (default: all training rows)",
    )
    model.add_argument(
        "--optimizer",
        choices=["lbfgs", "sign_agreement", "adam", "adadelta"],
        help="of the hyperparameters and inducing points (default: lbfgs; adam with --minibatch-size)",
    )
    model.add_argument(
        "--rate",
        type=flags.above_zero,
        metavar="R",
        help="learning rate (default: 0.01 for adam, 1 for adadelta)",
    )
    model.add_argument(
        "--damping",
        type=float,
        metavar="D",
        help="share of the way that a sweep moves the sites (default: adapted; 1 with --minibatch-size)",
    )


def load(options: argparse.Namespace) -> Any:
    """Return the data for the flags."""
    return tables.load(options, classifies=True)


def check(options: argparse.Namespace, split: Any) -> None:
    """Raise ``ValueError`` for flags that do not go with the data or with each other."""
    if options.rate is not None and options.optimizer not in ("adam", "adadelta"):
        raise ValueError("--rate is that of --optimizer adam or adadelta: name one of them.")
    kernels.check_inducing(_number(options, len(split.train[0])), len(split.train[0]), "--inducing")


def _number(options: argparse.Namespace, rows: int) -> int:
    wanted = options.inducing
    if isinstance(wanted, float):
        return max(1, round(wanted * rows))
    return kernels.number_of_points(wanted, MOST, round(SHARE * rows))


def build(options: argparse.Namespace, split: Any) -> Any:
    """Return the untrained model for the flags and the data."""
    import gpflow

    import gpflow_ext as gpx

    X, _ = split.train
    Z = kernels.some_rows(_number(options, len(X)), X, options.seed)
    model = gpx.models.SparseEP(
        split.train,
        kernels.noisy_kernel(options, X.shape[1]),
        likelihoods.probit(split),
        likelihoods.mean_of_counts(split),
        inducing_variable=Z,
    )
    if options.fixed:
        gpflow.set_trainable(model, False)
    return model


def fit_options(options: argparse.Namespace, num_rows: int) -> dict[str, Any]:
    """Return the options of `gpflow_ext.fit`."""
    size = options.minibatch_size
    climbs = options.optimizer == "lbfgs" or (options.optimizer is None and size is None)
    return {
        "optimizer": _optimizer(options),
        "damping": options.damping,
        "checkpoint_every": 1 if climbs else 50,
        **({} if size is None else {"minibatch_size": min(size, num_rows)}),
    }


def _optimizer(options: argparse.Namespace) -> Any:
    from gpflow.keras import tf_keras

    if options.optimizer in (None, "lbfgs", "sign_agreement"):
        return options.optimizer
    if options.optimizer == "adadelta":  # the paper's constants
        return tf_keras.optimizers.Adadelta(options.rate or 1.0, rho=0.9, epsilon=1e-5)
    return tf_keras.optimizers.Adam(options.rate or 0.01)
