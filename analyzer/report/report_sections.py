"""Build the document of a report: the answer first, then tables and findings, then its basis."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from analyzer.model.contract.report.peak_figures import StepPeak
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.subject import DevicePeak, HostsFigures
from analyzer.model.units import format_bytes, format_seconds
from analyzer.report.actions import change_items, observation_items, suggest_next
from analyzer.report.render.sections import (
    COLUMNS,
    Block,
    Cell,
    CellValue,
    Document,
    Paragraph,
    Section,
    Table,
    TableColumn,
    Tone,
)
from analyzer.report.summary import (
    Summary,
    basis_words,
    category_tone,
    peak_limit_words,
    step_words,
    summarize,
)

ROWS: Final = 12  # of a table in the terminal

_HOST_ROWS: Final = 10
_SHOWN_STEPS: Final = 6
_FRONT: Final = 3  # changes in Markdown
_SIZES: Final = (TableColumn("requested", "bytes"), TableColumn("allocated", "bytes"))


def report_document(report: ReportFile) -> Document:
    """Return a report as the terminal shows it."""
    summary, verdict = summarize(report), report.verdict
    has_answer = verdict is not None and (
        verdict.limit_bytes is not None or verdict.outcome == "failed"
    )

    return Document(
        report.target.text,
        summary.headline if has_answer else "",
        tone=summary.tone,
        subtitle=step_words(report),
        notices=summary.notices,
        lead=tuple(_lead(report, summary)),
        sections=tuple(_sections(report, summary)),
        next_command=suggest_next(report),
    )


def summary_document(report: ReportFile, max_peak_bytes: int | None = None) -> Document:
    """Return a report's summary for a pull request, with the highest allocated peak allowed."""
    summary = summarize(report)
    parts = (summary.need, summary.sentences)
    lead = [Paragraph(" ".join(part)) for part in parts if part]
    headline = summary.headline
    if max_peak_bytes is not None:
        lead.insert(0, Paragraph(headline, "strong"))
        headline = peak_limit_words(report.peak.allocated_bytes, max_peak_bytes)

    return Document(
        "",
        headline,
        notices=summary.notices,
        lead=(*lead, *_categories_section(report, summary).blocks),
        sections=tuple(front_sections(report)),
    )


def front_sections(report: ReportFile) -> Iterator[Section]:
    """Yield the first changes and the warnings of a report."""
    changes = change_items(report)
    if changes:
        items = tuple(
            replace(one, detail="") for one in changes[: len(report.remedies) + _FRONT]
        )
        yield Section("What to change", items)

    if report.warnings:
        yield Section("", tuple(Paragraph(line, "warning") for line in report.warnings))


def _lead(report: ReportFile, summary: Summary) -> Iterator[Block]:
    peak, error = report.peak, report.error
    if report.phantom is not None:
        yield Paragraph(f"{report.phantom.says}.", "strong")

    if error is not None:
        message = "".join(error.message.splitlines()[:1])
        where = f" at {error.where}" if error.where else ""
        yield Paragraph(f"The step ended with {error.type}: {message}{where}", "bad")

    if report.hosts is not None:
        yield from hosts_lead(report.hosts)

    yield from map(Paragraph, summary.need)

    pieces: list[str | tuple[str, Tone]] = [
        "Peak ",
        (format_bytes(peak.requested_bytes), "strong"),
        " requested by tensors, ",
        (format_bytes(peak.allocated_bytes), "strong"),
        " allocated in chunks",
    ]

    if peak.pool_bytes is not None:
        pieces += [", ", (format_bytes(peak.pool_bytes), "strong"), " in the pool"]

    basis = basis_words(report).rstrip(".").partition(";")[0]
    yield Paragraph((*pieces, f" ({basis[0].lower()}{basis[1:]})"))
    yield from (Paragraph(sentence, "muted") for sentence in summary.sentences[1:])
    for line in what_if_lines(report):
        yield Paragraph(
            line, "good" if report.what_if and report.what_if.fits else "bad"
        )


