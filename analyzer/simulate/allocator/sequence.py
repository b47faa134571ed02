"""The requests and frees of an allocator, in order: the input of every replay.

A sequence is made of an events table (``events_to_sequence``) or of an allocations table, measured or
predicted. Inconsistent rows are either refused with a ``TraceError`` or corrected in the one sensible
way and counted in ``cautions``.
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
from analyzer.simulate.allocator.bfc.bfc_options import MAX_REQUEST_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]
    Mask = NDArray[np.bool_]

NOWHERE: Final = -1
"""An unknown address, no row of a table, or an instant before the first event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    """A correction of the input.

    Attributes:
        id: Stable name, such as ``double-free``.
        message: One sentence with the count and the correction.
    """

    id: str
    count: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Operations on buffers, in order. Arrays are int64; buffers are numbered from 0.

    Attributes:
        slot: Buffer of each operation, shape ``(n_ops,)``.
        request: Bytes requested, 0 for a free, shape ``(n_ops,)``.
        instant: Row of the events table of each operation; -1 before the first event.
        requested_bytes: Bytes of each buffer, shape ``(n_buffers,)``.
        address: Address of each buffer in the source; -1 if it has none.
        row: Row of each buffer in the source table (of events: the row of its allocation); -1 for a
            buffer that stands for memory allocated before the trace.
        spare: Which buffers are optional: TensorFlow continues without them if they do not fit.
            Shape ``(n_buffers,)``, or empty if there are none.
        cautions: Corrections of the input.
    """

    slot: Table
    request: Table
    instant: Table
    requested_bytes: Table
    address: Table
    row: Table
    spare: Mask = field(default_factory=lambda: np.zeros(0, bool))
    cautions: tuple[Caution, ...] = ()

    def __len__(self) -> int:
        return int(self.slot.size)

    @property
    def n_buffers(self) -> int:
        """Number of buffers."""
        return int(self.requested_bytes.size)

    @property
    def known_address(self) -> Table:
        """Address of each operation in the source."""
        return self.address[self.slot]

    def live_requested_bytes(self) -> Table:
        """Return the requested bytes alive after each operation, shape ``(n_ops,)``."""
        return np.cumsum(self._signed(self.requested_bytes))

    def live_rounded_bytes(self) -> Table:
        """Return the bytes alive after each operation, with requests rounded up to 256 bytes."""
        return np.cumsum(self._signed(round_up(self.requested_bytes)))

    def _signed(self, sizes: Table) -> Table:
        return np.where(self.request > 0, 1, -1) * sizes[self.slot]

    def without(self, buffers: Mask) -> Sequence:
        """Return the sequence without the operations on some buffers, a mask of ``n_buffers``."""
        if not buffers.any():
            return self
        rest = ~buffers[self.slot]
        return replace(
            self, slot=self.slot[rest], request=self.request[rest], instant=self.instant[rest]
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


def from_recording(recording: Recording, allocator: str | None = None) -> Sequence:
    """Return the sequence of one allocator of a recording, measured or predicted."""
    return from_allocations(
        recording.allocations,
        allocator=allocator or recording.allocator,
        n_events=len(recording.events) or None,
    )


def from_allocations(
    allocations: pd.DataFrame, *, allocator: str | None = None, n_events: int | None = None
) -> Sequence:
    """Return the births and frees of the rows of an allocations table, in order.

    Args:
        allocations: Table with at least ``requested_bytes``, ``born`` and ``dies``.
        n_events: Number of instants; a row that dies at this instant is never freed. None for the
            latest instant of the table.

    Raises:
        TraceError: nothing to replay, or an impossible size or instant.
    """
    rows = rows_of(allocations, allocator, "allocations")
    if "part_of" in allocations:  # a part of another allocation is no request
        rows = rows[allocations["part_of"].isna().to_numpy()[rows]]
    requested = integers(allocations, "requested_bytes")[rows]
    born, dies = integers(allocations, "born")[rows], integers(allocations, "dies")[rows]
    refuse_sizes(requested, rows, "row")
    if (born < NOWHERE).any():
        at = rows[born < NOWHERE][0]
        raise TraceError(f"Row {at} is born at instant {born[born < NOWHERE][0]}, before -1.")
    never, empty = dies <= born, requested == 0
    cautions = [
        caution("dies-unborn", never, "rows die no later than they are born; left out."),
        caution("zero-size", empty, "rows request 0 bytes and take no chunk."),
    ]
    valid = ~never & ~empty
    rows, requested, born, dies = rows[valid], requested[valid], born[valid], dies[valid]
    if rows.size == 0:
        raise TraceError("The allocations contain nothing to replay.")
    last = int(max(born.max() + 1, dies.max())) if n_events is None else n_events
    address = _addresses(allocations)[rows]
    slot, instant, birth = _sort_operations(born, dies, address, last)
    text = "buffers were alive before the first event; placed in order of address, so addresses differ."
    cautions.append(caution("alive-before", born == NOWHERE, text))
    ties = (np.diff(instant) == 0) & (instant[1:] != NOWHERE)
    cautions.append(
        caution("same-instant", ties, "operations share an instant; frees are done first.")
    )
    return Sequence(
        slot=slot,
        request=np.where(birth, requested[slot], 0),
        instant=instant,
        requested_bytes=requested,
        address=address,
        row=rows,
        spare=_find_optional(allocations)[rows],
        cautions=tuple(one for one in cautions if one.count),
    )


def _sort_operations(
    born: Table, dies: Table, address: Table, last: int
) -> tuple[Table, Table, Mask]:
    """Return buffer, instant and whether it is a birth, for all births and frees in order.

    Buffers that die at instant ``last`` or later are never freed.
    """
    ids = np.arange(born.size)
    freed = dies < last
    instant = np.concatenate([born, dies[freed]])
    slot = np.concatenate([ids, ids[freed]])
    birth = np.arange(slot.size) < born.size
    # Before the first event there are only births; their addresses give the likely order.
    rank = np.where(birth & (instant == NOWHERE), address[slot], slot)
    order = np.lexsort((slot, rank, birth, instant))
    return slot[order], instant[order], birth[order]


def rows_of(table: pd.DataFrame, allocator: str | None, name: str) -> Table:
    """Return the rows of one allocator; None for the only one. ``name`` is the table's."""
    if len(table) == 0:
        raise TraceError(f"The {name} table is empty: no memory events to replay.")
    if "allocator" not in table:
        return np.arange(len(table))
    names = table["allocator"].astype("str")
    if allocator is None:
        present = sorted(names.unique())
        if len(present) > 1:
            raise InputError(
                f"The {name} are of {len(present)} allocators: {', '.join(present)}.",
                hint="Choose one: each has its own pool.",
            )
        allocator = present[0]
    rows = np.flatnonzero((names == allocator).to_numpy())
    if rows.size == 0:
        raise TraceError(f"The {name} have no rows of the allocator {allocator!r}.")
    return rows


