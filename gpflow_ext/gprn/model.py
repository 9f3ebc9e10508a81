"""Gaussian process regression network for many outputs, Wilson et al. (2012), Li et al. (2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import gpflow
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import MeanAndVariance
from gpflow.models import GPModel, InternalDataTrainingLossMixin
from gpflow.models.util import InducingVariablesLike
from gpflow.posteriors import PrecomputeCacheType

from gpflow_ext.gprn import conditional, node_kernels, outputs, priors, renewal
from gpflow_ext.gprn.collapsed import CollapsedPosterior
from gpflow_ext.gprn.conditional import NetworkPrior, View
from gpflow_ext.gprn.draws import DrawsPosterior
from gpflow_ext.gprn.missing import PredictsMissing
from gpflow_ext.gprn.posterior import ApproximatePosterior, NetworkPosterior
from gpflow_ext.gprn.sampled import SampleableNetwork, SampledNetwork
from gpflow_ext.gprn.scales import HasOutputScales
from gpflow_ext.gprn.tensor import TensorPosterior
from gpflow_ext.gprn.tensor_normal import output_shape as chosen_shape
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling.holds_draws import HoldsDraws


class GPRNTensor(
    PredictsMissing,
    HasOutputScales,
    HoldsDraws,
    renewal.FollowsVariables,
    GPModel,
    InternalDataTrainingLossMixin,
):
    """Regression on D outputs whose correlations depend on the input: y = W(x)f(x) + ε, ε ~ N(0, σ²I).

    K nodes f_k ~ GP(0, k_f + nugget·δ) and all D·K weights w_dk ~ GP(0, k_w) (Wilson et al. 2012). The bound

        log p(Y | X) ≥ E_q[log p(Y | W, F)] − KL[q(W) || p(W)] − KL[q(F) || p(F)]

    is in closed form for both posteriors. ``"collapsed"``: the optimal q(W) is integrated out and q(F) has
    full covariance, so the targets enter only through the N × N matrix YYᵀ, summed in one pass; a step then
    costs O((NK)³) whatever D is. ``"tensor"``: after Li, Xing, Kirby & Zhe (2020), a matrix normal q(F) and a
    tensor normal q(W) over the axes (N, d₁, …, d_M, K), here with a covariance over N for each node, at
    O(N²DK + NDK²); its bound is never above the collapsed one at the same q(F). Only the product of the two
    kernels' variances is identified: hold one fixed.

    Centre outputs at zero. They share k_w and σ², or have scales of their own, see `HasOutputScales`. The
    start is independent regressions: F₁ = 1, other nodes are small draws of the prior; `fit` tries others.

    ``predict_f`` gives mean and (co)variance of W(x)f(x), [N, D], the nugget of the nodes included;
    ``predict_y`` adds noise. Neither is Gaussian: ``predict_log_density`` is a mixture over draws of nodes.

    Parameters
    ----------
    data
        (X [N, Q], Y [N, D]). Y may be an array, the path of a .npy file, which is memory-mapped, or a
        ``tf.data.Dataset`` of blocks [N, B] of outputs in a fixed order. NaN marks a missing target, which is
        treated exactly, at the cost of one factorisation for each distinct set of missing rows. Variables are
        followed, see `renewal.FollowsVariables`; targets in them must be complete.
    kernel
        k_f, a kernel of one output; or a list of K kernels, one for each node, each with a nugget of its own.
        GPflow's ``SeparateIndependent`` is the same as a list, ``SharedIndependent`` as one kernel.
    weight_kernel
        k_w, a kernel of one output.
    num_latent
        K, the number of nodes.
    output_shape
        (d₁, …, d_M) of the tensor posterior, with a product of at least D; nearly square by default.
    posterior
        ``"collapsed"`` or ``"tensor"``.
    noise_variance, noise_bounds
        Initial σ², and the interval that it stays in: noise-free simulators would drive it to 0.
    nugget, nugget_bounds
        The same for the variance of the nodes' white noise.
    seed
        Seed of the initial nodes.
    inducing_variable
        Inducing inputs Z [M, Q] of weights and nodes, or ``"auto"``, see `inducing.by_name`, for N up to
        10,000: the bound, which is then lower, costs O(N(MK)²) and at most O(NMKD) instead of O((NK)³). Best
        for D ≤ N: otherwise there are N² numbers to keep.
    strategy
        A ``tf.distribute`` strategy over whose devices the outputs are sharded for the pass over them, if
        there are more than N; see `gpflow_ext.distribute`.
    output_scales
        Whether outputs have scales of their own, w_dk ~ GP(0, a_d²k_w) and noise σ²r_d, which are learnt; for
        the collapsed posterior. Each output then needs factorisations of its own in a step, as one with its
        own set of missing rows does. By default they have if there are two to eight outputs, or if every
        output has different missing rows.
    separate_rows
        Whether each node, with its weights, has its own covariance over the inputs under the tensor
        posterior; by default it has. The family of Li et al. has one for all, ``False``, whose bound may be
        below that of the fully factorised posterior; the default contains both families.

    Raises
    ------
    ValueError
        For inputs that are not finite, lengths that differ, no or infinite targets, or options out of range.
    NotImplementedError
        For a multi-output kernel, or the tensor posterior on a stream, with Z, a strategy or output scales.
    """

    likelihood: gpflow.likelihoods.Gaussian
    separate_rows = False  # of what was stored before there were such
    centres_inputs = True  # before it computes distances

    def __init__(
        self,
        data: tuple[Any, Any],
        kernel: gpflow.kernels.Kernel | Sequence[gpflow.kernels.Kernel],
        weight_kernel: gpflow.kernels.Kernel,
        num_latent: int,
        output_shape: Sequence[int] | None = None,
        posterior: Literal["collapsed", "tensor"] = "collapsed",
        *,
        noise_variance: float = 0.1,
        noise_bounds: tuple[float, float] = (1e-6, 10.0),
        nugget: float = 1e-4,
        nugget_bounds: tuple[float, float] = (1e-6, 1.0),
        seed: int = 0,
        inducing_variable: InducingVariablesLike | str | None = None,
        strategy: tf.distribute.Strategy | None = None,
        output_scales: bool | None = None,
        separate_rows: bool | None = None,
    ) -> None:
        X, Y = renewal.hold(data)
        if posterior not in ("collapsed", "tensor"):
            raise ValueError(f'posterior must be "collapsed" or "tensor"; got {posterior!r}.')
        renewal.check_nodes(num_latent, seed)
        noise = renewal.bounded("noise_variance", noise_variance, noise_bounds)
        likelihood = gpflow.likelihoods.Gaussian(noise_variance, variance_lower_bound=noise_bounds[0])
        likelihood.variance = noise
        kernel = node_kernels.chosen(kernel, num_latent)
        super().__init__(kernel, likelihood, num_latent_gps=Y.num_outputs)
        self.weight_kernel, self.num_latent = node_kernels.of_one_output(weight_kernel), num_latent
        own = num_latent if node_kernels.are_separate(kernel) else None
        self.nugget = renewal.bounded("nugget", nugget, nugget_bounds, own)
        self.inducing_variable = renewal.points(inducing_variable, posterior, X, kernel)
        self.draw_values = []
        self.separate_rows = posterior == "tensor" and separate_rows is not False
        renewal.check_rows(separate_rows, posterior, own is not None)
        self.begin_scales(output_scales, posterior, Y)
        if posterior == "collapsed":
            if output_shape is not None:
                raise ValueError('output_shape is for posterior="tensor": the collapsed one needs none.')
        elif strategy is not None:
            raise NotImplementedError('`strategy` is for posterior="collapsed".')
        else:
            output_shape = chosen_shape(Y.num_outputs) if output_shape is None else output_shape
        self.begin(X, Y, output_shape, seed, strategy)

    def begin(
        self,
        X: tf.Tensor | tf.Variable,
        Y: outputs.Outputs,
        shape: Sequence[int] | None,
        seed: int,
        strategy: tf.distribute.Strategy | None,
    ) -> None:
        """Hold data and make q again, of tensors where there is an output shape."""
        if shape is not None and isinstance(Y, outputs.StreamOutputs):
            raise NotImplementedError('posterior="tensor" draws outputs: give an array or a .npy file.')
        self.num_rows = Y.num_data
        self._outputs = Y
        self.data = (X,)
        prior = self.prior()
        draws = renewal.draws(prior, self.num_latent, seed)
        self.q: CollapsedPosterior | TensorPosterior
        if shape is None:
            self.q = CollapsedPosterior(Y, draws, prior, strategy, prior.scales is not None)
            self.data = (X, Y.variable) if isinstance(Y, outputs.VariableOutputs) else (X, *self.q.data[:3])
        else:
            targets = Y.variable if isinstance(Y, outputs.VariableOutputs) else Y.gather(range(Y.num_outputs))
            self.data = (X, targets)
            self.q = TensorPosterior(targets, shape, draws, prior, self.separate_rows)

    def update_data(
        self,
        data: tuple[Any, Any],
        index: Any | None = None,
        *,
        seed: int = 0,
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        """Replace the data by (X [N', Q], Y [N', D]); training goes on from what is kept of q.

        The collapsed posterior keeps the sites of rows that stay, by position, or by ``index`` [N'], which
        gives the old row of each new one, -1 for none. The tensor posterior keeps its means. The parameters
        of q are new objects; draws are dropped.

        Raises
        ------
        ValueError
            As by the constructor; for other numbers of columns, or an index that does not fit.
        """
        renewal.renew(self, data, index, seed, strategy)

    @property
    def points(self) -> tf.Tensor:
        """The inputs on which all others are conditioned: Z or X."""
        points = self.inducing_variable
        return self.data[0] if points is None else tf.convert_to_tensor(points.Z)

    def prior(self) -> NetworkPrior:
        """Return the factors of both kernels, with GPflow's default jitter, and the noise.

        O(N³), or O(NM²) with inducing inputs, whose residuals hold the nugget then.
        """
        return priors.of(self)

    @property
    def outputs(self) -> outputs.Outputs:
        """The targets."""
        return self._outputs

    def elbo(self, batch: tuple[tf.Tensor, tf.Tensor] | None = None) -> tf.Tensor:
        """Return the lower bound of log p(Y | X) at the current q, a scalar.

        With a ``batch`` of random outputs, their numbers [B] and targets [N, B], the tensor posterior gives
        an unbiased estimate.
        """
        self.follow_data()
        if batch is None:
            return self.q.elbo(self.prior())
        if isinstance(self.q, CollapsedPosterior):
            raise NotImplementedError(
                "The collapsed bound needs no batches: its cost does not depend on the number of outputs."
            )
        return self.q.elbo(self.prior(), batch)

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        """Return the bound that training maximises."""
        return self.elbo()

    def independent_log_likelihood(self) -> tf.Tensor:
        """Return log p(Y | X) of independent regressions with the kernel k_w and noise σ², where F₁ = 1.

        It uses only the sums of the collapsed posterior; with inducing inputs it is a lower bound. O(PN³).
        """
        if not isinstance(self.q, CollapsedPosterior):
            raise NotImplementedError('independent_log_likelihood is for posterior="collapsed".')
        return self.q.independent(self.prior())

    def view(self, parts: tuple[tf.Tensor, ...], Xnew: tf.Tensor | None, pairs: bool = False) -> View:
        """Return the posterior as seen from Xnew [X, Q], or from pairs within members [B, X', Q].

        ``None`` is the rows of the data, with the white noise that their nodes have.
        """
        if Xnew is None and self.inducing_variable is None:
            return self.q.view(parts, *map(conditional.at_data, parts[:2]))
        Xnew = self.data[0] if Xnew is None else Xnew
        Xnew = tf.cast(Xnew, self.data[0].dtype)
        w = conditional.condition(self.weight_kernel, self.points, parts[0], Xnew, pairs)
        f = conditional.condition(
            self.kernel, self.points, parts[1], Xnew, pairs, tf.convert_to_tensor(self.nugget)
        )
        return self.q.view(parts, w, f)

    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> NetworkPosterior:
        """Return a GPflow posterior that caches what prediction needs; see `gpflow.posteriors`."""
        self.follow_data()
        kind = DrawsPosterior if self.draw_names else ApproximatePosterior
        return kind(self, precompute_cache)

    def sampleable(self) -> SampleableNetwork:
        """Return the model as `gpflow_ext.sample` sees it."""
        return SampleableNetwork(self.sampled(), self.assign_draws)

    def sampled(self) -> SampledNetwork:
        """Return what `gpflow_ext.sample` draws: nodes, from their means, and all but output scales."""
        self.follow_data()
        if not isinstance(self.q, CollapsedPosterior) or self.inducing_variable is not None:
            raise NotImplementedError(
                'Sampling is for GPRNTensor(posterior="collapsed") without inducing inputs.'
            )
        prior = self.prior()
        return SampledNetwork(self, self.q.seen(prior.scales), self.q.mean(prior))

    def _shape_of_V(self) -> tf.TensorShape:
        return self.q.location.shape

    def held(self) -> tuple[tf.Tensor, Stack]:
        """Return the draws that are held: V [S, N, K], and the hyperparameters that were drawn."""
        parameters = self._named()
        values = dict(zip(self.draw_names, self.draw_values, strict=True))
        V = tf.convert_to_tensor(values.pop("V"))
        return V, Stack((parameters[name], value) for name, value in values.items())

    @inherit_check_shapes
    def predict_f(self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False) -> MeanAndVariance:
        """Return mean and (co)variance of W(x)f(x), as GPflow's models do. O((NK)³ + XNDK)."""
        return self.posterior(None).fused_predict_f(Xnew, full_cov, full_output_cov)

    @inherit_check_shapes
    def predict_y(self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False) -> MeanAndVariance:
        """Return mean and variance of y, each [batch..., X, D]."""
        if full_cov or full_output_cov:
            raise NotImplementedError("predict_y gives variances: leave out full_cov and full_output_cov.")
        posterior = self.posterior(None)
        mean, var = posterior.fused_predict_f(Xnew)
        return mean, var + posterior.noise()

    def predict_outputs(self, Xnew: Any, indices: Any) -> MeanAndVariance:
        """Return mean and variance of y, [..., X, B], of outputs [B] from 0 to D − 1, else ``ValueError``."""
        return self.posterior(None).gathered(Xnew, outputs.checked(indices, self.outputs.num_outputs))

    @inherit_check_shapes
    def predict_log_density(
        self,
        data: Any,
        full_cov: bool = False,
        full_output_cov: bool = False,
        *,
        draws: int = 200,
        seed: int = 0,
    ) -> tf.Tensor:
        """Return Σ_d log p(y_nd | x_n) of data (X [..., X, Q], Y [..., X, D]), marginals of the outputs.

        It is a mixture over at least ``draws`` draws of the nodes, the weights integrated out; if draws of a
        sampler are held, over these too. Missing targets count as zero.
        """
        if full_cov or full_output_cov:
            raise NotImplementedError("Densities are marginal: leave out full_cov and full_output_cov.")
        Xnew, Y = (tf.cast(part, self.data[0].dtype) for part in data)
        return self.posterior(None).log_density(Xnew, Y, draws, seed)

    @inherit_check_shapes
    def predict_f_samples(
        self,
        Xnew: Any,
        num_samples: int | None = None,
        full_cov: bool = True,
        full_output_cov: bool = False,
        *,
        seed: int = 0,
    ) -> tf.Tensor:
        """Return draws of W(x)f(x), joint over inputs, [batch..., S, X, D]; by default one, [batch..., X, D].

        All outputs share a draw's nodes; the weights of the tensor posterior are drawn for each output alone.
        """
        if full_output_cov or not full_cov:
            raise NotImplementedError("Draws are joint over inputs: full_cov=True, full_output_cov=False.")
        samples = self.posterior(None).samples(tf.cast(Xnew, self.data[0].dtype), num_samples or 1, seed)
        return tf.squeeze(samples, axis=-3) if num_samples is None else samples
