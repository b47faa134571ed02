"""Build the document of a report: the answer first, then tables and findings, then its basis."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, cast

from analyzer.model.contract.report.peak_figures import StepPeak, TensorAtPeak
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.subject import DevicePeak, HostsFigures
from analyzer.model.units import format_bytes, format_seconds
from analyzer.report.actions import change_items, suggest_next
from analyzer.report.answer import (
    answer_lines,
    answer_tone,
    basis_words,
    error_line,
    list_details,
    list_reasons,
    list_shares,
    notices_of,
    peak_limit_words,
    step_words,
)
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

ROWS: Final = 12  # of a table in the terminal

_HOST_ROWS: Final = 10
_SHOWN_STEPS: Final = 6
_FRONT: Final = 3  # changes in Markdown
_OWNERS: Final = 4  # groups of tensors on the first screen
_CATEGORIES: Final = 4  # on the first screen; the others are one row
_NOTICES: Final = 2  # before the figures; the others are details
_SIZES: Final = (TableColumn("requested", "bytes"), TableColumn("allocated", "bytes"))
_NUMBERS: Final = re.compile(r"\d+")


def report_document(report: ReportFile) -> Document:
    """Return a report as the terminal shows it: the answer, and folded details."""
    verdict, number, action = answer_lines(report)
    basis = basis_words(report).rstrip(".").partition(";")[0]
    basis = f"{basis[0].lower()}{basis[1:]}"
    words = ", ".join(filter(None, (step_words(report), basis)))

    return Document(
        report.target.text,
        verdict,
        tone=answer_tone(report),
        subtitle=words,
        notices=notices_of(report)[:_NOTICES],
        lead=(Paragraph(number), Paragraph(action, "strong")),
        sections=tuple(_sections(report)),
        next_command=suggest_next(report),
    )


def summary_document(report: ReportFile, max_peak_bytes: int | None = None) -> Document:
    """Return a report's summary for a pull request, with the highest allocated peak allowed."""
    headline, number, action = answer_lines(report)
    lead = [Paragraph(number), Paragraph(action)]
    if max_peak_bytes is not None:
        lead.insert(0, Paragraph(headline, "strong"))
        headline = peak_limit_words(report.peak.allocated_bytes, max_peak_bytes)

    return Document(
        "",
        headline,
        notices=notices_of(report),
        lead=(*lead, *_categories_section(report).blocks),
        sections=tuple(front_sections(report)),
    )


def front_sections(report: ReportFile) -> Iterator[Section]:
    """Yield the first changes and the warnings of a report."""
    changes = change_items(report)
    if changes:
        items = changes[: len(report.remedies) + _FRONT]
        yield Section("What to change", tuple(replace(one, detail="") for one in items))

    if report.warnings:
        yield Section("", tuple(Paragraph(line, "warning") for line in report.warnings))


def _sections(report: ReportFile) -> Iterator[Section]:
    if report.error is not None:
        where = f" at {report.error.where}" if report.error.where else ""
        line = f"{report.error.type}: {error_line(report.error.message)}{where}"
        yield Section("", (Paragraph(line, "bad"),))

    for line in what_if_lines(report):
        fits = report.what_if is not None and report.what_if.fits
        yield Section("", (Paragraph(line, "good" if fits else "bad"),))

    if report.hosts is not None:
        lead = tuple(hosts_lead(report.hosts))
        yield Section("", lead)
        yield hosts_section(report.hosts, _HOST_ROWS)

    yield _categories_section(report)
    if report.tensors_at_peak:
        yield owners_section(report, _OWNERS)

    verdict = answer_lines(report)[0].lower()
    items = change_items(report)
    told = tuple(item for item in items if item.title.lower() in verdict)
    others = tuple(item for item in items if item not in told)
    if others:
        yield Section("What to change", others)
    if told:
        yield Section("The first problem", told, is_folded=True)

    yield from _details(report)


def _details(report: ReportFile) -> Iterator[Section]:
    """Yield the sections that a terminal shows with ``-v``."""
    sentences = [Paragraph(one) for one in list_details(report) if one]
    sentences += [
        Paragraph(one, "warning", "! ") for one in notices_of(report)[_NOTICES:]
    ]
    parts = [Section("Figures", tuple(sentences))]
    if report.steps:
        parts.append(steps_section(report, _SHOWN_STEPS))

    parts.append(tensors_section(report, ROWS))
    if any(row.layer for row in report.layers):
        parts.append(layers_section(report, ROWS))

    basis = [Paragraph(line, "warning", "! ") for line in report.warnings]
    basis += [Paragraph(line, "muted", "- ") for line in list_reasons(report)]
    if basis:
        parts.append(Section("Sources and assumptions", tuple(basis)))

    for part in parts:
        yield replace(part, is_folded=True)


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


def _categories_section(report: ReportFile) -> Section:
    """Return the largest categories at the peak; the others are one row."""
    shares = sorted(list_shares(report), key=lambda row: -row[2])
    rows: list[tuple[CellValue, ...]] = []

    for name, label, size_bytes, ratio in shares[:_CATEGORIES]:
        tone = cast("Tone", name)  # each category is a tone
        size = Cell(size_bytes, path=f"categories_at_peak.{name}")
        rows.append((label, size, ratio, Cell(ratio, tone)))

    others = shares[_CATEGORIES:]
    if others:
        size_bytes = sum(row[2] for row in others)
        ratio = sum(row[3] for row in others)
        rows.append((f"{len(others)} others", size_bytes, ratio, None))

    return Section("", (Table(COLUMNS["categories"], tuple(rows)),))


def owners_section(report: ReportFile, most: int) -> Section:
    """Return the largest tensors at the peak; equal ones whose owners differ by numbers are one row."""
    groups: dict[tuple[str, ...], list[TensorAtPeak]] = {}

    for row in report.tensors_at_peak:
        pattern = _NUMBERS.sub("*", row.layer or row.name)
        key = (pattern, row.category, str(row.requested_bytes), row.shape)
        groups.setdefault(key, []).append(row)

    sums = [
        (sum(row.requested_bytes for row in rows), rows) for rows in groups.values()
    ]
    sums.sort(key=lambda one: -one[0])
    cells: list[tuple[CellValue, ...]] = []

    for size_bytes, rows in sums[:most]:
        first = rows[0]
        each = ""
        if len(rows) > 1:
            each = f"{len(rows)} x {format_bytes(first.requested_bytes)}"

        category = Cell(first.category.replace("_", " "), cast("Tone", first.category))
        cells.append((size_bytes, each, category, _owner_of(rows), first.shape))

    rest = sum(size_bytes for size_bytes, _ in sums[most:])
    if rest:
        words = f"{len(sums) - most} more"
        cells.append((rest, "", "", Cell(words, "muted"), ""))

    columns = list(COLUMNS["owners"])
    name = f"largest of {len(report.tensors_at_peak)} tensors"
    columns[3] = TableColumn(name, "path", least=20)
    return Section("", (Table(tuple(columns), tuple(cells)),))


def _owner_of(rows: Sequence[TensorAtPeak]) -> str:
    """Return the common owner, with ``*`` in place of the numbers that differ."""
    owners = sorted({row.layer or row.name for row in rows})
    if len(owners) == 1:
        return owners[0]

    numbers = zip(*(_NUMBERS.findall(one) for one in owners), strict=True)
    shown = iter([one[0] if len(set(one)) == 1 else "*" for one in numbers])
    return _NUMBERS.sub(lambda _: next(shown), owners[0])


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
        category = Cell(row.category.replace("_", " "), cast("Tone", row.category))
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
