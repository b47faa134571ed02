"""A difference of two steps as tables in the terminal. Computes nothing but what it leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from analyzer.model.contract.report.diff_file import BytesOfBoth, DiffFile, LayerOfBoth
from analyzer.model.units import format_bytes, signed_bytes
from analyzer.report.terminal.fitted_tables import TableColumn, fitted_table, number, whole_numbers
from analyzer.report.untrusted import printable, printable_path

_ROWS: Final = 12  # of a table
_STYLES: Final = {"came": "red", "grew": "red", "went": "green", "shrank": "green", "same": "dim"}


def print_diff(report: DiffFile, console: Console) -> None:
    """Print the whole difference."""
    console.print(render_diff(report, console.width), markup=False)


def render_diff(report: DiffFile, width: int = 100) -> RenderableType:
    """Return the difference as one renderable, ``width`` columns wide."""
    first, second = report.a.label, report.b.label
    parts: list[RenderableType] = [
        Text(f"{printable(first, 60)}  →  {printable(second, 60)}", style="bold"),
        Text(printable(report.headline, 400)),
    ]
    parts += [Text(f"! {printable(note, 400)}", style="yellow") for note in report.notes]
    peak = [(row.number, row) for row in report.peak]
    parts.append(_sizes("Peak", peak, report, width))
    categories = [(row.category, row) for row in report.categories]
    parts.append(_sizes("At the peak, requested bytes", categories, report, width))
    parts.extend(_changes("Layers", report.layers, report, width))
    parts.extend(_changes("Ops", report.ops, report, width))
    return Group(*map(whole_numbers, parts))


def _sizes(
    title: str, rows: Sequence[tuple[str, BytesOfBoth]], report: DiffFile, width: int
) -> RenderableType:
    columns = [TableColumn(name="", least=16), *_numbers(report)]
    cells: list[list[str | Text]] = [
        [printable(name.replace("_", " "), 40), *_cells(row)] for name, row in rows
    ]
    return Padding(fitted_table(title, columns, cells, width), (1, 0, 0, 0))


def _changes(
    title: str, rows: Sequence[LayerOfBoth], report: DiffFile, width: int
) -> Iterable[RenderableType]:
    changed = [row for row in rows if row.change != "same"]
    if not changed:
        yield Padding(Text(f"{title}: all {len(rows)} the same", style="dim"), (1, 0, 0, 0))
        return
    name = TableColumn(name="", least=24, shorten=printable_path)
    columns = [name, *_numbers(report), TableColumn(name="change", least=6, rank=1)]
    cells: list[list[str | Text]] = [
        [
            printable(row.name or "(none)", 400),
            *_cells(row),
            Text(row.change, style=_STYLES[row.change]),
        ]
        for row in changed[:_ROWS]
    ]
    if len(changed) > _ROWS:
        rest = sum(row.delta_bytes or 0 for row in changed[_ROWS:])
        more = Text(f"{len(changed) - _ROWS} more", style="dim")
        cells.append([more, "", "", _signed(rest), "", ""])
    heading = f"{title} that differ: {len(changed)} of {len(rows)}"
    yield Padding(fitted_table(heading, columns, cells, width), (1, 0, 0, 0))


def _numbers(report: DiffFile) -> list[TableColumn]:
    labels = (printable(side.label, 22) for side in (report.a, report.b))
    return [*map(number, labels), number("difference"), number("")]


def _cells(row: BytesOfBoth) -> list[str | Text]:
    a, b, delta = row.a_bytes, row.b_bytes, row.delta_bytes
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
    return signed_bytes(delta_bytes) if delta_bytes else "same"
