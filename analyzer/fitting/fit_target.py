"""From a target and a limit to the largest size that fits."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace as replace_fields

from analyzer.capture.process.launch import Progress
from analyzer.capture.targets.target_spec import write_options
from analyzer.cards import Gpu, all_gpus, memory_beside_pool, memory_limit
from analyzer.fitting.estimate_at_size import (
    BATCH,
    SizeEstimates,
    StepAccess,
    VariedSize,
    access_target,
)
from analyzer.fitting.fit_answer import (
    CardAnswer,
    Confirmation,
    ConfirmingRun,
    CurvePoint,
    FitAnswer,
    LimitOwner,
    SizeFailure,
)
from analyzer.fitting.fit_document import add_headline
from analyzer.fitting.remedies import RemedyTrial, try_remedies
from analyzer.fitting.size_search import (
    MOST_SIZE,
    RUN_STEPS,
    FoundSizes,
    RunBracket,
    SizeCurve,
    SizeSearch,
    find_time_limit,
    need_of,
    run_at,
)
from analyzer.model.contract.capture_request import CaptureOptions, TargetSpec
from analyzer.model.contract.fields import tensor_bytes
from analyzer.model.errors import FailureKind, InputError
from analyzer.model.machine import read_memory_bytes
from analyzer.model.ranges import BoundedBytes
from analyzer.phantom.phantom_environment import find_smallest_card, has_phantom
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.predict.decisions import describe_data_sizes

_LINE_TOLERANCE: Final = 0.05
"""A need is a line in the batch size if no estimate differs from the line by more than this ratio."""

_MACHINE_BYTES: Final = read_memory_bytes()
_MOST_INPUT_BYTES: Final = _MACHINE_BYTES // 4  # of a run
_SEARCH_SHARE: Final = 0.95  # of the progress; the rest is for the remedies


@dataclass(frozen=True, slots=True, kw_only=True)
class FitQuestion:
    """A question about a target."""

    limit_bytes: int | None = None  # None for the card's own, or this machine's memory
    wanted: int | None = None  # a size to judge
    threads: int | None = None
    # whether to run the result and its neighbours. None runs them on a simulated card if possible,
    # but not on a CPU, which would execute the kernels.
    confirm: bool | None = None
    remedies: tuple[str, ...] | None = None  # names; empty for all, None for none
    varied: VariedSize = BATCH
    prices: Mapping[Gpu, float] = field(default_factory=dict)  # per hour; of all cards to judge


def fit_target(
    spec: TargetSpec, options: CaptureOptions, question: FitQuestion, progress: Progress
) -> FitAnswer:
    """Find the largest size of a target's step under a limit; start at the options' batch size."""
    reached = [0.0]

    def report(stage: str, share: float) -> None:
        reached[0] = share
        progress(stage, share)

    with access_target(spec, lambda stage: progress(stage, reached[0])) as access:
        return fit_step(access, options, question, report)


def fit_step(
    access: StepAccess, options: CaptureOptions, question: FitQuestion, report: Progress
) -> FitAnswer:
    """Find the largest size of a step under a limit."""
    gpu = find_smallest_card(options.gpu) if options.gpu else None
    limit_of, limit = resolve_limit(gpu, question.limit_bytes)
    can_run = access.trial is not None and (gpu is None or (has_phantom() and not gpu.is_amd))
    confirm = gpu is not None and can_run if question.confirm is None else question.confirm
    confirm = confirm and access.trial is not None
    run_limit = None if limit_of == "card" else limit.bytes
    run_options = replace(options, steps=RUN_STEPS, memory_limit_bytes=run_limit)
    if confirm and access.prepare_trials is not None:
        access.prepare_trials(run_options)
    varied, options_at = question.varied, optimize_for(options, question.limit_bytes)
    estimates = SizeEstimates(access, options_at, varied=varied, threads=question.threads)
    found = SizeSearch(
        estimates,
        limit,
        varied.first_size(options),
        power=2 if varied.shapes else 1,  # right for the side of an image, and for attention
        runs_follow=confirm,
        report=lambda stage, share: report(stage, 0.8 * share),
    ).find()
    answer = describe_sizes(access.name, options, found, (limit_of, limit), question)
    point = found.curve.points[found.curve.sizes[-1]]
    input_bytes = sum(tensor_bytes(one.dtype, one.shape) or 0 for one in point.note.inputs)
    most = min(point.size * _MOST_INPUT_BYTES // max(input_bytes, 1), MOST_SIZE - 1)
    if confirm and answer.largest <= most:

        def run(size: int) -> ConfirmingRun:
            report(f"running {answer.noun} {answer.label(size)} to confirm", 0.9)
            limit_s = find_time_limit(estimates.capture_s, size, answer.device)
            return run_at(access, varied.apply(run_options, size), size, limit_s)

        refused = None if found.refused is None else found.refused.size
        bracket = RunBracket(run, refused, most, is_quick=question.confirm is None)
        answer = _confirm(answer, bracket)
    if answer.largest:
        answer = _add_peaks(answer, found.curve, limit)
    if answer.wanted is not None:
        cards = _judge_cards(found.curve, answer.wanted) if gpu else ()
        fits = answer.wanted <= answer.largest
        answer = replace_fields(answer, wanted_fits=fits, cards=cards)
    if question.remedies is not None:
        size = answer.size_of_remedies
        trial = RemedyTrial(
            access,
            varied.apply(options_at, size),
            answer.limit_bytes,
            question.threads,
            lambda stage, share: report(stage, _SEARCH_SHARE + (1 - _SEARCH_SHARE) * share),
        )
        captured = estimates.folder_of(size) if size in answer.captured_at else None
        remedies = try_remedies(trial, question.remedies, captured)
        answer = replace_fields(answer, remedies=remedies)
    report("done", 1.0)
    return add_headline(answer, can_confirm=can_run and not confirm)


def optimize_for(options: CaptureOptions, limit_bytes: int | None) -> CaptureOptions:
    """Return the options with the card's limit, which TensorFlow's graph optimizer reads."""
    if not options.gpu or limit_bytes is None:
        return options
    return replace(options, memory_limit_bytes=limit_bytes)


def resolve_limit(gpu: Gpu | None, limit_bytes: int | None) -> tuple[LimitOwner, BoundedBytes]:
    """Return the owner and the value of the lower limit, the card's or the user's."""
    if limit_bytes is not None:
        BfcOptions(memory_limit_bytes=limit_bytes)  # raises if no allocator has such a limit
    card = None if gpu is None else memory_limit(gpu)
    if limit_bytes is not None and (card is None or limit_bytes <= card.bytes):
        return "given", BoundedBytes.exactly(limit_bytes)
    if card is not None:
        return "card", card
    return "machine", BoundedBytes.exactly(_MACHINE_BYTES)


def find_safe_size(curve: SizeCurve, limit: BoundedBytes) -> int:
    """Return the largest size whose upper bound of the need fits the lower bound of the limit."""
    return curve.size_at(limit.range.low, lambda point: point.need_high_bytes)


def find_most(curve: SizeCurve, limit: BoundedBytes) -> int:
    """Return the largest size whose lower bound of the need fits the upper bound of the limit."""
    return curve.size_at(limit.range.high, lambda point: point.need_low_bytes)


def _add_peaks(answer: FitAnswer, curve: SizeCurve, limit: BoundedBytes) -> FitAnswer:
    """Return the answer with the peaks at its largest size, unless a run refuted them."""
    allocated = curve.value_at(answer.largest, lambda point: point.allocated_bytes)
    if allocated > limit.range.high:
        label = answer.label(answer.largest)
        note = f"{label} ran, so the estimates are too high there and their peaks are not shown."
        return replace_fields(answer, notes=(note, *answer.notes))
    requested = curve.value_at(answer.largest, lambda point: point.requested_bytes)
    return replace_fields(answer, peak_requested_bytes=requested, peak_allocated_bytes=allocated)


def describe_sizes(
    name: str,
    options: CaptureOptions,
    found: FoundSizes,
    limited_by: tuple[LimitOwner, BoundedBytes],
    question: FitQuestion,
) -> FitAnswer:
    """Return the answer of the estimates alone."""
    gpu = find_smallest_card(options.gpu) if options.gpu else None
    curve, (limit_of, limit) = found.curve, limited_by
    nearest = min(curve.points.values(), key=lambda point: abs(point.size - found.predicted))
    step = nearest.note.step
    most = None
    if found.failing is not None and found.refused is None:
        most = max(find_most(curve, limit), found.predicted)
    is_batch = not question.varied.shapes
    fixed_bytes, bytes_per_example = fit_line(curve, limit) if is_batch else (None, None)
    return FitAnswer(
        target=name,
        varied="batch size" if is_batch else "input size",
        shape=question.varied.template,
        batch_size=None if is_batch else step.batch_size,
        mode=step.mode,
        jit=bool(step.jit),
        optimizer=step.optimizer,
        dtype_policy=step.dtype_policy,
        options=write_options(replace(options, batch_size=None)),
        device="cpu" if gpu is None else "gpu",
        card=options.gpu,
        card_name="" if gpu is None else gpu.name,
        limit_of=limit_of,
        limit_bytes=limit.bytes,
        limit_low_bytes=limit.range.low,
        limit_high_bytes=limit.range.high,
        beside_pool_bytes=memory_beside_pool(gpu) if gpu and limit_of == "card" else 0,
        largest=found.predicted,
        failing=found.failing,
        safe=min(find_safe_size(curve, limit), found.predicted),
        most=most,
        refused=found.refused,
        fixed_bytes=fixed_bytes,
        bytes_per_example=bytes_per_example,
        wanted=question.wanted,
        captured_at=tuple(curve.sizes),
        swaps=any(point.swaps for point in curve.points.values()),
        curve=msgspec.convert(
            [curve.points[size] for size in curve.sizes],
            tuple[CurvePoint, ...],
            from_attributes=True,
        ),
        notes=tuple(dict.fromkeys((*nearest.notes, *describe_data_sizes(nearest.note)))),
        versions=nearest.note.versions,
    )


def fit_line(curve: SizeCurve, limit: BoundedBytes) -> tuple[int | None, int | None]:
    """Return the fixed bytes and the bytes per example of the need; None if it is not a line.

    The line is a least-squares fit to the estimates that fit and share the op at the peak. It is
    constrained to at least the variables at size 0.
    """
    fitting = [point for point in curve.points.values() if point.need_bytes <= limit.bytes]
    if not fitting:
        return None, None
    op = max(fitting, key=lambda point: point.size).op
    points = [point for point in fitting if point.op == op]
    if len(points) < 2:
        return None, None
    sizes = np.array([point.size for point in points], dtype=float)
    needs = np.array([point.need_bytes for point in points], dtype=float)
    slope, fixed = np.polyfit(sizes, needs, 1)
    variables = max(point.fixed_bytes for point in points)
    if fixed < variables:
        fixed, slope = variables, sizes @ (needs - variables) / (sizes @ sizes)
    if round(slope) < 1 or np.abs((fixed + slope * sizes) / needs - 1).max() > _LINE_TOLERANCE:
        return None, None
    return round(fixed), round(slope)


def _confirm(answer: FitAnswer, bracket: RunBracket) -> FitAnswer:
    """Return the answer of runs at the predicted size and around it."""
    try:
        bracket.narrow(answer.largest, answer.safe)
    except InputError as error:
        return replace_fields(answer, notes=(*answer.notes, f"Not confirmed. {error.message}"))
    fitting, failing, runs = bracket.fitting, bracket.failing, bracket.runs
    late = [run for run in runs.values() if run.kind is FailureKind.TIMED_OUT]
    if late and not fitting:
        return replace_fields(answer, notes=(*answer.notes, f"Not confirmed. {late[0].detail}"))
    if failing is None:  # by estimate, since no larger size was run to its end
        known = (answer.failing or 0, answer.largest + 1)
        failing = next((size for size in known if size > fitting), None)
    failed, refused = runs.get(failing or 0), answer.refused
    if failed is not None and failed.kind is not FailureKind.OUT_OF_MEMORY:
        kind = failed.kind or FailureKind.OTHER
        refused = SizeFailure(size=failed.size, kind=kind, detail=failed.detail)
    most = answer.most  # moved into the bracket of the runs
    if most is not None:
        most = max(most if bracket.failing is None else min(most, bracket.failing - 1), fitting)
    if bracket.is_quick and bracket.failing is None:
        more = "--confirm also runs larger sizes, until one fails."
        answer = replace_fields(answer, notes=(more, *answer.notes))
    return replace_fields(
        answer,
        largest=fitting,
        failing=failing,
        safe=min(answer.safe, fitting),
        most=most,
        refused=refused,
        confirmation=Confirmation(
            by="phantom" if answer.device == "gpu" else "cpu",
            runs=tuple(runs[size] for size in sorted(runs)),
            predicted=answer.largest,
        ),
    )


def _judge_cards(curve: SizeCurve, wanted: int) -> tuple[CardAnswer, ...]:
    """Return for each card whether the wanted size fits, the smallest card first."""
    need_bytes = curve.value_at(wanted, need_of)
    cards = sorted(all_gpus(), key=lambda gpu: (memory_limit(gpu).bytes, gpu.id))
    fits = [need_bytes <= memory_limit(gpu).bytes for gpu in cards]
    return tuple(describe_card(gpu, None, None, fit) for gpu, fit in zip(cards, fits, strict=True))


def describe_card(
    gpu: Gpu,
    largest: int | None,
    safe: int | None,
    holds_wanted: bool | None,
    most: int | None = None,
) -> CardAnswer:
    """Return the answer for a card."""
    return CardAnswer(
        id=gpu.id,
        name=gpu.name,
        memory_bytes=gpu.memory_bytes,
        limit_bytes=memory_limit(gpu).bytes,
        largest=largest,
        safe=safe,
        most=most,
        holds_wanted=holds_wanted,
    )
