"""Operations and seconds to convergence of Algorithm 1, the parallel fixed point and Opper & Archambeau."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from gpflow.models import VGPOpperArchambeau as Plain

import gpflow_ext as gpx

from ...shared.flops import Counter, counting
from .methods import Limit, Problem, Runner, Trace, opper_archambeau, ours
from .methods import WhitenedOpperArchambeau as Whitened

PRECISION = 1e-3  # the paper's: nats
FLOOR = 1e-8  # distances from the optimum below this are rounding
ALGORITHM_1, PARALLEL, OPPER = "Algorithm 1", "parallel fixed point", "Opper & Archambeau"
END, WHITENED_END = "end", "end, whitened"  # parts of the journal
FORMS = {END: Plain, WHITENED_END: Whitened}
GAPS = (100.0, 10.0, 1.0, 0.1, 0.01, PRECISION)  # nats from the optimum
COUNTED = 3  # evaluations of a gradient method that are counted; all cost the same
Setting: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """The best bound, the operations and the seconds after each iteration of a method."""

    flops: Any
    seconds: Any
    objective: Any

    def within(self, target: float) -> float | None:
        """Return the operations until the bound is at the target, if it ever is."""
        there = np.flatnonzero(self.objective >= target)
        return float(self.flops[there[0]]) if there.size else None

    @property
    def settled(self) -> int | None:
        """Index of the first iteration that raises the bound by less than 1e-3: where the paper stops."""
        small = np.flatnonzero(np.diff(self.objective) < PRECISION)
        return int(small[0]) + 1 if small.size else None


@dataclass(frozen=True)
class Outcome:
    """What one setting of the hyperparameters gave."""

    setting: Setting
    curves: Mapping[str, Curve]
    scores: Mapping[str, float]

    @property
    def optimum(self) -> float:
        """The best bound of all methods."""
        return max(float(curve.objective[-1]) for curve in self.curves.values())


def recorded(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as a record: scores and curves, the seconds to a microsecond."""
    curves = {
        name: {
            "flops": [float(value) for value in curve.flops],
            "seconds": [round(float(value), 6) for value in curve.seconds],
            "objective": [float(value) for value in curve.objective],
        }
        for name, curve in outcome.curves.items()
    }
    return {"scores": dict(outcome.scores), "curves": curves}


