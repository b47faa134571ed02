"""An events table to a sequence: which free ends which allocation.

A trace names no buffers: ``event_pairing`` matches frees by their address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analyzer.model.errors import TraceError
from analyzer.model.recording.allocator_events import pair_events
from analyzer.model.units import format_bytes
from analyzer.simulate.allocator.bfc.bfc_options import MAX_REQUEST_BYTES
from analyzer.simulate.allocator.sequence import (
    NOWHERE,
    Caution,
    Sequence,
    caution,
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
    """The events of one allocator, in the order in which they happened."""

    rows: Table
    kind: Table
    address: Table
    requested: Table
    allocated: Table
    in_use: Table

    def reordered(self, order: Table) -> _Events:
        return _Events(*(getattr(self, name)[order] for name in self.__slots__))

    def breaks(self) -> int:
        """Count the events whose bytes in use do not follow from those of the event before."""
        return int(np.sum(np.diff(self.in_use) != (self.kind * self.allocated)[1:]))


def from_events(events: pd.DataFrame, *, allocator: str | None = None) -> Sequence:
    """Return the sequence that an events table shows.

    Moments inside a compiled step (kind 0), at which the allocator does nothing, are left out. Frees
    of addresses that were never allocated end buffers from before the trace, where the bytes in use
    at its start say that there were any; else they are left out. What was alive at the start and is
    never freed stands at the beginning as one buffer of row -1.

    Args:
        events: Table with at least ``kind``, ``address``, ``requested_bytes``,
            ``allocated_bytes``; ``time_ps``, ``in_use_bytes`` and ``allocator`` are used where
            they are there.
        allocator: Which allocator; may be left out where there is only one.

    Raises:
        TraceError: nothing to replay, or a kind or size that cannot be.
    """
    cautions: list[Caution] = []
    found = _in_order(_read(events, allocator), events, cautions)
    partner, seen = pair_events(found.kind, found.address)
    birth = found.kind > 0
    resident_bytes = _resident_bytes(found, cautions)
    unknown = ~birth & (partner == NOWHERE)
    double = unknown & seen
    early = unknown & ~double & (found.requested > 0) & (resident_bytes > 0)
    early &= np.cumsum(np.where(early, found.allocated, 0)) <= resident_bytes
    _count(cautions, found, birth, partner, double, unknown & ~double & ~early, early)
    rest_bytes = resident_bytes - int(found.allocated[early].sum())
    if rest_bytes:
        cautions.append(
            Caution(
                id="unseen-resident",
                count=1,
                message=f"{format_bytes(rest_bytes)} were in use before the trace begins and are"
                " never freed in it; they are replayed as one buffer.",
            )
        )
    return _assemble(found, partner, early, rest_bytes, tuple(cautions))


def _read(events: pd.DataFrame, allocator: str | None) -> _Events:
    rows = rows_of(events, allocator, "events")
    rows = rows[integers(events, "kind")[rows] != 0]
    names = ("kind", "address", "requested_bytes", "allocated_bytes")
    kind, address, requested, allocated = (integers(events, name)[rows] for name in names)
    in_use = (
        integers(events, "in_use_bytes")[rows]
        if "in_use_bytes" in events
        else np.zeros(rows.size, np.int64)
    )
    wrong = np.abs(kind) != 1
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise TraceError(f"event {rows[at]} is of kind {kind[at]}, neither +1 nor -1.")
    refuse_sizes(requested, rows, "event")
    refuse_sizes(allocated, rows, "event")
    if not (kind > 0).any():
        raise TraceError("the trace holds frees and not one allocation.")
    return _Events(rows, kind, address, requested, allocated, in_use)


def _in_order(found: _Events, events: pd.DataFrame, cautions: list[Caution]) -> _Events:
    """Return the events by time where that explains the bytes in use better than the rows do."""
    if "time_ps" in events:
        time = integers(events, "time_ps")[found.rows]
        late = int(np.sum(np.diff(time) < 0))
        if late:
            by_time = found.reordered(np.argsort(time, kind="stable"))
            if by_time.breaks() <= found.breaks():
                found = by_time
                cautions.append(caution("out-of-order", late, "events were out of order; sorted."))
            else:
                text = "events have an earlier time than the one before; left in their order."
                cautions.append(caution("time-runs-back", late, text))
    breaks = found.breaks() if found.in_use.any() else 0
    if breaks:
        text = "events do not add up with the bytes in use that the trace gives: events are lost,"
        cautions.append(caution("books-broken", breaks, f"{text} damaged or in another order."))
    return found


def _resident_bytes(found: _Events, cautions: list[Caution]) -> int:
    """Return the bytes in use before the first event, as the first event tells; 0 if unknown."""
    if not found.in_use.any():
        return 0
    resident_bytes = int(found.in_use[0] - found.kind[0] * found.allocated[0])
    if 0 <= resident_bytes <= MAX_REQUEST_BYTES:
        return resident_bytes
    text = f"event gives impossible bytes in use ({found.in_use[0]}); taken for a fresh start."
    cautions.append(Caution(id="first-in-use", count=1, message=f"1 {text}"))
    return 0


def _count(
    cautions: list[Caution],
    found: _Events,
    birth: Mask,
    partner: Table,
    double: Mask,
    ignored: Mask,
    early: Mask,
) -> None:
    """Add a caution for everything that had to be put right."""
    paired = ~birth & (partner != NOWHERE)
    sizes = found.requested[paired] != found.requested[partner[paired]]
    sizes &= found.requested[paired] != 0
    for name, which, message in (
        ("duplicate-address", birth & (partner != NOWHERE), "allocations at an address still in"
         " use; the buffer there is taken for freed."),
        ("double-free", double, "frees of an address already free; left out."),
        ("unknown-free", ignored, "frees of an address never allocated; left out."),
        ("early-free", early, "frees end buffers from before the trace; replayed as alive at its"
         " start."),
        ("zero-size", birth & (found.requested == 0), "allocations of 0 bytes take no chunk."),
        ("size-differs", sizes, "frees give another size than the allocation they end; the"
         " allocation's is used."),
    ):  # fmt: skip
        if which.any():
            cautions.append(caution(name, which, message))


def _assemble(
    found: _Events, partner: Table, early: Mask, rest_bytes: int, cautions: tuple[Caution, ...]
) -> Sequence:
    """Number the buffers and write the operations down in order."""
    birth = (found.kind > 0) & (found.requested > 0)
    before = np.flatnonzero(early)
    before = before[np.argsort(found.address[before], kind="stable")]
    rest = np.full(int(rest_bytes > 0), rest_bytes)
    n_early = rest.size + before.size
    buffer_of = np.cumsum(birth) + n_early - 1
    buffer_of[before] = rest.size + np.arange(before.size)
    requested = np.concatenate([rest, found.requested[before], found.requested[birth]])
    # An event is one operation, two where an allocation ends the one before it at its address (the
    # free comes first), and none where it is left out. What asked for 0 bytes has nothing to end.
    ends = (partner != NOWHERE) & birth[partner]
    own = birth | early | (ends & (found.kind < 0))
    implied = ends & (found.kind > 0)
    behind = n_early + np.cumsum(own.astype(np.int64) + implied)
    n_ops = int(behind[-1])
    slot, instant = np.empty(n_ops, np.int64), np.empty(n_ops, np.int64)
    request = np.zeros(n_ops, np.int64)
    slot[:n_early], instant[:n_early] = np.arange(n_early), NOWHERE
    request[:n_early] = requested[:n_early]
    at = behind[own] - 1
    slot[at] = np.where(ends & ~birth, buffer_of[partner], buffer_of)[own]
    request[at] = np.where(birth, found.requested, 0)[own]
    instant[at] = found.rows[own]
    at = behind[implied] - 1 - own[implied]
    slot[at], instant[at] = buffer_of[partner[implied]], found.rows[implied]
    none = np.full(rest.size, NOWHERE)
    return Sequence(
        slot=slot,
        request=request,
        instant=instant,
        requested_bytes=requested,
        address=np.concatenate([none, found.address[before], found.address[birth]]),
        row=np.concatenate([np.full(n_early, NOWHERE), found.rows[birth]]),
        cautions=cautions,
    )
