"""A process of a ``tf.distribute`` run, for test_distribute.py; argv: the function below, its arguments."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import problems
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliProbit, RobustMax
from gpflow_ext.models import GPRNTensor, SparseEP, SVGPRobustMax
from gpflow_ext.sampling.tuning import Setting

STEPS = 8
DUAL: dict[str, Any] = {"recipe": "dual", "steps": 4, "minibatch_size": 11}  # with a last pass


def adam() -> Any:
    """An optimiser of the hyperparameters, one step in each sweep."""
    return tf_keras.optimizers.Adam(0.01)


KILLED_AFTER = 5


def model(num_data: int = 31) -> SparseEP:
    """31 data: not a multiple of 2 or 3 replicas."""
    Z = problems.inputs(8, seed=5)
    return SparseEP(problems.binary(num_data), problems.kernel(), BernoulliProbit(), inducing_variable=Z)


def classifier() -> SparseEP:
    """Three classes: several factors to a datum."""
    kernel = problems.kernel() + gpflow.kernels.White(0.5)
    Z = problems.inputs(8, seed=5)
    return SparseEP(problems.classes(31), kernel, RobustMax(3), inducing_variable=Z)


def robust_max() -> SVGPRobustMax:
    """Three classes by minibatches."""
    return SVGPRobustMax(problems.kernel(), 3, problems.inputs(8, seed=5), num_data=31)


def sampled(tuner: Any, **options: Any) -> gpx.Draws:
    """Draws of three chains of a free-form model; not a multiple of 2 replicas."""
    freeform = gpx.models.SGPMCFreeForm(
        problems.binary(13),
        problems.kernel(),
        BernoulliProbit(),
        inducing_variable=problems.inputs(4, seed=5),
    )
    return drawn(freeform, tuner, precondition=None, approximate=False, **options)


def gpmc() -> gpflow.models.GPMC:
    """A model all of whose parameters are sampled: `set_trainable` does nothing in the scope of a strategy."""
    return gpflow.models.GPMC(problems.binary(13), problems.kernel(), gpflow.likelihoods.Bernoulli())


def drawn(sampled: gpflow.models.BayesianModel, tuner: Any, **options: Any) -> gpx.Draws:
    """Draws of three chains, with priors on the kernel."""
    for parameter in sampled.kernel.trainable_parameters:
        parameter.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.0))
    shared = {"tuner": tuner, "seed": 3, "warm_up": 2, "check": False, "progress": False}
    return gpx.sample(sampled, 4, 3, **shared, **options)


CHAINS = {
    "hmc": (Setting(0.1, 4), {}),
    "gibbs": (Setting(0.1, 4, 0.2), {}),
    "bayesopt": ("bayesopt", {"tuning": {"trials": 2, "samples": 3}}),
}


def network(strategy: tf.distribute.Strategy | None) -> GPRNTensor:
    """41 outputs on 6 inputs, one of them with a gap; not a multiple of 2 replicas."""
    Y = np.random.default_rng(2).normal(size=(6, 41))
    Y[1, 3] = np.nan
    return GPRNTensor((problems.inputs(6), Y), problems.kernel(), problems.kernel(), 2, strategy=strategy)


def save(path: Path, trained: gpflow.models.GPModel, result: gpx.FitResult) -> None:
    arrays = {f"v{i}": variable.numpy() for i, variable in enumerate(trained.variables)}
    np.savez(path, objective=result.objective, first_step=result.first_step, **arrays)


def mirrored(folder: Path) -> None:
    """Go on with all 3 devices from the checkpoint of one; L-BFGS, 3 classes and many outputs on 2 devices."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)

    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    summed = network(two)
    _, observed, root, count = summed.data
    np.savez(folder / "network", observed=observed, root=root, count=count, elbo=summed.elbo())
    trained = robust_max()
    options = {"steps": 4, "minibatch_size": 11, "gamma": 0.5}
    save(folder / "minibatches", trained, gpx.fit(trained, problems.classes(31), strategy=two, **options))
    for follow in (False, True):
        trained = robust_max()
        result = gpx.fit(trained, problems.classes(31), strategy=two, follow=follow, **DUAL)
        save(folder / f"dual, {follow}", trained, result)
    trained = classifier()
    save(folder / "classes", trained, gpx.fit(trained, strategy=two, steps=4, optimizer=adam()))
    for name, (tuner, given) in CHAINS.items():
        np.savez(folder / f"chains, {name}", **sampled(tuner, strategy=two, **given).values)
    with two.scope():
        within = gpmc()
    np.savez(folder / "chains, in scope", **drawn(within, CHAINS["hmc"][0], strategy=two).values)
    trained, three = model(), gpx.distribute.strategy_from_name("mirrored")
    options = {"steps": STEPS, "optimizer": adam(), "checkpoint_dir": folder / "run", "checkpoint_every": 3}
    save(folder / "adam", trained, gpx.fit(trained, strategy=three, **options))
    trained = model()
    options = {"steps": 1, "optimizer": "lbfgs", "hyper_updates": 2, "damping": 0.9}
    save(folder / "lbfgs", trained, gpx.fit(trained, strategy=two, **options))


def _run(trained: SparseEP, strategy: Any, directory: Path, **options: Any) -> gpx.FitResult:
    shared = {"steps": STEPS, "optimizer": adam(), "checkpoint_dir": directory, "checkpoint_every": 2}
    return gpx.fit(trained, strategy=strategy, **shared, **options)


def killed(folder: Path, rank: int, dies: str) -> None:
    """Fit; after a step the chief waits until the other worker was killed, or kills itself."""
    strategy = gpx.distribute.strategy_from_name("multiworker")

    def monitor(step: int) -> None:
        if step != KILLED_AFTER:
            return
        if dies == "chief":
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / "ready").touch()
        while not (folder / "killed").exists():
            time.sleep(0.1)

    _run(model(), strategy, folder / "run", monitor=monitor)


def restarted(folder: Path, rank: int) -> None:
    """Go on where the killed run ended."""
    strategy = gpx.distribute.strategy_from_name("multiworker")
    trained = model()
    save(folder / f"resumed{rank}", trained, _run(trained, strategy, folder / "run"))


def whole(folder: Path, rank: int) -> None:
    """Do the run without a stop; try one that must be refused."""
    strategy = gpx.distribute.strategy_from_name("multiworker")
    trained = model()
    if rank:  # what the chief starts from counts
        trained.inducing_variable.Z.assign(trained.inducing_variable.Z + 1.0)
    save(folder / f"whole{rank}", trained, _run(trained, strategy, folder / f"whole_run{rank}"))
    dual = robust_max()
    options = {"strategy": strategy, "checkpoint_dir": folder / f"dual_run{rank}", **DUAL}
    save(folder / f"dual{rank}", dual, gpx.fit(dual, problems.classes(31), **options))
    try:
        gpx.fit(model(num_data=31 + rank), strategy=strategy, steps=1)
    except ValueError as error:
        (folder / f"refused{rank}").write_text(str(error))


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *(int(a) if a.isdigit() else a for a in sys.argv[3:]))
