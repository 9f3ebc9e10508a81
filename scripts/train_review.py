"""Train a Gaussian process by one of the methods of Izmailov's review (2016)."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import _cli

EPILOG = """\
examples
  python scripts/train_review.py --method laplace                           scikit-learn's breast_cancer
  python scripts/train_review.py --method vi-means --inducing 50            scikit-learn's diabetes
  python scripts/train_review.py --method svi-natural --data kin40k --inducing 200 --minibatch-size 500 --steps 5000
  python scripts/train_review.py --method jaakkola --data patients.csv --target ill --run-dir runs/p --export saved_models/p

methods
  laplace, jaakkola, taylor    two classes; dense at O(N^3), or with --inducing M at O(N M^2)
  vi-means, vi-means-newton    regression by the collapsed bound, by L-BFGS-B or by projected Newton
  svi-natural, svi-lbfgsb, svi-fg, svi-sag    regression or two classes, q(u) explicit: natural gradients on minibatches,
                               L-BFGS-B, gradient descent, the stochastic average gradient
  svi-classification           two classes by AdaDelta on minibatches

Inducing points are centres of k-means and stay. The objective is a lower bound of the log evidence, but for laplace and
taylor, which approximate it, and with minibatches, which estimate it.
"""
QUADRATIC = ("laplace", "jaakkola", "taylor")
COLLAPSED = ("vi-means", "vi-means-newton")
STOCHASTIC = ("svi-natural", "svi-sag", "svi-classification")
METHODS = (*QUADRATIC, *COLLAPSED, "svi-natural", "svi-lbfgsb", "svi-fg", "svi-sag", "svi-classification")


def arguments() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    new = _cli.parser(__doc__ or "", EPILOG)
    new.set_defaults(data=None)
    model = new.add_argument_group("model")
    model.add_argument("--method", choices=METHODS, required=True, help="see below")
    model.add_argument(
        "--inducing",
        type=int,
        metavar="M",
        help="inducing points (default: none for laplace, jaakkola and taylor, else 100 or half the training rows)",
    )
    model.add_argument(
        "--noise",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="starting noise of a regression, as a share of the targets' variance (default: %(default)s)",
    )
    model.add_argument(
        "--minibatch-size",
        type=int,
        metavar="B",
        help="rows in a step of svi-natural, svi-sag and svi-classification (default: the recipe's)",
    )
    return new


def load(options: argparse.Namespace) -> Any:
    """Return the data for the flags."""
    if options.data is None:
        options.data = "diabetes" if options.method in COLLAPSED else "breast_cancer"
    split = _cli.load(options)
    tasks = {"binary"} if options.method in (*QUADRATIC, "svi-classification") else {"binary", "regression"}
    tasks = {"regression"} if options.method in COLLAPSED else tasks
    if split.task not in tasks:
        raise ValueError(
            f"The target of {split.name} is read as {split.task}; --method {options.method} is for "
            f"{' or '.join(sorted(tasks))}: choose another --method or --target."
        )
    if options.minibatch_size is not None and options.method not in STOCHASTIC:
        raise ValueError(f"--minibatch-size is for {', '.join(STOCHASTIC)}; {options.method} takes all data.")
    return split


def build(options: argparse.Namespace, split: Any) -> Any:
    """Return the untrained model for the flags and the data."""
    import gpflow

    import gpflow_ext as gpx

    X, Y = split.train
    Z = inducing_points(options, X)
    kernel = _cli.build_kernel(options, X.shape[1])
    if options.method in QUADRATIC:
        classes = {
            "laplace": gpx.models.GPLaplace,
            "taylor": gpx.models.GPTaylor,
            "jaakkola": gpx.models.GPJaakkola,
        }
        likelihood = gpx.likelihoods.BernoulliLogit("jaakkola" if options.method == "jaakkola" else None)
        model = classes[options.method](split.train, kernel, likelihood, inducing_variable=Z)
    elif split.task == "binary":
        model = gpflow.models.SVGP(kernel, gpx.likelihoods.BernoulliLogit(), Z, num_data=len(X))
    else:
        model = regression(options, kernel, (X, Y), Z)
    if Z is not None:
        gpflow.set_trainable(model.inducing_variable, False)
    return model


def inducing_points(options: argparse.Namespace, X: Any) -> Any:
    """Return the centres of k-means, or nothing for a dense model."""
    import gpflow_ext as gpx

    if options.inducing is None and options.method in QUADRATIC:
        return None
    number = min(100, max(1, len(X) // 2)) if options.inducing is None else options.inducing
    if not 1 <= number <= len(X):
        raise ValueError(f"--inducing must be from 1 to {len(X)}, the training rows; got {number}.")
    return gpx.inducing.kmeans(X, number, seed=options.seed)


def regression(options: argparse.Namespace, kernel: Any, data: Any, Z: Any) -> Any:
    """Return a model of real targets in their own units.

    The variances start as shares of the targets' variance and are learnt by their logarithms, so that neither
    the start nor the steps depend on the units.
    """
    import gpflow

    X, Y = data
    scale = float(Y.var())
    if not options.noise > 0.0 or not scale > 0.0:
        raise ValueError(
            f"--noise and the variance of the targets must be positive; got {options.noise}, {scale}."
        )
    logarithm = gpflow.utilities.positive(base="exp")
    kernel.variance = gpflow.Parameter(
        scale * options.variance, transform=logarithm, trainable=not options.fixed
    )
    likelihood = gpflow.likelihoods.Gaussian(options.noise * scale)
    likelihood.variance = gpflow.Parameter(
        options.noise * scale, transform=logarithm, trainable=not options.fixed
    )
    mean = gpflow.functions.Constant(Y.mean(axis=0))
    gpflow.set_trainable(mean, False)
    if options.method not in COLLAPSED:
        return gpflow.models.SVGP(kernel, likelihood, Z, mean_function=mean, num_data=len(X))
    return gpflow.models.SGPR(data, kernel, Z, mean_function=mean, likelihood=likelihood)


def fit(options: argparse.Namespace, model: Any, split: Any, steps: int | None) -> Any:
    """Train for the flags, from the newest checkpoint of the run folder if there is one."""
    import gpflow_ext as gpx

    chosen: dict[str, Any] = {}
    if options.method in COLLAPSED:
        newton = options.method == "vi-means-newton"
        chosen = {"recipe": "vi_means", "optimizer": "projected_newton" if newton else "lbfgs"}
    elif options.method not in QUADRATIC:
        chosen = {"recipe": options.method.replace("-", "_"), "data": split.train}
    if options.minibatch_size is not None:
        chosen["minibatch_size"] = options.minibatch_size
    return gpx.fit(
        model,
        steps=steps,
        seed=options.seed,
        jit_compile=options.xla,
        checkpoint_dir=None if options.run_dir is None else options.run_dir / "checkpoints",
        checkpoint_every=100 if options.method in (*STOCHASTIC, "svi-fg") else 1,
        **chosen,
    )


def main() -> None:
    """Train from the command line."""
    _cli.train(sys.modules[__name__], "objective")


if __name__ == "__main__":
    _cli.run(main)
