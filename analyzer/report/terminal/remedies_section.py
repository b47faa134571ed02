"""Remedies in the terminal: what each saves, and its code whole, to be pasted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from analyzer.model.contract.report.finding import StepRemedy
from analyzer.report.render.terminal import Prose
from analyzer.report.report_words import remedy_words
from analyzer.report.untrusted import printable

_LABEL: Final = 17
"""Cells of the column that says what is saved."""

_LONGEST: Final = 400


def remedies_section(remedies: Sequence[StepRemedy], of: str = "") -> Iterator[RenderableType]:
    """Yield the section, nothing where no remedy was tried.

    Args:
        remedies: The remedies.
        of: The size at which they were tried, such as `` at batch 64``; empty where the report has one.
    """
    if not remedies:
        return
    heading = f"Remedies{of}, each captured and estimated anew"
    yield Padding(Text(heading, style="bold"), (1, 0, 0, 0))
    for remedy in remedies:
        saves, told = remedy_words(remedy)
        label = Text(
            f"{saves:>{_LABEL - 2}}  ", style="green" if (remedy.saves_bytes or 0) > 0 else "dim"
        )
        title = Text.assemble(
            (printable(remedy.title, _LONGEST), "bold"), (f"  {printable(told, _LONGEST)}", "dim")
        )
        yield Prose(title, label)
        if remedy.saves_bytes is None:
            continue
        for line in remedy.code.splitlines():
            code = Text(printable(line, _LONGEST), overflow="fold")
            yield Padding(code, (0, 0, 0, _LABEL))