def what_if_lines(report: ReportFile) -> Iterator[str]:
    """Yield the outcome of a replay that the user asked for."""
    replayed = report.what_if
    if replayed is None:
        return

    limit, fraction = (
        format_bytes(replayed.memory_limit_bytes),
        replayed.fragmentation_fraction,
    )
    start = (
        f"Replayed with a limit of {limit}, memory growth "
        f"{'on' if replayed.growth else 'off'}"
    )
    if fraction:
        start += f", internal_fragmentation_fraction {fraction}"

    failure = replayed.failure
    if failure is None:
        pool = format_bytes(replayed.peak_pool_bytes)
        allocated = format_bytes(replayed.peak_allocated_bytes)
        yield f"{start}: the step runs; pool {pool}, allocated {allocated}."
        return

    yield (
        f"{start}: at instant {failure.instant:,} a request for "
        f"{format_bytes(failure.requested_bytes)} fails; "
        f"{format_bytes(failure.in_use_bytes)} are in use, "
        f"{format_bytes(failure.free_bytes)} are free, the largest free chunk has "
        f"{format_bytes(failure.largest_free_bytes)}."
    )


def _sections(report: ReportFile, summary: Summary) -> Iterator[Section]:
    if report.hosts is not None:
        yield hosts_section(report.hosts, _HOST_ROWS)

    yield _categories_section(report, summary)
    if report.steps:
        yield steps_section(report, _SHOWN_STEPS)

    yield tensors_section(report, ROWS)
    if any(row.layer for row in report.layers):
        yield layers_section(report, ROWS)

    changes, observations = change_items(report), observation_items(report)
    if changes:
        yield Section("What to change", changes)
    if observations:
        yield Section("Observations", observations)

    basis = [Paragraph(line, "warning", "! ") for line in report.warnings]
    basis += [Paragraph(line, "muted", "- ") for line in summary.reasons]
    if basis:
        yield Section("Sources and assumptions", tuple(basis))


def _categories_section(report: ReportFile, summary: Summary) -> Section:
    rows: list[tuple[CellValue, ...]] = []
    for name, label, size_bytes, ratio in summary.shares:
        size = Cell(size_bytes, path=f"categories_at_peak.{name}")
        rows.append((label, size, ratio, Cell(ratio, category_tone(name))))

    total = Cell(report.peak.requested_bytes, "strong", "peak.requested_bytes")
    rows.append((Cell("Requested", "strong"), total, None, None))
    return Section("", (Table(COLUMNS["categories"], tuple(rows)),))


