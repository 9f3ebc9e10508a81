"""Draws of a sampler: values, statistics of the iterations, files, and the gates that they must pass."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpflow_ext import _html
from gpflow_ext.sampling import diagnostics, summary
from gpflow_ext.sampling.tuning import BayesianOptimizer, Setting, Trial, trials_from

Array = npt.NDArray[Any]


class ConvergenceWarning(UserWarning):
    """Warning that the draws of a sampler fail a convergence test, so they may not be from the posterior."""


@dataclass(frozen=True, repr=False)
class Draws:
    """Draws of a model's parameters by several chains, without those of burn-in and tuning.

    Attributes
    ----------
    values
        For each parameter, by its path in the model: constrained values [C, S, *shape].
    stats
        Statistics of each kept iteration, [C, S]: ``log_density``, ``accepted`` (acceptance probability),
        ``energy``, ``divergent`` (divergent trajectories since the last kept one). ``gradients`` [S] counts
        the leapfrog steps, which all chains take together.
    setting
        Step size and largest number of leapfrog steps.
    seconds
        Seconds of the run without tuning and compilation.
    trials
        The settings that tuning tried, and their rewards.
    info
        Sampler, seed, thinning and versions, as plain values.
    """

    values: Mapping[str, Array]
    stats: Mapping[str, Array]
    setting: Setting
    seconds: float
    trials: tuple[Trial, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_chains(self) -> int:
        """C."""
        return int(self.stats["log_density"].shape[0])

    @property
    def num_draws(self) -> int:
        """S, of each chain."""
        return int(self.stats["log_density"].shape[1])

    def coordinates(self) -> dict[str, Array]:
        """Return each scalar of each parameter by name, [C, S], such as ``V[3, 0]``."""
        return {
            each: draws
            for name, value in self.values.items()
            for each, draws in summary.coordinates(name, value)
        }

    def __repr__(self) -> str:
        return f"<Draws: {self._heading()}>"

    def __str__(self) -> str:
        found = summary.summarise(self.values)
        return "\n".join([self._heading(), str(found), *self._notes(found)])

    def _repr_html_(self) -> str:
        found = summary.summarise(self.values)
        return _html.table(self._heading(), summary.COLUMNS, found.rows, self._notes(found))

    def _heading(self) -> str:
        chains = f"{self.num_chains} chain{'s' * (self.num_chains != 1)} of {self.num_draws} draws"
        return (
            f"{chains} in {self.seconds:.2f} s, step size {self.setting.step_size:.4g}, "
            f"at most {self.setting.max_leapfrogs} leapfrog steps"
        )

    def _notes(self, found: summary.Summary) -> list[str]:
        divergent = int(np.sum(self.stats.get("divergent", 0)))
        return [
            *([f"and {found.left} numbers more; `diagnose` looks at all of them"] if found.left else []),
            *([f"{divergent} trajectories diverged"] if divergent else []),
        ]

    def diagnose(self) -> diagnostics.Diagnosis:
        """Return R-hat, effective sample sizes and the rest, of the worst coordinate and of each.

        What a transform holds fixed, such as the zeros of a triangular matrix, has none and is left out.
        """
        return diagnostics.diagnose(self._moving(), self.stats, self.seconds)

    def _moving(self) -> dict[str, Array]:
        """Return the coordinates except constants of parameters of which others move: HMC moves them all."""
        found: dict[str, Array] = {}
        for name, value in self.values.items():
            own = dict(summary.coordinates(name, value))
            found |= {each: draws for each, draws in own.items() if np.ptp(draws) != 0.0} or own
        return found

    def check(self, **gates: float) -> diagnostics.Diagnosis:
        """Return `diagnose`; warn if a gate of `diagnostics.GATES`, or one given here, fails.

        Warns
        -----
        ConvergenceWarning
            If any gate fails; it names each, the coordinate and what to do.
        """
        found = self.diagnose()
        failures = found.failures(**gates)
        if failures:
            warnings.warn("These draws fail: " + " ".join(failures), ConvergenceWarning, stacklevel=2)
        return found

    def flat(self, most: int | None = None) -> dict[str, Array]:
        """Return the draws of all chains in one axis, [C·S, *shape], or ``most`` of them.

        These are evenly spaced in each chain, as many of one as of another but for one.

        Raises
        ------
        ValueError
            If ``most`` is less than 1.
        """
        if most is not None and most < 1:
            raise ValueError(f"`most` must be at least 1, or None for all draws; got {most}.")
        joined = {
            name: np.swapaxes(value, 0, 1).reshape(-1, *value.shape[2:])
            for name, value in self.values.items()
        }
        count = self.num_chains * self.num_draws
        if most is None or count <= most:
            return joined
        chain, number = np.divmod(np.linspace(0, count - 1, most).round().astype(int), self.num_draws)
        kept = np.sort(number * self.num_chains + chain)
        return {name: value[kept] for name, value in joined.items()}

    def optimizer(self) -> BayesianOptimizer:
        """Return the Bayesian optimiser that tuned the sampler, with its trials, e.g. for `plotting.tuning`.

        Raises
        ------
        ValueError
            If the sampler was not tuned by Bayesian optimisation.
        """
        if not self.trials:
            raise ValueError("Bayesian optimisation did not tune the sampler of these draws.")
        options = json.loads(self.info.get("tuning", "{}"))
        box = {name: options[name] for name in ("step_sizes", "max_leapfrogs") if name in options}
        found = BayesianOptimizer(**box)
        found.trials.extend(self.trials)
        return found

    def to_arviz(self) -> Any:
        """Return an ``arviz.InferenceData`` (ArviZ before 1.0) or ``xarray.DataTree`` (later)."""
        return diagnostics.to_arviz(self.values, self.stats)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one ``.npz`` file without pickle; return its path, which ends so whatever was given."""
        path = Path(path)
        path = path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")
        path.parent.mkdir(parents=True, exist_ok=True)
        header = {
            "setting": self.setting,
            "seconds": self.seconds,
            "trials": self.trials,
            "info": dict(self.info),
        }
        arrays = {f"values/{name}": value for name, value in self.values.items()}
        arrays |= {f"stats/{name}": value for name, value in self.stats.items()}
        partial = path.with_suffix(".partial.npz")
        np.savez_compressed(partial, header=np.array(json.dumps(header)), **arrays)
        os.replace(partial, path)
        return path

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Draws:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            For a file of another kind.
        """
        with np.load(path, allow_pickle=False) as file:
            if "header" not in file:
                raise ValueError(f"{path} holds no draws: `Draws.save` did not write it.")
            header = json.loads(str(file["header"]))
            parts: dict[str, dict[str, Array]] = {"values": {}, "stats": {}}
            for key in file.files:
                kind, _, name = key.partition("/")
                if kind in parts:
                    parts[kind][name] = file[key]
        trials = trials_from(header["trials"])
        return Draws(
            parts["values"],
            parts["stats"],
            Setting(*header["setting"]),
            header["seconds"],
            trials,
            header["info"],
        )
