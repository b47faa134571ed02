"""The first screen of a report: the verdict, its figures and the categories, for every output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from analyzer.model.choice import Category
from analyzer.model.contract.report.limit_figures import Outcome
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.subject import Finding, ProgramFigures, StepRemedy
from analyzer.model.tables import read_table
from analyzer.model.units import format_bytes, format_slope
from analyzer.report.render.sections import Figure, Tone

_EQUAL_RATIO: Final = 0.01
"""Savings that differ by less than this share of the peak from run to run are shown as one number."""

_TRIALS_RATIO: Final = 0.02  # of the highest peak; larger trials of the first step are noted

_ORDERS_SHARE: Final = 0.005  # of the peak; smaller differences of orders are not noted
_LONGEST_ERROR: Final = 300  # characters

LABELS: Final = read_table("report/labels.toml", dict[str, dict[str, str]])
CATEGORY_LABELS: Final = LABELS["category"]
NOTES: Final = LABELS["note"]
CHECK_DOUBT: Final = NOTES["check"]


def step_words(report: ReportFile) -> str:
    """Return how the step runs: mode, batch size, optimizer, XLA, dtype policy."""
    step = report.step
    parts = (
        step.mode,
        f"batch {step.batch_size}" if step.batch_size else "",
        step.optimizer,
        {True: "XLA", False: "op by op", None: ""}[step.jit],
        step.dtype_policy if step.dtype_policy != "float32" else "",
    )
    return ", ".join(part for part in parts if part)


def versions_line(versions: Mapping[str, str]) -> str:
    """Return the versions as one line."""
    return " · ".join(f"{name} {version}" for name, version in versions.items())


def basis_words(report: ReportFile) -> str:
    """Return whether the figures were measured or predicted, and for which device."""
    basis = "measured" if report.kind.ran else "predicted"
    if report.verdict is not None:
        basis = str(report.verdict.basis)
    device = report.device.name or report.device.kind or "an unnamed device"
    return LABELS["basis"][basis].format(device=device)


def place_words(report: ReportFile) -> str:
    """Return the step, op, layer and source line of a step's peak; empty if all are unknown."""
    peak, program = report.peak, report.program
    is_run = program is not None and program.whole_run
    step = f" in {'traced ' if program else ''}step {peak.step}"
    place = "" if peak.step is None or is_run else step
    place += f" by {peak.op}" if peak.op else ""
    about = ", ".join(filter(None, (peak.layer and f"layer {peak.layer}", peak.source)))
    place += f" ({about})" if about else ""
    size = format_bytes(peak.requested_bytes)
    return (
        f"The {'run' if is_run else 'step'}'s peak, {size} requested, is reached{place}."
        if place
        else ""
    )


def peak_notes(report: ReportFile) -> Iterator[str]:
    """Yield notes on the peak: other instants, algorithm trials, further cards."""
    peak, ever = report.peak, report.peak_ever
    if peak.instant != peak.allocated_instant:
        yield NOTES["instants"]
    if (orders := report.other_orders) is not None and orders.width > _ORDERS_SHARE * orders.high:
        yield NOTES["orders"].format(format_bytes(orders.low), format_bytes(orders.high))
    if ever is not None:
        highest = format_bytes(ever.allocated_bytes)
        has_phases = report.verdict is not None and report.verdict.need is not None
        if highest != format_bytes(peak.allocated_bytes) and not has_phases:
            yield f"Outside the steady step the peak is higher: {highest} allocated ({ever.phase})."
        start = ever.since_start_bytes
        if start and start > ever.allocated_bytes and report.program is None:
            yield NOTES["before"].format(format_bytes(start), start / max(peak.allocated_bytes, 1))
        if ever.first_step_only_bytes >= max(_TRIALS_RATIO * ever.requested_bytes, 1):
            sizes = (ever.requested_bytes, ever.first_step_only_bytes)
            yield NOTES["first_step"].format(*map(format_bytes, sizes))
    for use in report.cards:
        name = f" ({use.card})" if use.card else ""
        limit = f", limit {format_bytes(use.memory_limit_bytes)}" if use.memory_limit_bytes else ""
        end = "; this report shows this card." if use.is_shown else "."
        yield (
            f"Card {use.number}{name}: peak {format_bytes(use.requested_bytes)} requested, "
            f"{format_bytes(use.allocated_bytes)} allocated{limit}{end}"
        )


