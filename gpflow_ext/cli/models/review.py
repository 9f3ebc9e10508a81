"""Train a Gaussian process by one of the methods of Izmailov's review (2016)."""

from __future__ import annotations

import argparse
import math
from typing import Any

from gpflow_ext.cli import flags, kernels, likelihoods, tables

EPILOG = """\
examples
  {command} --method laplace                           scikit-learn's breast_cancer
  {command} --method vi-means --inducing 50            scikit-learn's diabetes
  {command} --method svi-natural --data kin40k --inducing 200 --minibatch-size 500 --steps 5000
  {command} --method jaakkola --data patients.csv --target ill --run-dir runs/p --export saved_models/p

methods
  laplace, taylor              classes, levels or counts; dense at O(N^3), or with --inducing M at O(N M^2), or
                               with a --prior that suits the inputs
  jaakkola                     the same, except for counts
  exact                        regression at O(N^3) by L-BFGS
  vi-means, vi-means-newton    regression by the collapsed bound, by L-BFGS-B or by projected Newton
  svi-natural, svi-lbfgsb, svi-fg, svi-sag    regression or two classes, q(u) explicit: natural gradients on minibatches,
                               L-BFGS-B, gradient descent, the stochastic average gradient
  svi-classification           two classes by AdaDelta on minibatches
  student-t                    regression that outliers do not move: Student's t of 4 degrees of freedom in place of Gaussian
                               noise, by natural gradients and L-BFGS (not of the review)

Inducing points are centres of k-means and stay. The objective is a lower bound of the log evidence, except for exact, which is
the log evidence, for laplace and taylor, which approximate it, and with minibatches, which estimate it.
"""
DATA = None  # by the method
OBJECTIVE = "objective"
QUADRATIC = ("laplace", "jaakkola", "taylor")
COLLAPSED = ("vi-means", "vi-means-newton")
EXACT = ("exact", *COLLAPSED)
STOCHASTIC = ("svi-natural", "svi-sag", "svi-classification", "student-t")
METHODS = (
    *QUADRATIC, *EXACT, "svi-natural", "svi-lbfgsb", "svi-fg", "svi-sag", "svi-classification", "student-t"
)  # fmt: skip
TASKS = ("binary", "multiclass", "ordinal", "counts", "regression")
POINTS = 100
_LEAST_NOISE = 1e-6, 1e-5  # in double and single precision, a share of the targets' variance
_LEVELS = ("binary", "multiclass", "ordinal")


def tasks(method: str) -> tuple[str, ...]:
    """Return the tasks of a method."""
    if method == "jaakkola":
        return _LEVELS
    if method in QUADRATIC:
        return (*_LEVELS, "counts")
    if method in (*EXACT, "student-t"):
        return ("regression",)
    return ("binary",) if method == "svi-classification" else ("binary", "regression")


def add_flags(new: argparse.ArgumentParser) -> None:
    """Add the flags of these models."""
    model = new.add_argument_group("model")
    model.add_argument("--method", choices=METHODS, required=True, help="see below")
    model.add_argument(
        "--inducing",
        type=int,
        metavar="M",
        help=f"inducing points (default: none for laplace, jaakkola, taylor and exact, else {POINTS} or half the "
        "training rows)",
    )
    kernels.add_prior(model)
    model.add_argument(
        "--noise",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="starting noise of a regression, as a share of the targets' variance (default: %(default)s)",
    )
    model.add_argument(
        "--minibatch-size",
        type=flags.positive,
        metavar="B",
        help=f"rows in a step of {', '.join(STOCHASTIC)} (default: the recipe's)",
    )


def load(options: argparse.Namespace) -> Any:
    """Return the data for the flags."""
    if options.data is None:
        options.data = "diabetes" if tasks(options.method) == ("regression",) else "breast_cancer"
    return tables.load(options, classifies=options.method in QUADRATIC)


def check(options: argparse.Namespace, split: Any) -> None:
    """Raise ``ValueError`` for flags that do not go with the data or with each other."""
    method = options.method
    if flags.task(split.task) not in tasks(method):
        raise ValueError(
            f"The target of {split.name} is read as {flags.task(split.task)}; --method {method} is for "
            f"{' or '.join(tasks(method))}: choose another --method or --target."
        )
    if options.minibatch_size is not None and method not in STOCHASTIC:
        raise ValueError(f"--minibatch-size is for {', '.join(STOCHASTIC)}; {method} takes all data.")
    if options.prior != "dense" and (method not in QUADRATIC or options.inducing is not None):
        raise ValueError(f"--prior is for {', '.join(QUADRATIC)}, without --inducing.")
    if options.weights is not None and method == "vi-means-newton":
        raise ValueError("--method vi-means-newton takes no weights of rows; vi-means does.")
    if options.inducing is not None and method == "exact":
        raise ValueError("--inducing is for the other methods; exact has no inducing points.")
    kernels.check_inducing(options.inducing, len(split.train[0]), "--inducing")
    if options.fixed and method in EXACT and options.weights is None:
        raise ValueError(
            "--fixed leaves nothing to train: this model has hyperparameters alone. Take it out."
        )
    if split.task == "regression" and not 0.0 < options.noise < math.inf:
        raise ValueError(f"--noise must be positive; got {options.noise}.")


