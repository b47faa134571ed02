"""From a target and a limit to the largest batch: what ``analyze fit`` and ``fit`` call."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec.structs import replace as changed

from analyzer.capture.process.launch import Progress
from analyzer.cards import Gpu, all_gpus, find_gpu, memory_limit
from analyzer.fitting.scaling.fit_answer import CardAnswer, Confirmation, CurvePoint, LimitOwner
from analyzer.fitting.scaling.fit_answer import FitAnswer as FitAnswer
from analyzer.fitting.scaling.largest_size import MOST
from analyzer.fitting.scaling.peak_curve import (
    chunks_at,
    curve_of,
    middle_order,
    moves_of,
    peak_bytes,
)
from analyzer.fitting.scaling.scaled_orders import ScaledOrders
from analyzer.fitting.scaling.size_lines import LimitRange
from analyzer.fitting.scaling.size_search import FoundSizes, SizeSearch
from analyzer.fitting.search.confirming_runs import confirmed, has_phantom, run_options
from analyzer.fitting.search.remedied_steps import tried_remedies
from analyzer.fitting.search.step_access import BatchCaptures, StepAccess, access_of, noted_at
from analyzer.fitting.search.varied_size import BATCH, VariedSize
from analyzer.model.contract.capture_request import CaptureOptions, TargetSpec
from analyzer.model.contract.report.finding import StepRemedy
from analyzer.model.units import format_bytes
from analyzer.simulate.allocator import BfcOptions
from analyzer.simulate.allocator.minimum_limit import safe_limit
from analyzer.simulate.predict.uncertainty.assumptions import sizes_of
from analyzer.tracing.measure.measured_recording import index_note_graph
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.run_folder import RunNote

_SEARCHED: Final = 0.95
"""Share of the progress before the remedies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitQuestion:
    """What is asked of a target.

    Attributes:
        limit_bytes: What the allocator may use; None for the card's own limit, or this machine's memory.
        wanted: A batch size to say of whether it fits; None for none.
        threads: Threads that one op may use; None for this machine's.
        confirm: Run the step with the batch found and with the next one. None does so on a phantom card
            where there can be one, and not on a CPU, where the kernels would run.
        remedies: Capture and estimate the step with each remedy, too.
        what_if: The remedies to try, by name; empty for all that may save something.
        varied: What the size is of: the batch, or axes of the inputs.
    """

    limit_bytes: int | None = None
    wanted: int | None = None
    threads: int | None = None
    confirm: bool | None = None
    remedies: bool = False
    what_if: tuple[str, ...] = ()
    varied: VariedSize = BATCH


def fit_target(
    spec: TargetSpec,
    options: CaptureOptions,
    question: FitQuestion,
    *,
    progress: Progress | None = None,
) -> FitAnswer:
    """Find the largest batch of a target's step under a limit.

    Args:
        spec: The target.
        options: How the step is made; its batch size is where the search begins, its card the one asked
            about.
        question: The limit, and what else is asked.
        progress: Called with the stage and the share done.

    Raises:
        InputError: the target cannot be used, or has no batch that could be chosen.
    """
    report = progress or (lambda stage, share: None)
    with access_of(spec) as access:
        return answered(access, options, question, report)[0]


