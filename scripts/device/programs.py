"""Lower what full-size fits and samples compile, without running it: that is for a GPU elsewhere.

    python -m scripts.device.programs FOLDER                         all of them
    python -m scripts.device.programs FOLDER --only chains dense     those whose names begin so

Writes for each program NAME.stablehlo, NAME.npz and NAME.json: the artefact, its inputs, and which of them are
arguments and variables. `scripts.device.run` runs them with JAX alone. Everything is lowered as a fit or a
sample on a GPU compiles it: for XLA, with static shapes, and with L-BFGS in the graph.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import gpflow
import numpy as np
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.compiled.functions import Compiled, Entry
from gpflow_ext.numerics import devices, linalg
from gpflow_ext.persistence.stablehlo import Program, lower
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.training.schedules import Schedule

from .. import _cli
from ..benchmarks import sgpmc
from ..experiments.robustmax import runs as digits
from ..experiments.sgpmc import pines
from ..shared import report

Array = np.ndarray[Any, Any]
LARGE = 2**22  # entries of an array beyond which it is drawn where it is needed
SHARED = 2**17  # entries of an array beyond which programs share a file of it
STEPS, PER_CALL, HELD = 20_000, 50, 50  # of the digits: in all, in a call, with hyperparameters held
INPUTS, NODES, PLACES = 20, 2, 50  # of dense models; of the network
SINGLE, DOUBLE = digits.SINGLE, gpflow.config.Config(float=np.float64)


class Sizes(NamedTuple):
    """Of the programs."""

    dense: tuple[int, ...] = (5_000, 10_000, 20_000)  # rows
    chains: tuple[int, ...] = (1, 10, 128, 1024)
    rows: int = 1000  # of the model that they sample
    points: int = 64
    cells: int = 512  # of an axis of the map
    of_map: tuple[int, ...] = (10, 64)  # chains
    outputs: int = 1_000_000


FULL, QUICK = Sizes(), Sizes((40,), (2,), 30, 5, 8, (2,), 200)


class Reached(Exception):
    """A function is about to be called."""

    def __init__(self, function: Any, arguments: list[Any], owner: Any, number: int) -> None:
        super().__init__()
        self.function, self.arguments, self.owner, self.number = function, arguments, owner, number
        self.values = [(part, part.read_value()) for part in arguments if isinstance(part, tf.Variable)]


def reached(run: Callable[[], Any], name: str) -> Reached:
    """Run until a compiled method of this name is called for the first time; return that call."""
    wanted: dict[int, tuple[Any, int]] = {}
    before = Entry.__call__, Compiled._entry

    def entry(self: Any, method: Any, arguments: Any, data: Any) -> Any:
        made = before[1](self, method, arguments, data)
        if method.__func__.__qualname__ == name:
            wanted[id(made)] = self._owner, len(tf.nest.flatten(arguments))
        return made

    def call(self: Any, *flat: Any) -> Any:
        if id(self) in wanted:
            raise Reached(self.function, list(flat), *wanted[id(self)])
        return before[0](self, *flat)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(devices, "graphs_for_xla", return_value=["all of them"]))
        stack.enter_context(mock.patch.object(Compiled, "_entry", entry))
        stack.enter_context(mock.patch.object(Entry, "__call__", call))
        stack.enter_context(mock.patch.object(Compiled, "_rows", return_value=frozenset()))  # as XLA has them
        stack.enter_context(mock.patch.object(linalg, "has_accelerator", return_value=True))
        try:
            run()
        except Reached as found:
            for variable, value in found.values:  # a fit has taken back what a step did that did not end
                variable.assign(value)
            return found
    raise RuntimeError(f"{name} was not called")


class Case(NamedTuple):
    """A program to be: what runs until it is reached, and what is known of it."""

    run: Callable[[], Any]
    function: str
    precision: gpflow.config.Config
    about: dict[str, Any]


def cases(sizes: Sizes = FULL) -> dict[str, Case]:
    """Return all programs by name; those of the digits need MNIST, and those of the map the pine saplings."""
    found: dict[str, Case] = {}
    about: dict[str, Any]
    parts = {"held": (0, "steps_held"), "first": (0, "steps"), "second": (1, "steps")}
    for part, (number, function) in parts.items():
        about = {"phase": number, "batch": digits.MNIST_BATCH, "points": digits.MNIST_INDUCING}
        run = functools.partial(train_digits, number, HELD if part == "held" else 0)
        found[f"digits-{part}"] = Case(run, f"AscentUpdates.{function}", SINGLE, about)
    found["digits-predict"] = Case(predict_digits, "Predictions.probabilities", SINGLE, {})
    for name, precision in (("float64", DOUBLE), ("float32", SINGLE)):
        for N in sizes.dense:
            run = functools.partial(fit_dense, N)
            found[f"dense-{N}-{name}"] = Case(run, "Climb.go_on", precision, {"rows": N, "inputs": INPUTS})
    for where in ("vb", "conditional"):
        for C in sizes.chains:
            run = functools.partial(sample_chains, C, where, sizes.rows, sizes.points)
            about = {"chains": C, "coordinates": where, "rows": sizes.rows, "points": sizes.points}
            found[f"chains-{where}-{C}"] = Case(run, "Iterations.block", DOUBLE, about)
    for C in sizes.of_map:
        run = functools.partial(sample_map, C, sizes.cells)
        about = {"chains": C, "cells": sizes.cells}
        found[f"map-{C}"] = Case(run, "Iterations.block", DOUBLE, about)
    run = functools.partial(train_network, sizes.outputs)
    about = {"outputs": sizes.outputs, "nodes": NODES, "places": PLACES}
    found["network"] = Case(run, "NetworkUpdates.descend", SINGLE, about)
    return found


@functools.cache
def _digits() -> Any:
    return digits.digits()


def train_digits(phase: int, hold: int) -> None:
    """Train on MNIST as the experiment does, many steps in a call."""
    found = _digits()
    share, rate, gamma = digits.PHASES[phase]
    number = round(share * STEPS)
    gpx.fit(
        found.model,
        found.train,
        steps=2,
        minibatch_size=digits.MNIST_BATCH,
        optimizer=digits.optimiser(rate, number, hold),
        gamma=gamma,
        decay_steps=number,
        hold=hold,
        steps_per_call=PER_CALL,
        seed=phase,
        progress=False,
    )


def lengths(phase: int) -> Array:
    """Return γ of each step of a phase, [steps]."""
    share, _, gamma = digits.PHASES[phase]
    number = round(share * STEPS)
    length = Schedule("cosine", number).lengths(gamma)
    return np.array([length(step) for step in range(number)], np.float32)


class Predictions:
    """What is compiled to score a classifier."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def probabilities(self, X: tf.Tensor) -> tf.Tensor:
        """Return the class probabilities of rows X [n, D], [n, K]."""
        return self._model.predict_y(X)[0]


