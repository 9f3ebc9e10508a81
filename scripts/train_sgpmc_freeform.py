"""Sample SGPMC-free-form, the sparse Gaussian process with a free-form posterior of Hensman et al. (2015)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import _cli

EPILOG = """\
examples
  python scripts/train_sgpmc_freeform.py                                      a bundled set: scikit-learn's breast_cancer
  python scripts/train_sgpmc_freeform.py --data wine --inducing 20            classes, by the robust-max likelihood
  python scripts/train_sgpmc_freeform.py --data visits.csv --target visits --task count --chains 10
  python scripts/train_sgpmc_freeform.py --run-dir runs/bc --export saved_models/bc    checkpoint, resume, export

Two classes are fitted by a probit likelihood, more by robust-max, counts by a Poisson with exponential link, other
numbers by Gaussian noise. Hyperparameters have log-normal priors around their starting values. First a Gaussian
approximation is fitted, then the sampler is tuned, then each chain keeps --steps draws (default: 1000). The test
scores average over the draws. Draws that fail R-hat, effective sample size or E-BFMI are reported as such.
"""


def arguments() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    new = _cli.parser(__doc__ or "", EPILOG)
    model = new.add_argument_group("model")
    model.add_argument(
        "--inducing",
        type=int,
        default=30,
        metavar="M",
        help="inducing points, by k-means (default: %(default)s)",
    )
    sampler = new.add_argument_group("sampler")
    sampler.add_argument("--chains", type=int, default=4, metavar="C", help="chains (default: %(default)s)")
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
        "--thin", type=int, default=1, metavar="T", help="iterations to a draw (default: %(default)s)"
    )
    return new


def likelihood(split: Any) -> tuple[Any, int | None]:
    """Return the likelihood that suits the targets."""
    import gpflow
    import numpy as np
    import tensorflow_probability as tfp

    from gpflow_ext import likelihoods

    if split.task == "binary":
        return likelihoods.BernoulliProbit(), None
    if split.task == "multiclass":
        return likelihoods.RobustMax(len(split.labels), 1e-3), len(split.labels)
    if split.task == "count":
        return likelihoods.PoissonLog(), None
    noise: Any = gpflow.likelihoods.Gaussian(0.1)
    noise.variance.prior = tfp.distributions.LogNormal(np.log(0.1), np.float64(1.0))
    return noise, None


def build(options: argparse.Namespace, split: Any) -> Any:
    """Return the untrained model for the flags and the data."""
    import gpflow
    import tensorflow as tf
    import tensorflow_probability as tfp

    import gpflow_ext as gpx

    X, _ = split.train
    kernel = _cli.build_kernel(options, X.shape[1])
    for parameter in (kernel.variance, kernel.lengthscales):
        start = tf.convert_to_tensor(parameter)
        parameter.prior = tfp.distributions.LogNormal(tf.math.log(start), tf.ones_like(start))
    if not 1 <= options.inducing <= len(X):
        raise ValueError(
            f"--inducing must be from 1 to {len(X)}, the number of training rows; got {options.inducing}."
        )
    Z = gpx.inducing.kmeans(X, options.inducing, seed=options.seed)
    chosen, classes = likelihood(split)
    model = gpx.models.SGPMCFreeForm(split.train, kernel, chosen, num_latent_gps=classes, inducing_variable=Z)
    if options.fixed:
        gpflow.set_trainable(model.kernel, False)
    return model


def load(options: argparse.Namespace) -> Any:
    """Return the data for the flags."""
    return _cli.load(options)


def fit(options: argparse.Namespace, model: Any, split: Any, steps: int | None) -> Any:
    """Return the draws for the flags, from the newest checkpoint of the run folder on if there is one."""
    import gpflow_ext as gpx

    return gpx.sample(
        model,
        1000 if steps is None else steps,
        options.chains,
        tuner=options.tuner,
        tuning={"trials": options.trials} if options.tuner == "bayesopt" else None,
        precondition=None if options.precondition == "none" else options.precondition,
        thin=options.thin,
        seed=options.seed,
        jit_compile=options.xla,
        checkpoint_dir=None if options.run_dir is None else options.run_dir / "checkpoints",
    )


def main() -> None:
    """Sample from the command line."""
    options = arguments().parse_args()
    _cli.configure(options)
    import gpflow_ext as gpx

    split = load(options)
    _cli.describe(split)
    model = build(options, split)
    if options.run_dir is not None:
        _cli.save_arguments(options, "train_sgpmc_freeform")
    draws = fit(options, model, split, options.steps)
    if options.run_dir is not None:
        print(f"draws written to {draws.save(options.run_dir / 'draws.npz')}")
    if draws.trials:
        report_tuning(draws, options.run_dir)
    report(draws)
    metrics = gpx.metrics.evaluate(model, split.test) if len(split.test[0]) else {}
    if metrics:
        _cli.table(
            "test rows", ("score", "value"), [(name, f"{value:.4f}") for name, value in metrics.items()]
        )
    if options.export is not None:
        print(f"exported to {gpx.export(model, options.export, data=split, metrics=metrics)}")


def report_tuning(draws: Any, folder: Path | None) -> None:
    """Print the best of what tuning tried; write all of it, and a picture of the surrogate, to a folder."""
    ranked = sorted(draws.trials, key=lambda trial: -trial.reward)
    columns = ("step size", "at most leapfrogs", "acceptance", "ESJD", "reward")
    rows = [
        (f"{one.setting.step_size:.4g}", str(one.setting.max_leapfrogs), f"{one.acceptance:.2f}",
         f"{one.jump:.4g}", f"{one.reward:.4f}")
        for one in ranked
    ]  # fmt: skip
    _cli.table(f"tuning: the best of {len(rows)} trials", columns, rows[:5])
    if folder is None:
        return
    lines = [",".join(columns), *(",".join(row) for row in rows)]
    (folder / "tuning.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    from gpflow_ext import plotting

    figure = Figure(figsize=(6, 4), layout="constrained")
    ax = figure.subplots()
    figure.colorbar(plotting.tuning(ax, draws.optimizer(), draws.setting), label="expected reward")
    figure.savefig(folder / "tuning.png", dpi=120)
    print(f"tuning written to {folder / 'tuning.csv'} and {folder / 'tuning.png'}")


def report(draws: Any) -> None:
    """Print what the chains did."""
    found = draws.diagnose()
    rows = []
    for name, value in draws.coordinates().items():
        if not name.startswith("V["):
            quantiles = (f"{q:.4g}" for q in (value.mean(), value.std()))
            rows.append((name, *quantiles, f"{found.rhat[name]:.3f}", f"{found.bulk_ess[name]:.0f}"))
    if rows:
        _cli.table("hyperparameters", ("name", "mean", "sd", "R-hat", "bulk ESS"), rows)
    print(f"step size {draws.setting.step_size:.4g}, at most {draws.setting.max_leapfrogs} leapfrog steps")
    print(found)


if __name__ == "__main__":
    _cli.run(main)
