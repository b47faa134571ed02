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
from analyzer.oom.dumped_state import (
    find_dominant_size,
    write_reason,
    write_sentence,
    write_verdict,
)
from analyzer.oom.failure_case import Cause, OomCase, RequestSize, find_framework
from analyzer.oom.log_records import FailedAllocator, OutOf, RefusalRun

_NOTABLE: Final = 0.05  # share of the bytes in use from which waste is reported
_BACK_OFF: Final = 0.9  # factor between a refused region and the next try (``Extend``)
_NEARLY_FULL: Final = 3  # free marks of 100 on the map of a pool that is called full


def find_cause(case: OomCase) -> OomVerdict:
    """Return the verdict on one failure."""
    failure, request = case.failure, case.request
    if failure.component:
        verdict = judge_component(case)
    elif failure.kind is FailedAllocator.ASYNC:
        verdict = _judge_async(case)
    elif request is None:
        verdict = _judge_unknown_request(case)
    elif failure.kind is FailedAllocator.HOST:
        verdict = write_verdict("host_request", request=request.requested)
    else:
        verdict = _judge_pool(case, request)
    if case.budget is not None and failure.is_compiled and verdict.id == Cause.CANNOT_TELL:
        budget, reached = map(Range.exactly, case.budget)
        verdict = write_verdict("over_budget", budget=budget, reached=reached)
    name = "" if failure.component else find_framework(failure.framework)
    title = f"{name}: {verdict.title}" if name else verdict.title
    reasons = (*verdict.reasons, *_general_reasons(case, verdict.id))
    return OomVerdict(verdict.id, title, reasons, tuple(_find_missing_lines(case)))


def _judge_pool(case: OomCase, request: RequestSize) -> OomVerdict:
    state, want = case.state, request.rounded
    larger = _judge_larger_than_all(case, request)
    if larger is not None:
        return larger
    if state.room is not None and state.room.low >= want.high:
        return _judge_driver(case, request, state.room)
    left = case.limit_left
    if state.free is not None:
        if state.room is None and state.pool is not None and state.pool.high < want.low:
            sizes = {"request": request.size, "pool": state.pool}
            return write_verdict("unknown_limit", **sizes)
        left = state.free + (state.room or Range.exactly(0))
    if left is None:
        return _judge_by_map(case, request)
    if left.middle < want.middle:
        return _judge_full(case, request, left)
    if state.free is not None:
        return _judge_fragmented(case, request, state.free)
    title = "refused_below_limit" if case.refusals else "fragmented_below_limit"
    return write_verdict(title, request=request.size, left=left)


def _judge_unknown_request(case: OomCase) -> OomVerdict:
    state = case.state
    if state.in_use is not None and state.limit is not None:
        sizes = {"in_use": state.in_use, "limit": state.limit}
        return write_verdict("unknown_request_in_use", **sizes)
    if case.failure.is_copy:
        return write_verdict("unknown_copy")
    return write_verdict("unknown_request")


def _judge_larger_than_all(case: OomCase, request: RequestSize) -> OomVerdict | None:
    limit, total, want = case.state.limit, case.card_total, request.rounded
    noun = "block" if case.failure.is_compiled else "tensor"
    values = {"noun": noun, "request": request.size, "total": total, "limit": limit}
    if total is not None and want.low > total.high and case.is_on_card:
        return write_verdict("larger_than_card", **values)
    if limit is None or want.low <= limit.high:
        return None
    return write_verdict("larger_than_limit", **values)


def _judge_driver(case: OomCase, request: RequestSize, room: Range) -> OomVerdict:
    reasons = describe_refusals(case.refusals)
    if case.is_limit_above_card:
        sizes = {"limit": case.state.limit, "total": case.card_total}
        reasons.append(write_reason("limit_above_card", **sizes))
    elif case.is_on_card:
        reasons.append(write_reason("rest_of_card"))
    giver = "driver" if case.is_on_card else "machine"
    return write_verdict("refused", *reasons, room=room, request=request.size, giver=giver)


def _judge_by_map(case: OomCase, request: RequestSize) -> OomVerdict:
    """Judge by the map of 100 marks, which is a warning and printed even if the dump is not."""
    want, shown, cells = request.rounded, request.size, case.failure.dump.map
    reasons = describe_refusals(case.refusals)
    if case.failure.is_pinned and reasons:
        return write_verdict("refused_pinned", *reasons, request=shown)
    free = cells.count("_")
    if cells and free <= _NEARLY_FULL:
        return write_verdict("full_map", percent=100 - free, request=shown)
    if cells:
        longest = max(len(run) for run in cells.replace("x", "*").split("*"))
        return write_verdict("unknown_pool", request=shown, percent=free, longest=longest)
    tries = [run.last_bytes for run in case.refusals]
    if any(want.low <= size_bytes <= want.high / _BACK_OFF + 256 for size_bytes in tries):
        return write_verdict("refused_region", *reasons, request=shown)
    return write_verdict("unknown_state", request=shown)


def _judge_full(case: OomCase, request: RequestSize, left: Range) -> OomVerdict:
    state, want, waste = case.state, request.rounded, case.state.waste
    least = max(want.high - left.middle, int(_NOTABLE * (case.in_use_bytes or 0)), 1)
    sizes = {"request": request.size, "left": left}
    if waste is not None and waste.low >= least:
        return write_verdict("wasted", waste=waste, **sizes)
    limit = "" if state.limit is None else f" of {state.limit}"
    values = {"held": state.in_use or "the pool", "limit": limit, **sizes}
    return write_verdict("full", short=(want - left).at_least(0), **values)


