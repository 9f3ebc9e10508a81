"""The benchmarks of `auto` and of the classifier at a tiny size: they measure, resume and tell who was behind."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

import gpflow_ext as gpx
from scripts.benchmarks import __main__ as benchmark
from scripts.benchmarks import auto, classifier, defaults, defaults_peers, defaults_tables, resumable
from scripts.shared import report
from scripts.shared.journal import Journal
from scripts.tools import make_zoo

RNG = np.random.default_rng(0)
EXPOSURES = np.geomspace(0.1, 1000.0, 60)[:, None]
COUNTS = RNG.poisson(3.0 * EXPOSURES)
INPUTS = RNG.normal(size=(60, 1))


def _counts(beside: bool) -> gpx.datasets.Split:
    """Return counts of one rate, the exposures beside them or in the targets too, as the command line has them."""
    Y = np.hstack([COUNTS, EXPOSURES]) if beside else COUNTS
    train, test = (slice(0, None, 2), slice(1, None, 2))
    return gpx.datasets.Split(
        train=(INPUTS[train], Y[train].astype(float)),
        test=(INPUTS[test], Y[test].astype(float)),
        name="counts",
        task="count",
        feature_names=("x",),
        target="y",
        labels=None,
        scaler=gpx.datasets.Scaler.identity(1),
        seed=0,
        sha256="",
        source="",
        notes=(),
        rows=(np.arange(0, 60, 2), np.arange(1, 60, 2)),
        exposure=(EXPOSURES[train], EXPOSURES[test]),
    )


@pytest.mark.parametrize("beside", [False, True])
def test_a_baseline_of_counts_uses_their_exposures_once(beside: bool) -> None:
    """The counts are Poisson's at three times the exposure: no model predicts them better than that rate."""
    part = defaults_tables.part_of(_counts(beside), "count")
    np.testing.assert_array_equal(part.Y, np.hstack([COUNTS, EXPOSURES])[::2])
    np.testing.assert_array_equal(part.Y_test, np.hstack([COUNTS, EXPOSURES])[1::2])
    import scipy.stats

    best = -scipy.stats.poisson.logpmf(COUNTS, 3.0 * EXPOSURES)[1::2].mean()
    [sentence] = make_zoo._baseline(_counts(beside))
    assert float(sentence.rstrip(".").split("nlpd ")[1]) == pytest.approx(best, abs=0.15)


def test_a_baseline_of_several_targets_is_the_density_of_all() -> None:
    """As `metrics.evaluate` has it: four targets of noise cost four times what one does."""
    Y = np.random.default_rng(3).normal(size=(60, 4))
    split = dataclasses.replace(
        _counts(False),
        train=(INPUTS[::2], Y[::2]),
        test=(INPUTS[1::2], Y[1::2]),
        task="regression",
        exposure=None,
    )
    [sentence] = make_zoo._baseline(split)
    assert float(sentence.rstrip(".").split("nlpd ")[1]) == pytest.approx(4.0 * 1.42, rel=0.15)


def test_auto_and_the_estimator_are_given_exposures() -> None:
    """Rates that do not vary: without the exposures the counts would be spread over four decades."""
    part = defaults_tables.part_of(_counts(True), "count")
    blind = part._replace(Y=part.Y[:, :1], Y_test=part.Y_test[:, :1])
    assert auto.by_estimator(part)["nlpd"] < auto.by_estimator(blind)["nlpd"] - 1.0


def test_auto_is_measured_beside_the_others_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults_peers, "peers", lambda part: {"linear": defaults_peers._bayesian_ridge})
    options = argparse.Namespace(splits=1, rows=25, tables=["diabetes", "linnerud"], budget=1e-3, models=None)
    path = tmp_path / "page.jsonl"
    auto.run(options, Journal(path))
    first = path.read_text(encoding="utf-8")
    monkeypatch.setattr(auto, "guarded", lambda *_: pytest.fail("measured again"))
    auto.run(options, Journal(path))
    assert path.read_text(encoding="utf-8") == first
    records = [json.loads(line) for line in first.splitlines()]
    assert [(each["table"], each["model"]) for each in records] == [
        ("diabetes", "auto"), ("diabetes", "estimator"), ("diabetes", "linear")
    ]  # fmt: skip
    assert set(records[0]["chosen"].split(" & ")) <= {"linear", "Matérn 5/2"}
    assert all(0.5 < each["nlpd"] < 2.5 for each in records)  # nats, of targets of variance one
    assert "| diabetes | 25 |" in auto.text(records)


