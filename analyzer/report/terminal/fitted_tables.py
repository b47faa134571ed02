"""Tables and paragraphs that fit the terminal's width without cutting a number.

A column of numbers is as wide as its widest number. Names share what is left and lose their middle
where it is too little; where they would lose too much, the column that matters least goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analyzer.report.render.terminal import Prose
from analyzer.report.untrusted import printable

GAP: Final = 2
"""Cells between two columns."""

_LEAST_TEXT: Final = 8
"""Cells that a column of text keeps in a terminal too narrow for all that must be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldColumn:
    """One column of a table for the terminal.

    Attributes:
        name: What the head says.
        is_number: Whether its cells are numbers, which are never cut.
        least: Cells that a column of text needs to be of use.
        rank: Columns with the highest rank are left out first; those of rank 0 never are.
        shorten: Makes a text at most so many cells wide.
    """

    name: str
    is_number: bool = False
    least: int = 16
    rank: int = 0
    shorten: Callable[[object, int], str] = printable


TableColumn = OldColumn  # until all callers build sections


def number(name: str) -> TableColumn:
    """Return a column of numbers."""
    return TableColumn(name=name, is_number=True)


def fitted_table(
    title: str,
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[str | Text]],
    width: int,
) -> Table:
    """Return the rows as a table at most ``width`` cells wide, without lines.

    Args:
        title: Its heading.
        columns: What each column is called, and how it may be shortened or left out.
        rows: Cells, one for each column.
        width: Cells of the terminal's line.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widest = [
        max((row[place].cell_len for row in cells), default=0) for place in range(len(columns))
    ]
    widths = fit_widths(columns, widest, width)
    table = plain_table(title)
    for place, column_width in widths.items():
        column = columns[place]
        table.add_column(
            Text(printable(column.name, max(column_width, 1))),
            justify="right" if column.is_number else "left",
            header_style="dim",
            no_wrap=True,
            width=max(column_width, 1),
        )
    for row in cells:
        table.add_row(*(_shortened(row[place], columns[place], widths[place]) for place in widths))
    return table


def plain_table(title: str) -> Table:
    """Return an empty table without lines."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, GAP, 0, 0),
    )


def fit_widths(columns: Sequence[TableColumn], widest: Sequence[int], width: int) -> dict[int, int]:
    """Return the places of the columns that are shown, in order, and how wide each is.

    Args:
        columns: All columns.
        widest: Cells of the widest cell of each, its head left out.
        width: Cells of the terminal.
    """
    wanted = [
        max(size, cell_len(column.name)) for column, size in zip(columns, widest, strict=True)
    ]
    shown = list(range(len(columns)))
    while (least := _least(columns, widest, wanted, shown)) and _total(least) > width:
        last = max(shown, key=lambda place: columns[place].rank)
        if not columns[last].rank:
            break
        shown.remove(last)
    widths = dict(least)
    while _total(widths) > width:
        place = max(shown, key=lambda place: 0 if columns[place].is_number else widths[place])
        if columns[place].is_number or widths[place] <= _LEAST_TEXT:
            break
        widths[place] -= 1
    while _total(widths) < width:
        growing = [place for place in shown if widths[place] < wanted[place]]
        if not growing:
            break
        widths[min(growing, key=lambda place: widths[place])] += 1
    return widths


def _least(
    columns: Sequence[TableColumn],
    widest: Sequence[int],
    wanted: Sequence[int],
    shown: Sequence[int],
) -> dict[int, int]:
    return {
        place: widest[place]
        if columns[place].is_number
        else min(wanted[place], columns[place].least)
        for place in shown
    }


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _shortened(cell: Text, column: TableColumn, width: int) -> Text:
    if column.is_number or cell.cell_len <= width:
        return cell
    return Text(column.shorten(cell.plain, width), style=cell.style)


def whole_numbers(part: RenderableType) -> RenderableType:
    """Return a part of a report with its paragraphs as ``Prose``."""
    if isinstance(part, Text):
        return Prose(part)
    if isinstance(part, Padding) and isinstance(part.renderable, Text):
        return Padding(Prose(part.renderable), (part.top, part.right, part.bottom, part.left))
    return part
