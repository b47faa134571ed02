"""The state of an allocator when a request failed, worked out from its chunks.

The chunk list is the truth: it is what the allocator searched. Its own figures stand in where the
list is cut, each with the precision that was printed. "LargestFreeBlock" is never used: until 2026
nothing fills it, so that it says 0 where hundreds of mebibytes are free in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from analyzer.oom.amounts import Amount, exactly
from analyzer.oom.log_records import BinLine, Mishap, Piece, PoolDump, SeenCard

NOTHING: Final = exactly(0)
_FIRST_BIN: Final = 256  # bytes (``bfc_allocator.h``: ``kMinAllocationSize``)
_LAST_BIN: Final = 256 << 20
"""``kNumBins`` is 21, each twice the one before."""
_MAP_DOUBT: Final = 2
"""Marks of the map that may be one more or less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    """What was known of the allocator; None where the log lacks it.

    Attributes:
        limit: Most that the pool may take.
        in_use: Bytes of the chunks that tensors hold.
        peak: The most that was ever in use.
        pool: Bytes of all regions.
        free: Bytes of the free chunks.
        largest_hole: The largest free chunk: no request larger than it can be served from the pool.
        holes: Free chunks.
        room: What the limit leaves for more regions.
        waste: Bytes of chunks in use beyond what was asked of them.
        regions: Regions.
        is_whole: Whether the chunk list is complete: it adds up to what the dump states.
        is_contradicted: Whether the list does not add up, as where two dumps are mixed.
        basis: What the largest hole was taken from: ``chunks``, ``bins``, ``line``, or empty.
    """

    limit: Amount | None = None
    in_use: Amount | None = None
    peak: Amount | None = None
    pool: Amount | None = None
    free: Amount | None = None
    largest_hole: Amount | None = None
    holes: int | None = None
    room: Amount | None = None
    waste: Amount | None = None
    regions: int | None = None
    is_whole: bool = False
    is_contradicted: bool = False
    basis: str = ""


def occupied(mishap: Mishap, card: SeenCard | None) -> Occupied:
    """Work out the state of the allocator.

    Args:
        mishap: The failure with its dump.
        card: What the log's start says of the card.
    """
    dump = mishap.dump
    if mishap.histogram:
        return _of_async(mishap, card)
    used_pieces = sum(piece.size_bytes for piece in dump.pieces if piece.is_used)
    free_pieces = sum(piece.size_bytes for piece in dump.pieces if not piece.is_used)
    in_use = _in_use(dump, used_pieces)
    is_whole = _is_whole(dump, in_use, used_pieces, free_pieces)
    pool = _pool(dump, is_whole, used_pieces + free_pieces)
    free = exactly(free_pieces) if is_whole else dump.free or _difference(pool, in_use)
    limit = _limit(dump, pool, card)
    room = dump.left if dump.left is not None else _difference(limit, pool)
    if room is not None and limit is not None and pool is not None:
        room = room.within(limit.less(pool)) or room
    hole, basis, holes = _largest_hole(dump, is_whole, free)
    return Occupied(
        limit=limit,
        in_use=in_use,
        peak=_narrowed(dump.stats.get("MaxInUse"), in_use),
        pool=pool,
        free=free,
        largest_hole=hole,
        holes=holes,
        room=room,
        waste=waste_of(dump, in_use),
        regions=len(dump.regions) or (len(_runs(dump.pieces)) if is_whole else None),
        is_whole=is_whole,
        is_contradicted=bool(dump.pieces)
        and not is_whole
        and not _is_cut(dump, in_use, used_pieces),
        basis=basis,
    )


