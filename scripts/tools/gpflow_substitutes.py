"""A plugin of pytest that puts classes of the package in the place of GPflow's, before tests import these.

    python -m pytest -p scripts.tools.gpflow_substitutes --substitutes VGPKMM --substitutes-to FILE tests

GPflow's GPR, VGP and the like are what theory says they equal: a site model whose sites are always at rest.
``FILE`` gets a line of JSON for each test, with how it ended, why, and whether its file has built a substitute.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf

from gpflow_ext import likelihoods, models
from gpflow_ext.sites import Sites
from gpflow_ext.sites.method import site_method

_FEW, _STEPS = 5, 200  # many steps are worth a graph
_SAID = 300  # characters of the reason of a failure
_seen: dict[str, str] = {"file": ""}  # the file that is collected or run
_built: set[str] = set()  # files that have built a substitute


def _note() -> None:
    _built.add(_seen["file"])


class AtRest:
    """The first base of a site model that has its sites at their fixed point whenever it is asked."""

    _is_solving = False

    def __init__(self, *args: Any, **options: Any) -> None:
        _note()
        with self._solving():
            super().__init__(*args, **options)

    @contextlib.contextmanager
    def _solving(self) -> Iterator[Any]:
        """Within, the sites are those that the model holds."""
        before, self._is_solving = self._is_solving, True
        try:
            yield self
        finally:
            self._is_solving = before

    @property
    def sites(self) -> Sites:
        """The sites at rest, from those that the model holds on."""
        start: Sites = super().sites  # type: ignore[misc]
        if self._is_solving:
            return start
        with self._solving() as model:
            method, prior = site_method(model.site_method), model.prior()
            tolerance = 0.01 * method.stationarity()

            def solve(start: Sites, steps: int) -> tuple[Sites, tf.Tensor]:
                state, _ = method.solve(model, prior, start, steps, tolerance)
                return Sites(*map(tf.stop_gradient, state.sites)), state.violation

            sites, violation = solve(start, _FEW if tf.executing_eagerly() else _STEPS)
            if tf.executing_eagerly() and violation > tolerance:
                sites, _ = tf.function(solve, autograph=False)(sites, _STEPS)
        return sites

    def gather_sites(self, rows: tf.Tensor) -> Sites:
        """Return the sites of some data, by which models of minibatches predict."""
        return Sites(*(tf.gather(part, rows) for part in self.sites))

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        """Return the objective at rest, which the model sees to by itself."""
        with self._solving():
            return super().maximum_log_likelihood_objective()  # type: ignore[misc]


def gpr(kind: type[Any], sparse: bool = False) -> type[Any]:
    """Return a site model with the constructor of ``gpflow.models.GPR``; the sparse one has Z = X."""

    class GPR(AtRest, kind):
        def __init__(
            self,
            data: Any,
            kernel: Any,
            mean_function: Any = None,
            noise_variance: Any = None,
            likelihood: Any = None,
        ) -> None:
            points = {"inducing_variable": np.array(data[0])} if sparse else {}
            noise = _gaussian(noise_variance, likelihood)
            super().__init__(data, kernel, noise, mean_function, **points)
            _hold_inputs(self)

        def log_marginal_likelihood(self) -> tf.Tensor:
            return self.maximum_log_likelihood_objective()

    return GPR


def sgpr(kind: type[Any]) -> type[Any]:
    """Return a site model with the constructor of ``gpflow.models.SGPR`` and ``GPRFITC``."""

    class SGPR(AtRest, kind):
        def __init__(
            self,
            data: Any,
            kernel: Any,
            inducing_variable: Any,
            *,
            mean_function: Any = None,
            num_latent_gps: Any = None,
            noise_variance: Any = None,
            likelihood: Any = None,
        ) -> None:
            noise = _gaussian(noise_variance, likelihood)
            super().__init__(
                data, kernel, noise, mean_function, num_latent_gps, inducing_variable=inducing_variable
            )

    return SGPR


def vgp(kind: type[Any], sparse: bool = False) -> type[Any]:
    """Return a site model with the constructor of ``gpflow.models.VGP``; the sparse one has Z = X."""

    class VGP(AtRest, kind):
        def __init__(
            self,
            data: Any,
            kernel: Any,
            likelihood: Any,
            mean_function: Any = None,
            num_latent_gps: Any = None,
        ) -> None:
            points = {"inducing_variable": np.array(data[0])} if sparse else {}
            super().__init__(data, kernel, likelihood, mean_function, num_latent_gps, **points)
            _hold_inputs(self)

        def elbo(self) -> tf.Tensor:
            return self.maximum_log_likelihood_objective()

    return VGP


def _hold_inputs(model: Any) -> None:
    """Let Z = X be no parameters, as they are none of GPR and VGP."""
    if model.inducing_variable is not None:
        gpflow.set_trainable(model.inducing_variable, False)


class SGPMC(models.SGPMCFreeForm):
    """With the constructor of ``gpflow.models.SGPMC``."""

    def __init__(
        self,
        data: Any,
        kernel: Any,
        likelihood: Any,
        mean_function: Any = None,
        num_latent_gps: Any = None,
        inducing_variable: Any = None,
    ) -> None:
        _note()
        super().__init__(
            data, kernel, likelihood, mean_function, num_latent_gps, inducing_variable=inducing_variable
        )


class GPMC(SGPMC):
    """With the constructor of ``gpflow.models.GPMC``: its inducing points are the data."""

    def __init__(
        self, data: Any, kernel: Any, likelihood: Any, mean_function: Any = None, num_latent_gps: Any = None
    ) -> None:
        super().__init__(data, kernel, likelihood, mean_function, num_latent_gps, np.array(data[0]))


_SVGP, _MULTICLASS, _POISSON = gpflow.models.SVGP, gpflow.likelihoods.MultiClass, gpflow.likelihoods.Poisson
_ROBUST_MAX, _BERNOULLI = gpflow.likelihoods.RobustMax, gpflow.likelihoods.Bernoulli
_PROBIT = gpflow.likelihoods.utils.inv_probit


class SVGP(_SVGP):  # type: ignore[misc, valid-type]
    """`SVGPRobustMax` where that is the model, else GPflow's own."""

    def __new__(
        cls, kernel: Any = None, likelihood: Any = None, inducing_variable: Any = None, **options: Any
    ) -> Any:
        """Return the one or the other."""
        held = {"mean_function", "num_latent_gps", "q_mu", "q_sqrt", "num_data", "whiten"}
        if not isinstance(likelihood, _MULTICLASS) or options.keys() - held:
            return super().__new__(cls)
        _note()
        count, epsilon = options.pop("num_latent_gps"), float(likelihood.invlink.epsilon.numpy())
        options.pop("whiten", None)
        return models.SVGPRobustMax(
            kernel, count, inducing_variable, epsilon=epsilon, **{"num_data": None, **options}
        )


