"""The first screen of a report: the verdict, its figures and the categories, for every output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

from analyzer.model.contract.report.limit_figures import Basis, LifePhase, Need, Outcome
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.subject import (
    Finding,
    ProgramFigures,
    StepRemedy,
    TrendFigures,
)
from analyzer.model.tables import read_table
from analyzer.model.units import format_bytes, format_slope, signed_bytes
from analyzer.report.render.sections import Figure, Tone

_LONGEST_ERROR: Final = 300  # characters

LABELS: Final = read_table("report/labels.toml", dict[str, dict[str, str]])
CATEGORY_LABELS: Final = LABELS["category"]

_PHASES: Final = {
    LifePhase.BEFORE_TRACE: "outside the trace",
    LifePhase.BUILDING: "while the model is built",
    LifePhase.FIRST_STEP: "in the first step",
    LifePhase.STEADY_STEP: "in the steady step",
}


def step_words(report: ReportFile) -> str:
    """Return how the step runs: mode, batch size, optimizer, XLA, dtype policy."""
    step = report.step
    batch = f"batch {step.batch_size}" if step.batch_size else ""
    compiled = "" if step.jit is None else "XLA" if step.jit else "op by op"
    policy = step.dtype_policy if step.dtype_policy != "float32" else ""
    return ", ".join(filter(None, (step.mode, batch, step.optimizer, compiled, policy)))


def versions_line(versions: Mapping[str, str]) -> str:
    """Return the versions as one line."""
    return " · ".join(f"{name} {version}" for name, version in versions.items())


def _basis_of(report: ReportFile) -> Basis:
    if report.verdict is not None:
        return report.verdict.basis
    return Basis.MEASURED if report.kind.ran else Basis.PREDICTED


def basis_words(report: ReportFile) -> str:
    """Return whether the figures were measured or predicted, and for which device."""
    basis = _basis_of(report)
    device = report.device.name or report.device.kind or "an unnamed device"
    if basis is Basis.PHANTOM:
        return f"Simulated for {device}; TensorFlow's GPU runtime ran, but no kernel."
    if basis is Basis.PREDICTED:
        return f"Predicted for {device}; no step ran."
    return f"Measured on {device}."


def place_words(report: ReportFile) -> str:
    """Return the step, op, layer and source line of a step's peak; empty if all are unknown."""
    peak, program = report.peak, report.program
    is_run = program is not None and program.whole_run
    place = ""
    if peak.step is not None and not is_run:
        place = f" in {'traced ' if program else ''}step {peak.step}"
    if peak.op:
        place += f" by {peak.op}"

    layer = f"layer {peak.layer}" if peak.layer else ""
    about = ", ".join(filter(None, (layer, peak.source)))
    if about:
        place += f" ({about})"
    if not place:
        return ""

    size = format_bytes(peak.requested_bytes)
    return (
        f"The {'run' if is_run else 'step'}'s peak, {size} requested, is "
        f"reached{place}."
    )


def peak_notes(report: ReportFile) -> Iterator[str]:
    """Yield notes on the peak: other instants, algorithm trials, further cards."""
    peak, ever = report.peak, report.peak_ever
    if peak.instant != peak.allocated_instant:
        yield (
            "Requested and allocated bytes peak at different instants; the categories "
            "are for the requested peak."
        )

    if ever is not None:
        highest = format_bytes(ever.allocated_bytes)
        has_phases = report.verdict is not None and report.verdict.need is not None
        if highest != format_bytes(peak.allocated_bytes) and not has_phases:
            yield (
                f"Outside the steady step the peak is higher: {highest} allocated "
                f"({ever.phase})."
            )

        start = ever.since_start_bytes
        if start and start > ever.allocated_bytes and report.program is None:
            ratio = start / max(peak.allocated_bytes, 1)
            yield (
                f"Before the trace the process had up to {format_bytes(start)} "
                f"allocated, {ratio:.2g} times the peak of this step."
            )

    for use in report.cards:
        name = f" ({use.card})" if use.card else ""
        limit = ""
        if use.memory_limit_bytes:
            limit = f", limit {format_bytes(use.memory_limit_bytes)}"

        end = "; this report shows this card." if use.is_shown else "."
        yield (
            f"Card {use.number}{name}: peak {format_bytes(use.requested_bytes)} "
            f"requested, {format_bytes(use.allocated_bytes)} allocated{limit}{end}"
        )


