"""Serve an exported model over HTTP, with FastAPI and TensorFlow alone: an example to copy and change.

The batch endpoint speaks the REST dialect of TensorFlow Serving, so that clients of one can talk to the other. The
script needs neither gpflow nor gpflow_ext installed, only the folder ``verify`` of the package, which imports nothing of it.
"""

import argparse
import importlib.util
import math
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

EPILOG = """\
examples
  python scripts/serve.py saved_models/wine_sparse_ep --port 8080
  curl localhost:8080/v1/models/wine_sparse_ep:predict -d '{"instances": [[13.2, 1.8, 2.4, 16, 100, 2.8, 3, 0.3, 2, 5.6, 1.1, 3.2, 1065]]}'

endpoints
  GET  /healthz                      200 once the model is loaded, verified and warmed up
  GET  /v1/models/NAME/metadata      manifest: inputs with their names, signatures, labels, scores
  POST /v1/models/NAME:predict       many rows: {"instances": [[...], ...]} gives {"predictions": [{...}, ...]}
  POST /predict                      one row by names: {"alcohol": 13.2, ...} gives {...}

A request that the model cannot answer gets 422 and a sentence that says why. Describe the port to the world with a proxy
that knows users and limits: this server knows none but --most-rows.
"""
VERIFY = Path(__file__).resolve().parent.parent / "gpflow_ext" / "persistence" / "verify" / "__init__.py"


class Model:
    """A verified SavedModel with its manifest, called from many threads at once."""

    def __init__(self, path: Path) -> None:
        import tensorflow as tf

        verify = _verify()
        self.folder = verify.verify(path).folder
        self.manifest = verify.read_manifest(self.folder)
        self.name: str = self.manifest["name"]
        self.width: int = self.manifest["data"]["D"]
        self.names: list[str] | None = self.manifest["data"]["feature_names"]
        self._tf, self._loaded = tf, tf.saved_model.load(str(self.folder))
        self._predict = self._loaded.signatures["serving_default"]
        self._dtype = tf.as_dtype(self.manifest["dtype"])

    def warm_up(self) -> float:
        """Call the model for the first time, which is slow; return the seconds. Refuse it if it is wrong."""
        import numpy as np

        begin = time.perf_counter()
        with np.load(self.folder / "example.npz") as example:
            found = self._predict(inputs=self._tf.constant(example["inputs"]))["mean"].numpy()
            if not np.allclose(found, example["mean"], rtol=1e-5, atol=1e-6):
                raise ValueError(f"{self.folder} does not return here what it returned when it was exported")
        return time.perf_counter() - begin

    def predict(self, rows: list[list[float]]) -> list[dict[str, Any]]:
        """Return the outputs of each row, as JSON has them."""
        tensors = self._predict(inputs=self._tf.constant(rows, self._dtype, shape=[len(rows), self.width]))
        columns = {key: value.numpy().tolist() for key, value in tensors.items()}
        return [{key: _plain(column[i]) for key, column in columns.items()} for i in range(len(rows))]


def _verify() -> Any:
    spec = importlib.util.spec_from_file_location("verify", VERIFY)
    if spec is None or spec.loader is None or not VERIFY.is_file():
        raise ImportError(f"{VERIFY} is missing: copy its folder from the package.")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: text instead of bytes, null instead of NaN."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        return value.decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def make_app(path: Path, most_rows: int = 10_000) -> Any:
    """Return the application, its model loaded and warmed up."""
    import fastapi
    import pydantic

    Number = Annotated[float, pydantic.Field(strict=True, allow_inf_nan=False)]
    served = Model(path)
    print(f"{served.folder}: verified, warmed up in {served.warm_up():.2f} seconds", flush=True)
    app = fastapi.FastAPI(title="gpflow_ext")

    @app.exception_handler(fastapi.exceptions.RequestValidationError)
    def unfit(request: fastapi.Request, error: fastapi.exceptions.RequestValidationError) -> Any:
        # Without the input, which FastAPI would repeat: NaN has no JSON, and the refusal would be a failure.
        reasons = [{"loc": reason["loc"], "msg": reason["msg"]} for reason in error.errors()]
        return fastapi.responses.JSONResponse({"detail": reasons}, status_code=422)

    class Rows(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        instances: list[list[Number]] = pydantic.Field(min_length=1, max_length=most_rows)
        signature_name: str = "serving_default"

    def refuse(code: int, reason: str) -> NoReturn:
        raise fastapi.HTTPException(code, reason)

    @app.get("/healthz")
    def healthz() -> dict[str, Any]:
        return {"status": "ok", "model": served.name, "version": served.manifest["version"]}

    @app.get("/v1/models/{name}/metadata")
    def metadata(name: str) -> dict[str, Any]:
        if name != served.name:
            refuse(404, f"the model here is {served.name}, not {name}")
        return served.manifest

    @app.post("/v1/models/{name}:predict")
    def predict(name: str, request: Rows) -> dict[str, Any]:
        if name != served.name:
            refuse(404, f"the model here is {served.name}, not {name}")
        if request.signature_name != "serving_default":
            refuse(422, "the signature served here is serving_default")
        for i, row in enumerate(request.instances):
            if len(row) != served.width:
                refuse(422, f"row {i} has {len(row)} inputs; the model takes {served.width}")
        return {"predictions": served.predict(request.instances)}

    @app.post("/predict")
    def predict_one(request: dict[str, Number]) -> dict[str, Any]:
        if served.names is None:
            refuse(422, f"the inputs of this model have no names: use /v1/models/{served.name}:predict")
        missing, extra = set(served.names) - set(request), set(request) - set(served.names)
        if missing or extra:
            refuse(422, f"missing inputs: {sorted(missing)}; unknown inputs: {sorted(extra)}")
        return served.predict([[request[name] for name in served.names]])[0]

    return app


def main() -> None:
    """Serve from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="an exported model, or one version of it")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="port (default: %(default)s)")
    parser.add_argument(
        "--most-rows",
        type=int,
        default=10_000,
        metavar="N",
        help="rows of a request at most (default: %(default)s)",
    )
    options = parser.parse_args()
    try:
        import uvicorn

        app = make_app(options.model, options.most_rows)
    except ImportError as error:
        raise SystemExit(f'error: {error}; serving needs pip install "gpflow-ext[serve]"') from error
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
