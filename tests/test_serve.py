"""The HTTP server as clients meet it: right answers, refusals that explain, many clients, hostile ones."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gzip
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import json_format
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

import gpflow_ext as gpx
from gpflow_ext.server.limits import RefusedError

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
app = pytest.importorskip("gpflow_ext.server.app", reason="needs the extra serve")
prometheus = pytest.importorskip("prometheus_client.parser", reason="needs the extra serve")
httpx = pytest.importorskip("httpx", reason="needs the extra dev")

ROOT = Path(__file__).resolve().parents[1]
NAME = "wine_sparse_ep"
PATH = f"/v1/models/{NAME}:predict"
ROW = [13.2, 1.8, 2.4, 16, 100, 2.8, 3, 0.3, 2, 5.6, 1.1, 3.2, 1065]


@contextlib.contextmanager
def serving(*options):
    """Run a server; give its process and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, ROOT / "scripts" / "serve.py", ROOT / "saved_models" / NAME, "--port", port]
    process = subprocess.Popen(
        [*map(str, command), *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, process.stdout.read()
            try:
                httpx.get(f"{url}/healthz").raise_for_status()
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield process, url
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=30)
    assert "warmed up in" in output
    assert "Traceback" not in output


@pytest.fixture(scope="module", name="url")
def _url():
    with serving() as (_, url):
        yield url


@pytest.fixture(scope="module", name="strict")
def _strict():
    limits = {"seconds": 1.5, "header-seconds": 0.7, "connections": 4, "bytes": 5000}
    with serving(*(f"--most-{name}={value}" for name, value in limits.items())) as (_, url):
        yield url


@pytest.fixture(scope="module", name="served")
def _served():
    return gpx.load_exported(ROOT / "saved_models" / NAME)


def rows(number, seed=0):
    example = np.load(ROOT / "saved_models" / NAME / "1" / "example.npz")["inputs"]
    return example.mean(0) + example.std(0) * np.random.default_rng(seed).normal(
        size=(number, example.shape[1])
    )


def same(answer, expected):
    assert len(answer) == len(expected["class"])
    assert [row["label"] for row in answer] == expected["label"].tolist()
    for key in ("probabilities", "mean", "variance"):
        np.testing.assert_allclose([row[key] for row in answer], expected[key], rtol=1e-9, atol=1e-12)


def test_health_and_metadata(url):
    assert httpx.get(f"{url}/healthz").json() == {"status": "ok", "model": NAME, "version": 1}
    about = httpx.get(f"{url}/v1/models/{NAME}/metadata").json()
    assert about["manifest"]["labels"] == ["class_0", "class_1", "class_2"]
    assert about["model_spec"] == {"name": NAME, "signature_name": "", "version": "1"}
    saved = (ROOT / "saved_models" / NAME / "1" / "saved_model.pb").read_bytes()
    [graph] = saved_model_pb2.SavedModel.FromString(saved).meta_graphs
    told = about["metadata"]["signature_def"]["signature_def"]
    assert sorted(told) == ["predict_f", "predict_log_density", "serving_default"]
    for name, signature in told.items():
        found = json_format.ParseDict(signature, meta_graph_pb2.SignatureDef())
        assert found == graph.signature_def[name]


@pytest.mark.parametrize("path", ["", "/versions/1"])
def test_status(url, path):
    [state] = httpx.get(f"{url}/v1/models/{NAME}{path}").json()["model_version_status"]
    assert state == {
        "version": "1",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }


@pytest.mark.parametrize(
    "path", ["other", "other/metadata", f"{NAME}/versions/2", f"{NAME}/versions/x/metadata"]
)
def test_what_is_not_served_is_not_found(url, path):
    answer = httpx.get(f"{url}/v1/models/{path}")
    assert answer.status_code == 404
    assert "here is" in answer.json()["error"]
    assert httpx.get(f"{url}/{path}").status_code == 404
    assert httpx.get(f"{url}/predict").status_code == 405


@pytest.mark.parametrize("path", [PATH, f"/v1/models/{NAME}/versions/1:predict"])
def test_a_predict_call_without_a_body_is_told_to_post(url, path):
    answer = httpx.get(f"{url}{path}")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert answer.json()["error"] == f"{path!r} is for POST, not GET: see the page at /"
    assert httpx.post(f"{url}/v1/models/{NAME}/metadata").status_code == 405
    for verb in ("classify", "regress"):
        for path in (f"/v1/models/{NAME}", f"/v1/models/{NAME}/versions/1"):
            answer = httpx.post(f"{url}{path}:{verb}", json={"examples": [{"x": 1.0}]})
            assert answer.status_code == 400
            assert answer.json() == {"error": f"this model predicts: use {path}:predict"}


def test_many_rows_and_one_by_names(url, served):
    X = rows(300)
    answer = httpx.post(f"{url}{PATH}", json={"instances": X.tolist()})
    assert answer.status_code == 200
    same(answer.json()["predictions"], served.predict(X))
    named = dict(zip(served.manifest["data"]["feature_names"], X[7].tolist(), strict=True))
    same([httpx.post(f"{url}/predict", json=named).json()], served.predict(X[7:8]))


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "?"])
def test_any_content_type_is_json(url, content_type):
    body = json.dumps({"instances": [ROW]})
    answer = httpx.post(url + PATH, content=body, headers={"content-type": content_type})
    assert answer.json()["predictions"][0]["label"] == "class_0"


