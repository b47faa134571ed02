"""The account as text for the terminal. Computes nothing: every number is the document's."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from analyzer.model.units import format_bytes
from analyzer.report.terminal.fitted_tables import TableColumn, fitted_table, number, whole_numbers
from analyzer.report.untrusted import printable

_LONG: Final = 600
_WIDTH: Final = 100
_SOURCES: Final = {
    "tensorflow": "TensorFlow's",
    "driver": "the driver's",
    "difference": "difference",
    "predicted": "predicted",
    "reports": "public reports",
}
_PHANTOM: Final = (
    "On a phantom card: TensorFlow's own runtime, no card, no CUDA library's own memory."
)


def print_device(document: dict[str, Any], console: Console) -> None:
    """Print the whole account."""
    console.print(rendered(document, console.width), markup=False)


def account_text(document: dict[str, Any], width: int = _WIDTH) -> str:
    """Return the whole account as plain text."""
    text = io.StringIO()
    print_device(document, Console(file=text, width=width, no_color=True))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def rendered(document: dict[str, Any], width: int) -> RenderableType:
    """Return the account as one renderable, ``width`` columns wide."""
    parts: list[RenderableType] = []
    if document["is_phantom"]:
        parts.append(Text(_PHANTOM, style="bold"))
    parts.append(Text(printable(document["headline"], _LONG), style="bold"))
    if document["stages"]:
        parts.append(_stages(document["stages"], width))
    for card in document["cards"]:
        parts += _card(card, width)
    if document["switches"] and (document["cards"] or document["allocators"]):
        parts.append(_apart(Text("What is set", style="bold")))
        for one in document["switches"]:
            parts.append(
                _in(Text(f"{printable(one['name'])}={printable(one['value'])}: {one['does']}"))
            )
    parts += [_apart(Text(printable(note, _LONG))) for note in document["notes"]]
    return Group(*map(whole_numbers, parts))


def _card(card: dict[str, Any], width: int) -> Iterator[RenderableType]:
    yield _apart(
        Text(
            f"Card {card['index']}: {printable(card['name'])}, {format_bytes(card['total_bytes'])}",
            style="bold",
        )
    )
    rows: list[list[str | Text]] = [
        [_size(row), printable(row["what"], _LONG), _SOURCES[row["source"]]] for row in card["rows"]
    ]
    columns = [
        number("size"),
        TableColumn(name="what", least=24),
        TableColumn(name="whose figure", least=12, rank=1),
    ]
    yield _in(fitted_table("", columns, rows, width - 2))
    for row in card["rows"]:
        if row["note"]:
            yield _in(Text(printable(row["note"], _LONG)))
    if card["would_take_bytes"] is not None:
        yield _in(
            Text(
                "TensorFlow would take "
                f"{format_bytes(card['would_take_bytes'])} of it now: what is free, less a context and "
                "less its reserve; with growth, as much as it needs up to that."
            )
        )
    for note in card["notes"]:
        yield _in(Text(printable(note, _LONG)))


def _size(row: dict[str, Any]) -> str:
    low, high = row["low_bytes"], row["high_bytes"]
    if low == high:
        return format_bytes(low)
    return f"{format_bytes(low)} to {format_bytes(high)}"


def _stages(stages: list[dict[str, Any]], width: int) -> RenderableType:
    rows: list[list[str | Text]] = [
        [format_bytes(one["added_bytes"]), format_bytes(one["outside_bytes"]), one["what"]]
        for one in stages
    ]
    columns = [number("added"), number("in all"), TableColumn(name="beside the pool", least=24)]
    return _apart(_in(fitted_table("", columns, rows, width - 2)))


def _in(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2))


def _apart(part: RenderableType) -> Padding:
    return Padding(part, (1, 0, 0, 0))
