"""Names of a package that are imported when they are first asked for (PEP 562)."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
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
        ``"fitting:fit"`` what a module defines. Where a name is none of them, the error tells in which
        of the modules it is.
    """

    def getattribute(name: str) -> Any:
        if name not in places:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}{_elsewhere(package, places, name)}",
                name=name,
                obj=sys.modules[package],
            )
        module, _, attribute = places[name].partition(":")
        value: Any = _imported(f"{package}.{module}")
        value = getattr(value, attribute) if attribute else value
        vars(sys.modules[package])[name] = value  # found without this function from now on
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return getattribute, names


def _elsewhere(package: str, places: Mapping[str, str], name: str) -> str:
    """Return in which modules of the package a name is, as the end of a sentence."""
    if name.startswith("_"):
        return ""
    found = [
        f"{package}.{each}.{name}"
        for each, place in places.items()
        if ":" not in place and name in _public(f"{package}.{place}")
    ]
    return f"; it is {' or '.join(found)}" if found else ""


def _public(module: str) -> set[str]:
    """Return ``__all__`` of a module, or what it defines, by its file: to import it may take seconds."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return set()
    defined = set()
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(each) for each in node.targets] == ["__all__"]:
            return set(ast.literal_eval(node.value))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
    return defined


def _imported(name: str) -> Any:
    if name in sys.modules:
        return importlib.import_module(name)
    with _collector.settled():
        return importlib.import_module(name)
