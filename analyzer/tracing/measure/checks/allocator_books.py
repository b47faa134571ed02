"""Whether the events of an allocator can be what an allocator did.

TensorFlow writes the bytes in use into every event, after the event and under the allocator's lock
(``BFCAllocator::AddTraceMe``), so that the sum of the events equals them at every event of a whole
trace. A trace that begins late differs by what was in use before, the same at every event; one that
lost events in between, or whose numbers were altered, differs by more and more. What else an
allocator cannot have done is looked for beside: a free of what is free, an address given away twice,
a chunk smaller than its request or over twice as large.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from analyzer.model.contract.element_sizes import ITEM_BYTES
from analyzer.model.contract.fields import MOST_TOTAL
from analyzer.model.errors import TraceError
from analyzer.model.recording.records import BooksCheck, Damage
from analyzer.model.recording.timeline import running_sum
from analyzer.model.units import GRANULE_BYTES, format_bytes, times

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_ALIGNED_BYTES: Final = 64
"""Every chunk begins at a multiple of this (``tsl::Allocator::kAllocatorAlignment``)."""

_LARGEST_BYTES: Final = 1 << 44
"""A size above this (16 TiB) is a damaged number."""

_MOST_OF: Final = 0.5
"""What fewer than this share of the events lack is lost; what more lack was never written."""

_SHAPED: Final = ("output", "temp")
"""Regions of which TensorFlow writes the shape of the very tensor."""

_AT_ONCE: Final = 1 << 16
"""Events that are turned into plain numbers at once."""

_NOT_COMPARED: Final = frozenset({"string"})
"""Element types of which no size of a buffer is told from the shape alone."""


@dataclass(frozen=True, slots=True)
class Account:
    """The events of one allocator as columns, in order; ``rows`` are their instants."""

    allocator: str
    rows: Numbers
    time_ps: Numbers
    kind: Numbers
    address: Numbers
    requested: Numbers
    allocated: Numbers
    in_use: Numbers
    available: Numbers
    peak: Numbers

    @property
    def is_bfc(self) -> bool:
        """Whether it is TensorFlow's best-fit allocator, whose rounding is known."""
        return "bfc" in self.allocator.lower() or self.allocator == "mklcpu"

    @property
    def before_bytes(self) -> int:
        """Allocated bytes in use before the first event, as the first event tells."""
        return int(self.in_use[0] - self.kind[0] * self.allocated[0])

    def damage(self, name: str, which: Mask, message: str) -> Iterator[Damage]:
        """Yield a damage where any event is in ``which``; ``message`` follows the count.

        Args:
            name: Id of the damage.
            which: True for each event that shows it.
            message: What follows the count.
        """
        count = int(which.sum())
        if count:
            yield Damage(
                id=name,
                count=count,
                message=f"{message} ({times(count)}).",
                allocator=self.allocator,
                time_ps=int(self.time_ps[np.argmax(which)]),
            )


def accounts_of(events: pd.DataFrame) -> list[Account]:
    """Return the events of each allocator.

    Raises:
        TraceError: a size is below 0 or above what any machine has.
    """
    columns = {
        name: events[f"{name}_bytes"].to_numpy(dtype=np.int64)
        for name in ("requested", "allocated", "in_use", "available", "peak_in_use")
    }
    for name in ("requested", "allocated"):
        wrong = (columns[name] < 0) | (columns[name] > _LARGEST_BYTES)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise TraceError(
                f"The trace is damaged: memory event {at} is of {columns[name][at]} bytes.",
                hint=f"Sizes are 0 to {format_bytes(_LARGEST_BYTES)}; copy the trace again or retrace.",
            )
    codes = events["allocator"].cat.codes.to_numpy()
    found = []
    for code in np.unique(codes):
        rows = np.flatnonzero(codes == code)
        # A view where all events are of one allocator: of millions of them no column is held twice.
        own: slice | Numbers = slice(None) if len(rows) == len(events) else rows
        found.append(
            Account(
                str(events["allocator"].cat.categories[code]),
                rows,
                *(
                    events[name].to_numpy(dtype=np.int64)[own]
                    for name in ("time_ps", "kind", "address")
                ),
                *(column[own] for column in columns.values()),
            )
        )
    return found


def books_of(account: Account, allocations: pd.DataFrame, events: int) -> BooksCheck:
    """Compare what ``allocations`` adds up to with the bytes in use that TensorFlow wrote.

    Args:
        account: The events of one allocator.
        allocations: Table with the columns of ``ALLOCATIONS``.
        events: Number of events of all allocators.
    """
    if not account.in_use.any():
        return BooksCheck(allocator=account.allocator, events=0)
    own = allocations[allocations["allocator"] == account.allocator]
    born, dies, sizes = (own[name].to_numpy() for name in ("born", "dies", "allocated_bytes"))
    difference = running_sum(born, dies, sizes, events)[account.rows + 1] - account.in_use
    wrong = difference != 0
    return BooksCheck(
        allocator=account.allocator,
        events=len(account.rows),
        disagreeing=int(wrong.sum()),
        first_time_ps=int(account.time_ps[np.argmax(wrong)]) if wrong.any() else None,
        largest_difference_bytes=min(int(np.abs(difference).max(initial=0)), MOST_TOTAL),
    )


