"""Buffers from before the trace that are not freed in it, so that they have no event.

TensorFlow records the bytes in use in each event. Bytes in use before the first event that are not
freed later belong to variables and inputs, which the capture knows by address, and to a remainder of
which only the size is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analyzer.model.recording.schema import ALLOCATIONS, conform
from analyzer.model.units import round_up


def find_bytes_before_trace(events: pd.DataFrame) -> dict[str, int]:
    """Return the allocated bytes in use before the first event, by allocator."""
    first = events.drop_duplicates("allocator")
    before = first["in_use_bytes"] - first["kind"] * first["allocated_bytes"]
    return {str(name): int(size) for name, size in zip(first["allocator"], before, strict=True)}


def add_earlier_buffers(
    events: pd.DataFrame, allocations: pd.DataFrame, *known: Mapping[int, int]
) -> pd.DataFrame:
    """Return ``allocations`` with rows for buffers from before the trace.

    Args:
        events: Table with the columns of ``EVENTS``.
        allocations: Table with the columns of ``ALLOCATIONS``.
        known: Address -> requested bytes of buffers without events, in groups; a group is added as a
            whole or not at all.
    """
    old = allocations[allocations["born"] < 0]
    freed = old.groupby("allocator", observed=True)["allocated_bytes"].sum()
    rows: list[dict[str, Any]] = []
    waiting = list(known)
    for name, before in find_bytes_before_trace(events).items():
        left = before - int(freed.get(name, 0))
        if left <= 0:
            continue
        for group in tuple(waiting):
            # Values from NumPy are not in the allocator: if not all fit, add none.
            chunks = {a: round_up(size) for a, size in group.items()}
            if sum(chunks.values()) <= left:
                waiting.remove(group)
                for address, size in group.items():
                    rows.append(_row(name, address, size, chunks[address], len(events)))
                    left -= chunks[address]
        if left:
            rows.append(_row(name, pd.NA, left, left, len(events)))
    if not rows:
        return allocations
    more = pd.DataFrame(rows)
    for column in allocations.columns.difference(more.columns):
        more[column] = "" if ALLOCATIONS[column].dtype == "category" else pd.NA
    added = conform(more, ALLOCATIONS)
    return pd.DataFrame(
        {name: _joined(allocations[name], added[name]) for name in allocations}, copy=False
    )


def _joined(column: pd.Series[Any], more: pd.Series[Any]) -> Any:
    """Return a column with the rows of another one of the same dtype appended."""
    if str(column.dtype) == "category":
        return pd.api.types.union_categoricals([column, more], sort_categories=True)
    return pd.concat([column, more], ignore_index=True)


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
