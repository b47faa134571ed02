"""A recording as a memory snapshot of PyTorch, for pytorch.org/memory_viz and Mosaic.

The format is that of ``torch.cuda.memory._snapshot`` (``torch/csrc/cuda/memory_snapshot.cpp``): events
in order, and the blocks of each segment at the end. It is stored with ``pickle``.
"""

import pickle
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from analyzer.model.contract.fields import Category
from analyzer.model.recording.records import Recording, main_allocator_rows

Event: TypeAlias = dict[str, Any]  # one row of the file

# call stack of each buffer, by its row
Frames: TypeAlias = dict[int, list[Event]]

_PICKLE_PROTOCOL = 4  # the newest that memory_viz reads
_REGION_GAP_BYTES = 1 << 20  # unused memory that separates two segments
_UNKNOWN = "unknown"  # memory_viz fails if no event has this category


def torch_snapshot(recording: Recording) -> bytes:
    """Return the pickled snapshot. Sizes of events are requested bytes, those of blocks allocated."""
    table = main_allocator_rows(recording).sort_values("born", kind="stable")
    table = table[table["dies"] > table["born"]]
    times_us = _state_times_us(recording, table)
    last = len(times_us) - 2

    table = table.assign(place=_find_places(table))
    frames = {row.Index: _frames(row) for row in table.itertuples()}
    alive = table[table["dies"] >= last]

    snapshot = {
        "segments": _list_segments(table, alive, frames),
        "device_traces": [list(_list_events(table, times_us, frames))],
        "allocator_settings": {},
    }

    return pickle.dumps(snapshot, protocol=_PICKLE_PROTOCOL)


def _state_times_us(recording: Recording, table: pd.DataFrame) -> list[int]:
    """Return the time of each state in us, ``n_events + 2`` of them: before, each event, after.

    A prediction has no time and uses 1 us per instant.
    """
    if not recording.kind.ran or recording.events.empty:
        last = max([len(recording.events), *table["dies"]])
        return list(range(-1, last + 1))

    times = (recording.events["time_ps"] // 1_000_000).tolist()
    return [times[0], *times, times[-1]]


def _find_places(table: pd.DataFrame) -> np.ndarray:
    """Return the addresses of the buffers; those without an own one lie behind the others."""
    addresses = table["address"].astype("Int64").fillna(-1).to_numpy(np.int64)
    sizes = table["allocated_bytes"].to_numpy(np.int64).clip(1)

    is_own = (addresses >= 0) & table["part_of"].isna().to_numpy()
    end = (addresses + sizes)[is_own].max(initial=0) + 2 * _REGION_GAP_BYTES
    offsets = np.cumsum(np.where(is_own, 0, sizes)) - sizes
    places: np.ndarray = np.where(is_own, addresses, end + offsets)

    return places


def _frames(row: Any) -> list[Event]:
    """Return a buffer's call stack, innermost first: tensor, layer and the user's line."""
    name = str(row.variable or row.tensor or row.op or row.role or "unnamed")
    shape = f"{row.dtype}{row.shape}" or str(row.category)
    frames = [{"name": name, "filename": shape, "line": 0}]

    if row.layer:
        frames.append({"name": str(row.layer), "filename": "layer", "line": 0})

    file, _, line = str(row.source).rpartition(":")
    if file:
        number = int(line) if line.isdecimal() else 0
        frames.append({"name": "source", "filename": file, "line": number})

    return frames


def _list_events(
    table: pd.DataFrame,
    times_us: list[int],
    frames: Frames,
) -> Iterator[Event]:
    """Yield the allocations and frees in order; of one moment the frees first."""
    last = len(times_us) - 2
    births = table[table["born"] >= 0].assign(at=table["born"], is_birth=1)

    deaths = table[table["dies"] < last].assign(at=table["dies"], is_birth=0)
    changes = pd.concat([births, deaths]).sort_values(["at", "is_birth"], kind="stable")

    for row in changes.itertuples():
        is_unknown = row.category == Category.UNATTRIBUTED
        about = {
            "addr": row.place,
            "size": row.requested_bytes,
            "time_us": times_us[row.at + 1],
            "frames": frames[row.Index],
            "category": _UNKNOWN if is_unknown else str(row.category),
            "stream": 0,
        }

        actions = ["free_requested", "free_completed"]
        if row.is_birth:
            actions = ["alloc"]

        for action in actions:
            yield {"action": action, **about}

    yield {
        "action": "snapshot",
        "addr": 0,
        "size": 0,
        "time_us": times_us[-1],
        "frames": [],
        "category": _UNKNOWN,
        "stream": 0,
    }


def _list_segments(
    table: pd.DataFrame,
    alive: pd.DataFrame,
    frames: Frames,
) -> list[Event]:
    """Return the contiguous regions of all buffers, with the buffers that live at the end."""
    ordered = table.sort_values("place")
    ends = ordered["place"] + ordered["allocated_bytes"].clip(lower=1)
    before = ends.cummax().shift(fill_value=-2 * _REGION_GAP_BYTES)
    region = (ordered["place"] > before + _REGION_GAP_BYTES).cumsum()
    segments = []

    for _, rows in ordered.groupby(region):
        start = int(rows["place"].iloc[0])
        end = int(ends[rows.index].max())
        inside = alive[alive.index.isin(rows.index)].sort_values("place")
        used = int(inside["allocated_bytes"].clip(lower=1).sum())

        segments.append(
            {
                "device": 0,
                "stream": 0,
                "address": start,
                "total_size": end - start,
                "allocated_size": used,
                "active_size": used,
                "requested_size": int(inside["requested_bytes"].sum()),
                "segment_type": "large",
                "is_expandable": False,
                "frames": [],
                "blocks": list(_list_blocks(inside, start, end, frames)),
            }
        )

    return segments


def _list_blocks(
    rows: pd.DataFrame,
    start: int,
    end: int,
    frames: Frames,
) -> Iterator[Event]:
    """Yield the used blocks between two addresses, and the free ones between them."""
    free = {"requested_size": 0, "state": "inactive", "frames": []}

    for row in rows.itertuples():
        if row.place > start:
            yield {"address": start, "size": row.place - start, **free}

        size = max(row.allocated_bytes, 1)
        start = row.place + size
        used = {"state": "active_allocated", "frames": frames[row.Index]}
        sizes = {"size": size, "requested_size": row.requested_bytes}
        yield {"address": row.place, **sizes, **used}

    if start < end:
        yield {"address": start, "size": end - start, **free}
