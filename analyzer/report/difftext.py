"""A difference of two steps as tables in the terminal. Computes nothing but what it leaves out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analyzer.report.text import plain_table
from analyzer.report.untrusted import printable
from analyzer.units import format_bytes

_ROWS: Final = 12
_STYLES: Final = {"came": "red", "grew": "red", "went": "green", "shrank": "green", "same": "dim"}


def print_diff(document: dict[str, Any], console: Console) -> None:
    """Print the whole difference."""
    console.print(render_diff(document, console.width), markup=False)


def render_diff(document: dict[str, Any], width: int = 100) -> RenderableType:
    """Return the difference as one renderable, ``width`` columns wide."""
    first, second = document["a"]["label"], document["b"]["label"]
    parts: list[RenderableType] = [
        Text(f"{printable(first, 60)}  →  {printable(second, 60)}", style="bold"),
        Text(printable(document["headline"], 400)),
    ]
    parts += [Text(f"! {printable(note, 400)}", style="yellow") for note in document["notes"]]
    parts.append(_sizes("Peak", document["peak"], "number", document))
    parts.append(
        _sizes("At the peak, requested bytes", document["categories"], "category", document)
    )
    parts.extend(_changes("Layers", document["layers"], document, width))
    parts.extend(_changes("Ops", document["ops"], document, width))
    return Group(*parts)


def _table(title: str, columns: Iterable[str], first: str = "") -> Table:
    return plain_table(title, [(first, "left"), *((column, "right") for column in columns)])


def _sizes(
    title: str, rows: list[dict[str, Any]], key: str, document: dict[str, Any]
) -> RenderableType:
    table = _table(title, [*_labels(document), "difference", ""])
    for row in rows:
        table.add_row(Text(printable(row[key].replace("_", " "), 40)), *_cells(row))
    return Padding(table, (1, 0, 0, 0))


def _changes(
    title: str, rows: list[dict[str, Any]], document: dict[str, Any], width: int
) -> Iterable[RenderableType]:
    changed = [row for row in rows if row["change"] != "same"]
    if not changed:
        yield Padding(Text(f"{title}: all {len(rows)} the same", style="dim"), (1, 0, 0, 0))
        return
    table = _table(
        f"{title} that differ: {len(changed)} of {len(rows)}",
        [*_labels(document), "difference", "", "change"],
    )
    for row in changed[:_ROWS]:
        name = printable(row["name"] or "(none)", max(width - 75, 24))
        change = Text(row["change"], style=_STYLES[row["change"]])
        table.add_row(Text(name), *_cells(row), change)
    if len(changed) > _ROWS:
        rest = sum(row["delta_bytes"] for row in changed[_ROWS:])
        table.add_row(
            Text(f"{len(changed) - _ROWS} more", style="dim"), "", "", _signed(rest), "", ""
        )
    yield Padding(table, (1, 0, 0, 0))


def _labels(document: dict[str, Any]) -> list[str]:
    return [printable(document[side]["label"], 22) for side in ("a", "b")]


def _cells(row: dict[str, Any]) -> list[RenderableType]:
    a, b, delta = row["a_bytes"], row["b_bytes"], row["delta_bytes"]
    sizes: list[RenderableType] = ["-" if size is None else format_bytes(size) for size in (a, b)]
    if delta is None:
        return [*sizes, "-", ""]
    share = _share(delta / a) if a else ""
    style = "red" if delta > 0 else "green" if delta < 0 else "dim"
    return [*sizes, Text(_signed(delta), style=style), Text(share, style=style)]


def _share(ratio: float) -> str:
    if abs(ratio) < 0.0005:
        return ""
    return f"{ratio:+.1%}" if ratio < 10 else f"{1 + ratio:.0f} x"


def _signed(delta_bytes: int) -> str:
    if not delta_bytes:
        return "same"
    return f"{'+' if delta_bytes > 0 else ''}{format_bytes(delta_bytes)}"
