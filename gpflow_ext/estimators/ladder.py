"""The choice of model by the size of a problem: dense, structured, with inducing points, on minibatches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gpflow
import numpy as np
import numpy.typing as npt
from gpflow.functions import MeanFunction
from gpflow.kernels import Kernel
from gpflow.likelihoods import Likelihood
from gpflow.models import SVGP, GPModel

from gpflow_ext.data import inducing, length_scales
from gpflow_ext.likelihoods import RobustMax
from gpflow_ext.models import VGPKMM, SiteModel, SparseEP, SVGPRobustMax
from gpflow_ext.sites.structured import misfit

Array = npt.NDArray[Any]
Inference = Literal["sites", "signed", "ep"]

DENSE = {"sites": 1500, "signed": 700, "ep": 300}
"""Rows, with one latent function, up to which every row is a point of the model."""

HELD = 4000
"""Rows up to which every row is a point of a model whose hyperparameters are held."""

MINIBATCHES = 20_000
"""Rows above which training is on minibatches."""

POINTS = 300
"""Default number of inducing points."""

BATCH = 1000
"""Default number of rows of a minibatch."""

_CANDIDATES = 5000  # rows among which inducing points are chosen
_CHOSEN = 500  # inducing points up to which they are chosen, where hyperparameters are held
_SHORT = 5  # iterations of L-BFGS in a step by the clock, which waits for its end
_TRIALS = 2  # starts of a training by the clock on minibatches
_LONG = 500  # rows above which a step of more iterations takes several seconds


@dataclass(frozen=True)
class Problem:
    """A problem to model: data, prior and likelihood.

    Attributes
    ----------
    X, Y
        Inputs [N, D], standardised unless the user chose otherwise, and targets [N, P].
    kernel, likelihood, mean_function
        Parts of the model; they are not copied.
    num_latent_gps
        L.
    inference
        ``"sites"`` of Khan, Mohamed & Murphy for a log-concave likelihood; for others ``"signed"``, where
        their precisions may be negative, or ``"ep"`` where the expected log likelihood has no good value.
    num_inducing, minibatch_size
        As asked for; ``None`` means by the number of rows.
    seed
        Seed of the choice of inducing points.
    wanted
        A structured prior that was chosen for the rows.
    table
        Rows of the table of which X is a part, if it is one: their number decides what is built.
    held
        Whether the hyperparameters are known, and the kernel has them: the posterior alone is computed.
    """

    X: Array
    Y: Array
    kernel: Kernel
    likelihood: Likelihood
    mean_function: MeanFunction | None
    num_latent_gps: int
    inference: Inference
    num_inducing: int | None
    minibatch_size: int | None
    seed: int
    wanted: str | None = None
    table: int | None = None
    held: bool = False

    @property
    def rows(self) -> int:
        """The number of rows that decides what is built."""
        return len(self.X) if self.table is None else self.table

    @property
    def batches(self) -> bool:
        """Whether training is on minibatches."""
        if self.minibatch_size is None:
            return self.rows > MINIBATCHES
        return self.minibatch_size < len(self.X)

    @property
    def dense(self) -> bool:
        """Whether every row is a point of the model: O(LN³) then takes about a second, once if it is held."""
        most = (HELD if self.held else DENSE[self.inference]) / np.cbrt(self.num_latent_gps)
        small = self.rows <= most and self.num_inducing is None and not self.batches
        return small and self.wanted is None

    @property
    def prior(self) -> str | None:
        """The structured prior of rows too many to be dense, if one suits the kernel and the inputs."""
        if self.wanted is not None or not self.takes_structure:
            return self.wanted
        names = ("markov", "grid") if self.inference == "sites" else ("markov",)
        return next((name for name in names if misfit(name, self.kernel, self.X) is None), None)

    @property
    def takes_structure(self) -> bool:
        """Whether a structured prior may take the place of inducing points."""
        given = self.num_inducing, self.minibatch_size
        if self.dense or self.inference == "ep" or given != (None, None):
            return False
        return not isinstance(self.likelihood, RobustMax)


def takes_vecchia(problem: Problem) -> bool:
    """Tell whether a problem may have a Vecchia prior, and no other structured one suits it."""
    if problem.inference != "sites" or not problem.takes_structure or problem.prior is not None:
        return False
    return misfit("vecchia", problem.kernel, problem.X) is None


def model_of(problem: Problem) -> tuple[GPModel, dict[str, Any]]:
    """Return a new model of a problem, and the arguments of `fit`. The inducing points are held fixed.

    ==============  ===============  =====================  ===================
    inference       dense            with inducing points   on minibatches
    ==============  ===============  =====================  ===================
    "ep"            `SparseEP`       `SparseEP`             `SparseEP`
    `RobustMax`     `SVGPRobustMax`  the same               the same
    others          `VGPKMM`         `VGPKMM`               ``SVGP``
    ==============  ===============  =====================  ===================

    On minibatches ``SVGP`` is trained by the recipe "dual". One input has `VGPKMM` with ``prior="markov"`` in
    place of inducing points and minibatches, and under "sites" the cells of a grid have ``prior="grid"``, if
    the kernel allows it. ``wanted`` chooses another one.
    """
    data = problem.X, problem.Y
    parts: Any = problem.kernel, problem.likelihood
    rest: dict[str, Any] = {
        "mean_function": problem.mean_function,
        "num_latent_gps": problem.num_latent_gps,
    }
    if problem.dense and problem.inference != "ep":
        return VGPKMM(data, *parts, **rest), {}
    if (prior := problem.prior) is not None:
        return VGPKMM(data, *parts, **rest, prior=prior), {}
    points = _points(problem)
    model: Any
    if isinstance(problem.likelihood, RobustMax):
        model = _robust_max(problem, problem.likelihood, points)
    elif problem.inference == "ep" or not problem.batches:
        build: Any = SparseEP if problem.inference == "ep" else VGPKMM
        model = build(data, *parts, inducing_variable=points, **rest)
    else:
        model = SVGP(problem.kernel, problem.likelihood, points, num_data=len(problem.X), **rest)
    gpflow.set_trainable(model.inducing_variable, False)
    # Trials of further starts would take hundreds of minibatches before the first step.
    size = min(problem.minibatch_size or BATCH, len(problem.X))
    of_batches = {"minibatch_size": size, "starts": 1} if problem.batches else {}
    if not isinstance(model, SVGP):
        return model, of_batches
    return model, {"data": data, **of_batches, **({"recipe": "dual"} if problem.batches else {})}


def timed(
    model: GPModel, options: Mapping[str, Any], seconds: float | None, earlier: GPModel | None = None
) -> dict[str, Any]:
    """Return options of `fit` for a training that the clock ends after some seconds, never for ``None``.

    It begins at hyperparameters that an earlier model has found. Few rows may have led far from those of all,
    and small steps would take long to return: minibatches try the length scales that the inputs suggest too,
    unless the earlier model had minibatches of half of the rows at least.
    """
    if seconds is None:
        return dict(options)
    short = {"hyper_updates": _SHORT} if isinstance(model, SiteModel) and len(model.data[0]) > _LONG else {}
    scales = next(length_scales.stationary(model), None)
    anew = "minibatch_size" in options and scales is not None and not _knows(earlier, model)
    trials = {"starts": _TRIALS} if anew else {}
    return {**options, **short, **trials, "seconds": seconds}


def _knows(earlier: GPModel | None, model: GPModel) -> bool:
    """Tell whether an earlier model was trained on minibatches of half of a model's rows at least."""
    before, now = (getattr(each, "num_data", None) or 0 for each in (earlier, model))
    return before > 0 and 2 * before >= now


def _robust_max(problem: Problem, likelihood: RobustMax, points: Array) -> SVGPRobustMax:
    return SVGPRobustMax(
        problem.kernel,
        likelihood.num_classes,
        points,
        num_data=len(problem.X),
        epsilon=float(np.asarray(likelihood.epsilon)),
        learn_epsilon=isinstance(likelihood.epsilon, gpflow.Parameter),
    )


def _points(problem: Problem) -> Array:
    """Return inducing points: rows chosen one after the other by the largest conditional prior variance.

    Many for a posterior that is computed once are drawn at random: the choice would take as long as it does.
    """
    most = POINTS if problem.num_inducing is None else problem.num_inducing
    rows = problem.X
    if problem.held and most > _CHOSEN:
        return inducing.subset(rows, most, seed=problem.seed)
    if len(rows) > _CANDIDATES:
        rows = inducing.subset(rows, _CANDIDATES, seed=problem.seed)
    kernel = problem.kernel if problem.held else length_scales.with_suggested(problem.kernel, rows)
    return inducing.conditional_variance(rows, kernel, most, share=0.0)
