"""A model comes back from its folder of checkpoints, whole or refused with the reason, and no code with it."""

from __future__ import annotations

import inspect
import json
import re

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from builders import BUILD
from marks import others_slow

import gpflow_ext as gpx
from gpflow_ext.numerics import grids
from gpflow_ext.persistence import checkpoint, record
from gpflow_ext.persistence.checkpoint import Checkpoints
from gpflow_ext.persistence.known import Known, hides
from gpflow_ext.persistence.manifest import describe
from gpflow_ext.persistence.verify import sha256_file

K, L, M = gpflow.kernels, gpflow.likelihoods, gpflow.models
DATA = problems.binary(20)
X, _ = DATA
Z = X[:5].copy()
NEW = problems.inputs(7, seed=5)


def regression(kernel=None, mean=None):
    return M.GPR(problems.continuous(20), kernel or K.SquaredExponential(), mean)


def mixed():
    kernel = K.Matern32(active_dims=[1]) * K.Periodic(K.SquaredExponential(active_dims=[0])) + K.White(0.1)
    mean = gpflow.functions.Linear(np.ones((2, 1))) + gpflow.functions.Constant(0.3)
    model = regression(kernel, mean)
    model.kernel.kernels[1].variance.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(3.0))
    model.likelihood.variance.prior = tfp.distributions.TransformedDistribution(
        tfp.distributions.Normal(np.float64(0.1), np.float64(2.0)), tfp.bijectors.Exp()
    )
    model.likelihood.variance.prior_on = "unconstrained"
    gpflow.set_trainable(model.mean_function, False)
    return model


def tied():
    kernel = K.SquaredExponential() + K.Matern52()
    kernel.kernels[1].lengthscales = kernel.kernels[0].lengthscales
    kernel.both = (kernel.kernels[0].variance, kernel.kernels[1].variance)
    return regression(kernel)


def single_precision():
    data = tuple(part.astype(np.float32) for part in DATA)
    return gpx.models.VGPKMM(data, K.SquaredExponential(), gpx.likelihoods.BernoulliLogit("jaakkola"))


def coregionalised():
    kernel = K.LinearCoregionalization([K.Matern12(), K.SquaredExponential()], W=np.eye(2))
    points = gpflow.inducing_variables.SharedIndependentInducingVariables(
        gpflow.inducing_variables.InducingPoints(Z)
    )
    return M.SVGP(kernel, L.Gaussian(), points, num_latent_gps=2)


def events():
    axes = np.linspace(0.0, 1.0, 4), np.linspace(0.0, 1.0, 3)
    points = grids.grid(*axes)
    counts = np.arange(12.0)[:, None] % 4
    return gpx.models.SGPMCFreeForm(
        (points, counts), K.SquaredExponential(), gpx.likelihoods.PoissonLog(), inducing_variable=points
    )


def bounded():
    likelihood = gpx.likelihoods.CumulativeLogit(4, thresholds=[-1.0, 0.2, 1.0])
    return gpx.models.VGPKMM(problems.ordinal(20), K.SquaredExponential(), likelihood, inducing_variable=Z)


def by_laplace() -> gpx.models.SiteModel:
    """A model that names another site method than its class."""
    model = gpx.models.SiteModel(DATA, K.Matern52(), gpx.likelihoods.BernoulliLogit())
    gpx.fit(model, recipe="laplace", steps=1, hyper_updates=1)
    return model


CASES = {
    "SiteModel": by_laplace,
    **{name: lambda build=build: build(DATA, K.Matern52() + K.White(), Z) for name, build in BUILD.items()},
    "SparseEP-comparisons": lambda: gpx.models.SparseEP(
        problems.classes(20), K.Matern52(), gpx.likelihoods.RobustMax(3), inducing_variable=Z
    ),
    "SVGPRobustMax-epsilon": lambda: gpx.models.SVGPRobustMax(
        K.Matern52(), 3, Z, num_data=None, learn_epsilon=True
    ),
    "GPRNTensor-tensor": lambda: gpx.models.GPRNTensor(
        problems.continuous(9), K.Matern52(), K.Matern52(), 2, posterior="tensor"
    ),
    "GPRNTensor-inducing": lambda: gpx.models.GPRNTensor(
        problems.continuous(12), K.Matern52(), K.Matern52(), 2, inducing_variable=Z
    ),
    "ordinal": bounded,
    "grid": events,
    "GPR": mixed,
    "tied": tied,
    "SGPR": lambda: M.SGPR(problems.continuous(20), K.RationalQuadratic(), Z),
    "VGP": lambda: M.VGP(problems.classes(20), K.Linear(), L.MultiClass(3), num_latent_gps=3),
    "SVGP": lambda: M.SVGP(K.ArcCosine(), L.Bernoulli(), Z, num_data=20, q_diag=True, whiten=False),
    "SVGP-many": coregionalised,
    "invlink": lambda: M.VGP(problems.counts(20), K.Cosine(), L.Poisson(invlink=tf.math.softplus)),
    "float32": single_precision,
}

