"""Either allocator, fed with arrays of operations: how far it gets, and under which limits it does."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from analyzer.simulate.allocator.bfc.bfc_options import BfcOptions, round_down
from analyzer.simulate.allocator.bfc.reference import BfcAllocator
from analyzer.simulate.allocator.numba.compiled_allocator import CompiledAllocator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from analyzer.simulate.allocator.sequence import Sequence

    Table = NDArray[np.int64]

MOST_RUNS: Final = 64
"""Runs at most that answer for a range of limits; with more to do, limits are tried that far apart."""


class Feedable(Protocol):
    """An allocator with what it holds."""

    @property
    def same_under(self) -> tuple[int, int]:
        """The least and the highest memory limit under which all that was fed goes as it went."""

    def feed(self, slot: Table, request: Table) -> int:
        """Do operations and return how many were done: all, or as many as succeeded.

        Args:
            slot: Which buffer, shape ``(n_ops,)``.
            request: Bytes asked for; 0 frees the slot's buffer.
        """

    def under(self, memory_limit_bytes: int) -> Feedable:
        """Return a copy, with all that it holds, that goes on under another limit."""


class ReferenceAllocator:
    """The reference implementation, fed as the compiled one is.

    Args:
        options: Limit, growth and the rest.
    """

    def __init__(self, options: BfcOptions) -> None:
        self._bfc = BfcAllocator(options)
        self._held: dict[int, int] = {}
        self._done = 0

    @property
    def same_under(self) -> tuple[int, int]:
        """The least and the highest memory limit under which all that was fed goes as it went."""
        return self._bfc.same_under

    def feed(self, slot: Table, request: Table, *, in_use: list[int] | None = None) -> int:
        """Do operations and return how many were done: all, or as many as succeeded.

        Args:
            slot: Which buffer, shape ``(n_ops,)``.
            request: Bytes asked for; 0 frees the slot's buffer.
            in_use: Gets the bytes in use after each.
        """
        bfc, held = self._bfc, self._held
        first = self._done
        for op, (buffer, size_bytes) in enumerate(
            zip(slot.tolist(), request.tolist(), strict=True), start=first
        ):
            if size_bytes:
                address = bfc.allocate(size_bytes, owner=op)
                if address is None:
                    self._done = op
                    return op - first
                held[buffer] = address
            else:
                bfc.free(held.pop(buffer))
            if in_use is not None:
                in_use.append(bfc.in_use_bytes)
        self._done = first + len(slot)
        return len(slot)

    def under(self, memory_limit_bytes: int) -> ReferenceAllocator:
        """Return a copy, with all that it holds, that goes on under another limit."""
        other = copy(self)
        other._bfc, other._held = self._bfc.under(memory_limit_bytes), dict(self._held)
        return other


def feed_sparing(allocator: Feedable, sequence: Sequence, first: int = 0) -> tuple[int, list[int]]:
    """Feed a sequence from an operation on, doing without what may be done without.

    Args:
        allocator: Has done the operations before ``first``.
        sequence: What is asked for.
        first: The operation to go on with.

    Returns:
        How many operations of the sequence are done, and the buffers that found no room.
    """
    slot, request, end = sequence.slot, sequence.request, len(sequence)
    done = first
    missed: list[int] = []
    frees: list[int] = []  # of what found no room, the earliest first
    freed_at: Table | None = None
    while True:
        while frees and frees[0] < done:
            heappop(frees)
        stop = frees[0] if frees else end
        done += allocator.feed(slot[done:stop], request[done:stop])
        if done == end:
            return done, missed
        if done < stop:
            buffer = int(slot[done])
            if not sequence.spare.size or not sequence.spare[buffer]:
                return done, missed
            missed.append(buffer)
            freed_at = _freed_at(sequence) if freed_at is None else freed_at
            if freed_at[buffer] > done:
                heappush(frees, int(freed_at[buffer]))
        done += 1


def runs_throughout(
    sequence: Sequence, options: BfcOptions, most_bytes: int, *, is_compiled: bool
) -> bool:
    """Say whether a sequence succeeds under every limit from that of the options to another.

    Success is not monotone in the limit; one run answers for all limits under which it is the same.

    Args:
        sequence: What is allocated and freed.
        options: The allocator, with the lowest limit.
        most_bytes: The highest.
        is_compiled: Which implementation replays.
    """
    limit = options.memory_limit_bytes
    most_bytes = max(round_down(most_bytes), limit)
    least_stride = (most_bytes - limit) // MOST_RUNS
    while limit <= most_bytes:
        under = replace(options, memory_limit_bytes=limit)
        allocator = allocator_of(under, sequence.n_buffers, is_compiled=is_compiled)
        if feed_sparing(allocator, sequence)[0] < len(sequence):
            return False
        if limit == most_bytes:
            return True
        limit = min(max(allocator.same_under[1] + 1, limit + least_stride, limit + 1), most_bytes)
    return True


def _freed_at(sequence: Sequence) -> Table:
    """Return the operation that frees each buffer, -1 for none, shape ``(n_buffers,)``."""
    at = np.full(sequence.n_buffers, -1, np.int64)
    frees = np.flatnonzero(sequence.request == 0)
    at[sequence.slot[frees]] = frees
    return at


def allocator_of(options: BfcOptions, n_buffers: int, *, is_compiled: bool) -> Feedable:
    """Return an allocator that holds nothing.

    Args:
        options: Limit, growth and the rest.
        n_buffers: Buffers are numbered from 0 to this.
        is_compiled: Which implementation; they do the same.
    """
    return CompiledAllocator(options, n_buffers) if is_compiled else ReferenceAllocator(options)
