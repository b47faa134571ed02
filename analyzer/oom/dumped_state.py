"""The state of an allocator when a request failed, computed from its dump.

The chunk list comes first, because the allocator searches it. If the list is incomplete, the
allocator's own figures replace it, with the precision that was printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Final

from analyzer.model.contract.report.oom_file import OomSize
from analyzer.model.ranges import Range
from analyzer.oom.amounts import difference
from analyzer.oom.log_records import (
    AllocatorDump,
    DumpedBin,
    DumpedChunk,
    LoggedCard,
    LoggedFailure,
)
from analyzer.oom.log_texts import write_sentence

_NOTHING: Final = Range.exactly(0)
_FIRST_BIN: Final = 256  # bytes (``bfc_allocator.h``: ``kMinAllocationSize``)
_LAST_BIN: Final = 256 << 20  # ``kNumBins`` is 21, and each bin is twice the one before
_MAP_ERROR: Final = 2  # marks of the map that rounding may add or remove


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedState:
    """State of an allocator; None if the log lacks a figure."""

    limit: Range | None = None
    in_use: Range | None = None
    peak: Range | None = None
    pool: Range | None = None
    free: Range | None = None
    largest_hole: Range | None = None  # the largest free chunk
    basis: str = ""  # of the largest free chunk: chunks, bins, a line, or nothing
    holes: int | None = None
    room: Range | None = None  # limit minus pool
    waste: Range | None = None  # bytes in use beyond the requests
    regions: int | None = None
    is_complete: bool = False  # whether the dump lists every chunk


def compute_state(failure: LoggedFailure, card: LoggedCard | None) -> DumpedState:
    """Return the state of the allocator; ``card`` is the card as TensorFlow logged it at its start."""
    dump = failure.dump
    card_limit = card.limit if card else None
    if failure.histogram:
        return _async_state(failure, card_limit)
    used_bytes = sum(chunk.size_bytes for chunk in dump.chunks if chunk.is_used)
    free_bytes = sum(chunk.size_bytes for chunk in dump.chunks if not chunk.is_used)
    in_use = _in_use(dump, used_bytes)
    is_complete = _is_complete(dump, in_use, used_bytes, free_bytes)
    pool = _pool(dump, is_complete, used_bytes + free_bytes)
    free = Range.exactly(free_bytes) if is_complete else dump.free or difference(pool, in_use)
    limit = _limit(dump, pool, card_limit)
    hole, basis, holes = _largest_hole(dump, is_complete, free)
    return DumpedState(
        limit=limit,
        in_use=in_use,
        peak=_peak(dump, in_use),
        pool=pool,
        free=free,
        largest_hole=hole,
        basis=basis,
        holes=holes,
        room=_narrow(dump.left, difference(limit, pool)),
        waste=_waste(dump, in_use),
        regions=len(dump.regions) or (len(regions_in_order(dump)) if is_complete else None),
        is_complete=is_complete,
    )


def regions_in_order(dump: AllocatorDump) -> list[list[DumpedChunk]]:
    """Return the chunks of each region in the order of their addresses."""
    ordered = sorted(dump.chunks, key=lambda chunk: chunk.address)
    if not ordered:
        return []
    regions = [[ordered[0]]]
    for before, chunk in pairwise(ordered):
        is_next = before.address + before.size_bytes == chunk.address
        if not is_next or before.region != chunk.region:
            regions.append([])
        regions[-1].append(chunk)
    return regions


def _async_state(failure: LoggedFailure, card_limit: Range | None) -> DumpedState:
    stats = failure.dump.stats
    listed = Range.exactly(sum(size * count for size, count in failure.histogram))
    stated = stats.get("InUse")
    in_use = listed if stated is None else listed.intersection(stated) or stated
    return DumpedState(
        limit=_narrow(stats.get("Limit"), card_limit),
        in_use=in_use,
        peak=_peak(failure.dump, in_use),
    )


def _waste(dump: AllocatorDump, in_use: Range | None) -> Range | None:
    """Return the bytes in use that were not requested.

    Size classes count them from TensorFlow 1.4; before, each ``x`` of the map is a hundredth of the pool
    inside a used chunk, beyond its request (``RenderOccupancy``).
    """
    if any(each.counts_all for each in dump.bins):
        parts = [one.used - one.requested for one in dump.bins if one.used != one.requested]
        return sum((part.at_least(0) for part in parts), _NOTHING)
    used, unused = dump.map.count("*"), dump.map.count("x")
    if in_use is None or unused <= _MAP_ERROR:
        return None
    cell = in_use.middle / (used + unused)
    return Range(int((unused - _MAP_ERROR) * cell), int((unused + _MAP_ERROR) * cell))


def _in_use(dump: AllocatorDump, used_bytes: int) -> Range | None:
    """Return the bytes in use: exact if a list adds up to the printed figure."""
    stated = _narrow(dump.stats.get("InUse"), dump.used)
    if stated is None:
        total = sum(chunk.size_bytes for chunk in dump.chunks)
        is_all = sum(dump.regions) == total and not dump.omitted_chunks and _has_all_regions(dump)
        if dump.regions and is_all:
            return Range.exactly(used_bytes)
        return _sum_of_bins(dump.bins, of_used=True)
    listed = sum(size * count for size, count in dump.summary)
    for total in (listed, used_bytes):
        if total and total in stated:
            return Range.exactly(total)
    return stated


def _is_complete(
    dump: AllocatorDump, in_use: Range | None, used_bytes: int, free_bytes: int
) -> bool:
    """Return whether the chunk list has every chunk, according to the dump's other figures."""
    if not dump.chunks or dump.omitted_chunks or in_use is None or used_bytes not in in_use:
        return False
    total = used_bytes + free_bytes
    if dump.regions:
        return sum(dump.regions) == total and _has_all_regions(dump)
    if dump.pool is not None:
        return total in dump.pool
    if not _has_all_bins(dump.bins):
        return True
    return free_bytes in sum((one.free for one in dump.bins if one.free_chunks), _NOTHING)


