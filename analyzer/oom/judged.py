"""Why a request failed: one verdict with its figures, or what is missing to give one.

The rules follow how TensorFlow's allocator serves a request (``bfc_allocator.cc``): it looks for a
free chunk that is as large; where there is none it takes a new region, if the limit leaves room for
one of the request's size; where the driver refuses that, it tries regions a tenth smaller down to
the request; then it gives up. So a request fails because the limit has no room, because what is
free lies in pieces, or because the driver has nothing to give.
"""

from __future__ import annotations

from typing import Final

from analyzer.model.units import format_bytes
from analyzer.oom.amounts import Amount, exactly
from analyzer.oom.asked import by_shape_alone
from analyzer.oom.crowds import growing_crowd
from analyzer.oom.failure_case import Cause, Judged, OomCase, size_words
from analyzer.oom.log_records import DriverRefusal, MishapKind

CONTEXT_BYTES: Final = 1 << 30
"""What is missing of a card at the start and may be the process' own context and the desktop's."""

_NOTABLE: Final = 0.05
"""Share of what is in use from which waste is worth a word."""


_BACK_OFF: Final = 0.9
"""What a region that the driver refused is shrunk by, as long as the request fits (``Extend``)."""

_NEARLY_FULL: Final = 3
"""Marks of 100 that may be free in a pool that is called full, where its size is not known."""


def judge_failure(case: OomCase) -> Judged:
    """Give the verdict on one failure."""
    kind = case.mishap.kind
    if kind is MishapKind.LIBRARY:
        found = _beside(case)
    elif kind is MishapKind.HOST:
        found = _host(case)
    elif kind is MishapKind.ASYNC:
        found = _asynchronous(case)
    else:
        found = _pool(case)
    _add_reasons(case, found)
    found.missing = missing_lines(case)
    return found


def _pool(case: OomCase) -> Judged:
    asked = case.asked
    state = case.state
    if asked is None:
        title = "What was asked for is not in the log."
        if (bare := by_shape_alone(case.mishap.wanted)) is not None:
            size = format_bytes(4 * bare.low)
            title = (
                f"A tensor of {size} was asked for if its elements take 4 bytes: the log gives its "
                "shape and not its type."
            )
        if "Dst tensor" in case.mishap.words or "Failed copying" in case.mishap.words:
            title = (
                "A tensor could not be copied to the device: no memory was found for it there, and how "
                "much the log does not say."
            )
        if state.in_use is not None and state.limit is not None:
            title = (
                f"What was asked for is not in the log; {size_words(state.in_use)} of "
                f"{size_words(state.limit)} were in use."
            )
        return Judged(Cause.CANNOT_TELL, title)
    want = asked.rounded
    shown = size_words(asked.rounded if not asked.requested.is_exact else asked.requested)
    larger = _larger_than_all(case, want, shown)
    if larger is not None:
        return larger
    if state.room is not None and state.room.low >= want.high:
        return _driver(case, shown)
    free = state.free
    if free is None and case.left is not None:
        return _by_limit_alone(case, want, shown)
    if free is None:
        return _by_map(case, want, shown)
    together = free + (state.room or exactly(0))
    others = _others(case, want)
    if state.room is None and state.pool is not None and state.pool.high < want.low:
        title = (
            f"{shown} were asked for, more than the pool had taken so far ({size_words(state.pool)}); "
            "up to which limit it may grow the log does not say."
        )
        return others or Judged(Cause.CANNOT_TELL, title)
    if together.middle < want.middle:
        return others or _full(case, want, shown, together)
    return _fragmented(case, shown, free, want)


def _larger_than_all(case: OomCase, want: Amount, shown: str) -> Judged | None:
    limit, total = case.state.limit, case.card_total
    what = "tensor" if not case.mishap.is_compiled else "block"
    if total is not None and want.low > total.high and case.is_on_card:
        title = f"One {what} of {shown} is larger than the whole card ({size_words(total)})."
        return Judged(Cause.LARGER_THAN_CARD, title)
    if limit is None or want.low <= limit.high:
        return None
    others = _others(case, want)
    if others is not None:
        return others
    title = (
        f"One {what} of {shown} is larger than all that the allocator may take "
        f"({size_words(limit)})."
    )
    return Judged(Cause.LARGER_THAN_LIMIT, title)


