"""Cross-validate the models that suit a table, side by side: `gpflow-ext compare`."""

from __future__ import annotations

import argparse
import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gpflow_ext.cli import flags, kernels, kinds, report, tables, train, training
from gpflow_ext.cli.run import in_flags

TEXT = "Cross-validate the models that suit a table, each at its defaults, side by side."
EPILOG = """\
examples
  gpflow-ext compare --data patients.csv --target ill
  gpflow-ext compare --data wine --models svgp-robustmax sparse-ep --folds 10
  gpflow-ext compare --data visits.csv --target visits --task counts --kernel matern52 --ard

Every model sees the same folds of all rows. A score is the mean over the folds with its standard error, as if folds were
independent; nlpd is the mean negative log predictive density of the rows left out, in nats. A model that fails
in a fold comes last, whatever its score in the others. Seconds are summed
over the folds, two of which run at a time, compilation included. Inputs, and several targets, are standardised once, over all
rows.
"""
PROG = "gpflow-ext compare"
_UPDATES = 5  # iterations of L-BFGS in a step, the first of which does as many from each start
_SLOW = ("sgpmc-free-form",)  # only if it is named


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    new = flags.parser(TEXT, EPILOG, PROG)
    new.add_argument(
        "--models",
        nargs="+",
        choices=[name for name in kinds.KINDS if name not in _SLOW],
        metavar="NAME",
        help="which (default: those that suit the task and the number of rows)",
    )
    new.add_argument(
        "--folds", type=flags.positive, default=5, metavar="F", help="folds (default: %(default)s)"
    )
    new.add_argument(
        "--seconds",
        type=flags.above_zero,
        default=30.0,
        metavar="S",
        help="of a model's training in a fold, at most: it counts as not converged then (default: %(default)g)",
    )
    flags.add_data(new, None, required=True)
    flags.add_kernel(new)
    new.add_argument("--float32", action="store_true", help="compute in single precision")
    return new


def main(arguments: Sequence[str]) -> None:
    """Compare from the command line."""
    options = parser().parse_args(arguments)
    if options.folds < 2:
        raise ValueError(f"--folds must be at least 2; got {options.folds}.")
    options.test_fraction = 0.0
    several = tables.are_several(options)
    split = _load("gprn-tensor", options) if several else tables.load(options)
    if len(split.test[0]):  # a set that comes in two parts
        raise ValueError(f"{split.name} comes with test rows of its own: give --split random.")
    if options.folds > (rows := len(split.train[0])):
        raise ValueError(f"--folds must be at most {rows}, the number of rows; got {options.folds}.")
    names = _chosen(options, split)
    _show_data(split)
    kernels.configure(options)
    tried = {name: _validated(name, options, split) for name in names}
    found = {name: one for name, one in tried.items() if not isinstance(one, Exception)}
    if not found:
        raise tried[names[0]]
    _show(found)
    _show_failures(found)
    _advise(found, arguments, options.weights is not None, rows)


def _chosen(options: argparse.Namespace, split: Any) -> list[str]:
    """Return the models to compare: those that are named, or fit the task and the number of rows."""
    task, rows = flags.task(split.task), len(split.train[0])
    outputs = tables.outputs(split)
    weighted = options.weights is not None
    fitting = [name for name in kinds.fitting(task, outputs, weighted) if name not in _SLOW]
    if not fitting:
        raise ValueError("--weights: no model of several targets takes weights of rows; repeat the rows.")
    if options.models:
        wrong = [name for name in options.models if name not in fitting]
        if wrong:
            raise ValueError(
                f"{wrong[0]} is not for {task} with {outputs} target{'s' * (outputs > 1)}"
                f"{' and weights of rows' * weighted}; choose --models from {', '.join(fitting)}."
            )
        return list(dict.fromkeys(options.models))
    return [
        name
        for name in fitting
        if rows <= kinds.DENSE or not kinds.KINDS[name].dense or kinds.sparse(name, rows, weighted)
    ]


def _show_data(split: Any) -> None:
    print(
        f"{split.name}: {len(split.train[0])} rows, {split.train[0].shape[1]} inputs, {flags.task(split.task)}"
    )
    for note in split.notes:
        print(f"  note: {in_flags(note)}")


def _options(name: str, shared: argparse.Namespace, rows: int = 0) -> argparse.Namespace:
    """Return the flags of a model: its defaults for so many rows, and those that all share."""
    sparse = kinds.sparse(name, rows, shared.weights is not None)
    options = train.options_of(name, [*sparse, "--data", shared.data])
    for key, value in vars(shared).items():
        if hasattr(options, key):
            setattr(options, key, value)
    return options


