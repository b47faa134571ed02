"""The reference allocator on arrays, compiled by Numba when imported.

It does what ``reference`` does.

Import it only through ``compiled_allocator``: importing it needs Numba,
and the first
call compiles, which takes seconds, or loads what an earlier run left in the user's cache
(``code_cache``).

State lives in arrays that are as long as the most chunks ever alive at once, so replaying costs
memory for what lives and not for what has been freed. ``run`` stops and says so where an array is
too short; the caller makes it longer and calls again.

``chunks``      (capacity, 5) int64: address, bytes, chunk below, chunk above, state
``bins``        (21, capacity) int32: free chunks of each bin, by size and then address
``bin_length``  (21,) int64
``regions``     (capacity, 3) int64: address, bytes, lowest chunk
``extensions``  (capacity, 11) int64: regions taken
``releases``    (capacity, 3) int64: regions given back
``scalars``     (15,) int64, see the names below
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analyzer.simulate.allocator.numba.chunk_arrays import (
    ABOVE,
    ADDRESS,
    ANY,
    BELOW,
    BYTES,
    COALESCE,
    COLLECT,
    DESCENDING,
    DRIVER,
    ENDED,
    FAILED,
    FIRST,
    FLEXIBLE,
    FREE,
    FULL,
    GAP,
    HIGHEST,
    IN_USE,
    INVALID,
    LEAST,
    LIMIT,
    LOWEST,
    LOWEST_CHUNK,
    MOST,
    N_CHUNKS,
    N_EXTENSIONS,
    N_RECYCLED,
    N_REGIONS,
    N_RELEASES,
    N_SCALARS,
    NEXT_REGION,
    NONE,
    PEAK,
    POOL,
    REASON,
    STATE,
    TOP_BIN,
    UPPER,
    compiled,
    drop,
    hold_for,
    new_chunk,
    release,
    remove,
    take,
)
from analyzer.simulate.allocator.numba.code_cache import keep_in, made_folder

if TYPE_CHECKING:
    from analyzer.simulate.allocator.numba.chunk_arrays import Handles, Table


def scalars_of(first_region_bytes: int) -> Table:
    """Return the numbers of a pool that holds nothing."""
    scalars = np.zeros(N_SCALARS, np.int64)
    scalars[NEXT_REGION] = first_region_bytes
    scalars[FLEXIBLE] = NONE
    scalars[LEAST], scalars[MOST] = -ANY, ANY
    return scalars


@compiled
def largest_free(chunks: Table, bins: Handles, bin_length: Table) -> int:
    """Return the size of the largest free chunk; 0 where there is none.

    Args:
        chunks: Every chunk, (capacity, 5) int64: address, bytes, chunk below, chunk above, state.
        bins: Handles of the free chunks of each bin, (21, capacity) int32, by size and then
            address.
        bin_length: Number of free chunks in each bin, (21,) int64.
    """
    for which in range(TOP_BIN, -1, -1):
        if bin_length[which]:
            return int(chunks[bins[which, bin_length[which] - 1], BYTES])
    return 0


@compiled
def place(options: Table, scalars: Table, regions: Table, size: int, known: int) -> int:
    """Return the address of a new region: the one that is known, else next to the others.

    Args:
        options: The pool's settings, (9,) int64; ``LIMIT`` to ``UPPER`` name its places.
        scalars: The pool's running numbers, (``N_SCALARS``,) int64; changed.
        regions: Every region by address, (capacity, 3) int64: address, bytes, lowest chunk.
        size: Bytes of the new region.
        known: Address that the trace gives for the region; ``NONE`` where it gives none.
    """
    address = known
    for i in range(scalars[N_REGIONS]):
        if (
            address < regions[i, ADDRESS] + regions[i, BYTES]
            and regions[i, ADDRESS] < address + size
        ):
            address = NONE
            break
    count = scalars[N_EXTENSIONS]
    if address == NONE:
        if count == 0:
            address = options[FIRST]
        elif not options[DESCENDING]:
            address = scalars[HIGHEST] + options[GAP]
        elif count == 1:
            address = options[UPPER] - size
        else:
            address = scalars[LOWEST] - options[GAP] - size
    if count <= 1:
        scalars[LOWEST] = address
    scalars[LOWEST] = min(scalars[LOWEST], address)
    scalars[HIGHEST] = max(scalars[HIGHEST], address + size)
    return address


@compiled
# Long: Numba compiles it whole; its state is in arrays that are its parameters.
def extend(
    options: Table,
    scalars: Table,
    chunks: Table,
    bins: Handles,
    bin_length: Table,
    recycled: Handles,
    regions: Table,
    extensions: Table,
    request: int,
    known: int,
    op: int,
) -> bool:
    """Take one more region that can hold the request; tell whether it was given.

    Args:
        options: The pool's settings, (9,) int64; ``LIMIT`` to ``UPPER`` name its places.
        scalars: The pool's running numbers, (``N_SCALARS``,) int64; changed.
        chunks: Every chunk, (capacity, 5) int64: address, bytes, chunk below, chunk above, state.
        bins: Handles of the free chunks of each bin, (21, capacity) int32, by size and then
            address.
        bin_length: Number of free chunks in each bin, (21,) int64.
        recycled: Handles of rows of ``chunks`` that are free to be used again, (capacity,) int32.
        regions: Every region by address, (capacity, 3) int64: address, bytes, lowest chunk.
        extensions: Gets a row for each region taken, (capacity, 11) int64.
        request: Bytes asked for, before rounding.
        known: Address that the trace gives for the new region; ``NONE`` where it gives none.
        op: Index of the operation in the sequence.
    """
    rounded = (request + 255) >> 8 << 8
    available = (options[LIMIT] - scalars[POOL]) >> 8 << 8
    if rounded > available:
        if scalars[FLEXIBLE] == NONE:
            hold_for(scalars, -ANY, scalars[POOL] + rounded - 1)
        return False
    planned = scalars[NEXT_REGION]
    while rounded > scalars[NEXT_REGION]:
        scalars[NEXT_REGION] *= 2
    asked = min(scalars[NEXT_REGION], available)
    is_rest = available <= scalars[NEXT_REGION]
    if is_rest:
        hold_for(scalars, scalars[POOL] + rounded, scalars[POOL] + scalars[NEXT_REGION])
    else:
        hold_for(scalars, scalars[POOL] + scalars[NEXT_REGION], ANY)
    if options[DRIVER] >= 0:
        hold_for(scalars, options[LIMIT], options[LIMIT])
    ask = asked
    while options[DRIVER] >= 0 and scalars[POOL] + ask > options[DRIVER]:
        smaller = (int(np.float32(ask) * np.float32(0.9)) + 255) >> 8 << 8
        if smaller < rounded or smaller == ask:
            return False
        ask = smaller
    if scalars[NEXT_REGION] == planned:
        scalars[NEXT_REGION] *= 2
    address = place(options, scalars, regions, ask, known)
    row = extensions[scalars[N_EXTENSIONS]]
    scalars[N_EXTENSIONS] += 1
    row[0] = address
    row[1] = ask
    row[2] = op
    row[3] = request
    row[4] = planned
    row[5] = asked
    row[6] = scalars[POOL] - scalars[IN_USE]
    row[7] = largest_free(chunks, bins, bin_length)
    row[8] = available
    row[9] = scalars[POOL]
    row[10] = scalars[IN_USE]
    scalars[POOL] += ask
    handle = new_chunk(scalars, chunks, recycled, address, ask)
    if is_rest:
        scalars[FLEXIBLE] = handle
    before = NONE
    if options[COALESCE]:
        for i in range(scalars[N_REGIONS]):
            if regions[i, ADDRESS] + regions[i, BYTES] == address:
                before = i
    if before == NONE:
        region = regions[scalars[N_REGIONS]]
        scalars[N_REGIONS] += 1
        region[ADDRESS] = address
        region[BYTES] = ask
        region[LOWEST_CHUNK] = handle
    else:
        regions[before, BYTES] += ask
        last = regions[before, LOWEST_CHUNK]
        while chunks[last, ABOVE] != NONE:
            last = chunks[last, ABOVE]
        chunks[last, ABOVE] = handle
        chunks[handle, BELOW] = last
    release(scalars, chunks, bins, bin_length, recycled, handle)
    return True


@compiled
def collect(
    options: Table,
    scalars: Table,
    chunks: Table,
    bins: Handles,
    bin_length: Table,
    recycled: Handles,
    regions: Table,
    releases: Table,
    rounded: int,
    op: int,
) -> bool:
    """Give every wholly free region back, if the request could be served then.

    Args:
        options: The pool's settings, (9,) int64; ``LIMIT`` to ``UPPER`` name its places.
        scalars: The pool's running numbers, (``N_SCALARS``,) int64; changed.
        chunks: Every chunk, (capacity, 5) int64: address, bytes, chunk below, chunk above, state.
        bins: Handles of the free chunks of each bin, (21, capacity) int32, by size and then
            address.
        bin_length: Number of free chunks in each bin, (21,) int64.
        recycled: Handles of rows of ``chunks`` that are free to be used again, (capacity,) int32.
        regions: Every region by address, (capacity, 3) int64: address, bytes, lowest chunk.
        releases: Gets a row for each region given back, (capacity, 3) int64.
        rounded: Bytes asked for, rounded up to a multiple of 256.
        op: Index of the operation in the sequence.
    """
    if not options[COLLECT]:
        return False
    hold_for(scalars, options[LIMIT], options[LIMIT])
    idle = 0
    for i in range(scalars[N_REGIONS]):
        first = regions[i, LOWEST_CHUNK]
        if chunks[first, STATE] == FREE and chunks[first, ABOVE] == NONE:
            idle += regions[i, BYTES]
    if idle == 0 or rounded > options[LIMIT] - scalars[POOL] + idle:
        return False
    kept = 0
    for i in range(scalars[N_REGIONS]):
        first = regions[i, LOWEST_CHUNK]
        if chunks[first, STATE] == FREE and chunks[first, ABOVE] == NONE:
            remove(chunks, bins, bin_length, first)
            drop(scalars, recycled, first)
            row = releases[scalars[N_RELEASES]]
            row[0] = regions[i, ADDRESS]
            row[1] = regions[i, BYTES]
            row[2] = op
            scalars[N_RELEASES] += 1
            scalars[POOL] -= regions[i, BYTES]
        else:
            for column in range(3):
                regions[kept, column] = regions[i, column]
            kept += 1
    scalars[N_REGIONS] = kept
    return True


@compiled
# Long: Numba compiles it whole; its state is in arrays that are its parameters.
def serve(
    options: Table,
    scalars: Table,
    chunks: Table,
    bins: Handles,
    bin_length: Table,
    recycled: Handles,
    regions: Table,
    extensions: Table,
    releases: Table,
    asked: int,
    known: int,
    op: int,
) -> int:
    """Return the chunk for a request: a free one, else of a new region; NONE where there is no room.

    Args:
        options: The pool's settings, (9,) int64; ``LIMIT`` to ``UPPER`` name its places.
        scalars: The pool's running numbers, (``N_SCALARS``,) int64; changed.
        chunks: Every chunk, (capacity, 5) int64: address, bytes, chunk below, chunk above, state.
        bins: Handles of the free chunks of each bin, (21, capacity) int32, by size and then
            address.
        bin_length: Number of free chunks in each bin, (21,) int64.
        recycled: Handles of rows of ``chunks`` that are free to be used again, (capacity,) int32.
        regions: Every region by address, (capacity, 3) int64: address, bytes, lowest chunk.
        extensions: Gets a row for each region taken, (capacity, 11) int64.
        releases: Gets a row for each region given back, (capacity, 3) int64.
        asked: Bytes asked for, before rounding.
        known: Address that the trace gives for the request; ``NONE`` where it gives none.
        op: Index of the operation in the sequence.
    """
    rounded = (asked + 255) >> 8 << 8
    handle = take(options, scalars, chunks, bins, bin_length, recycled, rounded)
    if handle != NONE:
        return int(handle)
    if extend(
        options, scalars, chunks, bins, bin_length, recycled, regions, extensions, asked, known, op
    ) or (
        collect(
            options, scalars, chunks, bins, bin_length, recycled, regions, releases, rounded, op
        )
        and extend(
            options,
            scalars,
            chunks,
            bins,
            bin_length,
            recycled,
            regions,
            extensions,
            asked,
            known,
            op,
        )
    ):
        return int(take(options, scalars, chunks, bins, bin_length, recycled, rounded))
    return NONE


@compiled
# Long: Numba compiles it whole; its state is in arrays that are its parameters.
def run(
    options: Table,
    scalars: Table,
    chunks: Table,
    bins: Handles,
    bin_length: Table,
    recycled: Handles,
    regions: Table,
    extensions: Table,
    releases: Table,
    slot: Table,
    request: Table,
    known: Table,
    handle_of: Handles,
    start: int,
    first_op: int,
    record: bool,
    out: Table,
) -> int:
    """Replay ops ``start…`` and return how many of all ops are done; see ``scalars[REASON]``.

    All of it would be the same under every limit from ``scalars[LEAST]`` to ``scalars[MOST]``.

    ``request`` is the bytes asked for, 0 for a free; ``slot`` names the buffer and may be used
    again once freed; ``known`` is the address a trace gives (length 0: none). ``out`` gets a row
    for each op: address, chunk bytes, in use, pool, largest free.

    Args:
        options: The pool's settings, (9,) int64; ``LIMIT`` to ``UPPER`` name its places.
        scalars: The pool's running numbers, (``N_SCALARS``,) int64; changed.
        chunks: Every chunk, (capacity, 5) int64: address, bytes, chunk below, chunk above, state.
        bins: Handles of the free chunks of each bin, (21, capacity) int32, by size and then
            address.
        bin_length: Number of free chunks in each bin, (21,) int64.
        recycled: Handles of rows of ``chunks`` that are free to be used again, (capacity,) int32.
        regions: Every region by address, (capacity, 3) int64: address, bytes, lowest chunk.
        extensions: Gets a row for each region taken, (capacity, 11) int64.
        releases: Gets a row for each region given back, (capacity, 3) int64.
        slot: Buffer of each operation, (n,) int64; a number may be used again once freed.
        request: Bytes asked for by each operation, (n,) int64; 0 for a free.
        known: Address that a trace gives for each operation, (n,) int64; of length 0 where there is
            no trace.
        handle_of: Chunk of each buffer, ``NONE`` where it has none; changed.
        start: Operation to begin with.
        first_op: Index in the whole sequence of operation 0.
        record: Whether ``out`` is filled.
        out: Gets a row for each operation, (n, 5) int64: address, chunk bytes, bytes in use, pool
            bytes, largest free bytes.
    """
    for op in range(start, slot.shape[0]):
        if (
            scalars[N_CHUNKS] - scalars[N_RECYCLED] + 3 > chunks.shape[0]
            or scalars[N_EXTENSIONS] + 2 > extensions.shape[0]
            or scalars[N_RELEASES] + scalars[N_REGIONS] > releases.shape[0]
        ):
            scalars[REASON] = FULL
            return op
        asked = request[op]
        if asked > 0:
            if handle_of[slot[op]] != NONE:
                scalars[REASON] = INVALID
                return op
            hint = int(known[op]) if known.shape[0] else NONE
            handle = serve(
                options, scalars, chunks, bins, bin_length, recycled, regions, extensions, releases,
                asked, hint, first_op + op,
            )  # fmt: skip
            if handle == NONE:
                scalars[REASON] = FAILED
                return op
            handle_of[slot[op]] = handle
            scalars[IN_USE] += chunks[handle, BYTES]
            scalars[PEAK] = max(scalars[PEAK], scalars[IN_USE])
            address, size = chunks[handle, ADDRESS], chunks[handle, BYTES]
        else:
            handle = int(handle_of[slot[op]])
            if handle == NONE:
                scalars[REASON] = INVALID
                return op
            handle_of[slot[op]] = NONE
            address, size = chunks[handle, ADDRESS], chunks[handle, BYTES]
            scalars[IN_USE] -= size
            release(scalars, chunks, bins, bin_length, recycled, handle)
        if record:
            out[op, 0] = address
            out[op, 1] = size
            out[op, 2] = scalars[IN_USE]
            out[op, 3] = scalars[POOL]
            out[op, 4] = largest_free(chunks, bins, bin_length)
    scalars[REASON] = ENDED
    return int(slot.shape[0])


KEPT_IN = made_folder()
"""Where the compiled functions are kept; None for nowhere."""

keep_in(KEPT_IN, run)
