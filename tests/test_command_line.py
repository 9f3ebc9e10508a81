"""The command `gpflow-ext`: quick answers, one choice for each task, from a table to a served model."""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
from shell import command, timed

import gpflow_ext as gpx
from gpflow_ext.cli import (
    compare,
    flags,
    kernels,
    kinds,
    likelihoods,
    report,
    run,
    runs,
    streams,
    tables,
    train,
    training,
)
from gpflow_ext.cli.models import sgpmc_freeform
from gpflow_ext.persistence.manifest import AnotherRunError
from gpflow_ext.sampling import sample
from gpflow_ext.training import execution, rising
from scripts.shared.serving import served

ROOT = Path(__file__).parent.parent
COMMANDS = ("train", "compare", "predict", "export", "serve", "zoo", "cite")
SECONDS = 0.5  # of the processor: what needs no model is answered before TensorFlow is imported


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    X, Y = problems.binary(40)
    places = np.random.default_rng(0).uniform(size=(60, 2)) ** 2
    columns = {
        "words": [("ill" if y else "well") for y in Y[:, 0]],
        "kinds": [("u", "v", "w")[i % 3] for i in range(40)],
        "levels": np.digitize(X[:, 0], [-1.0, 0.0, 1.0]),
        "visits": np.random.default_rng(1).poisson(np.exp(X[:, 0])),
        "price": np.round(1000.0 + 100.0 * np.sin(X[:, 0]), 3),
    }
    for name, values in columns.items():
        lines = [f"{a:.5f},{b:.5f},{y}" for (a, b), y in zip(X, values, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join([f"a,b,{name}", *lines]) + "\n")
    lines = [f"{a:.5f},{b:.5f},{y},3" for (a, b), y in zip(X, columns["words"], strict=True)]
    (folder / "weighted.csv").write_text("\n".join(["a,b,words,w", *lines]) + "\n")
    lines = [f"{a:.5f},{b:.5f}" for a, b in places]
    (folder / "quakes.csv").write_text("\n".join(["lon,lat", *lines]) + "\n")
    return folder


# ------------------------------------------------------------------------------------------------ quick answers

LIGHT = """
import sys, time
from gpflow_ext.cli import main
for arguments in {calls!r}:
    try:
        main(arguments)
    except SystemExit as end:
        print("ended", end.code)
print(sorted({{"tensorflow", "gpflow", "tensorflow_probability"}} & set(sys.modules)), time.process_time())
"""


def test_help_and_mistakes_are_answered_before_tensorflow_is_imported(folder: Path) -> None:
    table, weighted = str(folder / "words.csv"), str(folder / "weighted.csv")
    calls = [
        ["--help"],
        *([name, "--help"] for name in COMMANDS),
        *(["train", "--model", name, "--help"] for name in kinds.KINDS),
        ["train", "--data", "missing.csv"],
        ["train", "gpr", "--help"],
        ["train", "--data", table, "--target", "stat"],
        ["train", "--data", table, "--target", "words", "--stepz", "3"],
        ["train", "--data", table, "--target", "a", "--drop", "words", "--model", "vgp-kmm"],
        ["train", "--data", table, "--target", "words", "--model", "gpr"],
        ["train", "--data", table, "--target", "words", "--model", "gpr", "--nodes", "3"],
        ["train", "--data", table, "--target", "words", "--model", "sparse-ep", "--inducing", "99"],
        ["train", "--data", table, "--target", "words", "--weights", "a"],
        ["train", "--data", table, "--target", "words", "--weights", "words", "--drop", "a"],
        ["train", "--data", table, "--target", "wordz", "--weights", "c"],
        ["train", "--data", weighted, "--target", "words", "--weights", "w", "--model", "sparse-ep"],
        ["train", "--data", weighted, "--target", "a", "b", "--weights", "w", "--model", "gprn-tensor"],
        ["compare", "--data", table, "--target", "words", "--models", "gpr"],
        ["compare", "--data", weighted, "--target", "words", "--weights", "w", "--models", "svgp-robustmax"],
        ["compare", "--data", table, "--target", "words", "--folds", "1"],
        ["compare", "--data", table, "--target", "words", "--folds", "99"],
        ["predict", "--model", "nothing", "--data", table, "--out", "x.csv"],
        ["export", "nothing", "models"],
        ["serve", "nothing"],
        ["zoo", "--folder", "nothing"],
        ["zoo", str(folder)],
        ["zoo", "bogus", "--folder", str(ROOT / "saved_models")],
        ["zoo", "wine_sparse_ep/3", "--folder", str(ROOT / "saved_models")],
        ["zoo", "wine_sparse_ep", "--folder", str(ROOT / "saved_models"), "--sha256", "abc"],
        ["cite", "nothing"],
        ["cite", "gpr"],
    ]
    offline = {**os.environ, "GPFLOW_EXT_OFFLINE": "1"}
    done = timed(LIGHT.format(calls=calls), 2.0 * SECONDS, env=offline)  # thirty calls
    assert "Traceback" not in done.stderr, done.stderr
    assert run.TRACEBACK not in done.stderr, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("[] "), last
    ended = re.findall(r"^ended (.*)$", done.stdout, re.MULTILINE)
    assert ended.count("0") == 1 + len(COMMANDS) + len(kinds.KINDS)
    assert len(ended) == len(calls) - 1
    for part in (
        "missing.csv",
        "error: a model is named by a flag: --model gpr\n",
        "'stat' is",
        "error: there is no flag --stepz (did you mean --steps?)\nsee gpflow-ext train --help\n",
        "error: --nodes is a flag of gprn-tensor\nsee gpflow-ext train --model gpr --help\n",
        "choose --model from sgpmc-free-form, gpr, sgpr",
        "choose --model from vgp-kmm, sparse-ep",
        "--inducing must be from 1 to 32",
        "the weight 'a' is -1.",
        "column 'words' cannot hold the weights: it is in --target too; name another column",
        "target 'wordz' is not a column",
        "weights 'c' is not a column",
        "--weights: sparse-ep takes no weights of rows: its sites match the moments of one datum each; vgp-kmm",
        "--weights: gprn-tensor takes no weights of rows; independent, coregionalised do",
        "svgp-robustmax is not for binary with 1 target and weights of rows; choose --models from vgp-kmm",
        "--folds must be at least 2",
        "--folds must be at most 40, the number of rows; got 99",
        "there is no exported model in nothing",
        "name the --run-dir of a training",
        "there is no folder 'nothing'",
        f"error: a model is named by itself, and its folder or address by --folder {folder}\n",
        "has no model 'bogus'",
        "saved_models has no version 3 of wine_sparse_ep; it has 1.\n",
        "wine_sparse_ep is another model than was asked for",
        "No paper is recorded for 'nothing'",
    ):
        assert part in done.stderr, part


def test_it_starts_soon() -> None:
    code = "import time; from gpflow_ext.cli import main\ntry: main(['--help'])\n"
    done = timed(f"{code}except SystemExit: print(time.process_time())", SECONDS)
    assert done.stdout.startswith("usage: gpflow-ext")


@pytest.mark.parametrize(
    ("python", "shell"),
    [
        ("pass one_hot=['a'] or drop=['a', 'b']", "pass --one-hot a or --drop a b"),
        ("pass missing='mean' or \"drop\"", 'pass --missing mean or "drop"'),
        ("target= is needed", "--target is needed"),
        ("use task='multiclass'", "use --task multiclass"),
        ("set GPFLOW_EXT_DATA (or data_dir=) to", "set GPFLOW_EXT_DATA (or GPFLOW_EXT_DATA) to"),
        ("x=3 and a target, a task", "x=3 and a target, a task"),
        ("give `steps`, or `minibatch_size=`", "give --steps, or --minibatch-size"),
        ("Give several `starts`, or priors", "Give several --starts, or priors"),
        (
            f"It was rising. {rising._AGAIN}",
            "It was rising. Give more --steps; with --run-dir the same command goes on from where it ended.",
        ),
        (execution._AGAIN, "With --run-dir the same command would go on from there."),
        (sample._AGAIN, "With --run-dir the same command would go on from there."),
        ("The same call resumes in runs/a.", "The same command resumes in runs/a."),
        (
            "Build the model as it was when it was saved, or start in an empty folder.",
            "Give the flags of that run, or another --run-dir.",
        ),
    ],
)
def test_messages_are_in_the_words_of_the_shell(python: str, shell: str) -> None:
    assert run.in_flags(python) == shell


def test_all_problems_of_a_table_are_told_at_once_with_their_flags(tmp_path: Path, monkeypatch) -> None:
    rows = [f"k{i},{i % 7},{('NA' if i % 11 == 0 else i % 5)},{'yes' if i % 3 else 'no'}" for i in range(40)]
    (tmp_path / "parts.csv").write_text("\n".join(["part name,weight,holes,fits", *rows]))
    table = ("train", "--data", "parts.csv", "--target", "fits")
    shown = command(tmp_path, *table, code=2)
    assert "parts.csv has 2 problems:" in shown
    assert "pass --drop 'part name' or --one-hot 'part name'." in shown
    assert "pass --missing drop or --missing mean." in shown
    last = re.search(r"all at once, if that is meant: (.*)", shown)[1]
    assert last == "--drop 'part name' --missing drop"
    monkeypatch.chdir(tmp_path)
    options = train.options_of("vgp-kmm", [*table[1:], *shlex.split(last)])
    assert len(tables.load(options).train[0]) + len(tables.load(options).test[0]) == 36


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serv"], "(choose from 'train', 'compare', 'predict', 'export', 'serve', 'zoo', 'cite') (did you mean serve?)"),
        (["serve"], "error: the following arguments are required: model"),
        (["train"], "error: the following arguments are required: --data"),
        (["train", "--data", "t.csv", "--missing", "dropp"], "'keep') (did you mean drop?)"),
        (["train", "--target", "amount", "--data", "t.csv", "more"], "error: nothing takes more"),
        (["train", "--data", "t.csv"], "error: t.csv: --target is needed: there is no column 'y'; choose one of"),
        (["train", "--data", "t.csv", "--target", "amountt"], "'amountt' is not a column; the columns are x, amount, town (did you mean amount?)."),
        (["train", "--data", "t.csv", "--target", "town"], "has 40 classes in 90 rows, too few to tell them apart;"),
        (["train", "--data", "t.csv", "--target", "amount", "--task", "binary"], "--task binary needs two classes"),
        (["train", "--data", "one.csv", "--target", "x"], "pass --task events."),
        (["train", "--data", "t.csv", "--target", "x", "amount", "--bins", "9"], "--bins counts events along x amount: give --task events too"),
        (["compare", "--data", "t.csv", "--target", "x", "amount", "--bins", "9"], "--bins counts events along x amount: give --task events too"),
        (["train", "--data", "t.csv", "--target", "x", "--model", "gpr", "--bins", "9"], "error: --bins is a flag of vgp-kmm, sparse-ep, sgpmc-free-form, gp-laplace, gp-taylor\n"),
        (["train", "--data", "t.csv", "--target", "town", "--task", "count"], "--task counts needs a numeric target"),
        (["train", "--data", "comma.csv", "--target", "y", "--decimal", ",", "--task", "count"], "--task counts needs whole numbers from 0;"),
        (["train", "--data", "t.csv", "--target", "x", "--likelihood", "negative-binomial"], "error: --likelihood is a flag of vgp-kmm"),
        (["train", "--data", "t.csv", "--target", "x", "--task", "multiclass", "--likelihood", "negative-binomial"], "negative-binomial is for counts;"),
        (["train", "--data", "t.csv", "--target", "x", "--task", "counts", "--num-inducing", "3", "--prior", "grid"], "--prior grid needs none."),
        (["train", "--data", "comma.csv", "--target", "y"], "pass --decimal ',' or --decimal '.'."),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_in_two_lines_with_the_flag_that_mends_it(
    tmp_path: Path, arguments, said
) -> None:
    rows = [f"{i % 9},{i // 2},town{i % 40}" for i in range(90)]
    (tmp_path / "t.csv").write_text("\n".join(["x,amount,town", *rows]))
    (tmp_path / "one.csv").write_text("\n".join(["x", *map(str, range(9))]))
    (tmp_path / "comma.csv").write_text("\n".join(["x\ty", *(f"{i}\t{i},125" for i in range(1, 10))]))
    shown = command(tmp_path, *arguments, code=2)
    assert said in shown
    assert len(shown.splitlines()) <= 2
    assert "=" not in shown.splitlines()[0]
    assert "Traceback" not in shown


def test_only_errors_that_other_libraries_raise_tell_of_the_traceback(capsys) -> None:
    """What this package raises says what is wrong; for a file that is not there its name does."""
    for wrong, told in (
        (lambda: gpx.zoo.find("../wine"), True),
        (lambda: Path("nowhere.csv").read_text(), True),
        (lambda: np.zeros(3).reshape(2, 2), False),
    ):
        with pytest.raises(SystemExit):
            run.run(wrong)
        assert (run.TRACEBACK not in capsys.readouterr().err) == told


def test_the_zoo_has_the_tasks_in_the_words_of_the_shell(folder: Path) -> None:
    shown = command(folder, "zoo", "--folder", str(ROOT / "saved_models"))
    tasks = {line.split("│")[3].strip() for line in shown.splitlines() if line.startswith("│")}
    assert "counts" in tasks
    assert tasks <= set(flags.TASKS)


@pytest.mark.parametrize("name", kinds.KINDS)
def test_the_help_of_a_model_offers_its_own_tasks(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train.main(["--model", name, "--help"])
    [*offered] = re.findall(r"--task \{(.*?)\}", capsys.readouterr().out)
    own = kinds.KINDS[name].tasks
    events = ("events",) if "counts" in own else ()
    assert {*offered} == (
        set() if own == ("several",) else {",".join(t for t in flags.TASKS if t in own + events)}
    )


def test_levels_with_commas_can_be_typed(tmp_path: Path) -> None:
    """The flag that a refused table is answered with is one that is taken."""
    words = ("never", "now, and then", 'all "the time"')
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("x", "y"), *((i, words[i % 3]) for i in range(12))])
    shown = command(tmp_path, "train", "--data", "t.csv", "--target", "y", "--task", "ordinal", code=2)
    [advice] = re.findall(r"pass (--categories .*)\.$", shown, re.MULTILINE)
    options = train.parser().parse_args(["--data", "t.csv", *shlex.split(advice)])
    [(column, levels)] = options.categories
    assert (column, sorted(levels)) == ("y", sorted(words))


