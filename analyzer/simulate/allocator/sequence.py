"""The requests and frees of an allocator, in order: the input of every replay.

A sequence is made of an allocations table, measured or predicted. Impossible numbers are refused
with a ``TraceError``; rows that never live are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from analyzer.model.errors import InputError, TraceError
from analyzer.model.recording.records import Recording
from analyzer.model.recording.schema import TRIAL, WORKSPACE
from analyzer.model.units import format_bytes, round_up
from analyzer.simulate.allocator.bfc.bfc_pool import MAX_REQUEST_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]
    Mask = NDArray[np.bool_]

NOWHERE: Final = -1  # an unknown address, no row of a table, or an instant before the first event


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Operations on buffers, in order. Arrays are int64; buffers are numbered from 0."""

    slot: Table  # buffer of each operation, shape ``(n_ops,)``
    request: Table  # bytes requested, 0 for a free, shape ``(n_ops,)``
    instant: Table  # row of the events table of each operation; -1 before the first event
    requested_bytes: Table  # bytes of each buffer, shape ``(n_buffers,)``
    address: Table  # address of each buffer in the source; -1 if it has none
    # row of each buffer in the source table (of events: the row of its allocation); -1 for a buffer
    # that stands for memory allocated before the trace
    row: Table
    # which buffers are optional: TensorFlow continues without them if they do not fit. Shape
    # ``(n_buffers,)``, or empty if there are none.
    spare: Mask = field(default_factory=lambda: np.zeros(0, bool))

    def __len__(self) -> int:
        return int(self.slot.size)

    @property
    def n_buffers(self) -> int:
        """Number of buffers."""
        return int(self.requested_bytes.size)

    def live_requested_bytes(self) -> Table:
        """Return the requested bytes alive after each operation, shape ``(n_ops,)``."""
        return np.cumsum(np.where(self.request > 0, 1, -1) * self.requested_bytes[self.slot])

    def live_rounded_bytes(self) -> Table:
        """Return the bytes alive after each operation, with requests rounded up to 256 bytes."""
        return replace(self, requested_bytes=round_up(self.requested_bytes)).live_requested_bytes()

    def without(self, buffers: Mask) -> Sequence:
        """Return the sequence without the operations on some buffers, a mask of ``n_buffers``."""
        return self._take(~buffers[self.slot]) if buffers.any() else self

    def start(self, count: int) -> Sequence:
        """Return the first operations."""
        return self._take(slice(count))

    def _take(self, operations: Mask | slice) -> Sequence:
        return replace(
            self,
            slot=self.slot[operations],
            request=self.request[operations],
            instant=self.instant[operations],
        )

    def part(self, first: int, last: int) -> Sequence:
        """Return operations ``first`` to ``last``, preceded by the buffers alive before.

        These buffers are allocated in the order of their births, like in a process that starts here.
        """
        is_birth = self.request[:first] > 0
        births, frees = self.slot[:first][is_birth], self.slot[:first][~is_birth]
        alive = births[~np.isin(births, frees)]
        chosen = slice(first, last + 1)
        return replace(
            self,
            slot=np.concatenate([alive, self.slot[chosen]]),
            request=np.concatenate([self.requested_bytes[alive], self.request[chosen]]),
            instant=np.concatenate([np.full(alive.size, NOWHERE), self.instant[chosen]]),
            address=np.full(self.n_buffers, NOWHERE),
        )


def from_recording(recording: Recording) -> Sequence:
    """Return the sequence of a recording's allocator, measured or predicted."""
    return from_allocations(
        recording.allocations, allocator=recording.allocator, n_events=len(recording.events) or None
    )


def from_allocations(
    allocations: pd.DataFrame, *, allocator: str | None = None, n_events: int | None = None
) -> Sequence:
    """Return the births and frees of the rows of an allocations table, in order.

    Rows that request nothing, or die no later than they are born, are left out. Frees come first
    among operations at one instant. A row that dies at ``n_events``, by default the table's latest
    instant, is never freed.

    Raises:
        TraceError: nothing to replay, or an impossible size or instant.
    """
    rows = _choose_rows(allocations, allocator)
    if "part_of" in allocations:  # a part of another allocation is no request
        rows = rows[allocations["part_of"].isna().to_numpy()[rows]]
    requested, born, dies = (
        allocations[name].to_numpy(np.int64)[rows] for name in ("requested_bytes", "born", "dies")
    )
    wrong = (requested < 0) | (requested > MAX_REQUEST_BYTES)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise TraceError(
            f"Row {rows[at]} asks for {requested[at]} bytes, which is impossible"
            f" ({int(wrong.sum())} such rows).",
            hint=f"Sizes are 0 to {format_bytes(MAX_REQUEST_BYTES)}: the trace is damaged.",
        )
    if (born < NOWHERE).any():
        at = rows[born < NOWHERE][0]
        raise TraceError(f"Row {at} is born at instant {born[born < NOWHERE][0]}, before -1.")
    valid = (dies > born) & (requested > 0)
    rows, requested, born, dies = rows[valid], requested[valid], born[valid], dies[valid]
    if rows.size == 0:
        raise TraceError("The allocations contain nothing to replay.")
    last = int(max(born.max() + 1, dies.max())) if n_events is None else n_events
    address = np.full(rows.size, NOWHERE)
    if "address" in allocations:
        column = allocations["address"].astype("Int64")
        address = column.to_numpy(dtype="int64", na_value=NOWHERE)[rows]
    ids, freed = np.arange(rows.size), dies < last
    instant = np.concatenate([born, dies[freed]])
    slot = np.concatenate([ids, ids[freed]])
    birth = np.arange(slot.size) < rows.size
    # Before the first event there are only births; their addresses give the likely order.
    rank = np.where(birth & (instant == NOWHERE), address[slot], slot)
    order = np.lexsort((slot, rank, birth, instant))
    slot, instant, birth = slot[order], instant[order], birth[order]
    spare = np.zeros(rows.size, bool)
    if "region" in allocations:  # TensorFlow can do without workspaces and trials of algorithms
        spare = allocations["region"].astype("str").isin((TRIAL, WORKSPACE)).to_numpy()[rows]
    return Sequence(
        slot=slot,
        request=np.where(birth, requested[slot], 0),
        instant=instant,
        requested_bytes=requested,
        address=address,
        row=rows,
        spare=spare,
    )


def _choose_rows(allocations: pd.DataFrame, allocator: str | None) -> Table:
    """Return the rows of one allocator; None for the only one."""
    if len(allocations) == 0:
        raise TraceError("The allocations table is empty: no memory events to replay.")
    rows = np.arange(len(allocations))
    if "allocator" in allocations:
        names = allocations["allocator"].astype("str")
        present = sorted(names.unique()) if allocator is None else [allocator]
        if len(present) > 1:
            raise InputError(
                f"The allocations are of {len(present)} allocators: {', '.join(present)}.",
                hint="Choose one: each has its own pool.",
            )
        rows = rows[(names == present[0]).to_numpy()]
        if rows.size == 0:
            raise TraceError(f"The allocations have no rows of the allocator {allocator!r}.")
    return rows
