"""Options and fixtures shared by the whole suite."""

from __future__ import annotations

import functools
import gc
import gzip
import os
import time
import typing
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The tests run side by side, and their problems are tiny.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest

gc.disable()  # until all modules are imported: it would go through all that lives on, again and again
# TensorFlow compares with a protocol for each operation of a graph, and Python lists its members anew each time.
typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", default=False, help="also run the long tests")
    parser.addoption("--minutes", type=float, metavar="M", help="skip the tests that would begin later")
    parser.addoption("--slow-share", metavar="K/N", help="of the long tests run the K-th of N shares, alone")


_IN_TURN = Path(__file__).with_name("in_turn.txt")  # written by `scripts.tools.cases_in_turn`


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    in_turn = set(_IN_TURN.read_text(encoding="utf-8").splitlines()) if _IN_TURN.exists() else set()
    for item in items:
        if item.nodeid in in_turn:
            item.add_marker(pytest.mark.slow)
    share = config.getoption("--slow-share")
    if share:
        number, shares = map(int, share.split("/"))
        kept = [item for item in items if item.get_closest_marker("slow") and _share(item, shares) == number]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    elif not config.getoption("--runslow"):
        skip = pytest.mark.skip(reason="slow: run with --runslow")
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(skip)


_BEGIN = time.monotonic()
_DRAWN = dict[np.random.Generator, Mapping[str, object]]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for generator in _generators(item):  # a test draws the same numbers whichever ran before it
        generator.bit_generator.state = _DRAWN[generator]
    minutes = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - _BEGIN > 60.0 * minutes:
        pytest.skip(f"{minutes:g} minutes are over")


def _generators(item: pytest.Item) -> list[np.random.Generator]:
    """Return the generators of random numbers that belong to the module of a test."""
    module = getattr(item, "module", None)
    return [each for each in vars(module or object).values() if isinstance(each, np.random.Generator)]


def _share(item: pytest.Item, shares: int) -> int:
    """Return the share of a test, from 1, which its name decides."""
    return zlib.crc32(item.nodeid.encode()) % shares + 1


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Seconds(config), "seconds of files")


class _Seconds:
    """Keeps what each file of tests takes, for `scripts.tools.check`."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._seconds = config, dict[str, float]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._seconds[file] = self._seconds.get(file, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        cache = getattr(self._config, "cache", None)
        if cache is None or hasattr(self._config, "workerinput"):
            return
        name = "gpflow_ext/seconds"
        cache.set(name, {**cache.get(name, {}), **self._seconds})


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note the state of the modules' generators, and take what the imports made out of the collector's sight."""
    _DRAWN.update((each, each.bit_generator.state) for item in session.items for each in _generators(item))
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 1000)  # those of everything are left to the fixtures below
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _leave_survivors() -> Iterator[None]:
    """Do the same with what TensorFlow keeps after a module's tests: collections would go through it each time."""
    yield
    gc.collect()
    gc.freeze()


_collected = time.process_time()


@pytest.fixture(autouse=True)
def _free_graphs() -> Iterator[None]:
    """Free the graphs that tests compiled, now and then: they refer to themselves, and wait for a collection."""
    global _collected
    yield
    if time.process_time() - _collected > 3.0:
        gc.collect()
        _collected = time.process_time()


@pytest.fixture
def record_property(record_property: Callable[[str, object], None]) -> Callable[[str, float], None]:
    """Record a figure as a plain number, which every process can read."""
    return lambda name, value: record_property(name, float(value))


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


@pytest.fixture(scope="session", name="exported")
def _exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small exported classifier, to be copied and edited."""
    import hostile

    import gpflow_ext as gpx

    folder = tmp_path_factory.mktemp("exported") / "small"
    return gpx.export(
        hostile.small(), folder, labels=["ill", "well"], metrics={"error": 0.25}, notes="Small."
    )
