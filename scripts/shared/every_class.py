"""A small problem for every class of models and every prior: what is measured, and what is watched in long runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import gpflow
import numpy as np
import tensorflow_probability as tfp
from gpflow.inducing_variables import SharedIndependentInducingVariables
from gpflow.kernels import Matern32, SeparateIndependent, SharedIndependent, SquaredExponential

import gpflow_ext as gpx
from gpflow_ext import kernels, likelihoods, models

ROWS, NETWORK_ROWS, INDUCING, STEPS, PIXELS = 300, 60, 30, 20, 8
MINIBATCH = 25
Data = tuple[Any, Any]


class Kind(NamedTuple):
    """A class of models: its problem, how it is built and trained, and whether each number of rows is compiled anew.

    The data are of a number of rows and a seed; those with other seeds have the same structure.
    """

    data: Callable[[int, int], Data]
    build: Callable[[Any, Any], Any]
    options: Mapping[str, Any] = MappingProxyType({})
    rows: int = ROWS
    sampled: bool = False
    by_rows: bool = False

    def trained(self, rows: int, seed: int) -> tuple[Any, Data]:
        """Return a new model, fitted or sampled, and its data."""
        data = self.data(rows, seed)
        model = self.build(*data)
        if self.sampled:
            few: dict[str, Any] = {
                "tuner": gpx.Setting(0.1, 2),
                "warm_up": 2,
                "progress": False,
                "check": False,
            }
            gpx.sample(model, 5, 2, **few)
        else:
            given = () if hasattr(model, "data") else (data,)
            gpx.fit(model, *given, progress=False, **self.options)
        return model, data

    @staticmethod
    def scores(model: Any, data: Data) -> dict[str, float]:
        """Return the scores of a model at the rows of which all targets are known."""
        X, Y = data
        known = ~np.isnan(Y).any(axis=1)
        return gpx.metrics.evaluate(model, (X[known], Y[known]))

    def others(self) -> tuple[tuple[int, int], ...]:
        """Return rows and seeds of three models: of other data the second, with a twentieth fewer rows the third."""
        return (self.rows, 0), (self.rows, 1), (self.rows - self.rows // 20, 2)


def _waves(X: Any, number: int = 5) -> Any:
    return np.sin(X @ np.random.default_rng(1).standard_normal((X.shape[1], number)))


def _plane(rows: int, seed: int) -> Data:
    """Return inputs [rows, 4] and values [rows, 5] with noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (rows, 4))
    return X, _waves(X) + 0.1 * rng.standard_normal((rows, 5))


def _binary(rows: int, seed: int) -> Data:
    X, waves = _plane(rows, seed)
    chance = 1.0 / (1.0 + np.exp(-5.0 * waves[:, :1]))
    return X, (np.random.default_rng(seed + 1).uniform(size=chance.shape) < chance).astype(float)


def _numbers(rows: int, seed: int) -> Data:
    X, waves = _plane(rows, seed)
    return X, waves[:, :1]


def _pairs(rows: int, seed: int) -> Data:
    X, waves = _plane(rows, seed)
    return X, waves[:, :2]


def _classes(rows: int, seed: int) -> Data:
    X, waves = _plane(rows, seed)
    noise = 0.3 * np.random.default_rng(seed + 1).standard_normal((rows, 1))
    return X, np.digitize(waves[:, :1] + noise, [-0.4, 0.4]).astype(float)


def _missing(rows: int, seed: int) -> Data:
    X, Y = _plane(rows, seed)
    return X, np.where(np.arange(rows)[:, None] % 7 == np.arange(5), np.nan, Y)


def _labelled(width: int, scale: float = 1.0) -> Callable[[int, int], Data]:
    """Return binary data of another number of inputs: times, places or the pixels of images."""

    def data(rows: int, seed: int) -> Data:
        rng = np.random.default_rng(seed)
        X = scale * rng.uniform(0.0, 1.0, (rows, width))
        return X, (_waves(X - X.mean(0), 1) + 0.3 * rng.standard_normal((rows, 1)) > 0.0).astype(float)

    return data


