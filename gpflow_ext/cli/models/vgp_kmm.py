"""Train VGP-KMM, the variational Gaussian process of Khan, Mohamed & Murphy (2012)."""

from __future__ import annotations

import argparse
from typing import Any

from gpflow_ext.cli import flags, kernels, likelihoods, tables

EPILOG = """\
examples
  {command}                                    a bundled set: scikit-learn's breast_cancer
  {command} --data patients.csv --target ill   your own table
  {command} --data visits.csv --target visits --task counts
  {command} --data ionosphere --split published --raw --fixed --lengthscale 1.65 --variance 7.39
  {command} --data quakes.csv --target day --task events --prior markov --kernel matern52
  {command} --run-dir runs/bc --export saved_models/bc    checkpoint, resume, export

Two classes have a logistic likelihood, more of them stick-breaking, ordered ones cumulative logits, counts a Poisson
with exponential link; --likelihood takes another. The objective is a lower bound of the log evidence; with learnt hyperparameters a step is up to
20 iterations of L-BFGS, with --fixed one iteration of the fixed point (one sweep with --method algorithm1). Cost:
O(N^3) per iteration, O(N M^2) with --num-inducing M, and near to O(N) with --prior: markov is exact for one input, vecchia is for
places in the plane, grid for the cells of a grid, with a kernel for each input, multiplied.
"""
DATA = "breast_cancer"
OBJECTIVE = "bound"
TASKS = ("binary", "multiclass", "ordinal", "counts")
LIKELIHOODS = {"negative-binomial": "counts", "multinomial-logit": "multiclass"}  # and what each is for


def add_flags(new: argparse.ArgumentParser) -> None:
    """Add the flags of this model."""
    model = new.add_argument_group("model")
    model.add_argument(
        "--bound",
        choices=["piecewise", "jaakkola", "none"],
        default="piecewise",
        help="bound of a logistic likelihood; none integrates numerically (default: %(default)s)",
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
        "--num-inducing",
        type=int,
        metavar="M",
        help="inducing points drawn from the training rows (default: none, the dense model)",
    )
    kernels.add_prior(model)
    model.add_argument(
        "--likelihood",
        choices=list(LIKELIHOODS),
        help="negative-binomial, for counts that vary more than Poisson's; multinomial-logit, for classes without an order "
        "(default: by the task)",
    )


def load(options: argparse.Namespace) -> Any:
    """Return the data for the flags."""
    return tables.load(options, classifies=True)


def check(options: argparse.Namespace, split: Any) -> None:
    """Raise ``ValueError`` for flags that do not go with the data."""
    kernels.check_inducing(options.num_inducing, len(split.train[0]), "--num-inducing")
    if options.num_inducing is not None and options.prior != "dense":
        raise ValueError(f"--num-inducing is for the dense prior; --prior {options.prior} needs none.")
    task = LIKELIHOODS.get(options.likelihood, flags.task(split.task))
    if flags.task(split.task) != task:
        raise ValueError(
            f"--likelihood {options.likelihood} is for {task}; the target of {split.name} is read as "
            f"{flags.task(split.task)}: leave it out, or give --task {task}."
        )


def build(options: argparse.Namespace, split: Any) -> Any:
    """Return the untrained model for the flags and the data."""
    import gpflow_ext as gpx

    X, _ = split.train
    inducing = options.num_inducing and kernels.some_rows(options.num_inducing, X, options.seed)
    bound = None if options.bound == "none" else options.bound
    if options.likelihood == "negative-binomial":
        likelihood = likelihoods.overdispersed(split)
    elif options.likelihood == "multinomial-logit":
        unweighted = gpx.likelihoods.MultinomialLogit(len(split.labels), bound and "auto")
        likelihood = likelihoods.weighted(split, unweighted)
    else:
        likelihood = likelihoods.smooth(split, bound, options.num_pieces)
    return gpx.models.VGPKMM(
        split.train,
        kernels.kernel(options, X.shape[1]),
        likelihood,
        likelihoods.mean_of_counts(split),
        inducing_variable=inducing,
        prior=kernels.prior(options),
    )


def fit_options(options: argparse.Namespace, num_rows: int) -> dict[str, Any]:
    """Return the options of `gpflow_ext.fit`."""
    return {"method": options.method, "checkpoint_every": 1}