def test_a_terminal_that_has_not_every_letter_ends_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    run.run(lambda: print("0.3 ± 0.1"))
    with streams.writing(Path("-")) as out:
        out.write("Größe\n")
    shown.flush()
    assert shown.buffer.getvalue() == b"0.3 ? 0.1" + f"{os.linesep}Größe\n".encode()


def test_files_that_are_no_tables_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "t.xlsx").write_bytes(b"PK\x03\x04")
    shown = command(tmp_path, "train", "--data", "t.xlsx", "--target", "y", code=2)
    assert "t.xlsx is neither text nor Parquet: save it as CSV" in shown


def test_many_classes_that_were_asked_for_come_with_a_note(tmp_path: Path) -> None:
    """Numbers that may be quantities are no classes in silence; classes with rows enough are."""
    for each, noted in ((2, True), (5, False)):
        rows = [f"{i % 9},{i // each}" for i in range(21 * each)]
        (tmp_path / "t.csv").write_text("\n".join(["x,amount", *rows]))
        split = gpx.datasets.load(tmp_path / "t.csv", target="amount", task="multiclass")
        shown = [run.in_flags(note) for note in split.notes]
        what = "target 'amount' has 21 classes in 42 rows, too few to tell them apart; if it is a quantity, "
        assert (what + "pass --task regression, or --task counts for counts" in shown) == noted


