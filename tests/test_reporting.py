"""`report` writes one page that stands by itself and holds the numbers of the model."""

from __future__ import annotations

import re
from pathlib import Path

import gpflow
import numpy as np
import pandas
import pytest

pytest.importorskip("matplotlib")

import gpflow_ext as gpx

RNG = np.random.default_rng(0)
TABLE = pandas.DataFrame(RNG.normal(size=(60, 3)), columns=["age", "height", "<odd>"])


@pytest.mark.parametrize("task", ["regression", "binary"])
def test_the_page_holds_scores_pictures_and_what_moves_the_predictions(task: str, tmp_path: Path) -> None:
    f = TABLE["age"] - TABLE["height"]
    likelihood: gpflow.likelihoods.Likelihood = gpflow.likelihoods.Gaussian(0.1)
    if task == "binary":
        f, likelihood = np.where(f > 0.0, "yes", "no"), gpx.likelihoods.BernoulliLogit()
    split = gpx.datasets.load(TABLE.assign(y=f), target="y", test_fraction=0.3)
    model = gpx.models.VGPKMM(split.train, gpflow.kernels.Matern52(lengthscales=2.0), likelihood)
    model.settle_sites()
    page = gpx.report(model, split, tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert page.count("<img") == 2
    assert f"{gpx.metrics.evaluate(model, split.test)['nlpd']:.4g}" in page
    assert "&lt;odd&gt;" in page
    assert "<odd>" not in page
    assert "kernel.lengthscales" in page
    assert "khan2012" in page.lower() or "Khan" in page


def test_a_split_without_test_rows_is_refused(tmp_path: Path) -> None:
    split = gpx.datasets.load(TABLE.assign(y=TABLE["age"]), target="y", test_fraction=0.0)
    with pytest.raises(ValueError, match="no test rows"):
        gpx.report(None, split, tmp_path / "report.html")
