"""What all training scripts share: the flags, the data, the report, the run folder."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

RUN_FILE = "run.json"
_CLASSES = 20  # whole numbers that a classifier takes for classes, at most


def parser(description: str, epilog: str, *, several_targets: bool = False) -> argparse.ArgumentParser:
    """Return a parser with the flags of every training script."""
    new = argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = new.add_argument_group("data")
    data.add_argument(
        "--data",
        default="breast_cancer",
        metavar="NAME|FILE.csv",
        help="a named data set or a CSV file with a header line (default: %(default)s)",
    )
    if several_targets:
        data.add_argument("--target", nargs="+", metavar="COL", help="target columns of a CSV file")
        data.add_argument(
            "--scale-targets",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="standardise the targets on the training rows (default: yes)",
        )
    else:
        data.add_argument(
            "--target", metavar="COL", help="target column of a CSV file (default: the column y)"
        )
        data.add_argument(
            "--task",
            choices=["binary", "multiclass", "ordinal", "count", "regression"],
            help="what the target is (default: as it looks; whole numbers are counts only if you say so)",
        )
    data.add_argument("--drop", nargs="+", default=[], metavar="COL", help="columns to leave out")
    data.add_argument(
        "--missing",
        choices=["error", "drop", "mean", *(["keep"] if several_targets else [])],
        default="error",
        help="what to do with missing values"
        + ("; keep those of the targets" if several_targets else "")
        + " (default: %(default)s)",
    )
    data.add_argument(
        "--split",
        choices=["random", "published"],
        help="how to choose the test rows (default: as the set comes, else random)",
    )
    data.add_argument(
        "--test-fraction",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="share of the rows to test on (default: %(default)s)",
    )
    data.add_argument("--seed", type=int, default=0, help="of split and training (default: %(default)s)")
    scaling = data.add_mutually_exclusive_group()
    scaling.add_argument("--raw", action="store_true", help="do not standardise the inputs")
    scaling.add_argument(
        "--common-scale",
        action="store_true",
        help="one shift and scale for all inputs, as for the pixels of an image (default: one for each)",
    )
    kernel = new.add_argument_group("kernel")
    kernel.add_argument(
        "--kernel",
        choices=["rbf", "matern52", "matern32"],
        default="rbf",
        help="covariance function (default: %(default)s)",
    )
    kernel.add_argument(
        "--lengthscale",
        type=float,
        metavar="L",
        help="starting length scale (default: the square root of the number of inputs)",
    )
    kernel.add_argument(
        "--variance", type=float, default=1.0, metavar="V", help="starting variance (default: %(default)s)"
    )
    kernel.add_argument("--ard", action="store_true", help="one length scale per input")
    kernel.add_argument(
        "--fixed", action="store_true", help="keep the hyperparameters at their starting values"
    )
    run = new.add_argument_group("run")
    run.add_argument("--steps", type=int, metavar="N", help="number of steps at most (default: the recipe's)")
    run.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="folder for checkpoints; the same command resumes there"
    )
    run.add_argument(
        "--export", type=Path, metavar="DIR", help="write a SavedModel to DIR/<version>/ when done"
    )
    run.add_argument("--float32", action="store_true", help="compute in single precision")
    run.add_argument(
        "--xla",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="compile with XLA (default: on GPU and TPU)",
    )
    return new


def configure(arguments: argparse.Namespace) -> None:
    """Set the default float type, before anything is built."""
    import gpflow
    import numpy as np

    if arguments.float32:
        gpflow.config.set_default_float(np.float32)


def load(arguments: argparse.Namespace, task: str | None = None, classifies: bool = False) -> Any:
    """Load the data that the flags name; the task is kept among them, so that they name the same again.

    A script that ``classifies`` takes a few whole numbers for classes where no flag says otherwise.
    """
    given = getattr(arguments, "task", None)
    split = _read(arguments, given or task)
    if classifies and given is None and _are_few_whole(split):
        split = _read(arguments, "multiclass")
        note = "its few whole numbers were taken for classes; --task says what the target is"
        split, task = dataclasses.replace(split, notes=(*split.notes, note)), "multiclass"
    arguments.task = given or task
    if "scale_targets" not in arguments:
        return split
    split = _without_missing_tests(split)
    return _scale_targets(split) if arguments.scale_targets else split


def _are_few_whole(split: Any) -> bool:
    """Tell whether targets that were read as numbers look like those of classes."""
    import numpy as np

    Y = np.concatenate([split.train[1], split.test[1]])
    few = Y.shape[1] == 1 and (np.round(Y) == Y).all() and len(np.unique(Y)) <= _CLASSES
    return bool(split.task == "regression" and few)


def _read(arguments: argparse.Namespace, task: str | None) -> Any:
    from gpflow_ext import datasets

    return datasets.load(
        arguments.data,
        target=arguments.target,
        task=task,
        drop=arguments.drop,
        missing=arguments.missing,
        split=arguments.split,
        test_fraction=arguments.test_fraction,
        seed=arguments.seed,
        standardise="common" if arguments.common_scale else not arguments.raw,
    )


def _without_missing_tests(split: Any) -> Any:
    """Return the data without the test rows that cannot be scored."""
    import numpy as np

    X, Y = split.test
    whole = ~np.isnan(Y).any(axis=1)
    if whole.all():
        return split
    note = f"{np.sum(~whole)} test rows with missing targets are left out of the scores"
    return dataclasses.replace(split, test=(X[whole], Y[whole]), notes=(*split.notes, note))


def _scale_targets(split: Any) -> Any:
    """Return the data with targets of mean 0 and deviation 1 in the training rows."""
    import numpy as np

    (X, Y), (X_test, Y_test) = split.train, split.test
    if np.isnan(Y).all(axis=0).any():
        raise ValueError("A target has no value in the training rows: leave it out of --target.")
    middle, scale = np.nanmean(Y, axis=0), np.nanstd(Y, axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    Y, Y_test = (((part - middle) / scale).astype(part.dtype) for part in (Y, Y_test))
    shown = "; ".join(f"{a:.4g} and {b:.4g}" for a, b in zip(middle[:20], scale[:20], strict=True))
    note = f"targets were standardised: mean and deviation {shown}{' …' if len(middle) > 20 else ''}"
    return dataclasses.replace(split, train=(X, Y), test=(X_test, Y_test), notes=(*split.notes, note))


def build_kernel(arguments: argparse.Namespace, num_inputs: int) -> Any:
    """Return the kernel that the flags describe."""
    import gpflow
    import numpy as np

    classes = {
        "rbf": gpflow.kernels.SquaredExponential,
        "matern52": gpflow.kernels.Matern52,
        "matern32": gpflow.kernels.Matern32,
    }
    lengthscale = np.sqrt(num_inputs) if arguments.lengthscale is None else arguments.lengthscale
    kernel = classes[arguments.kernel](
        variance=arguments.variance,
        lengthscales=np.full(num_inputs, lengthscale) if arguments.ard else lengthscale,
    )
    if arguments.fixed:
        gpflow.set_trainable(kernel, False)
    return kernel


def add_noise(group: Any) -> None:
    """Add the flag of the white noise to a group."""
    group.add_argument(
        "--noise",
        type=float,
        default=1e-3,
        metavar="V",
        help="starting variance of the white noise in the kernel, 0 for none (default: %(default)s)",
    )


def build_noisy_kernel(arguments: argparse.Namespace, num_inputs: int) -> Any:
    """Return the kernel that the flags describe plus white noise, if they ask for some."""
    import gpflow

    if arguments.noise < 0.0:
        raise ValueError(f"--noise must not be negative; got {arguments.noise}.")
    kernel = build_kernel(arguments, num_inputs)
    return kernel + gpflow.kernels.White(arguments.noise) if arguments.noise > 0.0 else kernel


def inducing_points(number: int, X: Any, seed: int, flag: str) -> Any:
    """Return training rows drawn at random; the flag is named where there are not that many."""
    from gpflow_ext import inducing

    if not 1 <= number <= len(X):
        raise ValueError(f"{flag} must be from 1 to {len(X)}, the number of training rows; got {number}.")
    return inducing.subset(X, number, seed=seed)


def describe(split: Any) -> None:
    """Print what was loaded and every treatment of it."""
    (X, _), (X_test, _) = split
    print(f"{split.name}: {len(X)} training and {len(X_test)} test rows, {X.shape[1]} inputs, {split.task}")
    print(f"  source: {split.source}")
    for note in split.notes:
        print(f"  note: {note}")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    drawn = Table(*columns, title=title, title_justify="left")
    for row in rows:
        drawn.add_row(*row)
    Console().print(drawn)


def report(result: Any, metrics: Mapping[str, float], objective: str) -> None:
    """Print the objective after each step and the scores on the test rows."""
    shown = sorted(
        {
            *range(min(10, len(result.objective))),
            *range(0, len(result.objective), 10),
            len(result.objective) - 1,
        }
    )
    rows = [
        (str(result.first_step + i + 1), f"{result.objective[i]:.4f}", f"{result.times[i]:.2f}")
        for i in shown
        if i >= 0
    ]
    table("training", ("step", objective, "seconds"), rows)
    print(result)
    if metrics:
        table("test rows", ("score", "value"), [(name, f"{value:.4f}") for name, value in metrics.items()])


def save_arguments(arguments: argparse.Namespace, script: str) -> None:
    """Write the command beside its checkpoints, so that its data can be loaded again."""
    arguments.run_dir.mkdir(parents=True, exist_ok=True)
    plain = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    target = arguments.run_dir / RUN_FILE
    partial = target.with_suffix(".tmp")
    partial.write_text(json.dumps({"script": script, "arguments": plain}, indent=2) + "\n", encoding="utf-8")
    partial.replace(target)


def saved_arguments(run_dir: Path) -> argparse.Namespace:
    """Return the flags of a run, as its folder holds them."""
    saved = run_dir / RUN_FILE
    if not saved.is_file():
        raise ValueError(f"{run_dir} holds no {RUN_FILE}: name the --run-dir of a training script.")
    try:
        arguments = json.loads(saved.read_text(encoding="utf-8"))["arguments"]
        return argparse.Namespace(**{**arguments, "task": arguments["task"]})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{saved} does not hold the flags of a run ({error!r}): run its training script once more."
        ) from error


def train(script: Any, objective: str) -> None:
    """Do what a training script does: load, build, train, evaluate, checkpoint, export.

    Parameters
    ----------
    script
        The module, with ``arguments``, ``load``, ``build`` and ``fit``.
    objective
        What its model maximises.
    """
    options = script.arguments().parse_args()
    configure(options)
    import gpflow_ext as gpx

    split = script.load(options)
    describe(split)
    model = script.build(options, split)
    if options.run_dir is not None:
        save_arguments(options, Path(script.__file__).stem)
    result = script.fit(options, model, split, options.steps)
    metrics = gpx.metrics.evaluate(model, split.test) if len(split.test[0]) else {}
    report(result, metrics, objective)
    if options.export is not None:
        print(f"exported to {gpx.export(model, options.export, data=split, metrics=metrics)}")


def run(main: Callable[[], None]) -> None:
    """Call ``main``; print a wrong input, or an interruption, as one message instead of a traceback."""
    try:
        main()
    except KeyboardInterrupt as error:
        _fail(str(error) or "Interrupted.", 130)
    except (ValueError, OSError, ImportError, NotImplementedError) as error:
        if os.environ.get("GPFLOW_EXT_TRACEBACK"):
            raise
        _fail(f"error: {error}\n(set GPFLOW_EXT_TRACEBACK=1 to see where)", 2)


def _fail(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(code)
