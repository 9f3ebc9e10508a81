"""Lower all that ordinary fits, samples and predictions compile to StableHLO, with inputs and TensorFlow's results.

    python -m scripts.tools.lower FOLDER                             every model in float64
    python -m scripts.tools.lower FOLDER --dtype float32 --only SparseEP
    python -m scripts.tools.lower --record                           and run them by PJRT: docs/results/lowering.md
    python -m scripts.tools.lower --record --again --only GPLaplace  this one after a change

Writes for each function NAME.stablehlo, a portable artefact, NAME.npz, the values of its parameters and of what
TensorFlow's own graph returns, and NAME.json, their types and what the program consists of. `run_pjrt.py` runs them on
any device of JAX, here the CPU's.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import gpflow
import numpy as np
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.compiled.functions import Compiled, Entry
from gpflow_ext.numerics import devices
from gpflow_ext.persistence.stablehlo import Program, lower

from .. import _cli
from ..shared import report
from ..shared.journal import Journal
from .lowered_models import PREDICTIONS, RUNS, new_rows

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs/results/lowering.jsonl"
Array = np.ndarray[Any, Any]
IN_DOUBLE = ("VGPKMM, Markov",)  # whose recursions are in double precision whatever the model's is
_PRODUCT = re.compile(r"stablehlo\.(?:dot|dot_general|convolution)\b")
# What amplifies rounding, or draws, by the model, the function and the dtype.
LOOSER: dict[tuple[str, str, str], float] = {
    # A difference quotient: rounding over a step of its cube root.
    **{(name, "_Moving.slope", "float64"): 1e-8 for name in RUNS},
    **{(name, "_Moving.slope", "float32"): 1e-2 for name in RUNS},
    # Squared distances that cancel.
    **{(name, "Varied.gram", "float32"): 1e-4 for name in RUNS},
    # Leapfrog steps, and solves at each draw.
    **{(name, "Iterations.run", "float32"): 1e-3 for name in RUNS},
    ("SGPMCFreeForm, conditional", "Named.values", "float32"): 3e-3,
    # TensorFlow Probability's random numbers are others under XLA.
    **{("SGPMCFreeForm, ChEES", "Adapted.run", dtype): math.inf for dtype in ("float64", "float32")},
    **{("SGPMCFreeForm, NUTS", "Iterations.run", dtype): math.inf for dtype in ("float64", "float32")},
    # Sweeps mix differences of the last ones, and end somewhere within their tolerance.
    **{(name, "Evidence.evaluate", "float64"): 1e-10 for name in ("SparseEP", "SparseEP, classes")},
    # Adam divides gradients that are zero up to rounding by 1e-7.
    ("SVGPRobustMax, minibatches", "AscentUpdates.step", "float64"): 1e-9,
    ("SVGPRobustMax, minibatches", "AscentUpdates.step", "float32"): 0.1,
    ("SVGPRobustMax, steps in a call", "AscentUpdates.steps", "float64"): 1e-9,
    ("SVGPRobustMax, steps in a call", "AscentUpdates.steps", "float32"): 0.1,
    ("GPRNTensor, tensor", "NetworkUpdates.descend", "float64"): 1e-10,
    ("GPRNTensor, tensor", "NetworkUpdates.descend", "float32"): 0.1,
    # Iterates go on from each other's rounding.
    **{(name, "Climb.go_on", "float64"): 1e-10 for name in RUNS},
    **{(name, "Climb.go_on", "float32"): 1e-2 for name in RUNS},
    # Eigenvectors are what they are except for their signs.
    **{
        (name, "ProfiledObjective.locate", each): math.inf
        for name in ("GPRNTensor, profiled", "GPRNTensor, profiled in the graph")
        for each in ("float64", "float32")
    },
    # Iterations to a fixed point go on from each other's rounding.
    ("SparseEP, classes", "Evidence.evaluate", "float64"): 1e-8,
    ("SparseEP, classes", "Evidence.evaluate", "float32"): 1e-3,
    # To one that is within 1e-2 standard deviations, by conjugate gradients.
    **{(name, "OptimalPosterior.evaluate", "float32"): 1e-4 for name in RUNS},
    ("SVGP, L-BFGS in the graph", "OptimalPosterior.evaluate", "float32"): 1e-3,
    # Solves by the Gram matrix of a trained kernel amplify rounding by its condition number.
    **{(name, each, "float32"): 1e-3 for name in RUNS for each in PREDICTIONS},
    # So do those by the covariances of targets, and of sites, with the noise that a network starts from.
    **{
        (name, f"NetworkUpdates.{each}", "float32"): 1e-3
        for name in ("GPRNTensor", "GPRNTensor, profiled")
        for each in ("evaluate", "independent", "move")
    },
    ("GPRNTensor, profiled", "ProfiledObjective.evaluate", "float32"): 1e-3,
    # XLA solves by triangular factors through inverses of their diagonal blocks, where TensorFlow substitutes.
    ("SparseEP, minibatches", "MinibatchUpdates.take", "float32"): 1e-4,
    ("SparseEP, steps in a call", "MinibatchUpdates.take_several", "float32"): 1e-4,
    # Gradients through inverses of information matrices, whose least eigenvalues are a small share of the largest.
    **{
        ("GPRNTensor, profiled", each, "float64"): 1e-11
        for each in ("NetworkUpdates.evaluate", "ProfiledObjective.evaluate")
    },
}


class Call(NamedTuple):
    """The first call of a compiled function, with the values its variables had."""

    name: str
    function: Any  # a ConcreteFunction
    arguments: list[Any]  # tensors, and new variables in place of its own
    calls: int = 1
    owner: Any = None  # of the variables that the function was traced with


@contextlib.contextmanager
def harvest() -> Iterator[dict[int, Call]]:
    """Within, collect the compiled functions that are called, by the id of each; their shapes are static."""
    found: dict[int, Call] = {}
    names: dict[int, str] = {}
    traced: list[Any] = []
    before = Entry.__call__, Compiled._entry, Compiled._copied, Compiled._rows

    def call(entry: Any, *flat: Any) -> Any:
        key = id(entry.function)
        if key in found:
            found[key] = found[key]._replace(calls=found[key].calls + 1)
        elif tf.executing_eagerly():
            found[key] = Call(names[key], entry.function, [_snapshot(part) for part in flat], owner=traced)
        return before[0](entry, *flat)

    def entry(self: Any, method: Any, *rest: Any) -> Any:
        made = before[1](self, method, *rest)
        names[id(made.function)] = method.__func__.__qualname__
        return made

    def copied(self: Any, given: Any, rows: Any) -> Any:
        traced.append(
            given
        )  # a graph that is called in another one asks for the variables it was traced with
        return before[2](self, given, rows)

    changed = {"_entry": entry, "_copied": copied, "_rows": lambda *_: frozenset()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(devices, "graphs_for_xla", return_value=["all of them"]))
        stack.enter_context(mock.patch.object(Entry, "__call__", call))
        for name, function in changed.items():
            stack.enter_context(mock.patch.object(Compiled, name, function))
        yield found


def _snapshot(part: Any) -> Any:
    return tf.Variable(part.read_value(), trainable=part.trainable) if isinstance(part, tf.Variable) else part


def _called(method: Any, rows: tf.Tensor) -> Any:
    return method(rows)  # without its defaults, which would become arguments


def calls(name: str) -> list[Call]:
    """Run a model and return what it compiles, and its predictions."""
    gpx.clear_compiled()
    with harvest() as found:
        model = RUNS[name]()
    rows = new_rows(name)
    for each in PREDICTIONS:
        predict = functools.partial(_called, getattr(model, each))
        function = tf.function(predict, autograph=False).get_concrete_function(rows)
        found[id(function)] = Call(each, function, [rows], owner=model)
    return list(found.values())


def lowered(call: Call) -> tuple[Program, list[Array], float]:
    """Return the program of a call, what TensorFlow's graph returns in its place, and the seconds to lower."""
    begin = time.perf_counter()
    program = lower(call.function, call.arguments)
    seconds = time.perf_counter() - begin
    variables = [part for part in call.arguments if isinstance(part, tf.Variable)]
    results = [part for part in tf.nest.flatten(call.function(*call.arguments)) if part is not None]
    updates = [variables[program.variables.index(place)] for _, place in sorted(program.updates.items())]
    return program, [np.asarray(part.numpy()) for part in (*results, *updates)], seconds


