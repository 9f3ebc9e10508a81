"""Fit, predict, sample, export and serve again and again, and watch what is left behind.

    python -m scripts.tools.soak                                     half an hour
    python -m scripts.tools.soak --fits 20 --requests 1000 ...       fewer

Writes docs/results/soak.md and the measurements beside it: the live graphs of TensorFlow, the memory and the open
files of the process; of a server those that it tells Prometheus. Memory is what the C library has given out and not
got back, and what is resident once it has returned to the system whatever pages are free. The second exceeds the
first by Python's own objects, by code, and by pages of which only a part is in use. Of every class of models live
variables are counted too: none of a model that was dropped may be left.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import _cli
from ..shared import report
from ..shared.serving import served
from . import record_pictures, soak_classes

ROOT = Path(__file__).resolve().parents[2]
MOST = 512  # rows of a fit
GROWTH = 5.0  # MB in use between the middle and the end that count as none
MODEL = ROOT / "saved_models" / "wine_sparse_ep"
CLIENTS = 8
_ON_PATH = f"/v1/models/{MODEL.name}:predict"


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="python -m scripts.tools.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for what, number in (
        ("fits of each model", 1000),
        ("runs", 100),
        ("exports", 200),
        ("rounds of each class of models", 10),
        ("requests", 100_000),
    ):
        name = what.split()[0]
        new.add_argument(
            f"--{name}", type=_cli.positive, default=number, metavar="N", help=f"{what} (default: {number})"
        )
    new.add_argument(
        "--out", type=Path, default=ROOT / "docs/results", metavar="DIR", help="default: docs/results"
    )
    return new


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    records = [record for name in ("GPLaplace", "VGPKMM") for record in fits(name, options.fits)]
    records += watched("sample", sampled, options.runs)
    records += watched("export", exported, options.exports)
    records += soak_classes.watch(watched, options.rounds)
    records += requests(options.requests)
    where = report.environment()
    report.write(options.out / "soak.md", document(where, records))
    report.write_lines(options.out / "soak.jsonl", [{"environment": where}, *records])
    record_pictures.write(options.out, "soak")
    print(document(where, records))
    return int(any(not flat(each) for each in grouped(records)))


def fits(name: str, number: int) -> Iterator[dict[str, Any]]:
    """Fit and evaluate models of sizes in random order, and record after some of them."""
    import gpflow_ext as gpx

    rng = np.random.default_rng(0)
    half = np.linspace(20, MOST, max(1, number // 2)).astype(int)
    sizes = np.r_[rng.permutation(half), rng.permutation(half), MOST]  # none is new in the second half

    def once(place: int) -> None:
        model = built(name, int(sizes[place]), place)
        gpx.fit(model, steps=1, hyper_updates=3, progress=False)
        gpx.metrics.evaluate(model, model.data)

    yield from watched(f"fit of {name}", once, number)


def watched(name: str, once: Callable[[int], None], number: int) -> Iterator[dict[str, Any]]:
    """Do something a number of times; yield what lives after the first, a quarter, half and all of them."""
    for place in range(number):
        once(place)
        if place + 1 in moments(number):
            graphs, variables = live()
            files = len(os.listdir("/proc/self/fd"))
            counted = {"graphs": graphs, "variables": variables, "files": files}
            yield {"what": name, "done": place + 1, **counted, **memory()}


def moments(number: int) -> set[int]:
    """Return after how many repetitions the live objects are counted."""
    return {1, max(2, number // 4), max(2, number // 2), number}


def requests(number: int) -> Iterator[dict[str, Any]]:
    """Send requests to a server from several clients, one in ten of them wrong."""
    import httpx

    def client(numbers: range) -> None:
        with httpx.Client(base_url=url, timeout=60) as session:
            for k in numbers:
                rows = [[float(k % 7)] * (13 if k % 10 else 12)] * (1 + k % 20)
                answer = session.post(_ON_PATH, json={"instances": rows})
                if answer.status_code != (200 if k % 10 else 422):
                    raise AssertionError(f"request {k}: {answer.status_code} {answer.text[:200]}")

    with served(MODEL) as port, concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        done, url = 0, f"http://127.0.0.1:{port}"
        for moment in sorted(moments(number)):
            parts = [range(done + c, moment, CLIENTS) for c in range(CLIENTS)]
            list(pool.map(client, parts))
            done = moment
            time.sleep(1.0)  # the connections are closed by then
            yield {"what": "request", "done": done, "graphs": None, **told(httpx.get(f"{url}/metrics").text)}


def told(metrics: str) -> dict[str, float]:
    """Return the resident memory, MB, and open files from a page of metrics."""
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    return {
        "resident": float(values["process_resident_memory_bytes"]) / 2**20,
        "files": int(float(values["process_open_fds"])),
    }


def built(name: str, size: int, seed: int) -> Any:
    """Return a model of binary data."""
    import gpflow

    import gpflow_ext as gpx

    rng = np.random.default_rng(seed)
    X = rng.standard_normal((size, 3))
    Y = (X[:, :1] + rng.standard_normal((size, 1)) > 0.0).astype(float)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=2.0)
    return getattr(gpx.models, name)((X, Y), kernel, gpx.likelihoods.BernoulliLogit())


def sampled(place: int) -> None:
    """Sample the hyperparameters of a model."""
    import gpflow
    import tensorflow_probability as tfp

    import gpflow_ext as gpx

    model = built("GPLaplace", 30 + place, place)
    for parameter in model.kernel.parameters:
        parameter.prior = tfp.distributions.Gamma(*map(gpflow.utilities.to_default_float, (2.0, 1.0)))
    gpx.sample(model, 5, 2, tuner=gpx.Setting(0.1, 2), progress=False, check=False, seed=place)


def exported(place: int) -> None:
    """Fit and export a model."""
    import gpflow_ext as gpx

    model = built("GPLaplace", 30 + place, place)
    gpx.fit(model, steps=1, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        gpx.export(model, folder)


def live() -> tuple[int, int]:
    """Return how many graphs and how many variables of TensorFlow live."""
    import tensorflow as tf

    gc.collect()
    kinds = [type(thing) for thing in gc.get_objects()]
    graphs = sum(kind.__name__ == "FuncGraph" for kind in kinds)
    return graphs, sum(issubclass(kind, tf.Variable) for kind in kinds)


class Mallinfo(ctypes.Structure):
    """What `mallinfo2` of the GNU C library tells, in bytes."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def memory() -> dict[str, float]:
    """Return how much memory of this process is in use, and resident after what is free is returned, in MB."""
    libc = ctypes.CDLL("libc.so.6")
    libc.malloc_trim(0)
    libc.mallinfo2.restype = Mallinfo
    told = libc.mallinfo2()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return {
        "in_use": (told.uordblks + told.hblkhd) / 2**20,
        "resident": int(status.split("VmRSS:")[1].split()[0]) / 1024.0,
    }


