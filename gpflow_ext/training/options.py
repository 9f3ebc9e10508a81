"""Options given by name: a mapping becomes a dataclass, and a wrong one is named with the right ones."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

T = TypeVar("T")


def options_from(kind: type[T], given: Mapping[str, Any], what: str) -> T:
    """Return ``kind(**given)``.

    Parameters
    ----------
    kind
        A dataclass. Its annotations say what its fields take: members of a ``Literal``, numbers, tuples,
        classes, ``None``; a whole number also serves as a float, a list as a tuple. ``Any`` takes all.
    given
        Values by name.
    what
        Whose options they are, to begin the message with, such as ``"tuner 'nuts'"``.

    Raises
    ------
    ValueError
        For a name that is not a field, a field without a default that is missing, or a value that its
        annotation does not allow; and what ``__post_init__`` raises.
    """
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    for name in given:
        if name not in fields:
            allowed = f"its options are {', '.join(fields)}" if fields else "it has none"
            raise ValueError(f"{what} has no option {name!r}; {allowed}.")
    needed = [name for name, field in fields.items() if _is_needed(field) and name not in given]
    if needed:
        raise ValueError(f"{what} needs the option {needed[0]!r}.")
    annotations = typing.get_type_hints(kind)
    for name, value in given.items():
        if not _fits(value, annotations[name]):
            raise ValueError(
                f"Option {name!r} of {what} must be {_described(annotations[name])}; got {value!r}."
            )
    return kind(**given)


def refuse_unused(options: Any, names: Sequence[str], why: str) -> None:
    """Raise ``ValueError`` for options that were given although nothing would follow them.

    Parameters
    ----------
    options
        A dataclass with defaults; what differs from its default was given.
    names
        Of those that would not be used.
    why
        The end of the message.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    given = [f"`{name}`" for name in names if getattr(options, name) != defaults[name]]
    if given:
        raise ValueError(f"{' and '.join(given)} would not be used: {why}.")


def _is_needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _fits(value: Any, annotation: Any) -> bool:
    """Tell whether an annotation allows a value."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return True
    if annotation is None:
        return value is None
    if origin is Literal:
        return any(value == member and type(value) is type(member) for member in arguments)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin is tuple:
        return isinstance(value, tuple | list) and _elements_fit(value, arguments)
    if annotation in (int, float):
        numbers = (int, float) if annotation is float else int
        return isinstance(value, numbers) and not isinstance(value, bool)
    return isinstance(value, origin or annotation)


def _elements_fit(values: tuple[Any, ...] | list[Any], annotations: tuple[Any, ...]) -> bool:
    if len(annotations) == 2 and annotations[1] is Ellipsis:
        return all(_fits(value, annotations[0]) for value in values)
    return len(values) == len(annotations) and all(map(_fits, values, annotations))


def _described(annotation: Any) -> str:
    """Say what an annotation allows."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None or annotation is type(None):
        return "None"
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(map(_described, arguments))
    return str(annotation) if arguments else annotation.__name__