def contents(text: str) -> dict[str, Any]:
    """Return what a program consists of: operations, products that are not exact, calls that XLA has to know."""
    ops = collections.Counter(re.findall(r"= (?:\"?)(?:stablehlo|chlo)\.([a-z_0-9]+)", text))
    products = [line for line in text.splitlines() if _PRODUCT.search(line)]  # some lines are of megabytes
    return {
        "ops": sum(ops.values()),
        "kinds": {kind: ops[kind] for kind in ("while", "cholesky", "triangular_solve", "rng_bit_generator")},
        "products": len(products),
        "inexact": sum("HIGHEST, HIGHEST" not in line and "xf32" in line for line in products),
        "custom_calls": sorted(set(re.findall(r"stablehlo\.custom_call @(\w+)", text))),
        "float64": "f64>" in text,
    }


def save(program: Program, results: Sequence[Array], path: Path) -> int:
    """Write what `run_pjrt.py` reads; return the bytes of the artefact."""
    artefact = program.portable()
    path.with_suffix(".stablehlo").write_bytes(artefact)
    about = {"inputs": [(part.dtype.name, part.shape) for part in program.inputs], "outputs": program.results}
    path.with_suffix(".json").write_text(json.dumps(about), encoding="utf-8")
    arrays = {f"in_{k}": part for k, part in enumerate(program.inputs)}
    arrays |= {f"out_{k}": part for k, part in enumerate(results)}
    np.savez(path.with_suffix(".npz"), **arrays)
    return len(artefact)


