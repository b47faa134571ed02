"""The largest batch on every card of the catalogue.

The graph depends on the card's compute capability only: TensorFlow's layout optimizer asks for tensor
cores (7.0) and for TF32 (8.0; ``generic_layout_optimizer.cc``). So one card of each kind is captured, at
sizes near the limits of the smallest, the middle and the largest card, and the answers of all cards are
interpolated between them. Graph rewrites near the limit of one card are not seen.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from msgspec.structs import replace as replace_fields

from analyzer.capture.process.launch import Progress
from analyzer.cards import Gpu, all_gpus, memory_limit
from analyzer.fitting.estimate_at_size import SizeEstimates, StepAccess, access_target
from analyzer.fitting.fit_answer import CardAnswer, FitAnswer
from analyzer.fitting.fit_target import (
    FitQuestion,
    describe_card,
    describe_sizes,
    find_most,
    find_safe_size,
)
from analyzer.fitting.size_search import SizeCurve, SizeSearch
from analyzer.model.contract.capture_request import CaptureOptions, TargetSpec


def fit_all_cards(
    spec: TargetSpec, options: CaptureOptions, question: FitQuestion, progress: Progress
) -> FitAnswer:
    """Find the largest batch on each card, or on each one with a price; nothing is run."""

    def kind_of(gpu: Gpu) -> int:
        return min(gpu.compute_capability[0], 8)

    cards = [gpu for gpu in all_gpus() if not gpu.is_amd]
    catalogue = sorted(cards, key=lambda gpu: (kind_of(gpu), memory_limit(gpu).bytes, gpu.id))
    kinds = [[gpu] for gpu in question.prices]  # few, each with its own rewrites near its limit
    kinds = kinds or [list(cards) for _, cards in groupby(catalogue, kind_of)]
    rows: list[CardAnswer] = []
    with access_target(spec) as access:
        for number, cards in enumerate(kinds):

            def report(stage: str, share: float, number: int = number) -> None:
                progress(stage, (number + share) / len(kinds))

            answer, curve = _fit_kind(access, options, question, cards, report)
            for gpu in cards:
                limit = memory_limit(gpu)
                largest = answer.largest if len(cards) == 1 else curve.size_at(limit.bytes)
                safe = min(find_safe_size(curve, limit), largest)
                wanted = None if question.wanted is None else question.wanted <= largest
                most = max(find_most(curve, limit), largest)
                row = describe_card(gpu, largest, safe, wanted, most)
                rows.append(replace_fields(row, price=question.prices.get(gpu)))
    return _combine(answer, rows, question.wanted)


def _fit_kind(
    access: StepAccess,
    options: CaptureOptions,
    question: FitQuestion,
    cards: list[Gpu],
    report: Progress,
) -> tuple[FitAnswer, SizeCurve]:
    """Return the answer for the middle one of some cards, and a curve for all of them."""
    middle = cards[len(cards) // 2]
    chosen, limit = replace(options, gpu=middle.id), memory_limit(middle)
    own_access = replace(access, folder=access.folder / middle.id)
    estimates = SizeEstimates(own_access, chosen, threads=question.threads)
    search = SizeSearch(estimates, limit, options.open_batch_size, runs_follow=True, report=report)
    found = search.find()
    for gpu in () if len(cards) == 1 else (cards[-1], cards[0]):
        search.estimate(max(found.curve.size_at(memory_limit(gpu).bytes), 1))
    return describe_sizes(access.name, chosen, found, ("card", limit), question), found.curve


def _combine(answer: FitAnswer, rows: list[CardAnswer], wanted: int | None) -> FitAnswer:
    """Return the answer for one card as the answer for all cards."""
    rows.sort(key=lambda row: (row.limit_bytes, row.id))
    limits = [row.limit_bytes for row in rows]
    sizes = [row.largest or 0 for row in rows]
    headline = (
        f"By estimate, batch {min(sizes):,} fits the smallest card ({rows[0].id}) and batch "
        f"{max(sizes):,} the largest ({rows[-1].id})."
    )
    cheapest = note = ""
    if rows[0].price is not None:
        rows.sort(key=lambda row: ((row.largest or 0) < (wanted or 1), row.price))
        if wanted is not None:
            cheapest = rows[0].id if rows[0].holds_wanted else ""
            headline = _state_cheapest(rows, wanted)
    elif len(rows) > 1:
        note = " --gpu NAME estimates one card near its own limit, and can run the result."
    return replace_fields(
        answer,
        cards=tuple(rows),
        cheapest=cheapest,
        headline=headline,
        card="",
        card_name="",
        limit_of="cards",
        limit_bytes=limits[-1],
        limit_low_bytes=limits[0],
        limit_high_bytes=limits[-1],
        largest=max(sizes),
        failing=None,
        safe=max(row.safe or 0 for row in rows),
        most=None,
        notes=(f"The curve is for {answer.card_name}.{note}", *answer.notes),
        wanted_fits=None if wanted is None else any(row.holds_wanted for row in rows),
    )


def _state_cheapest(rows: list[CardAnswer], wanted: int) -> str:
    """Return a sentence about the cheapest card for a batch; the cards that fit come first, by price."""
    first = rows[0]
    if not first.holds_wanted:
        return f"By estimate, batch {wanted} fits none of the {len(rows)} cards."
    safe = next((row for row in rows if wanted <= (row.safe or 0)), None)
    other = "It is safe on none." if safe is None else f"It is safe on {safe.id} ({safe.price:g})."
    return (
        f"The cheapest card for batch {wanted} is {first.id}, at {first.price:g} an hour, by estimate."
        f"{'' if safe is first else f' {other}'}"
    )
