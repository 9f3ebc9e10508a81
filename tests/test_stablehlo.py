"""A model exported as StableHLO predicts in JAX alone what its SavedModel does."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.persistence import stablehlo
from scripts.tools import lower

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs the extra stablehlo")
LOADER = Path(stablehlo.__file__).with_name("predict_jax.py")
BLOCK = stablehlo.BLOCK
SIZES = (0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 300)
# TensorFlow and this package cannot be imported.
ALONE = """
import sys
sys.modules.update(dict.fromkeys(("tensorflow", "gpflow", "gpflow_ext")))
sys.path.insert(0, sys.argv[1])
import numpy as np, predict_jax
predict, batches = predict_jax.load(sys.argv[2]), np.load(sys.argv[3])
found = {f"{k}/{name}": v for k in batches for name, v in predict(batches[k]).items()}
draw = predict_jax.load_sampler(sys.argv[2])
drawn = {f"draws/{k}": draw(batches[k], 11, seed=4) for k in batches if 0 < len(batches[k]) <= 65}
np.savez(sys.argv[4], **found, **drawn)
for function in (predict, draw):
    try:
        function(np.zeros((2, 3)))  # which are no three rows of two inputs
    except ValueError as error:
        assert str(error) == "inputs must have shape [n, 2]; found [2, 3]", error
    else:
        raise AssertionError("rows of another width were taken")
"""


def _classifier() -> gpflow.models.GPModel:
    X, Y = problems.binary(40)
    model = gpx.models.SVGPRobustMax(gpflow.kernels.SquaredExponential(), 2, X[:8].copy(), num_data=40)
    gpx.fit(model, (X, Y), steps=2, progress=False)
    return model


def _counts() -> gpflow.models.GPModel:
    X, Y = problems.binary(40)
    model = gpx.models.VGPKMM((X, Y), gpflow.kernels.Matern32(), gpx.likelihoods.PoissonLog())
    gpx.fit(model, steps=1, site_updates=3, progress=False)
    return model


@pytest.fixture(scope="module", params=["classifier", pytest.param("counts", marks=pytest.mark.slow)])
def exported(request, tmp_path_factory) -> Path:
    built, labels = (_classifier(), ["no", "yes"]) if request.param == "classifier" else (_counts(), None)
    scaler = (np.array([0.5, -1.0]), np.array([2.0, 3.0]))
    path = tmp_path_factory.mktemp("exported") / "m"
    return gpx.export(built, path, profile="stablehlo", scaler=scaler, labels=labels)


def test_jax_alone_predicts_what_the_saved_model_does(
    exported: Path, tmp_path: Path, record_property
) -> None:
    rng = np.random.default_rng(0)
    batches = {str(n): 3.0 * rng.normal(size=(n, 2)) for n in SIZES}
    batches["65"][:] = 12.0 * np.stack(np.divmod(np.arange(65), 9), axis=1)  # a grid, no two close together
    batches["300"][[7, 299], 0] = np.nan, np.inf
    np.savez(tmp_path / "in.npz", **batches)
    command = [
        sys.executable,
        "-c",
        ALONE,
        LOADER.parent,
        exported,
        tmp_path / "in.npz",
        tmp_path / "out.npz",
    ]
    subprocess.run(list(map(str, command)), check=True)
    served, worst = gpx.load_exported(exported), 0.0
    with np.load(tmp_path / "out.npz") as found:
        for n in SIZES[1:]:
            wanted = served.predict(batches[str(n)])
            wanted.pop("label", None)
            assert {name for name in found if name.startswith(f"{n}/")} == {f"{n}/{name}" for name in wanted}
            for name, theirs in wanted.items():
                ours = found[f"{n}/{name}"]
                assert ours.shape == theirs.shape
                np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
                ours, theirs = ours.astype(float), theirs.astype(float)
                worst = max(worst, float(np.nanmax(np.abs(ours - theirs) / np.maximum(1.0, np.abs(theirs)))))
        assert found["0/mean"].shape == (0, wanted["mean"].shape[1])
        sample = served._signatures["sample_joint"]
        for n in (n for n in SIZES if 0 < n <= 65):
            theirs = found[f"draws/{n}"]
            normals = np.random.default_rng(4).standard_normal(theirs.shape)
            ours = sample(inputs=tf.constant(batches[str(n)]), normals=tf.constant(normals))["f"].numpy()
            off = float(np.max(np.abs(ours - theirs) / np.maximum(1.0, np.abs(ours))))
            # Of rows close together rounding grows as one over the root of the jitter.
            assert off <= (1e-9 if n in (BLOCK - 1, BLOCK) else 1e-11)
    record_property("largest difference", worst)
    assert worst <= 1e-12


def test_the_export_is_whole_and_says_so(exported: Path, tmp_path: Path) -> None:
    manifest = gpx.load_exported(exported).manifest  # verifies
    assert manifest["profile"] == "stablehlo"
    assert manifest["difference_of_stablehlo"] <= 1e-12
    assert {"model.stablehlo", "sample_joint.stablehlo", "weights.npz"} <= manifest["sha256"].keys()
    assert "predict_jax" in (exported / "MODEL_CARD.md").read_text()
    with np.load(exported / "weights.npz") as arrays:
        about = json.loads(str(arrays["about"]))["model.stablehlo"]
    assert about["inputs"][0] == ["float64", [BLOCK, 2]]
    assert "label" not in about["names"]


def _served(mean_function) -> gpflow.models.GPModel:
    kernel = gpflow.kernels.SquaredExponential()
    Z = np.linspace(-1.0, 1.0, 10).reshape(5, 2)
    return gpflow.models.SVGP(kernel, gpflow.likelihoods.Gaussian(), Z, mean_function=mean_function)


def _text(artefact: bytes) -> str:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func  # noqa: F401  (known from then on)

    dialect, context = stablehlo.library(), ir.Context()
    dialect.register_dialect(context)
    return str(dialect.deserialize_portable_artifact(context, artefact))


def test_single_precision_stays_so_in_exact_products(tmp_path: Path) -> None:
    tf.config.experimental.enable_tensor_float_32_execution(True)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-4)):
        folder = gpx.export(_served(None), tmp_path / "m", profile="stablehlo")
    contents = lower.contents(_text((folder / "model.stablehlo").read_bytes()))
    assert contents["products"] > 0
    assert contents["inexact"] == 0
    assert not contents["float64"]


def test_what_xla_cannot_compile_is_refused(tmp_path: Path) -> None:
    class Texts(gpflow.functions.MeanFunction):
        def __call__(self, X):
            return tf.strings.to_number(tf.strings.as_string(X[:, :1]), X.dtype)

    with pytest.raises(ValueError, match="has no StableHLO"):
        gpx.export(_served(Texts()), tmp_path / "m", profile="stablehlo")
    assert not (tmp_path / "m").exists()


def test_what_is_no_stablehlo_is_refused_by_name(tmp_path: Path) -> None:
    """GPflow's `Bernoulli` has the error function, for which XLA has an operation of its own."""
    X, Y = problems.binary(12)
    model = gpflow.models.VGP((X, Y), gpflow.kernels.Matern32(), gpflow.likelihoods.Bernoulli())
    with pytest.raises(ValueError, match=r"this model has no StableHLO: .*mhlo\.erf"):
        gpx.export(model, tmp_path / "m", profile="stablehlo")


