"""Text of others, in each form of output."""

import io
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from analyzer.model.contract.run_note import StepConfig
from analyzer.report.render.terminal import print_terminal
from analyzer.report.report_sections import report_document
from analyzer.report.untrusted import csv_cell, markdown_code, markdown_text
from analyzer.session.opening import open_result

SAMPLES = Path(__file__).parents[3] / "traces"

FORMULAS = [
    "=1+1",
    "\n=1+1",
    " =1",
    "\u200b=1",
    "\uff1d1+1",
    "\t@x",
    "\r+1",
    "-2",
    "\ufe63x",
]


def test_no_cell_starts_a_formula() -> None:
    assert [csv_cell(text) for text in FORMULAS] == [f"'{text}" for text in FORMULAS]
    others = ["a=b", "[32,-1]", "conv/Conv2D:0", "", "a-b", "x y"]
    assert [csv_cell(text) for text in others] == others


def test_markdown_has_no_mention_no_escape_and_no_direction() -> None:
    told = markdown_text(
        "\x1b[2J @octocat \u202etxt #12 https://x.y <b> [a](b) &lt; ~~x~~"
    )
    for bad in (
        "\x1b",
        "\u202e",
        "@octocat",
        "#12",
        "://x",
        "<b>",
        "[a](",
        " &lt; ",
        "~~x",
    ):
        assert bad not in told
    assert "\x1b" not in markdown_code("a\x1b`|b")


def test_the_step_cannot_speak_to_the_terminal() -> None:
    # GIVEN a report whose step's texts hold escapes and markup
    report = open_result(SAMPLES / "infer", search=False).report
    bad = "\x1b]0;\x07[b]"
    report = replace(report, step=StepConfig(mode=bad, dtype_policy=bad, optimizer=bad))
    out = io.StringIO()
    print_terminal(
        report_document(report),
        Console(file=out, width=100, force_terminal=True, color_system=None),
    )
    assert "\x1b]" not in out.getvalue()
    assert "\x07" not in out.getvalue()
    assert "[b]" in out.getvalue()
