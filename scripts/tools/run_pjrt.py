"""Run lowered programs on the default device of JAX, and compare what they return with TensorFlow's results.

    python scripts/tools/run_pjrt.py FOLDER [--repeats 10] [--threads 8]

Needs JAX and `gpflow_ext/persistence/predict_jax.py` alone. For each program that `scripts.tools.lower` wrote there
prints a JSON line: seconds to compile and of a call, the best of the repeats with the inputs on the device, and the
largest difference from TensorFlow, relative to the largest entry of an output where that is above one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpflow_ext/persistence"))
from predict_jax import program  # by itself: the package would need TensorFlow

Array = np.ndarray[Any, Any]


class Loaded(NamedTuple):
    """A compiled program with its inputs and TensorFlow's results."""

    compiled: Any
    inputs: list[Any]
    wanted: list[Array]
    compile_seconds: float


def load(path: Path) -> Loaded:
    """Compile one program, ``path`` without its suffixes."""
    about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    call = program(path.with_suffix(".stablehlo").read_bytes(), about["inputs"], about["outputs"])
    with np.load(path.with_suffix(".npz")) as arrays:
        inputs = [jax.device_put(arrays[f"in_{k}"]) for k in range(len(about["inputs"]))]
        wanted = [arrays[f"out_{k}"] for k in range(len(about["outputs"]))]
    begin = time.perf_counter()
    compiled = jax.jit(call).lower(*inputs).compile()
    return Loaded(compiled, inputs, wanted, time.perf_counter() - begin)


def loaded(paths: Sequence[Path], threads: int) -> Iterator[tuple[Path, Future[Loaded]]]:
    """Yield programs, as many compiled at a time as there are threads, and none while others run."""
    for first in range(0, len(paths), threads):
        some = paths[first : first + threads]
        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(load, path) for path in some]
        yield from zip(some, futures, strict=True)


def run(path: Path, one: Loaded, repeats: int = 1) -> dict[str, Any]:
    """Run one program and compare its results."""
    compiled, inputs, wanted, compile_seconds = one
    found = jax.block_until_ready(compiled(*inputs))
    seconds = math.inf
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*inputs))
        seconds = min(seconds, time.perf_counter() - begin)
    return {
        "program": path.name,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "compile_s": round(compile_seconds, 3),
        "call_s": float(f"{seconds:.3g}"),
        "difference": max(map(difference, found, wanted), default=0.0),
    }


def difference(found: Any, wanted: Array) -> float:
    """Return the largest difference, relative to max(1, |wanted|); infinite where not the same are numbers."""
    ours, theirs = np.asarray(found).astype(np.float64), wanted.astype(np.float64)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))  # infinities too
    if not np.isfinite(ours - theirs)[~same].all():
        return math.inf
    size = max(1.0, float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0)))
    return float(np.abs(ours - theirs)[~same].max(initial=0.0)) / size


def programs(folder: Path) -> Iterator[Path]:
    """Yield the programs of a folder."""
    for path in sorted(folder.glob("*.stablehlo")):
        yield path.with_suffix("")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.tools.run_pjrt", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, help="what `scripts.tools.lower` wrote")
    parser.add_argument("--repeats", type=int, default=3, help="timed calls of each (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="that compile (default: %(default)s)")
    options = parser.parse_args(arguments)
    found = list(programs(options.folder))
    if not found:
        parser.error(f"{options.folder} holds no program, a file NAME.stablehlo")
    jax.config.update("jax_enable_x64", True)
    failed = 0
    for path, future in loaded(found, options.threads):
        try:
            line = run(path, future.result(), options.repeats)
        except Exception as error:  # of any kind: the others shall still run
            line = {"program": path.name, "error": f"{type(error).__name__}: {str(error)[:300]}"}
            failed += 1
        print(json.dumps(line), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
