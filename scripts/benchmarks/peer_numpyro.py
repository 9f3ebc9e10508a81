"""The posterior of a `SGPMCFreeForm` sampled by NumPyro's NUTS, its density written in JAX."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gpflow
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer
from jax.scipy.special import gammaln
from jax.scipy.stats import norm

from gpflow_ext.models import SGPMCFreeForm
from gpflow_ext.sampling import diagnostics

from ..experiments.sgpmc import runs

jax.config.update("jax_enable_x64", True)
NODES, WEIGHTS = (np.asarray(part) for part in np.polynomial.hermite_e.hermegauss(20))
Density = Callable[[jax.Array], jax.Array]


def log_density(model: SGPMCFreeForm) -> tuple[Density, jax.Array]:
    """Return log π(v, log ℓ, log s²) up to a constant, and the point where the model stands.

    For a squared exponential kernel with Gamma priors, zero mean, and a Poisson likelihood or a probit.
    """
    X, Y = (np.asarray(part) for part in model.data)
    Z, jitter = model.inducing_variable.Z.numpy(), gpflow.default_jitter()
    M, parameters = len(Z), (model.kernel.lengthscales, model.kernel.variance)
    priors = [(float(p.prior.concentration), float(p.prior.rate)) for p in parameters]
    expected = _poisson(model, Y) if hasattr(model.likelihood, "binsize") else _probit(Y)

    def squared_exponential(A: Any, B: Any, lengths: jax.Array) -> jax.Array:
        a, b = A / lengths, B / lengths
        squares = jnp.sum(a**2, 1)[:, None] + jnp.sum(b**2, 1)[None] - 2.0 * a @ b.T
        return jnp.exp(-0.5 * jnp.maximum(squares, 0.0))

    def density(x: jax.Array) -> jax.Array:
        v, logs = x[:M], x[M:]
        lengths, variance = jnp.exp(logs[:-1]), jnp.exp(logs[-1])
        chol = jnp.linalg.cholesky(variance * squared_exponential(Z, Z, lengths) + jitter * jnp.eye(M))
        A = jax.scipy.linalg.solve_triangular(chol, variance * squared_exponential(Z, X, lengths), lower=True)
        value = expected(A.T @ v, variance - jnp.sum(A**2, axis=0)) - 0.5 * v @ v
        for at, (shape, rate) in zip((logs[:-1], logs[-1:]), priors, strict=True):
            value += jnp.sum(shape * at - rate * jnp.exp(at))  # of the logarithm: with its Jacobian
        return value

    logs = [np.log(np.ravel(p.numpy())) for p in parameters]
    return density, jnp.asarray(np.concatenate([np.ravel(model.V.numpy()), *logs]))


def _poisson(model: SGPMCFreeForm, Y: Any) -> Callable[[Any, Any], jax.Array]:
    size = float(np.asarray(model.likelihood.binsize))

    def expected(mean: Any, var: Any) -> jax.Array:
        each = Y[:, 0] * (mean + np.log(size)) - size * jnp.exp(mean + 0.5 * var)
        return jnp.sum(each - gammaln(Y[:, 0] + 1.0))

    return expected


def _probit(Y: Any) -> Callable[[Any, Any], jax.Array]:
    signs = 2.0 * Y[:, 0] - 1.0

    def expected(mean: Any, var: Any) -> jax.Array:
        f = mean + jnp.sqrt(var) * NODES[:, None]
        return jnp.sum(WEIGHTS @ norm.logcdf(signs * f)) / WEIGHTS.sum()

    return expected


def sample(model: SGPMCFreeForm, warm_up: int, draws: int) -> dict[str, Any]:
    """Run one chain with NUTS's defaults, a diagonal mass matrix; return what the table needs."""
    density, start = log_density(model)
    sampler = numpyro.infer.MCMC(
        numpyro.infer.NUTS(potential_fn=lambda x: -density(x)),
        num_warmup=warm_up,
        num_samples=draws,
        progress_bar=False,
    )
    fields = ("potential_energy", "diverging", "accept_prob", "num_steps")
    begin = time.perf_counter()
    sampler.warmup(jax.random.PRNGKey(0), init_params=start, extra_fields=fields)
    sampler.run(jax.random.PRNGKey(1), init_params=start, extra_fields=fields)  # compiles
    sampler.post_warmup_state = sampler.last_state
    middle = time.perf_counter()
    sampler.run(jax.random.PRNGKey(2), extra_fields=fields)
    flat, extra = np.asarray(sampler.get_samples()), sampler.get_extra_fields()
    seconds = time.perf_counter() - middle
    stats = {
        "energy": np.asarray(extra["potential_energy"])[None],
        "divergent": np.asarray(extra["diverging"])[None].astype(float),
        "accepted": np.asarray(extra["accept_prob"])[None],
        "gradients": np.asarray(extra["num_steps"]),
    }
    found = diagnostics.diagnose({str(j): column[None] for j, column in enumerate(flat.T)}, stats, seconds)
    return runs.timed("NumPyro's NUTS, 1 chain", found, middle - begin)
