"""Train GPRNTensor, the Gaussian process regression network for many outputs (Wilson et al. 2012, Li et al. 2020)."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import _cli

EPILOG = """\
examples
  python scripts/train_gprn_tensor.py                                              scikit-learn's linnerud, three outputs
  python scripts/train_gprn_tensor.py --data sensors.csv --target no2 ozone pm10   your own table, several targets
  python scripts/train_gprn_tensor.py --data fields.npz --nodes 4 --run-dir runs/fields    arrays X [N, Q] and Y [N, D]
  python scripts/train_gprn_tensor.py --data sensors.csv --target no2 ozone --missing keep --export saved_models/air

Every target is predicted from all inputs by y = W(x) f(x) + noise. The objective is a lower bound of the log evidence;
a step is a few closed-form updates of the nodes f and up to 20 iterations of L-BFGS, and costs O((N K)^3) for N rows and
K nodes however many outputs there are. With --posterior tensor it is a step of Adam at O(N^2 D K). Outputs should be of
one scale around zero: --scale-targets subtracts the training mean of each and divides by its deviation, and the scores and
the exported model are then in these units.
"""


def arguments() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    new = _cli.parser(__doc__ or "", EPILOG, several_targets=True)
    new.set_defaults(data="linnerud")
    model = new.add_argument_group("model")
    model.add_argument(
        "--nodes", type=int, default=2, metavar="K", help="latent functions f (default: %(default)s)"
    )
    model.add_argument(
        "--node-lengthscale",
        type=float,
        metavar="L",
        help="starting length scale of the nodes (default: three times that of the weights)",
    )
    model.add_argument(
        "--posterior",
        choices=["collapsed", "tensor"],
        default="collapsed",
        help="weights integrated out, or a tensor normal (default: %(default)s)",
    )
    model.add_argument(
        "--output-shape",
        type=int,
        nargs="+",
        metavar="D",
        help="grid of the outputs of the tensor posterior, such as 64 64 (default: near to a square)",
    )
    model.add_argument(
        "--least-noise",
        type=float,
        default=1e-6,
        metavar="V",
        help="lower bound of the noise variance; lower it for simulators (default: %(default)s)",
    )
    training = new.add_argument_group("training")
    training.add_argument(
        "--minibatch-size",
        type=int,
        metavar="B",
        help="outputs in a step of the tensor posterior (default: all)",
    )
    return new


def load(options: argparse.Namespace) -> Any:
    """Return the data for the flags."""
    split = _cli.load(options)
    if split.task not in ("regression", "count"):
        raise ValueError(
            f"The target of {split.name} is read as {split.task}; this script predicts numbers: choose another --target."
        )
    return split


def build(options: argparse.Namespace, split: Any) -> Any:
    """Return the untrained model for the flags and the data."""
    import gpflow

    import gpflow_ext as gpx

    width = split.train[0].shape[1]
    weight_kernel, kernel = (_cli.build_kernel(options, width) for _ in range(2))
    longer = 3.0 * kernel.lengthscales.numpy()
    kernel.lengthscales.assign(
        longer if options.node_lengthscale is None else 0.0 * longer + options.node_lengthscale
    )
    kernel.variance.assign(1.0)
    gpflow.set_trainable(kernel.variance, False)
    model = gpx.models.GPRNTensor(
        split.train,
        kernel,
        weight_kernel,
        options.nodes,
        options.output_shape,
        options.posterior,
        noise_variance=max(0.1, 2.0 * options.least_noise),
        noise_bounds=(options.least_noise, max(10.0, 10.0 * options.least_noise)),
        seed=options.seed,
    )
    if options.fixed:
        for part in (model.likelihood, model.nugget):
            gpflow.set_trainable(part, False)
    return model


def fit(options: argparse.Namespace, model: Any, split: Any, steps: int | None) -> Any:
    """Train for the flags, from the newest checkpoint of the run folder if there is one."""
    import gpflow_ext as gpx

    return gpx.fit(
        model,
        steps=steps,
        minibatch_size=options.minibatch_size,
        seed=options.seed,
        jit_compile=options.xla,
        checkpoint_dir=None if options.run_dir is None else options.run_dir / "checkpoints",
        checkpoint_every=1 if options.posterior == "collapsed" else 100,
    )


def main() -> None:
    """Train from the command line."""
    _cli.train(sys.modules[__name__], "bound")


if __name__ == "__main__":
    _cli.run(main)
