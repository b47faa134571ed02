"""What was alive before the trace began and was not freed in it: the trace has no event of it.

TensorFlow writes the bytes in use into every event. What was in use before the first event and is not
freed later must have been there all along: the variables that the capture knows by their address, and
a remainder of which only the size is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pandas as pd

from analyzer.schema import ALLOCATIONS, conform

_CHUNK_BYTES: Final = 256  # the allocator rounds every request up to a multiple of this


def resident_bytes(events: pd.DataFrame) -> dict[str, int]:
    """Return the allocated bytes in use before the first event, by allocator."""
    first = events.drop_duplicates("allocator")
    before = first["in_use_bytes"] - first["kind"] * first["allocated_bytes"]
    return {str(name): int(size) for name, size in zip(first["allocator"], before, strict=True)}


def add_unseen(
    events: pd.DataFrame, allocations: pd.DataFrame, known: Mapping[int, int]
) -> pd.DataFrame:
    """Return ``allocations`` with rows for what was there before the trace and after it.

    Args:
        events: Table with the columns of :data:`analyzer.schema.EVENTS`.
        allocations: Table with the columns of :data:`analyzer.schema.ALLOCATIONS`.
        known: Address -> requested bytes of variables that no event tells of.
    """
    old = allocations[allocations["born"] < 0]
    freed = old.groupby("allocator", observed=True)["allocated_bytes"].sum()
    rows: list[dict[str, Any]] = []
    for name, before in resident_bytes(events).items():
        left = before - int(freed.get(name, 0))
        if left <= 0:
            continue
        chunks = {
            address: -(-size // _CHUNK_BYTES) * _CHUNK_BYTES for address, size in known.items()
        }
        # Values that came from NumPy lie outside the allocator: where not all fit, none is taken.
        if sum(chunks.values()) <= left:
            for address, size in known.items():
                rows.append(_row(name, address, size, chunks[address], len(events)))
                left -= chunks[address]
            known = {}
        if left:
            rows.append(_row(name, pd.NA, left, left, len(events)))
    if not rows:
        return allocations
    more = pd.DataFrame(rows)
    for column in allocations.columns.difference(more.columns):
        more[column] = "" if ALLOCATIONS[column].dtype == "category" else pd.NA
    table = pd.concat(
        [allocations.astype(object), more[allocations.columns].astype(object)], ignore_index=True
    )
    return conform(table, ALLOCATIONS)


def _row(
    allocator: str, address: Any, requested: int, allocated: int, count: int
) -> dict[str, Any]:
    return {
        "allocator": allocator,
        "address": address,
        "requested_bytes": requested,
        "allocated_bytes": allocated,
        "born": -1,
        "dies": count,
        "run_id": 0,
        "category": "unattributed",
    }
