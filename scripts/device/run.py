"""Run the full-size programs of `scripts.device.programs` with JAX alone, on its default device.

    python scripts/device/run.py FOLDER OUT

Appends a JSON line to OUT/results.jsonl for each thing that is measured, and writes the positions of chains beside it.
Needs JAX and `gpflow_ext/persistence/predict_jax.py`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpflow_ext/persistence"))
sys.path.insert(0, str(Path(__file__).parent))
import twins
from predict_jax import program

Array = np.ndarray[Any, Any]
COMPILERS = 8  # threads
CALL = 50  # evaluations in a call of L-BFGS, at most
BATCH, PER_CALL, CHECKED = 1000, 50, 1000  # rows, steps in a call, steps between two scores
KEPT, FEW = 64, 16  # draws of a call, and of one that is timed


class Loaded:
    """A program with its inputs, those that it updates among them."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self._folder = name, folder
        self.about = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        artefact = (folder / f"{name}.stablehlo").read_bytes()
        self._call = program(artefact, self.about["inputs"], self.about["results"])
        self.updates = {int(result): place for result, place in self.about["updates"].items()}
        self.inputs: list[Any] = []
        self.compile_s = float("nan")
        self._compiled: Any = None

    def compile(self) -> Loaded:
        """Compile it; its variables are updated in place."""
        begin = time.perf_counter()
        specs = [jax.ShapeDtypeStruct(tuple(shape), dtype) for dtype, shape in self.about["inputs"]]
        donated = tuple(self.updates.values())
        self._compiled = jax.jit(self._call, donate_argnums=donated).lower(*specs).compile()
        self.compile_s = time.perf_counter() - begin
        return self

    @property
    def memory(self) -> float:
        """GiB that a call takes beside its inputs and results."""
        return float(self._compiled.memory_analysis().temp_size_in_bytes) / 2**30

    @property
    def kernels(self) -> int:
        """Operations of the compiled program outside of fusions: kernels, calls of libraries, loops and copies."""
        text = self._compiled.as_text()
        return sum(
            f" {kind}(" in text_line
            for text_line in text.splitlines()
            for kind in ("fusion", "custom-call", "while", "conditional", "sort", "copy")
        )

    def load(self, shared: dict[str, Any]) -> Loaded:
        """Put the inputs on the device; arrays of other programs are used again."""
        with np.load(self._folder / f"{self.name}.npz") as arrays:
            held = {name: arrays[name] for name in arrays.files}
        for k, (dtype, shape) in enumerate(self.about["inputs"]):
            if str(k) in self.about["drawn"]:
                drawn = self.about["drawn"][str(k)]
                draw = jax.random.normal(jax.random.key(k), tuple(shape), dtype)
                self.inputs.append(drawn["mean"] + drawn["deviation"] * draw)
            elif str(k) in self.about["files"]:
                key = f"{self.about['files'][str(k)]} {shape}"
                if key not in shared:
                    with np.load(self._folder / self.about["files"][str(k)]) as arrays:
                        shared[key] = jax.device_put(arrays["array"].reshape(shape))
                donated = k in self.updates.values()
                self.inputs.append(shared[key].copy() if donated else shared[key])
            else:
                self.inputs.append(jax.device_put(held[f"in_{k}"]))
        return self

    def give(self, argument: int, value: Any) -> None:
        """Change an argument of the call."""
        place = self.about["arguments"][argument]
        dtype, shape = self.about["inputs"][place]
        self.inputs[place] = jax.device_put(np.asarray(value, dtype).reshape(shape))

    def variables(self) -> dict[str, Any]:
        """Return its variables by name, each a copy."""
        names = self.about["names"]
        return {
            name: self.inputs[place].copy() for name, place in zip(names, self.about["variables"], strict=True)
        }

    def take(self, variables: dict[str, Any]) -> None:
        """Let variables have these values."""
        for name, place in zip(self.about["names"], self.about["variables"], strict=True):
            if name in variables:
                self.inputs[place] = variables[name].copy()

    def __call__(self) -> list[Any]:
        """Run it once and update its variables; return what it returns."""
        results = self._compiled(*self.inputs)
        for result, place in self.updates.items():
            self.inputs[place] = results[result]
        return [part for k, part in enumerate(results) if k not in self.updates]


