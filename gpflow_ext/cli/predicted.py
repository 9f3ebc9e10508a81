"""What a model adds to the rows of a file: the names of the columns, and the cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def output_names(served: Any) -> list[str]:
    """Return the columns that the model adds."""
    outputs = served.manifest["signatures"]["serving_default"]["outputs"]
    if "class" not in outputs:
        ends = _ends(served.manifest["data"]["target"], outputs["mean"]["shape"][1])
        return [*(f"mean{end}" for end in ends), *(f"variance{end}" for end in ends), "is_finite"]
    classes = served.labels or range(outputs["probabilities"]["shape"][1])
    return [
        "class",
        *(["label"] if "label" in outputs else []),
        *(f"probability_{c}" for c in classes),
        "is_finite",
    ]


def _ends(target: str | Sequence[str] | None, width: int) -> list[str]:
    """Return what tells outputs apart: the names of their targets, or numbers where there are none."""
    if width == 1:
        return [""]
    names = target.split(", ") if isinstance(target, str) else list(target or ())
    return [f"_{name}" for name in (names if len(set(names)) == len(names) == width else range(width))]


def output_rows(found: dict[str, Any]) -> Iterator[list[str]]:
    """Yield what the model adds to each row; empty where it predicts nothing."""
    parts = ["class", "label", "probabilities"] if "class" in found else ["mean", "variance"]
    arrays = [found[part] for part in parts if part in found]
    for i, ok in enumerate(found["is_finite"]):
        cells = [cell for array in arrays for cell in (array[i].ravel() if array.ndim > 1 else [array[i]])]
        yield [*(str(cell) if ok else "" for cell in cells), str(int(ok))]
