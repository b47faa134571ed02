"""The answer of a report in words: verdict, number and action first, then the details.

Every output begins with the same three lines. Notices warn of figures that may be wrong. The details
are for ``-v`` and the page.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from analyzer.model.contract.reading import read_table
from analyzer.model.contract.report_file import (
    CardUse,
    Kind,
    LifePhase,
    Need,
    Outcome,
    ProgramFigures,
    ReportFile,
    StatedRange,
)
from analyzer.model.units import format_bytes
from analyzer.report.actions import find_action, suggest_next
from analyzer.report.render.sections import Tone

_LONGEST_ERROR = 300  # characters

CATEGORY_LABELS = read_table("report/labels.toml", dict[str, dict[str, str]])[
    "category"
]

_PHASES = {
    LifePhase.BEFORE_TRACE: "outside the trace",
    LifePhase.BUILDING: "while the model is built",
    LifePhase.FIRST_STEP: "in the first step",
    LifePhase.STEADY_STEP: "in the steady step",
}

# The phases of a program, whose first steps come before the traced ones.
_OF_PROGRAM = {
    LifePhase.BEFORE_TRACE: "outside the traced steps",
    LifePhase.BUILDING: "before the traced steps",
    LifePhase.FIRST_STEP: "in the first traced step",
    LifePhase.STEADY_STEP: "in the later traced steps",
}

_TONES: dict[Outcome, Tone] = {
    Outcome.FITS: "good",
    Outcome.DOES_NOT_FIT: "bad",
    Outcome.FAILED: "bad",
    Outcome.CANNOT_TELL: "warning",
}

_LARGEST = 3  # categories in a verdict
LEAST_RATIO = 0.01  # of the peak, of a category that is shown


def answer_lines(report: ReportFile) -> tuple[str, str, str]:
    """Return the verdict, one number for the reader's machine, and one thing to do."""
    return verdict_line(report), _number_line(report), find_action(report)


def add_answer(report: ReportFile) -> ReportFile:
    """Return a report with its three lines and its next command, which follow from the rest."""
    return replace(
        report,
        answer=answer_lines(report),
        next_command=suggest_next(report),
    )


def answer_tone(report: ReportFile) -> Tone:
    """Return the tone of the verdict."""
    usual: Tone = "bad" if _find_growth(report) else "strong"

    return _TONES.get(report.verdict.outcome, usual)


def has_limit(report: ReportFile) -> bool:
    """Return whether the verdict is about a limit, or about a step that failed."""
    verdict = report.verdict
    return verdict.limit_bytes is not None or verdict.outcome is Outcome.FAILED


def verdict_line(report: ReportFile) -> str:
    """Return whether the step fits or why it failed, else whether memory grows, else who takes it."""
    if has_limit(report):
        return report.verdict.headline

    program = report.program
    if program and program.whole_run and program.ended:
        return f"The program ended with {program.ended}, and no step was found."

    growth, is_known = _describe_growth(report)
    if is_known:
        return growth

    start = ""
    if program and program.whole_run:
        start = "No step was found. "

    return start + _largest_categories(report)


def _find_growth(report: ReportFile) -> str:
    """Return the title of the first finding of growth; empty without one."""
    titles = (one.title for one in report.findings if " grows by " in one.title)
    return next(titles, "")


def _describe_growth(report: ReportFile) -> tuple[str, bool]:
    """Return a sentence on a program's growth, and whether it is known; empty if nothing is said.

    A loop that keeps its models grows with each model, not with each step.
    """
    program = report.program
    if program is None or program.whole_run:
        return "", False

    if growth := _find_growth(report):
        return f"Leak: {growth[0].lower()}{growth[1:]}.", True
    if any(one.id == "models-kept" for one in report.findings):
        return "", False

    device = program.device
    steps = f"{program.steps:,} steps"

    if device.trend == "fills":
        return "No leak: memory rises only while a container with a bound fills.", True
    is_flat = device.trend == "flat"

    if is_flat and device.low_bytes <= 0:
        return f"No leak in {steps}: memory in use does not grow.", True

    is_bounded = is_flat or device.low_bytes <= 0 < device.high_bytes
    if is_bounded and device.level_bytes:
        return f"No sign of a leak in {steps}.", is_flat

    return f"Cannot tell if memory grows in {steps}.", False