@pytest.mark.slow
def test_classes_that_rounding_decides_may_differ(tmp_path: Path) -> None:
    """Far from the data both classes are as probable but for the last digit."""
    X, Y = problems.binary(12)
    model = gpx.models.VGPKMM(
        (X[:, :1], Y),
        gpflow.kernels.Matern32(lengthscales=0.1),
        gpx.likelihoods.BernoulliLogit(),
        prior="markov",
    )
    model.settle_sites()
    gpx.export(model, tmp_path / "m", profile="stablehlo")


def test_a_runtime_that_differs_is_refused(exported: Path) -> None:
    signatures = gpx.load_exported(exported)._signatures
    with np.load(exported / "weights.npz") as arrays:
        weights = {name: arrays[name] for name in arrays.files}
    weights["weight_1"] = weights["weight_1"] * 1.001
    programs = {
        name: (exported / name).read_bytes() for name in ("model.stablehlo", "sample_joint.stablehlo")
    }
    artefact = stablehlo.Artefact(programs, weights)
    with pytest.raises(ValueError, match="JAX differs by"):
        stablehlo.compare(artefact, signatures, np.ones([3, 2]), np.eye(2))


def test_draws_are_joint_draws_of_the_model(exported: Path) -> None:
    """Their mean and covariance are those that the model has; a row that is not finite leaves the others."""
    signatures = gpx.load_exported(exported)._signatures
    inputs = np.random.default_rng(1).normal(size=(4, 2))
    unit = np.eye(4)[:, :, None] * np.ones(
        signatures["sample_joint"].inputs[1].shape[-1]
    )  # one number at a time
    given = {"inputs": tf.constant(inputs), "normals": tf.constant(np.concatenate([0.0 * unit[:1], unit]))}
    mean, *columns = signatures["sample_joint"](**given)["f"].numpy()
    predicted = signatures["predict_f"](inputs=given["inputs"])
    np.testing.assert_allclose(mean, predicted["mean"], rtol=0.0, atol=1e-12)
    variance = sum((column - mean) ** 2 for column in columns)
    np.testing.assert_allclose(
        variance, predicted["variance"] + gpflow.default_jitter(), rtol=0.0, atol=1e-12
    )
    assert abs(sum((column[0] - mean[0]) * (column[1] - mean[1]) for column in columns)).max() > 1e-3
    inputs[2] = np.nan
    spoilt = signatures["sample_joint"](inputs=tf.constant(inputs), normals=given["normals"])["f"].numpy()
    assert np.isnan(spoilt[:, 2]).all()
    np.testing.assert_allclose(spoilt[1, [0, 1, 3]], columns[0][[0, 1, 3]], rtol=0.0, atol=1e-12)


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jaxlib.mlir.dialects", None)
    with pytest.raises(ImportError, match=r"gpflow-ext\[stablehlo\]"):
        gpx.export(_served(None), tmp_path / "m", profile="stablehlo")
