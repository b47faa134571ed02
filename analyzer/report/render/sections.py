"""The document model: sections of paragraphs, tables and items, without any layout.

All output for users is built from these records; ``terminal``, ``markdown`` and ``page_shell`` render
them. Values are raw (bytes as integers, shares as ratios), texts unescaped; renderers format both.
"""

from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import msgspec
from markupsafe import Markup

from analyzer.model.units import format_bytes, signed_bytes

# The look of a text: a weight, a judgement, or the colour of a category.
Tone = Literal[
    "plain", "strong", "muted", "good", "bad", "warning",
    "parameter", "optimizer_state", "gradient", "activation", "kv_cache",
    "input", "temporary", "workspace", "constant", "unattributed",
]  # fmt: skip

# The content of a column. All kinds but ``text``, ``path`` and ``whole`` are numbers, never cut.
#
# A ``path`` loses its first parts if the line is too short; a ``whole`` text wraps. ``change`` is a
# signed difference in bytes. ``bar`` is a ratio from 0 to 1.
ColumnKind = Literal[
    "text",
    "path",
    "whole",
    "number",
    "bytes",
    "change",
    "percent",
    "bar",
]

_NUMBERS = ("number", "bytes", "change", "percent")


@dataclass(frozen=True)
class Cell:
    """A value with a tone."""

    value: str | int | float | None
    tone: Tone = "plain"


CellValue = str | int | float | None | Cell
Row = tuple[CellValue, ...]


@dataclass(frozen=True)
class TableColumn:
    """One column of a table; a table whose names are all empty has no heading line.

    ``least`` are the terminal cells that a text needs to be of use. A terminal that is too narrow drops
    the highest ``rank`` first; rank 0 always stays.
    """

    name: str
    kind: ColumnKind = "text"
    least: int = 16
    rank: int = 0

    @property
    def is_number(self) -> bool:
        """Whether its cells are numbers: right-aligned and never cut."""
        return self.kind in _NUMBERS


# The columns of each table.
COLUMNS = msgspec.toml.decode(
    (files("analyzer.report.render") / "table_columns.toml").read_bytes(),
    type=dict[str, tuple[TableColumn, ...]],
)


@dataclass(frozen=True)
class Table:
    """Rows of cells, one cell for each column."""

    columns: tuple[TableColumn, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Paragraph:
    """A text; ``mark`` such as ``- `` stands before it, further lines are indented."""

    text: str
    tone: Tone = "plain"
    mark: str = ""


@dataclass(frozen=True)
class Item:
    """A finding or a remedy.

    ``action`` is one thing to do, empty for an observation. ``check`` is a command that applies the
    change and measures it, ``table`` is for pages only.
    """

    label: str
    title: str
    gain: str = ""
    detail: str = ""
    code: str = ""
    tone: Tone = "plain"
    check: str = ""
    table: Table | None = None
    action: str = ""


# A part of a section; markup is a drawing, for pages only.
Block = Paragraph | Table | Item | Markup


@dataclass(frozen=True)
class Section:
    """A heading, which may be empty, a note behind it, and blocks; level 2 is a part of a section.

    A folded section is shown by a terminal only with ``-v``, and by a page after a click.
    """

    heading: str
    blocks: tuple[Block, ...]
    note: str = ""
    level: int = 1
    is_folded: bool = False


@dataclass(frozen=True)
class Document:
    """A whole answer; ``badge`` is the basis of the figures, ``notices`` come before any figure."""

    title: str
    headline: str
    tone: Tone = "strong"
    subtitle: str = ""
    badge: str = ""
    notices: tuple[str, ...] = ()
    lead: tuple[Block, ...] = ()
    sections: tuple[Section, ...] = ()
    footer: str = ""
    next_command: str = ""


def cell_of(value: CellValue) -> Cell:
    """Return a value as a cell."""
    return value if isinstance(value, Cell) else Cell(value)


def cell_text(cell: Cell, kind: ColumnKind) -> str:
    """Return the text of a cell, unescaped; none for a bar."""
    value = cell.value
    if value is None or kind == "bar":
        return ""

    if isinstance(value, str):
        return value

    if kind == "bytes":
        return format_bytes(value)

    if kind == "change":
        return signed_bytes(value) if value else "same"

    if kind == "percent":
        return f"{value:.1%}"

    return f"{value:,}"
