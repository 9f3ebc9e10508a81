"""Simulation-based calibration (Talts et al. 2018) and Geweke's joint test (2004) of the density and the sampler.

Each chain has its own data, drawn from the model with parameters from the prior.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from joint import LIKELIHOODS, Joint
from scipy import special, stats

SETS, DRAWS, THIN = 64, 31, 6
SLOW = pytest.mark.slow


@functools.cache
def band(sets: int, level: float = 0.99) -> float:
    """Largest |ECDF − p| / √(p(1 − p)) of uniform ranks 0, …, `DRAWS` of this many sets, at a level."""
    ranks = np.random.default_rng(0).integers(0, DRAWS + 1, (4000, sets))
    return float(np.quantile([deviation(each) for each in ranks], level))


def deviation(ranks: np.ndarray) -> float:
    """Largest standardised deviation of the ECDF of ranks from that of the uniform law."""
    p = np.arange(1, DRAWS + 1) / (DRAWS + 1)
    found = (ranks[:, None] < np.arange(1, DRAWS + 1)).mean(axis=0)
    return float(np.max(np.abs(found - p) * np.sqrt(len(ranks) / (p * (1.0 - p)))))


def deviations(joint: Joint, seed: int = 7) -> dict[str, float]:
    """Return how far the ranks of some parameters are from uniform, by random numbers of a seed.

    Two runs leave from the parameters that made the data, and m draws of one and S − m of the other, m
    uniform, make these a place at random in one reversible chain: in a right sampler their rank is exactly
    uniform, however slowly it mixes (Gandy & Scott 2020).
    """
    rng = np.random.default_rng(seed)
    x = joint.draw(rng)
    joint.observe(x, rng)
    runs = [joint.advance(x, number, DRAWS, THIN) for number in range(2)]
    first = rng.integers(0, DRAWS + 1, joint.copies)  # m
    order = np.arange(DRAWS)[:, None]
    taken = [(order < number)[:, :, None] for number in (first, DRAWS - first)]
    below, equal = (
        sum((compare(draws, x) & kept).sum(axis=0) for draws, kept in zip(runs, taken, strict=True))
        for compare in (np.less, np.equal)
    )
    ranks = below + rng.integers(
        0, equal + 1
    )  # where proposals were rejected the order is a matter of chance
    return {name: deviation(ranks[:, column]) for name, column in joint.columns.items()}


@pytest.mark.parametrize(
    ("name", "sets", "sparse"),
    [
        ("poisson", SETS, False),
        ("poisson", SETS, True),
        *(pytest.param(name, 256, sparse, marks=SLOW) for name in LIKELIHOODS for sparse in (False, True)),
    ],
)
def test_ranks_are_uniform(name: str, sets: int, sparse: bool, record_property) -> None:
    """Within the band that holds the ECDFs of all parameters with 99 %, of the first sets or of four times as many.

    A wrong sampler leaves the second band by twice as much; a right one leaves both once in 10,000 times.
    """
    for seed, number in ((7, sets), (8, 4 * sets)):
        found = deviations(Joint(name, number, sparse), seed)
        allowed = band(number, 1.0 - 0.01 / len(found))
        record_property(f"largest deviation / band, {number} sets", max(found.values()) / allowed)
        if max(found.values()) < allowed:
            return
    pytest.fail(f"{found} are above {allowed}")


@pytest.mark.parametrize(
    "wrong", [{"jacobian": 0.0}, *(pytest.param(w, marks=SLOW) for w in ({"jacobian": 2.0}, {"power": 0.7}))]
)
def test_ranks_of_a_wrong_density_are_not(wrong: dict[str, float], record_property) -> None:
    sets = 160 if wrong == {"jacobian": 0.0} else 256
    found = deviations(Joint("poisson", sets, **wrong))
    record_property("largest deviation / band", max(found.values()) / band(sets))
    assert max(found.values()) > band(sets), found


def moments(joint: Joint, x: np.ndarray) -> np.ndarray:
    """Functions of the parameters and the data whose prior expectations `expected` knows, [C, 26]."""
    f = joint.latent(x)[0][:, :, 0]
    v = x[:, : joint.columns["kernel.lengthscales"]]
    length, variance = (x[:, joint.columns[f"kernel.{part}"]] for part in ("lengthscales", "variance"))
    positive = np.stack([length, length**2, variance, variance**2, np.exp(length), np.exp(variance)], axis=1)
    data = np.stack([joint.Y[:, 0], joint.Y[:, -1]], axis=1)
    return np.concatenate([v, v**2, positive, np.stack([f[:, 3], f[:, 3] ** 2], axis=1), data], axis=1)


def expected(joint: Joint) -> np.ndarray:
    (a, b), (c, d) = (4.0, 4.0), (3.0, 2.0)  # Gamma priors of the length scale and the variance
    logs = [special.digamma(shape) - np.log(rate) for shape, rate in ((a, b), (c, d))]
    squares = [special.polygamma(1, shape) + log**2 for shape, log in zip((a, c), logs, strict=True)]
    positive = [logs[0], squares[0], logs[1], squares[1], a / b, c / d]
    size = joint.columns["kernel.lengthscales"]
    return np.array([*np.zeros(size), *np.ones(size), *positive, 0.0, c / d, 0.5, 0.5])


def scores(joint: Joint, rounds: int) -> np.ndarray:
    """Return the z-score of each of the moments over chains that alternate parameters given data, data given them.

    Each starts from the joint distribution and stays there, so that their averages are independent.
    """
    rng = np.random.default_rng(11)
    x = joint.draw(rng)
    total = 0.0
    for number in range(rounds):
        joint.observe(x, rng)
        x = joint.advance(x, number, 1, 4)[-1]
        total = total + moments(joint, x)
    means = total / rounds
    return (means.mean(axis=0) - expected(joint)) / (means.std(axis=0, ddof=1) / np.sqrt(joint.copies))


@pytest.mark.parametrize(("chains", "rounds"), [(256, 40), pytest.param(2048, 200, marks=SLOW)])
def test_geweke(chains: int, rounds: int, record_property) -> None:
    found = np.abs(scores(Joint("binary", chains), rounds))
    record_property("functions", len(found))
    record_property("largest |z|", found.max())
    assert len(found) >= 20
    assert found.max() <= 4.0, found


@pytest.mark.parametrize("wrong", [{"jacobian": 0.0}, pytest.param({"power": 0.9}, marks=SLOW)])
def test_geweke_finds_a_wrong_density(wrong: dict[str, float], record_property) -> None:
    found = np.abs(scores(Joint("binary", 256 if "jacobian" in wrong else 2048, **wrong), 40))
    record_property("largest |z|", found.max())
    assert found.max() > 4.0


def test_the_band_holds_uniform_ranks() -> None:
    ranks = np.random.default_rng(1).integers(0, DRAWS + 1, (1000, SETS))
    inside = np.mean([deviation(each) <= band(SETS) for each in ranks])
    assert stats.binomtest(int(1000 * inside), 1000, 0.99).pvalue > 1e-3
