"""The buffers in ``*buffer-assignment.txt`` and ``*memory-usage-report.txt``, which XLA dumps.

``XLA_FLAGS=--xla_dump_to=FOLDER`` makes XLA write both for each compiled module.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Final

from analyzer.model.contract.reading import read_regular_file
from analyzer.model.errors import TraceError
from analyzer.model.units import format_bytes, parse_bytes

_NAMES: Final = ("buffer-assignment.txt", "memory-usage-report.txt")
_TOTAL: Final = re.compile(r"^Total bytes(?: used)?: (\d+)", re.MULTILINE)
_ALLOCATION: Final = re.compile(
    r"^allocation (\d+): size ([\d.]+)([KMGT]?i?B)?, (.+):$", re.MULTILINE
)
_VALUE: Final = re.compile(
    r"^ value: <\d+ (\S+) @\d+> \(size=(\d+),offset=\d+\): (\S+)$", re.MULTILINE
)
_KINDS: Final = {
    "parameter": "parameters",
    "constant": "constants",
    "thread-local": "thread-local",
    "maybe-live-out": "results",
}
_MOST_ROWS: Final = 12


def is_assignment(path: Path) -> bool:
    """Say whether a file has the name of one of these dumps."""
    return path.name.endswith(_NAMES)


def describe_assignment(path: Path) -> list[str]:
    """Return the total, the kinds and the largest buffers as lines, or raise a TraceError."""
    try:
        text = read_regular_file(path).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise TraceError(f"{path} cannot be read: {error}.") from None

    total = _TOTAL.search(text)
    if total is None:
        raise TraceError(
            f"{path} has no total of XLA's buffers.", hint="Dump the module again."
        )

    sums: Counter[str] = Counter()
    allocations: dict[str, tuple[int, str, str]] = {}
    for number, size, unit, facts in _ALLOCATION.findall(text):
        kind = next(
            (name for mark, name in _KINDS.items() if mark in facts), "temporaries"
        )
        size_bytes = parse_bytes(f"{size}{unit or 'B'}")
        allocations[number] = size_bytes, f"allocation {number}", kind

    for size_bytes, _, kind in allocations.values():
        sums[kind] += size_bytes

    parts = ", ".join(
        f"{kind} {format_bytes(size)}" for kind, size in sums.most_common()
    )
    values = [(int(size), name, shape) for name, size, shape in _VALUE.findall(text)]
    rows = sorted(values or allocations.values(), key=lambda row: -row[0])
    what = "values" if values else "allocations"
    largest = [
        f"{format_bytes(size):>10}  {shape}  {name}" for size, name, shape in rows
    ]

    return [
        f"XLA assigns {format_bytes(int(total[1]))} to this module: {parts}.",
        f"Largest of {len(rows)} {what}; values at different times share the bytes of the temporaries.",
        *largest[:_MOST_ROWS],
    ]