def test_a_target_takes_the_decimal_comma_of_the_other_columns(tmp_path: Path) -> None:
    rows = [f"{i},5;{i},125" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["x;y", *rows]))
    split = gpx.datasets.load(tmp_path / "t.csv", target="y", test_fraction=0.0)
    np.testing.assert_array_equal(np.sort(split.train[1][:, 0]), np.arange(20) + 0.125)
    assert "target y was read as numbers with a decimal comma" in split.notes


def test_orders_and_dates_are_kept_with_a_run(tmp_path: Path) -> None:
    """What the flags say of a table is what `export` loads again from the run's folder."""
    rows = [
        f"{1 + i % 12:02d}/{1 + i % 12:02d}/2024,{'SML'[i % 3]},{('low', 'mid', 'high')[i % 3]}"
        for i in range(40)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["made,size,y", *rows]))
    given = ["--data", str(tmp_path / "t.csv"), "--task", "ordinal", "--dates", "made=dmy"]
    given += ["--categories", "size=S,M,L", "y=low,mid,high", "--run-dir", str(tmp_path / "run")]
    options = train.options_of("vgp-kmm", given)
    split = tables.load(options)
    assert split.labels == ("low", "mid", "high")
    assert split.feature_names == ("made", "size")
    runs.save(options, "vgp-kmm")
    again = tables.load(runs.saved(tmp_path / "run"))
    np.testing.assert_array_equal(again.train[0], split.train[0])
    assert again.labels == split.labels
    for wrong in (["--categories", "size"], ["--categories", "size=S,"], ["--dates", "made=ydm"]):
        with pytest.raises(SystemExit):
            train.options_of("vgp-kmm", [*given, *wrong])


def test_compare_prints_a_training_with_all_of_its_flags(capsys) -> None:
    """What the table needs, the kernel too, but for the flags that are of a comparison alone."""
    scores = {"scores": {"nlpd": [1.5, 0.5]}, "errors": (None, None)}
    found = {"gpr": SimpleNamespace(mean={"nlpd": 1.0}, standard_error={"nlpd": 0.5}, **scores)}
    given = "--data t.csv --models gpr sgpr --missing mean --folds 3 --seconds 9 --categories size=S,M --ard --drop 'a b'"
    compare._advise(found, shlex.split(given))
    shown = capsys.readouterr().out
    expected = "train --data t.csv --missing mean --categories size=S,M --ard --drop 'a b' --model gpr"
    assert f"gpflow-ext {expected} --run-dir runs/best" in shown


def test_a_model_that_fails_in_a_fold_is_last_and_not_recommended(folder: Path, monkeypatch) -> None:
    """Its score in the others may be the best of all; one that fails in every fold ends no comparison."""
    module, failing = kinds.KINDS["gpr"].load(), []
    build = module.build

    def fails(options: Any, split: Any) -> Any:
        failing.append(options.method)
        if options.method == "vi-means" or failing.count("exact") == 1:
            raise ValueError("a fold of\ntwo lines")
        return build(options, split)

    monkeypatch.setattr(module, "build", fails)
    table = ("--data", "price.csv", "--target", "price", "--folds", "2", "--seconds", "2")
    shown = command(folder, "compare", *table, "--models", "gpr", "sgpr", "svgp-student-t")
    assert "sgpr ...\n  failed in every fold: ValueError: a fold of\n" in shown
    assert re.search(r"^gpr failed in fold [12] of 2: ValueError: a fold of$", shown, re.MULTILINE)
    assert "warning" not in shown
    assert "lowest nlpd: svgp-student-t\n" in shown
    assert shown.index("│ svgp-student-t") < shown.index("│ gpr")
    shown = command(folder, "compare", *table, "--models", "sgpr", code=2)
    assert "error: a fold of" in shown