def program_words(program: ProgramFigures | None, *, is_compiled: bool) -> Iterator[str]:
    """Yield the definition of a step, and whether memory grows over steps."""
    if program is None:
        return
    end = f"; the program ended with {program.ended}" if program.ended else ""
    if program.own_peak_bytes is not None:
        own = format_bytes(program.own_peak_bytes)
        yield f"TensorFlow's own peak since the program's start is {own} (get_memory_info)."
    if not is_compiled:  # one MNIST script took 22.8 to 30.0 MB in five runs
        yield "Ops run in parallel, so peaks differ from run to run: compare several runs."
    if program.whole_run:
        yield f"No call repeats often enough to be a step, so the whole run counts as one{end}."
        return
    where = f" ({program.where})" if program.where else ""
    yield f"The program ran {program.steps:,} steps of {program.step}{where}{end}."
    for name, trend in (("Device", program.device), ("Host", program.host)):
        if trend.trend != "cannot tell":
            slope = format_slope(trend.per_step_bytes, trend.low_bytes, trend.high_bytes)
            verb = _TRENDS.get(trend.trend, "does not grow")
            yield f"{name} memory {verb} over steps {trend.first_step} to {trend.last_step}: {slope}."
        elif name == "Device" and trend.level_bytes:
            yield f"Device memory has no clear trend over {program.steps:,} steps."
        elif name == "Device":
            yield "Too few steps to say whether device memory grows."
    if program.host_kinds:
        sizes = ((one.kind, format_bytes(round(one.per_step_bytes))) for one in program.host_kinds)
        kinds = ", ".join(f"{kind} {size} a step" for kind, size in sizes)
        yield f"Of the host's memory, these kinds are known: {kinds}."


def range_words(report: ReportFile) -> str:
    """Return the range of a prediction; empty for a measurement."""
    stated = report.uncertainty
    need = None if report.verdict is None else report.verdict.need
    if stated is None or stated.low_bytes is None:
        return ""
    ranges = [
        ("requested", stated.low_bytes, stated.high_bytes),
        ("allocated", stated.allocated_low_bytes, stated.allocated_high_bytes),
    ]
    if need is not None and not need.total.range.is_exact:
        ranges.append(("need", need.total.range.low, need.total.range.high))
    parts = (
        f"{name} {format_bytes(low)} to {format_bytes(high)}"
        for name, low, high in ranges
        if low is not None and high is not None
    )
    return f"Likely range: {', '.join(parts)}."


_TRENDS: Final = {"grows": "grows", "fills": "rises while a container with a bound fills"}


