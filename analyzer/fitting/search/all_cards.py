"""The largest batch on every card of the catalogue.

Which layout runs on a card depends on its compute capability alone: the optimiser's layout pass asks
whether there are tensor cores (7.0) and whether single precision may use them (8.0;
``generic_layout_optimizer.cc``). So the step is captured for one card of each kind, and the others'
limits are held against that one's orders, or against a line through the captured sizes where there are
no closed forms. What the memory optimizer rewrites near each card's own limit is not told apart here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from msgspec.structs import replace as changed

from analyzer.cards import Gpu, all_gpus, memory_limit
from analyzer.fitting.scaling.fit_answer import CardAnswer, FitAnswer
from analyzer.fitting.scaling.largest_size import largest_of
from analyzer.fitting.scaling.peak_curve import middle_order
from analyzer.fitting.scaling.scaled_orders import ScaledOrders
from analyzer.fitting.scaling.size_lines import between
from analyzer.fitting.search.fit_target import FitQuestion, answered
from analyzer.fitting.search.step_access import access_of
from analyzer.model.contract.capture_request import CaptureOptions, TargetSpec
from analyzer.simulate.predict.representative import LIMIT_MARGIN


def fit_all(
    spec: TargetSpec,
    options: CaptureOptions,
    question: FitQuestion,
    *,
    progress: Callable[[str, float], None] | None = None,
) -> FitAnswer:
    """Find the largest batch of a target's step on each card.

    Args:
        spec: The target.
        options: How the step is made.
        question: What is asked; a limit and runs are not.
        progress: Called with the stage and the share done.

    Raises:
        InputError: the target cannot be used.
    """
    report = progress or (lambda stage, share: None)
    groups = _groups()
    rows: list[CardAnswer] = []
    answer: FitAnswer | None = None
    with access_of(spec) as access:
        for number, cards in enumerate(groups):
            middle = cards[len(cards) // 2]

            def part(stage: str, share: float, at: int = number) -> None:
                report(stage, (at + share) / len(groups))

            apart = replace(access, folder=access.folder / middle.id)
            chosen = replace(options, gpu=middle.id)
            asked = replace(question, confirm=False)
            answer, found = answered(apart, chosen, asked, part)
            largest: Callable[[int], int] = partial(between, found.needs)
            if found.orders is not None:
                largest = _by_orders(found.orders)
            rows += [_row(gpu, largest, question.wanted) for gpu in cards]
    assert answer is not None
    return _for_all(answer, rows, question.wanted)


def _for_all(answer: FitAnswer, rows: list[CardAnswer], wanted: int | None) -> FitAnswer:
    """Return the answer for one card as that for all.

    Args:
        answer: The answer.
        rows: Of each card.
        wanted: The batch that the user wants; None where none was named.
    """
    rows.sort(key=lambda row: (row.limit_bytes, row.id))
    least, most = (pick(row.largest or 0 for row in rows) for pick in (min, max))
    return changed(
        answer,
        cards=tuple(rows),
        headline=f"The largest batch is {least} to {most}, by card.",
        card="",
        card_name="",
        limit_of="cards",
        limit_bytes=rows[-1].limit_bytes,
        limit_low_bytes=rows[0].limit_bytes,
        limit_high_bytes=rows[-1].limit_bytes,
        largest=most,
        safe=max(row.safe or 0 for row in rows),
        most=most,
        in_each=most,
        orders_drawn=0,
        orders_fitting=0,
        peak_requested_bytes=None,
        peak_allocated_bytes=None,
        notes=(f"The curve is of {answer.card_name}.", *answer.notes),
        wanted_fits=None if wanted is None else any(row.holds_wanted for row in rows),
    )


def _groups() -> list[list[Gpu]]:
    kinds: dict[int, list[Gpu]] = {}
    for gpu in all_gpus():
        kinds.setdefault(min(gpu.compute_capability[0], 8), []).append(gpu)
    return [
        sorted(kinds[kind], key=lambda gpu: (memory_limit(gpu).bytes, gpu.id))
        for kind in sorted(kinds)
    ]


def _row(gpu: Gpu, largest: Callable[[int], int], wanted: int | None) -> CardAnswer:
    """Return a card's row.

    Args:
        gpu: The card.
        largest: The largest batch under a limit in bytes.
        wanted: The batch that the user wants; None where none was named.
    """
    limit = memory_limit(gpu)
    size = largest(limit.bytes)
    safe = largest(int(limit.low_bytes / (1 + LIMIT_MARGIN)))
    return CardAnswer(
        id=gpu.id,
        name=gpu.name,
        memory_bytes=gpu.memory_bytes,
        limit_bytes=limit.bytes,
        largest=size,
        safe=min(safe, size),
        holds_wanted=None if wanted is None else wanted <= size,
    )


def _by_orders(orders: ScaledOrders) -> Callable[[int], int]:
    """Return a search for the largest batch under a limit, which begins where the last one ended."""
    near = 0

    @cache
    def largest(limit_bytes: int) -> int:
        nonlocal near
        options = replace(orders.target.options, memory_limit_bytes=limit_bytes)
        near = largest_of(middle_order(orders, max(near, 1)), options, near)
        return near

    return largest