def test_compare_ends_a_training_in_time(folder: Path) -> None:
    """After the first step of each fold; the line says that it was cut short."""
    table = ("--data", "words.csv", "--target", "words", "--folds", "2")
    shown = command(folder, "compare", *table, "--models", "gp-laplace", "--seconds", "1e-9")
    assert "(2 folds, 2 not converged, " in shown
    shown = command(folder, "compare", *table, "--seconds", "0", code=2)
    assert "'0' is not a positive number" in shown


def test_a_comparison_looks_at_the_clock_often(folder: Path, monkeypatch) -> None:
    """A step of the usual twenty iterations would go on long after it."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(gpx, "cross_validate", lambda *_, **options: given.append(options))
    options = compare.parser().parse_args(["--data", str(folder / "words.csv"), "--target", "words"])
    options.test_fraction = 0.0
    split = tables.load(options)
    for name in compare._chosen(options, split):
        compare._validated(name, options, split)
        build = kinds.KINDS[name].load().build
        model = build(compare._options(name, options), split)
        assert isinstance(model, gpx.models.SiteModel) == ("hyper_updates" in given[-1]), name
    assert {each.get("hyper_updates") for each in given} == {5, None}


def test_a_run_that_has_settled_shows_no_table(capsys) -> None:
    result = SimpleNamespace(objective=np.array([]), first_step=2, times=np.array([]))
    report.training(result, "bound")
    assert "training" not in capsys.readouterr().out


def test_the_log_of_tensorflow_is_printed_once(tmp_path: Path) -> None:
    """A module of its name stands for it: what it writes twice on the way is there once, what is kept back is not."""
    (tmp_path / "tensorflow.py").write_text(
        "import os\nfor line in ('I0000 oneDNN', 'E0000 real', 'I0000 oneDNN', 'E0000 real', 'E0000 failed call to cuInit'):\n"
        "    os.write(2, (line + '\\n').encode())\n"
    )
    code = "from gpflow_ext.cli import run; run.quiet(); run.import_tensorflow(); run.import_tensorflow()"
    gpu = "E0000 failed call to cuInit\n" * any(Path("/dev").glob("nvidia[0-9]*"))  # of one that is there
    for level, expected in (("2", f"E0000 real\n{gpu}"), ("0", f"I0000 oneDNN\nE0000 real\n{gpu}")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "TF_CPP_MIN_LOG_LEVEL": level},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stderr == expected


def test_a_warning_is_a_line_without_its_place_in_the_code(capsys) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        run.run(lambda: warnings.warn("it was cut short", UserWarning, stacklevel=1))
    assert capsys.readouterr().err == "warning: it was cut short\n"


# ------------------------------------------------------------------------------------------------ the choice


@pytest.mark.parametrize(
    ("task", "rows", "outputs", "expected"),
    [
        ("binary", 500, 1, "vgp-kmm"),
        ("binary", 5_000, 1, "sparse-ep"),
        ("binary", 50_000, 1, "svgp-robustmax"),
        ("multiclass", 100, 1, "vgp-kmm"),
        ("multiclass", 2_000, 1, "svgp-robustmax"),
        ("ordinal", 100, 1, "vgp-kmm"),
        ("count", 100, 1, "vgp-kmm"),
        ("counts", 5_000, 1, "sparse-ep"),
        ("regression", 500, 1, "gpr"),
        ("regression", 5_000, 1, "sgpr"),
        ("regression", 50_000, 1, "svgp"),
        ("regression", 500, 3, "gprn-tensor"),
        ("regression", 2_000, 3, "independent"),
    ],
)
def test_a_table_gets_a_model_by_its_task_and_size(task: str, rows: int, outputs: int, expected: str) -> None:
    name, why = kinds.choose(task, rows, outputs)
    assert name == expected
    assert name in kinds.fitting(task, outputs)
    assert why


def test_every_model_can_be_named_cited_and_has_flags_of_its_own() -> None:
    for name, kind in kinds.KINDS.items():
        assert "@" in gpx.cite(kind.cites)
        options = train.options_of(name, ["--data", "x.csv"])
        assert isinstance(options, argparse.Namespace)
        assert kind.load().EPILOG
    assert train.options_of("gp-laplace", ["--data", "x"]).method == "laplace"


BUILDS = [
    ("vgp-kmm", "words.csv", ()),
    ("vgp-kmm", "kinds.csv", ()),
    ("vgp-kmm", "visits.csv", ("--task", "counts", "--likelihood", "negative-binomial")),
    ("vgp-kmm", "visits.csv", ("--task", "counts", "--prior", "vecchia", "--kernel", "matern32")),
    (
        "vgp-kmm",
        "quakes.csv",
        ("--task", "events", "--target", "lon", "--drop", "lat", "--prior", "markov", "--kernel", "matern52"),
    ),
    (
        "vgp-kmm",
        "quakes.csv",
        ("--task", "events", "--bins", "6", "--target", "lon", "lat", "--prior", "grid"),
    ),
    ("gp-laplace", "levels.csv", ("--task", "ordinal")),
    ("gp-laplace", "visits.csv", ("--task", "counts", "--prior", "vecchia", "--kernel", "matern32")),
    ("gp-taylor", "visits.csv", ("--task", "counts")),
    ("gp-jaakkola", "kinds.csv", ()),
    ("sparse-ep", "kinds.csv", ()),
    ("sparse-ep", "levels.csv", ("--task", "ordinal")),
    ("sparse-ep", "visits.csv", ("--task", "counts")),
    ("svgp-robustmax", "kinds.csv", ()),
    ("sgpmc-free-form", "levels.csv", ("--task", "ordinal")),
    ("sgpmc-free-form", "visits.csv", ("--task", "counts")),
    ("sgpmc-free-form", "price.csv", ()),
    ("gpr", "price.csv", ()),
    ("sgpr", "price.csv", ()),
    ("svgp", "price.csv", ()),
    ("svgp", "words.csv", ()),
    ("svgp-student-t", "price.csv", ()),
    ("vgp-kmm", "quakes.csv", ("--task", "events", "--bins", "4", "--target", "lon", "lat")),
]


@pytest.mark.parametrize(("name", "file", "own"), BUILDS, ids=lambda value: str(value))
def test_every_model_is_built_for_every_kind_of_target(folder: Path, name, file, own) -> None:
    target = () if "--target" in own else ("--target", file.removesuffix(".csv"))
    options = train.options_of(name, ["--data", str(folder / file), *target, *own])
    module = kinds.KINDS[name].load()
    split = training.load(module, options)
    model = module.build(options, split)
    mean, variance = model.predict_f(split.test[0])
    assert np.isfinite(mean).all()
    assert (np.asarray(variance) > 0.0).all()
    assert {each.task for each in [split]} <= {*kinds.KINDS[name].tasks, "count"}


# ------------------------------------------------------------------------------------------------ the journeys


PAGE = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)


def test_the_page_is_the_journey_from_a_table_to_a_served_model(tmp_path: Path, monkeypatch) -> None:
    """Its commands run one after the other, but for the server, and print the lines that it shows."""
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], {})
    shown = ""
    for line in "".join(CONSOLE.findall(PAGE)).splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        assert program == "gpflow-ext"
        if arguments[0] != "serve":
            shown += command(tmp_path, *arguments, code=2 if "wight" in arguments else 0)
    for line in "".join(re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)).splitlines():
        assert line in shown, line
    rows = re.findall(r"^│ (gp-laplace|vgp-kmm) +│ ([\d.]+) ±", shown, re.MULTILINE)
    assert [float(nlpd) for _, nlpd in rows] == sorted(float(nlpd) for _, nlpd in rows)
    assert f"lowest nlpd: {rows[0][0]}" in shown
    assert f"gpflow-ext train --data patients.csv --target ill --model {rows[0][0]}" in shown
    assert "gpflow-ext serve saved_models/ill" in shown
    header, *lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert header == "ill,class,label,probability_no,probability_yes,is_finite"
    agree = sum(row.split(",")[0] == row.split(",")[2] for row in lines)
    assert len(lines) == 60
    assert agree > 50
    shown = command(tmp_path, "zoo", "ill", "--folder", "saved_models")
    assert "verified and loaded" in shown
    assert "classes: no, yes" in shown
    assert [one.name for one in gpx.zoo.list("saved_models")] == ["ill"]


def test_noise_is_in_the_kernel_where_it_is_asked_for() -> None:
    options = train.options_of("sparse-ep", ["--data", "t.csv", "--noise", "0.25"])
    smooth, white = kernels.noisy_kernel(options, 2).kernels
    assert white.variance.numpy() == pytest.approx(0.25)
    options.noise = 0.0
    assert type(kernels.noisy_kernel(options, 2)) is type(smooth)
    options.noise = -1.0
    with pytest.raises(ValueError, match="--noise must be a finite number of at least 0; got -1"):
        kernels.noisy_kernel(options, 2)


@pytest.mark.parametrize(
    "name",
    ["gpr", "sgpr", "svgp", "svgp-student-t", "gpr --weights w", "sgpr --weights w", "sgpmc-free-form"],
)
def test_models_of_real_targets_do_not_depend_on_their_units(tmp_path: Path, name: str) -> None:
    """Not with house prices, nor with micrometres in metres: but for the units the objective is the same."""
    found, (name, *weights) = [], name.split()
    for unit in (1.0, 1e-7, 1e7):
        rows = [f"{i / 30},1,{unit * np.sin(i / 5)}" for i in range(60)]
        (tmp_path / "t.csv").write_text("a,w,y\n" + "\n".join(rows))
        flags = ["--data", str(tmp_path / "t.csv"), "--target", "y", "--test-fraction", "0"]
        module, options = kinds.KINDS[name].load(), train.options_of(name, [*flags, *weights])
        split = training.load(module, options)
        model = module.build(options, split)
        sampled = isinstance(model, gpx.models.SGPMCFreeForm)
        loss = gpflow.models.training_loss_closure(model, split.train, compile=False)
        value = -model.log_posterior_density() if sampled else loss()
        found.append(value.numpy() - len(rows) * np.log(unit))
    np.testing.assert_allclose(found, found[0], rtol=1e-6)


@pytest.mark.parametrize("precision", [[], ["--float32"]])
def test_targets_without_noise_have_scores(tmp_path: Path, precision: list[str]) -> None:
    """As those of a simulation: the noise would become next to nothing, and predicted densities NaN."""
    X = np.random.default_rng(0).uniform(-3.0, 3.0, (120, 2))
    Y = 1000.0 + 50.0 * np.sin(X[:, 0]) + 30.0 * X[:, 1]
    np.savetxt(tmp_path / "t.csv", np.column_stack([X, Y]), delimiter=",", header="a,b,y", comments="")
    train = ["train", "--data", "t.csv", "--target", "y", "--model", "gpr"]
    shown = command(tmp_path, *train, *precision)
    assert float(re.search(r"rmse +│ (\S+)", shown)[1]) < 0.2
    assert "--fixed leaves nothing to train" in command(tmp_path, *train, "--fixed", code=2)


def test_scores_of_small_targets_are_not_zeros(capsys) -> None:
    report.scores({"nlpd": -11.44636, "rmse": 2.4206e-6, "error": 0.0})
    shown = capsys.readouterr().out
    assert all(f" {value} " in shown for value in ("-11.4464", "2.421e-06", "0.0000"))


def test_a_sampler_starts_in_the_units_of_the_targets() -> None:
    options = train.options_of("sgpmc-free-form", ["--data", "t.csv", "--inducing", "5", "--variance", "2"])
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    Y = 50.0 + 1e-4 * X[:, :1]
    model = sgpmc_freeform.build(options, SimpleNamespace(task="regression", train=(X, Y), weights=None))
    assert model.likelihood.shift.numpy() == pytest.approx(Y.mean())
    assert model.likelihood.scale.numpy() == pytest.approx(Y.std())
    for parameter, start in ((model.kernel.variance, 2.0), (model.likelihood.likelihood.variance, 0.1)):
        assert parameter.numpy() == pytest.approx(start)
        assert np.exp(parameter.prior.loc) == pytest.approx(start)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        noise = sgpmc_freeform._likelihood(SimpleNamespace(task="regression", train=(X, Y), weights=None))
        variance = noise.likelihood.variance
        assert variance.prior.dtype == variance.dtype == noise.scale.dtype


@pytest.mark.parametrize("kind", ["svgp-robustmax", "svgp", "sgpmc-free-form", "sparse-ep"])
def test_there_are_no_more_inducing_points_than_distinct_rows(kind: str) -> None:
    """By default as well as where more are asked for: ties in a table are none of its user's faults."""
    rows = np.tile(np.arange(5.0), 8)[:, None]
    split = SimpleNamespace(
        task="binary", train=(rows, (rows % 2.0)), labels=["even", "odd"], weights=None, exposure=None
    )
    module, table = kinds.KINDS[kind].load(), ["--data", "t.csv", "--target", "y"]
    for more in ([], ["--inducing", "12"]):
        options = train.options_of(kind, [*table, *more])
        module.check(options, split)
        Z = np.asarray(module.build(options, split).inducing_variable.Z)
        assert sorted(Z[:, 0]) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_as_many_inducing_points_as_asked_for() -> None:
    split = SimpleNamespace(
        task="binary", train=(np.arange(20.0)[:, None], np.zeros((20, 1))), labels=["a", "b"], weights=None
    )
    module = kinds.KINDS["svgp-robustmax"].load()
    for given, number in (([], 10), (["--inducing", "15"], 15)):
        options = train.options_of("svgp-robustmax", ["--data", "t.csv", *given])
        assert module.build(options, split).inducing_variable.num_inducing == number
    assert kernels.number_of_points(None, 200, 0) == 1  # of half a row
    options = train.options_of(
        "svgp-robustmax", ["--data", "t.csv", "--inducing", "15", "--early-stopping", "0.5"]
    )
    with pytest.raises(ValueError, match="--inducing must be from 1 to 10"):
        module.check(options, split)


