"""The document as tables in the terminal. Computes nothing: every number is the document's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from analyzer.report.fitting import whole_numbers
from analyzer.report.integrity import damage_lines, how_measured, replay_line
from analyzer.report.tables import categories_table, layers_table, steps_table, tensors_table
from analyzer.report.untrusted import printable
from analyzer.report.words import highest_words, island_words, saving_words
from analyzer.units import format_bytes

_OUTCOMES: Final = {
    "fits": "bold green",
    "does not fit": "bold red",
    "failed": "bold red",
    "cannot tell": "bold yellow",
}
_SEVERITIES: Final = {"high": "bold red", "medium": "yellow", "low": "cyan", "info": "dim"}


def print_document(document: dict[str, Any], console: Console) -> None:
    """Print the whole report."""
    console.print(render(document, console.width), markup=False)


def render(document: dict[str, Any], width: int = 100) -> RenderableType:
    """Return the report as one renderable, ``width`` columns wide: the answer first, its basis last."""
    parts: list[RenderableType] = [*_head(document), *_peak(document, width)]
    parts.extend(_range(document))
    parts.extend(_need(document))
    parts.extend(_what_if(document))
    parts.append(categories_table(document, width))
    parts.append(steps_table(document, width))
    parts.append(tensors_table(document, width))
    layers = layers_table(document, width)
    if layers is not None:
        parts.append(layers)
    parts.extend(_findings(document, width))
    parts.extend(_basis(document))
    return Group(*map(whole_numbers, parts))


def _head(document: dict[str, Any]) -> Iterable[RenderableType]:
    """Yield the verdict, what to doubt, and what was looked at: three lines."""
    phantom = document.get("phantom")
    if phantom:
        yield Text(printable(phantom["says"], 200), style="bold")
    yield from _damages(document)
    verdict = document["verdict"] or {}
    if verdict.get("limit_bytes") is not None or verdict.get("outcome") == "failed":
        style = _OUTCOMES.get(verdict["outcome"], "bold")
        yield Text(printable(verdict["headline"], 400), style=style)
    if verdict.get("cautions"):
        doubts = "; ".join(printable(each, 200) for each in verdict["cautions"])
        yield Text(f"! Caution: {doubts}", style="yellow")
    target = printable(document["target"].get("text", ""), 60)
    yield Text.assemble((f"{target}  ", "bold"), (_describe_step(document), "dim"))
    error = document["error"]
    if error:
        first = str(error.get("message", "")).splitlines()[:1]
        where = f" at {printable(error['where'], 200)}" if error.get("where") else ""
        yield Text(
            f"The step ended with {printable(error.get('type'), 60)}: "
            f"{printable(first[0] if first else '', 400)}{where}",
            style="bold red",
        )


def _peak(document: dict[str, Any], width: int) -> Iterable[RenderableType]:
    peak, device = document["peak"], document["device"]
    how = how_measured(document)
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
    ever = format_bytes(document["peak_ever"]["allocated_bytes"])
    if ever != format_bytes(peak["allocated_bytes"]):
        yield Text(
            f"Higher outside the steady step: {ever} allocated ({document['peak_ever']['phase']}).",
            style="yellow",
        )


def _damages(document: dict[str, Any]) -> Iterable[RenderableType]:
    """Yield what has to be known before any figure of a damaged trace."""
    for line in damage_lines(document):
        yield Text(f"! {printable(line, 600)}", style="bold yellow")


def _range(document: dict[str, Any]) -> Iterable[RenderableType]:
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
        f"{format_bytes(stated['high_bytes'])}{allocated}"
    )


def _need(document: dict[str, Any]) -> Iterable[RenderableType]:
    waste = document["fragmentation"]
    parts = waste.get("safe_limit_parts")
    if parts is None:
        return
    yield Text(
        f"Needs a memory limit of {format_bytes(waste['safe_limit_bytes'])} = "
        f"{format_bytes(parts['requested_bytes'])} requested{highest_words(document)} + "
        f"{format_bytes(parts['rounding_bytes'])} rounding + "
        f"{format_bytes(parts['unsplit_bytes'])} unsplit chunks + "
        f"{format_bytes(parts['external_bytes'])} fragmentation (replayed{island_words(document)})"
    )


def _basis(document: dict[str, Any]) -> Iterable[RenderableType]:
    """Yield what the figures rest on: warnings, what the range comes from, the card, notes."""
    lines = [(f"! {printable(line, 400)}", "yellow") for line in document["warnings"]]
    because = (document.get("uncertainty") or {}).get("because", ())
    says = (document.get("fit") or {}).get("says", ())
    lines += [(f"- {printable(line, 400)}", "dim") for line in (*says, *because)]
    lines += [(f"· {printable(line, 400)}", "dim") for line in document.get("notes", ())]
    if lines:
        yield Padding(Text("What the figures rest on", style="bold"), (1, 0, 0, 0))
    for line, style in lines:
        yield Text(line, style=style)


def _what_if(document: dict[str, Any]) -> Iterable[RenderableType]:
    if checked := replay_line(document):
        yield Text(printable(checked, 400), style="dim")
    replayed = document["what_if"]
    if replayed is None:
        return
    how = (
        f"limit {format_bytes(replayed['memory_limit_bytes'])}, "
        f"growth {'on' if replayed['growth'] else 'off'}"
    )
    failure = replayed["failure"]
    if failure is None:
        yield Text(
            f"Replayed with {how}: runs, pool {format_bytes(replayed['peak_pool_bytes'])}, "
            f"allocated {format_bytes(replayed['peak_allocated_bytes'])}"
        )
        return
    yield Text(
        f"Replayed with {how}: a request for {format_bytes(failure['requested_bytes'])} does not fit "
        f"beside {format_bytes(failure['in_use_bytes'])} in use, with "
        f"{format_bytes(failure['free_bytes'])} free "
        f"(largest piece {format_bytes(failure['largest_free_bytes'])})",
        style="red",
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


def _findings(document: dict[str, Any], width: int) -> Iterable[RenderableType]:
    findings = document["findings"]
    if not findings:
        return
    yield Padding(Text("Findings", style="bold"), (1, 0, 0, 0))
    for finding in findings:
        head = Text.assemble(
            (f"{finding['severity']:>6}  ", _SEVERITIES.get(finding["severity"], "")),
            (printable(finding["title"], 400), "bold" if finding["severity"] == "high" else ""),
            (f"  {saving_words(finding)}" if finding["saves_bytes"] else "", "green"),
        )
        yield head
        yield Padding(Text(printable(finding["detail"], 2000), style="dim"), (0, 0, 0, 8))