def _load(name: str, shared: argparse.Namespace) -> Any:
    """Return the data as a model loads them."""
    return kinds.KINDS[name].load().load(_options(name, shared))


def _validated(name: str, shared: argparse.Namespace, split: Any) -> Any:
    """Return the cross-validation of a model with its own defaults and the flags that all share.

    If every fold fails, it is the error of the first; if the model does not take the data and is not named,
    what it says of them.
    """
    import gpflow_ext as gpx

    module, options = kinds.KINDS[name].load(), _options(name, shared, len(split.train[0]))
    try:
        if "several" in kinds.KINDS[name].tasks:  # on targets that are standardised
            split = module.load(options)
        training.check(module, options, split)
    except ValueError as error:
        if shared.models:
            raise
        print(f"{name} is left out: {in_flags(str(error))}", flush=True)
        return error
    data, weights = split.train, None if split.weights is None else split.weights[0][:, 0]
    smallest = len(data[0]) - math.ceil(len(data[0]) / shared.folds)
    chosen: Mapping[str, Any] = module.fit_options(options, smallest)
    chosen = {key: value for key, value in chosen.items() if key != "checkpoint_every"}
    chosen |= {"hyper_updates": _UPDATES} if kinds.KINDS[name].climbs else {}
    print(f"{name} ...", flush=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gpx.FitWarning)  # how many have not converged is reported below
        warnings.filterwarnings("ignore", r"Fold \d+ failed")  # and so are these
        try:
            found = gpx.cross_validate(
                lambda part: module.build(options, dataclasses.replace(split, train=part)),
                (data[0], data[1] if weights is None else data[1][:, :-1]),
                weights=weights,
                folds=shared.folds,
                seed=shared.seed,
                seconds=shared.seconds,
                **chosen,
            )
        except Exception as error:  # of any kind: the other models go on
            print(f"  failed in every fold: {_first_line(error)}", flush=True)
            return error
    print(f"  {found}", flush=True)
    return found


def _show(found: Mapping[str, Any]) -> None:
    metrics = list(dict.fromkeys(metric for one in found.values() for metric in one.mean))
    rows = []
    for name, one in sorted(found.items(), key=_rank):
        mean, error = one.mean, one.standard_error
        cells = (f"{mean[m]:.4g} ± {error[m]:.2g}" if m in mean else "" for m in metrics)
        rows.append((name, *cells, f"{one.seconds.sum():.1f}"))
    report.table("mean over the folds ± standard error", ("model", *metrics, "seconds"), rows)


def _show_failures(found: Mapping[str, Any]) -> None:
    """Say in which folds, counted from 1, a model has failed, and why."""
    for name, one in found.items():
        for fold in _failed(one):
            error = one.errors[fold]
            why = "its nlpd is not a number" if error is None else _first_line(error)
            print(f"{name} failed in fold {fold + 1} of {len(one.errors)}: {why}")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {in_flags(str(error).strip().partition(chr(10))[0])}"


def _failed(one: Any) -> list[int]:
    """Return the folds that have no nlpd."""
    scores = one.scores.get("nlpd", [math.nan] * len(one.errors))
    return [fold for fold, value in enumerate(scores) if math.isnan(value)]


def _rank(item: tuple[str, Any]) -> tuple[bool, float]:
    """Return what models are sorted by: whether one has failed in a fold, and its nlpd."""
    return bool(_failed(item[1])), item[1].mean.get("nlpd", math.inf)


def _advise(
    found: Mapping[str, Any], arguments: Sequence[str], weighted: bool = False, rows: int = 0
) -> None:
    """Say which is the best, which are as good, and how to train it with the same flags."""
    ranked = {name: one for name, one in sorted(found.items(), key=_rank) if not _failed(one)}
    if not ranked:
        print("every model has failed in a fold: none is recommended")
        return
    (best, scores), *others = ranked.items()
    most = scores.mean["nlpd"] + scores.standard_error["nlpd"]
    near = [name for name, one in others if one.mean["nlpd"] <= most]
    print(f"lowest nlpd: {best}" + (f"; within its standard error: {', '.join(near)}" if near else ""))
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--models", nargs="+")
    own.add_argument("--folds")
    own.add_argument("--seconds")
    shared = own.parse_known_args(arguments)[1]
    sparse = kinds.sparse(best, rows, weighted)
    report.next_commands(("gpflow-ext", "train", *shared, "--model", best, *sparse, "--run-dir", "runs/best"))
