"""Networks whose nodes have kernels of their own, and targets that are missing in the rows of the data."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import scipy.stats
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext import node_choice
from gpflow_ext.gprn import network
from gpflow_ext.gprn.coregionalised import Coregionalised
from gpflow_ext.models import GPRNTensor
from gpflow_ext.sampling.draws import Draws, Setting

N, D, K = 9, 3, 2
X, XNEW = problems.inputs(N), problems.inputs(4, seed=7)


def targets() -> np.ndarray:
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(N, 2)) @ rng.normal(size=(2, D)) + 0.2 * rng.normal(size=(N, D))
    Y[:3, 0] = np.nan
    return Y


def model(kernels: object, posterior: str = "collapsed", **options) -> GPRNTensor:
    weight_kernel = problems.kernel(1.3, 2.0)
    options = {"nugget": 0.1} | options
    return GPRNTensor((X, targets()), kernels, weight_kernel, K, None, posterior, **options)


def alike() -> list[gpflow.kernels.Kernel]:
    return [problems.kernel(1.0, 0.8) for _ in range(K)]


@pytest.mark.parametrize("posterior", ["collapsed", "tensor"])
def test_equal_kernels_are_one_kernel(posterior) -> None:
    """The bound, moments with full covariance, densities and draws; with inducing inputs in the next test."""
    own, one = model(alike(), posterior), model(alike()[0], posterior)
    for each in (own, one):
        if posterior == "collapsed":
            each.q.sweep(each.prior())
    np.testing.assert_allclose(own.elbo(), one.elbo(), rtol=1e-10)
    for a, b in zip(own.predict_f(XNEW, full_cov=True), one.predict_f(XNEW, full_cov=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)
    for a, b in zip(own.predict_missing(), one.predict_missing(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)
    Y = np.zeros((4, D))
    np.testing.assert_allclose(
        own.predict_log_density((XNEW, Y)), one.predict_log_density((XNEW, Y)), rtol=1e-7
    )
    assert own.nugget.shape == (K,)


def test_equal_kernels_are_one_kernel_with_inducing_inputs() -> None:
    own, one = (model(kernels, inducing_variable=X[:5].copy()) for kernels in (alike(), alike()[0]))
    for each in (own, one):
        each.q.sweep(each.prior())
    np.testing.assert_allclose(own.elbo(), one.elbo(), rtol=1e-9)
    np.testing.assert_allclose(own.predict_y(XNEW)[1], one.predict_y(XNEW)[1], rtol=1e-7)


def test_known_loadings_predict_a_missing_target_as_the_dense_gaussian_does() -> None:
    """Nodes with kernels and nuggets of their own; the nugget of a row is known from its other outputs."""
    new = model([problems.kernel(1.0, 0.6), gpflow.kernels.Matern32(1.0, 2.0)], output_scales=True)
    new.nugget.assign([0.3, 0.05])
    loadings = np.random.default_rng(1).normal(size=(D, K))
    near = Coregionalised(new, targets(), loadings)
    prior = new.prior()
    K_f = (prior.nodes @ tf.linalg.matrix_transpose(prior.nodes)).numpy()
    signal = np.einsum("knm,dk,ek->ndme", K_f, loadings, loadings).reshape(N * D, N * D)
    known = ~np.isnan(targets().ravel())
    cov = signal[np.ix_(known, known)] + 0.1 * np.eye(known.sum())
    expected = scipy.stats.multivariate_normal.logpdf(targets().ravel()[known], cov=cov)
    np.testing.assert_allclose(near.log_evidence(prior.nodes), expected, rtol=1e-9)
    q = network.nodes(prior.nodes, *near.sites())
    mean = signal[:, known] @ np.linalg.solve(cov, targets().ravel()[known])
    np.testing.assert_allclose(q.mean.numpy() @ loadings.T, mean.reshape(N, D), rtol=1e-8)


@pytest.mark.parametrize("posterior", ["collapsed", "tensor"])
def test_a_missing_target_is_predicted_at_its_own_node(posterior) -> None:
    """The moments are those of q(W) and q(F) in the rows; `predict_y` is less sure of them."""
    new = model(alike(), posterior)
    if posterior == "collapsed":
        for _ in range(3):
            new.q.sweep(new.prior())
    prior = new.prior()
    q, (mean, var) = new.q.nodes(prior), new.predict_missing()
    if posterior == "collapsed":
        w = network.weights(new.q.seen(prior.scales), prior.weights, prior.noise, q)
        U = np.einsum("dij,jd->di", w.smoother, np.nan_to_num(targets())).reshape(D, N, K)
        U = np.einsum("nm,dmk->ndk", prior.weights, U)
    else:
        U = np.einsum("nm,mdk->ndk", prior.weights, new.q.weight_mean)
    np.testing.assert_allclose(mean, np.einsum("ndk,nk->nd", U, q.mean), rtol=1e-7, atol=1e-9)
    assert (var.numpy() < new.predict_y(X)[1].numpy()).all()
    grid, Y = np.linspace(-7.0, 7.0, 29), np.full((N, D), np.nan)
    density = []
    for value in grid:
        Y[:, 0] = value
        density.append(np.exp(new.missing_log_density(Y)))
    np.testing.assert_allclose(np.sum(density, axis=0) * (grid[1] - grid[0]), np.ones(N), rtol=0.02)
    np.testing.assert_array_equal(new.missing_log_density(np.full((N, D), np.nan)), np.zeros(N))


def test_draws_of_nodes_with_their_own_kernels_are_predicted_from() -> None:
    """Two equal kernels as one, and known nodes in the rows of the data."""
    values = {"V": np.random.default_rng(1).normal(size=(1, 3, N, K))}
    own, one = model(alike()), model(alike()[0])
    for each in (own, one):
        each.assign_draws(Draws(values, {"log_density": np.zeros((1, 3))}, Setting(0.1, 1), 0.0))
    for a, b in zip(own.predict_y(XNEW), one.predict_y(XNEW), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    for a, b in zip(own.predict_missing(), one.predict_missing(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    np.testing.assert_allclose(own.sampled().spread()[0], one.sampled().spread(), rtol=1e-6, atol=1e-8)


def test_new_data_keep_what_nodes_with_their_own_kernels_know() -> None:
    new = model([problems.kernel(1.0, 0.8), problems.kernel(1.0, 2.0)], "tensor", nugget=1e-5)
    before = new.predict_f(XNEW)[0]
    new.update_data((X, targets()))
    np.testing.assert_allclose(new.predict_f(XNEW)[0], before, rtol=1e-3, atol=1e-4)


def test_kernels_and_nuggets_of_nodes_are_learnt() -> None:
    """Two functions of short and long length scale: the kernels come apart, and the bound is above that of one."""
    rng = np.random.default_rng(0)
    inputs = np.linspace(0.0, 10.0, 30)[:, None]
    F = np.hstack([np.sin(6.0 * inputs), np.cos(0.5 * inputs)])
    Y = F @ [[1.0, 0.5, -1.0], [0.6, -1.0, 1.0]] + 0.1 * rng.normal(size=(30, 3))
    bounds = {}
    for separate in (False, True):
        kernels = alike() if separate else alike()[0]
        new = GPRNTensor((inputs, Y), kernels, problems.kernel(1.0, 5.0), K)
        options = {"independent_start": False, "moment_start": False, "progress": False}
        bounds[separate] = gpx.fit(new, steps=1, **options).objective[-1]
    lengths = sorted(float(part.lengthscales.numpy()) for part in new.kernel.kernels)
    assert lengths[1] > 2.0 * lengths[0]
    assert bounds[True] > bounds[False] + 1.0


def test_kernels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="2 nodes"):
        model(alike()[:1])
    with pytest.raises(NotImplementedError, match="separate_rows"):
        model(alike(), "tensor", separate_rows=False)
    with pytest.raises(ValueError, match="tensor"):
        model(alike(), separate_rows=True)
    assert isinstance(model(gpflow.kernels.SharedIndependent(alike()[0], K)).kernel, gpflow.kernels.RBF)


def test_the_number_of_nodes_is_that_of_the_highest_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds 1, 3, 2, 5 end at the third; the second is returned with its own result."""
    bounds = {1: 1.0, 2: 3.0, 3: 2.0, 4: 5.0}
    monkeypatch.setattr(node_choice, "fit", lambda model, **options: (model.num_latent, options))
    monkeypatch.setattr(GPRNTensor, "elbo", lambda self: bounds[self.num_latent])

    def build(number: int) -> GPRNTensor:
        return GPRNTensor((X, targets()), problems.kernel(), problems.kernel(), number)

    found = gpx.fit_nodes(build, most=4, steps=7)
    assert found.bounds == found.scores == {1: 1.0, 2: 3.0, 3: 2.0}
    assert found.model.num_latent == 2
    by_another = gpx.fit_nodes(build, most=4, score=lambda model: np.float32(-model.num_latent))
    assert (by_another.model.num_latent, by_another.scores) == (1, {1: -1.0, 2: -2.0})
    assert by_another.bounds == {1: 1.0, 2: 3.0}
    with pytest.raises(ValueError, match=r"its shape is \(3,\): sum it"):
        gpx.fit_nodes(build, score=lambda model: np.zeros(3))
    assert found.result == (2, {"steps": 7, "checkpoint_dir": None})
    assert gpx.fit_nodes(build, most=1).bounds == {1: 1.0}
    with pytest.raises(ValueError, match="most"):
        gpx.fit_nodes(build, most=0)
    with pytest.raises(ValueError, match="build"):
        gpx.fit_nodes(lambda number: build(2))


