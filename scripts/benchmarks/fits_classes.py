"""One class of models in a process of its own: its first fit and the second, a prediction of each, and what is traced.

    python -m scripts.benchmarks.fits_classes '{"kind": "SparseEP"}'

The last line of the output is the record, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .fits_worker import drawn

ROWS, NETWORK_ROWS, INDUCING, STEPS = 300, 60, 30, 20


def _data(kind: str) -> tuple[Any, Any]:
    """Return inputs [N, 4] and targets: labels of two classes or three, numbers, or 5 numbers a row."""
    X, y = drawn(ROWS)
    waves = np.sin(X @ np.random.default_rng(1).standard_normal((4, 5)))
    if kind == "outputs":
        return X[:NETWORK_ROWS], waves[:NETWORK_ROWS]
    classes = np.digitize(waves[:, :1], [-0.4, 0.4]).astype(float)
    return X, {"binary": y[:, None], "classes": classes, "numbers": waves[:, :1]}[kind]


def _kinds() -> dict[str, tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Return for each class of models its targets, how it is built of X and Y, and arguments of `fit`."""
    import gpflow
    from gpflow.models import GPR, SGPR, SVGP, VGP

    import gpflow_ext as gpx
    from gpflow_ext.likelihoods import BernoulliLogit

    models = gpx.models

    def kernel() -> Any:
        return gpflow.kernels.SquaredExponential(variance=4.0, lengthscales=1.0)

    def site_model(name: str, **more: Any) -> Callable[..., Any]:
        def build(X: Any, Y: Any) -> Any:
            likelihood = BernoulliLogit(bound="jaakkola") if name == "GPJaakkola" else BernoulliLogit()
            return getattr(models, name)((X, Y), kernel(), likelihood, **more)

        return build

    def sparse(name: str) -> Callable[..., Any]:
        return lambda X, Y: site_model(name, inducing_variable=X[:INDUCING].copy())(X, Y)

    def gprn(X: Any, Y: Any, **more: Any) -> Any:
        return models.GPRNTensor((X, Y), kernel(), kernel(), num_latent=2, **more)

    def svgp(X: Any, Y: Any) -> Any:
        return SVGP(kernel(), BernoulliLogit(), X[:INDUCING].copy(), num_data=len(X))

    def robust_max(X: Any, Y: Any) -> Any:
        return models.SVGPRobustMax(kernel(), 3, X[:INDUCING].copy(), num_data=len(X))

    some, few = {"steps": STEPS}, {"steps": 2}
    return {
        "GPLaplace": ("binary", site_model("GPLaplace"), {}),
        "GPLaplace, inducing points": ("binary", sparse("GPLaplace"), few),
        "GPTaylor, inducing points": ("binary", sparse("GPTaylor"), few),
        "GPJaakkola": ("binary", site_model("GPJaakkola"), {}),
        "VGPKMM": ("binary", site_model("VGPKMM"), {}),
        "VGPKMM, inducing points": ("binary", sparse("VGPKMM"), few),
        "SparseEP": ("binary", sparse("SparseEP"), {"steps": 1, "hyper_updates": 5}),
        "SparseEP, sign agreement": ("binary", sparse("SparseEP"), some | {"optimizer": "sign_agreement"}),
        "SVGPRobustMax": ("classes", robust_max, few),
        "GPRNTensor": ("outputs", gprn, few),
        "GPRNTensor, tensor posterior": (
            "outputs",
            lambda X, Y: gprn(X, Y, posterior="tensor"),
            {"steps": 2},
        ),
        "GPflow's GPR": ("numbers", lambda X, Y: GPR((X, Y), kernel()), some),
        "GPflow's SGPR": ("numbers", lambda X, Y: SGPR((X, Y), kernel(), X[:INDUCING].copy()), some),
        "GPflow's VGP": ("binary", lambda X, Y: VGP((X, Y), kernel(), BernoulliLogit()), some),
        "GPflow's SVGP": ("binary", svgp, some),
    }


NAMES = (
    "GPLaplace", "GPLaplace, inducing points", "GPTaylor, inducing points", "GPJaakkola", "VGPKMM",
    "VGPKMM, inducing points", "SparseEP", "SparseEP, sign agreement", "SVGPRobustMax", "GPRNTensor",
    "GPRNTensor, tensor posterior", "GPflow's GPR", "GPflow's SGPR", "GPflow's VGP", "GPflow's SVGP",
)  # fmt: skip


def measure(name: str) -> dict[str, Any]:
    """Fit and predict with new objects three times; seconds, seconds of the steps alone, and traces of each."""
    import gpflow_ext as gpx

    targets, build, arguments = _kinds()[name]
    X, Y = _data(targets)
    record: dict[str, Any] = {"kind": name, "seconds": [], "steps": [], "scored": [], "traces": []}
    for _ in range(3):
        before, begin = gpx.trace_count(), time.perf_counter()
        model = build(X, Y)
        data = () if hasattr(model, "data") else ((X, Y),)
        result = gpx.fit(model, *data, progress=False, **arguments)
        fitted = time.perf_counter()
        gpx.metrics.evaluate(model, (X, Y))
        record["seconds"].append(fitted - begin)
        record["steps"].append(result.seconds)
        record["scored"].append(time.perf_counter() - fitted)
        record["traces"].append(gpx.trace_count() - before)
    return record


def main() -> None:
    print(json.dumps(measure(json.loads(sys.argv[1])["kind"])))


if __name__ == "__main__":
    main()
