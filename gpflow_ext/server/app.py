"""The application: predict, status and metadata as TensorFlow Serving has them, health, metrics and help."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from . import calls
from .limits import Limits, RefusedError, shown
from .metrics import CONTENT_TYPE, Metrics
from .model import ServedModel
from .page import page
from .raw_rows import RAW, RAW_COUNTS

_log = logging.getLogger("gpflow_ext.server")
_MODEL = "/v1/models/{name:served}"
_MAP = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
_COUNTS = "predict_counts"
_DISCARDED, _PATIENCE = 8, 1.0  # of a body too large: times the largest, and seconds, that are read
_OF_EXAMPLES = ":classify", ":regress"  # verbs of TensorFlow Serving
Endpoint = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")


class _Served(StringConvertor):
    """A name or a version in a path, without the verb after it: ``NAME:predict`` is no model to describe."""

    regex = "[^/]+" + "".join(f"(?<!{verb})" for verb in (":predict", *_OF_EXAMPLES))


register_url_convertor("served", _Served())


class Server:
    """The endpoints of one model.

    Parameters
    ----------
    model
        What is served.
    limits
        Bounds of a request.
    threads
        Calls of the model at once; by default the number of cores.
    """

    def __init__(self, model: ServedModel, limits: Limits, threads: int | None = None) -> None:
        self.model, self.limits, self.metrics = model, limits, Metrics(model)
        self._threads = ThreadPoolExecutor(threads or os.cpu_count(), thread_name_prefix="predict")
        self._help = page(model, limits)

    async def help(self, request: Request) -> Response:
        """Return a page for people, that loads nothing from elsewhere."""
        return HTMLResponse(self._help)

    async def health(self, request: Request) -> Response:
        """Return 200: the model is loaded, verified and warmed up."""
        return _json({"status": "ok", "model": self.model.name, "version": int(self.model.version)})

    async def prometheus(self, request: Request) -> Response:
        """Return the metrics."""
        return Response(self.metrics.page(), media_type=CONTENT_TYPE)

    async def status(self, request: Request) -> Response:
        """Return the versions that are served: one."""
        self._check_path(request)
        fine = {"error_code": "OK", "error_message": ""}
        state = {"version": self.model.version, "state": "AVAILABLE", "status": fine}
        return _json({"model_version_status": [state]})

    async def metadata(self, request: Request) -> Response:
        """Return the signatures, as TensorFlow Serving lists them, and the manifest."""
        self._check_path(request)
        spec = {"name": self.model.name, "signature_name": "", "version": self.model.version}
        signatures = {"@type": _MAP, "signature_def": self.model.definitions}
        return _json(
            {"model_spec": spec, "metadata": {"signature_def": signatures}, "manifest": self.model.manifest}
        )

    async def predict(self, request: Request) -> Response:
        """Predict many rows, by rows or by columns, by any signature."""
        self._check_path(request)
        return await self._answer(request, self._predicted)

    async def of_examples(self, request: Request) -> Response:
        """Refuse, as TensorFlow Serving does where signatures are of predictions alone."""
        self._check_path(request)
        raise RefusedError(400, f"this model predicts: use {request.url.path.rpartition(':')[0]}:predict")

    async def predict_one(self, request: Request) -> Response:
        """Predict one row by the names of its inputs, or of the columns of its table."""
        return await self._answer(request, self._predicted_by_names)

    def _check_path(self, request: Request) -> None:
        name, version = request.path_params["name"], request.path_params.get("version")
        if name != self.model.name:
            raise RefusedError(404, f"the model here is {self.model.name}, not {shown(name)}")
        if version is not None and version != self.model.version:
            raise RefusedError(404, f"the version here is {self.model.version}, not {shown(version)}")

    def _predicted(self, body: bytes) -> bytes:
        table = self.model.manifest.get("columns") or ()
        call = calls.read(body, self.model.signatures, self.limits, table)
        self.metrics.rows.inc(call.rows)
        outputs = self.model(call.signature, call.arrays)
        return calls.write(call, outputs, table)

    def _predicted_by_names(self, body: bytes) -> bytes:
        model, named = self.model, calls.parse(body, self.limits)
        names = model.feature_names if model.tensors is None else list(model.tensors)
        if names is None:
            raise RefusedError(
                422, f"the inputs of this model have no names: use /v1/models/{model.name}:predict"
            )
        if not isinstance(named, dict):
            raise RefusedError(422, "the body must be an object of values by the names of the inputs")
        exposure = (
            named.pop("exposure", None) if _COUNTS in model.signatures and "exposure" not in names else None
        )
        missing, extra = sorted(set(names) - set(named)), sorted(set(named) - set(names))
        if missing or extra:
            counts = extra and _COUNTS in model.signatures
            hint = '; the exposure of a count is "exposure"' if counts else ""
            raise RefusedError(422, f"missing inputs: {missing}; unknown inputs: {shown(extra)}{hint}")
        if model.tensors is None:
            values = [named[name] for name in names]
            row: dict[str, Any] = {"instances": [values]}
            if exposure is not None:
                row = {"signature_name": _COUNTS, "instances": [{"inputs": values, "exposure": [exposure]}]}
        else:
            cells = {tensor: named[name] for name, tensor in model.tensors.items()}
            row = {"signature_name": RAW, "instances": [cells]}
            if exposure is not None:
                row = {"signature_name": RAW_COUNTS, "instances": [{**cells, "exposure": exposure}]}
        answer = json.loads(self._predicted(json.dumps(row).encode()))
        [predicted] = answer.pop("predictions")
        return json.dumps(predicted | answer).encode()

    async def _answer(self, request: Request, work: Callable[[bytes], bytes]) -> Response:
        """Read the body and do the work in another thread, both before the deadline."""
        begin = time.monotonic()
        body = await self._within(begin, _body(request, self.limits.bytes), 408, "the body did not arrive")
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, self._unless_late, begin, work, body)
        answer = await self._within(begin, running, 504, "there was no answer")
        return Response(answer, media_type="application/json")

    def _unless_late(self, begin: float, work: Callable[[bytes], bytes], body: bytes) -> bytes:
        if time.monotonic() - begin > self.limits.seconds:
            raise RefusedError(504, "nobody waits any more")
        return work(body)

    async def _within(self, begin: float, work: Awaitable[T], status: int, what: str) -> T:
        left = max(0.0, begin + self.limits.seconds - time.monotonic())
        try:
            return await asyncio.wait_for(work, left)
        except asyncio.TimeoutError:
            raise RefusedError(status, f"{what} within {self.limits.seconds:g} seconds") from None


async def _body(request: Request, most: int) -> bytes:
    """Return the body; what is compressed is not read, and what is far too large not to its end."""
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise RefusedError(415, f"the body must not be compressed; its Content-Encoding is {shown(coding)}")
    told = request.headers.get("content-length", "0")
    too_large = RefusedError(413, f"the body has more than {most} bytes")
    if told.isdigit() and int(told) > (most if "expect" in request.headers else _DISCARDED * most):
        raise too_large
    parts, size, stream = [], 0, request.stream()
    async for part in stream:
        size += len(part)
        if size > most:
            await _discard(stream, _DISCARDED * most - size)
            raise too_large
        parts.append(part)
    return b"".join(parts)


async def _discard(stream: AsyncIterator[bytes], most: int) -> None:
    """Read on for a while: a connection that closes unread is reset, and the answer may be lost."""

    async def rest() -> None:
        left = most
        async for part in stream:
            left -= len(part)
            if left < 0:
                return

    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(rest(), _PATIENCE)


def _json(value: Any, status: int = 200) -> Response:
    # A refused body may not have been read: the connection cannot go on.
    headers = {"connection": "close"} if status in (408, 413, 415) else None
    return Response(json.dumps(value), status, headers, media_type="application/json")


def measured(server: Server, endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that counts, answers refusals as TensorFlow Serving does, and hides failures."""
    metrics, name = server.metrics, endpoint.__name__

    @functools.wraps(endpoint)
    async def counted(request: Request) -> Response:
        begin = time.perf_counter()
        with metrics.running.track_inprogress():
            try:
                response = await endpoint(request)
            except RefusedError as refused:
                response = _json({"error": str(refused)}, refused.status)
            except ClientDisconnect:
                response = Response(status_code=499)  # nobody reads it
            except Exception:
                _log.exception("%s failed", request.url.path)
                response = _json({"error": "the model failed; the log of the server says how"}, 500)
        metrics.requests.labels(name, response.status_code).inc()
        metrics.seconds.labels(name).observe(time.perf_counter() - begin)
        return response

    return counted


