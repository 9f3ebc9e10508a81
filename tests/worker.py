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

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliProbit
from gpflow_ext.models import SparseEP

STEPS = 8
KILLED_AFTER = 5


def model(learn: bool = True, num_data: int = 31) -> SparseEP:
    """31 data: not a multiple of 2, 3 or 4 replicas."""
    new = SparseEP(
        problems.binary(num_data),
        problems.kernel(),
        BernoulliProbit(),
        inducing_variable=problems.inputs(8, seed=5),
    )
    gpflow.set_trainable(new.kernel, learn)
    gpflow.set_trainable(new.inducing_variable, learn)
    return new


def save(path: Path, trained: SparseEP, result: gpx.FitResult) -> None:
    arrays = {f"v{i}": variable.numpy() for i, variable in enumerate(trained.variables)}
    np.savez(path, objective=result.objective, first_step=result.first_step, **arrays)


def mirrored(folder: Path) -> None:
    """Fit on 2, 3 and 4 devices in all ways, and go on with 3 from the checkpoint of one."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)

    def over(devices: int) -> tf.distribute.Strategy:
        names = [f"CPU:{i}" for i in range(devices)]
        return tf.distribute.MirroredStrategy(names, tf.distribute.ReductionToOneDevice())

    def fit(name: str, strategy: Any, learn: bool = True, **options: Any) -> None:
        trained = model(learn)
        save(folder / name, trained, gpx.fit(trained, strategy=strategy, **options))

    gpx.fit(model(), steps=3, checkpoint_dir=folder / "run")
    fit("adam", over(3), steps=6, checkpoint_dir=folder / "run")
    fit("lbfgs", over(2), optimizer="lbfgs", hyper_updates=2, steps=1)
    fit("sites", gpx.distribute.strategy_from_name("mirrored"), learn=False)


def whole(folder: Path, rank: int) -> None:
    """Fit without a stop; the workers start from different inducing inputs, of which the chief's count."""
    strategy = gpx.distribute.strategy_from_name("multiworker")
    trained = model()
    if rank:
        trained.inducing_variable.Z.assign(trained.inducing_variable.Z + 1.0)
    directory = folder / f"checkpoints{rank}"
    result = gpx.fit(trained, strategy=strategy, steps=STEPS, checkpoint_dir=directory, checkpoint_every=2)
    save(folder / f"whole{rank}", trained, result)
    try:
        gpx.fit(model(num_data=31 + rank), strategy=strategy, steps=1)
    except ValueError as error:
        (folder / f"refused{rank}").write_text(str(error))


def resumable(folder: Path, rank: int, dies: str) -> None:
    """Fit; the chief waits after a step until the worker was killed, or kills itself, unless told not to."""
    strategy = gpx.distribute.strategy_from_name("multiworker")
    trained = model()

    def monitor(step: int) -> None:
        if step != KILLED_AFTER or dies == "none":
            return
        if dies == "chief":
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / "ready").touch()
        for _ in range(600):
            if (folder / "killed").exists():
                return
            time.sleep(0.1)
        raise AssertionError("the worker was not killed")

    result = gpx.fit(
        trained,
        strategy=strategy,
        steps=STEPS,
        checkpoint_dir=folder / "run",
        checkpoint_every=2,
        monitor=monitor,
    )
    save(folder / f"resumed{rank}", trained, result)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *(int(a) if a.isdigit() else a for a in sys.argv[3:]))
