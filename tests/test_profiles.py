"""The profiles of an export, for every class of model: the same numbers, computed sooner, or in ONNX Runtime."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext import likelihoods, models
from gpflow_ext.convolution import sums
from gpflow_ext.persistence import portable
from gpflow_ext.persistence.serving import build

N, D = 24, 2
MEAN, SCALE = np.array([10.0, -2.0]), np.array([5.0, 0.1])
FACTORISATIONS = {"Cholesky", "MatrixInverse", "SelfAdjointEigV2"}
Z = problems.inputs(7, seed=3)


def kernel():
    return gpflow.kernels.SquaredExponential(variance=2.0, lengthscales=0.9)


def sited(model):
    """Give a site model sites that no default has, in place of training it."""
    rng = np.random.default_rng(1)
    model.nat1.assign(rng.normal(size=model.sites.nat1.shape))
    model.prec.assign(rng.uniform(0.2, 2.0, size=model.sites.prec.shape))
    return model


def varied(model):
    """Give q(v) such values."""
    rng = np.random.default_rng(2)
    model.q_mu.assign(rng.normal(size=model.q_mu.shape))
    model.q_sqrt.assign(
        0.3 * np.tril(rng.normal(size=model.q_sqrt.shape)) + 0.5 * np.eye(model.q_mu.shape[0])
    )
    return model


def robust_max():
    return varied(models.SVGPRobustMax(kernel(), 3, Z, num_data=N))


def sparse_ep():
    noisy = kernel() + gpflow.kernels.White(1e-2)
    return sited(models.SparseEP(problems.classes(N), noisy, likelihoods.RobustMax(3), inducing_variable=Z))


def free_form():
    model = models.SGPMCFreeForm(
        problems.binary(N), kernel(), likelihoods.BernoulliProbit(), inducing_variable=Z
    )
    rng = np.random.default_rng(4)
    model.draw_names = ("V", "kernel.lengthscales")
    values = rng.normal(size=(6, 7, 1)), rng.uniform(0.7, 1.3, size=6)
    model.draw_values = [tf.Variable(value, trainable=False) for value in values]
    return model


def network(posterior):
    X, F = problems.inputs(N), np.random.default_rng(5).normal(size=(N, 4))
    return models.GPRNTensor((X, F), kernel(), kernel(), 2, posterior=posterior)


MODELS = {
    "VGPKMM": lambda: sited(models.VGPKMM(problems.binary(N), kernel(), likelihoods.BernoulliLogit())),
    "VGPKMM sparse": lambda: sited(
        models.VGPKMM(
            problems.counts(N),
            kernel(),
            likelihoods.PoissonLog(),
            inducing_variable=Z,
            mean_function=linear(),
        )
    ),
    "SVGPRobustMax": robust_max,
    "SparseEP": sparse_ep,
    "SGPMCFreeForm": free_form,
    "GPRNTensor": lambda: network("collapsed"),
    "GPRNTensor tensor": lambda: network("tensor"),
    "GPLaplace": lambda: sited(models.GPLaplace(problems.classes(N), kernel(), likelihoods.StickBreaking(3))),
    "GPJaakkola": lambda: sited(
        models.GPJaakkola(problems.binary(N), kernel(), likelihoods.BernoulliLogit("jaakkola"))
    ),
    "GPTaylor": lambda: sited(
        models.GPTaylor(problems.ordinal(N), kernel(), likelihoods.CumulativeLogit(4, bound=None))
    ),
    "GPR": lambda: gpflow.models.GPR(problems.continuous(N), kernel(), linear()),
    "SVGP": lambda: varied(gpflow.models.SVGP(kernel(), gpflow.likelihoods.Bernoulli(), Z)),
    "GPMC": lambda: drawn(gpflow.models.GPMC(problems.counts(N), kernel(), gpflow.likelihoods.Poisson())),
}


LONG = {"SVGPRobustMax", "SparseEP", "GPTaylor", "GPLaplace", "GPJaakkola", "GPRNTensor tensor"}
EACH = [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in MODELS]


def linear():
    return gpflow.functions.Linear(np.ones((D, 1)))


def drawn(model):
    model.V.assign(np.random.default_rng(6).normal(size=model.V.shape))
    return model


@pytest.fixture(scope="module", name="built")
def _built():
    found = {}

    def get(name, profile):
        if (name, profile) not in found:
            found[name, profile] = build(MODELS[name](), MEAN, SCALE, None, profile)
        return found[name, profile]

    return get


@pytest.fixture(name="onnx")
def _onnx():
    pytest.importorskip("tf2onnx", reason="needs the extra onnx")
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")


def rows(n=40):
    inputs = MEAN + SCALE * 3.0 * problems.inputs(n, seed=9)
    inputs[3, 1] = np.nan
    return inputs


def operations(function):
    definition = function.graph.as_graph_def()
    nodes = [*definition.node, *(node for part in definition.library.function for node in part.node_def)]
    return {node.op for node in nodes}


def test_learnt_label_noise_is_folded(built):
    for signature in built("SVGPRobustMax", "portable").signatures.values():
        assert all(variable.shape.rank for variable in signature.graph.variables)


@pytest.mark.parametrize("name", EACH)
def test_cached_gives_the_numbers_of_exact_without_factorising(built, name):
    exact, cached = (built(name, profile).signatures["serving_default"] for profile in ("exact", "cached"))
    inputs = tf.constant(rows())
    expected, found = exact(inputs=inputs), cached(inputs=inputs)
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        assert found[key].shape == value.shape
        np.testing.assert_allclose(found[key], value, rtol=1e-10, atol=1e-10, err_msg=key)
    assert not np.isfinite(found["mean"][3]).any()
    assert not operations(cached) & FACTORISATIONS
    if name in ("GPR", "SVGP", "SGPMCFreeForm", "VGPKMM sparse", "GPRNTensor"):
        assert operations(exact) & FACTORISATIONS
    for few in (0, 1):
        part = cached(inputs=inputs[:few])
        for key, value in expected.items():
            np.testing.assert_allclose(part[key], value[:few], rtol=1e-10, atol=1e-10, err_msg=key)


@pytest.mark.parametrize("name", EACH)
def test_cached_owns_what_its_signatures_read(built, name):
    served = built(name, "cached")
    assert {id(v) for v in served.module.variables_read} >= {
        id(v) for signature in served.signatures.values() for v in signature.graph.variables
    }
    sizes = [np.prod(v.shape) for v in served.module.variables_read]
    contents = {(tuple(v.shape), v.numpy().tobytes()) for v in served.module.variables_read}
    assert len(contents) == len(sizes)  # nothing twice, but for a grid of another shape
    assert min(sizes) > 1


@pytest.mark.parametrize("name", EACH)
def test_portable_in_onnx_runtime(onnx, built, name, record_property):
    function = built(name, "portable").signatures["serving_default"]
    model = portable.to_onnx(function)
    for inputs in (rows(), rows()[:0], rows()[:1], rows()[3:4], rows(700)):
        difference = portable.compare(model, function, {"inputs": inputs})
        record_property("largest difference", difference)
        assert difference < portable.TOLERANCE


def test_a_portable_export_is_whole_and_says_so(onnx, tmp_path):
    import onnxruntime

    labels = ["low", "high"]
    folder = gpx.export(
        MODELS["SVGP"](), tmp_path / "m", profile="portable", scaler=(MEAN, SCALE), labels=labels
    )
    served = gpx.load_exported(folder)  # verifies
    assert served.manifest["profile"] == "portable"
    assert served.manifest["difference_of_onnx"] < 1e-7
    assert "model.onnx" in served.manifest["sha256"]
    assert "onnxruntime" in (folder / "MODEL_CARD.md").read_text()
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    example = np.load(folder / "example.npz")
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(names, {"inputs": example["inputs"]}), strict=True))
    assert found.keys() | {"inputs"} == set(example.files)
    assert found["label"].tolist() == example["label"].tolist()
    np.testing.assert_allclose(found["probabilities"], example["probabilities"], atol=1e-7)
    with (folder / "model.onnx").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ValueError, match=r"model\.onnx has changed"):
        gpx.load_exported(folder)


def test_single_precision_is_portable(onnx, tmp_path):
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-4)):
        X, Y = (part.astype(np.float32) for part in problems.binary(N))
        model = sited(models.VGPKMM((X, Y), kernel(), likelihoods.BernoulliProbit()))
        folder = gpx.export(model, tmp_path / "m", profile="portable")
    assert gpx.load_exported(folder).manifest["difference_of_onnx"] < 1e-5


def test_a_model_that_cannot_be_portable_is_refused_by_the_operation(onnx, tmp_path):
    class Strange(gpflow.functions.MeanFunction):
        def __call__(self, X):
            return tf.math.digamma(tf.abs(X[:, :1]) + 1.0)

    model = gpflow.models.SVGP(kernel(), gpflow.likelihoods.Gaussian(), Z, mean_function=Strange())
    with pytest.raises(ValueError, match=r"cannot be portable: .*Digamma"):
        gpx.export(model, tmp_path / "m", profile="portable")
    assert not (tmp_path / "m").exists()
    gpx.export(model, tmp_path / "m")


def test_a_factorisation_that_depends_on_the_inputs_is_refused(onnx, tmp_path):
    class Pairs(gpflow.functions.MeanFunction):
        def __call__(self, X):
            K = tf.eye(tf.shape(X)[0], dtype=X.dtype) + tf.matmul(X, X, transpose_b=True)
            return tf.linalg.cholesky(K)[:, :1]

    model = gpflow.models.SVGP(kernel(), gpflow.likelihoods.Gaussian(), Z, mean_function=Pairs())
    with pytest.raises(ValueError, match=r"cannot be portable: .*Cholesky"):
        gpx.export(model, tmp_path / "m", profile="portable")


def test_a_runtime_that_differs_is_refused(onnx, built):
    function = built("SVGP", "portable").signatures["serving_default"]
    other = built("VGPKMM", "portable").signatures["serving_default"]
    model = portable.to_onnx(other)
    with pytest.raises(ValueError, match="differs by"):
        portable.compare(model, function, {"inputs": rows()})


def test_an_unknown_profile_is_named(tmp_path):
    with pytest.raises(
        ValueError, match="profile must be one of exact, cached, portable, stablehlo; got 'fast'"
    ):
        gpx.export(MODELS["SVGP"](), tmp_path / "m", profile="fast")


def test_without_the_extra_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tf2onnx", None)
    with pytest.raises(ImportError, match=r"gpflow-ext\[onnx\]"):
        gpx.export(MODELS["SVGP"](), tmp_path / "m", profile="portable")


@pytest.mark.parametrize(("padding", "rate"), [("VALID", 1), ("VALID", 2), ("SAME", 1)])
def test_patches_of_images_are_portable(onnx, padding, rate):
    def function(inputs):
        images = tf.reshape(inputs, [-1, 7, 6, 2])
        options = {"sizes": [1, 3, 2, 1], "strides": [1, 2, 1, 1], "rates": [1, rate, rate, 1]}
        return {"patches": tf.image.extract_patches(images, padding=padding, **options)}

    traced = tf.function(function).get_concrete_function(tf.TensorSpec([None, 84], tf.float64, "inputs"))
    X = np.random.default_rng(0).normal(size=(3, 84))
    if padding == "VALID":
        assert portable.compare(portable.to_onnx(traced), traced, {"inputs": X}) == 0.0
    else:
        with pytest.raises(ValueError, match="no operator for ExtractImagePatches"):
            portable.to_onnx(traced)


@pytest.mark.parametrize(
    "kind", [gpx.kernels.Convolutional, pytest.param(gpflow.kernels.Convolutional, marks=pytest.mark.slow)]
)
def test_convolutions_are_portable(onnx, capfd, monkeypatch, tmp_path, kind):
    """With several blocks of images, which a loop goes through."""
    monkeypatch.setattr(sums, "_ELEMENTS", 1000)
    rng = np.random.default_rng(0)
    patches = gpflow.inducing_variables.InducingPatches(rng.uniform(size=(4, 6)))
    model = varied(
        models.SVGPRobustMax(
            kind(gpflow.kernels.SquaredExponential(), [5, 4], [3, 2]), 3, patches, num_data=N
        )
    )
    served = gpx.load_exported(gpx.export(model, tmp_path / "m", profile="portable"))
    assert served.manifest["difference_of_onnx"] < 1e-10
    assert "initializer" not in capfd.readouterr().err


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_functions_that_onnx_lacks(onnx, sign):
    x = sign * np.concatenate([[0.0], np.geomspace(1e-12, 25.0, 400)])
    values = {"erf": tf.math.erf, "erfc": tf.math.erfc, "asinh": tf.asinh, "softplus": tf.nn.softplus}
    if sign > 0.0:
        values["log1p"] = tf.math.log1p
    values["atan"] = tf.atan
    values |= {call.__name__: lambda x, call=call: call(x / 25.0) for call in (tf.acos, tf.asin)}

    def function(inputs):
        return {name: call(inputs) for name, call in values.items()}

    traced = tf.function(function).get_concrete_function(tf.TensorSpec([None], tf.float64, "inputs"))
    assert portable.compare(portable.to_onnx(traced), traced, {"inputs": x}) < 1e-10


@pytest.mark.parametrize(
    "order", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_arc_cosine_kernels_are_portable(onnx, tmp_path, order):
    X, Y = problems.binary(N)
    model = gpflow.models.GPR((X, Y), gpflow.kernels.ArcCosine(order=order), noise_variance=0.1)
    served = gpx.load_exported(gpx.export(model, tmp_path / "m", profile="portable"))
    assert served.manifest["difference_of_onnx"] < 1e-11


@pytest.mark.parametrize("profile", ["cached", pytest.param("portable", marks=pytest.mark.slow)])
def test_numbers_of_outputs_that_there_are_not_have_no_prediction(onnx, tmp_path, profile):
    X, Y = problems.binary(N)
    X = np.hstack([X, np.arange(N)[:, None] % 3])
    kernel = gpflow.kernels.Matern52(active_dims=[0, 1]) * gpflow.kernels.Coregion(3, 1, active_dims=[2])
    model = gpflow.models.GPR((X, Y), kernel, noise_variance=0.1)
    folder = gpx.export(model, tmp_path / "m", profile=profile)
    rows = X[:6].copy()
    rows[:, 2] = [2.7, -0.3, 0.0, 3.0, -1.0, 1e30]
    expected = model.predict_y(rows[:3])[0]
    found = gpx.load_exported(folder).predict(rows)
    if profile == "portable":
        session = __import__("onnxruntime").InferenceSession(folder / "model.onnx")
        found = dict(
            zip(["mean", "is_finite"], session.run(["mean", "is_finite"], {"inputs": rows}), strict=True)
        )
    assert found["is_finite"].tolist() == [True] * 3 + [False] * 3
    np.testing.assert_allclose(found["mean"][:3], expected, atol=1e-7)
    assert np.isnan(found["mean"][3:]).all()
