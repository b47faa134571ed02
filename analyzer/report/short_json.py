"""Shorten a document so that it fits into a terminal or into the context of a coding agent."""

import json
from pathlib import Path
from typing import Any

from analyzer.report.output_files import write_text

# Most bytes of a shortened document: some 5,000 tokens of a language model.
SHORT_BYTES = 16 << 10

_MOST_ROWS = 64  # of a list; halved until the document is short enough
_WHOLE = ("answer", "remedies")  # lists whose rows answer different questions
_MOST_NUMBERS = 16  # of a list of numbers; a longer one is a curve
_MOST_CHARACTERS = 2_000


def shorten_file(path: Path) -> None:
    """Shorten the document in a JSON file."""
    write_text(path, shorten(json.loads(path.read_text("utf-8"))))


def shorten(document: dict[str, Any]) -> str:
    """Return a document as JSON text; its field ``shortened`` has the full length of each cut list.

    Lists begin with their most important rows, and these stay. Curves are left out.
    """
    rows = _MOST_ROWS

    while True:
        lengths: dict[str, int] = {}
        short = _cut(document, rows, "", lengths)

        text = json.dumps({**short, "shortened": lengths}, indent=1) + "\n"
        if len(text) <= SHORT_BYTES or rows == 1:
            return text

        rows //= 2


def _cut(value: Any, rows: int, path: str, lengths: dict[str, int]) -> Any:
    """Return a value with at most ``rows`` rows a list; add the lengths of cut lists by path."""
    if isinstance(value, str):
        if len(value) > _MOST_CHARACTERS:
            return f"{value[:_MOST_CHARACTERS]}…"

        return value

    if isinstance(value, dict):
        prefix = f"{path}." if path else ""
        return {
            name: _cut(item, rows, f"{prefix}{name}", lengths)
            for name, item in value.items()
        }

    if not isinstance(value, list):
        return value

    most = _MOST_ROWS if path in _WHOLE else rows
    if value and isinstance(value[0], int | float):
        most = len(value) if len(value) <= _MOST_NUMBERS else 0

    if len(value) > most:
        lengths[path] = max(len(value), lengths.get(path, 0))

    return [_cut(item, rows, path, lengths) for item in value[:most]]
