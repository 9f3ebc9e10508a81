"""Distributed `SparseEP`: devices of one machine, two worker processes, a worker killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import worker

import gpflow_ext as gpx
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.training.distribute import Shards, WorkerLostError, strategy_from_name

TESTS = Path(__file__).parent
SECONDS = 240  # a worker that has not ended by then hangs: it takes 20 s on two busy cores


def spawn(*arguments: object, config: dict | None = None) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"}
    environment.pop("TF_CONFIG", None)
    if config is not None:
        environment["TF_CONFIG"] = json.dumps(config)
    command = [sys.executable, str(TESTS / "worker.py"), *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


def free_ports(count: int) -> list[int]:
    with_port = [socket.socket() for _ in range(count)]
    for one in with_port:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in with_port]
    for one in with_port:
        one.close()
    return ports


def two_workers(name: str, folder: Path, *arguments: object, kill: bool = False) -> list[tuple[int, str]]:
    """Run two workers on the loopback address; return their exit codes and standard errors.

    Another process may take a port between its choice and its use: then they are started once more.
    """
    for _ in range(2):
        cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
        processes = [
            spawn(name, folder, rank, *arguments, config={"cluster": cluster, "task": task})
            for rank in range(2)
            for task in [{"type": "worker", "index": rank}]
        ]
        try:
            if kill:
                kill_when_ready(processes, folder)
            ended = [(p.communicate(timeout=SECONDS)[1], p.returncode) for p in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if not any("Could not start gRPC server" in error for error, _ in ended):
            break
    return [(code, error) for error, code in ended]


def kill_when_ready(processes: list[subprocess.Popen[str]], folder: Path) -> None:
    until = time.monotonic() + SECONDS
    while not (folder / "ready").exists() and time.monotonic() < until:
        if any(process.poll() is not None for process in processes):
            return
        time.sleep(0.1)
    processes[1].kill()
    processes[1].wait()
    (folder / "killed").touch()


def read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path.with_suffix(".npz")) as file:
        return dict(file)


def variables(saved: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [saved[f"v{i}"] for i in range(sum(name.startswith("v") for name in saved))]


def assert_same_run(
    saved: dict[str, np.ndarray],
    single: gpflow.models.GPModel,
    objective: np.ndarray,
    rounding: float = 1e-10,
) -> None:
    """All sums are the same but for their order: rounding, grown in a few steps to 1e-14."""
    np.testing.assert_allclose(saved["objective"], objective[saved["first_step"] :], rtol=rounding)
    for a, b in zip(variables(saved), single.variables, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=rounding, atol=rounding)


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory) -> Path:
    """A folder with the checkpoints of steps 3, 6 and 8 of a run on one device."""
    return tmp_path_factory.mktemp("single")


@pytest.fixture(scope="module", name="single")
def _single(run: Path) -> tuple[gpx.models.SparseEP, np.ndarray]:
    model = worker.model()
    return model, gpx.fit(
        model, steps=worker.STEPS, optimizer=worker.adam(), checkpoint_dir=run, checkpoint_every=3
    ).objective


@pytest.fixture(scope="module", name="mirrored")
def _mirrored(tmp_path_factory, run: Path, single) -> Path:
    folder = tmp_path_factory.mktemp("mirrored")
    shutil.copytree(run, folder / "run", ignore=shutil.ignore_patterns("ckpt-6.*", "ckpt-8.*"))
    process = spawn("mirrored", folder)
    error = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 0, error[-3000:]
    return folder


@pytest.mark.slow
def test_three_devices_go_on_as_one_would(mirrored: Path, single) -> None:
    saved = read(mirrored / "adam")
    assert int(saved["first_step"]) == 3
    assert_same_run(saved, *single)


@pytest.mark.slow
def test_two_devices_do_what_one_does_by_lbfgs(mirrored: Path) -> None:
    """One device would mix the sweeps, but for a damping that is given."""
    model = worker.model()
    result = gpx.fit(model, steps=1, optimizer="lbfgs", hyper_updates=2, damping=0.9)
    assert_same_run(read(mirrored / "lbfgs"), model, result.objective)


@pytest.mark.slow
def test_two_devices_sum_the_outputs_of_a_network_as_one_does(mirrored: Path) -> None:
    saved, one = np.load(mirrored / "network.npz"), worker.network(None)
    _, observed, root, count = one.data
    np.testing.assert_array_equal(saved["observed"], observed)
    np.testing.assert_array_equal(saved["count"], count)
    grams = [part @ np.swapaxes(part, 1, 2) for part in (saved["root"], root.numpy())]
    np.testing.assert_allclose(*grams, rtol=0, atol=1e-12)  # of numbers near 40
    np.testing.assert_allclose(saved["elbo"], one.elbo(), rtol=1e-10)


@pytest.mark.slow
def test_two_devices_tell_classes_apart_as_one_does(mirrored: Path) -> None:
    model = worker.classifier()
    result = gpx.fit(model, steps=4, optimizer=worker.adam())
    assert model.nat1.numpy().shape == (31, 3, 2)
    assert_same_run(read(mirrored / "classes"), model, result.objective)


@pytest.mark.slow
def test_two_devices_share_a_minibatch_as_one_has_it(mirrored: Path) -> None:
    """11 rows: 6 for one, 5 for the other."""
    model = worker.robust_max()
    result = gpx.fit(model, problems.classes(31), steps=4, minibatch_size=11, gamma=0.5)
    assert_same_run(read(mirrored / "minibatches"), model, result.objective)


@pytest.mark.slow
@pytest.mark.parametrize("follow", [False, True])
def test_two_devices_share_a_minibatch_of_dual_sites_as_one_has_it(mirrored: Path, follow: bool) -> None:
    model = worker.robust_max()
    result = gpx.fit(model, problems.classes(31), follow=follow, **worker.DUAL)
    # Adam divides gradients by their own size: the first steps of small ones grow what is rounded.
    assert_same_run(read(mirrored / f"dual, {follow}"), model, result.objective, rounding=1e-8)


def kill_and_restart(folder: Path, dies: str) -> Path:
    """Kill a run after step 5, restart it; return the folder."""
    ended = two_workers("killed", folder, dies, kill=dies == "worker")
    (lost, _), (code, error) = ended[::-1] if dies == "worker" else ended
    assert lost == -signal.SIGKILL
    assert code == 1, error[-3000:]
    assert "WorkerLostError" in error, error[-3000:]
    assert "Restart all workers with the same `checkpoint_dir`" in error
    return done_by_two("restarted", folder)


def done_by_two(name: str, folder: Path) -> Path:
    for code, error in two_workers(name, folder):
        assert code == 0, error[-3000:]
    return folder


def assert_resumed(folder: Path, unstopped: Path) -> None:
    """The run went on from the checkpoint of step 4 to the very same numbers as the one without a stop."""
    whole = read(unstopped / "whole0")
    for rank in range(2):
        resumed = read(folder / f"resumed{rank}")
        assert int(resumed["first_step"]) == 4
        np.testing.assert_array_equal(resumed["objective"], whole["objective"][4:])
        for a, b in zip(variables(resumed), variables(whole), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory) -> Path:
    return done_by_two("whole", tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
def test_a_killed_worker_ends_the_run_which_then_resumes(whole: Path, tmp_path: Path) -> None:
    assert_resumed(kill_and_restart(tmp_path, "worker"), whole)


@pytest.mark.slow
def test_a_killed_chief_ends_the_run_which_then_resumes(whole: Path, tmp_path: Path) -> None:
    assert_resumed(kill_and_restart(tmp_path, "chief"), whole)


def test_one_process_goes_on_from_the_checkpoint_of_two(whole: Path, single, tmp_path: Path) -> None:
    alone = worker.model()
    directory = tmp_path / "alone"
    later = shutil.ignore_patterns("ckpt-6.*", "ckpt-8.*")
    shutil.copytree(whole / "whole_run0", directory, ignore=later)
    shared = {"checkpoint_dir": directory, "checkpoint_every": 2, "optimizer": worker.adam()}
    result = gpx.fit(alone, steps=worker.STEPS, **shared)
    assert result.first_step == 4
    saved = read(whole / "whole0")
    np.testing.assert_allclose(result.objective, saved["objective"][4:], rtol=1e-10)
    assert_same_run(saved, alone, single[1])


@pytest.mark.slow
def test_two_processes_take_the_last_pass_of_dual_sites_as_one_does(whole: Path) -> None:
    model = worker.robust_max()
    result = gpx.fit(model, problems.classes(31), **worker.DUAL)
    for rank in range(2):
        assert_same_run(read(whole / f"dual{rank}"), model, result.objective, rounding=1e-8)
    loaded = gpx.load_checkpoint(whole / "dual_run0")
    for a, b in zip(variables(read(whole / "dual0")), loaded.variables, strict=True):
        np.testing.assert_array_equal(a, b.numpy())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*worker.CHAINS, "in scope"])
def test_chains_on_two_devices_draw_what_they_draw_on_one(mirrored: Path, name: str) -> None:
    """Four draws: leapfrog steps amplify rounding. A model is built outside of the scope, or inside."""
    tuner, options = worker.CHAINS.get(name, worker.CHAINS["hmc"])
    own = name in worker.CHAINS
    one = worker.sampled(tuner, **options) if own else worker.drawn(worker.gpmc(), tuner)
    saved = np.load(mirrored / f"chains, {name}.npz")
    for key, values in one.values.items():
        np.testing.assert_allclose(saved[key], values, rtol=0.0, atol=1e-10)


def test_what_chains_on_several_devices_cannot_have_is_refused() -> None:
    """Before any work is done."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"], tf.distribute.ReductionToOneDevice())
    for tuner in ("nuts", "dual_averaging", "chees"):
        with pytest.raises(NotImplementedError, match="adapts to all chains"):
            worker.sampled(tuner, strategy=strategy)
    with pytest.raises(NotImplementedError, match="does not go with `strategy`"):
        worker.sampled(Setting(0.1, 4), strategy=strategy, jit_compile=True)
    with strategy.scope(), pytest.raises(ValueError, match="outside of"):
        worker.sampled(Setting(0.1, 4), strategy=strategy)


