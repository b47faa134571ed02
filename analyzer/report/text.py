"""The document as tables in the terminal. Computes nothing: every number is the document's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analyzer.report.untrusted import printable, printable_path
from analyzer.units import format_bytes

_ROWS: Final = 12
_BAR_CELLS: Final = 28
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
_SEVERITIES: Final = {"high": "bold red", "medium": "yellow", "low": "cyan", "info": "dim"}


def print_document(document: dict[str, Any], console: Console) -> None:
    """Print the whole report."""
    console.print(render(document, console.width), markup=False)


def render(document: dict[str, Any], width: int = 100) -> RenderableType:
    """Return the report as one renderable, ``width`` columns wide."""
    parts: list[RenderableType] = [*_verdict(document, width)]
    parts.extend(_fit(document))
    parts.extend(_uncertainty(document))
    parts.extend(_warnings(document))
    parts.extend(_what_if(document))
    parts.append(_categories(document))
    parts.append(_steps(document))
    parts.append(_tensors(document, width))
    layers = _layers(document, width)
    if layers is not None:
        parts.append(layers)
    parts.extend(_findings(document, width))
    return Group(*parts)


def _verdict(document: dict[str, Any], width: int) -> Iterable[RenderableType]:
    peak, device = document["peak"], document["device"]
    how = "measured" if document["kind"] == "trace" else "predicted"
    target = printable(document["target"].get("text", ""), 60)
    yield Text.assemble(
        (f"{target}  ", "bold"),
        (_describe_step(document), "dim"),
    )
    line = Text.assemble(
        ("Peak ", ""),
        (format_bytes(peak["requested_bytes"]), "bold"),
        (" requested by tensors, ", ""),
        (format_bytes(peak["allocated_bytes"]), "bold"),
        (" allocated in chunks", ""),
    )
    if peak["pool_bytes"] is not None:
        line.append(", ")
        line.append(format_bytes(peak["pool_bytes"]), "bold")
        line.append(" in the pool")
    line.append(f" ({how} on {printable(device['name'], 40)})")
    yield line
    where = "no named op" if not peak["op"] else printable(peak["op"], max(width - 30, 40))
    layer = f", layer {printable(peak['layer'], 40)}" if peak["layer"] else ""
    source = f", {printable(peak['source'], 60)}" if peak.get("source") else ""
    step = "" if peak["step"] is None else f"in step {peak['step']}, "
    yield Text(f"reached {step}by {where}{layer}{source}", style="dim")
    if peak["instant"] != peak["allocated_instant"]:
        yield Text(
            "Requested and allocated bytes peak at different instants; the categories are those of "
            "the requested peak.",
            style="dim",
        )
    ever = document["peak_ever"]
    if ever["allocated_bytes"] > peak["allocated_bytes"]:
        yield Text(
            f"Higher outside the steady step: {format_bytes(ever['allocated_bytes'])} allocated "
            f"({ever['phase']}).",
            style="yellow",
        )


def _fit(document: dict[str, Any]) -> Iterable[RenderableType]:
    fit = document.get("fit")
    if not fit:
        return
    style = {True: "bold green", False: "bold red"}.get(fit["fits"], "bold yellow")
    first, *rest = fit["says"]
    yield Text(printable(first, 400), style=style)
    for line in rest:
        yield Text(printable(line, 400), style="dim")


def _uncertainty(document: dict[str, Any]) -> Iterable[RenderableType]:
    stated = document.get("uncertainty")
    if not stated or stated.get("low_bytes") is None:
        return
    allocated = ""
    if stated.get("allocated_low_bytes") is not None:
        allocated = (
            f"; allocated {format_bytes(stated['allocated_low_bytes'])} to "
            f"{format_bytes(stated['allocated_high_bytes'])}"
        )
    yield Text(
        f"Likely range: requested {format_bytes(stated['low_bytes'])} to "
        f"{format_bytes(stated['high_bytes'])}{allocated}, because"
    )
    for reason in stated.get("because", ()):
        yield Padding(Text(f"- {printable(reason, 400)}", style="dim"), (0, 0, 0, 2))


def _what_if(document: dict[str, Any]) -> Iterable[RenderableType]:
    waste = document["fragmentation"]
    minimum = waste["minimum_limit_bytes"]
    if minimum is not None:
        parts = waste["minimum_limit_parts"]
        text = (
            f"Least memory limit that works: {format_bytes(minimum)} = "
            f"{format_bytes(parts['requested_bytes'])} requested + "
            f"{format_bytes(parts['rounding_bytes'])} rounding + "
            f"{format_bytes(parts['unsplit_bytes'])} unsplit chunks + "
            f"{format_bytes(parts['external_bytes'])} fragmentation (replayed)"
        )
        if waste["safe_limit_bytes"] != minimum:
            text += f"; some limits up to {format_bytes(waste['safe_limit_bytes'])} fail"
        yield Text(text)
    replayed = document["what_if"]
    if replayed is None:
        return
    how = (
        f"limit {format_bytes(replayed['memory_limit_bytes'])}, "
        f"growth {'on' if replayed['growth'] else 'off'}"
    )
    if replayed["fits"]:
        yield Text(
            f"Replayed with {how}: fits, pool {format_bytes(replayed['peak_pool_bytes'])}, "
            f"allocated {format_bytes(replayed['peak_allocated_bytes'])}",
            style="green",
        )
    else:
        failure = replayed["failure"]
        yield Text(
            f"Replayed with {how}: does not fit; a request for "
            f"{format_bytes(failure['requested_bytes'])} fails with "
            f"{format_bytes(failure['in_use_bytes'])} in use and "
            f"{format_bytes(failure['free_bytes'])} free "
            f"(largest piece {format_bytes(failure['largest_free_bytes'])})",
            style="bold red",
        )


def _describe_step(document: dict[str, Any]) -> str:
    step = document["step"]
    parts = [
        printable(step["mode"], 10),
        f"batch {step['batch_size']}" if step["batch_size"] else "",
        printable(step["optimizer"], 30),
        {True: "XLA", False: "op by op", None: ""}[step["jit"]],
        printable(step["dtype_policy"], 30) if step["dtype_policy"] != "float32" else "",
    ]
    return ", ".join(part for part in parts if part)


def _warnings(document: dict[str, Any]) -> Iterable[RenderableType]:
    error = document["error"]
    if error:
        first = str(error.get("message", "")).splitlines()[:1]
        where = f" at {printable(error['where'], 200)}" if error.get("where") else ""
        yield Text(
            f"The step ended with {printable(error.get('type'), 60)}: "
            f"{printable(first[0] if first else '', 400)}{where}",
            style="bold red",
        )
    for warning in document["warnings"]:
        yield Text(f"! {printable(warning, 400)}", style="yellow")
    for note in document.get("notes", []):
        yield Text(f"· {printable(note, 400)}", style="dim")


def plain_table(title: str, columns: Sequence[tuple[str, str]]) -> Table:
    """Return an empty table without lines; ``columns`` are names and how they are justified."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for name, justify in columns:
        table.add_column(Text(name), justify=justify, style="", header_style="dim", no_wrap=True)  # type: ignore[arg-type]
    return table


