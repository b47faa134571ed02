"""The figures of a failure: the size of the request, and the pool when it failed.

The chunk list of a dump comes first, because the allocator searches it. If the list is incomplete, the
allocator's own figures replace it, with the precision that was printed.
"""

from collections import Counter
from typing import Final

from analyzer.model.contract.fields import numpy_name, tensor_bytes
from analyzer.model.contract.report.oom_file import AskedFor, OomSize
from analyzer.model.ranges import Range
from analyzer.oom.failures import FailedAllocator, LoggedFailure
from analyzer.oom.wordings import difference, round_up_request


def find_request(failure: LoggedFailure) -> AskedFor | None:
    """Return the request; None if the log does not give its size."""
    exact_bytes = tensor_bytes(numpy_name(failure.dtype), failure.shape)
    if exact_bytes is not None and may_be_size(failure, exact_bytes):
        rounded_bytes = round_up_request(exact_bytes)
        exact = Range.exactly(exact_bytes)
        return _describe(failure, exact, rounded_bytes, "the shape and the type")

    rounded_bytes, size = failure.rounded_bytes or 0, failure.size
    if failure.rounded_bytes is not None:
        basis = "the allocator's line, which rounds up to 256 bytes"
        size = _unround(rounded_bytes, size)
    elif size is None:
        return None
    else:
        basis = (
            "the size in the log"
            if size.is_exact
            else "the printed size, which is rounded"
        )
        rounded_bytes = round_up_request(size.high)

    return _describe(failure, size, rounded_bytes, basis)


def may_be_size(failure: LoggedFailure, exact_bytes: int) -> bool:
    """Return whether the printed size may be this one."""
    if failure.rounded_bytes is not None:
        return failure.rounded_bytes == round_up_request(exact_bytes)
    return failure.size is None or exact_bytes in failure.size


def _unround(rounded_bytes: int, size: Range | None) -> Range:
    """Return the sizes that a chunk of this size is made for, and that are printed so."""
    requested = Range(max(rounded_bytes - 255, min(1, rounded_bytes)), rounded_bytes)
    if size is None:
        return requested
    return requested.intersection(size) or requested


def _describe(
    failure: LoggedFailure, size: Range, rounded_bytes: int, basis: str
) -> AskedFor:
    likely_bytes = size.high if size.width < 256 else size.middle
    failure.requested = size
    low_bytes = rounded_bytes if size.width < 256 else round_up_request(size.low)
    failure.rounded = Range(low_bytes, rounded_bytes)

    return AskedFor(
        requested_bytes=likely_bytes,
        rounded_bytes=rounded_bytes,
        is_exact=size.is_exact,
        low_bytes=size.low,
        high_bytes=size.high,
        basis=basis,
        shape=failure.shape,
        dtype=numpy_name(failure.dtype) or None,
    )


_CLASSES: Final = 21  # ``kNumBins`` of ``bfc_allocator.h``


def compute_figures(failure: LoggedFailure) -> None:
    """Fill in the figures of the pool, as far as the dump gives them."""
    used_bytes = sum(chunk.size_bytes for chunk in failure.chunks if chunk.is_used)
    free_sizes = [chunk.size_bytes for chunk in failure.chunks if not chunk.is_used]
    listed_bytes = used_bytes + sum(free_sizes)
    printed = failure.printed
    figures = {"pool": printed.get("pool"), "waste": None}
    figures["in_use"] = in_use = _find_in_use(failure, used_bytes, listed_bytes)
    has_all = in_use is not None and used_bytes in in_use and not failure.omitted_chunks
    failure.is_complete = (
        has_all and sum(failure.regions) == listed_bytes and _has_all_regions(failure)
    )

    if failure.is_complete:
        figures["pool"] = Range.exactly(listed_bytes)
        figures["free"] = Range.exactly(sum(free_sizes))
        figures["largest_hole"] = Range.exactly(max(free_sizes, default=0))
        failure.holes = len(free_sizes)
    else:
        if failure.regions and _has_all_regions(failure):
            figures["pool"] = Range.exactly(sum(failure.regions))

        figures["free"] = difference(figures["pool"], in_use)
        figures["largest_hole"] = printed.get("largest_hole")

    figures["limit"] = _find_limit(failure, figures["pool"])
    room = difference(figures["limit"], figures["pool"])
    figures["room"] = _narrow(printed.get("room"), room)
    figures["peak_in_use"] = peak = printed.get("peak_in_use")
    if peak is not None and in_use is not None and in_use.low in peak:
        figures["peak_in_use"] = Range(in_use.low, peak.high)

    figures["left"] = difference(figures["limit"], in_use)
    if failure.size_classes == _CLASSES:
        figures["waste"] = failure.waste
    failure.figures = {name: size for name, size in figures.items() if size is not None}


