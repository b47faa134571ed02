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
_FEW_ITEMS: Final = 2  # findings and changes without ``-v``
_JOINED: Final = "\ue000"
"""Stands for a space at which no line may end. Private use; ``printable`` removes it from texts."""

STYLES: Final = read_table("report/labels.toml", dict[str, dict[str, str]])["style"]


def print_terminal(
    document: sections.Document, console: Console, *, is_verbose: bool = True
) -> None:
    """Print a document; without ``is_verbose``, without its folded sections and details."""
    shown = to_terminal(document, console.width, is_verbose=is_verbose)
    console.print(shown, markup=False)


def to_terminal(
    document: sections.Document, width: int = 100, *, is_verbose: bool = True
) -> RenderableType:
    """Return a document as one renderable, ``width`` cells wide."""
    parts: list[RenderableType] = []
    if document.headline:
        parts.append(_line(document.headline, f"bold {STYLES[document.tone]}"))

    parts += _blocks(document.lead, width, is_verbose=is_verbose)

    for notice in document.notices:
        text = printable(notice, _LONGEST)
        parts.append(Prose(Text(text, "yellow"), Text("! ", "yellow")))

    if document.title or document.subtitle:
        title, subtitle = (printable(document.title, 200), document.subtitle)
        if not is_verbose:
            room = width - cell_len(subtitle) - GAP
            title = printable_path(title, max(room, width // 3))

        words = Text.assemble((title, "bold"), (f"  {printable(subtitle, 200)}", "dim"))
        parts.append(Prose(words))

    for section in document.sections:
        if is_verbose or not section.is_folded:
            parts += section_parts(section, width, is_verbose=is_verbose)

    if document.footer and is_verbose:
        parts.append(Padding(_line(document.footer, "dim"), (1, 0, 0, 0)))

    if document.next_command:
        command = (printable(document.next_command, _LONGEST), "bold")
        parts.append(Padding(Prose(Text.assemble("Next: ", command)), (1, 0, 0, 0)))

    return Group(*parts)


def section_parts(
    section: sections.Section, width: int, *, is_verbose: bool = True
) -> Iterator[RenderableType]:
    """Yield a section, an empty line before it."""
    blocks = list(_blocks(section.blocks, width, is_verbose=is_verbose))
    if section.heading:
        note = f"  {printable(section.note, _LONGEST)}" if section.note else ""
        title = (printable(section.heading, _LONGEST), "bold")
        blocks.insert(0, Prose(Text.assemble(title, (note, "dim"))))

    if blocks:
        yield Padding(blocks[0], (1, 0, 0, 0))
        yield from blocks[1:]


def _blocks(
    blocks: Sequence[sections.Block], width: int, *, is_verbose: bool
) -> Iterator[RenderableType]:
    items = [block for block in blocks if isinstance(block, sections.Item)]
    shown = items if is_verbose else items[:_FEW_ITEMS]
    label_width = max((cell_len(item.label) for item in shown), default=0)

    for block in blocks:
        if isinstance(block, sections.Paragraph):
            yield _paragraph(block)
        elif isinstance(block, sections.Table):
            yield from _table(block, width)
        elif isinstance(block, sections.Item) and block in shown:
            yield from _item(block, label_width, is_verbose=is_verbose)

    left = len(items) - len(shown)
    if left:
        yield _line(f"{left} more with -v", "dim")


def _paragraph(paragraph: sections.Paragraph) -> Prose:
    pieces = []
    for text, tone in paragraph.pieces:
        pieces.append((printable(text, _LONGEST), STYLES[tone]))

    mark = Text(paragraph.mark, style=STYLES[paragraph.tone])
    return Prose(Text.assemble(*pieces), mark)


def _table(table: sections.Table, width: int) -> Iterator[RenderableType]:
    if table.rows:
        yield fitted_table(table, width)
    if table.focus is not None and len(table.rows) > sections.FOCUS_ROWS:
        yield _line(f"{len(table.rows):,} rows in all, in --html and --json", "dim")
    if table.caption:
        yield _line(table.caption, "dim")


def _item(
    item: sections.Item, label_width: int, *, is_verbose: bool
) -> Iterator[RenderableType]:
    margin = label_width + GAP
    start = f"{printable(item.label):>{label_width}}{' ' * GAP}"
    label = Text(start, style=STYLES[item.tone])
    title = (printable(item.title, _LONGEST), "bold")
    gain = ""
    if item.gain and item.gain != item.label:
        gain = f"  {printable(item.gain, _LONGEST)}"

    yield Prose(Text.assemble(title, (gain, "green")), label)
    if not is_verbose:
        return

    if item.detail:
        yield Padding(_line(item.detail, "dim"), (0, 0, 0, margin))

    for line in item.code.splitlines():
        code = Text(printable(line, _LONGEST), overflow="fold")
        yield Padding(code, (0, 0, 0, margin))

    if item.check:
        yield Padding(_line(f"Check: {item.check}", "dim"), (0, 0, 0, margin))


def _line(text: str, style: str) -> Prose:
    return Prose(Text(printable(text, _LONGEST), style=style))


def fitted_table(table: sections.Table, width: int) -> RichTable:
    """Return a table at most ``width`` cells wide, without lines."""
    columns, rows = table.columns, table.rows
    if table.focus is not None:
        first = max(0, table.focus - sections.FOCUS_ROWS // 2)
        rows = rows[first : first + sections.FOCUS_ROWS]

    cells, widest = [], []
    for place, column in enumerate(columns):
        own = [sections.cell_of(row[place]) for row in rows]
        cells.append(own)
        widest.append(max((_width_of(cell, column) for cell in own), default=0))

    shown = RichTable(
        box=None,
        pad_edge=False,
        padding=(0, GAP, 0, 0),
        show_header=any(column.name for column in columns),
    )

    fitted = []

    for place, cells_wide in fit_widths(columns, widest, width).items():
        column = columns[place]
        if column.kind == "bar":
            fitted.append(_draw_bars(cells[place], cells_wide))
        else:
            fitted.append([_shorten(cell, column, cells_wide) for cell in cells[place]])

        shown.add_column(
            Text(printable(column.name, max(cells_wide, 1))),
            justify="right" if column.is_number else "left",
            header_style="dim",
            no_wrap=column.kind != "whole",
            overflow="fold",
            width=max(cells_wide, 1),
        )

    for row in zip(*fitted, strict=True):
        shown.add_row(*row)

    return shown


def _width_of(cell: sections.Cell, column: sections.TableColumn) -> int:
    size = cell_len(printable(sections.cell_text(cell, column.kind), _LONGEST))
    return size + _BAR_CELLS + 1 if column.kind == "bar" else size


def _draw_bars(cells: Sequence[sections.Cell], width: int) -> list[Text]:
    """Return the cells of a column of bars on one scale, each with its note behind it."""
    longest = max((cell_len(cell.note) for cell in cells), default=0)
    room = max(width - longest - 1, 1)
    bars = []

    for cell in cells:
        bar = ""
        if isinstance(cell.value, (int, float)):
            bar = "█" * round(min(cell.value, 1.0) * room) or "▏"

        text = f"{bar} {printable(cell.note, _LONGEST)}".strip()
        bars.append(Text(text, style=STYLES[cell.tone]))

    return bars


def _shorten(cell: sections.Cell, column: sections.TableColumn, width: int) -> Text:
    text = printable(sections.cell_text(cell, column.kind), _LONGEST)
    if not column.is_number and column.kind != "whole" and cell_len(text) > width:
        if column.kind != "path":
            text = printable(text, width)
        elif "/" in text:
            text = printable_path(text, width)
        else:
            text = f"{text[: width - 1]}…"

    return Text(text, style=STYLES[cell.tone])


def fit_widths(
    columns: Sequence[sections.TableColumn], widest: Sequence[int], width: int
) -> dict[int, int]:
    """Return the places of the columns that are shown, in order, and how wide each is.

    ``widest`` are the cells of each column's widest text below its heading, ``width`` the terminal's.
    """
    shown = list(range(len(columns)))
    wanted, least, floors = [], [], []
    for column, size in zip(columns, widest, strict=True):
        want = max(size, cell_len(column.name))
        wanted.append(want)
        least.append(want if column.is_number else min(want, column.least))
        floors.append(size if column.is_number else _LEAST_TEXT)

    while sum(least[place] for place in shown) + GAP * (len(shown) - 1) > width:
        last = max(shown, key=lambda place: columns[place].rank, default=-1)
        if last < 0 or not columns[last].rank:
            break

        shown.remove(last)

    widths = {place: least[place] for place in shown}
    room = width - GAP * (len(shown) - 1)

    while sum(widths.values()) > room:
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
