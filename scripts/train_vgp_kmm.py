"""Train VGP-KMM, the binary Gaussian-process classifier of Khan, Mohamed & Murphy (2012)."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import _cli

EPILOG = """\
examples
  python scripts/train_vgp_kmm.py                                    a bundled set: scikit-learn's breast_cancer
  python scripts/train_vgp_kmm.py --data patients.csv --target ill   your own table, numeric columns and one target
  python scripts/train_vgp_kmm.py --data ionosphere --split published --raw --fixed --lengthscale 1.65 --variance 7.39
  python scripts/train_vgp_kmm.py --run-dir runs/bc --export saved_models/bc    checkpoint, resume, export

The target must have two classes, in words or numbers. The objective is a lower bound of the log evidence;
with learnt hyperparameters a step is up to 20 iterations of L-BFGS, with --fixed one iteration of the fixed
point (one sweep with --method algorithm1). Cost: O(N^3) per iteration, or O(N M^2) with --num-inducing M.
"""


def arguments() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    new = _cli.parser(__doc__ or "", EPILOG)
    model = new.add_argument_group("model")
    model.add_argument(
        "--bound",
        choices=["piecewise", "jaakkola", "none"],
        default="piecewise",
        help="bound of the logistic likelihood; none integrates numerically (default: %(default)s)",
    )
    model.add_argument(
        "--num-pieces",
        type=int,
        choices=[3, 4, 5, 10, 20],
        default=20,
        help="pieces of the piecewise bound (default: %(default)s)",
    )
    model.add_argument(
        "--method",
        choices=["parallel", "algorithm1"],
        default="parallel",
        help="parallel fixed point, or the paper's sweep (default: %(default)s)",
    )
    model.add_argument(
        "--starts",
        type=int,
        default=1,
        metavar="N",
        help="starting points of the hyperparameters (default: %(default)s)",
    )
    model.add_argument(
        "--num-inducing",
        type=int,
        metavar="M",
        help="inducing points drawn from the training rows (default: none, the dense model)",
    )
    return new


def build(options: argparse.Namespace, split: Any) -> Any:
    """Return the untrained model for the flags and the data."""
    import gpflow_ext as gpx

    X, _ = split.train
    inducing = None
    if options.num_inducing is not None:
        inducing = _cli.inducing_points(options.num_inducing, X, options.seed, "--num-inducing")
    likelihood = gpx.likelihoods.BernoulliLogit(
        bound=None if options.bound == "none" else options.bound, num_pieces=options.num_pieces
    )
    return gpx.models.VGPKMM(
        split.train, _cli.build_kernel(options, X.shape[1]), likelihood, inducing_variable=inducing
    )


def load(options: argparse.Namespace) -> Any:
    """Return the data for the flags."""
    if options.task not in (None, "binary"):
        raise ValueError(f"This script tells two classes apart; got --task {options.task}.")
    return _cli.load(options, task="binary")


def fit(options: argparse.Namespace, model: Any, split: Any, steps: int | None) -> Any:
    """Train for the flags, from the newest checkpoint of the run folder if there is one."""
    import gpflow_ext as gpx

    return gpx.fit(
        model,
        steps=steps,
        method=options.method,
        starts=options.starts,
        seed=options.seed,
        jit_compile=options.xla,
        checkpoint_dir=None if options.run_dir is None else options.run_dir / "checkpoints",
        checkpoint_every=1,
    )


def main() -> None:
    """Train from the command line."""
    _cli.train(sys.modules[__name__], "bound")


if __name__ == "__main__":
    _cli.run(main)
