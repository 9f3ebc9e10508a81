"""Sparse Gaussian process with a free-form posterior that is sampled, Hensman et al. (2015)."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import MeanAndVariance
from gpflow.inducing_variables import InducingPoints
from gpflow.kernels import MultioutputKernel
from gpflow.models import SGPMC, SVGP
from gpflow.models.util import InducingVariablesLike, inducingpoint_wrapper
from gpflow.posteriors import PrecomputeCacheType

from gpflow_ext.data import checks
from gpflow_ext.numerics import grids, linalg, stacked
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.prediction.densities import Predictions
from gpflow_ext.sampling.draws_posterior import DrawsPosterior


class SGPMCFreeForm(SGPMC):
    """The posterior of the inducing variables and of the hyperparameters together, in free form.

    With u = Lv, LLᵀ = K_uu, A = L⁻¹K_uf, the best q(v, θ) is proportional to (Hensman et al. 2015, eq. 7, 8)

        p(θ) N(v; 0, I) exp Σₙ E[log p(yₙ | fₙ)],    fₙ ~ N(μ(xₙ) + aₙᵀv, k(xₙ, xₙ) − ‖aₙ‖²)

    `gpflow_ext.sample` draws from it. Before that the model predicts as GPflow's ``SGPMC`` does, at the
    present V; afterwards it averages over the draws that it holds. The inducing points are never sampled.
    With Z = X it is the exact posterior. Where Z and X are grids and the kernel is separable, the density
    uses their Kronecker structure, see `gpflow_ext.numerics.grids`.

    Parameters
    ----------
    data
        Inputs [N, D] and targets [N, Q].
    kernel
        A kernel of one output, shared by the P latent functions; its trainable parameters need priors.
    likelihood
        Any likelihood whose ``variational_expectations`` are not random.
    mean_function
        Zero by default.
    num_latent_gps
        P; by default what the likelihood and the targets ask for.
    inducing_variable
        Inducing points [M, D]; see `gpflow_ext.inducing.kmeans`.

    Raises
    ------
    ValueError
        For data that are not finite matrices of equal length or lie outside the likelihood's support.
    NotImplementedError
        For a multi-output kernel, other inducing variables than points, or a Monte Carlo likelihood.
    """

    inducing_variable: InducingPoints

    def __init__(
        self,
        data: tuple[Any, Any],
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        mean_function: gpflow.functions.MeanFunction | None = None,
        num_latent_gps: int | None = None,
        *,
        inducing_variable: InducingVariablesLike,
    ) -> None:
        X, Y = checks.check_data(data)
        checks.check_targets(likelihood, Y)
        inducing_variable = inducingpoint_wrapper(inducing_variable)
        if isinstance(kernel, MultioutputKernel) or not isinstance(inducing_variable, InducingPoints):
            raise NotImplementedError(
                "SGPMCFreeForm shares one kernel of one output and one set of inducing points among its "
                f"latent functions; got {type(kernel).__name__} and {type(inducing_variable).__name__}."
            )
        if isinstance(likelihood, gpflow.likelihoods.MonteCarloLikelihood):
            raise NotImplementedError(
                f"The expectations of {type(likelihood).__name__} are Monte Carlo estimates: a sampler needs "
                "a density that is the same at each call. Use gpflow_ext.likelihoods.RobustMax for classes."
            )
        checks.check_inducing(inducing_variable, X)
        if num_latent_gps is None:
            num_latent_gps = likelihood.latent_dim or self.calc_num_latent_gps_from_data(
                (X, Y), kernel, likelihood
            )
        super().__init__((X, Y), kernel, likelihood, mean_function, num_latent_gps, inducing_variable)
        gpflow.set_trainable(self.inducing_variable, False)
        M = self.inducing_variable.Z.shape[0]
        eye = np.tile(np.eye(M, dtype=X.dtype), [num_latent_gps, 1, 1])
        self.q_mu = gpflow.Parameter(np.zeros([M, num_latent_gps], X.dtype), trainable=False)
        self.q_sqrt = gpflow.Parameter(eye, trainable=False)
        self._structure = self._find_structure()
        zeros = np.zeros([len(X), num_latent_gps], X.dtype)
        self.nat1 = gpflow.Parameter(zeros, trainable=False)
        self.prec = gpflow.Parameter(zeros, trainable=False)
        self.draw_names: tuple[str, ...] = ()
        self.draw_values: list[tf.Variable] = []

    @classmethod
    def from_gaussian(cls, svgp: SVGP, data: tuple[Any, Any]) -> SGPMCFreeForm:
        """Return the model with the kernel, likelihood and inducing points of a Gaussian approximation.

        They are copied. q(v) is kept as `q_mu` and `q_sqrt`, where chains start and what preconditions them.

        Parameters
        ----------
        svgp
            Any ``SVGP`` with a single-output kernel, whitened or not, q_diag or not.
        data
            All data, (X [N, D], Y [N, Q]).
        """
        parts = (svgp.kernel, svgp.likelihood, svgp.mean_function, svgp.inducing_variable)
        kernel, likelihood, mean_function, points = gpflow.utilities.deepcopy(parts)
        model = cls(data, kernel, likelihood, mean_function, svgp.num_latent_gps, inducing_variable=points)
        model.follow(svgp)
        return model

    def follow(self, svgp: SVGP) -> None:
        """Take over q(v) of a Gaussian approximation with the same kernel and inducing points.

        The sites are those whose posterior q is: Λ = −2 ∂E[log p]/∂var, ν = ∂E[log p]/∂mean + Λ mean. Where
        the likelihood is not log-concave their precision is cut at zero, so that B is positive at all θ.
        """
        self._structure = self._find_structure()  # the inducing points may have moved
        q_mu, q_sqrt = tf.convert_to_tensor(svgp.q_mu), tf.convert_to_tensor(svgp.q_sqrt)
        q_sqrt = tf.linalg.diag(tf.transpose(q_sqrt)) if q_sqrt.shape.rank == 2 else q_sqrt
        if not svgp.whiten:
            chol = tf.linalg.cholesky(self.gram(Stack([]))[0])
            q_mu = tf.linalg.triangular_solve(chol, q_mu)
            q_sqrt = tf.linalg.triangular_solve(tf.broadcast_to(chol, tf.shape(q_sqrt)), q_sqrt)
        self.q_mu.assign(q_mu)
        self.q_sqrt.assign(q_sqrt)
        self.V.assign(q_mu)
        X, Y = self.data
        mean, var = self.gaussian_moments(q_mu, q_sqrt)
        with tf.GradientTape() as tape:
            tape.watch([mean, var])
            value = tf.reduce_sum(self.likelihood.variational_expectations(X, mean, var, Y))
        slope, bend = tape.gradient(value, [mean, var])
        prec = tf.nn.relu(-2.0 * bend)
        self.prec.assign(prec)
        self.nat1.assign(slope + prec * mean)

    def gaussian_moments(self, q_mu: tf.Tensor, q_sqrt: tf.Tensor) -> MeanAndVariance:
        """Return mean and variance [N, P] of f at the data for q(v), [M, P] and [P, M, M]; fast on grids."""
        now = Stack([])
        A = self.projection(now)
        mean, residual = self._moments(now, self.data[0], A, q_mu[None])
        return mean[0], residual[0] + A.spread(q_sqrt)

    @property
    def is_approximated(self) -> bool:
        """Whether the model has a Gaussian approximation, from `follow`."""
        return bool(tf.reduce_any(tf.convert_to_tensor(self.prec) > 0.0))

    def gram(self, stack: Stack) -> tf.Tensor:
        """Return K_uu with GPflow's default jitter for each member, [C or 1, M, M].

        On a grid the jitter is that of the factors, see `gpflow_ext.numerics.grids`.
        """
        if self._structure is not None:
            return self._structure.gram(self.kernel, stack)
        K = stacked.gram(self.kernel, stack, tf.convert_to_tensor(self.inducing_variable.Z))
        return tf.linalg.set_diag(K, tf.linalg.diag_part(K) + gpflow.default_jitter())

    @property
    def structure(self) -> grids.Structure | None:
        """The Kronecker structure between the inducing points and the data, which the density then uses."""
        return self._structure

    def _find_structure(self) -> grids.Structure | None:
        return grids.structure(self.kernel, self.inducing_variable.Z.numpy(), self.data[0].numpy())

    def project(self, stack: Stack, X: tf.Tensor, chol: tf.Tensor | None = None) -> grids.Dense:
        """Return A = L⁻¹K_uf for each member. O(C(M³ + NM²)), with the factors L at hand O(CNM²)."""
        cross = stacked.gram(self.kernel, stack, tf.convert_to_tensor(self.inducing_variable.Z), X)
        if chol is not None:
            return grids.Dense(linalg.triangular_solve(chol, cross))
        K = self.gram(stack)
        return grids.Dense(linalg.whiten(K, tf.linalg.cholesky(tf.stop_gradient(K)), cross))

    def moments(self, stack: Stack, X: tf.Tensor, chol: tf.Tensor | None = None) -> MeanAndVariance:
        """Return mean and variance of f(X) given v and θ, each [C, N, P].

        O(CNM²), some rows at a time; by `grids.Structure.project` where the model has a structure and X is
        a grid as well.
        """
        on_grid = None if self._structure is None else self._structure.at(X)
        if on_grid is not None:
            return self._moments(stack, X, on_grid.project(self.kernel, stack), stack[self.V])
        C, M = stack[self.V].shape[:2]
        chol = tf.linalg.cholesky(self.gram(stack)) if chol is None else chol
        pieces = stacked.pieces(X, (C or 1) * M)
        parts = [self._moments(stack, x, self.project(stack, x, chol), stack[self.V]) for x in pieces]
        mean, var = (tf.concat(part, axis=1) for part in zip(*parts, strict=True))
        return mean, var

    def _moments(
        self, stack: Stack, X: tf.Tensor, A: grids.Dense | grids.Kronecker, V: tf.Tensor
    ) -> MeanAndVariance:
        """Return μ + Aᵀv and k_nn − ‖aₙ‖² (Hensman et al. 2015, eq. 8), each [C, N, P]."""
        mean = stacked.mean(self.mean_function, stack, X) + A.apply(V)
        residual = stacked.variances(self.kernel, stack, X) - A.explained()
        return mean, tf.broadcast_to(tf.nn.relu(residual)[:, :, None], tf.shape(mean))

    def covariance(self, stack: Stack, X: tf.Tensor, chol: tf.Tensor) -> MeanAndVariance:
        """Return mean [C, N, P] and covariance [C, N, N] of f(X) given v and θ. O(C(NM² + N²M))."""
        projection = self.project(stack, X, chol)
        mean, _ = self._moments(stack, X, projection, stack[self.V])
        cov = stacked.gram(self.kernel, stack, X) - tf.matmul(projection.A, projection.A, transpose_a=True)
        return mean, tf.broadcast_to(cov, [tf.shape(mean)[0], tf.shape(X)[0], tf.shape(X)[0]])

    def log_likelihoods(self, stack: Stack) -> tf.Tensor:
        """Return Σₙ E[log p(yₙ | fₙ)] for each member, [C]."""
        return self.expected(stack, self.projection(stack), stack[self.V])

    def projection(self, stack: Stack) -> grids.Dense | grids.Kronecker:
        """Return A = L⁻¹K_uf of the data; on grids by `grids.Structure.project`."""
        if self._structure is not None:
            return self._structure.project(self.kernel, stack)
        return self.project(stack, self.data[0])

    def expected(self, stack: Stack, A: grids.Dense | grids.Kronecker, V: tf.Tensor) -> tf.Tensor:
        """Return Σₙ E[log p(yₙ | fₙ)] given the projection and v [C, M, P], [C]. O(CNMP)."""
        X, Y = self.data
        terms = stacked.per_datum(
            self.likelihood.variational_expectations,
            self.likelihood,
            stack,
            X,
            *self._moments(stack, X, A, V),
            Y,
        )
        return tf.reduce_sum(terms, axis=-1)

    def conditional_log_likelihoods(self, stack: Stack) -> tf.Tensor:
        """Return Σₙ E[log p(yₙ | fₙ)] + log N(v; 0, I) − log q(v | θ), [C]; the stack has z in place of V.

        q(v | θ) = N(m, B⁻¹) is what the Gaussian sites of the approximation say of v at θ, v = m + R⁻ᵀz. In
        these coordinates the posterior of z hardly depends on θ: what ties v and θ together does not hold up
        the sampler. Times p(θ) N(z; 0, I) it is the density of (z, θ). O(C(PM³ + PNM²)), less on grids.
        """
        A = self.projection(stack)
        V, half_log_det = self._from_conditional(stack, A)
        z = stack[self.V]
        shift = 0.5 * tf.reduce_sum(z**2 - V**2, axis=[1, 2])
        return self.expected(stack, A, V) + shift - half_log_det

    def from_conditional(self, stack: Stack) -> Stack:
        """Return the stack with v = m(θ) + R(θ)⁻ᵀz in the place of z."""
        V, _ = self._from_conditional(stack, self.projection(stack))
        return Stack((p, V if p is self.V else value) for p, value in stack.values)

    def _from_conditional(
        self, stack: Stack, A: grids.Dense | grids.Kronecker
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return v [C, M, P] and ½ log|B| [C] for B = I + AΛAᵀ = RRᵀ and m = B⁻¹Aρ, ρ = ν − Λμ."""
        rho = self.nat1 - self.prec * stacked.mean(self.mean_function, stack, self.data[0])  # [C or 1, N, P]
        B = A.weighted(tf.transpose(tf.convert_to_tensor(self.prec)))  # [C or 1, P, M, M]
        R = tf.linalg.cholesky(tf.linalg.set_diag(B, tf.linalg.diag_part(B) + 1.0))
        pulled = tf.linalg.matrix_transpose(A.pull(rho))[..., None]  # [C, P, M, 1]
        z = tf.linalg.matrix_transpose(stack[self.V])[..., None]
        R = tf.broadcast_to(R, tf.concat([tf.shape(z)[:1], tf.shape(R)[1:]], axis=0))
        root = tf.linalg.triangular_solve(R, tf.broadcast_to(pulled, tf.shape(z)))
        V = tf.linalg.triangular_solve(R, root + z, adjoint=True)[..., 0]
        logs = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(R)), axis=[1, 2])
        return tf.linalg.matrix_transpose(V), logs

    def log_likelihood_lower_bound(self) -> tf.Tensor:
        """Return Σₙ E[log p(yₙ | fₙ)] at the present V and hyperparameters, []."""
        return self.log_likelihoods(Stack([(self.V, tf.convert_to_tensor(self.V)[None])]))[0]

    def assign_draws(self, draws: Any, most: int | None = 200) -> None:
        """Hold draws: from now on predictions average over them.

        Parameters
        ----------
        draws
            What `gpflow_ext.sample` returned for this model; ``None`` forgets those that are held.
        most
            Evenly spaced draws of all chains to hold; ``None`` holds all.
        """
        held = {} if draws is None else draws.flat(most)
        known = {name.lstrip(".") for name in gpflow.utilities.parameter_dict(self)}
        if set(held) - known or (held and "V" not in held):
            raise ValueError(f"These are draws of another model: they hold {', '.join(held)}.")
        self.draw_names = tuple(held)
        self.draw_values = [
            tf.Variable(tf.cast(value, gpflow.default_float()), trainable=False) for value in held.values()
        ]

    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> DrawsPosterior:
        """Return what predicts by the draws that are held, or at the present V; see `gpflow.posteriors`."""
        return DrawsPosterior(self, precompute_cache)

    def held(self) -> Stack:
        """Return the draws that are held, [S, *shape] of each parameter, or the present V alone."""
        parameters = {name.lstrip("."): p for name, p in gpflow.utilities.parameter_dict(self).items()}
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

    def predict_f_samples(
        self,
        Xnew: Any,
        num_samples: int | None = None,
        full_cov: bool = True,
        full_output_cov: bool = False,
    ) -> tf.Tensor:
        """Return samples of f(Xnew), [num_samples, N, P] or [N, P], each from a draw taken at random."""
        if not full_cov or full_output_cov:
            raise NotImplementedError(
                "Samples are of all rows together: leave out full_cov and full_output_cov."
            )
        found = self.posterior(None).sample_f(Xnew, num_samples or 1)
        return found[0] if num_samples is None else found

    @inherit_check_shapes
    def predict_y(self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False) -> MeanAndVariance:
        """Return mean and variance of y at Xnew, those of the mixture over the draws."""
        if full_cov or full_output_cov:
            raise NotImplementedError("predict_y gives variances: leave out full_cov and full_output_cov.")
        return self.predictions(tf.convert_to_tensor(Xnew)).mean_and_var()

    @inherit_check_shapes
    def predict_log_density(
        self, data: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tf.Tensor:
        """Return log (1/S) Σ_s p(yₙ | xₙ, draw s), [N]: densities are averaged, not their logarithms."""
        if full_cov or full_output_cov:
            raise NotImplementedError("predict_log_density treats the rows alone: leave out full_cov.")
        X, Y = map(tf.convert_to_tensor, data)
        return self.predictions(X).log_density(Y)
