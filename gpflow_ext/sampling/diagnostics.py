"""Convergence diagnostics of chains: rank-normalised split R-hat, bulk and tail ESS, E-BFMI, divergences.

They need ArviZ (`pip install "gpflow-ext[mcmc]"`); see Vehtari et al. (2021) and Betancourt (2016).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

GATES = {  # what `Draws.check` asks of the worst coordinate
    "rhat": 1.01,  # at most
    "bulk_ess": 400.0,  # at least
    "tail_ess": 400.0,  # at least
    "bfmi": 0.3,  # at least, each chain
    "divergences": 0.0,  # at most
}


@dataclass(frozen=True)
class Diagnosis:
    """Diagnostics of draws.

    Attributes
    ----------
    rhat, bulk_ess, tail_ess
        For each coordinate by its name; NaN for a constant one. R-hat compares the halves of all chains,
        and the quarters of a single one.
    bfmi
        Energy Bayesian fraction of missing information (E-BFMI) of each chain, [C]. It is that of the kept
        draws: where they are thinned their energies are less alike, and it is higher than Betancourt's.
    divergences
        Number of divergent trajectories, whose energy error was too large.
    acceptance
        Mean probability of acceptance.
    gradients
        Leapfrog steps of each chain.
    seconds
        Seconds of the run.
    """

    rhat: Mapping[str, float]
    bulk_ess: Mapping[str, float]
    tail_ess: Mapping[str, float]
    bfmi: Array
    divergences: int
    acceptance: float
    gradients: int
    seconds: float

    @property
    def worst_rhat(self) -> float:
        """The largest R-hat."""
        return self.rhat[_worst(self.rhat, max)]

    @property
    def min_ess(self) -> float:
        """The smallest bulk ESS."""
        return self.bulk_ess[_worst(self.bulk_ess, min)]

    @property
    def ess_per_second(self) -> float:
        """The smallest bulk ESS per second of the run."""
        return self.min_ess / self.seconds

    @property
    def ess_per_1000_gradients(self) -> float:
        """The smallest bulk ESS per 1000 leapfrog steps, counting those of all chains."""
        return 1000.0 * self.min_ess / (self.gradients * len(self.bfmi))

    def failures(self, **gates: float) -> list[str]:
        """Return a sentence for each failed gate; the gates are `GATES` unless others are given by name."""
        unknown = set(gates) - set(GATES)
        if unknown:
            raise ValueError(f"Unknown gates: {', '.join(sorted(unknown))}; there are {', '.join(GATES)}.")
        limits = {**GATES, **gates}
        found = []
        name, value = _worst(self.rhat, max), self.worst_rhat
        if not value <= limits["rhat"]:
            found.append(f"R-hat of {name} is {value:.3f} (at most {limits['rhat']:g}): run longer chains.")
        for label, sizes in (("bulk", self.bulk_ess), ("tail", self.tail_ess)):
            name = _worst(sizes, min)
            value, limit = sizes[name], limits[f"{label}_ess"]
            if not value >= limit:
                found.append(f"The {label} ESS of {name} is {value:.0f} (at least {limit:g}): draw more.")
        if not self.bfmi.min() >= limits["bfmi"]:
            found.append(
                f"E-BFMI is {self.bfmi.min():.2f} (at least {limits['bfmi']:g}): momenta do not reach the "
                "tails, reparametrise or give tighter priors."
            )
        if self.divergences > limits["divergences"]:
            found.append(
                f"{self.divergences} trajectories diverged (at most {limits['divergences']:g}): "
                "shorten the step."
            )
        return found

    def __str__(self) -> str:
        tail_ess = self.tail_ess[_worst(self.tail_ess, min)]
        return (
            f"R-hat <= {self.worst_rhat:.3f}, bulk ESS >= {self.min_ess:.0f}, tail ESS >= "
            f"{tail_ess:.0f}, E-BFMI >= {self.bfmi.min():.2f}, {self.divergences} "
            f"divergences, acceptance {self.acceptance:.2f}; {self.ess_per_1000_gradients:.3g} effective "
            f"draws in 1000 gradients, {self.ess_per_second:.3g} in a second"
        )


def _worst(values: Mapping[str, float], extreme: Callable[..., str]) -> str:
    """Return the name of the largest or the smallest value, or of the first that is not a number."""
    unknown = (name for name, value in values.items() if np.isnan(value))
    return next(unknown, None) or extreme(values, key=lambda name: values[name])


def diagnose(coordinates: Mapping[str, Array], stats: Mapping[str, Array], seconds: float) -> Diagnosis:
    """Return the diagnosis of coordinates [C, S] by name and of what the sampler recorded, [C, S]."""
    arviz = _arviz()

    def each(function: Any, **options: Any) -> dict[str, float]:
        return {
            name: float(function(np.asarray(value, float), **options)) for name, value in coordinates.items()
        }

    return Diagnosis(
        rhat=each(_rhat),
        bulk_ess=each(arviz.ess, method="bulk"),
        tail_ess=each(arviz.ess, method="tail"),
        bfmi=bfmi(stats["energy"]),
        divergences=int(stats["divergent"].sum()),
        acceptance=float(stats["accepted"].mean()),
        gradients=int(stats["gradients"].sum()),
        seconds=seconds,
    )


def mixing(value: Array) -> tuple[float, float]:
    """Return R-hat and the bulk effective sample size of one coordinate [C, S]."""
    return _rhat(value), float(_arviz().ess(np.asarray(value, float), method="bulk"))


def _rhat(value: Array) -> float:
    """Return split R-hat of [C, S]; a single chain counts as two, each of which is split once more."""
    chains = value if len(value) > 1 else value[:, : value.size // 2 * 2].reshape(2, -1)
    return float(_arviz().rhat(chains))


def bfmi(energy: Array) -> Array:
    """Return mean(ΔE²)/var(E) of each chain's energies [C, S] (Betancourt 2016), [C]; NaN for one draw."""
    if energy.shape[1] < 2:
        return np.full(len(energy), np.nan)
    spread = energy.var(axis=1, ddof=1)
    return np.square(np.diff(energy, axis=1)).mean(axis=1) / np.where(spread > 0.0, spread, np.nan)


def to_arviz(values: Mapping[str, Array], stats: Mapping[str, Array]) -> Any:
    """Return values [C, S, *shape] and statistics [C, S] in ArviZ's container, of either major version."""
    arviz = _arviz()
    posterior = {name: np.asarray(value) for name, value in values.items()}
    sample_stats = {
        "lp": stats["log_density"],
        "acceptance_rate": stats["accepted"],
        "energy": stats["energy"],
        "diverging": stats["divergent"] > 0,
    }
    if int(arviz.__version__.split(".")[0]) >= 1:
        return arviz.from_dict({"posterior": posterior, "sample_stats": sample_stats})
    return arviz.from_dict(posterior=posterior, sample_stats=sample_stats)


def _arviz() -> Any:
    try:
        import arviz
    except ImportError as error:
        raise ImportError('Diagnostics need ArviZ: pip install "gpflow-ext[mcmc]".') from error
    return arviz
