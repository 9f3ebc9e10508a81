"""Train Gaussian processes on scattering features of MNIST, from pixels, and record scores and CPU seconds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ... import _cli
from ...shared import report

EPILOG = """\
examples
  GPFLOW_EXT_DATA=data python -m scripts.experiments.images --threads 1                         the test images, all settings
  GPFLOW_EXT_DATA=data python -m scripts.experiments.images --validate --threads 1 --order 1 2  choices, on training images
  GPFLOW_EXT_DATA=data python -m scripts.experiments.images --convolutional weighted --threads 1 convolutional kernel
  GPFLOW_EXT_DATA=data python -m scripts.experiments.images --quick                             a reduced form, into runs/

settings
  quick   order 1, 1,000 inducing features, q from one pass of regression on the labels and no steps
  medium  order 2, 1,000 inducing features, likewise
  large   order 2, 3,000 inducing features, likewise
  shifted order 2, 5,000 inducing features, and four copies of each image, shifted by a pixel; four minutes
  wide    order 2 on three scales, 8,000 inducing features; seven minutes, 8 GB of memory

With --data fashion_mnist the settings are run on Fashion-MNIST: its four files train-images-idx3-ubyte and so on, as they
are published, in the folder fashion_mnist of GPFLOW_EXT_DATA. With --validate the last 10,000 training images stand in for the
test set, which is not read. Results are added to images.jsonl; images.md and figures are written anew from all that is in it.
"""


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(
        prog="python -m scripts.experiments.images",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument(
        "--setting",
        nargs="+",
        choices=("quick", "medium", "large", "shifted", "wide"),
        help="default: quick medium large; quick alone with --quick",
    )
    new.add_argument(
        "--quick",
        action="store_true",
        help="the first 2,000 training and 1,000 test images, 100 inducing features",
    )
    new.add_argument(
        "--data",
        choices=("mnist", "fashion_mnist"),
        default="mnist",
        help="images of the settings; default: %(default)s",
    )
    new.add_argument(
        "--others",
        action="store_true",
        help="the other problems alone: odd against even digits, and textures",
    )
    new.add_argument(
        "--convolutional",
        nargs="+",
        choices=("weighted", "translation-insensitive"),
        metavar="KERNEL",
        help="convolutional kernels alone, weighted or translation-insensitive; a run that was ended goes on",
    )
    new.add_argument(
        "--images",
        nargs="+",
        type=int,
        metavar="N",
        help="number of training images of these; all by default",
    )
    new.add_argument(
        "--checkpoints",
        type=Path,
        default=Path("runs/convolutional"),
        metavar="DIR",
        help="folder of their checkpoints; default: %(default)s",
    )
    new.add_argument("--seeds", nargs="+", type=int, default=(0,), metavar="S")
    new.add_argument("--validate", action="store_true", help="hold out training images; read no test image")
    new.add_argument(
        "--order",
        nargs="+",
        type=int,
        choices=(1, 2),
        help="orders of the features in place of the setting's",
    )
    new.add_argument("--scales", nargs="+", type=int, metavar="J", help="numbers of scales likewise")
    new.add_argument(
        "--inducing", nargs="+", type=int, metavar="M", help="numbers of inducing features likewise"
    )
    new.add_argument("--dims", nargs="+", type=int, metavar="D", help="numbers of principal axes likewise")
    new.add_argument(
        "--copies", nargs="+", type=int, metavar="C", help="copies of an image, 1 to 9, likewise"
    )
    new.add_argument("--lengthscale", nargs="+", type=float, metavar="L", help="first length scales likewise")
    new.add_argument("--steps", nargs="+", type=int, metavar="N", help="steps on minibatches after the start")
    new.add_argument(
        "--gamma", nargs="+", type=float, metavar="G", help="lengths of natural gradients likewise"
    )
    new.add_argument("--threads", type=_cli.positive, metavar="T", help="threads (default: one per core)")
    new.add_argument(
        "--out", type=Path, metavar="DIR", help="default: docs/results, runs/reproduce_images with --quick"
    )
    return new


def options(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what is asked for, by default on the command line."""
    parser = arguments()
    found = parser.parse_args(given)
    if found.data != "mnist" and (found.others or found.convolutional):
        parser.error("--others and --convolutional are on MNIST: leave --data out")
    if found.quick and (found.others or found.convolutional):
        parser.error("--quick is of the settings: leave --others and --convolutional out")
    found.setting = found.setting or (("quick",) if found.quick else ("quick", "medium", "large"))
    found.inducing = found.inducing or ([100] if found.quick else None)
    found.out = found.out or Path("runs/reproduce_images" if found.quick else "docs/results")
    return found


def main() -> None:
    """Train, record, draw, write."""
    asked = options()
    report.set_threads(asked.threads)
    from . import page

    page.run(asked)


if __name__ == "__main__":
    _cli.run(main)