def test_two_workers_do_what_one_does(whole: Path, single) -> None:
    saved = [read(whole / f"whole{rank}") for rank in range(2)]
    assert_same_run(saved[0], *single)
    for name, value in saved[0].items():
        np.testing.assert_array_equal(saved[1][name], value)


def test_the_chief_alone_writes(whole: Path) -> None:
    assert (whole / "whole_run0" / "ckpt-8.index").exists()
    assert not (whole / "whole_run1").exists()


def test_workers_with_other_data_are_refused_by_all(whole: Path) -> None:
    for rank in range(2):
        assert "the workers differ" in (whole / f"refused{rank}").read_text()


def test_wrong_use_is_named() -> None:
    one = tf.distribute.MirroredStrategy(["CPU:0"])
    assert strategy_from_name(None) is None
    with pytest.raises(ValueError, match="horovod"):
        strategy_from_name("horovod")
    tpu = object.__new__(tf.distribute.TPUStrategy)  # without the TPU
    with pytest.raises(ValueError, match=r"TPUStrategy is not supported: train .* or predict .*stablehlo"):
        Shards(tpu, 3)
    with pytest.raises(ValueError, match="MirroredStrategy"):
        gpx.fit(worker.model(), strategy=tf.distribute.OneDeviceStrategy("CPU:0"))
    with pytest.raises(NotImplementedError, match="jit_compile"):
        gpx.fit(worker.model(), strategy=one, jit_compile=True)
    with pytest.raises(NotImplementedError, match="VGPKMM on one device"):
        gpx.fit(
            gpx.models.VGPKMM(
                problems.binary(), gpflow.kernels.SquaredExponential(), gpx.likelihoods.BernoulliLogit()
            ),
            strategy=one,
        )
    with pytest.raises(ValueError, match="0 data cannot be shared by 1 replicas"):
        Shards(one, 0)
    with pytest.raises(ValueError, match="not both"):
        gpx.fit(worker.model(), strategy=one, minibatch_size=5)
    rows = tf.data.Dataset.from_tensor_slices(problems.binary(10))
    kernel, likelihood = problems.kernel(), gpx.likelihoods.BernoulliProbit()
    streamed = gpx.models.SparseEP(rows, kernel, likelihood, inducing_variable=problems.inputs(4))
    with pytest.raises(ValueError, match="shards data in memory"):
        gpx.fit(streamed, strategy=one)
    with one.scope():
        mirrored = worker.model()
    with pytest.raises(ValueError, match="outside of"):
        gpx.fit(mirrored, strategy=one)


