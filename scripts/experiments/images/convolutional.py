"""Convolutional Gaussian processes on MNIST, for the table of the literature: trained in slices, which can be resumed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import gpflow
import numpy as np

import gpflow_ext as gpx

from ...shared import report
from ...shared.journal import Journal, Record
from . import runs
from .runs import CLASSES, NOISE, SIDE, VARIANCE, Array, Images

PATCH, SEEN, SLICE = 5, 2000, 50  # pixels; images whose patches are drawn; steps between two checkpoints
KINDS = {
    "weighted": gpx.kernels.Convolutional,
    "translation-insensitive": gpx.kernels.TranslationInsensitive,
}
TEXT = """\
## Convolutional kernels

A squared exponential on patches of {patch} x {patch} pixels at stride 1, its weights trained (`gpx.kernels.Convolutional`), and the same with
the places of patches (`gpx.kernels.TranslationInsensitive`). M inducing patches are drawn from those of the training images that are
not blank. q starts from labels. Then come steps on minibatches of B images, natural gradients for q and Adam for all else.
By the recipe "natural" q is held while the rest moves, and γ and the rate of Adam fall by a cosine over all steps. By the recipe
"dual" q follows the rest, and patches move by a tenth of the rate. `images` is the number of training images. CPU seconds are
those of training.

The first length scale was chosen on validation images, from labels alone. No other setting of "natural" was chosen by a
score, and on the test images it lost what the start knew. So the test images were looked at twice. The rate, γ and first ε of "dual"
were chosen in between, for the weighted kernel, in trials on 2,000 validation images, which are not among the rows.