def test_a_compressed_body_is_refused_by_its_coding(url):
    body, coding = gzip.compress(json.dumps({"instances": [ROW]}).encode()), {"Content-Encoding": "gzip"}
    answer = httpx.post(url + PATH, content=body, headers=coding)
    assert answer.status_code == 415
    assert "'gzip'" in answer.json()["error"]
    plain = httpx.post(url + PATH, json={"instances": [ROW]}, headers={"Content-Encoding": "identity"})
    assert plain.status_code == 200


def test_rows_and_columns_of_every_signature(url, served):
    X, Y = rows(5), np.arange(5.0)[:, None] % 3

    def post(**body):
        answer = httpx.post(f"{url}/v1/models/{NAME}/versions/1:predict", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    by_rows = post(instances=X.tolist())["predictions"]
    for inputs in (X.tolist(), {"inputs": X.tolist()}):
        columns = post(inputs=inputs)["outputs"]
        assert [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ] == by_rows
    assert post(instances=[{"inputs": row} for row in X.tolist()])["predictions"] == by_rows
    f = post(signature_name="predict_f", inputs=X.tolist())["outputs"]
    for name, value in served.predict_f(X).items():
        np.testing.assert_allclose(f[name], value, rtol=1e-12)
    name, density = "predict_log_density", served.predict_log_density(X, Y)
    columns = {"inputs": X.tolist(), "targets": Y.tolist()}
    instances = [{"inputs": x, "targets": y} for x, y in zip(X.tolist(), Y.tolist(), strict=True)]
    np.testing.assert_allclose(post(signature_name=name, inputs=columns)["outputs"], density, rtol=1e-12)
    found = post(signature_name=name, instances=instances)["predictions"]
    np.testing.assert_allclose(found, density, rtol=1e-12)


def test_the_request_of_the_documentation(url):
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    [(path, body)] = re.findall(r"curl -X POST localhost:8501(\S+) .*? -d '(.*?)'", text, flags=re.DOTALL)
    answer = httpx.post(url + path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    [row] = answer.json()["predictions"]
    assert row.keys() == {"class", "is_finite", "label", "mean", "probabilities", "variance"}
    assert row["label"] == "class_0"


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (PATH, {"instances": [[1.0] * 12]}, "row 0 has 12 inputs; the model takes 13"),
        (PATH, {"instances": [[1.0] * 13, [1.0] * 14]}, "row 1 has 14 inputs"),
        (PATH, {"instances": [["1"] * 13]}, "valid number"),
        (PATH, {"instances": [[True] * 13]}, "valid number"),
        (PATH, {"instances": [[None] * 13]}, "valid number"),
        (PATH, {"instances": []}, "at least 1"),
        (PATH, {"instances": [[1.0] * 13] * 10_001}, "at most 10000"),
        (PATH, {"instances": [[10**400] * 13]}, "is too large"),
        (PATH, {"instances": [13.0]}, "row 0 is not a list of numbers"),
        (PATH, {"instances": [[[1.0]] * 13]}, "valid number"),
        (PATH, {"instances": {}}, "at least 1"),
        (PATH, {"instances": [[1.0] * 13, {}]}, "row 1 is not a list"),
        (PATH, {"instances": [{"inputs": [1.0] * 13}, [1.0] * 13]}, "row 1 must be an object with inputs"),
        (PATH, {"rows": [[1.0] * 13]}, "instances"),
        (PATH, {"inputs": [[1.0] * 13], "instances": []}, "either"),
        (PATH, {"inputs": {"x": [[1.0] * 13]}}, "inputs must have inputs; found ['x']"),
        (PATH, {"instances": [[1.0] * 13], "more": 1}, "unknown keys: ['more']"),
        (PATH, {"instances": [[1.0] * 13], "signature_name": "other"}, "serving_default"),
        (PATH, {"instances": [[1.0] * 13], "signature_name": ["x"]}, "serving_default"),
        (
            PATH,
            {"instances": [[1.0] * 13], "signature_name": "predict_log_density"},
            "must name inputs, targets",
        ),
        (
            PATH,
            {
                "signature_name": "predict_log_density",
                "inputs": {"inputs": [[1.0] * 13], "targets": [[1.0], [0.0]]},
            },
            "as many rows",
        ),
        (PATH, [1.0], "must be an object"),
        ("/predict", {"alcohol": 13.0}, "missing inputs: ['alcalinity_of_ash'"),
        ("/predict", {"spirit": 1.0}, "unknown inputs: ['spirit']"),
        ("/predict", [1.0], "by the names of the inputs"),
    ],
)
def test_a_wrong_request_is_told_why(url, path, body, reason):
    answer = httpx.post(url + path, json=body)
    assert answer.status_code == 422
    assert reason in answer.json()["error"]


