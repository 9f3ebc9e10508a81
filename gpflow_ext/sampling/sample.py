"""Sampling a model's posterior by the four steps of Hensman et al. (2015, section 3).

1. a Gaussian approximation, the inducing points held and then freed (`gaussian_approximation`);
2. chains that start from it and move in coordinates in which it is the standard normal;
3. tuning, all of whose draws are discarded;
4. the long run, in chunks from each of which it can be resumed.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.models import SVGP, BayesianModel

from gpflow_ext._version import __version__
from gpflow_ext.gprn.model import GPRNTensor
from gpflow_ext.gprn.sampled import SampledNetwork
from gpflow_ext.persistence import Checkpoints
from gpflow_ext.sampling import adaptation, hmc
from gpflow_ext.sampling.adaptation import Tuned
from gpflow_ext.sampling.chains import Chains, draws_of
from gpflow_ext.sampling.coordinates import gibbs_blocks, target_and_start
from gpflow_ext.sampling.draws import Draws
from gpflow_ext.sampling.freeform import SGPMCFreeForm
from gpflow_ext.sampling.gibbs import MetropolisWithinGibbs
from gpflow_ext.sampling.target import Target, coordinates
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.training import lbfgs
from gpflow_ext.training import progress as progress_bar
from gpflow_ext.training.scale import scale_failure

TUNERS = ("bayesopt", "dual_averaging", "chees", "nuts", "gibbs")
KERNELS: dict[str, Callable[..., hmc.Counting]] = {
    "hmc": hmc.RandomLengthHMC,
    "nuts": hmc.CountingNUTS,
    "gibbs": MetropolisWithinGibbs,
}
ADAPTATIONS: dict[str, tuple[Callable[..., Tuned], str, int]] = {  # with the option that counts its rounds
    "bayesopt": (adaptation.bayesopt, "trials", 30),
    "dual_averaging": (adaptation.dual_averaging, "iterations", 500),
    "nuts": (adaptation.dual_averaging, "iterations", 500),
    "gibbs": (adaptation.gibbs, "rounds", 25),
}
_SCALED_STEPS = (0.02, 1.0)  # where bayesopt looks in coordinates in which the posterior is nearly N(0, I)
_JOINTLY_CONDITIONAL = 1024  # entries of V whose joint precision is factorised at each θ
PRECONDITIONS = ("auto", "conditional", "rescaled", "vb", "fisher", None)


def gaussian_approximation(
    model: SGPMCFreeForm,
    *,
    steps: int = 500,
    free_inducing: bool | None = None,
    jit_compile: bool | None = None,
) -> float:
    """Fit q(v) = N(m, S) and the most probable hyperparameters of a free-form model; return the bound.

    By L-BFGS on the bound of GPflow's ``SVGP`` with the model's own kernel, likelihood and inducing points,
    first with these held, then with all free. The model's parameters move to the optimum, where chains start.

    Parameters
    ----------
    model
        The model.
    steps
        Iterations of each of the two stages, at most.
    free_inducing
        Whether there is a second stage; by default where there are fewer inducing points than data and these
        do not form a grid with them.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    """
    points = model.inducing_variable
    svgp = SVGP(
        model.kernel,
        model.likelihood,
        points,
        mean_function=model.mean_function,
        num_latent_gps=model.num_latent_gps,
    )
    closure = svgp.training_loss_closure(model.data, compile=False)
    if model.structure is not None:
        closure = functools.partial(_loss_on_a_grid, model, svgp)

    def climb() -> float:
        variables = svgp.trainable_variables
        objective = lbfgs.evaluation(closure, variables, jit_compile)
        lbfgs.climb(variables, objective, steps)
        return objective()[0]

    bound = climb()
    fewer = model.structure is None and len(model.data[0]) > points.Z.shape[0]
    if fewer if free_inducing is None else free_inducing:
        gpflow.set_trainable(points, True)
        try:
            bound = climb()
        finally:
            gpflow.set_trainable(points, False)
    if not np.isfinite(bound):
        raise ValueError(
            "The bound of the Gaussian approximation is not finite where it starts: start from other "
            "hyperparameters, or standardise the data."
        )
    model.follow(svgp)
    return bound


def _loss_on_a_grid(model: SGPMCFreeForm, svgp: SVGP) -> tf.Tensor:
    """Return the training loss of an SVGP that shares the model's parts, by Kronecker products."""
    X, Y = model.data
    mean, var = model.gaussian_moments(tf.convert_to_tensor(svgp.q_mu), tf.convert_to_tensor(svgp.q_sqrt))
    expected = tf.reduce_sum(svgp.likelihood.variational_expectations(X, mean, var, Y))
    return svgp.prior_kl() - expected - svgp.log_prior_density()


