"""What is allocated and freed, in which order: the input of every replay.

Made from an events table (what an allocator did) or an allocations table (what lived, measured or
predicted). What does not add up is either refused with a ``TraceError`` or
put right in the one sensible way and counted in ``cautions``; nothing is changed in silence.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from analyzer.model.errors import InputError, TraceError
from analyzer.model.recording.records import Recording
from analyzer.model.recording.schema import TRIAL
from analyzer.model.units import format_bytes
from analyzer.simulate.allocator.bfc.bfc_options import MAX_REQUEST_BYTES, round_up_all

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]
    Mask = NDArray[np.bool_]

NOWHERE: Final = -1
"""Stands for an unknown address, a buffer of no row, an instant before the first event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    """Something in the input that had to be put right, and how often.

    Attributes:
        id: Stable name, such as ``double-free``.
        count: How many events or rows.
        message: One sentence with the count in it and what was done.
    """

    id: str
    count: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Operations on buffers, in order. Arrays are int64; buffers are numbered from 0.

    Attributes:
        slot: Buffer of each operation, shape ``(n_ops,)``.
        request: Bytes it asks for, 0 where it frees, shape ``(n_ops,)``.
        instant: Row of the events table that the operation is; -1 before the first.
        requested_bytes: Bytes of each buffer, shape ``(n_buffers,)``.
        address: Address that the source gives for each buffer, -1 where it gives none.
        row: Row of the source table that each buffer is (of events: the allocation's; of
            allocations: its own); -1 for a buffer that stands for what the trace does not show.
        spare: Which buffers are done without where there is no room, shape ``(n_buffers,)``; empty
            for none.
        cautions: What had to be put right.
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
        """How many buffers there are."""
        return int(self.requested_bytes.size)

    @property
    def known_address(self) -> Table:
        """Address that the source gives, for each operation."""
        return self.address[self.slot]

    def live_requested_bytes(self) -> Table:
        """Return the requested bytes alive after each operation, shape ``(n_ops,)``."""
        return np.cumsum(self._signed(self.requested_bytes))

    def live_rounded_bytes(self) -> Table:
        """Return the same with every request rounded up to 256 bytes."""
        return np.cumsum(self._signed(round_up_all(self.requested_bytes)))

    def _signed(self, sizes: Table) -> Table:
        return np.where(self.request > 0, 1, -1) * sizes[self.slot]

    def without(self, buffers: Mask) -> Sequence:
        """Return the operations but for those on some buffers.

        Args:
            buffers: Which to leave out, shape ``(n_buffers,)``; their numbers stay unused.
        """
        if not buffers.any():
            return self
        kept = ~buffers[self.slot]
        return replace(
            self, slot=self.slot[kept], request=self.request[kept], instant=self.instant[kept]
        )

    def part(self, first: int, last: int) -> Sequence:
        """Return what is alive before operation ``first``, then operations ``first`` to ``last``.

        As in a process that starts there: the live buffers are allocated one after the other, in
        the order in which they were born.
        """
        before = self.slot[:first]
        alive = np.zeros(self.n_buffers, bool)
        alive[before[self.request[:first] > 0]] = True
        alive[before[self.request[:first] == 0]] = False
        born = before[self.request[:first] > 0]
        born = born[alive[born]]
        chosen = slice(first, last + 1)
        return Sequence(
            slot=np.concatenate([born, self.slot[chosen]]),
            request=np.concatenate([self.requested_bytes[born], self.request[chosen]]),
            instant=np.concatenate([np.full(born.size, NOWHERE), self.instant[chosen]]),
            requested_bytes=self.requested_bytes,
            address=np.full(self.n_buffers, NOWHERE),
            row=self.row,
            spare=self.spare,
            cautions=self.cautions,
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
    """Return the sequence in which the rows of an allocations table are born and die.

    Args:
        allocations: Table with at least ``requested_bytes``, ``born`` and ``dies``; ``allocator``
            and ``address`` are used where they are there.
        allocator: Which allocator; may be left out where there is only one.
        n_events: Instants there are; a row that dies at this instant is alive after the last
            event. By default the latest instant of the table.

    Raises:
        TraceError: nothing to replay, or a size or instant that cannot be.
    """
    rows = rows_of(allocations, allocator, "allocations")
    # What lies inside of an allocation was not asked of the allocator.
    rows = rows[~_is_part(allocations)[rows]]
    requested = integers(allocations, "requested_bytes")[rows]
    born, dies = integers(allocations, "born")[rows], integers(allocations, "dies")[rows]
    refuse_sizes(requested, rows, "row")
    if (born < NOWHERE).any():
        at = rows[born < NOWHERE][0]
        raise TraceError(f"row {at} is born at instant {born[born < NOWHERE][0]}, before -1.")
    cautions = []
    never, empty = dies <= born, requested == 0
    if never.any():
        cautions.append(
            caution("dies-unborn", never, "rows die no later than they are born; left out.")
        )
    if empty.any():
        cautions.append(caution("zero-size", empty, "rows ask for 0 bytes and take no chunk."))
    keep = ~never & ~empty
    rows, requested, born, dies = rows[keep], requested[keep], born[keep], dies[keep]
    if rows.size == 0:
        raise TraceError("the allocations hold nothing to replay.")
    last = int(max(born.max() + 1, dies.max())) if n_events is None else n_events
    address = _addresses(allocations)[rows]
    slot, instant, birth = _in_order(born, dies, address, last)
    if (early := born == NOWHERE).any():
        text = "buffers were alive before the first event; placed anew, so addresses differ."
        cautions.append(caution("alive-before", early, text))
    ties = (np.diff(instant) == 0) & (instant[1:] != NOWHERE)
    if ties.any():
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
        spare=_spare(allocations)[rows],
        cautions=tuple(cautions),
    )