def _cells(rows: int, seed: int) -> Data:
    """Return three in four of the cells of a grid."""
    axis = np.linspace(0.0, 4.0, math.ceil(math.sqrt(4.0 * rows / 3.0)))
    rng = np.random.default_rng(seed)
    X = rng.permutation(np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2))[:rows]
    return X, (_waves(X, 1) + 0.3 * rng.standard_normal((rows, 1)) > 0.0).astype(float)


def _kernel() -> Any:
    return SquaredExponential(variance=4.0, lengthscales=1.0)


def _points(X: Any) -> Any:
    return X[:INDUCING].copy()


def _sites(
    name: str, likelihood: Any = None, kernel: Any = _kernel, **more: Any
) -> Callable[[Any, Any], Any]:
    """Return how a site model is built of its data."""

    def build(X: Any, Y: Any) -> Any:
        other = likelihoods.BernoulliLogit(bound="jaakkola" if name == "GPJaakkola" else "piecewise")
        return getattr(models, name)((X, Y), kernel(), likelihood() if likelihood else other, **more)

    return build


def _sparse(name: str, likelihood: Any = None, kernel: Any = _kernel) -> Callable[[Any, Any], Any]:
    return lambda X, Y: _sites(name, likelihood, kernel, inducing_variable=_points(X))(X, Y)


def _vecchia(**options: Any) -> dict[str, Any]:
    return {"kernel": lambda: Matern32(lengthscales=1.0), "prior": gpx.VecchiaOptions(**options)}


def _times() -> dict[str, Any]:
    return {"kernel": lambda: Matern32(lengthscales=1.0), "prior": "markov"}


def _grid() -> dict[str, Any]:
    def kernel() -> Any:
        return SquaredExponential(active_dims=[0]) * SquaredExponential(active_dims=[1])

    return {"kernel": kernel, "prior": "grid"}


def _network(**more: Any) -> Callable[[Any, Any], Any]:
    return lambda X, Y: models.GPRNTensor((X, Y), _kernel(), _kernel(), num_latent=2, **more)


def _robust_max(**more: Any) -> Callable[[Any, Any], Any]:
    return lambda X, Y: models.SVGPRobustMax(_kernel(), 3, _points(X), num_data=len(X), **more)


def _svgp(
    kernel: Any = _kernel, likelihood: Any = likelihoods.BernoulliLogit, points: Any = _points, **more: Any
) -> Callable[[Any, Any], Any]:
    return lambda X, Y: gpflow.models.SVGP(kernel(), likelihood(), points(X), num_data=len(X), **more)


def _of_gpflow(name: str, likelihood: Any = likelihoods.BernoulliLogit) -> Callable[[Any, Any], Any]:
    return lambda X, Y: getattr(gpflow.models, name)((X, Y), _kernel(), likelihood())


def _exact(name: str) -> Callable[[Any, Any], Any]:
    def build(X: Any, Y: Any) -> Any:
        points = [] if name == "GPR" else [_points(X)]
        return getattr(gpflow.models, name)((X, Y), _kernel(), *points)

    return build


def _with_priors(build: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def built(X: Any, Y: Any) -> Any:
        model = build(X, Y)
        for parameter in model.kernel.trainable_parameters:
            parameter.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.0))
        return model

    return built


def _free(X: Any, Y: Any) -> Any:
    return models.SGPMCFreeForm(
        (X, Y), _kernel(), likelihoods.BernoulliProbit(), inducing_variable=_points(X)
    )


def _sgpmc(X: Any, Y: Any) -> Any:
    model = gpflow.models.SGPMC((X, Y), _kernel(), likelihoods.BernoulliLogit(), inducing_variable=_points(X))
    gpflow.set_trainable(model.inducing_variable, False)
    return model


