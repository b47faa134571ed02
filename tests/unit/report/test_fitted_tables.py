"""Numbers in the terminal: whole at every width, whatever has to give way."""

from __future__ import annotations

import io
import re
from functools import cache
from typing import Any

import pytest
from builders import sample_folder
from rich.console import Console, RenderableType

import analyzer
from analyzer.model.units import format_bytes
from analyzer.report.render.terminal import to_terminal
from analyzer.report.report_sections import report_document

WIDTHS = (80, 100, 120, 160)
CUT = re.compile(r"(?<![\w/,.\[:…-])[+-]?\d[\d.,]*…|…[\d.,]+ (?:B|[KMGT]iB)\b")
UNIT_FIRST = re.compile(r"\s*(?:B|[KMGT]iB|%)(?![A-Za-z])")


def lines(part: RenderableType, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as captured:
        console.print(part)
    return captured.get().splitlines()


@cache
def opened(name: str) -> Any:
    if name == "diff":
        return analyzer.diff(sample_folder("infer"), sample_folder("cnn"))
    return analyzer.open_trace(sample_folder(name))


def check_whole(shown: list[str], sizes: list[int | None], width: int) -> None:
    for size in sizes:
        if size is not None:
            text = re.escape(format_bytes(size))
            assert any(
                re.search(rf"(?<![\d.,]){text}(?![\w])", line) for line in shown
            ), size
    for line in shown:
        assert len(line) <= width
        assert not CUT.search(line), line
    for above, below in zip(shown, shown[1:], strict=False):
        assert not (re.search(r"\d\s*$", above) and UNIT_FIRST.match(below)), (
            above,
            below,
        )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["cnn", "transformer", "oom", "lstm"])
def test_every_number_of_a_report_is_whole(name: str, width: int) -> None:
    shown = opened(name).document
    peak = shown["peak"]
    sizes = [peak["requested_bytes"], peak["allocated_bytes"], peak["pool_bytes"]]
    sizes += [size for size in shown["categories_at_peak"].values() if size]
    steps = shown["steps"] if len(shown["steps"]) <= 6 else []
    sizes += [
        step[key] for step in steps for key in ("requested_bytes", "allocated_bytes")
    ]
    sizes += [row["requested_bytes"] for row in shown["tensors_at_peak"][:12]]
    for row in [row for row in shown["layers"] if row["layer"]][:12]:
        state = row["parameter"] + row["optimizer_state"]
        sizes += [row["total_bytes"], row["activation"], state]
    sizes += [finding["saves_bytes"] or None for finding in shown["findings"]]
    check_whole(
        lines(to_terminal(report_document(opened(name).report), width), width),
        sizes,
        width,
    )
