"""`report` writes one page that stands by itself and holds the numbers of the model."""

from __future__ import annotations

import dataclasses
import html
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pandas
import pytest
import scipy.stats

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

import gpflow_ext as gpx
from gpflow_ext import reporting
from gpflow_ext.prediction import baselines, dependence, learnt, plotting
from gpflow_ext.prediction.average import ModelAverage

RNG = np.random.default_rng(0)
TABLE = pandas.DataFrame(RNG.normal(size=(60, 3)), columns=["age", "height", "<odd> $_$"])


@pytest.mark.parametrize("task", ["regression", "binary"])
def test_the_page_holds_scores_pictures_and_what_moves_the_predictions(task: str, tmp_path: Path) -> None:
    f = TABLE["age"] - TABLE["height"]
    likelihood: gpflow.likelihoods.Likelihood = gpflow.likelihoods.Gaussian(0.1)
    if task == "binary":
        f, likelihood = np.where(f > 0.0, "yes", "no"), gpx.likelihoods.BernoulliLogit()
    split = gpx.datasets.load(TABLE.assign(y=f), target="y", test_fraction=0.3)
    model = gpx.models.VGPKMM(split.train, gpflow.kernels.Matern52(lengthscales=2.0), likelihood)
    model.settle_sites()
    result = gpx.fit(model, progress=False, steps=1)
    page = gpx.report(model, split, tmp_path / "report.html", result=result, notes="Sixty rows.")
    page = page.read_text(encoding="utf-8")
    assert str(result) in html.unescape(page)
    assert "Sixty rows." in page
    assert f"gpflow {gpflow.__version__}" in page
    ages = TABLE["age"][split.rows[0]]
    assert f"age {ages.min():.4g} to {ages.max():.4g}" in page
    for scores in baselines.scores(split).values():
        assert f"<td>{scores['nlpd']:.4g}</td>" in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert page.count("<img") == 2
    assert f"{gpx.metrics.evaluate(model, split.test)['nlpd']:.4g}" in page
    assert "&lt;odd&gt;" in page
    assert "<odd>" not in page
    assert "kernel.lengthscales" in page
    assert ("Observed frequency of yes" in page) == (task == "binary")
    assert "khan2012" in page.lower() or "Khan" in page


