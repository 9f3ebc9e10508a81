"""Draw the pictures of the guide: each model at work, and the floors of the package."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .. import _cli

EPILOG = """\
examples
  python -m scripts.tools.pictures                               all pictures, a minute, into docs/images/
  python -m scripts.tools.pictures --only vgp_kmm --out runs     one of them

The data are generated or come with scikit-learn. models.png holds the pictures of all models side by side.
"""


MODELS = ("vgp_kmm", "sparse_ep", "svgp_robustmax", "sgpmc_freeform", "gprn_tensor", "review")
OTHERS = ("label_noise", "state_space")


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(
        prog="python -m scripts.tools.pictures",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument(
        "--only", choices=[*MODELS, *OTHERS, "architecture"], nargs="+", metavar="NAME", help="default: all"
    )
    new.add_argument(
        "--out", type=Path, default=Path("docs/images"), metavar="DIR", help="default: docs/images"
    )
    return new


def main() -> None:
    """Draw and save."""
    options = arguments().parse_args()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from . import architecture, panels

    options.out.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in (*MODELS, *OTHERS) if options.only is None or name in options.only]

    def save(figure: Any, name: str) -> None:
        figure.savefig(options.out / f"{name}.png", dpi=110)
        plt.close(figure)
        print(f"written to {options.out / f'{name}.png'}", flush=True)

    painters = {name: getattr(panels, name)() for name in chosen}
    for name, painter in painters.items():
        figure, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
        painter(ax)
        save(figure, name)
    if options.only is None:
        figure, axes = plt.subplots(2, 3, figsize=(13.5, 7.2), layout="constrained")
        for ax, name in zip(axes.ravel(), MODELS, strict=True):
            painters[name](ax)
        save(figure, "models")
    if options.only is None or "architecture" in options.only:
        save(architecture.picture(), "architecture")


if __name__ == "__main__":
    _cli.run(main)