@pytest.mark.parametrize(
    ("seed", "reason"),
    [
        ([3, 4], "seed must have length 1; it has length 2"),
        ([2**31], "row 0, column 0: 2147483648 is too large"),
        ([-(2**31) - 1], "is too large"),
        ([10**23], "is too large"),
        ([1.5], "valid whole number"),
    ],
)
def test_a_wrong_seed_is_told_why(seed, reason):
    from gpflow_ext.server import calls, limits

    rows, seeds = {"dtype": "float64", "shape": [None, 2]}, {"dtype": "int32", "shape": [1]}
    body = {"signature_name": "sample", "inputs": {"inputs": [[1.0, 2.0]], "seed": seed}}
    signatures = {"sample": {"inputs": {"inputs": rows, "seed": seeds}}}
    with pytest.raises(limits.RefusedError, match=reason):
        calls.read(json.dumps(body).encode(), signatures, limits.Limits())


def test_no_more_than_ten_reasons_are_told(url):
    for wrong in ([[0.0]] * 5000, [["x" * 1000] * 13] * 500):
        answer = httpx.post(url + PATH, json={"instances": wrong})
        assert answer.status_code == 422
        assert answer.json()["error"].count("row ") == 10
        assert len(answer.content) < 4000


@pytest.mark.parametrize(
    "body",
    [
        b'{"instances": [[' + b",".join([b'"x"'] * 2_000_000) + b"]]}",
        b'{"instances": [' + b",".join([b"[1]"] * 1_000_000) + b"]}",
        b'{"instances": [[' + b",".join([b"null"] * 250_000) + b"]]}",
        b'{"' + b"x" * 8_000_000 + b'": 1}',
    ],
    ids=["strings", "rows", "nulls", "name"],
)
def test_a_large_wrong_body_is_refused_soon_and_in_short_while_others_are_answered(url, body):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        begin = time.monotonic()
        running = pool.submit(httpx.post, url + PATH, content=body, timeout=60)
        waits = []
        while not running.done():
            asked = time.monotonic()
            assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200
            waits.append(time.monotonic() - asked)
        answer = running.result()
    assert answer.status_code == 422
    assert len(answer.content) < 1000
    assert time.monotonic() - begin < 10.0
    assert max(waits, default=0.0) < 3.0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"instances": [[NaN]]}',
        b'{"instances": [[1e999]]}',
        b"[" * 100_000,
        b"9" * 5000,
    ],
)
def test_what_is_no_json_is_refused(url, content):
    answer = httpx.post(url + PATH, content=content, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert httpx.post(f"{url}/v1/models/other:predict", json={"instances": [[1.0] * 13]}).status_code == 404


@pytest.mark.parametrize("path", [PATH, "/predict"])
def test_a_key_that_is_there_twice_is_named(url, path):
    answer = httpx.post(url + path, content=b'{"instances": [[1]], "a": {"b": 1, "b": 2}}')
    assert answer.status_code == 400
    assert "the key 'b' is there 2 times" in answer.json()["error"]


def test_eight_clients_get_no_wrong_answer(url, served):
    def client(number):
        with httpx.Client(base_url=url, timeout=60) as session:
            for turn in range(25):
                X = rows(1 + (number + turn) % 20, seed=100 * number + turn)
                if turn % 5 == 4:  # a wrong request in between must not disturb the others
                    assert session.post(PATH, json={"instances": [[0.0]]}).status_code == 422
                answer = session.post(PATH, json={"instances": X.tolist()})
                assert answer.status_code == 200
                same(answer.json()["predictions"], served.predict(X))
        return number

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(client, range(8))) == list(range(8))


