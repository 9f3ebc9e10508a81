"""Programs of `scripts.device.programs` in JAX: compiled, with their inputs on the device."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpflow_ext/persistence"))
from predict_jax import program  # by itself: the package would need TensorFlow

Array = np.ndarray[Any, Any]
_KINDS = ("fusion", "custom-call", "while", "conditional", "sort", "copy")


class Loaded:
    """A program with its inputs, those that it updates among them.

    Parameters
    ----------
    folder, name
        Where it is.
    """

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

    def facts(self) -> dict[str, Any]:
        """Return what compiling took and gave: GiB of a call beside its inputs and results, and its operations.

        Counted are those outside of fusions: kernels, calls of libraries, loops and copies.
        """
        lines = self._compiled.as_text().splitlines()
        return {
            "compile_s": self.compile_s,
            "kernels": sum(f" {kind}(" in line for line in lines for kind in _KINDS),
            "memory_GiB": self._compiled.memory_analysis().temp_size_in_bytes / 2**30,
        }

    def load(self, shared: dict[str, Any] | None = None) -> Loaded:
        """Put the inputs on the device; ``shared`` arrays of other programs are used again."""
        shared = {} if shared is None else shared
        donated = set(self.updates.values())
        with np.load(self._folder / f"{self.name}.npz") as arrays:
            held = {name: arrays[name] for name in arrays.files}
        for k, (dtype, shape) in enumerate(self.about["inputs"]):
            if (drawn := self.about["drawn"].get(str(k))) is not None:
                draw = jax.random.normal(jax.random.key(k), tuple(shape), dtype)
                self.inputs.append(drawn["mean"] + drawn["deviation"] * draw)
            elif (file := self.about["files"].get(str(k))) is not None:
                array = self._shared(file, shape, shared)
                self.inputs.append(array.copy() if k in donated else array)
            else:
                self.inputs.append(jax.device_put(held[f"in_{k}"]))
        return self

    def _shared(self, file: str, shape: Any, shared: dict[str, Any]) -> Any:
        key = f"{file} {shape}"
        if key not in shared:
            with np.load(self._folder / file) as arrays:
                shared[key] = jax.device_put(arrays["array"].reshape(shape))
        return shared[key]

    def give(self, argument: int, value: Any) -> None:
        """Change an argument of the call."""
        place = self.about["arguments"][argument]
        dtype, shape = self.about["inputs"][place]
        self.inputs[place] = jax.device_put(np.asarray(value, dtype).reshape(shape))

    def variables(self) -> dict[str, Any]:
        """Return a copy of each variable, by its name."""
        pairs = zip(self.about["names"], self.about["variables"], strict=True)
        return {name: self.inputs[place].copy() for name, place in pairs}

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


class Compiling:
    """The programs of a folder, compiled by some threads.

    Parameters
    ----------
    folder
        Where they are.
    parts
        The beginnings of their names; those of the first are compiled first.
    threads
        How many.
    """

    def __init__(self, folder: Path, parts: tuple[str, ...], threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads)
        self._futures: dict[str, Future[Loaded]] = {}
        for part in parts:
            for path in sorted(folder.glob(f"{part}-*.json")):
                self._futures[path.stem] = self._pool.submit(Loaded(folder, path.stem).compile)

    def of(self, part: str) -> dict[str, Loaded]:
        """Return the programs of a part once they are compiled, and say which cannot be."""
        found = {}
        for name, future in self._futures.items():
            if name.startswith(f"{part}-") and (error := future.exception()) is None:
                found[name] = future.result()
            elif name.startswith(f"{part}-"):
                print(f"{name} does not compile: {error}", flush=True)
        return found


def timed(call: Callable[[], Any], most: int, seconds: float) -> tuple[float, int]:
    """Return the median seconds of a call, of up to so many within so much time, and how many there were."""
    taken: list[float] = []
    begin = time.perf_counter()
    while len(taken) < most and (not taken or time.perf_counter() - begin < seconds):
        start = time.perf_counter()
        jax.block_until_ready(call())
        taken.append(time.perf_counter() - start)
    return float(np.median(taken)), len(taken)
