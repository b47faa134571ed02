"""Run a sequence through an allocator, and skip optional buffers that do not fit."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from analyzer.simulate.allocator.bfc.bfc_allocator import BfcAllocator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from analyzer.simulate.allocator.sequence import Sequence

    Table = NDArray[np.int64]


def feed_sparing(
    allocator: BfcAllocator, sequence: Sequence, first: int = 0
) -> tuple[int, list[int]]:
    """Run a sequence and skip optional buffers (``Sequence.spare``) that find no memory.

    Args:
        allocator: Has run the operations before ``first``.
        sequence: Requests and frees, in order.
        first: Operation to begin with.

    Returns:
        The number of operations done, counted from the start of the sequence, and the skipped
        buffers.
    """
    slot, request, end = sequence.slot, sequence.request, len(sequence)
    done = first
    skipped: list[int] = []
    frees: list[int] = []  # operations that free skipped buffers, as a heap
    freed_at: Table | None = None
    while True:
        while frees and frees[0] < done:
            heappop(frees)
        stop = frees[0] if frees else end
        done += allocator.feed(slot[done:stop], request[done:stop])
        if done == end:
            return done, skipped
        if done < stop:
            buffer = int(slot[done])
            if not sequence.spare.size or not sequence.spare[buffer]:
                return done, skipped
            skipped.append(buffer)
            freed_at = _find_frees(sequence) if freed_at is None else freed_at
            if freed_at[buffer] > done:
                heappush(frees, int(freed_at[buffer]))
        done += 1


def _find_frees(sequence: Sequence) -> Table:
    """Return the operation that frees each buffer, -1 for none, shape ``(n_buffers,)``."""
    at = np.full(sequence.n_buffers, -1, np.int64)
    frees = np.flatnonzero(sequence.request == 0)
    at[sequence.slot[frees]] = frees
    return at
