"""Writing that fails: at each write, flush and rename of a checkpoint or an export, by a full disk, by a signal."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.models import GPLaplace
from gpflow_ext.persistence.checkpoint import Checkpoints
from gpflow_ext.sampling.chains import Chains
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.training.interrupts import Interrupts

MOST = 200  # writes of one export, more than there are


def laplace(variance: float = 1.0) -> GPLaplace:
    return GPLaplace(problems.binary(12), problems.kernel(variance), BernoulliLogit())


class Faults:
    """Fails the n-th of the calls that put something on the disk."""

    CALLS = (
        (os, "replace"),
        (os, "fsync"),
        (Path, "write_text"),
        (Path, "write_bytes"),
        (np, "savez"),
        (tf.saved_model, "save"),
        (tf.train.CheckpointManager, "save"),
    )

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number, self.fails = 0, MOST
        for owner, name in self.CALLS:
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, call: Callable) -> Callable:
        def counted(*arguments, **options):
            self.number += 1
            if self.number == self.fails:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*arguments, **options)

        return counted

    @contextlib.contextmanager
    def failing(self, number: int) -> Iterator[None]:
        """Fail the call of this number, from 1."""
        self.number, self.fails = 0, number
        yield
        self.fails = MOST


def attempt(write: Callable[[], object]) -> str | None:
    """The sentence with which writing fails; ``None`` where it does not."""
    try:
        write()
    except OSError as error:
        return str(error)
    return None


def test_whichever_write_of_a_checkpoint_fails_the_one_before_is_restored(tmp_path, monkeypatch) -> None:
    faults, failures = Faults(monkeypatch), 0
    for number in range(1, MOST):
        folder, model = tmp_path / str(number), laplace(1.0)
        checkpoints = Checkpoints(folder, model)
        checkpoints.save(1)
        model.kernel.variance.assign(2.0)
        with faults.failing(number):
            said = attempt(functools.partial(checkpoints.save, 2))
        again = laplace(9.0)
        step = Checkpoints(folder, again).restore_latest()
        np.testing.assert_allclose(again.kernel.variance.numpy(), float(step), rtol=1e-12)
        if said is None:
            assert step == 2
            break
        failures += 1
        assert said.endswith(
            f"step 2 could not be written to {folder}: {os.strerror(errno.ENOSPC)}. The checkpoint of step 1 is whole."
        )
    assert failures >= 5


def test_whichever_write_of_an_export_fails_the_version_before_is_served(tmp_path, monkeypatch) -> None:
    faults, model, folder = Faults(monkeypatch), laplace(), tmp_path / "model"
    gpx.export(model, folder)
    failures = 0
    for number in range(1, MOST):
        before = {path.name for path in folder.iterdir()}
        with faults.failing(number):
            said = attempt(lambda: gpx.export(model, folder))
        after = {path.name for path in folder.iterdir()}
        assert before <= after
        assert len(after) <= len(before) + 1  # no litter: one version more at most, which is whole
        gpx.verify(folder)
        if said is None:
            assert len(after) == len(before) + 1
            break
        failures += 1
        assert (
            f"The model could not be written to {folder}: {os.strerror(errno.ENOSPC)}. The versions [1"
            in said
        )
    assert failures >= 8


FULL = """
import resource, signal, sys
import gpflow_ext as gpx, problems
from gpflow_ext.persistence.checkpoint import Checkpoints
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.training.interrupts import Interrupts

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder, model = sys.argv[1], gpx.models.GPLaplace(
    problems.binary(12), problems.kernel(), gpx.likelihoods.BernoulliLogit()
)
checkpoints = Checkpoints(folder + "/run", model)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
for write in (lambda: checkpoints.save(1), lambda: gpx.export(model, folder + "/model")):
    try:
        write()
    except OSError as error:
        print(error)
"""


def test_a_full_disk_is_told_in_a_sentence(tmp_path) -> None:
    """Files may not grow beyond 2 kB: what TensorFlow itself writes fails."""
    command, tests = [sys.executable, "-c", FULL, str(tmp_path)], Path(__file__).parent
    path = os.pathsep.join([str(tests), str(tests.parent)])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert "The checkpoint of step 1 could not be written to " + str(tmp_path / "run") in done.stdout
    assert "The model could not be written to " + str(tmp_path / "model") in done.stdout
    assert done.stdout.count("File too large") == 2
    assert list((tmp_path / "model").iterdir()) == []


@pytest.fixture(autouse=True)
def _signals_are_heard() -> Iterator[None]:
    """A shell lets what it runs in the background ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to it")
@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_ends_a_run_after_its_step_with_a_checkpoint(number, raised, tmp_path) -> None:
    def fitted(**options) -> GPLaplace:
        model = laplace(5.0)
        gpx.fit(model, steps=6, hyper_updates=1, progress=False, **options)
        return model

    def monitor(step: int) -> None:
        if step == 3:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(raised) as ended:
        fitted(checkpoint_dir=tmp_path, checkpoint_every=100, monitor=monitor)
    assert signal.getsignal(number) is before
    if number == signal.SIGINT:
        assert f"Interrupted after step 3. The same call resumes in {tmp_path}." in str(ended.value)
    else:
        assert ended.value.code == 128 + number
    resumed = fitted(checkpoint_dir=tmp_path, checkpoint_every=100, monitor=lambda step: None)
    for a, b in zip(resumed.variables, fitted().variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_signal_ends_sampling_after_its_chunk_with_a_checkpoint(tmp_path, monkeypatch) -> None:
    def sampled(**options) -> np.ndarray:
        fixed = {"num_chains": 2, "warm_up": 2, "chunk": 4, "check": False, "progress": False}
        model = gpflow.models.GPMC(problems.binary(12), problems.kernel(), BernoulliLogit())
        gpflow.set_trainable(model.kernel, False)
        draws = gpx.sample(model, 12, tuner=Setting(0.1, 3), **fixed, **options)
        return next(iter(draws.values.values()))

    save = Checkpoints.save

    def then_killed(self, step: int) -> Path:
        os.kill(os.getpid(), signal.SIGINT)
        return save(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", then_killed)
        with pytest.raises(KeyboardInterrupt, match="Interrupted after draw 4"):
            sampled(checkpoint_dir=tmp_path)
    np.testing.assert_array_equal(sampled(checkpoint_dir=tmp_path), sampled())


def test_a_signal_without_a_folder_leaves_the_draws_of_whole_chunks(monkeypatch) -> None:
    X, Y = problems.binary(12)
    model = gpx.models.SGPMCFreeForm((X, Y), problems.kernel(), BernoulliLogit(), inducing_variable=X[:5])
    gpflow.set_trainable(model.kernel, False)
    fixed = {
        "num_chains": 2,
        "warm_up": 2,
        "chunk": 4,
        "check": False,
        "progress": False,
        "approximate": False,
    }
    whole = gpx.sample(model, 4, tuner=Setting(0.1, 3), **fixed)
    before = model.predict_f(X)[0].numpy()
    advance = Chains.advance

    def then_killed(self, *arguments) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        advance(self, *arguments)

    monkeypatch.setattr(Chains, "advance", then_killed)
    with pytest.raises(KeyboardInterrupt, match=r"after draw 4\. With `checkpoint_dir`"):
        gpx.sample(model, 12, tuner=Setting(0.1, 3), **fixed)
    assert whole.num_draws == 4
    np.testing.assert_array_equal(model.predict_f(X)[0], before)


def test_a_second_signal_ends_a_run_at_once() -> None:
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with Interrupts() as interrupts:
        assert not interrupts
        interrupts.end("nothing has come")
