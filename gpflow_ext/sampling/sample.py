"""Sampling a model's posterior by the four steps of Hensman et al. (2015, section 3).

1. a Gaussian approximation, the inducing points held and then freed (`gaussian_approximation`);
2. chains that start from it and move in coordinates in which it is the standard normal;
3. tuning, all of whose draws are discarded;
4. the long run, in chunks from each of which it can be resumed.

A model provides what these steps need as a `Sampleable`.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Mapping
from typing import Any

import gpflow
import tensorflow as tf

from gpflow_ext._version import __version__
from gpflow_ext.compiled import Compiled
from gpflow_ext.data.held import follow
from gpflow_ext.numerics import philox
from gpflow_ext.persistence.checkpoint import Checkpoints
from gpflow_ext.sampling import iterations
from gpflow_ext.sampling.adaptation import Start
from gpflow_ext.sampling.chains import Chains
from gpflow_ext.sampling.coordinates import Coordinates, coordinates_from
from gpflow_ext.sampling.draws import Draws
from gpflow_ext.sampling.gibbs import Blocks
from gpflow_ext.sampling.options import TunerOptions, whole
from gpflow_ext.sampling.sampleable import Sampleable, sampleable
from gpflow_ext.sampling.target import Target, coordinates
from gpflow_ext.sampling.tuners import KERNELS, Tuner, tuner_from
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.training import progress as progress_bar
from gpflow_ext.training.distribute import Shards, hold_fixed, in_scope
from gpflow_ext.training.interrupts import Interrupts
from gpflow_ext.training.scale import scale_failure

_AGAIN = "With `checkpoint_dir` the same call would go on from there."
_OF_ALL_CHAINS = ("dual_averaging", "chees", "nuts")  # tuners that adapt in each iteration


def sample(
    model: Any,
    num_samples: int = 1000,
    num_chains: int = 4,
    *,
    tuner: str | Setting = "bayesopt",
    tuning: Mapping[str, Any] | TunerOptions | None = None,
    precondition: Coordinates | str | None = "auto",
    approximate: bool | None = None,
    warm_up: int = 100,
    thin: int = 1,
    chunk: int = 100,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    seed: int = 0,
    jit_compile: bool | None = None,
    strategy: tf.distribute.Strategy | None = None,
    check: bool = True,
) -> Draws:
    """Draw from the posterior of a model's trainable parameters by Hamiltonian Monte Carlo.

    Positive parameters are sampled as their logarithms. A `SGPMCFreeForm` is first approximated by a
    Gaussian, which also moves its trainable inducing points, see `gaussian_approximation`; afterwards it
    predicts from its draws. So does a collapsed `GPRNTensor`, whose whitened nodes V [N, K] are drawn, the
    weights integrated out exactly; its chains start at its current nodes, best after `fit`.
    Any other GPflow model with a deterministic ``maximum_log_likelihood_objective`` and priors on its
    trainable parameters can be sampled too, such as ``GPMC``, ``SGPMC`` or ``GPR``; its chains start near its
    current parameters. A model of your own can customise its sampling by a method ``sampleable``, see
    `gpflow_ext.sampling.sampleable`.

    Parameters
    ----------
    model
        The model.
    num_samples
        S, the number of draws to keep from each chain.
    num_chains
        C, the number of chains; for a small model ten cost little more than two, for a large one five times
        as much.
    tuner
        ``"bayesopt"``, of Hensman et al. (2015); ``"dual_averaging"`` and ``"chees"`` for the same sampler;
        ``"nuts"`` for the no-U-turn sampler; ``"gibbs"`` for the paper's baseline, which updates v and θ of a
        `SGPMCFreeForm` in turn; or a fixed `Setting`, for Gibbs sampling if it has a ``walk``.
    tuning
        Options of the tuner, by name or as an object of `gpflow_ext.sampling.options`.
    precondition
        Preconditioner: coordinates in which the chains move, an object of `gpflow_ext.coordinates`, one of
        your own, or a name. ``"vb"``: the Gaussian approximation of v becomes a standard normal; its mean
        moves with θ to first order. ``"conditional"``: the Gaussian that the sites give v at each θ becomes
        one; an evaluation costs about twice as much, and the hyperparameters move freely. For several latent
        functions both take the sites together, as ``"joint"`` does at any size. ``"rescaled"``: nearly
        conditional, on a grid, for little more than vb. ``"fisher"``, for a `GPRNTensor`: scaled by the
        Fisher information about a node where the chains start. ``None`` or ``"whitened"``: whitened, as in
        the paper. ``"auto"``: rescaled on a grid; otherwise conditional if the kernel is sampled and V has at
        most 1024 entries or one column, else vb; fisher for a `GPRNTensor`; None for Gibbs and other models.
    approximate
        Whether to fit the Gaussian approximation; by default only if the model has none yet.
    warm_up
        Burn-in: iterations discarded after tuning.
    thin
        Iterations per draw kept. Memory is O(C·S·d) for d sampled numbers.
    chunk
        Draws kept between two checkpoints, and between updates of the progress bar.
    checkpoint_dir
        Folder for checkpoints. If it holds one of the same model and settings, the run resumes there and
        ends with the same draws as if it had never stopped. With a larger ``num_samples`` it continues.
        After tuning and burn-in, SIGINT and SIGTERM end the run after the current chunk, with a checkpoint.
        Without a folder SIGINT does so too: a model that predicts from its draws has those of whole chunks.
    progress
        Show a progress bar; by default (``None``) only if standard error is a terminal.
    seed
        Seed of all random numbers.
    jit_compile
        Compile with XLA, once whatever the number of draws; ``None`` means on GPU and TPU only. The random
        numbers are the same, except for the no-U-turn sampler; rounding makes the chains diverge in time.
    strategy
        A ``tf.distribute.MirroredStrategy``: each of its devices has its share of the chains, whose draws are
        those of a single device, up to rounding. The model may be built in its scope or outside. For
        ``"bayesopt"``, ``"gibbs"`` and a `Setting`, without XLA.
    check
        Diagnose the draws and warn about each gate that fails; see `Draws.check`.

    Returns
    -------
    The draws.

    Raises
    ------
    ValueError
        For numbers that are not whole or too small, a trainable parameter without a prior, an unknown tuner
        or wrong options for it, coordinates that do not fit the model or the sampler, or a call inside
        ``strategy.scope()``, all before any work is done; or for a checkpoint of another run.
    NotImplementedError
        For a `GPRNTensor` with the tensor posterior; for a ``strategy`` with XLA, several machines, or
        a tuner that it does not support.

    Warns
    -----
    ConvergenceWarning
        If the draws fail a gate.
    UserWarning
        If a kernel that is not sampled does not suit the scale of the inputs, see `fit`.
    """
    num_samples, num_chains = whole("num_samples", num_samples, 1), whole("num_chains", num_chains, 1)
    thin, chunk = whole("thin", thin, 1), whole("chunk", chunk, 1)
    warm_up, seed = whole("warm_up", warm_up, 0), whole("seed", seed)
    if in_scope():
        raise ValueError("Call `sample` outside of `strategy.scope()`: only the model may be built there.")
    follow(model)
    hold_fixed(model)
    tuned = tuner_from(tuner, tuning, num_chains)
    shards = None if strategy is None else _shards(strategy, num_chains, tuned, jit_compile)
    sampled = sampleable(model)
    where = _checked(sampled, precondition, tuned)
    tuned = tuned.within(where.scaled)
    dimensions = sum(each.size for each in coordinates(sampled.module))
    sampled.hold(None)
    chains = Chains(num_samples, num_chains, dimensions, gpflow.default_float())
    settings = {
        "sampler": tuned.name, "tuning": tuned.plain(), "seed": seed, "precondition": where.name,
        "num_chains": num_chains, "warm_up": warm_up, "thin": thin, "chunk": chunk,
    }  # fmt: skip
    checkpoints = None
    if checkpoint_dir is not None:
        checkpoints = Checkpoints(checkpoint_dir, model, training=settings, chains=chains)
    resumed = checkpoints is not None and checkpoints.restore_latest() is not None
    if resumed:
        chains.resize(num_samples)
        sampled = sampleable(model)  # at the parameters that were restored
    else:
        sampled.prepare(approximate, jit_compile)
    kernel = getattr(model, "kernel", None)
    held = isinstance(kernel, tf.Module) and not kernel.trainable_variables
    if held and (failure := scale_failure(model)) is not None:
        warnings.warn(failure, stacklevel=2)
    target, start = where.place(sampled)
    run, own = _runner(sampled, target, tuned, jit_compile, shards)
    if not resumed:
        z = start(philox.normal(chains.now.shape, [seed, 0], chains.now.dtype))
        chains.begin(tuned.tune(Start(run, z, seed, target, own), progress))
        chains.warm_up(run, warm_up, seed)
    interrupts = Interrupts() if checkpoints is not None else Interrupts(cut=lambda: None)
    with (
        interrupts,
        progress_bar.bar(type(model).__name__, num_samples, int(chains.done), progress) as move,
    ):
        while int(chains.done) < num_samples and not interrupts:
            chains.advance(run, min(chunk, num_samples - int(chains.done)), thin, seed)
            if checkpoints is not None:
                checkpoints.save(int(chains.done))
            move(int(chains.done), chains.log_density())
    done = int(chains.done)
    again = _AGAIN if checkpoints is None else f"The same call resumes in {checkpoint_dir}."
    if checkpoints is not None or not done:
        interrupts.end(f"Interrupted after draw {done}. {again}")
    if interrupts:
        chains.resize(done)
    named = Named(target)
    values = functools.partial(Compiled(named, batches=True), named.values)
    draws = chains.draws(values, {**settings, "gpflow_ext": __version__})
    sampled.hold(draws)
    interrupts.end(f"Interrupted after draw {done}. {again}")
    if check:
        draws.check()
    return draws


def _checked(sampled: Sampleable, precondition: Coordinates | str | None, tuner: Tuner) -> Coordinates:
    """Return the coordinates; refuse a sampler that is not for what is sampled."""
    if tuner.kind == "gibbs" and sampled.in_two_steps() is None:
        raise ValueError(
            f"Gibbs sampling needs a log likelihood in two steps, as SGPMCFreeForm has it, not "
            f"{type(sampled.module).__name__}: choose another tuner."
        )
    return coordinates_from(precondition, sampled, tuner.kind)


def _shards(
    strategy: tf.distribute.Strategy, num_chains: int, tuner: Tuner, jit_compile: bool | None
) -> Shards:
    """Return the chains sharded over the devices of a strategy."""
    if jit_compile:
        raise NotImplementedError("`jit_compile=True` does not go with `strategy`.")
    if tuner.name in _OF_ALL_CHAINS:
        raise NotImplementedError(
            f"The tuner {tuner.name!r} adapts to all chains in each iteration, which are on several devices "
            'with `strategy`: tune by "bayesopt", or on one device, and give the `Setting` it finds.'
        )
    shards = Shards(strategy, num_chains)
    if shards.num_processes > 1:
        raise NotImplementedError("Chains are on the devices of one machine: give a MirroredStrategy.")
    return shards


def _runner(
    sampled: Sampleable, target: Target, tuner: Tuner, jit_compile: bool | None, shards: Shards | None
) -> tuple[iterations.Run, int]:
    """Return what runs the chains, and of Gibbs sampling the number of coordinates that come first."""
    steps = sampled.in_two_steps() if tuner.kind == "gibbs" else None
    density = target if steps is None else Blocks(target, steps)
    run = iterations.runner(density, KERNELS[tuner.kind], jit_compile, shards)
    return run, 0 if steps is None else steps.size


class Named:
    """The parameters of a target by name."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def values(self, z: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the constrained values of each parameter at z [C, d], [C, *shape]."""
        stack = self._target.values(self._target.position(z))
        return {each.name: stack[each.parameter] for each in self._target.coordinates}