def _largest_categories(report: ReportFile) -> str:
    shares = sorted(list_shares(report), key=lambda row: -row[2])
    parts = []

    for _, label, _, ratio in shares[:_LARGEST]:
        if ratio >= LEAST_RATIO:
            parts.append(f"{label.lower()} {ratio:.0%}")

    peak = format_bytes(report.peak.requested_bytes)

    what = "heap and stack" if report.device.kind == "tpu" else "tensors"

    larger = ("larger-call", "later-steps")
    has_larger = any(one.id in larger for one in report.findings)
    start = "The traced steps peak at" if has_larger else "Peak"

    return f"{start} {peak} of {what}: {', '.join(parts)}."


def _number_line(report: ReportFile) -> str:
    """Return the need with its parts; on a CPU, the memory of the process of a program."""
    need = report.verdict.need
    program = report.program
    device = report.device

    if program is not None and device.kind == "cpu" and not has_limit(report):
        most = report.peak_ever.since_start_bytes or report.peak.allocated_bytes
        if program.process_peak_bytes > most:
            return (
                f"The process takes up to {format_bytes(program.process_peak_bytes)}: "
                f"at most {format_bytes(most)} allocated for tensors, libraries and data the rest."
            )

    if need is None:
        return _least_need(report)

    parts = list(_parts_of(report, need))
    total = format_bytes(need.total.bytes)

    if report.error is not None:
        return "The step ended early: these figures lack its later requests."

    when = _highest_place(report)
    if has_limit(report):  # the verdict has the sum
        return f"That is {' + '.join(parts)}{when}."

    if len(parts) == 1:
        return f"Needs {total}, TensorFlow's own peak (get_memory_info){when}."

    return f"Needs {total} = {' + '.join(parts)}{when}."


def _least_need(report: ReportFile) -> str:
    """Return the highest allocated peak of a trace, with the limit of its card."""
    ever = report.peak_ever
    size = ever.allocated_bytes
    device = report.device
    limit = ""

    if device.kind == "tpu":
        whole = format_bytes(device.memory_limit_bytes or 0)
        return f"Heap and stack take {format_bytes(size)} of {whole} of {device.name}."

    if device.kind == "gpu" and device.memory_limit_bytes is not None:
        of = format_bytes(device.memory_limit_bytes)
        user = "XLA's allocator" if report.step.is_jax else "TensorFlow"
        limit = f" of the {of} that {user} may use on {device.name}"

    start = ever.since_start_bytes
    earlier = ""

    if start and start > size:
        before = format_bytes(start)
        earlier = f"; before the trace the process had up to {before} allocated"

    return f"Takes up to {format_bytes(size)}{limit}{_highest_place(report)}{earlier}."


def _highest_place(report: ReportFile) -> str:
    """Return when the highest peak was reached; empty if the step shown has it, not by a trial."""
    ever = report.peak_ever
    need = report.verdict.need

    if need and need.largest_phase is LifePhase.BEFORE_TRACE:
        outside = _phase_words(report, need.largest_phase)
        return f", reached {outside}" if _is_own_peak(need) else ""

    is_higher = ever.allocated_bytes > report.peak.allocated_bytes
    place, by, trials = ever.phase.partition(" by ")
    if not is_higher and not by:
        return ""

    end = ""
    if by:
        end = f". {trials.capitalize()} reach it, and are skipped if they do not fit"

    if by and need and need.without_trials_bytes is not None:
        beside_bytes = need.beside_pool.bytes if need.beside_pool else 0
        least = format_bytes(need.without_trials_bytes + beside_bytes)
        end += f"; without them it needs {least}"

    # The parts of a need have the phase.
    if place.startswith("step") or (need is not None and not _is_own_peak(need)):
        return end

    return f", reached {place}{end}"