def sample(
    model: BayesianModel,
    num_samples: int = 1000,
    num_chains: int = 4,
    *,
    tuner: str | Setting = "bayesopt",
    tuning: Mapping[str, Any] | None = None,
    precondition: str | None = "auto",
    approximate: bool | None = None,
    warm_up: int = 100,
    thin: int = 1,
    chunk: int = 100,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    seed: int = 0,
    jit_compile: bool | None = None,
    check: bool = True,
) -> Draws:
    """Draw from the posterior of a model's trainable parameters by Hamiltonian Monte Carlo.

    Positive parameters are sampled as their logarithms. A `SGPMCFreeForm` is first approximated by a Gaussian
    and afterwards predicts by its draws. So does a collapsed `GPRNTensor`, whose whitened nodes V [N, K] are
    drawn, the weights integrated out exactly; its chains start at its present nodes, best after `fit`. Any
    other GPflow model with a deterministic ``maximum_log_likelihood_objective`` and priors on its trainable
    parameters can be sampled too, such as ``GPMC``, ``SGPMC`` or ``GPR``; its chains start near its present
    parameters.

    Parameters
    ----------
    model
        The model.
    num_samples
        S, draws to keep of each chain.
    num_chains
        C; of a small model ten cost little more than two, of a large one five times as much.
    tuner
        ``"bayesopt"``, of Hensman et al. (2015); ``"dual_averaging"`` and ``"chees"`` for the same sampler;
        ``"nuts"`` for the no-U-turn sampler; ``"gibbs"`` for the paper's baseline, which moves a
        `SGPMCFreeForm`'s v and θ in turn; or a `Setting` that is not tuned, of Gibbs if it has a ``walk``.
    tuning
        Keyword arguments of the tuner, see `gpflow_ext.sampling.adaptation`. In preconditioned coordinates
        ``"bayesopt"`` looks for step sizes between 0.02 and 1 unless ``step_sizes`` says otherwise.
    precondition
        Coordinates in which the chains move. ``"vb"``: the Gaussian approximation of v is their standard
        normal, its mean moving with θ to first order. ``"conditional"``: what its sites say of v at each θ
        is; an evaluation costs about twice as much, and the hyperparameters move freely. Of several latent
        functions both take the sites together, see `gpflow_ext.sampling.joint_sites`. ``"rescaled"``: on
        a grid nearly that, for little more than vb, see `gpflow_ext.sampling.rescaled`. ``"fisher"``, of a
        `GPRNTensor`: scaled by the information about a node where the chains start. ``None``: the whitened
        ones, as in the paper. ``"auto"`` is rescaled on a grid, elsewhere conditional where the kernel is
        sampled and V has at most 1024 entries or one column, else vb; fisher for a `GPRNTensor`, and none for
        Gibbs.
    approximate
        Whether to fit the Gaussian approximation; by default where the model has none yet.
    warm_up
        Iterations discarded after tuning.
    thin
        Iterations for each draw kept: memory is O(C·S·d).
    chunk
        Draws kept between two checkpoints and movements of the progress bar.
    checkpoint_dir
        Folder for checkpoints. Where it holds one of the same model and settings the run resumes there, and
        ends with the same draws as if it had never stopped. With a larger ``num_samples`` it goes on.
    progress
        Show a progress bar; ``None`` does where standard error is a terminal.
    seed
        Seed of all random numbers.
    jit_compile
        XLA, which draws other random numbers from a seed; ``None`` means on GPU and TPU only.
    check
        Diagnose the draws and warn loudly where a gate is failed; see `Draws.check`.

    Returns
    -------
    The draws.

    Raises
    ------
    ValueError
        For a trainable parameter without a prior, an unknown tuner, options that do not fit the model, or a
        checkpoint of another run.
    NotImplementedError
        For a `GPRNTensor` with the tensor posterior.

    Warns
    -----
    ConvergenceWarning
        Where the draws fail a gate.
    UserWarning
        Where a kernel that is not sampled and the scale of the inputs do not go together, see `fit`.
    """
    if min(num_samples, num_chains, thin, chunk) < 1 or warm_up < 0:
        raise ValueError(
            "`num_samples`, `num_chains`, `thin` and `chunk` must be at least 1, `warm_up` at least 0."
        )
    if not isinstance(tuner, Setting) and tuner not in TUNERS:
        raise ValueError(f"Unknown tuner {tuner!r}: give one of {', '.join(TUNERS)}, or a Setting.")
    if precondition not in PRECONDITIONS:
        raise ValueError(f"Unknown precondition {precondition!r}: give one of {PRECONDITIONS}.")
    free_form = isinstance(model, SGPMCFreeForm)
    kind = _kind(tuner)
    precondition = _coordinates(model, kind, precondition)
    tuning = dict(tuning or {})
    predicts = isinstance(model, SGPMCFreeForm | GPRNTensor)
    if predicts:
        model.assign_draws(None)
        if tuner == "bayesopt" and precondition is not None:
            tuning.setdefault("step_sizes", _SCALED_STEPS)
    dimensions = sum(each.size for each in coordinates(_sampled(model)))
    chains = Chains(num_samples, num_chains, dimensions, gpflow.default_float())
    settings = {
        "sampler": str(tuner), "tuning": json.dumps(tuning, sort_keys=True), "seed": seed,
        "precondition": precondition, "num_chains": num_chains, "warm_up": warm_up, "thin": thin,
        "chunk": chunk,
    }  # fmt: skip
    checkpoints = None
    if checkpoint_dir is not None:
        checkpoints = Checkpoints(checkpoint_dir, model, training=settings, chains=chains)
    resumed = checkpoints is not None and checkpoints.restore_latest() is not None
    if resumed:
        chains.resize(num_samples)
    if free_form and not resumed and (approximate or (approximate is None and not model.is_approximated)):
        gaussian_approximation(model, jit_compile=jit_compile)
    if not model.kernel.trainable_variables and (failure := scale_failure(model)) is not None:
        warnings.warn(failure, stacklevel=2)
    target, start = target_and_start(_sampled(model), precondition)
    blocks = gibbs_blocks(model, target) if kind == "gibbs" else None
    run = hmc.runner(blocks or target, KERNELS[kind], jit_compile)
    if not resumed:
        z = start(tf.random.stateless_normal(chains.now.shape, [seed, 0], dtype=chains.now.dtype))
        options = {**({"block": blocks.size} if blocks else {}), **tuning}
        tuned = _tune(tuner, run, target, z, seed, options, progress)
        chains.remember(tuned.trials)
        chains.now.assign(tuned.positions)
        chains.configure(tuned.setting)
        chains.warm_up(run, warm_up, seed)
    with progress_bar.bar(type(model).__name__, num_samples, int(chains.done), progress) as move:
        while int(chains.done) < num_samples:
            chains.advance(run, min(chunk, num_samples - int(chains.done)), thin, seed)
            if checkpoints is not None:
                checkpoints.save(int(chains.done))
            move(int(chains.done), float(tf.reduce_mean(chains.kept.log_density[int(chains.done) - 1])))
    draws = Draws(
        draws_of(chains.kept.position, functools.partial(_named, target)),
        chains.stats(),
        chains.setting,
        float(chains.seconds),
        chains.recalled(),
        {**settings, "gpflow_ext": __version__},
    )
    if predicts:
        model.assign_draws(draws)
    if check:
        draws.check()
    return draws


