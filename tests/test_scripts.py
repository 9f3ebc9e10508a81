"""The scripts as a user runs them: from a folder of their own, on their own CSV."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import gpflow
import numpy as np
import problems
import pytest

import gpflow_ext as gpx
from gpflow_ext.cli import kinds

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"
COMMANDS = sorted(path.name for path in SCRIPTS.glob("[!_]*.py"))
PROGRAMS = sorted(  # the modules of the packages that are run
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for path in SCRIPTS.glob("*/**/*.py")
    if "ArgumentParser(" in path.read_text(encoding="utf-8")
)


WORKERS = {  # that programs start, which give them their arguments; `peers` needs GPyTorch to be imported
    "scripts.benchmarks.fits_classes",
    "scripts.benchmarks.fits_worker",
    "scripts.benchmarks.peer_bayesnewton",
    "scripts.device.peers",
    "scripts.experiments.sparse_ep.workers",
}


def _process(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command, by its file, or a program, by the name of its module, in a process of its own."""
    environment = {**os.environ, "GPFLOW_EXT_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("GPFLOW_EXT_DATA", None)
    done = subprocess.run(
        [sys.executable, *([str(SCRIPTS / script)] if script in COMMANDS else ["-m", script]), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


class Done(NamedTuple):
    stdout: str
    stderr: str


def _run(folder: Path, script: str, *arguments: str, code: int = 0) -> Done:
    """Run a script as `_process` does, but in this process, which has TensorFlow loaded."""
    out, err, found = io.StringIO(), io.StringIO(), 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(record=True) as caught,
        gpflow.config.as_context(gpflow.config.config()),
    ):
        warnings.simplefilter("default")
        patch.chdir(folder)
        patch.setenv("GPFLOW_EXT_OFFLINE", "1")
        patch.delenv("GPFLOW_EXT_DATA", raising=False)
        patch.setattr(sys, "argv", [script, *arguments])
        try:
            runpy.run_path(str(SCRIPTS / script), run_name="__main__")
        except SystemExit as end:
            found = end.code or 0
    stderr = err.getvalue() + "".join(f"{each.category.__name__}: {each.message}\n" for each in caught)
    assert found == code, out.getvalue() + stderr
    return Done(out.getvalue(), stderr)


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    X, Y = problems.binary(40)
    lines = [f"{a:.6f},{b:.6f},{'ill' if y else 'well'}" for (a, b), y in zip(X, Y[:, 0], strict=True)]
    numbers = [f"{a:.6f},{b:.6f},{np.sin(a):.6f},{'' if i == 3 else a * b}" for i, (a, b) in enumerate(X)]
    (folder / "numbers.csv").write_text("\n".join(["age,weight,pulse,pressure", *numbers]) + "\n")
    (folder / "table.csv").write_text("\n".join(["age,weight,state", *lines]) + "\n")
    (folder / "runs" / "old").mkdir(parents=True)
    (folder / "runs" / "old" / "run.json").write_text('{"arguments": {"data": "table.csv"}}')
    lines[6] = lines[6].replace(lines[6].split(",")[1], "heavy")
    (folder / "broken.csv").write_text("\n".join(["age,weight,state", *lines]) + "\n")
    return folder


def forget_the_script(run: Path) -> None:
    """Export must not need to know what trained."""
    saved = json.loads((run / "run.json").read_text())
    assert saved.pop("model") in (*kinds.KINDS, "review")
    (run / "run.json").write_text(json.dumps(saved))


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "scripts.device.programs" else name
        for name in (*COMMANDS, *PROGRAMS)
    ],
)
def test_help_teaches(script: str, tmp_path) -> None:
    shown = _process(tmp_path, script, "--help").stdout
    assert shown.startswith(f"usage: {script}" if script in COMMANDS else f"usage: python -m {script} ")
    assert len(shown.splitlines()) > 8


def test_every_program_has_a_help() -> None:
    started = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        for path in SCRIPTS.glob("*/**/*.py")
        if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")
    }
    assert started == {*PROGRAMS} | WORKERS


