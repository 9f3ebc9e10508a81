"""A minibatch step of GPyTorch's sparse variational classifier."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import tensorflow as tf
import torch

Array = np.ndarray[Any, Any]


class Classifier(gpytorch.models.ApproximateGP):
    """q(u) = N(m, S) with a full S, whitened, inducing inputs learnt; a length scale for each input."""

    def __init__(self, Z: Array, lengthscale: float) -> None:
        count, width = Z.shape
        q = gpytorch.variational.CholeskyVariationalDistribution(count)
        strategy = gpytorch.variational.VariationalStrategy(
            self, torch.tensor(Z), q, learn_inducing_locations=True
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=width))
        self.covar_module.outputscale = 1.0
        self.covar_module.base_kernel.lengthscale = lengthscale

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        """Return the prior at x."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def step(
    data: tuple[Array, Array], Z: Array, lengthscale: float, minibatch: int, seed: int
) -> Callable[[], float]:
    """Return a step of ADADELTA(1, 0.9, 1e-5) on the bound of a probit model, on random rows; it returns the loss."""
    torch.set_num_threads(tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count() or 1)
    torch.set_default_dtype(torch.float64)
    torch.set_flush_denormal(True)  # as TensorFlow does: products of tiny numbers take fifty times as long
    X, y = torch.tensor(data[0]), torch.tensor(data[1][:, 0])
    model, likelihood = Classifier(Z, lengthscale), gpytorch.likelihoods.BernoulliLikelihood()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(X))
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0, rho=0.9, eps=1e-5)
    generator = np.random.default_rng(seed)
    model.train()

    def move() -> float:
        rows = torch.tensor(generator.integers(0, len(X), minibatch))
        optimizer.zero_grad()
        loss = -bound(model(X[rows]), y[rows])
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return move