@pytest.mark.parametrize(
    ("data", "shown"),
    [("t.csv", "t.csv"), ("T.Parquet", "T.Parquet"), ("t.npz", "new.csv"), ("wine", "new.csv")],
)
def test_the_next_command_predicts_the_table(data, shown, capsys) -> None:
    report.after_export(Path("ill"), data)
    assert f"--data {shown} --out" in capsys.readouterr().out


def test_a_file_that_is_no_text_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1\x15\x04\x15\x80")
    with pytest.raises(ValueError, match="it is Parquet and not UTF-8 text"):  # noqa: SIM117
        with streams.reading(tmp_path / "t.parquet") as (text, _):
            text.read()


def test_standard_input_is_refused_by_its_flag(folder: Path) -> None:
    shown = command(folder, "train", "--data", "-", code=2)
    assert shown == "error: --data -: standard input is not read: write the table to a file, and name that.\n"
    shown = command(folder, "predict", "--model", ".", "--data", "-", "--out", "-", code=2)
    assert shown == "error: --data - is read twice: write the table to a file, and name that.\n"


def test_a_refused_run_leaves_the_flags_of_the_one_that_is_there(tmp_path: Path) -> None:
    options = SimpleNamespace(run_dir=tmp_path, task="binary", raw=False)
    with runs.recorded(options, "vgp-kmm", "one"):
        pass
    options.raw = True
    with pytest.raises(ValueError, match="another"), runs.recorded(options, "vgp-kmm", "two"):
        raise ValueError("what was saved belongs to another model or run")
    assert not runs.saved(tmp_path).raw
    runs.check(tmp_path, SimpleNamespace(sha256="one"))
    with pytest.raises(ValueError, match="has changed since the training"):
        runs.check(tmp_path, SimpleNamespace(sha256="two", name="t.csv"))


