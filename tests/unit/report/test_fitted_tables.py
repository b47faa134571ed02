"""Numbers in the terminal: whole at every width, whatever has to give way."""

from __future__ import annotations

import io
import re
from functools import cache
from typing import Any

import pytest
from builders import sample_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console, RenderableType
from rich.text import Text

import analyzer
from analyzer.model.units import format_bytes
from analyzer.report.diff_sections import diff_document
from analyzer.report.render.sections import Cell, Table, TableColumn
from analyzer.report.render.terminal import GAP, Prose, fit_widths, fitted_table, to_terminal
from analyzer.report.report_sections import report_document
from analyzer.report.untrusted import unbroken

WIDTHS = (80, 100, 120, 160)
CUT = re.compile(r"(?<![\w/,.\[:…-])[+-]?\d[\d.,]*…|…[\d.,]+ (?:B|[KMGT]iB)\b")
UNIT_FIRST = re.compile(r"\s*(?:B|[KMGT]iB|%)(?![A-Za-z])")


def lines(part: RenderableType, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as captured:
        console.print(part)
    return captured.get().splitlines()


@cache
def opened(name: str) -> Any:
    if name == "diff":
        return analyzer.diff(sample_folder("infer"), sample_folder("cnn"))
    return analyzer.open_trace(sample_folder(name))


def check_whole(shown: list[str], sizes: list[int | None], width: int) -> None:
    for size in sizes:
        if size is not None:
            text = re.escape(format_bytes(size))
            assert any(re.search(rf"(?<![\d.,]){text}(?![\w])", line) for line in shown), size
    for line in shown:
        assert len(line) <= width
        assert not CUT.search(line), line
    for above, below in zip(shown, shown[1:], strict=False):
        assert not (re.search(r"\d\s*$", above) and UNIT_FIRST.match(below)), (above, below)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["cnn", "transformer", "oom", "lstm"])
def test_every_number_of_a_report_is_whole(name: str, width: int) -> None:
    shown = opened(name).document
    peak = shown["peak"]
    sizes = [peak["requested_bytes"], peak["allocated_bytes"], peak["pool_bytes"]]
    sizes += [size for size in shown["categories_at_peak"].values() if size]
    steps = shown["steps"] if len(shown["steps"]) <= 6 else []
    sizes += [step[key] for step in steps for key in ("requested_bytes", "allocated_bytes")]
    sizes += [row["requested_bytes"] for row in shown["tensors_at_peak"][:12]]
    for row in [row for row in shown["layers"] if row["layer"]][:12]:
        state = row["parameter"] + row["optimizer_state"]
        sizes += [row["total_bytes"], row["activation"], state]
    sizes += [finding["saves_bytes"] or None for finding in shown["findings"]]
    check_whole(
        lines(to_terminal(report_document(opened(name).report), width), width), sizes, width
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_every_number_of_a_difference_is_whole(width: int) -> None:
    shown = opened("diff").document
    rows = [*shown["peak"], *shown["categories"]]
    rows += [row for key in ("layers", "ops") for row in shown[key] if row["change"] != "same"][:12]
    sizes = [row[key] for row in rows for key in ("a_bytes", "b_bytes")]
    found = lines(to_terminal(diff_document(opened("diff").report), width), width)
    check_whole(found, sizes, width)
    for row in shown["peak"]:
        assert any(f"+{format_bytes(row['delta_bytes'])}" in line for line in found)


@pytest.mark.parametrize("width", WIDTHS)
def test_labels_of_a_difference_give_way_to_its_numbers(width: int) -> None:
    shown = opened("diff").report
    a, b = (
        replace(side, label=f"runs/2026/{'x' * 60}-{place}")
        for place, side in (("a", shown.a), ("b", shown.b))
    )
    found = lines(to_terminal(diff_document(replace(shown, a=a, b=b)), width), width)
    check_whole(found, [row.a_bytes for row in shown.peak], width)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_tensors_have_their_layer(width: int) -> None:
    shown = opened("transformer").document
    found = lines(to_terminal(report_document(opened("transformer").report), width), width)
    heading = next(line for line in found if line.startswith("requested"))
    assert "layer" in heading.split()
    first = shown["tensors_at_peak"][0]
    row = next(line for line in found if line.startswith(format_bytes(first["requested_bytes"])))
    assert first["layer"] in row.split()


def test_a_narrow_terminal_loses_names_first() -> None:
    columns = (
        TableColumn("requested", "number"),
        TableColumn("layer"),
        TableColumn("why", rank=1),
        TableColumn("allocated", "number"),
    )
    row = ("1011.7 KiB", "layer/" * 20, "why " * 20, "750.0 KiB")
    heading, cells = lines(fitted_table(Table(columns, (row,)), 40), 40)
    assert "1011.7 KiB" in cells
    assert "750.0 KiB" in cells
    assert "why" not in heading
    assert "…" in cells


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[TableColumn], list[int]]:
    columns, widest = [TableColumn("first", "number")], [10]
    for place in range(draw(st.integers(0, 7))):
        is_number = draw(st.booleans())
        least, rank = draw(st.integers(8, 30)), draw(st.integers(0, 4))
        kind = "number" if is_number else "text"
        columns.append(TableColumn("n" * place, kind, least, rank))
        widest.append(draw(st.integers(0, 12 if is_number else 200)))
    return columns, widest


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables(), st.integers(40, 200))
def test_columns_fit_and_numbers_have_their_room(
    table: tuple[list[TableColumn], list[int]], width: int
) -> None:
    columns, widest = table
    widths = fit_widths(columns, widest, width)
    shown = sorted(widths)
    assert shown == list(widths)
    for place in shown:
        if columns[place].is_number:
            assert widths[place] >= widest[place]
    needed = sum(widest[p] if columns[p].is_number else 8 for p in shown) + GAP * (len(shown) - 1)
    assert sum(widths.values()) + GAP * (len(shown) - 1) <= max(width, needed)
    left_out = [columns[place].rank for place in range(len(columns)) if place not in widths]
    kept = [columns[place].rank for place in shown]
    assert all(rank >= max(kept, default=0) for rank in left_out)
    assert 0 not in left_out


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["a", "peak", "3.00 GiB", "12 %", "7 ms", "12,345"]), max_size=30))
def test_no_line_ends_between_a_number_and_its_unit(words: list[str]) -> None:
    text = Text(" ".join(words))
    text.stylize("bold", 0, 3)
    found = lines(Prose(text), 20)
    assert " ".join(" ".join(found).split()) == text.plain
    for above, below in zip(found, found[1:], strict=False):
        assert not (re.search(r"\d\s*$", above) and re.match(r"GiB|%|ms", below))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3.00 GiB of 8", "3.00\u00a0GiB of 8"),
        ("12 bytes, 4 steps", "12\u00a0bytes, 4 steps"),
        ("5 B, 5 Batches, 7 ms, 9 s, 9 steps, 40 %", None),
    ],
)
def test_units_stay_with_their_numbers(text: str, expected: str | None) -> None:
    if expected is None:
        expected = "5\u00a0B, 5 Batches, 7\u00a0ms, 9\u00a0s, 9 steps, 40\u00a0%"
    assert unbroken(text) == expected


