"""The lines of the user's code that own the most bytes at the peak, with their text."""

import linecache
import os
from collections import defaultdict
from pathlib import Path
from typing import Final

from analyzer.model.contract.report_file import ReportFile
from analyzer.report.render.sections import Section, Table, TableColumn

_MOST: Final = 5  # lines
_MOST_CHARACTERS: Final = 120  # of a line's text
_MOST_BYTES: Final = 1 << 20  # of a file
_COLUMNS: Final = (
    TableColumn("requested", "bytes"),
    TableColumn("line", "path"),
    TableColumn("source, as the file is now", "path"),
)


def source_lines_section(report: ReportFile) -> Section | None:
    """Return the lines with the most requested bytes; None if no tensor has a line.

    A redacted report has no lines.
    """
    sizes: defaultdict[str, int] = defaultdict(int)
    for tensor in report.tensors_at_peak:
        sizes[tensor.source] += tensor.requested_bytes

    sizes.pop("", None)
    if not sizes:
        return None

    largest = sorted(sizes.items(), key=lambda one: -one[1])[:_MOST]
    rows = tuple((size, line, _read_line(line)) for line, size in largest)

    return Section(
        "Lines that own the most bytes at the peak",
        (Table(_COLUMNS, rows),),
    )


def _read_line(place: str) -> str:
    """Return the text of ``file.py:line``; empty if the file is not one of this folder's sources.

    A trace of someone else may name any file, so only Python files below this folder are read.
    """
    name, _, number = place.rpartition(":")

    try:
        folder = Path(os.path.realpath(os.getcwd()))
        path = Path(os.path.realpath(name))

        is_own = path.suffix == ".py" and folder in path.parents
        if not is_own or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return ""
    except (OSError, ValueError):  # no current folder; a name with U+0000
        return ""

    text = linecache.getline(str(path), int(number) if number.isdecimal() else 0)

    return text.strip()[:_MOST_CHARACTERS]