QUICK = ["SiteModel", *BUILD, "GPRNTensor-inducing", "grid", "tied", "SVGP-many", "invlink", "float32"]


def precision(case):
    return gpflow.config.as_context(
        gpflow.config.Config(float=np.float32 if case == "float32" else np.float64)
    )


def moved(model, seed=3):
    """Move all variables off their start, sites to positive precisions."""
    rng = np.random.default_rng(seed)
    for parameter in model.parameters:
        variable = parameter.unconstrained_variable
        variable.assign(
            tf.abs(variable + tf.constant(0.1 * rng.uniform(size=variable.numpy().shape), variable.dtype))
        )
    return model


def saved(folder, model, step=1):
    Checkpoints(folder, model).save(step)
    return folder


def assert_same(model, loaded, inputs=NEW):
    assert type(loaded) is type(model)
    assert describe(loaded) == describe(model)
    for old, new in zip(model.variables, loaded.variables, strict=True):
        assert old.trainable == new.trainable
        np.testing.assert_array_equal(old, new)
    inputs = inputs.astype(gpflow.default_float())
    for predict in ("predict_f", "predict_y"):
        for old, new in zip(getattr(model, predict)(inputs), getattr(loaded, predict)(inputs), strict=True):
            assert np.isfinite(old).all()
            np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("case", others_slow(CASES, *QUICK))
def test_the_model_comes_back(case, tmp_path) -> None:
    with precision(case):
        model = moved(CASES[case]())
        loaded = gpx.load_checkpoint(saved(tmp_path, model))
        assert_same(model, loaded)
        np.testing.assert_array_equal(model.log_prior_density(), loaded.log_prior_density())


def test_every_model_is_among_the_cases() -> None:
    classes = {case.partition("-")[0] for case in CASES}
    assert classes >= {n for n in gpx.models.__all__ if not inspect.isabstract(getattr(gpx.models, n))}


def test_tied_parameters_stay_tied(tmp_path) -> None:
    loaded = gpx.load_checkpoint(saved(tmp_path, tied()))
    first, second = loaded.kernel.kernels
    assert first.lengthscales is second.lengthscales
    assert first.variance is not second.variance
    assert tuple(loaded.kernel.both) == (first.variance, second.variance)


@pytest.mark.parametrize(
    "name", others_slow(["VGPKMM", "SparseEP", "GPLaplace", "SVGPRobustMax", "GPRNTensor"], "SparseEP")
)
def test_training_goes_on_as_it_would_have(name, tmp_path) -> None:
    def build():
        return BUILD[name](DATA, K.Matern52(), Z)

    data = DATA if name == "SVGPRobustMax" else None
    straight = build()
    gpx.fit(straight, data, steps=4, tolerance=0.0)
    gpx.fit(build(), data, steps=2, tolerance=0.0, checkpoint_dir=tmp_path)
    loaded = gpx.load_checkpoint(tmp_path)
    result = gpx.fit(loaded, data, steps=4, tolerance=0.0, checkpoint_dir=tmp_path)
    assert result.first_step == 2
    assert_same(straight, loaded)
    assert_same(straight, gpx.load_checkpoint(tmp_path))


