"""Reader of ``memory_profile.json``, the memory events that XProf or TensorBoard derived from a trace.

XProf keeps at most 1,000 events of each allocator. It has no steps, kernels and runs of ops.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pandas as pd

from analyzer.model.contract.fields import numpy_name
from analyzer.model.recording.records import EVENTS, conform

_KINDS = {"ALLOCATION": 1, "DEALLOCATION": -1}
_UNKNOWN = ("", "INVALID", "unknown")


def read_memory_profile(content: bytes) -> pd.DataFrame:
    """Return the events in a ``memory_profile.json``; a ValueError says what it holds instead."""
    profile = msgspec.json.decode(content)
    if not isinstance(profile, dict) or "memoryProfilePerAllocator" not in profile:
        raise ValueError("JSON without memory events")

    rows: list[dict[str, Any]] = []

    try:
        for name, own in profile["memoryProfilePerAllocator"].items():
            rows += _read_rows(name, own)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an event without {error}") from None

    table = pd.DataFrame(rows, columns=list(EVENTS)).drop_duplicates()

    return conform(table.sort_values("time_ps", ignore_index=True), EVENTS)


def _read_rows(allocator: str, profile: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of one allocator as rows of ``EVENTS``."""
    snapshots = [
        *profile.get("memoryProfileSnapshots", ()),
        *profile.get("sampledTimelineSnapshots", ()),
    ]
    for snapshot in snapshots:
        state = snapshot["aggregationStats"]
        event = snapshot["activityMetadata"]
        kind = _KINDS.get(event["memoryActivity"])
        if kind is None:
            continue

        heap = int(state["heapAllocatedBytes"])
        stack = int(state["stackReservedBytes"])
        dtype = event["dataType"]
        op = event["tfOpName"]
        yield {
            "time_ps": int(snapshot["timeOffsetPs"]),
            "kind": kind,
            "allocator": allocator,
            "address": int(event["address"]),
            "requested_bytes": int(event["requestedBytes"]),
            "allocated_bytes": int(event["allocationBytes"]),
            "in_use_bytes": heap + stack,
            "available_bytes": int(state["freeMemoryBytes"]),
            "peak_in_use_bytes": int(state["peakBytesInUse"]),
            "fragmentation": float(state["fragmentation"]),
            "op": "" if op in _UNKNOWN else op,
            "run_id": int(
                "/" in op
            ),  # XProf writes no ids: the ops of graphs count as one run
            "region": event["regionType"],
            "dtype": "" if dtype in _UNKNOWN else numpy_name(dtype),
            "shape": "" if event["tensorShape"] in _UNKNOWN else event["tensorShape"],
            "thread": 1,
        }