def waste_of(dump: PoolDump, in_use: Amount | None) -> Amount | None:
    """Return the bytes in use that no client asked for.

    The bins count them from 1.4 on. Before, the map alone shows them: ``x`` is a hundredth of the
    pool that lies in a chunk beyond what was asked of it (``RenderOccupancy``), give or take one at
    each end.
    """
    if any(each.counts_all for each in dump.bins):
        total = NOTHING
        for each in dump.bins:
            if each.used != each.asked:
                total = total + each.used.less(each.asked)
        return total
    used, unused = dump.map.count("*"), dump.map.count("x")
    if in_use is None or unused <= _MAP_DOUBT:
        return None
    cell = in_use.middle / (used + unused)
    return Amount(int((unused - _MAP_DOUBT) * cell), int((unused + _MAP_DOUBT) * cell))


def pieces_in_order(dump: PoolDump) -> list[list[Piece]]:
    """Return the chunks of each region in the order of their addresses, for drawing."""
    return _runs(dump.pieces)


def _of_async(mishap: Mishap, card: SeenCard | None) -> Occupied:
    """The asynchronous allocator has no pool of its own: the driver holds one, and tells little."""
    held = exactly(sum(size * count for size, count in mishap.histogram))
    printed = mishap.dump.stats.get("InUse")
    in_use = held if printed is None else held.within(printed) or printed
    return Occupied(
        limit=_narrowest(mishap.dump.stats.get("Limit"), card.limit if card else None),
        in_use=in_use,
        peak=_narrowed(mishap.dump.stats.get("MaxInUse"), in_use),
    )


def _in_use(dump: PoolDump, used_pieces: int) -> Amount | None:
    """Return what is in use: every digit where a list adds up to what is printed."""
    printed = _narrowest(dump.stats.get("InUse"), dump.used)
    if printed is None:
        total = sum(piece.size_bytes for piece in dump.pieces)
        by_bins = _sum_of_bins(dump.bins, of_used=True)
        is_all = sum(dump.regions) == total and not dump.pieces_cut and _has_all_regions(dump)
        return exactly(used_pieces) if dump.regions and is_all else by_bins
    listed = sum(size * count for size, count in dump.census)
    for total in (listed, used_pieces):
        if total and printed.holds(total):
            return exactly(total)
    return printed


def _is_whole(dump: PoolDump, in_use: Amount | None, used_pieces: int, free_pieces: int) -> bool:
    """Say whether the chunk list holds every chunk, by what else the dump says."""
    if not dump.pieces or dump.pieces_cut:
        return False
    if in_use is None or not in_use.holds(used_pieces):
        return False
    total = used_pieces + free_pieces
    if dump.regions:
        return sum(dump.regions) == total and _has_all_regions(dump)
    if dump.pool is not None:
        return dump.pool.holds(total)
    free = _free_in_bins(dump.bins) if _has_all_bins(dump.bins) else None
    return free is None or free.holds(free_pieces)


def _is_cut(dump: PoolDump, in_use: Amount | None, used_pieces: int) -> bool:
    """Say whether the list merely lacks chunks, rather than holding those of another pool."""
    stated = sum(dump.regions) or (dump.pool.high if dump.pool is not None else None)
    total = sum(piece.size_bytes for piece in dump.pieces)
    is_under = in_use is None or used_pieces <= in_use.high
    return is_under and (stated is None or total <= stated)


def _pool(dump: PoolDump, is_whole: bool, total: int) -> Amount | None:
    if is_whole:
        return exactly(total)
    if dump.regions and _has_all_regions(dump):
        return exactly(sum(dump.regions))
    return dump.pool or _sum_of_bins(dump.bins, of_used=False)


def _has_all_regions(dump: PoolDump) -> bool:
    """Say whether no region is missing, as where a log ends within the list or between two regions.

    The pool's line or the bins tell how much they are together; where the log has neither, the list is
    whole if something of the dump follows it.
    """
    stated = dump.pool or _sum_of_bins(dump.bins, of_used=False)
    if stated is not None:
        return stated.holds(sum(dump.regions))
    return bool(dump.census) or dump.used is not None or "InUse" in dump.stats


def _sum_of_bins(bins: Sequence[BinLine], *, of_used: bool) -> Amount | None:
    """Return what the bins say is in use, or all that they hold; None up to 1.3 and where cut."""
    if not _has_all_bins(bins) or not all(each.counts_all for each in bins):
        return None
    total = NOTHING
    for each in bins:
        total = total + (each.used if of_used else each.total)
    return total


