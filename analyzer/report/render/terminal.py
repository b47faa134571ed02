"""Print a document in the terminal at any width without cutting a number.

A column of numbers is as wide as its widest number. Rich divides the rest of the line among the texts,
which lose their middle; if they would lose too much, the least important column is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table as RichTable
from rich.text import Text

from analyzer.model.contract.reading import read_table
from analyzer.report.render import sections
from analyzer.report.untrusted import UNIT, printable, printable_path

# Cells between two columns.
GAP = 2

# Cells that a column of text keeps in a terminal too narrow for everything that must stay.
_LEAST_TEXT = 8

_BAR_CELLS = 20  # of the longest bar
_LONGEST = 2_000  # characters of a paragraph
_MOST_LINES = 28  # of an answer without ``-v``
_MOST_ITEMS = 3  # findings and changes without ``-v``

# Stands for a space at which no line may end. Private use; ``printable`` removes it from texts.
_JOINED = "\ue000"

STYLES = read_table("report/labels.toml", dict[str, dict[str, str]])["style"]


def print_terminal(
    document: sections.Document,
    console: Console,
    *,
    is_verbose: bool = True,
) -> None:
    """Print a document; without ``is_verbose`` at most 28 lines, and no folded sections or details.

    The next command is one line at any width, to be copied.
    """
    shown = to_terminal(document, console.width, is_verbose=is_verbose)
    lines = console.render_lines(shown, pad=False)

    following = f"Next: {printable(document.next_command, _LONGEST)}"
    rows = -(-cell_len(following) // console.width) if document.next_command else 0
    room = _MOST_LINES - rows
    left = 0

    if not is_verbose and len(lines) > room:
        left = len(lines) - (room - 1)
        lines = lines[: room - 1]

    for line in lines:
        console.print(Segments([*line, Segment.line()]), end="")

    if left:
        console.print(_line(f"{left} more lines with -v", "dim"))
    if rows and is_verbose:
        console.print()

    if rows:
        console.print(Text(following, "bold"), soft_wrap=True)


def to_terminal(
    document: sections.Document,
    width: int = 100,
    *,
    is_verbose: bool = True,
) -> RenderableType:
    """Return a document without its next command as one renderable, ``width`` cells wide."""
    parts: list[RenderableType] = []

    if document.headline:
        parts.append(_line(document.headline, f"bold {STYLES[document.tone]}"))

    parts += _blocks(document.lead, width, is_verbose=is_verbose)

    for notice in document.notices:
        parts.append(_paragraph(sections.Paragraph(notice, "warning", "! ")))

    if document.title or document.subtitle:
        title = printable(document.title, 200)
        subtitle = document.subtitle

        if not is_verbose:
            room = width - cell_len(subtitle) - GAP
            title = printable_path(title, max(room, width // 3))

        about = f"  {printable(subtitle, 200)}"
        parts.append(Prose(Text.assemble((title, "bold"), (about, "dim"))))

    for section in document.sections:
        if is_verbose or not section.is_folded:
            parts += _section_parts(section, width, is_verbose=is_verbose)

    if document.footer and is_verbose:
        parts.append(Padding(_line(document.footer, "dim"), (1, 0, 0, 0)))

    return Group(*parts)


def _section_parts(
    section: sections.Section,
    width: int,
    *,
    is_verbose: bool,
) -> Iterator[RenderableType]:
    """Yield a section, an empty line before it."""
    blocks = list(_blocks(section.blocks, width, is_verbose=is_verbose))

    if section.heading:
        title = (printable(section.heading, _LONGEST), "bold")
        note = (f"  {printable(section.note, _LONGEST)}".rstrip(), "dim")
        blocks.insert(0, Prose(Text.assemble(title, note)))

    if blocks:
        yield Padding(blocks[0], (1, 0, 0, 0))
        yield from blocks[1:]


def _blocks(
    blocks: Sequence[sections.Block],
    width: int,
    *,
    is_verbose: bool,
) -> Iterator[RenderableType]:
    items = [block for block in blocks if isinstance(block, sections.Item)]
    shown = items if is_verbose else items[:_MOST_ITEMS]
    label_width = max((cell_len(item.label) for item in shown), default=0)

    for block in blocks:
        if isinstance(block, sections.Paragraph):
            yield _paragraph(block)
        elif isinstance(block, sections.Table) and block.rows:
            yield fitted_table(block, width)
        elif isinstance(block, sections.Item) and block in shown:
            yield from _item(block, label_width, is_verbose, block is shown[0])

    left = len(items) - len(shown)
    if left:
        yield _line(f"{left} more with -v", "dim")


def _paragraph(paragraph: sections.Paragraph) -> Prose:
    style = STYLES[paragraph.tone]
    text = Text(printable(paragraph.text, _LONGEST), style)
    return Prose(text, Text(paragraph.mark, style))


def _item(
    item: sections.Item,
    label_width: int,
    is_verbose: bool,
    is_first: bool,
) -> Iterator[RenderableType]:
    """Yield an item; without ``is_verbose`` only its title, and the code of the first one."""
    margin = label_width + GAP
    start = f"{printable(item.label):>{label_width}}{' ' * GAP}"
    label = Text(start, style=STYLES[item.tone])

    title = (printable(item.title, _LONGEST), "bold")
    is_said = item.gain in ("", item.label)
    gain = "" if is_said else f"  {printable(item.gain, _LONGEST)}"

    yield Prose(Text.assemble(title, (gain, "green")), label)

    if item.detail and is_verbose:
        yield Padding(_line(item.detail, "dim"), (0, 0, 0, margin))

    code_lines = item.code.splitlines()
    if is_verbose or (is_first and len(code_lines) == 1):
        for line in code_lines:
            code = Text(printable(line, _LONGEST), overflow="fold")
            yield Padding(code, (0, 0, 0, margin))

    if item.check and is_verbose:
        yield Padding(_line(f"Check: {item.check}", "dim"), (0, 0, 0, margin))


def _line(text: str, style: str) -> Prose:
    return Prose(Text(printable(text, _LONGEST), style=style))


def fitted_table(table: sections.Table, width: int) -> RichTable:
    """Return a table at most ``width`` cells wide, without lines; texts give way to numbers."""
    shown = RichTable(
        box=None,
        pad_edge=False,
        padding=(0, GAP, 0, 0),
        show_header=any(column.name for column in table.columns),
    )

    columns = []

    for place in _choose_columns(table, width):
        column = table.columns[place]
        columns.append([_draw_cell(row[place], column) for row in table.rows])

        shown.add_column(
            printable(column.name, width),
            justify="right" if column.is_number else "left",
            header_style="dim",
            no_wrap=column.is_number,
            overflow="fold",
        )

    for row in zip(*columns, strict=True):
        shown.add_row(*row)

    return shown


def _choose_columns(table: sections.Table, width: int) -> list[int]:
    """Return the places of the columns with room, without those of the highest ranks."""
    least = []

    for place, column in enumerate(table.columns):
        texts = [_draw_text(row[place], column.kind) for row in table.rows]
        widest = max(map(cell_len, (column.name, *texts)))
        is_whole = column.is_number or column.kind == "bar"
        least.append(widest if is_whole else min(widest, column.least))

    shown = list(range(len(least)))

    while sum(least[place] + GAP for place in shown) > width + GAP:
        last = max(shown, key=lambda place: table.columns[place].rank)
        if not table.columns[last].rank:
            break

        shown.remove(last)

    return shown


def _draw_cell(
    value: sections.CellValue,
    column: sections.TableColumn,
) -> RenderableType:
    text = printable(_draw_text(value, column.kind), _LONGEST)
    style = STYLES[sections.cell_of(value).tone]
    if column.kind in ("text", "path"):
        return Fitted(text, style, is_path=column.kind == "path")

    return Text(text, style)


def _draw_text(value: sections.CellValue, kind: sections.ColumnKind) -> str:
    """Return the text of a cell; a bar for a ratio."""
    cell = sections.cell_of(value)
    if kind != "bar" or not isinstance(cell.value, (int, float)):
        return sections.cell_text(cell, kind)

    cells = round(min(cell.value, 1.0) * _BAR_CELLS)

    return "█" * cells or "▏"


class Fitted:
    """A text that loses its middle, or a path its first parts, to fit its column."""

    def __init__(self, text: str, style: str, *, is_path: bool) -> None:
        self.text = text
        self.style = style
        self.is_path = is_path

    def __rich_measure__(
        self,
        console: Console,
        options: ConsoleOptions,
    ) -> Measurement:
        """Return the least and the full width."""
        full = min(cell_len(self.text), options.max_width)
        return Measurement(min(full, _LEAST_TEXT), full)

    def __rich_console__(
        self,
        console: Console,
        options: ConsoleOptions,
    ) -> Iterator[Text]:
        """Yield the text in one line."""
        text = self.text
        width = options.max_width

        if cell_len(text) > width and self.is_path and "/" not in text:
            text = f"{text[: width - 1]}…"
        elif cell_len(text) > width:
            cut = printable_path if self.is_path else printable
            text = cut(text, width)

        yield Text(text, self.style, no_wrap=True)


class Prose:
    """A paragraph that breaks between words but never between a number and its unit.

    ``label`` is a text before the first line; the other lines are indented by its width.
    """

    def __init__(self, text: Text, label: Text | None = None) -> None:
        self.text = text
        self.label = label or Text()

    def __rich_console__(
        self,
        console: Console,
        options: ConsoleOptions,
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
