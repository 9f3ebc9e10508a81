"""Print the paper behind a model: `gpflow-ext cite`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gpflow_ext.citations import NAMES, cite
from gpflow_ext.cli import flags, kinds
from gpflow_ext.data.reading.problems import nearest

EPILOG = """\
examples
  gpflow-ext cite sparse-ep
  gpflow-ext cite VGPKMM svi_natural
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    new = flags.parser("Print the paper behind a model or a recipe, as BibTeX.", EPILOG, "gpflow-ext cite")
    new.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help=f"one of {', '.join(kinds.KINDS)}; the name of a class or of a recipe of gpflow_ext.fit",
    )
    return new


def main(arguments: Sequence[str]) -> None:
    """Print the entries, each once."""
    names = parser().parse_args(arguments).names
    known = {name: kind.cites for name, kind in kinds.KINDS.items()} | {name: name for name in NAMES}
    for name in names:
        if name not in known:
            raise ValueError(
                f"No paper is recorded for {name!r}{nearest(name, known)}; there is one for {', '.join(known)}."
            )
    print("\n\n".join(dict.fromkeys(cite(known[name]) for name in names)))
