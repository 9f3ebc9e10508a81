"""The command that serves: arguments, the listening socket, and its end."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from .limits import Limits

DESCRIPTION = """\
Serve an exported model over HTTP, in the REST dialect of TensorFlow Serving.

The model is verified, and what is loaded is what was verified. SIGTERM ends the server when the running
requests have their answers. It knows no users and no TLS: put it behind a proxy that does.
"""
EPILOG = """\
examples
  {prog} saved_models/wine_sparse_ep --port 8080
  curl localhost:8080/v1/models/wine_sparse_ep:predict \\
      -d '{"instances": [[13.2, 1.8, 2.4, 16, 100, 2.8, 3, 0.3, 2, 5.6, 1.1, 3.2, 1065]]}'
  curl localhost:8080/                                      all calls, for this model

A request that the model cannot answer gets 422 and says why, of several reasons the first ten.
"""
_HELP = {
    "rows": "rows of a request",
    "bytes": "bytes of its body",
    "seconds": "seconds to its answer",
    "header_seconds": "seconds to the end of its headers",
    "connections": "connections at once",
}


def parser(
    prog: str | None = None, parser_class: type[argparse.ArgumentParser] = argparse.ArgumentParser
) -> argparse.ArgumentParser:
    """Return the parser, of some class, by default of the script that runs."""
    new = parser_class(
        prog=prog, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    new.epilog = EPILOG.replace("{prog}", new.prog)
    new.add_argument("model", type=Path, help="an exported model, or one version of it")
    new.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    new.add_argument("--port", type=_between(0, 65_535), default=8080, help="port (default: %(default)s)")
    new.add_argument("--key", type=Path, metavar="FILE", help="public Ed25519 key by which it must be signed")
    new.add_argument(
        "--threads",
        type=_between(1, 10_000),
        metavar="N",
        help="calls of the model at once (default: the number of cores)",
    )
    limits = new.add_argument_group("limits")
    for field in fields(Limits):
        limits.add_argument(
            f"--most-{field.name.replace('_', '-')}",
            type=type(field.default),
            default=field.default,
            metavar="N",
            help=f"{_HELP[field.name]}, at most (default: %(default)s)",
        )
    return new


def _between(least: int, most: int) -> Callable[[str], int]:
    """Return what reads a whole number from least to most."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return read


def main(
    arguments: Sequence[str] | None = None,
    prog: str | None = None,
    start: Callable[[], None] = lambda: None,
    parser_class: type[argparse.ArgumentParser] = argparse.ArgumentParser,
) -> None:
    """Serve from the command line by a parser of some class; ``start`` goes before TensorFlow's import."""
    options = parser(prog, parser_class).parse_args(arguments)
    for path, kind in ((options.model, "exported model"), (options.key, "key")):
        if path is not None and not path.exists():  # said before TensorFlow is imported
            raise SystemExit(f"error: there is no {kind} at {path}")
    with _bound(options.host, options.port) as listening:
        _serve(options, listening, start)


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket at an address, not listening yet: what is taken is said before a model loads."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        reason = error.strerror or error
        raise SystemExit(f"error: {host}, port {port}: {reason}; choose another --port or --host") from error
    return found


def _serve(options: argparse.Namespace, listening: socket.socket, start: Callable[[], None]) -> None:
    """Load the model, and serve it on a socket until the end."""
    try:
        start()
        import uvicorn

        from .app import make_app
        from .connections import bounded
        from .model import ServedModel
        from .page import curl

        limits = Limits(**{field.name: getattr(options, f"most_{field.name}") for field in fields(Limits)})
        model = ServedModel(options.model, options.key and options.key.read_bytes())
    except ImportError as error:
        raise SystemExit(f'error: {error}; serving needs pip install "gpflow-ext[serve]"') from error
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    print(f"{model.folder}: verified, warmed up in {model.seconds:.2f} seconds")
    host = f"[{options.host}]" if ":" in options.host else options.host
    print(f"next:\n  {curl(model, f'http://{host}:{listening.getsockname()[1]}')}", flush=True)
    config = uvicorn.Config(
        make_app(model, limits, options.threads),
        http=bounded(limits),
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
    )
    uvicorn.Server(config).run(sockets=[listening])
