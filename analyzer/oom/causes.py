"""Why a request failed: one verdict with its figures.

The rules follow TensorFlow's allocator (``bfc_allocator.cc``). It looks for a free chunk of at least
the requested size. If there is none it asks the driver for a new region, as far as the limit allows.
If the driver refuses, it asks for a tenth less, down to the request. So a request fails because the
limit has no room, because free memory is fragmented, or because the driver has no memory.
"""

from __future__ import annotations

from typing import Final

from analyzer.model.ranges import Range
from analyzer.model.units import format_bytes
from analyzer.oom.failure_case import Cause, CauseOfFailure, OomCase, size_words
from analyzer.oom.log_records import FailedAllocator, RefusalRun
from analyzer.oom.request_size import size_without_type
from analyzer.oom.sizes_in_use import find_dominant_size

_CONTEXT_BYTES: Final = 1 << 30  # a process' own context and a desktop may take this much of a card
_OTHERS_SHARE: Final = 0.2  # of a card: less is not worth naming other processes
_NOTABLE: Final = 0.05  # share of the bytes in use from which waste is reported
_BACK_OFF: Final = 0.9  # factor between a refused region and the next try (``Extend``)
_NEARLY_FULL: Final = 3  # free marks of 100 on the map of a pool that is called full


def find_cause(case: OomCase) -> CauseOfFailure:
    """Return the verdict on one failure."""
    kind = case.failure.kind
    if kind is FailedAllocator.LIBRARY:
        verdict = _judge_library(case)
    elif kind is FailedAllocator.HOST:
        verdict = _judge_host(case)
    elif kind is FailedAllocator.ASYNC:
        verdict = _judge_async(case)
    else:
        verdict = _judge_pool(case)
    verdict.reasons += _general_reasons(case, verdict.cause)
    return verdict


def _judge_pool(case: OomCase) -> CauseOfFailure:
    request, state = case.request, case.state
    if request is None:
        return CauseOfFailure(Cause.CANNOT_TELL, _unknown_request(case))
    want = request.rounded
    shown = size_words(request.requested if request.requested.is_exact else want)
    larger = _judge_larger_than_all(case, want, shown)
    if larger is not None:
        return larger
    if state.room is not None and state.room.low >= want.high:
        return _judge_driver(case, shown, state.room)
    free = state.free
    if free is None:
        if case.left is not None:
            return _judge_by_limit(case, want, shown, case.left)
        return _judge_by_map(case, want, shown)
    if state.room is None and state.pool is not None and state.pool.high < want.low:
        title = (
            f"{shown} requested, more than the whole pool so far ({size_words(state.pool)}); the log "
            "does not say how far the pool may grow."
        )
        return _judge_others(case, want) or CauseOfFailure(Cause.CANNOT_TELL, title)
    left = free + (state.room or Range.exactly(0))
    if left.middle < want.middle:
        return _judge_others(case, want) or _judge_full(case, want, shown, left)
    return _judge_fragmented(case, shown, free, want)


def _unknown_request(case: OomCase) -> str:
    """Return the title of a failure whose size the log does not give."""
    state, text = case.state, case.failure.text
    if state.in_use is not None and state.limit is not None:
        return (
            f"The log does not give the size of the request; {size_words(state.in_use)} of "
            f"{size_words(state.limit)} were in use."
        )
    if "Dst tensor" in text or "Failed copying" in text:
        return (
            "A tensor could not be copied to the device, which had no memory for it; the log does not "
            "give its size."
        )
    bare = size_without_type(case.failure.tensor)
    if bare is not None:
        return (
            f"A tensor of {format_bytes(4 * bare.low)} was requested if its elements take 4 bytes; the "
            "log has its shape but not its type."
        )
    return "The log does not give the size of the request."


def _judge_larger_than_all(case: OomCase, want: Range, shown: str) -> CauseOfFailure | None:
    limit, total = case.state.limit, case.card_total
    noun = "block" if case.failure.is_compiled else "tensor"
    if total is not None and want.low > total.high and case.is_on_card:
        title = f"One {noun} of {shown} is larger than the whole card ({size_words(total)})."
        return CauseOfFailure(Cause.LARGER_THAN_CARD, title)
    if limit is None or want.low <= limit.high:
        return None
    title = f"One {noun} of {shown} is larger than the allocator's limit ({size_words(limit)})."
    return _judge_others(case, want) or CauseOfFailure(Cause.LARGER_THAN_LIMIT, title)


