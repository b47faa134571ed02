"""One number has one value: the same words carry the same bytes in every output."""

import io
import re
from functools import cache
from pathlib import Path

import pytest
from builders import sample_folder
from rich.console import Console

import analyzer
from analyzer.model.contract.child_messages import WhatIf
from analyzer.report.answer import answer_lines
from analyzer.report.page.build import render, render_inline
from analyzer.report.render.markdown import to_markdown
from analyzer.report.render.terminal import print_terminal
from analyzer.report.report_sections import report_document
from analyzer.session.opening import open_result

NOTES = Path(__file__).parents[1] / "predict" / "notes"
CASES = [
    *((sample_folder(name), None) for name in ("cnn", "eager", "jit", "oom")),
    *((sample_folder(name), 8 << 20) for name in ("cnn", "oom")),
    *((NOTES / name, None) for name in ("accumulation", "gpu", "infer", "jit")),
    *((NOTES / name, 16 << 20) for name in ("gpu", "jit")),
]


@cache
def opened(folder: Path, limit: int | None) -> analyzer.Result:
    return open_result(folder, what_if=WhatIf(memory_limit_bytes=limit))


@cache
def outputs(folder: Path, limit: int | None) -> dict[str, str]:
    """Return each output as plain text, without the marks of Markdown and HTML."""
    result = opened(folder, limit)
    out = io.StringIO()
    print_terminal(
        report_document(result.report), Console(file=out, width=10_000, no_color=True)
    )
    page = render(result.report, result.recording)
    inline = render_inline(result.report)
    return {
        "text": out.getvalue(),
        "markdown": to_markdown(report_document(result.report))
        .replace("\\", "")
        .replace("**", ""),
        "page": plain(
            page[page.index("<main>") : page.index('<script type="text/plain"')]
        ),
        "inline": plain(inline),
    }


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).replace("&#39;", "'").split())


@pytest.mark.parametrize(("folder", "limit"), CASES)
def test_every_output_says_the_same_verdict(folder: Path, limit: int | None) -> None:
    document, shown = opened(folder, limit).document, outputs(folder, limit)
    verdict = document["verdict"]
    lines = answer_lines(opened(folder, limit).report)
    if verdict["outcome"] != "no limit given":
        assert lines[0] == verdict["headline"]
    for name, text in shown.items():
        for line in lines:
            assert line in text, name
    assert shown["text"].splitlines()[:3] == list(lines)
