"""Time what PyTorch and GPyTorch do on the same device.

    python -m scripts.device.peers OUT

Appends JSON lines to OUT/results.jsonl. Needs PyTorch and GPyTorch alone.
"""

from __future__ import annotations

import functools
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import torch

BATCH, POINTS, INPUTS, CLASSES = 1000, 500, 784, 10
DENSE, COLUMNS = (5_000, 10_000, 20_000), 20
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def timed(call: Callable[[], Any], most: int, seconds: float) -> tuple[float, int]:
    """Return the median seconds of a call, and of how many."""
    call()
    taken: list[float] = []
    begin = time.perf_counter()
    while len(taken) < most and (not taken or time.perf_counter() - begin < seconds):
        _wait()
        start = time.perf_counter()
        call()
        _wait()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken)), len(taken)


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Classifier(gpytorch.models.ApproximateGP):
    """A sparse variational Gaussian process for each class, with natural parameters."""

    def __init__(self, Z: torch.Tensor) -> None:
        batch = torch.Size([CLASSES])
        q = gpytorch.variational.NaturalVariationalDistribution(len(Z), batch_shape=batch)
        inner = gpytorch.variational.VariationalStrategy(self, Z, q, learn_inducing_locations=True)
        super().__init__(
            gpytorch.variational.IndependentMultitaskVariationalStrategy(inner, num_tasks=CLASSES)
        )
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=INPUTS))
        self.covar_module.base_kernel.lengthscale = 14.0
        self.covar_module.outputscale = 5.0

    def forward(self, x: torch.Tensor) -> Any:
        """Return the prior at x."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def digits() -> dict[str, Any]:
    """Time a natural-gradient step of q and one of Adam for the rest, from one backward pass."""
    torch.manual_seed(0)
    X = torch.randn(BATCH, INPUTS, device=DEVICE)
    Y = torch.randint(CLASSES, (BATCH,), device=DEVICE)
    model = Classifier(X[:POINTS].clone()).to(DEVICE)
    likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_classes=CLASSES, mixing_weights=False).to(DEVICE)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=60_000)
    natural = gpytorch.optim.NGD(model.variational_parameters(), num_data=60_000, lr=0.001)
    rest = torch.optim.Adam(model.hyperparameters(), lr=0.01)
    model.train()
    likelihood.train()

    def step() -> None:
        natural.zero_grad()
        rest.zero_grad()
        loss = -bound(model(X), Y)
        loss.backward()
        natural.step()
        rest.step()

    for _ in range(5):
        step()
    seconds, steps = timed(step, 100, 10.0)
    return {"of": "digits, GPyTorch", "dtype": "float32", "ms_per_step": 1e3 * seconds, "steps": steps}


def dense(N: int, dtype: torch.dtype) -> dict[str, Any]:
    """Time the evidence of regression and its gradient by one Cholesky factorisation."""
    torch.manual_seed(0)
    X = torch.randn(N, COLUMNS, device=DEVICE, dtype=dtype)
    y = torch.randn(N, 1, device=DEVICE, dtype=dtype)
    logs = torch.zeros(3, device=DEVICE, dtype=dtype, requires_grad=True)

    def evaluate() -> None:
        logs.grad = None
        scaled = X * torch.exp(-logs[0]) / COLUMNS**0.5
        K = torch.exp(logs[1] - 0.5 * torch.cdist(scaled, scaled) ** 2)
        K = K + torch.exp(logs[2]) * torch.eye(N, device=DEVICE, dtype=dtype)
        L = torch.linalg.cholesky(K)
        white = torch.linalg.solve_triangular(L, y, upper=False)
        (0.5 * (white**2).sum() + torch.log(torch.diagonal(L)).sum()).backward()

    seconds, calls = timed(evaluate, 5, 10.0)
    peak = torch.cuda.max_memory_allocated() / 2**30 if DEVICE == "cuda" else float("nan")
    return {"of": "dense, PyTorch", "rows": N, "dtype": str(dtype).split(".")[1], "seconds": seconds,
            "calls": calls, "memory_GiB": peak}  # fmt: skip


def main() -> int:
    torch.backends.cuda.matmul.allow_tf32 = False
    out = Path(sys.argv[1]) / "results.jsonl"
    cases: list[Callable[[], dict[str, Any]]] = [digits]
    cases += [functools.partial(dense, N, dtype) for dtype in (torch.float64, torch.float32) for N in DENSE]
    failed = 0
    for case in cases:
        try:
            line = case()
        except Exception:  # of any kind: the others shall still run
            line = {"of": "failure", "error_text": traceback.format_exc()[-1500:]}
            failed += 1
        line |= {"torch": torch.__version__, "gpytorch": gpytorch.__version__}
        with out.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)
        print(json.dumps(line)[:300], flush=True)
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