def _pool(dump: AllocatorDump, is_complete: bool, total: int) -> Range | None:
    if is_complete:
        return Range.exactly(total)
    if dump.regions and _has_all_regions(dump):
        return Range.exactly(sum(dump.regions))
    return dump.pool or _sum_of_bins(dump.bins, of_used=False)


def _has_all_regions(dump: AllocatorDump) -> bool:
    """Return whether no region is missing: by their sum, else by a later part of the dump."""
    stated = dump.pool or _sum_of_bins(dump.bins, of_used=False)
    if stated is not None:
        return sum(dump.regions) in stated
    return bool(dump.summary) or dump.used is not None or "InUse" in dump.stats


def _sum_of_bins(bins: Sequence[DumpedBin], *, of_used: bool) -> Range | None:
    """Return the bytes in use, or all bytes; None up to TensorFlow 1.3 and if bins are missing."""
    if not _has_all_bins(bins) or not all(each.counts_all for each in bins):
        return None
    return sum((one.used if of_used else one.total for one in bins), _NOTHING)


def _limit(dump: AllocatorDump, pool: Range | None, card_limit: Range | None) -> Range | None:
    limit = _narrow(dump.limit, dump.stats.get("Limit"))
    if limit is not None and limit.is_exact:
        return limit
    if pool is not None and dump.left is not None:
        limit = _narrow(limit, pool + dump.left)
    return _narrow(limit, card_limit)


def _largest_hole(
    dump: AllocatorDump, is_complete: bool, free: Range | None
) -> tuple[Range | None, str, int | None]:
    """Return the largest free chunk, its source, and the number of free chunks."""
    if is_complete:
        sizes = [chunk.size_bytes for chunk in dump.chunks if not chunk.is_used]
        return Range.exactly(max(sizes, default=0)), "chunks", len(sizes)
    if free is not None and free.high == 0:
        return _NOTHING, "line", 0
    if _has_all_bins(dump.bins):
        return _hole_of_bins(dump), "bins", sum(each.free_chunks for each in dump.bins)
    if dump.largest_free is not None:
        return dump.largest_free, "line", None
    if dump.free_in_bin:
        return max(dump.free_in_bin, key=lambda size: size.middle), "bins", None
    return None, "", None


def _has_all_bins(bins: Sequence[DumpedBin]) -> bool:
    return bool(bins) and bins[0].size_bytes == _FIRST_BIN and bins[-1].size_bytes >= _LAST_BIN


