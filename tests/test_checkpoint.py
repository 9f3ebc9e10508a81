"""Checkpoints: exact resume, refusal of another model, and what a killed process leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.keras import tf_keras

from gpflow_ext import VecchiaOptions, load_checkpoint
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.models import GPLaplace
from gpflow_ext.persistence.checkpoint import Checkpoints
from gpflow_ext.persistence.manifest import check_same, describe

RNG = np.random.default_rng(1)
X = RNG.normal(size=(40, 2))
Y = (X[:, :1] + 0.3 * RNG.normal(size=(40, 1)) > 0).astype(float)


def sparse(kernel=None, likelihood=None, M=5, whiten=True):
    kernel = kernel or gpflow.kernels.SquaredExponential()
    likelihood = likelihood or gpflow.likelihoods.Bernoulli()
    return gpflow.models.SVGP(kernel, likelihood, X[:M].copy(), num_data=len(X), whiten=whiten)


def lower_bounded():
    kernel = gpflow.kernels.SquaredExponential()
    kernel.lengthscales = gpflow.Parameter(1.0, transform=gpflow.utilities.positive(lower=1e-3))
    return kernel


def single_precision():
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        return sparse()


class Run:
    """A training run whose every moving part can be checkpointed."""

    def __init__(self, directory, *, with_iterator=True, built=True):
        self.model = sparse()
        batches = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(40, seed=3).repeat().batch(8)
        self.batches = iter(batches)
        self.optimizer = tf_keras.optimizers.Adam(0.05)
        if built:
            self.optimizer.build(self.model.trainable_variables)
        rest = {"iterator": self.batches} if with_iterator else {}
        self.checkpoints = Checkpoints(directory, self.model, optimizer=self.optimizer, **rest)

    def train(self, steps):
        @tf.function(autograph=False)
        def step(batch):
            variables = self.model.trainable_variables
            with tf.GradientTape() as tape:
                loss = self.model.training_loss(batch)
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        for _ in range(steps):
            step(next(self.batches))

    @property
    def values(self):
        return np.concatenate([v.numpy().ravel() for v in self.model.trainable_variables])


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("straight"))
    run.train(40)
    return run


def distance_after_restart(straight, directory, **kwargs):
    """Train 20 + 20 steps with everything thrown away between; return the largest difference from 40 steps."""
    first = Run(directory, **kwargs)
    first.train(20)
    first.checkpoints.save(20)
    second = Run(directory, **kwargs)
    assert second.checkpoints.restore_latest() == 20
    second.train(20)
    return np.abs(second.values - straight.values).max()


def test_resume_is_exact(straight, tmp_path):
    assert distance_after_restart(straight, tmp_path) == 0.0


def test_resume_is_not_exact_without_the_iterator(straight, tmp_path):
    assert distance_after_restart(straight, tmp_path, with_iterator=False) > 1e-4


def test_a_description_survives_json_and_equals_itself():
    kernel = gpflow.kernels.Matern32(active_dims=[1]) + lower_bounded()
    model = sparse(kernel, gpflow.likelihoods.MultiClass(3))
    model.kernel.kernels[0].variance.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(3.0))
    description = describe(model, (X, Y))
    check_same(json.loads(json.dumps(description)), describe(model, (X, Y)))
    shift = description["parameters"]["kernel.kernels[1].lengthscales"]["transform"]
    assert shift == "Chain(bijectors=[Shift(shift=0.001), Softplus])"
    prior = description["parameters"]["kernel.kernels[0].variance"]["prior"]
    assert prior.startswith("Gamma(concentration=2.0")
    assert "rate=3.0" in prior
    assert description["model"]["kernel"]["kernels"][0]["active_dims"] == [1]
    check_same({**description, "versions": {}}, description)


WRONG = {
    "kernel": (lambda: sparse(gpflow.kernels.Matern52()), "model.kernel.class", "Matern52"),
    "whiten": (lambda: sparse(whiten=False), "model.whiten", "current false"),
    "transform": (lambda: sparse(lower_bounded()), "kernel.lengthscales.transform", "shift=0.001"),
    "M": (lambda: sparse(M=6), "q_mu.shape", "[6, 1]"),
    "likelihood": (
        lambda: sparse(likelihood=gpflow.likelihoods.Gaussian()),
        "model.likelihood.class",
        "Gaussian",
    ),
    "dtype": (single_precision, "dtype", '"float32"'),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved")
    Checkpoints(directory, sparse(), data=(X, Y)).save(3)
    return directory


def refused(directory, model, data=(X, Y)):
    before = [v.numpy() for v in model.variables]
    with pytest.raises(ValueError, match="belongs to another model") as error:
        Checkpoints(directory, model, data=data).restore_latest()
    assert all(np.array_equal(v, b) for v, b in zip(model.variables, before, strict=True))
    return str(error.value)


@pytest.mark.parametrize("what", WRONG)
def test_another_model_is_refused_with_both_values_and_untouched(saved, what):
    build, entry, current = WRONG[what]
    model = build()
    message = refused(saved, model)
    line = next(line for line in message.splitlines() if entry in line)
    assert "saved" in line
    assert current in line


class Times(tfp.bijectors.Bijector):
    """A user's bijector, which does not tell its arguments."""

    def __init__(self, factor):
        super().__init__(forward_min_event_ndims=0)
        self.factor = factor

    def _forward(self, x):
        return self.factor * tf.exp(x)

    def _inverse(self, y):
        return tf.math.log(y / self.factor)

    def _forward_log_det_jacobian(self, x):
        return x + tf.math.log(tf.constant(self.factor, x.dtype))


