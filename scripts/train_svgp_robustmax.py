"""Train SVGPRobustMax, the sparse variational classifier of many classes of Hensman et al. (2015)."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import _cli

EPILOG = """\
examples
  python scripts/train_svgp_robustmax.py                                    scikit-learn's digits, embedded
  python scripts/train_svgp_robustmax.py --data iris.csv --target species   your own table, numeric columns and a target
  python scripts/train_svgp_robustmax.py --data vehicle --ard --early-stopping 0.1
  python scripts/train_svgp_robustmax.py --data mnist --common-scale --ard --float32 --inducing 500 \\
      --minibatch-size 1000 --hold 30 --steps 20000 --test-every 500 --run-dir runs/mnist

The objective is a lower bound of the log evidence. A step takes one minibatch: a natural-gradient step of length gamma
for the posterior at the inducing points, and a step of Adam for the kernel and the inducing points; with --optimizer
adam or adadelta these move everything. Step lengths fall along a cosine to a twentieth at the last step, so that a run
to be prolonged later needs --schedule constant. Cost of a step: O(K M^2 B) for K classes, M inducing points and B rows.
"""
TEST_FILE = "curve.jsonl"


class Curve:
    """Test scores during training, in a file; the time that they take is not counted.

    Called with the number of each step, as the ``monitor`` of `gpflow_ext.fit`. A run that resumes from a
    checkpoint drops the lines that its lost steps have written.
    """

    def __init__(self, path: Path, model: Any, data: tuple[Any, Any], every: int) -> None:
        self._path, self._model, self._data, self._every = path, model, data, every
        self._started: float | None = None  # what the clock would have shown at the start of all training

    def lines(self) -> list[dict[str, float]]:
        """Return what was taken so far: step, seconds of training, nlpd, error, ece."""
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]

    def __call__(self, step: int) -> None:
        """Take the scores if it is time."""
        if self._started is None:
            self._started = self._resumed(step)
        if step % self._every:
            return
        import gpflow_ext as gpx

        now = time.perf_counter()
        line = {"step": step, "seconds": now - self._started}
        line |= gpx.metrics.evaluate(self._model, self._data)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._started += time.perf_counter() - now

    def _resumed(self, step: int) -> float:
        """Return the start of a clock that goes on from the last line before this step; drop the later ones."""
        known = [line for line in self.lines() if line["step"] < step]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".tmp")
        partial.write_text("".join(json.dumps(line) + "\n" for line in known), encoding="utf-8")
        partial.replace(self._path)
        return time.perf_counter() - (known[-1]["seconds"] if known else 0.0)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    new = _cli.parser(__doc__ or "", EPILOG)
    new.set_defaults(data="digits", steps=1000)
    model = new.add_argument_group("model")
    model.add_argument(
        "--inducing",
        type=int,
        default=200,
        metavar="M",
        help="inducing points, centres of k-means (default: %(default)s, or half the training rows)",
    )
    model.add_argument(
        "--epsilon", type=float, default=1e-3, help="share of wrong labels at first (default: %(default)s)"
    )
    model.add_argument(
        "--learn-epsilon",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="learn it, under a Beta prior (default: yes)",
    )
    _cli.add_noise(model)
    training = new.add_argument_group("training")
    training.add_argument(
        "--minibatch-size", type=int, default=200, metavar="B", help="rows in a step (default: %(default)s)"
    )
    training.add_argument(
        "--optimizer",
        choices=["natural", "adam", "adadelta"],
        default="natural",
        help="of the posterior at the inducing points; all else is moved by adam, or by adadelta (default: %(default)s)",
    )
    training.add_argument(
        "--gamma", type=float, default=0.1, help="length of natural-gradient steps (default: %(default)s)"
    )
    training.add_argument(
        "--rate", type=float, metavar="R", help="learning rate (default: 0.01 for adam, 0.1 for adadelta)"
    )
    training.add_argument(
        "--schedule",
        choices=["cosine", "constant"],
        default="cosine",
        help="of step lengths (default: %(default)s)",
    )
    training.add_argument(
        "--hold",
        type=int,
        default=0,
        metavar="N",
        help="steps before the kernel and the inducing points move (default: 0)",
    )
    training.add_argument(
        "--early-stopping",
        type=float,
        metavar="SHARE",
        help="hold out this share of the training rows, stop when their NLPD stops falling, and return to the best",
    )
    training.add_argument(
        "--tensorboard", type=Path, metavar="DIR", help="write the objective, scores and parameters there"
    )
    training.add_argument(
        "--test-every",
        type=int,
        metavar="N",
        help=f"score the test rows after every N steps, into {TEST_FILE} of the run folder",
    )
    return new


def load(options: argparse.Namespace) -> Any:
    """Return the data for the flags."""
    split = _cli.load(options, classifies=True)
    if split.task not in ("binary", "multiclass", "ordinal"):
        raise ValueError(
            f"The target of {split.name} is read as {split.task}; this script classifies: choose another --target or --task."
        )
    if options.test_every is not None and options.run_dir is None:
        raise ValueError("--test-every writes into the run folder: give --run-dir.")
    return split


def build(options: argparse.Namespace, split: Any) -> Any:
    """Return the untrained model for the flags and the data."""
    import gpflow

    import gpflow_ext as gpx

    (X, _), _ = hold_out(options, split.train)
    kernel = _cli.build_noisy_kernel(options, X.shape[1])
    if options.inducing < 1:
        raise ValueError(f"--inducing must be at least 1; got {options.inducing}.")
    Z = gpx.inducing.kmeans(X, min(options.inducing, max(1, len(X) // 2)), seed=options.seed)
    model = gpx.models.SVGPRobustMax(
        kernel,
        len(split.labels),
        Z,
        num_data=len(X),
        epsilon=options.epsilon,
        learn_epsilon=options.learn_epsilon,
    )
    if options.fixed:
        gpflow.set_trainable(model.kernel, False)
    return model


def hold_out(options: argparse.Namespace, train: Any) -> tuple[Any, Any]:
    """Return the rows to train on, and those for early stopping if there are any."""
    share = options.early_stopping
    if share is None:
        return train, None
    import numpy as np

    rows = np.random.default_rng(options.seed).permutation(len(train[0]))
    number = round(share * len(rows))
    if not 0.0 < share < 1.0 or not 0 < number < len(rows):
        raise ValueError(f"--early-stopping must leave rows on both sides; got {share} of {len(rows)} rows.")
    return tuple(part[rows[number:]] for part in train), tuple(part[rows[:number]] for part in train)


def fit(options: argparse.Namespace, model: Any, split: Any, steps: int | None) -> Any:
    """Train for the flags, from the newest checkpoint of the run folder if there is one."""
    import gpflow_ext as gpx

    train, held_out = hold_out(options, split.train)
    decay_steps = options.steps if options.schedule == "cosine" else None
    return gpx.fit(
        model,
        train,
        steps=steps,
        minibatch_size=min(options.minibatch_size, len(train[0])),
        gamma=options.gamma if options.optimizer == "natural" else None,
        optimizer=optimizer(options, decay_steps),
        decay_steps=decay_steps,
        hold=options.hold,
        validation=held_out,
        monitor=monitor(options, model, train, split.test),
        seed=options.seed,
        jit_compile=options.xla,
        checkpoint_dir=None if options.run_dir is None else options.run_dir / "checkpoints",
        checkpoint_every=100,
    )


def optimizer(options: argparse.Namespace, decay_steps: int | None) -> Any:
    """Return the optimiser that the flags name."""
    from gpflow.keras import tf_keras

    optimizers = tf_keras.optimizers
    rate = options.rate or (0.1 if options.optimizer == "adadelta" else 0.01)
    if decay_steps is not None:
        rate = optimizers.schedules.CosineDecay(rate, decay_steps, alpha=0.05)
    if options.optimizer == "adadelta":  # the constants of the authors' GPflow script
        return optimizers.Adadelta(rate, rho=0.9, epsilon=1e-4)
    return optimizers.Adam(rate)


def monitor(options: argparse.Namespace, model: Any, train: Any, test: Any) -> Any:
    """Return what is called after each step, or nothing."""
    calls: list[Any] = []
    if options.test_every is not None:
        calls.append(Curve(options.run_dir / TEST_FILE, model, test, options.test_every))
    if options.tensorboard is not None:
        rows = tuple(part[: options.minibatch_size] for part in train)
        calls.append(board(str(options.tensorboard), model, rows, every=max(1, options.steps // 100)))
    return (lambda step: [call(step) for call in calls]) if calls else None


def board(folder: str, model: Any, rows: Any, every: int) -> Any:
    """Return GPflow's monitor: the bound of some rows and the parameters, in TensorBoard's format."""
    import importlib.util

    import gpflow
    import tensorflow as tf

    if importlib.util.find_spec("tensorboard") is None:
        raise ImportError('--tensorboard needs TensorBoard: pip install "gpflow-ext[monitor]".')
    bound = tf.function(lambda: model.elbo(tuple(tf.constant(part) for part in rows)))
    tasks = [
        gpflow.monitor.ScalarToTensorBoard(folder, bound, "bound of the first rows"),
        gpflow.monitor.ModelToTensorBoard(folder, model, max_size=10),
    ]
    return gpflow.monitor.Monitor(gpflow.monitor.MonitorTaskGroup(tasks, period=every))


def main() -> None:
    """Train from the command line."""
    _cli.train(sys.modules[__name__], "bound")


if __name__ == "__main__":
    _cli.run(main)
