"""Requests and frees in order, from an allocations table; their replay, and the least limit for it.

Success is not monotone in the limit: another size of the last region makes the best fit choose other
chunks. So a few limits between a lower bound and a sufficient limit are tried, and the two ends of those
that fail are found by bisection.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyzer.model.contract.report_file import ReplayCheck, ReplayFailure
from analyzer.model.errors import InputError, TraceError
from analyzer.model.recording.records import TRIAL, WORKSPACE, Recording
from analyzer.model.units import GRANULE_BYTES, Range, format_bytes, round_up
from analyzer.simulate.allocator.bfc import (
    UNLIMITED_BYTES,
    BfcAllocator,
    BfcOptions,
    Chunk,
)

Table = NDArray[np.int64]
Mask = NDArray[np.bool_]

# 16 TiB: a larger request in a trace is a damaged number
MAX_REQUEST_BYTES = 1 << 44

# An unknown address, no row of a table, or an instant before the first event
NOWHERE = -1


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """Operations on buffers, in order. Arrays are int64; buffers are numbered from 0."""

    slot: Table  # buffer of each operation, shape ``(n_ops,)``
    request: Table  # bytes requested, 0 for a free, shape ``(n_ops,)``
    instant: (
        Table  # row of the events table of each operation; -1 before the first event
    )
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
        return np.cumsum(
            np.where(self.request > 0, 1, -1) * self.requested_bytes[self.slot]
        )

    def live_rounded_bytes(self) -> Table:
        """Return the bytes alive after each operation, with requests rounded up to 256 bytes."""
        return replace(
            self,
            requested_bytes=round_up(self.requested_bytes),
        ).live_requested_bytes()

    def without(self, buffers: Mask) -> Sequence:
        """Return the sequence without the operations on some buffers, a mask of ``n_buffers``."""
        if buffers.any():
            return self.take(~buffers[self.slot])

        return self

    def take(self, operations: np.ndarray | slice) -> Sequence:
        """Return the sequence with some operations, or in another order."""
        return replace(
            self,
            slot=self.slot[operations],
            request=self.request[operations],
            instant=self.instant[operations],
        )


def from_recording(recording: Recording) -> Sequence:
    """Return the sequence of a recording's allocator, measured or predicted."""
    return from_allocations(
        recording.allocations,
        allocator=recording.allocator,
        n_events=len(recording.events) or None,
    )


def from_allocations(
    allocations: pd.DataFrame,
    *,
    allocator: str | None = None,
    n_events: int | None = None,
) -> Sequence:
    """Return the births and frees of the rows of an allocations table, in order.

    Rows that request nothing, or die no later than they are born, are left out. Frees come first
    among operations at one instant. A row that dies at ``n_events``, by default the table's latest
    instant, is never freed. A TraceError reports a table without requests, or an impossible size.

    Args:
        allocator: Name of the allocator; None if the table has one only.
    """
    rows = np.arange(len(allocations))
    if allocator is not None:
        rows = rows[(allocations["allocator"] == allocator).to_numpy()]

    if "part_of" in allocations:  # a part of another allocation is no request
        rows = rows[allocations["part_of"].isna().to_numpy()[rows]]

    requested, born, dies = (
        allocations[name].to_numpy(np.int64)[rows]
        for name in ("requested_bytes", "born", "dies")
    )

    _check_sizes(rows, requested)
    valid = (dies > born) & (requested > 0)
    rows = rows[valid]

    requested = requested[valid]
    born = born[valid]
    dies = dies[valid]

    if rows.size == 0:
        raise TraceError("The allocations contain nothing to replay.")

    last = int(max(born.max() + 1, dies.max())) if n_events is None else n_events
    address = np.full(rows.size, NOWHERE)

    if "address" in allocations:
        column = allocations["address"].astype("Int64")
        address = column.to_numpy(dtype="int64", na_value=NOWHERE)[rows]

    slot, instant, birth = _order_operations(born, dies, address, last)
    spare = np.zeros(rows.size, bool)

    if "region" in allocations:
        # TensorFlow can do without workspaces and trials of algorithms.
        regions = allocations["region"].astype("str")
        spare = regions.isin((TRIAL, WORKSPACE)).to_numpy()[rows]

    return Sequence(
        slot=slot,
        request=np.where(birth, requested[slot], 0),
        instant=instant,
        requested_bytes=requested,
        address=address,
        row=rows,
        spare=spare,
    )