def _find_in_use(
    failure: LoggedFailure, used_bytes: int, listed_bytes: int
) -> Range | None:
    """Return the bytes in use: exact if a list adds up to the printed figure."""
    printed = failure.printed.get("in_use")
    summed = sum(size * count for size, count in failure.used_sizes)

    if printed is not None:
        for total in (summed, used_bytes):
            if total and total in printed:
                return Range.exactly(total)

        return printed

    if failure.used_sizes and failure.kind is FailedAllocator.ASYNC:
        return Range.exactly(summed)

    is_all = sum(failure.regions) == listed_bytes and _has_all_regions(failure)
    return Range.exactly(used_bytes) if failure.regions and is_all else None


def _has_all_regions(failure: LoggedFailure) -> bool:
    """Return whether no region is missing: by their sum, else by a later part of the dump."""
    pool = failure.printed.get("pool")
    if pool is not None:
        return sum(failure.regions) in pool
    return bool(failure.used_sizes) or "in_use" in failure.printed


def _find_limit(failure: LoggedFailure, pool: Range | None) -> Range | None:
    """Return the limit of the pool: as printed, else as the start of the log has it."""
    limit, room = failure.printed.get("limit"), failure.printed.get("room")
    if limit is not None and limit.is_exact:
        return limit

    summed = None if pool is None or room is None else pool + room
    at_start = failure.card.limit if failure.card else None
    return _narrow(limit, summed, at_start)


def _narrow(*sizes: Range | None) -> Range | None:
    """Return the part that all known ranges share; the first range if they contradict each other."""
    narrow = None
    for size in sizes:
        if narrow is None or size is None:
            narrow = narrow or size
        else:
            narrow = narrow.intersection(size) or narrow

    return narrow


_MANY: Final = 50  # chunks of one size
_DOMINANT: Final = 0.6
"""Share of the bytes in use from which many chunks of one size look like a list that grows."""


def sizes_in_use(failure: LoggedFailure, requested_bytes: int | None) -> list[OomSize]:
    """Return the sizes in use, those with most bytes first; empty if the log lists none."""
    counts: Counter[int] = Counter()
    for size_bytes, count in failure.used_sizes:
        counts[size_bytes] += count

    if not counts:
        counts.update(chunk.size_bytes for chunk in failure.chunks if chunk.is_used)

    sizes = []

    for size_bytes, count in counts.items():
        is_asked = size_bytes == requested_bytes
        sizes.append(OomSize(size_bytes, count, size_bytes * count, is_asked))

    return sorted(sizes, key=lambda size: (-size.total_bytes, size.size_bytes))


def find_dominant_size(failure: LoggedFailure) -> OomSize | None:
    """Return the size whose many chunks fill most of the pool; None if there is none."""
    if not failure.sizes or not failure.in_use_bytes:
        return None

    first = failure.sizes[0]
    is_dominant = first.total_bytes >= _DOMINANT * failure.in_use_bytes
    return first if is_dominant and first.count >= _MANY else None
