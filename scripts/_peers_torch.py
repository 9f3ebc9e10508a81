"""GPyTorch's side of the benchmarks, where it is installed (extra `bench`)."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

INSTALLED = importlib.util.find_spec("gpytorch") is not None
LENGTHS = (1.0, 0.5, 0.2)  # of the natural gradient, the first that does not fall is kept


def model(Z: Any, natural: bool = False, latents: int | None = None) -> Any:
    """Return a whitened variational model with a scaled squared exponential and learnt inducing points."""
    import gpytorch
    import torch
    from gpytorch import variational

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            batch = torch.Size([latents] if latents else [])
            kind = variational.NaturalVariationalDistribution
            if not natural:
                kind = variational.CholeskyVariationalDistribution
            points = torch.as_tensor(np.array(Z))
            strategy = variational.VariationalStrategy(self, points, kind(len(points), batch_shape=batch))
            if latents:
                strategy = variational.IndependentMultitaskVariationalStrategy(strategy, num_tasks=latents)
            super().__init__(strategy)
            self.mean = gpytorch.means.ZeroMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, X: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(X), self.kernel(X))

    return Model().to(torch.as_tensor(np.array(Z)).dtype)


def step(data: Any, Z: Any, num_data: int, classes: int | None = None, batch: int | None = None) -> Callable:
    """Return a step of Adam: a probit of two classes, or a softmax of several by Monte Carlo."""
    import gpytorch
    import torch

    X, Y = (torch.as_tensor(np.asarray(part)) for part in data)
    gp = model(Z, latents=classes)
    if classes is None:
        likelihood: Any = gpytorch.likelihoods.BernoulliLikelihood()
        labels = Y[:, 0]
    else:
        likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_classes=classes, mixing_weights=False)
        labels = Y[:, 0].long()
    objective = gpytorch.mlls.VariationalELBO(likelihood, gp, num_data=num_data)
    optimizer = torch.optim.Adam(gp.parameters(), lr=1e-3)
    rows = _rows(len(X), batch)

    def update() -> float:
        chosen = next(rows)
        optimizer.zero_grad()
        loss = -objective(gp(X[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        return float(loss)

    return update


def _rows(number: int, batch: int | None) -> Iterator[Any]:
    """Yield the rows of random minibatches, or all rows each time."""
    if batch is None:
        return itertools.repeat(slice(None))
    rng = np.random.default_rng(0)
    return (rng.integers(0, number, batch) for _ in itertools.count())


def natural_gradient(problem: Any) -> Any:
    """GPyTorch's natural gradients on the exact logistic likelihood, by its 20 Gauss-Hermite nodes."""
    import gpytorch
    import torch
    from _methods import Trace

    class Logistic(gpytorch.likelihoods._OneDimensionalLikelihood):
        def forward(self, f: Any, **_: Any) -> Any:
            return torch.distributions.Bernoulli(logits=f)

    X, Y = (torch.as_tensor(np.asarray(part)) for part in problem.data)
    variance, lengthscale = problem.plain

    def attempt(limit: Any, length: float) -> Any:
        gp = model(X.numpy(), natural=True)
        gp.kernel.outputscale, gp.kernel.base_kernel.lengthscale = variance, lengthscale
        objective = gpytorch.mlls.VariationalELBO(Logistic(), gp, num_data=len(X))
        optimizer = gpytorch.optim.NGD(gp.variational_parameters(), num_data=len(X), lr=length)
        trace = Trace(limit)
        while not trace.objective or not trace.done:
            optimizer.zero_grad()
            value = objective(gp(X), Y[:, 0])
            trace.add(len(X) * float(value))
            if not len(X) * float(value) > -10.0 * len(X):
                break
            (-value).backward()
            optimizer.step()
        return trace

    def run(limit: Any) -> Any:
        for length in LENGTHS:
            trace = attempt(limit, length)
            if trace.done and math.isfinite(trace.objective[-1]):
                return trace
        return trace

    return run
