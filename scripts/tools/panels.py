"""Each model at work on small data: functions that train it and return one that draws it into axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit

Array = npt.NDArray[Any]

Painter = Callable[[Any], None]


def _line(low: float, high: float, number: int = 200) -> Array:
    return np.linspace(low, high, number)[:, None]


def _band(ax: Any, x: Array, ends: Sequence[Array], label: str, colour: str) -> None:
    low, middle, high = ends
    ax.fill_between(x[:, 0], np.ravel(low), np.ravel(high), color=colour, alpha=0.25, linewidth=0)
    ax.plot(x, np.ravel(middle), color=colour, label=label)


def _legend(ax: Any, columns: int) -> None:
    """Put the legend below the axes, where no data are."""
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.16),
        ncols=columns,
        frameon=False,
        fontsize=8,
        columnspacing=1.0,
        handlelength=1.6,
    )


def _plane(X: Array, number: int = 70) -> tuple[tuple[Array, Array], Array]:
    axes = [np.linspace(column.min() - 0.4, column.max() + 0.4, number) for column in X.T]
    across, up = np.meshgrid(*axes)
    return (across, up), np.stack([across.ravel(), up.ravel()], axis=1)


def vgp_kmm() -> Painter:
    """Train on counts by `VGPKMM`."""
    rng = np.random.default_rng(1)
    X, x = _line(0.0, 10.0, 60), _line(0.0, 10.0)

    def rate(at: Array) -> Array:
        return np.exp(1.3 + np.sin(at) * at / 8.0)

    Y = rng.poisson(rate(X)).astype(float)
    model = gpx.models.VGPKMM((X, Y), gpflow.kernels.Matern52(), gpx.likelihoods.PoissonLog())
    gpx.fit(model, progress=False)
    mean, var = (part.numpy()[:, 0] for part in model.predict_f(x))
    ends = [np.exp(mean + number * np.sqrt(var)) for number in (-2.0, 0.0, 2.0)]

    def draw(ax: Any) -> None:
        ax.plot(X, Y, "k.", markersize=4, label="counts")
        ax.plot(x, rate(x), "--", color="0.4", label="their rate")
        _band(ax, x, ends, "posterior of the rate", "tab:blue")
        ax.set(title="VGPKMM: counts", xlabel="input", ylabel="count")
        _legend(ax, 3)

    return draw


def sparse_ep() -> Painter:
    """Train on two half moons by `SparseEP`."""
    from sklearn.datasets import make_moons

    X, labels = make_moons(400, noise=0.25, random_state=0)
    Z = gpx.inducing.kmeans(X, 16)
    model = gpx.models.SparseEP(
        (X, labels[:, None].astype(float)),
        gpflow.kernels.SquaredExponential(variance=4.0),
        gpx.likelihoods.BernoulliProbit(),
        inducing_variable=Z.copy(),
    )
    gpx.fit(model, steps=150, progress=False)
    inducing: Any = model.inducing_variable
    grid, points = _plane(X)
    probability = model.predict_y(points)[0].numpy().reshape(grid[0].shape)

    def draw(ax: Any) -> None:
        filled = gpx.plotting.class_probability(ax, grid, probability, X, labels)
        ax.plot(*inducing.Z.numpy().T, "k+", markersize=9, label="inducing points")
        ax.figure.colorbar(filled, ax=ax, label="probability of class 1")
        ax.set(title="SparseEP: two classes", xlabel="input 1", ylabel="input 2")
        ax.set(xlim=(grid[0].min(), grid[0].max()), ylim=(grid[1].min(), grid[1].max()))
        _legend(ax, 3)

    return draw


def label_noise() -> Painter:
    """Train with and without a share of wrong labels where 15 % of them are wrong."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (300, 1))
    wrong = rng.uniform(size=X.shape) < 0.15
    Y = ((np.sin(2.0 * X) > 0.0) ^ wrong).astype(float)
    x, curves = _line(-3.0, 3.0), []
    likelihoods = gpx.likelihoods.BernoulliLogit(), gpx.likelihoods.BernoulliLogit(flip=0.05, learn_flip=True)
    for likelihood in likelihoods:
        kernel = gpflow.kernels.SquaredExponential()
        model = gpx.models.SparseEP((X, Y), kernel, likelihood, inducing_variable=_line(-3.0, 3.0, 15))
        gpflow.set_trainable(model.inducing_variable, False)
        gpx.fit(model, progress=False)
        curves.append(model.predict_y(x)[0].numpy())
    share = float(np.asarray(likelihoods[1].flip))

    def draw(ax: Any) -> None:
        ax.plot(x, np.where(np.sin(2.0 * x) > 0.0, 0.85, 0.15), color="0.6", label="truth")
        ax.plot(x, curves[0], "C0--", label="no label wrong")
        ax.plot(x, curves[1], "C1", label=f"share learnt: {share:.2f}")
        ax.plot(X, Y + np.where(Y, 0.04, -0.04), "k|", markersize=6, alpha=0.4)
        ax.set(title="15 % of the labels are wrong", xlabel="input", ylabel="probability of label 1")
        ax.set(ylim=(-0.1, 1.1), yticks=np.linspace(0.0, 1.0, 6))
        _legend(ax, 3)

    return draw


