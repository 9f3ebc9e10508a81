"""A resumable record of measurements: one JSON object a line, appended as they come."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from . import report

Record: TypeAlias = dict[str, Any]


class Journal:
    """The finished measurements in a file, which a rerun finds there and does not repeat.

    Parameters
    ----------
    path
        The file; made at the first record. A last line that was cut off is dropped.
    written
        Called after each new record, for example to write the tables again.

    Attributes
    ----------
    heading
        A record to put before the next one, if there is a next one.
    renewing
        The commit of which records count: `once` measures anew what another commit has measured, and the new
        record replaces the old. ``None`` keeps all.
    """

    def __init__(self, path: Path, written: Callable[[Journal], None] | None = None) -> None:
        self._path, self._written = path, written
        self.heading: Record | None = None
        self.renewing: str | None = None
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        self.records: list[Record] = [found for line in lines if (found := _parsed(line)) is not None]
        if len(self.records) < len(lines):
            report.write_lines(path, self.records)

    def find(self, **key: Any) -> list[Record]:
        """Return the records that hold these values."""
        return [record for record in self.records if key.items() <= _plain(record).items()]

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a record."""
        new = [dict(record)] if self.heading is None else [self.heading, dict(record)]
        self.heading = None
        self.records += new
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(one, allow_nan=False) + "\n" for one in new))
        if self._written is not None:
            self._written(self)

    def once(self, key: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]) -> None:
        """Measure and append, unless a record with this key is there, of the commit that counts."""
        found = self.find(**key)
        if any(self.renewing in (None, self._commit(record)) for record in found):
            return
        record = {**key, **measure()}
        if found:
            self._drop(found)
        self.add(record)

    def _commit(self, record: Record) -> str | None:
        """Return the commit that a record is of: that of the last environment before it."""
        place = next(n for n, each in enumerate(self.records) if each is record)
        before = [each["environment"] for each in self.records[:place] if "environment" in each]
        return before[-1].get("commit") if before else None

    def _drop(self, old: list[Record]) -> None:
        """Leave out records, and environments of which no record is left."""
        kept = [each for each in self.records if not any(each is one for one in old)]
        following = [*kept[1:], {}]
        pairs = list(zip(kept, following, strict=True))
        alone = [each for each, after in pairs[:-1] if "environment" in each and "environment" in after]
        self.records = [each for each in kept if not any(each is one for one in alone)]
        report.write_lines(self._path, self.records)


def _plain(record: Record) -> Record:
    """Return the entries that can be part of a key."""
    return {name: value for name, value in record.items() if not isinstance(value, list | dict)}


def _parsed(line: str) -> Record | None:
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