def timed(call: Callable[[], Any], most: int, seconds: float) -> tuple[float, int]:
    """Return the median seconds of a call, of up to so many within so much time, and how many there were."""
    taken: list[float] = []
    begin = time.perf_counter()
    while len(taken) < most and (not taken or time.perf_counter() - begin < seconds):
        start = time.perf_counter()
        jax.block_until_ready(call())
        taken.append(time.perf_counter() - start)
    return float(np.median(taken)), len(taken)


Programs = dict[str, Loaded]
Lines = Iterator[dict[str, Any]]


def yardsticks() -> Lines:
    """What the device does by itself: products and factorisations."""
    for dtype in ("float32", "float64"):
        A = jax.random.normal(jax.random.key(0), (8192, 8192), dtype)
        product = jax.jit(lambda A: jax.numpy.matmul(A, A, precision="highest"))
        spd = product(A.T * 0.01) * 0 + jax.numpy.eye(8192, dtype=dtype) * 2.0
        factor = jax.jit(jax.numpy.linalg.cholesky)
        solve = jax.jit(lambda L: jax.scipy.linalg.solve_triangular(L, A, lower=True))
        L = factor(spd)
        for name, call, work in (
            ("product", lambda A=A, product=product: product(A), 2.0),
            ("cholesky", lambda S=spd, factor=factor: factor(S), 1.0 / 3.0),
            ("triangular solve", lambda L=L, solve=solve: solve(L), 1.0),
        ):
            jax.block_until_ready(call())
            seconds, _ = timed(call, 5, 3.0)
            yield {"of": "yardstick", "what": name, "dtype": dtype, "tflops": work * 8192**3 / seconds / 1e12}


def order(number: int, rows: int, seed: int) -> Iterator[Array]:
    """Yield the rows of each minibatch: passes in random order, one after another."""
    rng = np.random.default_rng(seed)
    left = np.zeros(0, np.int64)
    for _ in range(number):
        while len(left) < rows:
            left = np.concatenate([left, rng.permutation(60_000)])
        yield left[:rows]
        left = left[rows:]