@pytest.mark.parametrize("in_graph", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_training_goes_on_in_the_units_that_it_began_in(in_graph, tmp_path) -> None:
    """Inducing points that training has moved apart or together give L-BFGS other units, unless these are kept."""
    options = {"tolerance": 0.0, "starts": 1, "hyper_updates": 2, "in_graph": in_graph}

    def build():
        return BUILD["VGPKMM-inducing"](DATA, K.Matern52(), Z)

    straight = build()
    gpx.fit(straight, steps=4, **options)
    gpx.fit(build(), steps=2, **options, checkpoint_dir=tmp_path)
    loaded = gpx.load_checkpoint(tmp_path)
    loaded.inducing_variable.Z.assign(100.0 * Z)  # as if training had; the checkpoint puts them back
    gpx.fit(loaded, steps=4, **options, checkpoint_dir=tmp_path)
    assert_same(straight, loaded)


def test_a_run_with_early_stopping_gives_its_best_state(tmp_path) -> None:
    model = BUILD["SVGPRobustMax"](DATA, K.Matern52(), Z)
    held_out = problems.binary(20, seed=9)
    gpx.fit(model, DATA, steps=12, validation=held_out, validate_every=2, patience=1, checkpoint_dir=tmp_path)
    last = model.q_mu.numpy()
    Checkpoints(tmp_path / "end", model).save(1)
    assert_same(model, gpx.load_checkpoint(tmp_path))
    assert_same(model, gpx.load_checkpoint(tmp_path / "end"))
    np.testing.assert_array_equal(last, model.q_mu)


def test_a_run_with_a_last_pass_gives_the_model_after_it_and_goes_on_from_before_it(tmp_path) -> None:
    def fitted(steps, folder=None, model=None):
        model = model or M.SVGP(K.Matern52(), L.Bernoulli(), Z.copy(), num_data=len(X))
        options = {"recipe": "dual", "minibatch_size": 6, "starts": 1, "checkpoint_dir": folder}
        gpx.fit(model, DATA, steps=steps, checkpoint_every=4, **options)
        return model

    first, straight = fitted(4, tmp_path), fitted(8)
    loaded = gpx.load_checkpoint(tmp_path)
    assert_same(first, loaded)
    assert_same(straight, fitted(8, tmp_path, loaded))
    assert_same(straight, gpx.load_checkpoint(tmp_path))
    assert not list(tmp_path.glob("finished-4.*"))
    (shard,) = tmp_path.glob("finished-8.data-*")
    shard.write_bytes(bytes(shard.stat().st_size))
    before = M.SVGP(K.Matern52(), L.Bernoulli(), Z.copy(), num_data=len(X))
    tf.train.Checkpoint(model=before).restore(str(tmp_path / "ckpt-8")).expect_partial()
    assert_same(before, gpx.load_checkpoint(tmp_path))
    with pytest.raises(AssertionError):
        assert_same(before, straight)


def drawn(folder=None, num_samples=6, tuner=None):
    model = BUILD["SGPMCFreeForm"](DATA, K.SquaredExponential(), Z)
    for parameter in model.kernel.trainable_parameters:
        parameter.prior = tfp.distributions.LogNormal(np.float64(0.0), np.float64(1.0))
    setting = gpx.Setting(0.1, 3) if tuner is None else tuner
    options = {"tuning": {"trials": 2}} if tuner == "bayesopt" else {}
    gpx.sample(
        model,
        num_samples,
        2,
        tuner=setting,
        warm_up=2,
        chunk=3,
        check=False,
        checkpoint_dir=folder,
        **options,
    )
    return model


def test_draws_that_are_held_come_back(tmp_path) -> None:
    model = drawn()
    loaded = gpx.load_checkpoint(saved(tmp_path, model))
    assert loaded.draw_names == model.draw_names
    assert_same(model, loaded)
    loaded.assign_draws(None)
    assert not np.array_equal(loaded.predict_f(NEW)[0], model.predict_f(NEW)[0])


@pytest.mark.parametrize("tuner", others_slow([None, "bayesopt"], None))
def test_the_draws_of_a_run_are_held(tuner, tmp_path) -> None:
    model = drawn(tmp_path, tuner=tuner)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("ckpt-*")}
    loaded = gpx.load_checkpoint(tmp_path)
    assert len(loaded.draw_names) == 3
    assert_same(model, loaded)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("ckpt-*")} == before


