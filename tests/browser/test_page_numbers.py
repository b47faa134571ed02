"""Every number on the page is the document's, and is written as the package writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from byte_cases import CASES
from make_recording import Made, make_recording
from page_driver import Page

from analyzer.explain.comparison import compare
from analyzer.model.choice import Category
from analyzer.model.contract.report.writing import plain_report
from analyzer.model.recording.records import Kind
from analyzer.model.units import format_bytes


def value_at(document: dict[str, Any], path: str) -> Any:
    value: Any = document
    for key in path.split("."):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def test_figures_are_the_documents(page: Page, report: Path, made: Made) -> None:
    page.open(report)
    figures = page.js(
        "[...document.querySelectorAll('[data-path]')]"
        ".map((it) => [it.dataset.path, Number(it.dataset.bytes), it.textContent, it.title])"
    )
    assert len(figures) >= 10
    for path, size_bytes, text, title in figures:
        expected = value_at(made.document, path)
        assert (size_bytes, text, title) == (
            expected,
            format_bytes(expected),
            f"{expected:,} bytes",
        )


def test_figures_of_a_comparison_are_the_comparisons(
    page: Page, comparison_report: Path, made: Made
) -> None:
    earlier = make_recording(1200, kind=Kind.ESTIMATE)
    found = plain_report(compare(earlier.report, earlier.recording, made.report, made.recording))
    page.open(comparison_report)
    figures = page.js(
        "[...document.querySelectorAll('#panel-compare [data-path]')]"
        ".map((it) => [it.dataset.path, Number(it.dataset.bytes), it.textContent])"
    )
    assert len(figures) >= 12
    for path, size_bytes, text in figures:
        expected = value_at({"comparison": found}, path)
        assert (size_bytes, text) == (expected, format_bytes(expected))
    shown = page.js("memoryReport.recording.header.comparison")
    assert shown["layers"] == found["layers"]
    assert shown["ops"] == found["ops"]


def test_the_timeline_adds_up_to_the_document(page: Page, report: Path, made: Made) -> None:
    page.open(report)
    peak = made.document["peak"]
    at_peak = page.js(
        "memoryReport.recording.series.map((line) => line[memoryReport.recording.peakState])"
    )
    assert (
        dict(zip((c.value for c in Category), at_peak, strict=True))
        == made.document["categories_at_peak"]
    )
    assert (
        page.js("memoryReport.recording.total[memoryReport.recording.peakState]")
        == peak["requested_bytes"]
    )
    assert (
        page.js(f"memoryReport.recording.allocated[{peak['allocated_instant'] + 1}]")
        == peak["allocated_bytes"]
    )
    events = made.recording.events
    assert (
        page.js("Array.from(memoryReport.recording.allocated).slice(1)")
        == events["in_use_bytes"].tolist()
    )
    assert page.js("Array.from(memoryReport.recording.times)") == events["time_ps"].tolist()


def test_tables_are_the_documents(page: Page, report: Path, made: Made) -> None:
    page.open(report)
    shown = page.js(
        "memoryReport.current().content.table.rows().map((b) => [memoryReport.recording.nameOf(b),"
        " memoryReport.recording.columns.requested[b], memoryReport.recording.columns.allocated[b]])"
    )
    rows = made.document["tensors_at_peak"]
    expected = [[row["name"], row["requested_bytes"], row["allocated_bytes"]] for row in rows]
    assert sorted(shown) == sorted(expected)
    page.click("#tab-ops")
    shown = page.js("memoryReport.current().content.table.rows()")
    assert len(shown) == len(made.document["ops"])
    assert {row["name"] for row in shown} == {row["name"] for row in made.document["ops"]}
    alive_now = page.js(
        "memoryReport.views.find((view) => view.name === 'ops').content.table.csv()"
    ).split("\r\n")
    header = alive_now[0].split(",")
    for line in alive_now[1:-1]:
        cells = line.split(",")
        assert (
            cells[header.index("alive_at_instant_bytes")]
            == cells[header.index("alive_at_peak_bytes")]
        )


def test_bytes_are_written_as_the_package_writes_them(page: Page, report: Path) -> None:
    page.open(report)
    shown = page.js("arguments[0].map((size) => memoryReport.formatBytes(size))", CASES)
    assert shown == [format_bytes(size) for size in CASES]
