"""Sample SGPMC-free-form, the sparse Gaussian process with a free-form posterior of Hensman et al. (2015)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpflow_ext.cli import flags, kernels, likelihoods, report, tables

EPILOG = """\
examples
  {command}                                      a bundled set: scikit-learn's breast_cancer
  {command} --data wine --inducing 20            classes, by the robust-max likelihood
  {command} --data visits.csv --target visits --task counts --chains 10
  {command} --run-dir runs/bc --export saved_models/bc    checkpoint, resume, export

Two classes are fitted by a probit likelihood, more by robust-max, ordered ones by cumulative logits, counts by a Poisson
with exponential link, other numbers by Gaussian noise. Hyperparameters have log-normal priors around their starting
values. First a Gaussian approximation is fitted, then the sampler is tuned, then each chain keeps --steps draws (default:
1000). The test scores average over the draws. Draws that fail R-hat, effective sample size or E-BFMI are reported as such.
"""
DATA = "breast_cancer"
OBJECTIVE = ""  # it is sampled
TASKS = ("binary", "multiclass", "ordinal", "counts", "regression")
POINTS = 30


def add_flags(new: argparse.ArgumentParser) -> None:
    """Add the flags of this model."""
    model = new.add_argument_group("model")
    model.add_argument(
        "--inducing",
        type=int,
        metavar="M",
        help=f"inducing points, by k-means (default: {POINTS}, or all training rows)",
    )
    sampler = new.add_argument_group("sampler")
    sampler.add_argument(
        "--chains", type=flags.positive, default=4, metavar="C", help="chains (default: %(default)s)"
    )
    sampler.add_argument(
        "--tuner",
        choices=["bayesopt", "dual_averaging", "chees", "nuts", "gibbs"],
        default="bayesopt",
        help="how step size and path length are found (default: %(default)s)",
    )
    sampler.add_argument(
        "--trials", type=int, default=30, metavar="T", help="trials of bayesopt (default: %(default)s)"
    )
    sampler.add_argument(
        "--precondition",
        choices=["auto", "conditional", "rescaled", "vb", "none"],
        default="auto",
        help="coordinates of the chains, see gpflow_ext.sample (default: %(default)s)",
    )
    sampler.add_argument(
        "--thin",
        type=flags.positive,
        default=1,
        metavar="T",
        help="iterations to a draw (default: %(default)s)",
    )


def load(options: argparse.Namespace) -> Any:
    """Return the data for the flags."""
    return tables.load(options)


def check(options: argparse.Namespace, split: Any) -> None:
    """Raise ``ValueError`` for flags that do not go with the data."""
    kernels.check_inducing(options.inducing, len(split.train[0]), "--inducing")


def build(options: argparse.Namespace, split: Any) -> Any:
    """Return the untrained model for the flags and the data."""
    import gpflow
    import tensorflow as tf
    import tensorflow_probability as tfp

    import gpflow_ext as gpx

    X, _ = split.train
    kernel = kernels.kernel(options, X.shape[1])
    for parameter in (kernel.variance, kernel.lengthscales):
        start = tf.convert_to_tensor(parameter)
        parameter.prior = tfp.distributions.LogNormal(tf.math.log(start), tf.ones_like(start))
    model = gpx.models.SGPMCFreeForm(
        split.train,
        kernel,
        _likelihood(split),
        likelihoods.mean_of_counts(split),
        num_latent_gps=len(split.labels) if split.task == "multiclass" else None,
        inducing_variable=kernels.centres(
            kernels.number_of_points(options.inducing, POINTS, len(X)), X, options.seed
        ),
    )
    if options.fixed:
        gpflow.set_trainable(model.kernel, False)
    return model


def _likelihood(split: Any) -> Any:
    import gpflow
    import tensorflow as tf
    import tensorflow_probability as tfp

    if split.task != "regression":
        return likelihoods.probit(split, epsilon=1e-3)
    start = gpflow.utilities.to_default_float(0.1)  # of the variance of the targets
    noise: Any = gpflow.likelihoods.Gaussian()
    noise.variance = gpflow.Parameter(start, transform=gpflow.utilities.positive(base="exp"))
    noise.variance.prior = tfp.distributions.LogNormal(tf.math.log(start), tf.ones_like(start))
    return likelihoods.standardised(split, noise)


def fit(options: argparse.Namespace, model: Any, split: Any, steps: int | None, **shared: Any) -> Any:
    """Return the draws for the flags, from the newest checkpoint of the run folder on if there is one."""
    import gpflow_ext as gpx

    if options.starts is not None:
        gpx.gaussian_approximation(model, starts=options.starts, seed=options.seed, jit_compile=options.xla)
    return gpx.sample(
        model,
        1000 if steps is None else steps,
        options.chains,
        tuner=options.tuner,
        tuning={"trials": options.trials} if options.tuner == "bayesopt" else None,
        precondition=None if options.precondition == "none" else options.precondition,
        thin=options.thin,
        **shared,
    )


def show(options: argparse.Namespace, draws: Any) -> None:
    """Print what the chains did; write the draws, and what tuning tried, to the run folder."""
    if options.run_dir is not None:
        print(f"draws written to {draws.save(options.run_dir / 'draws.npz')}")
    if draws.trials:
        _show_tuning(draws, options.run_dir)
    print(draws)
    print(draws.diagnose())


def _show_tuning(draws: Any, folder: Path | None) -> None:
    """Print the best of what tuning tried; write all of it, and a picture of the surrogate, to a folder."""
    ranked = sorted(draws.trials, key=lambda trial: -trial.reward)
    columns = ("step size", "at most leapfrogs", "acceptance", "ESJD", "reward")
    rows = [
        (f"{one.setting.step_size:.4g}", str(one.setting.max_leapfrogs), f"{one.acceptance:.2f}",
         f"{one.jump:.4g}", f"{one.reward:.4f}")
        for one in ranked
    ]  # fmt: skip
    report.table(f"tuning: the best of {len(rows)} trials", columns, rows[:5])
    if folder is None:
        return
    lines = [",".join(columns), *(",".join(row) for row in rows)]
    (folder / "tuning.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    import gpflow_ext as gpx

    figure = Figure(figsize=(6, 4), layout="constrained")
    ax = figure.subplots()
    figure.colorbar(gpx.plotting.tuning(ax, draws.optimizer(), draws.setting), label="expected reward")
    figure.savefig(folder / "tuning.png", dpi=120)
    print(f"tuning written to {folder / 'tuning.csv'} and {folder / 'tuning.png'}")
