"""The records of a benchmark, each of which is shown as soon as it is made."""

from __future__ import annotations

import json
from typing import Any


class Shown(list[dict[str, Any]]):
    """A list that prints what is appended, a line of JSON each."""

    def append(self, record: dict[str, Any]) -> None:
        """Append and print a record."""
        super().append(record)
        print(json.dumps(record), flush=True)
