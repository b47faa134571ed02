"""Build the document of a report: the answer first, then tables and findings, then its basis."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import cast

from analyzer.model.contract.report_file import (
    HostRow,
    ReportFile,
    TensorAtPeak,
)
from analyzer.model.units import format_bytes
from analyzer.report.actions import change_items
from analyzer.report.answer import (
    LEAST_RATIO,
    answer_tone,
    basis_words,
    error_line,
    list_details,
    list_reasons,
    list_shares,
    notices_of,
    peak_limit_words,
    step_peak_words,
    step_words,
)
from analyzer.report.render.sections import (
    COLUMNS,
    Cell,
    Document,
    Paragraph,
    Row,
    Section,
    Table,
    TableColumn,
    Tone,
)

ROWS = 12  # of a table in the terminal

_HOST_ROWS = 10
_OWNERS = 4  # groups of tensors on the first screen
_NOTICES = 2  # before the figures; the others are details
LEAST_PARTS = 100  # a smaller part of the peak is not shown
_LEAST_REST = 1000  # nor a smaller sum of the other categories
_NUMBERS = re.compile(r"\d+")


def report_document(report: ReportFile, max_peak_bytes: int | None = None) -> Document:
    """Return a report as a terminal and Markdown show it: the answer, and folded details.

    If a requested peak of at most ``max_peak_bytes`` is allowed, the comparison is the headline.
    """
    verdict, number, action = report.answer
    lead = [Paragraph(number), Paragraph(action, "strong")]

    if max_peak_bytes is not None:
        if not verdict.startswith("Peak "):  # the same number
            lead.insert(0, Paragraph(verdict, "strong"))

        verdict = peak_limit_words(report.peak.requested_bytes, max_peak_bytes)

    words = ", ".join(filter(None, (step_words(report), basis_words(report))))

    return Document(
        report.target.text,
        verdict,
        tone=answer_tone(report),
        subtitle=words,
        notices=notices_of(report)[:_NOTICES],
        lead=tuple(lead),
        sections=tuple(_sections(report)),
        next_command=report.next_command,
    )


def _sections(report: ReportFile) -> Iterator[Section]:
    if report.error is not None:
        where = f" at {report.error.where}" if report.error.where else ""
        line = f"{report.error.type}: {error_line(report.error.message)}{where}"
        is_said = report.failure is not None  # by the verdict
        yield Section("", (Paragraph(line, "bad"),), is_folded=is_said)

    if report.what_if is not None:
        tone: Tone = "good" if report.what_if.fits else "bad"
        yield Section("", (Paragraph(what_if_line(report), tone),))

    if report.hosts:
        yield hosts_section(report.hosts, _HOST_ROWS)

    yield _categories_section(report)

    if not report.remedies:  # who asks for changes sees more of them instead
        yield tensors_section(report, _OWNERS)

    verdict = report.answer[0].lower()
    items = change_items(report)
    told = tuple(item for item in items if item.title.lower() in verdict)

    others = tuple(item for item in items if item not in told)
    if others:
        heading = "Estimated changes" if report.remedies else "What to change"
        yield Section(heading, others)

    if told:
        yield Section("The first problem", told, is_folded=True)

    yield from _details(report, 0 if report.remedies else _OWNERS)


def _details(report: ReportFile, shown: int) -> Iterator[Section]:
    """Yield the sections that a terminal shows with ``-v``, after ``shown`` rows of tensors."""
    sentences = [Paragraph(one) for one in list_details(report)]
    sentences += [
        Paragraph(one, "warning", "! ") for one in notices_of(report)[_NOTICES:]
    ]
    parts = [
        Section("Figures", tuple(sentences)),
        tensors_section(report, ROWS, skipped=shown),
        *layer_sections(report, ROWS),
    ]

    basis = [Paragraph(line, "muted", "- ") for line in list_reasons(report)]
    if basis:
        parts.append(Section("Sources and assumptions", tuple(basis)))

    for part in parts:
        yield replace(part, is_folded=True)


def what_if_line(report: ReportFile) -> str:
    """Return the outcome of a replay that the user asked for; empty without one."""
    replayed = report.what_if
    if replayed is None:
        return ""

    limit = format_bytes(replayed.memory_limit_bytes)
    growth = "on" if replayed.growth else "off"
    start = f"Replayed with a limit of {limit}, memory growth {growth}"

    failure = replayed.failure
    if failure is None:
        pool = format_bytes(replayed.peak_pool_bytes)
        return f"{start}: the step runs; pool {pool}."

    return (
        f"{start}: a request for {format_bytes(failure.requested_bytes)} fails at "
        f"instant {failure.instant:,}; {format_bytes(failure.free_bytes)} are free, "
        f"the largest free chunk has {format_bytes(failure.largest_free_bytes)}."
    )


def _categories_section(report: ReportFile) -> Section:
    """Return the categories from 1 % of the peak on, and the sum of the others."""
    shares = sorted(list_shares(report), key=lambda row: -row[2])
    rows: list[Row] = []
    rest = total = report.peak.requested_bytes

    for name, label, size_bytes, ratio in shares:
        if ratio >= LEAST_RATIO:
            bar = Cell(ratio, cast("Tone", name))  # each category is a tone
            rows.append((label, size_bytes, ratio, bar))
            rest -= size_bytes

    if rest * _LEAST_REST > total:
        rows.append(("Others", rest, rest / total, ""))

    heading = step_peak_words(report)
    return Section(heading, (Table(COLUMNS["categories"], tuple(rows)),))


def tensors_section(report: ReportFile, most: int, *, skipped: int = 0) -> Section:
    """Return the largest tensors at the peak; equal ones whose owners differ by numbers are one row.

    The first ``skipped`` rows are left out, because another table has them.
    """
    tensors = report.tensors_at_peak
    groups: dict[tuple[str, ...], list[TensorAtPeak]] = {}

    for tensor in tensors:
        pattern = _NUMBERS.sub("*", tensor.layer or tensor.name)
        reason = _NUMBERS.sub("*", tensor.why_alive.partition(" for ")[0])
        size = str(tensor.requested_bytes)
        key = (pattern, tensor.category, size, tensor.shape, reason)
        groups.setdefault(key, []).append(tensor)

    least = report.peak.requested_bytes // LEAST_PARTS
    ordered = sorted(groups.values(), key=_sum_of, reverse=True)[skipped:]
    shown = [group for group in ordered[:most] if _sum_of(group) >= least]
    others = ordered[len(shown) :]
    rows = [_tensors_row(group) for group in shown]

    if others and (shown or not skipped):
        rest = sum(map(_sum_of, others))
        count = sum(map(len, others))
        rows.append((rest, "", "", Cell(f"{count} more", "muted"), "", ""))

    columns = list(COLUMNS["tensors"])
    words = "next largest" if skipped else f"largest of {len(tensors)} tensors"
    columns[3] = TableColumn(words, "path", least=20)

    return Section("", (Table(tuple(columns), tuple(rows)),) if rows else ())


def _sum_of(group: Sequence[TensorAtPeak]) -> int:
    return sum(one.requested_bytes for one in group)


def _tensors_row(group: Sequence[TensorAtPeak]) -> Row:
    """Return the row of equal tensors; the last op that reads them may differ."""
    first = group[0]
    size = format_bytes(first.requested_bytes)
    each = f"{len(group)} x {size}" if len(group) > 1 else ""
    category = Cell(first.category.replace("_", " "), cast("Tone", first.category))
    reason = f"{first.why_alive.partition(' for ')[0]} for different ops"

    if len({_NUMBERS.sub("*", one.why_alive) for one in group}) == 1:
        reason = _common_name(one.why_alive for one in group)

    why = Cell(reason, "muted")
    owner = _common_name(one.layer or one.name for one in group)

    return (_sum_of(group), each, category, owner, first.shape or "?", why)


def _common_name(names: Iterable[str]) -> str:
    """Return names that differ by numbers as one, with ``*`` in place of these."""
    owners = sorted(set(names))
    shown = []

    # The first numbers of all names, then the second ones.
    for numbers in zip(*map(_NUMBERS.findall, owners), strict=True):
        is_same = len(set(numbers)) == 1
        shown.append(numbers[0] if is_same else "*")

    following = iter(shown)
    return _NUMBERS.sub(lambda _: next(following), owners[0])


def layer_sections(report: ReportFile, most: int) -> Iterator[Section]:
    """Yield the layers with the most bytes at the peak, if there are any; equal ones are one row."""
    groups: dict[tuple[str, int], list[str]] = {}

    for row in report.layers:
        if row.layer:
            key = (_NUMBERS.sub("*", row.layer), row.total_bytes)
            groups.setdefault(key, []).append(row.layer)

    least = report.peak.requested_bytes // LEAST_PARTS
    ordered = sorted(groups.items(), key=lambda group: -group[0][1] * len(group[1]))
    rows: list[Row] = []

    for (_, total), names in ordered[:most]:
        count = len(names)
        if count * total < least:
            break

        each = f"{count} x {format_bytes(total)}" if count > 1 else ""
        rows.append((count * total, each, _common_name(names)))

    if rows:
        table = Table(COLUMNS["layers"], tuple(rows))
        yield Section("Layers with the most bytes alive at the peak", (table,))


def hosts_section(hosts: Sequence[HostRow], most: int) -> Section:
    """Return the devices of all hosts, the one with the least room first."""
    rows: list[Row] = []

    for row in hosts[:most]:
        words = "incomplete trace" if row.damaged else ""
        words = f"not read: {row.failed}" if row.failed else words
        sizes = (row.requested_bytes, row.allocated_bytes)
        rows.append((row.host, row.allocator, *sizes, Cell(words, "warning")))

    peaks = [row.allocated_bytes for row in hosts if row.allocated_bytes is not None]
    lead = Paragraph(
        f"{len(peaks)} devices: {format_bytes(min(peaks))} to {format_bytes(max(peaks))} "
        "allocated. This report shows the first."
    )

    return Section("Hosts", (lead, Table(COLUMNS["hosts"], tuple(rows))))
