"""The lines of an allocator's dump, one after the other, into its record."""

from __future__ import annotations

from typing import Final

from analyzer.oom.amounts import Amount, amount, exactly
from analyzer.oom.log_records import BinLine, Piece, PoolDump
from analyzer.oom.scan import wordings

MOST_PIECES: Final = 200_000
"""Chunks of one dump that are kept: a pool of 80 GiB in chunks of 400 KiB has as many."""
_MOST_ROWS: Final = 20_000  # chunks kept one by one; the others are counted
_MOST_BYTES: Final = 1 << 50  # of one chunk that are believed: 1 PiB
_USED: Final = frozenset({"Chunk", "InUse"})


def take_dump_line(dump: PoolDump, text: str) -> bool:
    """Take one line into the dump; False where it is none of a dump.

    Nothing but the dump changes. The map, which closes a dump, is taken too.
    """
    if "of size" in text or "llocator dump" in text:
        return _take_piece(dump, text)
    if "Bin " in text or "in_use:" in text:
        return _take_bin(dump, text)
    if "Sum Total" in text or "memory_limit_" in text or "memory summary" in text:
        return _take_sum(dump, text)
    if wordings.CENSUS_HEAD.search(text):
        return True
    return _take_stats(dump, text) or _take_map(dump, text)


def opens_a_dump(text: str) -> bool:
    """Say whether the line is the first of a dump, where no other of it was read."""
    return wordings.BIN.search(text) is not None or wordings.DUMP_HEAD.search(text) is not None


def _take_piece(dump: PoolDump, text: str) -> bool:
    match = wordings.PIECE.search(text)
    if match is not None:
        size = int(match[3])
        if size > _MOST_BYTES:
            return True
        if len(dump.pieces) >= MOST_PIECES:
            dump.pieces_cut += 1
            return True
        region = max(len(dump.regions) - 1, 0)
        dump.pieces.append(Piece(int(match[2], 16), size, match[1] in _USED, region))
        return True
    match = wordings.CENSUS.search(text)
    if match is not None:
        if len(dump.census) < _MOST_ROWS and int(match[2]) <= _MOST_BYTES:
            dump.census.append((int(match[2]), min(int(match[1]), 1 << 40)))
        return True
    match = wordings.REGION.search(text)
    if match is not None:
        if len(dump.regions) < _MOST_ROWS:
            dump.regions.append(min(int(match[1]), _MOST_BYTES))
        return True
    match = wordings.DUMP_HEAD.search(text)
    if match is not None:
        dump.allocator = match[1]
    return match is not None


def _take_bin(dump: PoolDump, text: str) -> bool:
    match = wordings.BIN.search(text)
    if match is not None:
        sizes = [amount(match[place]) for place in (5, 7, 8)]
        if len(dump.bins) < 64 and None not in sizes:
            total, used, asked = (size or exactly(0) for size in sizes)
            bin_line = BinLine(
                size_bytes=int(match[1]),
                chunks=int(match[2]),
                used_chunks=int(match[3]),
                total=total,
                used=used,
                asked=asked,
                counts_all=bool(match[4]),
            )
            dump.bins.append(bin_line)
        return True
    if wordings.WANTED_BIN.search(text):
        return True
    match = wordings.CHUNK_STATE.search(text)
    if match is not None and match[3] == "0" and len(dump.free_in_bin) < _MOST_ROWS:
        size = amount(match[1])
        if size is not None:
            dump.free_in_bin.append(size)
    return match is not None


def _take_sum(dump: PoolDump, text: str) -> bool:
    match = wordings.CENSUS_SUM.search(text)
    if match is not None:
        dump.used = amount(match[1])
        return True
    match = wordings.POOL.search(text)
    if match is not None:
        dump.pool, dump.limit, dump.left = map(amount, match.groups())
        return True
    match = wordings.POOL_2026.search(text)
    if match is None:
        return False
    for name, size in wordings.PART_2026.findall(match[1]):
        found = amount(size)
        if name == "unallocated bytes":
            dump.left = found
        elif name == "pool size":
            dump.pool = found
        elif name == "pool limit":
            dump.limit = found
        elif name.startswith("largest"):
            dump.largest_free = _larger(dump.largest_free, found)
    return True


def _larger(first: Amount | None, second: Amount | None) -> Amount | None:
    if first is None or second is None:
        return first or second
    return first if first.middle >= second.middle else second


def _take_stats(dump: PoolDump, text: str) -> bool:
    found = wordings.STAT.findall(text)
    for name, size in found:
        value = amount(size)
        if value is not None:
            dump.stats.setdefault(name, value)
    return bool(found)


def _take_map(dump: PoolDump, text: str) -> bool:
    match = wordings.MAP.search(text)
    if match is not None:
        dump.map = match[1]
    return match is not None