def damages_of(
    account: Account, events: pd.DataFrame, *, from_process_start: bool
) -> Iterator[Damage]:
    """Yield what an allocator cannot have done.

    Args:
        account: The events of one allocator.
        events: Table with the columns of ``EVENTS``, of every allocator.
        from_process_start: The trace claims to hold every event of the process.
    """
    yield from _of_counters(account)
    yield from _of_lives(account, from_process_start=from_process_start)
    yield from _of_sizes(account)
    yield from _of_shapes(account, events)
    yield from _of_statistics(account, events)
    yield from account.damage(
        "overlapping-chunks", _overlapping(account), "allocations lie inside chunks in use"
    )


def _of_counters(account: Account) -> Iterator[Damage]:
    """Check what TensorFlow wrote about itself: the bytes in use, their peak, the limit."""
    in_use, peak = account.in_use, account.peak
    if not in_use.any():
        return
    change = account.kind * account.allocated
    broken = np.diff(in_use, prepend=account.before_bytes) != change
    yield from account.damage(
        "lost-events",
        broken,
        "memory events do not follow from the one before by TensorFlow's own bytes in use: events "
        "between are lost, or their numbers altered",
    )
    if peak.any():
        # Its user may set the peak back, so it may fall; it cannot rise without an event.
        before = np.concatenate([[max(peak[0], in_use[0])], peak[:-1]])
        wrong = (peak < in_use) | (peak > np.maximum(before, in_use))
        yield from account.damage(
            "unseen-peak",
            wrong,
            "memory events name a peak of the bytes in use that no event shows",
        )
    if account.is_bfc and account.available.any():
        limits = in_use + account.available
        yield from account.damage(
            "limit-changes",
            limits != np.sort(limits)[len(limits) // 2],
            "memory events name another memory limit than the others",
        )


def _of_lives(account: Account, *, from_process_start: bool) -> Iterator[Damage]:
    """Check that what is allocated is freed at most once and that what is freed was allocated."""
    order = np.argsort(account.address, kind="stable")
    kind, address = account.kind[order], account.address[order]
    again = np.zeros(len(order), bool)
    again[1:] = address[1:] == address[:-1]
    after = np.zeros(len(order), bool)  # an allocation at the same address came just before
    after[1:] = again[1:] & (kind[:-1] > 0)
    birth = kind > 0

    def told(which: Mask) -> Mask:
        mask = np.zeros(len(order), bool)
        mask[order] = which
        return mask

    yield from account.damage(
        "address-in-use",
        told(birth & after),
        "allocations reuse an address whose free is not in the trace; the earlier buffer is taken "
        "to end there",
    )
    yield from account.damage(
        "double-free",
        told(~birth & again & ~after),
        "frees name an address that is free already",
    )
    sizes = account.allocated[order]
    resized = ~birth & after & (sizes != 0)
    resized[1:] &= sizes[1:] != sizes[:-1]
    yield from account.damage(
        "free-of-other-size", told(resized), "frees name another size than their allocation did"
    )
    requested = account.requested[order]
    rerequested = ~birth & after & (requested != 0)
    rerequested[1:] &= requested[1:] != requested[:-1]
    yield from account.damage(
        "free-of-other-request",
        told(rerequested),
        "frees name another request than their allocation did",
    )
    yield from _of_history(account, told(~birth & ~again), from_process_start=from_process_start)


def _of_history(account: Account, unborn: Mask, *, from_process_start: bool) -> Iterator[Damage]:
    """Check what is freed without an allocation against what was in use before the trace."""
    if not account.in_use.any():
        return
    before = account.before_bytes
    if before < 0 or (from_process_start and before):
        yield Damage(
            id="lost-beginning",
            count=1,
            message="The trace was begun with the process, but its first event has "
            f"{format_bytes(before)} in use before it: the beginning is lost."
            if before > 0
            else "The first memory event has less than nothing in use before it.",
            allocator=account.allocator,
            time_ps=int(account.time_ps[0]),
        )
    freed = np.cumsum(np.where(unborn, account.allocated, 0))
    yield from account.damage(
        "free-without-allocation",
        unborn & (freed > max(before, 0)),
        "frees end buffers that were neither allocated in the trace nor in use before it",
    )


def _of_sizes(account: Account) -> Iterator[Damage]:
    """Check the chunks' sizes against how the allocator rounds.

    ``BFCAllocator`` rounds a request up to 256 bytes and splits a free chunk that is twice that or
    more, so that a chunk is at least its request and less than twice the rounded one.
    """
    birth, requested, allocated = account.kind > 0, account.requested, account.allocated
    small = birth & (allocated > 0) & (allocated < requested)
    yield from account.damage(
        "chunk-below-request", small, "allocations have a chunk smaller than their request"
    )
    if not account.is_bfc or not requested.any():
        return
    rounded = -(-requested // GRANULE_BYTES) * GRANULE_BYTES
    wrong = (allocated % GRANULE_BYTES != 0) | (allocated < rounded) | (allocated >= 2 * rounded)
    yield from account.damage(
        "impossible-chunk",
        birth & wrong & ~small,
        "allocations have a chunk of a size that TensorFlow's allocator does not give for their "
        "request",
    )
    yield from account.damage(
        "unaligned-address",
        account.address % _ALIGNED_BYTES != 0,
        f"memory events name an address that is no multiple of {_ALIGNED_BYTES}",
    )


def _of_shapes(account: Account, events: pd.DataFrame) -> Iterator[Damage]:
    """Check each request against the shape and element type that TensorFlow wrote beside it.

    Of a copy between devices (``dynamic``) it writes those of a tensor that is still empty.
    """
    rows = events.iloc[account.rows]
    expected = _bytes_by_shape(rows)
    wrong = (account.kind > 0) & (expected >= 0) & (expected != account.requested)
    wrong &= rows["region"].isin(_SHAPED).to_numpy()
    yield from account.damage(
        "shape-of-other-size", wrong, "allocations ask for other bytes than their shape needs"
    )


def _of_statistics(account: Account, events: pd.DataFrame) -> Iterator[Damage]:
    """Check that what TensorFlow writes together is there together.

    Region, shape and element type come from one annotation, and a function's run names the op
    (``ScopedMemoryDebugAnnotation``). A version that writes one of them in no event is no damage.
    """
    rows = events.iloc[account.rows]
    birth = account.kind > 0
    op, region, shape, dtype = (
        birth & (rows[name] != "").to_numpy() for name in ("op", "region", "shape", "dtype")
    )
    run = birth & (rows["run_id"] != 0).to_numpy()
    wrong = np.zeros(len(rows), bool)
    for one, other in ((run, op), (shape, region), (region, shape), (dtype, region)):
        lacking = one & ~other
        if lacking.sum() < _MOST_OF * one.sum():
            wrong |= lacking
    yield from account.damage(
        "lost-statistics",
        wrong,
        "allocations lack a statistic that TensorFlow writes with the others",
    )


def _bytes_by_shape(rows: pd.DataFrame) -> Numbers:
    """Return the bytes that shape and element type need, -1 where they do not tell."""
    counts = np.array(
        [_elements(str(text)) for text in rows["shape"].cat.categories] or [-1], dtype=np.int64
    )[rows["shape"].cat.codes.to_numpy()]
    items = np.array(
        [
            -1 if str(name) in _NOT_COMPARED else ITEM_BYTES.get(str(name), -1)
            for name in rows["dtype"].cat.categories
        ]
        or [-1],
        dtype=np.int64,
    )[rows["dtype"].cat.codes.to_numpy()]
    return np.where((counts >= 0) & (items > 0), counts * items, -1)


def _elements(shape: str) -> int:
    """Return the number of elements of ``[3,4]``; -1 where it is not known or impossibly large."""
    axes = shape.removeprefix("[").removesuffix("]")
    if axes == shape:
        return -1
    total = 1
    for axis in axes.split(",") if axes else ():
        if not (axis.isascii() and axis.isdigit()):
            return -1
        total *= int(axis[:20])
    return total if total <= _LARGEST_BYTES else -1


def _rows(account: Account) -> Iterator[tuple[int, int, int]]:
    """Yield kind, address and allocated bytes of each event, some at a time as plain numbers."""
    columns = (account.kind, account.address, account.allocated)
    for first in range(0, len(account.rows), _AT_ONCE):
        yield from zip(
            *(column[first : first + _AT_ONCE].tolist() for column in columns), strict=True
        )


def _overlapping(account: Account) -> Mask:
    """Tell which allocations lie, in part, in a chunk that is in use at another address."""
    wrong = np.zeros(len(account.rows), bool)
    live: list[int] = []
    ends: dict[int, int] = {}
    for at, (kind, address, size) in enumerate(_rows(account)):
        place = bisect_left(live, address)
        is_live = place < len(live) and live[place] == address
        if kind > 0:
            after = place + is_live
            wrong[at] = (place > 0 and ends[live[place - 1]] > address) or (
                after < len(live) and live[after] < address + size
            )
            if not is_live:
                insort(live, address)
            ends[address] = address + size
        elif is_live:
            del live[place]
    return wrong
