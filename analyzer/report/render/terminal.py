"""Print a document in the terminal at any width without cutting a number.

A column of numbers is as wide as its widest number. Texts share the rest of the line and lose their
middle; if they would lose too much, the least important column is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from analyzer.model.tables import read_table
from analyzer.report.render import sections
from analyzer.report.untrusted import UNIT, printable, printable_path

GAP: Final = 2
"""Cells between two columns."""

_LEAST_TEXT: Final = 8
"""Cells that a column of text keeps in a terminal too narrow for everything that must stay."""

_BAR_CELLS: Final = 28  # of the longest bar
_LONGEST: Final = 2_000  # characters of a paragraph
_JOINED: Final = "\ue000"
"""Stands for a space at which no line may end. Private use; ``printable`` removes it from texts."""

STYLES: Final = read_table("report/labels.toml", dict[str, dict[str, str]])["style"]


def print_terminal(document: sections.Document, console: Console) -> None:
    """Print a whole document."""
    console.print(to_terminal(document, console.width), markup=False)


def to_terminal(document: sections.Document, width: int = 100) -> RenderableType:
    """Return a document as one renderable, ``width`` cells wide."""
    parts: list[RenderableType] = []
    if document.headline:
        parts.append(_line(document.headline, f"bold {STYLES[document.tone]}"))

    for notice in document.notices:
        parts.append(
            Prose(Text(printable(notice, _LONGEST), "yellow"), Text("! ", "yellow"))
        )

    if document.title or document.subtitle:
        subtitle = f"  {printable(document.subtitle, 200)}"
        title = printable(document.title, 200)
        parts.append(Prose(Text.assemble((title, "bold"), (subtitle, "dim"))))

    parts += _blocks(document.lead, width)
    for section in document.sections:
        parts += section_parts(section, width)

    if document.footer:
        parts.append(Padding(_line(document.footer, "dim"), (1, 0, 0, 0)))

    if document.next_command:
        command = Text.assemble(
            "Next: ", (printable(document.next_command, _LONGEST), "bold")
        )
        parts.append(Padding(Prose(command), (1, 0, 0, 0)))

    return Group(*parts)


def section_parts(section: sections.Section, width: int) -> Iterator[RenderableType]:
    """Yield a section, an empty line before it."""
    blocks = list(_blocks(section.blocks, width))
    if section.heading:
        note = f"  {printable(section.note, _LONGEST)}" if section.note else ""
        heading = Text.assemble(
            (printable(section.heading, _LONGEST), "bold"), (note, "dim")
        )
        blocks.insert(0, Prose(heading))

    if blocks:
        yield Padding(blocks[0], (1, 0, 0, 0))
        yield from blocks[1:]


def _blocks(blocks: Sequence[sections.Block], width: int) -> Iterator[RenderableType]:
    items = [block for block in blocks if isinstance(block, sections.Item)]
    label_width = max((cell_len(item.label) for item in items), default=0)

    for block in blocks:
        if isinstance(block, sections.Paragraph):
            pieces = (
                (printable(text, _LONGEST), STYLES[tone]) for text, tone in block.pieces
            )
            yield Prose(
                Text.assemble(*pieces), Text(block.mark, style=STYLES[block.tone])
            )
        elif isinstance(block, sections.Table):
            if block.rows:
                yield fitted_table(block, width)

            if block.focus is not None and len(block.rows) > sections.FOCUS_ROWS:
                yield _line(
                    f"{len(block.rows):,} rows in all, in --html and --json", "dim"
                )

            if block.caption:
                yield _line(block.caption, "dim")
        elif isinstance(block, sections.Item):
            yield from _item(block, label_width)
        elif isinstance(block, sections.Figures):
            yield _line(sections.figures_text(block), "")
        elif isinstance(block, sections.Code):
            yield from _code(block.text, 0)


def _item(item: sections.Item, label_width: int) -> Iterator[RenderableType]:
    margin = label_width + GAP
    label = Text(
        f"{printable(item.label):>{label_width}}{' ' * GAP}", style=STYLES[item.tone]
    )
    gain = f"  {printable(item.gain, _LONGEST)}" if item.gain else ""
    yield Prose(
        Text.assemble((printable(item.title, _LONGEST), "bold"), (gain, "green")), label
    )
    if item.detail:
        yield Padding(_line(item.detail, "dim"), (0, 0, 0, margin))

    yield from _code(item.code, margin)
    if item.check:
        yield Padding(_line(f"Check: {item.check}", "dim"), (0, 0, 0, margin))


def _code(code: str, margin: int) -> Iterator[RenderableType]:
    for line in code.splitlines():
        yield Padding(
            Text(printable(line, _LONGEST), overflow="fold"), (0, 0, 0, margin)
        )


def _line(text: str, style: str) -> Prose:
    return Prose(Text(printable(text, _LONGEST), style=style))


def fitted_table(table: sections.Table, width: int) -> RichTable:
    """Return a table at most ``width`` cells wide, without lines."""
    columns, rows = table.columns, table.rows
    if table.focus is not None:
        rows = rows[max(0, table.focus - sections.FOCUS_ROWS // 2) :][
            : sections.FOCUS_ROWS
        ]

    cells = [
        [_text_of(sections.cell_of(row[place]), column) for row in rows]
        for place, column in enumerate(columns)
    ]
    widest = [max((text.cell_len for text in texts), default=0) for texts in cells]

    shown = RichTable(
        box=None,
        pad_edge=False,
        padding=(0, GAP, 0, 0),
        show_header=any(column.name for column in columns),
    )

    shown_cells = []

    for place, cells_wide in fit_widths(columns, widest, width).items():
        column, texts = columns[place], cells[place]
        if column.kind == "bar":
            texts = _fit_bars(
                [sections.cell_of(row[place]) for row in rows], column, cells_wide
            )

        shown_cells.append([_shorten(text, column, cells_wide) for text in texts])

        shown.add_column(
            Text(printable(column.name, max(cells_wide, 1))),
            justify="right" if column.is_number else "left",
            header_style="dim",
            no_wrap=column.kind != "whole",
            overflow="fold",
            width=max(cells_wide, 1),
        )

    for row in zip(*shown_cells, strict=True):
        shown.add_row(*row)

    return shown


def _text_of(
    cell: sections.Cell, column: sections.TableColumn, bar_cells: int = _BAR_CELLS
) -> Text:
    text = printable(sections.cell_text(cell, column.kind), _LONGEST)
    style = STYLES[cell.tone]
    if column.kind != "bar" or not isinstance(cell.value, (int, float)):
        return Text(text, style=style)

    bar = "█" * round(min(cell.value, 1.0) * bar_cells) or "▏"
    return Text(f"{bar} {text}" if text else bar, style=style)


def _fit_bars(
    bars: list[sections.Cell], column: sections.TableColumn, width: int
) -> list[Text]:
    """Return the cells of a column of bars, all on the longest scale that fits the width."""
    for length in range(_BAR_CELLS, 0, -1):
        texts = [_text_of(bar, column, length) for bar in bars]
        if max((text.cell_len for text in texts), default=0) <= width:
            break

    return texts


def _shorten(cell: Text, column: sections.TableColumn, width: int) -> Text:
    if column.is_number or column.kind == "whole" or cell.cell_len <= width:
        return cell

    shown = printable(cell.plain, width)
    if column.kind == "path":
        is_path = "/" in cell.plain
        shown = (
            printable_path(cell.plain, width)
            if is_path
            else f"{cell.plain[: width - 1]}…"
        )

    return Text(shown, style=cell.style)


def fit_widths(
    columns: Sequence[sections.TableColumn], widest: Sequence[int], width: int
) -> dict[int, int]:
    """Return the places of the columns that are shown, in order, and how wide each is.

    ``widest`` are the cells of each column's widest text below its heading, ``width`` the terminal's.
    """
    wanted = [
        max(size, cell_len(column.name))
        for column, size in zip(columns, widest, strict=True)
    ]
    shown = list(range(len(columns)))

    def least(place: int) -> int:
        column = columns[place]
        return wanted[place] if column.is_number else min(wanted[place], column.least)

    while sum(map(least, shown)) + GAP * (len(shown) - 1) > width:
        last = max(shown, key=lambda place: columns[place].rank, default=-1)
        if last < 0 or not columns[last].rank:
            break

        shown.remove(last)

    widths = {place: least(place) for place in shown}
    room = width - GAP * (len(shown) - 1)

    while sum(widths.values()) > room:
        floors = {
            place: widest[place] if columns[place].is_number else _LEAST_TEXT
            for place in shown
        }
        wide = [place for place in shown if widths[place] > floors[place]]
        if not wide:
            break

        # A heading of numbers gives way after all texts.
        widths[
            max(wide, key=lambda place: (not columns[place].is_number, widths[place]))
        ] -= 1

    while sum(widths.values()) < room:
        growing = [place for place in shown if widths[place] < wanted[place]]
        if not growing:
            break

        widths[min(growing, key=lambda place: widths[place])] += 1

    return widths


class Prose:
    """A paragraph that breaks between words but never between a number and its unit.

    ``label`` is a text before the first line; the other lines are indented by its width.
    """

    def __init__(self, text: Text, label: Text | None = None) -> None:
        self.text = text
        self.label = label or Text()

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Text]:
        """Yield its lines."""
        joined = self.text.copy()
        joined.plain = UNIT.sub(_JOINED, joined.plain)
        margin = self.label.cell_len
        before = self.label
        for line in joined.wrap(console, max(options.max_width - margin, 1)):
            line.plain = line.plain.replace(_JOINED, " ")
            yield Text.assemble(before, line) if margin else line
            before = Text(" " * margin)
