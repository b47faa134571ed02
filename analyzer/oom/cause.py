"""Why a request failed: one verdict with its figures.

The rules follow TensorFlow's allocator (``bfc_allocator.cc``). It looks for a free chunk of at least
the requested size, then asks the driver for a new region, as far as the limit allows, each time for a
tenth less. So a request fails because the limit has no room, because free memory is fragmented, or
because the driver has no memory.
"""

from collections.abc import Iterator
from typing import Final

from analyzer.model.contract.report.oom_file import OomVerdict
from analyzer.model.ranges import Range
from analyzer.model.units import format_bytes
from analyzer.oom.failures import Cause, FailedAllocator, LoggedFailure
from analyzer.oom.figures import find_dominant_size
from analyzer.oom.wordings import OTHER_CAUSES

_NOTABLE: Final = 0.05  # share of the bytes in use from which waste is reported
_BACK_OFF: Final = 0.9  # factor between a refused region and the next try (``Extend``)
_NEARLY_FULL: Final = 3  # free marks of 100 on the map of a pool that is called full
_OTHERS_SHARE: Final = 0.2  # of a card: less is not worth naming other processes
_CONTEXT_BYTES: Final = (
    1 << 30
)  # a process's own context and a desktop may take this much

Judgement = tuple[Cause, str]  # and the title of the verdict


def find_cause(failure: LoggedFailure) -> OomVerdict:
    """Return the verdict on one failure."""
    cause, title = _judge(failure)
    if (
        failure.budget is not None
        and failure.is_compiled
        and cause is Cause.CANNOT_TELL
    ):
        budget, reached = map(format_bytes, failure.budget)
        cause = Cause.LARGER_THAN_LIMIT
        title = (
            f"XLA planned {reached} for the program, more than its budget of {budget}."
        )

    if title.startswith("about"):
        title = f"A{title[1:]}"
    if failure.framework_name and not failure.other_cause:
        title = f"{failure.framework_name}: {title}"

    reasons = tuple(_find_reasons(failure, cause))
    missing = tuple(_find_missing_lines(failure))
    return OomVerdict(str(cause), title, reasons, missing)


def _judge(failure: LoggedFailure) -> Judgement:
    if failure.other_cause:
        return _judge_other_cause(failure)
    request, rounded = failure.requested, failure.rounded
    if request is None or rounded is None:
        return Cause.CANNOT_TELL, _describe_unknown_request(failure)
    if failure.kind is FailedAllocator.HOST:
        return (
            Cause.HOST,
            f"TensorFlow found no host memory for {request}.",
        )
    if failure.kind is FailedAllocator.ASYNC:
        return _judge_async(failure, request)
    shown = request if request.is_exact else rounded
    return _judge_pool(failure, shown, rounded)


def _judge_other_cause(failure: LoggedFailure) -> Judgement:
    """Return the verdict on a failure beside TensorFlow's allocators: its row, and its figures."""
    cause = Cause(OTHER_CAUSES[failure.other_cause].cause)
    words = {
        "request": "{} requested",
        "free": "{} free",
        "in_use": "{} in use",
        "limit": "the limit is {}",
        "resident": "the process held {}",
    }
    parts = []

    for name, text in words.items():
        if name in failure.printed:
            parts.append(text.format(format_bytes(failure.printed[name].middle)))

    if parts and failure.is_killed and cause is Cause.CANNOT_TELL:
        cause = Cause.HOST

    figures = f": {', '.join(parts)}" if parts else ""
    return cause, f"{failure.title}{figures}."


def _describe_unknown_request(failure: LoggedFailure) -> str:
    in_use, limit = failure.figures.get("in_use"), failure.figures.get("limit")
    text = "The log does not give the size of the request"
    if in_use is not None and limit is not None:
        return f"{text}; {in_use} of {limit} were in use."

    if failure.is_copy:
        text = "A tensor could not be copied to the device, which had no memory for it"
        return f"{text}; the log does not give its size."

    return f"{text}."


