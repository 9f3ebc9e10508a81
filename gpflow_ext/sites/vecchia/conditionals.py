"""The Vecchia or full-scale prior of a model at its data."""

from __future__ import annotations

import tensorflow as tf

from gpflow_ext.sites import latent
from gpflow_ext.sites.vecchia import residual
from gpflow_ext.sites.vecchia.coefficients import coefficients
from gpflow_ext.sites.vecchia.full_scale import FullScale
from gpflow_ext.sites.vecchia.iterative import IterativeVecchia
from gpflow_ext.sites.vecchia.iterative_structure import IterativeStructure
from gpflow_ext.sites.vecchia.prior import Vecchia, assemble
from gpflow_ext.sites.vecchia.rows import DTYPE, Rows
from gpflow_ext.sites.vecchia.structure import Structure, Tree


def at(
    model: latent.Functions, structure: Structure | IterativeStructure, X: tf.Tensor
) -> Vecchia | FullScale | IterativeVecchia:
    """Return the prior at the data X [N, D], with GPflow's default jitter on K. O(Nm³), or O(N(m³ + M²))."""
    kernels, mean, own = (
        latent.kernels(model.kernel),
        latent.mean(model, X),
        latent.variances(model.kernel, X),
    )
    cliques = structure.members()
    if isinstance(structure, IterativeStructure):
        rows = Rows(cliques, *coefficients(kernels, X, cliques))
        error = tf.constant(structure.options.tolerance, DTYPE)
        return IterativeVecchia(mean, rows, own, structure.schedule(), structure.seeds(), error)
    Z, phi = structure.Z, None
    if Z is not None:
        phi = residual.features(kernels, Z, residual.root(model.kernel, Z), X)
    rows = Rows(cliques, *coefficients(kernels, X, cliques, phi))
    found = _with_tree(structure, mean, rows, own)
    return found if phi is None else FullScale(found, phi)


def factored(prior: IterativeVecchia, tree: Tree) -> Vecchia:
    """Return the same prior as one that is solved by a factor."""
    return _with_tree(tree, prior.mean, prior.rows, prior.own)


def _with_tree(tree: Tree, mean: tf.Tensor, rows: Rows, own: tf.Tensor) -> Vecchia:
    at = tree.tree()
    return Vecchia(mean, rows.a, rows.D, assemble(at, rows.a, rows.D, tree.num_entries), own, at)