def _sampled(model: BayesianModel) -> BayesianModel | SampledNetwork:
    """Return what holds the parameters that are sampled."""
    return model.sampled() if isinstance(model, GPRNTensor) else model


def _coordinates(model: BayesianModel, kind: str, precondition: str | None) -> str | None:
    """Return the coordinates for a model and a kind of sampler."""
    free_form, network = isinstance(model, SGPMCFreeForm), isinstance(model, GPRNTensor)
    if free_form and precondition == "auto":
        few = model.num_latent_gps == 1 or tf.size(model.V) <= _JOINTLY_CONDITIONAL
        dense = "conditional" if few and model.kernel.trainable_parameters else "vb"
        precondition = None if kind == "gibbs" else dense if model.structure is None else "rescaled"
    if network and precondition == "auto":
        precondition = "fisher"
    if kind == "gibbs" and (not free_form or precondition not in (None, "vb")):
        raise ValueError("Gibbs sampling is for SGPMCFreeForm, with `precondition` None or 'vb'.")
    if (precondition == "fisher") != (network and precondition is not None):
        raise ValueError("`precondition` must be 'fisher' or None for GPRNTensor, 'fisher' for it alone.")
    return precondition


def _kind(tuner: str | Setting) -> str:
    """Return which of `KERNELS` a tuner is for."""
    if isinstance(tuner, Setting):
        return "gibbs" if tuner.walk > 0.0 else "hmc"
    return tuner if tuner in KERNELS else "hmc"


def _tune(
    tuner: str | Setting,
    run: hmc.Run,
    target: Target,
    z: tf.Tensor,
    seed: int,
    options: dict[str, Any],
    progress: bool | None,
) -> Tuned:
    if isinstance(tuner, Setting):
        return Tuned(tuner, z, ())
    if tuner == "chees":
        return adaptation.chees(target, z, seed, **options)
    adapt, count, default = ADAPTATIONS[tuner]
    with progress_bar.bar("tuning", options.get(count, default), 0, progress) as move:
        return adapt(run, z, seed, progress=move, **options)


def _named(target: Target, z: tf.Tensor) -> dict[str, tf.Tensor]:
    stack = target.values(target.position(z))
    return {each.name: stack[each.parameter] for each in target.coordinates}