def restored(record: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a record."""
    curves = {
        name: Curve(*(np.array(found[part]) for part in ("flops", "seconds", "objective")))
        for name, found in record["curves"].items()
    }
    return Outcome((record["log_s"], record["log_sigma"]), curves, record["scores"])


class Laboratory:
    """All methods on one data set, each compiled twice: once to be timed, once with counters.

    Parameters
    ----------
    split
        Training and test part.
    likelihood
        Makes the likelihood, with its bound.
    multiple
        How many times the operations of Algorithm 1 the method of Opper & Archambeau may spend.
    """

    def __init__(self, split: Any, likelihood: Callable[[], Any], multiple: float) -> None:
        self._problem, self._test, self._multiple = Problem.new(split.train, likelihood), split.test, multiple
        self._model = self._problem.build(gpx.models.VGPKMM)
        builders: dict[str, Callable[[Problem], Runner]] = {
            ALGORITHM_1: functools.partial(ours, method="algorithm1"),
            PARALLEL: functools.partial(ours, method="parallel", model=self._model),
            OPPER: opper_archambeau,
        }
        self._timed = {name: _compiled(build, self._problem) for name, build in builders.items()}
        builders[PARALLEL] = ours
        self._counted: dict[str, tuple[Runner, Counter]] = {}
        for name, build in builders.items():
            with counting() as counter:
                self._counted[name] = _compiled(build, self._problem), counter

    def measure(self, setting: Setting) -> Outcome:
        """Run all methods at one setting (log s, log σ)."""
        self._problem.set(*setting)
        curves = {name: self._fixed_point(name) for name in (ALGORITHM_1, PARALLEL)}
        curves[OPPER] = self._gradient(OPPER, self._multiple * float(curves[ALGORITHM_1].flops[-1]))
        return Outcome(setting, curves, gpx.metrics.evaluate(self._model, self._test))

    def _fixed_point(self, name: str) -> Curve:
        runner, counter = self._counted[name]
        counted, timed = runner(Limit(counter=counter)), self._timed[name](Limit())
        steps = min(len(counted.objective), len(timed.objective))  # rounding may end one of them earlier
        return Curve(
            np.array(counted.flops[:steps]),
            np.array(timed.seconds[:steps]),
            np.array(timed.objective[:steps]),
        )

    def _gradient(self, name: str, flops: float) -> Curve:
        runner, counter = self._counted[name]
        each = runner(Limit(evaluations=COUNTED, counter=counter)).flops[-1] / COUNTED
        timed: Trace = self._timed[name](Limit(evaluations=max(COUNTED, round(flops / each))))
        ends = np.unique([*timed.iterations, len(timed.objective) - 1])
        return Curve(each * (ends + 1.0), np.array(timed.seconds)[ends], np.array(timed.objective)[ends])


class Patient:
    """Opper & Archambeau's form on one data set, with all the evaluations that it may need.

    Parameters
    ----------
    split, likelihood
        As for `Laboratory`.
    model_class
        GPflow's, or the same in other coordinates.
    """

    def __init__(self, split: Any, likelihood: Callable[[], Any], model_class: Any = Plain) -> None:
        self._problem = Problem.new(split.train, likelihood)
        build = functools.partial(opper_archambeau, model_class=model_class)
        self._run = _compiled(build, self._problem)
        with counting() as counter:
            counted = _compiled(build, self._problem)
            self._each = counted(Limit(evaluations=COUNTED, counter=counter)).flops[-1] / COUNTED

    def measure(self, known: Outcome, evaluations: int) -> dict[str, Any]:
        """Return what it needs to come near the optimum of an outcome, and how far from it the run ends."""
        self._problem.set(*known.setting)
        trace = self._run(Limit(target=known.optimum - PRECISION, evaluations=evaluations))
        reached = [trace.reached(known.optimum - gap) for gap in GAPS]
        return {
            "evaluations": len(trace.objective),
            "flops": self._each * len(trace.objective),
            "seconds": round(trace.seconds[-1], 3),
            "short": known.optimum - trace.objective[-1],
            "reached": [None if index is None else index + 1 for index in reached],
        }


def _compiled(build: Callable[[Problem], Runner], problem: Problem) -> Runner:
    runner = build(problem)
    runner(Limit(evaluations=2))
    return runner


def figure(path: Path, title: str, outcomes: Sequence[Outcome]) -> None:
    """Draw the negative bound against the operations, and its distance from the optimum against the seconds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    styles = {
        ALGORITHM_1: {"color": "#0b5fa5", "marker": "o", "linestyle": "-"},
        PARALLEL: {"color": "#c8500a", "marker": "^", "linestyle": "--"},
        OPPER: {"color": "black", "marker": "s", "linestyle": ":"},
    }
    drawn, axes = plt.subplots(
        2, len(outcomes), figsize=(3.0 * len(outcomes), 5.6), layout="constrained", squeeze=False
    )
    for outcome, upper, lower in zip(outcomes, *axes, strict=True):
        for name, curve in outcome.curves.items():
            marks = _marks(len(curve.objective))
            style = {**styles[name], "markevery": marks, "markersize": 4.5, "markerfacecolor": "white"}
            upper.plot(curve.flops, -curve.objective, label=name, **style)
            gap = outcome.optimum - curve.objective
            lower.plot(curve.seconds, np.where(gap > FLOOR, gap, np.nan), **style)
        log_s, log_sigma = outcome.setting
        upper.set_title(f"log s = {log_s:g}, log σ = {log_sigma:g}".replace("-", "−"), fontsize=10)
        upper.set(xscale="log", xlabel="floating-point operations", ylim=_range(outcome))
        lower.set(xscale="log", yscale="log", xlabel="seconds")
        lower.axhline(PRECISION, color="0.6", linewidth=0.8)
        for ax in (upper, lower):
            ax.grid(color="0.9", linewidth=0.6)
    axes[0][0].set_ylabel("negative bound")
    axes[1][0].set_ylabel("negative bound − optimum")
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawn.suptitle(title, fontsize=11)
    drawn.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=92)
    plt.close(drawn)


def _marks(length: int) -> list[int]:
    """Return the paper's markers: iterations 1, 2, 4, 50 and every 50th from there; all of a short curve."""
    if length <= 25:
        return list(range(length))
    return [index for index in (1, 2, 4, *range(50, length, 50)) if index < length]


def _range(outcome: Outcome) -> tuple[float, float]:
    """Show the bound from the optimum up to where the gradient method starts and the first steps lead."""
    lowest = -outcome.optimum
    first = {name: -float(curve.objective[int(name != OPPER)]) for name, curve in outcome.curves.items()}
    margin = 0.06 * (max(first.values()) - lowest)
    return lowest - margin, max(first.values()) + margin
