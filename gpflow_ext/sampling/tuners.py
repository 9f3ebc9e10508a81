"""The tuners by name: the transition kernel, options and adaptation of each."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpflow_ext.sampling import adaptation, hmc
from gpflow_ext.sampling.adaptation import Start, Tuned
from gpflow_ext.sampling.gibbs import MetropolisWithinGibbs
from gpflow_ext.sampling.options import (
    BayesOptOptions,
    ChEESOptions,
    DualAveragingOptions,
    GibbsOptions,
    NUTSOptions,
    TunerOptions,
    whole,
)
from gpflow_ext.sampling.sampleable import Kind
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.training import progress as progress_bar
from gpflow_ext.training.options import options_from

KERNELS: dict[Kind, Callable[..., hmc.Counting]] = {
    "hmc": hmc.RandomLengthHMC,
    "nuts": hmc.CountingNUTS,
    "gibbs": MetropolisWithinGibbs,
}


class Method(NamedTuple):
    """The transition kernel, options and adaptation of a named tuner."""

    kind: Kind
    options: type[TunerOptions]
    adapt: Callable[[Start, Any, adaptation.Report], Tuned]
    counted: str  # the option that counts its rounds; "" where no progress is seen
    least_chains: int = 1


METHODS = {
    "bayesopt": Method("hmc", BayesOptOptions, adaptation.bayesopt, "trials"),
    "dual_averaging": Method("hmc", DualAveragingOptions, adaptation.dual_averaging, "iterations"),
    "chees": Method("hmc", ChEESOptions, adaptation.chees, "", least_chains=2),
    "nuts": Method("nuts", NUTSOptions, adaptation.nuts, "iterations"),
    "gibbs": Method("gibbs", GibbsOptions, adaptation.gibbs, "rounds"),
}


@dataclasses.dataclass(frozen=True)
class Tuner:
    """A method with its options.

    Attributes
    ----------
    name
        As it enters the settings of a run.
    method, options
        What tunes, and how.
    """

    name: str
    method: Method
    options: TunerOptions

    @property
    def kind(self) -> Kind:
        """Kind of the sampler."""
        return self.method.kind

    def within(self, scaled: bool) -> Tuner:
        """Return the tuner for coordinates in which the posterior is nearly N(0, I), or for others."""
        return dataclasses.replace(self, options=self.options.within(scaled))

    def plain(self) -> str:
        """Return the options as JSON."""
        return json.dumps(dataclasses.asdict(self.options), sort_keys=True)

    def tune(self, start: Start, progress: bool | None) -> Tuned:
        """Tune."""
        rounds = getattr(self.options, self.method.counted) if self.method.counted else 0
        with progress_bar.bar("tuning", rounds, 0, progress if rounds else False) as report:
            return self.method.adapt(start, self.options, report)


def tuner_from(
    tuner: str | Setting, tuning: Mapping[str, Any] | TunerOptions | None, num_chains: int
) -> Tuner:
    """Return the tuner of a name with options that are checked.

    Raises
    ------
    ValueError
        For an unknown name, options that are not the tuner's, too few chains for it, or a `Setting` with
        which no chain moves.
    """
    if isinstance(tuner, Setting):
        if tuning:
            raise ValueError("A Setting is not tuned: leave out `tuning`, or give the name of a tuner.")
        whole("max_leapfrogs", tuner.max_leapfrogs, 1)
        if not (0.0 < tuner.step_size < math.inf and 0.0 <= tuner.walk < math.inf):
            raise ValueError(f"`step_size` must be positive and `walk` not negative; got {tuner}.")
        return Tuner(str(tuner), _kept(tuner), TunerOptions())
    if not isinstance(tuner, str) or tuner not in METHODS:
        raise ValueError(f"Unknown tuner {tuner!r}: give one of {', '.join(METHODS)}, or a Setting.")
    method = METHODS[tuner]
    if num_chains < method.least_chains:
        raise ValueError(
            f"The tuner {tuner!r} compares chains: give `num_chains` of at least {method.least_chains}."
        )
    return Tuner(tuner, method, _options(tuner, method.options, tuning))


def _kept(setting: Setting) -> Method:
    """Return the method that keeps a setting, and leaves the chains where they are."""
    kind: Kind = "gibbs" if setting.walk > 0.0 else "hmc"
    return Method(kind, TunerOptions, lambda start, *_: Tuned(setting, start.positions), "")


def _options(
    name: str, kind: type[TunerOptions], tuning: Mapping[str, Any] | TunerOptions | None
) -> TunerOptions:
    if not isinstance(tuning, kind | Mapping | None):
        raise ValueError(
            f"`tuning` of the tuner {name!r} must be a mapping of options or {kind.__name__}; got {tuning!r}."
        )
    given = vars(tuning) if isinstance(tuning, TunerOptions) else tuning or {}
    return options_from(kind, given, f"tuner {name!r}")
