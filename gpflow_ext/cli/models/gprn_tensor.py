"""Train GPRNTensor, the Gaussian process regression network for many outputs (Wilson et al. 2012, Li et al. 2020)."""

from __future__ import annotations

import argparse
from typing import Any

from gpflow_ext.cli import flags, kernels, tables

EPILOG = """\
examples
  {command}                                              scikit-learn's linnerud, three outputs
  {command} --data sensors.csv --target no2 ozone pm10   your own table, several targets
  {command} --data fields.npz --nodes 4 --run-dir runs/fields    arrays X [N, Q] and Y [N, D]
  {command} --data sensors.csv --target no2 ozone --missing keep --export saved_models/air

Every target is predicted from all inputs by y = W(x) f(x) + noise. The objective is a lower bound of the log evidence;
a step is a few closed-form updates of the nodes f and up to 20 iterations of L-BFGS, and costs O((N K)^3) for N rows and
K nodes however many outputs there are. With --posterior tensor it is a round of L-BFGS at that cost, with --minibatch-size
a step of Adam at O(N^2 B K). Outputs should be around zero, and more than eight of them of one scale: --scale-targets
subtracts the training mean of each and divides by its deviation. The scores are then in these units; the exported model
predicts in those of the table.
"""
DATA = "linnerud"
OBJECTIVE = "bound"
NO_WEIGHTS = "gprn-tensor takes no weights of rows"
TASKS = ("several",)


def add_flags(new: argparse.ArgumentParser) -> None:
    """Add the flags of this model."""
    model = new.add_argument_group("model")
    model.add_argument(
        "--nodes",
        type=flags.positive,
        default=2,
        metavar="K",
        help="latent functions f (default: %(default)s)",
    )
    model.add_argument(
        "--node-lengthscale",
        type=flags.above_zero,
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
        type=flags.above_zero,
        default=1e-6,
        metavar="V",
        help="lower bound of the noise variance; lower it for simulators (default: %(default)s)",
    )
    training = new.add_argument_group("training")
    training.add_argument(
        "--minibatch-size",
        type=flags.positive,
        metavar="B",
        help="outputs in a step of the tensor posterior (default: all)",
    )


def load(options: argparse.Namespace) -> Any:
    """Return the data for the flags."""
    return tables.load(options)


def check(options: argparse.Namespace, split: Any) -> None:
    """Raise ``ValueError`` for flags that do not go with the data; here there are none."""


def build(options: argparse.Namespace, split: Any) -> Any:
    """Return the untrained model for the flags and the data."""
    import gpflow

    import gpflow_ext as gpx

    width = split.train[0].shape[1]
    weight_kernel, kernel = (kernels.kernel(options, width) for _ in range(2))
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


def fit_options(options: argparse.Namespace, num_rows: int) -> dict[str, Any]:
    """Return the options of `gpflow_ext.fit`."""
    return {
        "minibatch_size": options.minibatch_size,
        "checkpoint_every": 1 if options.minibatch_size is None else 100,
    }
