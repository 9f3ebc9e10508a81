"""Train SVGPRobustMax, the sparse variational classifier of many classes of Hensman et al. (2015)."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from gpflow_ext.cli import curve, flags, kernels, tables

EPILOG = """\
examples
  {command}                                    scikit-learn's digits, embedded
  {command} --data iris.csv --target species   your own table
  {command} --data vehicle --ard --early-stopping 0.1
  {command} --data mnist --raw --float32 --scattering 200 --variance 10 --inducing 500 --steps 300 --minibatch-size 500 --gamma 0.03
  {command} --data mnist --common-scale --ard --float32 --inducing 500 \\
      --minibatch-size 1000 --hold 30 --steps 20000 --test-every 500 --run-dir runs/mnist

The objective is a lower bound of the log evidence. A step takes one minibatch: a natural-gradient step of length gamma
for the posterior at the inducing points, and a step of Adam for the kernel and the inducing points; with --optimizer
adam or adadelta these move everything. Step lengths fall along a cosine to a twentieth at the last step. A run to be
prolonged later needs --schedule root: as 1/sqrt(1 + t/50) at step t, whatever the number of steps. Cost of a step:
O(K M^2 B) for K classes, M inducing points and B rows.
"""
DATA = "digits"
OBJECTIVE = "bound"
NO_WEIGHTS = "svgp-robustmax takes no weights of rows"
TASKS = ("binary", "multiclass", "ordinal")
POINTS = 200


def add_flags(new: argparse.ArgumentParser) -> None:
    """Add the flags of this model."""
    new.set_defaults(steps=1000)
    model = new.add_argument_group("model")
    model.add_argument(
        "--inducing",
        type=flags.positive,
        metavar="M",
        help=f"inducing points, centres of k-means (default: {POINTS}, or half the training rows)",
    )
    model.add_argument(
        "--epsilon", type=float, default=1e-3, help="share of wrong labels at first (default: %(default)s)"
    )
    model.add_argument(
        "--learn-epsilon",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="learn it, under a Beta prior (default: yes)",
    )
    model.add_argument(
        "--scattering",
        type=flags.positive,
        metavar="DIMS",
        help="a kernel on so many scattering features of square grey images, their background 0: needs --raw; the "
        "posterior starts from the labels",
    )
    flags.add_noise(model)
    _add_training(new.add_argument_group("training"))


def _add_training(training: Any) -> None:
    training.add_argument(
        "--minibatch-size",
        type=flags.positive,
        default=200,
        metavar="B",
        help="rows in a step (default: %(default)s)",
    )
    training.add_argument(
        "--optimizer",
        choices=["natural", "adam", "adadelta"],
        default="natural",
        help="of the posterior at the inducing points; all else is moved by adam, or by adadelta "
        "(default: %(default)s)",
    )
    training.add_argument(
        "--gamma", type=float, default=0.1, help="length of natural-gradient steps (default: %(default)s)"
    )
    training.add_argument(
        "--rate",
        type=flags.above_zero,
        metavar="R",
        help="learning rate (default: 0.01 for adam, 0.1 for adadelta)",
    )
    training.add_argument(
        "--schedule",
        choices=["cosine", "root", "constant"],
        default="cosine",
        help="how step lengths fall (default: %(default)s)",
    )
    training.add_argument(
        "--hold",
        type=int,
        default=0,
        metavar="N",
        help="steps before the kernel and the inducing points move (default: 0)",
    )
    training.add_argument(
        "--early-stopping",
        type=float,
        metavar="SHARE",
        help="hold out this share of the training rows, stop when their NLPD stops falling, and return to the best",
    )
    training.add_argument(
        "--tensorboard", type=Path, metavar="DIR", help="write the objective, scores and parameters there"
    )
    training.add_argument(
        "--test-every",
        type=flags.positive,
        metavar="N",
        help=f"score the test rows after every N steps, into {curve.TEST_FILE} of the run folder",
    )


def load(options: argparse.Namespace) -> Any:
    """Return the data for the flags."""
    return tables.load(options, classifies=True)


def check(options: argparse.Namespace, split: Any) -> None:
    """Raise ``ValueError`` for flags that do not go with the data or with each other."""
    if options.test_every is not None and options.run_dir is None:
        raise ValueError("--test-every writes into the run folder: give --run-dir.")
    if options.scattering is not None:
        inputs = split.train[0].shape[1]
        if math.isqrt(inputs) ** 2 != inputs:
            raise ValueError(f"--scattering is for the pixels of square images; there are {inputs} inputs.")
        if not options.raw:
            raise ValueError("--scattering is for pixels as they are: give --raw.")
    held_out = _held_out(options, len(split.train[0]))
    kernels.check_inducing(options.inducing, len(split.train[0]) - held_out, "--inducing")


def build(options: argparse.Namespace, split: Any) -> Any:
    """Return the untrained model for the flags and the data."""
    import gpflow

    import gpflow_ext as gpx

    (X, _), _ = hold_out(options, split.train)
    kernel, points = _parts(options, X, kernels.number_of_points(options.inducing, POINTS, len(X) // 2))
    model = gpx.models.SVGPRobustMax(
        kernel,
        len(split.labels),
        points,
        num_data=len(X),
        epsilon=options.epsilon,
        learn_epsilon=options.learn_epsilon,
    )
    if options.fixed:
        gpflow.set_trainable(model.kernel, False)
    return model


def _parts(options: argparse.Namespace, X: Any, number: int) -> tuple[Any, Any]:
    """Return the kernel, and so many inducing points or features for training inputs [N, D]."""
    import gpflow_ext as gpx

    if options.scattering is None:
        return kernels.noisy_kernel(options, X.shape[1]), kernels.centres(number, X, options.seed)
    side = math.isqrt(X.shape[1])
    features = gpx.features.Scattering((side, side), dims=options.scattering).fit(X, seed=options.seed)
    smooth = kernels.kernel(options, options.scattering, usual=1.5)
    some = features(kernels.some_rows(number, X, options.seed))
    return kernels.with_noise(options, gpx.kernels.Feature(smooth, features)), gpx.InducingFeatures(some)


def _held_out(options: argparse.Namespace, rows: int) -> int:
    """Return how many training rows early stopping holds out."""
    share = options.early_stopping
    number = 0 if share is None else round(share * rows)
    if share is not None and not (0.0 < share < 1.0 and 0 < number < rows):
        raise ValueError(f"--early-stopping must leave rows on both sides; got {share} of {rows} rows.")
    return number


def hold_out(options: argparse.Namespace, train: Any) -> tuple[Any, Any]:
    """Return the rows to train on, and those for early stopping if there are any."""
    number = _held_out(options, len(train[0]))
    if not number:
        return train, None
    import numpy as np

    rows = np.random.default_rng(options.seed).permutation(len(train[0]))
    return tuple(part[rows[number:]] for part in train), tuple(part[rows[:number]] for part in train)


def fit_options(options: argparse.Namespace, num_rows: int) -> dict[str, Any]:
    """Return the options of `gpflow_ext.fit`."""
    decay_steps = options.steps if options.schedule == "cosine" else None
    moving: dict[str, Any] = {"rate": options.rate or 0.01}  # of the recipe's own Adam
    if options.optimizer == "adadelta":
        moving = {"optimizer": _adadelta(options.rate or 0.1, options.schedule, decay_steps)}
    return {
        "minibatch_size": min(options.minibatch_size, num_rows),
        "gamma": options.gamma if options.optimizer == "natural" else None,
        **moving,
        "schedule": options.schedule,
        "decay_steps": decay_steps,
        "hold": options.hold,
        "start": None if options.scattering is None else "labels",
        "checkpoint_every": 100,
    }


def fit(options: argparse.Namespace, model: Any, split: Any, steps: int | None, **shared: Any) -> Any:
    """Train for the flags, from the newest checkpoint of the run folder if there is one."""
    import gpflow_ext as gpx

    train, held_out = hold_out(options, split.train)
    monitor = curve.monitor(options, model, train, split.test)
    chosen = fit_options(options, len(train[0])) | flags.starts(options)
    return gpx.fit(model, train, steps=steps, validation=held_out, monitor=monitor, **chosen, **shared)


def _adadelta(rate: float, schedule: str, decay_steps: int | None) -> Any:
    """Return the optimiser of the authors' GPflow script, with its constants."""
    from gpflow.keras import tf_keras

    from gpflow_ext.training.schedules import Schedule, ScheduleOptions

    falling = ScheduleOptions(schedule, decay_steps).falling(Schedule())
    return tf_keras.optimizers.Adadelta(falling.rate(rate), rho=0.9, epsilon=1e-4)