@pytest.mark.parametrize(
    "path", sorted(SCRIPTS.glob("experiments/*/__main__.py")), ids=lambda p: p.parent.name
)
def test_every_experiment_has_a_reduced_form(path: Path) -> None:
    """`make reproduce-quick` asks each of them for it."""
    program = importlib.import_module(f"scripts.experiments.{path.parent.name}.__main__")
    assert program.arguments().parse_args(["--quick"]).quick


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        (
            "scripts.tools.check",
            ["--list", "--since", "nowhere"],
            "error: git diff --name-only nowhere failed: ",
        ),
        ("scripts.tools.make_bound_tables", ["--num-pieces", "2"], "error: num_pieces must be at least 3"),
        ("scripts.tools.cases_in_turn", ["nowhere.xml"], "error: .*nowhere.xml"),
        ("scripts.tools.gpflow_tests", ["--source", "nowhere", "--out", "."], "error: .*nowhere/tests"),
        ("scripts.tools.pages", ["nowhere"], "nothing is named nowhere; there are benchmark_auto, "),
        ("scripts.tools.quick_forms", ["nowhere"], "nothing is named nowhere; there are gprn, images"),
        ("scripts.device.programs", [".", "--only", "nowhere"], "no name begins with nowhere; there are "),
        ("scripts.device.page", ["nowhere"], "error: .*nowhere/results.jsonl"),
    ],
)
def test_a_wrong_call_of_a_program_ends_with_one_clear_message(
    program: str, arguments: list[str], message: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPFLOW_EXT_TRACEBACK", raising=False)
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    monkeypatch.delitem(sys.modules, program, raising=False)  # else runpy warns of it
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(program, run_name="__main__")
    assert ended.value.code == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("script", "own"),
    [
        ("train_vgp_kmm.py", ("--fixed",)),
        ("train_sparse_ep.py", ("--inducing", "0.25", "--optimizer", "adadelta")),
        ("train_review.py", ("--method", "svi-natural", "--inducing", "9", "--minibatch-size", "8")),
        (
            "train_svgp_robustmax.py",
            (
                "--inducing",
                "5",
                "--early-stopping",
                "0.2",
                "--test-every",
                "2",
                "--schedule",
                "root",
                "--tensorboard",
                "board",
            ),
        ),
    ],
)
def test_train_resume_export_and_serve(folder: Path, script: str, own: tuple[str, ...]) -> None:
    run = f"runs/{script}"
    flags = ("--data", "table.csv", "--target", "state", "--run-dir", run, *own)
    first = (_process if script == "train_vgp_kmm.py" else _run)(folder, script, *flags, "--steps", "2")
    assert "nlpd" in first.stdout
    models = f"models/{script}"
    resumed = _run(folder, script, *flags, "--steps", "5", "--export", f"{models}/trained")
    steps = [line.split("│")[1].strip() for line in resumed.stdout.splitlines() if line.startswith("│")]
    settled = "settled within" in first.stdout  # then there is nothing left to do, and the scores come first
    assert steps[0] == ("nlpd" if settled else "3")  # it may converge before the fifth
    forget_the_script(folder / run)
    _run(folder, "export.py", run, f"{models}/exported")
    trained, exported = (gpx.load_exported(folder / models / name) for name in ("trained", "exported"))
    rows = np.array([[0.3, -1.2], [1.5, 0.1]])
    a, b = trained.predict(rows), exported.predict(rows)
    np.testing.assert_array_equal(a["probabilities"], b["probabilities"])
    assert set(trained.labels) == {"ill", "well"}
    if "--tensorboard" in own:
        assert sum(path.stat().st_size for path in (folder / "board").iterdir()) > 500
    assert json.loads((folder / models / "trained/1/manifest.json").read_text())["metrics"]["nlpd"] > 0


def test_sample_resume_export_and_serve(folder: Path) -> None:
    run, models = "runs/draws", "models/draws"
    table = ("--data", "table.csv", "--target", "state", "--inducing", "6", "--run-dir", run)
    flags = ("train_sgpmc_freeform.py", *table, "--steps", "12", "--chains", "2", "--trials", "3")
    first = _run(folder, *flags, "--export", f"{models}/trained")
    assert "nlpd" in first.stdout
    assert "kernel.lengthscales" in first.stdout
    assert "warning: These draws fail" in first.stderr
    draws = gpx.Draws.load(folder / run / "draws.npz")
    assert draws.values["V"].shape == (2, 12, 6, 1)
    forget_the_script(folder / run)
    _run(folder, "export.py", run, f"{models}/exported")
    trained, exported = (gpx.load_exported(folder / models / name) for name in ("trained", "exported"))
    rows = np.array([[0.3, -1.2], [1.5, 0.1]])
    np.testing.assert_array_equal(
        trained.predict(rows)["probabilities"], exported.predict(rows)["probabilities"]
    )
    again = _run(folder, *flags[:-1], "4", code=2)
    assert "trials" in again.stderr


