"""Each kind of target and each model from the shell: trained, exported, predicted, served; starts and spelling."""

from __future__ import annotations

import asyncio
import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import problems
import pytest
import scipy.stats
from marks import others_slow
from shell import command

import gpflow_ext as gpx
from gpflow_ext.cli import kinds, train, training

uvicorn = pytest.importorskip("uvicorn", reason="needs the extra serve")
httpx = pytest.importorskip("httpx", reason="needs the extra dev")

TARGETS = {  # what a user names, beside the table
    "regression": ("t.csv", "--target", "price"),
    "binary": ("t.csv", "--target", "ill"),
    "multiclass": ("t.csv", "--target", "kind"),
    "multinomial": ("t.csv", "--target", "kind", "--model", "vgp-kmm", "--likelihood", "multinomial-logit"),
    "ordinal": ("t.csv", "--target", "level", "--task", "ordinal"),
    "counts": ("t.csv", "--target", "visits", "--task", "counts"),
    "events": ("quakes.csv", "--target", "lon", "lat", "--task", "events", "--bins", "4"),
    "several": ("t.csv", "--target", "price", "visits"),
}
COLUMNS = ("ill", "kind", "level", "visits", "price")


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shell")
    X, Y = problems.binary(40)
    rng = np.random.default_rng(0)
    columns = {
        "a": np.round(X[:, 0], 4),
        "b": np.round(X[:, 1], 4),
        "ill": np.where(Y[:, 0] > 0, "yes", "no"),
        "kind": np.array(["u", "v", "w"])[np.digitize(X[:, 0], [-0.7, 0.7])],
        "level": np.digitize(X[:, 0], [-1.0, 0.0, 1.0]),
        "visits": rng.poisson(np.exp(X[:, 0])),
        "price": np.round(1000.0 + 100.0 * np.sin(X[:, 0]) + rng.normal(size=40), 3),
    }
    _write(folder / "t.csv", columns)
    places = rng.uniform(size=(60, 2)) ** 2
    _write(folder / "quakes.csv", {"lon": places[:, 0], "lat": places[:, 1]})
    return folder


def _write(file: Path, columns: dict[str, Any]) -> None:
    rows = zip(*columns.values(), strict=True)
    file.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")


def _table(name: str) -> list[str]:
    """Return the flags of the table, without the columns that are other targets."""
    file, *own = TARGETS[name]
    others = [column for column in COLUMNS if column not in own]
    return ["--data", file, *own, *(["--drop", *others] if file == "t.csv" else [])]


def _answer(folder: Path, model: str, row: dict[str, float]) -> dict[str, Any]:
    """Return what the server of the command answers to a row, the server itself not being run."""
    with pytest.MonkeyPatch.context() as patch:
        apps: list[Any] = []
        patch.setattr(uvicorn, "Config", lambda app, **options: app)
        patch.setattr(uvicorn, "Server", lambda app: SimpleNamespace(run=lambda sockets: apps.append(app)))
        command(folder, "serve", model)

    async def ask() -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(apps[0]), base_url="http://x") as client:
            return await client.post("/predict", json=row)

    answer = asyncio.run(ask())
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.slow  # models are trained and exported
@pytest.mark.parametrize("name", TARGETS)
def test_a_target_is_trained_exported_predicted_and_served(folder: Path, name: str) -> None:
    """The file of predictions and the server give one answer, and it is that of the kind of target."""
    model = f"models/{name}"
    shown = command(folder, "train", *_table(name), "--steps", "1", "--export", model)
    assert f"exported to {model}/1" in shown
    columns = ("lon", "lat") if name == "events" else ("a", "b")
    _write(folder / "new.csv", {column: [0.25, 0.75] for column in columns})
    command(folder, "predict", "--model", model, "--data", "new.csv", "--out", "out.csv")
    with (folder / "out.csv").open() as file:
        predicted = list(csv.DictReader(file))[1]
    answer = _answer(folder, model, dict.fromkeys(columns, 0.75))
    assert predicted["is_finite"] in ("1", "True", "true")
    if name in ("binary", "multiclass", "multinomial", "ordinal"):
        assert answer["label"] == predicted["label"]
        probabilities = [float(v) for k, v in predicted.items() if k.startswith("probability_")]
        np.testing.assert_allclose(answer["probabilities"], probabilities, rtol=1e-6)
        np.testing.assert_allclose(sum(probabilities), 1.0, rtol=1e-6)
    else:
        means = [float(v) for k, v in predicted.items() if k.startswith("mean")]
        assert len(means) == (2 if name == "several" else 1)
        np.testing.assert_allclose(np.ravel(answer["mean"]), means, rtol=1e-6)


KINDS = {
    "vgp-kmm": "binary",
    "sparse-ep": "counts",
    "svgp-robustmax": "multiclass",
    "sgpmc-free-form": "binary",
    "gp-laplace": "ordinal",
    "gp-jaakkola": "binary",
    "gp-taylor": "counts",
    "gpr": "regression",
    "sgpr": "regression",
    "svgp": "regression",
    "svgp-student-t": "regression",
    "gprn-tensor": "several",
    "independent": "several",
    "coregionalised": "several",
}