def _limit(dump: PoolDump, pool: Amount | None, card: SeenCard | None) -> Amount | None:
    limit = _narrowest(dump.limit, dump.stats.get("Limit"))
    if limit is not None and limit.is_exact:
        return limit
    if pool is not None and dump.left is not None:
        limit = _narrowest(limit, pool + dump.left)
    return _narrowest(limit, card.limit if card else None)


def _largest_hole(
    dump: PoolDump, is_whole: bool, free: Amount | None
) -> tuple[Amount | None, str, int | None]:
    """Return the largest free chunk, what it was taken from, and how many are free."""
    if is_whole:
        sizes = [piece.size_bytes for piece in dump.pieces if not piece.is_used]
        return exactly(max(sizes, default=0)), "chunks", len(sizes)
    if free is not None and free.high == 0:
        return NOTHING, "line", 0
    if _has_all_bins(dump.bins):
        count = sum(_free_chunks(each) for each in dump.bins)
        return _hole_of_bins(dump), "bins", count
    if dump.largest_free is not None:
        return dump.largest_free, "line", None
    if dump.free_in_bin:
        return max(dump.free_in_bin, key=lambda size: size.middle), "bins", None
    return None, "", None


def _has_all_bins(bins: Sequence[BinLine]) -> bool:
    """Say whether the bins are listed from the first to the last, as in a dump that was not cut."""
    return bool(bins) and bins[0].size_bytes == _FIRST_BIN and bins[-1].size_bytes >= _LAST_BIN


def _hole_of_bins(dump: PoolDump) -> Amount:
    """Return the largest free chunk as far as the bins give it away: the highest that has one."""
    for each in sorted(dump.bins, key=lambda each: -each.size_bytes):
        count = _free_chunks(each)
        if not count:
            continue
        free = each.total.less(each.used) if each.counts_all else each.total
        rest = (count - 1) * each.size_bytes
        hole = Amount(
            max(each.size_bytes, free.low // count), max(free.high - rest, each.size_bytes)
        )
        largest = max(dump.free_in_bin, default=None, key=lambda size: size.middle)
        is_same = largest is not None and hole.within(largest) is not None
        return hole.within(largest) or hole if largest is not None and is_same else hole
    return NOTHING


def _free_chunks(each: BinLine) -> int:
    return each.chunks - each.used_chunks if each.counts_all else each.chunks


def _free_in_bins(bins: Sequence[BinLine]) -> Amount | None:
    if not bins:
        return None
    total = NOTHING
    for each in bins:
        if _free_chunks(each):
            total = total + (each.total.less(each.used) if each.counts_all else each.total)
    return total


def _runs(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Part the chunks where their addresses or the dump's regions do."""
    ordered = sorted(pieces, key=lambda piece: piece.address)
    if not ordered:
        return []
    runs = [[ordered[0]]]
    for before, piece in pairwise(ordered):
        is_next = before.address + before.size_bytes == piece.address
        if not is_next or before.region != piece.region:
            runs.append([])
        runs[-1].append(piece)
    return runs


def _difference(whole: Amount | None, part: Amount | None) -> Amount | None:
    return None if whole is None or part is None else whole.less(part)


def _narrowest(*amounts: Amount | None) -> Amount | None:
    """Return what all known amounts allow; the first where they contradict each other."""
    known = [each for each in amounts if each is not None]
    if not known:
        return None
    found = known[0]
    for each in known[1:]:
        found = found.within(each) or found
    return found


def _narrowed(printed: Amount | None, at_least: Amount | None) -> Amount | None:
    """Return a peak, which is no less than what is in use now."""
    if printed is None or at_least is None or printed.is_exact:
        return printed
    if printed == at_least or printed.holds(at_least.low):
        return Amount(max(printed.low, at_least.low), printed.high)
    return printed
