"""Reproduce the sampling experiments of Hensman et al. (2015)."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import _cli
import _report

EPILOG = """\
examples
  GPFLOW_EXT_DATA=data python scripts/reproduce/sgpmc.py            ten splits, minutes
  GPFLOW_EXT_DATA=data python scripts/reproduce/sgpmc.py --quick    one split, few draws, into runs/

experiment
  coal   counts of 191 mining disasters: held-out log density of the Gaussian and of the free-form posterior, R-hat
         and effective draws of ten chains

A run that is stopped goes on where it was. Results go to sgpmc.md and sgpmc.jsonl.
"""


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    new.add_argument("--quick", action="store_true", help="one split, three trials, few draws")
    new.add_argument("--splits", type=int, metavar="S", help="random splits (default: 10; 1 with --quick)")
    new.add_argument("--draws", type=int, metavar="N", help="of each chain (default: 1000; 20 with --quick)")
    new.add_argument("--threads", type=int, metavar="T", help="threads (default: one per core)")
    new.add_argument(
        "--out", type=Path, metavar="DIR", help="default: docs/results, runs/reproduce_sgpmc with --quick"
    )
    return new


def main() -> None:
    """Sample, score, write."""
    options = arguments().parse_args()
    _report.set_threads(options.threads)
    import _sgpmc_coal as coal
    from _journal import Journal

    quick = options.quick
    folder = options.out or Path("runs/reproduce_sgpmc" if quick else "docs/results")
    begin = time.perf_counter()
    where = _report.environment(options.threads)

    def write(journal: Journal) -> None:
        headings = [record for record in journal.records if "cpu" in record]
        text = "\n".join([coal.header(headings[-1]), *coal.document(journal)])
        _report.write(folder / "sgpmc.md", text)

    journal = Journal(folder / "sgpmc.jsonl", write)
    journal.heading = where
    splits, draws = options.splits or (1 if quick else coal.SPLITS), options.draws or (20 if quick else 1000)
    coal.run(journal, splits, draws, trials=3 if quick else 30)
    write(journal)
    print((folder / "sgpmc.md").read_text(encoding="utf-8"))
    print(f"written to {folder / 'sgpmc.md'}; {time.perf_counter() - begin:.0f} seconds")


if __name__ == "__main__":
    _cli.run(main)
