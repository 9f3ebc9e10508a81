"""Every model of the package, and GPflow's own beside them, small and with a posterior that is not the prior.

An entry builds its model anew at each call, in milliseconds: nothing is trained, the parameters of the posterior
are given values. All models have `INPUTS` [8, 2] and, where they are sparse, the inducing points `POINTS` [5, 2].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.models import GPModel

from gpflow_ext import Draws
from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit, PoissonLog, RobustMax, StickBreaking
from gpflow_ext.models import (
    VGPKMM,
    GPJaakkola,
    GPLaplace,
    GPRNTensor,
    GPTaylor,
    SGPMCFreeForm,
    SiteModel,
    SparseEP,
    SVGPRobustMax,
)
from gpflow_ext.numerics import grids
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.sites import Sites

NUM_DATA, NUM_INDUCING, NUM_DRAWS, WIDTH = 8, 5, 4, 2
INPUTS = np.random.default_rng(0).uniform(-2.0, 2.0, (NUM_DATA, WIDTH))
POINTS = np.random.default_rng(1).uniform(-2.0, 2.0, (NUM_INDUCING, WIDTH))
TENSOR_GRID = grids.grid([-1.5, 1.5], [-1.0, 0.0, 0.5, 1.0])
GRID = grids.grid([-1.0, 1.0], [-1.0, 0.0, 1.0])

_rng = np.random.default_rng(2)
BINARY = _rng.integers(0, 2, (NUM_DATA, 1)).astype(float)
CLASSES = _rng.permutation(np.arange(NUM_DATA) % 3)[:, None].astype(float)
COUNTS = _rng.poisson(2.0, (NUM_DATA, 2)).astype(float)
VALUES = _rng.normal(size=(NUM_DATA, 3))


@dataclass(frozen=True)
class Entry:
    """A model under contract.

    Attributes
    ----------
    name
        Class, and what sets it apart from others of the class.
    make
        Returns the model of data (X, Y).
    Y
        Targets of the data, [8, Q].
    tags
        "gpflow"
            GPflow's own, a control.
        "sites", "network"
            Has Gaussian sites; is a regression network.
        "inducing"
            Has inducing points or inputs.
        "q_mu"
            Is trained by gradients with respect to q_mu and q_sqrt.
        "free-form", "sampled"
            Predicts from given values of V; averages over draws that it holds.
        "grid"
            Has inputs and inducing points on grids.
        "external-data"
            Does not hold its data.
        "multi-output"
            Has more than one latent function.
        "dependent-outputs"
            The latent functions are not independent given the data.
    """

    name: str
    make: Callable[[Any], GPModel]
    Y: np.ndarray
    tags: frozenset[str]

    @property
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs [8, 2] and targets [8, Q]."""
        return (TENSOR_GRID if "grid" in self.tags else INPUTS), self.Y

    def build(self, data: Any = None) -> GPModel:
        """Return the model, of other data where they are given."""
        return self.make(self.data if data is None else data)

    def move(self, model: GPModel) -> None:
        """Change what its predictions depend on."""
        if "sampled" in self.tags:
            model.draw_values[0].assign(2.0 * model.draw_values[0])
        else:
            model.kernel.parameters[0].assign(2.0 * model.kernel.parameters[0])

    @property
    def is_ours(self) -> bool:
        """Whether it is no control."""
        return "gpflow" not in self.tags


def kernel() -> gpflow.kernels.Kernel:
    """A sum, so that not all of it is a function of distances."""
    return gpflow.kernels.SquaredExponential(1.5, lengthscales=0.8) + gpflow.kernels.Linear(0.3)


def mean() -> gpflow.functions.MeanFunction:
    """One column, for all latent functions."""
    return gpflow.functions.Linear(A=np.array([[0.4], [-0.2]]), b=[0.3])


def kernels(count: int) -> list[gpflow.kernels.Kernel]:
    """One for each of some latent functions, no two the same."""
    return [gpflow.kernels.Matern32(1.0 + k, lengthscales=0.6 + 0.3 * k) for k in range(count)]


def separate(count: int) -> gpflow.kernels.Kernel:
    """A kernel of independent outputs."""
    return gpflow.kernels.SeparateIndependent(kernels(count))


def mixtures(outputs: int) -> gpflow.kernels.Kernel:
    """A kernel of outputs that mix three functions."""
    W = np.random.default_rng(5).normal(size=(outputs, 3))
    return gpflow.kernels.LinearCoregionalization(kernels(3), W)


def points(count: int) -> gpflow.inducing_variables.InducingVariables:
    """Inducing points for each of some latent functions."""
    sets = [gpflow.inducing_variables.InducingPoints(POINTS + 0.2 * k) for k in range(count)]
    return gpflow.inducing_variables.SeparateIndependentInducingVariables(sets)