def test_the_draws_of_a_network_are_held(tmp_path) -> None:
    model = gpx.models.GPRNTensor(problems.continuous(8), K.SquaredExponential(), K.SquaredExponential(), 2)
    for parameter in model.trainable_parameters:
        gpflow.set_trainable(parameter, False)
    gpx.sample(
        model, 3, 2, tuner=gpx.Setting(0.1, 3), warm_up=2, chunk=3, check=False, checkpoint_dir=tmp_path
    )
    loaded = gpx.load_checkpoint(tmp_path)
    assert loaded.draw_names == ("V",)
    assert_same(model, loaded)


def test_targets_in_a_file_come_back(tmp_path) -> None:
    X, Y = problems.continuous(9)
    np.save(tmp_path / "targets.npy", np.hstack([Y, 2.0 * Y]))
    model = gpx.models.GPRNTensor(
        (X, tmp_path / "targets.npy"), K.SquaredExponential(), K.SquaredExponential(), 2
    )
    saved(tmp_path / "run", model)
    (tmp_path / "targets.npy").unlink()
    loaded = gpx.load_checkpoint(tmp_path / "run")
    assert_same(model, loaded)
    assert loaded.elbo() == model.elbo()


class Shifted(K.SquaredExponential):
    """A kernel of the user's own, with an object and a function of his own."""

    def __init__(self, link=tf.exp):
        super().__init__()
        self.shift = 0.5
        self.link = link

    def K_r2(self, r2):
        return self.link(-0.5 * r2 - self.shift)


def my_link(x):
    return tf.exp(x)


def test_own_classes_and_functions_are_passed_in(tmp_path) -> None:
    model = regression(Shifted(my_link))
    saved(tmp_path, model)
    with pytest.raises(ValueError, match=r"Shifted.*load_checkpoint\(folder, classes=\[Shifted\]\)"):
        gpx.load_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"classes=\[my_link\]"):
        gpx.load_checkpoint(tmp_path, classes=[Shifted])
    assert_same(model, gpx.load_checkpoint(tmp_path, classes=[Shifted, my_link]))


def test_wrong_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="classes and functions themselves; got str"):
        Known(["Shifted"])
    other = type("Shifted", (), {})
    with pytest.raises(ValueError, match="two of the name Shifted"):
        Known([Shifted, other])


def scaled(scale):
    return lambda x: scale * x


UNWRITABLE = {
    "kernel.link is .*scaled.<locals>.<lambda>, a function": lambda: regression(Shifted(scaled(2.0))),
    "model._stream is a .*DatasetRows, which has no plain state": lambda: gpx.models.SparseEP(
        tf.data.Dataset.from_tensor_slices(DATA),
        K.SquaredExponential(),
        gpx.likelihoods.BernoulliProbit(),
        inducing_variable=Z,
    ),
    "likelihood.conditional_distribution is .*<locals>": lambda: M.SVGP(
        K.SquaredExponential(), L.HeteroskedasticTFPConditional(), Z, num_latent_gps=2
    ),
}


@pytest.mark.parametrize("reason", UNWRITABLE)
def test_what_cannot_be_written_down_is_checkpointed_all_the_same(reason, tmp_path) -> None:
    model = UNWRITABLE[reason]()
    saved(tmp_path, model, step=4)
    assert Checkpoints(tmp_path, model).restore_latest() == 4
    with pytest.raises(ValueError, match=rf"{reason}(.|\n)*Build the model yourself(.|\n)*checkpoint_dir"):
        gpx.load_checkpoint(tmp_path)


def test_setters_of_this_package_alone_are_called() -> None:
    """A record names attributes, and a property that can be set runs code."""
    assert not hides(gpx.models.VGPKMM, "data")
    assert hides(gpx.models.VGPKMM, "sites")
    assert hides(gpflow.Parameter, "unconstrained_variable")
    foreign = type("Foreign", (), {"value": property(lambda self: 0, lambda self, value: None)})
    foreign.value.fset.__module__ = "gpflow.base"
    assert hides(foreign, "value")


def test_a_hidden_method_cannot_be_written_down(tmp_path) -> None:
    model = regression()
    model.predict_f = tf.exp
    saved(tmp_path, model)
    with pytest.raises(ValueError, match=r"model\.predict_f stands before"):
        gpx.load_checkpoint(tmp_path)