def _judge_pool(failure: LoggedFailure, shown: Range, want: Range) -> Judgement:
    figures = failure.figures
    limit, total, pool = figures.get("limit"), failure.card_memory, figures.get("pool")
    free, room = figures.get("free"), figures.get("room")
    noun = "block" if failure.is_compiled else "tensor"

    if total is not None and want.low > total.high and failure.is_on_card:
        title = f"One {noun} of {shown} is larger than the whole card ({total})."
        return Cause.LARGER_THAN_CARD, title

    if limit is not None and want.low > limit.high:
        title = f"One {noun} of {shown} is larger than the allocator's limit ({limit})."
        return Cause.LARGER_THAN_LIMIT, title

    if room is not None and room.low >= want.high:
        giver = "driver" if failure.is_on_card else "machine"
        title = f"The limit allows {room} more and {shown} were requested, "
        return (
            Cause.DRIVER_REFUSED,
            f"{title}but the {giver} had no memory for a new region.",
        )

    left = failure.limit_left

    if free is not None:
        if room is None and pool is not None and pool.high < want.low:
            title = f"{shown} requested, more than the whole pool so far ({pool}); "
            return (
                Cause.CANNOT_TELL,
                f"{title}the log does not say how far the pool may grow.",
            )

        left = free if room is None else free + room

    if left is None:
        return _judge_by_map(failure, shown, want)
    if left.middle < want.middle:
        return _judge_full(failure, shown, want, left)
    if free is not None:
        return Cause.FRAGMENTED, _describe_fragments(failure, shown, want, free)

    title = f"{shown} requested with {left} of the limit not in use: "

    if failure.refusals:
        return Cause.DRIVER_REFUSED, f"{title}the driver refused to give more."

    title += "free memory was fragmented, or the driver refused to give more."
    return Cause.FRAGMENTED, title


def _judge_by_map(failure: LoggedFailure, shown: Range, want: Range) -> Judgement:
    """Judge by the map of 100 marks, which is a warning and printed even if the dump is not."""
    cells = failure.map
    free = cells.count("_")

    if failure.is_pinned and failure.refusals:
        title = f"{shown} of pinned memory requested, "
        return (
            Cause.DRIVER_REFUSED,
            f"{title}but the machine had no memory for a new region.",
        )

    if cells and free <= _NEARLY_FULL:
        return (
            Cause.FULL,
            f"The pool was {100 - free} % full when {shown} were requested.",
        )

    if cells:
        title = f"{shown} requested while {free} % of the pool was free; "
        return Cause.CANNOT_TELL, f"{title}the log does not give the size of the pool."

    largest = want.high / _BACK_OFF + 256
    if any(want.low <= run.last_bytes <= largest for run in failure.refusals):
        title = f"{shown} requested, and the driver refused a region of that size."
        return Cause.DRIVER_REFUSED, title

    title = f"{shown} requested; the log gives neither the limit nor the bytes in use."
    return Cause.CANNOT_TELL, title


def _judge_full(
    failure: LoggedFailure, shown: Range, want: Range, left: Range
) -> Judgement:
    waste, limit = failure.figures.get("waste"), failure.figures.get("limit")
    least = max(want.high - left.middle, int(_NOTABLE * failure.in_use_bytes), 1)
    if waste is not None and waste.low >= least:
        title = f"The pool is full, but {waste} of it are unused inside chunks "
        title += f"that are larger than their tensors; {shown} requested, {left} free."
        return Cause.WASTED, title

    others_bytes = _find_others(failure, want)
    if others_bytes:
        title = (
            f"{format_bytes(others_bytes)} of the card's {failure.card_memory} are not "
        )
        title += f"tensors of this process; {left} were left for {shown}."
        return Cause.HELD_BY_OTHERS, title

    held = failure.figures.get("in_use") or "the pool"

    if failure.card_free is not None:
        limit = failure.card_memory

    of = "" if limit is None else f" of {limit}"
    short = (want - left).at_least(0)
    title = f"Too little memory: {held}{of} in use, {shown} requested, "
    return Cause.FULL, f"{title}{left} left: {short} too little."


def _describe_fragments(
    failure: LoggedFailure, shown: Range, want: Range, free: Range
) -> str:
    room, hole = failure.figures.get("room"), failure.figures.get("largest_hole")
    if free.middle < want.middle and room is not None:
        title = f"{shown} requested; {free} were free in the pool and the limit "
        return f"{title}allowed {room} more: enough together, too little each."

    piece = "no free chunk is as large"

    if hole is not None:
        piece = f"the largest free chunk is {hole}"
    return f"Fragmentation: {shown} requested and {free} free, but {piece}."