def _is_own_peak(need: Need) -> bool:
    """Return whether TensorFlow's own peak decides, not the peaks of the steps."""
    own_bytes = need.own_peak_bytes
    return own_bytes is not None and own_bytes <= need.pool.bytes


def step_peak_words(report: ReportFile) -> str:
    """Return the peak of the step shown; empty if about the same bytes decide the need."""
    need = report.verdict.need
    if need is None:
        return ""

    shown_bytes = report.peak.requested_bytes
    told_bytes = need.phases[need.largest_phase].bytes
    if told_bytes * (1 - LEAST_RATIO) <= shown_bytes:
        return ""

    where = _phase_words(report, LifePhase.STEADY_STEP)
    if report.error is not None:
        where = "in the step that failed"

    return f"{format_bytes(shown_bytes)} requested {where}"


def _phase_words(report: ReportFile, phase: LifePhase) -> str:
    return (_PHASES if report.program is None else _OF_PROGRAM)[phase]


def _parts_of(report: ReportFile, need: Need) -> Iterator[str]:
    pool_bytes = need.pool.bytes
    own_bytes = need.own_peak_bytes or 0
    phase = need.largest_phase

    if not _is_own_peak(need):
        size = format_bytes(need.phases[phase].bytes)
        yield f"{size} requested {_phase_words(report, phase)}"
        yield f"{format_bytes(need.allocator.bytes)} rounding and fragmentation"
    else:
        yield f"{format_bytes(own_bytes)} TensorFlow's own peak (get_memory_info)"

        if own_bytes < pool_bytes:
            yield f"{format_bytes(pool_bytes - own_bytes)} fragmentation of its pool"

    if need.beside_pool is not None:
        yield f"{format_bytes(need.beside_pool.bytes)} beside TensorFlow's pool"


def notices_of(report: ReportFile) -> tuple[str, ...]:
    """Return warnings to read before any figure."""
    integrity = report.integrity
    notices = [] if integrity is None else list(integrity.says)

    growth, is_known = _describe_growth(report)
    if not is_known or (has_limit(report) and _find_growth(report)):
        notices.append(growth)

    return tuple(filter(None, (*notices, *report.warnings)))


def step_words(report: ReportFile) -> str:
    """Return how the step runs: mode, batch size, optimizer, XLA, dtype policy."""
    step = report.step

    # A program may train and validate.
    mode = "" if step.is_jax or report.program is not None else step.mode
    batch = f"batch {step.batch_size}" if step.batch_size else ""

    compiled = {True: "XLA", False: "op by op", None: ""}[step.jit]
    policy = step.dtype_policy if step.dtype_policy != "float32" else ""

    return ", ".join(filter(None, (mode, batch, step.optimizer, compiled, policy)))


def versions_line(versions: Mapping[str, str]) -> str:
    """Return the versions as one line."""
    return " · ".join(f"{name} {version}" for name, version in versions.items())


def basis_words(report: ReportFile) -> str:
    """Return whether the figures were measured or predicted, and for which device."""
    preposition = "on" if report.kind is Kind.TRACE else "for"
    device = report.device.name or report.device.kind or "an unnamed device"

    return f"{report.kind.basis} {preposition} {device}"


def list_shares(report: ReportFile) -> list[tuple[str, str, int, float]]:
    """Return name, label, bytes and ratio of each category at the requested peak."""
    sizes = report.categories_at_peak.by_category()
    total = sum(sizes.values())

    return [
        (name, CATEGORY_LABELS[name], size_bytes, size_bytes / total)
        for name, size_bytes in sizes.items()
        if size_bytes
    ]


def list_details(report: ReportFile) -> Iterator[str]:
    """Yield sentences on the figures: their place and range, and the program's steps."""
    yield _place_words(report)
    if report.cards:
        yield _card_words(report.cards)

    if report.program is not None:
        yield from _program_details(report.program)

    stated = report.uncertainty
    if stated and stated.low_bytes is not None:
        yield _range_words(stated, report.verdict.need)


