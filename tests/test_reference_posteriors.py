"""A log-Gaussian Cox process whose posterior moments were published: Stan, 10 chains of 50,000 draws."""

from __future__ import annotations

import json
import os
from pathlib import Path

import arviz
import gpflow
import numpy as np
import pytest
import tensorflow_probability as tfp

import gpflow_ext as gpx
from gpflow_ext.likelihoods import PoissonLog
from gpflow_ext.models import SGPMCFreeForm

tfb, tfd = tfp.bijectors, tfp.distributions
FLOOR = np.float64(1e-3)  # added to the amplitude and the length scale


def reference() -> tuple[dict, dict]:
    folder = Path(os.environ.get("GPFLOW_EXT_DATA", "missing")) / "reference_posteriors" / "lgcp_100"
    if not folder.exists():
        pytest.skip("needs reference_posteriors/lgcp_100 in the folder GPFLOW_EXT_DATA")
    return tuple(json.loads((folder / f"{name}.json").read_text()) for name in ("data", "ground_truth"))


def process(data: dict) -> SGPMCFreeForm:
    X, counts, exposures = (np.array(data[name], float) for name in ("LOCATIONS", "COUNTS", "EXTENTS"))
    kernel = gpflow.kernels.Matern32(variance=0.1, lengthscales=0.2)
    amplitude, length = (tfd.LogNormal(np.float64(-1.0), np.float64(scale)) for scale in (0.5, 1.0))
    kernel.variance.prior = tfb.Chain([tfb.Square(), tfb.Shift(FLOOR)])(amplitude)
    kernel.lengthscales.prior = tfb.Shift(FLOOR)(length)
    mean = gpflow.functions.Constant(np.log(counts / exposures).mean())
    gpflow.set_trainable(mean, False)
    Y = np.stack([counts, exposures], axis=1)
    return SGPMCFreeForm((X, Y), kernel, PoissonLog(exposure=True), mean, inducing_variable=X.copy())


@pytest.mark.parametrize("number", [pytest.param(number, marks=pytest.mark.slow) for number in (150, 1500)])
def test_moments_of_a_cox_process(number: int, record_property) -> None:
    """Both hyperparameters within 4 standard errors; the long run has the log intensities within 0.01, too."""
    data, truth = reference()
    model = process(data)
    tuning = {"trials": 6, "samples": 10, "step_sizes": (0.1, 0.8), "max_leapfrogs": (2, 8)}
    draws = gpx.sample(model, number, 4, tuning=tuning, warm_up=50, progress=False, seed=1, check=False)
    ours = {
        "AMPLITUDE": np.sqrt(draws.values["kernel.variance"]) - FLOOR,
        "LENGTH_SCALE": draws.values["kernel.lengthscales"] - FLOOR,
    }
    for name, chains in ours.items():
        mean, error = (truth[f"IDENTITY_{name}_MEAN{part}"] for part in ("", "_STANDARD_ERROR"))
        z = (chains.mean() - mean) / np.hypot(chains.std() / np.sqrt(float(arviz.ess(chains))), error)
        record_property("largest |z|", abs(z))
        record_property("R-hat", float(arviz.rhat(chains)))
        assert abs(z) <= 4.0, name
        ratio = chains.std() / truth[f"IDENTITY_{name}_STANDARD_DEVIATION"]
        record_property("ratio of deviations", ratio)
        assert 0.9 < ratio < 1.1 or number < 1000, name
    model.assign_draws(draws, None)
    intensities = np.sort(model.predict_f(model.data[0])[0].numpy().ravel())
    difference = np.abs(intensities - np.sort(truth["IDENTITY_LOG_INTENSITY_MEAN"])).max()
    record_property(f"largest difference of sorted log intensities, {number} draws", difference)
    assert difference < (0.01 if number > 1000 else 0.03)
