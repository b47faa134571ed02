"""Why a request failed: one verdict with its figures.

The rules follow TensorFlow's allocator (``bfc_allocator.cc``). It looks for a free chunk of at least
the requested size, then asks the driver for a new region, as far as the limit allows, each time for a
tenth less. So a request fails because the limit has no room, because free memory is fragmented, or
because the driver has no memory.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import structs

from analyzer.model.contract.oom_file import OomVerdict
from analyzer.model.units import Range, format_bytes, times
from analyzer.oom.failures import Cause, FailedAllocator, LoggedFailure
from analyzer.oom.figures import find_dominant_size
from analyzer.oom.wordings import (
    LIBRARY_BYTES,
    NAMES,
    OTHER_CAUSES,
    difference,
    round_up_request,
)

_NOTABLE = 0.05  # share of the bytes in use from which waste is reported
_BACK_OFF = 0.9  # factor between a refused region and the next try (``Extend``)
_NEARLY_FULL = 3  # free marks of 100 on the map of a pool that is called full
_OTHERS_SHARE = 0.2  # of a card: less is not worth naming other processes
_CONTEXT_BYTES = 1 << 30  # a process's own context and a desktop may take this

# The figures of a failure by the names that sentences use for them.
Words = dict[str, Any]

# A cause, and the title of the verdict with names of figures in braces.
Judgement = tuple[Cause, str]


def name_figures(failure: LoggedFailure) -> Words:
    """Return the figures of a failure for its sentences."""
    free = failure.printed.get("free")
    whole = failure.limit if free is None else failure.card_memory
    held = failure.in_use or "the pool"
    words: Words = structs.asdict(failure)

    words |= {
        "held": held if whole is None else f"{held} of {whole}",
        "card": failure.card_memory,
        "card_free": free,
        "beside": format_bytes(_measure_others(failure)),
        "left": difference(failure.limit, failure.in_use),
        "pieces": len(failure.regions),
        "shape": list(failure.shape or ()),
        "marks": failure.map.count("_"),
        "block": "block" if failure.is_compiled else "tensor",
        "place": "machine" if failure.is_on_host else "device",
    }

    asked = failure.asked

    if asked is not None:
        size = Range(asked.low_bytes, asked.high_bytes)
        rounded = Range(round_up_request(size.low), round_up_request(size.high))
        want = size if asked.is_exact else rounded
        words |= {"size": size, "rounded": rounded, "want": want}

    dominant = find_dominant_size(failure)
    if dominant is not None:
        chunk = format_bytes(dominant.size_bytes)
        words |= {"many": dominant.count, "chunk": chunk}

    return words


def find_cause(failure: LoggedFailure, words: Words) -> OomVerdict:
    """Return the verdict on one failure."""
    cause, title = _judge(failure, words)
    if failure.has_tiny_limit:
        title = f"{title} {_SMALL_LIMIT}"

    title = title.format(**words)
    if title.startswith("about"):
        title = f"A{title[1:]}"

    if failure.framework and not failure.other_cause:
        title = f"{failure.framework}: {title}"

    return OomVerdict(
        str(cause),
        title,
        tuple(_find_reasons(failure)),
        tuple(_find_missing_lines(failure)),
    )


def _judge(failure: LoggedFailure, words: Words) -> Judgement:
    if failure.other_cause:
        return _judge_other_cause(failure)

    if failure.asked is None:
        if failure.has_tiny_limit:
            return Cause.HELD_BY_OTHERS, "A request failed."

        used = "Memory was exhausted"
        if failure.limit is not None and failure.in_use is not None:
            used = "{in_use} of {limit} were in use"

        return Cause.CANNOT_TELL, (
            f"{used}; the log does not give the size of the request."
        )

    card = failure.card_memory
    if card is not None and failure.is_on_card and words["want"].low > card.high:
        return Cause.LARGER_THAN_CARD, (
            "One {block} of {want} is larger than the whole card ({card})."
        )

    if failure.kind is FailedAllocator.ASYNC:
        return _judge_async(failure, words)

    if failure.kind is not FailedAllocator.HOST:
        return _judge_pool(failure, words)

    return Cause.HOST, "TensorFlow found no host memory for {size}."


def _judge_other_cause(failure: LoggedFailure) -> Judgement:
    """Return the verdict on a failure beside TensorFlow's allocators: its row, and its figures."""
    row = OTHER_CAUSES[failure.other_cause]
    printed = failure.printed
    cause = Cause(row.cause)

    title = failure.title
    free = printed.get("free")

    if row.is_unclear and free is not None:
        reason = "because the card was full"
        if free.low >= LIBRARY_BYTES:
            cause = Cause.CANNOT_TELL
            reason = "not for lack of card memory"

        title = f"{failure.component} failed to start, {reason}"

    figures = [
        phrase.format(format_bytes(printed[name].middle))
        for name, phrase in NAMES["phrases"].items()
        if name in printed
    ]

    return cause, f"{': '.join(filter(None, [title, ', '.join(figures)]))}."


_SMALL_LIMIT = (
    "TensorFlow's limit was only {limit}: unless you set it, "
    "other processes held the card when TensorFlow started."
)