def test_each_number_of_nodes_has_its_own_checkpoints(tmp_path) -> None:
    def build(number: int) -> GPRNTensor:
        return GPRNTensor((X, targets()), problems.kernel(), problems.kernel(), number)

    def fit() -> node_choice.NodesFit:
        return gpx.fit_nodes(build, most=2, steps=1, starts=1, hyper_updates=2, checkpoint_dir=tmp_path)

    first, second = fit(), fit()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nodes_1", "nodes_2"]
    assert second.bounds == first.bounds
    assert second.result.first_step == second.result.steps == first.result.steps


@pytest.mark.parametrize("posterior", ["collapsed", "tensor"])
def test_checkpoints_and_exports_hold_the_kernels_of_nodes(posterior, tmp_path) -> None:
    new = model([problems.kernel(1.0, 0.6), gpflow.kernels.Matern32(1.0, 2.0)], posterior)
    gpx.fit(new, steps=2, progress=False, checkpoint_dir=tmp_path / "run")
    mean, var = (part.numpy() for part in new.predict_y(XNEW))
    again = gpx.load_checkpoint(tmp_path / "run")
    for found, expected in zip(again.predict_y(XNEW), (mean, var), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    served = gpx.load_exported(gpx.export(new, tmp_path / "model")).predict(XNEW)
    np.testing.assert_allclose(served["mean"], mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(served["variance"], var, rtol=1e-9)
    Y = np.ones((4, D))
    density = scipy.stats.norm.logpdf(Y, mean, np.sqrt(var)).sum(axis=1).mean()
    np.testing.assert_allclose(gpx.metrics.evaluate(new, (XNEW, Y))["nlpd"], -density, rtol=1e-9)


def test_networks_with_kernels_of_nodes_are_sampled() -> None:
    new = model([problems.kernel(1.0, 0.6), gpflow.kernels.Matern32(1.0, 2.0)])
    gpflow.set_trainable(new, False)
    draws = gpx.sample(new, 20, 2, tuner=Setting(0.1, 5), warm_up=10, progress=False, check=False)
    assert np.isfinite(draws.values["V"]).all()
    assert np.ptp(draws.values["V"]) > 0.1
