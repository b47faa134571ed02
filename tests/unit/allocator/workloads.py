"""Inputs for the allocator's tests: tables, random workloads, and recorded samples."""

import random
from pathlib import Path

import numpy as np
import pandas as pd

from analyzer.model.recording.records import pair_events
from analyzer.simulate.allocator.replay import Sequence, from_allocations

DATA = Path(__file__).parent / "data"
SAMPLES = sorted(path.stem for path in DATA.glob("*.npz"))


def sample(name):
    """Return recorded events; see data/README.md for how they were made."""
    with np.load(DATA / f"{name}.npz") as columns:
        return pd.DataFrame({column: columns[column] for column in columns.files})


def events_table(*events):
    """Return events from (kind, address, bytes), with bytes in use that add up from 0."""
    rows, in_use, sizes = [], 0, {}
    for time, (kind, address, requested) in enumerate(events):
        allocated = (requested + 255) // 256 * 256
        in_use += kind * allocated
        sizes[address] = allocated
        rows.append((time, kind, "bfc", address, requested, allocated, in_use))
    names = (
        "time_ps kind allocator address requested_bytes allocated_bytes in_use_bytes"
    )
    return pd.DataFrame(rows, columns=names.split())


def from_events(events):
    """Return the sequence of an events table, whose frees are paired by address."""
    rows = np.flatnonzero(events["kind"])  # without moments inside a compiled step
    kind = events["kind"].to_numpy()[rows]
    partner, _ = pair_events(kind, events["address"].to_numpy()[rows])
    ends = np.flatnonzero(partner >= 0)
    dies = np.full(rows.size, len(events))
    dies[partner[ends]] = rows[ends]
    table = events.iloc[rows].assign(born=rows, dies=dies)[kind > 0]
    return from_allocations(table.reset_index(drop=True), n_events=len(events))


def allocations_table(*rows):
    """Return allocations from (bytes, born, dies)."""
    table = pd.DataFrame(rows, columns=["requested_bytes", "born", "dies"])
    return table.assign(
        allocator="bfc", address=pd.array([pd.NA] * len(rows), dtype="Int64")
    )


def sequence_of(operations):
    """Return a sequence from (slot, bytes) pairs; 0 bytes frees the slot, which may be reused."""
    buffer_of, sizes, slot, request = {}, [], [], []
    for name, size in operations:
        if size:
            buffer_of[name] = len(sizes)
            sizes.append(size)
        slot.append(buffer_of[name])
        request.append(size)
    return Sequence(
        slot=np.array(slot, np.int64),
        request=np.array(request, np.int64),
        instant=np.arange(len(slot)),
        requested_bytes=np.array(sizes, np.int64),
        address=np.full(len(sizes), -1),
        row=np.arange(len(sizes)),
    )


def random_operations(n_operations, live, seed, largest=28):
    """Return (slot, bytes) pairs with about ``live`` buffers alive, freed in random order."""
    rng = random.Random(seed)
    idle, used, result = list(range(2 * live)), [], []
    while len(result) < n_operations:
        if used and (not idle or rng.random() < len(used) / (2 * live)):
            at = rng.randrange(len(used))
            used[at], used[-1] = used[-1], used[at]
            idle.append(used.pop())
            result.append((idle[-1], 0))
        else:
            used.append(idle.pop(rng.randrange(len(idle))))
            result.append(
                (used[-1], int(2 ** rng.uniform(0, rng.choice([9, 14, 20, largest]))))
            )
    return result
