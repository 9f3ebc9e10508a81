"""The main job in one go: VGP-KMM on a real data set, from loading to a served prediction.

Trains the binary classifier of Khan, Mohamed & Murphy (2012) on scikit-learn's breast-cancer data, shows the
bound of every sweep, learns the hyperparameters, scores the test rows, draws a picture, checkpoints, exports a
SavedModel and lets a fresh process that imports TensorFlow alone predict from it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import _cli

SERVE = """
import json, sys
import numpy as np
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
rows = np.load(sys.argv[2])["inputs"]
out = model.signatures["serving_default"](inputs=tf.constant(rows))
print(json.dumps([out["probabilities"].numpy().tolist(), sorted({"gpflow", "tf_keras"} & set(sys.modules))]))
"""


def build(split: Any, learn: bool) -> Any:
    """Return the model, its hyperparameters trainable or fixed at their starting values."""
    import gpflow
    import numpy as np

    import gpflow_ext as gpx

    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.sqrt(split.train[0].shape[1]))
    gpflow.set_trainable(kernel, learn)
    return gpx.models.VGPKMM(split.train, kernel, gpx.likelihoods.BernoulliLogit())


def sweeps(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each sweep of the algorithms."""
    length = max(len(result.objective) for result in results.values())
    rows = []
    for i in range(length):
        row = [str(i + 1)]
        for result in results.values():
            present = i < len(result.objective)
            row += [f"{result.objective[i]:.6f}", f"{result.times[i]:.2f}"] if present else ["", ""]
        rows.append(tuple(row))
    return rows


def picture(results: dict[str, Any], split: Any, probabilities: Any, path: Path) -> None:
    """Draw the convergence of the sweeps, a model of two inputs in their plane, and the calibration."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from gpflow_ext import plotting

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    names = {"parallel": "parallel fixed point", "algorithm1": "Algorithm 1"}
    plotting.convergence(left, {names[method]: result.objective for method, result in results.items()})
    left.set_title("inference, hyperparameters fixed")
    filled = plane(middle, split)
    figure.colorbar(filled, ax=middle, label=f"probability of {split.labels[1]}")
    plotting.calibration(right, probabilities, split.test[1][:, 0])
    right.set_title("calibration on the test rows")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plane(ax: Any, split: Any, names: tuple[str, str] = ("worst area", "worst concave points")) -> Any:
    """Train on two of the inputs alone and draw the class probability in their plane."""
    import gpflow
    import numpy as np

    import gpflow_ext as gpx

    columns = [split.feature_names.index(name) for name in names]
    X, Y = split.train[0][:, columns], split.train[1]
    model = gpx.models.VGPKMM((X, Y), gpflow.kernels.SquaredExponential(), gpx.likelihoods.BernoulliLogit())
    gpx.fit(model, progress=False)
    axes = [np.linspace(column.min() - 0.3, column.max() + 0.3, 60) for column in X.T]
    across, up = np.meshgrid(*axes)
    probability, _ = model.predict_y(np.stack([across.ravel(), up.ravel()], axis=1))
    filled = gpx.plotting.class_probability(ax, (across, up), probability.numpy().reshape(up.shape), X, Y)
    ax.set_title("a model of two of the inputs")
    ax.set_xlabel(f"{names[0]} (standardised)")
    ax.set_ylabel(f"{names[1]} (standardised)")
    return filled


def served(folder: Path, rows: Any) -> tuple[Any, list[str]]:
    """Predict in a fresh process from the exported model alone."""
    import numpy as np

    inputs = folder.parent.parent / "inputs.npz"
    np.savez(inputs, inputs=rows)
    out = subprocess.run(
        [sys.executable, "-c", SERVE, str(folder), str(inputs)], capture_output=True, text=True, check=False
    )
    if out.returncode:
        raise RuntimeError(out.stderr)
    probabilities, loaded = json.loads(out.stdout.splitlines()[-1])
    return np.array(probabilities), loaded


def main() -> None:
    """Run the whole demonstration."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/demo"),
        help="folder for what is written (default: %(default)s)",
    )
    options = parser.parse_args()
    begin = time.perf_counter()
    import numpy as np

    import gpflow_ext as gpx

    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    split = gpx.datasets.load("breast_cancer", seed=0)
    _cli.describe(split)
    results = {
        method: gpx.fit(build(split, learn=False), method=method, tolerance=1e-6, progress=False)
        for method in ("parallel", "algorithm1")
    }
    columns = ("sweep", "parallel: bound", "seconds", "Algorithm 1: bound", "seconds")
    _cli.table("inference, hyperparameters fixed (seconds with compilation)", columns, sweeps(results))

    model = build(split, learn=True)
    result = gpx.fit(model, checkpoint_dir=options.out / "checkpoints", checkpoint_every=1)
    metrics = gpx.metrics.evaluate(model, split.test)
    _cli.report(result, metrics, "bound")

    X_test, _ = split.test
    folder = gpx.export(model, options.out / "model", data=split, metrics=metrics)
    gpx.verify(folder)
    probabilities, loaded = served(folder, split.scaler.inverse(X_test))
    live = gpx.ClassPredictor(model).probabilities(X_test)
    difference = np.abs(probabilities - live).max()
    print(f"SavedModel {folder}: hashes and operations verified")
    print(
        f"fresh process, TensorFlow alone (also loaded: {loaded or 'nothing'}): largest difference {difference:.1e}"
    )
    if loaded or not difference < 1e-12:
        raise SystemExit("the served predictions do not agree with the live model")
    picture(results, split, live[:, 1], options.out / "demo.png")
    print(f"picture: {options.out / 'demo.png'}, checkpoints: {options.out / 'checkpoints'}")
    print(f"all agree; {time.perf_counter() - begin:.0f} seconds")


if __name__ == "__main__":
    _cli.run(main)
