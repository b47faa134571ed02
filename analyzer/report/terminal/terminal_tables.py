"""The tables of the terminal report. Computes nothing: every number is the report's."""

from __future__ import annotations

from typing import Final

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.units import format_bytes
from analyzer.report.terminal.fitted_tables import TableColumn, fitted_table, number
from analyzer.report.untrusted import printable, printable_path

_ROWS: Final = 12  # of a table
_BAR_CELLS: Final = 28  # of the longest bar
_STYLES: Final = {
    "parameter": "blue",
    "optimizer_state": "cyan",
    "gradient": "magenta",
    "activation": "yellow",
    "input": "green",
    "temporary": "red",
    "constant": "bright_black",
    "unattributed": "white",
}

Row = list[str | Text]


def categories_table(report: ReportFile, width: int) -> RenderableType:
    """Return what is alive at the peak by category, each with a bar for its share."""
    categories = report.categories_at_peak.by_category()
    total = report.peak.requested_bytes or 1
    rows: list[Row] = []
    for name, size_bytes in categories.items():
        if not size_bytes:
            continue
        share = min(size_bytes / total, 1.0)
        bar = Text("█" * max(round(share * _BAR_CELLS), 0) or "▏", style=_STYLES.get(name, ""))
        rows.append([name.replace("_", " "), format_bytes(size_bytes), f"{share:.1%}", bar])
    rows.append([Text("sum", style="dim"), format_bytes(sum(categories.values())), "", ""])
    columns = [TableColumn(name="", least=15), number(""), number(""), TableColumn(name="", rank=1)]
    table = fitted_table("At the peak, requested bytes", columns, rows, width)
    table.show_header = False
    return _apart(table)


def steps_table(report: ReportFile, width: int) -> RenderableType:
    """Return the peak of each step, of the first and the last where there are many."""
    steps = report.steps
    if not steps:
        return Text("")
    is_timed = any(step.duration_s is not None for step in steps)
    chosen = steps if len(steps) <= 6 else [*steps[:3], *steps[-3:]]
    rows: list[Row] = []
    for step in chosen:
        seconds = step.duration_s
        time = [] if not is_timed else ["" if seconds is None else f"{seconds * 1e3:.1f} ms"]
        sizes = map(format_bytes, (step.requested_bytes, step.allocated_bytes))
        rows.append([str(step.index), *sizes, *time])
    names = ["step", "requested", "allocated", *(["time"] if is_timed else [])]
    table = fitted_table("Peak of each step", [number(name) for name in names], rows, width)
    if len(chosen) < len(steps):
        table.caption = f"{len(steps) - len(chosen)} steps between are not shown"
    return _apart(table)


def tensors_table(report: ReportFile, width: int) -> RenderableType:
    """Return the largest tensors at the peak, with the layer of each and why it is alive."""
    tensors = report.tensors_at_peak
    columns = [
        number("requested"),
        TableColumn(name="category", least=15, rank=2),
        TableColumn(name="shape", least=20, rank=3),
        TableColumn(name="tensor", least=20, shorten=printable_path),
        TableColumn(name="layer", least=14, rank=1, shorten=printable_path),
        TableColumn(name="why it is alive", least=20, rank=4, shorten=_reason),
    ]
    rows: list[Row] = [
        [
            format_bytes(tensor.requested_bytes),
            Text(tensor.category.replace("_", " "), style=_STYLES.get(tensor.category, "")),
            printable(tensor.shape or "?", 20),
            printable(tensor.name, 400),
            printable(tensor.layer or "", 400),
            Text(printable(tensor.why_alive, 400), style="dim"),
        ]
        for tensor in tensors[:_ROWS]
    ]
    if len(tensors) > _ROWS:
        rest = sum(tensor.requested_bytes for tensor in tensors[_ROWS:])
        more = Text(f"{len(tensors) - _ROWS} more", style="dim")
        rows.append([format_bytes(rest), "", "", more, "", ""])
    title = f"Largest of {len(tensors)} tensors alive at the peak"
    return _apart(fitted_table(title, columns, rows, width))


def layers_table(report: ReportFile, width: int) -> RenderableType | None:
    """Return the layers that hold most at the peak; None where no layer is known."""
    layers = [row for row in report.layers if row.layer]
    if not layers:
        return None
    columns = [
        number("total"),
        number("activation"),
        number("parameter + state"),
        TableColumn(name="layer", least=20, shorten=printable_path),
    ]
    rows: list[Row] = [
        [
            format_bytes(row.total_bytes),
            format_bytes(row.activation),
            format_bytes(row.parameter + row.optimizer_state + row.gradient),
            printable(row.layer, 400),
        ]
        for row in layers[:_ROWS]
    ]
    return _apart(
        fitted_table("Layers with the most bytes alive at the peak", columns, rows, width)
    )


def _reason(text: object, width: int) -> str:
    """Shorten a reason: the path in it, or the end of one without a path."""
    shown = str(text)
    return printable_path(shown, width) if "/" in shown else f"{shown[: width - 1]}…"


def _apart(table: Table) -> RenderableType:
    return Padding(table, (1, 0, 0, 0))
