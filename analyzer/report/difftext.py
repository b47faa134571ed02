"""A difference of two steps as tables in the terminal. Computes nothing but what it leaves out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from analyzer.report.fitting import Column, fitted_table, number, whole_numbers
from analyzer.report.untrusted import printable, printable_path
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
    parts.append(_sizes("Peak", document["peak"], "number", document, width))
    parts.append(
        _sizes("At the peak, requested bytes", document["categories"], "category", document, width)
    )
    parts.extend(_changes("Layers", document["layers"], document, width))
    parts.extend(_changes("Ops", document["ops"], document, width))
    return Group(*map(whole_numbers, parts))


def _sizes(
    title: str, rows: list[dict[str, Any]], key: str, document: dict[str, Any], width: int
) -> RenderableType:
    columns = [Column(name="", least=16), *_numbers(document)]
    cells: list[list[str | Text]] = [
        [printable(row[key].replace("_", " "), 40), *_cells(row)] for row in rows
    ]
    return Padding(fitted_table(title, columns, cells, width), (1, 0, 0, 0))


def _changes(
    title: str, rows: list[dict[str, Any]], document: dict[str, Any], width: int
) -> Iterable[RenderableType]:
    changed = [row for row in rows if row["change"] != "same"]
    if not changed:
        yield Padding(Text(f"{title}: all {len(rows)} the same", style="dim"), (1, 0, 0, 0))
        return
    name = Column(name="", least=24, shorten=printable_path)
    columns = [name, *_numbers(document), Column(name="change", least=6, rank=1)]
    cells: list[list[str | Text]] = [
        [
            printable(row["name"] or "(none)", 400),
            *_cells(row),
            Text(row["change"], style=_STYLES[row["change"]]),
        ]
        for row in changed[:_ROWS]
    ]
    if len(changed) > _ROWS:
        rest = sum(row["delta_bytes"] for row in changed[_ROWS:])
        more = Text(f"{len(changed) - _ROWS} more", style="dim")
        cells.append([more, "", "", _signed(rest), "", ""])
    heading = f"{title} that differ: {len(changed)} of {len(rows)}"
    yield Padding(fitted_table(heading, columns, cells, width), (1, 0, 0, 0))


def _numbers(document: dict[str, Any]) -> list[Column]:
    labels = (printable(document[side]["label"], 22) for side in ("a", "b"))
    return [*map(number, labels), number("difference"), number("")]


def _cells(row: dict[str, Any]) -> list[str | Text]:
    a, b, delta = row["a_bytes"], row["b_bytes"], row["delta_bytes"]
    sizes: list[str | Text] = ["-" if size is None else format_bytes(size) for size in (a, b)]
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