def state_space() -> Painter:
    """Train on a count series with a gap by `VGPKMM` with a state-space prior, and forecast it."""
    rng = np.random.default_rng(0)
    x, X = _line(0.0, 130.0, 500), np.sort(rng.uniform(0.0, 100.0, (400, 1)), axis=0)
    X = X[(X[:, 0] < 40.0) | (X[:, 0] > 55.0)]

    def rate(at: Array) -> Array:
        return np.exp(1.0 + 0.8 * np.sin(2.0 * np.pi * at / 12.0) + np.sin(at / 20.0))

    Y = rng.poisson(rate(X)).astype(float)
    kernels = gpflow.kernels
    season = kernels.Cosine(lengthscales=12.0) * kernels.Matern12(lengthscales=50.0)
    kernel = kernels.Matern52(lengthscales=20.0) + season
    model = gpx.models.VGPKMM((X, Y), kernel, gpflow.likelihoods.Poisson(), prior="markov")
    gpx.fit(model, progress=False)
    mean, var = (part.numpy()[:, 0] for part in model.predict_f(x))
    ends = [np.exp(mean + number * np.sqrt(var)) for number in (-2.0, 0.0, 2.0)]

    def draw(ax: Any) -> None:
        ax.plot(X, Y, "k.", markersize=3, label="counts")
        ax.plot(x, rate(x), "--", color="0.4", label="their rate")
        _band(ax, x, ends, "posterior of the rate", "tab:blue")
        ax.axvline(100.0, color="0.6", linewidth=0.8)
        ax.set(title="State space: gap and forecast", xlabel="day", ylabel="count", ylim=(-1.0, 21.0))
        _legend(ax, 3)

    return draw


def svgp_robustmax() -> Painter:
    """Train on three classes by `SVGPRobustMax`."""
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(600, 2))
    K = gpflow.kernels.SquaredExponential(lengthscales=0.2)(X).numpy() + 1e-8 * np.eye(len(X))
    Y = (np.linalg.cholesky(K) @ rng.normal(size=(len(X), 3))).argmax(axis=1)[:, None].astype(float)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=0.3) + gpflow.kernels.White(1e-3)
    model = gpx.models.SVGPRobustMax(kernel, 3, gpx.inducing.kmeans(X, 40), num_data=len(X))
    gpx.fit(model, (X, Y), steps=200, gamma=0.3, decay_steps=200, progress=False)
    grid, points = _plane(X)
    p = gpx.ClassPredictor(model).probabilities(points).reshape(*grid[0].shape, 3)

    def draw(ax: Any) -> None:
        for k, colour in enumerate(("tab:red", "tab:green", "tab:blue")):
            ax.plot(*X[Y[:, 0] == k].T, ".", color=colour, markersize=4, alpha=0.7)
            ax.contour(*grid, p[..., k], levels=[0.5, 0.95], colors=colour, linewidths=[2.0, 0.8])
        Z = model.inducing_variable.Z.numpy()
        ax.plot(*Z.T, "k+", markersize=7, label="inducing points")
        ax.set(title="SVGPRobustMax: three classes", xlim=(0, 1), ylim=(0, 1))
        ax.set(xlabel="input 1", ylabel="input 2")
        _legend(ax, 3)

    return draw