def test_errors_of_one_machine_are_its_own() -> None:
    shards = Shards(tf.distribute.MirroredStrategy(["CPU:0"]), 3)
    with pytest.raises(tf.errors.UnavailableError), shards.watched():
        raise tf.errors.UnavailableError(None, None, "another service")
    shards.num_processes = 2
    with pytest.raises(WorkerLostError, match="2 workers died"), shards.watched():
        raise tf.errors.UnavailableError(None, None, "aborted by a task")


def test_what_is_held_fixed_in_the_scope_stays_as_it_is() -> None:
    """GPflow's ``set_trainable`` marks the variable of all replicas, and TensorFlow asks the first one's."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"], tf.distribute.ReductionToOneDevice())
    X, Y = problems.binary(12)
    with strategy.scope():
        kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli()
        gpflow.set_trainable(kernel.lengthscales, False)
        svgp = gpflow.models.SVGP(kernel, likelihood, X[::4])
        sampled = gpx.models.SGPMCFreeForm((X, Y), kernel, likelihood, inducing_variable=X[::4])
    gpx.fit(svgp, (X, Y), recipe="adam", steps=3, progress=False)
    assert kernel.lengthscales.numpy() == 1.0
    assert kernel.variance.numpy() != 1.0
    with pytest.raises(ValueError, match=r"cannot be sampled: kernel\.variance\. Hold"):
        gpx.sample(sampled, 2, strategy=strategy)
