"""Replay a sequence through an allocator under given settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from analyzer.model.units import round_up
from analyzer.simulate.allocator.bfc import compiled_run
from analyzer.simulate.allocator.bfc.bfc_allocator import BfcAllocator, Extension
from analyzer.simulate.allocator.bfc.bfc_pool import OUT_COLUMNS, UNLIMITED_BYTES, BfcOptions
from analyzer.simulate.allocator.sequence import NOWHERE, Sequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """The request that did not fit, and the pool just before it."""

    op: int
    instant: int
    row: int
    requested_bytes: int
    rounded_bytes: int
    in_use_bytes: int
    pool_bytes: int
    free_bytes: int
    largest_free_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of a replay. Columns have one entry for each operation done."""

    sequence: Sequence
    options: BfcOptions
    address: Table
    chunk_bytes: Table
    in_use_bytes: Table  # after the operation
    pool_bytes: Table
    largest_free_bytes: Table
    extensions: tuple[Extension, ...]

    def __len__(self) -> int:
        return int(self.address.size)

    @property
    def instant(self) -> Table:
        """Row of the events table of each operation."""
        return self.sequence.instant[: len(self)]

    @property
    def failure(self) -> FailedRequest | None:
        """The request that did not fit; None if all did. Columns end before it."""
        sequence, op = self.sequence, len(self)
        if op == len(sequence):
            return None
        columns = (self.in_use_bytes, self.pool_bytes, self.largest_free_bytes)
        in_use, pool, largest = (int(column[-1]) if op else 0 for column in columns)
        requested = int(sequence.request[op])
        return FailedRequest(
            op=op,
            instant=int(sequence.instant[op]),
            row=int(sequence.row[sequence.slot[op]]),
            requested_bytes=requested,
            rounded_bytes=round_up(requested),
            in_use_bytes=in_use,
            pool_bytes=pool,
            free_bytes=pool - in_use,
            largest_free_bytes=largest,
            available_bytes=self.options.memory_limit_bytes - pool,
        )

    def fragmentation(self, places: Table | slice = slice(None)) -> NDArray[np.float64]:
        """Return (free - largest free) / free after operations; 0 if nothing is free."""
        free = self.pool_bytes[places] - self.in_use_bytes[places]
        return np.asarray((free - self.largest_free_bytes[places]) / np.maximum(free, 1))

    @property
    def peak_in_use_bytes(self) -> int:
        """Peak of the bytes of chunks in use."""
        return int(self.in_use_bytes.max(initial=0))

    @property
    def peak_pool_bytes(self) -> int:
        """Peak of the bytes taken from the driver."""
        return int(self.pool_bytes.max(initial=0))

    @property
    def peak_requested_bytes(self) -> int:
        """Peak of the requested bytes alive."""
        return int(self.sequence.live_requested_bytes()[: len(self)].max(initial=0))

    def buffers(self) -> tuple[Table, Table]:
        """Return address and chunk bytes of each buffer, -1 and 0 if it was not placed."""
        address = np.full(self.sequence.n_buffers, NOWHERE)
        size = np.zeros(self.sequence.n_buffers, np.int64)
        slot = self.sequence.slot[: len(self)]
        address[slot], size[slot] = self.address, self.chunk_bytes
        return address, size


def replay(sequence: Sequence, options: BfcOptions, *, follow_addresses: bool = False) -> Replay:
    """Run a sequence through an allocator; ``follow_addresses`` places regions as the source does.

    With the settings of the run in the trace, all addresses then equal the addresses of the trace.
    """
    compiled_run.prepare(len(sequence))
    allocator = BfcAllocator(options, sequence.n_buffers)
    columns = np.empty((len(sequence), OUT_COLUMNS), np.int64)
    known = sequence.address[sequence.slot] if follow_addresses else None
    done = allocator.feed(sequence.slot, sequence.request, known=known, record=columns)
    address, chunk, in_use, pool, largest = columns[:done].T
    return Replay(
        sequence=sequence,
        options=options,
        address=address,
        chunk_bytes=chunk,
        in_use_bytes=in_use,
        pool_bytes=pool,
        largest_free_bytes=largest,
        extensions=tuple(allocator.extensions),
    )


