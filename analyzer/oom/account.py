"""A log's failures to its document, ``OomDocument``."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from analyzer.model.contract.report.oom_file import (
    AskedFor,
    OomAdvice,
    OomBuffer,
    OomCard,
    OomDocument,
    OomFailure,
    OomHolder,
    OomPlan,
    OomRefusals,
    OomSize,
    OomSurvived,
    OomVerdict,
)
from analyzer.model.units import format_bytes, times
from analyzer.oom.amounts import Amount, rounded_up
from analyzer.oom.asked import asked_bytes, by_shape_alone
from analyzer.oom.crowds import SizeCrowd, crowds_of, stories
from analyzer.oom.failure_case import Judged, OomCase, catalogue_total, size_words
from analyzer.oom.judged import judge_failure
from analyzer.oom.log_records import DriverRefusal, Heard, Mishap, MishapKind, SeenCard
from analyzer.oom.occupied import occupied
from analyzer.oom.remedies import remedies_of
from analyzer.oom.typesizes import python_word

_MOST_SIZES: Final = 200
_LONGEST: Final = 2000


def build_account(heard: Heard, log: str) -> tuple[OomDocument, list[OomCase]]:
    """Work out what a log says.

    Args:
        heard: What was read.
        log: What to call the log.

    Returns:
        The document, and each failure's case in the same order, for drawing.
    """
    cases = [_case(heard, mishap) for mishap in heard.mishaps]
    judged = [judge_failure(case) for case in cases]
    failures = tuple(_failure(case, found) for case, found in zip(cases, judged, strict=True))
    document = OomDocument(
        log=log,
        lines=heard.lines,
        headline=_headline(heard, failures),
        failures=failures,
        failures_not_shown=heard.more_mishaps,
        refusals=tuple(
            OomRefusals(
                each.line, each.first_bytes, each.last_bytes, each.times, each.code, each.is_host
            )
            for each in heard.refusals
        ),
        survived=tuple(
            OomSurvived(each.allocator, each.times, each.largest.middle) for each in heard.survived
        ),
        notes=tuple(_notes(heard)),
    )
    return document, cases


def to_plain(document: OomDocument) -> dict[str, Any]:
    """Return the document as plain values."""
    plain: dict[str, Any] = msgspec.to_builtins(document)
    return plain


def _case(heard: Heard, mishap: Mishap) -> OomCase:
    card = _card_of(heard, mishap)
    asked = asked_bytes(mishap)
    rounded = asked.rounded.low if asked is not None and asked.rounded.is_exact else None
    if mishap.kind is MishapKind.ASYNC and asked is not None:
        rounded = asked.requested.low
    return OomCase(
        mishap=mishap,
        asked=asked,
        state=occupied(mishap, card),
        card=card,
        crowds=crowds_of(mishap, rounded),
        refusals=_refusals_before(heard, mishap),
    )


def _refusals_before(heard: Heard, mishap: Mishap) -> list[DriverRefusal]:
    """Return the driver's refusals that a failure came of: of pinned memory where it wanted that."""
    if "host_bfc" not in mishap.allocator.lower():
        return [heard.refusals[place] for place in mishap.refused]
    return [
        run
        for run in heard.refusals
        if run.is_host and run.line <= mishap.line and run.tag == mishap.tag
    ]


def _card_of(heard: Heard, mishap: Mishap) -> SeenCard | None:
    """Return the card that a failure's allocator or device names; the only one where it names none."""
    names = (mishap.allocator, mishap.device.rsplit("/", 1)[-1])
    if any("host" in name.lower() or "cpu" in name.lower() for name in names):
        return None
    digits = "".join(c for name in names[:1] for c in name if c.isdigit())
    if not digits and ":" in names[1]:
        digits = names[1].rpartition(":")[2]
    cards = [card for card in heard.cards if card.tag == mishap.tag] or heard.cards
    if digits.isdigit():
        for card in cards:
            if card.index == int(digits):
                return card
    return cards[0] if len(cards) == 1 and not digits else None


