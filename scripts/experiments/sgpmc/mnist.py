"""MNIST continued by sampling, section 4.4 of Hensman et al. (2015): v in free form at the hyperparameters of the Gaussian approximation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.utilities import to_default_float

import gpflow_ext as gpx
from gpflow_ext.likelihoods.largest import probability_largest
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.prediction.metrics import evaluated_rows
from gpflow_ext.sampling import diagnostics

from ...shared import report
from ...shared.journal import Journal, Record
from ..robustmax import runs as gaussian
from . import runs

CHAINS, WARM_UP = 4, 30
SETTING = gpx.Setting(0.15, 21)  # lengths of π/ε at most, so that a normal coordinate forgets where it was
RUNS, FULL = Path("runs/reproduce_robustmax"), 20_000
SCORED, FOLLOWED, AVERAGED = 2_000, 1_000, 400  # test images of each draw's score; probabilities; draws
PAPER = {"gaussian": 0.068, "free_form": 0.064}
TEXT = """\
## MNIST, continued

{steps:,} steps of variational training as in [`robustmax.md`](robustmax.md), with {inducing} inducing points, in single precision. Then {chains}
chains of the {dimensions:,} whitened values v, {draws} draws of each after {warm_up} that were discarded, in the coordinates of the
Gaussian approximation, with a setting that was not tuned: trajectories of π/2 on average. The paper samples v and θ; here
θ is held, so that the 60,000 images are projected on the inducing points once, not at each gradient. Scores are of {averaged} of
the draws, taken evenly; the difference is that of the same test images, with its standard error over them.
"""
VERDICT = """\
The free form has a mean log density that is higher by {gain:.4f} ± {error:.4f}; in the paper it is by {paper:.3f}. One effective draw of
the worst coordinate takes {draw:.1f} s. With θ sampled too, the projection is computed anew at each gradient: 60,000 × 500² multiplications
for each chain, and as many again for its derivatives. That was not run.
"""
MIXED = """\
How the chains mixed: the worst coordinate of v, the score of each draw on {scored:,} test images, and the probability of the
right class of {followed:,} images, the worst of them.
"""


def measure(run_dir: Path, steps: int, num_draws: int) -> Record:
    """Train, or take what is trained; sample and score."""
    with gpflow.config.as_context(gaussian.SINGLE):
        found = gaussian.digits()
        gaussian.train_on(found, run_dir, steps, every=max(steps // 4, 1))
        before, densities = evaluated_rows(found.model, found.test)
        print(f"MNIST: trained, test NLPD {before['nlpd']:.4f}", flush=True)
        model = gpx.models.SGPMCFreeForm.from_gaussian(found.model, found.train)
        gpflow.set_trainable(model.kernel, False)
        gpflow.set_trainable(model.likelihood, False)
        draws = gpx.sample(
            model,
            num_draws,
            CHAINS,
            tuner=SETTING,
            warm_up=WARM_UP,
            approximate=False,
            chunk=10,
            check=False,
            checkpoint_dir=run_dir / "chains",
        )
        print(f"MNIST: {draws.num_draws} draws of each chain in {draws.seconds:.0f} s", flush=True)
        mixed = _mixed(model, draws, found.test)
        model.assign_draws(draws, most=AVERAGED)
        after, free = evaluated_rows(model, found.test)
        gain = free - densities
    return {
        "steps": steps,
        "gaussian": before["nlpd"],
        "free_form": after["nlpd"],
        "gain": float(np.mean(gain)),
        "gain_error": float(np.std(gain) / np.sqrt(len(gain))),
        "gaussian_error": before["error"],
        "free_form_error": after["error"],
        "inducing": int(model.V.shape[0]),
        "dimensions": int(model.V.shape[0] * model.V.shape[1]),
        **runs.record(draws),
        **mixed,
    }


def _mixed(model: gpx.models.SGPMCFreeForm, draws: gpx.Draws, test: Any) -> Record:
    """Return R-hat and effective sample sizes of what the draws predict."""
    X, Y = (to_default_float(part[:SCORED]) for part in test)
    own = tf.one_hot(tf.cast(Y[:, 0], tf.int32), model.likelihood.num_classes, True, False)

    @tf.function(autograph=False)
    def right(V: tf.Tensor) -> tf.Tensor:
        return probability_largest(*model.density.moments(Stack([(model.V, V)]), X), own)

    V = draws.values["V"]
    parts = np.array_split(V.reshape(-1, *V.shape[2:]), max(V.shape[0] * V.shape[1] // 50, 1))
    P = np.concatenate([right(tf.constant(part)) for part in parts]).reshape(*V.shape[:2], -1)
    epsilon = float(np.asarray(model.likelihood.epsilon))
    miss = epsilon / (model.likelihood.num_classes - 1)
    score = np.log(miss + (1.0 - epsilon - miss) * P).mean(axis=-1)
    moving = np.flatnonzero(P[..., :FOLLOWED].std(axis=(0, 1)) > 1e-3)  # others are 0 or 1 in all draws
    found = diagnostics.diagnose(
        {"score": score, **{f"image {n}": P[..., n] for n in moving}}, draws.stats, draws.seconds
    )
    images = [name for name in found.rhat if name != "score"]
    return {
        "score_rhat": found.rhat["score"],
        "score_ess": found.bulk_ess["score"],
        "images": len(images),
        "image_rhat": max(found.rhat[name] for name in images),
        "image_ess": min(found.bulk_ess[name] for name in images),
    }


def run(journal: Journal, steps: int, num_draws: int) -> None:
    """Measure, unless the journal has it."""
    run_dir = RUNS / (
        "mnist" if steps == FULL else f"mnist_{steps}"
    )  # the first is that of the robustmax experiments
    journal.once({"experiment": "mnist"}, lambda: measure(run_dir, steps, num_draws))
    print("MNIST: done", flush=True)


def document(journal: Journal) -> list[str]:
    """Return the tables of what the journal holds, as Markdown."""
    records = journal.find(experiment="mnist")
    if not records:
        return []
    one = records[-1]
    rows = [
        ["Gaussian", f"{100 * (1 - one['gaussian_error']):.2f}", f"{-one['gaussian']:.4f}", f"{-PAPER['gaussian']}"],
        ["free form", f"{100 * (1 - one['free_form_error']):.2f}", f"{-one['free_form']:.4f}", f"{-PAPER['free_form']}"],
    ]  # fmt: skip
    mixed = [
        ["v, worst coordinate", f"{one['rhat']:.3f}", f"{one['min_ess']:.0f}"],
        ["score of a draw", f"{one['score_rhat']:.3f}", f"{one['score_ess']:.0f}"],
        [f"probabilities of {one['images']} images that vary, worst", f"{one['image_rhat']:.3f}", f"{one['image_ess']:.0f}"],
    ]  # fmt: skip
    speed = [[report.number(one["ms_per_gradient"]), *runs.cells(one)]]
    numbers = {name: one[name] for name in ("steps", "inducing", "chains", "dimensions", "draws")}
    return [
        TEXT.format(**numbers, warm_up=WARM_UP, averaged=AVERAGED),
        report.table(("posterior", "test accuracy, %", "mean log density of test images", "paper"), rows),
        MIXED.format(scored=SCORED, followed=FOLLOWED),
        report.table(("", "R-hat", "ESS"), mixed),
        report.table([f"ms per gradient of {one['chains']} chains", *runs.COLUMNS], speed),
        _verdict(one),
    ]


def _verdict(one: Record) -> str:
    """Say what came of it, and what it cost."""
    return VERDICT.format(
        gain=one["gain"],
        error=one["gain_error"],
        paper=PAPER["gaussian"] - PAPER["free_form"],
        draw=1.0 / one["ess_per_second"],
    )