def program_words(
    program: ProgramFigures | None, *, is_compiled: bool
) -> Iterator[str]:
    """Yield the definition of a step, and whether memory grows over steps."""
    if program is None:
        return

    end = f"; the program ended with {program.ended}" if program.ended else ""
    if program.own_peak_bytes is not None:
        own = format_bytes(program.own_peak_bytes)
        yield (
            f"TensorFlow's own peak since the program's start is {own} "
            "(get_memory_info)."
        )

    if not is_compiled:  # one MNIST script took 22.8 to 30.0 MB in five runs
        yield (
            "Ops run in parallel, so peaks differ from run to run: compare several "
            "runs."
        )

    if program.whole_run:
        yield (
            "No call repeats often enough to be a step, so the whole run counts as "
            f"one{end}."
        )
        return

    where = f" ({program.where})" if program.where else ""
    yield f"The program ran {program.steps:,} steps of {program.step}{where}{end}."

    if program.device.trend != "cannot tell":
        yield _trend_words("Device", program.device)
    elif program.device.level_bytes:
        yield f"Device memory has no clear trend over {program.steps:,} steps."
    else:
        yield "Too few steps to say whether device memory grows."

    if program.host.trend != "cannot tell":
        yield _trend_words("Host", program.host)


def _trend_words(name: str, trend: TrendFigures) -> str:
    verbs = {"grows": "grows", "fills": "rises while a container with a bound fills"}
    verb = verbs.get(trend.trend, "does not grow")
    slope = format_slope(trend.per_step_bytes, trend.low_bytes, trend.high_bytes)
    return (
        f"{name} memory {verb} over steps {trend.first_step} to {trend.last_step}: "
        f"{slope}."
    )


def range_words(report: ReportFile) -> str:
    """Return the range of a prediction; empty for a measurement."""
    stated = report.uncertainty
    if stated is None or stated.low_bytes is None:
        return ""

    ranges = [
        ("requested", stated.low_bytes, stated.high_bytes),
        ("allocated", stated.allocated_low_bytes, stated.allocated_high_bytes),
    ]
    need = _need_of(report)
    if need is not None and not need.total.range.is_exact:
        ranges.append(("need", need.total.range.low, need.total.range.high))

    parts = []
    for name, low, high in ranges:
        if low is not None and high is not None:
            parts.append(f"{name} {format_bytes(low)} to {format_bytes(high)}")

    return f"Likely range: {', '.join(parts)}."


def _need_of(report: ReportFile) -> Need | None:
    return None if report.verdict is None else report.verdict.need


def need_words(report: ReportFile) -> Iterator[str]:
    """Yield the need with its parts, and how it compares to the allocated peak."""
    need, verdict, waste = _need_of(report), report.verdict, report.fragmentation
    if need is None or verdict is None:
        return

    least, others = None if waste is None else waste.minimum_limit_bytes, ""
    if waste is not None and least is not None and least != waste.safe_limit_bytes:
        others = (
            f"; some limits of the pool from {format_bytes(least)} on also work, others"
            " do not"
        )

    verb = (
        "Needs"
        if report.error is None
        else "To reach the failed request, the step needs"
    )

    total = format_bytes(need.total.bytes)
    yield f"{verb} {total} = {' + '.join(_parts_of(need))}{others}."

    if len(need.phases) > 1:
        peaks = (
            f"{name} {format_bytes(most.bytes)}" for name, most in need.phases.items()
        )
        yield f"Requested at most: {', '.join(peaks)}."

    processes = verdict.processes
    if (
        processes and processes > 1
    ):  # each with a CUDA context; a growing pool may take more
        yield (
            f"{processes} such processes fit on the card at once, if each limits "
            f"TensorFlow's pool to {format_bytes(need.pool.range.high)}; without a "
            "limit the first one takes the card."
        )

    if need.skipped_bytes:
        yield (
            f"Trials of algorithms would take {format_bytes(need.skipped_bytes)} more; "
            "TensorFlow skips those that do not fit."
        )

    if need.pool.bytes < report.peak.allocated_bytes:
        yield (
            f"The pool needs less than the {format_bytes(report.peak.allocated_bytes)} "
            "allocated: under a lower limit the allocator wastes less of each chunk."
        )