def _in_order(born: Table, dies: Table, address: Table, last: int) -> tuple[Table, Table, Mask]:
    """Return births and frees in order: buffer, instant and whether it is a birth, ``(n,)`` each.

    Args:
        born: Instant of each buffer's birth, (buffers,) int64.
        dies: Instant of its free, (buffers,) int64.
        address: Its address, (buffers,) int64.
        last: Instant from which on a free has not happened.
    """
    ids = np.arange(born.size)
    freed = dies < last
    instant = np.concatenate([born, dies[freed]])
    slot = np.concatenate([ids, ids[freed]])
    birth = np.concatenate([np.ones(born.size, bool), np.zeros(int(freed.sum()), bool)])
    # Before the first event only births happen, and the addresses tell their likely order.
    rank = np.where(birth & (instant == NOWHERE), address[slot], slot)
    order = np.lexsort((slot, rank, birth, instant))
    return slot[order], instant[order], birth[order]


def rows_of(table: pd.DataFrame, allocator: str | None, what: str) -> Table:
    """Return the rows of one allocator.

    Args:
        table: Events or allocations.
        allocator: Name of the allocator; None for the only one there is.
        what: What the table is called in an error.

    Raises:
        TraceError: the table is empty, or has no rows of that allocator.
        InputError: there are several allocators and none is named.
    """
    if len(table) == 0:
        raise TraceError(f"the {what} table is empty: no memory events to replay.")
    if "allocator" not in table:
        return np.arange(len(table))
    names = table["allocator"].astype("str")
    if allocator is None:
        found = sorted(names.unique())
        if len(found) > 1:
            raise InputError(
                f"the {what} are of {len(found)} allocators: {', '.join(found)}.",
                hint="Choose one: each has a pool of its own.",
            )
        allocator = found[0]
    rows = np.flatnonzero((names == allocator).to_numpy())
    if rows.size == 0:
        raise TraceError(f"no {what} are of the allocator {allocator!r}.")
    return rows


def integers(table: pd.DataFrame, name: str) -> Table:
    """Return a column as int64, refusing what is missing or no whole number."""
    if name not in table:
        raise TraceError(f"the table lacks the column {name!r}.")
    column = table[name]
    if column.dtype == np.int64:
        return np.asarray(column, np.int64)
    try:
        numbers = pd.to_numeric(column).to_numpy(dtype="float64", na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise TraceError(f"the column {name!r} holds something else than numbers.") from error
    wrong = ~np.isfinite(numbers) | (numbers != np.floor(numbers)) | (np.abs(numbers) > 2.0**62)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise TraceError(f"row {at}: {name} is {numbers[at]}, which is no whole number.")
    return np.asarray(column, np.int64)


def _is_part(table: pd.DataFrame) -> Mask:
    if "part_of" not in table:
        return np.zeros(len(table), bool)
    return np.asarray(table["part_of"].notna(), bool)


def _spare(table: pd.DataFrame) -> Mask:
    if "region" not in table:
        return np.zeros(len(table), bool)
    return np.asarray(table["region"].astype("str") == TRIAL, bool)


def _addresses(table: pd.DataFrame) -> Table:
    """Return the address column, -1 where it is missing."""
    if "address" not in table:
        return np.full(len(table), NOWHERE)
    column = table["address"].astype("Int64")
    return np.asarray(column.to_numpy(dtype="int64", na_value=NOWHERE))


def refuse_sizes(requested: Table, rows: Table, what: str) -> None:
    """Refuse what asks for a negative or an impossible number of bytes.

    Args:
        requested: Bytes asked for, (n,) int64.
        rows: Row of the table of each, (n,), for the error.
        what: What the table is called in an error.
    """
    wrong = (requested < 0) | (requested > MAX_REQUEST_BYTES)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise TraceError(
            f"{what} {rows[at]} asks for {requested[at]} bytes, which cannot be"
            f" ({int(wrong.sum())} such {what}s).",
            hint=f"Sizes are 0 to {format_bytes(MAX_REQUEST_BYTES)}: the trace is damaged.",
        )


def caution(name: str, which: Mask | int, message: str) -> Caution:
    """Return a caution whose message begins with its count.

    Args:
        name: Id of the caution.
        which: How many cases, or a mask that is true for each.
        message: What follows the count.
    """
    count = int(which) if isinstance(which, int) else int(which.sum())
    return Caution(id=name, count=count, message=f"{count} {message}")
