"""The experiment on images: its scores and its page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scripts.experiments.images import __main__ as main
from scripts.experiments.images import convolutional, page, runs


def test_scores_of_known_probabilities() -> None:
    p = np.array([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.4, 0.6]])
    found = runs.scores(p, np.array([[0.0], [1.0], [1.0], [1.0]]))
    assert found["error"] == 0.25
    assert found["nlpd"] == pytest.approx(-np.log([0.9, 0.1, 0.8, 0.6]).mean())
    # the gaps of the bins: two at 0.9 of which one is right, one at 0.8 and one at 0.6 that are right
    assert found["calibration"] == pytest.approx((0.8 + 0.2 + 0.4) / 4.0)


def test_copies_are_shifted_by_a_pixel() -> None:
    image = np.zeros([28, 28], np.float32)
    image[0, 5], image[9, 27] = 1.0, 2.0
    found = runs.shifted(image.reshape(1, -1), 5).reshape(5, 28, 28)
    np.testing.assert_array_equal(found[0], image)
    places = [{(y, x): found[n, y, x] for y, x in np.argwhere(found[n])} for n in range(1, 5)]
    assert places == [
        {(0, 6): 1.0},  # the other has left at the right
        {(0, 4): 1.0, (9, 26): 2.0},
        {(1, 5): 1.0, (10, 27): 2.0},
        {(8, 27): 2.0},
    ]
    assert len(runs.SHIFTS) == len(set(runs.SHIFTS)) == 9


def test_runs_on_one_machine_are_told_of_once() -> None:
    here = {"cpu": "A", "cores": 2, "threads": 1, "python": "3.11", "versions": {"numpy": "1"}}
    places = [{**here, "commit": commit, "date": f"day {n}", "load": n} for n, commit in enumerate("aab")]
    places.append({**places[0], "cpu": "B"})
    text = page.page([{"where": place} for place in places])
    assert "commit a, b; day 0 to day 2; A, 2 cores, 1 threads, load average 0 to 2 at the start" in text
    assert text.count("at the start") == 2


def test_the_page_tells_test_images_from_validation() -> None:
    line = {
        "seed": 0,
        **runs.SETTINGS["quick"]._asdict(),
        "error": 0.01,
        "nlpd": 0.03,
        "calibration": 0.002,
        "seconds": 9.0,
    }
    text = page.page([{**line, "part": "validation"}, {**line, "part": "test", "error": 0.008}])
    test, validation = text.split("## Validation")
    assert "99.20" in test
    assert "99.00" not in test
    assert "99.00" in validation


def test_another_set_is_read_from_its_files_and_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of Fashion-MNIST; with scores that are given."""
    folder, out, seen = tmp_path / "fashion_mnist", tmp_path / "out", []
    folder.mkdir()
    for part, number in (("train", 12), ("t10k", 4)):
        labels = np.arange(number, dtype=np.uint8) % 10
        for name, array in (
            ("images-idx3", np.full([number, 28, 28], 51, np.uint8)),
            ("labels-idx1", labels),
        ):
            sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
            content = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
            (folder / f"{part}-{name}-ubyte").write_bytes(content)

    def measure(images: runs.Images, setting: runs.Setting, seed: int, out: Path | None) -> page.Record:
        seen.append((images, out))
        return {"error": 0.1, "nlpd": 0.3, "calibration": 0.01, "seconds": 9.0}

    monkeypatch.setenv("GPFLOW_EXT_DATA", str(tmp_path))
    monkeypatch.setattr(page, "_measure", measure)
    monkeypatch.setattr(page, "draw_scores", lambda path, records: None)
    asked = ["--data", "fashion_mnist", "--setting", "quick"]
    page.run(main.options([*asked, "--out", str(out)]))
    [(images, drawn)] = seen
    np.testing.assert_array_equal(images.train[0], np.full([12, 784], np.float32(0.2)))
    np.testing.assert_array_equal(images.test[1][:, 0], np.arange(4))
    assert drawn is None  # the figures are of digits
    text = (out / "images.md").read_text(encoding="utf-8")
    assert "## Test images" not in text
    assert "| 90.00 | 0.3000 | 1.00 | 9.0 |" in text.split("## Fashion-MNIST: test images")[1]
    with pytest.raises(SystemExit):
        main.options([*asked, "--others"])


def test_the_reduced_form_takes_the_first_images_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = np.zeros([3000, 784], np.float32), np.zeros([3000, 1], np.float32)
    seen: list[tuple[runs.Images, runs.Setting]] = []

    def measure(images: runs.Images, setting: runs.Setting, seed: int, out: Path | None) -> page.Record:
        assert out is not None
        assert out.is_dir()  # for the figure of the inducing images
        seen.append((images, setting))
        return {"error": 0.1, "nlpd": 0.3, "calibration": 0.01, "seconds": 9.0}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "load", lambda *of: runs.Images((X, Y), (X, Y)))
    monkeypatch.setattr(page, "_measure", measure)
    monkeypatch.setattr(page, "draw_scores", lambda path, records: None)
    page.run(main.options(["--quick"]))
    [(images, setting)] = seen
    assert [len(part) for pair in images for part in pair] == [2000, 2000, 1000, 1000]
    assert (setting.order, setting.inducing) == (1, 100)
    text = (tmp_path / "runs/reproduce_images/images.md").read_text(encoding="utf-8")
    assert "the reduced form: of the training images the first 2,000" in text
    assert "reduced form" not in page.page([])
    with pytest.raises(SystemExit):
        main.options(["--quick", "--others"])


def test_unfinished_runs_of_convolutional_kernels_are_told_apart() -> None:
    key = {"on": "test", "seed": 0, **convolutional.Setting("weighted", steps=100)._asdict()}
    progress = [{"part": "convolutional progress", **key, "done": 0, "seconds": 10.0}]
    bounds = ((50, -40_000.0), (100, -20_000.0))
    progress += [{**progress[0], "done": done, "seconds": 5.0, "bound": bound} for done, bound in bounds]
    assert convolutional.section([]) == ""
    text = convolutional.section(progress[:2])
    assert "50 of 100 steps in 15 CPU s, the bound from -40,000 to -40,000 nats" in text
    score = {
        "part": "convolutional",
        **key,
        "seconds": 20.0,
        "error": 0.0125,
        "nlpd": 0.04,
        "calibration": 0.001,
    }
    score["final_variance"] = 12.0
    text = convolutional.section([*progress, score])
    assert "Not finished" not in text
    assert (
        "| weighted | test | all | 500 | 200 | dual | 0.005 | 100 | 1 | 0 | 98.75 | 0.0400 | 0.10 | 20 |"
        in text
    )
    assert "from -40,000 to -20,000 nats, the variance on patches from 10 to 12" in text
    assert "have lost" not in text
    older = [
        {name: value for name, value in record.items() if name not in convolutional.BEFORE}
        for record in (*progress, score)
    ]
    text = convolutional.section([*progress, score, *older])
    assert text.count("| dual | 0.005 | 100 |") == text.count("| natural | 0.005 | 100 |") == 1
    start = {**score, "steps": 0, "error": 0.01}
    text = convolutional.section([*progress, score, start])
    assert "Before them 99.00 % were right, after them 98.75 %." in text
    assert "have lost" not in text
    fewer = {**start, "on": "validation", "images": 10_000}
    assert "than 1 of the 1 that only started" in convolutional.section([*progress, score, fewer])
