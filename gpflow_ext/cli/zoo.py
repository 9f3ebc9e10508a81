"""List or check trained models: `gpflow-ext zoo`."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from gpflow_ext import zoo
from gpflow_ext.cli import flags, report
from gpflow_ext.cli.run import import_tensorflow

EPILOG = """\
examples
  gpflow-ext zoo                                          the models of GPFLOW_EXT_ZOO, or of saved_models/
  gpflow-ext zoo --folder exports
  gpflow-ext zoo wine_sparse_ep                           verify and load one, show what it is
  gpflow-ext zoo wine_sparse_ep --folder https://example.org/zoo --sha256 9a326fbc...
  gpflow-ext zoo wine_sparse_ep --folder hf://owner/repository
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    new = flags.parser("List trained models, or verify and load one of them.", EPILOG, "gpflow-ext zoo")
    new.add_argument(
        "name", nargs="?", metavar="NAME", help="of a model, or NAME/VERSION (default: list all)"
    )
    new.add_argument(
        "--folder",
        metavar="DIR|ADDRESS",
        help=f"of the models; an address is https://... or hf://owner/repository (default: {zoo.VARIABLE}, or "
        "saved_models/)",
    )
    new.add_argument("--sha256", metavar="HASH", help="which the manifest of the model must have")
    new.add_argument("--key", type=Path, metavar="FILE", help="public Ed25519 key by which it must be signed")
    return new


def main(arguments: Sequence[str]) -> None:
    """List the models, or load one."""
    options = parser().parse_args(arguments)
    if options.name is None:
        show(zoo.list(options.folder))
        return
    if "://" not in str(options.folder or os.environ.get(zoo.VARIABLE)):
        _find(options)  # a mistake needs no TensorFlow
    key = options.key and options.key.read_bytes()
    import_tensorflow()
    served = zoo.load(options.name, options.folder, sha256=options.sha256, key=key)
    about = served.manifest
    print(f"{served.path}: verified and loaded")
    print(
        f"  {about['model']['model']['class'].rpartition('.')[2]}, {flags.task(about['task'])}, of {about['data']['name']}"
    )
    names = about["data"]["feature_names"] or [f"input {i}" for i in range(about["data"]["D"])]
    print(f"  {len(names)} inputs: {', '.join(names)}")
    if served.labels:
        print(f"  classes: {', '.join(served.labels)}")
    print(f"  SHA-256 {about['manifest_sha256']}")
    report.scores(about["metrics"])
    report.after_export(served.path, "")


def _find(options: argparse.Namespace) -> None:
    """Raise ``ValueError`` for a name that no model has; that of a folder or an address goes with a flag."""
    try:
        zoo.find(options.name, options.folder, sha256=options.sha256)
    except ValueError as error:
        if options.folder is None and ("://" in options.name or Path(options.name).is_dir()):
            place = shlex.quote(options.name)
            raise ValueError(
                f"a model is named by itself, and its folder or address by --folder {place}"
            ) from error
        raise


def show(models: Sequence[zoo.Model]) -> None:
    """Print a table of models."""
    rows = [
        (
            one.name,
            one.kind,
            flags.task(one.task),
            one.data or "",
            *(_score(one, *names) for names in (("nlpd",), ("error", "rmse"))),
            str(one.inputs),
            f"{one.size / 1000:.0f}",
        )
        for one in models
    ]
    report.table("zoo", ("name", "class", "task", "data", "nlpd", "error or rmse", "inputs", "kB"), rows)
    if models:
        report.next_commands(("gpflow-ext", "zoo", models[0].name))


def _score(model: zoo.Model, *names: str) -> str:
    found = [model.scores[name] for name in names if name in model.scores]
    return f"{found[0]:.3g}" if found else ""
