"""What the measuring scripts share: where and when they ran, and how they write what they found."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MOST_RHAT, LEAST_ESS = 1.05, 100.0  # of chains whose effective draws a page takes for a measurement
REDUCED = "This is the reduced form, by `--quick`: it shows that the program runs, and its numbers are no results.\n"
UNNAMED = "commit not recorded (an older run)"
PACKAGES = ("gpflow-ext", "gpflow", "tensorflow", "numpy", "scipy", "scikit-learn", "GPy", "bayesnewton")


def set_threads(threads: int | None) -> None:
    """Bound the threads of TensorFlow and of the BLAS; call it before either is imported."""
    if threads is not None:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(threads)
        for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
            os.environ[name] = str(threads)


def environment(threads: int | None = None) -> dict[str, Any]:
    """Return the commit, the machine, its load, the threads, the versions and the date."""
    cores = os.cpu_count() or 1
    return {
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_model(),
        "cores": cores,
        "threads": threads or cores,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
    }


def describe(where: Mapping[str, Any], precision: str = "float64") -> str:
    """Return the environment as a sentence of Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    commit = f"commit {where['commit']}" if where.get("commit") else UNNAMED
    return (
        f"{commit}; {where['date']}; {where['cpu']}, {where['cores']} cores, {where['threads']} threads, load average "
        f"{where['load']} at the start; Python {where['python']}, {versions}; {precision}, no XLA."
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, its numbers to the right of the first column."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def targets(verdicts: Sequence[tuple[str, str, str]]) -> str:
    """Return the section of targets: each with what was measured and whether it is met; nothing where there are none."""
    heading = "## Targets" if len(verdicts) > 1 else "## Target"
    return f"{heading}\n\n{table(('target', 'measured', 'met'), verdicts)}" if verdicts else ""


def number(value: float, digits: int = 3) -> str:
    """Return a number of seconds or a ratio with as many digits as it deserves."""
    return f"{value:.{digits}g}" if abs(value) < 10**digits - 0.5 else f"{value:,.0f}"


def median(values: Sequence[float | None]) -> float:
    """Return the median, runs that did not arrive counting as infinite."""
    ordered = sorted(math.inf if value is None else value for value in values)
    return ordered[len(ordered) // 2]


def mixed(run: Mapping[str, Any]) -> bool:
    """Return whether the chains of a run mixed well enough for its number of effective draws to mean anything."""
    return bool(run["rhat"] <= MOST_RHAT and run["ess"] >= LEAST_ESS)


def flops(value: float) -> str:
    """Return a number of operations in the paper's units."""
    for power, unit in ((12, "T"), (9, "G"), (6, "M")):
        if value >= 0.9995 * 10**power:
            return f"{value / 10**power:.3g}{unit}"
    return f"{value / 1e3:.3g}k"


def reduced(text: str, quick: bool) -> str:
    """Return a page; that of a run with ``--quick`` says so below its title."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{REDUCED}{rest}" if quick else text


def write(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(path.suffix + ".tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write one JSON object a line."""
    write(path, "".join(json.dumps(record, allow_nan=False) + "\n" for record in records))


def _commit() -> str | None:
    """Return the commit of this checkout, with a plus where files differ from it."""
    where = Path(__file__).parent
    shown = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
    )
    return shown.stdout.strip() or None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