def _judge_others(case: OomCase, want: Range) -> CauseOfFailure | None:
    """Blame other processes if they held much of the card when TensorFlow started."""
    card = case.card
    if card is None or card.total is None or card.free is None or not case.is_on_card:
        return None
    held = (card.total - card.free).at_least(0)
    if held.middle <= _CONTEXT_BYTES or held.middle < _OTHERS_SHARE * card.total.middle:
        return None
    if (case.in_use_bytes or 0) + want.middle > card.total.middle - _CONTEXT_BYTES:
        return None
    title = (
        f"Other processes held {size_words(held)} of the card's {size_words(card.total)} when "
        f"TensorFlow started; {size_words(card.free)} were free."
    )
    return CauseOfFailure(Cause.HELD_BY_OTHERS, title)


def _judge_driver(case: OomCase, shown: str, room: Range) -> CauseOfFailure:
    giver = "driver" if case.is_on_card else "machine"
    title = (
        f"The limit allows {size_words(room)} more and {shown} were requested, but the {giver} had no "
        "memory for a new region."
    )
    verdict = CauseOfFailure(Cause.DRIVER_REFUSED, title, _describe_refusals(case.refusals))
    limit, total = case.state.limit, case.card_total
    if total is not None and limit is not None and limit.low > total.high:
        verdict.reasons.append(
            f"The limit of {size_words(limit)} is more than the card has ({size_words(total)})."
        )
    elif case.is_on_card:
        verdict.reasons.append(
            "Other processes hold the rest of the card, or this process holds it outside the pool "
            "(context, libraries)."
        )
    return verdict


def _describe_refusals(refusals: list[RefusalRun]) -> list[str]:
    """Return a sentence about refusals before the failure; none if there were none."""
    if not refusals:
        return []
    count = sum(run.times for run in refusals)
    least = min(run.last_bytes for run in refusals)
    return [
        f"The driver refused {count:,} request{'s' * (count != 1)} before, down to "
        f"{format_bytes(least)}: less than that "
        f"{'could be pinned' if refusals[0].is_host else 'was free on the card'}."
    ]


def _judge_by_limit(case: OomCase, want: Range, shown: str, left: Range) -> CauseOfFailure:
    """Judge by the limit and the bytes in use, if the log does not list free chunks."""
    if left.middle < want.middle:
        return _judge_others(case, want) or _judge_full(case, want, shown, left)
    title = f"{shown} requested with {size_words(left)} of the limit not in use: "
    if case.refusals:
        return CauseOfFailure(Cause.DRIVER_REFUSED, f"{title}the driver refused to give more.")
    title += "free memory was fragmented, or the driver refused to give more."
    return CauseOfFailure(Cause.FRAGMENTED, title)


def _judge_by_map(case: OomCase, want: Range, shown: str) -> CauseOfFailure:
    """Judge by the map of 100 marks, which is a warning and printed even if the dump is not."""
    refusals = case.refusals
    if case.failure.is_pinned and refusals:
        title = (
            f"{shown} of pinned memory requested, but the machine had no memory for a new region."
        )
        return CauseOfFailure(Cause.DRIVER_REFUSED, title, _describe_refusals(refusals))
    cells = case.failure.dump.map
    free = cells.count("_")
    if cells and free <= _NEARLY_FULL:
        title = f"The pool was {100 - free} % full when {shown} were requested."
        return CauseOfFailure(Cause.FULL, title)
    if cells:
        longest = max(len(run) for run in cells.replace("x", "*").split("*"))
        title = (
            f"{shown} requested while {free} % of the pool was free, about {longest} % in one chunk; "
            "the log does not give the size of the pool."
        )
    elif any(want.low <= run.last_bytes <= want.high / _BACK_OFF + 256 for run in refusals):
        title = f"{shown} requested, and the driver refused a region of that size."
        return CauseOfFailure(Cause.DRIVER_REFUSED, title, _describe_refusals(refusals))
    else:
        title = f"{shown} requested; the log gives neither the limit nor the bytes in use."
    return CauseOfFailure(Cause.CANNOT_TELL, title[0].upper() + title[1:])