def _judge_pool(failure: LoggedFailure, words: Words) -> Judgement:
    want: Range = words["rounded"]
    limit = failure.limit
    pool = failure.pool
    free = failure.free
    room = failure.room
    left = words["left"]

    if limit is not None and want.low > limit.high:
        if failure.has_tiny_limit:
            return Cause.HELD_BY_OTHERS, "{want} requested."

        return Cause.LARGER_THAN_LIMIT, (
            "One {block} of {want} is larger than the allocator's limit ({limit})."
        )

    if room is not None and room.low >= want.high:
        return Cause.DRIVER_REFUSED, (
            "The limit allows {room} more and {want} were requested, but the {place} had no "
            "memory for a new region."
        )

    if free is not None and room is None and pool is not None and pool.high < want.low:
        return Cause.CANNOT_TELL, (
            "{want} requested, more than the whole pool so far ({pool}); the log does not say "
            "how far the pool may grow."
        )

    if free is not None:
        left = free if room is None else free + room
    if left is None:
        return _judge_by_map(failure, want)

    if left.middle < want.middle:
        return _judge_full(failure, words, want, left)

    if free is None:
        cause = Cause.DRIVER_REFUSED if failure.refusals else Cause.FRAGMENTED
        return cause, (
            "{want} requested with {left} of the limit not in use: free memory was fragmented, "
            "or the driver refused to give more."
        )

    if free.middle < want.middle and room is not None:
        return Cause.FRAGMENTED, (
            "{want} requested; {free} were free in the pool and the limit allowed {room} more: "
            "enough together, too little each."
        )

    title = "Fragmentation: {want} requested and {free} free, but "
    hole = "no free chunk is as large."
    if failure.largest_hole is not None:
        hole = "the largest free chunk is {largest_hole}."

    return Cause.FRAGMENTED, title + hole


def _judge_by_map(failure: LoggedFailure, want: Range) -> Judgement:
    """Judge by the map of 100 marks, which is a warning and printed even if the dump is not."""
    largest = want.high / _BACK_OFF + 256
    is_refused = any(
        failure.is_pinned or want.low <= run.last_bytes <= largest
        for run in failure.refusals
    )

    if is_refused and (failure.is_pinned or not failure.map):
        return Cause.DRIVER_REFUSED, (
            "{want} requested, and the driver refused a new region."
        )

    if failure.map and failure.map.count("_") <= _NEARLY_FULL:
        return (
            Cause.FULL,
            "{marks} % of the pool was free when {want} were requested.",
        )

    if failure.map:
        return Cause.CANNOT_TELL, (
            "{want} requested while {marks} % of the pool was free; the log does not give the "
            "size of the pool."
        )

    request = "{want} requested"
    if failure.is_workspace:
        request = "No algorithm of cuDNN had room for its workspace ({want} or more)"

    missing = "the bytes in use"
    if failure.in_use is not None:
        request += " with {in_use} in use"
        missing = "the limit"

    return Cause.CANNOT_TELL, f"{request}; the log does not give {missing}."


def _judge_full(
    failure: LoggedFailure,
    words: Words,
    want: Range,
    left: Range,
) -> Judgement:
    words["space"] = left
    words["short"] = (want - left).at_least(0)
    least = max(want.high - left.middle, int(_NOTABLE * failure.in_use_bytes), 1)

    if failure.waste is not None and failure.waste.low >= least:
        return Cause.WASTED, (
            "The pool is full, but {waste} of it are unused inside chunks that are larger than "
            "their tensors; {want} requested, {space} free."
        )

    if _is_held_by_others(failure, want):
        return Cause.HELD_BY_OTHERS, (
            "{beside} of the card's {card} are not tensors of this process; {space} were left "
            "for {want}."
        )

    return Cause.FULL, (
        "Too little memory: {held} in use, {want} requested, {space} left: {short} too little."
    )


def _judge_async(failure: LoggedFailure, words: Words) -> Judgement:
    card = failure.card_memory
    free = failure.printed.get("free")
    want: Range = words["want"]

    if free is None or card is None:
        return Cause.CANNOT_TELL, (
            "The driver refused {want}; the log does not say how much of the card was free."
        )

    if free.high < want.high:
        return _judge_full(failure, words, want, free)

    return Cause.FRAGMENTED, (
        "CUDA refused {want} although {card_free} of the card were free: free memory is "
        "fragmented, or the pool has a limit."
    )


def _measure_others(failure: LoggedFailure) -> int:
    """Return the bytes of a card that are neither free nor tensors of this process; 0 if unknown."""
    total = failure.printed.get("total")
    free = failure.printed.get("free")
    if total is None or free is None:
        return 0

    return max(total.low - free.low - failure.in_use_bytes, 0)


def _is_held_by_others(failure: LoggedFailure, want: Range) -> bool:
    """Return whether others hold much of the card, and the request would fit without them."""
    card = failure.card_memory
    in_use = failure.in_use_bytes

    if card is None:
        return False

    would_fit = in_use + want.middle <= card.low - _CONTEXT_BYTES
    least = max(_CONTEXT_BYTES, _OTHERS_SHARE * card.low, in_use)

    return would_fit and _measure_others(failure) > least


def _find_reasons(failure: LoggedFailure) -> Iterator[str]:
    """Yield sentences that support the verdict."""
    if failure.refusals:
        count = times(sum(run.times for run in failure.refusals))
        least = format_bytes(min(run.last_bytes for run in failure.refusals))
        yield f"The driver refused {count}, down to {least}."


def _find_missing_lines(failure: LoggedFailure) -> Iterator[str]:
    """Yield the lines that would explain more."""
    if failure.kind not in (FailedAllocator.POOL, FailedAllocator.UNKNOWN):
        return
    if not failure.has_allocator_line:
        yield 'the allocator\'s line "ran out of memory trying to allocate" (level W)'

    if not failure.chunks:
        yield "the allocator's list of chunks (level I, TF_CPP_MIN_LOG_LEVEL=0)"
    elif not failure.is_complete:
        yield "part of the chunk list: it is truncated, or mixed with another one"