@pytest.mark.parametrize("width", [60, 80, 100])
def test_what_runs_over_begins_as_far_in_as_the_first_line(width: int) -> None:
    found = lines(to_terminal(report_document(opened("transformer").report), width), width)
    found = [line.rstrip() for line in found]
    findings = found[found.index("What to change") + 1 :]
    end = next((at for at, line in enumerate(findings) if not line.strip()), len(findings))
    heads = ("   high  ", " medium  ", "    low  ", "   info  ")
    assert sum(line.startswith(tuple(head[1:] for head in heads)) for line in findings[:end]) >= 2
    for line in findings[:end]:
        assert line.startswith(" " * 8) or line[:8].strip() in ("high", "medium", "low", "info")
    report = opened("transformer").report
    report = replace(report, notes=("word " * 50,), warnings=("a number of 1,234 KiB " * 9,))
    found = lines(to_terminal(report_document(report), width), width)
    _, _, rest = "\n".join(line.rstrip() for line in found).partition("Sources and assumptions\n")
    assert rest.count("\n") > 6
    basis, _, following = rest.partition("\n\n")
    assert all(line[:2] in ("! ", "- ", "· ", "  ") for line in basis.splitlines())
    assert following.startswith("Next: ")


def test_a_label_stands_before_the_first_line_alone() -> None:
    found = lines(Prose(Text("one two three four"), Text("> ")), 8)
    assert [line.rstrip() for line in found] == ["> one", "  two", "  three", "  four"]


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_bars_get_shorter_and_are_not_cut(width: int) -> None:
    columns = (TableColumn("", "bar", least=14), TableColumn("op", "path"))
    table = Table(columns, ((Cell(0.1, note="fits"), "a"), (Cell(0.9, note="fails"), "b" * 60)))
    bars = [line.split()[:2] for line in lines(fitted_table(table, width), width)[1:]]
    assert [note for _, note in bars] == ["fits", "fails"]
    assert len(bars[0][0]) < len(bars[1][0])
    assert all(set(bar) <= set("█▏") for bar, _ in bars)