def _images(kind: str) -> Callable[[Any, Any], Any]:
    from gpflow.inducing_variables import InducingPatches

    shapes = (PIXELS, PIXELS), (3, 3)

    def build(X: Any, Y: Any) -> Any:
        rng = np.random.default_rng(0)
        patches = rng.uniform(size=(INDUCING, 9))
        if kind == "convolutional":
            kernel, points = kernels.Convolutional(_kernel(), *shapes), InducingPatches(patches)
        else:
            kernel = kernels.TranslationInsensitive(_kernel(), *shapes)
            points = gpx.LocatedPatches(patches, rng.uniform(0.0, 5.0, (INDUCING, 2)))
        return _svgp(lambda: kernel, points=lambda _: points)(X, Y)

    return build


def _scattered(X: Any, Y: Any) -> Any:
    features = gpx.features.Scattering((PIXELS, PIXELS), scales=1, dims=20)
    features.fit(X)
    return models.VGPKMM((X, Y), kernels.Feature(_kernel(), features), likelihoods.BernoulliLogit())


def _shared(number: int) -> Callable[[], Any]:
    return lambda: SharedIndependent(_kernel(), number)


def _separate() -> Any:
    return SeparateIndependent([_kernel(), _kernel()])


def _stick_breaking() -> Any:
    return likelihoods.StickBreaking(3)


def _student_t() -> Any:
    return likelihoods.StudentT()


