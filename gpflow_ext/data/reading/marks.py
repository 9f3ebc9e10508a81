"""What stands in cells in place of values, for tables and exported graphs alike, and for the server."""

from __future__ import annotations

SPACE = " \t\n\v\f\r"  # TensorFlow strips these
ERRORS = frozenset(
    ("#div/0!", "#value!", "#ref!", "#num!", "#null!", "#calc!", "#spill!", "#error!", "#name?")
)
"""Errors of spreadsheets, in small letters."""
MISSING = frozenset(("", "?", "na", "n/a", "#n/a", "nan", "null", *ERRORS))
"""Cells that are missing values, stripped and in small letters."""
IN_DATES = {"ymd": "-", "dmy": ".", "mdy": "/"}
"""What stands between year, month and day, by their order."""
