"""Systems with Ω + Λ of one latent function by conjugate gradients, and log|I + ΛΣ| with its derivatives.

The preconditioner BᵀWB with W = D⁻¹ + max(Λ, 0) (Kündig & Sigrist 2023) leaves

    A = W^-½B⁻ᵀ(Ω + Λ)B⁻¹W^-½ = (DW)⁻¹ + W^-½ B⁻ᵀΛB⁻¹ W^-½        log|I + ΛΣ| = Σ log(DW) + tr log A

Each product with A takes one solution with B and one with Bᵀ. With R probes z of random signs

    F = ½ Σ log(DW) + ½ Σ_z zᵀ log(A) z / R

stands for ½ log|I + ΛΣ|: for given probes a smooth function of a, D and Λ, whose exact derivatives are found
here. So an objective and its gradient agree, with few probes too. Derived in docs/derivations.md, section 14.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from gpflow_ext.numerics import conjugate_gradients, lanczos, philox
from gpflow_ext.numerics.batched import sizes
from gpflow_ext.sites.vecchia import blocks
from gpflow_ext.sites.vecchia.rows import DTYPE
from gpflow_ext.sites.vecchia.sweeps import Triangle

ITERATIONS = 1000  # of conjugate gradients at most
STEPS = 256  # of Lanczos' method at most
KEPT = tf.float32  # the precision of its vectors, which only derivatives read
SIDE = 4, 8  # probes that are taken side by side, at least and at most; further ones save nothing
BLOCK = 2**29  # bytes that their vectors may take, of some 128 steps


class Trace(NamedTuple):
    """F, and its derivatives."""

    value: tf.Tensor  # F, []
    error: tf.Tensor  # its standard error, []
    by_prec: tf.Tensor  # 2 ∂F/∂Λ, the variances as the probes have them, [N]
    by_D: tf.Tensor  # ∂F/∂D, [N]
    by_a: tf.Tensor  # ∂F/∂a, [N, m]


class Preconditioned(NamedTuple):
    """Ω + Λ, preconditioned; vectors are columns over slots, see `sweeps`."""

    triangle: Triangle
    D: tf.Tensor  # 1 in empty slots, [P, 1]
    prec: tf.Tensor  # Λ, [P, 1]

    @property
    def weight(self) -> tf.Tensor:
        """W, [P, 1]."""
        return 1.0 / self.D + tf.nn.relu(self.prec)

    def product(self, v: tf.Tensor) -> tf.Tensor:
        """Return Av for v [P, C]."""
        W = self.weight
        root = tf.sqrt(W)
        h = self.triangle.solve(v / root)
        return v / (self.D * W) + self.triangle.solve_transposed(self.prec * h) / root

    def solve(self, b: tf.Tensor, tolerance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (Ω + Λ)⁻¹b for b [P, C], and whether all columns are within the tolerance.

        It is relative, in the norm of the preconditioner.
        """
        return self._solved(self.triangle.solve_transposed(b), tolerance)

    def draw(self, b: tf.Tensor, of_prior: tf.Tensor, of_sites: tf.Tensor, tolerance: tf.Tensor) -> tf.Tensor:
        """Return draws of N((Ω + Λ)⁻¹b, (Ω + Λ)⁻¹) for b [P, 1] from independent normal numbers, [P, C] each.

        They solve (Ω + Λ)h = b + BᵀD^-½ε + Λ^½ε'. A negative precision has no noise.
        """
        pulled = self.triangle.solve_transposed(b + tf.sqrt(tf.nn.relu(self.prec)) * of_sites)
        return self._solved(pulled + of_prior / tf.sqrt(self.D), tolerance)[0]

    def _solved(self, pulled: tf.Tensor, tolerance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (Ω + Λ)⁻¹b from B⁻ᵀb [P, C]."""
        root = tf.sqrt(self.weight)
        x, close = conjugate_gradients.solve(
            self.product, pulled / root, tolerance, 0, ITERATIONS, tf.identity
        )
        return self.triangle.solve(x / root), close


def estimate(system: Preconditioned, cliques: tf.Tensor, seeds: tf.Tensor, tolerance: tf.Tensor) -> Trace:
    """Return F and its derivatives by probes of some seeds [R, 2].

    Parameters
    ----------
    system
        What is solved with.
    cliques
        Each datum and its neighbours, N for none, [N, m + 1].
    seeds
        One for each probe.
    tolerance
        Of Lanczos' method, see `lanczos.tridiagonal`.
    """
    schedule, (N, k), R = system.triangle.schedule, sizes(cliques), int(seeds.shape[0])
    side = _side(R, int(system.D.shape[0]))
    W, weighted = system.weight, tf.cast(system.prec > 0.0, DTYPE)
    DW = system.D * W

    def some(j: tf.Tensor, logs: tf.TensorArray, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
        z = schedule.spread(_signs(N, tf.slice(seeds, [j, 0], [side, 2])))
        log, y = _logarithm(system, z, tolerance)
        x = system.triangle.solve(y / tf.sqrt(W))
        s = system.triangle.solve_transposed(system.prec * x)
        found = (
            *(tf.reduce_sum(part, axis=1) for part in (y**2, x**2, s * y)),
            _pairs(cliques, x, s, schedule),
        )
        added = (total + part for total, part in zip(sums, found, strict=True))
        return j + side, logs.write(j // side, log), *added

    logs = tf.TensorArray(DTYPE, R // side, element_shape=[side])
    empty = tf.zeros([sizes(system.D)[0]], DTYPE)
    begin = (tf.constant(0), logs, empty, empty, empty, tf.zeros([N, k - 1], DTYPE))
    _, logs, *sums, by_a = tf.while_loop(lambda j, *_: j < R, some, begin, parallel_iterations=1)
    logs = tf.reshape(logs.stack(), [R])
    squared, seen, crossed = (part[:, None] / R for part in sums)  # y², x² and sy, [P, 1]
    value = 0.5 * (tf.reduce_sum(tf.math.log(DW)) + tf.reduce_mean(logs))
    error = 0.5 * tf.math.reduce_std(logs) / tf.sqrt(tf.constant(max(R - 1, 1), DTYPE))
    # 2F with y held: Σ log(DW) + y²/(DW) + Λx² + 2 s (r y + Σ a x_c), r = W^-½
    by_log, by_root = (1.0 - squared / DW) / DW, crossed / W**1.5
    by_prec = seen + weighted * (by_log * system.D - by_root)
    by_D = 0.5 * (by_log * tf.nn.relu(system.prec) + by_root / system.D**2)
    return Trace(value, error, schedule.gather(by_prec)[:, 0], schedule.gather(by_D)[:, 0], by_a / R)


def num_bytes(probes: int, slots: int) -> int:
    """Return about how many bytes `estimate` takes beside what solves; see the tests."""
    side = _side(probes, slots)
    return side * slots * (128 * KEPT.size + 8 * 8 * lanczos.RANK)


def _side(probes: int, slots: int) -> int:
    """Return how many probes are taken side by side, a divisor of their number."""
    least, most = SIDE
    most = max(least, min(most, BLOCK // (128 * KEPT.size * slots)))
    return next(number for number in range(min(most, probes), 0, -1) if probes % number == 0)


def _signs(N: int | tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """Return random signs of as many data, a column for each seed [C, 2], [N, C]."""
    columns = [2 * philox.integers([N], seed, 0, 2) - 1 for seed in tf.unstack(seeds)]
    return tf.cast(tf.stack(columns, axis=1), DTYPE)


def _logarithm(system: Preconditioned, z: tf.Tensor, tolerance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return zᵀ log(A) z of each probe z [P, C], [C], and y with Σ_k y_kᵀ dA y_k, [P, C·`lanczos.RANK`]."""
    vectors, count, T = lanczos.tridiagonal(system.product, z, tolerance, 0, STEPS, KEPT)
    squared = tf.reduce_sum(z * z, axis=0)
    value, c = lanczos.logarithm(T)
    c = tf.transpose(c * tf.sqrt(squared)[:, None, None], [1, 0, 2])  # [m, C, rank]

    def add(k: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return k + 1, y + tf.cast(vectors.read(k), DTYPE)[..., None] * c[k]

    y = tf.zeros([*z.shape, c.shape[2]], DTYPE)
    _, y = tf.while_loop(lambda k, _: k < count, add, (tf.constant(0), y), parallel_iterations=1)
    return squared * value, tf.reshape(y, [z.shape[0], -1])


def _pairs(cliques: tf.Tensor, x: tf.Tensor, s: tf.Tensor, schedule: Any) -> tf.Tensor:
    """Return Σ s_n x_c over columns [P, C] for each neighbour c of each datum n, [N, m]."""
    x, s = tf.pad(schedule.gather(x), [[0, 1], [0, 0]]), schedule.gather(s)

    def step(rows: list[tf.Tensor], _: Any) -> Any:
        clique, own = rows
        return [tf.linalg.matvec(tf.gather(x, clique[:, 1:]), own)], []

    k, columns = int(cliques.shape[1]), int(x.shape[1])
    (found,), _ = blocks.over(step, [cliques, s], k * columns, [[k - 1]])
    return found