def _judge_fragmented(case: OomCase, request: RequestSize, free: Range) -> OomVerdict:
    state, reasons = case.state, []
    if state.limit is not None and state.in_use is not None:
        share = state.in_use.middle / max(state.limit.middle, 1)
        if share > 1 - 2 * _NOTABLE:
            reasons.append(write_reason("nearly_full", share=share))
    if state.holes is not None and state.is_complete:
        regions = f" in {state.regions:,} regions" if (state.regions or 0) > 1 else ""
        values = {"holes": state.holes, "regions": regions}
        reasons.append(write_reason("free_chunks", free=free, **values))
    sizes = {"request": request.size, "free": free}
    if free.middle < request.rounded.middle and state.room is not None:
        return write_verdict("fragmented_with_room", *reasons, room=state.room, **sizes)
    piece = "no free chunk is as large"
    if state.largest_hole is not None:
        piece = f"the largest free chunk is {state.largest_hole}"
    return write_verdict("fragmented", *reasons, piece=piece, **sizes)


def _judge_async(case: OomCase) -> OomVerdict:
    failure, request = case.failure, case.request
    if failure.card_free is None or request is None:
        shown = request.requested if request else "memory"
        return write_verdict("unknown_card", request=shown)
    total, free, in_use = failure.card_total or 0, failure.card_free, case.in_use_bytes or 0
    named = {"total": total, "free": free, "in_use": in_use, "rest": max(total - free - in_use, 0)}
    sizes = {name: Range.exactly(size) for name, size in named.items()}
    sizes["request"] = request.requested
    if request.requested.low > total > 0:
        return write_verdict("larger_than_card", noun="request", **sizes)
    reason = write_reason("card_parts", **sizes)
    if free >= request.requested.high:
        return write_verdict("fragmented_card", reason, **sizes)
    others = find_others(sizes["total"], sizes["free"], sizes["in_use"], request.requested)
    is_others = others is not None and others.low > in_use
    return write_verdict("others_async" if is_others else "full_card", reason, **sizes)


def _general_reasons(case: OomCase, cause: str) -> Iterator[str]:
    state, failure, total = case.state, case.failure, case.card_total
    if failure.is_compiled and cause not in (Cause.HOST, Cause.BESIDE_THE_POOL):
        yield write_reason("one_block")
    if failure.is_pinned:
        yield write_reason("pinned")
    in_use = case.in_use_bytes or 0
    dominant = find_dominant_size(case.sizes, in_use)
    if dominant is not None:
        size, share = Range.exactly(dominant.size_bytes), dominant.total_bytes / in_use
        yield write_reason("dominant", count=dominant.count, size=size, share=share)
    waste = state.waste
    if waste is not None and cause != Cause.WASTED and waste.low > _NOTABLE * in_use:
        yield write_reason("waste", waste=waste)
    is_pool = case.is_on_card and failure.kind is not FailedAllocator.ASYNC
    is_low = case.is_limited and is_pool and cause != Cause.HELD_BY_OTHERS
    if is_low and total is not None and state.limit is not None:
        yield write_reason("low_limit", share=state.limit.middle / total.middle, total=total)


def _find_missing_lines(case: OomCase) -> Iterator[str]:
    failure, dump = case.failure, case.failure.dump
    if failure.kind not in (FailedAllocator.POOL, FailedAllocator.UNKNOWN):
        return
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
    yield from (write_sentence("missing", name) for name, missing in is_missing.items() if missing)


_OTHERS_SHARE: Final = 0.2  # of a card: less is not worth naming other processes
_CONTEXT_BYTES: Final = 1 << 30  # a process' own context and a desktop may take this much of a card


def judge_component(case: OomCase) -> OomVerdict:
    """Return the verdict on a failure of another component: its title with the figures of the log."""
    failure, cause = case.failure, _find_cause(case)
    parts = ", ".join(_describe_figures(failure.figures))
    title = f"{failure.title}: {parts}." if parts else f"{failure.title}."
    reasons = tuple(_describe_library(case)) if failure.kind is FailedAllocator.LIBRARY else ()
    return OomVerdict(str(cause), title, reasons)


def describe_refusals(refusals: list[RefusalRun]) -> list[str]:
    """Return a sentence about refusals before the failure; none if there were none."""
    if not refusals:
        return []
    count = sum(run.times for run in refusals)
    values = {"count": count, "plural": "s" if count != 1 else ""}
    least = Range.exactly(min(run.last_bytes for run in refusals))
    could = "could be pinned" if refusals[0].is_host else "was free on the card"
    return [write_reason("refusals", least=least, could=could, **values)]


def find_others(total: Range, free: Range, own: Range, request: Range) -> Range | None:
    """Return the bytes of other processes; None if these are not why a request failed on a card."""
    others = (total - free - own).at_least(0)
    if others.middle <= max(_CONTEXT_BYTES, _OTHERS_SHARE * total.middle):
        return None
    fits_alone = own.middle + request.middle <= total.middle - _CONTEXT_BYTES
    return others if fits_alone else None


def _find_cause(case: OomCase) -> Cause:
    failure = case.failure
    if failure.row is not None and failure.row.cause:
        return Cause(failure.row.cause)
    if failure.kind is FailedAllocator.LIBRARY:
        return Cause.BESIDE_THE_POOL
    is_host = failure.memory is OutOf.HOST or (failure.is_killed and failure.figures)
    return Cause.HOST if is_host else Cause.CANNOT_TELL


def _describe_figures(figures: dict[str, Range]) -> Iterator[str]:
    words = {
        "request": "{} requested",
        "free": "{} free",
        "used": "{} in use",
        "limit": "the limit is {}",
        "resident": "the process held {}",
    }
    for name, text in words.items():
        if name in figures:
            yield text.format(format_bytes(figures[name].middle))


def _describe_library(case: OomCase) -> Iterator[str]:
    yield from describe_refusals(case.refusals)