async def _not_found(request: Request, error: Exception) -> Response:
    status, headers = getattr(error, "status_code", 404), getattr(error, "headers", None) or {}
    path, method = shown(request.url.path), request.method
    what = f"{path} is for {headers['Allow']}, not {method}" if "Allow" in headers else f"{method} {path}"
    response = _json({"error": f"{what}: see the page at /"}, status)
    response.headers.update(headers)
    return response


def make_app(model: ServedModel, limits: Limits | None = None, threads: int | None = None) -> Starlette:
    """Return the ASGI application of a model."""
    server = Server(model, limits or Limits(), threads)
    routes = [
        ("GET", "/", server.help),
        ("GET", "/healthz", server.health),
        ("GET", "/metrics", server.prometheus),
        ("GET", "/monitoring/prometheus/metrics", server.prometheus),
        ("POST", "/predict", server.predict_one),
    ]
    for path in (_MODEL, f"{_MODEL}/versions/{{version:served}}"):
        routes += [
            ("POST", f"{path}:predict", server.predict),
            *(("POST", f"{path}{verb}", server.of_examples) for verb in _OF_EXAMPLES),
            ("GET", f"{path}/metadata", server.metadata),
            ("GET", path, server.status),
        ]
    return Starlette(
        routes=[Route(path, measured(server, call), methods=[method]) for method, path, call in routes],
        exception_handlers={404: _not_found, 405: _not_found},
    )
