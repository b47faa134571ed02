"""The buffers in ``*buffer-assignment.txt`` and ``*memory-usage-report.txt``, which XLA dumps.

``XLA_FLAGS=--xla_dump_to=FOLDER`` makes XLA write both for each compiled module.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from analyzer.model.contract.reading import read_regular_file
from analyzer.model.errors import TraceError
from analyzer.model.units import format_bytes, parse_bytes

_TOTAL = re.compile(r"^Total bytes(?: used)?: (\d+)", re.MULTILINE)
_ALLOCATION = re.compile(
    r"^allocation (\d+): size ([\d.]+)([KMGT]?i?B)?, (.+):$",
    re.MULTILINE,
)
_VALUE = re.compile(
    r"^ value: <\d+ (\S+) @\d+> \(size=(\d+),offset=\d+\): (\S+)$",
    re.MULTILINE,
)
_KINDS = {
    "parameter": "parameters",
    "constant": "constants",
    "thread-local": "thread-local",
    "maybe-live-out": "results",
}
_MOST_ROWS = 12


def describe_assignment(path: Path) -> list[str]:
    """Return the total, the kinds and the largest buffers as lines, or raise a TraceError."""
    try:
        text = read_regular_file(path).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise TraceError(f"{path} cannot be read: {error}.") from None

    total = _TOTAL.search(text)
    if total is None:
        raise TraceError(
            f"{path} has no total of XLA's buffers.",
            hint="Dump the module again.",
        )

    sums: Counter[str] = Counter()
    allocations: list[tuple[int, str, str]] = []

    for number, size, unit, facts in _ALLOCATION.findall(text):
        kinds = (name for mark, name in _KINDS.items() if mark in facts)
        kind = next(kinds, "temporaries")
        size_bytes = parse_bytes(f"{size}{unit or 'B'}")
        allocations.append((size_bytes, f"allocation {number}", kind))
        sums[kind] += size_bytes

    found = _VALUE.findall(text)
    values = [(int(size), name, shape) for name, size, shape in found]

    return list(_describe(int(total[1]), sums, values, allocations))


def _describe(
    total_bytes: int,
    sums: Counter[str],
    values: list[tuple[int, str, str]],
    allocations: list[tuple[int, str, str]],
) -> Iterator[str]:
    """Yield the total with its kinds, and the largest values, or allocations without values."""
    parts = [f"{kind} {format_bytes(size)}" for kind, size in sums.most_common()]
    yield f"XLA assigns {format_bytes(total_bytes)} to this module: {', '.join(parts)}."

    what = "values" if values else "allocations"
    rows = sorted(values or allocations, key=lambda row: -row[0])
    yield (
        f"Largest of {len(rows)} {what}; values at different times share the bytes of "
        "the temporaries."
    )

    for size, name, shape in rows[:_MOST_ROWS]:
        yield f"{format_bytes(size):>10}  {shape}  {name}"