def need_words(report: ReportFile) -> Iterator[str]:
    """Yield the need with its parts, and how it compares to the allocated peak."""
    need, waste = None if report.verdict is None else report.verdict.need, report.fragmentation
    if need is None:
        return
    verb = "Needs" if report.error is None else "To reach the failed request, the step needs"
    phase, size = need.largest_phase, format_bytes
    parts = [f"{size(need.phases[phase].bytes)} requested {LABELS['phase'][phase]}"]
    parts.append(f"{size(need.allocator.bytes)} rounding and fragmentation")
    if need.own_peak_bytes is not None and need.own_peak_bytes <= need.pool.bytes:
        parts = [f"{size(need.own_peak_bytes)} TensorFlow's own peak (get_memory_info)"]
        if need.own_peak_bytes < need.pool.bytes:
            free_bytes = need.pool.bytes - need.own_peak_bytes
            parts.append(f"{size(free_bytes)} fragmentation of its pool")
    if need.beside_pool is not None:
        beside = size(need.beside_pool.bytes)
        parts.append(f"{beside} beside TensorFlow's pool (context, libraries)")
    least = None if waste is None else waste.minimum_limit_bytes
    others = ""
    if waste is not None and least is not None and least != waste.safe_limit_bytes:
        others = f"; some limits of the pool from {size(least)} on also work, others do not"
    yield f"{verb} {size(need.total.bytes)} = {' + '.join(parts)}{others}."
    if len(need.phases) > 1:
        peaks = (f"{phase} {size(most.bytes)}" for phase, most in need.phases.items())
        yield f"Requested at most: {', '.join(peaks)}."
    processes = report.verdict and report.verdict.processes
    if processes and processes > 1:  # each with a CUDA context; a growing pool may take more
        yield NOTES["processes"].format(processes, size(need.pool.range.high))
    if need.skipped_bytes:
        yield NOTES["skipped"].format(size(need.skipped_bytes))
    if need.pool.bytes < report.peak.allocated_bytes:
        yield NOTES["wastes_less"].format(size(report.peak.allocated_bytes))


def reason_words(report: ReportFile) -> Iterator[str]:
    """Yield sources and assumptions: of the card, the range, a simulated card."""
    yield from () if report.fit is None else report.fit.says
    yield from () if report.uncertainty is None else report.uncertainty.because
    for one in () if report.phantom is None else report.phantom.settings:
        write = format_bytes if one.is_bytes else str
        value, usual, most = map(write, (one.value, one.usual, one.most))
        at_peak = f", {format_bytes(one.share_bytes)} of the peak" if one.share_bytes else ""
        yield (
            f"Assumed ({one.name}): {one.what}: {value}{at_peak}; default {usual}, at most {most} "
            f"({one.source})."
        )


def error_line(message: str) -> str:
    """Return the line with an error's message; TensorFlow writes the places of the call first."""
    lines = [line.strip() for line in str(message).splitlines()]
    places = ('File "', "Detected at node", "Graph execution error", "[[{{", "Hint:")
    messages = [line for line in lines if line and not line.startswith(places)]
    chosen = [line for line in messages if "OOM when" in line] or messages[-1:] or lines[:1]
    line = chosen[0] if chosen else ""
    return line if len(line) <= _LONGEST_ERROR else f"{line[:_LONGEST_ERROR]}…"


def saving_words(finding: Finding) -> str:
    """Return the saving of a finding with the kind of bytes; empty if unknown."""
    if not finding.saves_bytes:
        return ""
    kind = "of the memory limit" if finding.saves_kind == "limit" else finding.saves_kind
    return f"saves up to {format_bytes(finding.saves_bytes)} {kind}"


def remedy_words(remedy: StepRemedy) -> tuple[str, str]:
    """Return the saving of a remedy as a short label, and the rest in words."""
    if remedy.saves_bytes is None or remedy.requested_bytes is None:
        return "-", f"cannot be applied here: {remedy.failed}"
    saves = format_bytes(remedy.saves_bytes)
    label = f"saves {saves}" if remedy.saves_bytes > 0 else saves
    if remedy.saves_bytes < 0:
        label = f"+{format_bytes(-remedy.saves_bytes)}"
    fits = {True: "fits the limit", False: "does not fit the limit", None: ""}[remedy.fits]
    costs = f"costs: {remedy.costs}" if remedy.costs else ""
    patch = remedy.patch or (f"none. {remedy.no_patch}" if remedy.no_patch else "")
    peak = f"peak {format_bytes(remedy.requested_bytes)}"
    parts = (peak, spread_words(remedy), fits, costs, f"patch: {patch}" if patch else "")
    return label, "; ".join(filter(None, parts))


