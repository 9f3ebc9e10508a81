"""How the comparisons are shown: figures, tables, and the review's findings beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...shared import report
from ...shared.journal import Journal, Record

SVI = ("svi-natural", "svi-L-BFGS-B", "svi-FG", "svi-SAG")
MEANS = ("means-L-BFGS-B", "means-PN")
CLASSIFIERS = ("vi-JJ", "vi-Taylor", "svi-classification")
NEAR = 0.01  # of the best score: the seconds to come so near are compared
STYLES = {
    "means-L-BFGS-B": ("#0b5fa5", "-"),
    "means-PN": ("#5aa2d6", "--"),
    "svi-natural": ("#c8500a", "-"),
    "svi-L-BFGS-B": ("black", "-"),
    "svi-FG": ("0.55", ":"),
    "svi-SAG": ("#7a3e9d", "-."),
    "vi-JJ": ("#0b5fa5", "-"),
    "vi-Taylor": ("#5aa2d6", "--"),
    "svi-classification": ("#c8500a", "-"),
}
FIGURES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    # file: title, methods, sizes of the sets
    "review_svi": ("The svi family (figures 3 and 4)", SVI, ("small", "medium")),
    "review_vi_svi": (
        "vi-means against svi-L-BFGS-B (figures 5 and 6)",
        ("means-L-BFGS-B", "svi-L-BFGS-B"),
        ("small", "medium", "large"),
    ),
    "review_large": (
        "vi-means against stochastic methods on large sets (figure 7)",
        ("means-L-BFGS-B", "svi-natural", "svi-SAG"),
        ("large",),
    ),
    "review_million": (
        "vi-means against stochastic methods on a million rows",
        ("means-L-BFGS-B", "svi-natural", "svi-SAG"),
        ("million",),
    ),
    "review_newton": (
        "vi-means by L-BFGS-B and by projected Newton (figures 8 and 9)",
        MEANS,
        ("small", "medium", "large"),
    ),
    "review_classification": (
        "vi-classification against svi-classification (section 3.4)",
        CLASSIFIERS,
        ("small", "medium", "large"),
    ),
}


def within(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """Return the seconds after which the score is at the target and never below it again."""
    later = len(curve)
    while later and curve[later - 1][1] >= target:
        later -= 1
    return float(curve[later][0]) if later < len(curve) else None


def chosen(journal: Journal, figure: str) -> dict[str, list[Record]]:
    """Return the runs that a figure shows, by data set."""
    _, methods, sizes = FIGURES[figure]
    runs: dict[str, list[Record]] = {}
    for record in journal.records:
        if record.get("method") in methods and record["size"] in sizes and record["curve"]:
            runs.setdefault(record["set"], []).append(record)
    return {name: found for name, found in runs.items() if len(found) > 1}


def best_score(runs: Sequence[Record]) -> float:
    """Return the best final score of some runs."""
    return max(run["curve"][-1][1] for run in runs)


def draw(journal: Journal, folder: Path) -> None:
    """Draw every figure for which there are runs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for name, (title, methods, _) in FIGURES.items():
        runs = chosen(journal, name)
        if not runs:
            continue
        columns = min(3, len(runs))
        rows = -(-len(runs) // columns)
        figure, axes = plt.subplots(
            rows,
            columns,
            figsize=(max(4.0 * columns, 6.4), 3.1 * rows + 0.6),
            layout="constrained",
            squeeze=False,
        )
        for ax, (label, found) in zip(axes.flat, runs.items(), strict=False):
            _panel(ax, label, found, methods)
        for ax in list(axes.flat)[len(runs) :]:
            ax.axis("off")
        handles = {line.get_label(): line for ax in axes.flat for line in ax.get_lines()}
        shown = [method for method in methods if method in handles]
        figure.suptitle(title, fontsize=11)
        figure.legend([handles[m] for m in shown], shown, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(folder / f"{name}.png", dpi=92)
        plt.close(figure)


def _panel(ax: Any, label: str, runs: Sequence[Record], methods: Sequence[str]) -> None:
    best = best_score(runs)
    for run in sorted(runs, key=lambda run: methods.index(run["method"])):
        colour, line = STYLES[run["method"]]
        seconds, scores = [point[0] for point in run["curve"]], [point[1] for point in run["curve"]]
        ax.plot(seconds, scores, color=colour, linestyle=line, marker=".", markersize=4, label=run["method"])
    lowest = min(min(point[1] for point in run["curve"]) for run in runs)
    ax.set_ylim(max(lowest, best - 0.5) - 0.02, best + 0.02)
    first = runs[0]
    ax.set_title(f"{label}: n = {first['n']:,}, d = {first['d']}, m = {first['m']}", fontsize=10)
    ax.set(xscale="log", xlabel="seconds of training", ylabel=first["score"])
    ax.xaxis.set_minor_formatter("")  # else they overlap where there is one decade
    ax.grid(color="0.9", linewidth=0.6)


def table(runs: Mapping[str, Sequence[Record]], methods: Sequence[str]) -> str:
    """Return the final scores and the seconds to within `NEAR` of the best."""
    rows = []
    for name, found in runs.items():
        best = best_score(found)
        for run in sorted(found, key=lambda run: methods.index(run["method"])):
            seconds, score, objective = run["curve"][-1]
            near = within(run["curve"], best - NEAR)
            rows.append(
                (
                    f"{name} ({run['n']:,} x {run['d']}, m = {run['m']})",
                    run["method"],
                    f"{score:.4f}",
                    f"{objective:,.1f}",
                    "not reached" if near is None else report.number(near, 2),
                    report.number(seconds, 2),
                )
            )
    score = next(iter(runs.values()))[0]["score"]
    columns = ("set", "method", f"final {score}", "objective", f"s to best − {NEAR}", "s in all")
    return report.table(columns, rows)


def compare(runs: Mapping[str, Sequence[Record]], first: str, others: Sequence[str]) -> str:
    """Say on how many sets a method comes near the best score before each of some others does."""
    counts = []
    for other in others:
        faster, both = [], 0
        for name, found in runs.items():
            curves = {run["method"]: run["curve"] for run in found}
            if first in curves and other in curves:
                target = best_score(found) - NEAR
                a, b = (within(curves[method], target) for method in (first, other))
                both += 1
                if a is not None and (b is None or a < b):
                    faster.append(name)
        if both:
            which = f" ({', '.join(faster)})" if 0 < len(faster) < both else ""
            counts.append(f"before {other} on {len(faster)} of {both} sets{which}")
    return f"{first} {'; '.join(counts)}"


FINDINGS: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    # figure: what the review prints, which method is compared with which, what to know
    "review_svi": (
        "no sentence",
        "svi-natural",
        ("svi-L-BFGS-B", "svi-FG", "svi-SAG"),
        "svi-natural and svi-SAG draw minibatches of max(m, n/100) rows; the hyperparameters of svi-natural move by "
        "Adam at the rate 0.01. The methods svi-FG and svi-SAG move q(u) and the hyperparameters by one step length, the inverse of the Lipschitz constant that their line search finds. SAG "
        "stores a gradient for each batch.",
    ),
    "review_vi_svi": (
        '"vi-means beats its opponent in all the experiments"',
        "means-L-BFGS-B",
        ("svi-L-BFGS-B",),
        "Both maximise the same bound. In vi-means the optimal q(u) is substituted, and three hyperparameters are "
        "left; svi-L-BFGS-B has m(m + 3)/2 more variables.",
    ),
    "review_large": (
        'no sentence; of moderate problems "the vi-means method beats all the discussed svi variations"',
        "means-L-BFGS-B",
        ("svi-natural", "svi-SAG"),
        "A step of vi-means reads all data, O(nm²), one of the others a minibatch.",
    ),
    "review_million": (
        "no sentence",
        "svi-natural",
        ("means-L-BFGS-B", "svi-SAG"),
        "A draw of a Gaussian process at a million inputs. Seconds are those of the processor, one thread. vi-means sums its bound "
        "and its gradient over blocks of 20,000 rows, so that its memory does not grow with the rows; the others draw "
        "minibatches of 10,000. Each had a minute.",
    ),
    "review_newton": (
        "no sentence",
        "means-L-BFGS-B",
        ("means-PN",),
        "Both go from the same start to the same optimum. A step of projected Newton costs about 3P gradients, P = 3, "
        "for the exact Hessian, and tries a few step lengths.",
    ),
    "review_classification": (
        "no sentence: the section is announced, and the text ends",
        "vi-JJ",
        ("svi-classification", "vi-Taylor"),
        "A step of vi-JJ and vi-Taylor is at most four iterations of L-BFGS on all data, the sites at their fixed "
        "point in each evaluation (the author's code makes five updates of ξ before each five evaluations). The "
        "method svi-classification is AdaDelta with rate 1 on minibatches of n/100 rows, but at least ten.",
    ),
}


def _findings(journal: Journal) -> str:
    """Return the review's findings beside ours."""
    rows = []
    for name, (title, _, _) in FIGURES.items():
        if runs := chosen(journal, name):
            paper, first, others, _ = FINDINGS[name]
            rows.append((title, paper, compare(runs, first, others)))
    return report.table(
        ("comparison", "the review", f"ours: comes within {NEAR} of the best score"), rows
    ).replace("---:", "---")


def text(journal: Journal, notes: str) -> str:
    """Return the page."""
    parts = [
        "# Izmailov's review (2016): the methods compared\n",
        "Written by `python -m scripts.experiments.review`. Test score against seconds of training; compilation and "
        "scoring are not counted. All methods start from one squared exponential kernel (one length scale), noise "
        "variance 0.1 and the same inducing points, fixed centres of k-means; rows with missing values are left out. The objective of minibatch "
        "methods is an estimate from the last minibatch.\n",
        notes + "\n",
        "The available text of the review has no figures. Where it makes no statement, the table gives only our "
        "result.\n",
        _findings(journal),
    ]
    for name, (title, methods, _) in FIGURES.items():
        runs = chosen(journal, name)
        if not runs:
            continue
        parts += [
            f"## {title}\n",
            FINDINGS[name][3] + "\n",
            f"![{title}]({name}.png)\n",
            table(runs, methods),
        ]
    return "\n".join(parts)