def steps_section(report: ReportFile, most: int) -> Section:
    """Return the peak of each step; the first and the last ones if there are more than ``most``."""
    steps = tuple(enumerate(report.steps))
    is_timed = any(step.duration_s is not None for step in report.steps)
    shown = (
        steps if len(steps) <= most else (*steps[: most // 2], *steps[-(most // 2) :])
    )
    rows: list[tuple[CellValue, ...]] = []

    for place, step in shown:
        time: tuple[CellValue, ...] = ()
        if is_timed:
            seconds = step.duration_s
            time = (None if seconds is None else format_seconds(seconds),)

        rows.append((step.index, *_size_cells(step, f"steps.{place}"), *time))

    columns = [TableColumn("step", "number"), *_SIZES]
    if is_timed:
        columns.append(TableColumn("time", "number"))

    left = len(steps) - len(shown)
    caption = f"{left} steps in between are not shown" if left else ""
    return Section("Peak of each step", (Table(tuple(columns), tuple(rows), caption),))


def _size_cells(row: StepPeak | DevicePeak, place: str) -> tuple[Cell, Cell]:
    return (
        Cell(row.requested_bytes, path=f"{place}.requested_bytes"),
        Cell(row.allocated_bytes, path=f"{place}.allocated_bytes"),
    )


def tensors_section(report: ReportFile, most: int) -> Section:
    """Return the largest tensors at the peak, with the layer of each and why it is alive."""
    tensors = report.tensors_at_peak
    columns, has_layers = COLUMNS["tensors"], any(row.layer for row in tensors)
    rows: list[tuple[CellValue, ...]] = []

    for row in tensors[:most]:
        category = Cell(row.category.replace("_", " "), category_tone(row.category))
        why = Cell(row.why_alive, "muted")
        rows.append(
            (row.requested_bytes, category, row.shape or "?", row.name, row.layer, why)
        )

    if len(tensors) > most:
        rest = sum(row.requested_bytes for row in tensors[most:])
        rows.append(
            (rest, "", "", Cell(f"{len(tensors) - most} more", "muted"), "", "")
        )

    if not has_layers:
        columns = (*columns[:4], *columns[5:])
        rows = [(*row[:4], *row[5:]) for row in rows]

    heading = f"Largest of {len(tensors)} tensors alive at the peak"
    return Section(heading, (Table(columns, tuple(rows)),))


def layers_section(report: ReportFile, most: int) -> Section:
    """Return the layers with the most bytes at the peak."""
    layers = [row for row in report.layers if row.layer][:most]

    rows = tuple(
        (
            row.total_bytes,
            row.activation,
            row.parameter + row.optimizer_state,
            row.layer,
        )
        for row in layers
    )

    table = Table(COLUMNS["layers"], rows)
    return Section("Layers with the most bytes alive at the peak", (table,))


def hosts_lead(hosts: HostsFigures) -> Iterator[Block]:
    """Yield the worst device of all hosts, and the spread."""
    worst, count = hosts.worst, len(hosts.outliers)

    yield Paragraph(
        (
            f"{len(hosts.rows)} hosts, {hosts.devices} devices. The worst is ",
            (f"{worst.host} {worst.allocator}", "strong"),
            f" with {format_bytes(worst.allocated_bytes)} allocated; this report shows "
            "it.",
        )
    )

    outliers = f"{count or 'no'} outlier{'' if count == 1 else 's'}"

    yield Paragraph(
        f"All devices: {format_bytes(hosts.least_bytes)} to "
        f"{format_bytes(hosts.most_bytes)} allocated, median "
        f"{format_bytes(hosts.median_bytes)}; {outliers}.",
        "muted",
    )


def hosts_section(hosts: HostsFigures, most: int) -> Section:
    """Return the hosts: the worst first, then outliers, hosts that could not be read, others."""
    outliers = {(place.host, place.allocator) for place in hosts.outliers}
    worst = (hosts.worst.host, hosts.worst.allocator)
    rows: list[tuple[tuple[int, int], tuple[CellValue, ...]]] = []

    for at, row in enumerate(hosts.rows):
        if row.failed:
            failed = Cell(f"not read: {row.failed}", "warning")
            rows.append(((1, 0), (row.host, "", None, None, failed)))

        for place, device in enumerate(row.devices):
            key = (row.host, device.allocator)
            mark = "worst" if key == worst else "outlier" if key in outliers else ""
            damaged = "incomplete trace" if row.damaged else ""
            words = ", ".join(filter(None, (mark, damaged)))
            note = Cell(words, "bad" if mark == "worst" else "warning")
            rank = (("worst", "outlier", "").index(mark), -device.allocated_bytes)
            sizes = _size_cells(device, f"hosts.rows.{at}.devices.{place}")
            rows.append((rank, (*key, *sizes, note)))

    rows.sort(key=lambda one: one[0])
    left = max(len(rows) - most, 0)
    caption = f"{left} more are in the JSON" if left else ""
    table = Table(COLUMNS["hosts"], tuple(cells for _, cells in rows[:most]), caption)
    return Section("Hosts", (table,))