def build(options: argparse.Namespace, split: Any) -> Any:
    """Return the untrained model for the flags and the data."""
    import gpflow

    import gpflow_ext as gpx

    X, _ = split.train
    Z = _inducing(options, X)
    kernel = kernels.kernel(options, X.shape[1])
    if options.method in QUADRATIC:
        classes = {
            "laplace": gpx.models.GPLaplace,
            "taylor": gpx.models.GPTaylor,
            "jaakkola": gpx.models.GPJaakkola,
        }
        bound = "jaakkola" if options.method == "jaakkola" else None
        likelihood = likelihoods.smooth(split, bound=bound)
        mean = likelihoods.mean_of_counts(split)
        model = classes[options.method](
            split.train, kernel, likelihood, mean, inducing_variable=Z, prior=kernels.prior(options)
        )
    elif split.task == "binary":
        likelihood = likelihoods.weighted(split, gpx.likelihoods.BernoulliLogit())
        model = gpflow.models.SVGP(kernel, likelihood, Z, num_data=len(X))
    else:
        model = _regression(options, kernel, split, Z)
    if Z is not None:
        gpflow.set_trainable(model.inducing_variable, False)
    return model


def _inducing(options: argparse.Namespace, X: Any) -> Any:
    """Return the centres of k-means, or nothing for a dense model."""
    if options.inducing is None and options.method in (*QUADRATIC, "exact"):
        return None
    number = kernels.number_of_points(options.inducing, POINTS, len(X) // 2)
    return kernels.centres(number, X, options.seed)


def _regression(options: argparse.Namespace, kernel: Any, split: Any, Z: Any) -> Any:
    """Return a model of real targets in their own units."""
    import gpflow

    from gpflow_ext.likelihoods import StudentT
    from gpflow_ext.svgp.points import ScaledInducingPoints

    if options.method in EXACT and split.weights is not None:
        return _by_sites(options, kernel, split, Z)
    Z = None if Z is None else ScaledInducingPoints(Z)
    spread = likelihoods.variance_of_targets(split)
    noise = options.noise * spread
    mean = likelihoods.in_units_of_targets(kernel, split, options.variance)
    logarithm = gpflow.utilities.positive(base="exp")
    above = gpflow.utilities.positive(_least_noise(options) * spread, base="exp")
    if options.method == "student-t":
        likelihood: Any = StudentT(df=4.0)
        likelihood.scale = gpflow.Parameter(noise**0.5, transform=logarithm, trainable=not options.fixed)
    else:
        likelihood = gpflow.likelihoods.Gaussian()  # whose own lower bound may be above the noise
        likelihood.variance = gpflow.Parameter(noise, transform=above, trainable=not options.fixed)
    if options.method == "exact":
        return gpflow.models.GPR(split.train, kernel, mean, likelihood=likelihood)
    if options.method in COLLAPSED:
        return gpflow.models.SGPR(split.train, kernel, Z, mean_function=mean, likelihood=likelihood)
    noisy = likelihoods.weighted(split, likelihood)
    return gpflow.models.SVGP(kernel, noisy, Z, mean_function=mean, num_data=len(split.train[0]))


def _least_noise(options: argparse.Namespace) -> float:
    """Return the least noise as a share of the targets' variance, below what training starts from.

    Without noise the covariance is singular, and of predictions that are certain nothing is left but rounding.
    """
    return min(_LEAST_NOISE[options.float32], 0.5 * options.noise)


def _by_sites(options: argparse.Namespace, kernel: Any, split: Any, Z: Any) -> Any:
    """Return a model with the bound of the exact or the collapsed one, which takes weights of rows."""
    import gpflow

    from gpflow_ext.models import VGPKMM

    noise = gpflow.likelihoods.Gaussian(options.noise, variance_lower_bound=_least_noise(options))
    gpflow.set_trainable(noise, not options.fixed)
    return VGPKMM(split.train, kernel, likelihoods.standardised(split, noise), inducing_variable=Z)


def fit_options(options: argparse.Namespace, num_rows: int) -> dict[str, Any]:
    """Return the options of `gpflow_ext.fit`."""
    chosen: dict[str, Any] = {}
    if options.method in COLLAPSED and options.weights is None:
        newton = options.method == "vi-means-newton"
        chosen = {"recipe": "vi_means", "optimizer": "projected_newton" if newton else "lbfgs"}
    elif options.method not in (*QUADRATIC, *EXACT, "student-t"):
        chosen = {"recipe": options.method.replace("-", "_")}
    if options.minibatch_size is not None:
        chosen["minibatch_size"] = min(options.minibatch_size, num_rows)
    return {**chosen, "checkpoint_every": 100 if options.method in (*STOCHASTIC, "svi-fg") else 1}