def _others(case: OomCase, want: Amount) -> Judged | None:
    """Judge that other processes hold the card, where the log's start says that they held it."""
    card, state = case.card, case.state
    if card is None or card.total is None or card.free is None or not case.is_on_card:
        return None
    held = card.total.less(card.free)
    in_use = state.in_use.middle if state.in_use is not None else 0
    if held.middle <= CONTEXT_BYTES or held.middle < 0.2 * card.total.middle:
        return None
    if in_use + want.middle > card.total.middle - CONTEXT_BYTES:
        return None
    title = (
        f"Other processes held {size_words(held)} of the card's {size_words(card.total)} when "
        f"TensorFlow started; {size_words(card.free)} were left."
    )
    return Judged(Cause.HELD_BY_OTHERS, title)


def _driver(case: OomCase, shown: str) -> Judged:
    state = case.state
    assert state.room is not None
    giver = "driver" if case.is_on_card else "machine"
    title = (
        f"The limit left room for {size_words(state.room)} more, {shown} were asked for, and the "
        f"{giver} did not give a region for them."
    )
    found = Judged(Cause.DRIVER_REFUSED, title)
    if case.refusals:
        found.reasons.append(_refusals_words(case.refusals))
    total = case.card_total
    if total is not None and state.limit is not None and state.limit.low > total.high:
        found.reasons.append(
            f"The limit of {size_words(state.limit)} is more than the card has ({size_words(total)})."
        )
    elif case.is_on_card:
        found.reasons.append(
            "The rest of the card is held by other processes, or by this one outside the pool "
            "(context, libraries)."
        )
    return found


def _refusals_words(refusals: list[DriverRefusal]) -> str:
    count = sum(run.times for run in refusals)
    least = min(run.last_bytes for run in refusals)
    return (
        f"The driver refused {count:,} request{'s' * (count != 1)} before, down to "
        f"{format_bytes(least)}: less than that "
        f"{'could be pinned' if refusals[0].is_host else 'was left of the card'}."
    )


def _by_limit_alone(case: OomCase, want: Amount, shown: str) -> Judged:
    """Judge by the limit and what is in use, where the log says nothing of the free chunks."""
    left = case.left
    assert left is not None
    if left.middle < want.middle:
        return _others(case, want) or _full(case, want, shown, left)
    if case.refusals:
        title = (
            f"{size_words(left)} of the limit were not in use and {shown} were asked for: the driver "
            "refused to give more."
        )
        return Judged(Cause.DRIVER_REFUSED, title)
    title = (
        f"{size_words(left)} of the limit were not in use and {shown} were asked for: what was free "
        "lay in pieces, or the driver did not give it."
    )
    return Judged(Cause.FRAGMENTED, title)


def _by_map(case: OomCase, want: Amount, shown: str) -> Judged:
    """Judge by the map of 100 marks, which is printed as a warning where the dump is not."""
    if case.is_pinned and case.refusals:
        title = f"{shown} of pinned memory were asked for, and the machine gave no region for them."
        return Judged(Cause.DRIVER_REFUSED, title, [_refusals_words(case.refusals)])
    free = case.mishap.dump.map.count("_")
    if case.mishap.dump.map and free <= _NEARLY_FULL:
        title = f"The pool was {100 - free} % full when {shown} were asked for."
        return Judged(Cause.FULL, title)
    if case.mishap.dump.map:
        longest = max(len(run) for run in case.mishap.dump.map.replace("x", "*").split("*"))
        title = (
            f"{shown} were asked for while {free} % of the pool was free, about {longest} % in one "
            "piece; how large the pool is the log does not say."
        )
        return Judged(Cause.CANNOT_TELL, title)
    if any(want.low <= run.last_bytes <= want.high / _BACK_OFF + 256 for run in case.refusals):
        title = f"{shown} were asked for, and the driver refused a region of that size."
        return Judged(Cause.DRIVER_REFUSED, title, [_refusals_words(case.refusals)])
    title = f"{shown} were asked for; how much was in use, and of how much, the log does not say."
    return Judged(Cause.CANNOT_TELL, title[0].upper() + title[1:])


