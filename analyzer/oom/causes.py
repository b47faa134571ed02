"""Why a request failed: one verdict with its figures.

The rules follow TensorFlow's allocator (``bfc_allocator.cc``). It looks for a free chunk of at least
the requested size, then asks the driver for a new region, as far as the limit allows, each time for a
tenth less. So a request fails because the limit has no room, because free memory is fragmented, or
because the driver has no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from analyzer.model.ranges import Range
from analyzer.oom.component_cause import describe_refusals, find_others, judge_component
from analyzer.oom.dumped_state import find_dominant_size
from analyzer.oom.failure_case import (
    Cause,
    CauseOfFailure,
    OomCase,
    find_framework,
    size_without_type,
)
from analyzer.oom.log_records import FailedAllocator
from analyzer.oom.log_texts import size_words, write_sentence

_NOTABLE: Final = 0.05  # share of the bytes in use from which waste is reported
_BACK_OFF: Final = 0.9  # factor between a refused region and the next try (``Extend``)
_NEARLY_FULL: Final = 3  # free marks of 100 on the map of a pool that is called full


def find_cause(case: OomCase) -> CauseOfFailure:
    """Return the verdict on one failure."""
    failure = case.failure
    if failure.component:
        verdict = judge_component(case)
    elif failure.kind is FailedAllocator.ASYNC:
        verdict = _judge_async(case)
    elif failure.kind is FailedAllocator.HOST and case.request is not None:
        verdict = _verdict(Cause.HOST, "host_request", request=case.request.requested)
    else:
        verdict = _judge_pool(case)
    if case.budget is not None and failure.is_compiled and verdict.cause is Cause.CANNOT_TELL:
        budget, reached = map(Range.exactly, case.budget)
        verdict = _verdict(Cause.LARGER_THAN_LIMIT, "over_budget", budget=budget, reached=reached)
    if not failure.component and (name := find_framework(failure.framework)):
        verdict.title = f"{name}: {verdict.title}"
    verdict.reasons += _general_reasons(case, verdict.cause)
    return verdict


def _verdict(cause: Cause, title: str, *reasons: str, **values: object) -> CauseOfFailure:
    return CauseOfFailure(cause, write_sentence("title", title, **values), list(reasons))


def _judge_pool(case: OomCase) -> CauseOfFailure:
    request, state = case.request, case.state
    if request is None:
        return _judge_unknown_request(case)
    want = request.rounded
    shown = request.requested if request.requested.is_exact else want
    larger = _judge_larger_than_all(case, want, shown)
    if larger is not None:
        return larger
    if state.room is not None and state.room.low >= want.high:
        return _judge_driver(case, shown, state.room)
    free = state.free
    if free is None:
        if case.limit_left is not None:
            return _judge_by_limit(case, want, shown, case.limit_left)
        return _judge_by_map(case, want, shown)
    if state.room is None and state.pool is not None and state.pool.high < want.low:
        return _judge_others(case, want) or _verdict(
            Cause.CANNOT_TELL, "unknown_limit", request=shown, pool=state.pool
        )
    left = free + (state.room or Range.exactly(0))
    if left.middle < want.middle:
        return _judge_others(case, want) or _judge_full(case, want, shown, left)
    return _judge_fragmented(case, shown, free, want)


def _judge_unknown_request(case: OomCase) -> CauseOfFailure:
    state, cause = case.state, Cause.CANNOT_TELL
    bare = size_without_type(case.failure.tensor)
    if state.in_use is not None and state.limit is not None:
        return _verdict(cause, "unknown_request_in_use", in_use=state.in_use, limit=state.limit)
    if case.failure.is_copy:
        return _verdict(cause, "unknown_copy")
    if bare is not None:
        return _verdict(cause, "unknown_type", size=Range.exactly(4 * bare.low))
    return _verdict(cause, "unknown_request")


def _judge_larger_than_all(case: OomCase, want: Range, shown: Range) -> CauseOfFailure | None:
    limit, total = case.state.limit, case.card_total
    values = {"noun": "block" if case.failure.is_compiled else "tensor", "request": shown}
    if total is not None and want.low > total.high and case.is_on_card:
        return _verdict(Cause.LARGER_THAN_CARD, "larger_than_card", total=total, **values)
    if limit is None or want.low <= limit.high:
        return None
    return _judge_others(case, want) or _verdict(
        Cause.LARGER_THAN_LIMIT, "larger_than_limit", limit=limit, **values
    )


def _judge_others(case: OomCase, want: Range) -> CauseOfFailure | None:
    """Blame other processes if they held much of the card when TensorFlow started."""
    card = case.card
    if card is None or card.total is None or card.free is None or not case.is_on_card:
        return None
    held = find_others(
        card.total, card.free, Range.exactly(0), want.shifted(case.in_use_bytes or 0)
    )
    if held is None:
        return None
    return _verdict(Cause.HELD_BY_OTHERS, "others", held=held, total=card.total, free=card.free)


def _judge_driver(case: OomCase, shown: Range, room: Range) -> CauseOfFailure:
    reasons = describe_refusals(case.refusals)
    if case.is_limit_above_card:
        sizes = {"limit": case.state.limit, "total": case.card_total}
        reasons.append(write_sentence("reason", "limit_above_card", **sizes))
    elif case.is_on_card:
        reasons.append(write_sentence("reason", "rest_of_card"))
    giver = "driver" if case.is_on_card else "machine"
    values = {"room": room, "request": shown, "giver": giver}
    return _verdict(Cause.DRIVER_REFUSED, "refused", *reasons, **values)


def _judge_by_limit(case: OomCase, want: Range, shown: Range, left: Range) -> CauseOfFailure:
    """Judge by the limit and the bytes in use, if the log does not list free chunks."""
    if left.middle < want.middle:
        return _judge_others(case, want) or _judge_full(case, want, shown, left)
    if case.refusals:
        return _verdict(Cause.DRIVER_REFUSED, "refused_below_limit", request=shown, left=left)
    return _verdict(Cause.FRAGMENTED, "fragmented_below_limit", request=shown, left=left)


def _judge_by_map(case: OomCase, want: Range, shown: Range) -> CauseOfFailure:
    """Judge by the map of 100 marks, which is a warning and printed even if the dump is not."""
    refusals = case.refusals
    reasons = describe_refusals(refusals)
    if case.failure.is_pinned and refusals:
        return _verdict(Cause.DRIVER_REFUSED, "refused_pinned", *reasons, request=shown)
    cells = case.failure.dump.map
    free = cells.count("_")
    if cells and free <= _NEARLY_FULL:
        return _verdict(Cause.FULL, "full_map", percent=100 - free, request=shown)
    if cells:
        longest = max(len(run) for run in cells.replace("x", "*").split("*"))
        values = {"percent": free, "longest": longest}
        return _verdict(Cause.CANNOT_TELL, "unknown_pool", request=shown, **values)
    if any(want.low <= run.last_bytes <= want.high / _BACK_OFF + 256 for run in refusals):
        return _verdict(Cause.DRIVER_REFUSED, "refused_region", *reasons, request=shown)
    return _verdict(Cause.CANNOT_TELL, "unknown_state", request=shown)


def _judge_full(case: OomCase, want: Range, shown: Range, left: Range) -> CauseOfFailure:
    state = case.state
    waste, sizes = state.waste, {"request": shown, "left": left}
    least = max(want.high - left.middle, int(_NOTABLE * (case.in_use_bytes or 0)), 1)
    if waste is not None and waste.low >= least:
        return _verdict(Cause.WASTED, "wasted", waste=waste, **sizes)
    limit = "" if state.limit is None else f" of {size_words(state.limit)}"
    values = {"held": state.in_use or "the pool", "limit": limit}
    return _verdict(Cause.FULL, "full", short=(want - left).at_least(0), **sizes, **values)


def _judge_fragmented(case: OomCase, shown: Range, free: Range, want: Range) -> CauseOfFailure:
    state, reasons = case.state, []
    if state.limit is not None and state.in_use is not None:
        share = state.in_use.middle / max(state.limit.middle, 1)
        if share > 1 - 2 * _NOTABLE:
            reasons.append(write_sentence("reason", "nearly_full", share=share))
    if state.holes is not None and state.is_complete:
        regions = f" in {state.regions:,} regions" if (state.regions or 0) > 1 else ""
        values = {"holes": state.holes, "regions": regions}
        reasons.append(write_sentence("reason", "free_chunks", free=free, **values))
    sizes = {"request": shown, "free": free}
    if free.middle < want.middle and state.room is not None:
        sizes["room"] = state.room
        return _verdict(Cause.FRAGMENTED, "fragmented_with_room", *reasons, **sizes)
    piece = "no free chunk is as large"
    if state.largest_hole is not None:
        piece = f"the largest free chunk is {size_words(state.largest_hole)}"
    return _verdict(Cause.FRAGMENTED, "fragmented", *reasons, **sizes, piece=piece)


def _judge_async(case: OomCase) -> CauseOfFailure:
    failure, request = case.failure, case.request
    if failure.card_free is None or request is None:
        shown = request.requested if request else "memory"
        return _verdict(Cause.CANNOT_TELL, "unknown_card", request=shown)
    total, free, in_use = failure.card_total or 0, failure.card_free, case.in_use_bytes or 0
    named = {"total": total, "free": free, "in_use": in_use, "rest": max(total - free - in_use, 0)}
    sizes = {name: Range.exactly(size) for name, size in named.items()}
    sizes["request"] = request.requested
    if request.requested.low > total > 0:
        return _verdict(Cause.LARGER_THAN_CARD, "larger_than_card", noun="request", **sizes)
    reason = write_sentence("reason", "card_parts", **sizes)
    if free >= request.requested.high:
        return _verdict(Cause.FRAGMENTED, "fragmented_card", reason, **sizes)
    others = find_others(sizes["total"], sizes["free"], sizes["in_use"], request.requested)
    if others is not None and others.low > in_use:
        return _verdict(Cause.HELD_BY_OTHERS, "others_async", reason, **sizes)
    return _verdict(Cause.FULL, "full_card", reason, **sizes)


def _general_reasons(case: OomCase, cause: Cause) -> Iterator[str]:
    """Yield reasons for any verdict: contents of the pool, waste, a limit below the card's memory."""
    state, failure, total = case.state, case.failure, case.card_total
    if failure.is_compiled and cause not in (Cause.HOST, Cause.BESIDE_THE_POOL):
        yield write_sentence("reason", "one_block")
    if failure.is_pinned:
        yield write_sentence("reason", "pinned")
    in_use = case.in_use_bytes or 0
    dominant = find_dominant_size(case.sizes, in_use)
    if dominant is not None:
        size, share = Range.exactly(dominant.size_bytes), dominant.total_bytes / in_use
        values = {"count": dominant.count, "size": size, "share": share}
        yield write_sentence("reason", "dominant", **values)
    waste = state.waste
    if waste is not None and cause is not Cause.WASTED and waste.low > _NOTABLE * in_use:
        yield write_sentence("reason", "waste", waste=waste)
    is_pool = case.is_on_card and failure.kind is not FailedAllocator.ASYNC
    is_low = case.is_limited and is_pool and cause is not Cause.HELD_BY_OTHERS
    if is_low and total is not None and state.limit is not None:
        share = state.limit.middle / total.middle
        yield write_sentence("reason", "low_limit", share=share, total=total)


def find_missing_lines(case: OomCase) -> list[str]:
    """Return the lines that the log lacks and that would give more figures."""
    failure, dump = case.failure, case.failure.dump
    if failure.kind not in (FailedAllocator.POOL, FailedAllocator.UNKNOWN):
        return []
    has_shape = failure.tensor.shape is not None or failure.has_error_text
    is_missing = {
        "allocator_line": not failure.has_allocator_line,
        "error_text": case.request is not None and not has_shape,
        "stats": not dump.stats and dump.limit is None,
        "chunks": not dump.chunks,
        "rest_of_chunks": bool(dump.chunks) and not case.state.is_complete,
    }
    is_missing["level"] = (
        failure.has_allocator_line and not (dump.stats or dump.chunks) and any(is_missing.values())
    )
    return [write_sentence("missing", name) for name, missing in is_missing.items() if missing]
