"""Options of the tuners, see `gpflow_ext.sampling.adaptation`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, TypeVar

from gpflow_ext.sampling.tuning import LEAPFROGS, STEP_SIZES, check_bounds

Own = TypeVar("Own", bound="TunerOptions")

_SCALED_STEPS = (0.02, 1.0)  # in coordinates in which the posterior is nearly N(0, I)
_SAMPLES = 30  # iterations with each setting
_SCALED_SAMPLES = 10  # in those coordinates, where the reward is flatter around the best


@dataclass(frozen=True)
class TunerOptions:
    """Base of the options of all tuners."""

    def within(self: Own, scaled: bool) -> Own:
        """Return the options for coordinates in which the posterior is nearly N(0, I), or for others."""
        return self


@dataclass(frozen=True)
class BayesOptOptions(TunerOptions):
    """Options of the tuner ``"bayesopt"``.

    Attributes
    ----------
    trials, samples
        Number of settings to try, and iterations for each, by default 10 in preconditioned coordinates and 30
        in the whitened ones; the reward is averaged over the chains.
    step_sizes, max_leapfrogs
        Bounds of the search. Step sizes are by default from 0.02 to 1 in preconditioned coordinates, from
        1e-4 to 1 in the whitened ones.
    penalty
        Power of L_max by which the squared jump distance is divided, see `tuning.reward`.
    """

    trials: int = 30
    samples: int | None = None
    step_sizes: tuple[float, float] | None = None
    max_leapfrogs: tuple[int, int] = LEAPFROGS
    penalty: float = 0.5

    def __post_init__(self) -> None:
        _at_least_one(self, "trials", *(["samples"] if self.samples is not None else []))
        check_bounds(self.step_sizes or STEP_SIZES, self.max_leapfrogs)
        if not self.penalty >= 0.0:
            raise ValueError(f"`penalty` must not be negative; got {self.penalty}.")

    def within(self, scaled: bool) -> BayesOptOptions:
        """Return the options with the step sizes and iterations that suit the coordinates."""
        steps, samples = self.search(scaled)
        return replace(self, step_sizes=steps, samples=samples)

    def search(self, scaled: bool = False) -> tuple[tuple[float, float], int]:
        """Return the bounds of the step size and the iterations, as given or as suits the coordinates."""
        steps, samples = (_SCALED_STEPS, _SCALED_SAMPLES) if scaled else (STEP_SIZES, _SAMPLES)
        return self.step_sizes or steps, self.samples or samples


@dataclass(frozen=True)
class NUTSOptions(TunerOptions):
    """Options of the tuner ``"nuts"``.

    Attributes
    ----------
    iterations
        Iterations of dual averaging.
    step_size
        Initial ε.
    acceptance
        The rate of acceptance to reach.
    """

    iterations: int = 500
    step_size: float = 0.1
    acceptance: float = 0.75

    def __post_init__(self) -> None:
        _at_least_one(self, "iterations")
        _positive(self, "step_size")
        if not 0.0 < self.acceptance < 1.0:
            raise ValueError(f"`acceptance` must lie between 0 and 1; got {self.acceptance}.")


@dataclass(frozen=True)
class DualAveragingOptions(NUTSOptions):
    """Options of the tuner ``"dual_averaging"``.

    Attributes
    ----------
    iterations, step_size, acceptance
        See `NUTSOptions`.
    max_leapfrogs
        L_max, which is kept.
    """

    max_leapfrogs: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one(self, "max_leapfrogs")


@dataclass(frozen=True)
class ChEESOptions(TunerOptions):
    """Options of the tuner ``"chees"``.

    Attributes
    ----------
    iterations
        Iterations of the adaptation.
    step_size
        Initial ε.
    max_leapfrogs
        The largest L_max.
    """

    iterations: int = 500
    step_size: float = 0.1
    max_leapfrogs: int = 100

    def __post_init__(self) -> None:
        _at_least_one(self, "iterations", "max_leapfrogs")
        _positive(self, "step_size")


@dataclass(frozen=True)
class GibbsOptions(TunerOptions):
    """Options of the tuner ``"gibbs"``.

    Attributes
    ----------
    rounds, iterations
        Number of rounds, and iterations of each.
    max_leapfrogs
        L_max, which is held fixed.
    step_size, walk
        Initial ε and α.
    """

    rounds: int = 25
    iterations: int = 40
    max_leapfrogs: int = 20
    step_size: float = 0.1
    walk: float = 0.3

    def __post_init__(self) -> None:
        _at_least_one(self, "rounds", "iterations", "max_leapfrogs")
        _positive(self, "step_size", "walk")


def whole(name: str, value: Any, least: int | None = None) -> int:
    """Return a whole number as Python's own; `ValueError` for what is none, or less than ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise ValueError(f"`{name}` must be a whole number{bound}; got {value!r}.")
    return int(value)


def _at_least_one(options: TunerOptions, *names: str) -> None:
    for name in names:
        if getattr(options, name) < 1:
            raise ValueError(f"`{name}` must be at least 1; got {getattr(options, name)}.")


def _positive(options: TunerOptions, *names: str) -> None:
    for name in names:
        if not getattr(options, name) > 0.0:
            raise ValueError(f"`{name}` must be positive; got {getattr(options, name)}.")