def connection(url):
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20)


def until_closed(client):
    begin, answer = time.monotonic(), b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(65536):
            answer += part
    return answer, time.monotonic() - begin


@pytest.mark.parametrize("first", [b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_headers_that_drip_end_the_connection(strict, first):
    with connection(strict) as client:
        client.sendall(first)
        if first:
            assert b"200 OK" in client.recv(65536)
        begin = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for letter in b"POST /predict HTTP/1.1\r\nhost: " + 100 * b"x":
                client.sendall(bytes([letter]))
                client.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    if b"408" in client.recv(65536):
                        break
        assert 0.5 < time.monotonic() - begin < 3.0


def test_a_body_that_drips_ends_the_connection(strict):
    with connection(strict) as client:
        client.sendall(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{{".encode())
        answer, seconds = until_closed(client)
    assert b" 408 " in answer
    assert b"the body did not arrive within 1.5 seconds" in answer
    assert seconds < 4.0


@pytest.mark.parametrize("told", [True, False])
def test_a_body_that_is_too_large_is_not_read(strict, told):
    headers = "content-length: 1000000000000" if told else "transfer-encoding: chunked"
    with connection(strict) as client:
        client.sendall(f"POST {PATH} HTTP/1.1\r\nhost: x\r\n{headers}\r\n\r\n".encode())
        if not told:
            client.sendall((f"{4000:x}\r\n" + 4000 * "1" + "\r\n").encode() * 2)
        answer, _ = until_closed(client)
    assert b" 413 " in answer
    assert b"more than 5000 bytes" in answer


@pytest.mark.parametrize(
    ("sent", "headers", "read"),
    [(8, {}, 8), (100, {}, 9), (8, {"content-length": "8000"}, 8), (8, {"content-length": "9000"}, 0)],
)
def test_a_body_that_is_too_large_is_read_for_a_while(sent, headers, read):
    """A connection that closes with much unread is reset: its client would not see the answer."""
    parts = []

    async def stream():
        for _ in range(sent):
            parts.append(1000 * b"1")
            yield parts[-1]

    request = types.SimpleNamespace(headers=headers, stream=stream)
    with pytest.raises(RefusedError, match="more than 1000 bytes"):
        asyncio.run(app._body(request, 1000))
    assert len(parts) == read
    expects = types.SimpleNamespace(
        headers={"expect": "100-continue", "content-length": "1001"}, stream=stream
    )
    with pytest.raises(RefusedError, match="more than 1000 bytes"):
        asyncio.run(app._body(expects, 1000))
    assert len(parts) == read


def test_the_rest_of_a_body_that_is_too_large_is_not_awaited(monkeypatch):
    async def stream():
        yield 2000 * b"1"
        await asyncio.sleep(60.0)

    monkeypatch.setattr(app, "_PATIENCE", 0.1)
    with pytest.raises(RefusedError, match="more than 1000 bytes"):
        asyncio.run(app._body(types.SimpleNamespace(headers={}, stream=stream), 1000))


def test_a_connection_beyond_the_most_takes_the_place_of_one_without_a_request(strict):
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connection(strict)) for _ in range(4)]
        time.sleep(0.2)
        assert httpx.get(f"{strict}/healthz").status_code == 200
        assert b" 408 " in until_closed(held[0])[0]
        held[3].sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200 OK" in held[3].recv(65536)


def test_a_connection_is_refused_where_all_have_a_request(strict):
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(connection(strict))
            client.sendall(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{{".encode())
        time.sleep(0.2)
        assert b" 503 " in until_closed(stack.enter_context(connection(strict)))[0]
    time.sleep(0.2)
    assert httpx.get(f"{strict}/healthz").status_code == 200


def test_hundreds_of_half_sent_requests_keep_nobody_out(url):
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connection(url)).sendall(b"POST /predict HTTP/1.1\r\nhost")
        begin = time.monotonic()
        for _ in range(20):
            assert httpx.post(url + PATH, json={"instances": [ROW]}, timeout=30).status_code == 200
        assert time.monotonic() - begin < 10.0


def test_metrics(url):
    def found():
        text = httpx.get(f"{url}/metrics").text
        families = prometheus.text_string_to_metric_families(text)
        return {
            (s.name, s.labels.get("call"), s.labels.get("code")): s.value for f in families for s in f.samples
        }

    before = found()
    httpx.post(url + PATH, json={"instances": [ROW] * 7})
    httpx.post(url + PATH, json={"instances": []})
    after = found()
    for key, more in {
        ("gpflow_ext_requests_total", "predict", "200"): 1,
        ("gpflow_ext_requests_total", "predict", "422"): 1,
        ("gpflow_ext_request_seconds_count", "predict", None): 2,
        ("gpflow_ext_rows_total", None, None): 7,
    }.items():
        assert after[key] == before.get(key, 0) + more
    assert after["process_open_fds", None, None] > 0
    assert httpx.get(f"{url}/monitoring/prometheus/metrics").status_code == 200


def test_the_page_loads_nothing_from_elsewhere(url):
    page = httpx.get(url)
    assert page.headers["content-type"].startswith("text/html")
    assert f"/v1/models/{NAME}:predict" in page.text
    assert "od280/od315_of_diluted_wines" in page.text
    assert not re.search(r"src=|href=|@import|url\(", page.text)


def test_the_command_that_is_printed_holds_for_any_name():
    from gpflow_ext.server.page import curl

    model = types.SimpleNamespace(name="Wein & Käse (1)", row=[0.5], raw_row=None)
    [*_, address] = shlex.split(curl(model, "http://host"))
    assert address == "http://host/v1/models/Wein%20%26%20K%C3%A4se%20%281%29:predict"
    assert "&" not in curl(model, "http://host").replace("%26", "")


@pytest.mark.parametrize(
    "flag", ["--port 65536", "--port -1", "--port http", "--threads 0", "--most-seconds inf", "--most-rows 0"]
)
def test_numbers_that_no_server_can_have_are_refused_in_words(flag, capsys):
    from gpflow_ext.server import command

    with pytest.raises(SystemExit) as refused:
        command.main([str(ROOT / "saved_models" / NAME), *flag.split()], "serve")
    assert re.search("whole number from|positive and finite", f"{refused.value}{capsys.readouterr().err}")


def test_an_address_that_is_taken_is_said_before_the_model_loads():
    from gpflow_ext.server import command

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SystemExit, match=f"port {port}: Address already in use; choose another --port"):
            command.main([str(ROOT / "saved_models" / NAME), "--port", str(port)], start=pytest.fail)


def test_a_port_that_the_system_chooses_is_told(monkeypatch, capsys):
    import uvicorn

    from gpflow_ext.server import command

    told = []
    server = types.SimpleNamespace(run=lambda sockets: told.extend(each.getsockname()[1] for each in sockets))
    monkeypatch.setattr(uvicorn, "Config", lambda *_, **__: None)
    monkeypatch.setattr(uvicorn, "Server", lambda _: server)
    command.main([str(ROOT / "saved_models" / NAME), "--port", "0"])
    assert f"http://127.0.0.1:{told[0]}/" in capsys.readouterr().out


def test_a_running_request_is_answered_before_the_end():
    with serving() as (process, url), concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(httpx.post, url + PATH, json={"instances": rows(10_000).tolist()}, timeout=60)
        for _ in range(400):
            if "requests_running 2.0" in httpx.get(f"{url}/metrics").text:  # that of the metrics themselves
                break
        else:
            pytest.fail("the request was never seen running")
        process.send_signal(signal.SIGTERM)
        assert len(running.result().json()["predictions"]) == 10_000
        process.wait(timeout=30)


class Slow:
    """A model that thinks for a while."""

    def __init__(self):
        self.calls = 0
        self.name, self.version, self.feature_names = "slow", "1", None
        self.row, self.raw_row, self.tensors = [0.0], None, None
        self.manifest = {"data": {"D": 1}}
        column = {"dtype": "float64", "shape": [None, 1]}
        self.signatures = {"serving_default": {"inputs": {"inputs": column}, "outputs": {"mean": column}}}

    def __call__(self, signature, arrays):
        self.calls += 1
        time.sleep(0.5)
        if arrays["inputs"][0, 0] < 0:
            raise RuntimeError("a secret")
        return {"mean": arrays["inputs"]}


def post_together(model, limits, bodies):
    from gpflow_ext.server.app import make_app

    async def run():
        transport = httpx.ASGITransport(make_app(model, limits, threads=1))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await asyncio.gather(
                *(client.post("/v1/models/slow:predict", json=body) for body in bodies)
            )

    return asyncio.run(run())


def test_what_waits_too_long_is_refused_and_never_run():
    from gpflow_ext.server.limits import Limits

    model = Slow()
    answers = post_together(model, Limits(seconds=0.7), [{"instances": [[1.0]]}] * 5)
    assert sorted(answer.status_code for answer in answers) == [200, 504, 504, 504, 504]
    assert model.calls <= 2
    assert "no answer within 0.7 seconds" in answers[-1].json()["error"]


def test_a_failure_is_not_told_to_the_client():
    from gpflow_ext.server.limits import Limits

    [answer] = post_together(Slow(), Limits(), [{"instances": [[-1.0]]}])
    assert answer.status_code == 500
    assert "secret" not in answer.text


def test_limits_are_checked():
    from gpflow_ext.server.limits import Limits

    with pytest.raises(ValueError, match="rows must be positive"):
        Limits(rows=0)


def test_it_serves_without_gpflow(tmp_path):
    """And without the rest of this package: by a copy of what docs/serving.md names."""
    package = ROOT / "gpflow_ext"
    for folder in ("server", "persistence/verify"):
        shutil.copytree(package / folder, tmp_path / "gpflow_ext" / folder)
    for file in ("gpflow_ext/data/reading/marks.py", "scripts/serve.py"):
        (tmp_path / file).parent.mkdir(parents=True)
        shutil.copy(ROOT / file, tmp_path / file)
    program = (
        "import runpy, sys\n"
        "runpy.run_path(sys.argv[1])['_import_bare']()\n"
        "import gpflow_ext.server.app, gpflow_ext.server.command, gpflow_ext.server.connections\n"
        "assert not {'gpflow', 'tensorflow_probability', 'tf_keras'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "scripts" / "serve.py")]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": ""}, cwd=tmp_path)


def test_a_model_that_is_not_one_is_refused_before_anything_is_served(tmp_path):
    command = [sys.executable, ROOT / "scripts" / "serve.py", tmp_path]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "holds no exported model" in done.stderr
    assert "Traceback" not in done.stderr