@pytest.mark.parametrize(
    "own",
    [(), pytest.param(("--posterior", "tensor", "--minibatch-size", "1"), marks=pytest.mark.slow)],
)
def test_train_several_targets(folder: Path, own: tuple[str, ...]) -> None:
    run, models = f"runs/network{len(own)}", f"models/network{len(own)}"
    table = ("--data", "numbers.csv", "--target", "pulse", "pressure", "--missing", "keep")
    flags = ("train_gprn_tensor.py", *table, "--run-dir", run, *own)
    first = _run(folder, *flags, "--steps", "2")
    assert "rmse" in first.stdout
    assert "1 missing targets are kept" in first.stdout
    resumed = _run(folder, *flags, "--steps", "3", "--export", f"{models}/trained")
    steps = [line.split("│")[1].strip() for line in resumed.stdout.splitlines() if line.startswith("│")]
    assert steps[0] == "3"
    forget_the_script(folder / run)
    _run(folder, "export.py", run, f"{models}/exported")
    trained, exported = (gpx.load_exported(folder / models / name) for name in ("trained", "exported"))
    scores = (
        json.loads((folder / models / name / "1/manifest.json").read_text())["metrics"]
        for name in ("trained", "exported")
    )
    assert next(scores) == next(scores)
    rows = np.array([[0.3, -1.2], [1.5, 0.1]])
    np.testing.assert_array_equal(trained.predict(rows)["mean"], exported.predict(rows)["mean"])
    raw = gpx.datasets.load(folder / "numbers.csv", target=["pulse", "pressure"], missing="keep", seed=0)
    middle, scale = np.nanmean(raw.train[1], axis=0), np.nanstd(raw.train[1], axis=0)
    standard = gpx.load_checkpoint(folder / run / "checkpoints").predict_y(raw.scaler.transform(rows))
    found, some = trained.predict(rows), trained.predict_outputs(rows, [1])  # in the units of the table
    np.testing.assert_allclose(found["mean"], middle + scale * standard[0], rtol=1e-9)
    np.testing.assert_allclose(found["variance"], scale**2 * standard[1], rtol=1e-7)
    for name in ("mean", "variance"):
        np.testing.assert_allclose(some[name], found[name][:, 1:], rtol=1e-9)


def test_a_classifier_takes_a_few_whole_numbers_for_classes(tmp_path: Path, monkeypatch) -> None:
    """Of any numbering, with a note; a flag says otherwise, and what was taken is kept for the next run."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import train_sparse_ep

    rng = np.random.default_rng(0)
    table = np.c_[rng.normal(size=(40, 2)), np.repeat([1, 3, 7, 9], 10)]
    np.savetxt(tmp_path / "kinds.csv", table, delimiter=",", header="a,b,kind", comments="")
    flags = ["--data", str(tmp_path / "kinds.csv"), "--target", "kind"]
    options = train_sparse_ep.arguments().parse_args(flags)
    split = train_sparse_ep.load(options)
    assert (split.task, options.task, split.labels) == ("multiclass", "multiclass", ("1", "3", "7", "9"))
    assert "taken for classes; --task" in split.notes[-1]
    with pytest.raises(ValueError, match="choose another --target or --task"):
        train_sparse_ep.load(train_sparse_ep.arguments().parse_args([*flags, "--task", "regression"]))
    with pytest.raises(ValueError, match="choose another --target"):
        train_sparse_ep.load(train_sparse_ep.arguments().parse_args([*flags[:-1], "a"]))


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        (
            "train_gprn_tensor.py",
            ("--data", "numbers.csv", "--target", "pulse", "pressure"),
            "--missing keep",
        ),
        ("train_gprn_tensor.py", ("--data", "table.csv", "--target", "state"), "choose another --target"),
        ("train_sgpmc_freeform.py", ("--inducing", "0"), "--inducing must be from 1"),
        ("train_vgp_kmm.py", ("--data", "missing.csv"), "missing.csv"),
        ("train_vgp_kmm.py", ("--task", "regression"), "this model is for binary"),
        ("train_sparse_ep.py", ("--rate", "0.1"), "--rate is that of --optimizer adam or adadelta"),
        ("train_vgp_kmm.py", ("--data", "table.csv", "--target", "stat"), "state"),
        ("train_vgp_kmm.py", ("--data", "broken.csv", "--target", "state"), "weight"),
        (
            "train_vgp_kmm.py",
            ("--data", "table.csv", "--target", "state", "--num-inducing", "99"),
            "from 1 to 32",
        ),
        (
            "train_sparse_ep.py",
            ("--data", "table.csv", "--target", "state", "--inducing", "33"),
            "from 1 to 32",
        ),
        (
            "train_sparse_ep.py",
            ("--data", "table.csv", "--target", "age", "--drop", "state"),
            "choose another --target",
        ),
        (
            "train_sparse_ep.py",
            ("--data", "table.csv", "--target", "state", "--inducing", "1.5"),
            "--inducing",
        ),
        (
            "train_svgp_robustmax.py",
            ("--data", "table.csv", "--target", "state", "--test-every", "2"),
            "--run-dir",
        ),
        ("export.py", ("table.csv", "models/none"), "run.json"),
        ("export.py", ("runs/old", "models/none"), "run its training once more"),
    ],
)
def test_a_wrong_call_ends_with_one_clear_message(folder: Path, script: str, arguments, message: str) -> None:
    done = _run(folder, script, *arguments, code=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