def answered(
    access: StepAccess,
    options: CaptureOptions,
    question: FitQuestion,
    report: Callable[[str, float], None],
) -> tuple[FitAnswer, FoundSizes]:
    """Return the answer for a step that can be captured, and what the search found.

    Args:
        access: The step.
        options: How it is made.
        question: What is asked.
        report: Called with the stage and the share done.

    Raises:
        InputError: the step has no batch that could be chosen.
    """
    gpu = find_gpu(options.gpu) if options.gpu else None
    limit_of, limits = limits_for(gpu, question.limit_bytes)
    confirm = question.confirm
    if confirm is None:
        confirm = gpu is not None and has_phantom()
    confirm = confirm and access.tried is not None
    noting = limited(options, question.limit_bytes)
    if confirm and access.expected is not None:
        access.expected(run_options(options, None if limit_of == "card" else limits.bytes))
    found = SizeSearch(
        BatchCaptures(access, noting, threads=question.threads, varied=question.varied),
        lambda target: limits,
        question.varied.first(options),
        threads=question.threads,
        inter_op=options.inter_op_threads,
        runs_follow=confirm,
        power=question.varied.power,
        degree=question.varied.degree,
        report=report,
    ).find()
    report("drawing the curve", 0.92)
    answer = _described(access.name, options, found, (limit_of, limits), question)
    if found.orders is not None:
        answer = _with_curve(answer, found, found.orders, question)
    else:
        answer = _with_points(answer, found)
    if confirm:
        answer = confirmed(answer, access, options, report, question.varied)
    if answer.wanted is not None:
        answer = changed(answer, wanted_fits=answer.wanted <= answer.largest)
    if question.remedies or question.what_if:
        answer = changed(
            answer,
            remedies=_remedies(access, noting, question, answer, report),
        )
    report("done", 1.0)
    return _said(answer), found


def _remedies(
    access: StepAccess,
    options: CaptureOptions,
    question: FitQuestion,
    answer: FitAnswer,
    report: Callable[[str, float], None],
) -> tuple[StepRemedy, ...]:
    """Return what each remedy saves at the size wanted or found, the one that saves most first.

    Args:
        access: How the step is captured.
        options: How it is made at any size.
        question: Which remedies are asked about.
        answer: The answer, with the size and the limit.
        report: Called with the stage and the share done, 0 to 1.
    """
    size = answer.remedied
    noted = noted_at(access, size)

    def last(stage: str, share: float) -> None:
        report(stage, _SEARCHED + (1 - _SEARCHED) * share)

    return tried_remedies(
        access,
        question.varied.at(options, size),
        question.what_if,
        answer.limit_bytes,
        question.threads,
        last,
        noted if (noted / RUN_FILE).is_file() else None,
    )


def limited(options: CaptureOptions, limit_bytes: int | None) -> CaptureOptions:
    """Return options whose graph is optimised for a limit: TensorFlow's optimiser looks at a card's."""
    if not options.gpu or limit_bytes is None:
        return options
    return replace(options, memory_limit_bytes=limit_bytes)


def limits_for(gpu: Gpu | None, given: int | None) -> tuple[LimitOwner, LimitRange]:
    """Return whose limit it is, and the limit: the lower of the card's and the one given.

    Args:
        gpu: The card; None for the CPU.
        given: What the user gave, bytes; None for nothing.

    Raises:
        InputError: no allocator has such a limit.
    """
    if given is not None:
        BfcOptions(memory_limit_bytes=given)
    card = None if gpu is None else memory_limit(gpu)
    if given is not None and (card is None or given <= card.bytes):
        return "given", LimitRange(bytes=given, low_bytes=given, high_bytes=given)
    if card is not None:
        return "card", LimitRange(
            bytes=card.bytes, low_bytes=card.low_bytes, high_bytes=card.high_bytes
        )
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return "machine", LimitRange(bytes=machine, low_bytes=machine, high_bytes=machine)