def integers(table: pd.DataFrame, name: str) -> Table:
    """Return a column as int64; refuse missing values and fractions."""
    if name not in table:
        raise TraceError(f"The table lacks the column {name!r}.")
    column = table[name]
    if column.dtype == np.int64:
        return np.asarray(column, np.int64)
    try:
        numbers = pd.to_numeric(column).to_numpy(dtype="float64", na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise TraceError(f"The column {name!r} contains values other than numbers.") from error
    wrong = ~np.isfinite(numbers) | (numbers != np.floor(numbers)) | (np.abs(numbers) > 2.0**62)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise TraceError(f"Row {at}: {name} is {numbers[at]}, which is no whole number.")
    return np.asarray(column, np.int64)


def _find_optional(table: pd.DataFrame) -> Mask:
    """Return which rows are workspaces and trials of algorithms, which TensorFlow can do without."""
    if "region" not in table:
        return np.zeros(len(table), bool)
    return np.asarray(table["region"].astype("str").isin((TRIAL, WORKSPACE)), bool)


def _addresses(table: pd.DataFrame) -> Table:
    """Return the address column, -1 for missing values."""
    if "address" not in table:
        return np.full(len(table), NOWHERE)
    column = table["address"].astype("Int64")
    return np.asarray(column.to_numpy(dtype="int64", na_value=NOWHERE))


def refuse_sizes(requested: Table, rows: Table, name: str) -> None:
    """Raise a ``TraceError`` for negative and impossibly large requests."""
    wrong = (requested < 0) | (requested > MAX_REQUEST_BYTES)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise TraceError(
            f"{name.capitalize()} {rows[at]} asks for {requested[at]} bytes, which is impossible"
            f" ({int(wrong.sum())} such {name}s).",
            hint=f"Sizes are 0 to {format_bytes(MAX_REQUEST_BYTES)}: the trace is damaged.",
        )


def caution(name: str, which: Mask | int, message: str) -> Caution:
    """Return a caution; its message begins with the count, or the size of the mask."""
    count = which if isinstance(which, int) else int(which.sum())
    return Caution(id=name, count=count, message=f"{count} {message}")