def _full(case: OomCase, want: Amount, shown: str, left: Amount) -> Judged:
    state = case.state
    short = want.less(left)
    waste = state.waste
    held = size_words(state.in_use) if state.in_use is not None else "the pool"
    limit = f" of {size_words(state.limit)}" if state.limit is not None else ""
    least = max(want.high - left.middle, int(_NOTABLE * (case.in_use_bytes or 0)), 1)
    if waste is not None and waste.low >= least:
        title = (
            f"The pool is full, but {size_words(waste)} of it lie unused inside chunks larger than "
            f"their tensors; {shown} were asked for and {size_words(left)} were free."
        )
        return Judged(Cause.WASTED, title)
    title = (
        f"Too little memory: {held}{limit} in use, {shown} asked for, {size_words(left)} left: "
        f"{size_words(short)} too little."
    )
    return Judged(Cause.FULL, title)


def _fragmented(case: OomCase, shown: str, free: Amount, want: Amount) -> Judged:
    state = case.state
    hole = state.largest_hole
    piece = "in no piece as large" if hole is None else f"the largest piece {size_words(hole)}"
    title = f"Fragmentation: {shown} were asked for and {size_words(free)} were free, {piece}."
    found = Judged(Cause.FRAGMENTED, title)
    if free.middle < want.middle and state.room is not None:
        found.title = (
            f"{shown} were asked for; {size_words(free)} were free in the pool and the limit left "
            f"{size_words(state.room)} more, enough together and too little each."
        )
    if state.limit is not None and state.in_use is not None:
        share = state.in_use.middle / max(state.limit.middle, 1)
        if share > 1 - 2 * _NOTABLE:
            found.reasons.append(f"Little is left in any case: {share:.0%} of the limit is in use.")
    if state.holes is not None and state.is_whole:
        found.reasons.append(
            f"{size_words(free)} are free in {state.holes:,} pieces"
            + (f" and {state.regions:,} regions." if (state.regions or 0) > 1 else ".")
        )
    return found


def _asynchronous(case: OomCase) -> Judged:
    mishap = case.mishap
    shown = size_words(case.asked.requested) if case.asked else "memory"
    if mishap.card_free is None or case.asked is None:
        return Judged(
            Cause.CANNOT_TELL,
            f"The driver refused {shown}; what the card had left it does not say.",
        )
    total, free = mishap.card_total or 0, mishap.card_free
    in_use = case.in_use_bytes or 0
    if case.asked.requested.low > total > 0:
        title = f"One request of {shown} is larger than the whole card ({format_bytes(total)})."
        return Judged(Cause.LARGER_THAN_CARD, title)
    rest = max(total - free - in_use, 0)
    reason = (
        f"Of the card's {format_bytes(total)}, {format_bytes(in_use)} are this process' tensors, "
        f"{format_bytes(free)} are free and {format_bytes(rest)} are its context, what its pool keeps, "
        "or other processes'."
    )
    if free >= case.asked.requested.high:
        title = (
            f"CUDA reported {format_bytes(free)} of the card free and refused {shown}: free memory in "
            "pieces, or a limit on the pool."
        )
        return Judged(Cause.FRAGMENTED, title, [reason])
    if rest > CONTEXT_BYTES and rest > in_use:
        title = (
            f"Most of the card is not this process' tensors: {format_bytes(rest)} of "
            f"{format_bytes(total)}; {format_bytes(free)} were left for {shown}."
        )
        return Judged(Cause.HELD_BY_OTHERS, title, [reason])
    title = (
        f"The card is full: {format_bytes(in_use)} of tensors, {format_bytes(free)} left of "
        f"{format_bytes(total)}, {shown} asked for."
    )
    return Judged(Cause.FULL, title, [reason])


def _beside(case: OomCase) -> Judged:
    found = Judged(
        Cause.BESIDE_THE_POOL,
        "A CUDA library found no memory beside TensorFlow's pool, or could not start for another "
        "reason: its error code does not tell the two apart.",
    )
    if any(
        word in case.mishap.words for word in ("ALLOC_FAILED", "OUT_OF_MEMORY", "out of memory")
    ):
        found.title = "A CUDA library found no memory on the card beside TensorFlow's pool."
    if case.refusals:
        found.reasons.append(_refusals_words(case.refusals))
    card = case.card
    if card is not None and card.total is not None and card.free is not None:
        found.reasons.append(
            f"When TensorFlow started, {size_words(card.free)} of the card's "
            f"{size_words(card.total)} were free."
        )
    return found


