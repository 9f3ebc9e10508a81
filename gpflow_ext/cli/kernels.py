"""The kernels and inducing points that the flags describe."""

from __future__ import annotations

import argparse
import math
from typing import Any

from gpflow_ext.cli.run import import_tensorflow


def configure(options: argparse.Namespace) -> None:
    """Import TensorFlow and GPflow and set the default float type, before anything is built."""
    import_tensorflow()
    from check_shapes.config import DocstringFormat, set_rewrite_docstrings

    set_rewrite_docstrings(DocstringFormat.NONE)  # nobody reads here what it takes a second to write
    import gpflow
    import numpy as np

    if options.float32:
        gpflow.config.set_default_float(np.float32)


def add_prior(group: Any) -> None:
    """Add the flag of the structure of a prior to a group of flags."""
    group.add_argument(
        "--prior",
        choices=["dense", "markov", "vecchia", "grid"],
        default="dense",
        help="structure of the prior, for many rows (default: %(default)s)",
    )


def prior(options: argparse.Namespace) -> str | None:
    """Return the name of a structured prior as models take it."""
    return None if options.prior == "dense" else options.prior


def kernel(options: argparse.Namespace, num_inputs: int, usual: float | None = None) -> Any:
    """Return the kernel that the flags describe, its first length scale ``usual`` or √D if they do not say."""
    import gpflow
    import numpy as np

    classes = {
        "rbf": gpflow.kernels.SquaredExponential,
        "matern52": gpflow.kernels.Matern52,
        "matern32": gpflow.kernels.Matern32,
    }
    lengthscale = options.lengthscale or usual or np.sqrt(num_inputs)
    build = classes[options.kernel]
    if getattr(options, "prior", None) == "grid" and num_inputs > 1:
        columns = [build(options.variance, lengthscale, active_dims=[0])]
        columns += [build(1.0, lengthscale, active_dims=[d]) for d in range(1, num_inputs)]
        for column in columns[1:]:
            gpflow.set_trainable(column.variance, False)
        new = gpflow.kernels.Product(columns)
    else:
        new = build(
            variance=options.variance,
            lengthscales=np.full(num_inputs, lengthscale) if options.ard else lengthscale,
        )
    if options.fixed:
        gpflow.set_trainable(new, False)
    return new


def noisy_kernel(options: argparse.Namespace, num_inputs: int) -> Any:
    """Return the kernel that the flags describe plus white noise, if they ask for some."""
    return with_noise(options, kernel(options, num_inputs))


def with_noise(options: argparse.Namespace, smooth: Any) -> Any:
    """Return a kernel plus white noise, if the flags ask for some."""
    import gpflow

    if not 0.0 <= options.noise < math.inf:
        raise ValueError(f"--noise must be a finite number of at least 0; got {options.noise}.")
    return smooth + gpflow.kernels.White(options.noise) if options.noise > 0.0 else smooth


def check_inducing(number: int | None, rows: int, flag: str) -> None:
    """Raise ``ValueError`` for more inducing points than training rows, or zero, if a number is given."""
    if number is not None and not 1 <= number <= rows:
        raise ValueError(f"{flag} must be from 1 to {rows}, the number of training rows; got {number}.")


def number_of_points(given: int | None, usual: int, most: int) -> int:
    """Return how many inducing points there are to be: as given, else the usual number and at most ``most``."""
    return max(1, min(usual, most)) if given is None else given


def some_rows(number: int, X: Any, seed: int) -> Any:
    """Return training rows [M, D] drawn at random, none of them twice: fewer where there are not as many."""
    import gpflow_ext as gpx

    drawn = gpx.inducing.subset(X, number, seed=seed)
    if len(gpx.inducing.distinct(drawn)) == number:
        return drawn
    rows = gpx.inducing.distinct(X)  # of all rows it takes a second for a million
    return gpx.inducing.subset(rows, min(number, len(rows)), seed=seed)


def centres(number: int, X: Any, seed: int) -> Any:
    """Return centres of k-means [M, D], or all distinct rows where these are no more."""
    import gpflow_ext as gpx

    return gpx.inducing.kmeans(X, len(some_rows(number, X, seed)), seed=seed)