def _described(
    name: str,
    options: CaptureOptions,
    found: FoundSizes,
    limited_by: tuple[LimitOwner, LimitRange],
    question: FitQuestion,
) -> FitAnswer:
    """Return the answer without curve and runs.

    Args:
        name: The target, as the user named it.
        options: How the step is made.
        found: What the search found.
        limited_by: Whose limit it is, and the limit.
        question: What was asked.
    """
    gpu = find_gpu(options.gpu) if options.gpu else None
    (limit_of, limits), note, sizes = limited_by, found.note, found.sizes
    need = found.needs.get(sizes.size)
    wanted = question.wanted
    return FitAnswer(
        target=name,
        varied="input size" if question.varied.shapes else "batch size",
        shape=question.varied.template,
        batch_size=note.step.batch_size if question.varied.shapes else None,
        mode=note.step.mode,
        jit=bool(note.step.jit),
        optimizer=note.step.optimizer,
        dtype_policy=note.step.dtype_policy,
        device="gpu" if gpu is not None else "cpu",
        card="" if gpu is None else gpu.id,
        card_name="" if gpu is None else gpu.name,
        limit_of=limit_of,
        limit_bytes=limits.bytes,
        limit_low_bytes=limits.low_bytes,
        limit_high_bytes=limits.high_bytes,
        largest=sizes.size,
        safe=sizes.safe,
        most=sizes.most,
        in_each=sizes.in_each,
        orders_drawn=sizes.orders,
        orders_fitting=sizes.fitting,
        taken=found.bound,
        refusal=found.refusal,
        peak_requested_bytes=None if need is None else need.requested_bytes,
        peak_allocated_bytes=None if need is None else need.allocated_bytes,
        wanted=wanted,
        wanted_fits=None if wanted is None else wanted <= sizes.size,
        forms=found.forms,
        notes=(*note.notes, *sizes_of(note), *(found.orders.left_out if found.orders else ())),
        versions=note.versions,
    )