def _parts_of(need: Need) -> Iterator[str]:
    pool_bytes, own_bytes, phase = (
        need.pool.bytes,
        need.own_peak_bytes,
        need.largest_phase,
    )

    if own_bytes is None or own_bytes > pool_bytes:
        yield f"{format_bytes(need.phases[phase].bytes)} requested {_PHASES[phase]}"
        yield f"{format_bytes(need.allocator.bytes)} rounding and fragmentation"
    else:
        yield f"{format_bytes(own_bytes)} TensorFlow's own peak (get_memory_info)"
        if own_bytes < pool_bytes:
            yield f"{format_bytes(pool_bytes - own_bytes)} fragmentation of its pool"

    if need.beside_pool is not None:
        beside = format_bytes(need.beside_pool.bytes)
        yield f"{beside} beside TensorFlow's pool (context, libraries)"


def reason_words(report: ReportFile) -> Iterator[str]:
    """Yield sources and assumptions: of the card, the range, a simulated card."""
    verdict, need = report.verdict, _need_of(report)
    if verdict is not None and need is not None and need.beside_pool is not None:
        limit = format_bytes(verdict.pool_limit_bytes or 0)
        yield (
            f"TensorFlow's limit for its pool on {verdict.card} is {limit}: the card's "
            "memory less the CUDA context and a reserve."
        )
        yield (
            f"Context, cuBLAS, cuDNN and loaded kernels take about {need.beside_pool} "
            "beside the pool, from public reports, not measured."
        )

    yield from () if report.uncertainty is None else report.uncertainty.because

    for one in () if report.phantom is None else report.phantom.settings:
        if not one.value:
            continue

        write = format_bytes if one.is_bytes else str
        value, usual, most = map(write, (one.value, one.usual, one.most))
        yield (
            f"Assumed ({one.name}): {one.what}: {value}; default {usual}, at "
            f"most {most} ({one.source})."
        )


def error_line(message: str) -> str:
    """Return the line with an error's message; TensorFlow writes the places of the call first."""
    lines = [line.strip() for line in str(message).splitlines()]
    places = ('File "', "Detected at node", "Graph execution error", "[[{{", "Hint:")
    messages = [line for line in lines if line and not line.startswith(places)]
    chosen = (
        [line for line in messages if "OOM when" in line] or messages[-1:] or lines[:1]
    )
    line = chosen[0] if chosen else ""
    return line if len(line) <= _LONGEST_ERROR else f"{line[:_LONGEST_ERROR]}…"


def saving_words(finding: Finding) -> str:
    """Return the saving of a finding with the kind of bytes; empty if unknown."""
    if not finding.saves_bytes:
        return ""

    kind = (
        "of the memory limit" if finding.saves_kind == "limit" else finding.saves_kind
    )
    return f"saves up to {format_bytes(finding.saves_bytes)} {kind}"


def remedy_words(remedy: StepRemedy) -> tuple[str, str]:
    """Return the saving of a remedy as a short label, and the rest in words."""
    saves_bytes = remedy.saves_bytes
    if saves_bytes is None or remedy.requested_bytes is None:
        return "-", f"cannot be applied here: {remedy.failed}"

    label = f"saves {format_bytes(saves_bytes)}"
    if saves_bytes < 0:
        label = signed_bytes(-saves_bytes)
    elif saves_bytes == 0:
        label = "saves nothing"

    parts = [f"peak {format_bytes(remedy.requested_bytes)}"]
    if remedy.fits is not None:
        parts.append("fits the limit" if remedy.fits else "does not fit the limit")
    if remedy.costs:
        parts.append(f"costs: {remedy.costs}")

    if remedy.patch:
        parts.append(f"patch: {remedy.patch}")
    elif remedy.no_patch:
        parts.append(f"patch: none. {remedy.no_patch}")

    return label, "; ".join(filter(None, parts))


def peak_limit_words(peak_bytes: int, limit_bytes: int) -> str:
    """Return one sentence that compares an allocated peak with the allowed maximum."""
    peak, limit = format_bytes(peak_bytes), format_bytes(limit_bytes)
    if peak_bytes > limit_bytes:
        by = format_bytes(peak_bytes - limit_bytes)
        return f"The allocated peak of {peak} is above the limit of {limit} by {by}."

    return f"The allocated peak of {peak} is within the limit of {limit}."


