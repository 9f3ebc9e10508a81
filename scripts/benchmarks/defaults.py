"""Every model at its defaults on public tables, beside other libraries, and how near its fit comes to the best one."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

from .. import _cli
from .resumable import add_options, guarded, measure_and_write, parsed

EPILOG = """\
examples
  GPFLOW_EXT_DATA=data python -m scripts.benchmarks.defaults --threads 1 --splits 10    everything, hours
  python -m scripts.benchmarks.defaults --quick                                         a minute, into runs/
  GPFLOW_EXT_DATA=data python -m scripts.benchmarks.defaults --tables sonar iris --rows 300 --out runs/defaults.md
  GPFLOW_EXT_DATA=data python -m scripts.benchmarks.defaults --models SparseEP --again  one model, after a change
  GPFLOW_EXT_DATA=data python -m scripts.benchmarks.defaults --page                     the page alone, from the journal

One line for each table, split and model goes to the .jsonl beside the page as it is measured, and a rerun skips what is
there: stop it at any time. At last each model of the package is also fitted to the first split from random starts, for the
best objective that is known. A table with more rows than --rows is cut to as many of its training part.
"""
QUICK = {"tables": ["diabetes"], "rows": 50, "splits": 1, "starts": 1, "cap": 3.0}


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(
        prog="python -m scripts.benchmarks.defaults",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--tables", nargs="+", metavar="NAME", help="some of them (default: all)")
    new.add_argument("--models", nargs="+", metavar="NAME", help="some of them (default: all)")
    new.add_argument(
        "--splits", type=_cli.positive, default=3, metavar="K", help="of each table (default: 3)"
    )
    new.add_argument(
        "--rows", type=_cli.positive, default=1500, metavar="N", help="training rows at most (default: 1500)"
    )
    new.add_argument(
        "--starts", type=int, default=10, metavar="S", help="random starts, 0 for none (default: 10)"
    )
    new.add_argument(
        "--cap",
        type=_cli.above_zero,
        default=120.0,
        metavar="S",
        help="seconds after which no further random start begins, and GPflow's optimiser ends (default: 120)",
    )
    add_options(new, "defaults")
    return new


def run(options: argparse.Namespace, journal: Any) -> None:
    """Measure what the journal lacks, split by split."""
    from . import defaults_tables

    tables = options.tables or defaults_tables.TABLES
    for split in range(options.splits):
        for table in tables:
            if not split or table not in defaults_tables.FIXED:
                measure_part(table, split, contenders, options, journal)
    for table in tables if options.starts else ():
        measure_part(table, 0, random_starts, options, journal)


def measure_part(
    table: str,
    split: int,
    of_part: Callable[[Any, argparse.Namespace], dict[str, Callable[[], Any]]],
    options: argparse.Namespace,
    journal: Any,
) -> None:
    """Measure what the journal lacks of one split of a table."""
    from . import defaults_tables

    part = defaults_tables.load(table, split, options.rows)
    rows, inputs = part.X.shape
    where = {"table": table, "split": split, "rows": rows, "inputs": inputs, "task": part.task}
    for name, measure in of_part(part, options).items():
        if options.models is None or name.split(" from random")[0] in options.models:
            journal.once({**where, "model": name}, functools.partial(guarded, measure))
    print(f"{table}, split {split}: done", flush=True)


def contenders(part: Any, options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Return how each model is measured on one part."""
    from . import defaults_models as models
    from . import defaults_peers as peers

    found: dict[str, Callable[[], Any]] = {}
    for name, build in models.ours(part).items():
        found[name] = functools.partial(models.measure, build, part)
    for name, fit in peers.peers(part).items():
        found[name] = functools.partial(peers.measure, fit, part)
    for name, build in models.gpflow_builds(part).items():
        found[name] = functools.partial(models.gpflow_by_scipy, build, part, options.cap)
    return found


def random_starts(part: Any, options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Return how the best objective of each model of the package is sought on one part."""
    from . import defaults_models as models

    return {
        f"{name} from random starts": functools.partial(
            models.best_of_random, build, part, options.starts, options.cap
        )
        for name, build in models.ours(part).items()
    }


def main() -> None:
    """Measure and write."""
    from . import defaults_page

    measure_and_write(parsed(arguments(), QUICK), "defaults", run, defaults_page.text)


if __name__ == "__main__":
    _cli.run(main)
