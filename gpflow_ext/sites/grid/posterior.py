"""GPflow's cached posterior of a grid model, on the grid and off it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gpflow
import tensorflow as tf
from gpflow.posteriors import PrecomputedValue

from gpflow_ext.functions.draws import SamplesFunctions
from gpflow_ext.functions.given import Given, domain
from gpflow_ext.functions.paths import BLOCK
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.numerics import linalg
from gpflow_ext.numerics.batched import sizes
from gpflow_ext.numerics.mapped import one_by_one
from gpflow_ext.sites import latent
from gpflow_ext.sites.grid import factors
from gpflow_ext.sites.grid.prior import DTYPE, Grid
from gpflow_ext.sites.grid.structure import SAME, GridStructure
from gpflow_ext.sites.marginal_posterior import MarginalPosterior
from gpflow_ext.sites.posterior import SiteConditioned, check_precisions
from gpflow_ext.sites.vecchia.posterior import conditioned

ROWS = 1024  # places that are taken side by side
CELLS = 2**22  # numbers in the largest tensor that functions need at once
WINDOW = {
    1: 8,
    2: 5,
}  # points of an axis to which a place off the grid is related, for one and two axes; else 3


class OnGrid(SiteConditioned[Grid], Protocol):
    """Protocol of the model of the posterior."""

    structure: GridStructure


class GridPosterior(SamplesFunctions, MarginalPosterior):
    """GPflow's cached posterior, its cache α, variances and precisions in all cells, observed or not.

    The mean at a place is μ* + k*ᵀα with all cells. The variance in a cell is that of the probes. At a place
    off the grid it is, with c the cells nearest to it, a = K_c⁻¹k_c and D = k** − aᵀk_c,

        D + aᵀV_c a

    where V_c has the variances of these cells, and the correlations of (K_c⁻¹ + Λ_c)⁻¹: an approximation,
    which ignores what data beyond c say of these, and so precisions below zero too. O(G) for a place.
    ``update_cache`` reads the model again.
    """

    prior_name, one_input = "grid", "place"
    _model: OnGrid

    def _parts(self) -> tuple[tf.Tensor, ...]:
        """Return α, variances and precisions in all cells, [G, L] each, and the axes, [n_d] each."""
        prior, current = self._model.prior(), self._model.latent_sites
        factor = prior.factorise(current.prec)
        alpha = factor.weights(prior.scatter(current.nat1 - current.prec * prior.mean))
        fields = alpha, factor.variances(), tf.nn.relu(factor.inside)
        axes = map(tf.convert_to_tensor, self._model.structure.axes)
        return *(tf.transpose(field[:, 0]) for field in fields), *axes

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        parts = linalg.finite(self._parts(), self._model)
        return tuple(PrecomputedValue(part, (False,) * part.shape.rank) for part in parts)

    def _at(self, cache: tuple[tf.Tensor, ...], new: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance, less the mean function, at places [R, D], [R, L]."""
        R, D = sizes(new)
        some = functools.partial(self._some, cache)
        if isinstance(R, int) and R <= ROWS:
            return some(new)
        blocks = (R + ROWS - 1) // ROWS
        padded = tf.pad(new, [[0, blocks * ROWS - R], [0, 0]])
        kinds = (tf.TensorSpec(None, DTYPE),) * 2
        found = one_by_one(some, tf.reshape(padded, [blocks, ROWS, D]), fn_output_signature=kinds)
        mean, var = (tf.reshape(part, [blocks * ROWS, cache[0].shape[1]])[:R] for part in found)
        return mean, var

    def _some(self, cache: tuple[tf.Tensor, ...], new: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        alpha, variances, prec, *axes = cache
        crosses = factors.crosses(latent.kernels(self.kernel), new, axes)
        near = [
            _nearest(axis, tf.cast(new[:, d], DTYPE), WINDOW.get(len(axes), 3)) for d, axis in enumerate(axes)
        ]
        var = self._variance(new, axes, crosses, near, variances, prec)
        cell, there = _cells(axes, near, new)
        mean = tf.transpose(_mean(crosses, tf.transpose(alpha)[None])[0])
        return mean, tf.where(there[:, None], tf.gather(variances, cell), var)

    def functions(self) -> Given:
        """See `SamplesFunctions`.

        α̃ = (I + ΛΣ)⁻¹(ρ − Λf̃ − Λ^½ξ) in the cells for the prior draw f̃ at the data, and k*ᵀα̃ as the mean is
        found. No probe enters: the covariances are those of the exact posterior. O(G) for a place and a
        function.
        """
        X, prior, current = self._model.data[0], self._model.prior(), self._model.latent_sites
        check_precisions(current.prec, type(self._model).__name__)
        factor, axes = (
            prior.factorise(current.prec),
            list(map(tf.convert_to_tensor, self._model.structure.axes)),
        )
        pull, prec = current.nat1 - current.prec * prior.mean, current.prec

        def weights(fields: tf.Tensor) -> tf.Tensor:
            return tf.transpose(factor.weights(tf.transpose(fields, [1, 0, 2])), [1, 0, 2])

        def condition(values: tf.Tensor, numbers: Numbers) -> tf.Tensor:
            L, N, S = sizes(values)
            seen = tf.transpose(values, [1, 2, 0])  # [N, S, L]
            noise = tf.sqrt(prec)[:, None] * numbers.normal(tf.shape(seen))
            b = tf.reshape(pull[:, None] - prec[:, None] * seen - noise, [N, S * L])
            fields = tf.reshape(prior.scatter(b), [S, L, -1])
            return _in_turn(weights, fields, max(1, CELLS // int(L * fields.shape[2])))

        def correction(
            kernels: Sequence[gpflow.kernels.Kernel], _: Any, fields: tf.Tensor, new: tf.Tensor
        ) -> tf.Tensor:
            crosses, rows = factors.crosses(kernels, new, axes), int(new.shape[0] or BLOCK)
            each = rows * int(fields.shape[1] * fields.shape[2] // axes[-1].shape[0])
            found = _in_turn(lambda some: _mean(crosses, some), fields, max(1, CELLS // each))
            return tf.transpose(found, [2, 1, 0])

        return Given(
            domain(type(self._model).__name__, latent.kernels(self.kernel), (X,)),
            self._model.mean_function,
            latent.num_functions(self._model),
            condition,
            correction,
            jitter=0.0,
        )

    def _variance(
        self, new: tf.Tensor, axes: Any, crosses: Any, near: Any, variances: tf.Tensor, prec: tf.Tensor
    ) -> tf.Tensor:
        weights, explained, K, cells = [], [], [], tf.zeros([1, 1], tf.int32)
        for d, (axis, cross, here) in enumerate(zip(axes, crosses, near, strict=True)):
            n, width = int(axis.shape[0]), int(here.shape[1])
            gram = factors.gram(latent.kernels(self.kernel), d, axis, axis, len(axes))
            pairs = here[:, :, None] * n + here[:, None]
            own = tf.gather(tf.reshape(gram, [-1, n * n]), pairs, axis=1)  # [S, R, w, w]
            k = tf.gather(
                cross, tf.repeat(here[None], int(cross.shape[0]), axis=0), batch_dims=2
            )  # [S, R, w]
            largest = tf.reduce_max(tf.linalg.diag_part(own), axis=-1)[..., None, None]
            jitter = gpflow.default_jitter() * largest * tf.eye(width, dtype=DTYPE)
            a = tf.linalg.cholesky_solve(tf.linalg.cholesky(own + jitter), k[..., None])[..., 0]
            weights.append(a)
            explained.append(tf.reduce_sum(a * k, axis=-1))  # [S, R]
            K.append(own)
            cells = tf.reshape(cells[:, :, None] * n + here[:, None], [-1, cells.shape[1] * width])
        a = functools.reduce(_joined, weights)  # [S, R, W]
        V, L = (tf.transpose(tf.gather(part, cells), [2, 0, 1]) for part in (variances, prec))  # [L, R, W]
        local = conditioned(functools.reduce(_kronecker, K), L)
        scaled = a * tf.sqrt(V / tf.linalg.diag_part(local))
        seen = tf.reduce_sum(scaled * tf.linalg.matvec(local, scaled), axis=-1)
        prior = tf.transpose(tf.cast(latent.variances(self.kernel, new), DTYPE))  # [S, R]
        unseen = tf.nn.relu(prior - functools.reduce(tf.multiply, explained))
        return tf.transpose(unseen + seen)


def _mean(crosses: list[tf.Tensor], fields: tf.Tensor) -> tf.Tensor:
    """Return k*ᵀα for the factors of k* [S, R, n_d] and fields α [B, L, G], [B, L, R]."""
    B, L, _ = sizes(fields)
    columns = list(map(tf.linalg.matrix_transpose, crosses))  # [S, n_d, R]
    fields = tf.reshape(fields, [B, L, -1, sizes(columns[-1])[1]])
    fields = tf.matmul(fields, columns[-1])
    for column in columns[-2::-1]:
        fields = tf.reshape(fields, [B, L, -1, *sizes(column)[1:]])
        fields = tf.reduce_sum(fields * column[:, None], axis=3)
    return fields[:, :, 0]


def _in_turn(function: Callable[[tf.Tensor], tf.Tensor], values: tf.Tensor, size: int) -> tf.Tensor:
    """Return a function of values [S, ...], ``size`` of the S at a time."""
    S, *rest = sizes(values)
    if size >= S:
        return function(values)
    blocks = -(-S // size)
    padded = tf.pad(values, [[0, blocks * size - S], *[[0, 0]] * len(rest)])
    laid = tf.reshape(padded, [blocks, size, *rest])
    found = one_by_one(function, laid, parallel_iterations=1)
    return tf.reshape(found, [blocks * size, *sizes(found)[2:]])[:S]


def _nearest(axis: tf.Tensor, new: tf.Tensor, most: int) -> tf.Tensor:
    """Return the numbers of points of an axis [n] that lie around places [R], [R, w]."""
    n = int(axis.shape[0])
    width = min(most, n)
    before = tf.searchsorted(axis, new) - (width + 1) // 2 + width % 2
    first = tf.clip_by_value(before, 0, n - width)
    return first[:, None] + tf.range(width)


def _cells(axes: list[tf.Tensor], near: list[tf.Tensor], new: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the nearest cell of each place, and whether the place is in the middle of it, [R] each."""
    cell, there = tf.zeros([1], tf.int32), tf.constant([True])
    for d, (axis, here) in enumerate(zip(axes, near, strict=True)):
        gaps = tf.abs(tf.gather(axis, here) - tf.cast(new[:, d : d + 1], DTYPE))
        best = tf.argmin(gaps, axis=1, output_type=tf.int32)
        cell = cell * int(axis.shape[0]) + tf.gather(here, best, batch_dims=1)
        there &= tf.reduce_min(gaps, axis=1) <= SAME * (axis[-1] - axis[0])
    return cell, there


def _joined(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Return a ⊗ b of vectors [S, R, w] and [S, R, u]."""
    return tf.reshape(a[..., :, None] * b[..., None, :], [*sizes(a)[:2], a.shape[2] * b.shape[2]])


def _kronecker(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Return a ⊗ b of matrices [S, R, w, w] and [S, R, u, u]."""
    size = a.shape[2] * b.shape[2]
    full = a[..., :, None, :, None] * b[..., None, :, None, :]
    return tf.reshape(full, [*sizes(a)[:2], size, size])
