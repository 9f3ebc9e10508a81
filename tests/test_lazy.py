"""The package's names are imported when they are asked for; tables are read, and refused, without TensorFlow."""

from __future__ import annotations

import ast
import copy
import inspect
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest
from shell import timed

import gpflow_ext as gpx

ROOT = Path(gpx.__file__).parent
SECONDS = 0.5  # of the processor, to the answer of what needs no model
HEAVY = (
    "{'tensorflow', 'gpflow', 'tensorflow_probability', 'tf_keras', 'keras', 'scipy', 'sklearn', 'pandas'}"
)


def _light(code: str) -> str:
    """Run code in a process of its own that may import nothing heavy; return what it prints."""
    end = f"import sys, time; print(sorted({HEAVY} & set(sys.modules)), time.process_time())"
    *shown, last = timed(f"{code}\n{end}", SECONDS).stdout.strip().splitlines()
    assert last.startswith("[] ")
    return "\n".join(shown)


def test_the_package_is_imported_without_tensorflow() -> None:
    assert "fit" in _light("import gpflow_ext as gpx; print(dir(gpx)); gpx.datasets.known_names; gpx.cite")


def test_a_table_is_read_and_refused_without_tensorflow(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    code = f"""
import gpflow_ext as gpx
split = gpx.datasets.load({str(tmp_path / "t.csv")!r}, target="b")
print(split.task, split.train[0].dtype)
try:
    gpx.datasets.load({str(tmp_path / "t.csv")!r}, target="c")
except ValueError as error:
    print(error)
print(gpx.datasets.grid_counts([0.0, 0.2, 1.0], 2).Y.tolist())
"""
    shown = _light(code)
    assert "binary float64" in shown
    assert "'c' is not a column" in shown
    assert "[[2.0], [1.0]]" in shown


def test_serving_and_loading_need_tensorflow_alone() -> None:
    """The server, and what `load_exported` is behind `predict` and `zoo`, start without GPflow."""
    for extra in ("starlette", "uvicorn", "prometheus_client"):
        pytest.importorskip(extra, reason="needs the extra serve")
    code = f"""
import sys
import gpflow_ext as gpx
import gpflow_ext.server.app, gpflow_ext.server.connections
from gpflow_ext.server.model import ServedModel
print(ServedModel({str(ROOT.parent / "saved_models" / "wine_sparse_ep")!r}).name, gpx.zoo.load, gpx.load_exported)
print(sorted({{'gpflow', 'tensorflow_probability', 'tf_keras'}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("wine_sparse_ep ")
    assert done.stdout.endswith("\n[]\n")


def test_a_command_imports_no_keras_but_what_gpflow_needs() -> None:
    """Keras 3 imports scikit-learn and Matplotlib where they are, and the lists of shapes in GPflow's docstrings take a second."""
    code = """
import argparse, os, sys
os.environ.pop("TF_USE_LEGACY_KERAS", None)
from gpflow_ext.cli import kernels
kernels.configure(argparse.Namespace(float32=False))
import gpflow, gpflow_ext.fitting, gpflow_ext.models, gpflow_ext.prediction.metrics
print(sorted({"keras", "matplotlib", "sklearn", "scipy.stats"} & set(sys.modules)), "has shape" in gpflow.models.GPR.predict_f.__doc__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[] False\n", done.stderr


def test_the_float_type_is_what_gpflow_will_take() -> None:
    code = "import os; os.environ['GPFLOW_FLOAT'] = 'float32'\n"
    code += "from gpflow_ext.data.float_type import default_float; print(default_float().__name__)"
    assert _light(code) == "float32"


def _lists() -> tuple[set[str], dict[str, str]]:
    """The names of ``__all__``, and where the imports for type checkers find each of the others."""
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    places = {}
    for node in typed.body:
        assert isinstance(node, ast.ImportFrom)
        below = node.module.removeprefix("gpflow_ext").lstrip(".")
        for alias in node.names:
            path = f"{below}.{alias.name}".lstrip(".")
            file = ROOT.joinpath(*path.split("."))
            is_module = file.with_suffix(".py").is_file() or file.is_dir()
            places[alias.name] = path if is_module else f"{below}:{alias.name}"
    return set(gpx.__all__) - {"__version__"}, places


def test_type_checkers_see_what_is_there() -> None:
    public, typed = _lists()
    places = inspect.getclosurevars(gpx.__getattr__).nonlocals["places"]
    assert public == set(typed) == set(places)
    functions = {name for name in public if ":" in places[name]}
    for name in public:  # a fit is a fit wherever it was imported from: the types are those of the run
        found = getattr(gpx, name)
        assert getattr(gpx, name) is found is vars(gpx)[name]
        module, _, attribute = typed[name].partition(":")
        assert found is (getattr(sys.modules[f"gpflow_ext.{module}"], attribute) if attribute else found)
    # The import of a submodule sets its name in the package, and would hide a function of that name.
    assert not {name for name in functions if (ROOT / f"{name}.py").exists() or (ROOT / name).is_dir()}


def test_it_is_a_module_as_others_are() -> None:
    assert set(gpx.__all__) <= set(dir(gpx))
    assert inspect.signature(gpx.fit).parameters["model"]
    assert inspect.getmodule(gpx.fit).__name__ == "gpflow_ext.fitting"
    assert copy.deepcopy(gpx.Status.CONVERGED) is gpx.Status.CONVERGED
    assert "load_checkpoint" in pydoc.plaintext.document(gpx)
    with pytest.raises(AttributeError, match="no attribute 'fits'"):
        gpx.fits  # noqa: B018
    with pytest.raises(ImportError, match="fits"):
        from gpflow_ext import fits  # noqa: F401


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("GPClassifier", "gpflow_ext.estimators.GPClassifier"),
        ("VGPKMM", "gpflow_ext.models.VGPKMM"),
        ("BernoulliLogit", "gpflow_ext.likelihoods.BernoulliLogit"),
        ("load", "gpflow_ext.datasets.load or gpflow_ext.zoo.load"),
        ("evaluate", "gpflow_ext.metrics.evaluate"),
        ("fits", ""),
        ("__wrapped__", ""),
    ],
)
def test_a_name_one_level_deeper_is_told(name: str, place: str) -> None:
    """By the sources alone: to look for a name imports nothing heavy."""
    shown = _light(f"""
import gpflow_ext as gpx
try:
    gpx.{name}
except AttributeError as error:
    print(error)
""")
    end = f"; it is {place}" if place else ""
    assert shown.startswith(f"module 'gpflow_ext' has no attribute '{name}'{end}")
    assert place or "it is" not in shown


def test_register_comes_from_the_module_that_registers_the_packages_own_before() -> None:
    assert gpx.register is sys.modules["gpflow_ext.fitting"].register
    assert inspect.getclosurevars(gpx.__getattr__).nonlocals["places"]["register"].startswith("fitting:")


@pytest.mark.parametrize("frozen", [False, True])
def test_the_collector_pauses_during_an_import_and_takes_its_objects_for_old(
    tmp_path: Path, frozen: bool
) -> None:
    package = tmp_path / "parts"
    package.mkdir()
    attached = (
        "from gpflow_ext._lazy import attach\n__getattr__, __dir__ = attach(__name__, {'part': 'part'})\n"
    )
    (package / "__init__.py").write_text(attached)
    (package / "part.py").write_text("import gc\nrunning, made = gc.isenabled(), [[]]\n")
    code = f"""
import gc, sys
sys.path.insert(0, {str(tmp_path)!r})
import parts
{"gc.freeze()" if frozen else ""}
before = gc.get_freeze_count()
made = parts.part.made
old = any(each is made for each in gc.get_objects(generation=2))
print(parts.part.running, gc.isenabled(), old, gc.get_freeze_count() >= before > 1000)
"""
    assert _light(code) == f"False True {not frozen} {frozen}"


@pytest.mark.slow  # a process that imports TensorFlow
def test_a_recipe_that_is_registered_first_stays() -> None:
    code = """
import gpflow_ext as gpx
def mine(model, run): raise ZeroDivisionError
gpx.register(gpx.models.GPLaplace, mine)
gpx.fit
from gpflow_ext.training.recipe import recipe_of
print(recipe_of(object.__new__(gpx.models.GPLaplace)).name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "mine"


@pytest.mark.slow  # a process that imports TensorFlow for each
@pytest.mark.parametrize("name", ["VGPKMM", "GPLaplace", "GPTaylor", "GPJaakkola", "SparseEP", "SiteModel"])
def test_a_model_is_built_without_anything_else_of_the_package(name: str) -> None:
    """By its class alone: what it needs must not depend on what others have imported."""
    code = f"""
import numpy as np, gpflow, gpflow_ext as gpx
X = np.linspace(0.0, 1.0, 5)[:, None]
likelihood = gpx.likelihoods.BernoulliLogit("jaakkola")
gpx.models.{name}((X, np.round(X)), gpflow.kernels.Matern32(), likelihood, inducing_variable=X).training_loss()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
