"""Regions of a BFC pool, and the loop over operations, in Python that Numba can also compile."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from analyzer.simulate.allocator.bfc.bfc_chunks import (
    drop,
    new_chunk,
    release,
    remove,
    restrict_limits,
    take,
)
from analyzer.simulate.allocator.bfc.bfc_pool import (
    ANY_BYTES,
    BIN_MASK,
    ENDED,
    FAILED,
    FULL,
    HIGHEST_ADDRESS,
    IN_USE,
    INVALID,
    LAST_CHUNK,
    LOWEST_ADDRESS,
    N_CHUNKS,
    N_EXTENSIONS,
    N_RECYCLED,
    N_REGIONS,
    NEXT_REGION,
    NONE,
    OUTCOME,
    POOL_BYTES,
    REGION_ADDRESS,
    REGION_BYTES,
    REGION_FIRST,
    UPPER_ADDRESS,
)

if TYPE_CHECKING:
    from analyzer.simulate.allocator.bfc.bfc_pool import Column, PoolSettings, PoolState, Rows


def find_largest_free(pool: PoolState) -> int:
    """Return the size of the largest free chunk; 0 if none is free."""
    mask = pool.totals[BIN_MASK]
    if not mask:
        return 0
    which = math.frexp(mask)[1] - 1  # the highest set bit
    return pool.size[pool.bins[which][pool.bin_length[which] - 1]]


def place_region(settings: PoolSettings, pool: PoolState, size: int, known: int) -> int:
    """Place a new region: at the known address if it is free, else beside the others."""
    totals = pool.totals
    address = known
    for i in range(totals[N_REGIONS]):
        region = pool.regions[i]
        if (
            address < region[REGION_ADDRESS] + region[REGION_BYTES]
            and region[REGION_ADDRESS] < address + size
        ):
            address = NONE
            break
    count = totals[N_EXTENSIONS]
    if address == NONE:
        if count == 0:
            address = settings.first_address
        elif not settings.descending:
            address = totals[HIGHEST_ADDRESS] + settings.gap_bytes
        elif count == 1:
            address = UPPER_ADDRESS - size
        else:
            address = totals[LOWEST_ADDRESS] - settings.gap_bytes - size
    if count <= 1:
        totals[LOWEST_ADDRESS] = address
    totals[LOWEST_ADDRESS] = min(totals[LOWEST_ADDRESS], address)
    totals[HIGHEST_ADDRESS] = max(totals[HIGHEST_ADDRESS], address + size)
    return address


def extend(settings: PoolSettings, pool: PoolState, rounded: int, known: int, op: int) -> bool:
    """Take one more region that can hold the request; return whether the limit allows it."""
    totals = pool.totals
    in_pool = totals[POOL_BYTES]
    available = (settings.limit_bytes - in_pool) >> 8 << 8
    if rounded > available:
        if totals[LAST_CHUNK] == NONE:
            restrict_limits(pool, -ANY_BYTES, in_pool + rounded - 1)
        return False
    planned = totals[NEXT_REGION]
    while rounded > totals[NEXT_REGION]:
        totals[NEXT_REGION] *= 2
    following = totals[NEXT_REGION]
    given = min(following, available)
    is_cut_short = available <= following
    if is_cut_short:
        restrict_limits(pool, in_pool + rounded, in_pool + following)
    else:
        restrict_limits(pool, in_pool + following, ANY_BYTES)
    if following == planned:
        totals[NEXT_REGION] *= 2
    address = place_region(settings, pool, given, known)
    row = pool.extensions[totals[N_EXTENSIONS]]
    totals[N_EXTENSIONS] += 1
    row[0], row[1], row[2] = address, given, op
    totals[POOL_BYTES] += given
    chunk = new_chunk(pool, address, given)
    if is_cut_short:
        totals[LAST_CHUNK] = chunk
    add_region(settings, pool, chunk)
    release(pool, chunk)
    return True


def add_region(settings: PoolSettings, pool: PoolState, chunk: int) -> None:
    """Add a region that holds this chunk, or extend the region that ends at its address."""
    address, size = pool.address[chunk], pool.size[chunk]
    count = pool.totals[N_REGIONS]
    if settings.coalesce_regions:
        for i in range(count):
            region = pool.regions[i]
            if region[REGION_ADDRESS] + region[REGION_BYTES] == address:
                region[REGION_BYTES] += size
                last = region[REGION_FIRST]
                while pool.above[last] != NONE:
                    last = pool.above[last]
                pool.above[last] = chunk
                pool.below[chunk] = last
                return
    region = pool.regions[count]
    pool.totals[N_REGIONS] = count + 1
    region[REGION_ADDRESS] = address
    region[REGION_BYTES] = size
    region[REGION_FIRST] = chunk


def collect(settings: PoolSettings, pool: PoolState, rounded: int) -> bool:
    """Give all wholly free regions back if the request then fits the limit; return whether so."""
    if not settings.garbage_collection:
        return False
    totals = pool.totals
    restrict_limits(pool, settings.limit_bytes, settings.limit_bytes)
    idle = 0
    for i in range(totals[N_REGIONS]):
        first = pool.regions[i][REGION_FIRST]
        if pool.free[first] and pool.above[first] == NONE:
            idle += pool.regions[i][REGION_BYTES]
    if idle == 0 or rounded > settings.limit_bytes - totals[POOL_BYTES] + idle:
        return False
    remaining = 0
    for i in range(totals[N_REGIONS]):
        region = pool.regions[i]
        first = region[REGION_FIRST]
        if pool.free[first] and pool.above[first] == NONE:
            remove(pool, first)
            drop(pool, first)
            totals[POOL_BYTES] -= region[REGION_BYTES]
        else:
            target = pool.regions[remaining]
            for column in range(3):
                target[column] = region[column]
            remaining += 1
    totals[N_REGIONS] = remaining
    return True


def allocate(settings: PoolSettings, pool: PoolState, request: int, known: int, op: int) -> int:
    """Return the chunk for a request, from a new region if needed; ``NONE`` if it does not fit."""
    rounded = (request + 255) >> 8 << 8
    chunk = take(settings, pool, rounded)
    if chunk == NONE and (
        extend(settings, pool, rounded, known, op)
        or (collect(settings, pool, rounded) and extend(settings, pool, rounded, known, op))
    ):
        chunk = take(settings, pool, rounded)
    return chunk


def run(
    settings: PoolSettings,
    pool: PoolState,
    slot: Column,
    request: Column,
    known: Column,
    chunk_of: Column,
    start: int,
    first_op: int,
    record: Rows,
) -> int:
    """Run operations from ``start`` on; return how many are done and set ``OUTCOME``.

    ``known`` and ``record`` may be empty. ``record`` gets address, chunk bytes, bytes in use, pool
    bytes and the largest free chunk after each one. ``first_op`` is the index of operation 0.
    """
    totals, addresses, sizes = pool.totals, pool.address, pool.size
    has_hints, is_recorded, next_check = len(known) > 0, len(record) > 0, start
    for op in range(start, len(slot)):
        if op == next_check:
            # So many operations surely fit into the columns; each adds at most two chunks.
            chunks = len(pool.size) - totals[N_CHUNKS] + totals[N_RECYCLED]
            next_check += min(chunks >> 1, len(pool.extensions) - totals[N_EXTENSIONS])
            if next_check == op:
                totals[OUTCOME] = FULL
                return op
        buffer, asked, chunk = slot[op], request[op], chunk_of[slot[op]]
        if (chunk == NONE) != (asked > 0):
            totals[OUTCOME] = INVALID
            return op
        if asked > 0:
            hint = known[op] if has_hints else NONE
            chunk = allocate(settings, pool, asked, hint, first_op + op)
            if chunk == NONE:
                totals[OUTCOME] = FAILED
                return op
            address, size = addresses[chunk], sizes[chunk]
            totals[IN_USE] += size
            chunk_of[buffer] = chunk
        else:
            chunk_of[buffer] = NONE
            address, size = addresses[chunk], sizes[chunk]
            totals[IN_USE] -= size
            release(pool, chunk)
        if is_recorded:
            row = record[op]
            row[0], row[1] = address, size
            row[2], row[3], row[4] = totals[IN_USE], totals[POOL_BYTES], find_largest_free(pool)
    totals[OUTCOME] = ENDED
    return len(slot)
