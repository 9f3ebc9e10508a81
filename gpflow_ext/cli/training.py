"""A training from its flags: the parser, the data, the model, its scores, and what is written."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpflow_ext.cli import flags, kernels, kinds, report, runs, tables
from gpflow_ext.cli.run import run


def parser(
    module: Any, command: str, prog: str | None = None, tasks: Sequence[str] | None = None
) -> flags.Parser:
    """Return the parser of a model's training for some tasks, by default all of the module.

    The data must be named where ``prog`` is given.
    """
    tasks = tasks or module.TASKS
    text = (module.__doc__ or "").strip()
    new = flags.parser(text, module.EPILOG.format(command=command), prog)
    flags.add_data(new, module.DATA, required=prog is not None, tasks=tasks)
    flags.add_kernel(new)
    flags.add_run(new)
    module.add_flags(new)
    return new


def load(module: Any, options: argparse.Namespace) -> Any:
    """Return the data for the flags, which go with them."""
    split = module.load(options)
    check(module, options, split)
    return split


def check(module: Any, options: argparse.Namespace, split: Any) -> None:
    """Raise ``ValueError`` for flags or a model that do not go with the data."""
    tasks = module.TASKS
    if "several" in tasks:
        tasks = ("regression", "counts")
    if flags.task(split.task) not in tasks:
        raise ValueError(
            f"The target of {split.name} is read as {flags.task(split.task)}; this model is for "
            f"{', '.join(tasks)}: choose another --target or --task."
        )
    if options.weights is not None and hasattr(module, "NO_WEIGHTS"):
        others = kinds.fitting(split.task, 2 if "several" in module.TASKS else 1, weighted=True)
        fix = f"{', '.join(others)} do" if others else "repeat the rows"
        raise ValueError(f"--weights: {module.NO_WEIGHTS}; {fix}.")
    if options.fixed and (options.starts or 1) > 1:
        raise ValueError(
            "--starts varies the hyperparameters, which --fixed keeps: leave one of the two out."
        )
    module.check(options, split)


def fit(module: Any, options: argparse.Namespace, model: Any, split: Any, steps: int | None) -> Any:
    """Train for the flags, from the newest checkpoint of the run folder if there is one."""
    import gpflow

    import gpflow_ext as gpx

    shared = {
        "seed": options.seed,
        "jit_compile": options.xla,
        "checkpoint_dir": None if options.run_dir is None else options.run_dir / "checkpoints",
    }
    own = getattr(module, "fit", None)
    if own is not None:
        return own(options, model, split, steps, **shared)
    external = isinstance(model, gpflow.models.ExternalDataTrainingLossMixin)
    chosen = module.fit_options(options, len(split.train[0]))
    chosen |= flags.starts(options)
    return gpx.fit(model, split.train if external else None, steps=steps, **chosen, **shared)


def train(module: Any, name: str, options: argparse.Namespace, split: Any) -> None:
    """Build, train, evaluate, checkpoint and export; print what happens and what may be run next."""
    kernels.configure(options)
    import gpflow_ext as gpx
    from gpflow_ext.persistence.durable import check_target

    if options.export is not None:
        check_target(options.export)  # before the time of a training is spent
    model = module.build(options, split)
    with runs.recorded(options, name, split.sha256):
        result = fit(module, options, model, split, options.steps)
    if hasattr(module, "show"):
        module.show(options, result)
    else:
        report.training(result, module.OBJECTIVE)
    metrics = gpx.metrics.evaluate(model, split.test) if len(split.test[0]) else {}
    scaled = getattr(options, "scale_targets", False)
    title = "test rows, targets standardised" if scaled else "test rows"
    report.scores(metrics, title if options.weights is None else f"weighted {title}")
    if options.export is not None:
        print(f"exported to {export(model, split, options, options.export, None if scaled else metrics)}")
    after(options)


def export(
    model: Any,
    split: Any,
    options: argparse.Namespace,
    folder: Path,
    metrics: Mapping[str, float] | None = None,
) -> Path:
    """Export a model in the units of the table, with its scores there, and return the folder of the version."""
    import gpflow_ext as gpx

    model, split = tables.in_units(model, split, options)
    if metrics is None:
        metrics = gpx.metrics.evaluate(model, split.test) if len(split.test[0]) else {}
    return gpx.export(model, folder, data=split, metrics=metrics, notes=split.notes)


def after(options: argparse.Namespace) -> None:
    """Print the commands that come next."""
    if options.export is not None:
        report.after_export(options.export, options.data, getattr(options, "exposure", None))
    elif options.run_dir is not None:
        target = Path("saved_models", options.run_dir.name)
        report.next_commands(("gpflow-ext", "export", options.run_dir, target))
    else:
        print("next: the same command with --export DIR, which keeps the model, or --run-dir DIR, to resume")


class Script:
    """A training script: one model under a name of its own.

    Parameters
    ----------
    module
        A module of ``cli.models``.
    name
        Its name in the shell.
    file
        The file of the script.
    """

    def __init__(self, module: Any, name: str, file: str) -> None:
        self.module, self.name, self._file = module, name, Path(file).name

    def arguments(self) -> argparse.ArgumentParser:
        """Return the parser."""
        return parser(self.module, f"python scripts/{self._file}")

    def load(self, options: argparse.Namespace) -> Any:
        """Return the data for the flags."""
        return load(self.module, options)

    def build(self, options: argparse.Namespace, split: Any) -> Any:
        """Return the untrained model for the flags and the data."""
        return self.module.build(options, split)

    def fit(self, options: argparse.Namespace, model: Any, split: Any, steps: int | None) -> Any:
        """Train for the flags, from the newest checkpoint of the run folder if there is one."""
        return fit(self.module, options, model, split, steps)

    def main(self) -> None:
        """Train from the command line."""

        def body() -> None:
            options = self.arguments().parse_args()
            split = self.load(options)
            report.describe(split)
            train(self.module, self.name, options, split)

        run(body)
