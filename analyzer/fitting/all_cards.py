"""The largest batch on every card of the catalogue.

The graph depends on the card's compute capability only: TensorFlow's layout optimizer asks for tensor
cores (7.0) and for TF32 (8.0; ``generic_layout_optimizer.cc``). So one card of each kind is captured, at
sizes near the limits of the smallest, the middle and the largest card, and the answers of all cards are
interpolated between them. Graph rewrites near the limit of one card are not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

from msgspec.structs import replace as replace_fields

from analyzer.cards import Gpu, all_gpus, memory_limit
from analyzer.fitting.estimate_at_size import SizeEstimates, StepAccess, access_target
from analyzer.fitting.fit_answer import CardAnswer, FitAnswer
from analyzer.fitting.fit_target import (
    FitQuestion,
    describe_card,
    describe_sizes,
    find_safe_size,
    resolve_limit,
)
from analyzer.fitting.size_search import SizeCurve, SizeSearch
from analyzer.model.contract.capture_request import CaptureOptions, TargetSpec


def fit_all_cards(
    spec: TargetSpec,
    options: CaptureOptions,
    question: FitQuestion,
    *,
    progress: Callable[[str, float], None] | None = None,
) -> FitAnswer:
    """Find the largest batch of a target's step on each card; limits and runs are not supported.

    Raises:
        InputError: the target cannot be used, or its batch size is fixed.
    """
    report = progress or (lambda stage, share: None)
    kinds = _group_cards()
    rows: list[CardAnswer] = []
    with access_target(spec) as access:
        for number, cards in enumerate(kinds):

            def report_part(stage: str, share: float, number: int = number) -> None:
                report(stage, (number + share) / len(kinds))

            answer, curve = _fit_kind(access, options, question, cards, report_part)
            rows += [_row_of(gpu, curve, question.wanted) for gpu in cards]
    return _combine(answer, rows, question.wanted)


def _fit_kind(
    access: StepAccess,
    options: CaptureOptions,
    question: FitQuestion,
    cards: list[Gpu],
    report: Callable[[str, float], None],
) -> tuple[FitAnswer, SizeCurve]:
    """Return the answer for the middle one of some cards, and a curve for all of them."""
    middle = cards[len(cards) // 2]
    chosen = replace(options, gpu=middle.id)
    limited_by = resolve_limit(middle, None)
    estimates = SizeEstimates(
        replace(access, folder=access.folder / middle.id), chosen, threads=question.threads
    )
    search = SizeSearch(
        estimates, limited_by[1], options.open_batch_size, runs_follow=True, report=report
    )
    found = search.find()
    for gpu in (cards[-1], cards[0]):
        search.estimate(max(found.curve.size_at(memory_limit(gpu).bytes), 1))
    asked = replace(question, remedies=False, what_if=())
    return describe_sizes(access.name, chosen, found, limited_by, asked), found.curve


def _combine(answer: FitAnswer, rows: list[CardAnswer], wanted: int | None) -> FitAnswer:
    """Return the answer for one card as the answer for all cards."""
    rows.sort(key=lambda row: (row.limit_bytes, row.id))
    sizes = [row.largest or 0 for row in rows]
    return replace_fields(
        answer,
        cards=tuple(rows),
        headline=f"By estimate, batch {min(sizes)} to {max(sizes)} fits, depending on the card.",
        card="",
        card_name="",
        limit_of="cards",
        limit_bytes=rows[-1].limit_bytes,
        limit_low_bytes=rows[0].limit_bytes,
        limit_high_bytes=rows[-1].limit_bytes,
        largest=max(sizes),
        failing=None,
        safe=max(row.safe or 0 for row in rows),
        most=None,
        notes=(f"The curve is for {answer.card_name}.", *answer.notes),
        wanted_fits=None if wanted is None else any(row.holds_wanted for row in rows),
    )


def _group_cards() -> list[list[Gpu]]:
    """Return the cards by kind, each kind by its limit."""

    def kind_of(gpu: Gpu) -> int:
        return min(gpu.compute_capability[0], 8)

    cards = sorted(all_gpus(), key=lambda gpu: (kind_of(gpu), memory_limit(gpu).bytes, gpu.id))
    return [list(kind) for _, kind in groupby(cards, kind_of)]


def _row_of(gpu: Gpu, curve: SizeCurve, wanted: int | None) -> CardAnswer:
    """Return the answer for a card, read from the curve of its kind."""
    _, limit = resolve_limit(gpu, None)
    largest = curve.size_at(limit.bytes)
    safe = min(find_safe_size(curve, limit), largest)
    return describe_card(gpu, largest, safe, None if wanted is None else wanted <= largest)