def test_a_folder_in_which_a_training_runs_takes_no_other(tmp_path: Path) -> None:
    options = SimpleNamespace(run_dir=tmp_path / "runs", task="binary")
    busy = pytest.raises(ValueError, match=r"runs: another training is running there\.")
    with runs.recorded(options, "vgp-kmm", "one"), busy, runs.recorded(options, "vgp-kmm", "one"):
        pass
    with runs.recorded(options, "vgp-kmm", "one"):
        pass


def test_a_refusal_to_resume_names_the_flags_that_differ(tmp_path: Path) -> None:
    def run(sha256: str = "one", model: str = "vgp-kmm", **flags: Any) -> None:
        options = SimpleNamespace(run_dir=tmp_path, task="binary", data="t.csv", lengthscale=None, ard=False)
        vars(options).update(flags)
        with runs.recorded(options, model, sha256):
            if flags.get("ard") or sha256 != "one" or model != "vgp-kmm":
                raise AnotherRunError("of this model")

    (tmp_path / "checkpoints").mkdir()
    run(lengthscale=1.0)
    run()  # no step has been taken yet
    (tmp_path / "checkpoints/ckpt-1.index").touch()
    before = (tmp_path / "run.json").read_text()
    for changed, said in (
        ({"lengthscale": 2.0}, "--lengthscale was not given and is 2.0. Give those of that run"),
        ({"ard": True, "data": "u.csv"}, "--data was t.csv and is u.csv; --ard was not given and is given"),
        ({"sha256": "two"}, "t.csv has changed"),
        ({"model": "sparse-ep"}, "--model was vgp-kmm and is sparse-ep"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            run(**changed)
        assert (tmp_path / "run.json").read_text() == before
    run(steps=3)


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("vgp-kmm", "--lengthscale"),
        ("vgp-kmm", "--variance"),
        ("sparse-ep", "--rate"),
        ("svgp-robustmax", "--rate"),
        ("gprn-tensor", "--node-lengthscale"),
        ("gprn-tensor", "--least-noise"),
    ],
)
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_scales_and_rates_are_positive_numbers(name, flag, value, capsys) -> None:
    with pytest.raises(SystemExit):
        train.options_of(name, ["--data", "t.csv", flag, value])
    assert f"{value!r} is not a positive number" in capsys.readouterr().err


