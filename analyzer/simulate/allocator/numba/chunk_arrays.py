"""Chunks and bins on arrays, compiled: one half of ``bfc_operations``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numba
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]
    Handles = NDArray[np.int32]

Function = TypeVar("Function", bound=Callable[..., Any])
# A wrapper for C, which nobody calls, would cost a fifth of the time that compiling takes.
compiled: Callable[[Function], Function] = numba.njit(
    cache=False, nogil=True, boundscheck=False, no_cfunc_wrapper=True
)

NONE = -1  # no chunk
ADDRESS, BYTES, BELOW, ABOVE, STATE = range(5)
FREE, USED = 0, 1
LOWEST_CHUNK = 2  # column of ``regions``: the chunk at the region's start
(
    IN_USE,
    PEAK,
    POOL,
    NEXT_REGION,
    LOWEST,
    HIGHEST,
    N_CHUNKS,
    N_RECYCLED,
    N_REGIONS,
    N_EXTENSIONS,
    N_RELEASES,
    REASON,
    FLEXIBLE,
    LEAST,
    MOST,
    N_SCALARS,
) = range(16)
"""Places in ``scalars``, and how many there are."""
ENDED, FAILED, FULL, INVALID = range(4)
LIMIT, MAX_SPARE, COALESCE, COLLECT, DRIVER, DESCENDING, FIRST, GAP, UPPER = range(9)
TOP_BIN = 20  # the largest of 21 bins (``bfc_allocator.h``: ``kNumBins``)
ANY = 1 << 62  # bytes: no bound


@compiled
def bin_of(size: int) -> int:
    """Return the bin of a free chunk."""
    granules = max(size, 256) >> 8
    result = 0
    if granules >= 1 << 20:
        return TOP_BIN
    if granules >= 1 << 16:
        granules >>= 16
        result += 16
    if granules >= 1 << 8:
        granules >>= 8
        result += 8
    if granules >= 1 << 4:
        granules >>= 4
        result += 4
    if granules >= 1 << 2:
        granules >>= 2
        result += 2
    if granules >= 1 << 1:
        result += 1
    return result


@compiled
def position(chunks: Table, row: Handles, length: int, size: int, address: int) -> int:
    """Return the first place in a bin whose (size, address) is not less than the one given.

    Args:
        chunks: Every chunk, (capacity, 5) int64: address, bytes, chunk below, chunk above, state.
        row: The bin's row of ``bins``.
        length: Number of free chunks in it.
        size: Bytes looked for.
        address: Address looked for, among chunks of equal size.
    """
    low, high = 0, length
    while low < high:
        middle = (low + high) >> 1
        other = row[middle]
        other_size = chunks[other, BYTES]
        if other_size < size or (other_size == size and chunks[other, ADDRESS] < address):
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def insert(chunks: Table, bins: Handles, bin_length: Table, handle: int) -> None:
    """Mark a chunk free and put it into its bin.

    Args:
        chunks: Every chunk, (capacity, 5) int64: address, bytes, chunk below, chunk above, state.
        bins: Handles of the free chunks of each bin, (21, capacity) int32, by size and then
            address.
        bin_length: Number of free chunks in each bin, (21,) int64.
        handle: The chunk: a row of ``chunks``.
    """
    chunks[handle, STATE] = FREE
    which = bin_of(chunks[handle, BYTES])
    row, length = bins[which], bin_length[which]
    at = position(chunks, row, length, chunks[handle, BYTES], chunks[handle, ADDRESS])
    for i in range(length, at, -1):
        row[i] = row[i - 1]
    row[at] = handle
    bin_length[which] = length + 1


@compiled
def remove_at(bins: Handles, bin_length: Table, which: int, at: int) -> None:
    """Take the chunk at place ``at`` out of bin ``which``.

    Args:
        bins: Handles of the free chunks of each bin, (21, capacity) int32, by size and then
            address.
        bin_length: Number of free chunks in each bin, (21,) int64.
        which: Index of the bin, 0 to 20.
        at: Place in the bin, from 0.
    """
    row, length = bins[which], bin_length[which] - 1
    for i in range(at, length):
        row[i] = row[i + 1]
    bin_length[which] = length


@compiled
def remove(chunks: Table, bins: Handles, bin_length: Table, handle: int) -> None:
    """Take a free chunk out of its bin.

    Args:
        chunks: Every chunk, (capacity, 5) int64: address, bytes, chunk below, chunk above, state.
        bins: Handles of the free chunks of each bin, (21, capacity) int32, by size and then
            address.
        bin_length: Number of free chunks in each bin, (21,) int64.
        handle: The chunk: a row of ``chunks``.
    """
    size = chunks[handle, BYTES]
    which = bin_of(size)
    at = position(chunks, bins[which], bin_length[which], size, chunks[handle, ADDRESS])
    remove_at(bins, bin_length, which, at)


@compiled
def new_chunk(scalars: Table, chunks: Table, recycled: Handles, address: int, size: int) -> int:
    """Return the handle of a new chunk without neighbours.

    Args:
        scalars: The pool's running numbers, (``N_SCALARS``,) int64; changed.
        chunks: Every chunk, (capacity, 5) int64: address, bytes, chunk below, chunk above, state.
        recycled: Handles of rows of ``chunks`` that are free to be used again, (capacity,) int32.
        address: Address of the chunk.
        size: Its bytes.
    """
    if scalars[N_RECYCLED] > 0:
        scalars[N_RECYCLED] -= 1
        handle = int(recycled[scalars[N_RECYCLED]])
    else:
        handle = int(scalars[N_CHUNKS])
        scalars[N_CHUNKS] += 1
    chunks[handle, ADDRESS] = address
    chunks[handle, BYTES] = size
    chunks[handle, BELOW] = NONE
    chunks[handle, ABOVE] = NONE
    chunks[handle, STATE] = USED
    return handle


@compiled
def drop(scalars: Table, recycled: Handles, handle: int) -> None:
    """Give a handle back.

    Args:
        scalars: The pool's running numbers, (``N_SCALARS``,) int64; changed.
        recycled: Handles of rows of ``chunks`` that are free to be used again, (capacity,) int32.
        handle: The chunk: a row of ``chunks``.
    """
    recycled[scalars[N_RECYCLED]] = handle
    scalars[N_RECYCLED] += 1


@compiled
def next_size(chunks: Table, bins: Handles, bin_length: Table, which: int, at: int) -> int:
    """Return the size of the free chunk that is next in order after the one at ``at``, or ``ANY``.

    Args:
        chunks: Every chunk, (capacity, 5) int64: address, bytes, chunk below, chunk above, state.
        bins: Handles of the free chunks of each bin, (21, capacity) int32, by size and then
            address.
        bin_length: Number of free chunks in each bin, (21,) int64.
        which: Index of the bin, 0 to 20.
        at: Place in the bin, from 0.
    """
    if at + 1 < bin_length[which]:
        return int(chunks[bins[which, at + 1], BYTES])
    for larger in range(which + 1, TOP_BIN + 1):
        if bin_length[larger]:
            return int(chunks[bins[larger, 0], BYTES])
    return ANY


@compiled
def hold_for(scalars: Table, least: int, most: int) -> None:
    """Note that what has been done would be the same under the limits from ``least`` to ``most``.

    Args:
        scalars: The pool's running numbers, (``N_SCALARS``,) int64; changed.
        least: Lowest limit in bytes.
        most: Highest limit in bytes.
    """
    scalars[LEAST] = max(scalars[LEAST], least)
    scalars[MOST] = min(scalars[MOST], most)


@compiled
def observe_choice(
    limit: int,
    scalars: Table,
    chunks: Table,
    rounded: int,
    handle: int,
    next_bytes: int,
    least_spare: int,
) -> None:
    """Note under which limits the same chunk is taken for a request, and split or not as it is.

    Only one chunk is as much larger as the limit is: the one at the end of the last region.

    Args:
        limit: The limit.
        scalars, chunks: The pool, with ``handle`` still whole.
        rounded: What is asked for.
        handle: The chunk taken, ``NONE`` where none is large enough.
        next_bytes: What the next larger one has.
        least_spare: Left-over from which a chunk is split.
    """
    flexible = scalars[FLEXIBLE]
    if handle != NONE and handle == flexible:
        spare = chunks[handle, BYTES] - rounded
        least, most = limit - spare, limit + max(next_bytes - chunks[handle, BYTES] - 1, 0)
        if spare >= least_spare:
            least += least_spare
        else:
            most = min(most, limit + least_spare - spare - 1)
        hold_for(scalars, least, most)
    elif flexible != NONE and chunks[flexible, STATE] == FREE:
        size = chunks[flexible, BYTES]
        if size < rounded:
            hold_for(scalars, -ANY, limit + rounded - size - 1)
        else:
            hold_for(scalars, limit + min(chunks[handle, BYTES] - size + 1, 0), ANY)


@compiled
def take(
    options: Table,
    scalars: Table,
    chunks: Table,
    bins: Handles,
    bin_length: Table,
    recycled: Handles,
    rounded: int,
) -> int:
    """Take the best free chunk out of its bin and split it where the rule says so; NONE if none.

    Args:
        options: The pool's settings, (9,) int64; ``LIMIT`` to ``UPPER`` name its places.
        scalars: The pool's running numbers, (``N_SCALARS``,) int64; changed.
        chunks: Every chunk, (capacity, 5) int64: address, bytes, chunk below, chunk above, state.
        bins: Handles of the free chunks of each bin, (21, capacity) int32, by size and then
            address.
        bin_length: Number of free chunks in each bin, (21,) int64.
        recycled: Handles of rows of ``chunks`` that are free to be used again, (capacity,) int32.
        rounded: Bytes asked for, rounded up to a multiple of 256.
    """
    for which in range(bin_of(rounded), TOP_BIN + 1):
        length = bin_length[which]
        if length == 0:
            continue
        at = position(chunks, bins[which], length, rounded, NONE)
        if at == length:
            continue
        handle = int(bins[which, at])
        least_spare = max(min(rounded, options[MAX_SPARE]), 1)
        if scalars[FLEXIBLE] != NONE:
            larger = ANY
            if handle == scalars[FLEXIBLE]:
                larger = next_size(chunks, bins, bin_length, which, at)
            observe_choice(options[LIMIT], scalars, chunks, rounded, handle, larger, least_spare)
        remove_at(bins, bin_length, which, at)
        chunks[handle, STATE] = USED
        spare = chunks[handle, BYTES] - rounded
        if spare >= least_spare:
            rest = new_chunk(scalars, chunks, recycled, chunks[handle, ADDRESS] + rounded, spare)
            if handle == scalars[FLEXIBLE]:
                scalars[FLEXIBLE] = rest
            above = chunks[handle, ABOVE]
            chunks[rest, BELOW] = handle
            chunks[rest, ABOVE] = above
            if above != NONE:
                chunks[above, BELOW] = rest
            chunks[handle, ABOVE] = rest
            chunks[handle, BYTES] = rounded
            insert(chunks, bins, bin_length, rest)
        return handle
    if scalars[FLEXIBLE] != NONE:
        observe_choice(options[LIMIT], scalars, chunks, rounded, NONE, ANY, 0)
    return NONE


@compiled
def absorb(scalars: Table, chunks: Table, recycled: Handles, lower: int, upper: int) -> None:
    """Make one chunk of two neighbours.

    Args:
        scalars: The pool's running numbers, (``N_SCALARS``,) int64; changed.
        chunks: Every chunk, (capacity, 5) int64: address, bytes, chunk below, chunk above, state.
        recycled: Handles of rows of ``chunks`` that are free to be used again, (capacity,) int32.
        lower: The chunk that stays.
        upper: The chunk right above it, whose row is recycled.
    """
    chunks[lower, BYTES] += chunks[upper, BYTES]
    above = chunks[upper, ABOVE]
    chunks[lower, ABOVE] = above
    if above != NONE:
        chunks[above, BELOW] = lower
    if upper == scalars[FLEXIBLE]:
        scalars[FLEXIBLE] = lower
    drop(scalars, recycled, upper)


@compiled
def release(
    scalars: Table,
    chunks: Table,
    bins: Handles,
    bin_length: Table,
    recycled: Handles,
    handle: int,
) -> None:
    """Merge a chunk that is in no bin with its free neighbours and put the result into its bin.

    Args:
        scalars: The pool's running numbers, (``N_SCALARS``,) int64; changed.
        chunks: Every chunk, (capacity, 5) int64: address, bytes, chunk below, chunk above, state.
        bins: Handles of the free chunks of each bin, (21, capacity) int32, by size and then
            address.
        bin_length: Number of free chunks in each bin, (21,) int64.
        recycled: Handles of rows of ``chunks`` that are free to be used again, (capacity,) int32.
        handle: The chunk: a row of ``chunks``.
    """
    above = chunks[handle, ABOVE]
    if above != NONE and chunks[above, STATE] == FREE:
        remove(chunks, bins, bin_length, above)
        absorb(scalars, chunks, recycled, handle, above)
    below = chunks[handle, BELOW]
    if below != NONE and chunks[below, STATE] == FREE:
        remove(chunks, bins, bin_length, below)
        absorb(scalars, chunks, recycled, below, handle)
        handle = below
    insert(chunks, bins, bin_length, handle)
