"""Sparse Gaussian process with a free-form posterior that is sampled, Hensman et al. (2015)."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import MeanAndVariance
from gpflow.inducing_variables import InducingPoints, InducingVariables
from gpflow.models import SGPMC, SVGP
from gpflow.models.util import InducingVariablesLike
from gpflow.posteriors import PrecomputeCacheType

from gpflow_ext.data import checks, held, inducing
from gpflow_ext.data.held import HoldsData
from gpflow_ext.data.own_parts import check_own_parts
from gpflow_ext.numerics import batched, grids
from gpflow_ext.numerics.batched import Rows
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.prediction.densities import Predictions
from gpflow_ext.sampling import latents
from gpflow_ext.sampling.density import FreeFormDensity
from gpflow_ext.sampling.draws_posterior import DrawsPosterior
from gpflow_ext.sampling.holds_draws import HoldsDraws
from gpflow_ext.sampling.sampled_freeform import SampledFreeForm
from gpflow_ext.sites import latent, products


class SGPMCFreeForm(HoldsDraws, HoldsData, SGPMC):
    """Sparse GP with a free-form joint posterior of inducing variables and hyperparameters, which is sampled.

    With u = Lv, LLᵀ = K_uu, A = L⁻¹K_uf, the best q(v, θ) is proportional to (Hensman et al. 2015, eq. 7, 8)

        p(θ) N(v; 0, I) exp Σₙ E[log p(yₙ | fₙ)],    fₙ ~ N(μ(xₙ) + aₙᵀv, k(xₙ, xₙ) − ‖aₙ‖²)

    `gpflow_ext.sample` draws from it. Before that the model predicts as GPflow's ``SGPMC`` does, at the
    current V; afterwards it averages over the draws that it holds. The inducing points are never sampled.
    With Z = X it is the exact posterior. If Z and X are grids and the kernel is separable, the density
    uses their Kronecker structure, see `gpflow_ext.numerics.grids`.

    Parameters
    ----------
    data
        Inputs [N, D] and targets [N, Q]; see `gpflow_ext.data.held.HoldsData` for variables.
    kernel
        Its trainable parameters need priors. A kernel of one output is shared by all latent functions;
        ``SharedIndependent`` and ``SeparateIndependent`` have independent ones. The outputs of
        ``LinearCoregionalization`` are f = μ + Wg of L functions g, whose inducing variables V holds;
        likelihoods see the marginals of each fₙₚ, as in GPflow.
    likelihood
        Any likelihood whose ``variational_expectations`` are not random.
    mean_function
        Zero by default.
    num_latent_gps
        L, the number of columns of V. By default as many as the likelihood and the targets need, or as the
        kernel mixes.
    inducing_variable
        Inducing points [M, D], see `gpflow_ext.inducing.kmeans`, or any inducing variables that GPflow has
        for the kernel: ``Multiscale``, ``InducingPatches``, and ``SharedIndependentInducingVariables`` or
        ``SeparateIndependentInducingVariables`` of these; or ``"auto"``, as for `SiteModel`.

    Raises
    ------
    ValueError
        For data that are not finite matrices of equal length or lie outside the likelihood's support, and
        if the numbers of kernels, inducing variables and outputs do not agree.
    NotImplementedError
        For other multi-output kernels, or a Monte Carlo likelihood.
    """

    inducing_variable: InducingVariables

    def __init__(
        self,
        data: tuple[Any, Any],
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        mean_function: gpflow.functions.MeanFunction | None = None,
        num_latent_gps: int | None = None,
        *,
        inducing_variable: InducingVariablesLike | str,
    ) -> None:
        X, Y = checks.check_data(data)
        checks.check_targets(likelihood, Y)
        if isinstance(inducing_variable, str):
            inducing_variable = inducing.by_name(inducing_variable, X, kernel)
        inducing_variable = checks.as_inducing(inducing_variable)
        latent.check_kinds(kernel, inducing_variable, type(self).__name__)
        if isinstance(likelihood, gpflow.likelihoods.MonteCarloLikelihood):
            raise NotImplementedError(
                f"The expectations of {type(likelihood).__name__} are Monte Carlo estimates: a sampler needs "
                "a density that is the same at each call. Use gpflow_ext.likelihoods.RobustMax for classes."
            )
        latent.check_inducing(inducing_variable, kernel, X)
        num_latent_gps = self._count(kernel, inducing_variable, likelihood, Y, num_latent_gps)
        check_own_parts(kernel, likelihood, mean_function, (X, Y), num_latent_gps)
        parts = held.hold(data, (X, Y))
        super().__init__(parts, kernel, likelihood, mean_function, num_latent_gps, inducing_variable)
        gpflow.set_trainable(self.inducing_variable, False)
        M = self.inducing_variable.num_inducing
        eye = np.tile(np.eye(M, dtype=X.dtype), [num_latent_gps, 1, 1])
        self.q_mu = gpflow.Parameter(np.zeros([M, num_latent_gps], X.dtype), trainable=False)
        self.q_sqrt = gpflow.Parameter(eye, trainable=False)
        self._structure = self._find_structure()
        zeros = np.zeros([len(X), num_latent_gps], X.dtype)
        open_rows = [None, num_latent_gps]  # one compiled graph serves every number of data
        self.nat1 = gpflow.Parameter(zeros, trainable=False, shape=open_rows)
        self.prec = gpflow.Parameter(zeros, trainable=False, shape=open_rows)
        self.draw_values = []

    def _count(
        self,
        kernel: gpflow.kernels.Kernel,
        points: InducingVariables,
        likelihood: gpflow.likelihoods.Likelihood,
        Y: checks.Array,
        given: int | None,
    ) -> int:
        """Check what there are several of; return the number of latent functions."""
        mixed = None if latent.mixing(kernel) is None else len(latent.kernels(kernel))
        asked = given if mixed is None else None
        if asked is None:
            own = latent.kernels(kernel)[0]
            asked = likelihood.latent_dim or self.calc_num_latent_gps(own, likelihood, Y.shape[1])
        latent.check_numbers(kernel, points, asked)
        if mixed is not None and given not in (None, mixed):
            raise ValueError(
                f"`num_latent_gps` is {given}, but `kernel` mixes {mixed} functions: leave it out."
            )
        return mixed or asked

    @classmethod
    def from_gaussian(cls, svgp: SVGP, data: tuple[Any, Any]) -> SGPMCFreeForm:
        """Return the model with the kernel, likelihood and inducing points of a Gaussian approximation.

        They are copied. q(v) is kept as `q_mu` and `q_sqrt`, which start the chains and precondition them.

        Parameters
        ----------
        svgp
            Any ``SVGP``, whitened or not, q_diag or not, whose kernel and inducing variables the model takes.
        data
            All data, (X [N, D], Y [N, Q]).
        """
        parts = (svgp.kernel, svgp.likelihood, svgp.mean_function, svgp.inducing_variable)
        kernel, likelihood, mean_function, points = gpflow.utilities.deepcopy(parts)
        model = cls(data, kernel, likelihood, mean_function, svgp.num_latent_gps, inducing_variable=points)
        model.assign_gaussian(svgp)
        return model

    def assign_gaussian(self, svgp: SVGP) -> None:
        """Take over q(v) of a Gaussian approximation with the same kernel and inducing points.

        The sites are those whose posterior q is: Λ = −2 ∂E[log p]/∂var, ν = ∂E[log p]/∂mean + Λ mean at the
        moments of the latent functions. Where the likelihood is not log-concave their precision is cut at
        zero, so that B is positive at all θ.
        """
        self._structure = self._find_structure()  # the inducing points may have moved
        q_mu, q_sqrt = tf.convert_to_tensor(svgp.q_mu), tf.convert_to_tensor(svgp.q_sqrt)
        q_sqrt = tf.linalg.diag(tf.transpose(q_sqrt)) if q_sqrt.shape.rank == 2 else q_sqrt
        q_sqrt = tf.broadcast_to(q_sqrt, self.q_sqrt.shape)  # of each function, where one is shared
        if not svgp.whiten:
            chol = tf.linalg.cholesky(self.density.gram(Stack([]))[0])
            q_mu, q_sqrt = products.whitened(chol, q_mu, q_sqrt)
        self.q_mu.assign(q_mu)
        self.q_sqrt.assign(q_sqrt)
        self.V.assign(q_mu)
        X, Y = self.data
        mean, var = self.density.gaussian_latents(q_mu, q_sqrt)
        with tf.GradientTape() as tape:
            tape.watch([mean, var])
            outputs = self.density.gaussian_outputs(mean, var)
            value = tf.reduce_sum(self.likelihood.variational_expectations(X, *outputs, Y))
        slope, bend = tape.gradient(value, [mean, var])
        prec = tf.nn.relu(-2.0 * bend)
        self.prec.assign(prec)
        self.nat1.assign(slope + prec * mean)

    @property
    def is_approximated(self) -> bool:
        """Whether the model has a Gaussian approximation, from `assign_gaussian`."""
        return bool(tf.reduce_any(tf.convert_to_tensor(self.prec) > 0.0))

    @property
    def density(self) -> FreeFormDensity:
        """The density, many values of V and the hyperparameters at a time."""
        if tf.executing_eagerly() and self._structure is not None:
            Z = np.asarray(latent.sets(self.inducing_variable)[0].Z)
            if not np.array_equal(grids.grid(*self._structure.inducing_axes), Z):  # the user has moved them
                self._structure = self._find_structure()
        return FreeFormDensity(self)

    def sampleable(self) -> SampledFreeForm:
        """Return the model as `gpflow_ext.sample` sees it."""
        return SampledFreeForm(self)

    @property
    def structure(self) -> grids.Structure | None:
        """The Kronecker structure between the inducing points and the data, which the density then uses."""
        return self._structure

    def update_data(self, data: tuple[Any, Any], index: Any | None = None) -> None:
        """See `HoldsData.update_data`; V and the draws that are held stay until it is sampled again."""
        super().update_data(data, index)
        self.num_data = len(self.data[0])
        self._structure = self._find_structure()

    def _find_structure(self) -> grids.Structure | None:
        points = latent.sets(self.inducing_variable)[0]
        if self.follows or type(points) is not InducingPoints or not latents.are_alike(self):
            return None  # data that move at any time, or points that are not those of all functions
        return grids.structure(latent.kernels(self.kernel)[0], points.Z.numpy(), self.data[0].numpy())

    def log_likelihood_lower_bound(self) -> tf.Tensor:
        """Return Σₙ E[log p(yₙ | fₙ)] at the current V and hyperparameters, []."""
        return self.density.log_likelihoods(Stack([(self.V, tf.convert_to_tensor(self.V)[None])]))[0]

    def _shape_of_V(self) -> tf.TensorShape:
        return self.V.shape

    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> DrawsPosterior:
        """Return the posterior from the draws that are held, or at the current V; see `gpflow.posteriors`."""
        return DrawsPosterior(self, precompute_cache)

    def held(self) -> Stack:
        """Return the draws that are held, [S, *shape] of each parameter, or the current V alone."""
        parameters = self._named() if self.draw_names else {}
        drawn = zip(self.draw_names, self.draw_values, strict=True)
        return Stack(
            [(parameters[name], value) for name, value in drawn]
            or [(self.V, tf.convert_to_tensor(self.V)[None])]
        )

    def predictions(self, X: tf.Tensor) -> Predictions:
        """Return what the model predicts at X [N, D], densities averaged over the draws."""
        return self.posterior(None).predictions(X)

    @inherit_check_shapes
    def predict_f(self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False) -> MeanAndVariance:
        """Return mean and (co)variance of f(Xnew), those of the mixture over the draws."""
        return self.posterior(None).fused_predict_f(Xnew, full_cov, full_output_cov)

    @inherit_check_shapes
    def predict_f_samples(
        self,
        Xnew: Any,
        num_samples: int | None = None,
        full_cov: bool = True,
        full_output_cov: bool = False,
    ) -> tf.Tensor:
        """Return samples of f(Xnew), [batch..., num_samples, N, P], each from a draw taken at random.

        Without a number it is one, [batch..., N, P]. A sample is of one draw in all members of the batch.
        """
        if not full_cov or full_output_cov:
            raise NotImplementedError(
                "Samples are of all rows together: leave out full_cov and full_output_cov."
            )
        found = self.posterior(None).sample_f(Xnew, 1 if num_samples is None else num_samples)
        return tf.squeeze(found, axis=-3) if num_samples is None else found

    @inherit_check_shapes
    def predict_y(self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False) -> MeanAndVariance:
        """Return mean and variance of y at Xnew, those of the mixture over the draws."""
        if full_cov or full_output_cov:
            raise NotImplementedError("predict_y gives variances: leave out full_cov and full_output_cov.")
        rows = Rows(batched.numbers(Xnew, self.V.dtype))
        mean, var = self.predictions(rows.flat).mean_and_var()
        return rows.apart(mean), rows.apart(var)

    @inherit_check_shapes
    def predict_log_density(
        self, data: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tf.Tensor:
        """Return log (1/S) Σ_s p(yₙ | xₙ, draw s), [batch..., N]: densities are averaged, not logarithms."""
        if full_cov or full_output_cov:
            raise NotImplementedError(
                "predict_log_density treats the rows alone: leave out full_cov and full_output_cov."
            )
        X, Y = (Rows(batched.numbers(part, self.V.dtype)) for part in data)
        return X.apart(self.predictions(X.flat).log_density(Y.flat))