def test_a_variable_that_is_not_saved_cannot_be_written_down(tmp_path) -> None:
    class Outside(K.SquaredExponential):
        pass

    kernel = Outside()
    object.__setattr__(kernel, "loose", tf.Variable(1.0))
    saved(tmp_path, regression(kernel))
    with pytest.raises(ValueError, match="loose is a variable that checkpoints do not hold"):
        gpx.load_checkpoint(tmp_path, classes=[Outside])


# Large data


def test_large_data_are_given_and_compared(tmp_path, monkeypatch) -> None:
    model = moved(CASES["VGPKMM"]())
    monkeypatch.setattr(record, "LARGEST", 3 * DATA[1].nbytes)  # the targets and the nodes of the quadrature
    saved(tmp_path, model)
    with pytest.raises(
        ValueError, match=r"float64\[20, 2\], is too large(.|\n)*the 0 given(.|\n)*data=\(X, Y\)"
    ):
        gpx.load_checkpoint(tmp_path)
    other = X.copy()
    other[3, 1] = np.nextafter(other[3, 1], 9.0)
    with pytest.raises(ValueError, match="none of `data` is the same: the 2 given"):
        gpx.load_checkpoint(tmp_path, data=(other, DATA[1]))
    assert_same(model, gpx.load_checkpoint(tmp_path, data=DATA))


# Damage


def test_an_interrupted_first_save_is_done_again(tmp_path, monkeypatch) -> None:
    model = moved(regression())
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Checkpoints(tmp_path, model).save(1)
    assert {path.name for path in tmp_path.iterdir()} == {"model.json", "model.npz"}
    assert_same(model, gpx.load_checkpoint(saved(tmp_path, model)))


def rewritten(folder, change):
    """Change the record and the hash of it in the manifest, as one would who wants to be believed."""
    content = json.loads((folder / "model.json").read_text())
    change(content)
    (folder / "model.json").write_text(json.dumps(content))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["record"]["model.json"] = sha256_file(folder / "model.json")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(name="folder")
def _folder(tmp_path):
    return saved(tmp_path, mixed())