def _with_curve(
    answer: FitAnswer, found: FoundSizes, orders: ScaledOrders, question: FitQuestion
) -> FitAnswer:
    """Return the answer with its curve, the ops of the peak and the cards that hold the size wanted."""
    layers = _layers_of(found.note)
    at = max(answer.largest, 1)
    order = middle_order(orders, at)
    last = max(at + max(at // 4, 1), question.wanted or 1)
    options = replace(orders.target.options, memory_limit_bytes=answer.limit_bytes)
    largest = answer.largest
    marked = [size for size in (largest, question.wanted) if size]
    curve = curve_of(orders, order, last, options, marked)
    fields: dict[str, Any] = {
        "curve": curve,
        "moves": moves_of(orders, order, last, lambda op: layers.get(op, "")),
        "peak_requested_bytes": peak_bytes(order, largest) if largest else None,
        "peak_allocated_bytes": chunks_at(order, largest, options) if largest else None,
    }
    if question.wanted is not None and orders.target.gpu is not None:
        fields["cards"] = _cards_for(orders, question.wanted)
    return changed(answer, **fields)


def _with_points(answer: FitAnswer, found: FoundSizes) -> FitAnswer:
    """Return the answer with the peaks of the sizes that were estimated one by one."""
    points = tuple(
        CurvePoint(
            size=size,
            requested_bytes=need.requested_bytes,
            allocated_bytes=need.allocated_bytes,
            op=need.op,
        )
        for size, need in sorted(found.needs.items())
    )
    return changed(answer, curve=points)


def _layers_of(note: RunNote) -> dict[str, str]:
    structure = index_note_graph(note)
    return {} if structure is None else dict(structure.layers)


def _cards_for(orders: ScaledOrders, wanted: int) -> tuple[CardAnswer, ...]:
    """Return every card with a word on whether the size wanted fits, the smallest first."""
    order = middle_order(orders, wanted)
    need = safe_limit(order.at(wanted), orders.target.options)
    cards = []
    for gpu in sorted(all_gpus(), key=lambda gpu: (memory_limit(gpu).bytes, gpu.id)):
        limit = memory_limit(gpu).bytes
        cards.append(_card(gpu, limit, None, None, need <= limit))
    return tuple(cards)


def _card(
    gpu: Gpu, limit: int, largest: int | None, safe: int | None, holds: bool | None
) -> CardAnswer:
    return CardAnswer(
        id=gpu.id,
        name=gpu.name,
        memory_bytes=gpu.memory_bytes,
        limit_bytes=limit,
        largest=largest,
        safe=safe,
        holds_wanted=holds,
    )


def _said(answer: FitAnswer) -> FitAnswer:
    """Return the answer with its headline."""
    where = answer.card_name or (
        "this machine" if answer.limit_of == "machine" else "the limit given"
    )
    limit = format_bytes(answer.limit_bytes)
    if not answer.largest:
        tried = () if answer.confirmation is None else answer.confirmation.runs
        if tried and tried[0].size > 1:
            least = f"not even {answer.noun} {answer.label(tried[0].size)}"
            return changed(
                answer, headline=f"No {answer.noun} that was run fits {where} ({limit}), {least}."
            )
        least = f"input {answer.label(1)}" if answer.shape else "a batch of 1"
        return changed(answer, headline=f"Not even {least} fits {where} ({limit}).")
    named = f"{answer.noun.capitalize()} {answer.label(answer.largest)}"
    safe = answer.label(answer.safe)
    says = f"{named} is the largest that fits {where} ({limit})"
    if answer.largest == answer.taken:
        says = f"{named} is the largest that the step takes, and it fits {where} ({limit})"
    if answer.largest >= MOST:
        says = f"{named} fits {where} ({limit}); larger ones were not looked for"
    elif answer.confirmation is not None:
        says += f": {_ran(answer, answer.confirmation)}"
    elif answer.forms.swaps:
        says = (
            f"{named} is the largest that likely fits {where} ({limit}): TensorFlow "
            f"swaps tensors to the host there, each process others; {safe} is safe"
        )
    elif answer.forms.another_from is not None and answer.largest < answer.most:
        says = (
            f"{named} is the largest that likely fits {where} ({limit}): TensorFlow makes another "
            f"graph of larger ones, which does not; {safe} is safe"
        )
    elif answer.in_each < answer.largest:
        is_compiled = bool(answer.forms.planned_at)
        what = "what XLA chooses" if is_compiled else "the order of the ops"
        says = (
            f"{named} is the largest that likely fits {where} ({limit}): {what} "
            f"decides from {answer.label(answer.in_each + 1)} on{_share_of(answer)}; {safe} is safe"
        )
    elif answer.safe < answer.largest:
        says += f"; {safe} is safe"
    if answer.wanted is not None:
        says = f"{_of_wanted(answer)}. {says}"
    return changed(answer, headline=f"{says}.")


def _ran(answer: FitAnswer, confirmation: Confirmation) -> str:
    """Say what ran, and what did not."""
    by = (
        "TensorFlow's GPU runtime without the card"
        if confirmation.by == "phantom"
        else "TensorFlow's allocator"
    )
    told = f"it ran on {by}"
    failed = min((run.size for run in confirmation.runs if run.size > answer.largest), default=None)
    if failed is not None:
        told += f", and {answer.label(failed)} did not"
    if answer.orders_fitting < answer.orders_drawn:
        told += (
            "; another process may take another order of the ops, "
            f"{answer.label(answer.in_each)} fits in each that was drawn"
        )
    return told


def _of_wanted(answer: FitAnswer) -> str:
    """Say whether the size asked about fits."""
    wanted = answer.wanted or 0
    named = f"{answer.noun.capitalize()} {answer.label(wanted)}"
    if wanted <= answer.safe:
        return f"{named} fits"
    ran = () if answer.confirmation is None else answer.confirmation.runs
    if wanted <= answer.in_each or any(run.ran and run.size >= wanted for run in ran):
        return f"{named} fits, with less than 3 % to spare"
    if wanted <= answer.largest:
        return f"{named} likely fits"
    return f"{named} {'may not fit' if wanted <= answer.most and not ran else 'does not fit'}"


def _share_of(answer: FitAnswer) -> str:
    """Say in how many of the orders that were drawn the largest size fits; nothing where in all."""
    if answer.orders_fitting == answer.orders_drawn:
        return ""
    fits, drawn = answer.orders_fitting, answer.orders_drawn
    return f" ({answer.label(answer.largest)} fits in {fits} of the {drawn} that were drawn)"
