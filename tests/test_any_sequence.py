"""Random sequences of build, fit, predict, sample, export and reload, for random data, kernels and likelihoods.

Whatever is asked for ends in an error that the package or GPflow has raised and worded, in a warning, or in
numbers that are finite and right: an exported model predicts as the live one, a restored one as the saved.
"""

from __future__ import annotations

import linecache
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

import gpflow_ext as gpx
from gpflow_ext import likelihoods, models
from gpflow_ext.sampling.tuning import Setting

QUICK, LONG = (4, 5), (60, 10)  # sequences, and steps of each
RTOL = 1e-6  # served against live


class Strange(AssertionError):
    """What no user should see."""


KERNELS: dict[str, Callable[[float, float, int], gpflow.kernels.Kernel]] = {
    "rbf": lambda v, s, D: gpflow.kernels.SquaredExponential(v, lengthscales=s),
    "ard": lambda v, s, D: gpflow.kernels.Matern32(v, lengthscales=np.full(D, s)),
    "sum": lambda v, s, D: gpflow.kernels.Matern52(v, lengthscales=s) + gpflow.kernels.White(1e-3),
    "linear": lambda v, s, D: gpflow.kernels.Linear(v),
}

# A likelihood, and its targets from uniform numbers [N, 1].
LIKELIHOODS: dict[
    str, tuple[Callable[[], gpflow.likelihoods.Likelihood], Callable[[np.ndarray], np.ndarray]]
] = {
    "logit": (likelihoods.BernoulliLogit, lambda u: np.floor(2 * u)),
    "probit": (likelihoods.BernoulliProbit, lambda u: np.floor(2 * u)),
    "GPflow's Bernoulli": (gpflow.likelihoods.Bernoulli, lambda u: np.floor(2 * u)),
    "counts": (likelihoods.PoissonLog, lambda u: np.floor(-5.0 * np.log(np.maximum(1.0 - u, 1e-9)))),
    "large counts": (likelihoods.PoissonLog, lambda u: np.floor(1e9 * u)),
    "ordinal": (lambda: likelihoods.CumulativeLogit(4), lambda u: np.floor(4 * u)),
    "stick-breaking": (lambda: likelihoods.StickBreaking(3), lambda u: np.floor(3 * u)),
    "multinomial": (lambda: likelihoods.MultinomialLogit(3), lambda u: np.floor(3 * u)),
    "robust-max": (lambda: likelihoods.RobustMax(3), lambda u: np.floor(3 * u)),
    "values": (gpflow.likelihoods.Gaussian, lambda u: 10.0 * u - 5.0),
    "StudentT": (gpflow.likelihoods.StudentT, lambda u: 10.0 * u - 5.0),
}

MODELS: dict[str, Callable[..., Any]] = {
    "VGPKMM": lambda data, k, lik, Z: models.VGPKMM(data, k, lik),
    "VGPKMM, inducing points": lambda data, k, lik, Z: models.VGPKMM(data, k, lik, inducing_variable=Z),
    "GPLaplace": lambda data, k, lik, Z: models.GPLaplace(data, k, lik),
    "GPTaylor": lambda data, k, lik, Z: models.GPTaylor(data, k, lik, inducing_variable=Z),
    "SparseEP": lambda data, k, lik, Z: models.SparseEP(data, k, lik, inducing_variable=Z),
    "SVGPRobustMax": lambda data, k, lik, Z: models.SVGPRobustMax(k, 3, Z, num_data=len(data[0])),
    "SGPMCFreeForm": lambda data, k, lik, Z: models.SGPMCFreeForm(data, k, lik, inducing_variable=Z),
    "GPRNTensor": lambda data, k, lik, Z: models.GPRNTensor(data, k, gpflow.utilities.deepcopy(k), 1),
}

SCALES = [1e-12, 1e-6, 1e-2, 1.0, 1.0, 1.0, 1e2, 1e6, 1e12]
KINDS = ["plain", "plain", "duplicates", "constant", "shifted", "whole", "float32"]
SEEDS = st.integers(0, 2**16)