def _judge_full(case: OomCase, want: Range, shown: str, left: Range) -> CauseOfFailure:
    state = case.state
    waste = state.waste
    least = max(want.high - left.middle, int(_NOTABLE * (case.in_use_bytes or 0)), 1)
    if waste is not None and waste.low >= least:
        title = (
            f"The pool is full, but {size_words(waste)} of it are unused inside chunks that are larger "
            f"than their tensors; {shown} requested, {size_words(left)} free."
        )
        return CauseOfFailure(Cause.WASTED, title)
    held = size_words(state.in_use) if state.in_use is not None else "the pool"
    limit = f" of {size_words(state.limit)}" if state.limit is not None else ""
    short = size_words((want - left).at_least(0))
    title = (
        f"Too little memory: {held}{limit} in use, {shown} requested, {size_words(left)} left: "
        f"{short} too little."
    )
    return CauseOfFailure(Cause.FULL, title)


def _judge_fragmented(case: OomCase, shown: str, free: Range, want: Range) -> CauseOfFailure:
    state = case.state
    hole = state.largest_hole
    piece = (
        "but no free chunk is as large"
        if hole is None
        else f"but the largest free chunk is {size_words(hole)}"
    )
    title = f"Fragmentation: {shown} requested and {size_words(free)} free, {piece}."
    if free.middle < want.middle and state.room is not None:
        title = (
            f"{shown} requested; {size_words(free)} were free in the pool and the limit allowed "
            f"{size_words(state.room)} more: enough together, too little each."
        )
    verdict = CauseOfFailure(Cause.FRAGMENTED, title)
    if state.limit is not None and state.in_use is not None:
        share = state.in_use.middle / max(state.limit.middle, 1)
        if share > 1 - 2 * _NOTABLE:
            verdict.reasons.append(f"Little is left in any case: {share:.0%} of the limit in use.")
    if state.holes is not None and state.is_complete:
        regions = f" in {state.regions:,} regions" if (state.regions or 0) > 1 else ""
        verdict.reasons.append(f"{size_words(free)} are free, in {state.holes:,} chunks{regions}.")
    return verdict


def _judge_async(case: OomCase) -> CauseOfFailure:
    failure, request = case.failure, case.request
    if failure.card_free is None or request is None:
        shown = size_words(request.requested) if request else "memory"
        title = f"The driver refused {shown}; the log does not say how much of the card was free."
        return CauseOfFailure(Cause.CANNOT_TELL, title)
    shown = size_words(request.requested)
    total, free, in_use = failure.card_total or 0, failure.card_free, case.in_use_bytes or 0
    if request.requested.low > total > 0:
        title = f"One request of {shown} is larger than the whole card ({format_bytes(total)})."
        return CauseOfFailure(Cause.LARGER_THAN_CARD, title)
    rest = max(total - free - in_use, 0)
    reason = (
        f"Of the card's {format_bytes(total)}, {format_bytes(in_use)} are tensors of this process, "
        f"{format_bytes(free)} are free, and {format_bytes(rest)} are its context, the reserve of its "
        "pool, or other processes."
    )
    if free >= request.requested.high:
        title = (
            f"CUDA refused {shown} although {format_bytes(free)} of the card were free: free memory is "
            "fragmented, or the pool has a limit."
        )
        return CauseOfFailure(Cause.FRAGMENTED, title, [reason])
    if rest > _CONTEXT_BYTES and rest > in_use:
        title = (
            f"{format_bytes(rest)} of the card's {format_bytes(total)} are not tensors of this process; "
            f"{format_bytes(free)} were left for {shown}."
        )
        return CauseOfFailure(Cause.HELD_BY_OTHERS, title, [reason])
    title = (
        f"The card is full: {format_bytes(in_use)} of tensors, {format_bytes(free)} left of "
        f"{format_bytes(total)}, {shown} requested."
    )
    return CauseOfFailure(Cause.FULL, title, [reason])