_FEW, _SOME = {"steps": 2}, {"steps": STEPS}
_TIMES, _PLACES, _PICTURES = _labelled(1, 10.0), _labelled(2, 4.0), _labelled(PIXELS**2)
KINDS: dict[str, Kind] = {
    "GPLaplace": Kind(_binary, _sites("GPLaplace")),
    "GPLaplace, inducing points": Kind(_binary, _sparse("GPLaplace"), _FEW),
    "GPLaplace, stick breaking": Kind(_classes, _sites("GPLaplace", _stick_breaking, _separate), _FEW),
    "GPTaylor, inducing points": Kind(_binary, _sparse("GPTaylor"), _FEW),
    "GPJaakkola": Kind(_binary, _sites("GPJaakkola")),
    "VGPKMM": Kind(_binary, _sites("VGPKMM")),
    "VGPKMM, inducing points": Kind(_binary, _sparse("VGPKMM"), _FEW),
    "VGPKMM, softmax": Kind(_classes, _sites("VGPKMM", lambda: likelihoods.MultinomialLogit(3)), _FEW),
    "VGPKMM, Student's t": Kind(_numbers, _sites("VGPKMM", _student_t), _FEW),
    "VGPKMM, Algorithm 1": Kind(_binary, _sites("VGPKMM"), _FEW | {"method": "algorithm1"}),
    "VGPKMM, expectation propagation": Kind(_binary, _sites("VGPKMM"), _FEW | {"recipe": "ep"}),
    "SparseEP": Kind(_binary, _sparse("SparseEP"), {"steps": 1, "hyper_updates": 5}),
    "SparseEP, sign agreement": Kind(_binary, _sparse("SparseEP"), _SOME | {"optimizer": "sign_agreement"}),
    "SparseEP, minibatches": Kind(_binary, _sparse("SparseEP"), _SOME | {"minibatch_size": MINIBATCH}),
    "SparseEP, classes": Kind(_classes, _sparse("SparseEP", lambda: likelihoods.RobustMax(3)), {"steps": 1, "hyper_updates": 2}),
    "GPLaplace, state space": Kind(_TIMES, _sites("GPLaplace", **_times()), _FEW),
    "VGPKMM, state space": Kind(_TIMES, _sites("VGPKMM", **_times()), _FEW),
    "VGPKMM, state space, expectation propagation": Kind(_TIMES, _sites("VGPKMM", **_times()), _FEW | {"recipe": "ep"}),
    "GPLaplace, Vecchia": Kind(_PLACES, _sites("GPLaplace", **_vecchia()), _FEW),
    "VGPKMM, Vecchia": Kind(_PLACES, _sites("VGPKMM", **_vecchia()), _FEW),
    "GPLaplace, full scale": Kind(_PLACES, _sites("GPLaplace", **_vecchia(inducing=20)), _FEW),
    "GPLaplace, FITC": Kind(_PLACES, _sites("GPLaplace", **_vecchia(inducing=20, neighbours=0)), _FEW),
    "GPLaplace, grid": Kind(_cells, _sites("GPLaplace", **_grid()), _FEW),
    "VGPKMM, grid": Kind(_cells, _sites("VGPKMM", **_grid()), _FEW),
    "SVGPRobustMax": Kind(_classes, _robust_max(), _FEW),
    "SVGPRobustMax, shared covariance": Kind(_classes, _robust_max(shared_covariance=True), _FEW),
    "SVGPRobustMax, minibatches": Kind(_classes, _robust_max(), _SOME | {"minibatch_size": MINIBATCH}),
    "GPRNTensor": Kind(_plane, _network(), _FEW, NETWORK_ROWS, by_rows=True),
    "GPRNTensor, missing targets": Kind(_missing, _network(output_scales=False), _FEW, NETWORK_ROWS, by_rows=True),
    "GPRNTensor, inducing points": Kind(_plane, lambda X, Y: _network(inducing_variable=X[:10].copy(), output_scales=False)(X, Y), _FEW, NETWORK_ROWS, by_rows=True),
    "GPRNTensor, tensor posterior": Kind(_plane, _network(posterior="tensor"), _FEW, NETWORK_ROWS, by_rows=True),
    "GPRNTensor, tensor posterior, one for all rows": Kind(_plane, _network(posterior="tensor", separate_rows=False), _FEW, NETWORK_ROWS, by_rows=True),
    "GPRNTensor, tensor posterior, minibatches": Kind(_plane, _network(posterior="tensor"), _SOME | {"minibatch_size": 3}, NETWORK_ROWS, by_rows=True),
    "SGPMCFreeForm": Kind(_binary, _with_priors(_free), sampled=True),
    "GPLaplace, sampled": Kind(_binary, _with_priors(_sites("GPLaplace")), sampled=True, rows=60),
    "VGPKMM, scattering": Kind(_PICTURES, _scattered, _FEW, 60),
    "SVGP, convolutional kernel": Kind(_PICTURES, _images("convolutional"), _FEW, 60),
    "SVGP, translation-insensitive kernel": Kind(_PICTURES, _images("translation-insensitive"), _FEW, 60),
    "GPflow's GPR": Kind(_numbers, _exact("GPR"), _SOME),
    "GPflow's SGPR": Kind(_numbers, _exact("SGPR"), _SOME),
    "GPflow's GPRFITC": Kind(_numbers, _exact("GPRFITC"), _SOME, by_rows=True),
    "GPflow's VGP": Kind(_binary, _of_gpflow("VGP"), _SOME, by_rows=True),
    "GPflow's VGPOpperArchambeau": Kind(_binary, _of_gpflow("VGPOpperArchambeau"), _SOME, by_rows=True),
    "GPflow's SVGP": Kind(_binary, _svgp(), _SOME),
    "GPflow's SVGP, minibatches": Kind(_binary, _svgp(), _SOME | {"minibatch_size": MINIBATCH}),
    "GPflow's SVGP, dual sites": Kind(_binary, _svgp(), _SOME | {"recipe": "dual", "minibatch_size": MINIBATCH}),
    "GPflow's SVGP, natural gradients": Kind(_binary, _svgp(), _SOME | {"recipe": "svi_natural", "minibatch_size": MINIBATCH}),
    "GPflow's SVGP, two outputs": Kind(_pairs, _svgp(_shared(2), gpflow.likelihoods.Gaussian, lambda X: SharedIndependentInducingVariables(gpflow.inducing_variables.InducingPoints(_points(X))), num_latent_gps=2), _FEW),
    "GPflow's SGPMC": Kind(_binary, _with_priors(_sgpmc), sampled=True),
    "GPflow's GPMC": Kind(_binary, _with_priors(_of_gpflow("GPMC")), sampled=True, rows=60, by_rows=True),
}  # fmt: skip