{table}
Van der Wilk, Rasmussen & Hensman (2017) train the weighted kernel with M = 750 and B = 200. By their published commands Adam has a rate of
0.001 that falls tenfold every 90,000 steps. They report about 1.2 % errors (from memory, not read again). The longest run here takes
{epochs} passes over the data: it is no test of where the kernel settles.
"""


class Setting(NamedTuple):
    """What one run does."""

    kernel: str
    inducing: int = 500
    lengthscale: float = 1.0
    images: int | None = None  # for training; all by default
    steps: int = 1000  # after the start from labels
    batch: int = 200
    gamma: float = 0.1
    rate: float = 0.005
    first_epsilon: float = 0.02
    recipe: str = "dual"


BEFORE = {"first_epsilon": 0.001, "recipe": "natural"}  # of records that do not name them


def build(X: Array, setting: Setting, seed: int) -> gpx.models.SVGPRobustMax:
    """Return the model at its prior, its inducing patches drawn from images X [N, 784]."""
    rng = np.random.default_rng(seed)
    base = gpflow.kernels.SquaredExponential(VARIANCE, setting.lengthscale)
    kernel = KINDS[setting.kernel](base, [SIDE, SIDE], [PATCH, PATCH])
    patches = np.asarray(kernel.get_patches(X[rng.permutation(len(X))[:SEEN]]))  # [2000, P, 25]
    chosen = rng.choice(np.flatnonzero(patches.any(axis=2)), setting.inducing, replace=False)
    Z = patches.reshape(-1, PATCH**2)[chosen]
    points: Any = gpflow.inducing_variables.InducingPatches(Z)
    if isinstance(kernel, gpx.kernels.TranslationInsensitive):
        points = gpx.LocatedPatches(Z, np.asarray(kernel.locations)[chosen % patches.shape[1]])
    return gpx.models.SVGPRobustMax(
        kernel + gpflow.kernels.White(NOISE), CLASSES, points, num_data=len(X), epsilon=setting.first_epsilon
    )


def measure(
    journal: Journal, images: Images, setting: Setting, key: Record, folder: Path, threads: int | None
) -> None:
    """Train, or go on from the last slice in the folder; record seconds and bounds on the way and scores at the end."""
    if journal.find(part="convolutional", **key):
        return
    X, Y = (part[: setting.images] for part in images.train)
    model, seed = build(X, setting, key["seed"]), key["seed"]
    progress: Record = {"part": "convolutional progress", **key}
    journal.heading = {"where": report.environment(threads)}
    for done in range(0, setting.steps + 1, SLICE):
        begin, found = time.process_time(), {}
        if done:
            found = _slice(model, (X, Y), setting, done, seed, folder)
        elif not folder.is_dir():
            gpx.start_from_labels(model, (X, Y), seed=seed)
        if not journal.find(**progress, done=done):
            journal.add({**progress, "done": done, "seconds": time.process_time() - begin, **found})
    seconds = sum(line["seconds"] for line in journal.find(**progress))
    scores = runs.scores(runs.probabilities(model, images.test[0]), images.test[1])
    journal.add({"part": "convolutional", **key, "seconds": seconds, **scores, **_learnt(model)})


def _slice(
    model: gpx.models.SVGPRobustMax,
    data: tuple[Array, Array],
    setting: Setting,
    done: int,
    seed: int,
    folder: Path,
) -> Record:
    """Go on to a number of steps, from the checkpoints in the folder; return the mean bound on the minibatches."""
    result = gpx.fit(
        model,
        data,
        recipe=setting.recipe,
        steps=done,
        minibatch_size=setting.batch,
        gamma=setting.gamma,
        rate=setting.rate,
        decay_steps=None,
        starts=1,
        seed=seed,
        progress=False,
        checkpoint_dir=folder,
        checkpoint_every=SLICE,
    )
    return {"bound": float(result.objective.mean())} if len(result.objective) else {}


def _learnt(model: gpx.models.SVGPRobustMax) -> Record:
    kernel = model.kernel.kernels[0]
    found = {
        "epsilon": float(np.asarray(model.likelihood.epsilon)),
        "final_lengthscale": float(kernel.base_kernel.lengthscales.numpy()),
        "final_variance": float(kernel.base_kernel.variance.numpy()),
    }
    if isinstance(kernel, gpx.kernels.TranslationInsensitive):
        found["final_location_lengthscale"] = float(kernel.location_kernel.lengthscales.numpy())
    return found


def section(records: list[Record]) -> str:
    """Return the part of the page on these kernels; nothing if there are no records of them."""
    records = [{**BEFORE, **record} for record in records if "convolutional" in record.get("part", "")]
    lines = [record for record in records if record["part"] == "convolutional"]
    open_runs = _unfinished(records, lines)
    if not lines + open_runs:
        return ""
    rows = [
        [
            line["kernel"], line["on"], f"{line['images'] or 'all'}", f"{line['inducing']:,}", f"{line['batch']}",
            *((line["recipe"], f"{line['rate']:g}") if line["steps"] else "--"), f"{line['steps']:,}", f"{line['lengthscale']:g}", str(line["seed"]), f"{100 * (1 - line['error']):.2f}",
            f"{line['nlpd']:.4f}", f"{100 * line['calibration']:.2f}", f"{line['seconds']:.0f}",
        ]
        for line in sorted(lines, key=lambda line: (line["on"], line["kernel"], line["steps"]))
    ]  # fmt: skip
    columns = [
        "kernel", "scored on", "images", "M", "B", "recipe", "rate", "steps", "first length scale", "seed", "accuracy, %", "NLPD",
        "calibration error, %", "CPU s",
    ]  # fmt: skip
    longest = max(line["steps"] * line["batch"] / (line["images"] or 60_000) for line in lines + open_runs)
    table = report.table(columns, rows) + "".join(map(_of_unfinished, open_runs))
    table += "".join(_verdict(line, lines, records) for line in lines if line["steps"])
    return TEXT.format(patch=PATCH, slice=SLICE, table=table, epochs=f"{longest:.2g}")


def _unfinished(records: list[Record], finished: list[Record]) -> list[Record]:
    """Return the last progress of each run that has no scores yet, its seconds summed and all bounds."""
    found: dict[tuple[Any, ...], Record] = {}
    names = ("on", "seed", *Setting._fields)
    for line in (record for record in records if record.get("part") == "convolutional progress"):
        own = tuple(line[name] for name in names)
        before = found.get(own, {"seconds": 0.0, "bounds": []})
        bounds = before["bounds"] + ([line["bound"]] if "bound" in line else [])
        found[own] = {**line, "seconds": before["seconds"] + line["seconds"], "bounds": bounds}
    done = {tuple(line[name] for name in names) for line in finished}
    return [line for own, line in found.items() if own not in done]


def _of_unfinished(line: Record) -> str:
    bounds = line["bounds"]
    risen = f", the bound from {bounds[0]:,.0f} to {bounds[-1]:,.0f} nats" if bounds else ""
    return (
        f"\nNot finished, and not scored: {line['kernel']} on {line['images'] or 'all'} images, M = {line['inducing']:,}: "
        f"{line['done']:,} of {line['steps']:,} steps in {line['seconds']:.0f} CPU s{risen} (means over {SLICE} steps). The same command "
        "goes on with it.\n"
    )


def _verdict(line: Record, lines: list[Record], records: list[Record]) -> str:
    """Return how the bound went, and the score beside those of starts."""
    key = {name: line[name] for name in ("on", "seed", *Setting._fields)}
    progress = [one for one in records if one.get("part") == "convolutional progress" and "bound" in one]
    bounds = [one["bound"] for one in progress if key.items() <= one.items()]
    text = f"\n{line['kernel'].capitalize()}, {line['steps']:,} steps: the mean bound of {SLICE} steps went from "
    text += f"{bounds[0]:,.0f} to {bounds[-1]:,.0f} nats, the variance on patches from {VARIANCE:g} to {line['final_variance']:.3g}."
    return f"{text}{_beside_starts(line, lines)}\n"


def _beside_starts(line: Record, lines: list[Record]) -> str:
    """Return how a trained model compares with those of its kernel that only started from labels."""
    starts = [one for one in lines if one["kernel"] == line["kernel"] and not one["steps"]]
    alike = ("on", "seed", "images", "inducing", "lengthscale")
    own = [one for one in starts if all(one[name] == line[name] for name in alike)]
    if own:
        return f" Before them {100 * (1 - own[0]['error']):.2f} % were right, after them {100 * (1 - line['error']):.2f} %."
    better = [one for one in starts if one["error"] < line["error"]]
    if better:
        return (
            f" The model errs more often than {len(better)} of the {len(starts)} that only started from labels, on fewer images and "
            "with fewer patches: the steps have lost what the start knew."
        )
    return ""