def spread_words(remedy: StepRemedy) -> str:
    """Return how a saving varies from run to run, if the order of the ops changes it."""
    low, high = remedy.saves_low_bytes, remedy.saves_high_bytes
    saves, peak = remedy.saves_bytes, remedy.requested_bytes
    if low is None or high is None or saves is None or peak is None:
        return ""
    if high - low <= _EQUAL_RATIO * (saves + peak):
        return ""
    least, most = (format_bytes(abs(end)) for end in (low, high))
    between = f"{least} to {most} less" if low >= 0 else f"{most} to {least} more"
    if low < 0 <= high:
        between = f"{most} less to {least} more"
    return f"{between}, depending on the order of the ops in a run"


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


class Share(NamedTuple):
    """One category at the peak: its bytes and its share of the requested peak."""

    category: Category
    label: str
    size_bytes: int
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The answer of a report in words: ``basis`` is ``measured``, ``predicted`` or ``simulated``.

    ``notices`` are warnings to read before any figure; ``sentences`` have basis, place and range of the
    peak; ``reasons`` are sources and assumptions.
    """

    headline: str
    tone: Tone
    basis: str
    notices: tuple[str, ...]
    need: tuple[str, ...]
    sentences: tuple[str, ...]
    reasons: tuple[str, ...]
    figures: tuple[Figure, ...]
    shares: tuple[Share, ...]


def summarize(report: ReportFile) -> Summary:
    """Return the summary of a report; a report of an earlier version may lack a verdict."""
    verdict, integrity, basis = report.verdict, report.integrity, basis_words(report)
    cautions = verdict.cautions if verdict is not None else ()
    sentences = (
        basis,
        place_words(report),
        *peak_notes(report),
        *program_words(report.program, is_compiled=report.step.jit is True),
        range_words(report),
        "" if integrity is None else integrity.replay_says,
    )
    sizes = report.categories_at_peak.by_category()
    total = sum(sizes.values())
    peak = f"Peak {format_bytes(report.peak.allocated_bytes)} allocated"
    return Summary(
        headline=peak if verdict is None else verdict.headline,
        tone="strong" if verdict is None else OUTCOME_TONES.get(verdict.outcome, "strong"),
        basis=basis.split()[0].lower(),
        notices=(
            *(() if integrity is None else integrity.says),
            *((f"Caution: {'; '.join(cautions)}.",) if cautions else ()),
        ),
        need=tuple(need_words(report)),
        sentences=tuple(filter(None, sentences)),
        reasons=(*reason_words(report), *report.notes),
        figures=tuple(_figures(report)),
        shares=tuple(
            Share(category, CATEGORY_LABELS[category.value], size, size / total)
            for category in Category
            if (size := sizes[category.value])
        ),
    )


def _figures(report: ReportFile) -> Iterator[Figure]:
    """Yield the need and the limit first, then the other numbers in a fixed order."""
    peak, verdict = report.peak, report.verdict
    has_need = verdict is not None and verdict.need_bytes is not None
    if verdict is not None and has_need:
        meaning = "largest memory of the process"
        if report.error:
            meaning = "least memory that reaches the failed request"
        own_bytes = None if verdict.need is None else verdict.need.own_peak_bytes
        path = "verdict.need.own_peak_bytes"
        yield Figure("TensorFlow's own peak", own_bytes, "by get_memory_info", path, is_main=True)
        path, is_main = "verdict.need_bytes", own_bytes is None
        yield Figure("needs", verdict.need_bytes, meaning, path, is_main)
        on_card = verdict.limit_of == "card"
        meaning = f"memory of {verdict.card}" if on_card else "the given limit of the pool"
        yield Figure("limit", verdict.limit_bytes, meaning, "verdict.limit_bytes")
    for label, meaning, size_bytes in (
        ("requested", "bytes that live tensors asked for", peak.requested_bytes),
        ("allocated", "bytes of the chunks that hold them", peak.allocated_bytes),
        ("pool", "bytes that the allocator took from the driver", peak.pool_bytes),
    ):
        is_main = label == "allocated" and not has_need
        yield Figure(label, size_bytes, meaning, f"peak.{label}_bytes", is_main)