def test_a_bijector_that_does_not_tell_its_arguments_is_told_from_another(tmp_path):
    def model(factor):
        kernel = gpflow.kernels.Matern52()
        kernel.variance = gpflow.Parameter(1.0, transform=Times(factor))
        return sparse(kernel)

    Checkpoints(tmp_path, model(2.0), data=(X, Y)).save(1)
    assert Checkpoints(tmp_path, model(2.0), data=(X, Y)).restore_latest() == 1
    refused(tmp_path, model(3.0))
    assert "does not tell its arguments" in (tmp_path / "model.json").read_text()


def test_tied_parameters_are_told_from_others_of_equal_value(tmp_path):
    def model(tie):
        kernel = gpflow.kernels.Matern12() + gpflow.kernels.Matern52()
        if tie:
            kernel.kernels[1].lengthscales = kernel.kernels[0].lengthscales
        return sparse(kernel)

    Checkpoints(tmp_path, model(tie=False), data=(X, Y)).save(1)
    assert "kernel.kernels[1].lengthscales.same_as" in refused(tmp_path, model(tie=True))


def test_another_value_that_no_run_would_change_is_refused(tmp_path):
    def model(variance, moves=False):
        built = sparse(gpflow.kernels.Matern52(variance))
        gpflow.set_trainable(built.kernel.variance, moves)
        return built

    def checkpoints(name, *arguments):
        return Checkpoints(tmp_path / name, model(*arguments), data=(X, Y))

    checkpoints("fixed", 1.0).save(1)
    assert checkpoints("fixed", 1.0).restore_latest() == 1
    assert "fixed.kernel.variance: saved 1.0, current 4.0" in refused(tmp_path / "fixed", model(4.0))
    assert checkpoints("fixed", 1.0 + 1e-14).restore_latest() == 1  # rounded elsewhere
    checkpoints("moving", 1.0, True).save(1)
    assert checkpoints("moving", 4.0, True).restore_latest() == 1  # a start from elsewhere


def test_settings_of_objects_that_are_no_modules_are_told_apart():
    def model(nodes):
        quadrature = gpflow.quadrature.NDiagGHQuadrature(1, nodes)
        return sparse(likelihood=gpflow.likelihoods.Poisson(quadrature=quadrature))

    def vecchia(seed):
        return GPLaplace(
            (X, Y), gpflow.kernels.Matern52(), BernoulliLogit(), prior=VecchiaOptions(neighbours=3, seed=seed)
        )

    assert describe(vecchia(0)) == describe(vecchia(0))
    for build, first, second, setting in ((model, 20, 21, "n_gh"), (vecchia, 0, 1, "prior_options.seed")):
        with pytest.raises(ValueError, match=f"{setting}: saved {first}, current {second}"):
            check_same(describe(build(first)), describe(build(second)))


def test_other_data_are_refused(saved):
    other = X.copy()
    other[7, 1] = np.nextafter(other[7, 1], 9.0)
    assert "data.sha256" in refused(saved, sparse(), (other, Y))


def test_another_setting_of_the_run_is_refused(tmp_path):
    Checkpoints(tmp_path, sparse(), training={"learning_rate": 0.1}).save(1)
    with pytest.raises(ValueError, match=r"training.learning_rate: saved 0.1, current 0.2"):
        Checkpoints(tmp_path, sparse(), training={"learning_rate": 0.2}).restore_latest()


