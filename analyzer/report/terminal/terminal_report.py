"""The report as tables in the terminal. Computes nothing: every number is the report's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.units import format_bytes
from analyzer.report.integrity_words import damage_lines, how_measured, replay_line
from analyzer.report.render.terminal import Prose
from analyzer.report.report_words import (
    assumed_words,
    card_words,
    closer_words,
    highest_words,
    island_words,
    need_range_words,
    program_words,
    saving_words,
    step_words,
    trial_words,
)
from analyzer.report.terminal.fitted_tables import whole_numbers
from analyzer.report.terminal.hosts_table import hosts_lines, hosts_table
from analyzer.report.terminal.remedies_section import remedies_section
from analyzer.report.terminal.terminal_tables import (
    categories_table,
    layers_table,
    steps_table,
    tensors_table,
)
from analyzer.report.untrusted import printable

_OUTCOMES: Final = {
    "fits": "bold green",
    "does not fit": "bold red",
    "failed": "bold red",
    "cannot tell": "bold yellow",
}
_SEVERITIES: Final = {"high": "bold red", "medium": "yellow", "low": "cyan", "info": "dim"}


def print_document(report: ReportFile, console: Console) -> None:
    """Print the whole report."""
    console.print(render(report, console.width), markup=False)


def render(report: ReportFile, width: int = 100) -> RenderableType:
    """Return the report as one renderable, ``width`` columns wide: the answer first, its basis last."""
    parts: list[RenderableType] = [*_head(report)]
    if report.hosts is not None:
        parts.extend(hosts_lines(report.hosts))
    parts.extend(_peak(report, width))
    parts.extend(_program(report))
    parts.extend(_range(report))
    parts.extend(_need(report))
    parts.extend(_what_if(report))
    if report.hosts is not None:
        parts.append(hosts_table(report.hosts, width))
    parts.append(categories_table(report, width))
    parts.append(steps_table(report, width))
    parts.append(tensors_table(report, width))
    layers = layers_table(report, width)
    if layers is not None:
        parts.append(layers)
    parts.extend(_findings(report, width))
    parts.extend(remedies_section(report.remedies))
    parts.extend(_basis(report))
    return Group(*map(whole_numbers, parts))


def _head(report: ReportFile) -> Iterable[RenderableType]:
    """Yield the verdict, what to doubt, and what was looked at: three lines."""
    if report.phantom is not None:
        yield Text(printable(report.phantom.says, 200), style="bold")
    yield from _damages(report)
    verdict = report.verdict
    if verdict is not None and (verdict.limit_bytes is not None or verdict.outcome == "failed"):
        style = _OUTCOMES.get(verdict.outcome, "bold")
        yield Text(printable(verdict.headline, 400), style=style)
    if verdict is not None and verdict.cautions:
        doubts = "; ".join(printable(each, 200) for each in verdict.cautions)
        yield Text(f"! Caution: {doubts}", style="yellow")
    target = printable(report.target.text, 60)
    yield Text.assemble((f"{target}  ", "bold"), (printable(step_words(report), 200), "dim"))
    error = report.error
    if error is not None:
        first = error.message.splitlines()[:1]
        where = f" at {printable(error.where, 200)}" if error.where else ""
        yield Text(
            f"The step ended with {printable(error.type, 60)}: "
            f"{printable(first[0] if first else '', 400)}{where}",
            style="bold red",
        )


def _peak(report: ReportFile, width: int) -> Iterable[RenderableType]:
    peak, device = report.peak, report.device
    how = how_measured(report)
    line = Text.assemble(
        ("Peak ", ""),
        (format_bytes(peak.requested_bytes), "bold"),
        (" requested by tensors, ", ""),
        (format_bytes(peak.allocated_bytes), "bold"),
        (" allocated in chunks", ""),
    )
    if peak.pool_bytes is not None:
        line.append(", ")
        line.append(format_bytes(peak.pool_bytes), "bold")
        line.append(" in the pool")
    line.append(f" ({how} on {printable(device.name, 40)})")
    yield line
    where = "no named op" if not peak.op else printable(peak.op, max(width - 30, 40))
    layer = f", layer {printable(peak.layer, 40)}" if peak.layer else ""
    source = f", {printable(peak.source, 60)}" if peak.source else ""
    step = "" if peak.step is None else f"in step {peak.step}, "
    yield Text(f"reached {step}by {where}{layer}{source}", style="dim")
    if peak.instant != peak.allocated_instant:
        yield Text(
            "Requested and allocated bytes peak at different instants; the categories are those of "
            "the requested peak.",
            style="dim",
        )
    ever = report.peak_ever
    if ever is None:
        return
    highest = format_bytes(ever.allocated_bytes)
    if highest != format_bytes(peak.allocated_bytes):
        yield Text(
            f"Higher outside the steady step: {highest} allocated ({ever.phase}).",
            style="yellow",
        )
    for sentence in (*trial_words(report), *card_words(report)):
        yield Text(printable(sentence, 300), style="yellow")


def _program(report: ReportFile) -> Iterable[RenderableType]:
    """Yield what the program's steps did over all of them."""
    if report.program is not None:
        for sentence in program_words(report.program):
            yield Text(printable(sentence, 300))


