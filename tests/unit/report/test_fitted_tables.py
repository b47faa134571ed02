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
from rich.console import Console, RenderableType

import analyzer
from analyzer.model.units import format_bytes
from analyzer.report.render.sections import TableColumn
from analyzer.report.render.terminal import GAP, fit_widths, to_terminal
from analyzer.report.report_sections import report_document

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
