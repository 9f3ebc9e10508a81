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
from gpflow_ext.sites.vecchia.structure import Structure


def at(
    model: latent.Functions, structure: Structure | IterativeStructure, X: tf.Tensor
) -> Vecchia | FullScale | IterativeVecchia:
    """Return the prior at the data X [N, D], with GPflow's default jitter on K. O(Nm³), or O(N(m³ + M²))."""
    kernels, mean, own = (
        latent.kernels(model.kernel),
        latent.mean(model, X),
        latent.variances(model.kernel, X),
    )
    if isinstance(structure, IterativeStructure):
        cliques = tf.convert_to_tensor(structure.cliques)
        rows = Rows(cliques, *coefficients(kernels, X, cliques))
        error = tf.constant(structure.options.tolerance, DTYPE)
        return IterativeVecchia(mean, rows, own, structure.schedule(), structure.seeds(), error)
    tree, Z, phi = structure.tree(), structure.Z, None
    if Z is not None:
        phi = residual.features(kernels, Z, residual.root(model.kernel, Z), X)
    a, D = coefficients(kernels, X, tree.cliques, phi)
    found = Vecchia(mean, a, D, assemble(tree, a, D, structure.num_entries), own, tree)
    return found if phi is None else FullScale(found, phi)