def sgpmc_freeform() -> Painter:
    """Sample the intensity of events by `SGPMCFreeForm`."""
    import tensorflow_probability as tfp

    rng = np.random.default_rng(3)
    events = np.concatenate([rng.uniform(0.0, 3.0, 25), rng.normal(6.0, 0.5, 40), rng.uniform(8.0, 10.0, 6)])
    grid = gpx.datasets.grid_counts(events, bins=60, bounds=[(0.0, 10.0)])
    kernel, f64 = gpflow.kernels.SquaredExponential(), gpflow.utilities.to_default_float
    kernel.lengthscales.prior = tfp.distributions.Gamma(f64(2.0), f64(1.0))
    kernel.variance.prior = tfp.distributions.Gamma(f64(2.0), f64(0.5))
    model = gpx.models.SGPMCFreeForm(
        (grid.X, grid.exposed),
        kernel,
        gpx.likelihoods.PoissonLog(exposure=True),
        gpflow.functions.Constant(1.5),
        inducing_variable=grid.X[::3].copy(),
    )
    gpflow.set_trainable(model.mean_function, False)
    gpx.sample(model, 200, 4, tuner="dual_averaging", check=False, progress=False)
    x = _line(0.0, 10.0)
    curves = np.exp(model.predict_f_samples(x, 400).numpy()[..., 0])
    ends = np.quantile(curves, [0.05, 0.5, 0.95], axis=0)

    def draw(ax: Any) -> None:
        ax.plot(x, curves[:12].T, color="tab:blue", alpha=0.25, linewidth=0.7)
        _band(ax, x, ends, "median and 90 % of the draws", "tab:blue")
        ax.plot(events, np.zeros_like(events), "k|", markersize=14, label="events")
        ax.set(title="SGPMCFreeForm: events", xlabel="time", ylabel="events per unit")
        ax.set_ylim(-1.0, 1.15 * ends.max())
        _legend(ax, 3)

    return draw


def gprn_tensor() -> Painter:
    """Train on outputs whose correlation changes sign, by `GPRNTensor`."""
    rng = np.random.default_rng(0)
    X, x = _line(-2.0, 2.0, 50), _line(-2.0, 2.0)
    level, change = np.array([1.0, 0.0]), np.array([0.0, 1.0])  # of the two that are drawn
    level, change = (np.concatenate([part, rng.uniform(-1.0, 1.0, 6)]) for part in (level, change))
    Y = np.sin(4.0 * X) * (level + change * np.tanh(2.0 * X)) + 0.1 * rng.standard_normal((50, 8))
    known = rng.uniform(size=Y.shape) < 0.6
    kernel, weight_kernel = (gpflow.kernels.SquaredExponential(lengthscales=length) for length in (0.5, 1.0))
    model = gpx.models.GPRNTensor((X, np.where(known, Y, np.nan)), kernel, weight_kernel, num_latent=2)
    gpx.fit(model, steps=10, progress=False)
    mean, var = (part.numpy() for part in model.predict_y(x))

    def draw(ax: Any) -> None:
        for d, colour in enumerate(("tab:blue", "tab:orange")):
            spread = 2.0 * np.sqrt(var[:, d])
            label = f"output {d + 1} of {model.num_latent_gps}"
            _band(ax, x, (mean[:, d] - spread, mean[:, d], mean[:, d] + spread), label, colour)
            seen = known[:, d]
            ax.plot(X[seen, 0], Y[seen, d], ".", color=colour, markersize=5)
        ax.set(title="GPRNTensor: two of eight outputs", xlabel="input", ylabel="output")
        _legend(ax, 3)

    return draw


def review() -> Painter:
    """Train on binary data by Laplace, Jaakkola-Jordan, Taylor, and the variational optimum."""
    rng = np.random.default_rng(2)
    X, x = rng.uniform(-3.0, 3.0, (50, 1)), _line(-4.0, 4.0)
    Y = (rng.uniform(size=X.shape) < 1.0 / (1.0 + np.exp(-4.0 * np.sin(1.5 * X)))).astype(float)
    chosen = {
        "GPLaplace": (gpx.models.GPLaplace, BernoulliLogit(None), None, "-"),
        "GPTaylor, M = 6": (gpx.models.GPTaylor, BernoulliLogit(None), 6, "--"),
        "GPJaakkola": (gpx.models.GPJaakkola, BernoulliLogit("jaakkola"), None, "-."),
        "VGPKMM": (gpx.models.VGPKMM, BernoulliLogit(None), None, ":"),
    }
    curves = {}
    for name, (cls, likelihood, inducing, style) in chosen.items():
        Z = None if inducing is None else gpx.inducing.kmeans(X, inducing)
        kernel = gpflow.kernels.SquaredExponential(variance=10.0)
        gpflow.set_trainable(kernel, False)
        model = cls((X, Y), kernel, likelihood, inducing_variable=Z)
        gpx.fit(model, progress=False)
        curves[name] = (model.predict_y(x)[0].numpy()[:, 0], style)

    def draw(ax: Any) -> None:
        ax.plot(X, Y, "k|", markersize=10)
        for name, (probability, style) in curves.items():
            ax.plot(x, probability, style, label=name)
        ax.set(title="The review: four posteriors", xlabel="input")
        ax.set(ylabel="probability of class 1", ylim=(-0.05, 1.05))
        _legend(ax, 2)

    return draw
