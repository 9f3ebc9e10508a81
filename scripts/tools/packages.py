"""Build the sdist and the wheel, and try them in clean environments of each Python that is at hand.

    python -m scripts.tools.packages                    the wheel in a fresh environment of 3.10, 3.11 and 3.12
    python -m scripts.tools.packages --pythons 3.11     one of them

The wheel is built from the sdist, so that the sdist is tried too. Each environment installs the wheel with the versions
of constraints.txt, imports the package from an empty folder, trains and exports a model from the shell and predicts.
Needs a package index.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .. import _cli

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12")
TABLE = "age,ill\n" + "".join(f"{20 + i},{'yes' if i % 60 > 25 else 'no'}\n" for i in range(60))


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="python -m scripts.tools.packages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--pythons", nargs="+", default=PYTHONS, metavar="V", help="default: 3.10 3.11 3.12")
    return new


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        found = [version for version in options.pythons if shutil.which(f"python{version}")]
        for version in found:
            attempt(version, wheel, Path(folder) / version)
            print(f"Python {version}: installs, imports, trains, exports, predicts", flush=True)
    missing = sorted(set(options.pythons) - set(found))
    if missing:
        print(f"not at hand, and not tried: {', '.join(missing)}")
    return 0 if found else 1


def build(folder: Path) -> Path:
    """Return a wheel that was built from an sdist of this checkout."""
    venv = environment(sys.executable, folder / "build")
    _run(venv / "pip", "install", "--quiet", "build")
    _run(
        venv / "python", "-m", "build", "--outdir", folder / "dist", ROOT
    )  # the wheel is built from the sdist
    (sdist,), (wheel,) = (list((folder / "dist").glob(pattern)) for pattern in ("*.tar.gz", "*.whl"))
    print(f"built {sdist.name} and {wheel.name}", flush=True)
    return wheel


def attempt(version: str, wheel: Path, folder: Path) -> None:
    """Install a wheel in a clean environment, and use it from an empty folder."""
    venv, here = environment(f"python{version}", folder / "venv"), folder / "empty"
    here.mkdir()
    constraints = ("--constraint", ROOT / "constraints.txt")
    _run(venv / "pip", "install", "--quiet", *constraints, f"gpflow-ext[data] @ {wheel.as_uri()}")
    _run(venv / "pip", "check")
    (here / "table.csv").write_text(TABLE, encoding="utf-8")
    shell = venv / "gpflow-ext"
    _run(shell, "train", "--data", "table.csv", "--target", "ill", "--export", "model", cwd=here)
    _run(shell, "predict", "--model", "model", "--data", "table.csv", "--out", "predicted.csv", cwd=here)
    rows = (here / "predicted.csv").read_text(encoding="utf-8").splitlines()
    if len(rows) != len(TABLE.splitlines()):
        raise RuntimeError(f"Python {version}: {len(rows)} lines were predicted.")


def environment(python: str, folder: Path) -> Path:
    """Return the folder of the programs of a new environment."""
    _run(python, "-m", "venv", folder)
    return folder / "bin"


def _run(*command: str | Path, cwd: Path = ROOT) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = tuple(str(part) for part in command)
    subprocess.run(command, cwd=cwd, env=clean, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    _cli.run(lambda: sys.exit(main()))
