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
from analyzer.fitting.fit_target import FitQuestion, describe_card, describe_sizes, find_safe_size
from analyzer.fitting.size_search import SizeCurve, SizeSearch
from analyzer.model.contract.capture_request import CaptureOptions, TargetSpec


def fit_all_cards(
    spec: TargetSpec,
    options: CaptureOptions,
    question: FitQuestion,
    progress: Progress,
) -> FitAnswer:
    """Find the largest batch of a target's step on each card; limits and runs are not supported.

    Raises:
        InputError: the target cannot be used, or its batch size is fixed.
    """

    def kind_of(gpu: Gpu) -> int:
        return min(gpu.compute_capability[0], 8)

    catalogue = sorted(all_gpus(), key=lambda gpu: (kind_of(gpu), memory_limit(gpu).bytes, gpu.id))
    kinds = [list(cards) for _, cards in groupby(catalogue, kind_of)]
    rows: list[CardAnswer] = []
    with access_target(spec) as access:
        for number, cards in enumerate(kinds):

            def report(stage: str, share: float, number: int = number) -> None:
                progress(stage, (number + share) / len(kinds))

            answer, curve = _fit_kind(access, options, question, cards, report)
            for gpu in cards:
                limit = memory_limit(gpu)
                largest = curve.size_at(limit.bytes)
                safe = min(find_safe_size(curve, limit), largest)
                wanted = None if question.wanted is None else question.wanted <= largest
                rows.append(describe_card(gpu, largest, safe, wanted))
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
    for gpu in (cards[-1], cards[0]):
        search.estimate(max(found.curve.size_at(memory_limit(gpu).bytes), 1))
    return describe_sizes(access.name, chosen, found, ("card", limit), question), found.curve


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