def _hole_of_bins(dump: AllocatorDump) -> Range:
    """Return bounds of the largest free chunk, from the highest size class with a free chunk."""
    for each in sorted(dump.bins, key=lambda each: -each.size_bytes):
        count = each.free_chunks
        if not count:
            continue
        rest = (count - 1) * each.size_bytes
        low = max(each.size_bytes, each.free.low // count)
        hole = Range(low, max(low, each.free.high - rest))
        largest = max(dump.free_in_bin, default=None, key=lambda size: size.middle)
        return hole if largest is None else hole.intersection(largest) or hole
    return _NOTHING


def _narrow(*sizes: Range | None) -> Range | None:
    """Return the part that all known ranges share; the first range if they contradict each other."""
    known = [each for each in sizes if each is not None]
    return reduce(lambda a, b: a.intersection(b) or a, known) if known else None


def _peak(dump: AllocatorDump, in_use: Range | None) -> Range | None:
    """Return the most that was ever in use, which is at least what is in use now."""
    stated = dump.stats.get("MaxInUse")
    if stated is None or in_use is None or in_use.low not in stated:
        return stated
    return Range(max(stated.low, in_use.low), stated.high)


_FEW: Final = 8  # chunks
_MOST_OF_IT: Final = 0.5  # share of the bytes in use
_MANY: Final = 50  # chunks of one size
_DOMINANT: Final = 0.6
"""Share of the bytes in use from which many chunks of one size look like a list that grows."""


def sizes_in_use(failure: LoggedFailure, requested_bytes: int | None) -> list[OomSize]:
    """Return the sizes in use, those with most bytes first; empty if the log lists none."""
    counts: Counter[int] = Counter()
    for size_bytes, count in failure.histogram or failure.dump.summary:
        counts[size_bytes] += count
    if not counts:
        counts.update(chunk.size_bytes for chunk in failure.dump.chunks if chunk.is_used)
    sizes = [
        OomSize(size_bytes, count, size_bytes * count, size_bytes == requested_bytes)
        for size_bytes, count in counts.items()
    ]
    return sorted(sizes, key=lambda size: (-size.total_bytes, size.size_bytes))


def find_dominant_size(sizes: Sequence[OomSize], in_use_bytes: int | None) -> OomSize | None:
    """Return the size whose many chunks fill most of the pool; None if there is none."""
    if not sizes or not in_use_bytes:
        return None
    is_dominant = sizes[0].total_bytes >= _DOMINANT * in_use_bytes
    return sizes[0] if is_dominant and sizes[0].count >= _MANY else None


def describe_sizes(sizes: Sequence[OomSize], in_use_bytes: int | None) -> list[str]:
    """Return sentences about the sizes in use."""
    if not sizes or not in_use_bytes:
        return []
    few = _describe_few(sizes, in_use_bytes)
    sentences = [few] if few else []
    dominant = find_dominant_size(sizes, in_use_bytes)
    for size in sizes:
        if size.is_asked or size is dominant:
            values = {
                "subject": "One chunk" if size.count == 1 else f"{size.count:,} chunks",
                "which": "the requested size" if size.is_asked else "one size",
                "verb": "holds" if size.count == 1 else "hold",
                "total": Range.exactly(size.total_bytes),
                "share": size.total_bytes / in_use_bytes,
            }
            sentences.append(write_sentence("sizes", "same", size_bytes=size.size_bytes, **values))
    return sentences


def _describe_few(sizes: Sequence[OomSize], in_use_bytes: int) -> str | None:
    """Return how few chunks hold half of the bytes in use; None if these are many."""
    held = count = 0
    for size in sorted(sizes, key=lambda size: -size.size_bytes):
        for _ in range(min(size.count, _FEW - count)):
            held, count = held + size.size_bytes, count + 1
            if held >= _MOST_OF_IT * in_use_bytes:
                subject = "One chunk holds" if count == 1 else f"The {count} largest chunks hold"
                figures = {"held": Range.exactly(held), "in_use": Range.exactly(in_use_bytes)}
                share = held / in_use_bytes
                return write_sentence("sizes", "few", subject=subject, share=share, **figures)
    return None
