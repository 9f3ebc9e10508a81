"""The benchmark of many rows and many clients: an exported model called, and served over HTTP."""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..shared import report
from ..shared.serving import served
from .serving import caller, interleaved

TRAINING, INPUTS, CLIENTS = 216, 10, 8
REQUESTS = 200  # of each client, in a round
Records = list[dict[str, Any]]

TEXT = """\
# Serving: many rows, many clients

{where} Written by `python -m scripts.benchmarks server`.

An exported `VGPKMM` with {training} training rows and {inputs} inputs. First its `serving_default`, called with all rows at once in a
process of its own: `whole` is the function before it is divided into blocks of rows. The memory is the peak of the process,
minus its memory before the call.

{rows}
One row, from a tensor in to tensors out, medians of {repeats} rounds in turn: {row}.

Then `scripts/serve.py` in a process of its own, asked by {clients} clients in another, for one row at a time, each on one
connection: medians of {repeats} rounds of {requests} requests a client.

{clients_table}
"""

CALL = """
import json, sys, time
import numpy as np, tensorflow as tf
folder, rows, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
loaded = tf.saved_model.load(folder)
call = loaded.signatures["serving_default"]
inputs = tf.constant(np.random.default_rng(0).standard_normal((rows, width)))
call(inputs=inputs[:1])
open("/proc/self/clear_refs", "w").write("5")  # the peak starts again
peak = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024.0
before, begin = peak(), time.perf_counter()
call(inputs=inputs)
print(json.dumps({"seconds": time.perf_counter() - begin, "memory": peak() - before}))
"""


def run(options: argparse.Namespace) -> Records:
    """Measure for each number of rows, then with clients."""
    records = []
    with tempfile.TemporaryDirectory() as folder:
        blocked, whole = exported(Path(folder))
        for size in options.sizes:
            for name, path in (("blocks", blocked), ("whole", whole)):
                records.append({"what": name, "size": size, **called(path, size)})
                print(f"{size} rows, {name}: done", flush=True)
        records += one_row({"blocks": blocked, "whole": whole}, options.repeats)
        for clients in (1, CLIENTS):
            with served(blocked) as port:
                rounds = [asked(port, clients) for _ in range(options.repeats + 1)][1:]
            records.append({"what": "http", "clients": clients, "rounds": rounds})
    return records


def exported(folder: Path) -> tuple[Path, Path]:
    """Return two exports of a model: with its signatures in blocks of rows, and the function as a whole."""
    import gpflow
    import tensorflow as tf

    import gpflow_ext as gpx
    from gpflow_ext.persistence import serving

    rng = np.random.default_rng(0)
    X = rng.standard_normal((TRAINING, INPUTS))
    Y = (X[:, :1] + 0.3 * rng.standard_normal((TRAINING, 1)) > 0.0).astype(float)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=3.0)
    gpflow.set_trainable(kernel, False)
    model = gpx.models.VGPKMM((X, Y), kernel, gpx.likelihoods.BernoulliProbit())
    gpx.fit(model, progress=False)
    built = serving.build(model, np.zeros(INPUTS), np.ones(INPUTS), None, "portable")  # without blocks
    tf.saved_model.save(built.module, str(folder / "whole"), signatures=built.signatures)
    return gpx.export(model, folder / "blocks"), folder / "whole"


def one_row(folders: dict[str, Path], repeats: int) -> Records:
    """Return the microseconds of a call with one row, the models in turn."""
    import tensorflow as tf

    row = tf.constant(np.random.default_rng(0).standard_normal((1, INPUTS)))
    runs = {name: caller(tf.saved_model.load(str(folder)), row) for name, folder in folders.items()}
    found = interleaved(runs, repeats)
    return [{"what": "row", "name": name, "microseconds": values} for name, values in found.items()]


def called(folder: Path, rows: int) -> dict[str, float]:
    """Return the seconds of a call, and the MB that it took."""
    command = [sys.executable, "-c", CALL, str(folder), str(rows), str(INPUTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, float] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def asked(port: int, clients: int) -> dict[str, float]:
    """Return requests a second of all clients, and the median and 99th percentile of the milliseconds of one."""
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        seconds = np.concatenate(list(pool.map(_client, [port] * clients)))
    total = time.perf_counter() - begin
    middle, late = (float(1e3 * np.quantile(seconds, q)) for q in (0.5, 0.99))
    return {"requests_per_second": len(seconds) / total, "median": middle, "late": late}


def _client(port: int) -> list[float]:
    body, found = json.dumps({"instances": [[0.5] * INPUTS]}), []
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for _ in range(REQUESTS):
        begin = time.perf_counter()
        connection.request("POST", "/v1/models/blocks:predict", body)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise ValueError(f"the server answered {answer.status}")
        found.append(time.perf_counter() - begin)
    connection.close()
    return found


def document(where: dict[str, Any], records: Records) -> str:
    """Return the tables."""
    calls = {(r["what"], r["size"]): r for r in records if "size" in r}
    rows = []
    for size in sorted({size for _, size in calls}):
        shown = [
            report.number(calls[name, size][key]) if key in calls[name, size] else "did not end"
            for key in ("seconds", "memory")
            for name in ("blocks", "whole")
        ]
        rows.append([f"{size:,}", *shown])
    columns = ("rows", "in blocks, s", "whole, s", "in blocks, MB", "whole, MB")
    served = [r for r in records if r["what"] == "http"]
    kinds = ("requests_per_second", "median", "late")
    middle = [[report.median([each[kind] for each in r["rounds"]]) for kind in kinds] for r in served]
    lines = [[str(r["clients"]), *map(report.number, found)] for r, found in zip(served, middle, strict=True)]
    heads = ("clients", "requests a second", "median, ms", "99th percentile, ms")
    single = {
        r["name"]: report.number(report.median(r["microseconds"])) for r in records if r["what"] == "row"
    }
    return TEXT.format(
        row=f"{single['blocks']} µs in blocks, {single['whole']} µs whole",
        where=report.describe(where),
        training=TRAINING,
        inputs=INPUTS,
        rows=report.table(columns, rows),
        clients=f"1 and {CLIENTS}",
        repeats=len(served[0]["rounds"]),
        requests=REQUESTS,
        clients_table=report.table(heads, lines),
    )