def _damages(report: ReportFile) -> Iterable[RenderableType]:
    """Yield what has to be known before any figure of a damaged trace."""
    for line in damage_lines(report):
        yield Text(f"! {printable(line, 600)}", style="bold yellow")


def _range(report: ReportFile) -> Iterable[RenderableType]:
    stated = report.uncertainty
    if stated is None or stated.low_bytes is None or stated.high_bytes is None:
        return
    allocated = ""
    if stated.allocated_low_bytes is not None and stated.allocated_high_bytes is not None:
        allocated = (
            f"; allocated {format_bytes(stated.allocated_low_bytes)} to "
            f"{format_bytes(stated.allocated_high_bytes)}"
        )
    need = need_range_words(report)
    yield Text(
        f"Likely range: requested {format_bytes(stated.low_bytes)} to "
        f"{format_bytes(stated.high_bytes)}{allocated}{f'; least limit {need}' if need else ''}"
    )


def _need(report: ReportFile) -> Iterable[RenderableType]:
    waste = report.fragmentation
    parts = None if waste is None else waste.safe_limit_parts
    if waste is None or parts is None or waste.safe_limit_bytes is None:
        return
    what = "Needs" if report.error is None else "Getting as far needs"
    yield Text(
        f"{what} a memory limit of {format_bytes(waste.safe_limit_bytes)} = "
        f"{format_bytes(parts.requested_bytes)} requested{highest_words(report)} + "
        f"{format_bytes(parts.rounding_bytes)} rounding + "
        f"{format_bytes(parts.unsplit_bytes)} unsplit chunks + "
        f"{format_bytes(parts.external_bytes)} fragmentation (replayed{island_words(report)})"
    )
    if closer := closer_words(report):
        yield Text(closer, style="dim")


def _basis(report: ReportFile) -> Iterable[RenderableType]:
    """Yield what the figures rest on: warnings, what the range comes from, the card, notes."""
    lines = [("! ", printable(line, 400), "yellow") for line in report.warnings]
    because = () if report.uncertainty is None else report.uncertainty.because
    says = () if report.fit is None else report.fit.says
    lines += [
        ("- ", printable(line, 400), "dim") for line in (*says, *because, *assumed_words(report))
    ]
    lines += [("· ", printable(line, 400), "dim") for line in report.notes]
    if lines:
        yield Padding(Text("What the figures rest on", style="bold"), (1, 0, 0, 0))
    for mark, line, style in lines:
        yield Prose(Text(line, style=style), Text(mark, style=style))


def _what_if(report: ReportFile) -> Iterable[RenderableType]:
    if checked := replay_line(report):
        yield Text(printable(checked, 400), style="dim")
    replayed = report.what_if
    if replayed is None:
        return
    how = (
        f"limit {format_bytes(replayed.memory_limit_bytes)}, "
        f"growth {'on' if replayed.growth else 'off'}"
    )
    failure = replayed.failure
    if failure is None:
        yield Text(
            f"Replayed with {how}: runs, pool {format_bytes(replayed.peak_pool_bytes)}, "
            f"allocated {format_bytes(replayed.peak_allocated_bytes)}"
        )
        return
    yield Text(
        f"Replayed with {how}: a request for {format_bytes(failure.requested_bytes)} does not fit "
        f"beside {format_bytes(failure.in_use_bytes)} in use, with "
        f"{format_bytes(failure.free_bytes)} free "
        f"(largest piece {format_bytes(failure.largest_free_bytes)})",
        style="red",
    )


def _findings(report: ReportFile, width: int) -> Iterable[RenderableType]:
    findings = report.findings
    if not findings:
        return
    yield Padding(Text("Findings", style="bold"), (1, 0, 0, 0))
    for finding in findings:
        title = Text.assemble(
            (printable(finding.title, 400), "bold" if finding.severity == "high" else ""),
            (f"  {saving_words(finding)}" if finding.saves_bytes else "", "green"),
        )
        label = Text(f"{finding.severity:>6}  ", style=_SEVERITIES.get(finding.severity, ""))
        yield Prose(title, label)
        yield Padding(Text(printable(finding.detail, 2000), style="dim"), (0, 0, 0, 8))
