"""The hosts of a run as lines and a table. Computes nothing: every number is the report's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from analyzer.model.contract.report.run_figures import HostRow, HostsFigures
from analyzer.model.units import format_bytes
from analyzer.report.terminal.fitted_tables import TableColumn, fitted_table, number
from analyzer.report.untrusted import printable

_ROWS: Final = 10


def hosts_lines(hosts: HostsFigures) -> Iterator[RenderableType]:
    """Yield the worst device and the spread, a line each."""
    worst = hosts.worst
    yield Text.assemble(
        (f"{len(hosts.rows)} hosts, {hosts.devices} devices; the worst is ", ""),
        (f"{printable(worst.host, 40)} {printable(worst.allocator, 30)}", "bold"),
        (f" with {format_bytes(worst.allocated_bytes)} allocated", ""),
    )
    yield Text(
        f"of all: {format_bytes(hosts.least_bytes)} to {format_bytes(hosts.most_bytes)}, median "
        f"{format_bytes(hosts.median_bytes)}; {len(hosts.outliers) or 'no'} "
        f"outlier{'' if len(hosts.outliers) == 1 else 's'}",
        style="dim",
    )


def hosts_table(hosts: HostsFigures, width: int) -> RenderableType:
    """Return the hosts worth a look: the worst, the outliers, those that failed, then the others."""
    marks = {(place.host, place.allocator): "outlier" for place in hosts.outliers}
    marks[hosts.worst.host, hosts.worst.allocator] = "worst"
    rows: list[tuple[int, int, list[str | Text]]] = []
    for row in hosts.rows:
        if row.failed:
            not_read = Text("not read", style="yellow")
            rows.append((1, 0, [printable(row.host, 60), "", "", "", not_read]))
        for device in row.devices:
            mark = marks.get((row.host, device.allocator), "")
            rank = {"worst": 0, "outlier": 1}.get(mark, 2)
            cells: list[str | Text] = [
                printable(row.host, 60),
                printable(device.allocator, 30),
                format_bytes(device.requested_bytes),
                format_bytes(device.allocated_bytes),
                _told(row, mark),
            ]
            rows.append((rank, -device.allocated_bytes, cells))
    rows.sort(key=lambda one: one[:2])
    columns = [
        TableColumn(name="host", least=12),
        TableColumn(name="device", least=9),
        number("requested"),
        number("allocated"),
        TableColumn(name="", least=10, rank=1),
    ]
    table = fitted_table("Hosts", columns, [cells for _, _, cells in rows[:_ROWS]], width)
    if len(rows) > _ROWS:
        table.caption = f"{len(rows) - _ROWS} more are in --json and --html"
    return Padding(table, (1, 0, 0, 0))


def _told(row: HostRow, mark: str) -> Text:
    said = [mark] if mark else []
    if row.damaged:
        said.append("damaged trace")
    return Text(", ".join(said), style="bold red" if mark == "worst" else "yellow")
