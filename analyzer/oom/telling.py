"""A log's account as text for the terminal. Computes nothing: every number is the document's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from analyzer.model.units import format_bytes
from analyzer.report.terminal.fitted_tables import TableColumn, fitted_table, number, whole_numbers
from analyzer.report.untrusted import printable, printable_path

_ROWS: Final = 12  # of a table
_FULL: Final = 5
"""Failures that are told whole; the others have a row in a table."""
_LONG: Final = 600  # characters of a sentence

FIGURES: Final = (
    ("limit", "limit_bytes"),
    ("in use", "in_use_bytes"),
    ("most ever in use", "peak_in_use_bytes"),
    ("taken by the pool", "pool_bytes"),
    ("free in the pool", "free_bytes"),
    ("largest hole", "largest_hole_bytes"),
    ("unused inside chunks", "waste_bytes"),
    ("under the limit, not taken", "room_bytes"),
    ("limit less in use", "left_bytes"),
)


def print_account(document: dict[str, Any], console: Console) -> None:
    """Print the whole account."""
    console.print(render_account(document, console.width), markup=False)


def render_account(document: dict[str, Any], width: int = 100) -> RenderableType:
    """Return the account as one renderable, ``width`` columns wide."""
    parts: list[RenderableType] = [
        Text(printable(document["headline"], _LONG), style="bold"),
        Text(f"{printable(document['log'], 200)}: {document['lines']:,} lines", style="dim"),
    ]
    failures = document["failures"]
    for place, failure in enumerate(failures[:_FULL]):
        parts += _failure(failure, place, len(failures), width)
    if len(failures) > _FULL:
        parts.append(_others(failures[_FULL:], document["failures_not_shown"], width))
    parts += [Padding(Text(printable(note, _LONG)), (1, 0, 0, 0)) for note in document["notes"]]
    return Group(*map(whole_numbers, parts))


def _failure(
    failure: dict[str, Any], place: int, count: int, width: int
) -> Iterator[RenderableType]:
    head = "The failure" if count == 1 else f"Failure {place + 1} of {count}"
    told = "" if failure["told"] == 1 else f", told {failure['told']} times"
    who = f", {printable(failure['process'], 40)}" if failure["process"] else ""
    yield _apart(Text(f"{head}: line {failure['line']:,}{told}{who}", style="bold"))
    if count > 1:
        yield _in(Text(printable(failure["verdict"]["title"], _LONG), style="yellow"))
    for reason in failure["verdict"]["reasons"]:
        yield _in(Text(printable(reason, _LONG)))
    yield _facts(failure, width)
    figures = list(_figures(failure))
    if figures:
        table = fitted_table(
            "Figures", [TableColumn(name=""), number("size"), number("bytes")], figures, width
        )
        table.show_header = False
        yield _apart(table)
    yield from _holders(failure, width)
    yield from _sizes(failure, width)
    yield from _buffers(failure, width)
    if failure["remedies"]:
        yield _apart(Text("What the figures support", style="bold"))
    for remedy in failure["remedies"]:
        yield _in(Text(printable(remedy["action"], _LONG)))
        if remedy["because"]:
            yield Padding(Text(printable(remedy["because"], _LONG), style="dim"), (0, 0, 0, 4))
    if failure["verdict"]["missing"]:
        yield _apart(Text("The log lacks", style="dim"))
    for line in failure["verdict"]["missing"]:
        yield _in(Text(printable(line, _LONG), style="dim"))


def _facts(failure: dict[str, Any], width: int) -> RenderableType:
    asked = failure["asked"]
    rows: list[list[str | Text]] = []
    if asked:
        rows.append(["asked", asked_words(asked)])
        if asked["shape"] is not None:
            shape = f"[{', '.join(map(str, asked['shape']))}] {asked['dtype'] or ''}".strip()
            rows.append(["shape", printable(shape, 200)])
    names = (
        *(("op", "op"), ("type", "op_type"), ("allocator", "allocator"), ("device", "device")),
        *(("source", "source"), ("kernel", "kernel")),
    )
    for label, key in names:
        if failure[key] and (key != "op_type" or failure["op"] != failure["op_type"]):
            rows.append([label, printable(failure[key], 400)])
    if failure["requested_by"] and failure["op"] != failure["requested_by"]:
        rows.append(["in full", printable(failure["requested_by"], 400)])
    card = failure["card"]
    if card and (card["name"] or card["total_bytes"]):
        rows.append(["card", printable(card_words(card), 200)])
    columns = [
        TableColumn(name="", least=9),
        TableColumn(name="", least=20, shorten=printable_path),
    ]
    table = fitted_table("", columns, rows, width - 2)
    table.show_header = False
    table.title = None
    return _in(table)


def asked_words(asked: dict[str, Any]) -> str:
    """Say what was asked for, with every digit that is known."""
    size, rounded = asked["requested_bytes"], asked["rounded_bytes"]
    if asked["is_exact"]:
        more = "" if rounded == size else f", {rounded:,} rounded up"
        return f"{format_bytes(size)} ({size:,} bytes{more})"
    if asked["high_bytes"] - asked["low_bytes"] < 256:
        return f"{format_bytes(size)} ({asked['low_bytes']:,} to {asked['high_bytes']:,} bytes)"
    return f"about {format_bytes(size)} ({asked['low_bytes']:,} to {asked['high_bytes']:,} bytes)"


def card_words(card: dict[str, Any]) -> str:
    """Say what is known of the card."""
    parts = [card["name"] or "a card"]
    if card["total_bytes"]:
        source = " by the catalogue" if card["is_from_catalogue"] else ""
        parts.append(f"{format_bytes(card['total_bytes'])}{source}")
    if card["free_at_start_bytes"] is not None:
        parts.append(f"{format_bytes(card['free_at_start_bytes'])} free at the start")
    if card["free_bytes"] is not None:
        parts.append(f"{format_bytes(card['free_bytes'])} free when it failed")
    return ", ".join(parts)


def _figures(failure: dict[str, Any]) -> Iterator[list[str | Text]]:
    for label, key in FIGURES:
        size = failure[key]
        if size is None or (key == "left_bytes" and failure["free_bytes"] is not None):
            continue
        known = failure["ranges"].get(key)
        exact = f"{size:,}" if known is None else f"{known[0]:,} to {known[1]:,}"
        yield [label, format_bytes(size), Text(exact, style="dim")]


def _holders(failure: dict[str, Any], width: int) -> Iterator[RenderableType]:
    holders = failure["holders"]
    total = sum(row["size_bytes"] for row in holders)
    if len(holders) < 2 or not total:
        return
    rows: list[list[str | Text]] = []
    for row in holders:
        share = row["size_bytes"] / total
        bar = Text("█" * round(share * 28) or "▏", style="blue")
        rows.append([row["who"], format_bytes(row["size_bytes"]), f"{share:.1%}", bar])
    columns = [TableColumn(name="", least=26), number(""), number(""), TableColumn(name="", rank=1)]
    table = fitted_table("Who holds it", columns, rows, width)
    table.show_header = False
    yield _apart(table)


def _sizes(failure: dict[str, Any], width: int) -> Iterator[RenderableType]:
    if failure["stories"]:
        yield _apart(Text("What is in use", style="bold"))
    for story in failure["stories"]:
        yield _in(Text(printable(story, _LONG)))
    for story in failure["matched"]:
        yield _in(Text(printable(story, _LONG)))
    sizes = failure["sizes"]
    if not sizes:
        return
    is_named = any(row["names"] for row in sizes)
    columns = [
        number("chunks"),
        number("of bytes each"),
        number("together"),
        TableColumn(name="", rank=1),
    ]
    if is_named:
        columns.append(
            TableColumn(name="of this size in the model", least=24, shorten=printable_path)
        )
    rows: list[list[str | Text]] = []
    for row in sizes[:_ROWS]:
        mark = "asked size" if row["is_asked"] else ""
        cells: list[str | Text] = [
            f"{row['count']:,}",
            f"{row['size_bytes']:,}",
            format_bytes(row["total_bytes"]),
            mark,
        ]
        if is_named:
            cells.append(printable(", ".join(row["names"]), 400))
        rows.append(cells)
    if len(sizes) > _ROWS:
        rest = sizes[_ROWS:]
        held = sum(row["total_bytes"] for row in rest)
        count = sum(row["count"] for row in rest)
        more: list[str | Text] = [f"{count:,}", "others", format_bytes(held), ""]
        rows.append([*more, ""] if is_named else more)
    yield _apart(fitted_table("Chunks in use by size", columns, rows, width))


def _buffers(failure: dict[str, Any], width: int) -> Iterator[RenderableType]:
    compiled = failure["compiled"]
    if compiled:
        sums: list[list[str | Text]] = [
            [printable(name, 60), format_bytes(size)]
            for name, size in compiled["sums_bytes"].items()
        ]
        yield _apart(
            fitted_table("XLA's plan", [TableColumn(name="part"), number("size")], sums, width)
        )
        rows: list[list[str | Text]] = [
            [
                format_bytes(row["size_bytes"]),
                printable(row["shape"], 40),
                printable(row["operator"] or row["label"], 400),
            ]
            for row in compiled["buffers"][:_ROWS]
        ]
        columns = [
            number("size"),
            TableColumn(name="shape", least=14, rank=1),
            TableColumn(name="of", least=20, shorten=printable_path),
        ]
        yield _apart(fitted_table("XLA's largest buffers", columns, rows, width))
    nodes = failure["tensors_by_node"]
    if nodes:
        held: list[list[str | Text]] = [
            [format_bytes(row["size_bytes"]), printable(row["who"], 400)] for row in nodes[:_ROWS]
        ]
        columns = [number("size"), TableColumn(name="node", least=20, shorten=printable_path)]
        yield _apart(fitted_table("Tensors alive, by node", columns, held, width))


def _others(failures: list[dict[str, Any]], uncounted: int, width: int) -> RenderableType:
    rows: list[list[str | Text]] = []
    for failure in failures[:_ROWS]:
        asked = failure["asked"]
        rows.append(
            [
                f"{failure['line']:,}",
                format_bytes(asked["requested_bytes"]) if asked else "?",
                printable(failure["verdict"]["id"], 40),
                printable(failure["op"] or failure["allocator"] or "", 400),
            ]
        )
    left = len(failures) - _ROWS + uncounted
    if left > 0:
        rows.append(["", "", "", f"{left:,} more"])
    columns = [
        number("line"),
        number("asked"),
        TableColumn(name="verdict", least=12),
        TableColumn(name="op", least=16, shorten=printable_path),
    ]
    return _apart(fitted_table("The other failures", columns, rows, width))


def _in(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2))


def _apart(part: RenderableType) -> Padding:
    return Padding(part, (1, 0, 0, 0))