def _place_words(report: ReportFile) -> str:
    """Return the peaks, and the phase, op, layer and line of the requested one."""
    peak = report.peak
    place = f", reached by {peak.op}" if peak.op else ""

    layer = f"layer {peak.layer}" if peak.layer else ""
    about = ", ".join(filter(None, (layer, peak.source)))
    if about:
        place += f" ({about})"

    allocated = f"{format_bytes(peak.allocated_bytes)} allocated"
    if report.device.kind == "tpu":
        return f"The peak is {allocated}{place}."

    requested = format_bytes(peak.requested_bytes)

    return f"The peak is {requested} requested{place}; {allocated}."


def _card_words(cards: Sequence[CardUse]) -> str:
    """Return the lowest and the highest peak of several cards, and the one that the report shows."""
    peaks = [use.allocated_bytes for use in cards]
    ends = dict.fromkeys((format_bytes(min(peaks)), format_bytes(max(peaks))))
    shown = next((use.number for use in cards if use.is_shown), "none")

    return (
        f"{len(cards)} cards allocate at most {' to '.join(ends)} each; this report shows "
        f"card {shown}."
    )


def _program_details(program: ProgramFigures) -> Iterator[str]:
    """Yield the definition of a step."""
    if program.whole_run:
        yield "No step was found, so the whole run counts as one."
        return

    end = f"; the program ended with {program.ended}" if program.ended else ""
    where = f" ({program.where})" if program.where else ""
    yield f"The program ran {program.steps:,} steps of {program.step}{where}{end}."


def _range_words(stated: StatedRange, need: Need | None) -> str:
    """Return the range of a prediction."""
    ranges = [
        ("requested", stated.low_bytes, stated.high_bytes),
        ("allocated", stated.allocated_low_bytes, stated.allocated_high_bytes),
    ]

    if need is not None and not need.total.range.is_exact:
        ranges.append(("need", need.total.range.low, need.total.range.high))

    parts = []

    for name, low, high in ranges:
        if low is not None and high is not None:
            ends = dict.fromkeys((format_bytes(low), format_bytes(high)))
            parts.append(f"{name} {' to '.join(ends)}")

    return f"Likely range: {', '.join(parts)}."


def list_reasons(report: ReportFile) -> Iterator[str]:
    """Yield sources and assumptions: of the card, the range, a simulated card; then notes."""
    need = report.verdict.need
    if need and need.beside_pool is not None:
        yield (
            f"Context, cuBLAS, cuDNN and loaded kernels take about {need.beside_pool} "
            "beside the pool, from public reports, not measured."
        )

    if report.uncertainty is not None:
        yield from report.uncertainty.because

    settings = () if report.simulated_card is None else report.simulated_card.settings

    for one in settings:
        if one.value != one.usual:
            write = format_bytes if one.is_bytes else str
            value, most = map(write, (one.value, one.most))

            yield (
                f"Assumed ({one.name}): {one.what}: {value}, at most {most} "
                f"({one.source})."
            )

    yield from report.notes


def error_line(message: str) -> str:
    """Return the line with an error's message; TensorFlow writes the places of the call first."""
    lines = [line.strip() for line in str(message).splitlines()]

    places = ('File "', "Detected at node", "Graph execution error", "[[{{", "Hint:")
    messages = [line for line in lines if line and not line.startswith(places)]
    out_of_memory = [line for line in messages if "OOM when" in line]
    line, *_ = out_of_memory or messages[-1:] or lines[:1] or [""]

    return line if len(line) <= _LONGEST_ERROR else f"{line[:_LONGEST_ERROR]}…"


def peak_limit_words(peak_bytes: int, limit_bytes: int) -> str:
    """Return one sentence that compares a requested peak with the allowed maximum."""
    peak = format_bytes(peak_bytes)
    limit = format_bytes(limit_bytes)

    if peak_bytes > limit_bytes:
        by = format_bytes(peak_bytes - limit_bytes)
        return f"The requested peak of {peak} is above the limit of {limit} by {by}."

    return f"The requested peak of {peak} is within the limit of {limit}."