def _failure(case: OomCase, judged: Judged) -> OomFailure:
    mishap, state = case.mishap, case.state
    sizes = {
        "limit_bytes": state.limit,
        "in_use_bytes": state.in_use,
        "peak_in_use_bytes": state.peak,
        "pool_bytes": state.pool,
        "free_bytes": state.free,
        "largest_hole_bytes": state.largest_hole,
        "room_bytes": state.room,
        "left_bytes": case.left,
        "waste_bytes": state.waste,
    }
    in_use = case.in_use_bytes
    return OomFailure(
        line=mishap.line,
        told=max(mishap.told, 1),
        process=mishap.tag,
        kind=str(mishap.kind),
        allocator=mishap.allocator or mishap.dump.allocator or None,
        device=mishap.device or None,
        op=mishap.op or mishap.requested_by or mishap.op_type or None,
        op_type=mishap.op_type or None,
        requested_by=mishap.requested_by or None,
        kernel=mishap.kernel or None,
        source=mishap.where or None,
        asked=_asked(case),
        limit_bytes=_shown(state.limit),
        in_use_bytes=_shown(state.in_use),
        peak_in_use_bytes=_shown(state.peak),
        pool_bytes=_shown(state.pool),
        free_bytes=_shown(state.free),
        largest_hole_bytes=_shown(state.largest_hole),
        room_bytes=_shown(state.room),
        left_bytes=_shown(case.left),
        waste_bytes=_shown(state.waste),
        largest_hole_basis=state.basis or None,
        holes=state.holes,
        regions=state.regions,
        ranges={
            name: (size.low, size.high)
            for name, size in sizes.items()
            if size is not None and not size.is_exact
        },
        card=_card_account(case),
        verdict=OomVerdict(
            str(judged.cause), judged.title, tuple(judged.reasons), tuple(judged.missing)
        ),
        holders=tuple(_holders(case)),
        stories=tuple(stories(case.crowds, in_use)),
        sizes=tuple(_size(crowd) for crowd in case.crowds[:_MOST_SIZES]),
        remedies=tuple(OomAdvice(each.action, each.because) for each in remedies_of(case, judged)),
        compiled=_plan_account(mishap),
        tensors_by_node=tuple(OomHolder(node, size.middle) for node, size in mishap.usage),
        words=mishap.words[:_LONGEST],
    )


def _shown(size: Amount | None) -> int | None:
    return None if size is None else size.middle


def _size(crowd: SizeCrowd) -> OomSize:
    return OomSize(crowd.size_bytes, crowd.count, crowd.total_bytes, crowd.is_asked)


def _asked(case: OomCase) -> AskedFor | None:
    asked, wanted = case.asked, case.mishap.wanted
    bare = by_shape_alone(wanted) if asked is None else None
    if bare is not None:
        return AskedFor(
            requested_bytes=4 * bare.low,
            rounded_bytes=rounded_up(4 * bare.low),
            is_exact=False,
            low_bytes=bare.low,
            high_bytes=bare.high,
            basis="the shape, at 4 bytes an element: its type the log does not say",
            shape=wanted.shape,
        )
    if asked is None:
        return None
    requested = asked.requested
    is_near = requested.high - requested.low < 256
    dtype = asked.dtype or wanted.dtype
    return AskedFor(
        requested_bytes=requested.high if is_near else requested.middle,
        rounded_bytes=asked.rounded.middle if asked.rounded.is_exact else asked.rounded.high,
        is_exact=requested.is_exact,
        low_bytes=requested.low,
        high_bytes=requested.high,
        basis=asked.basis,
        shape=wanted.shape,
        dtype=python_word(dtype) or None,
    )


def _card_account(case: OomCase) -> OomCard | None:
    card, mishap = case.card, case.mishap
    if card is None and mishap.card_total is None:
        return None
    total = case.card_total
    is_own = mishap.card_total is not None or (card is not None and card.total is not None)
    return OomCard(
        name=card.name or None if card is not None else None,
        total_bytes=None if total is None else total.middle,
        free_at_start_bytes=card.free.middle
        if card is not None and card.free is not None
        else None,
        free_bytes=mishap.card_free,
        is_from_catalogue=not is_own and total is not None,
    )


