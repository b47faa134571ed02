"""Choose, split, free and merge chunks of a BFC pool, in Python that Numba can also compile."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from analyzer.simulate.allocator.bfc.bfc_pool import (
    ANY_BYTES,
    BIN_MASK,
    BINS,
    LAST_CHUNK,
    LEAST_LIMIT,
    MOST_LIMIT,
    N_CHUNKS,
    N_RECYCLED,
    NONE,
)

if TYPE_CHECKING:
    from analyzer.simulate.allocator.bfc.bfc_pool import Column, PoolSettings, PoolState


def bin_of(size: int) -> int:
    """Return the bin of a chunk of ``size`` bytes: 0 for 256 B, 20 from 256 MiB on."""
    exponent = math.frexp(size >> 8)[1]
    return exponent - 1 if exponent <= BINS else BINS - 1


def find_position(pool: PoolState, row: Column, length: int, size: int, address: int) -> int:
    """Return the first position in a bin whose (size, address) is at least the given pair."""
    sizes = pool.size
    low, high = 0, length
    while low < high:
        middle = (low + high) >> 1
        other = row[middle]
        if sizes[other] < size or (sizes[other] == size and pool.address[other] < address):
            low = middle + 1
        else:
            high = middle
    return low


def shift(row: Column, first: int, last: int, by: int) -> None:
    """Move the entries from ``first`` to before ``last`` one position up or down."""
    row[first + by : last + by] = row[first:last]


def insert(pool: PoolState, chunk: int) -> None:
    """Mark a chunk free and put it into its bin."""
    pool.free[chunk] = 1
    size = pool.size[chunk]
    which = bin_of(size)
    row, length = pool.bins[which], pool.bin_length[which]
    at = 0
    if length == 0:
        pool.totals[BIN_MASK] |= 1 << which
    else:
        at = find_position(pool, row, length, size, pool.address[chunk])
        shift(row, at, length, 1)
    row[at] = chunk
    pool.bin_length[which] = length + 1


def remove_at(pool: PoolState, which: int, at: int) -> None:
    """Take the chunk at position ``at`` out of bin ``which``."""
    row, length = pool.bins[which], pool.bin_length[which] - 1
    if at < length:
        shift(row, at + 1, length + 1, -1)
    pool.bin_length[which] = length
    if length == 0:
        pool.totals[BIN_MASK] ^= 1 << which


def remove(pool: PoolState, chunk: int) -> None:
    """Take a free chunk out of its bin."""
    size = pool.size[chunk]
    which = bin_of(size)
    row, length = pool.bins[which], pool.bin_length[which]
    remove_at(pool, which, find_position(pool, row, length, size, pool.address[chunk]))


def new_chunk(pool: PoolState, address: int, size: int) -> int:
    """Return a new chunk in use, without neighbours."""
    totals = pool.totals
    if totals[N_RECYCLED] > 0:
        totals[N_RECYCLED] -= 1
        chunk = pool.recycled[totals[N_RECYCLED]]
    else:
        chunk = totals[N_CHUNKS]
        totals[N_CHUNKS] += 1
    pool.address[chunk], pool.size[chunk] = address, size
    pool.below[chunk], pool.above[chunk], pool.free[chunk] = NONE, NONE, 0
    return chunk


def drop(pool: PoolState, chunk: int) -> None:
    """Make the index of a chunk that no longer exists available."""
    totals = pool.totals
    pool.recycled[totals[N_RECYCLED]] = chunk
    totals[N_RECYCLED] += 1


def restrict_limits(pool: PoolState, least: int, most: int) -> None:
    """Note that the last decision is the same under limits from ``least`` to ``most`` bytes."""
    totals = pool.totals
    if least > totals[LEAST_LIMIT]:
        totals[LEAST_LIMIT] = least
    if most < totals[MOST_LIMIT]:
        totals[MOST_LIMIT] = most


def find_next_size(pool: PoolState, which: int, at: int) -> int:
    """Return the size of the free chunk after position ``at``; ``ANY_BYTES`` if there is none."""
    if at + 1 < pool.bin_length[which]:
        return pool.size[pool.bins[which][at + 1]]
    larger = pool.totals[BIN_MASK] >> (which + 1) << (which + 1)
    if larger:
        return pool.size[pool.bins[math.frexp(larger & -larger)[1] - 1][0]]
    return ANY_BYTES


def restrict_by_choice(
    settings: PoolSettings,
    pool: PoolState,
    rounded: int,
    chunk: int,
    next_size: int,
    least_spare: int,
) -> None:
    """Note under which limits the same chunk is chosen for a request, and split the same way.

    ``chunk`` is not yet split, or ``NONE``; ``next_size`` is that of the next larger free chunk.
    """
    last, limit = pool.totals[LAST_CHUNK], settings.limit_bytes
    if chunk == last:
        spare = pool.size[chunk] - rounded
        least, most = limit - spare, limit + max(next_size - pool.size[chunk] - 1, 0)
        if spare >= least_spare:
            least += least_spare
        else:
            most = min(most, limit + least_spare - spare - 1)
        restrict_limits(pool, least, most)
    elif pool.free[last] == 1:
        size = pool.size[last]
        if size < rounded:
            restrict_limits(pool, -ANY_BYTES, limit + rounded - size - 1)
        elif pool.size[chunk] < size:
            restrict_limits(pool, limit + pool.size[chunk] - size + 1, ANY_BYTES)
        else:
            restrict_limits(pool, limit, ANY_BYTES)


def take(settings: PoolSettings, pool: PoolState, rounded: int) -> int:
    """Take the smallest sufficient free chunk, split if it is much too large; ``NONE`` if none."""
    totals = pool.totals
    first = bin_of(rounded)
    mask = totals[BIN_MASK] >> first << first
    while mask:
        which = math.frexp(mask & -mask)[1] - 1  # the lowest set bit
        mask &= mask - 1
        row, at = pool.bins[which], 0
        if which == first:
            at = find_position(pool, row, pool.bin_length[which], rounded, NONE)
            if at == pool.bin_length[which]:
                continue
        chunk = row[at]
        least_spare = rounded
        if settings.max_spare_bytes < rounded:
            least_spare = max(settings.max_spare_bytes, 1)
        last = totals[LAST_CHUNK]
        if last != NONE and pool.free[last]:
            next_size = find_next_size(pool, which, at) if chunk == last else ANY_BYTES
            restrict_by_choice(settings, pool, rounded, chunk, next_size, least_spare)
        remove_at(pool, which, at)
        pool.free[chunk] = 0
        if pool.size[chunk] - rounded >= least_spare:
            split(pool, chunk, rounded)
        return chunk
    if totals[LAST_CHUNK] != NONE:
        restrict_by_choice(settings, pool, rounded, NONE, ANY_BYTES, 0)
    return NONE


def split(pool: PoolState, chunk: int, size: int) -> None:
    """Leave ``size`` bytes in a chunk and make the rest a free chunk above it."""
    rest = new_chunk(pool, pool.address[chunk] + size, pool.size[chunk] - size)
    if chunk == pool.totals[LAST_CHUNK]:
        pool.totals[LAST_CHUNK] = rest
    above = pool.above[chunk]
    pool.below[rest], pool.above[rest] = chunk, above
    if above != NONE:
        pool.below[above] = rest
    pool.above[chunk], pool.size[chunk] = rest, size
    insert(pool, rest)


def absorb(pool: PoolState, lower: int, upper: int) -> None:
    """Join two neighbours; ``lower`` remains."""
    pool.size[lower] += pool.size[upper]
    above = pool.above[upper]
    pool.above[lower] = above
    if above != NONE:
        pool.below[above] = lower
    if upper == pool.totals[LAST_CHUNK]:
        pool.totals[LAST_CHUNK] = lower
    drop(pool, upper)


def release(pool: PoolState, chunk: int) -> None:
    """Merge a chunk that is in no bin with its free neighbours and put it into its bin."""
    above = pool.above[chunk]
    if above != NONE and pool.free[above]:
        remove(pool, above)
        absorb(pool, chunk, above)
    below = pool.below[chunk]
    if below != NONE and pool.free[below]:
        remove(pool, below)
        absorb(pool, below, chunk)
        chunk = below
    insert(pool, chunk)