def _categories(document: dict[str, Any]) -> RenderableType:
    categories = document["categories_at_peak"]
    total = document["peak"]["requested_bytes"] or 1
    table = plain_table(
        "At the peak, requested bytes",
        [("", "left"), ("", "right"), ("", "right"), ("", "left")],
    )
    table.show_header = False
    for name, size_bytes in categories.items():
        if not size_bytes:
            continue
        share = size_bytes / total
        bar = Text("█" * max(round(share * _BAR_CELLS), 0) or "▏", style=_STYLES.get(name, ""))
        table.add_row(name.replace("_", " "), format_bytes(size_bytes), f"{share:.1%}", bar)
    table.add_row(Text("sum", style="dim"), format_bytes(sum(categories.values())), "", "")
    return Padding(table, (1, 0, 0, 0))


def _steps(document: dict[str, Any]) -> RenderableType:
    steps = document["steps"]
    if not steps:
        return Text("")
    is_timed = any(step["duration_s"] is not None for step in steps)
    columns = ["step", "requested", "allocated", *(["time"] if is_timed else [])]
    table = plain_table("Peak of each step", [(name, "right") for name in columns])
    chosen = steps if len(steps) <= 6 else [*steps[:3], *steps[-3:]]
    for step in chosen:
        seconds = step["duration_s"]
        row = [
            str(step["index"]),
            format_bytes(step["requested_bytes"]),
            format_bytes(step["allocated_bytes"]),
        ]
        if is_timed:
            row.append("" if seconds is None else f"{seconds * 1e3:.1f} ms")
        table.add_row(*row)
    if len(chosen) < len(steps):
        table.caption = f"{len(steps) - len(chosen)} steps between are not shown"
    return Padding(table, (1, 0, 0, 0))


def _tensors(document: dict[str, Any], width: int) -> RenderableType:
    rows = document["tensors_at_peak"]
    name_width = max((width - 46) // 2, 20)
    table = plain_table(
        f"Largest of {len(rows)} tensors alive at the peak",
        [
            ("requested", "right"),
            ("category", "left"),
            ("shape", "left"),
            ("tensor", "left"),
            ("why it is alive", "left"),
        ],
    )
    for row in rows[:_ROWS]:
        table.add_row(
            format_bytes(row["requested_bytes"]),
            Text(row["category"].replace("_", " "), style=_STYLES.get(row["category"], "")),
            Text(printable(row["shape"] or "?", 20)),
            Text(printable_path(row["name"], name_width)),
            Text(printable_path(row["why_alive"], name_width), style="dim"),
        )
    if len(rows) > _ROWS:
        rest = sum(row["requested_bytes"] for row in rows[_ROWS:])
        table.add_row(
            format_bytes(rest), Text(f"{len(rows) - _ROWS} more", style="dim"), "", "", ""
        )
    return Padding(table, (1, 0, 0, 0))


def _layers(document: dict[str, Any], width: int) -> RenderableType | None:
    rows = [row for row in document.get("layers", []) if row["layer"]]
    if not rows:
        return None
    table = plain_table(
        "Layers with the most bytes alive at the peak",
        [
            ("total", "right"),
            ("activation", "right"),
            ("parameter + state", "right"),
            ("layer", "left"),
        ],
    )
    for row in rows[:_ROWS]:
        state = row["parameter"] + row["optimizer_state"] + row["gradient"]
        table.add_row(
            format_bytes(row["total_bytes"]),
            format_bytes(row["activation"]),
            format_bytes(state),
            Text(printable(row["layer"], max(width - 45, 30))),
        )
    return Padding(table, (1, 0, 0, 0))


def _findings(document: dict[str, Any], width: int) -> Iterable[RenderableType]:
    findings = document["findings"]
    if not findings:
        return
    yield Padding(Text("Findings", style="bold"), (1, 0, 0, 0))
    for finding in findings:
        saves = finding["saves_bytes"]
        head = Text.assemble(
            (f"{finding['severity']:>6}  ", _SEVERITIES.get(finding["severity"], "")),
            (printable(finding["title"], 400), "bold" if finding["severity"] == "high" else ""),
            (f"  saves up to {format_bytes(saves)}" if saves else "", "green"),
        )
        yield head
        yield Padding(Text(printable(finding["detail"], 2000), style="dim"), (0, 0, 0, 8))
