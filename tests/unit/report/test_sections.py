"""One document in the terminal, in Markdown and as a page: the same numbers, names as text."""

from __future__ import annotations

import io
import re

import pytest
from hostile_name import HOSTILE
from rich.console import Console

from analyzer.report.render.charts import ChartLine, LineChart, draw_lines, draw_shares
from analyzer.report.render.markdown import to_markdown
from analyzer.report.render.page_shell import to_page
from analyzer.report.render.sections import (
    Cell,
    Code,
    Document,
    Figure,
    Figures,
    Item,
    Paragraph,
    Section,
    Table,
    TableColumn,
)
from analyzer.report.render.terminal import print_terminal

MIB = 1 << 20
TABLE = Table(
    (
        TableColumn("batch", "number"),
        TableColumn("peak", "bytes"),
        TableColumn("difference", "change"),
        TableColumn("share", "percent"),
        TableColumn("", "bar", rank=1),
        TableColumn("op", "path"),
    ),
    (
        (8, 3 * MIB, 0, 0.25, Cell(0.25, note="fits"), "model/conv/Conv2D"),
        (1600, Cell(12 * MIB, "bad"), -MIB, 1.0, 1.0, HOSTILE),
    ),
    caption="2 more are in the JSON",
)
CHART = LineChart(
    caption=HOSTILE,
    lines=(ChartLine("allocated", "allocated", ((0, 0), (10, 5 * MIB))),),
    limit_bytes=4 * MIB,
    marks=[(8, "marked", "largest batch")],
    shaded_to_x=2,
)
DOCUMENT = Document(
    HOSTILE,
    f"Batch 8 fits {HOSTILE}",
    tone="good",
    lead=(
        Paragraph(("Peak ", ("3.00 MiB", "strong"), f" {HOSTILE}")),
        Figures((Figure("limit", 4 * MIB, "the limit", is_main=True), Figure("pool", None))),
    ),
    sections=(
        Section("Curve", (TABLE, draw_lines(CHART))),
        Section(
            "Findings",
            (Item("high", HOSTILE, "saves 1.00 MiB", HOSTILE, f"x = 1\n{HOSTILE}"), Code(HOSTILE)),
        ),
    ),
)


def terminal_text(width: int = 200) -> str:
    stream = io.StringIO()
    print_terminal(DOCUMENT, Console(file=stream, width=width, no_color=True))
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_terminal_cuts_no_number(width: int) -> None:
    text = terminal_text(width)
    for number in ("8", "1,600", "3.00 MiB", "12.00 MiB", "same", "-1.00 MiB", "25.0%", "4.00 MiB"):
        assert number in text
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


def test_markdown_has_the_numbers_and_no_markup_of_names() -> None:
    text = to_markdown(DOCUMENT)
    assert "| 1,600 | 12.00 MiB | -1.00 MiB | 100.0% |" in text
    assert "**3.00 MiB**" in text
    outside = re.sub(r"`[^`]*`|^      .*$", "", text, flags=re.MULTILINE)
    assert "<script" not in outside
    assert "\x1b" not in text


def test_a_page_has_the_numbers_and_names_as_text() -> None:
    page = to_page(DOCUMENT)
    assert 'title="12,582,912 bytes"' in page
    assert page.count("<script") == 1
    assert page.count("<polyline") == 1
    assert not re.search(r" style=", page)


def test_a_limit_far_above_the_lines_is_left_out() -> None:
    flat = LineChart(caption="x", lines=CHART.lines, limit_bytes=400 * MIB)
    assert 'class="limit"' not in draw_lines(flat).svg
    assert 'class="limit"' in draw_lines(CHART).svg


def test_shares_fill_the_bar() -> None:
    widths = re.findall(r' width="([\d.]+)"', draw_shares([("a", 0.25), ("b", 0.75)], "x"))
    assert sum(map(float, widths)) == pytest.approx(1000)