def test_a_missing_trackable_is_refused(tmp_path):
    Run(tmp_path).checkpoints.save(1)
    with pytest.raises(ValueError, match=r"trackables.iterator"):
        Run(tmp_path, with_iterator=False).checkpoints.restore_latest()


def test_unbuilt_slots_are_refused_before_anything_is_touched(tmp_path):
    first = Run(tmp_path)
    first.train(2)
    first.checkpoints.save(2)
    second = Run(tmp_path, built=False)
    before = second.values
    with pytest.raises(ValueError, match=r"optimizer\.build"):
        second.checkpoints.restore_latest()
    np.testing.assert_array_equal(second.values, before)


def marked(directory, **kwargs):
    """Return a model and its checkpoints; all of q_mu is set to the step by ``mark``."""
    model = sparse()
    return model, Checkpoints(directory, model, **kwargs)


def save_marked(directory, steps, **kwargs):
    model, checkpoints = marked(directory, **kwargs)
    for step in steps:
        model.q_mu.assign(np.full((5, 1), float(step)))
        checkpoints.save(step)


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(tmp_path, suffix, damage):
    save_marked(tmp_path, [10, 20, 30])
    file = tmp_path / f"ckpt-30{suffix}"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 255
    file.write_bytes(raw if damage == "flip" else raw[: len(raw) // 2])
    if damage == "remove":
        file.unlink()
    model, checkpoints = marked(tmp_path)
    if (suffix, damage) == (".index", "remove"):  # without an index it never was a checkpoint
        assert checkpoints.restore_latest() == 20
    else:
        with pytest.warns(RuntimeWarning, match="step 30 cannot be read"):
            assert checkpoints.restore_latest() == 20
        assert (tmp_path / "unreadable").exists()
    assert np.all(model.q_mu.numpy() == 20.0)
    checkpoints.save(25)
    assert checkpoints.steps == [10, 20, 25]
    assert marked(tmp_path)[1].restore_latest() == 25


def test_if_none_can_be_read_the_reasons_are_given(tmp_path):
    save_marked(tmp_path, [10])
    (tmp_path / "ckpt-10.index").write_bytes(b"")
    with pytest.raises(ValueError, match=r"no checkpoint .* can be read:\n  step 10"):
        marked(tmp_path)[1].restore_latest()
    assert (tmp_path / "ckpt-10.index").exists()


def test_an_empty_folder_restores_nothing(tmp_path):
    assert marked(tmp_path / "new")[1].restore_latest() is None


def test_checkpoints_without_a_manifest_are_refused(tmp_path):
    save_marked(tmp_path, [1])
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"no manifest\.json"):
        marked(tmp_path)


@pytest.mark.parametrize("text", ["", "[]"])
def test_a_damaged_manifest_is_named(tmp_path, text):
    save_marked(tmp_path, [1])
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json (cannot be read|holds a list)"):
        marked(tmp_path)[1].restore_latest()


def test_a_run_does_not_write_among_the_checkpoints_of_another(tmp_path):
    save_marked(tmp_path, [5])
    with pytest.raises(ValueError, match="step 5 that this run has not restored"):
        marked(tmp_path)[1].save(6)


def test_steps_must_grow(tmp_path):
    _, checkpoints = marked(tmp_path)
    checkpoints.save(2)
    with pytest.raises(ValueError, match="seen 2 after 2"):
        checkpoints.save(2)


def test_old_checkpoints_and_litter_are_removed(tmp_path):
    save_marked(tmp_path, range(5), max_to_keep=2)
    for name in ("ckpt-9_temp", "finished-4_temp"):
        (tmp_path / name).mkdir()
    (tmp_path / "ckpt-9_temp" / "part-00000-of-00001.data-00000-of-00001").write_bytes(b"half")
    (tmp_path / "checkpoint.tmp0123").write_bytes(b"half")
    (tmp_path / "ckpt-9.data-00000-of-00001").write_bytes(b"half")
    for name in ("manifest.json", "model.json", "model.npz"):
        (tmp_path / f"{name}.tmp").write_bytes(b"half")
    own = {"ckpt-notes.txt", "finished-4.txt", "my-data_temp.csv"}
    for name in own:
        (tmp_path / name).write_text("the user's own")
    _, checkpoints = marked(tmp_path, max_to_keep=2)
    checkpoints.restore_latest()
    assert checkpoints.save_finished() == tmp_path / "finished-4"
    checkpoints.save(5)
    kept = {f"ckpt-{step}.{part}" for step in (4, 5) for part in ("index", "data-00000-of-00001")}
    assert {p.name for p in tmp_path.iterdir()} == {
        *kept,
        "checkpoint",
        "manifest.json",
        "model.json",
        "model.npz",
        *own,
    }


def test_a_finished_model_is_one_of_a_checkpoint_of_the_run(tmp_path):
    with pytest.raises(ValueError, match="has no checkpoint"):
        marked(tmp_path)[-1].save_finished()


def test_a_lost_state_file_does_not_lose_the_checkpoints(tmp_path):
    save_marked(tmp_path, [1, 2])
    (tmp_path / "checkpoint").unlink()
    _, checkpoints = marked(tmp_path, max_to_keep=2)
    assert checkpoints.restore_latest() == 2
    checkpoints.save(3)
    assert checkpoints.steps == [2, 3]  # those found in the folder count among the ones to keep


def test_the_folder_can_be_moved(tmp_path):
    save_marked(tmp_path / "here", [1, 2])
    (tmp_path / "here").rename(tmp_path / "there")
    assert marked(tmp_path / "there")[1].restore_latest() == 2


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot be a folder of checkpoints: \S*file is a file"):
        Checkpoints(tmp_path / name, sparse())


@pytest.mark.parametrize("name", ["run [1]", "back\\slash"])
def test_a_folder_that_could_not_be_read_again_is_refused_at_once(tmp_path, name):
    folder = tmp_path / name / "run"
    with pytest.raises(ValueError, match="cannot read checkpoints from"):
        Checkpoints(folder, sparse())
    assert not folder.exists()
    Checkpoints(tmp_path / "one", sparse()).save(1)
    (tmp_path / "one").rename(tmp_path / name)
    with pytest.raises(ValueError, match="cannot read checkpoints from"):
        load_checkpoint(tmp_path / name)


@pytest.mark.parametrize("name", ["a b%20*?", "ü ]{x} $HOME %s"])
def test_folders_of_unusual_names_are_read(tmp_path, name):
    Checkpoints(tmp_path / name, sparse()).save(1)
    assert Checkpoints(tmp_path / name, sparse()).restore_latest() == 1


def test_a_taken_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="saved_step"):
        Checkpoints(tmp_path, sparse(), saved_step=tf.Variable(0))


