"""Words in the rows of a file that the training rows of a model had not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gpflow_ext.data.reading.cells import is_missing
from gpflow_ext.data.reading.marks import SPACE
from gpflow_ext.data.reading.problems import listed

_SHOWN = 5


class Unseen:
    """Counts the words of one-hot columns that are no level of the model, where a row is 0 in all its inputs.

    Parameters
    ----------
    treatment
        How the model's table became inputs, or nothing.
    """

    def __init__(self, treatment: Any) -> None:
        columns = () if treatment is None else treatment.columns
        self._levels = {column.name: {*column.levels} for column in columns if column.kind == "one-hot"}
        self._found: Counter[tuple[str, str]] = Counter()
        self._rows = 0

    def count(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Count those in rows of cells, whose columns have these names."""
        places = [(name, names.index(name), levels) for name, levels in self._levels.items()]
        for row in rows:
            words = [
                (name, word)
                for name, place, levels in places
                if (word := row[place].strip(SPACE)) not in levels and not is_missing(word)
            ]
            self._found.update(words)
            self._rows += bool(words)

    def __str__(self) -> str:
        """Return a sentence about them; nothing where there are none."""
        if not self._rows:
            return ""
        words = [f"{name} {word!r}" for (name, word), _ in self._found.most_common()]
        return (
            f"{self._rows} of them have words that no training row had, and are predicted as none of the known ones: "
            f"{listed(words, _SHOWN)}"
        )
