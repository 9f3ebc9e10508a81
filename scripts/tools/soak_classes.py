"""Train, score, draw from and export models of every class again and again, each dropped before the next."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import gpflow_ext as gpx

from ..shared.every_class import KINDS, Kind

EXPORTS = 4  # of so many rounds one exports
_DRAWS, _ROWS = 3, 5


def watch(
    watched: Callable[[str, Callable[[int], None], int], Iterator[dict[str, Any]]], number: int
) -> Iterator[dict[str, Any]]:
    """Yield what `soak.watched` records of so many rounds of each class, its name as ``class``."""
    for name, kind in KINDS.items():
        gpx.clear_compiled()
        for record in watched(name, functools.partial(once, kind), number):
            yield {"class": record.pop("what"), **record}


def once(kind: Kind, place: int) -> None:
    """Train models of two sizes, score them and draw from them; export the second one in some rounds."""
    for rows, _ in kind.others()[1:]:
        model, data = kind.trained(rows, place)
        kind.scores(model, data)
        draw(model, data[0][:_ROWS], place)
    if place % EXPORTS == 0:
        with tempfile.TemporaryDirectory() as folder:
            gpx.export(model, folder)


def draw(model: Any, X: Any, seed: int) -> None:
    """Draw functions from a model, or values at each input where it has no functions."""
    try:
        gpx.sample_functions(model, _DRAWS, seed)(X)
    except NotImplementedError:
        model.predict_f_samples(X, _DRAWS, full_cov=False)
