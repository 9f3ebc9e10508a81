"""Cross-validation: the folds share their compiled functions, so that only the first one compiles."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from gpflow.keras import tf_keras
from gpflow.models import BayesianModel, ExternalDataTrainingLossMixin

from gpflow_ext.data import arguments, checks
from gpflow_ext.fitting import fit
from gpflow_ext.prediction import metrics as test_metrics
from gpflow_ext.prediction.held_out import checked_weights
from gpflow_ext.training import progress as progress_bar
from gpflow_ext.training.loop import FitResult, Status

WORKERS = 2  # threads by default; more gain little, TensorFlow itself uses all cores for large matrices
_OF_ONE_RUN = ("checkpoint_dir", "checkpoint_every", "monitor", "strategy")

Floats: TypeAlias = npt.NDArray[np.float64]
Pair: TypeAlias = tuple[checks.Array, checks.Array]
Build: TypeAlias = Callable[[Pair], BayesianModel]
Metrics: TypeAlias = Callable[[Any, Pair], Mapping[str, float]]


@dataclass(frozen=True)
class CrossValidation:
    """The scores of a cross-validation.

    Attributes
    ----------
    scores
        The values of each metric, [folds]; NaN where a fold failed or has none, as nmae of zeros.
    seconds
        Seconds to build, fit and evaluate each fold, [folds].
    results
        The results of the fits; ``None`` where a fold failed.
    rows
        The rows of each fold.
    errors
        What each failed fold ended with; ``None`` for the others.
    """

    scores: dict[str, Floats]
    seconds: Floats
    results: tuple[FitResult | None, ...]
    rows: tuple[npt.NDArray[np.int64], ...]
    errors: tuple[Exception | None, ...]

    @property
    def statuses(self) -> tuple[Status | None, ...]:
        """Why each fit ended; ``None`` where a fold failed."""
        return tuple(None if result is None else result.status for result in self.results)

    @property
    def mean(self) -> dict[str, float]:
        """The mean of each metric over the folds whose score is a number."""
        return {name: _mean(values) for name, values in self.scores.items()}

    @property
    def standard_error(self) -> dict[str, float]:
        """The standard error of each mean, as if folds were independent; NaN with fewer than two scores."""
        return {name: _standard_error(values) for name, values in self.scores.items()}

    def __str__(self) -> str:
        mean, error = self.mean, self.standard_error
        parts = [f"{name} {mean[name]:.4g} ± {error[name]:.2g}" for name in mean]
        failed = self.results.count(None)
        end = f", {failed} failed" if failed else ""
        unsettled = sum(status not in (None, *_SETTLED) for status in self.statuses)
        end += f", {unsettled} not converged" if unsettled else ""
        return f"{', '.join(parts)} ({len(self.results)} folds{end}, {self.seconds.sum():.2f} s)"


_SETTLED = (Status.CONVERGED, Status.STOPPED_EARLY)


class _Fold(NamedTuple):
    scores: Mapping[str, float]
    seconds: float
    result: FitResult | None
    error: Exception | None


def cross_validate(
    build: Build,
    data: tuple[Any, Any],
    *,
    folds: int = 10,
    seed: int = 0,
    stratified: bool | None = None,
    weights: npt.ArrayLike | None = None,
    metrics: Metrics = test_metrics.evaluate,
    workers: int | None = None,
    progress: bool | None = None,
    **fit_options: Any,
) -> CrossValidation:
    """Fit a model to the rows outside each fold and evaluate it on those inside.

    The outcome depends on the seed, not on the number of workers.

    Parameters
    ----------
    build
        Returns a new model for training data (X [N', D], Y [N', P]).
    data
        X [N, D] and Y [N, P]. Several columns of Y may hold NaN where a target is missing, if the model takes
        them; a fold is evaluated on its rows that lack none.
    folds
        Number of folds, from 2 to N; they are of nearly equal size.
    seed
        Seed of the folds and of the fits.
    stratified
        Whether every fold has its share of each class. By default it has if Y is one column of whole
        numbers, each of which occurs more than once and in ``folds`` rows on average.
    weights
        Weights of the rows [N] for a model with a `likelihoods.Weighted` likelihood: ``build`` and
        ``metrics`` have them as a last column of Y; the folds do not depend on them.
    metrics
        A function of a trained model and the data of its fold that returns scores by name.
    workers
        Threads, each of which works on one fold at a time; two by default. Use one if ``build`` must not run
        in two threads at once, for example because it draws random numbers.
    progress
        Show a progress bar; by default (``None``) only if standard error is a terminal.
    **fit_options
        Options of `gpflow_ext.fit`, except for those that belong to a single run. Each fold has an optimiser
        of its own, with the same settings.

    Raises
    ------
    ValueError
        For invalid data or an invalid number of folds, or a class with a single row in stratified folds.
    Exception
        The error of the first fold, if every fold fails.

    Warns
    -----
    UserWarning
        For a fold that fails; its scores are NaN.

    Examples
    --------
    >>> build = lambda data: gpx.models.GPLaplace(data, Matern32(), gpx.likelihoods.BernoulliLogit())
    >>> print(gpx.cross_validate(build, (X, Y)))
    """
    X, Y = checks.check_data(data, gaps=True)
    arguments.check_callable(build=build, metrics=metrics)
    arguments.check_whole(seed=seed)
    arguments.check_flag(stratified=stratified, progress=progress)
    _check(len(X), folds, WORKERS if workers is None else workers, fit_options)
    tested = dealt(Y, folds, seed, stratified)
    options = {**fit_options, "seed": seed, "progress": False}
    if weights is not None:
        Y = np.column_stack([Y, checked_weights(weights, len(Y))])

    def run(rows: npt.NDArray[np.int64]) -> _Fold:
        others, whole = np.delete(np.arange(len(X)), rows), rows[np.isfinite(Y[rows]).all(axis=1)]
        return _run(build, (X[others], Y[others]), (X[whole], Y[whole]), metrics, options)

    done = _in_threads(run, tested, workers or WORKERS, progress)
    _report_failures(done)
    names = dict.fromkeys(name for fold in done for name in fold.scores)  # nmae has none of zeros alone
    return CrossValidation(
        {name: np.array([fold.scores.get(name, math.nan) for fold in done]) for name in names},
        np.array([fold.seconds for fold in done]),
        tuple(fold.result for fold in done),
        tuple(tested),
        tuple(fold.error for fold in done),
    )


def _check(num_data: int, folds: int, workers: int, fit_options: Mapping[str, Any]) -> None:
    arguments.check_whole(folds=folds, workers=workers)
    if not 2 <= folds <= num_data:
        raise ValueError(f"`folds` must be from 2 to {num_data}, the number of rows; got {folds}.")
    if workers < 1:
        raise ValueError(f"`workers` must be at least 1; got {workers}.")
    wrong = [name for name in _OF_ONE_RUN if name in fit_options]
    if wrong:
        raise ValueError(f"`{wrong[0]}` is of a single run: leave it out, or call fit for each fold.")


def dealt(
    Y: checks.Array, folds: int, seed: int, stratified: bool | None = None
) -> list[npt.NDArray[np.int64]]:
    """Return the rows of each fold, ascending: shuffled, put in the order of their classes, and dealt out."""
    order = np.random.default_rng(seed).permutation(len(Y))
    if _are_classes(Y, folds) if stratified is None else stratified:
        if Y.shape[1] != 1:
            raise ValueError(f"Stratified folds need one column of classes; Y has {Y.shape[1]}.")
        classes, numbers = np.unique(Y[:, 0], return_counts=True)
        if numbers.min() < 2:
            raise ValueError(
                f"Class {classes[numbers.argmin()]:g} has one row: the fold that tests it would be trained "
                "without that class. Leave it out, or take stratified=False."
            )
        order = order[np.argsort(Y[order, 0], kind="stable")]
    return [np.sort(order[fold::folds]) for fold in range(folds)]


def _are_classes(Y: checks.Array, folds: int) -> bool:
    if Y.shape[1] != 1 or (np.round(Y) != Y).any():
        return False
    numbers = np.unique(Y, return_counts=True)[1]
    return bool(numbers.min() > 1 and numbers.mean() >= folds)


def _run(build: Build, train: Pair, test: Pair, metrics: Metrics, options: Mapping[str, Any]) -> _Fold:
    begin = time.perf_counter()
    try:
        model = build(train)
        external = isinstance(model, ExternalDataTrainingLossMixin)
        own = {name: _own(value) for name, value in options.items()}
        result = fit(model, train if external else None, **own)
        scores = {name: float(value) for name, value in metrics(model, test).items()}
    except Exception as error:  # of any kind: the other folds go on
        return _Fold({}, time.perf_counter() - begin, None, error)
    return _Fold(scores, time.perf_counter() - begin, result, None)


def _own(value: Any) -> Any:
    """Return an option for one fold: an optimiser, which holds the state of its run, as a new one."""
    is_optimizer = isinstance(value, tf_keras.optimizers.Optimizer)
    return type(value).from_config(value.get_config()) if is_optimizer else value


def _in_threads(
    run: Callable[[npt.NDArray[np.int64]], _Fold],
    tested: list[npt.NDArray[np.int64]],
    workers: int,
    progress: bool | None,
) -> list[_Fold]:
    """Return the folds in their order, as they are whatever thread has run them."""
    with ThreadPoolExecutor(workers) as pool, progress_bar.bar("folds", len(tested), 0, progress) as show:
        places: dict[Future[_Fold], int] = {pool.submit(run, rows): n for n, rows in enumerate(tested)}
        try:
            for number, future in enumerate(as_completed(places), 1):
                result = future.result().result
                ran = result is not None and len(result.objective)
                show(number, float(result.objective[-1]) if result is not None and ran else math.nan)
        except BaseException:  # an interrupt: the folds that have not begun are dropped
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in places]


def _report_failures(done: list[_Fold]) -> None:
    failed = [(n, fold.error) for n, fold in enumerate(done) if fold.error is not None]
    if len(failed) == len(done):
        raise failed[0][1]
    for n, error in failed:
        warnings.warn(f"Fold {n} failed, its scores are NaN: {type(error).__name__}: {error}", stacklevel=3)


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _standard_error(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.std(ddof=1) / math.sqrt(len(known))) if len(known) > 1 else math.nan
