"""Why a component other than TensorFlow's allocators found no memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from analyzer.model.contract.report.oom_file import OomVerdict
from analyzer.model.ranges import Range
from analyzer.model.units import format_bytes
from analyzer.oom.failure_case import Cause, OomCase
from analyzer.oom.log_records import FailedAllocator, OutOf, RefusalRun, XlaBuffers
from analyzer.oom.log_texts import write_reason

_OTHERS_SHARE: Final = 0.2  # of a card: less is not worth naming other processes
_CONTEXT_BYTES: Final = 1 << 30  # a process' own context and a desktop may take this much of a card
_FRAGMENTED_SHARE: Final = 0.1  # of a card: smaller gaps in a cache are normal


def judge_component(case: OomCase) -> OomVerdict:
    """Return the verdict on a failure of another component: its title with all figures of the log."""
    failure, cause = case.failure, _find_cause(case)
    title = failure.title
    if cause is Cause.FRAGMENTED and failure.memory is OutOf.TPU:
        title = "The TPU's free memory is fragmented"
    parts = ", ".join(_describe_figures(failure.figures, cause))
    title = f"{title}: {parts}." if parts else f"{title}."
    return OomVerdict(str(cause), title, tuple(_find_reasons(case, cause)))


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
    failure, figures = case.failure, case.failure.figures
    if failure.row is not None and failure.row.cause:
        return Cause(failure.row.cause)
    if failure.kind is FailedAllocator.LIBRARY:
        return Cause.BESIDE_THE_POOL
    if failure.memory is OutOf.UNCLEAR:
        return Cause.HOST if failure.is_killed and figures else Cause.CANNOT_TELL
    return Cause.HOST if failure.memory is OutOf.HOST else _judge_card(figures)


def _judge_card(figures: dict[str, Range]) -> Cause:
    """Return the cause on a card or a TPU; the log may lack each figure."""
    names = ("request", "need", "limit", "total", "free", "hole")
    request, need, limit, total, free, hole = map(figures.get, names)
    if need is not None and limit is not None and need.middle > limit.middle:
        return Cause.LARGER_THAN_LIMIT
    if request is None:
        return Cause.CANNOT_TELL
    if total is not None and request.low > total.high:
        return Cause.LARGER_THAN_CARD
    if limit is not None and request.low > limit.high:
        return Cause.LARGER_THAN_LIMIT
    used, unallocated = _sum(figures, "used", "others", "unallocated"), _find_unallocated(figures)
    if limit is not None and used is not None and used.high + request.high > limit.low:
        return Cause.FULL
    if free is not None and hole is not None and hole.high < request.low <= free.high:
        return Cause.FRAGMENTED
    if free is None or free.low >= request.high:
        return Cause.CANNOT_TELL
    least = max(request.high, int(_FRAGMENTED_SHARE * total.middle) if total is not None else 0)
    if unallocated is not None and unallocated.low >= least:
        return Cause.FRAGMENTED
    return Cause.HELD_BY_OTHERS if _find_others(figures) is not None else Cause.FULL


def _sum(figures: dict[str, Range], *names: str) -> Range | None:
    known = [figures[name] for name in names if name in figures]
    return sum(known[1:], known[0]) if known else None


def _find_unallocated(figures: dict[str, Range]) -> Range | None:
    """Return the bytes that PyTorch's cache holds without a tensor in them."""
    if "reserved" in figures and "used" in figures:
        return (figures["reserved"] - figures["used"]).at_least(0)
    return figures.get("unallocated")


def _find_others(figures: dict[str, Range]) -> Range | None:
    total, free, request = map(figures.get, ("total", "free", "request"))
    own = figures.get("own") or figures.get("reserved") or _sum(figures, "used", "unallocated")
    if total is None or free is None or own is None or request is None:
        return None
    return find_others(total, free, own, request)


def _describe_figures(figures: dict[str, Range], cause: Cause) -> Iterator[str]:
    size = {name: format_bytes(figure.middle) for name, figure in figures.items()}
    size["request"] = size.get("exact_request", size.get("request", ""))
    is_larger = cause is Cause.LARGER_THAN_CARD
    total = "" if is_larger else size.get("total")
    if "need" in size and "limit" in size:
        yield f"{size['need']} needed, {size['limit']} available"
        return
    if size["request"]:
        more = f", more than the card's {size['total']}" if is_larger else ""
        yield f"{size['request']} requested{more}"
    if "free" in size:
        yield f"{size['free']} of {total} free" if total else f"{size['free']} free"
    elif total:
        yield f"the card has {total}"
    if "hole" in size and cause is Cause.FRAGMENTED:
        yield f"{size['hole']} in the largest free block"
    if "used" in size:
        more = f" and {size['others']} of other allocations" if "others" in size else ""
        yield f"{size['used']}{more if 'limit' in size else ''} in use"
    if "limit" in size:
        yield f"{size['limit']} allowed" if "used" in size else f"the limit is {size['limit']}"
    if "resident" in size:
        yield f"the process held {size['resident']}"


def _find_reasons(case: OomCase, cause: Cause) -> Iterator[str]:
    failure, figures, card = case.failure, case.failure.figures, case.card
    is_foreign = failure.kind is FailedAllocator.OTHER and failure.memory is OutOf.CARD
    if is_foreign:
        yield write_reason("foreign", component=failure.component)
    others, unallocated = _find_others(figures), _find_unallocated(figures)
    if cause is Cause.HELD_BY_OTHERS and others is not None:
        yield write_reason("others", others=others, total=figures["total"])
    if failure.is_warning:
        yield write_reason("warned_killed" if failure.is_killed else "warned")
    if cause is Cause.FRAGMENTED and unallocated is not None:
        yield write_reason("unallocated", unallocated=unallocated)
    if is_foreign and cause is Cause.CANNOT_TELL and {"free", "request"} <= figures.keys():
        yield write_reason("enough_free", free=figures["free"])
    if failure.kind is FailedAllocator.LIBRARY:
        yield from describe_refusals(case.refusals)
        if card is not None and card.total is not None and card.free is not None:
            yield write_reason("free_at_start", free=card.free, total=card.total)
    if failure.memory is OutOf.TPU and failure.xla is not None:
        yield from _describe_program(failure.xla)


def _describe_program(plan: XlaBuffers) -> Iterator[str]:
    """Yield the parts of a TPU's program, and its largest allocation with its padding."""
    parts = [f"{name} {format_bytes(size.middle)}" for name, size in plan.stats.items()]
    if parts:
        yield write_reason("tpu_parts", parts=", ".join(parts))
    buffer = max(plan.buffers, key=lambda each: each.size.middle, default=None)
    if buffer is not None and buffer.size.middle:
        name = buffer.operator or buffer.label or buffer.shape
        yield write_reason("tpu_largest", size=buffer.size, op=name[:120])
        if buffer.padding is not None:
            yield write_reason("tpu_padding", padding=buffer.padding)