def predict_digits() -> None:
    """Predict the classes of a thousand test images."""
    found = _digits()
    predictions = Predictions(found.model)
    Compiled(predictions)(predictions.probabilities, tf.constant(found.test[0][:1000]))


def dense(N: int) -> gpx.models.VGPKMM:
    """Return a dense classifier whose kernel is to be learnt."""
    dtype = gpflow.default_float()
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, INPUTS))
    f = 2.0 * np.sin(X[:, :1]) + X[:, 1:2] * X[:, 2:3]
    Y = f + rng.logistic(size=f.shape) > 0.0
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.sqrt(INPUTS))
    return gpx.models.VGPKMM((X.astype(dtype), Y.astype(dtype)), kernel, gpx.likelihoods.BernoulliLogit())


def fit_dense(N: int) -> None:
    """Fit it with L-BFGS in the graph."""
    gpx.fit(dense(N), in_graph=True, starts=1, progress=False)


def sample_chains(C: int, where: str, rows: int, points: int) -> None:
    """Sample a sparse classifier."""
    model = _classifier(rows, points)
    gpx.sample(
        model, 25, C, tuner=Setting(0.1, 10), precondition=where, approximate=False, progress=False, jit_compile=True,
        check=False,
    )  # fmt: skip


@functools.cache
def _classifier(rows: int, points: int) -> Any:
    model = sgpmc.binary(rows, points)
    gpx.gaussian_approximation(model, free_inducing=False)
    return model


def sample_map(C: int, cells: int) -> None:
    """Sample a log Gaussian Cox process of the pine saplings."""
    gpx.sample(
        _pines(cells), 25, C, tuner=pines.FIXED, precondition="rescaled", approximate=False, progress=False,
        jit_compile=True, check=False,
    )  # fmt: skip


