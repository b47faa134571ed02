"""The state of an allocator when a request failed, computed from its dump, and sentences about it.

The chunk list comes first, because the allocator searches it. If the list is incomplete, the
allocator's own figures replace it, with the precision that was printed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any, Final

from analyzer.model.contract.report.oom_file import OomAdvice, OomSize, OomVerdict
from analyzer.model.ranges import Range
from analyzer.model.tables import read_table
from analyzer.oom.log_records import (
    AllocatorDump,
    DumpedChunk,
    FailedAllocator,
    LoggedCard,
    LoggedFailure,
    difference,
)

_NOTHING: Final = Range.exactly(0)
_FIRST_BIN: Final = 256  # bytes (``bfc_allocator.h``: ``kMinAllocationSize``)
_LAST_BIN: Final = 256 << 20  # ``kNumBins`` is 21, and each bin is twice the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedState:
    """State of an allocator; None if the log lacks a figure."""

    limit: Range | None
    in_use: Range | None
    peak_in_use: Range | None
    pool: Range | None
    free: Range | None
    largest_hole: Range | None  # the largest free chunk
    holes: int | None
    room: Range | None  # limit minus pool
    waste: Range | None  # bytes in use beyond the requests
    regions: int | None
    is_complete: bool  # whether the dump lists every chunk


def compute_state(failure: LoggedFailure, card: LoggedCard | None) -> DumpedState:
    """Return the state of the allocator; ``card`` is the card as TensorFlow logged it at its start."""
    dump = failure.dump
    used_bytes = sum(chunk.size_bytes for chunk in dump.chunks if chunk.is_used)
    free_bytes = sum(chunk.size_bytes for chunk in dump.chunks if not chunk.is_used)
    in_use = _in_use(failure, used_bytes, free_bytes)
    is_complete = _is_complete(dump, in_use, used_bytes, free_bytes)
    pool = _stated_pool(dump)
    if is_complete:
        pool = Range.exactly(used_bytes + free_bytes)
    elif dump.regions and _has_all_regions(dump):
        pool = Range.exactly(sum(dump.regions))
    free = Range.exactly(free_bytes) if is_complete else difference(pool, in_use)
    limit = _limit(dump, pool, card.limit if card else None)
    hole, holes = _largest_hole(dump, is_complete, free)
    peak = dump.stats.get("MaxInUse")
    if peak is not None and in_use is not None and in_use.low in peak:
        peak = Range(in_use.low, peak.high)  # at least what is in use now
    return DumpedState(
        limit=limit,
        in_use=in_use,
        peak_in_use=peak,
        pool=pool,
        free=free,
        largest_hole=hole,
        holes=holes,
        room=_narrow(dump.left, difference(limit, pool)),
        waste=_waste(dump),
        regions=len(dump.regions) or None,
        is_complete=is_complete,
    )


def chunks_in_order(dump: AllocatorDump) -> list[DumpedChunk]:
    """Return the chunks in the order of their addresses, as the dump lists those of a region."""
    return sorted(dump.chunks, key=lambda chunk: chunk.address)


def _waste(dump: AllocatorDump) -> Range | None:
    """Return the bytes in use that were not requested, which the size classes count."""
    if not dump.bins:
        return None
    parts = [one.used - one.requested for one in dump.bins if one.used != one.requested]
    return sum((part.at_least(0) for part in parts), _NOTHING)


def _in_use(failure: LoggedFailure, used_bytes: int, free_bytes: int) -> Range | None:
    """Return the bytes in use: exact if a list adds up to the printed figure."""
    dump = failure.dump
    stated = _narrow(dump.stats.get("InUse"), dump.used)
    listed = sum(size * count for size, count in dump.summary)
    if stated is not None:
        exact = (total for total in (listed, used_bytes) if total and total in stated)
        return next(map(Range.exactly, exact), stated)
    if dump.summary and failure.kind is FailedAllocator.ASYNC:
        return Range.exactly(listed)
    is_all = sum(dump.regions) == used_bytes + free_bytes and not dump.omitted_chunks
    if dump.regions and is_all and _has_all_regions(dump):
        return Range.exactly(used_bytes)
    return sum((one.used for one in dump.bins), _NOTHING) if _has_all_bins(dump) else None


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
    free = sum((one.free for one in dump.bins if one.free_chunks), _NOTHING)
    return not _has_all_bins(dump) or free_bytes in free


def _stated_pool(dump: AllocatorDump) -> Range | None:
    if dump.pool is not None or not _has_all_bins(dump):
        return dump.pool
    return sum((one.total for one in dump.bins), _NOTHING)


def _has_all_regions(dump: AllocatorDump) -> bool:
    """Return whether no region is missing: by their sum, else by a later part of the dump."""
    stated = _stated_pool(dump)
    if stated is not None:
        return sum(dump.regions) in stated
    return bool(dump.summary) or dump.used is not None or "InUse" in dump.stats


def _has_all_bins(dump: AllocatorDump) -> bool:
    bins = dump.bins
    return bool(bins) and bins[0].size_bytes == _FIRST_BIN and bins[-1].size_bytes >= _LAST_BIN


def _limit(dump: AllocatorDump, pool: Range | None, card_limit: Range | None) -> Range | None:
    limit = _narrow(dump.limit, dump.stats.get("Limit"))
    if limit is not None and limit.is_exact:
        return limit
    summed = None if pool is None or dump.left is None else pool + dump.left
    return _narrow(limit, summed, card_limit)


def _largest_hole(
    dump: AllocatorDump, is_complete: bool, free: Range | None
) -> tuple[Range | None, int | None]:
    """Return the largest free chunk and the number of free chunks."""
    if is_complete:
        sizes = [chunk.size_bytes for chunk in dump.chunks if not chunk.is_used]
        return Range.exactly(max(sizes, default=0)), len(sizes)
    if free is not None and free.high == 0:
        return _NOTHING, 0
    if not _has_all_bins(dump):
        return dump.largest_free, None
    occupied = [one for one in dump.bins if one.free_chunks]
    if not occupied:
        return _NOTHING, 0
    last = max(occupied, key=lambda one: one.size_bytes)
    others_bytes = (last.free_chunks - 1) * last.size_bytes
    low = max(last.size_bytes, last.free.low // last.free_chunks)
    hole = Range(low, max(low, last.free.high - others_bytes))
    return hole, sum(one.free_chunks for one in occupied)


def _narrow(*sizes: Range | None) -> Range | None:
    """Return the part that all known ranges share; the first range if they contradict each other."""
    known = [each for each in sizes if each is not None]
    return reduce(lambda a, b: a.intersection(b) or a, known) if known else None


_MANY: Final = 50  # chunks of one size
_DOMINANT: Final = 0.6
"""Share of the bytes in use from which many chunks of one size look like a list that grows."""


def sizes_in_use(dump: AllocatorDump, requested_bytes: int | None) -> list[OomSize]:
    """Return the sizes in use, those with most bytes first; empty if the log lists none."""
    counts: Counter[int] = Counter()
    for size_bytes, count in dump.summary:
        counts[size_bytes] += count
    if not counts:
        counts.update(chunk.size_bytes for chunk in dump.chunks if chunk.is_used)
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
    sentences = []
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


@cache
def read_texts() -> dict[str, dict[str, Any]]:
    """Return ``log_texts.toml``."""
    return read_table("oom/log_texts.toml", dict[str, dict[str, Any]])


def write_sentence(group: str, name: str, **values: object) -> str:
    """Return a sentence of the table, filled in."""
    text: str = read_texts()[group][name]
    return text.format(**values)


def write_reason(name: str, **values: object) -> str:
    """Return a reason of the table, its first letter as a capital."""
    return _capitalize(write_sentence("reason", name, **values))


def write_verdict(title: str, *reasons: str, **values: object) -> OomVerdict:
    """Return a verdict: the cause and the title of a row of the table."""
    cause, text = read_texts()["title"][title]
    return OomVerdict(cause, _capitalize(text.format(**values)), reasons)


def write_advice(name: str, **values: object) -> OomAdvice:
    """Return an advice of the table, its reason filled with figures."""
    advice = read_texts()["advice"][name]
    return OomAdvice(advice["action"].format(**values), advice["because"].format(**values))


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
