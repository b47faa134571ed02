"""From an events table to a sequence: which free ends which allocation.

A trace has no buffer names: ``free_pairing`` pairs allocations and frees by their address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analyzer.model.errors import TraceError
from analyzer.model.recording.timeline import pair_events
from analyzer.simulate.allocator.bfc.bfc_options import MAX_REQUEST_BYTES
from analyzer.simulate.allocator.sequence import (
    NOWHERE,
    Sequence,
    integers,
    refuse_sizes,
    rows_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]
    Mask = NDArray[np.bool_]


@dataclass(slots=True)
class _Events:
    """The columns of the events of one allocator, in order of time."""

    rows: Table
    kind: Table
    address: Table
    requested: Table
    allocated: Table
    in_use: Table

    def reordered(self, order: Table) -> _Events:
        return _Events(*(getattr(self, name)[order] for name in self.__slots__))

    def count_breaks(self) -> int:
        """Count events that contradict the bytes in use of the event before."""
        return int(np.sum(np.diff(self.in_use) != (self.kind * self.allocated)[1:]))


def from_events(events: pd.DataFrame, *, allocator: str | None = None) -> Sequence:
    """Return the sequence in an events table.

    Events of kind 0 (moments inside a compiled step) are left out. A free of an address that was
    never allocated ends a buffer from before the trace, if the bytes in use at the start allow it;
    otherwise it is left out. An allocation at an address in use ends the buffer there. The rest of
    the bytes in use at the start becomes one first buffer with row -1.

    Raises:
        TraceError: nothing to replay, or an impossible kind or size.
    """
    ordered = _sort_by_time(_read(events, allocator), events)
    partner, seen = pair_events(ordered.kind, ordered.address)
    resident_bytes = _find_resident_bytes(ordered)
    early = (ordered.kind < 0) & (partner == NOWHERE) & ~seen
    early &= (ordered.requested > 0) & (resident_bytes > 0)
    early &= np.cumsum(np.where(early, ordered.allocated, 0)) <= resident_bytes
    rest_bytes = resident_bytes - int(ordered.allocated[early].sum())
    return _assemble(ordered, partner, early, rest_bytes)


def _read(events: pd.DataFrame, allocator: str | None) -> _Events:
    rows = rows_of(events, allocator, "events")
    rows = rows[integers(events, "kind")[rows] != 0]
    names = ("kind", "address", "requested_bytes", "allocated_bytes")
    kind, address, requested, allocated = (integers(events, name)[rows] for name in names)
    in_use = np.zeros(rows.size, np.int64)
    if "in_use_bytes" in events:
        in_use = integers(events, "in_use_bytes")[rows]
    wrong = np.abs(kind) != 1
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise TraceError(f"Event {rows[at]} is of kind {kind[at]}, neither +1 nor -1.")
    refuse_sizes(requested, rows, "event")
    refuse_sizes(allocated, rows, "event")
    if not (kind > 0).any():
        raise TraceError("The trace contains frees and not one allocation.")
    return _Events(rows, kind, address, requested, allocated, in_use)


def _sort_by_time(read: _Events, events: pd.DataFrame) -> _Events:
    """Return the events by time if that fits the bytes in use at least as well."""
    if "time_ps" in events:
        time = integers(events, "time_ps")[read.rows]
        if (np.diff(time) < 0).any():
            by_time = read.reordered(np.argsort(time, kind="stable"))
            if by_time.count_breaks() <= read.count_breaks():
                return by_time
    return read


def _find_resident_bytes(ordered: _Events) -> int:
    """Return the bytes in use before the first event; 0 if unknown or impossible."""
    if not ordered.in_use.any():
        return 0
    resident_bytes = int(ordered.in_use[0] - ordered.kind[0] * ordered.allocated[0])
    return resident_bytes if 0 <= resident_bytes <= MAX_REQUEST_BYTES else 0


def _assemble(ordered: _Events, partner: Table, early: Mask, rest_bytes: int) -> Sequence:
    """Number the buffers and write the operations in order."""
    birth = (ordered.kind > 0) & (ordered.requested > 0)
    before = np.flatnonzero(early)
    before = before[np.argsort(ordered.address[before], kind="stable")]
    rest = np.full(int(rest_bytes > 0), rest_bytes)
    n_early = rest.size + before.size
    buffer_of = np.cumsum(birth) + n_early - 1
    buffer_of[before] = rest.size + np.arange(before.size)
    requested = np.concatenate([rest, ordered.requested[before], ordered.requested[birth]])
    # An event is one operation; two if an allocation ends the buffer at its address (the free is
    # first); none if it is left out. A request of 0 bytes has no buffer to end.
    ends = (partner != NOWHERE) & birth[partner]
    own = birth | early | (ends & (ordered.kind < 0))
    implied = ends & (ordered.kind > 0)
    n_done = n_early + np.cumsum(own.astype(np.int64) + implied)
    n_ops = int(n_done[-1])
    slot, instant = np.empty(n_ops, np.int64), np.empty(n_ops, np.int64)
    request = np.zeros(n_ops, np.int64)
    slot[:n_early], instant[:n_early] = np.arange(n_early), NOWHERE
    request[:n_early] = requested[:n_early]
    at = n_done[own] - 1
    slot[at] = np.where(ends & ~birth, buffer_of[partner], buffer_of)[own]
    request[at] = np.where(birth, ordered.requested, 0)[own]
    instant[at] = ordered.rows[own]
    at = n_done[implied] - 1 - own[implied]
    slot[at], instant[at] = buffer_of[partner[implied]], ordered.rows[implied]
    none = np.full(rest.size, NOWHERE)
    return Sequence(
        slot=slot,
        request=request,
        instant=instant,
        requested_bytes=requested,
        address=np.concatenate([none, ordered.address[before], ordered.address[birth]]),
        row=np.concatenate([np.full(n_early, NOWHERE), ordered.rows[birth]]),
    )
