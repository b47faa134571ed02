"""Remedies in the report: their code whole, their names as text, in every output."""

from __future__ import annotations

import io

from builders import sample_folder
from msgspec.structs import replace
from rich.console import Console

from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.subject import StepRemedy
from analyzer.model.contract.report.writing import convert_report, plain_report
from analyzer.report.page.build import render
from analyzer.report.render.markdown import to_markdown
from analyzer.report.render.terminal import print_terminal
from analyzer.report.report_sections import report_document, summary_document
from analyzer.report.summary import remedy_words
from analyzer.session.opening import open_result

MIB = 1 << 20
REMEDIES = (
    StepRemedy(
        id="a",
        title="Another <script>alert(1)</script>\x1b[31m",
        code="first = 1\n    second = 2",
        costs="time",
        saves_bytes=3 * MIB,
        requested_bytes=5 * MIB,
        allocated_bytes=6 * MIB,
        fits=True,
    ),
    StepRemedy(id="b", title="grows", code="x", saves_bytes=-MIB, requested_bytes=9 * MIB),
    StepRemedy(id="c", title="c", code="y", failed="the model has no such layer"),
)


def reported() -> ReportFile:
    return replace(open_result(sample_folder("cnn"), search=False).report, remedies=REMEDIES)


def test_the_json_has_what_each_saves_and_reads_back() -> None:
    report = reported()
    plain = plain_report(report)
    assert [one["saves_bytes"] for one in plain["remedies"]] == [3 * MIB, -MIB, None]  # type: ignore[index,call-overload,union-attr]
    assert convert_report(plain).remedies == REMEDIES


def test_the_text_has_the_code_in_lines_to_paste() -> None:
    stream = io.StringIO()
    print_terminal(report_document(reported()), Console(file=stream, width=80, no_color=True))
    text = stream.getvalue()
    assert "\x1b" not in text
    lines = [line.strip() for line in text.splitlines()]
    assert lines.index("second = 2") == lines.index("first = 1") + 1
    assert "saves 3.00 MiB" in text
    assert "+1.00 MiB" in text
    assert "the model has no such layer" in text
    assert max(map(len, text.splitlines())) <= 80


def test_markdown_shows_names_as_text_and_code_as_code() -> None:
    text = to_markdown(summary_document(reported()))
    assert "<script>" not in text
    assert "      first = 1\n          second = 2\n" in text


def test_the_page_has_the_section_and_runs_nothing_of_it() -> None:
    result = open_result(sample_folder("cnn"), search=False)
    page = render(replace(result.report, remedies=REMEDIES), result.recording)
    assert "What to change" in page
    assert "first = 1\n    second = 2" in page
    assert "<script>alert(1)" not in page
    assert "Remedies" not in render(result.report, result.recording)


def test_a_saving_that_the_order_decides_is_told_as_a_range() -> None:
    def told(low: int, high: int) -> str:
        one = replace(REMEDIES[0], saves_low_bytes=low * MIB, saves_high_bytes=high * MIB)
        return remedy_words(one)[1]

    assert "1.00 MiB to 5.00 MiB less, depending on the order of the ops in a run" in told(1, 5)
    assert "5.00 MiB less to 1.00 MiB more, depending" in told(-1, 5)
    assert "1.00 MiB to 2.00 MiB more, depending" in told(-2, -1)
    assert "depending" not in told(3, 3)
    assert "depending" not in remedy_words(REMEDIES[0])[1]