def _order_operations(
    born: Table,
    dies: Table,
    address: Table,
    last: int,
) -> tuple[Table, Table, Mask]:
    """Return buffer and instant of each operation in order, and whether it is a birth."""
    ids = np.arange(born.size)

    freed = dies < last
    instant = np.concatenate([born, dies[freed]])
    slot = np.concatenate([ids, ids[freed]])
    birth = np.arange(slot.size) < born.size

    # Before the first event there are only births; their addresses give the likely order.
    rank = np.where(birth & (instant == NOWHERE), address[slot], slot)
    order = np.lexsort((slot, rank, birth, instant))

    return slot[order], instant[order], birth[order]


def _check_sizes(rows: Table, requested: Table) -> None:
    """Raise a TraceError for an impossible size."""
    wrong = (requested < 0) | (requested > MAX_REQUEST_BYTES)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise TraceError(
            f"Row {rows[at]} asks for {requested[at]} bytes, which is impossible"
            f" ({int(wrong.sum())} such rows).",
            f"Sizes are 0 to {format_bytes(MAX_REQUEST_BYTES)}: the trace is damaged.",
        )


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The result of a replay. Columns have one entry for each operation done."""

    sequence: Sequence
    options: BfcOptions
    address: Table
    chunk_bytes: Table
    in_use_bytes: Table  # after the operation
    pool_bytes: Table
    largest_free_bytes: Table

    def __len__(self) -> int:
        return int(self.address.size)

    @property
    def instant(self) -> Table:
        """Row of the events table of each operation."""
        return self.sequence.instant[: len(self)]

    @property
    def failed_row(self) -> int:
        """Row of the request that did not fit, in the source table."""
        return int(self.sequence.row[self.sequence.slot[len(self)]])

    @property
    def failure(self) -> ReplayFailure | None:
        """The request that did not fit; None if all did. Columns end before it."""
        sequence = self.sequence
        op = len(self)
        if op == len(sequence):
            return None

        columns = (self.in_use_bytes, self.pool_bytes, self.largest_free_bytes)
        in_use, pool, largest = (int(column[-1]) if op else 0 for column in columns)

        return ReplayFailure(
            instant=int(sequence.instant[op]),
            requested_bytes=int(sequence.request[op]),
            in_use_bytes=in_use,
            free_bytes=pool - in_use,
            largest_free_bytes=largest,
        )

    def fragmentation(self, places: Mask | slice = slice(None)) -> NDArray[np.float64]:
        """Return (free - largest free) / free after operations; 0 if nothing is free."""
        free = self.pool_bytes[places] - self.in_use_bytes[places]
        return np.asarray(
            (free - self.largest_free_bytes[places]) / np.maximum(free, 1)
        )

    @property
    def span_bytes(self) -> int:
        """Bytes between the lowest and the highest address, of a replay in a single region."""
        ends = self.address + self.chunk_bytes
        return int(ends.max() - self.address.min())

    @property
    def peak_pool_bytes(self) -> int:
        """Peak of the bytes taken from the driver."""
        return int(self.pool_bytes.max(initial=0))


def replay(
    sequence: Sequence,
    options: BfcOptions,
    *,
    follow_addresses: bool = False,
) -> Replay:
    """Run a sequence through an allocator; ``follow_addresses`` places regions as the trace does."""
    allocator = BfcAllocator(options)
    addresses = (
        sequence.address.tolist()
        if follow_addresses
        else [NOWHERE] * sequence.n_buffers
    )

    chunks: list[Chunk | None] = [None] * sequence.n_buffers
    columns = array("q")

    for slot, request in zip(
        sequence.slot.tolist(),
        sequence.request.tolist(),
        strict=True,
    ):
        if request:
            known = addresses[slot]
            chunk = allocator.allocate(request, None if known == NOWHERE else known)
            if chunk is None:
                break

            chunks[slot] = chunk
            place = chunk.address, chunk.size_bytes
        else:
            chunk = chunks[slot]
            assert chunk is not None
            place = chunk.address, chunk.size_bytes
            allocator.free(chunk)

        columns.extend(place)
        columns.append(allocator.in_use_bytes)
        columns.append(allocator.pool_bytes)
        columns.append(allocator.largest_free_bytes)

    address, chunk_bytes, in_use, pool, largest = (
        np.frombuffer(columns, np.int64).reshape(-1, 5).T
    )

    return Replay(
        sequence=sequence,
        options=options,
        address=address,
        chunk_bytes=chunk_bytes,
        in_use_bytes=in_use,
        pool_bytes=pool,
        largest_free_bytes=largest,
    )


def replay_whole(sequence: Sequence, options: BfcOptions) -> Replay:
    """Run a sequence through an allocator; without a limit if it does not fit."""
    result = replay(sequence, options)
    if result.failure is None:
        return result

    return replay(sequence, options.unlimited())


def fits(sequence: Sequence, options: BfcOptions) -> bool:
    """Return whether a sequence succeeds, without the optional buffers that do not fit."""
    allocator = BfcAllocator(options)
    spare = sequence.spare.tolist() or [False] * sequence.n_buffers
    chunks: list[Chunk | None] = [None] * sequence.n_buffers

    for slot, request in zip(
        sequence.slot.tolist(),
        sequence.request.tolist(),
        strict=True,
    ):
        if request:
            chunks[slot] = allocator.allocate(request)
            if chunks[slot] is None and not spare[slot]:
                return False
        elif (chunk := chunks[slot]) is not None:
            allocator.free(chunk)

    return True


# events that are replayed to find the settings of a trace
DETECTION_EVENTS = 50_000
FRAGMENTATION_DIGITS = 6  # significant digits of the fragmentation in a trace


def compare(
    sequence: Sequence,
    events: pd.DataFrame,
    options: BfcOptions,
) -> tuple[ReplayCheck, Replay]:
    """Replay the sequence of a trace and compare each operation with its event.

    Regions get the addresses of the trace; all else follows from the requests alone. The sequence's
    instants are rows of ``events``. ``options`` are those of the run.
    """
    result = replay(sequence, options, follow_addresses=True)
    shown = sequence.instant != NOWHERE

    # Of an event with two operations (an implied free and an allocation) the last is compared.
    shown[:-1] &= np.diff(sequence.instant) != 0
    count = int(shown.sum())
    shown = shown[: len(result)]
    rows = result.instant[shown]

    def column(name: str) -> NDArray[Any]:
        return np.asarray(events[name].to_numpy()[rows])

    # Nothing free counts as 0; the trace has a few digits only.
    theirs = np.nan_to_num(column("fragmentation").astype(float))
    digits = np.floor(np.log10(np.maximum(theirs, 1e-300)))
    unit = 10.0 ** (digits - FRAGMENTATION_DIGITS + 1)
    peak = np.maximum.accumulate(result.in_use_bytes)

    is_equal = np.abs(result.fragmentation(shown) - theirs) <= 0.51 * unit
    is_equal &= result.address[shown] == column("address")
    is_equal &= result.chunk_bytes[shown] == column("allocated_bytes")
    is_equal &= result.in_use_bytes[shown] == column("in_use_bytes")
    is_equal &= peak[shown] == column("peak_in_use_bytes")

    return ReplayCheck(events=count, equal=int(is_equal.sum())), result


def recorded_options(sequence: Sequence, events: pd.DataFrame) -> BfcOptions:
    """Return the settings of the run that a trace shows; arguments as for ``compare``.

    The limit is the sum of bytes in use and bytes available. A trace does not show whether the pool
    grows: the events of a GPU are replayed both ways, and the better match counts.
    """
    part = sequence.take(slice(DETECTION_EVENTS))
    first = events.iloc[part.instant[part.instant != NOWHERE][0]]
    limit = int(first["in_use_bytes"] + first["available_bytes"])

    if not 0 < limit <= UNLIMITED_BYTES:
        limit = UNLIMITED_BYTES
    if "GPU" not in str(first["allocator"]):
        return BfcOptions.cpu(limit)

    whole, growing = (BfcOptions.gpu(limit, growth=growth) for growth in (False, True))
    check, _ = compare(part, events, whole)
    if check.is_exact:
        return whole

    other, _ = compare(part, events, growing)

    return growing if other.equal > check.equal else whole


# Smallest margin of a peak: about a hundred small buffers.
FLOOR_BYTES = 16 << 10

# Share added to the sufficient limit for chunk positions that no schedule shows. A real run on a card
# failed 0.3 % above the limit of 15 schedules; runs on a CPU needed up to 2.5 % more than a few.
LIMIT_MARGIN = 0.03

PROBES = 4  # limits to try between the lower bound and the sufficient limit

FINENESS = 2_000  # steps in a limit: the precision of the search

# Operations of all bisections together: a longer sequence is searched less precisely.
OPERATIONS = 2_000_000


def minimum_limit(
    sequence: Sequence,
    options: BfcOptions,
    *,
    also: Iterable[int] = (),
) -> Range:
    """Return the smallest limit under which ``sequence`` succeeds, and the safe one.

    One step less than the first fails. The second is the smallest above which no limit tried failed.
    The limit of ``options`` is ignored. Limits in ``also`` are tried too, so that the safe limit agrees
    with the result under each.
    """
    search = _Search(sequence, options, _find_bound(sequence))
    search.try_all(also)
    changes = search.find_changes()
    ends = {changes[0], changes[-1]}  # most often one change

    return Range.spanning(search.bisect(*one) for one in ends)


class _Search:
    """A search for the limits at which a sequence begins to succeed, from ``least_bytes`` on."""

    def __init__(
        self,
        sequence: Sequence,
        options: BfcOptions,
        least_bytes: int,
    ) -> None:
        whole = replay(sequence, replace(options.unlimited(), growth=False))
        top_bytes = max(whole.span_bytes, least_bytes)  # most likely suffices
        runs = min(max(OPERATIONS // max(len(sequence), 1), 3), 32)
        finest_bytes = (top_bytes - least_bytes) >> runs
        self.step = round_up(max(least_bytes // FINENESS, finest_bytes, 1))
        self.sequence = sequence
        self.options = options
        self.least = self._round(least_bytes)
        self.results = {self.least - self.step: False}

        top = self._round(top_bytes)
        probes = np.linspace(self.least, top, min(PROBES, runs // 4), endpoint=False)
        self.try_all([*(self._round(int(one)) for one in probes), top])

    def try_all(self, limits: Iterable[int]) -> None:
        """Find out whether the sequence succeeds under limits; smaller ones are known to fail."""
        for limit in limits:
            if limit >= self.least and limit not in self.results:
                self.results[limit] = self._is_enough(limit)

    def find_changes(self) -> list[tuple[int, int]]:
        """Return the neighbours among the limits tried of which the higher alone suffices."""
        highest = max(self.results)
        while not self.results[highest]:
            highest = self._round(highest + highest // 8)
            if highest > UNLIMITED_BYTES:
                raise InputError("The sequence fails under every limit.")

            self.results[highest] = self._is_enough(highest)

        changes = []
        for low, high in pairwise(sorted(self.results)):
            if self.results[high] and not self.results[low]:
                changes.append((low, high))

        return changes

    def bisect(self, fails: int, enough: int) -> int:
        """Return the smallest limit between two that suffices, if there is one change only."""
        while enough - fails > self.step:
            middle = (fails + enough) // 2 // self.step * self.step
            middle = max(middle, fails + self.step)  # ends need not be whole steps
            if self._is_enough(middle):
                enough = middle
            else:
                fails = middle

        return enough

    def _is_enough(self, limit_bytes: int) -> bool:
        return fits(self.sequence, self.options.under(limit_bytes))

    def _round(self, size_bytes: int) -> int:
        """Return a size rounded up to a whole number of steps."""
        return -(-size_bytes // self.step) * self.step


def _find_bound(sequence: Sequence) -> int:
    """Return a lower bound of all limits: the peak of the rounded requests that are needed."""
    needed = sequence.without(sequence.spare)
    return int(needed.live_rounded_bytes().max(initial=GRANULE_BYTES))


def find_shared_limits(
    sequences: Iterable[Sequence],
    options: BfcOptions,
) -> Range:
    """Return the limits below which none and above which all of several sequences succeed."""
    safe_bytes = 0
    lowest_bytes = UNLIMITED_BYTES

    for sequence in sequences:
        bound_bytes = _find_bound(sequence)
        lowest_bytes = min(lowest_bytes, bound_bytes)

        if safe_bytes and fits(sequence, options.under(safe_bytes)):
            continue

        search = _Search(sequence, options, max(bound_bytes, safe_bytes))
        safe_bytes = search.bisect(*search.find_changes()[-1])

    return Range(lowest_bytes, safe_bytes)