def _judge_async(failure: LoggedFailure, want: Range) -> Judgement:
    total, free_bytes = failure.card_memory, failure.card_free
    if free_bytes is None or total is None:
        title = f"The driver refused {want}; the log does not say how much of the card was free."
        return Cause.CANNOT_TELL, title

    if want.low > total.high:
        title = f"One request of {want} is larger than the whole card ({total})."
        return Cause.LARGER_THAN_CARD, title

    if free_bytes < want.high:
        return _judge_full(failure, want, want, Range.exactly(free_bytes))

    title = f"CUDA refused {want} although {format_bytes(free_bytes)} of the card were free: "
    return (
        Cause.FRAGMENTED,
        f"{title}free memory is fragmented, or the pool has a limit.",
    )


def _find_others(failure: LoggedFailure, want: Range) -> int:
    """Return the bytes of other processes, if the request would fit the card without them."""
    if failure.card_free is None or failure.card_total is None:
        return 0

    others_bytes = failure.card_total - failure.card_free - failure.in_use_bytes
    need_bytes = failure.in_use_bytes + want.middle
    least = max(
        _CONTEXT_BYTES, _OTHERS_SHARE * failure.card_total, failure.in_use_bytes
    )
    would_fit = need_bytes <= failure.card_total - _CONTEXT_BYTES
    return others_bytes if others_bytes > least and would_fit else 0


def _find_reasons(failure: LoggedFailure, cause: Cause) -> Iterator[str]:
    """Yield sentences that support the verdict."""
    is_refused = cause is Cause.DRIVER_REFUSED
    if failure.refusals and (is_refused or failure.kind is FailedAllocator.LIBRARY):
        yield _describe_refusals(failure)
    if is_refused and failure.is_on_card and "room" in failure.figures:
        yield (
            "Other processes hold the rest of the card, or this process holds it outside "
            "the pool (context, libraries)."
        )

    if cause is Cause.FRAGMENTED and failure.is_complete:
        regions = len(failure.regions)
        pieces = f" in {regions:,} regions" if regions > 1 else ""
        yield f"{failure.figures['free']} are free, in {failure.holes:,} chunks{pieces}."

    if failure.kind is FailedAllocator.ASYNC and failure.card_free is not None:
        yield _describe_card(failure)
    if failure.is_compiled:
        yield (
            "XLA requests the temporary buffers of a compiled step as one block, "
            "which needs one free chunk."
        )
    if failure.is_pinned:
        yield "This is pinned host memory, used for copies to a card, not the card's own."

    dominant = find_dominant_size(failure)
    if dominant is not None:
        share = dominant.total_bytes / failure.in_use_bytes
        yield (
            f"{dominant.count:,} chunks of {format_bytes(dominant.size_bytes)} fill "
            f"{share:.0%} of the bytes in use, as if a loop or a list keeps every step's "
            "result. One dump can't show whether they grow."
        )

    limit, total = failure.figures.get("limit"), failure.card_memory
    if failure.is_limited and failure.is_on_card and limit and total:
        yield (
            f"The limit is {limit.middle / total.middle:.0%} of the card's {total}: a limit "
            "was set, or other processes held the card when TensorFlow started."
        )


def _describe_refusals(failure: LoggedFailure) -> str:
    count = sum(run.times for run in failure.refusals)
    least = format_bytes(min(run.last_bytes for run in failure.refusals))
    could = "could be pinned" if failure.refusals[0].is_host else "was free on the card"
    requests = "1 request" if count == 1 else f"{count:,} requests"
    return f"The driver refused {requests} before, down to {least}: less than that {could}."


def _describe_card(failure: LoggedFailure) -> str:
    total, free = failure.card_total or 0, failure.card_free or 0
    rest = max(total - free - failure.in_use_bytes, 0)
    return (
        f"Of the card's {format_bytes(total)}, {format_bytes(failure.in_use_bytes)} are "
        f"tensors of this process, {format_bytes(free)} are free, and {format_bytes(rest)} "
        "are its context, the reserve of its pool, or other processes."
    )


def _find_missing_lines(failure: LoggedFailure) -> Iterator[str]:
    """Yield the lines that would explain more."""
    if failure.kind not in (FailedAllocator.POOL, FailedAllocator.UNKNOWN):
        return
    if not failure.has_allocator_line:
        yield 'the allocator\'s line "ran out of memory trying to allocate" (level W)'
    if failure.request is not None and not failure.has_error_text:
        yield 'the error text "OOM when allocating tensor with shape[...]"'

    if failure.chunks and not failure.is_complete:
        yield "part of the chunk list: it is truncated, or mixed with another one"
    elif not failure.chunks:
        yield "the allocator's dump (level I), which TF_CPP_MIN_LOG_LEVEL=0 enables"
