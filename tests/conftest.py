"""Options and fixtures shared by the whole suite."""

from __future__ import annotations

import gc
import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The tests run side by side, and their problems are tiny.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", default=False, help="also run the long tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--runslow"):
        return
    skip = pytest.mark.skip(reason="slow: run with --runslow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="module", autouse=True)
def _free_graphs() -> Iterator[None]:
    """Free the graphs that a module compiled: they refer to themselves and wait for the collector."""
    yield
    gc.collect()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a text file, compressed where its name ends in .gz."""

    def write_file(content: str | bytes, name: str = "data.csv") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write_file