def lower_model(name: str, folder: Path) -> list[dict[str, Any]]:
    """Lower what one model compiles into a folder; return what each program is."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for k, call in enumerate(calls(name)):
        row: dict[str, Any] = {
            "program": f"{_slug(name)}-{k:02d}",
            "function": call.name,
            "calls": call.calls,
        }
        try:
            program, results, seconds = lowered(call)
            row |= {"artefact": save(program, results, folder / row["program"]), "lower_s": round(seconds, 2)}
            row |= contents(program.text) | {"emitted": contents(program.emitted)["ops"]}
        except ValueError as error:
            row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        found.append(row)
    return found


def _slug(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower())


def run_pjrt(folder: Path) -> dict[str, dict[str, Any]]:
    """Run the programs of a folder in a process of JAX alone; return what it found of each."""
    command = [sys.executable, str(Path(__file__).with_name("run_pjrt.py")), str(folder), "--repeats", "1"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = map(json.loads, done.stdout.splitlines())
    return {line.pop("program"): line for line in lines}


def record(names: Sequence[str], dtypes: Sequence[str], records: Path, again: bool = False) -> None:
    """Lower and run models, and append what was found to the journal; ``again`` replaces what is there."""
    from .lowered_page import write  # the page, whose words need no TensorFlow

    journal = Journal(records, lambda journal: write(journal.records, records.with_suffix(".md")))
    where = report.environment()  # before the journal changes
    keys = [{"model": name, "dtype": dtype} for dtype in dtypes for name in names]
    if again:
        old = [found for key in keys for found in journal.find(**key)]
        journal.records = [each for each in journal.records if each not in old]
        report.write_lines(records, journal.records)
    for key in keys:
        journal.once(key, functools.partial(measure, **key, where=where))


def measure(model: str, dtype: str, where: dict[str, Any]) -> dict[str, Any]:
    """Lower and run one model."""
    with tempfile.TemporaryDirectory() as folder:
        return {"environment": where, "functions": measured(model, dtype, Path(folder))}


def measured(name: str, dtype: str, folder: Path) -> list[dict[str, Any]]:
    """Lower one model into a folder and run what lies there; return what is known of each program."""
    with _in(dtype):
        rows = lower_model(name, folder)
    found = run_pjrt(folder)
    return [
        row | ({} if "error" in row else found.get(row["program"], {"error": "the runtime did not end"}))
        for row in rows
    ]


def bound(model: str, function: str, dtype: str) -> float:
    """Return what the results of a program may differ by, relative to those of size above one.

    Rounding allows 1e-12, in float32 1e-5, except for what `LOOSER` names.
    """
    return LOOSER.get((model, function, dtype), 1e-12 if dtype == "float64" else 1e-5)


def _in(dtype: str) -> Any:
    return gpflow.config.as_context(gpflow.config.Config(float=np.dtype(dtype).type))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.tools.lower", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--dtype", choices=["float64", "float32"], action="append")
    parser.add_argument("--only", choices=list(RUNS), action="append", metavar="MODEL")
    parser.add_argument("--record", action="store_true", help="run them too, into the guide")
    parser.add_argument("--again", action="store_true", help="record anew what is recorded")
    options = parser.parse_args(arguments)
    if (options.folder is None) == (not options.record):
        parser.error("give a folder, or --record")
    if options.folder is not None and len(options.dtype or ()) > 1:
        parser.error("a folder holds the programs of one --dtype")
    names = options.only or list(RUNS)
    if options.record:
        record(names, options.dtype or ["float64", "float32"], RECORDS, options.again)
        return 0
    failed = 0
    with _in((options.dtype or ["float64"])[0]):
        for name in names:
            for row in lower_model(name, options.folder):
                print(json.dumps(row), flush=True)
                failed += "error" in row
    return int(failed > 0)


if __name__ == "__main__":
    _cli.run(lambda: sys.exit(main()))