def test_every_model_is_among_those_that_are_started_several_times() -> None:
    assert KINDS.keys() == kinds.KINDS.keys()


@pytest.mark.parametrize("name", others_slow(KINDS, "gpr"))
@pytest.mark.filterwarnings("ignore::gpflow_ext.FitWarning")
def test_every_model_takes_starts(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Two starts are tried, and a sampler's Gaussian approximation climbs from both."""
    monkeypatch.chdir(folder)
    found: list[Any] = []
    approximate = gpx.gaussian_approximation
    monkeypatch.setattr(gpx, "gaussian_approximation", lambda *a, **k: found.append(approximate(*a, **k)))
    monkeypatch.setattr(gpx, "sample", lambda model, *a, **k: None)
    options = train.options_of(name, [*_table(KINDS[name]), "--starts", "2"])
    module = kinds.KINDS[name].load()
    split = training.load(module, options)
    found.append(training.fit(module, options, module.build(options, split), split, 1))
    tried = [one.name for one in found[0].starts]
    assert len(tried) == 2
    assert tried[0] == "the model's own"


@pytest.mark.parametrize("name", ["independent", "coregionalised"])
def test_models_of_several_targets_have_the_evidence_of_their_covariance(folder: Path, name: str) -> None:
    """Of all targets at once, in NumPy: mixtures of functions plus noise."""
    flags = [*_table("several"), "--lengthscale", "0.8", "--fixed"]
    options = train.options_of(name, [*flags, "--data", str(folder / "t.csv")])
    module = kinds.KINDS[name].load()
    split = training.load(module, options)
    model = module.build(options, split)
    model.settle_sites()
    X, Y = split.train
    square = np.square(X[:, None] - X[None]).sum(axis=-1)
    mixing = np.eye(2) if name == "independent" else np.array([[1.0, 0.3], [0.3, 1.0]])
    covariance = np.kron(mixing @ mixing.T, np.exp(-0.5 * square / 0.8**2)) + 0.1 * np.eye(Y.size)
    expected = scipy.stats.multivariate_normal.logpdf(Y.T.ravel(), cov=covariance)
    assert float(model.maximum_log_likelihood_objective()) == pytest.approx(expected, rel=1e-5)  # jitter


def test_weights_and_gaps_of_several_targets_are_answered(folder: Path) -> None:
    assert kinds.choose("regression", 100, 2, weighted=True)[0] == "independent"
    assert kinds.choose("regression", 2_000, 2, gaps=True)[0] == "gprn-tensor"
    assert kinds.sparse("independent", 2_000, weighted=False) == ("--num-inducing", "200")
    (folder / "gaps.csv").write_text(
        "a,w,p,q\n" + "".join(f"{i},{1 + i % 2},{i},{-i}\n" for i in range(9)) + "9,1,,3\n"
    )
    gaps = ("--data", "gaps.csv", "--target", "p", "q", "--test-fraction", "0")
    shown = command(folder, "train", *gaps, "--missing", "keep", "--model", "independent", code=2)
    assert "independent needs every target of a row: give --missing drop" in shown
    shown = command(folder, "train", *gaps, "--missing", "drop", "--weights", "w", "--steps", "1")
    assert "model: independent, because it takes weights of rows" in shown


def test_starts_that_are_none_are_refused_in_the_words_of_the_shell(folder: Path) -> None:
    table = ("train", *_table("binary"), "--model", "vgp-kmm")
    shown = command(folder, *table, "--starts", "0", code=2)
    assert "argument --starts: '0' is not a whole number of at least 1" in shown
    shown = command(folder, *table, "--starts", "2", "--fixed", code=2)
    assert "--starts varies the hyperparameters, which --fixed keeps" in shown
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("cite", "sparseep-"), "sparse-ep"),
        (("cite", "VGP_KM"), "vgp-kmm"),
        (("cite", "svi-natural"), "svi_natural"),
        (("zoo", "wine_sparse_epp"), "wine_sparse_ep"),
        (("zoo", "Wine-Sparse-EP/2"), "wine_sparse_ep"),
        (("train", "--data", "t.csv", "--model", "VGPKMM"), "vgp-kmm"),
        (("train", "--data", "t.csv", "--model", "svpg"), "svgp"),
        (("compare", "--data", "t.csv", "--models", "gp-laplas"), "gp-laplace"),
    ],
)
def test_a_name_that_is_spelt_wrongly_is_answered_with_the_right_one(folder: Path, arguments, meant) -> None:
    shown = command(folder, *arguments, code=2)
    assert f"(did you mean {meant}?)" in shown
    assert len(shown.splitlines()) <= 2
    strange = ("xyzzy" if part == arguments[-1] else part for part in arguments)
    assert "did you mean" not in command(folder, *strange, code=2)