def test_the_page_tells_where_auto_is_behind_and_what_failed() -> None:
    def of(table: str, model: str, nlpd: float, **more: Any) -> dict[str, Any]:
        return {"table": table, "split": 0, "rows": 9, "model": model, "nlpd": nlpd, "seconds": 1.0, **more}

    records = [
        of("a", "auto", 0.20, rows=80_000, chosen="network"),
        of("a", "linear", 0.25, rows=80_000),
        of("a", "auto", 0.50, chosen="linear"),
        of("a", "linear", 0.45),
        of("b", "auto", 0.30, chosen="Matérn 5/2"),
        of("b", "estimator", 0.10),  # ours is no peer
        of("b", "linear", 0.31),
        {**of("b", "boosting", 0.0), "failed": "ArithmeticError: no"},
    ]
    del records[-1]["nlpd"]
    page = auto.text(records)
    assert "behind the best of the others on 1 of 3 tables:\n\n- a, 9 rows (by 0.050)\n" in page
    assert page.index("| a | 9 |") < page.index("| b | 9 |") < page.index("| a | 80,000 | **0.200** (1.0) |")
    assert "| a | 9 | 0.500 (1.0) | – | **0.450** (1.0) | – | linear |" in page
    assert "- b, boosting: ArithmeticError: no" in page
    assert resumable.guarded(lambda: {"nlpd": float("nan"), "error": 0.5}) == {"error": 0.5}
    assert resumable.guarded(lambda: 1 / 0) == {"failed": "ZeroDivisionError: division by zero"}


def test_auto_is_judged_by_the_standard_error_over_splits_and_in_the_mean_over_tables() -> None:
    scores = {  # of auto, the linear model and scikit-learn's GP on two splits
        "a": ((0.5, 0.7), (0.4, 0.4), (9.0, 9.0)),  # 0.2 ± 0.1 behind
        "b": ((0.5, 0.7), (0.3, 0.8), (0.2, 0.8)),  # 0.1 ± 0.2 behind scikit-learn's
    }
    records = [
        {"table": table, "split": split, "model": model, "nlpd": nlpd}
        for table, of_table in scores.items()
        for model, each in zip(("auto", "linear", "scikit-learn GP"), of_table, strict=True)
        for split, nlpd in enumerate(each)
    ]
    sentence, _, *behind = auto.against_linear(records)
    assert "on 1 of 2 tables:" in sentence
    assert behind == ["- a: behind linear by 0.2000 ± 0.1000"]
    once = [{**each, "table": "once"} for each in records if (each["table"], each["split"]) == ("a", 0)]
    sentence, *rest = auto.against_linear([*records, *once])
    assert (
        f"on 1 of {len({each['table'] for each in records})} tables:" in sentence
    )  # without an error of its own
    assert rest[-1] == "Measured on one split, without a standard error: once."
    assert auto.in_the_mean(records, ["linear", "calibrated SVC"])[2:] == [
        "- linear: 0.125 ± 0.075 (2 tables)"
    ]


@pytest.mark.filterwarnings("ignore:kernel:UserWarning")  # so few rows may be told by the prior alone
def test_the_classifier_is_timed_and_tried_on_wrong_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = RNG.normal(size=(60, 2))
    parts = [(X[rows], (X[rows, :1] > 0.0).astype(float)) for rows in (slice(0, 40), slice(40, 60))]
    monkeypatch.setattr(gpx.datasets, "load", lambda name, seed: parts)
    path = tmp_path / "page.jsonl"
    classifier.run(argparse.Namespace(splits=1, sizes=[40], tables=["breast_cancer"]), Journal(path))
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [each["what"] for each in records] == 3 * ["seconds"] + 3 * ["noise"]
    assert all(0.0 < each["nlpd"] < 0.75 and each["seconds"] > 0.0 for each in records)
    page = classifier.text(records)
    assert "| 40 | scikit-learn GP |" in page
    assert "| breast_cancer | 0 | GPClassifier, label noise |" in page


@pytest.mark.parametrize("program", [auto, classifier, defaults])
def test_the_reduced_form_has_smaller_defaults_and_a_folder_of_its_own(program: Any) -> None:
    whole = resumable.parsed(program.arguments(), program.QUICK, [])
    assert str(whole.out).startswith("docs/results/benchmark_")
    few = resumable.parsed(program.arguments(), program.QUICK, ["--splits", "7", "--quick"])
    assert few.out == Path("runs", whole.out.name)
    assert few.splits == 7  # what is given counts
    assert few.tables == program.QUICK["tables"]


def test_the_page_of_a_reduced_form_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPFLOW_EXT_DATA", raising=False)
    out = tmp_path / "page.md"
    flags = ["--quick", "--out", str(out)]
    options = resumable.parsed(classifier.arguments(), classifier.QUICK, flags)
    resumable.measure_and_write(options, "classifier", lambda *_: None, classifier.text, needs_data=True)
    title, *rest = out.read_text(encoding="utf-8").splitlines()
    assert title.startswith("# GPClassifier")
    assert report.REDUCED.strip() in rest
    assert "`--quick`" not in report.reduced("# A page\n\nText.\n", quick=False)


def test_a_benchmark_with_a_program_of_its_own_is_pointed_to(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.arguments().parse_args(["classifier"])
    assert "python -m scripts.benchmarks.classifier" in capsys.readouterr().err