@pytest.mark.parametrize("most", [20_000, 0])
def test_counts_are_compared_at_their_exposures(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts that are drawn from the predictions fill the levels evenly; the normal's moments are about theirs."""
    monkeypatch.setattr(reporting, "_MOST_TERMS", most)
    X = RNG.normal(size=(1000, 1))
    exposures = RNG.uniform(1.0, 30.0, size=(1000, 1))
    data = X[:20], np.column_stack([RNG.poisson(2.0 * exposures[:20]), exposures[:20]])
    kernel = gpflow.kernels.SquaredExponential(0.1)
    model = gpx.models.GPLaplace(data, kernel, gpx.likelihoods.PoissonLog(exposure=True))
    mean, variance = (np.asarray(part) for part in model.predict_f(X))
    f = mean + np.sqrt(variance) * RNG.normal(size=mean.shape)
    Y = np.column_stack([RNG.poisson(exposures * np.exp(f)), exposures])
    levels = reporting._levels_of_counts(model, X, Y)
    assert (levels is None) == (most == 0)
    found = reporting._shares(*(levels or reporting._normal_levels(model, X, Y)), np.linspace(0.0, 1.0, 11))
    # Kolmogorov's distance of 1,000 draws passes 0.06 once in a thousand times; skewness adds some
    assert np.abs(found - np.linspace(0.0, 1.0, 11)).max() < (0.06 if most else 0.09)


def test_levels_of_counts_are_sums_of_their_probabilities() -> None:
    X, Y = np.zeros((4, 1)), np.array([[0.0], [1.0], [5.0], [2.0]])
    kernel = gpflow.kernels.SquaredExponential(1e-8)
    model = gpx.models.GPLaplace((X, Y), kernel, gpx.likelihoods.PoissonLog())
    below, upto = reporting._levels_of_counts(model, X, Y)
    np.testing.assert_allclose(upto, scipy.stats.poisson.cdf(Y[:, 0], 1.0), rtol=1e-6)
    np.testing.assert_allclose(below, scipy.stats.poisson.cdf(Y[:, 0] - 1.0, 1.0), atol=1e-6)
    assert reporting._levels_of_counts(model, X, Y + 0.5) is None


@pytest.mark.parametrize("task", ["binary", "several"])
def test_pictures_of_calibration_count_rows_by_their_weights(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of weighted rows has the picture of as many copies of each; what rows of no weight hold is ignored."""
    X, numbers = RNG.normal(size=(12, 1)), np.tile([0, 1, 3], 4)
    Y = np.column_stack([X, -X]) if task == "several" else (X > 0.0).astype(float)
    inner = gpflow.likelihoods.Gaussian(0.1) if task == "several" else gpx.likelihoods.BernoulliLogit()
    likelihood = gpx.likelihoods.Weighted(inner, Y.shape[1])
    data = X, np.column_stack([Y, np.ones(12)])
    model = gpx.models.VGPKMM(data, gpflow.kernels.SquaredExponential(), likelihood)
    model.settle_sites()
    if task == "several":
        Y = Y + RNG.normal(size=Y.shape)
    else:
        Y[1::6] = 1.0 - Y[1::6]
    copies = np.column_stack([Y.repeat(numbers, axis=0), np.ones(numbers.sum())])
    Y[::3] = -7.0
    drawn: list[Any] = []
    monkeypatch.setattr(baselines, "scores", lambda *_: {})  # which know of weights by the split alone
    picture = reporting._picture
    monkeypatch.setattr(reporting, "_picture", lambda figure: drawn.append(figure.axes[0]) or picture(figure))
    table = pandas.DataFrame({"x": RNG.normal(size=30), "y": RNG.normal(size=30)})
    split = gpx.datasets.load(table, target="y", test_fraction=0.3)
    for test in ((X, np.column_stack([Y, numbers])), (X.repeat(numbers, axis=0), copies)):
        gpx.report(model, dataclasses.replace(split, test=test), tmp_path / "report.html")
    weighted, copied = drawn[::2]
    if task == "several":
        shapes = [[bar.get_height() for bar in each.patches] for each in (weighted, copied)]
    else:
        shapes = [each.collections[0].get_offsets() for each in (weighted, copied)]
        sizes = [each.collections[0].get_sizes() for each in (weighted, copied)]
        np.testing.assert_allclose(*sizes)
    np.testing.assert_allclose(*shapes)


@pytest.mark.slow
def test_a_browser_draws_the_page(tmp_path: Path) -> None:
    """Headless, without a network: text and pictures are there, and nothing is asked for from elsewhere."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("needs Chromium")
    import matplotlib.image

    split = gpx.datasets.load(TABLE.assign(y=TABLE["age"] ** 2), target="y", test_fraction=0.3)
    model = gpflow.models.GPR(split.train, gpflow.kernels.Matern52())
    page = gpx.report(model, split, tmp_path / "report.html")
    dark = []
    for text in (
        page.read_text(encoding="utf-8"),
        re.sub(r"<img[^>]*>", "", page.read_text(encoding="utf-8")),
    ):
        page.write_text(text, encoding="utf-8")
        shot = tmp_path / "shot.png"
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--host-resolver-rules=MAP * ~NOTFOUND",
        ]
        command += ["--window-size=900,2400", f"--screenshot={shot}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        dark.append((matplotlib.image.imread(shot)[..., :3] < 0.5).any(axis=-1).mean())
    assert dark[1] > 0.002  # the text
    assert dark[0] > dark[1] + 0.002  # the pictures


@pytest.mark.parametrize("task", ["multiclass", "count", "several"])
def test_baselines_are_the_constant_and_a_linear_model(task: str) -> None:
    """Frequencies, rates at the exposures and normals, in closed form; rows of weight 3 are three copies."""
    X, X_test = RNG.normal(size=(90, 2)), RNG.normal(size=(40, 2))
    f, f_test = X[:, 0], X_test[:, 0]
    days, weights = RNG.uniform(1.0, 9.0, size=(130, 1)), np.tile([1, 3], 65)[:, None]
    if task == "several":
        Y, Y_test = (np.column_stack([g, -g]) + 0.1 * RNG.normal(size=(len(g), 2)) for g in (f, f_test))
    elif task == "count":
        Y, Y_test = (
            RNG.poisson(at * np.exp(g[:, None])).astype(float)
            for g, at in ((f, days[:90]), (f_test, days[90:]))
        )
    else:
        Y, Y_test = (np.digitize(g, [-0.5, 0.5]).astype(float)[:, None] for g in (f, f_test))
    split = dataclasses.replace(
        gpx.datasets.load(TABLE.assign(y=TABLE["age"]), target="y"),
        task="regression" if task == "several" else task,
        train=(X, Y),
        test=(X_test, Y_test),
        weights=(weights[:90], weights[90:]),
        exposure=(days[:90], days[90:]) if task == "count" else None,
    )
    found = baselines.scores(split)
    w, w_test = weights[:90, 0], weights[90:, 0]
    if task == "several":
        center = np.average(Y, axis=0, weights=w)
        spread = np.sqrt(np.average((Y - center) ** 2, axis=0, weights=w))
        density = scipy.stats.norm.logpdf(Y_test, center, spread).sum(axis=1)
    elif task == "count":
        rate = (w * Y[:, 0]).sum() / (w * days[:90, 0]).sum()
        density = scipy.stats.poisson.logpmf(Y_test[:, 0], rate * days[90:, 0])
    else:
        shares = np.bincount(Y[:, 0].astype(int), w) / w.sum()
        density = np.log(shares[Y_test[:, 0].astype(int)])
    expected = -np.average(density, weights=w_test)
    assert found["no inputs"]["nlpd"] == pytest.approx(expected, rel=0.02)
    assert found["linear model"]["nlpd"] < expected - 0.3


def test_baselines_of_one_class_and_of_no_counts() -> None:
    for task in ("binary", "count"):
        split = gpx.datasets.load(TABLE.assign(y=np.arange(60) % 2), target="y", task=task)
        split = dataclasses.replace(split, train=(split.train[0], 0.0 * split.train[1]))
        assert baselines.scores(split)["linear model"]["nlpd"] == np.inf


def test_what_is_no_model_and_paths_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    split = gpx.datasets.load(TABLE.assign(y=TABLE["age"]), target="y", test_fraction=0.3)
    model = gpflow.models.GPR(split.train, gpflow.kernels.Matern52())
    wrong: Any
    for wrong in (None, gpflow.kernels.Matern52(), gpflow.models.GPR):
        with pytest.raises(ValueError, match="model must be a GPflow model or hold one"):
            gpx.report(wrong, split, tmp_path / "report.html")
    for wrong in (None, tmp_path, tmp_path / "absent" / "report.html"):
        with pytest.raises(ValueError, match="path must be that of a file"):
            gpx.report(model, split, wrong)


def test_an_estimator_that_numbers_classes_in_another_way_is_refused(tmp_path: Path) -> None:
    """As one that has sorted their names: "10" comes before "9"."""
    y = np.repeat(["9", "10", "11"], 20)
    table = pandas.DataFrame({"x": np.arange(60.0), "y": y})
    split = gpx.datasets.load(table, target="y", test_fraction=0.3, task="ordinal")
    X, numbers = split.train
    for targets, message in (
        (np.array(split.labels)[numbers[:, 0].astype(int)], "classes 10, 11, 9, and the split 9, 10, 11"),
        (2.0 * numbers[:, 0], "classes 0, 2, 4"),
    ):
        model = gpx.estimators.GPClassifier(steps=0).fit(X, targets)
        with pytest.raises(ValueError, match=message):
            gpx.report(model, split, tmp_path / "report.html")


def test_a_split_without_test_rows_is_refused(tmp_path: Path) -> None:
    split = gpx.datasets.load(TABLE.assign(y=TABLE["age"]), target="y", test_fraction=0.0)
    with pytest.raises(ValueError, match="no test rows"):
        gpx.report(None, split, tmp_path / "report.html")
    pair: Any = (split.train, split.train)
    with pytest.raises(ValueError, match=r"what datasets\.load returns.*got a tuple"):
        gpx.report(None, pair, tmp_path / "report.html")


@pytest.mark.parametrize(
    ("task", "likelihood", "what", "lines"),
    [
        ("ordinal", gpx.likelihoods.CumulativeLogit(3), ["mean level of y (0 is 0)"], []),
        ("multiclass", gpflow.likelihoods.MultiClass(3), ["probability of each class"], ["0", "1", "2"]),
        ("binary", gpx.likelihoods.BernoulliLogit(), ["probability of 1"], []),
        ("regression", gpflow.likelihoods.Gaussian(), ["mean of y"], []),
        ("several", gpflow.likelihoods.Gaussian(), ["mean of y", "mean of z"], []),
    ],
)
def test_every_class_and_target_moves_by_name(
    task: str, likelihood: gpflow.likelihoods.Likelihood, what: list[str], lines: list[str]
) -> None:
    """The curves are the predicted means; of several targets each has the inputs that move it the most."""
    levels = np.digitize(TABLE["age"], [0.0] if task == "binary" else [-0.5, 0.5])
    table = TABLE.assign(y=TABLE["age"] if task in ("regression", "several") else levels, z=TABLE["height"])
    several = task == "several"
    options = {"target": ["y", "z"]} if several else {"target": "y", "task": task, "drop": ["z"]}
    split = gpx.datasets.load(table, **options)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=2.0)
    model = gpflow.models.VGP(
        split.train, kernel, likelihood, num_latent_gps=likelihood.latent_dim or split.train[1].shape[1]
    )
    model.q_mu.assign(split.train[0][:, : model.num_latent_gps])
    row = split.train[0][:1]
    found = dependence.shown(model, split, row)
    assert (found.what, found.lines) == (what, lines)
    assert len(found.rows) == len(what)
    for place, (curve, *_) in enumerate(found.rows):
        column = split.feature_names.index(curve.name)
        X = np.tile(row, (25, 1))
        X[:, column] = (curve.at - split.scaler.mean[column]) / split.scaler.scale[column]
        mean = model.predict_y(X)[0].numpy()
        mean = mean[:, [place]] if several else mean
        np.testing.assert_allclose(curve.mean, mean, rtol=1e-6)
        assert np.ptp(mean) > 0.01


def test_panels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twelve classes the ten that move the most are lines; of eight targets six have a row."""
    split = gpx.datasets.load(TABLE.assign(y=np.arange(60) % 12), target="y", task="multiclass")
    at = np.linspace(0.0, 1.0, 25)
    mean = at[:, None] * np.arange(12) / 66.0
    curve = dependence.Curve("age", at, mean, np.stack([mean, mean]))
    found = dependence._of_classes(split, [curve])
    assert found.lines == [str(number) for number in range(2, 12)]
    assert "Of 12 classes those 10" in found.remark
    names = [f"y{number}" for number in range(8)]
    table = TABLE.assign(**dict.fromkeys(names, TABLE["age"]))
    split = gpx.datasets.load(table, target=names)
    model = gpflow.models.GPR(split.train, gpflow.kernels.SquaredExponential())
    found = dependence.shown(model, split, split.train[0][:2])
    assert len(found.rows) == 6
    assert "Of 8 targets" in found.remark
    [(first, *_), *_] = found.rows
    assert first.name == "age"


def test_all_that_was_learnt_is_shown() -> None:
    X, Y = RNG.normal(size=(8, 1)), RNG.normal(size=(8, 2))
    network = gpx.models.GPRNTensor((X, Y), *(gpflow.kernels.SquaredExponential() for _ in range(2)), 2)
    shown = dict(learnt.parameters(network, ["age"]))
    for name in (
        "kernel.lengthscales",
        "weight_kernel.variance",
        "nugget",
        "output_noise",
        "likelihood.variance",
    ):
        assert name in shown
    assert not any(name.startswith("q") for name in shown)


def test_length_scales_have_the_names_of_inputs() -> None:
    split = gpx.datasets.load(TABLE.assign(y=TABLE["age"]), target="y", test_fraction=0.0)
    each = gpflow.kernels.Matern52(lengthscales=[3.0, 0.5], active_dims=[0, 2])
    model = gpflow.models.GPR(split.train, each + gpflow.kernels.Matern32(lengthscales=7.0))
    shown = html.unescape(reporting._parameters(model, split))
    assert "<td>kernel.kernels[0].lengthscales</td><td><odd> $_$ 0.5, age 3</td>" in shown
    assert "<td>kernel.kernels[1].lengthscales</td><td>7</td>" in shown
    assert "standardised units" in shown


def test_an_estimator_that_scales_its_inputs_has_its_own_scores(tmp_path: Path) -> None:
    raw = TABLE[["age", "height"]] * [1000.0, 0.01] + [300.0, 2.0]
    split = gpx.datasets.load(
        raw.assign(y=TABLE["age"] * TABLE["height"]), target="y", test_fraction=0.3, standardise=False
    )
    model = gpx.estimators.GPRegressor(steps=2).fit(split.train[0], split.train[1][:, 0])
    page = gpx.report(model, split, tmp_path / "report.html").read_text(encoding="utf-8")
    error = gpx.metrics.rmse(model.predict(split.test[0]), split.test[1][:, 0])
    assert f"<td>rmse</td><td>{error:.4g}</td>" in page
    ages = raw["age"][split.rows[0]]
    assert f"age {ages.min():.4g} to {ages.max():.4g}" in page


def test_test_rows_with_missing_targets_are_left_out(tmp_path: Path) -> None:
    gaps = TABLE.assign(y=TABLE["age"], z=TABLE["age"].where(TABLE["height"] > -0.5))
    split = gpx.datasets.load(gaps, target=["y", "z"], missing="keep", test_fraction=0.3)
    networks = gpflow.kernels.SquaredExponential(), gpflow.kernels.SquaredExponential()
    model = gpx.models.GPRNTensor(split.train, *networks, 2)
    whole = ~np.isnan(split.test[1]).any(axis=1)
    page = gpx.report(model, split, tmp_path / "report.html").read_text(encoding="utf-8")
    found = gpx.metrics.evaluate(model, tuple(part[whole] for part in split.test))
    assert f"<td>nlpd</td><td>{found['nlpd']:.4g}</td>" in page
    assert f"{np.sum(~whole)} test rows with missing targets" in page


def test_levels_of_a_category_exclude_one_another() -> None:
    """They were moved one by one, so that a row had two colours or none; rare ones did not move at all."""
    colours = np.where(np.arange(60) == 3, "rare", np.where(np.arange(60) % 2, "usual", "other"))
    table = TABLE.assign(colour=colours, y=TABLE["age"] + 2.0 * (colours == "usual"))
    split = gpx.datasets.load(table, target="y", test_fraction=0.0)
    model = gpflow.models.GPR(split.train, gpflow.kernels.SquaredExponential())
    found = {one.name: one for one in dependence.curves(model, split, split.train[0][:2])}
    assert found.keys() == {*TABLE.columns, "colour"}
    levels = found["colour"].levels
    assert sorted(levels) == ["other", "rare", "usual"]
    for level, mean in zip(levels, found["colour"].mean, strict=True):
        rows = table.iloc[list(split.rows[0][:2])].assign(colour=level)
        exact = model.predict_y(split.inputs(rows))[0]
        np.testing.assert_allclose(mean, np.mean(exact, axis=0), rtol=1e-9)


def test_of_many_levels_those_of_most_rows_are_shown() -> None:
    levels = [f"level {number:02}" for number in (*range(12), *range(2, 12))]
    table = TABLE.assign(colour=(levels * 3)[:60], y=TABLE["age"])
    split = gpx.datasets.load(table, target="y", test_fraction=0.0)
    model = gpflow.models.GPR(split.train, gpflow.kernels.SquaredExponential())
    colour = next(one for one in dependence.curves(model, split, split.train[0][:2]) if one.levels)
    assert colour.levels == tuple(f"level {number:02}" for number in range(2, 12))
    axes = Figure().subplots()
    assert len(plotting.dependence(axes, colour.at, colour.mean, colour.band, colour.levels)) == 1
    assert [text.get_text() for text in axes.get_xticklabels()] == list(colour.levels)


def test_an_average_has_a_line_for_each_member_and_their_papers() -> None:
    """Length scales are named, the most relevant first; parts of a kernel may see some inputs alone."""
    split = gpx.datasets.load(TABLE.assign(y=TABLE["age"]), target="y", test_fraction=0.0)
    kernel = gpflow.kernels
    each = kernel.Matern52(variance=2.0, lengthscales=[3.0, 0.5, 1.0])
    some = kernel.SquaredExponential(lengthscales=[0.7, 0.25], active_dims=[0, 2]) * (
        kernel.Linear() + kernel.Constant()
    )
    first = gpx.models.VGPKMM(
        split.train, each + kernel.Linear(variance=0.1), gpflow.likelihoods.Gaussian(0.3)
    )
    second = gpflow.models.GPR(split.train, some)
    model = ModelAverage([ModelAverage([first, second], [0.5, 0.5]), second], [0.5, 0.5])
    shown = html.unescape(reporting._parameters(model, split))
    assert shown.count("<tr>") == 4
    cells = "<td>25%</td><td>Matérn 5/2 (variance 2) + linear (variance 0.1)</td><td>height 0.5, <odd> $_$ 1, age 3</td>"
    assert f"{cells}<td>Gaussian (variance 0.3)</td>" in shown
    cells = "<td>50%</td><td>squared exponential (variance 1) × (linear (variance 1) + constant (variance 1))</td>"
    assert f"{cells}<td><odd> $_$ 0.25, age 0.7</td>" in shown
    assert "standardised units" in shown
    papers = gpx.cite(model)
    assert [papers.count(key) for key in ("khan2012fast", "matthews2017gpflow")] == [1, 1]
