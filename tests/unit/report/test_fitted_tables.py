"""Answers in the terminal: every number whole at every width, and at most 28 lines by default."""

import io
import re

import pytest
from builders import SAMPLES, opened_sample
from msgspec import structs
from rich.console import Console

from analyzer.report.answer import answer_lines
from analyzer.report.render.terminal import print_terminal
from analyzer.report.report_sections import report_document, tensors_section

CUT = re.compile(r"(?<![\w/,.\[:…-])[+-]?\d[\d.,]*…|…[\d.,]+ (?:B|[KMGT]iB)\b")
UNIT_FIRST = re.compile(r"\s*(?:B|[KMGT]iB|%)(?![A-Za-z])")


def lines_of(name: str, width: int, *, is_verbose: bool) -> list[str]:
    document = report_document(opened_sample(name).report)
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as captured:
        print_terminal(document, console, is_verbose=is_verbose)

    return captured.get().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", ["cnn", "transformer", "oom"])
def test_every_number_of_a_report_is_whole(name: str, width: int) -> None:
    shown = lines_of(name, width, is_verbose=True)
    for line in shown:
        assert len(line) <= width or line.startswith("Next: ")
        assert not CUT.search(line), line
    for above, below in zip(shown, shown[1:], strict=False):
        assert not (re.search(r"\d\s*$", above) and UNIT_FIRST.match(below)), above


@pytest.mark.parametrize("name", SAMPLES)
def test_an_answer_has_28_lines_and_repeats_no_sentence(name: str) -> None:
    shown = lines_of(name, 80, is_verbose=False)
    assert len(shown) <= 28
    text = " ".join(" ".join(shown).split())
    for line in answer_lines(opened_sample(name).report):
        assert text.count(line) == 1


@pytest.mark.parametrize(
    ("other", "reason"),
    [("layer_24/MulGrad", "layer_*/MulGrad"), ("TanhGrad", "different ops")],
)
def test_equal_tensors_of_numbered_layers_are_one_row(other: str, reason: str) -> None:
    report = opened_sample("cnn").report
    first = report.tensors_at_peak[0]
    readers = [*(f"layer_{number}/MulGrad" for number in range(23)), other]
    rows = [
        structs.replace(
            first,
            layer=f"block1/layer_{number}/attention",
            why_alive=f"kept for {name}",
        )
        for number, name in enumerate(readers)
    ]
    section = tensors_section(structs.replace(report, tensors_at_peak=tuple(rows)), 5)
    (table,) = section.blocks
    (row,) = table.rows
    assert row[0] == 24 * first.requested_bytes
    assert row[1].startswith("24 x ")
    assert row[3] == "block1/layer_*/attention"
    assert row[5].value == f"kept for {reason}"
