"""The names of the models, what each is for, and which one a table gets."""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass
from typing import Any, Protocol

from gpflow_ext.cli import flags

CLASSES = ("binary", "multiclass", "ordinal")
DENSE = 1_000  # training rows up to which a step may cost O(N³)
WHOLE = 20_000  # and up to which it may visit all of them


class Module(Protocol):
    """What a module of ``cli.models`` holds; ``fit`` and ``show`` only where the shared ones do not do."""

    __doc__: str | None
    EPILOG: str
    DATA: str | None
    OBJECTIVE: str
    TASKS: tuple[str, ...]

    def add_flags(self, new: argparse.ArgumentParser) -> None:
        """Add its flags to a parser."""

    def load(self, options: argparse.Namespace) -> Any:
        """Return the data for the flags."""

    def check(self, options: argparse.Namespace, split: Any) -> None:
        """Raise ``ValueError`` for flags that do not go with the data or with each other."""

    def build(self, options: argparse.Namespace, split: Any) -> Any:
        """Return the untrained model."""


@dataclass(frozen=True)
class Kind:
    """A model by its name in the shell.

    Attributes
    ----------
    module
        The name of its module.
    tasks
        What it can be trained for.
    about
        A line about it.
    cites
        The model or recipe that `gpflow_ext.cite` knows.
    preset
        Flags that are given to its module first.
    dense
        Whether its defaults cost O(N³).
    sparse
        Flags with which it does not.
    climbs
        Whether a step is several iterations of L-BFGS with the sites at their fixed point.
    """

    module: str
    tasks: tuple[str, ...]
    about: str
    cites: str
    preset: tuple[str, ...] = ()
    dense: bool = False
    sparse: tuple[str, ...] = ()
    climbs: bool = False

    @property
    def weighs(self) -> bool:
        """Whether it takes weights of rows."""
        return not hasattr(self.load(), "NO_WEIGHTS")

    def load(self) -> Any:
        """Return its module."""
        return importlib.import_module(f"gpflow_ext.cli.models.{self.module}")


def _review(method: str, tasks: tuple[str, ...], about: str, dense: bool = False) -> Kind:
    cites = "GPflow" if method in ("exact", "student-t") else method.replace("-", "_")
    climbs = method in ("laplace", "jaakkola", "taylor")
    return Kind("review", tasks, about, cites, ("--method", method), dense, climbs=climbs)


def _outputs(kind: str, about: str) -> Kind:
    return Kind(
        "outputs",
        ("several",),
        about,
        "VGPKMM",
        ("--kind", kind),
        dense=True,
        sparse=("--num-inducing", "200"),
        climbs=True,
    )


KINDS: dict[str, Kind] = {
    "vgp-kmm": Kind(
        "vgp_kmm",
        (*CLASSES, "counts"),
        "the best Gaussian posterior, with a bound; dense",
        "VGPKMM",
        dense=True,
        sparse=("--num-inducing", "200"),
        climbs=True,
    ),
    "sparse-ep": Kind(
        "sparse_ep",
        (*CLASSES, "counts"),
        "matched moments on inducing points",
        "SparseEP",
        climbs=True,
    ),
    "svgp-robustmax": Kind(
        "svgp_robustmax", CLASSES, "many classes, any number of rows, in minibatches", "SVGPRobustMax"
    ),
    "sgpmc-free-form": Kind(
        "sgpmc_freeform",
        (*CLASSES, "counts", "regression"),
        "function and hyperparameters sampled together",
        "SGPMCFreeForm",
    ),
    "gp-laplace": _review(
        "laplace", (*CLASSES, "counts"), "Laplace's approximation: a quick first look", True
    ),
    "gp-jaakkola": _review("jaakkola", CLASSES, "Jaakkola and Jordan's bound", True),
    "gp-taylor": _review("taylor", (*CLASSES, "counts"), "Taylor expansion of the likelihood", True),
    "gpr": _review("exact", ("regression",), "exact regression with Gaussian noise; dense", True),
    "sgpr": _review("vi-means", ("regression",), "regression on inducing points by the collapsed bound"),
    "svgp": _review("svi-natural", ("binary", "regression"), "minibatches, by natural gradients"),
    "svgp-student-t": _review("student-t", ("regression",), "regression with outliers, on inducing points"),
    "independent": _outputs("independent", "several targets, a function for each; dense"),
    "coregionalised": _outputs("coregionalised", "several targets, mixtures of functions; dense"),
    "gprn-tensor": Kind(
        "gprn_tensor", ("several",), "several targets that share functions", "GPRNTensor", dense=True
    ),
}


def fitting(task: str, outputs: int = 1, weighted: bool = False) -> list[str]:
    """Return the names of the models for a task, of those that take weights of rows if there are any."""
    wanted = "several" if outputs > 1 else flags.task(task)
    return [name for name, kind in KINDS.items() if wanted in kind.tasks and (kind.weighs or not weighted)]


def sparse(name: str, rows: int, weighted: bool) -> tuple[str, ...]:
    """Return the flags that a model needs for many rows with weights or several targets, which few sparse ones take."""
    kind = KINDS[name]
    return kind.sparse if rows > DENSE and (weighted or "several" in kind.tasks) else ()


def choose(
    task: str,
    rows: int,
    outputs: int = 1,
    robust: bool = False,
    weighted: bool = False,
    gaps: bool = False,
) -> tuple[str, str]:
    """Return the model that a table gets where none is named, and why, in a sentence.

    Parameters
    ----------
    task
        What the target is.
    rows
        Training rows.
    outputs
        Targets.
    robust
        Whether outliers of a regression are expected.
    weighted
        Whether rows have weights; see `sparse` too.
    gaps
        Whether some of several targets are missing.
    """
    if outputs > 1 and weighted:
        return "independent", "it takes weights of rows"
    if outputs > 1 and rows > DENSE and not gaps:
        return (
            "independent",
            f"{rows} rows are too many for functions that targets share: it has inducing points",
        )
    if outputs > 1:
        return "gprn-tensor", "it shares functions between several targets"
    if task == "regression":
        if robust:
            return "svgp-student-t", "its noise is Student's t, which outliers do not move"
        if rows <= DENSE:
            return "gpr", f"it is exact, which {rows} rows allow"
        if rows <= WHOLE:
            return (
                "sgpr",
                f"{rows} rows are too many for a dense model and allow inducing points on all of them",
            )
        return "svgp", f"it takes {rows} rows in minibatches"
    if rows <= DENSE:
        return "vgp-kmm", f"it has a bound and the best Gaussian posterior, which {rows} rows allow"
    if weighted:
        return "vgp-kmm", f"it takes weights, and {rows} rows with {' '.join(KINDS['vgp-kmm'].sparse)}"
    if task == "multiclass" or (task in CLASSES and rows > WHOLE):
        return "svgp-robustmax", f"it takes many classes, and {rows} rows in minibatches"
    return "sparse-ep", f"{rows} rows are too many for a dense model: it has inducing points"
