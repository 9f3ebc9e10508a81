"""What the sampling experiments share: priors, a run with what is recorded of it, columns of tables."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow_probability as tfp

import gpflow_ext as gpx
from gpflow_ext.sampling.diagnostics import Diagnosis

from ...shared import report
from ...shared.journal import Record

COLUMNS = ("R-hat", "min ESS", "ESS / 1000 gradients", "ESS / s", "acceptance", "ε, L_max", "divergences")
# Of classes, whose gradients are dear.
TUNING: dict[str, Any] = {"trials": 12, "samples": 15, "max_leapfrogs": (1, 20)}


def gamma(shape: float, rate: float) -> tfp.distributions.Distribution:
    """Return a Gamma prior."""
    return tfp.distributions.Gamma(np.float64(shape), np.float64(rate))


def normal() -> tfp.distributions.Distribution:
    """Return the prior of a constant mean."""
    return tfp.distributions.Normal(np.float64(0.0), np.float64(1.0))


def kernel(
    lengthscales: Any, lengths: tuple[float, float], variance: tuple[float, float]
) -> gpflow.kernels.Kernel:
    """Return a squared exponential kernel with Gamma priors, given as (shape, rate)."""
    new = gpflow.kernels.SquaredExponential(lengthscales=lengthscales)
    new.lengthscales.prior, new.variance.prior = gamma(*lengths), gamma(*variance)
    return new


def gaussian(model: gpx.models.SGPMCFreeForm) -> gpflow.models.SVGP:
    """Return what predicts by the Gaussian approximation of a model."""
    return gpflow.models.SVGP(
        model.kernel,
        model.likelihood,
        model.inducing_variable,
        num_latent_gps=model.num_latent_gps,
        q_mu=model.q_mu,
        q_sqrt=model.q_sqrt,
    )


def gaussian_log_density(model: gpx.models.SGPMCFreeForm, test: Any) -> float:
    """Return the mean log density of test data by the Gaussian approximation of a model."""
    return float(np.mean(gaussian(model).predict_log_density(test)))


def free_form_log_density(model: gpx.models.SGPMCFreeForm, draws: gpx.Draws, test: Any) -> float:
    """Return the mean log density of test data, averaged over at most 2,000 draws."""
    model.assign_draws(draws, most=2000)
    return float(np.mean(model.predict_log_density(test)))


def timed(method: str, found: Diagnosis, before: float) -> Record:
    """Return what the benchmark keeps of a chain, ``before`` the seconds until it ran compiled and tuned."""
    return {
        "method": method,
        "ess": found.min_ess,
        "seconds": found.seconds,
        "before": before,
        "gradients": found.gradients,
        "acceptance": found.acceptance,
        "rhat": found.worst_rhat,
    }


def record(draws: gpx.Draws) -> Record:
    """Return what the tables need of a run."""
    found = draws.diagnose()
    return {
        "chains": draws.num_chains,
        "draws": draws.num_draws,
        "rhat": found.worst_rhat,
        "min_ess": found.min_ess,
        "ess_per_1000_gradients": found.ess_per_1000_gradients,
        "ess_per_second": found.ess_per_second,
        "ms_per_gradient": 1e3 * draws.seconds / max(found.gradients, 1),
        "acceptance": found.acceptance,
        "divergences": found.divergences,
        "step_size": draws.setting.step_size,
        "max_leapfrogs": draws.setting.max_leapfrogs,
        "walk": draws.setting.walk,
    }


def moments(values: Any) -> list[float]:
    """Return mean and standard deviation of all draws of a number."""
    return [float(np.mean(values)), float(np.std(values))]


def cells(one: Record) -> list[str]:
    """Return the cells below `COLUMNS`."""
    walk = f", α {one['walk']:.2g}" if one["walk"] else ""
    return [
        f"{one['rhat']:.3f}",
        f"{one['min_ess']:.0f}",
        report.number(one["ess_per_1000_gradients"]),
        report.number(one["ess_per_second"]),
        f"{one['acceptance']:.2f}",
        f"{one['step_size']:.3f}, {one['max_leapfrogs']}{walk}",
        str(one["divergences"]),
    ]


def figure(path: Any, width: float, height: float, rows: int = 1, columns: int = 1) -> Any:
    """Return a figure and its axes, which `savefig` writes to a path whose folder exists from now on."""
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    new = Figure(figsize=(width, height), layout="constrained")
    return new, new.subplots(rows, columns)
