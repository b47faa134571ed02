"""The largest batch on every card of the catalogue.

Which layout runs on a card depends on its compute capability alone: the optimiser's layout pass asks
whether there are tensor cores (7.0) and whether single precision may use them (8.0;
``generic_layout_optimizer.cc``). So the step is captured for one card of each kind, and the others'
limits are held against that one's orders, or against a line through the captured sizes where there are
no closed forms. What the memory optimizer rewrites near each card's own limit is not told apart here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from msgspec.structs import replace as changed

from analyzer.batch_fit.fit_target import FitQuestion, answered
from analyzer.batch_fit.step_access import access_of
from analyzer.contract.messages.capture_request import CaptureOptions, TargetSpec
from analyzer.gpus import Gpu, all_gpus, memory_limit
from analyzer.predict.representative import LIMIT_MARGIN
from analyzer.scaling.fit_answer import CardAnswer, FitAnswer
from analyzer.scaling.largest_size import largest_of
from analyzer.scaling.peak_curve import middle_order
from analyzer.scaling.scaled_orders import ScaledOrders
from analyzer.scaling.size_lines import SizeNeed, crossing


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
            if found.orders is None:
                rows += _rows_by_line(found.needs, cards, question.wanted)
            else:
                rows += _rows(found.orders, cards, question.wanted)
    assert answer is not None
    rows.sort(key=lambda row: (row.limit_bytes, row.id))
    least, most = (pick(row.largest or 0 for row in rows) for pick in (min, max))
    return changed(
        answer,
        cards=tuple(rows),
        headline=f"The largest batch is {least} to {most}, by card.",
        largest=most,
        wanted_fits=None if question.wanted is None else any(row.holds_wanted for row in rows),
    )


def _groups() -> list[list[Gpu]]:
    kinds: dict[int, list[Gpu]] = {}
    for gpu in all_gpus():
        kinds.setdefault(min(gpu.compute_capability[0], 8), []).append(gpu)
    return [
        sorted(kinds[kind], key=lambda gpu: (memory_limit(gpu).bytes, gpu.id))
        for kind in sorted(kinds)
    ]


def _rows_by_line(
    needs: Mapping[int, SizeNeed], cards: list[Gpu], wanted: int | None
) -> list[CardAnswer]:
    """Return the cards' rows where there are no closed forms: by a line through two captures."""
    rows = []
    for gpu in cards:
        limit = memory_limit(gpu)
        size = crossing(needs, limit.bytes)
        safe = crossing(needs, int(limit.low_bytes / (1 + LIMIT_MARGIN)))
        rows.append(
            CardAnswer(
                id=gpu.id,
                name=gpu.name,
                memory_bytes=gpu.memory_bytes,
                limit_bytes=limit.bytes,
                largest=size,
                safe=min(safe, size),
                holds_wanted=None if wanted is None else wanted <= size,
            )
        )
    return rows


def _rows(orders: ScaledOrders, cards: list[Gpu], wanted: int | None) -> list[CardAnswer]:
    found: dict[int, int] = {}
    near = 0

    def largest(limit_bytes: int) -> int:
        nonlocal near
        if limit_bytes not in found:
            options = replace(orders.target.options, memory_limit_bytes=limit_bytes)
            order = middle_order(orders, max(near, 1))
            near = found[limit_bytes] = largest_of(order, options, near)
        return found[limit_bytes]

    rows = []
    for gpu in cards:
        limit = memory_limit(gpu)
        size = largest(limit.bytes)
        safe = largest(int(limit.low_bytes / (1 + LIMIT_MARGIN)))
        rows.append(
            CardAnswer(
                id=gpu.id,
                name=gpu.name,
                memory_bytes=gpu.memory_bytes,
                limit_bytes=limit.bytes,
                largest=size,
                safe=min(safe, size),
                holds_wanted=None if wanted is None else wanted <= size,
            )
        )
    return rows
