"""Addresses and chunks of predicted buffers, and the events that a trace would have recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.errors import AccountingError
from analyzer.model.recording.records import Step
from analyzer.model.recording.schema import ALLOCATIONS, EVENTS, conform
from analyzer.model.units import GRANULE_BYTES
from analyzer.simulate.allocator import (
    BfcOptions,
    Engine,
    Replay,
    Sequence,
    from_allocations,
    replay,
)
from analyzer.simulate.allocator.bfc.bfc_options import UNLIMITED_BYTES
from analyzer.simulate.allocator.replay import in_use_bytes
from analyzer.simulate.allocator.sequence import NOWHERE

UNSEEN: Final = 8
"""Number of tiny unseen requests to add to a schedule."""


def place(
    table: pd.DataFrame, instants: int, options: BfcOptions | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, BfcOptions]:
    """Replay a table in the device's allocator.

    Args:
        table: Columns of ``ALLOCATIONS``; it uses every instant once.
        instants: Number of allocations and frees.
        options: The allocator; None for the CPU's. A table that exceeds its limit is replayed
            without one.

    Returns:
        The table with addresses and chunk sizes, the ``EVENTS`` table, and the allocator's options.

    Raises:
        AccountingError: the table misses an instant or uses one twice.
    """
    sequence = from_allocations(table, n_events=instants)
    _check(sequence, instants)
    options = options or BfcOptions.cpu()
    result = replay(sequence, options)
    if result.failure is not None and sequence.spare.any():
        table = _skip_trials(table, sequence, options.memory_limit_bytes)
        sequence = from_allocations(table, n_events=instants)
        result = replay(sequence, options)
    if result.failure is not None:
        result = replay(sequence, _unlimited(options))
    address, chunk_bytes = result.buffers()
    addresses = np.zeros(len(table), dtype=np.int64)
    chunks = np.zeros(len(table), dtype=np.int64)
    addresses[sequence.row], chunks[sequence.row] = address, chunk_bytes
    placed = table.assign(address=pd.array(addresses, dtype="Int64"), allocated_bytes=chunks)
    assert isinstance(result.options, BfcOptions)
    return conform(placed, ALLOCATIONS), _events(placed, result), result.options


def _skip_trials(table: pd.DataFrame, sequence: Sequence, limit_bytes: int) -> pd.DataFrame:
    """Return the table with one byte for each optional buffer that exceeds a limit."""
    over = sequence.spare[sequence.slot] & (sequence.live_requested_bytes() > limit_bytes)
    skipped = sequence.row[np.unique(sequence.slot[over & (sequence.request > 0)])]
    sizes = table["requested_bytes"].to_numpy().copy()
    sizes[skipped] = 1
    return table.assign(requested_bytes=sizes)


def measure_allocated(
    sequence: Sequence,
    step: Step,
    options: BfcOptions | None = None,
    *,
    engine: Engine = Engine.AUTO,
) -> tuple[int, int]:
    """Return the highest bytes of chunks in a step, and the bytes of chunks before it.

    Args:
        sequence: The predicted requests and frees.
        options: The allocator; None for the CPU's.
        engine: The allocator implementation.
    """
    options = options or BfcOptions.cpu()
    in_use = in_use_bytes(sequence, options, engine=engine)
    if len(in_use) < len(sequence):
        in_use = in_use_bytes(sequence, _unlimited(options), engine=engine)
    first, end = np.searchsorted(sequence.instant, (step.first, step.last + 1))
    before = int(in_use[first - 1]) if first else 0
    return int(in_use[first:end].max(initial=before)), before


def add_unseen(sequence: Sequence, seed: int) -> Sequence:
    """Return the requests with a few tiny ones at random places.

    A process makes tiny requests that the graph does not show: seeds of initializers, scalars in Python.
    They decide whether a large request fits a gap of nearly its size. Each lives for one operation up to
    all remaining ones, with log-uniform lifetimes.
    """
    chance, count = np.random.default_rng(seed), len(sequence)
    born = np.sort(chance.integers(0, count, UNSEEN))
    ends = born + np.exp(chance.uniform(0, np.log(count), UNSEEN)).astype(np.int64)
    slots = sequence.n_buffers + np.arange(UNSEEN)
    freed = ends < count
    at = np.concatenate([born, ends[freed]])
    slot = np.concatenate([slots, slots[freed]])
    requests = np.concatenate(
        [np.full(UNSEEN, GRANULE_BYTES), np.zeros(int(freed.sum()), np.int64)]
    )
    order = np.argsort(at, kind="stable")
    at, unknown = at[order], np.full(UNSEEN, NOWHERE)
    return replace(
        sequence,
        slot=np.insert(sequence.slot, at, slot[order]),
        request=np.insert(sequence.request, at, requests[order]),
        instant=np.insert(sequence.instant, at, sequence.instant[at]),
        requested_bytes=np.append(sequence.requested_bytes, np.full(UNSEEN, GRANULE_BYTES)),
        address=np.append(sequence.address, unknown),
        row=np.append(sequence.row, unknown),
        spare=np.append(sequence.spare, np.zeros(UNSEEN, bool))
        if sequence.spare.size
        else sequence.spare,
    )


def _check(sequence: Sequence, instants: int) -> None:
    if not np.array_equal(sequence.instant, np.arange(instants)):
        raise AccountingError("the prediction misses an instant or uses one twice")


def _unlimited(options: BfcOptions) -> BfcOptions:
    return replace(options, memory_limit_bytes=UNLIMITED_BYTES)


def _events(table: pd.DataFrame, result: Replay) -> pd.DataFrame:
    sequence = result.sequence
    rows = sequence.row[sequence.slot]
    limit = result.options.memory_limit_bytes
    chosen = table.iloc[rows]
    count = len(sequence)
    return conform(
        pd.DataFrame(
            {
                "time_ps": np.arange(count, dtype=np.int64),
                "kind": np.where(sequence.request > 0, 1, -1),
                "allocator": chosen["allocator"].to_numpy(),
                "address": result.address,
                "requested_bytes": chosen["requested_bytes"].to_numpy(),
                "allocated_bytes": result.chunk_bytes,
                "in_use_bytes": result.in_use_bytes,
                "available_bytes": limit - result.in_use_bytes,
                "peak_in_use_bytes": np.maximum.accumulate(result.in_use_bytes),
                "fragmentation": np.nan_to_num(result.fragmentation),
                "op": chosen["op"].astype(object).to_numpy(),
                "run_id": 0,
                "region": chosen["region"].astype(object).to_numpy(),
                "dtype": chosen["dtype"].astype(object).to_numpy(),
                "shape": chosen["shape"].astype(object).to_numpy(),
                "thread": 0,
            }
        ),
        EVENTS,
    )