@pytest.mark.parametrize("name", ["model.json", "model.npz", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damaged_files_are_named(folder, name, damage) -> None:
    raw = bytearray((folder / name).read_bytes())
    raw[len(raw) // 2] ^= 255
    (folder / name).write_bytes(raw if damage == "flip" else raw[: len(raw) // 2])
    if damage == "remove":
        (folder / name).unlink()
    found = {"manifest.json": "cannot be read", "remove": "is missing"}
    why = found.get(name) or found.get(damage, "is damaged: its hash is not that of the manifest")
    with pytest.raises(ValueError, match=f"{re.escape(name)} {why}"):
        gpx.load_checkpoint(folder)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path) -> None:
    model = moved(regression())
    checkpoints = Checkpoints(tmp_path, model)
    checkpoints.save(1)
    before = model.kernel.lengthscales.numpy()
    model.kernel.lengthscales.assign(2.0)
    checkpoints.save(2)
    (tmp_path / "ckpt-2.index").write_bytes(b"")
    names = {path.name for path in tmp_path.iterdir()}
    with pytest.warns(RuntimeWarning, match="step 2 cannot be read"):
        loaded = gpx.load_checkpoint(tmp_path)
    assert loaded.kernel.lengthscales.numpy() == before
    assert {path.name for path in tmp_path.iterdir()} == names
    (tmp_path / "ckpt-1.index").write_bytes(b"")
    with pytest.raises(ValueError, match="can be read:\n  step 2"):
        gpx.load_checkpoint(tmp_path)


def test_a_folder_without_checkpoints_is_refused(tmp_path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match="holds no checkpoint"):
            gpx.load_checkpoint(folder)


def test_checkpoints_of_an_older_version_are_refused(folder) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["record"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="an older version wrote it"):
        gpx.load_checkpoint(folder)
    assert Checkpoints(folder, mixed()).restore_latest() == 1  # by itself it still restores


def test_another_float_type_is_refused(tmp_path) -> None:
    with precision("float32"):
        saved(tmp_path, single_precision())
    with pytest.raises(ValueError, match=r"set_default_float\('float32'\)"):
        gpx.load_checkpoint(tmp_path)


def test_a_model_that_changed_between_checkpoints_is_refused(tmp_path) -> None:
    model = regression()
    checkpoints = Checkpoints(tmp_path, model)
    checkpoints.save(1)
    model.kernel.more = gpflow.Parameter(1.0)
    checkpoints.save(2)
    with pytest.raises(ValueError, match=r"lacks 0 of its objects and holds 3 others"):
        gpx.load_checkpoint(tmp_path)


# Files that nobody wrote so

HOSTILE = [
    "os:system",
    "posix:system",
    "subprocess:Popen",
    "builtins:eval",
    "gpflow_ext.persistence.manifest:os.system",
    "gpflow_ext.persistence.manifest:write_text",
    "gpflow_ext.persistence.export:export",
    "gpflow_ext.persistence.checkpoint:Checkpoints",
    "gpflow_ext.gprn.outputs:np.load",
    "gpflow_ext.gprn.outputs:hold",
    "gpflow_ext.gprn.nowhere:Outputs",
    "gpflow.monitor.base:ExecuteCallback",
    "gpflow.kernels.base:tf.io.write_file",
    "gpflow.kernels:SquaredExponential",
    "tensorflow.io.write_file",
    "tensorflow_probability.python.bijectors.inline:Inline",
    "os.system",
    "",
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("place", ["class", "value", "built"])
def test_no_other_class_or_function_is_looked_up(folder, name, place) -> None:
    def change(content):
        if place == "value":
            content["objects"][0]["state"]["more"] = {"kind": "named", "of": name}
        else:
            kinds = {"class": "module", "built": "built"}
            next(o for o in content["objects"] if o["kind"] == kinds[place])["class"] = name

    with pytest.raises(ValueError, match=rf"model\.json: {re.escape(name)} is neither a class"):
        gpx.load_checkpoint(rewritten(folder, change))


def _write(file):
    raise AssertionError("a function of a file was called")


@pytest.mark.parametrize("kind", ["module", "built"])
def test_a_function_is_never_called(folder, kind) -> None:
    def change(content):
        next(o for o in content["objects"] if o["kind"] == kind)["class"] = f"{__name__}:_write"

    with pytest.raises(ValueError, match=r"is not a class of objects|neither a bijector nor a distribution"):
        gpx.load_checkpoint(rewritten(folder, change), classes=[_write])


CHANGES = {
    "'predict_f' is not an attribute": lambda c: c["objects"][0]["state"].update(predict_f=1),
    "'__class__' is not an attribute": lambda c: c["objects"][0]["state"].update(__class__=1),
    "'_self_setattr_tracking' is no": lambda c: c["objects"][0]["state"].update(_self_setattr_tracking=1),
    "does not describe a model: IndexError": lambda c: c["model"].update(of=999),
    "does not describe a model: KeyError": lambda c: c["objects"][0].update(kind="code"),
    "does not describe a model, but an object of int": lambda c: c.update(model=3),
    "does not describe a model, but an object of Product": lambda c: c.update(
        model=_first(c, "gpflow.kernels.base:Product")
    ),
    "has format 99": lambda c: c.update(format=99),
    "is a part of itself": lambda c: next(o for o in c["objects"] if o["kind"] == "built")[
        "arguments"
    ].update(name={"kind": "object", "of": [o["kind"] for o in c["objects"]].index("built")}),
    "is not a class of objects with plain state": lambda c: c["objects"][0].update(
        {"class": "tensorflow_probability.bijectors.Exp"}
    ),
    "is not a named tuple": lambda c: c["objects"][0]["state"].update(
        more={"kind": "fields", "class": c["objects"][0]["class"], "of": []}
    ),
}


def _first(content, name):
    numbers = [n for n, one in enumerate(content["objects"]) if one.get("class") == name]
    return {"kind": "object", "of": numbers[0]}


@pytest.mark.parametrize("message", CHANGES)
def test_a_record_that_nobody_wrote_is_refused(folder, message) -> None:
    with pytest.raises(ValueError, match=message):
        gpx.load_checkpoint(rewritten(folder, CHANGES[message]))


def test_an_array_with_another_content_is_refused(folder) -> None:
    with np.load(folder / "model.npz") as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(folder / "model.npz", **{name: value + 1 for name, value in arrays.items()})
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["record"]["model.npz"] = sha256_file(folder / "model.npz")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="another hash than the record says"):
        gpx.load_checkpoint(folder)
