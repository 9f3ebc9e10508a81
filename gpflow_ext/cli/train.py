"""Train a model on a table: `gpflow-ext train`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from gpflow_ext.cli import flags, kinds, report, tables, training

TEXT = "Train a model on a table; where none is named, one that suits the task and the number of rows."
EPILOG = """\
examples
  gpflow-ext train --data patients.csv --target ill --export saved_models/ill
  gpflow-ext train --data wine --model sparse-ep --ard --run-dir runs/wine
  gpflow-ext train --data visits.csv --target visits --task counts
  gpflow-ext train --data house.csv --target price --robust
  gpflow-ext train --data quakes.csv --target lon lat --task events --bins 40      their intensity
  gpflow-ext train --data air.csv --target no2 ozone pm10      several targets

models (gpflow-ext train --model NAME --help lists the flags of each)
{models}
"""
PROG = "gpflow-ext train"
_FLAG = re.compile(r"--[a-z0-9-]+")


def parser() -> flags.Parser:
    """Return the parser of what all models share."""
    lines = (f"  {name:16s} {kind.about} ({', '.join(kind.tasks)})" for name, kind in kinds.KINDS.items())
    new = flags.parser(TEXT, EPILOG.format(models="\n".join(lines)), PROG)
    _add_model(new)
    flags.add_data(new, None, required=True)
    flags.add_kernel(new)
    flags.add_run(new)
    new.elsewhere = _flags_of_models
    return new


def _add_model(new: argparse.ArgumentParser) -> None:
    model = new.add_argument_group("choice")
    model.add_argument("--model", choices=list(kinds.KINDS), help="default: by the task and the rows")
    model.add_argument(
        "--robust",
        action="store_true",
        help="expect outliers in a regression: Student's t in place of Gaussian noise",
    )


def of_kind(name: str) -> flags.Parser:
    """Return the parser of one model."""
    kind, prog = kinds.KINDS[name], f"{PROG} --model {name}"
    new = training.parser(kind.load(), prog, prog, kind.tasks)
    _add_model(new)
    new.elsewhere = _flags_of_models
    return new


def options_of(name: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the flags of one model."""
    return of_kind(name).parse_args([*kinds.KINDS[name].preset, *arguments])


def main(arguments: Sequence[str]) -> None:
    """Train from the command line."""
    named = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    named.add_argument("--model")
    name = named.parse_known_args(arguments)[0].model
    if arguments and arguments[0] in kinds.KINDS:
        parser().error(f"a model is named by a flag: --model {arguments[0]}")
    if name in kinds.KINDS:
        _train(name, options_of(name, arguments))
        return
    options, rest = parser().parse_known_args(arguments)
    _refuse_unknown(rest)
    several = tables.are_several(options)
    if several:
        options.scale_targets = False  # unless the flags of the chosen model say so
    split = tables.load(options)
    outputs, rows, weighted = tables.outputs(split), len(split.train[0]), options.weights is not None
    gaps = outputs > 1 and tables.has_gaps(split)
    name, why = kinds.choose(flags.task(split.task), rows, outputs, options.robust, weighted, gaps)
    chosen = options_of(name, [*kinds.sparse(name, rows, weighted), *arguments])
    _train(
        name, chosen, None if outputs > 1 else split, f"model: {name}, because {why}; --model takes another"
    )


def _flags_of_models() -> dict[str, list[str]]:
    """Return the models that take each flag."""
    found: dict[str, list[str]] = {}
    for name in kinds.KINDS:
        for flag in dict.fromkeys(_FLAG.findall(of_kind(name).format_usage())):
            found.setdefault(flag, []).append(name)
    return found


def _refuse_unknown(rest: Sequence[str]) -> None:
    """End with a message for flags that no model has, before anything is read."""
    known = _flags_of_models()
    strange = [flag for flag in rest if flag.startswith("--") and flag.partition("=")[0] not in known]
    if strange:
        parser().error(f"unrecognized arguments: {' '.join(strange)}")


def _train(name: str, options: argparse.Namespace, split: Any = None, why: str = "") -> None:
    kind = kinds.KINDS[name]
    module = kind.load()
    if split is None:
        split = module.load(options)
    elif options.task is None:
        options.task = split.task
    task = flags.task(split.task)
    if "several" not in kind.tasks and task not in kind.tasks:
        others = ", ".join(kinds.fitting(task, tables.outputs(split)))
        raise ValueError(
            f"the target of {split.name} is read as {task}; {name} is for {', '.join(kind.tasks)}: choose "
            f"--model from {others}, or another --target or --task."
        )
    if options.robust and (name, task) != ("svgp-student-t", "regression"):
        raise ValueError("--robust is for a regression, by svgp-student-t.")
    training.check(module, options, split)
    report.describe(split)
    if why:
        print(why)
    training.train(module, name, options, split)
