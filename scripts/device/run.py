"""Run the full-size programs of `scripts.device.programs` with JAX alone, on its default device.

    python -m scripts.device.run FOLDER OUT
    python -m scripts.device.run FOLDER OUT --only dense chains --limit 30

Appends a JSON line to OUT/results.jsonl for each thing that is measured, and writes positions of chains beside it.
`python -m scripts.device.page OUT` makes the page. XLA tries several kernels for each product while it compiles for
a GPU, which takes most of that time: XLA_FLAGS=--xla_gpu_autotune_level=0 leaves it out.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import platform
import shutil
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from . import twins
from .loaded import Compiling, Loaded, timed

Array = np.ndarray[Any, Any]
Programs = dict[str, Loaded]
Lines = Iterator[dict[str, Any]]
PARTS = ("yardsticks", "dense", "map", "chains", "network", "digits")
CALL = 50  # evaluations in a call of L-BFGS, at most
IMAGES, BATCH, PER_CALL, CHECKED = 60_000, 1000, 50, 1000  # rows, steps in a call, steps between two scores
KEPT, FEW = 64, 16  # draws of a call, and of one that is timed
WARM_UP, MOST = 2, 12  # calls
SIZE = 8192  # of the matrices of the yardsticks


def yardsticks() -> Lines:
    """Time what the device does by itself: products and factorisations."""
    for dtype in ("float32", "float64"):
        A = jax.random.normal(jax.random.key(0), (SIZE, SIZE), dtype)
        L = jax.numpy.eye(SIZE, dtype=dtype) + 1e-3 * jax.numpy.tril(A)
        product = jax.jit(lambda A: jax.numpy.matmul(A, A, precision="highest"))
        solve = jax.jit(lambda L: jax.scipy.linalg.solve_triangular(L, A, lower=True))  # noqa: B023
        S = jax.jit(lambda L: jax.numpy.matmul(L, L.T, precision="highest"))(L)
        for name, call, at, work in (
            ("product", product, A, 2.0),
            ("Cholesky factorisation", jax.jit(jax.numpy.linalg.cholesky), S, 1.0 / 3.0),
            ("triangular solve", solve, L, 1.0),
        ):
            jax.block_until_ready(call(at))
            seconds, _ = timed(functools.partial(call, at), 5, 3.0)
            yield {"of": "yardstick", "what": name, "dtype": dtype, "tflops": work * SIZE**3 / seconds / 1e12}


def order(number: int, rows: int, seed: int) -> Iterator[Array]:
    """Yield the rows of each minibatch: passes in random order, one after another."""
    rng, left = np.random.default_rng(seed), np.zeros(0, np.int64)
    for _ in range(number):
        while len(left) < rows:
            left = np.concatenate([left, rng.permutation(IMAGES)])
        yield left[:rows]
        left = left[rows:]


def digits(programs: Programs, folder: Path, limit: float) -> Lines:
    """Train on MNIST for so many seconds at most, and score the test images on the way."""
    if not programs:
        return
    shared: dict[str, Any] = {}
    held, first, second, predict = (
        programs[f"digits-{part}"].load(shared) for part in ("held", "first", "second", "predict")
    )
    with np.load(folder / "digits-test.npz") as arrays:
        images, labels = jax.device_put(arrays["X"]), arrays["Y"].ravel().astype(int)
    seconds, step = 0.0, 0
    for phase, part in enumerate((first, second)):
        lengths = np.asarray(part.about["lengths"], np.float32).reshape(-1, PER_CALL)
        minibatches = order(lengths.size, BATCH, phase)
        for number, gammas in enumerate(lengths):
            starts = phase == 0 and number == 0
            now = held if starts else part
            begin = time.perf_counter()
            now.give(0, np.stack([next(minibatches) for _ in range(PER_CALL)]))
            now.give(4, gammas)
            _, sound, *_ = np.asarray(now()[0]).tolist()  # the host reads it in each call
            spent = time.perf_counter() - begin
            seconds, step = seconds + spent, step + PER_CALL
            if not sound:
                raise RuntimeError(f"one of the steps before the {step}th was not sound")
            if starts:
                first.take(held.variables())
            if step % CHECKED == 0 or seconds > limit:
                scores = scored(predict, now.variables(), images, labels)
                yield {
                    "of": "digits",
                    "step": step,
                    "seconds": seconds,
                    "ms_per_step": 1e3 * spent / PER_CALL,
                    **scores,
                }
            if seconds > limit:
                return
        kept = part.variables()  # those of the optimiser are a phase's own
        second.take({name: value for name, value in kept.items() if not name.startswith("own")})


def scored(predict: Loaded, variables: dict[str, Any], images: Any, labels: Array) -> dict[str, float]:
    """Return the share of errors and the mean negative log predictive density."""
    predict.take(variables)
    found = []
    for first in range(0, len(labels), 1000):
        predict.inputs[predict.about["arguments"][0]] = images[first : first + 1000]
        found.append(np.asarray(predict()[0], np.float64))
    p = np.concatenate(found)
    chosen = p[np.arange(len(labels)), labels]
    return {"error": float(np.mean(p.argmax(axis=1) != labels)), "nlpd": float(-np.log(chosen).mean())}


def dense(programs: Programs, limit: float) -> Lines:
    """Fit dense classifiers; one that would take longer than the limit by the size before is left out."""
    expected = {"float32": 0.0, "float64": 0.0}
    for one in sorted(programs.values(), key=lambda one: (int(one.about["rows"]), one.about["dtype"])):
        dtype = one.about["dtype"]  # the largest matrices come last, for which the memory may not do
        about = {"of": "dense", "rows": one.about["rows"], "dtype": dtype, **one.facts()}
        if expected[dtype] > limit:
            yield {**about, "left_out": f"it would take {expected[dtype]:.0f} s"}
            continue
        outcome = fitted(one.load(), limit)
        yield {**about, **outcome}
        expected[dtype] = 8.5 * outcome["seconds"]  # of twice as many rows
        one.inputs.clear()


def fitted(one: Loaded, limit: float) -> dict[str, Any]:
    """Run L-BFGS to its end, or until the limit is over."""
    begin, evaluations, calls, status = time.perf_counter(), 0, 0, 0.0
    one.give(0, 1000)  # iterations, at most
    while status == 0.0 and (calls == 0 or time.perf_counter() - begin < limit):
        made, iterations, status, first, last, _ = np.asarray(one()[0])[2 * CALL :].tolist()
        evaluations, calls = evaluations + int(made), calls + 1
    return {"seconds": time.perf_counter() - begin, "evaluations": evaluations, "calls": calls, "status": status,
            "iterations": iterations, "loss_before": first, "loss": last}  # fmt: skip


def chains(programs: Programs) -> Lines:
    """Time the gradients of chains, many at once."""
    for one in programs.values():
        one.load().give(5, FEW)
        jax.block_until_ready(one())
        seconds, calls = timed(one, 10, 2.0)
        results = one()
        gradients = int(np.asarray(results[5])[:FEW].sum())
        yield {"of": "chains", **{key: one.about[key] for key in ("chains", "coordinates", "dtype")}, "calls": calls,
               "ms_per_gradient": 1e3 * seconds / gradients, "accepted": float(np.asarray(results[2])[:FEW].mean()),
               **one.facts()}  # fmt: skip
        one.inputs.clear()


def maps(programs: Programs, out: Path, limit: float) -> Lines:
    """Sample a map of counts; some of the coordinates are kept, for effective sizes to be computed."""
    for one in programs.values():
        one.load().give(5, KEPT)
        for number in range(WARM_UP):
            moved(one, number)
        kept: list[tuple[Array, Array, Array]] = []
        begin = time.perf_counter()
        while len(kept) < MOST and (not kept or time.perf_counter() - begin < limit):
            kept.append(moved(one, WARM_UP + len(kept)))
        seconds = time.perf_counter() - begin
        positions, accepted, counts = (np.concatenate(part) for part in zip(*kept, strict=True))
        np.savez_compressed(out / f"{one.name}.npz", positions=positions)
        yield {"of": "map", **{key: one.about[key] for key in ("chains", "cells", "dtype")}, "seconds": seconds,
               "draws": len(positions), "ms_per_gradient": 1e3 * seconds / int(counts.sum()),
               "accepted": float(accepted.mean()), **one.facts()}  # fmt: skip
        one.inputs.clear()


def moved(one: Loaded, number: int) -> tuple[Array, Array, Array]:
    """Make the draws of a call; return every fifth coordinate, probabilities of acceptance, and gradients."""
    one.give(4, number * KEPT)
    position, _, accepted, _, _, gradients = one()[:6]
    one.inputs[one.about["arguments"][0]] = position[-1]
    return np.asarray(position[:, :, ::5], np.float32), np.asarray(accepted), np.asarray(gradients)


def stepped(one: Loaded) -> list[Any]:
    """Do a step and return the variables, for which a timer waits."""
    one()
    return one.inputs


def network(programs: Programs) -> Lines:
    """Time the step of Adam of a network with many outputs."""
    for one in programs.values():
        jax.block_until_ready(one.load()())
        seconds, calls = timed(functools.partial(stepped, one), 20, 5.0)
        keys = ("outputs", "nodes", "places", "dtype")
        yield {"of": "network", **{key: one.about[key] for key in keys}, "seconds": seconds, "calls": calls,
               **one.facts()}  # fmt: skip
        one.inputs.clear()


def environment(folder: Path) -> dict[str, Any]:
    """Return what runs, its driver, the versions, and of which commit the programs are."""
    command, driver = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], ""
    if shutil.which(command[0]):
        driver = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    commits = {json.loads(path.read_text(encoding="utf-8"))["commit"] for path in folder.glob("*.json")}
    return {
        "device": jax.devices()[0].device_kind,
        "driver": driver or "none",
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {"jax": jax.__version__},
        "commit": ", ".join(sorted(commits)),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.device.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="what is measured")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of one fit (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=8, help="that compile (default: %(default)s)")
    options = parser.parse_args(given)
    if not any(options.folder.glob("*.stablehlo")):
        parser.error(f"{options.folder} holds no program of `scripts.device.programs`")
    jax.config.update("jax_enable_x64", True)
    options.out.mkdir(parents=True, exist_ok=True)
    results = (options.out / "results.jsonl").open("a", encoding="utf-8")

    def note(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=results, flush=True)
        print(json.dumps(line)[:400], flush=True)

    note({"of": "device", "environment": environment(options.folder)})
    compiling = Compiling(options.folder, tuple(options.only), options.threads)
    limit, out = options.limit, options.out
    parts: dict[str, Callable[[Programs], Lines]] = {
        "yardsticks": lambda _: yardsticks(),
        "dense": lambda programs: dense(programs, limit),
        "map": lambda programs: itertools.chain(
            maps(programs, out, limit / 4.0), twins.maps(timed, programs)
        ),
        "chains": lambda programs: itertools.chain(chains(programs), twins.chains(timed, programs)),
        "network": network,
        "digits": lambda programs: digits(programs, options.folder, 2.5 * limit),
    }
    failed = 0
    for name in options.only:
        try:
            begin = time.perf_counter()
            programs = compiling.of(name)
            each = {one.name: one.compile_s for one in programs.values()}
            note({"of": "compiling", "part": name, "waited_s": time.perf_counter() - begin, "each": each})
            for line in parts[name](programs):
                note(line)
        except Exception:  # of any kind: the others shall still run
            print(traceback.format_exc(), flush=True)
            failed += 1
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