def in_use_bytes(sequence: Sequence, options: BfcOptions) -> Table:
    """Return the bytes of chunks in use after each operation, faster than ``replay``."""
    compiled_run.prepare(len(sequence))
    columns = np.empty((len(sequence), OUT_COLUMNS - 1), np.int64)
    allocator = BfcAllocator(options, sequence.n_buffers)
    done = allocator.feed(sequence.slot, sequence.request, record=columns)
    return columns[:done, 2]


DETECTION_EVENTS: Final = 50_000  # events that are replayed to find the settings of a trace
FRAGMENTATION_DIGITS: Final = 6  # significant digits of the fragmentation in a trace

_BLOCK_EVENTS: Final = 1 << 18
"""Events compared at a time, so that a long trace needs no whole table for each field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The events of a trace that a replay reproduces."""

    events: int
    equal: int  # number of events with equal address, chunk, bytes in use, peak and fragmentation
    replay: Replay

    @property
    def is_exact(self) -> bool:
        """Whether all events are equal and no request failed."""
        return self.equal == self.events and self.replay.failure is None


def compare(sequence: Sequence, events: pd.DataFrame, options: BfcOptions | None = None) -> Match:
    """Replay the sequence of a trace and compare each operation with its event.

    Regions get the addresses of the trace; all else follows from the requests alone. The instants
    of the sequence are rows of ``events``. ``options`` are the settings of the run; the CPU's by
    default.
    """
    result = replay(sequence, options or BfcOptions.cpu(), follow_addresses=True)
    shown = result.instant != NOWHERE
    # Of an event with two operations (an implied free and an allocation) the last is compared.
    shown[:-1] &= np.diff(result.instant) != 0
    places = np.flatnonzero(shown)
    blocks = range(0, places.size, _BLOCK_EVENTS)
    parts = [_compare_block(result, events, places[at : at + _BLOCK_EVENTS]) for at in blocks]
    equal = sum(int(part.sum()) for part in parts)
    return Match(events=int(places.size), equal=equal, replay=result)


def _compare_block(result: Replay, events: pd.DataFrame, places: Table) -> NDArray[np.bool_]:
    """Return which operations of a replay equal their events."""
    rows = result.instant[places]

    def column(name: str) -> NDArray[Any]:
        return np.asarray(events[name].to_numpy()[rows])

    start = int(places[0])
    peak = np.maximum.accumulate(result.in_use_bytes[start : int(places[-1]) + 1])
    before = int(result.in_use_bytes[:start].max(initial=0))
    # Nothing free counts as 0; the trace has a few digits only.
    theirs = np.nan_to_num(column("fragmentation").astype(float))
    unit = 10.0 ** (np.floor(np.log10(np.maximum(theirs, 1e-300))) - FRAGMENTATION_DIGITS + 1)
    is_equal = np.asarray(np.abs(result.fragmentation(places) - theirs) <= 0.51 * unit)
    is_equal &= result.address[places] == column("address")
    is_equal &= result.chunk_bytes[places] == column("allocated_bytes")
    is_equal &= result.in_use_bytes[places] == column("in_use_bytes")
    is_equal &= np.maximum(peak[places - start], before) == column("peak_in_use_bytes")
    return is_equal


def recorded_options(sequence: Sequence, events: pd.DataFrame) -> BfcOptions:
    """Return the settings of the run that a trace shows; arguments as for ``compare``.

    The limit is the sum of bytes in use and bytes available. A trace does not show whether the pool
    grows: the events of a GPU are replayed both ways, and the better match counts.
    """
    part = sequence.start(DETECTION_EVENTS)
    first = events.iloc[part.instant[part.instant != NOWHERE][0]]
    limit = int(first["in_use_bytes"] + first["available_bytes"])
    if not 0 < limit <= UNLIMITED_BYTES:
        limit = UNLIMITED_BYTES
    if "GPU" not in str(first["allocator"]):
        return BfcOptions.cpu(limit)
    whole, growing = (BfcOptions.gpu(limit, growth=growth) for growth in (False, True))
    match = compare(part, events, whole)
    if match.is_exact:
        return whole
    return growing if compare(part, events, growing).equal > match.equal else whole