def _judge_library(case: OomCase) -> CauseOfFailure:
    title = (
        "A CUDA library found no memory outside TensorFlow's pool, or failed to start for another "
        "reason; its error code does not distinguish them."
    )
    words = ("ALLOC_FAILED", "OUT_OF_MEMORY", "out of memory")
    if any(word in case.failure.text for word in words):
        title = "A CUDA library found no memory on the card outside TensorFlow's pool."
    verdict = CauseOfFailure(Cause.BESIDE_THE_POOL, title, _describe_refusals(case.refusals))
    card = case.card
    if card is not None and card.total is not None and card.free is not None:
        verdict.reasons.append(
            f"When TensorFlow started, {size_words(card.free)} of the card's "
            f"{size_words(card.total)} were free."
        )
    return verdict


def _judge_host(case: OomCase) -> CauseOfFailure:
    failure = case.failure
    if failure.resident_bytes is not None:
        held = format_bytes(failure.resident_bytes)
        reason = "the machine's memory ran out"
        if "cgroup" in failure.text:
            reason = "its container reached the memory limit"
        title = f"The system killed the process because {reason}; the process held {held}."
    elif case.request is not None:
        title = f"Host memory had no room for {size_words(case.request.requested)}."
    elif any(word in failure.text for word in ("Killed", "137", "SIGKILL")):
        title = "The process was killed, as the system does when host memory runs out."
        return CauseOfFailure(Cause.CANNOT_TELL, title)
    else:
        title = "Host memory ran out, not a card's memory."
    return CauseOfFailure(Cause.HOST, title)


def _general_reasons(case: OomCase, cause: Cause) -> list[str]:
    """Return reasons for any verdict: contents of the pool, waste, a limit below the card's memory."""
    state, failure, total = case.state, case.failure, case.card_total
    reasons = []
    if failure.is_compiled and cause not in (Cause.HOST, Cause.BESIDE_THE_POOL):
        reasons.append(
            "XLA requests the temporary buffers of a compiled step as one block, which needs one free "
            "chunk."
        )
    if failure.is_pinned:
        reasons.append("This is pinned host memory, used for copies to a card, not the card's own.")
    dominant = find_dominant_size(case.sizes, case.in_use_bytes)
    if dominant is not None:
        reasons.append(
            f"{dominant.count:,} chunks of {format_bytes(dominant.size_bytes)} fill "
            f"{dominant.total_bytes / (case.in_use_bytes or 1):.0%} of the bytes in use, as if a loop "
            "or a list keeps every step's result. One dump can't show whether they grow."
        )
    waste = state.waste
    least = _NOTABLE * (case.in_use_bytes or 0)
    if waste is not None and cause is not Cause.WASTED and waste.low > least:
        reasons.append(
            f"{size_words(waste)} of the bytes in use are inside chunks that are larger than their "
            "tensors."
        )
    is_pool = case.is_on_card and failure.kind is not FailedAllocator.ASYNC
    if case.is_limited and is_pool and cause is not Cause.HELD_BY_OTHERS:
        assert total is not None
        assert state.limit is not None
        reasons.append(
            f"The limit is {state.limit.middle / total.middle:.0%} of the card's {size_words(total)}: a "
            "limit was set, or other processes held the card when TensorFlow started."
        )
    if state.is_contradictory:
        reasons.append(
            "The chunk list has more than the dump's own figures, as if two devices wrote at once; it "
            "is not used."
        )
    return reasons


def find_missing_lines(case: OomCase) -> list[str]:
    """Return the lines that the log lacks and that would give more figures."""
    failure, dump = case.failure, case.failure.dump
    if failure.kind not in (FailedAllocator.POOL, FailedAllocator.UNKNOWN):
        return []
    missing = []
    if not failure.has_allocator_line:
        missing.append('the allocator\'s line "ran out of memory trying to allocate" (level W)')
    if case.request is not None and failure.tensor.shape is None and not failure.has_error_text:
        missing.append('the error text "OOM when allocating tensor with shape[...]"')
    if not dump.stats and dump.limit is None:
        missing.append('the block "Stats:" with Limit and InUse (level I)')
    if not dump.chunks:
        missing.append('the chunks "InUse at" and "Free at" (level I)')
    elif not case.state.is_complete:
        missing.append("part of the chunk list: it is truncated, or mixed with another one")
    if missing and not dump.stats and not dump.chunks and failure.has_allocator_line:
        missing.append("lines of level I, which TF_CPP_MIN_LOG_LEVEL=0 enables")
    return missing