def test_counts_start_at_their_mean_rate() -> None:
    Y = np.array([[2.0, 4.0], [4.0, 8.0]])
    split = SimpleNamespace(task="count", train=(Y, Y), exposure=(Y[:, 1:], Y[:0, 1:]), weights=None)
    assert likelihoods.mean_of_counts(split).c.numpy() == pytest.approx(np.log(6.0 / 12.0))
    alone = SimpleNamespace(task="count", train=(Y, Y[:, :1]), exposure=None, weights=None)
    assert likelihoods.mean_of_counts(alone).c.numpy() == pytest.approx(np.log(6.0 / 2.0))


def test_counts_are_predicted_at_their_exposures(folder: Path) -> None:
    """From a table with columns of exposures and weights to counts of new rows, which need no weights."""
    rng = np.random.default_rng(0)
    days, x = rng.uniform(1.0, 9.0, 40), rng.normal(size=40)
    lines = [
        f"{a:.3f};{b:.2f};{rng.poisson(b * np.exp(a))};{i % 4 / 2}".replace(".", ",")
        for i, (a, b) in enumerate(zip(x, days, strict=True))
    ]
    (folder / "shifts.csv").write_text("\n".join(["load;days;falls;w", *lines]) + "\n")
    table = ("--data", "shifts.csv", "--target", "falls", "--exposure", "days", "--weights", "w")
    shown = command(
        folder, "train", *table, "--model", "gp-laplace", "--steps", "1", "--run-dir", "runs/falls"
    )
    assert "note: column days is the exposure" in shown
    assert "note: 10 rows of weight 0 are left out" in shown
    assert "weighted test rows" in shown
    shown = command(folder, "export", "runs/falls", "models/falls")
    after = "gpflow-ext predict --model models/falls --data shifts.csv --exposure days --out predictions.csv"
    assert after in shown
    command(folder, *shlex.split(after)[1:], "--keep", "days", "falls")
    rates = after.replace("--exposure days ", "").replace("predictions", "rates")
    assert "rates, counts at exposure one" in command(folder, *shlex.split(rates)[1:])
    served = gpx.load_exported(folder / "models" / "falls")
    assert "column days is the exposure of the counts: rates are predicted" in served.manifest["notes"]
    assert any(
        note.startswith("weights (column w): 24 training rows count as") for note in served.manifest["notes"]
    )
    m, v, _ = np.loadtxt(folder / "rates.csv", delimiter=",", skiprows=1).T
    with (folder / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["days", "falls", "mean", "variance", "is_finite"]
    e = np.round(days, 2)
    np.testing.assert_allclose([float(row["mean"]) for row in rows], e * m, rtol=1e-12)
    np.testing.assert_allclose([float(row["variance"]) for row in rows], e * m + e**2 * (v - m), rtol=1e-12)
    (folder / "shifts.csv").write_text("load;days;falls\n0,5;;0\n0,5;2,5;0\n")
    command(folder, *shlex.split(after)[1:])
    assert (folder / "predictions.csv").read_text().splitlines()[1] == ",,0"
    (folder / "shifts.csv").write_text("load;days;falls\n0,5;-2;0\n")
    shown = command(folder, *shlex.split(after)[1:], code=2)
    assert "shifts.csv, line 2, column 'days': '-2' is not a positive number" in shown
    assert "--exposure: shifts.csv has no column 'day'" in command(
        folder, *shlex.split(after.replace("exposure days", "exposure day"))[1:], code=2
    )


def test_the_page_names_every_command_and_every_model_that_is_chosen() -> None:
    chosen = {kinds.choose(task, rows)[0] for task in flags.TASKS for rows in (100, 5_000, 50_000)}
    for name in (
        *COMMANDS,
        *chosen,
        kinds.choose("regression", 1, 3)[0],
        kinds.choose("regression", 1, 1, True)[0],
    ):
        assert f"{name}`" in PAGE or f"gpflow-ext {name}" in PAGE, name


def test_a_training_that_cannot_be_written_is_refused_before_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*_: Any, **options: Any) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(gpx, "fit", fit)
    train = ("train", "--data", "quakes.csv", "--target", "lon", "--model", "sgpr")
    shown = command(folder, *train, "--export", "quakes.csv", code=2)
    assert "quakes.csv is a file or a single version: name a folder above versions" in shown
    shown = command(folder, *train, "--export", "quakes.csv/model", code=2)
    assert "no model can be exported to quakes.csv/model: " in shown
    assert "quakes.csv is no folder that this user may write to" in shown
    shown = command(folder, *train, "--run-dir", "quakes.csv", code=2)
    assert "error: --run-dir quakes.csv is a file: name a folder." in shown
    monkeypatch.setattr(os, "access", lambda *_: False)  # as of a folder that is for reading alone
    shown = command(folder, *train, "--run-dir", "new/a", code=2)
    assert f"error: --run-dir new/a: {folder} is no folder that this user may write to." in shown
    (folder / "m").mkdir()
    shown = command(folder, "predict", "--model", "m", "--data", "quakes.csv", "--out", "p.csv", code=2)
    assert f"error: --out p.csv: {folder} is no folder that this user may write to." in shown


@pytest.mark.parametrize("module", ["run", "train", "tables"])
def test_an_interruption_while_the_command_is_imported_is_one_line(module: str) -> None:
    code = f"""
import sys
class Stop:
    def find_spec(name, *_):
        if name == "gpflow_ext.cli.{module}":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop)
from gpflow_ext.cli import main
main(["train"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


def test_an_interruption_while_numpy_is_imported_is_one() -> None:
    """NumPy's C code imports datetime, and reports what happens there as an installation that is broken."""
    code = "import sys, gpflow_ext.cli; print('datetime' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


@pytest.mark.slow  # its model is built, and its likelihood trained, in every run
def test_events_are_counted_and_their_intensity_is_exported(folder: Path) -> None:
    table = ("--data", "quakes.csv", "--target", "lon", "lat", "--task", "events", "--bins", "5")
    shown = command(folder, "train", *table, "--steps", "1", "--export", "models/quakes")
    assert "60 events were counted in 5 by 5" in shown
    assert "vgp-kmm" in shown
    served = gpx.load_exported(folder / "models" / "quakes")
    mean = served.predict([[0.1, 0.1], [0.9, 0.9]])["mean"]
    assert mean[0, 0] > mean[1, 0] > 0.0