def _holders(case: OomCase) -> list[OomHolder]:
    """Say who holds what, from the tensors to the card's rest; the sizes add up as far as they go."""
    state, mishap = case.state, case.mishap
    rows: list[tuple[str, Amount | None]] = []
    waste = state.waste if state.waste is not None and state.waste.middle else None
    if state.in_use is not None:
        tensors = state.in_use if waste is None else state.in_use.less(waste)
        rows.append(("tensors", tensors))
        rows.append(("unused inside their chunks", waste))
    rows.append(("free in the pool", state.free))
    rows.append(("under the limit, not taken", state.room))
    total = case.card_total
    if mishap.card_free is not None and mishap.card_total is not None:
        in_use = case.in_use_bytes or 0
        rest = max(mishap.card_total - mishap.card_free - in_use, 0)
        rows.append(("free on the card", Amount(mishap.card_free, mishap.card_free)))
        rows.append(("context, pool's reserve, other processes", Amount(rest, rest)))
    elif total is not None and state.limit is not None and case.is_on_card:
        rows.append(("the card beyond the limit", total.less(state.limit)))
    return [OomHolder(who, size.middle) for who, size in rows if size is not None and size.middle]


def _plan_account(mishap: Mishap) -> OomPlan | None:
    if mishap.xla is None:
        return None
    return OomPlan(
        {name: size.middle for name, size in mishap.xla.stats.items()},
        tuple(
            OomBuffer(each.size.middle, each.operator, each.label, each.shape)
            for each in mishap.xla.buffers
        ),
    )


def _headline(heard: Heard, failures: tuple[OomFailure, ...]) -> str:
    count = len(failures) + heard.more_mishaps
    if count:
        first = failures[0]
        many = "" if count == 1 else f" The first of {count:,} failures."
        return f"{first.verdict.title}{many}"
    if any(not run.is_host for run in heard.refusals):
        runs = [run for run in heard.refusals if not run.is_host]
        return _refused_words(runs, heard.cards)
    if heard.refusals:
        largest = max(run.first_bytes for run in heard.refusals)
        return (
            "No tensor failed in this log; pinned memory of the machine was refused, up to "
            f"{format_bytes(largest)}, which TensorFlow usually survives."
        )
    if heard.survived:
        return "No out-of-memory failure: the warnings are of requests that TensorFlow went on without."
    return "No out-of-memory failure in this log."


def _refused_words(runs: list[DriverRefusal], cards: list[SeenCard]) -> str:
    """Tell of a log in which the driver refused the pool, and no tensor failed."""
    largest = max(run.first_bytes for run in runs)
    least = min(run.last_bytes for run in runs)
    refused = sum(run.times for run in runs)
    sizes = format_bytes(largest)
    if least != largest:
        sizes += f" down to {format_bytes(least)}"
    words = (
        f"No tensor failed in this log, but the driver refused the pool {times(refused)}: {sizes}."
    )
    card = next((card for card in cards if card.total is not None and card.free is not None), None)
    if card is not None and card.total is not None and card.free is not None:
        words += (
            f" When TensorFlow started, {size_words(card.free)} of the card's "
            f"{size_words(card.total)} were free: other processes held the rest."
        )
        return words
    for card in cards:
        total = card.total or catalogue_total(card.name)
        if card.limit is not None and total is not None and card.limit.high < 0.8 * total.low:
            words += (
                f" TensorFlow's limit was {size_words(card.limit)} of the card's "
                f"{format_bytes(total.middle)}: a limit was set, or other processes held the rest."
            )
            break
    return words


def _notes(heard: Heard) -> list[str]:
    notes: list[str] = []
    for each in heard.survived:
        notes.append(
            f"{each.allocator or 'An allocator'} warned {times(each.times)} of a request it could not "
            f"serve ({size_words(each.largest)} at most) and the caller went on without: that is no "
            "failure, and at most ten are printed."
        )
    if heard.garbage:
        notes.append(
            f"The pool gave regions back {times(heard.garbage)} to make a larger one: it "
            "grows on demand."
        )
    count, largest = heard.large_host
    if count:
        notes.append(
            f"The host made {count} allocations of more than a tenth of its memory, up to "
            f"{format_bytes(largest)}; at most five are printed."
        )
    for budget in heard.budgets[:4]:
        notes.append(
            f"XLA could not bring a module under {budget.budget.middle:,} bytes by computing values "
            f"again; it reached {format_bytes(budget.reached.middle)}."
        )
    pinned = [run for run in heard.refusals if run.is_host]
    if pinned and heard.mishaps:
        notes.append(
            f"Pinned memory of the machine was refused {times(len(pinned))}, up to "
            f"{format_bytes(max(run.first_bytes for run in pinned))}."
        )
    if heard.no_memory_words:
        notes.append(
            f"{times(heard.no_memory_words).capitalize()} a line says that something is exhausted that "
            "is not memory (disk space, a message's size, a quota)."
        )
    return notes