def _host(case: OomCase) -> Judged:
    mishap = case.mishap
    title = "The machine's own memory ran out, not a card's."
    if mishap.resident_bytes is not None:
        title = (
            f"The system ended the process when the machine's memory ran out: it held "
            f"{format_bytes(mishap.resident_bytes)}."
        )
        if "cgroup" in mishap.words:
            title = (
                "The system ended the process at its container's memory limit: it held "
                f"{format_bytes(mishap.resident_bytes)}."
            )
    elif case.asked is not None:
        title = f"The machine's own memory had no room for {size_words(case.asked.requested)}."
    elif "Killed" in mishap.words or "137" in mishap.words or "SIGKILL" in mishap.words:
        title = (
            "The process was ended from outside, as the system does when the machine's memory "
            "runs out."
        )
        return Judged(Cause.CANNOT_TELL, title)
    return Judged(Cause.HOST, title)


def _add_reasons(case: OomCase, found: Judged) -> None:
    """Add what holds for any verdict: what fills the pool, and what the limit leaves of the card."""
    state, mishap = case.state, case.mishap
    if mishap.is_compiled and found.cause not in (Cause.HOST, Cause.BESIDE_THE_POOL):
        found.reasons.append(
            "XLA asks for a compiled step's temporary buffers in one block, which needs one hole."
        )
    if case.is_pinned:
        found.reasons.append(
            "This is memory of the machine, pinned for copies to a card, and not the card's own."
        )
    many = growing_crowd(case.crowds, case.in_use_bytes)
    if many is not None:
        found.reasons.append(
            f"{many.count:,} chunks of {format_bytes(many.size_bytes)} fill "
            f"{many.total_bytes / (case.in_use_bytes or 1):.0%} of what is in use, as where a loop or a "
            "list keeps every step's result; whether they grow, one moment cannot tell."
        )
    waste, is_named = state.waste, found.cause is Cause.WASTED
    if waste is not None and not is_named and waste.low > _NOTABLE * (case.in_use_bytes or 0):
        found.reasons.append(
            f"{size_words(waste)} of what is in use lie inside chunks larger than their tensors."
        )
    total = case.card_total
    is_small = total is not None and state.limit is not None and state.limit.high < 0.8 * total.low
    is_pool = case.is_on_card and mishap.kind is not MishapKind.ASYNC
    if is_small and is_pool and found.cause is not Cause.HELD_BY_OTHERS:
        assert total is not None
        assert state.limit is not None
        found.reasons.append(
            f"The limit is {state.limit.middle / total.middle:.0%} of the card's {size_words(total)}: a "
            "limit was set, or other processes held the card when TensorFlow started."
        )
    if state.is_contradicted:
        found.reasons.append(
            "The chunk list does not add up to what the dump states, as where two devices wrote at "
            "once; nothing was taken from it."
        )


def missing_lines(case: OomCase) -> list[str]:
    """Name the lines that the log lacks and that would have told more."""
    mishap, dump = case.mishap, case.mishap.dump
    if mishap.kind not in (MishapKind.POOL, MishapKind.UNKNOWN):
        return []
    missing: list[str] = []
    if not mishap.is_failure_line_seen:
        missing.append('the allocator\'s line "ran out of memory trying to allocate" (level W)')
    if case.asked is not None and mishap.wanted.shape is None and not mishap.has_text:
        missing.append('the error\'s text "OOM when allocating tensor with shape[...]"')
    if not dump.stats and dump.limit is None:
        missing.append('the block "Stats:" with Limit and InUse (level I)')
    if not dump.pieces:
        missing.append('the chunks "InUse at" and "Free at" (level I)')
    elif not case.state.is_whole:
        missing.append("part of the chunk list: it is cut, or mixed with another's")
    if missing and not dump.stats and not dump.pieces and mishap.is_failure_line_seen:
        missing.append("lines of level I, which TF_CPP_MIN_LOG_LEVEL=0 keeps")
    return missing