@pytest.mark.slow
def test_robust_regression_is_not_moved_by_outliers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, 60)
    y = 1000.0 + 100.0 * np.sin(2.0 * x)
    y[::6] += rng.normal(size=10) * 500.0
    np.savetxt(tmp_path / "t.csv", np.c_[x, y], delimiter=",", header="x,y", comments="")
    shown = command(tmp_path, "train", "--data", "t.csv", "--robust", "--export", "m", "--test-fraction", "0")
    assert "Student's t" in shown
    at = np.linspace(-1.8, 1.8, 9)
    mean = gpx.load_exported(tmp_path / "m").predict(at[:, None])["mean"][:, 0]
    assert np.abs(mean - 1000.0 - 100.0 * np.sin(2.0 * at)).max() < 15.0  # the outliers are of 500
    assert "--robust is for a regression" in command(
        tmp_path, "train", "--data", "t.csv", "--robust", "--model", "gpr", code=2
    )


@pytest.mark.slow  # a wheel, an environment of its own, and processes that import TensorFlow
def test_the_wheel_brings_the_whole_journey(tmp_path: Path, monkeypatch) -> None:
    """The commands of the page where the wheel is installed, beside what it depends on, and nothing of the checkout."""
    httpx = pytest.importorskip("httpx", reason="needs the extra dev")
    for name in ("PYTHONPATH", "GPFLOW_EXT_ZOO", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    pip = [sys.executable, "-m", "pip"]
    wheel = [*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(wheel, check=True, capture_output=True)
    [made] = tmp_path.glob("gpflow_ext-*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    [site] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(site), str(made)], check=True, capture_output=True
    )
    (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    program = [str(tmp_path / "venv" / "bin" / "python"), str(site / "bin" / "gpflow-ext")]
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], {})
    for line in "".join(CONSOLE.findall(PAGE)).splitlines():
        _, *arguments = shlex.split(line.removeprefix("$ "))
        if arguments[0] == "serve" or "wight" in arguments:
            continue
        done = subprocess.run([*program, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        lines = [each for each in done.stderr.splitlines() if each]
        assert len(lines) == len(set(lines)), done.stderr  # the log is printed once
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 61
    with served(tmp_path / "saved_models" / "ill", [*program, "serve"]) as port:
        answer = httpx.post(f"http://127.0.0.1:{port}/predict", json={"age": 75.0, "weight": 75.0})
    assert answer.json()["label"] == "yes"


@pytest.mark.slow  # two networks are trained
@pytest.mark.filterwarnings("default::UserWarning")  # a fold may make a node flat
def test_several_targets_are_compared_in_one_scale(tmp_path: Path) -> None:
    """A network's prior and noise are made for targets of one scale around zero, whatever their units are."""
    x = np.linspace(0.0, 6.0, 40)
    noise = np.random.default_rng(0).normal(size=(40, 2))
    Y = np.c_[1000.0 + 200.0 * np.sin(x), 5.0 * np.cos(x)] + noise * [20.0, 0.5]
    Y[::9, 1] = np.nan
    np.savetxt(tmp_path / "t.csv", np.c_[x, Y], delimiter=",", header="x,u,v", comments="")
    shown = command(
        tmp_path, "compare", "--data", "t.csv", "--target", "u", "v", "--folds", "2", "--missing", "keep"
    )
    assert "independent is left out: independent needs every target of a row" in shown
    assert float(re.search(r"rmse ([\d.]+) ±", shown)[1]) < 0.5


@pytest.mark.parametrize(
    ("inputs", "flags", "message"),
    [(2, ["--raw"], "square images; there are 2 inputs"), (64, [], "pixels as they are: give --raw")],
)
def test_scattering_says_what_it_lacks(inputs: int, flags: list[str], message: str) -> None:
    options = train.options_of("svgp-robustmax", ["--data", "t.csv", "--scattering", "3", *flags])
    split = SimpleNamespace(train=(np.zeros((9, inputs)), np.zeros((9, 1))))
    with pytest.raises(ValueError, match=message):
        kinds.KINDS["svgp-robustmax"].load().check(options, split)


def test_an_export_has_the_scores_of_its_own_units(tmp_path: Path, monkeypatch) -> None:
    """The network was trained on standardised targets; what is exported predicts those of the table."""
    x = np.linspace(0.0, 6.0, 40)
    Y = np.c_[1000.0 + 200.0 * np.sin(x), 5.0 * np.cos(x)]
    np.savetxt(tmp_path / "t.csv", np.c_[x, Y], delimiter=",", header="x,u,v", comments="")
    options = train.options_of("gprn-tensor", ["--data", str(tmp_path / "t.csv"), "--target", "u", "v"])
    module = kinds.KINDS["gprn-tensor"].load()
    split = module.load(options)
    model = module.build(options, split)
    told: dict[str, Any] = {}
    monkeypatch.setattr(gpx, "export", lambda model, folder, **about: told.update(about, model=model))
    training.export(model, split, options, tmp_path / "served")
    X_test, Y_test = told["data"].test
    np.testing.assert_allclose(Y_test, Y[split.rows[1]], rtol=1e-9)
    mean = told["model"].predict_y(X_test)[0].numpy()
    assert told["metrics"]["rmse"] == pytest.approx(np.sqrt(np.mean((mean - Y_test) ** 2)))
    density = told["model"].predict_log_density((X_test, Y_test)).numpy()
    assert told["metrics"]["nlpd"] == pytest.approx(-density.mean(), rel=0.01)  # by draws


@pytest.mark.parametrize("program", [train, compare])
def test_what_is_said_of_missing_targets_can_be_typed(program: ModuleType, tmp_path: Path) -> None:
    """Before a model is chosen, as with its own flags."""
    (tmp_path / "t.csv").write_text("x,u,v\n1,2,3\n2,,4\n3,4,5\n4,5,6\n", encoding="utf-8")
    with pytest.raises(ValueError, match="missing='keep'"):
        gpx.datasets.load(tmp_path / "t.csv", target=["u", "v"])
    table = ["--data", str(tmp_path / "t.csv"), "--target", "u", "v", "--missing", "keep"]
    assert program.parser().parse_known_args(table)[0].missing == ["keep"]


def test_compare_takes_what_suits_the_table(folder: Path, monkeypatch) -> None:
    options = compare.parser().parse_args(["--data", str(folder / "price.csv"), "--target", "price"])
    options.test_fraction = 0.0
    split = tables.load(options)
    assert compare._chosen(options, split) == ["gpr", "sgpr", "svgp", "svgp-student-t"]
    monkeypatch.setattr(kinds, "DENSE", 39)
    assert compare._chosen(options, split) == ["sgpr", "svgp", "svgp-student-t"]