OUTCOME_TONES: Final[dict[Outcome, Tone]] = {
    Outcome.FITS: "good",
    Outcome.DOES_NOT_FIT: "bad",
    Outcome.FAILED: "bad",
    Outcome.CANNOT_TELL: "warning",
}


def category_tone(category: str) -> Tone:
    """Return the colour of a category."""
    return cast("Tone", str(category))  # each category is a tone


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The answer of a report in words: ``basis`` is ``measured``, ``predicted`` or ``simulated``.

    ``notices`` are warnings to read before any figure; ``sentences`` have basis, place and range of the
    peak; ``reasons`` are sources and assumptions. ``shares`` has the name, label, bytes and ratio of
    each category at the requested peak.
    """

    headline: str
    tone: Tone
    basis: str
    notices: tuple[str, ...]
    need: tuple[str, ...]
    sentences: tuple[str, ...]
    reasons: tuple[str, ...]
    figures: tuple[Figure, ...]
    shares: tuple[tuple[str, str, int, float], ...]


def summarize(report: ReportFile) -> Summary:
    """Return the summary of a report; a report of an earlier version may lack a verdict."""
    verdict, integrity = report.verdict, report.integrity
    headline = f"Peak {format_bytes(report.peak.allocated_bytes)} allocated"
    tone: Tone = "strong"
    notices = [] if integrity is None else list(integrity.says)
    if verdict is not None:
        headline = verdict.headline
        tone = OUTCOME_TONES.get(verdict.outcome, "strong")
        if verdict.cautions:
            notices.append(f"Caution: {'; '.join(verdict.cautions)}.")

    sentences = (
        basis_words(report),
        place_words(report),
        *peak_notes(report),
        *program_words(report.program, is_compiled=report.step.jit is True),
        range_words(report),
        "" if integrity is None else integrity.replay_says,
    )

    basis = _basis_of(report)

    return Summary(
        headline=headline,
        tone=tone,
        basis="simulated" if basis is Basis.PHANTOM else basis.value,
        notices=tuple(notices),
        need=tuple(need_words(report)),
        sentences=tuple(filter(None, sentences)),
        reasons=(*reason_words(report), *report.notes),
        figures=tuple(_figures(report)),
        shares=tuple(_shares(report)),
    )


def _shares(report: ReportFile) -> Iterator[tuple[str, str, int, float]]:
    sizes = report.categories_at_peak.by_category()
    total = sum(sizes.values())
    for name, size_bytes in sizes.items():
        if size_bytes:
            yield name, CATEGORY_LABELS[name], size_bytes, size_bytes / total


def _figures(report: ReportFile) -> Iterator[Figure]:
    """Yield the need and the limit first, then the other numbers in a fixed order."""
    peak, verdict = report.peak, report.verdict
    has_need = verdict is not None and verdict.need_bytes is not None
    if verdict is not None and has_need:
        own_bytes = None if verdict.need is None else verdict.need.own_peak_bytes
        path = "verdict.need.own_peak_bytes"
        yield Figure(
            "TensorFlow's own peak", own_bytes, "by get_memory_info", path, is_main=True
        )
        meaning = "largest memory of the process"
        if report.error:
            meaning = "least memory that reaches the failed request"

        is_main = own_bytes is None
        yield Figure(
            "needs", verdict.need_bytes, meaning, "verdict.need_bytes", is_main
        )
        on_card = verdict.limit_of == "card"
        meaning = (
            f"memory of {verdict.card}" if on_card else "the given limit of the pool"
        )
        yield Figure("limit", verdict.limit_bytes, meaning, "verdict.limit_bytes")

    meaning = "bytes that live tensors asked for"
    yield Figure("requested", peak.requested_bytes, meaning, "peak.requested_bytes")
    meaning = "bytes of the chunks that hold them"
    yield Figure(
        "allocated", peak.allocated_bytes, meaning, "peak.allocated_bytes", not has_need
    )
    meaning = "bytes that the allocator took from the driver"
    yield Figure("pool", peak.pool_bytes, meaning, "peak.pool_bytes")