def entries(*tags: str, without: Iterable[str] = ()) -> list[Entry]:
    """Return the entries that have all the tags, and none of those of ``without``."""
    return [
        entry
        for entry in ENTRIES.values()
        if entry.tags.issuperset(tags) and not entry.tags.intersection(without)
    ]


def _sites(model: SiteModel) -> SiteModel:
    rng, shape = np.random.default_rng(3), model.sites.nat1.numpy().shape
    model.assign_sites(Sites(*(tf.constant(rng.uniform(0.1, 1.0, shape)) for _ in range(2))))
    return model


def _gaussian(model: GPModel) -> GPModel:
    rng = np.random.default_rng(3)
    model.q_mu.assign(rng.normal(size=model.q_mu.numpy().shape))
    model.q_sqrt.assign(np.tril(rng.uniform(0.1, 0.5, model.q_sqrt.numpy().shape)))
    return model


def _free_form(model: GPModel) -> GPModel:
    model.V.assign(np.random.default_rng(3).normal(size=model.V.shape))
    return model


def _with_draws(model: GPModel, names: Iterable[str], like: np.ndarray) -> GPModel:
    """Give the model four draws of V, shaped as ``like``, and of hyperparameters, which are positive."""
    rng, shape = np.random.default_rng(4), (2, NUM_DRAWS // 2)
    values, parts = {"V": rng.normal(size=(*shape, *like.shape))}, gpflow.utilities.parameter_dict(model)
    values |= {name: rng.uniform(0.5, 1.5, (*shape, *parts[f".{name}"].shape)) for name in names}
    stats = {"log_density": np.zeros(shape)}
    model.assign_draws(Draws(values, stats, Setting(0.1, 3), 1.0))
    return model


def _network(data: Any, posterior: str = "collapsed", points: np.ndarray | None = None) -> GPRNTensor:
    model = GPRNTensor(data, kernel(), kernel(), 2, posterior=posterior, inducing_variable=points)
    state = model.q.location if posterior == "collapsed" else model.q.weight_mean
    state.assign_add(np.random.default_rng(3).normal(size=state.shape))
    return model


def _sampled_classes(data: Any) -> GPModel:
    model = SGPMCFreeForm(data, kernel(), RobustMax(3, 0.05), mean(), inducing_variable=POINTS)
    return _with_draws(model, ["kernel.kernels[0].lengthscales", "kernel.kernels[1].variance"], model.V)


def _sampled_mixtures(data: Any) -> GPModel:
    model = SGPMCFreeForm(data, mixtures(2), PoissonLog(), mean(), inducing_variable=points(3))
    names = ["kernel.W", "kernel.kernels[0].lengthscales", "kernel.kernels[2].variance"]
    return _with_draws(model, names, model.V)


def _sampled_grid(data: Any) -> GPModel:
    model = SGPMCFreeForm(
        data,
        gpflow.kernels.SquaredExponential(),
        BernoulliLogit(),
        inducing_variable=GRID,
    )
    assert model.follows or model.structure is not None
    return _with_draws(model, ["kernel.lengthscales"], model.V)


def _sampled_network(data: Any) -> GPModel:
    model = _network(data)
    names = ["kernel.kernels[0].lengthscales", "weight_kernel.kernels[1].variance", "likelihood.variance"]
    return _with_draws(model, names, model.q.location)


_BUILDERS: list[tuple[str, Callable[[Any], GPModel], np.ndarray, str]] = [
    (
        "VGPKMM",
        lambda data: _sites(VGPKMM(data, kernel(), StickBreaking(3), mean())),
        CLASSES,
        "sites multi-output",
    ),
    (
        "VGPKMM, inducing points",
        lambda data: _sites(VGPKMM(data, kernel(), PoissonLog(), mean(), inducing_variable=POINTS)),
        COUNTS,
        "sites inducing multi-output",
    ),
    ("SiteModel", lambda data: _sites(SiteModel(data, kernel(), BernoulliLogit())), BINARY, "sites"),
    ("GPLaplace", lambda data: _sites(GPLaplace(data, kernel(), BernoulliLogit())), BINARY, "sites"),
    (
        "GPLaplace, inducing points",
        lambda data: _sites(GPLaplace(data, kernel(), PoissonLog(), inducing_variable=POINTS)),
        COUNTS,
        "sites inducing multi-output",
    ),
    (
        "GPTaylor",
        lambda data: _sites(GPTaylor(data, kernel(), BernoulliProbit(), inducing_variable=POINTS)),
        BINARY,
        "sites inducing",
    ),
    (
        "GPJaakkola",
        lambda data: _sites(GPJaakkola(data, kernel(), StickBreaking(3, "jaakkola"))),
        CLASSES,
        "sites multi-output",
    ),
    (
        "SparseEP",
        lambda data: _sites(SparseEP(data, kernel(), BernoulliProbit(), inducing_variable=POINTS)),
        BINARY,
        "sites inducing",
    ),
    (
        "SparseEP, classes",
        lambda data: _sites(SparseEP(data, kernel(), RobustMax(3), mean(), inducing_variable=POINTS)),
        CLASSES,
        "sites inducing multi-output",
    ),
    (
        "SVGPRobustMax",
        lambda _: _gaussian(SVGPRobustMax(kernel(), 3, POINTS, num_data=NUM_DATA, mean_function=mean())),
        CLASSES,
        "inducing q_mu multi-output external-data",
    ),
    (
        "SVGPRobustMax, kernels and points of each",
        lambda _: _gaussian(
            SVGPRobustMax(separate(3), 3, points(3), num_data=NUM_DATA, mean_function=mean())
        ),
        CLASSES,
        "inducing q_mu multi-output external-data",
    ),
    (
        "VGPKMM, kernels of each",
        lambda data: _sites(VGPKMM(data, separate(2), StickBreaking(3), mean())),
        CLASSES,
        "sites multi-output",
    ),
    (
        "SparseEP, kernels and points of each",
        lambda data: _sites(
            SparseEP(
                data,
                separate(2),
                gpflow.likelihoods.Poisson(),
                mean(),
                inducing_variable=points(2),
            )
        ),
        COUNTS,
        "sites inducing multi-output",
    ),
    (
        "VGPKMM, mixtures",
        lambda data: _sites(VGPKMM(data, mixtures(2), StickBreaking(3), mean())),
        CLASSES,
        "sites multi-output dependent-outputs",
    ),
    (
        "GPTaylor, mixtures, inducing points",
        lambda data: _sites(GPTaylor(data, mixtures(2), PoissonLog(), mean(), inducing_variable=points(3))),
        COUNTS,
        "sites inducing multi-output dependent-outputs",
    ),
    (
        "SGPMCFreeForm",
        lambda data: _free_form(
            SGPMCFreeForm(data, kernel(), RobustMax(3, 0.05), mean(), inducing_variable=POINTS)
        ),
        CLASSES,
        "inducing free-form multi-output",
    ),
    (
        "SGPMCFreeForm, draws",
        _sampled_classes,
        CLASSES,
        "inducing free-form sampled multi-output dependent-outputs",
    ),
    (
        "SGPMCFreeForm, draws of mixtures",
        _sampled_mixtures,
        COUNTS,
        "inducing free-form sampled multi-output dependent-outputs",
    ),
    ("SGPMCFreeForm, draws on a grid", _sampled_grid, BINARY, "inducing free-form sampled grid"),
    ("GPRNTensor", _network, VALUES, "network multi-output dependent-outputs"),
    (
        "GPRNTensor, tensor",
        lambda data: _network(data, "tensor"),
        VALUES,
        "network multi-output dependent-outputs",
    ),
    (
        "GPRNTensor, inducing inputs",
        lambda data: _network(data, points=POINTS),
        VALUES,
        "network inducing multi-output dependent-outputs",
    ),
    ("GPRNTensor, draws", _sampled_network, VALUES, "network sampled multi-output dependent-outputs"),
    (
        "GPR",
        lambda data: gpflow.models.GPR(data, kernel(), mean(), 0.3),
        VALUES,
        "gpflow multi-output",
    ),
    (
        "VGP",
        lambda data: _gaussian(gpflow.models.VGP(data, kernel(), gpflow.likelihoods.Poisson(), mean())),
        COUNTS,
        "gpflow q_mu multi-output",
    ),
    (
        "SVGP",
        lambda _: _gaussian(
            gpflow.models.SVGP(
                kernel(), gpflow.likelihoods.Poisson(), POINTS, mean_function=mean(), num_latent_gps=2
            )
        ),
        COUNTS,
        "gpflow inducing q_mu multi-output external-data",
    ),
    (
        "SGPMC",
        lambda data: _free_form(
            gpflow.models.SGPMC(data, kernel(), gpflow.likelihoods.Poisson(), mean(), 2, POINTS)
        ),
        COUNTS,
        "gpflow inducing free-form multi-output",
    ),
]


ENTRIES: dict[str, Entry] = {
    name: Entry(name, build, Y, frozenset(tags.split())) for name, build, Y, tags in _BUILDERS
}

QUICK = {  # those of every run: each kind of model, prior, posterior and output once
    "VGPKMM, inducing points",
    "SparseEP, classes",
    "SVGPRobustMax",
    "VGPKMM, mixtures",
    "SGPMCFreeForm, draws",
    "GPRNTensor",
    "SVGP",
}