KILL = '''
"""Save without a pause in a child, kill it with SIGKILL, restore in another child; argv: folder, times."""
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
import gpflow
from forks import child
from gpflow_ext import VecchiaOptions, load_checkpoint
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.models import GPLaplace
from gpflow_ext.persistence.checkpoint import Checkpoints

folder, times = Path(sys.argv[1]), int(sys.argv[2])

def start():
    model = gpflow.models.SVGP(gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(), np.ones((400, 1)))
    checkpoints = Checkpoints(folder, model)
    step = checkpoints.restore_latest() or 0
    values = np.concatenate([v.numpy().ravel() for v in (model.q_mu, model.inducing_variable.Z)])
    assert step == 0 or np.all(values == step), (step, values.min(), values.max())
    return model, checkpoints, step

def train():
    model, checkpoints, step = start()
    (folder / "started").touch()
    while True:
        step += 1
        for parameter in (model.q_mu, model.inducing_variable.Z):
            parameter.assign(np.full(parameter.shape, float(step)))
        checkpoints.save(step)

def check():
    _, checkpoints, step = start()
    litter = [p.name for p in folder.iterdir() if "temp" in p.name or "tmp" in p.name]
    assert not litter, litter
    os.write(1, f"{step} ".encode())

for _ in range(times):
    (folder / "started").unlink(missing_ok=True)
    pid = child(train)
    while not ((folder / "started").exists() and any(folder.glob("ckpt-*.index"))):  # also on a busy machine
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        time.sleep(0.005)
    time.sleep(random.uniform(0.02, 0.2))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    _, status = os.waitpid(child(check), 0)
    assert status == 0
'''


def kill_repeatedly(folder, times):
    root = Path(__file__).resolve().parent
    command = [sys.executable, "-c", KILL, str(folder), str(times)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = [int(step) for step in done.stdout.split()]
    assert len(steps) == times
    assert steps == sorted(steps)
    assert steps[-1] > 0


def test_killed_while_saving(tmp_path, record_property):
    kill_repeatedly(tmp_path, 2)
    record_property("kills while saving", 2)


@pytest.mark.slow
def test_killed_while_saving_a_hundred_times(tmp_path, record_property):
    kill_repeatedly(tmp_path, 100)
    record_property("kills while saving", 100)
