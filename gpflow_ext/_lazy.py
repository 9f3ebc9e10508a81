"""Names of a package that are imported when they are first asked for (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from gpflow_ext import _collector


def attach(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package.

    Parameters
    ----------
    package
        Its name.
    places
        Where each name is found, by the path below the package: ``"data.datasets"`` is a module,
        ``"fitting:fit"`` what a module defines.
    """

    def getattribute(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = places[name].partition(":")
        value: Any = _imported(f"{package}.{module}")
        value = getattr(value, attribute) if attribute else value
        vars(sys.modules[package])[name] = value  # found without this function from now on
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return getattribute, names


def _imported(name: str) -> Any:
    if name in sys.modules:
        return importlib.import_module(name)
    with _collector.settled():
        return importlib.import_module(name)
