"""MNIST continued by sampling, section 4.4 of Hensman et al. (2015): v in free form at the hyperparameters of the Gaussian approximation."""

from __future__ import annotations

from pathlib import Path

import gpflow

import gpflow_ext as gpx

from ...shared import report
from ...shared.journal import Journal, Record
from ..robustmax import runs as gaussian
from . import runs

CHAINS, WARM_UP, SETTING = 2, 20, gpx.Setting(0.15, 12)
RUNS, FULL = Path("runs/reproduce_robustmax"), 20_000
IMAGES, NODES = 60_000, 64  # of the training; of the quadrature over the largest latent function
PASSES, BANDWIDTH = (
    10,
    2e12,
)  # over what the quadrature holds, both ways; bytes that a GPU of today moves in a second
PAPER = {"gaussian": 0.068, "free_form": 0.064}
TEXT = """\
## MNIST, continued

{steps:,} steps of variational training as in [`robustmax.md`](robustmax.md), with {inducing} inducing points, in single precision. Then {chains}
chains of the {dimensions:,} whitened values v, {draws} draws of each after {warm_up} that were discarded, in the coordinates of the
Gaussian approximation, with a setting that was not tuned. The paper samples v and θ; here θ is held, so that the 60,000
images are projected on the inducing points once, not at each gradient. R-hat and ESS are those of the worst coordinate:
these are few draws of many coordinates.
"""

COST = """\
One effective draw of the worst coordinate takes {draw:.0f} s here, a hundred of them {hours:.0f} hours. So the paper's
gain is not reproduced on this machine. A GPU would be held up by its memory: a gradient of all chains reads and writes the
{numbers:.0f} million numbers of the quadrature some {passes} times, which takes {ms:.1f} ms at {bandwidth:.0f} TB/s. At that rate
a hundred effective draws would take {seconds:.0f} s. This is an estimate, and was not measured.
"""


def measure(run_dir: Path, steps: int, num_draws: int) -> Record:
    """Train, or take what is trained; sample and score."""
    with gpflow.config.as_context(gaussian.SINGLE):
        found = gaussian.digits()
        gaussian.train_on(found, run_dir, steps, every=max(steps // 4, 1))
        before = gpx.metrics.evaluate(found.model, found.test)
        print(f"MNIST: trained, test NLPD {before['nlpd']:.4f}", flush=True)
        model = gpx.models.SGPMCFreeForm.from_gaussian(found.model, found.train)
        gpflow.set_trainable(model.kernel, False)
        gpflow.set_trainable(model.likelihood, False)
        draws = gpx.sample(
            model, num_draws, CHAINS, tuner=SETTING, warm_up=WARM_UP, approximate=False, chunk=10, check=False
        )
        after = gpx.metrics.evaluate(model, found.test)
    return {
        "steps": steps,
        "gaussian": before["nlpd"],
        "free_form": after["nlpd"],
        "gaussian_error": before["error"],
        "free_form_error": after["error"],
        "inducing": int(model.V.shape[0]),
        "dimensions": int(model.V.shape[0] * model.V.shape[1]),
        **runs.record(draws),
    }


def run(journal: Journal, steps: int, num_draws: int) -> None:
    """Measure, unless the journal has it."""
    run_dir = RUNS / (
        "mnist" if steps == FULL else f"mnist_{steps}"
    )  # the first is that of the robustmax experiments
    journal.once({"experiment": "mnist"}, lambda: measure(run_dir, steps, num_draws))
    print("MNIST: done", flush=True)


def document(journal: Journal) -> list[str]:
    """Return the table of what the journal holds, as Markdown."""
    records = journal.find(experiment="mnist")
    if not records:
        return []
    one = records[-1]
    rows = [
        ["Gaussian", f"{100 * (1 - one['gaussian_error']):.2f}", f"{-one['gaussian']:.4f}", f"{-PAPER['gaussian']}"],
        ["free form", f"{100 * (1 - one['free_form_error']):.2f}", f"{-one['free_form']:.4f}", f"{-PAPER['free_form']}"],
    ]  # fmt: skip
    columns = ("posterior", "test accuracy, %", "mean log density of test images", "paper")
    speed = [[report.number(one["ms_per_gradient"]), *runs.cells(one)]]
    text = TEXT.format(
        **{name: one[name] for name in ("steps", "inducing", "chains", "dimensions", "draws")},
        warm_up=WARM_UP,
    )
    return [
        text,
        report.table(columns, rows),
        report.table([f"ms per gradient of {CHAINS} chains", *runs.COLUMNS], speed),
        _cost(one),
    ]


def _cost(record: Record) -> str:
    """Say what an effective draw costs, and would cost on a GPU."""
    numbers = record["chains"] * IMAGES * NODES * record["dimensions"] // record["inducing"]
    gradient = PASSES * 4 * numbers / BANDWIDTH  # seconds, in single precision
    draw = 1.0 / record["ess_per_second"]
    return COST.format(
        draw=draw,
        hours=100 * draw / 3600,
        numbers=1e-6 * numbers,
        passes=PASSES,
        ms=1e3 * gradient,
        bandwidth=BANDWIDTH / 1e12,
        seconds=100 * draw * gradient / (1e-3 * record["ms_per_gradient"]),
    )
