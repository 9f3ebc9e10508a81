"""The records of the runs, their figures and the page made of them."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gpflow
import numpy as np

from ...shared import report
from ...shared.journal import Journal, Record
from . import convolutional, others, runs

NAME, SHOWN, TURNED = "images", 40, 1000
REDUCED = (
    f"This is the reduced form: of the training images the first {runs.FEW:,}, of the test images the first "
    f"{runs.FEW_TESTED:,}.\n"
)
_VARIED = ("order", "scales", "dims", "inducing", "lengthscale", "steps", "gamma", "copies")
_BEFORE = {"copies": 1, "scales": 2}  # of records that do not name them


def run(options: argparse.Namespace) -> None:
    """Measure what is asked for and not recorded yet, and write the page."""
    options.out.mkdir(parents=True, exist_ok=True)  # where the first figure goes
    journal = Journal(options.out / f"{NAME}.jsonl")
    with gpflow.config.as_context(runs.SINGLE):
        if options.convolutional:
            _convolutional(journal, options)
        elif options.others:
            _others(journal, options)
        else:
            _on_images(journal, options)
    text = page(journal.records, options.quick)
    report.write(options.out / f"{NAME}.md", text)
    draw_scores(options.out / f"{NAME}_scores.png", journal.records)
    print(text)


def _others(journal: Journal, options: argparse.Namespace) -> None:
    for seed in options.seeds:
        for by in ("scattering", "pixels"):
            _once(
                journal, options, {"part": "textures", "seed": seed, "by": by}, others.on_textures, by, seed
            )
        key = {"part": "odd_even", "seed": seed}
        _once(journal, options, key, others.odd_even, runs.load(False), seed)


def _convolutional(journal: Journal, options: argparse.Namespace) -> None:
    """Train the kernels asked for, each with all combinations of what is varied."""
    images, on = runs.load(options.validate), "validation" if options.validate else "test"
    varied = ("inducing", "lengthscale", "steps", "gamma", "images")
    for kernel in options.convolutional:
        setting = convolutional.Setting(kernel)
        values = [getattr(options, field) or [getattr(setting, field)] for field in varied]
        for chosen, seed in itertools.product(itertools.product(*values), options.seeds):
            own = setting._replace(**dict(zip(varied, chosen, strict=True)))
            key = {"on": on, "seed": seed, **own._asdict()}
            name = "-".join(f"{value}" for value in key.values())
            convolutional.measure(journal, images, own, key, options.checkpoints / name, options.threads)


def _once(
    journal: Journal, options: argparse.Namespace, key: Record, measure: Callable[..., Record], *of: Any
) -> None:
    """Measure and record what is not recorded yet, after where it was measured."""
    if not journal.find(**key):
        journal.heading = {"where": report.environment(options.threads)}
        journal.add({**key, **measure(*of)})


def _on_images(journal: Journal, options: argparse.Namespace) -> None:
    images, part = runs.load(options.validate, options.data), "validation" if options.validate else "test"
    if options.quick:
        images = runs.first(images)
    digits = options.data == "mnist"
    for setting, seed in itertools.product(_settings(options), options.seeds):
        key = {"part": part if digits else f"{options.data} {part}", "seed": seed, **setting._asdict()}
        if any(key.items() <= {**_BEFORE, **record}.items() for record in journal.records):
            continue
        out = options.out if digits and not options.validate else None
        _once(journal, options, key, _measure, images, setting, seed, out)


def _settings(options: argparse.Namespace) -> Iterator[runs.Setting]:
    for name in options.setting:
        setting = runs.SETTINGS[name]
        values = [getattr(options, field) or [getattr(setting, field)] for field in _VARIED]
        for chosen in itertools.product(*values):
            yield setting._replace(**dict(zip(_VARIED, chosen, strict=True)))


def _measure(images: runs.Images, setting: runs.Setting, seed: int, out: Path | None) -> Record:
    trained = runs.train(images, setting, seed)
    found: Record = {
        "seconds": trained.seconds,
        **runs.scores(runs.probabilities(trained.model, images.test[0]), images.test[1]),
        "epsilon": float(np.asarray(trained.model.likelihood.epsilon)),
        "final_lengthscale": float(trained.model.kernel.kernels[0].kernel.lengthscales.numpy()),
    }
    if out is not None and seed == 0:
        found["turned"] = [dict(line) for line in runs.turned(trained.model, images.test, TURNED)]
        found["far"] = others.far(trained.model, TURNED, seed)
        _draw(out / f"{NAME}_inducing.png", runs.nearest(trained, images, SHOWN))
    return found


def _draw(path: Path, images: runs.Array) -> None:
    """Draw images in rows of ten."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(images) // 10, 10, figsize=(8, 0.85 * len(images) // 10), layout="constrained"
    )
    for ax, image in zip(axes.flat, images, strict=True):
        ax.imshow(image, cmap="gray_r")
        ax.set_axis_off()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_scores(path: Path, records: list[Record]) -> None:
    """Draw error and NLPD on the test images against the seconds from pixels to the model."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter

    found = [{**_BEFORE, **each} for each in records if each.get("part") == "test"]
    settings = dict.fromkeys(map(_what, found))
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.8), layout="constrained")
    for ax, name, scale, label in zip(
        axes, ("error", "nlpd"), (100.0, 1.0), ("test error, %", "test NLPD"), strict=True
    ):
        for setting in settings:
            runs = [each for each in found if _what(each) == setting]
            ax.plot(
                [e["seconds"] for e in runs],
                [scale * e[name] for e in runs],
                "o",
                markersize=4,
                label=setting,
            )
        ax.set(xscale="log", xlabel="CPU seconds from the pixels", ylabel=label)
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _what(line: Record) -> str:
    """Return a setting in words."""
    shown = f"order {line['order']}, {line['scales']} scales, M = {line['inducing']:,}"
    shown += f", {line['copies']} copies" if line["copies"] > 1 else ""
    return shown + (f", {line['steps']:,} steps" if line["steps"] else "")


def page(records: list[Record], quick: bool = False) -> str:
    """Return the report of all records, of the reduced form if ``quick``."""
    lines = [record for record in records if "error" in record]
    parts = [
        "# Images: Gaussian processes on scattering features\n",
        "MNIST, `SVGPRobustMax` on `gpx.features.Scattering`, float32; written by `python -m scripts.experiments.images`. "
        "CPU seconds of the process from the pixels of all training images to the trained model: features, their "
        "axes, q from the labels and all steps. Order, M and copies were chosen on the last 10,000 training images, after "
        'training on the others, in the runs under "Validation". Three scales were first chosen by the '
        "leave-one-out error of the regression on all training images, in trials that are not among the rows; by it copies and a fourth "
        "scale did not help there. The square root of the features was chosen in earlier "
        "trials, which looked at test images. So were a length scale of 1.5 and 200 axes; on the validation images length scales of "
        "1.5 and 2, and 100 to 300 axes, are level. Test images are used only where a heading, a row or the text says so. "
        "`order` is the order of the scattering, `scales` the number of its scales, `dims` that of principal axes kept. M is the number of "
        "inducing features, `steps` those after the start from labels, and γ the length of their natural gradients. "
        "`copies` is how often a training image is used: as it is, and shifted by a pixel up, down, left and right.\n",
        *([REDUCED] if quick else []),
        f"![Error and NLPD on the test images against CPU seconds]({NAME}_scores.png)\n",
    ]
    for part, title in (
        ("test", "## Test images"),
        ("validation", "## Validation: the last 10,000 training images"),
        ("fashion_mnist test", "## Fashion-MNIST: test images"),
        ("fashion_mnist validation", "## Fashion-MNIST: the last 10,000 training images"),
    ):
        own = [line for line in lines if line["part"] == part]
        if own:
            parts.append(f"{title}\n\n" + _table(own))
    parts += [convolutional.section(records), *_other_problems(lines)]
    where = _alike([record["where"] for record in records if "where" in record])
    turned = [line for line in lines if "turned" in line]
    if turned:
        parts.append(_turned(turned[-1]))
    runs = "\n".join(f"- {report.describe(each, 'float32')}" for each in where)
    parts.append(
        f"## When and where\n\n{runs}\n\nCPU seconds grow with the load of the machine. Some of these commits are not in the "
        "history, which was rebased after the runs.\n"
    )
    return "\n".join(parts)


def _table(lines: list[Record]) -> str:
    columns = [
        "order",
        "scales",
        "dims",
        "M",
        "copies",
        "steps",
        "length scale",
        "γ",
        "seed",
        "accuracy, %",
        "NLPD",
        "calibration error, %",
        "CPU s",
    ]
    rows = [
        [
            str(line["order"]), str(line["scales"]), str(line["dims"]), f"{line['inducing']:,}",
            str(line["copies"]), f"{line['steps']:,}", f"{line['lengthscale']:g}",
            f"{line['gamma']:g}" if line["steps"] else "", str(line["seed"]), *_scores(line),
        ]
        for line in sorted(({**_BEFORE, **line} for line in lines), key=_order)
    ]  # fmt: skip
    return report.table(columns, rows)


def _alike(places: list[Record]) -> list[Record]:
    """Return one record for all runs on the same machine with the same versions."""
    found: dict[str, list[Record]] = {}
    for each in places:
        rest = {name: value for name, value in each.items() if name not in ("commit", "date", "load")}
        found.setdefault(json.dumps(rest, sort_keys=True), []).append(each)
    merged = []
    for some in found.values():
        some = sorted(some, key=lambda each: each["date"])
        first, last, loads = some[0], some[-1], [each["load"] for each in some]
        if len(some) > 1:
            first = {
                **first,
                "commit": ", ".join(dict.fromkeys(each["commit"] for each in some)),
                "date": f"{first['date']} to {last['date']}",
                "load": f"{min(loads)} to {max(loads)}",
            }
        merged.append(first)
    return merged


def _other_problems(lines: list[Record]) -> list[str]:
    """Return the sections on odd and even digits and on textures, if they have been measured."""
    columns = ["seed", "accuracy, %", "NLPD", "calibration error, %", "CPU s"]
    found = []
    parity = [line for line in lines if line["part"] == "odd_even"]
    if parity:
        found.append(
            "## Odd against even digits\n\n`SparseEP` on all training images, order 2, M = "
            f"{others.INDUCING:,}; sites from the labels, then to their fixed point, the kernel as it is. Test images.\n\n"
            + report.table(columns, [[str(line["seed"]), *_scores(line)] for line in parity])
        )
    waves = [line for line in lines if line["part"] == "textures"]
    if waves:
        rows = [[line["by"], str(line["seed"]), *_scores(line)] for line in waves]
        found.append(
            f"## Textures\n\nNoisy waves of {others.DIRECTIONS} directions and {len(others.WAVELENGTHS)} lengths, each with "
            f"a phase of its own, {others.TEXTURES[0]:,} to learn from and {others.TEXTURES[1]:,} to classify: where the phase "
            "is free pixels have no nearest neighbours of their class. `SVGPRobustMax`, M = 500, q from the labels.\n\n"
            + report.table(["kernel on", *columns], rows)
        )
    return found


def _scores(line: Record) -> list[str]:
    return [
        f"{100 * (1 - line['error']):.2f}", f"{line['nlpd']:.4f}", f"{100 * line['calibration']:.2f}",
        f"{line['seconds']:.1f}",
    ]  # fmt: skip


def _order(line: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("copies", "scales", "steps", "inducing", "order", "dims", "lengthscale", "gamma", "seed")
    return tuple(line[name] for name in names)


def _far(line: Mapping[str, Any]) -> str:
    if "far" not in line:
        return ""
    far = line["far"]
    return (
        f"\nOn {TURNED:,} textures as below, which are no digits, the mean confidence is {100 * far['confidence']:.1f} % and the "
        f"mean entropy {far['entropy']:.3f} of at most {np.log(far['classes']):.3f} nats.\n"
    )


def _turned(line: Mapping[str, Any]) -> str:
    rows = [
        [
            str(one["angle"]), f"{100 * (1 - one['error']):.1f}", f"{one['nlpd']:.3f}",
            f"{100 * one['confidence']:.1f}", f"{one['entropy']:.3f}", f"{100 * one['calibration']:.1f}",
        ]
        for one in line["turned"]
    ]  # fmt: skip
    columns = [
        "degrees",
        "accuracy, %",
        "NLPD",
        "mean confidence, %",
        "mean entropy, nats",
        "calibration error, %",
    ]
    return (
        f"## Turned digits\n\nThe first {TURNED:,} test images, turned: away from what the model has seen its accuracy "
        f"falls, and its confidence should. Order {line['order']}, M = {line['inducing']:,}, {line['steps']:,} steps.\n\n"
        + report.table(columns, rows)
        + _far(line)
        + "\nThe training images whose features are nearest to some of the inducing features; without steps these are the "
        "features of images drawn at random, where there are copies shifted ones too, and the nearest ones are those images:\n\n"
        f"![Images nearest to inducing features]({NAME}_inducing.png)\n"
    )
