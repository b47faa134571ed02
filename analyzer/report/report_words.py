"""What the terminal, the page and Markdown say in the same words, taken from the document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from analyzer.model.contract.report.finding import Finding, Severity, StepRemedy
from analyzer.model.contract.report.limit_figures import NeedOf
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.run_figures import ProgramFigures
from analyzer.model.units import format_bytes, format_slope

FIRST: Final = 3
"""Findings on the page's first screen and in Markdown."""

_ALIKE: Final = 0.01
"""Share of the peak by which two runs' savings may differ and still be told as one."""

_TOLD: Final = 0.02
"""Share of the highest moment from which on the first step's trials are told."""


def front_findings(report: ReportFile) -> tuple[Finding, ...]:
    """Return the first findings that are more than notes, in the report's order."""
    return tuple(each for each in report.findings if each.severity is not Severity.INFO)[:FIRST]


def saving_words(finding: Finding) -> str:
    """Say what following a finding saves, and which kind of bytes; empty where nothing is known."""
    if not finding.saves_bytes:
        return ""
    what = {"limit": "of the memory limit"}.get(finding.saves_kind, finding.saves_kind)
    return f"saves up to {format_bytes(finding.saves_bytes)} {what}"


def remedy_words(remedy: StepRemedy) -> tuple[str, str]:
    """Return what a remedy saves, as a short label, and what else is said of it."""
    if remedy.saves_bytes is None or remedy.requested_bytes is None:
        return "-", f"cannot be applied here: {remedy.failed}"
    saves = format_bytes(remedy.saves_bytes)
    label = f"saves {saves}" if remedy.saves_bytes > 0 else f"{saves}"
    if remedy.saves_bytes < 0:
        label = f"+{format_bytes(-remedy.saves_bytes)}"
    told = [f"peak {format_bytes(remedy.requested_bytes)}"]
    if between := spread_words(remedy):
        told.append(between)
    if remedy.fits is not None:
        told.append("fits the limit" if remedy.fits else "does not fit the limit")
    if remedy.costs:
        told.append(f"costs: {remedy.costs}")
    return label, "; ".join(told)


def spread_words(remedy: StepRemedy) -> str:
    """Say between what a saving lies from one run to another, where the order of the ops decides it."""
    low, high = remedy.saves_low_bytes, remedy.saves_high_bytes
    saves, peak = remedy.saves_bytes, remedy.requested_bytes
    if low is None or high is None or saves is None or peak is None:
        return ""
    if high - low <= _ALIKE * (saves + peak):
        return ""
    least, most = (format_bytes(abs(end)) for end in (low, high))
    if low < 0 <= high:
        between = f"{most} less to {least} more"
    elif high < 0:
        between = f"{most} to {least} more"
    else:
        between = f"{least} to {most} less"
    return f"from run to run {between}, by the order of the ops"


def highest_words(report: ReportFile) -> str:
    """Say when the requested bytes of the need are reached, where it is not the steady step's peak."""
    waste = report.fragmentation
    reached = None if waste is None else waste.limit_reached_in
    return f" at the highest moment of all ({reached})" if reached else ""


def need_range_words(report: ReportFile) -> str:
    """Say between which sizes the least limit is likely to lie, or nothing where one is known."""
    verdict = report.verdict
    if verdict is None or verdict.need_low_bytes is None or verdict.need_high_bytes is None:
        return ""
    if verdict.need_of != NeedOf.LEAST_LIMIT or verdict.need_low_bytes == verdict.need_high_bytes:
        return ""
    return f"{format_bytes(verdict.need_low_bytes)} to {format_bytes(verdict.need_high_bytes)}"


