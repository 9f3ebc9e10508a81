"""Train SparseEP, the sparse Gaussian-process classifier of Hernández-Lobato & Hernández-Lobato (2016)."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

import _cli

EPILOG = """\
examples
  python scripts/train_sparse_ep.py                                    a bundled set: scikit-learn's breast_cancer
  python scripts/train_sparse_ep.py --data patients.csv --target ill   your own table, numeric columns and one target
  python scripts/train_sparse_ep.py --data pima --ard --inducing 100 --steps 5
  python scripts/train_sparse_ep.py --data airline_2008 --inducing 200 --minibatch-size 200 --optimizer adadelta --steps 5000
  python scripts/train_sparse_ep.py --data wine --run-dir runs/wine --export saved_models/wine    three classes

Two classes are modelled by a probit, more by the robust maximum. The objective is the log evidence of expectation
propagation, an approximation and not a bound. A step is up to 20 iterations of L-BFGS with the sites at their fixed
point; with another --optimizer one parallel sweep over the sites, or with --minibatch-size over those of a minibatch,
and one step of the hyperparameters and inducing points; with --fixed one sweep. Cost: O(N M^2) per sweep, O(M^3) per
minibatch of M rows.
"""


def count_or_share(text: str) -> int | float:
    """Return a number of rows, or a share of them in (0, 1)."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        if 0.0 < (share := float(text)) < 1.0:
            return share
    raise argparse.ArgumentTypeError(f"{text!r} is neither a number of rows nor a share of them in (0, 1)")


def arguments() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    new = _cli.parser(__doc__ or "", EPILOG)
    model = new.add_argument_group("model")
    model.add_argument(
        "--inducing",
        type=count_or_share,
        metavar="M",
        default=0.15,
        help="inducing points drawn from the training rows: how many, or what share of them (default: %(default)s)",
    )
    _cli.add_noise(model)
    model.add_argument(
        "--minibatch-size", type=int, metavar="B", help="rows in a step (default: all training rows)"
    )
    model.add_argument(
        "--optimizer",
        choices=["lbfgs", "sign_agreement", "adam", "adadelta"],
        help="of the hyperparameters and inducing points (default: lbfgs; adam with --minibatch-size)",
    )
    model.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help="learning rate (default: 0.01 for adam, 1 for adadelta)",
    )
    model.add_argument(
        "--damping",
        type=float,
        metavar="D",
        help="share of the way that a sweep moves the sites (default: adapted; 1 with --minibatch-size)",
    )
    return new


def load(options: argparse.Namespace) -> Any:
    """Return the data for the flags."""
    split = _cli.load(options, classifies=True)
    if split.task not in ("binary", "multiclass"):
        raise ValueError(
            f"The target of {split.name} is read as {split.task}; this script classifies: choose another --target or --task."
        )
    return split


def build(options: argparse.Namespace, split: Any) -> Any:
    """Return the untrained model for the flags and the data."""
    import gpflow

    import gpflow_ext as gpx

    X, _ = split.train
    wanted = options.inducing
    number = wanted if isinstance(wanted, int) else max(1, round(wanted * len(X)))
    Z = _cli.inducing_points(number, X, options.seed, "--inducing")
    kernel = _cli.build_noisy_kernel(options, X.shape[1])
    model = gpx.models.SparseEP(split.train, kernel, likelihood(split), inducing_variable=Z)
    if options.fixed:
        gpflow.set_trainable(model, False)
    return model


def likelihood(split: Any) -> Any:
    """Return the probit for two classes, the robust maximum for more."""
    from gpflow_ext import likelihoods

    if split.task == "binary":
        return likelihoods.BernoulliProbit()
    return likelihoods.RobustMax(len(split.labels))


def fit(options: argparse.Namespace, model: Any, split: Any, steps: int | None) -> Any:
    """Train for the flags, from the newest checkpoint of the run folder if there is one."""
    import gpflow_ext as gpx

    chosen = {} if options.minibatch_size is None else {"minibatch_size": options.minibatch_size}
    return gpx.fit(
        model,
        steps=steps,
        optimizer=optimizer(options),
        damping=options.damping,
        seed=options.seed,
        jit_compile=options.xla,
        checkpoint_dir=None if options.run_dir is None else options.run_dir / "checkpoints",
        checkpoint_every=1 if _climbs(options) else 50,
        **chosen,
    )


def _climbs(options: argparse.Namespace) -> bool:
    """Tell whether L-BFGS moves the hyperparameters."""
    return options.optimizer == "lbfgs" or (options.optimizer is None and options.minibatch_size is None)


def optimizer(options: argparse.Namespace) -> Any:
    """Return the optimiser that the flags name."""
    from gpflow.keras import tf_keras

    if options.rate is not None and options.optimizer not in ("adam", "adadelta"):
        raise ValueError("--rate is that of --optimizer adam or adadelta: name one of them.")
    if options.optimizer in (None, "lbfgs", "sign_agreement"):
        return options.optimizer
    if options.optimizer == "adadelta":  # the paper's constants
        return tf_keras.optimizers.Adadelta(options.rate or 1.0, rho=0.9, epsilon=1e-5)
    return tf_keras.optimizers.Adam(options.rate or 0.01)


def main() -> None:
    """Train from the command line."""
    _cli.train(sys.modules[__name__], "log evidence")


if __name__ == "__main__":
    _cli.run(main)