def _either(original: type[Any], ours: Callable[..., Any]) -> type[Any]:
    """Return a class whose objects are ours where we have the likelihood, else GPflow's own."""

    class Either(original):
        def __new__(cls, *args: Any, **options: Any) -> Any:
            found = ours(*args, **options) if cls is Either else None
            if found is None:
                return super().__new__(cls)
            _note()
            return found

    Either.__name__ = original.__name__
    return Either


def _bernoulli(invlink: Any = _PROBIT) -> Any:
    if invlink is _PROBIT:
        return likelihoods.BernoulliProbit()
    return likelihoods.BernoulliLogit(bound=None) if invlink is tf.sigmoid else None


def _poisson(invlink: Any = tf.exp, binsize: float = 1.0) -> Any:
    return likelihoods.PoissonLog() if invlink is tf.exp and binsize == 1.0 else None


def _multiclass(num_classes: int, invlink: Any = None) -> Any:
    if invlink is not None and type(invlink) is not _ROBUST_MAX:
        return None
    return likelihoods.RobustMax(num_classes, 1e-3 if invlink is None else float(invlink.epsilon.numpy()))


def _softmax(num_classes: int) -> Any:
    return likelihoods.MultinomialLogit(num_classes, bound=None)


def _gaussian(variance: Any, likelihood: Any) -> Any:
    if likelihood is not None:
        return likelihood
    return gpflow.likelihoods.Gaussian(1.0 if variance is None else variance)


SUBSTITUTES: Mapping[str, Mapping[str, type[Any]]] = {
    "VGPKMM": {"GPR": gpr(models.VGPKMM), "SGPR": sgpr(models.VGPKMM), "VGP": vgp(models.VGPKMM)},
    "GPLaplace": {"GPR": gpr(models.GPLaplace), "VGP": vgp(models.GPLaplace)},
    "SparseEP": {
        "GPR": gpr(models.SparseEP, sparse=True),
        "GPRFITC": sgpr(models.SparseEP),
        "VGP": vgp(models.SparseEP, sparse=True),
    },
    "SGPMCFreeForm": {"SGPMC": SGPMC, "GPMC": GPMC},
    "SVGPRobustMax": {"SVGP": SVGP},
    "likelihoods": {
        "Bernoulli": _either(_BERNOULLI, _bernoulli),
        "Poisson": _either(_POISSON, _poisson),
        "MultiClass": _either(_MULTICLASS, _multiclass),
        "Softmax": _either(gpflow.likelihoods.Softmax, _softmax),
    },
}


def put(substitutes: Mapping[str, type[Any]]) -> None:
    """Put classes in the place of those of their names, wherever GPflow has these."""
    for name, new in substitutes.items():
        new.__name__ = name
        for package in (gpflow.models, gpflow.likelihoods):
            original = getattr(package, name, None)
            for module in () if original is None else (package, _module_of(original)):
                setattr(module, name, new)
    if "VGP" in substitutes:
        setattr(gpflow.models.vgp, "update_vgp_data", lambda model, data: model.update_data(data))  # noqa: B010


def _module_of(owner: type[Any]) -> Any:
    return sys.modules[owner.__module__]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--substitutes", choices=[*SUBSTITUTES, "none"], default="none")
    parser.addoption("--substitutes-to", type=Path)


def pytest_configure(config: pytest.Config) -> None:
    """Put the substitutes in."""
    put(SUBSTITUTES.get(config.getoption("--substitutes"), {}))


def pytest_collectstart(collector: Any) -> None:
    """Know the file that is imported."""
    if isinstance(collector, pytest.Module):
        _seen["file"] = str(collector.path)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Know the file that is run."""
    _seen["file"] = str(item.path)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    """Write how a test ended, at once: a run may be cut off."""
    outcome = yield
    found, path = outcome.get_result(), item.config.getoption("--substitutes-to")
    if path is None or (found.when != "call" and found.passed):
        return
    record = {
        "test": item.nodeid,
        "outcome": found.outcome if found.when == "call" or found.skipped else "error",
        "reason": _reason(call, found),
        "built": str(item.path) in _built,
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def _reason(call: Any, found: Any) -> str:
    if found.passed or call.excinfo is None:
        return ""
    text = " ".join(str(call.excinfo.value).split())
    return f"{call.excinfo.typename}: {text}"[:_SAID]