def digits(programs: Programs, folder: Path, limit: float) -> Lines:
    """Train on MNIST, and score the test images on the way."""
    shared: dict[str, Any] = {}
    parts = {part: programs[f"digits-{part}"].load(shared) for part in ("held", "first", "second", "predict")}
    with np.load(folder / "digits-test.npz") as arrays:
        images, labels = jax.device_put(arrays["X"]), arrays["Y"].ravel().astype(int)

    def scores(variables: dict[str, Any]) -> dict[str, float]:
        predict = parts["predict"]
        predict.take(variables)
        found = []
        for first in range(0, len(labels), 1000):
            predict.inputs[predict.about["arguments"][0]] = images[first : first + 1000]
            found.append(np.asarray(predict()[0]))
        p = np.concatenate(found).astype(np.float64)
        chosen = p[np.arange(len(labels)), labels]
        return {"error": float(np.mean(p.argmax(axis=1) != labels)), "nlpd": float(-np.log(chosen).mean())}

    seconds, done, per_step = 0.0, 0, []
    state = parts["held"].variables()
    for phase, names in ((0, ("held", "first")), (1, ("second",))):
        lengths = np.asarray(parts[names[-1]].about["lengths"], np.float32)
        minibatches = order(len(lengths), BATCH, phase)
        for call in range(len(lengths) // PER_CALL):
            part = parts["held" if phase == 0 and call == 0 else names[-1]]
            if call == 0 or (phase == 0 and call == 1):
                own = phase == 1  # the optimiser of a phase is its own
                part.take({name: value for name, value in state.items() if not (own and name.startswith("own"))})
            begin = time.perf_counter()
            part.give(0, np.stack([next(minibatches) for _ in range(PER_CALL)]))
            part.give(4, lengths[call * PER_CALL : (call + 1) * PER_CALL])
            outcome = np.asarray(part()[0])  # the host reads it in each call
            spent = time.perf_counter() - begin
            seconds, done = seconds + spent, done + PER_CALL
            per_step.append(spent / PER_CALL)
            if not outcome[1]:
                yield {"of": "digits", "step": done, "error_text": "a step was not sound"}
                return
            if call == 0 or call == 1 or done % CHECKED == 0 or seconds > limit:
                state = part.variables()
            if done % CHECKED == 0 or seconds > limit:
                yield {"of": "digits", "step": done, "seconds": seconds, **scores(state),
                       "ms_per_step": 1e3 * float(np.median(per_step))}  # fmt: skip
            if seconds > limit:
                return


def dense(programs: Programs, limit: float) -> Lines:
    """Fit dense classifiers; one that would take longer than the limit by the size before is left out."""
    for dtype in ("float64", "float32"):
        expected = 0.0
        for name in sorted(
            (name for name in programs if name.startswith("dense") and name.endswith(dtype)),
            key=lambda name: programs[name].about["rows"],
        ):
            one = programs[name]
            about = {"of": "dense", "rows": one.about["rows"], "dtype": dtype, "memory_GiB": one.memory,
                     "compile_s": one.compile_s, "kernels": one.kernels}  # fmt: skip
            if expected > limit:
                yield {**about, "left_out": f"it would take {expected:.0f} s"}
                continue
            try:
                one.load({})
                begin, evaluations, calls = time.perf_counter(), 0, 0
                while True:
                    one.give(0, 1000)
                    made, done, status, first, last, slope = np.asarray(one()[0])[2 * CALL :].tolist()
                    evaluations, calls = evaluations + int(made), calls + 1
                    if status != 0 or time.perf_counter() - begin > limit:
                        break
                seconds = time.perf_counter() - begin
                yield {**about, "seconds": seconds, "evaluations": evaluations, "calls": calls, "status": status,
                       "iterations": done, "loss_before": first, "loss": last, "slope": slope}  # fmt: skip
                expected = 8.5 * seconds
            except Exception as error:  # of any kind, such as too little memory: the others shall still run
                yield {**about, "error_text": f"{type(error).__name__}: {str(error)[:300]}"}
            one.inputs.clear()


def chains(programs: Programs) -> Lines:
    """Time the gradients of chains, many at once."""
    for name in [name for name in programs if name.startswith("chains")]:
        one = programs[name].load({})
        one.give(5, FEW)
        jax.block_until_ready(one())

        def call(one: Loaded = one) -> Any:
            return one()

        seconds, calls = timed(call, 10, 2.0)
        results = one()
        gradients = int(np.asarray(results[5])[:FEW].sum())
        yield {"of": "chains", "chains": one.about["chains"], "coordinates": one.about["coordinates"],
               "dtype": one.about["dtype"], "seconds": seconds, "calls": calls, "gradients": gradients,
               "ms_per_gradient": 1e3 * seconds / gradients, "accepted": float(np.asarray(results[2])[:FEW].mean()),
               "compile_s": one.compile_s, "kernels": one.kernels, "memory_GiB": one.memory}  # fmt: skip
        one.inputs.clear()


def maps(programs: Programs, out: Path, limit: float) -> Lines:
    """Sample a map of counts; the positions are kept, for effective sizes to be computed."""
    for name in [name for name in programs if name.startswith("map")]:
        one = programs[name].load({})
        kept, gradients, accepted = [], [], []
        one.give(5, KEPT)
        begin, first = time.perf_counter(), 0
        while True:
            if first == 2 * KEPT:  # the chains start at draws of an approximation
                begin = time.perf_counter()
                kept, gradients, accepted = [], [], []
            one.give(4, first)
            results = one()
            one.inputs[one.about["arguments"][0]] = results[0][-1]
            gradients.append(int(np.asarray(results[5]).sum()))
            kept.append(np.asarray(results[0][:, :, ::5], np.float32))  # a fifth of the coordinates
            accepted.append(float(np.asarray(results[2]).mean()))
            first += KEPT
            if first > 2 * KEPT and (time.perf_counter() - begin > limit or first >= 12 * KEPT):
                break
        seconds = time.perf_counter() - begin
        np.savez_compressed(out / f"{name}.npz", positions=np.concatenate(kept))
        yield {"of": "map", "chains": one.about["chains"], "cells": one.about["cells"], "seconds": seconds,
               "draws": len(kept) * KEPT, "gradients": sum(gradients),
               "ms_per_gradient": 1e3 * seconds / sum(gradients), "accepted": float(np.mean(accepted)),
               "compile_s": one.compile_s, "kernels": one.kernels, "memory_GiB": one.memory}  # fmt: skip
        one.inputs.clear()


def network(programs: Programs) -> Lines:
    """Time the step of Adam of a network with many outputs."""
    if "network" not in programs:
        return
    one = programs["network"].load({})
    jax.block_until_ready(one())
    seconds, calls = timed(lambda: (one(), one.inputs)[1], 20, 5.0)
    yield {"of": "network", **{key: one.about[key] for key in ("outputs", "nodes", "places", "dtype")},
           "seconds": seconds, "calls": calls, "compile_s": one.compile_s, "memory_GiB": one.memory}  # fmt: skip
    one.inputs.clear()


def device() -> dict[str, Any]:
    """Return what ran, its driver and JAX's version."""
    command, shown = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm", "--format=csv,noheader"], ""
    if shutil.which(command[0]):
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {"of": "device", "device": jax.devices()[0].device_kind, "jax": jax.__version__, "driver": shown,
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}  # fmt: skip


def compiled(folder: Path, only: Sequence[str]) -> tuple[Programs, list[dict[str, Any]]]:
    """Compile the programs of a folder, some at a time; return them, and what failed."""
    names = [path.stem for path in sorted(folder.glob("*.json")) if path.stem.split("-")[0] in only]
    programs, failures = {}, []
    with ThreadPoolExecutor(COMPILERS) as pool:
        futures = {name: pool.submit(lambda name=name: Loaded(folder, name).compile()) for name in names}
        for name, future in futures.items():
            try:
                programs[name] = future.result()
            except Exception as error:  # of any kind: the others shall still run
                failures.append({"of": "compiling", "program": name, "error_text": str(error)[:500]})
    return programs, failures


PARTS = ("yardsticks", "chains", "map", "dense", "digits", "network")


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="what is measured")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of one fit (default: %(default)s)")
    options = parser.parse_args(given)
    jax.config.update("jax_enable_x64", True)
    options.out.mkdir(parents=True, exist_ok=True)
    results = (options.out / "results.jsonl").open("a", encoding="utf-8")

    def note(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=results, flush=True)
        print(json.dumps(line)[:400], flush=True)

    note(device())
    begin = time.perf_counter()
    programs, failures = compiled(options.folder, options.only)
    seconds = time.perf_counter() - begin
    for failure in failures:
        note(failure)
    note({"of": "compiling", "programs": len(programs), "seconds": seconds, "threads": COMPILERS})
    parts: dict[str, Callable[[], Lines]] = {
        "yardsticks": yardsticks,
        "chains": lambda: itertools.chain(chains(programs), twins.chains(timed)),
        "map": lambda: itertools.chain(maps(programs, options.out, options.limit / 3.0), twins.maps(timed)),
        "dense": lambda: dense(programs, options.limit),
        "digits": lambda: digits(programs, options.folder, 2.5 * options.limit),
        "network": lambda: network(programs),
    }
    failed = len(failures)
    for name, part in parts.items():
        try:
            for line in part() if name in options.only else ():
                note(line)
        except Exception:  # of any kind: the others shall still run
            note({"of": "failure", "part": name, "error_text": traceback.format_exc()[-1500:]})
            failed += 1
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
