"""A mapping becomes a dataclass of options; what is wrong with it is named, with what is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from gpflow_ext.training.options import options_from


@dataclass(frozen=True)
class Options:
    """One field of each kind."""

    steps: int = 10
    rate: float = 0.1
    order: Literal["cyclic", "random", 3] = "cyclic"
    box: tuple[float, float] = (0.0, 1.0)
    layers: tuple[int, ...] = ()
    most: int | None = None
    loud: bool = False
    report: Callable[[int], None] | None = None
    anything: Any = None
    derived: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"`steps` must be at least 1; got {self.steps}.")


@dataclass(frozen=True)
class Needed:
    """A field without a default."""

    steps: int


class Empty:
    """No fields."""


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"steps": 3, "rate": 1, "order": "random", "box": (0, 2.5), "layers": (1, 2, 3), "most": 4, "loud": True},
        {"order": 3, "box": [0.0, 1.0], "most": None, "report": print, "anything": object()},
    ],
)  # fmt: skip
def test_what_fits_is_passed_on(given: dict) -> None:
    assert options_from(Options, given, "recipe 'x'") == Options(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"stepz": 1},
            r"^recipe 'x' has no option 'stepz'; its options are steps, rate, order, box, layers, ",
        ),
        ({"derived": 1}, "no option 'derived'"),
        ({"steps": 1.5}, r"^Option 'steps' of recipe 'x' must be int; got 1.5\.$"),
        ({"steps": True}, "must be int; got True"),
        ({"steps": None}, "must be int; got None"),
        ({"rate": "fast"}, "'rate' .* must be float; got 'fast'"),
        ({"rate": True}, "must be float; got True"),
        ({"order": "up"}, "must be 'cyclic' or 'random' or 3; got 'up'"),
        ({"order": 3.0}, "'order'"),
        ({"box": (0.0, 1.0, 2.0)}, r"must be tuple\[float, float\]; got \(0.0, 1.0, 2.0\)"),
        ({"box": ("a", 1.0)}, "'box'"),
        ({"layers": (1, 2.5)}, "'layers'"),
        ({"most": 2.5}, "must be int or None; got 2.5"),
        ({"loud": 1}, "must be bool; got 1"),
        ({"report": 3}, "'report'"),
        ({"steps": 0}, "`steps` must be at least 1; got 0"),
    ],
)
def test_what_does_not_fit_is_named(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options_from(Options, given, "recipe 'x'")


def test_what_is_missing_is_named_and_nothing_may_be_given_to_what_takes_none() -> None:
    with pytest.raises(ValueError, match=r"^recipe 'x' needs the option 'steps'"):
        options_from(Needed, {}, "recipe 'x'")
    with pytest.raises(ValueError, match="has no option 'a'; it has none"):
        options_from(dataclass(Empty), {"a": 1}, "recipe 'x'")