@functools.cache
def _pines(cells: int) -> Any:
    model = pines.build(pines.saplings(), cells, min(15, cells // 2))
    gpx.gaussian_approximation(model)
    return model


def train_network(outputs: int) -> None:
    """Train a regression network with a tensor posterior by Adam."""
    dtype = gpflow.default_float()
    rng = np.random.default_rng(0)
    X: Array = rng.uniform(-2.0, 2.0, (PLACES, 3)).astype(dtype)
    Y = rng.standard_normal((PLACES, outputs), dtype)
    kernels = gpflow.kernels.SquaredExponential(), gpflow.kernels.SquaredExponential()
    model = gpx.models.GPRNTensor((X, Y), *kernels, NODES, posterior="tensor")
    optimizer = gpflow.keras.tf_keras.optimizers.Adam(0.01)
    gpx.fit(model, steps=1, optimizer=optimizer, starts=1, progress=False)


def save(program: Program, about: dict[str, Any], path: Path) -> None:
    """Write an artefact, its inputs, and what is known of them.

    Large random ones are drawn where they are needed.
    """
    path.with_suffix(".stablehlo").write_bytes(program.portable())
    arrays, drawn, files = {}, {}, {}
    for k, part in enumerate(program.inputs):
        if part.size > LARGE and "outputs" in about:
            drawn[k] = {"mean": float(part.mean()), "deviation": float(part.std())}
        elif part.size > SHARED:
            files[k] = f"{hashlib.sha1(part.tobytes()).hexdigest()[:12]}.npz"
            if not (path.parent / files[k]).exists():
                np.savez_compressed(path.parent / files[k], array=part)
        else:
            arrays[f"in_{k}"] = part
    np.savez_compressed(path.with_suffix(".npz"), **arrays)
    found = {
        **about,
        "inputs": [(part.dtype.name, part.shape) for part in program.inputs],
        "results": program.results,
        "variables": program.variables,
        "updates": program.updates,
        "drawn": drawn,
        "files": files,
    }
    path.with_suffix(".json").write_text(json.dumps(found), encoding="utf-8")


def places(call: Reached, program: Program) -> list[int | None]:
    """Return which input of the program each argument of the call is; ``None`` for a constant."""
    first = len(call.arguments) - call.number
    for fixed in (False, True):  # as in `lower`
        given = [
            k
            for k, part in enumerate(call.arguments)
            if not isinstance(part, tf.Variable) and not (fixed and part.dtype.is_integer)
        ]
        pairs = zip(given, program.inputs, strict=False)
        if all(np.array_equal(call.arguments[k].numpy(), part) for k, part in pairs):
            order = {k: place for place, k in enumerate(given)}
            return [order.get(k) for k in range(first, len(call.arguments))]
    raise RuntimeError("the program has other inputs than the call")


def names(call: Reached) -> list[str]:
    """Return a name for each variable: those of the digits' model are the same in all of their programs."""
    model = _digits().model if _digits.cache_info().currsize else None
    known = {} if model is None else {part.ref(): f"model {k}" for k, part in enumerate(model.variables)}
    known |= {getattr(call.owner, name).ref(): name for name in ("nat1", "prec") if hasattr(call.owner, name)}
    held = [part for part in call.arguments if isinstance(part, tf.Variable)]
    return [known.get(part.ref(), f"own {k}") for k, part in enumerate(held)]


def write(name: str, case: Case, folder: Path) -> dict[str, Any]:
    """Lower one program into the folder; return what it took."""
    begin = time.perf_counter()
    with gpflow.config.as_context(case.precision):
        call = reached(case.run, case.function)
        there = time.perf_counter()
        program = lower(call.function, call.arguments)
    about = {**case.about, "function": case.function, "dtype": np.dtype(case.precision.float).name}
    about["commit"] = report.environment()["commit"]
    if "phase" in about:
        about["lengths"] = lengths(about["phase"]).tolist()
    about |= {"arguments": places(call, program), "names": names(call)}
    save(program, about, folder / name)
    if name == "digits-predict":
        test = _digits().test
        np.savez_compressed(folder / "digits-test.npz", X=test[0], Y=test[1])
    return {
        "program": name,
        "reached_s": round(there - begin, 1),
        "lower_s": round(time.perf_counter() - there, 1),
        "inputs": len(program.inputs),
    }


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.device.programs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], help="the beginnings of the names of those wanted")
    parser.add_argument("--quick", action="store_true", help="of the smallest sizes")
    options = parser.parse_args(given)
    found = cases(QUICK if options.quick else FULL)
    if unknown := [each for each in options.only if not any(name.startswith(each) for name in found)]:
        parser.error(f"no name begins with {', '.join(unknown)}; there are {', '.join(found)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, case in found.items():
        if name.startswith(tuple(options.only)):
            print(json.dumps(write(name, case, options.folder)), flush=True)
    return 0


if __name__ == "__main__":
    _cli.run(lambda: sys.exit(main()))
