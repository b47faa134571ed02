"""A recording as a memory snapshot of PyTorch, which pytorch.org/memory_viz and Mosaic read.

The format is that of ``torch.cuda.memory._snapshot`` (``torch/csrc/cuda/memory_snapshot.cpp``): events
in order, and the blocks of each segment at the end. It is stored with ``pickle``.
"""

import pickle
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.recording.records import Recording
from analyzer.model.recording.timeline import main_allocator_rows
from analyzer.report.perfetto import state_times_us

_PICKLE_PROTOCOL: Final = 4  # the newest that memory_viz reads
_REGION_GAP_BYTES: Final = 1 << 20  # unused memory that separates two segments
_UNKNOWN: Final = "unknown"  # memory_viz fails if no event has this category
_PLACE: Final = {"stream": 0}


@dataclass(frozen=True, slots=True)
class _Block:
    """A buffer with its address."""

    address: int
    size: int
    requested: int
    born: int
    dies: int
    category: str
    frames: list[dict[str, Any]]


def torch_snapshot(recording: Recording) -> bytes:
    """Return the pickled snapshot. Sizes of events are requested bytes, those of blocks allocated."""
    table = main_allocator_rows(recording).sort_values("born", kind="stable")
    table = table[table["dies"] > table["born"]]

    times_us = state_times_us(recording, table).astype(np.int64).tolist()
    last = len(times_us) - 2
    blocks = _place_blocks(table)

    trace = _list_events(blocks, times_us, last)
    alive = [block for block in blocks if block.dies >= last]
    annotations = []

    for step in recording.steps:
        name = f"step {step.index if step.number is None else step.number}"

        for stage, instant in (("START", step.first), ("END", step.last)):
            time_us = times_us[min(instant + 1, last)]
            mark = {"name": name, "stage": stage, "time_us": time_us, "device": 0}
            annotations.append(mark)

    snapshot = {
        "segments": _list_segments(blocks, alive),
        "device_traces": [trace],
        "external_annotations": annotations,
        "allocator_settings": {},
    }

    return pickle.dumps(snapshot, protocol=_PICKLE_PROTOCOL)


def _place_blocks(table: pd.DataFrame) -> list[_Block]:
    """Return the buffers in order of birth; those without an own address get one behind the others."""
    addresses = table["address"].astype("Int64").fillna(-1).to_numpy(np.int64)
    addresses = np.where(table["part_of"].notna(), -1, addresses)
    ends = addresses + table["allocated_bytes"].to_numpy(np.int64)
    end = int(ends[addresses >= 0].max(initial=0)) + 2 * _REGION_GAP_BYTES

    free: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    blocks = []

    for row, address in zip(table.itertuples(), addresses.tolist(), strict=True):
        size = max(int(row.allocated_bytes), 1)

        if address < 0:
            places = free[size]
            reusable = next((one for one in places if one[0] <= row.born), None)

            if reusable is None:
                address = end
                end += size
            else:
                places.remove(reusable)
                address = reusable[1]

            places.append((int(row.dies), address))

        category = str(row.category)
        if row.category == Category.UNATTRIBUTED:
            category = _UNKNOWN

        blocks.append(
            _Block(
                address=address,
                size=size,
                requested=int(row.requested_bytes),
                born=int(row.born),
                dies=int(row.dies),
                category=category,
                frames=_frames(row),
            )
        )

    return blocks


def _frames(row: Any) -> list[dict[str, Any]]:
    """Return a buffer's call stack, innermost first: tensor, op, layer and the user's line."""
    name = str(row.variable or row.tensor or row.op or row.role or "unnamed")
    shape = f"{row.dtype}{row.shape}"
    frames = [_frame(name, shape or str(row.category))]

    if row.op and str(row.op) != name:
        frames.append(_frame(str(row.op), str(row.op_type)))
    if row.layer:
        frames.append(_frame(str(row.layer), "layer"))

    file, _, line = str(row.source).rpartition(":")
    if file:
        number = int(line) if line.isdecimal() else 0
        frames.append(_frame("source", file, number))

    return frames


def _frame(name: str, file: str, line: int = 0) -> dict[str, Any]:
    return {
        "name": name,
        "filename": file,
        "line": line,
    }


def _list_events(
    blocks: list[_Block],
    times_us: list[int],
    last: int,
) -> list[dict[str, Any]]:
    """Return the allocations and frees in order; of one moment the frees first."""
    births = [(block.born, 1, block) for block in blocks if block.born >= 0]
    deaths = [(block.dies, 0, block) for block in blocks if block.dies < last]
    changes = sorted(births + deaths, key=lambda change: change[:2])

    events = []

    for instant, is_birth, block in changes:
        about = {
            "addr": block.address,
            "size": block.requested,
            "time_us": times_us[instant + 1],
            "frames": block.frames,
            "category": block.category,
            **_PLACE,
        }

        actions = ("alloc",) if is_birth else ("free_requested", "free_completed")
        events += [{"action": action, **about} for action in actions]

    end = {
        "action": "snapshot",
        "addr": 0,
        "size": 0,
        "time_us": times_us[-1],
        "frames": [],
        "category": _UNKNOWN,
        **_PLACE,
    }

    return [*events, end]


def _list_segments(blocks: list[_Block], alive: list[_Block]) -> list[dict[str, Any]]:
    """Return the contiguous regions of all buffers, with the buffers that live at the end."""
    regions: list[tuple[int, int]] = []

    for block in sorted(blocks, key=lambda one: one.address):
        start = block.address
        end = block.address + block.size

        if regions and start <= regions[-1][1] + _REGION_GAP_BYTES:
            first, before = regions[-1]
            regions[-1] = (first, max(end, before))
        else:
            regions.append((start, end))

    return [_segment(start, end, alive) for start, end in regions]


def _segment(start: int, end: int, alive: list[_Block]) -> dict[str, Any]:
    inside = [block for block in alive if start <= block.address < end]
    rows = []
    at = start

    for block in sorted(inside, key=lambda one: one.address):
        if block.address > at:
            rows.append(_free_block(at, block.address))

        rows.append(
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": "active_allocated",
                "frames": block.frames,
            }
        )

        at = block.address + block.size

    if at < end:
        rows.append(_free_block(at, end))

    used = sum(block.size for block in inside)

    return {
        "device": 0,
        "address": start,
        "total_size": end - start,
        "allocated_size": used,
        "active_size": used,
        "requested_size": sum(block.requested for block in inside),
        "segment_type": "large",
        "is_expandable": False,
        "frames": [],
        "blocks": rows,
        **_PLACE,
    }


def _free_block(start: int, end: int) -> dict[str, Any]:
    return {
        "address": start,
        "size": end - start,
        "requested_size": 0,
        "state": "inactive",
        "frames": [],
    }