def inputs(rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    """Inputs [N, D], some with rows that are the same, with constants, far out, in single precision or whole."""
    X = rng.normal(size=(rows, width)) * rng.choice(SCALES)
    kind = rng.choice(KINDS)
    if kind == "duplicates":
        X[rows // 2 :] = X[0]
    elif kind == "constant":
        X[:, 0] = X[0, 0]
    elif kind == "shifted":
        X += 1e3
    elif kind == "whole":
        X = np.clip(np.round(X), -(2**31), 2**31).astype(np.int64)
    return X.astype(np.float32) if kind == "float32" else X


def tells_apart(model: Any, X: np.ndarray) -> bool:
    """Whether squared distances survive the rounding of the squares that GPflow makes them of."""
    scales = [
        np.min(value.numpy())
        for path, value in gpflow.utilities.parameter_dict(model).items()
        if path.endswith("lengthscales")
    ]
    return bool(np.finfo(float).eps * np.max(X**2) < RTOL * min(scales, default=np.inf) ** 2)


def is_worded(error: BaseException) -> bool:
    """Whether one of the packages has raised an error of Python's own, in words, by a ``raise`` of its code."""
    if isinstance(error, tf.errors.InvalidArgumentError) and "set less extreme hyperparameters" in str(error):
        return True  # what a graph can raise
    last = traceback.extract_tb(error.__traceback__)[-1]
    package = any(f"/{name}/" in last.filename for name in ("gpflow_ext", "gpflow", "check_shapes"))
    raised = "raise" in (linecache.getline(last.filename, last.lineno or 0) or "")
    builtin = (
        isinstance(error, (ValueError, TypeError, NotImplementedError)) or "check_shapes" in last.filename
    )
    return package and raised and builtin and len(str(error)) > 20


class Sequence(RuleBasedStateMachine):
    """One model at a time, and what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.model: Any = None
        self.warned = False
        self.is_new = True  # since the last export

    def teardown(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self.folder)

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Take worded errors and warnings for an answer."""
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            try:
                yield
            except Strange:
                raise
            except Exception as error:
                if not is_worded(error):
                    raise Strange(f"{what}: {type(error).__name__}: {error}") from error
        self.warned |= any(issubclass(each.category, UserWarning) for each in found)

    @precondition(lambda self: self.model is None)
    @rule(seed=SEEDS)
    def build(self, seed: int) -> None:
        """Build a model; what it is follows from the seed, since Hypothesis repeats its own choices often."""
        rng = np.random.default_rng(seed)
        name, kernel = rng.choice(sorted(MODELS)), rng.choice(sorted(KERNELS))
        likelihood = {"SVGPRobustMax": "robust-max", "GPRNTensor": "values"}.get(
            name, rng.choice(sorted(LIKELIHOODS))
        )
        variance, lengthscale = rng.choice(SCALES, 2)
        X = inputs(rng, rng.integers(1, 13), rng.integers(1, 5))
        make, targets = LIKELIHOODS[likelihood]
        uniform = np.full((len(X), 1), rng.uniform()) if rng.random() < 0.2 else rng.uniform(size=(len(X), 1))
        self.targets = lambda rows: targets(np.resize(uniform, (rows, 1)))
        self.data, self.is_new = (X, self.targets(len(X))), True
        self.name = f"{name} of {likelihood}, {kernel} {variance:g} {lengthscale:g}, {X.dtype} {X.shape}"
        with self.trying("build"):
            part = KERNELS[kernel](variance, lengthscale, X.shape[1])
            for parameter in part.trainable_parameters:
                parameter.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.0))
            self.model = MODELS[name](self.data, part, make(), X[: rng.integers(1, 7)].astype(float))

    def predictions(self, model: Any, X: np.ndarray) -> list[np.ndarray]:
        """Moments of f and of y at X."""
        found = [*model.predict_f(X), *model.predict_y(X)]
        return [np.asarray(part) for part in found]

    def check_finite(self, X: np.ndarray) -> None:
        """Predictions are finite and variances positive, unless a warning has come."""
        mean_f, var_f, mean_y, var_y = self.predictions(self.model, X.astype(float))
        finite = all(np.isfinite(part).all() for part in (mean_f, var_f, mean_y, var_y))
        if not self.warned and not (
            finite and (var_f >= -1e-12 * np.max(np.abs(var_f))).all() and (var_y >= 0).all()
        ):
            raise Strange(f"{self.name} predicts {mean_f}, {var_f}, {mean_y}, {var_y} without a warning")

    def fit(self, **options: Any) -> Any:
        """Fit by the default recipe."""
        data = {"data": self.data} if "SVGP" in self.name else {}
        return gpx.fit(self.model, progress=False, **data, **options)

    @precondition(lambda self: self.model is not None)
    @rule(steps=st.integers(0, 4))
    def train(self, steps: int) -> None:
        """Fit for some steps."""
        with self.trying("fit"):
            self.is_new = True
            self.fit(steps=steps)
            self.check_finite(self.data[0])

    @precondition(lambda self: self.model is not None)
    @rule(rows=st.integers(1, 5), seed=SEEDS)
    def predict(self, rows: int, seed: int) -> None:
        """Predict new rows."""
        Xnew = inputs(np.random.default_rng(seed), rows, self.data[0].shape[1]).astype(float)
        with self.trying("predict"):
            self.check_finite(Xnew)
            density = np.asarray(self.model.predict_log_density((Xnew, self.targets(rows))))
            if np.isnan(density).any() and not self.warned:
                raise Strange(f"{self.name}: log density {density}")

    @precondition(lambda self: self.model is not None)
    @rule(width=st.integers(1, 6))
    def predict_other_width(self, width: int) -> None:
        """Inputs of another width are refused, not broadcast."""
        if width != self.data[0].shape[1]:
            with pytest.raises(Exception) as found, warnings.catch_warnings():  # noqa: PT012
                warnings.simplefilter("ignore")
                self.model.predict_f(np.ones((3, width)))
                raise Strange(
                    f"{self.name} predicts rows of {width} numbers, trained on {self.data[0].shape[1]}"
                )
            if isinstance(found.value, Strange):
                raise found.value

    @precondition(lambda self: self.model is not None and hasattr(self.model, "update_data"))
    @rule(rows=st.integers(1, 12), seed=SEEDS)
    def replace_data(self, rows: int, seed: int) -> None:
        """Give other rows."""
        X = inputs(np.random.default_rng(seed), rows, self.data[0].shape[1])
        with self.trying("update_data"):
            self.model.update_data((X, self.targets(rows)))
            self.data, self.is_new = (X, self.targets(rows)), True

    @precondition(lambda self: self.model is not None)
    @rule()
    def sample(self) -> None:
        """Draw a few times."""
        with self.trying("sample"):
            gpx.sample(self.model, 2, num_chains=2, tuner=Setting(0.05, 2), warm_up=1, progress=False)

    @precondition(lambda self: self.model is not None and self.is_new)
    @rule()
    def export_and_load(self) -> None:
        """The exported model predicts as the live one, unless either follows the rounding of distances."""
        X, self.is_new = self.data[0].astype(float), False
        with self.trying("export"):
            gpx.export(self.model, self.folder / "model")
            served = gpx.load_exported(self.folder / "model").predict_f(X)
            live = [np.asarray(part) for part in self.model.predict_f(X)]
            if not tells_apart(self.model, X):
                return
            for part, name in zip(live, ("mean", "variance"), strict=True):
                np.testing.assert_allclose(
                    served[name], part, rtol=RTOL, atol=RTOL * np.max(np.abs(part)), err_msg=self.name
                )

    @precondition(lambda self: self.model is not None)
    @rule()
    def save_and_load(self) -> None:
        """A restored model predicts as the one that was saved."""
        with self.trying("checkpoint"):
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            self.fit(steps=1, checkpoint_dir=folder)
            if not any(folder.iterdir()):
                return
            again = gpx.load_checkpoint(folder)
            X = self.data[0].astype(float)
            for mine, its in zip(self.predictions(self.model, X), self.predictions(again, X), strict=True):
                np.testing.assert_array_equal(mine, its)


def run(sequences: int, steps: int) -> None:
    """Run so many sequences, the same each time."""
    tf.random.set_seed(0)
    run_state_machine_as_test(
        Sequence,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_some_sequences() -> None:
    run(*QUICK)


@pytest.mark.slow
def test_many_sequences() -> None:
    run(*LONG)