def grouped(records: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the records of each kind of repetition."""
    names = dict.fromkeys(map(_name, records))
    return [[record for record in records if _name(record) == name] for name in names]


def _name(record: dict[str, Any]) -> tuple[str, str]:
    return next((key, record[key]) for key in ("what", "class") if key in record)


def flat(records: Sequence[dict[str, Any]]) -> bool:
    """Tell whether what is counted has not grown after the first, nor memory from the middle to the end."""
    first, last = records[0], records[-1]
    counted = ("graphs", "variables", "files")
    grown = [name for name in counted if (last.get(name) or 0) > (first.get(name) or 0)]
    return not grown and growth(records, "in_use" if "in_use" in last else "resident") <= GROWTH


def growth(records: Sequence[dict[str, Any]], name: str) -> float:
    """Return by how many MB a kind of memory has grown from the middle to the end."""
    middle, last = records[-2:] if len(records) > 2 else (records[0], records[-1])
    return last[name] - middle[name]


def document(where: dict[str, Any], records: Sequence[dict[str, Any]]) -> str:
    """Return the page."""
    classes = [record for record in records if "class" in record]
    records = [record for record in records if "what" in record]
    rows = [
        (
            r["what"],
            f"{r['done']:,}",
            str(r["graphs"] or "-"),
            report.number(r["in_use"], 4) if "in_use" in r else "-",
            report.number(r["resident"], 4),
            str(r["files"]),
        )
        for r in records
    ]
    verdicts = [
        (group[0]["what"], "yes" if flat(group) else "no", f"{growth(group, 'resident'):.1f}")
        for group in grouped(records)
    ]
    return "\n".join(
        [
            "# Memory in long runs\n",
            f"Models of up to {MOST} rows, sizes in random order, each dropped before the next; the second half of "
            "the fits repeats the sizes of the first half; samples and exports have a new size each time. Requests of up to "
            f"20 rows from {CLIENTS} clients, one in ten wrong. Written by `python -m scripts.tools.soak`.\n",
            report.describe(where),
            "",
            "![Resident memory in long runs](soak.png)\n",
            report.table(("", "done", "live graphs", "in use, MB", "resident, MB", "open files"), rows),
            "In use: memory that the C library has allocated and not freed. Resident: the memory of the process after "
            "the library has returned free pages to the system; it keeps pages that are partly in use. Flat: no graph "
            f"or open file more than after the first, and from the middle to the end at most {GROWTH:g} MB more in use, or "
            "resident where only that is known.\n",
            report.table(("", "flat", "resident: MB more from the middle to the end"), verdicts),
            *([_of_classes(classes)] if classes else []),
        ]
    )


def _of_classes(records: Sequence[dict[str, Any]]) -> str:
    """Return the section of the classes of models: the counts at both ends, and the memory of a round."""
    rows = []
    for group in grouped(records):
        first, last = group[0], group[-1]
        rounds = last["done"] - group[-2]["done"] if len(group) > 1 else 1
        ends = (f"{first[name]} to {last[name]}" for name in ("graphs", "variables"))
        more = report.number(1024.0 * growth(group, "in_use") / rounds)
        rows.append((first["class"], str(last["done"]), *ends, more, "yes" if flat(group) else "no"))
    columns = ("", "rounds", "live graphs", "live variables", "in use: kB more a round", "flat")
    return "\n".join(
        [
            "## Every class of models\n",
            "A round trains two models of different data and sizes, scores them and draws from them; the first of every "
            f"{soak_classes.EXPORTS} exports one. All are dropped before the next. The counts are those after the first "
            "round and after the last, the memory is that of the second half.\n",
            report.table(columns, rows),
        ]
    )


if __name__ == "__main__":
    _cli.run(lambda: sys.exit(main()))