def closer_words(report: ReportFile) -> str:
    """Say why the least limit is below the allocated peak, where it is; a sentence, or nothing.

    With less room the free chunks are smaller, so that fewer are handed out whole (a chunk is split only
    where it is twice the request), and what kernels merely try is skipped where it does not fit.
    """
    waste, allocated = report.fragmentation, report.peak.allocated_bytes
    if waste is None or waste.safe_limit_bytes is None or waste.safe_limit_bytes >= allocated:
        return ""
    return (
        f"The least limit is below the {format_bytes(allocated)} allocated: with less room, chunks are "
        "handed out closer to what is asked for."
    )


def island_words(report: ReportFile) -> str:
    """Say that some smaller limits work too, where they do; the word before it is *replayed*."""
    waste = report.fragmentation
    least = None if waste is None else waste.minimum_limit_bytes
    if waste is None or least is None or least == waste.safe_limit_bytes:
        return ""
    return f"; limits from {format_bytes(least)} up to that work only some of the time"


def trial_words(report: ReportFile) -> list[str]:
    """Say what of the highest moment the first step alone asks for; nothing where it is little."""
    ever = report.peak_ever
    if ever is None or ever.first_step_only_bytes < max(_TOLD * ever.requested_bytes, 1):
        return []
    return [
        f"Trials: {format_bytes(ever.first_step_only_bytes)} of the highest moment's "
        f"{format_bytes(ever.requested_bytes)} requested are what only the first step asks for, such as "
        "trials of algorithms."
    ]


def card_words(report: ReportFile) -> list[str]:
    """Say what each card held, where there were several."""
    lines = []
    for use in report.cards:
        named = f" ({use.card})" if use.card else ""
        limit = use.memory_limit_bytes
        lines.append(
            f"Card {use.number}{named}: peak {format_bytes(use.requested_bytes)} requested, "
            f"{format_bytes(use.allocated_bytes)} allocated"
            + (f", of a limit of {format_bytes(limit)}" if limit else "")
            + ("; the figures shown are this card's." if use.is_shown else ".")
        )
    return lines


def assumed_words(report: ReportFile) -> list[str]:
    """Say what is assumed of a card that is not there: the setting, its value, its bytes at the peak."""
    lines = []
    for one in () if report.phantom is None else report.phantom.settings:
        shown = format_bytes if one.is_bytes else str
        at_peak = f", {format_bytes(one.share_bytes)} of the peak" if one.share_bytes else ""
        lines.append(
            f"Assumed ({one.name}): {one.what}: {shown(one.value)}{at_peak}; "
            f"usual {shown(one.usual)}, at most {shown(one.most)} ({one.source})."
        )
    return lines


def peak_limit_words(peak_bytes: int, limit_bytes: int) -> str:
    """Return one sentence on whether an allocated peak keeps a limit.

    Args:
        peak_bytes: The peak.
        limit_bytes: The most that is allowed.
    """
    peak, limit = format_bytes(peak_bytes), format_bytes(limit_bytes)
    if peak_bytes > limit_bytes:
        by = format_bytes(peak_bytes - limit_bytes)
        return f"The allocated peak of {peak} is above the limit of {limit} by {by}."
    return f"The allocated peak of {peak} is within the limit of {limit}."


def program_words(program: ProgramFigures) -> list[str]:
    """Say what a step was, and whether what is held grows with the steps."""
    where = f" ({program.where})" if program.where else ""
    ended = f"; it ended by {program.ended}" if program.ended else ""
    lines = [f"{program.steps:,} steps, each {program.step}{where}{ended}"]
    for name, trend in (("in use", program.device), ("of the process, on the host", program.host)):
        if trend.trend == "cannot tell":
            if name == "in use":
                lines.append("From step to step: cannot tell whether what is in use grows.")
            continue
        what = "grow" if trend.trend == "grows" else "stay flat"
        slope = format_slope(trend.per_step_bytes, trend.low_bytes, trend.high_bytes)
        lines.append(
            f"From step to step: bytes {name} {what}, {slope}, steps {trend.first_step} to "
            f"{trend.last_step}"
        )
    return lines


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
