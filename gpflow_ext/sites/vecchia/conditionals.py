"""The Vecchia or full-scale prior of a model at its data."""

from __future__ import annotations

import tensorflow as tf

from gpflow_ext.sites import latent
from gpflow_ext.sites.vecchia import residual
from gpflow_ext.sites.vecchia.coefficients import coefficients
from gpflow_ext.sites.vecchia.full_scale import FullScale
from gpflow_ext.sites.vecchia.prior import Vecchia, assemble
from gpflow_ext.sites.vecchia.structure import Structure


def at(model: latent.Functions, structure: Structure, X: tf.Tensor) -> Vecchia | FullScale:
    """Return the prior at the data X [N, D], with GPflow's default jitter on K. O(Nm³), or O(N(m³ + M²))."""
    tree, Z = structure.tree(), structure.Z
    kernels, phi = latent.kernels(model.kernel), None
    if Z is not None:
        phi = residual.features(kernels, Z, residual.root(model.kernel, Z), X)
    a, D = coefficients(kernels, X, tree.cliques, phi)
    omega = assemble(tree, a, D, structure.num_entries)
    own = latent.variances(model.kernel, X)
    found = Vecchia(latent.mean(model, X), a, D, omega, own, tree)
    return found if phi is None else FullScale(found, phi)
