"""BayesNewton's Markov models of counts, timed by the interpreter of an environment that has them.

Run as a script, for BayesNewton 1.3.4 needs a JAX that nothing else here does:

    pip install bayesnewton objax jax==0.4.13 jaxlib==0.4.13 "ml_dtypes<0.3" "numpy<1.27" "scipy<1.12"
    python peer_bayesnewton.py DATA.npz

The file holds X [N, 1], Y [N, 1] and the end, ``gain``: relative, of the energy. One JSON object a line is
printed for each method.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import bayesnewton
import jax
import numpy as np
import objax

jax.config.update("jax_enable_x64", True)
KINDS = {"GPLaplace": "MarkovLaplaceGP", "VGPKMM": "MarkovVariationalGP"}
STEPS = 50
ROUNDS = 3


def timed(kind: str, X: Any, Y: Any, gain: float) -> dict[str, Any]:
    """Return the seconds until an iteration of length one changes the energy by less than ``gain``."""

    def build() -> Any:
        kernel = bayesnewton.kernels.Matern32(variance=1.0, lengthscale=1.0)
        likelihood = bayesnewton.likelihoods.Poisson()
        return getattr(bayesnewton.models, kind)(kernel=kernel, likelihood=likelihood, X=X, Y=Y)

    model = build()
    start = {name: np.asarray(variable.value) for name, variable in model.vars().items()}

    @objax.Function.with_vars(model.vars())
    def step() -> Any:
        model.inference(lr=1.0)
        return model.energy()

    compiled, rounds, first = objax.Jit(step), [], None
    for _ in range(ROUNDS + 1):
        for name, variable in model.vars().items():
            variable.assign(jax.numpy.asarray(start[name]))
        before, count, wall, cpu = np.inf, 0, time.perf_counter(), time.process_time()
        while count < STEPS:
            energy = float(np.asarray(compiled()).ravel()[0])
            count += 1
            if abs(before - energy) <= gain * max(1.0, abs(energy)):
                break
            before = energy
        found = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        if first is None:
            first = found["wall"]
        else:
            rounds.append(found)
    best = min(rounds, key=lambda each: each["cpu"])
    return {"first": first, **best, "steps": count, "objective": -energy}


def main() -> None:
    """Time both methods on the file that is named."""
    held = np.load(Path(sys.argv[1]))
    for ours, kind in KINDS.items():
        print(
            json.dumps({"method": ours, **timed(kind, held["X"], held["Y"], float(held["gain"]))}), flush=True
        )


if __name__ == "__main__":
    main()
