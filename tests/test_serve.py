"""The HTTP example as clients meet it: right answers, refusals that explain, eight clients at once."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gpflow_ext as gpx

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
httpx = pytest.importorskip("httpx", reason="needs the extra dev")

ROOT = Path(__file__).resolve().parents[1]
NAME = "wine_sparse_ep"
PATH = f"/v1/models/{NAME}:predict"


def start(model, port, **options):
    command = [sys.executable, str(ROOT / "scripts" / "serve.py"), str(model), "--port", str(port)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


@pytest.fixture(scope="module", name="url")
def _url():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process, url = start(ROOT / "saved_models" / NAME, port), f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, process.stdout.read()
            try:
                httpx.get(f"{url}/healthz").raise_for_status()
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=30)
    assert "warmed up in" in output
    assert "Traceback" not in output


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
    assert httpx.get(f"{url}/v1/models/{NAME}/metadata").json()["labels"] == ["class_0", "class_1", "class_2"]
    assert httpx.get(f"{url}/v1/models/other/metadata").status_code == 404


def test_many_rows_and_one_by_names(url, served):
    X = rows(300)
    answer = httpx.post(f"{url}{PATH}", json={"instances": X.tolist()})
    assert answer.status_code == 200
    same(answer.json()["predictions"], served.predict(X))
    named = dict(zip(served.manifest["data"]["feature_names"], X[7].tolist(), strict=True))
    same([httpx.post(f"{url}/predict", json=named).json()], served.predict(X[7:8]))


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
        (PATH, {"rows": [[1.0] * 13]}, "instances"),
        (PATH, {"instances": [[1.0] * 13], "signature_name": "other"}, "serving_default"),
        ("/predict", {"alcohol": 13.0}, "missing inputs: ['alcalinity_of_ash'"),
        ("/predict", {"spirit": 1.0}, "unknown inputs: ['spirit']"),
    ],
)
def test_a_wrong_request_is_told_why(url, path, body, reason):
    answer = httpx.post(url + path, json=body)
    assert answer.status_code == 422
    assert reason in json.dumps(answer.json())


@pytest.mark.parametrize(
    "content", [b"{", b"\xff\xfe", b'{"instances": [[NaN]]}', b'{"instances": [[1e999]]}']
)
def test_what_is_no_json_is_refused(url, content):
    answer = httpx.post(url + PATH, content=content, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert httpx.post(f"{url}/v1/models/other:predict", json={"instances": [[1.0] * 13]}).status_code == 404


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


def test_a_model_that_is_not_one_is_refused_before_anything_is_served(tmp_path):
    spec = importlib.util.spec_from_file_location("serve", ROOT / "scripts" / "serve.py")
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)
    with pytest.raises(ValueError, match="holds no exported model"):
        serve.make_app(tmp_path)
